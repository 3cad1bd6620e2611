"""The loop over rows and columns of whole arrays; needs llvmlite.

Loops run in short blocks. Each block first prefetches the inputs and the result of the next blocks, so that
memory is always busy. A block ends at a cache line of the result, so that no store touches two lines. With
several passes over short rows, the last pass prefetches the next row instead: the other passes find their
inputs in the caches, and the last one leaves memory no pause. With rows of 4 kB it took 0.83 to 0.95 of the
time; with rows of 128 kB up to 1.25, so these are prefetched by the first pass that reads them.

A large result that the loop does not read is stored past the caches: a block is computed in memory of its own
and then copied. Usual stores first read the result's memory. With arrays of 16 MB they took 1.3 to 1.5 of the
time, and 1.2 to 1.3 of it together with a loop that reads the result next; below 8 MB they are faster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.arrays import LoopArray
from xpgrad.engine.compiled.llvm_code import INT64 as _INT
from xpgrad.engine.compiled.llvm_code import advise, variable
from xpgrad.engine.compiled.llvm_code import loop as loop_over
from xpgrad.engine.compiled.native import settle_memory
from xpgrad.engine.compiled.native_loops import Greatest, Reduction, UnorderedSum, Vectors
from xpgrad.engine.compiled.tracing import Emitter, Number
from xpgrad.engine.compiled.translate import Code, Intrinsic
from xpgrad.engine.compiled.vector_code import prefetch, store_past_caches
from xpgrad.engine.process.memory import LINE

# Bytes of each vector in a block, and from there to the prefetched memory.
_BLOCK_BYTES = 1024
_AHEAD_BYTES = 2 * _BLOCK_BYTES
_TOGETHER_BYTES = 128  # two of the longest vectors
_SHORT_ROW_BYTES = 1 << 14  # the longest row that is prefetched as a whole
_PAST_CACHES_BYTES = 1 << 23  # the least result of a loop that is stored past the caches
REDUCTIONS: Mapping[str, type[Reduction]] = {"sum": UnorderedSum, "max": Greatest}


class Pass(NamedTuple):
    """One pass over a row: a formula on traced numbers.

    `operands` names arrays, earlier results and numbers of the call; None stands for an absent operand.
    `results` has the name and use of each result: "sum" or "max" over the row, "each" for the elements of the
    loop's target, "row" for a number that is computed only from numbers of the row.
    """

    function: Callable[..., tuple]
    operands: Sequence[str | None]
    results: Sequence[tuple[str, str]]

    def is_sweep(self) -> bool:
        """Whether the pass goes over the elements of the row."""
        return any(use != "row" for _, use in self.results)


class RowsLoop(NamedTuple):
    """A loop over rows, with all `passes` for each row.

    All arrays but placed ones are contiguous. `numbers` are the names of a call's numbers, `target` is the
    array for the elements of results, and `outputs` are the arrays for results of the same names, a number
    for each row.
    """

    arrays: Sequence[LoopArray]
    numbers: Sequence[str]
    passes: Sequence[Pass]
    target: str | None
    outputs: Sequence[str]


def array_loop(loop: RowsLoop, real: type[np.floating]) -> Any:
    """The instruction ``run(start, stop, width, addresses, numbers)``: the loop over rows start .. stop.

    `addresses` of the loop's arrays and `numbers`, of 64 bits, are tuples. `real` is the arrays' dtype.
    """

    def run(code: Code, start: Any, stop: Any, width: Any, addresses: Any, numbers: Any) -> None:
        start, stop, width = map(code.integer, (start, stop, width))
        elements = code.builder.mul(code.builder.sub(stop, start), width)
        least = _INT(_PAST_CACHES_BYTES // np.dtype(real).itemsize)
        is_large = code.builder.icmp_signed(">=", elements, least)
        emitter = Emitter(code, real)
        rows = _LoopWriter(emitter, loop, width, [*map(code.integer, addresses)], numbers, is_large)
        with loop_over(code.builder, stop, start) as row:
            rows.row(row)
        with code.builder.if_then(is_large):
            settle_memory.write(code)

    return Intrinsic(run)


class _LoopWriter:
    """Writes the instructions of a loop."""

    def __init__(
        self,
        emitter: Emitter,
        loop: RowsLoop,
        width: ir.Value,
        addresses: Sequence[ir.Value],
        numbers: Sequence[ir.Value],
        is_large: ir.Value,
    ) -> None:
        self._emitter, self._builder, self._loop, self._width = emitter, emitter.builder, loop, width
        self._numbers = dict(zip(loop.numbers, map(emitter.rounded, numbers), strict=True))
        self._arrays = {}
        for array, address in zip(loop.arrays, addresses, strict=True):
            kind = ir.IntType(32) if array.integers else _INT if array.kind == "placed" else emitter.type
            self._arrays[array] = self._builder.inttoptr(address, kind.as_pointer())
        self._vectors = Vectors(emitter, [array.name for array in loop.arrays if array.kind != "row"])
        self._itemsize = np.dtype(emitter.real).itemsize
        self._is_large = is_large
        sweeps = [one for one in loop.passes if one.is_sweep()]
        self._last = sweeps[-1] if len(sweeps) > 1 else None
        self._is_short = self._builder.icmp_signed("<=", width, _INT(_SHORT_ROW_BYTES // self._itemsize))
        block = ir.ArrayType(emitter.type, _BLOCK_BYTES // self._itemsize)
        self._block = variable(self._builder, block)
        self._block.align = LINE

    def row(self, row: ir.Value) -> None:
        """All passes over a row."""
        builder, loop = self._builder, self._loop
        begins = {array.name: self._begin(array, row) for array in self._arrays}
        values: dict[str | None, Any] = {None: None} | dict[str | None, Any](self._numbers)
        for array in loop.arrays:
            if array.kind != "row":
                values[array.name] = array.name
            elif array.name not in loop.outputs:
                values[array.name] = Number(self._emitter, builder.load(begins[array.name]))
        # cached: columns, since the first row, and arrays that an earlier pass read
        near = {array.name for array in loop.arrays if array.kind == "column"}
        for one in loop.passes:
            operands = [values[name] for name in one.operands]
            if one.is_sweep():
                results: Sequence[Any] = self._pass(one, operands, begins, near)
            else:
                results = one.function(*operands)
            for (name, _), result in zip(one.results, results, strict=True):
                values[name] = result
        for name in loop.outputs:
            builder.store(self._emitter.value(values[name]), begins[name])

    def _begin(self, array: LoopArray, row: ir.Value) -> ir.Value:
        """A pointer to the array's first element for a row."""
        if array.kind == "column":
            return self._arrays[array]
        if array.kind == "placed":
            address = self._builder.load(self._builder.gep(self._arrays[array], [row]))
            return self._builder.inttoptr(address, self._emitter.type.as_pointer())
        first = row if array.kind == "row" else self._builder.mul(row, self._width)
        return self._builder.gep(self._arrays[array], [first])

    def _pass(
        self, one: Pass, operands: Sequence[Any], begins: Mapping[str, ir.Value], near: set[str]
    ) -> list[Any]:
        """The results of a pass: the target's name, and numbers of the row."""
        reductions = [REDUCTIONS.get(use) for _, use in one.results]
        totals, parts = ([kind(self._emitter) if kind else None for kind in reductions] for _ in range(2))
        results = [self._loop.target if part is None else part for part in parts]
        # each block has its own parts: LLVM must see where they begin, to make vectors of them
        both = [(total, part) for total, part in zip(totals, parts, strict=True) if total and part]
        read = {name for name in operands if isinstance(name, str)} - near
        target = self._loop.target if None in parts else None
        past = target if target is not None and not self._is_read_from(one) else None
        for total, _ in both:
            total.begin()
        ahead = [begins[name] for name in sorted(read) if name != target]
        following = self._inputs(begins) if one is self._last else []
        goal = begins[target] if target else None
        with self._blocks(ahead, following, goal, past is None) as (low, high):
            for _, part in both:
                part.begin()
            with self._places(past, begins, low, high) as own:
                for column in self._columns(low, high):
                    self._vectors.element(one.function, operands, results, own, column)
            for total, part in both:
                total.merge(part)
        near |= read
        return [self._loop.target if total is None else total.result() for total in totals]

    def _inputs(self, begins: Mapping[str, ir.Value]) -> list[ir.Value]:
        """Pointers to a row of each array that the passes read."""
        read = {name for one in self._loop.passes for name in one.operands}
        arrays = [array.name for array in self._loop.arrays if array.kind == "each"]
        return [begins[name] for name in arrays if name in read]

    def _is_read_from(self, one: Pass) -> bool:
        """Whether this pass or a later one reads the target."""
        passes = self._loop.passes
        names = {name for each in passes for name, use in each.results if use == "each"}
        read = {name for each in passes[passes.index(one) :] for name in each.operands}
        return not read.isdisjoint({*names, self._loop.target})

    @contextlib.contextmanager
    def _places(
        self, target: str | None, begins: Mapping[str, ir.Value], low: ir.Value, high: ir.Value
    ) -> Iterator[Mapping[str, ir.Value]]:
        """Where a block is computed: whole blocks of a target that is not read are copied past the caches."""
        if target is None:
            yield begins
            return
        builder, size = self._builder, self._itemsize
        first = builder.gep(begins[target], [low])
        is_whole = builder.icmp_signed("==", builder.sub(high, low), _INT(_BLOCK_BYTES // size))
        offset = builder.and_(builder.ptrtoint(first, _INT), _INT(LINE - 1))
        starts_line = builder.icmp_signed("==", offset, _INT(0))
        apart = builder.and_(self._is_large, builder.and_(is_whole, starts_line))
        own = builder.bitcast(self._block, first.type)
        yield {**begins, target: builder.select(apart, builder.gep(own, [builder.neg(low)]), begins[target])}
        line = ir.VectorType(self._emitter.type, LINE // size).as_pointer()
        with builder.if_then(apart):
            source, to = builder.bitcast(own, line), builder.bitcast(first, line)
            for k in map(_INT, range(_BLOCK_BYTES // LINE)):
                elements = builder.load(builder.gep(source, [k]), align=LINE)
                store_past_caches(builder, elements, builder.gep(to, [k]), LINE)

    def _columns(self, low: ir.Value, high: ir.Value) -> Iterator[ir.Value]:
        """The loops over a block's columns; the caller writes a formula's instructions into each.

        LLVM can tell that the first loop has only whole vectors, so it adds no loop for remaining elements.
        It interleaves two vectors, instruction by instruction: a formula is a long chain of dependent
        instructions, and a CPU does not look far enough ahead to begin the next vector.
        """
        builder, count = self._builder, self._builder.sub(high, low)
        whole = builder.and_(count, _INT(-_TOGETHER_BYTES // self._itemsize))
        with loop_over(builder, whole) as column:
            yield builder.add(low, column)
            last = builder.block
        advise(last.terminator, "interleave.count", ir.IntType(32)(2))
        with loop_over(builder, high, builder.add(low, whole)) as column:
            yield column

    @contextlib.contextmanager
    def _blocks(
        self, read: Sequence[ir.Value], following: Sequence[ir.Value], target: ir.Value | None, is_read: bool
    ) -> Iterator[tuple[Any, Any]]:
        """A loop over blocks of a row, with their first and last columns; it prefetches memory.

        It is the first one that reads `read`, and asks for the next row of `following` if rows are short.
        `is_read` says whether the loop reads the target, too.
        """
        builder, size = self._builder, self._itemsize
        block, ahead = _INT(_BLOCK_BYTES // size), _INT(_AHEAD_BYTES // size)
        low, high = (variable(builder, _INT) for _ in range(2))
        builder.store(_INT(0), low)
        first = block if target is None else builder.add(block, self._up_to_line(target))
        builder.store(self._least(first, self._width), high)
        head, body, end = (builder.append_basic_block(f"blocks.{name}") for name in ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        builder.cbranch(builder.icmp_signed("<", builder.load(low), self._width), body, end)
        builder.position_at_end(body)
        here = builder.load(low), builder.load(high)
        start, stop = (builder.add(place, ahead) for place in here)
        for pointer in read:
            asked = builder.select(self._is_short, start, stop) if self._last else stop
            self._fetch(pointer, start, asked, write=False)
        for pointer in following:
            left, right = (builder.add(place, self._width) for place in here)
            self._fetch(pointer, left, builder.select(self._is_short, right, left), write=False)
        if target is not None:
            last = stop if is_read else builder.select(self._is_large, start, stop)
            self._fetch(target, start, last, write=True)
        yield here
        builder.store(here[1], low)
        builder.store(self._least(builder.add(here[1], block), self._width), high)
        builder.branch(head)
        builder.position_at_end(end)

    def _least(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._builder.select(self._builder.icmp_signed("<", a, b), a, b)

    def _up_to_line(self, pointer: ir.Value) -> ir.Value:
        """The number of elements before the first full cache line."""
        builder = self._builder
        address = builder.ptrtoint(pointer, _INT)
        return builder.udiv(builder.and_(builder.neg(address), _INT(LINE - 1)), _INT(self._itemsize))

    def _fetch(self, pointer: ir.Value, start: ir.Value, stop: ir.Value, *, write: bool) -> None:
        """Prefetch the cache lines of some elements, which need not exist."""
        line = _INT(LINE // self._itemsize)
        with loop_over(self._builder, stop, start, line) as index:
            prefetch(self._builder, self._builder.gep(pointer, [index]), write)
