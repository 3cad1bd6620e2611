"""Gradients without recurrence: sums over all rows, chunk by chunk after the time loop.

The backward loop (`backward.py`) has written the cotangents of a chunk's products. `PlannedSums.add` reads
in the operator's plan which of their columns meet which rows: for dR the states before each step. The sums
themselves are `GradientSums`, whose products are the engine's (``add_product``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.checked_call import PARAMETERS, Direction
from xpgrad._recurrent.per_sample import square_norms_of_products
from xpgrad._recurrent.plan import BackwardPlan, Group, InputPart
from xpgrad._recurrent.timeline import Chunk


def columns_of(array: Any, columns: slice) -> Any:
    """Some columns, or all."""
    return array if columns == slice(None) else array[:, columns]


class GradientSums:
    """The wanted gradients of one direction, added up over chunks of rows.

    The products of a chunk follow its part of the loop, while its cotangents are in the cache. The next chunk
    reuses their memory. Per-sample gradients take all rows at once. For norms, vectors have per-sample
    gradients, and weights have squared norms.
    """

    def __init__(
        self, call: RecurrentCall, direction: Direction, wanted: frozenset[str], per_sample: bool | str
    ) -> None:
        self.call, self.direction, self.per_sample = call, direction, per_sample
        self.wanted = wanted
        weight = call.arrays.get("sample_weight") if wanted & PARAMETERS else None
        self._factors = None if weight is None else self._factor_rows(weight)
        self._sums: dict[str, Any] = {}
        self._scratch: dict[str, Any] = {}
        self._most, self._like = 0, None
        self._dX: Any = None  # rows that chunks fill
        self._whole_dX: Any = None  # if there is a single chunk

    def chunks(self, width: int, like: Any) -> Iterator[tuple[Chunk, Any]]:
        """Chunks from last to first, each with memory for its cotangents, `width` columns wide."""
        engine, timeline = self.call.engine, self.direction.timeline
        # a single step is not divided: even empty chunks behind it would add its products again
        limit = None if self.per_sample or self.call.T == 1 else engine.chunk(width, like)
        chunks = list(timeline.chunks(limit))
        self._most = max(chunk.most for chunk in chunks)  # a single step may have more than the limit
        self._like = like
        rows = self.scratch("cotangents", width)
        for chunk in chunks:
            yield chunk, rows

    def scratch(self, name: str, width: int) -> Any:
        """Scratch rows by name; every chunk reuses them."""
        if name not in self._scratch:
            self._scratch[name] = self.call.engine.scratch(self._most, width, self._like)
        return self._scratch[name]

    def add_input(self, chunk: Chunk, *factors: tuple[Any, Any]) -> None:
        """Set the chunk's rows of dX, the cotangents times W; several factors need a single chunk."""
        engine = self.call.engine
        if len(factors) > 1:
            for d, W in factors:
                self._whole_dX = engine.add_product(self._whole_dX, d, W)
            return
        [(d, W)] = factors
        if self._dX is None:
            self._dX = engine.rows(self.direction.timeline.rows, W.shape[1], like=W)
        if chunk.rows:
            engine.write_product(d, W, self._dX, chunk.start)

    def _factor_rows(self, weight: Any) -> Any:
        """The samples' weights (N,) as rows (S, 1)."""
        call, timeline = self.call, self.direction.timeline
        alone = call.xp.reshape(weight, (1, call.N, 1))
        return timeline.pack(call.engine.broadcast(alone, (call.T, call.N, 1)))

    def weighted(self, chunk: Chunk, d: Any) -> Any:
        """The chunk's cotangents for the parameters' gradients, times the samples' weights."""
        if self._factors is None:
            return d
        return self.call.engine.scale(d, self._factors[chunk.part, :])

    def add_weight(self, name: str, d: Any, x: Any) -> None:
        """Add to the gradient (out, in) of a weight: rows of cotangents times rows of inputs.

        It is (in, out) if the caller's weights have their axes swapped. Per sample (N, out, in) it is a
        batched product over time; padding is zero in both factors.
        """
        engine, xp = self.call.engine, self.call.xp
        a, b = (x, d) if self._axis(name) else (d, x)
        if self.per_sample:
            a, b = self.direction.timeline.unpack(a), self.direction.timeline.unpack(b)
        if self.per_sample == "norm":
            self._sums[name] = square_norms_of_products(engine, a, b)
        elif self.per_sample:
            self._sums[name] = engine.matmul(xp.permute_dims(a, (1, 2, 0)), xp.permute_dims(b, (1, 0, 2)))
        else:
            self._sums[name] = engine.add_product(self._sums.get(name), a.T, b)

    def _axis(self, name: str) -> int:
        """The gates' axis in a weight's gradient; a part's name begins with the weight's name."""
        return int(name.split(" ")[0] in self.call.swapped)

    def add_weights_before(
        self, parts: Mapping[str, tuple[slice, slice]], d: Any, chunk: Chunk, rows: Any, initial: Any
    ) -> None:
        """Like `add_weight`, with the rows of the previous step, or the initial state at the first step.

        `parts` has columns of the cotangents and of the rows for each part of the weight.
        """
        timeline = self.direction.timeline
        zero = initial is None
        initial = timeline.zeros(rows.shape[1]) if zero else timeline.sort(initial)
        pieces = None if self.per_sample else timeline.pieces_before(rows, initial, chunk)
        if pieces is None:
            pieces = [(slice(None), timeline.previous(rows, initial, chunk))]
        for part, x in pieces:
            of_zeros = x is initial and zero
            for name, (own, columns) in parts.items():
                needless = of_zeros and (len(pieces) > 1 or name in self._sums)
                if not needless:
                    self.add_weight(name, columns_of(d[part, :], own), columns_of(x, columns))

    def add_rows(self, name: str, d: Any) -> None:
        """The sum over all rows (width,), or over the rows of each sample (N, width)."""
        if self.per_sample:
            self._sums[name] = self.call.xp.sum(self.direction.timeline.unpack(d), axis=0)
        else:
            self._add(name, self.call.engine.column_sums(d))

    def add_dots(self, name: str, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Like `add_rows`, for the elementwise product of each pair, concatenated."""
        engine, xp, unpack = self.call.engine, self.call.xp, self.direction.timeline.unpack
        if self.per_sample:
            self._sums[name] = xp.concat([xp.sum(unpack(a * b), axis=0) for a, b in pairs], axis=-1)
        else:
            self._add(name, xp.concat([engine.column_dots(a, b) for a, b in pairs]))

    def _add(self, name: str, sums: Any) -> None:
        self._sums[name] = self._sums[name] + sums if name in self._sums else sums

    def __getitem__(self, name: str) -> Any:
        """A sum, after the last chunk."""
        return self._sums[name]

    def weight(self, *names: str, shift: int = 0) -> Any:
        """The gradient of a weight with these sums as blocks of the gates, rolled by `shift` along them."""
        xp, parts = self.call.xp, [self._sums[name] for name in names]
        if self.per_sample == "norm":
            return sum(parts[1:], start=parts[0])
        axis = self._axis(names[0]) + (1 if self.per_sample else 0)
        whole = parts[0] if len(parts) == 1 else xp.concat(parts, axis=axis)
        return xp.roll(whole, shift, axis=axis) if shift else whole

    def input_rows(self) -> Any:
        """Rows of dX, after the last chunk."""
        return self.call.engine.array(self._dX) if self._whole_dX is None else self._whole_dX


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
