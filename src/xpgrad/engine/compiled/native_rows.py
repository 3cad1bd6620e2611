"""A time loop: its steps, and the loop over the rows and columns of a stage; needs llvmlite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import INT64 as _INT
from xpgrad.engine.compiled.llvm_code import loop
from xpgrad.engine.compiled.native import fields, generated, inside, multiply_rows, share, stack, words
from xpgrad.engine.compiled.native_ahead import ask_rows, forget
from xpgrad.engine.compiled.native_loops import UnorderedSum, Vectors
from xpgrad.engine.compiled.records import Ahead, LoopHead, Rows, length, positions
from xpgrad.engine.compiled.scalar_common import wide_vectors
from xpgrad.engine.compiled.time_loops import FormulaStage, OperandPlace, PrefetchRows, ProductStage, Stage
from xpgrad.engine.compiled.tracing import Emitter, Number
from xpgrad.engine.compiled.translate import Code
from xpgrad.engine.formulas.formula import Span, evaluate

_LOOP, _SPAN, _ROWS = positions(LoopHead), positions(Span), positions(Rows)
_AHEAD = length(Ahead)
_AT = ("first", "now", "before", "local")
_UNIT = 16
"""Threads divide a formula's columns at multiples of this number, at least one vector."""


def time_loop(
    formulas: Sequence[Callable[..., tuple]],
    stages: Sequence[Stage],
    dtype: str,
    marks: int = 0,
    by_stages: bool = False,
) -> Any:
    """The function ``(data, part)`` that runs a time loop.

    `formulas` take traced numbers. With resets the matrix of marks begins at number `marks` of the loop's
    integers.
    """
    real, each = np.dtype(dtype).type, iter(formulas)
    made = tuple(
        _product(stage, real().itemsize)
        if isinstance(stage, ProductStage)
        else _formula(next(each), stage, real, marks)
        for stage in stages
    )
    if by_stages:
        return _stage_of_step(made)
    return _steps(made, sum(len(stage.asked) for stage in stages if isinstance(stage, ProductStage)))


def _steps(stages: tuple, asked: int) -> Any:
    """All stages of all steps, on a part's rows low .. high; products prefetch `asked` ranges of rows."""

    @inside()
    def steps_of_rows(data, part):
        wide_vectors()
        head = fields(data)
        steps, bounds = words(head[_LOOP.spans], head[_LOOP.steps], len(_SPAN)), fields(head[_LOOP.bounds])
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
    """One stage of one step, on all rows and on a part's columns."""

    @inside()
    def stage_of_columns(data, part):
        wide_vectors()
        head = fields(data)
        steps, step = words(head[_LOOP.spans], head[_LOOP.steps], len(_SPAN)), head[_LOOP.step]
        count = steps[step, _SPAN.rows]
        starts = 0, steps[step, _SPAN.now], steps[step, _SPAN.before], steps[step, _SPAN.local]
        ahead = stack(_AHEAD).ctypes.data
        if count > 0:
            for number, stage in enumerate(stages):
                if head[_LOOP.stage] == number:
                    stage(data, count, starts, part, head[_LOOP.parts], (), ahead)

    return stage_of_columns


def _product(stage: ProductStage, itemsize: int) -> Any:
    """The function of a product: ``(data, count, starts, portion, portions, coming, ahead)``.

    It takes the address of the loop's integers, the number of rows, the step's first rows, a portion of the
    columns, the number of rows and the first rows of the next step, and the address of an Ahead.
    """
    begin, source = stage.begin, _AT.index(stage.at)
    asking = tuple(_asking(rows, 1 << number, itemsize) for number, rows in enumerate(stage.asked))

    @inside()
    def product(data, count, starts, portion, portions, coming, ahead):
        head = fields(data)
        forget(ahead)
        for ask in asking:
            ask(ahead, head, count, starts, coming)
        multiply_rows(head, begin, itemsize, count, starts[source], starts[0], portion, portions, ahead)

    return product


def _asking(rows: PrefetchRows, bit: int, itemsize: int) -> Any:
    """The function that adds rows to an Ahead, if they are far."""
    matrix, place, is_coming = rows.matrix, _AT.index(rows.at), rows.coming

    @inside()
    def ask(ahead, head, count, starts, coming):
        if head[_LOOP.far] & bit:
            if is_coming:
                ask_rows(ahead, head, matrix, itemsize, coming[place], coming[0])
            else:
                ask_rows(ahead, head, matrix, itemsize, starts[place], count)

    return ask


def _formula(function: Callable[..., tuple], stage: FormulaStage, real: type[np.floating], marks: int) -> Any:
    """The function of a formula, as `_product`.

    `function` takes traced numbers, and None for absent blocks. `real` is the type of the elements.
    """
    places = [place for place in (*chain(*stage.inputs), *stage.outputs) if place]
    wide = next((place for place in places if not place.of_row), places[0])  # or all matrices have one column

    def of_blocks(*blocks: Any) -> Iterator[Any]:
        values = iter(blocks)
        return evaluate(function, [[*islice(values, len(operand))] for operand in stage.inputs])

    def write(code: Code, arguments: list[Any]) -> None:
        builder, (data, count, *starts, left, right) = code.builder, arguments
        integers = builder.inttoptr(data, _INT.as_pointer())
        at = dict(zip(_AT, starts, strict=True))
        rows = _StageWriter(Emitter(code, real), integers, at, stage, left, marks)
        rows.loop(of_blocks, count, builder.sub(right, left))

    rows = generated(write)

    @inside()
    def formula(data, count, starts, portion, portions, coming, ahead):
        columns = fields(data)[wide.matrix + _ROWS.columns] // wide.blocks
        left, right = share(columns, _UNIT, portion, portions)
        rows(data, count, starts[0], starts[1], starts[2], starts[3], left, right)

    return formula


class _StageWriter:
    """Writes the instructions of one stage."""

    def __init__(
        self,
        emitter: Emitter,
        data: ir.Value,
        starts: dict[str, ir.Value],
        stage: FormulaStage,
        left: ir.Value,
        marks: int,
    ) -> None:
        self._emitter, self._builder, self._data, self._starts = emitter, emitter.builder, data, starts
        self._left, self._marks, self._cut = left, marks, stage.cut
        self._inputs, self._outputs = [*chain(*stage.inputs)], stage.outputs
        self._used = list(dict.fromkeys(place for place in (*self._inputs, *self._outputs) if place))
        vectors = [place for place in self._used if not place.of_row]
        self._vectors = Vectors(emitter, vectors)
        self._matrices = {place.matrix: self._matrix(place.matrix) for place in self._used}
        wide = (vectors or self._used)[0]
        self._width = self._builder.sdiv(self._number(wide.matrix + _ROWS.columns), _INT(wide.blocks))
        self._sums = {place: UnorderedSum(emitter) for place in stage.outputs if place and place.of_row}

    def _number(self, place: int) -> ir.Value:
        return self._builder.load(self._builder.gep(self._data, [_INT(place)]))

    def _matrix(self, place: int) -> tuple[ir.Value, ir.Value]:
        """A pointer to a matrix, and the distance of its rows."""
        address = self._number(place + _ROWS.address)
        pointer = self._builder.inttoptr(address, self._emitter.type.as_pointer())
        return pointer, self._number(place + _ROWS.line)

    def loop(self, function: Callable[..., Iterable[Any]], count: ir.Value, width: ir.Value) -> None:
        """The loop over `count` rows and over `width` columns of each."""
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
        """The formula, with zeros for the blocks that a reset cuts off from this row."""
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
        """A pointer to the first column of a block in a row."""
        builder, (pointer, length) = self._builder, self._matrices[place.matrix]
        begin = _INT(0) if place.of_row else self._left
        if place.at != "every":
            begin = builder.add(begin, builder.mul(builder.add(self._starts[place.at], row), length))
        if place.block:
            begin = builder.add(begin, builder.mul(_INT(place.block), self._width))
        return builder.gep(pointer, [begin])
