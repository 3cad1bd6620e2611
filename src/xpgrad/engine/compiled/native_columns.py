"""The loop over rows that lie side by side in memory, such as the channels of images; needs llvmlite.

The arrays are (items, width, inner), and a row goes along `width`. Vectors hold one element of each of many
neighbouring rows, so no row is copied, and short rows waste nothing. A block of rows goes through all passes
before the next block: its elements stay in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.arrays import LoopArray
from xpgrad.engine.compiled.llvm_code import INT64 as _INT
from xpgrad.engine.compiled.llvm_code import loop as loop_over
from xpgrad.engine.compiled.llvm_code import variable
from xpgrad.engine.compiled.native_arrays import REDUCTIONS, Pass, RowsLoop
from xpgrad.engine.compiled.native_loops import Reduction, Vectors
from xpgrad.engine.compiled.records import BESIDE, MOST_ROWS, Lines, positions
from xpgrad.engine.compiled.tracing import Emitter, Number
from xpgrad.engine.compiled.translate import Code, Intrinsic

_LINES = positions(Lines)


def column_loop(loop: RowsLoop, real: type[np.floating]) -> Any:
    """The instruction ``run(start, stop, width, inner, together, addresses, numbers)``.

    It takes the blocks start .. stop of `together` neighbouring rows; the last block of an item has fewer.
    """

    def run(
        code: Code, start: Any, stop: Any, width: Any, inner: Any, together: Any, addresses: Any, numbers: Any
    ) -> None:
        start, stop, *sizes = map(code.integer, (start, stop, width, inner, together))
        writer = _BlockWriter(Emitter(code, real), loop, sizes, [*map(code.integer, addresses)], numbers)
        with loop_over(code.builder, stop, start) as block:
            writer.block(block)

    return Intrinsic(run)


class _BlockWriter:
    """Writes the instructions of a loop."""

    def __init__(
        self,
        emitter: Emitter,
        loop: RowsLoop,
        sizes: Sequence[ir.Value],
        addresses: Sequence[ir.Value],
        numbers: Sequence[ir.Value],
    ) -> None:
        self._emitter, self._builder, self._loop = emitter, emitter.builder, loop
        self._width, self._inner, self._together = sizes
        self._numbers = dict(zip(loop.numbers, map(emitter.rounded, numbers), strict=True))
        self._arrays = {}
        for array, address in zip(loop.arrays, addresses, strict=True):
            kind = ir.IntType(32) if array.integers else _INT if array.kind in BESIDE else emitter.type
            self._arrays[array] = self._builder.inttoptr(address, kind.as_pointer())
        # what a pass finds for each row of a block
        names = {name for one in loop.passes for name, use in one.results if use != "each"}
        self._found = {name: self._for_each_row(emitter.type) for name in sorted(names)}
        vectors = [array.name for array in loop.arrays if array.kind not in ("column", "repeated")]
        kept = [name for name in vectors if name not in names]
        self._vectors = Vectors(emitter, [*kept, *self._found])
        self._partial = {
            name: self._for_each_row(kind(emitter).kept_type)
            for one in loop.passes
            for name, kind in self._reductions(one).items()
        }

    def _for_each_row(self, kind: ir.Type) -> ir.Value:
        """Memory for an element of each row."""
        memory = variable(self._builder, ir.ArrayType(kind, MOST_ROWS))
        memory.align = 64
        return self._builder.bitcast(memory, kind.as_pointer())

    def _reductions(self, one: Pass) -> Mapping[str, type[Reduction]]:
        return {name: REDUCTIONS[use] for name, use in one.results if use in REDUCTIONS}

    def block(self, block: ir.Value) -> None:
        """All passes over a block of rows."""
        builder = self._builder
        blocks = builder.udiv(builder.add(self._inner, builder.sub(self._together, _INT(1))), self._together)
        item = builder.udiv(block, blocks)
        first = builder.mul(builder.sub(block, builder.mul(item, blocks)), self._together)
        left = builder.sub(self._inner, first)
        count = builder.select(builder.icmp_signed("<", left, self._together), left, self._together)
        row = builder.add(builder.mul(item, self._inner), first)
        corner = builder.add(builder.mul(item, builder.mul(self._width, self._inner)), first)
        begins = {}
        for array, pointer in self._arrays.items():
            if array.kind in BESIDE:
                begins[array.name] = self._line(array, pointer, item, first)
            elif array.kind != "column":
                begins[array.name] = builder.gep(pointer, [row if array.kind == "row" else corner])
        outputs = {name: begins.pop(name) for name in self._loop.outputs}
        begins |= self._found
        for one in self._loop.passes:
            if one.is_sweep():
                self._sweep(one, begins, count)
            else:
                with loop_over(builder, count) as k:
                    results = [name for name, _ in one.results]
                    self._vectors.element(one.function, self._operands(one), results, begins, k)
        for name, target in outputs.items():
            with loop_over(builder, count) as k:
                builder.store(builder.load(builder.gep(self._found[name], [k])), builder.gep(target, [k]))

    def _line(self, array: LoopArray, pointer: ir.Value, item: ir.Value, first: ir.Value) -> ir.Value:
        """A pointer to an item's first element for the block, if it has a line or one element for it."""
        builder = self._builder
        address = builder.inttoptr(self._number(pointer, _LINES.address), self._emitter.type.as_pointer())
        begin = builder.mul(item, self._number(pointer, _LINES.item))
        return builder.gep(address, [builder.add(begin, first) if array.kind == "lines" else begin])

    def _number(self, pointer: ir.Value, place: int) -> ir.Value:
        return self._builder.load(self._builder.gep(pointer, [_INT(place)]))

    def _operands(self, one: Pass, columns: Mapping[str, Number] | None = None) -> list[Any]:
        """The operands of a pass: numbers, and names of arrays or of what an earlier pass found."""
        elements = {name for each in self._loop.passes for name, use in each.results if use == "each"}
        known: dict[str | None, Any] = {None: None} | dict[str | None, Any](self._numbers)
        known.update(columns or {})
        known |= dict.fromkeys(elements, self._loop.target)
        return [known.get(name, name) for name in one.operands]

    def _sweep(self, one: Pass, begins: Mapping[str, ir.Value], count: ir.Value) -> None:
        """A pass over all elements of the rows."""
        builder, emitter, reductions = self._builder, self._emitter, self._reductions(one)

        def partial(name: str, k: ir.Value) -> Reduction:
            return reductions[name](emitter, builder.gep(self._partial[name], [k]))

        for name in reductions:
            with loop_over(builder, count) as k:
                partial(name, k).begin()
        with loop_over(builder, self._width) as column:
            below = builder.mul(column, self._inner)
            here = dict(begins)
            numbers: dict[str, Number] = {}
            for array, pointer in self._arrays.items():
                if array.kind == "each":
                    here[array.name] = builder.gep(begins[array.name], [below])
                elif array.kind in BESIDE:
                    below_line = builder.mul(column, self._number(pointer, _LINES.line))
                    here[array.name] = builder.gep(begins[array.name], [below_line])
                    if array.kind == "repeated":
                        numbers[array.name] = Number(emitter, builder.load(here[array.name]))
                elif array.kind == "column":
                    numbers[array.name] = Number(emitter, builder.load(builder.gep(pointer, [column])))
            operands = self._operands(one, numbers)
            with loop_over(builder, count) as k:
                results = [partial(name, k) if name in reductions else self._loop.target
                           for name, _ in one.results]  # fmt: skip
                self._vectors.element(one.function, operands, results, here, k)
        for name in reductions:
            with loop_over(builder, count) as k:
                found = emitter.value(partial(name, k).result())
                builder.store(found, builder.gep(self._found[name], [k]))
