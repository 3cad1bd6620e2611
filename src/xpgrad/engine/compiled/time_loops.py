"""Time loops, compiled: a step is one stage after the other, products and formulas."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.formula_code import ScalarFormula, load_with
from xpgrad.engine.compiled.records import NOTHING_AFTER, NOTHING_BEFORE, LoopHead, Rows, length, positions
from xpgrad.engine.formulas.formula import Elementwise, Operand, Product, Span

if TYPE_CHECKING:
    from xpgrad.engine.compiled.machine import Resets

_HEAD, _MATRIX = length(LoopHead), length(Rows)  # integers in front of the matrices, and of each
_AT, _SPAN, _MATRIX_AT = positions(LoopHead), positions(Span), positions(Rows)


class OperandPlace(NamedTuple):
    """Where one of a formula's operands or results is.

    Parameters
    ----------
    matrix : int
        At which of the loop's integers its matrix, a Rows, stands.
    at : str
        The step's rows: ``"first"``, ``"now"``, ``"before"``, ``"local"``; ``"every"`` for the only row.
    block, blocks : int
        Into how many equal blocks the columns are divided, and which of them it is.
    of_row : bool
        Whether there is one number for each row: as a result, the mean over it.
    """

    matrix: int
    at: str
    block: int = 0
    blocks: int = 1
    of_row: bool = False


class FormulaText(NamedTuple):
    """What the generated text depends on of a formula's stage.

    Parameters
    ----------
    formula : ScalarFormula
        The stage's.
    inputs : tuple
        For each operand its vectors, one for each block; None stands for absent ones.
    outputs : tuple
        The vectors of all results.
    """

    formula: ScalarFormula
    inputs: tuple[tuple[OperandPlace | None, ...], ...]
    outputs: tuple[OperandPlace | None, ...]
    cut: tuple[int, ...]
    """Of each of the inputs' vectors the mark of rows that find zeros in its place; 0 for none."""


class ProductText(NamedTuple):
    """What the generated text depends on of a product's stage."""

    at: str
    matrices: int  # at which of the loop's integers they begin


class PrefetchRows(NamedTuple):
    """Rows of a formula that a product asks for while it runs: which matrix, which rows, of which step."""

    matrix: int
    at: str
    coming: bool  # the next step's


class LoopText(NamedTuple):
    """What the generated text of a loop depends on."""

    stages: tuple[FormulaText | ProductText, ...]
    asked: tuple[PrefetchRows, ...]
    dtype: str
    by_stages: bool
    marks: int
    """At which of the integers the matrix of marks stands; 0 where there are no resets."""


def compiled_loop(
    stages: Sequence[Elementwise | Product],
    dtype: str,
    by_stages: bool = False,
    resets: Resets | None = None,
) -> tuple[int, list[Any]]:
    """The address of ``loop(data, part)``, which runs a time loop on one part of the rows; its matrices.

    Parameters
    ----------
    stages : sequence of Elementwise or Product
        What a step does.
    dtype : str
        ``"float32"`` or ``"float64"``.
    by_stages : bool
        Whether each call does one stage of one step, on one part of the columns.
    resets : Resets, optional
        What the loop reads of resets.

    Returns
    -------
    int
        Of a C function. `data` points to a LoopHead, and behind it to the record of each matrix: Panels of a
        weight, Rows of others.
    list
        The matrices, of a product's weight what the engine's ``loop_weight`` returned.
    """
    matrices: list[Any] = []
    cuts = _cuts(stages, resets)
    texts = tuple(_text_of(stage, matrices, next(cuts)) for stage in stages)
    asked = () if by_stages else _asked(texts, matrices)
    marks = 0 if resets is None else _HEAD + _MATRIX * len(matrices)
    matrices += [] if resets is None else [resets.marks]
    loop = LoopText(texts, asked, dtype, by_stages, marks)
    return _compiled_loop(loop), matrices


def _asked(texts: Sequence[FormulaText | ProductText], matrices: Sequence[Any]) -> tuple[PrefetchRows, ...]:
    """What the first product asks for: the rows of formulas that are in no near cache.

    Near are rows that the step before wrote, and rows that it read as those before its own.
    """
    product = next((number for number, text in enumerate(texts) if isinstance(text, ProductText)), None)
    if product is None:
        return ()
    written = {_rows_of(vector, matrices) for text in texts for vector in _vectors(text, inputs=False)}
    before = {_rows_of(v, matrices) for text in texts for v in _vectors(text) if v.at == "before"}
    found: dict[tuple[int, str], PrefetchRows] = {}
    for number in (*range(product, len(texts)), *range(product)):
        for vector in _vectors(texts[number]):
            rows, coming = _rows_of(vector, matrices), number < product
            near = rows in written if vector.at == "before" else rows in before - written
            if not near:
                found.setdefault((rows, vector.at), PrefetchRows(vector.matrix, vector.at, coming))
    return tuple(found.values())


def _vectors(text: FormulaText | ProductText, inputs: bool = True) -> list[OperandPlace]:
    """The vectors of a formula that other steps have elsewhere."""
    if isinstance(text, ProductText):
        return []
    vectors = [*chain(*text.inputs), *text.outputs] if inputs else text.outputs
    return [vector for vector in vectors if vector and vector.at in Span._fields and not vector.of_row]


def _rows_of(vector: OperandPlace, matrices: Sequence[Any]) -> int:
    """Which buffer it belongs to: one buffer may be several of the loop's matrices."""
    return id(matrices[(vector.matrix - _HEAD) // _MATRIX])


def _cuts(stages: Sequence[Elementwise | Product], resets: Resets | None) -> Iterator[tuple[int, ...]]:
    """For each stage the marks of its inputs' vectors, as FormulaText has them.

    A product of what the step before left is as good as that. A buffer that is carried has the cotangents
    from the step after until a stage writes to it.
    """
    products: set[int] = set()
    written: set[int] = set()
    for stage in stages:
        marks: list[int] = []
        if isinstance(stage, Product):
            written.add(id(stage.target))
            if stage.source.at == "before":
                products.add(id(stage.target))
        else:
            for one in stage.inputs:
                mark, own = 0, id(one.rows)
                if resets is not None and one.rows is not None:
                    if one.at == "before" or own in products:
                        mark = NOTHING_BEFORE
                    elif own in resets.carried and own not in written:
                        mark = NOTHING_AFTER
                marks += [mark] * len(one.places)
            written |= {id(one.rows) for one in stage.outputs}
        yield tuple(marks)


def _text_of(
    stage: Elementwise | Product, matrices: list[Any], cut: tuple[int, ...]
) -> FormulaText | ProductText:
    """What the text depends on of a stage, whose matrices become the next ones of the loop's.

    An output that replaces an input must be the same vector in the generated text. As two vectors they would
    overlap, and the loop that LLVM made for that case is not vectorized.
    """
    if isinstance(stage, Product):
        begin = _HEAD + _MATRIX * len(matrices)
        matrices += [stage.source.rows, stage.weight, stage.target]
        return ProductText(stage.source.at, begin)
    places: dict[tuple[int, str], int] = {}

    def vectors(operand: Operand) -> tuple[OperandPlace | None, ...]:
        if operand.rows is None:
            return (None,) * len(operand.places)
        key = id(operand.rows), operand.at
        if key not in places:
            places[key] = _HEAD + _MATRIX * len(matrices)
            matrices.append(operand.rows)
        return tuple(
            OperandPlace(places[key], operand.at, k, operand.blocks, operand.of_row) for k in operand.places
        )

    inputs = tuple(map(vectors, stage.inputs))
    outputs = tuple(chain.from_iterable(map(vectors, stage.outputs)))
    return FormulaText(ScalarFormula.of(stage.formula), inputs, outputs, cut)


@functools.cache
def _compiled_loop(loop: LoopText) -> int:
    formulas = [stage for stage in loop.stages if isinstance(stage, FormulaText)]
    bodies = _bodies(loop.stages, loop.asked, loop.dtype)
    parts = [
        "from xpgrad.engine.compiled.cache import cfunc",
        "from xpgrad.engine.compiled.native import fields, multiply_rows, numbers, share",
        "from xpgrad.engine.compiled.native_ahead import ask_rows, forget, memory",
        "from xpgrad.engine.compiled.native_rows import OperandPlace, rows_loop",
        "from xpgrad.engine.compiled.scalar_common import wide_vectors\n",
        *_formulas(formulas, loop.marks),
        _stage_loop(bodies) if loop.by_stages else _loop(bodies, len(loop.asked)),
    ]
    name = f"{formulas[0].formula.function.__name__.strip('_')}_{loop.dtype}"
    scalars = [stage.formula for stage in formulas]
    return load_with(name, "\n".join(parts), scalars, loop.dtype).loop.address


_UNIT = 16
"""Columns of a formula that are not divided: at least one vector."""


def _formulas(formulas: Sequence[FormulaText], marks: int) -> list[str]:
    """The lines that define ``formula_0`` and so on."""
    return [
        f"formula_{number} = rows_loop(formulas[{number}], {[*one.inputs]}, {[*one.outputs]}, real"
        + (f", {marks}, {[*one.cut]})" if marks else ")")
        for number, one in enumerate(formulas)
    ]


def _bodies(
    stages: Sequence[FormulaText | ProductText], asked: Sequence[PrefetchRows], dtype: str
) -> list[list[str]]:
    """The lines of each stage, on portion number `portion` of the columns, of `portions`."""
    bodies, formulas, itemsize = [], 0, np.dtype(dtype).itemsize
    for stage in stages:
        if isinstance(stage, ProductText):
            arguments = f"head, {stage.matrices}, {itemsize}, count, {stage.at}, first"
            call = f"multiply_rows({arguments}, portion, portions, ahead)"
            bodies.append([*_asking(asked, itemsize), call])
            asked = ()
            continue
        wide = next(v for v in (*chain(*stage.inputs), *stage.outputs) if v and not v.of_row)
        columns = f"head[{wide.matrix + _MATRIX_AT.columns}] // {wide.blocks}"
        bodies.append([
            f"left, right = share({columns}, {_UNIT}, portion, portions)",
            f"formula_{formulas}(data, count, first, now, before, local, left, right)",
        ])  # fmt: skip
        formulas += 1
    return bodies


def _begun(asked: int) -> list[str]:
    """The first lines of a loop, with memory for so many rows that a product asks for."""
    return [
        f"ahead_of_loop = memory({asked})\n\n",
        "@cfunc('void(int64, int64)', ('contract',))",
        "def loop(data, part):",
        "    wide_vectors()",
        "    head = fields(data)",
        f"    steps = numbers(head[{_AT.spans}], head[{_AT.steps}], {length(Span)})",
        "    ahead = ahead_of_loop()",
    ]


def _loop(bodies: Sequence[Sequence[str]], asked: int) -> str:
    """A loop over steps; a step is one stage after the other, on the rows low .. high that are the part's."""
    lines = [
        *_begun(asked),
        "    portion, portions = 0, 1",
        f"    bounds = fields(head[{_AT.bounds}])",
        "    low, high = bounds[part], bounds[part + 1]",
        f"    for step in range(head[{_AT.steps}]):",
        f"        count = min(steps[step, {_SPAN.rows}], high) - low",
        "        if count <= 0:",
        "            continue",
        f"        first, now = low, low + steps[step, {_SPAN.now}]",
        f"        before, local = low + steps[step, {_SPAN.before}], low + steps[step, {_SPAN.local}]",
        *(f"        {line}" for body in bodies for line in body),
    ]
    return "\n".join(lines)


def _stage_loop(bodies: Sequence[Sequence[str]]) -> str:
    """One stage of one step, on all rows and on the columns that are the part's."""
    lines = [
        *_begun(0),
        f"    portion, portions = part, head[{_AT.parts}]",
        f"    step, stage = head[{_AT.step}], head[{_AT.stage}]",
        f"    first, count, now = 0, steps[step, {_SPAN.rows}], steps[step, {_SPAN.now}]",
        f"    before, local = steps[step, {_SPAN.before}], steps[step, {_SPAN.local}]",
        "    if count <= 0:",
        "        return",
    ]
    for number, body in enumerate(bodies):
        lines += [f"    if stage == {number}:", *(f"        {line}" for line in body)]
    return "\n".join(lines)


def _asking(asked: Sequence[PrefetchRows], itemsize: int) -> list[str]:
    """The lines that put rows into `ahead`."""
    lines = ["forget(ahead)"]
    if any(one.coming for one in asked):
        lines.append("coming, later = step, 0")
        lines.append(f"if step + 1 < head[{_AT.steps}]:")
        lines.append(f"    coming, later = step + 1, min(steps[step + 1, {_SPAN.rows}], high) - low")
    for one in asked:
        step, count = ("coming", "later") if one.coming else ("step", "count")
        first = f"low + steps[{step}, {getattr(_SPAN, one.at)}]"
        lines.append(f"ask_rows(ahead, head, {one.matrix}, {itemsize}, {first}, {count})")
    return lines
