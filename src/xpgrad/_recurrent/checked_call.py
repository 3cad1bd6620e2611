"""The checks of a recurrent operator's call: attributes, shapes, lengths; its arrays and directions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from xpgrad import engine as engines
from xpgrad._calls.call_arrays import call_arrays
from xpgrad._calls.plans import Asked
from xpgrad._elementwise.activation_formulas import BoundActivation
from xpgrad._operators.arguments import (
    check_arrays,
    check_choice,
    check_given,
    check_lengths,
    check_rank,
    check_shape,
)
from xpgrad._operators.resets import check_with_resets, has_resets
from xpgrad._recurrent.activation_choice import check_clip, choose_activations
from xpgrad._recurrent.timeline import RowOrder

DIRECTIONS = ("forward", "reverse", "bidirectional")
PARAMETERS = frozenset(  # v of a user's cell, the last four of layer normalization
    ("W", "R", "B", "P", "S", "v", "gamma", "beta", "gamma_c", "beta_c")
)

PACKED = frozenset(("X", "H_all", "grad_H_all"))
"""The arrays of packed rows, apart from dX."""
STATE_OPTIONS = ("S", "recurrent_mask", "zoneout_h")
HIDDEN = {"initial_h", "H_all", "grad_H_all", "grad_H_t", *STATE_OPTIONS[1:]}
"""The arrays of the hidden state's width, which a projection changes."""
_OPTIONAL_OVER_TIME = ("grad_H_all", "grad_C_all", "zoneout_h", "zoneout_c")
_SWAPPED = frozenset(("W", "R"))


class Direction(NamedTuple):
    """One direction of a call: its number on the D axes, its rows, its activations."""

    number: int
    timeline: Any
    activations: tuple[BoundActivation, ...]


def units(count: int) -> str:
    """A multiple of H, as messages write it."""
    return "H" if count == 1 else f"{count}H"


class CheckedCall:
    """A checked call of a recurrent sequence operator, its arrays time-major and in the compute dtype.

    Parameters
    ----------
    asked : Asked
        The operator and its arrays, by the operators' names.
    gates : int
        The number of gates: 4 for the LSTM, 3 for the GRU, 1 for the RNN.
    states, cotangents : sequence of str
        The names of initial states, and of cotangents of final states.
    saved : mapping of str to int
        The results over time that the gradient takes, with their widths in units of H.
    direction, layout, clip, activations, activation_alpha, activation_beta
        The operators' attributes.
    defaults : sequence of str
        One direction's activations if none are given.
    gate_order, rows_of, packed, input_major
        See `run_foreign`.
    cell_names : mapping of str to str, optional
        For a single step: maps the sequence's array names to the step's.

    Notes
    -----
    `state_width` is the hidden state's width: H, or the number of S's rows. `order` has the block of each
    gate, `swapped` the weights whose last two axes the caller has swapped.
    """

    heads = 1
    vector_blocks = 0
    state_options: Sequence[str] = STATE_OPTIONS

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
        self._packed = PACKED if packed else frozenset()
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
        self.clip = check_clip(operator, clip)
        self._given = call_arrays(asked, caller_xp, list(floats.values()), names)
        inputs = self._inputs()  # they may have any name
        over_time = {**(saved or {}), **{name: 1 for name in _OPTIONAL_OVER_TIME if name not in inputs}}
        masks = () if "recurrent_mask" in inputs else ("recurrent_mask",)
        sized = {
            name: None if array is None else self._given.sized(name, array) for name, array in floats.items()
        }
        self._check_shapes(direction, sized, over_time, (*states, *cotangents, *masks))
        self._lengths = self._given.lengths(sequence_lens, self._check_lengths)
        choices = choose_activations(
            operator, self.D, activations, activation_alpha, activation_beta, defaults
        )
        self.engine, self.xp = self._given.engine, self._given.engine.xp
        self._lower = self._given.lower
        self.arrays = {name: self._lift(name, array) for name, array in floats.items() if array is not None}
        reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self.directions = [
            Direction(index, self._timeline(backwards), tuple(choices[index]))
            for index, backwards in enumerate(reverse)
        ]

    @property
    def recurrent_blocks(self) -> int:
        """The number of R's blocks."""
        return self.gates

    def _inputs(self) -> Collection[str]:
        """The names of the operands (T, N, width), which both directions share."""
        return ("X",)

    def _timeline(self, reverse: bool) -> RowOrder:
        """The rows of one direction."""
        return self._given.timeline(self.T, self.N, self._lengths, reverse, self.arrays["X"])

    def _is_parameter(self, name: str) -> bool:
        """Whether an array of this name is a parameter; an input may have any name."""
        return name in PARAMETERS and name not in self._inputs()

    # --- checks

    def _needed(self) -> Sequence[str]:
        """The names of the required operands."""
        return ("X", "W", "R")

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
        N, I, H, D = self.N, self.I, self.H, self.D
        check_shape(operator, "W", W, axes["W"], (D, *self._swap("W", (gates * H, I))))
        check_shape(operator, "R", R, axes["R"], (D, *self._swap("R", (gates * H, self.state_width))))
        check_shape(operator, "S", S, "D, proj, H", (D, self.state_width, H))
        check_shape(operator, "B", floats["B"], f"D, {2 * gates}H", (D, 2 * gates * H))
        check_shape(operator, "P", floats.get("P"), "D, 3H", (D, 3 * H))
        check_shape(operator, "sample_weight", floats.get("sample_weight"), "N,", (N,))
        self._check_states(floats, widths, states)

    def _check_states(self, floats: dict[str, Any], widths: Mapping[str, int], states: Sequence[str]) -> None:
        """Check states and arrays over time; a negative width is a number of columns, not a multiple of H."""
        operator, T, N, H, D = self.operator, self.T, self.N, self.H, self.D
        hidden = ("proj" if floats.get("S") is not None else "H"), self.state_width
        for name in states:
            text, size = hidden if name in HIDDEN else ("H", H)
            own = (f"N, D, {text}", (N, D, size)) if self.layout else (f"D, N, {text}", (D, N, size))
            check_shape(operator, name, floats.get(name), *own)
        for name, width in widths.items():
            text, size = (units(width), width * H) if width > 0 else (str(-width), -width)
            if name in HIDDEN:
                text, size = hidden
            axes: tuple[str, tuple[int, ...]]
            if name in self._rows_of:
                axes = f"D, T * N, {text}", (D, T * N, size)
            elif name in self._packed:
                axes = f"T, N, D * {text}", (T, N, D * size)
            elif self.layout:
                axes = f"N, T, D, {text}", (N, T, D, size)
            else:
                axes = f"T, D, N, {text}", (T, D, N, size)
            check_shape(operator, name, floats.get(name), *axes)

    def _check_lengths(self, sequence_lens: Any) -> Any:
        """The lengths as a list, with resets as an array; unchanged if a trace does not know them."""
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
        """Two axes of a weight from the formulas' order to the caller's, or back."""
        first, second = axes
        return (second, first) if name in self.swapped else (first, second)

    def _lift(self, name: str, array: Any) -> Any:
        array = self._given.lift(name, array)
        if name in self.swapped:
            array = self.xp.permute_dims(array, (0, 2, 1))
        if self.layout and not self._is_parameter(name) and name not in ("sample_weight", *self._rows_of):
            axes = {3: (1, 0, 2), 4: (1, 2, 0, 3)}[array.ndim]
            array = self.xp.permute_dims(array, axes)
        return array
