"""What the recurrent operators share: attributes, shapes, directions, layouts, dtypes, weight gradients.

A sequence kernel checks its call once (`RecurrentCall`), then works direction by direction on rows
(`timeline`), and returns arrays in the caller's layout and dtype. An operator defines a step's formulas, and
what goes into the loop and comes out of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from xpgrad import engine as engines
from xpgrad._calls.call_arrays import call_arrays
from xpgrad._calls.plans import Asked
from xpgrad._elementwise.activation_formulas import ONNX_ACTIVATIONS, BoundActivation
from xpgrad._operators.arguments import (
    check_arrays,
    check_choice,
    check_given,
    check_lengths,
    check_number,
    check_rank,
    check_shape,
    is_list,
)
from xpgrad._operators.resets import check_with_resets, has_resets
from xpgrad._recurrent.per_sample import square_norms
from xpgrad._recurrent.timeline import Chunk, MaskedTimeline, RecordedTimeline, Timeline

DIRECTIONS = ("forward", "reverse", "bidirectional")
PARAMETERS = frozenset(  # v of a user's cell, the last four of layer normalization
    ("W", "R", "B", "P", "S", "v", "gamma", "beta", "gamma_c", "beta_c")
)
_LEAST_SAMPLES = 16  # whose norms are computed together: the loop's products need rows

# Arrays over time and states that some calls have, with their widths in units of H; and those of all arrays
# that are as wide as the hidden state, which a projection makes another width.
_OPTIONAL_OVER_TIME = {"grad_H_all": 1, "grad_C_all": 1, "zoneout_h": 1, "zoneout_c": 1}
_OPTIONAL_STATES = ("recurrent_mask",)
_PACKED = frozenset(("X", "H_all", "grad_H_all"))  # what has the rows of a packed sequence, and dX
_SWAPPED = frozenset(("W", "R"))
_HIDDEN = {"initial_h", "H_all", "grad_H_all", "grad_H_t", "zoneout_h", *_OPTIONAL_STATES}


def units(count: int) -> str:
    """So many times H, as messages write it."""
    return "H" if count == 1 else f"{count}H"


class Direction(NamedTuple):
    """One direction of a call: its number on the D axes, its rows, its activations."""

    number: int
    timeline: Any
    activations: tuple[BoundActivation, ...]


class RecurrentCall:
    """A checked call of a recurrent sequence operator, its arrays time-major and in the compute dtype.

    Parameters
    ----------
    asked : Asked
        The operator and its arrays. X, W, R, B, sequence_lens, P, S, recurrent_mask, zoneout_h and zoneout_c
        are as the operators have them, grad_H_all and grad_C_all are cotangents over time, sample_weight (N,)
        is what each sample's gradients are multiplied with.
    gates : int
        How many gates: 4 for the LSTM, 3 for the GRU, 1 for the RNN.
    states, cotangents : sequence of str
        Which of them are initial states, and cotangents of final ones.
    saved : mapping of str to int
        Which of them the forward has made over time, (T, D, N, width), with their widths in units of H.
    direction, layout, clip, activations, activation_alpha, activation_beta
        The operators' attributes.
    defaults : sequence of str
        Names of one direction's activations where none are given.
    gate_order : sequence of int, optional
        Which block each of the operator's gates is, in the rows of W, R and B and in saved gates; ONNX's
        order by default.
    rows_of, packed : sequence of str, bool, optional
        Names of saved arrays that hold rows, and whether X and H_all do; see `run_foreign`.
    input_major : bool, optional
        Whether W and R, and their gradients, have the axis of their inputs before the one of the gates.
    cell_names : mapping of str to str, optional
        For a single step: its own names for those arrays that it calls by another name.

    Attributes
    ----------
    xp, engine
        The namespace and the engine that the kernel computes with.
    T, N, I, H, D : int
        Sizes.
    state_width : int
        Width of the hidden state: H, or what S projects to.
    order : tuple of int
        Which block each gate is.
    swapped : frozenset of str
        Names of weights whose last two axes the caller has swapped.
    directions : list of Direction
        One or two.
    """

    def __init__(
        self,
        asked: Asked,
        gates: int,
        *,
        states: Sequence[str],
        saved: Mapping[str, int] | None = None,
        cotangents: Sequence[str] = (),
        direction: str,
        layout: int,
        clip: Any,
        activations: Sequence[str] | None,
        activation_alpha: Sequence[float] | None,
        activation_beta: Sequence[float] | None,
        defaults: Sequence[str],
        gate_order: Sequence[int] | None = None,
        rows_of: Sequence[str] = (),
        packed: bool = False,
        input_major: bool = False,
        cell_names: Mapping[str, str] | None = None,
    ) -> None:
        operator, arrays = asked.operator, asked.arrays
        self.order = tuple(range(gates)) if gate_order is None else tuple(gate_order)
        self.operator, self.gates, self.layout, self._rows_of = operator, gates, layout, frozenset(rows_of)
        self._packed = _PACKED if packed else frozenset()
        self.swapped = _SWAPPED if input_major else frozenset()
        floats = {name: array for name, array in arrays.items() if name != "sequence_lens"}
        sequence_lens = arrays["sequence_lens"]
        check_given(operator, {name: floats[name] for name in (*self._needed(), *(saved or {}))})
        traced = sequence_lens is not None and engines.is_traced(sequence_lens)
        names = cell_names or {}
        called = {names.get(name, name): array for name, array in floats.items()}
        caller_xp = check_arrays(operator, called, {"sequence_lens": sequence_lens} if traced else None)
        check_choice(operator, "direction", direction, DIRECTIONS)
        check_choice(operator, "layout", layout, (0, 1))
        self.clip = self._check_clip(clip)
        over_time = {**(saved or {}), **_OPTIONAL_OVER_TIME}
        self._check_shapes(direction, floats, over_time, (*states, *cotangents, *_OPTIONAL_STATES))
        self._lengths = self._check_lengths(sequence_lens)
        choices = _choose_activations(
            operator, self.D, activations, activation_alpha, activation_beta, defaults
        )

        self._given = call_arrays(asked, caller_xp, list(floats.values()), names)
        self.engine, self.xp = self._given.engine, self._given.engine.xp
        self._lower = self._given.lower
        self.arrays = {name: self._lift(name, array) for name, array in floats.items() if array is not None}
        reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self.directions = [
            Direction(index, self._timeline(backwards), tuple(choices[index]))
            for index, backwards in enumerate(reverse)
        ]

    def _timeline(self, reverse: bool) -> Timeline | RecordedTimeline | MaskedTimeline:
        """The rows of one direction."""
        return self._given.timeline(self.T, self.N, self._lengths, reverse, self.arrays["X"])

    # --- checks

    def _needed(self) -> Sequence[str]:
        """The names of the operands that may not be left out."""
        return ("X", "W", "R")

    def _inputs(self) -> Collection[str]:
        """The names of the operands (T, N, width) that both directions have in common."""
        return ("X",)

    def _check_clip(self, clip: Any) -> float | None:
        if clip is None:
            return None
        number = check_number(self.operator, "clip", clip)
        if not number > 0:
            raise ValueError(f"{self.operator}: clip is {number}, expected None or a number > 0")
        return number

    def _check_shapes(
        self, direction: str, floats: dict[str, Any], widths: Mapping[str, int], states: Sequence[str]
    ) -> None:
        operator, gates = self.operator, self.gates
        X, W, R = floats["X"], floats["W"], floats["R"]
        check_rank(operator, "X", X, "N, T, I" if self.layout else "T, N, I")
        S = floats.get("S")
        state = "H" if S is None else "proj"
        inputs = {"W": "I", "R": state}
        axes = {name: ", ".join(("D", *self._swap(name, (units(gates), n)))) for name, n in inputs.items()}
        check_rank(operator, "W", W, axes["W"])
        check_rank(operator, "R", R, axes["R"])
        if S is not None:
            check_rank(operator, "S", S, "D, proj, H")
        self.T, self.N = (X.shape[1], X.shape[0]) if self.layout else X.shape[:2]
        self.I, self.D = X.shape[2], 2 if direction == "bidirectional" else 1
        self.state_width = self._swap("R", R.shape[1:])[1]
        self.H = self.state_width if S is None else S.shape[2]
        T, N, I, H, D = self.T, self.N, self.I, self.H, self.D
        check_shape(operator, "W", W, axes["W"], (D, *self._swap("W", (gates * H, I))))
        check_shape(operator, "R", R, axes["R"], (D, *self._swap("R", (gates * H, self.state_width))))
        check_shape(operator, "S", S, "D, proj, H", (D, self.state_width, H))
        check_shape(operator, "B", floats["B"], f"D, {2 * gates}H", (D, 2 * gates * H))
        check_shape(operator, "P", floats.get("P"), "D, 3H", (D, 3 * H))
        check_shape(operator, "sample_weight", floats.get("sample_weight"), "N,", (N,))
        for name in states:
            array = floats.get(name)
            text, size = (state, self.state_width) if name in _HIDDEN else ("H", H)
            if self.layout:
                check_shape(operator, name, array, f"N, D, {text}", (N, D, size))
            else:
                check_shape(operator, name, array, f"D, N, {text}", (D, N, size))
        for name, width in widths.items():
            array = floats.get(name)
            text, size = (state, self.state_width) if name in _HIDDEN else (units(width), width * H)
            if name in self._rows_of:
                check_shape(operator, name, array, f"D, T * N, {text}", (D, T * N, size))
            elif name in self._packed:
                check_shape(operator, name, array, f"T, N, D * {text}", (T, N, D * size))
            elif self.layout:
                check_shape(operator, name, array, f"N, T, D, {text}", (N, T, D, size))
            else:
                check_shape(operator, name, array, f"T, D, N, {text}", (T, D, N, size))

    def _check_lengths(self, sequence_lens: Any) -> Any:
        """The lengths as a list, with resets as an array; as they are where a trace does not know them."""
        if sequence_lens is None:
            return None
        if has_resets(sequence_lens):
            return check_with_resets(self.operator, sequence_lens, self.N, self.T)
        if engines.is_traced(sequence_lens):
            check_shape(self.operator, "sequence_lens", sequence_lens, "N", (self.N,))
            return sequence_lens
        return check_lengths(self.operator, sequence_lens, self.N, self.T)

    # --- between the caller's arrays and the kernel's

    def _swap(self, name: str, axes: Sequence[Any]) -> tuple[Any, Any]:
        """Two axes of a weight in the caller's order, from those of the formulas; and back."""
        first, second = axes
        return (second, first) if name in self.swapped else (first, second)

    def _lift(self, name: str, array: Any) -> Any:
        array = self._given.lift(name, array)
        if name in self.swapped:
            array = self.xp.permute_dims(array, (0, 2, 1))
        if self.layout and name not in (*PARAMETERS, "sample_weight", *self._rows_of):
            axes = {3: (1, 0, 2), 4: (1, 2, 0, 3)}[array.ndim]
            array = self.xp.permute_dims(array, axes)
        return array

    def part(self, name: str, direction: Direction) -> Any:
        """Return an array's part for one direction, None where it was left out.

        (H, ...) of parameters, (N, H) of states, (T, N, width) over time, (T * N, width) of kept rows.
        """
        array = self.arrays.get(name)
        if array is None:
            return None
        return array[:, direction.number, ...] if array.ndim == 4 else array[direction.number, ...]

    def rows(self, name: str, direction: Direction) -> Any:
        """The rows of an array over time, for one direction; None where it was left out."""
        if name in self._packed:
            return self._packed_rows(name, direction)
        if name in self._inputs():
            return direction.timeline.pack(self.arrays[name])
        array = self.part(name, direction)
        if array is None:
            return None
        return (direction.timeline.kept if name in self._rows_of else direction.timeline.pack)(array)

    def _packed_rows(self, name: str, direction: Direction) -> Any:
        """The rows that one direction has in an array with those of a packed sequence."""
        array, timeline = self.arrays.get(name), direction.timeline
        if array is None:
            return None
        rows = timeline.kept(self.xp.reshape(array, (self.T * self.N, array.shape[2])))
        if name != "X" and self.D > 1:
            width = array.shape[2] // self.D
            rows = rows[:, direction.number * width : (direction.number + 1) * width]
        return timeline.turn(rows)

    def wrapped(self, name: str, direction: Direction) -> Any:
        """A row buffer of an array over time, for one direction; None where it was left out."""
        return self.wrap_row(self.rows(name, direction))

    def initial(self, name: str, direction: Direction) -> Any:
        """The sorted state that a direction's carry starts from, zeros where it was left out.

        A cotangent of final states belongs to the sequences' ends, where the backward loop starts.
        """
        state = self.part(name, direction)
        timeline = direction.timeline
        width = self.state_width if name in _HIDDEN else self.H
        if state is None:
            return timeline.zeros(width)
        return timeline.sort_ends(state) if name.startswith("grad_") else timeline.sort(state)

    def bias(self, direction: Direction) -> Any:
        """The sum of input and recurrence biases as one row (1, gates * H), or None."""
        B = self.part("B", direction)
        if B is None:
            return None
        half = self.gates * self.H
        return self.xp.reshape(B[:half] + B[half:], (1, half))

    def wrap_row(self, row: Any) -> Any:
        """A row buffer of one row or of more, None for None."""
        return None if row is None else self.engine.wrap(row)

    def needs_pre_activations(self, gates: Sequence[BoundActivation]) -> bool:
        """Whether the gates' saved outputs do not tell their slopes, so that their inputs must be rebuilt."""
        return self.clip is not None or any(gate.needs_input for gate in gates)

    def gate_products(self, direction: Direction, chunk: Chunk, x: Any, h_prev: Any) -> Any:
        """Rows of W x + R h' for all steps of a chunk at once: what pre-activations are rebuilt from."""
        matmul = self.engine.matmul
        inputs = matmul(x[chunk.part, :], self.part("W", direction).T)
        return inputs + matmul(h_prev, self.part("R", direction).T)

    def _columns(self) -> int:
        """How many values of width H have a cotangent that the parameters' gradients take."""
        return self.gates

    # --- results

    def over_time(self, parts: list[Any]) -> Any:
        """Each direction's rows as one result (T, D, N, width), in the caller's layout and dtype."""
        arrays = [d.timeline.unpack(rows) for d, rows in zip(self.directions, parts, strict=True)]
        array = self.xp.expand_dims(arrays[0], axis=1) if self.D == 1 else self.xp.stack(arrays, axis=1)
        if self.layout:
            array = self.xp.permute_dims(array, (2, 0, 1, 3))
        return self._lower(array)

    def saved(self, name: str, parts: list[Any]) -> Any:
        """The same for a result that is the gradient's, under its name: it may be wanted as rows."""
        if name in self._packed:
            turned = self._turned(parts)
            return self._as_packed(turned[0] if self.D == 1 else self.xp.concat(turned, axis=1))
        if name not in self._rows_of:
            return self.over_time(parts)
        arrays = [d.timeline.keep(rows) for d, rows in zip(self.directions, parts, strict=True)]
        return self._lower(self.xp.stack(arrays) if self.D > 1 else self.xp.expand_dims(arrays[0], axis=0))

    def _turned(self, parts: list[Any]) -> list[Any]:
        """Each direction's rows in the order of a packed sequence."""
        return [d.timeline.turn(rows) for d, rows in zip(self.directions, parts, strict=True)]

    def _as_packed(self, rows: Any) -> Any:
        """Rows of a packed sequence as a result (T, N, width)."""
        whole = self.directions[0].timeline.keep(rows)
        return self._lower(self.xp.reshape(whole, (self.T, self.N, rows.shape[1])))

    def input_gradient(self, parts: list[Any]) -> Any:
        """dX, or that of another input: the sum of the directions' rows."""
        if self._packed:
            turned = self._turned(parts)
            return self._as_packed(turned[0] if self.D == 1 else turned[0] + turned[1])
        arrays = [d.timeline.unpack(rows) for d, rows in zip(self.directions, parts, strict=True)]
        array = arrays[0] if self.D == 1 else arrays[0] + arrays[1]
        if self.layout:
            array = self.xp.permute_dims(array, (1, 0, 2))
        return self._lower(array)

    def states(self, parts: list[Any]) -> Any:
        """Each direction's (N, H), in the order of the batch, as one result (D, N, H)."""
        return self._lower(self.xp.stack(parts, axis=1 if self.layout else 0))

    def gradients(
        self,
        compute: Callable[[RecurrentCall, Direction], dict[str, Any]],
        names: Sequence[str],
        *,
        per_sample: bool | str,
    ) -> list[Any]:
        """The gradients that `compute` gives of a direction by name, as results in the order of `names`.

        None stands for those that it does not give. For norms the batch is taken in parts: what lies between
        the loop and the norms, whole sequences of cotangents, then takes little memory.
        """
        blocks = self._blocks() if per_sample == "norm" and not (self._rows_of or self._packed) else []
        if len(blocks) < 2:
            return self._gradients(compute, names, per_sample)
        self._given.check_parts(self._lengths)
        parts = [self._of_samples(block)._gradients(compute, names, per_sample) for block in blocks]

        def joined(name: str, arrays: Sequence[Any]) -> Any:
            if arrays[0] is None:
                return None
            axis = 0 if self.layout or name in PARAMETERS else 1
            return self._lower(self.xp.concat(arrays, axis=axis))

        return [joined(name, arrays) for name, *arrays in zip(names, *parts, strict=True)]

    def _blocks(self) -> list[slice]:
        """Parts of the batch, whose cotangents a near cache nearly holds; none where one is enough."""
        rows = self.engine.chunk(self._columns() * self.H, self.arrays["X"])
        if rows is None or not self.N:
            return []
        self._given.check_norms(self.N)
        count = -(-self.N // max(_LEAST_SAMPLES, rows // max(self.T, 1)))
        cuts = [self.N * k // count for k in range(count + 1)]
        return [slice(low, high) for low, high in itertools.pairwise(cuts)]

    def _of_samples(self, samples: slice) -> RecurrentCall:
        """The call for some of the samples; its results are not lowered."""
        call = copy(self)
        call.N, call._lower = samples.stop - samples.start, lambda array: array
        if self._lengths is not None:
            call._lengths = self._lengths[samples]

        def part(name: str, array: Any) -> Any:
            if name in PARAMETERS:
                return array
            axis = {1: 0, 3: 1, 4: 2}[array.ndim]
            return array[(*[slice(None)] * axis, samples, ...)]

        call.arrays = {name: part(name, array) for name, array in self.arrays.items()}
        call.directions = [
            direction._replace(timeline=call._timeline(direction.timeline.reverse))
            for direction in self.directions
        ]
        return call

    def by_direction(self, compute: Callable[[Direction], Any]) -> list[Any]:
        """What `compute` returns for each direction; no direction depends on another one."""
        parts = []
        for direction in self.directions:
            with self.engine.lane(direction.number):
                parts.append(compute(direction))
        return parts

    def _gradients(
        self,
        compute: Callable[[RecurrentCall, Direction], dict[str, Any]],
        names: Sequence[str],
        per_sample: bool | str,
    ) -> list[Any]:
        parts = self.by_direction(lambda direction: compute(self, direction))

        def collect(name: str) -> Any:
            values = [part[name] for part in parts if name in part]
            if not values:
                return None
            if name in self._inputs():
                return self.input_gradient(values)
            if name.startswith("initial_"):
                return self.states(values)
            return self._parameters(values, per_sample)

        return [collect(name) for name in names]

    def _parameters(self, parts: list[Any], per_sample: bool | str) -> Any:
        """A parameter gradient of all directions: (D, ...), per sample (N, D, ...), or norms (N, D)."""
        axis = 1 if per_sample else 0
        if per_sample == "norm":  # of weights they come as squares, of vectors not yet
            squares = [square_norms(self.engine, part) if part.ndim == 2 else part for part in parts]
            parts = [self.engine.roots(part) for part in squares]
        if len(parts) == 1:  # no copy: it is a fresh array, and large
            return self._lower(self.xp.expand_dims(parts[0], axis=axis))
        return self._lower(self.xp.stack(parts, axis=axis))


def _choose_activations(
    operator: str,
    D: int,
    names: Sequence[str] | None,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    defaults: Sequence[str],
) -> list[list[BoundActivation]]:
    """Resolve the lists of activations, alphas and betas, a list for each direction."""
    if names is not None and not is_list(names):
        raise TypeError(f"{operator}: activations is {names!r}, expected a list of names")
    chosen = list(defaults) * D if names is None else list(names)
    if len(chosen) != len(defaults) * D:
        raise ValueError(
            f"{operator}: activations has {len(chosen)} names, expected {len(defaults)} for each of "
            f"{D} directions = {len(defaults) * D}"
        )
    for name in chosen:
        if not isinstance(name, str) or name.lower() not in ONNX_ACTIVATIONS:
            known = ", ".join(activation.name for activation in ONNX_ACTIVATIONS.values())
            raise ValueError(f"{operator}: activations has {name!r}, expected one of {known}")
    functions = [ONNX_ACTIVATIONS[name.lower()] for name in chosen]
    alpha = _deal(operator, "activation_alpha", alphas, [function.alpha for function in functions])
    beta = _deal(operator, "activation_beta", betas, [function.beta for function in functions])
    choices = [function.bind(a, b) for function, a, b in zip(functions, alpha, beta, strict=True)]
    count = len(defaults)
    return [choices[d * count : (d + 1) * count] for d in range(D)]


def _deal(
    operator: str, name: str, values: Sequence[float] | None, defaults: list[float | None]
) -> list[float]:
    """Deal the values, in order, to the activations that take one; the rest keep ONNX's defaults."""
    if values is not None and not is_list(values):
        raise TypeError(f"{operator}: {name} is {values!r}, expected a list of numbers")
    numbers = [check_number(operator, name, value) for value in values or ()]
    takers = sum(default is not None for default in defaults)
    if len(numbers) > takers:
        raise ValueError(
            f"{operator}: {name} has {len(numbers)} values, expected at most {takers}, one for each "
            "activation that takes it"
        )
    supply = iter(numbers)
    return [0.0 if default is None else next(supply, default) for default in defaults]
