"""The recorder's time loops: row buffers, the weights of loops, steps, and rows of uneven lengths."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from xpgrad.engine.compiled.machine import LoopSize, LoopWeight, Machine, Resets, TimeLoop
from xpgrad.engine.compiled.products.matrix import compiled_products
from xpgrad.engine.formulas.formula import Elementwise, Product, Span
from xpgrad.engine.process.memory import address_of_kept, line_of
from xpgrad.engine.process.sharing import cuts
from xpgrad.engine.programs.instructions import Location, Quantity, RunTimeLoop, pack
from xpgrad.engine.programs.recorded import CannotRecordError, Recorded, Sizes, check_fixed
from xpgrad.engine.programs.recorded_arithmetic import merged, real_strides
from xpgrad.engine.programs.recorded_images import RecordedImages
from xpgrad.engine.programs.schedule import RowSlice, Schedule, ScheduledChunk, ScheduledSteps, move_rows
from xpgrad.engine.standard import first_row
from xpgrad.engine.symbols import of_numbers


class RecordedLoops(RecordedImages):
    """The recorder's part for time loops.

    `is_full` says whether the lengths, which have resets, are T in all calls.
    """

    def __init__(self, machine: Machine, dtype: Any, is_full: bool) -> None:
        super().__init__(machine, dtype)
        self._is_full = is_full
        self._schedule: Schedule | None = None
        self._carried: dict[int, Recorded] = {}

    # --- row buffers

    def wrap(self, array: Recorded) -> Recorded:
        """The array itself, its rows made contiguous."""
        return self.by_rows(array)

    def rows(self, count: int | Quantity, width: int, like: Any) -> Recorded:
        """New memory."""
        return self.fresh((count, width))

    def scratch(self, count: int | Quantity, width: int, like: Any) -> Recorded:
        """New memory whose rows do not push one another out of the caches."""
        return self.fresh((count, line_of(width, self.dtype.itemsize)))[:, :width]

    def carry(self, array: Recorded) -> Recorded:
        """A copy of the array."""
        result = self.scratch(array.sizes[0], array.shape[1], like=array)
        self.copy(result, array)
        self._carried[id(result)] = result
        return result

    def columns(self, rows: Recorded, start: int, stop: int) -> Recorded:
        """A view."""
        return rows[:, start:stop]

    def array(self, rows: Recorded) -> Recorded:
        """The buffer itself."""
        return rows

    # --- products and sums

    def chunk(self, width: int, like: Any) -> int:
        """As the engine."""
        return self._machine.chunk(width, like)

    def matmul(self, a: Recorded, b: Recorded) -> Recorded:
        """Matrix product, in new memory."""
        if a.ndim != 2 or b.ndim != 2:
            return self.product(a, b)
        result = self.fresh((a.sizes[0], b.sizes[1]))
        self.multiply(result, a, b)
        return result

    product_rows = matmul

    def write_product(self, a: Recorded, b: Recorded, target: Recorded, first: int | Quantity) -> None:
        """Matrix product, into the target's rows."""
        if isinstance(first, Quantity):
            self.multiply(target.part(RowSlice(first, a.sizes[0])), a, b)
        else:
            check_fixed(a)
            self.multiply(target[first : first + a.shape[0], :], a, b)

    def add_product(self, total: Recorded | None, a: Recorded, b: Recorded) -> Recorded:
        """Matrix product, added to the total in place."""
        if total is None:
            return self.matmul(a, b)
        return self.product(a, b, total, add=True)

    def scale(self, array: Recorded, factors: Recorded) -> Recorded:
        """Each row times its factor, in place."""
        strides = (factors.strides[0], 0)
        self.emit_arithmetic("multiply", array, [array, factors.view(factors.offset, array.sizes, strides)])
        return array

    def roots(self, squares: Recorded) -> Recorded:
        """The square roots, in new memory."""
        return self.arithmetic("root", squares)

    # --- loops

    def pack(self, weight: Recorded) -> Recorded:
        """As NumpyEngine.pack."""
        return self.contiguous(weight)

    def loop_weight(self, weight: Recorded, times: int) -> LoopWeight:
        """See NumpyEngine.loop_weight; packing is part of the program."""
        if times == 1 and self._schedule is None:  # a single step's products need no loop
            return LoopWeight(weight)
        functions = compiled_products(self._name)
        *lead, k, n = weight.shape
        source = weight if _is_stack(weight) else self.contiguous(weight)
        _, (steps,) = merged(tuple(lead), [source.strides[:-2]])
        first = source[(*[0] * len(lead), ...)]
        panels = self.fresh((functions.panels(weight.shape),))
        places = [first.place._replace(strides=real_strides(first)), panels.place]
        self._draft.add(pack(functions, (k, n), prod(lead), sum(steps), places, self._team))
        return LoopWeight(weight, panels)

    def scan(
        self, stages: Sequence[Elementwise | Product], steps: np.ndarray | list[Span] | ScheduledSteps
    ) -> None:
        """The time loop, compiled. `steps` are Spans for a single step, whose rows may be a symbol."""
        if (steps.count.most if isinstance(steps, ScheduledSteps) else len(steps)) == 0:
            return
        if isinstance(steps, ScheduledSteps):
            loop = self._machine.time_loop(stages, steps.size(), True, self._resets(steps))
            loop = loop._replace(head=steps.put_into(loop.head, 1 if loop.head.stages else loop.parts))
        elif isinstance(steps, list):
            self._scan_one_step(stages, *steps)
            return
        else:
            loop = self._machine.time_loop(stages, steps, by_stages=True)
        self._draft.add(RunTimeLoop(loop, stages, self._team))

    def _resets(self, steps: ScheduledSteps) -> Resets | None:
        """The resets of a loop: a table that the schedule writes; None without resets."""
        schedule, unit = steps.schedule, self.dtype.itemsize
        marks = schedule.marks(steps.reverse)
        if marks is None or marks.block is None:
            return None
        size = schedule.rows.most * 8 // unit
        table = Recorded(self, Location(marks.block, marks.bytes // unit, (1,)), (size,))
        return Resets(self.xp.reshape(table, (1, -1)), self._carried)

    def _loop_of_one_step(self, stages: Sequence[Elementwise | Product], span: Span) -> TimeLoop:
        """The loop over the rows of a single step."""
        rows = span.rows
        loop = self._machine.time_loop(stages, LoopSize(1, rows, rows))
        kept = _table_of(span), _cuts_of(rows, loop.parts)
        spans, bounds = map(address_of_kept, kept)
        return loop._replace(head=loop.head._replace(spans=spans, bounds=bounds), kept=kept)

    def _scan_one_step(self, stages: Sequence[Elementwise | Product], span: Span) -> None:
        """Run a loop over the rows; or the stages in turn, with products of weights that are not packed."""
        if not any(isinstance(stage, Product) for stage in stages):
            self._draft.add(RunTimeLoop(self._loop_of_one_step(stages, span), stages, self._team))
            return
        for stage in stages:
            if isinstance(stage, Product):
                first = first_row(stage.source, span)
                rows = stage.source.rows[first : first + span.rows, :]
                self._multiply_once(stage.target[: span.rows, :], rows, stage.weight.array)
            else:
                self._scan_one_step([stage], span)

    def _multiply_once(self, target: Recorded, rows: Recorded, weight: Recorded) -> None:
        """Rows times a weight that is not packed; a weight with heads is multiplied block by block."""
        if weight.ndim == 2:
            self.multiply(target, rows, weight)
            return
        blocks, heads, k, n = weight.shape
        sources, targets = self._by_head(rows, heads, k), self._by_head(target, heads, n)
        for block in range(blocks):
            source, to = block % sources.shape[0], block % targets.shape[0]
            self.product(sources[source, ...], weight[block, ...], targets[to, ...], add=block > to)

    def _by_head(self, x: Recorded, heads: int, width: int) -> Recorded:
        """A matrix whose columns are ordered by block and head, as matrices (block, head, rows, width)."""
        parted = x.split_last((x.shape[1] // (heads * width), heads, width))
        return self.xp.permute_dims(parted, (1, 2, 0, 3))

    # --- sequences of uneven lengths

    def schedule(self, lengths: Recorded | None, steps: int, batch: int) -> Schedule:
        """The program's Schedule, which the first call records."""
        if self._schedule is None:
            block, resets = None, 0
            if lengths is not None:
                block, resets = lengths.block, int(lengths.ndim == 2) * (1 + self._is_full)
            itemsize, team = self.dtype.itemsize, self._team
            self._schedule = Schedule(block, steps, batch, resets, itemsize, team)
            self._draft.add(self._schedule)
        return self._schedule

    def move_rows(
        self,
        kind: str,
        array: Recorded,
        sizes: Sizes,
        *,
        reverse: bool = False,
        initial: Recorded | None = None,
        chunk: ScheduledChunk | None = None,
    ) -> Recorded:
        """Rows in another order, in new memory of these sizes; for the rest see `schedule.move_rows`."""
        if self._schedule is None:
            raise CannotRecordError("rows of unknown lengths")
        result = self.fresh(sizes)
        places = [x.place for x in (result, array, initial) if x is not None]
        team, width = self._team, result.shape[-1]
        self._draft.add(move_rows(kind, self._schedule, reverse, places, width, chunk, team, self._name))
        return result


@of_numbers
def _table_of(span: Span) -> np.ndarray:
    return np.asarray([span], dtype=np.int64)


@of_numbers
def _cuts_of(rows: int, parts: int) -> np.ndarray:
    return np.asarray(cuts(rows, parts), dtype=np.int64)


def _is_stack(x: Recorded) -> bool:
    """Whether it consists of matrices at equal distances, each contiguous by rows or by columns."""
    sizes, _ = merged(x.sizes[:-2], [x.strides[:-2]])
    return len(sizes) <= 1 and 1 in real_strides(x[(*[0] * (x.ndim - 2), ...)])
