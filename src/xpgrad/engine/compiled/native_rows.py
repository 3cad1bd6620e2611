"""The loop over rows and columns of a time loop's stage; needs llvmlite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import INT64 as _INT
from xpgrad.engine.compiled.llvm_code import loop
from xpgrad.engine.compiled.native import generated
from xpgrad.engine.compiled.native_loops import UnorderedSum, Vectors
from xpgrad.engine.compiled.records import Rows, positions
from xpgrad.engine.compiled.time_loops import OperandPlace
from xpgrad.engine.compiled.tracing import Emitter, Number
from xpgrad.engine.compiled.translate import Code
from xpgrad.engine.formulas.formula import evaluate

_ROWS = positions(Rows)


def rows_loop(
    function: Callable[..., tuple],
    inputs: Sequence[Sequence[OperandPlace | None]],
    outputs: Sequence[OperandPlace | None],
    real: type[np.floating],
    marks: int = 0,
    cut: Sequence[int] = (),
) -> Any:
    """The function ``(data, count, first, now, before, local, left, right)``: a formula on `count` rows.

    The formula works on traced numbers, with None in place of absent ones; `inputs` says for each operand
    where its blocks are, and `outputs` where all results go. `data` points to the loop's numbers, the others
    are the step's, and the columns of a block from `left` up to `right`. `real` is the type of the matrices'
    elements. With resets the matrix of marks stands at `marks` of the loop's numbers, and `cut` has for each
    input block the mark of rows that find zeros in its place, or 0.
    """

    def of_blocks(*blocks: Any) -> Iterator[Any]:
        """The formula of all blocks, one after the other."""
        numbers = iter(blocks)
        return evaluate(function, [[*islice(numbers, len(operand))] for operand in inputs])

    def write(code: Code, arguments: list[Any]) -> None:
        builder, (data, count, *starts, left, right) = code.builder, arguments
        rows = _StageWriter(
            Emitter(code, real),
            builder.inttoptr(data, _INT.as_pointer()),
            dict(zip(("first", "now", "before", "local"), starts, strict=True)),
            [*chain.from_iterable(inputs)],
            outputs,
            left,
            marks,
            cut,
        )
        rows.loop(of_blocks, count, builder.sub(right, left))

    return generated(write, *["int64"] * 8)


class _StageWriter:
    """Writes the instructions of one stage."""

    def __init__(
        self,
        emitter: Emitter,
        data: ir.Value,
        starts: dict[str, ir.Value],
        inputs: Sequence[OperandPlace | None],
        outputs: Sequence[OperandPlace | None],
        left: ir.Value,
        marks: int,
        cut: Sequence[int],
    ) -> None:
        self._emitter, self._builder, self._data, self._starts = emitter, emitter.builder, data, starts
        self._inputs, self._outputs, self._left = inputs, outputs, left
        self._marks, self._cut = marks, cut
        self._used = list(dict.fromkeys(place for place in (*inputs, *outputs) if place))
        vectors = [place for place in self._used if not place.of_row]
        self._vectors = Vectors(emitter, vectors)
        self._matrices = {place.matrix: self._matrix(place.matrix) for place in self._used}
        wide = vectors[0]
        self._width = self._builder.sdiv(self._number(wide.matrix + _ROWS.columns), _INT(wide.blocks))
        self._sums = {place: UnorderedSum(emitter) for place in outputs if place and place.of_row}

    def _number(self, place: int) -> ir.Value:
        return self._builder.load(self._builder.gep(self._data, [_INT(place)]))

    def _matrix(self, place: int) -> tuple[ir.Value, ir.Value]:
        """Its address as a pointer, and the length of its rows."""
        address = self._number(place + _ROWS.address)
        pointer = self._builder.inttoptr(address, self._emitter.type.as_pointer())
        return pointer, self._number(place + _ROWS.line)

    def loop(self, function: Callable[..., Iterable[Any]], count: ir.Value, width: ir.Value) -> None:
        """One row after the other, of each so many columns."""
        builder, emitter = self._builder, self._emitter
        with loop(builder, count) as row:
            begins = {place: self._begin(place, row) for place in self._used}
            operands: list[Any] = [
                Number(emitter, builder.load(begins[place])) if place and place.of_row else place
                for place in self._inputs
            ]
            for total in self._sums.values():
                total.begin()
            results = [self._sums.get(place, place) if place else None for place in self._outputs]
            uncut = self._uncut(function, row) if any(self._cut) else function
            with loop(builder, width) as column:
                self._vectors.element(uncut, operands, results, begins, column)
            number = Number(emitter, builder.sitofp(width, emitter.type))
            for place, total in self._sums.items():
                builder.store((total.result() / number).value, begins[place])

    def _uncut(self, function: Callable[..., Iterable[Any]], row: ir.Value) -> Callable[..., Iterable[Any]]:
        """The formula, with zeros in the place of what a reset cuts off from this row."""
        builder, emitter = self._builder, self._emitter
        table = builder.inttoptr(self._number(self._marks + _ROWS.address), _INT.as_pointer())
        found = builder.load(builder.gep(table, [builder.add(self._starts["now"], row)]))
        is_cut = {
            mark: builder.icmp_signed("!=", builder.and_(found, _INT(mark)), _INT(0))
            for mark in sorted(set(self._cut) - {0})
        }

        def of_blocks(*numbers: Any) -> Iterable[Any]:
            return function(*(
                Number(emitter, builder.select(is_cut[mark], emitter.value(0.0), number.value))
                if mark and number is not None else number
                for number, mark in zip(numbers, self._cut, strict=True)
            ))  # fmt: skip

        return of_blocks

    def _begin(self, place: OperandPlace, row: ir.Value) -> ir.Value:
        """A pointer to the first of the block's columns in a row."""
        builder, (pointer, length) = self._builder, self._matrices[place.matrix]
        begin = _INT(0) if place.of_row else self._left
        if place.at != "every":
            begin = builder.add(begin, builder.mul(builder.add(self._starts[place.at], row), length))
        if place.block:
            begin = builder.add(begin, builder.mul(_INT(place.block), self._width))
        return builder.gep(pointer, [begin])
