"""A plan's sums for the gradients of input and parameters: which columns are multiplied by which rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from xpgrad._recurrent.gradient_sums import GradientSums, columns_of
from xpgrad._recurrent.plan import BackwardPlan, Group, InputPart
from xpgrad._recurrent.timeline import Chunk


def runs_of(columns: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of consecutive columns: the first column and the length of each."""
    runs: list[tuple[int, int]] = []
    for column in columns:
        if runs and column == sum(runs[-1]):
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((column, 1))
    return runs


class PlannedSums:
    """A plan's sums over the chunks of a backward loop, and the gradients that they become."""

    def __init__(self, plan: BackwardPlan, sums: GradientSums) -> None:
        self._plan, self._sums, self._call, self._direction = plan, sums, sums.call, sums.direction

    def _blocks(self, array: Any, own: range) -> Any:
        """Some blocks of columns."""
        if len(own) == self._plan.columns.blocks:
            return array
        return array[:, own.start * self._call.H : own.stop * self._call.H]

    def add(self, back: Any, chunk: Chunk, columns: Any) -> None:
        """Add the chunk's part, from its cotangents, to the gradients of input and parameters."""
        plan, sums, wanted = self._plan, self._sums, self._sums.wanted
        if "X" in wanted and plan.inputs:
            parts = [(self._blocks(columns, part.columns), self._input_weight(part)) for part in plan.inputs]
            sums.add_input(chunk, *parts)
        own = self._blocks(columns, range(plan.cotangents)) if plan.cotangents else columns
        d = sums.weighted(chunk, own)
        if "W" in wanted:
            for number, part in enumerate(plan.inputs):
                sums.add_weight(f"W {number}", self._blocks(d, part.columns), back.x[chunk.part, :])
        if "R" in wanted:
            for group, (place, _) in zip(plan.groups, plan.products, strict=True):
                self._add_recurrent(back, group, self._blocks(d, place), chunk, columns)
        if plan.vector in wanted:
            for first, count in self._vector_sums:
                sums.add_rows(f"vectors {first}", self._blocks(d, range(first, first + count)))
        for name, add in plan.others.items():
            if name in wanted:
                add(back, chunk, d)

    @cached_property
    def _whole_input_weight(self) -> Any:
        W, shift = self._call.part("W", self._direction), self._plan.shift
        return self._call.xp.roll(W, shift * self._call.H, axis=0) if shift else W

    def _input_weight(self, part: InputPart) -> Any:
        """The part's rows of W."""
        W, rows, H = self._whole_input_weight, part.rows, self._call.H
        return W if rows is None else W[rows.start * H : rows.stop * H, :]

    def _add_recurrent(self, back: Any, group: Group, d: Any, chunk: Chunk, columns: Any) -> None:
        """Add the chunk's part to the gradient of a group's blocks of R."""
        sums, parts, k = self._sums, self._weight_parts(group), group.state
        if k is not None and (k or back.taken is None):
            initial = self._call.part(f"initial_{self._plan.states[k]}", self._direction)
            sums.add_weights_before(parts, d, chunk, back.states(k), initial)
            return
        taken = back.taken if k is not None else self._plan.sources[group.number](back, chunk, columns)
        for name, (rows, own) in parts.items():
            sums.add_weight(name, columns_of(d, rows), columns_of(taken, own))

    def _weight_parts(self, group: Group) -> dict[str, tuple[slice, slice]]:
        """The parts of a group's weight by name: rows, and the columns of the state that they multiply.

        With several heads, each head of each block is a part.
        """
        H, heads = self._call.H, self._call.heads
        if heads == 1:
            return {f"R {group.number}": (slice(None), slice(None))}
        width = H // heads
        return {
            f"R {group.number} {row}": (slice(row, row + width), slice(row % H, row % H + width))
            for row in range(0, len(group.blocks) * H, width)
        }

    @cached_property
    def _vector_sums(self) -> list[tuple[int, int]]:
        """The runs of columns that are summed: each column once, even if several vectors share it."""
        return runs_of(sorted({*self._plan.vectors}))

    def gradients(self) -> dict[str, Any]:
        """The wanted gradients of input and parameters, after the last chunk."""
        plan, sums, call, grads = self._plan, self._sums, self._call, dict[str, Any]()
        wanted, timeline = sums.wanted, self._direction.timeline
        if "X" in wanted:
            grads["X"] = sums.input_rows() if plan.inputs else timeline.zeros(call.I, timeline.rows)
        if "W" in wanted:
            names = (f"W {number}" for number in range(len(plan.inputs)))
            grads["W"] = sums.weight(*names, shift=-plan.shift * call.H)
        if "R" in wanted:
            grads["R"] = self._recurrent_gradient()
        if plan.vector in wanted:
            parts = [self._vector_gradient(first, count) for first, count in runs_of(plan.vectors)]
            grads[plan.vector] = (
                parts[0] if len(parts) == 1 else call.xp.concat(parts, axis=parts[0].ndim - 1)
            )
        return grads | {name: sums[name] for name in plan.others if name in wanted}

    def _recurrent_gradient(self) -> Any:
        """The gradient of R, from the parts of its groups."""
        groups, H = self._plan.groups, self._call.H
        blocks = [block for group in groups for block in group.blocks]
        if self._sums.per_sample == "norm" or blocks == sorted(blocks):
            return self._sums.weight(*(name for group in groups for name in self._weight_parts(group)))
        places = {}
        for group in groups:
            whole = self._sums.weight(*self._weight_parts(group))
            for number, block in enumerate(group.blocks):
                places[block] = whole[..., number * H : (number + 1) * H, :]
        parts = [places[block] for block in sorted(places)]
        return self._call.xp.concat(parts, axis=parts[0].ndim - 2)

    def _vector_gradient(self, first: int, count: int) -> Any:
        """The sums of consecutive columns."""
        H = self._call.H
        start, all_of_it = next(run for run in self._vector_sums if run[0] <= first < sum(run))
        whole = self._sums[f"vectors {start}"]
        if count == all_of_it:
            return whole
        return whole[..., (first - start) * H : (first - start + count) * H]
