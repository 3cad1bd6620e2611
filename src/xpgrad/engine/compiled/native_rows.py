"""A time loop: its steps, and the loop over rows and columns of one stage; needs llvmlite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import INT64 as _INT
from xpgrad.engine.compiled.llvm_code import loop
from xpgrad.engine.compiled.native import fields, generated, inside, multiply_rows, numbers, share, stack
from xpgrad.engine.compiled.native_ahead import ask_rows, forget
from xpgrad.engine.compiled.native_loops import UnorderedSum, Vectors
from xpgrad.engine.compiled.records import Ahead, LoopHead, Rows, length, positions
from xpgrad.engine.compiled.scalar_common import wide_vectors
from xpgrad.engine.compiled.time_loops import OperandPlace
from xpgrad.engine.compiled.tracing import Emitter, Number
from xpgrad.engine.compiled.translate import Code
from xpgrad.engine.formulas.formula import Span, evaluate

_LOOP, _SPAN, _ROWS = positions(LoopHead), positions(Span), positions(Rows)
_AHEAD = length(Ahead)
_AT = ("first", "now", "before", "local")
_UNIT = 16
"""Columns of a formula that are not divided: at least one vector."""


def time_loop(
    formulas: Sequence[Callable[..., tuple]],
    stages: Sequence[tuple],
    dtype: str,
    marks: int = 0,
    by_stages: bool = False,
) -> Any:
    """The function ``(data, part)`` that runs a time loop; for the stages see `time_loops`.

    `formulas` work on traced numbers. With resets the matrix of marks stands at `marks` of the loop's
    integers.
    """
    real, each = np.dtype(dtype).type, iter(formulas)
    made = tuple(
        _product(*about, real().itemsize) if kind == "product" else _formula(next(each), *about, real, marks)
        for kind, *about in stages
    )
    if by_stages:
        return _stage_of_step(made)
    return _steps(made, sum(len(about[-1]) for kind, *about in stages if kind == "product"))


def _steps(stages: tuple, asked: int) -> Any:
    """A step is one stage after the other, on the rows low .. high that are the part's.

    Products ask for so many ranges of rows ahead.
    """

    @inside()
    def steps_of_rows(data, part):
        wide_vectors()
        head = fields(data)
        steps, bounds = numbers(head[_LOOP.spans], head[_LOOP.steps], len(_SPAN)), fields(head[_LOOP.bounds])
        low, high, last = bounds[part], bounds[part + 1], head[_LOOP.steps] - 1
        ahead = stack(_AHEAD + 2 * asked).ctypes.data
        for step in range(head[_LOOP.steps]):
            count = min(steps[step, _SPAN.rows], high) - low
            if count <= 0:
                continue
            now, before = low + steps[step, _SPAN.now], low + steps[step, _SPAN.before]
            starts = low, now, before, low + steps[step, _SPAN.local]
            following = min(step + 1, last)
            later = min(steps[following, _SPAN.rows], high) - low if step < last else 0
            now, before = low + steps[following, _SPAN.now], low + steps[following, _SPAN.before]
            coming = later, now, before, low + steps[following, _SPAN.local]
            for stage in stages:
                stage(data, count, starts, 0, 1, coming, ahead)

    return steps_of_rows


def _stage_of_step(stages: tuple) -> Any:
    """One stage of one step, on all rows and on the columns that are the part's."""

    @inside()
    def stage_of_columns(data, part):
        wide_vectors()
        head = fields(data)
        steps, step = numbers(head[_LOOP.spans], head[_LOOP.steps], len(_SPAN)), head[_LOOP.step]
        count = steps[step, _SPAN.rows]
        starts = 0, steps[step, _SPAN.now], steps[step, _SPAN.before], steps[step, _SPAN.local]
        ahead = stack(_AHEAD).ctypes.data
        if count > 0:
            for number, stage in enumerate(stages):
                if head[_LOOP.stage] == number:
                    stage(data, count, starts, part, head[_LOOP.parts], (), ahead)

    return stage_of_columns


def _product(at: str, begin: int, asked: Sequence[tuple], itemsize: int) -> Any:
    """The stage of a product: ``(data, count, starts, portion, portions, coming, ahead)``.

    It takes the loop's integers, the number of rows, the step's first rows, which portion of the columns, the
    number of rows and the first rows of the next step, and the address of an Ahead.
    """
    source = _AT.index(at)
    asking = tuple(_asking(*one, itemsize) for one in asked)

    @inside()
    def product(data, count, starts, portion, portions, coming, ahead):
        head = fields(data)
        forget(ahead)
        for ask in asking:
            ask(ahead, head, count, starts, coming)
        multiply_rows(head, begin, itemsize, count, starts[source], starts[0], portion, portions, ahead)

    return product


def _asking(matrix: int, at: str, is_coming: bool, itemsize: int) -> Any:
    """The function that puts rows into an Ahead, those of the next step if they are `is_coming`."""
    place = _AT.index(at)

    @inside()
    def ask(ahead, head, count, starts, coming):
        if is_coming:
            ask_rows(ahead, head, matrix, itemsize, coming[place], coming[0])
        else:
            ask_rows(ahead, head, matrix, itemsize, starts[place], count)

    return ask


def _formula(
    function: Callable[..., tuple],
    inputs: Sequence[Sequence[Sequence | None]],
    outputs: Sequence[Sequence | None],
    cut: Sequence[int],
    real: type[np.floating],
    marks: int,
) -> Any:
    """The stage of a formula, as `_product`."""
    read = [[place and OperandPlace(*place) for place in operand] for operand in inputs]
    written = [place and OperandPlace(*place) for place in outputs]
    rows = _rows_loop(function, read, written, real, marks, cut)
    wide = next(place for place in (*chain(*read), *written) if place and not place.of_row)

    @inside()
    def formula(data, count, starts, portion, portions, coming, ahead):
        columns = fields(data)[wide.matrix + _ROWS.columns] // wide.blocks
        left, right = share(columns, _UNIT, portion, portions)
        rows(data, count, starts[0], starts[1], starts[2], starts[3], left, right)

    return formula


def _rows_loop(
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
        values = iter(blocks)
        return evaluate(function, [[*islice(values, len(operand))] for operand in inputs])

    def write(code: Code, arguments: list[Any]) -> None:
        builder, (data, count, *starts, left, right) = code.builder, arguments
        rows = _StageWriter(
            Emitter(code, real),
            builder.inttoptr(data, _INT.as_pointer()),
            dict(zip(_AT, starts, strict=True)),
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
