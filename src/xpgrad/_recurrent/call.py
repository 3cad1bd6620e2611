"""A recurrent operator's call: its arrays as the rows of time loops, and results from rows.

A kernel's call is checked once (`CheckedCall`). The loops of each direction compute on rows (`timeline`).
Results are in the caller's layout and dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from xpgrad._elementwise.activation_formulas import BoundActivation
from xpgrad._recurrent.checked_call import HIDDEN, CheckedCall, Direction
from xpgrad._recurrent.per_sample import square_norms
from xpgrad.engine import Operand

_LEAST_SAMPLES = 16  # the norms of at least these are computed together: the loop's products need rows


class RecurrentCall(CheckedCall):
    """A checked call, see `CheckedCall`, and its rows."""

    # --- operands

    def part(self, name: str, direction: Direction) -> Any:
        """An array's part for one direction; None if it was left out.

        Parameters become (H, ...), states (N, H), arrays over time (T, N, width), kept rows (T * N, width).
        """
        array = self.arrays.get(name)
        if array is None:
            return None
        return array[:, direction.number, ...] if array.ndim == 4 else array[direction.number, ...]

    def rows(self, name: str, direction: Direction) -> Any:
        """The rows of an array over time, for one direction; None if it was left out."""
        if name in self._packed:
            return self._packed_rows(name, direction)
        if name in self._inputs():
            return direction.timeline.pack(self.arrays[name])
        array = self.part(name, direction)
        if array is None:
            return None
        return (direction.timeline.kept if name in self._rows_of else direction.timeline.pack)(array)

    def _packed_rows(self, name: str, direction: Direction) -> Any:
        """One direction's rows of a packed sequence."""
        array, timeline = self.arrays.get(name), direction.timeline
        if array is None:
            return None
        rows = timeline.kept(self.xp.reshape(array, (self.T * self.N, array.shape[2])))
        if name != "X" and self.D > 1:
            width = array.shape[2] // self.D
            rows = rows[:, direction.number * width : (direction.number + 1) * width]
        return timeline.turn(rows)

    def wrapped(self, name: str, direction: Direction) -> Any:
        """A row buffer of an array over time, for one direction; None if it was left out."""
        rows = self.rows(name, direction)
        return None if rows is None else self.engine.wrap(rows)

    def initial(self, name: str, direction: Direction) -> Any:
        """The sorted state from which a direction's loop starts; zeros if it was left out.

        A cotangent of final states belongs to the sequences' ends, where the backward loop starts.
        """
        state = self.part(name, direction)
        timeline = direction.timeline
        if state is None:
            return timeline.zeros(self.state_width if name in HIDDEN else self.H)
        return timeline.sort_ends(state) if name.startswith("grad_") else timeline.sort(state)

    def bias_operand(self, direction: Direction, wanted: bool = True) -> Operand:
        """The sum of input and recurrence biases as one row, if it is given and wanted."""
        B, half = self.part("B", direction) if wanted else None, self.gates * self.H
        row = None if B is None else self.engine.wrap(self.xp.reshape(B[:half] + B[half:], (1, half)))
        return Operand(row, self.gates, "every", self.order if self.gates > 1 else None)

    def needs_pre_activations(self, gates: Sequence[BoundActivation]) -> bool:
        """Whether slopes need the gates' inputs, because the saved outputs do not determine them."""
        return self.clip is not None or any(gate.needs_input for gate in gates)

    # --- results

    def saved(self, name: str, parts: list[Any]) -> Any:
        """Each direction's rows as one result (T, D, N, width), or as rows if the caller wants rows."""
        if name in self._packed:
            turned = self._turned(parts)
            return self._as_packed(turned[0] if self.D == 1 else self.xp.concat(turned, axis=1))
        if name in self._rows_of:
            arrays = [d.timeline.keep(rows) for d, rows in zip(self.directions, parts, strict=True)]
            return self._lower(
                self.xp.stack(arrays) if self.D > 1 else self.xp.expand_dims(arrays[0], axis=0)
            )
        arrays = [d.timeline.unpack(rows) for d, rows in zip(self.directions, parts, strict=True)]
        array = self.xp.expand_dims(arrays[0], axis=1) if self.D == 1 else self.xp.stack(arrays, axis=1)
        if self.layout:
            array = self.xp.permute_dims(array, (2, 0, 1, 3))
        return self._lower(array)

    def _turned(self, parts: list[Any]) -> list[Any]:
        """Each direction's rows in the order of a packed sequence."""
        return [d.timeline.turn(rows) for d, rows in zip(self.directions, parts, strict=True)]

    def _as_packed(self, rows: Any) -> Any:
        """Rows of a packed sequence as a result (T, N, width)."""
        whole = self.directions[0].timeline.keep(rows)
        return self._lower(self.xp.reshape(whole, (self.T, self.N, rows.shape[1])))

    def input_gradient(self, parts: list[Any]) -> Any:
        """The gradient of X or of another input: the sum of the directions' rows."""
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

    def by_direction(self, compute: Callable[[Direction], Any]) -> list[Any]:
        """The results of `compute` for each direction; the directions are independent."""
        parts = []
        for direction in self.directions:
            with self.engine.lane(direction.number):
                parts.append(compute(direction))
        return parts

    def results(self, found: Mapping[str, list[Any]], per_sample: bool | str) -> dict[str, Any]:
        """Gradients by name, from the gradients of each direction."""
        results = {}
        for name, values in found.items():
            if name in self._inputs():
                results[name] = self.input_gradient(values)
            elif name.startswith("initial_"):
                results[name] = self.states(values)
            else:
                results[name] = self._parameters(values, per_sample)
        return results

    def _parameters(self, parts: list[Any], per_sample: bool | str) -> Any:
        """A parameter gradient of all directions: (D, ...), per sample (N, D, ...), or norms (N, D)."""
        axis = 1 if per_sample else 0
        if per_sample == "norm":  # the parts are squared norms of weights, and gradients of vectors
            squares = [square_norms(self.engine, part) if part.ndim == 2 else part for part in parts]
            parts = [self.engine.roots(part) for part in squares]
        if len(parts) == 1:  # no copy: it is a fresh array, and large
            return self._lower(self.xp.expand_dims(parts[0], axis=axis))
        return self._lower(self.xp.stack(parts, axis=axis))

    # --- parts of the batch

    def in_parts(self) -> list[RecurrentCall]:
        """The call for parts of the batch whose cotangents about fit a near cache; or only itself."""
        blocks = [] if self._rows_of or self._packed else self._blocks()
        if len(blocks) < 2:
            return [self]
        self._given.check_parts(self._lengths)
        return [self._of_samples(block) for block in blocks]

    def join(self, name: str, arrays: Sequence[Any]) -> Any:
        """A result of all samples, from the results of parts of the batch."""
        axis = 0 if self.layout or self._is_parameter(name) else 1
        return self._lower(self.xp.concat(arrays, axis=axis))

    def _blocks(self) -> list[slice]:
        """Slices of the batch; none if one is enough."""
        rows = self.engine.chunk(self._columns() * self.H, self.arrays["X"])
        if rows is None or not self.N:
            return []
        self._given.check_norms(self.N)
        count = -(-self.N // max(_LEAST_SAMPLES, rows // max(self.T, 1)))
        cuts = [self.N * k // count for k in range(count + 1)]
        return [slice(low, high) for low, high in itertools.pairwise(cuts)]

    def _of_samples(self, samples: slice) -> RecurrentCall:
        """The call for some samples; its results are not lowered."""
        call = copy(self)
        call.N, call._lower = samples.stop - samples.start, lambda array: array
        if self._lengths is not None:
            call._lengths = self._lengths[samples]

        def part(name: str, array: Any) -> Any:
            if self._is_parameter(name):
                return array
            axis = {1: 0, 3: 1, 4: 2}[array.ndim]
            return array[(*[slice(None)] * axis, samples, ...)]

        call.arrays = {name: part(name, array) for name, array in self.arrays.items()}
        call.directions = [
            direction._replace(timeline=call._timeline(direction.timeline.reverse))
            for direction in self.directions
        ]
        return call

    def _columns(self) -> int:
        """The number of values of width H whose cotangents the parameters' gradients take."""
        return self.gates
