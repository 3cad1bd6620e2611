"""Time loops, compiled: a step is a sequence of stages, products and formulas.

`native_rows.time_loop` writes a loop from a ProductStage or a FormulaStage for each stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from xpgrad.engine.compiled.formula_code import ScalarFormula, c_function
from xpgrad.engine.compiled.records import NOTHING_AFTER, NOTHING_BEFORE, LoopHead, Rows, length
from xpgrad.engine.formulas.formula import Elementwise, Operand, Product, Span

if TYPE_CHECKING:
    from xpgrad.engine.compiled.machine import Resets

_HEAD, _MATRIX = length(LoopHead), length(Rows)  # integers before the matrices, and of each matrix


class OperandPlace(NamedTuple):
    """One block of columns of a formula's operand or result.

    Its matrix, a Rows, begins at number `matrix` of the loop's integers. `at` selects the rows of a step:
    "first", "now", "before", "local", or "every" for the only row. The columns are divided into `blocks`
    equal blocks. With `of_row` the matrix has one number for each row: as a result, the mean over the row.
    """

    matrix: int
    at: str
    block: int = 0
    blocks: int = 1
    of_row: bool = False


class PrefetchRows(NamedTuple):
    """Rows of a formula that a product can prefetch: the rows `at` of this step, or of the `coming` step."""

    matrix: int
    at: str
    coming: bool


class ProductStage(NamedTuple):
    """A product of the step's rows `at`; its three matrices begin at number `begin` of the integers."""

    at: str
    begin: int
    asked: tuple[PrefetchRows, ...] = ()


class FormulaStage(NamedTuple):
    """A formula: the blocks of each operand, and the blocks of all results; None stands for an absent block.

    `cut` has for each block of the operands the mark of rows that read zeros instead, or 0.
    """

    inputs: tuple[tuple[OperandPlace | None, ...], ...]
    outputs: tuple[OperandPlace | None, ...]
    cut: tuple[int, ...]


Stage = ProductStage | FormulaStage


def compiled_loop(
    stages: Sequence[Elementwise | Product],
    dtype: str,
    by_stages: bool = False,
    resets: Resets | None = None,
) -> tuple[int, list[Any], int]:
    """The address of ``loop(data, part)``, which runs a time loop on one part of the rows; and its data.

    The data are its matrices, and the number `LoopHead.far`. With `by_stages` each call runs one stage of one
    step on one part of the columns. `data` points to a LoopHead, which the records of the matrices follow:
    Panels of a weight, Rows of other matrices. For a product's weight the matrix is the result of the
    engine's ``loop_weight``.
    """
    matrices: list[Any] = []
    made = [*_made(stages, resets, matrices)]
    first = next((stage for stage in made if isinstance(stage, ProductStage)), None)
    far = 0
    if first and not by_stages:
        number = made.index(first)
        asked = _asked(made, number, matrices)
        made[number] = first._replace(asked=(*asked,))
        far = sum(is_far << k for k, is_far in enumerate(asked.values()))
    marks = 0 if resets is None else _HEAD + _MATRIX * len(matrices)
    matrices += [] if resets is None else [resets.marks]
    formulas = tuple(ScalarFormula(*one.formula.key) for one in stages if isinstance(one, Elementwise))
    text = f"time_loop(formulas, {(*made,)}, {dtype!r}, {marks}, {by_stages})"
    label = f"{formulas[0].function.__name__.strip('_')}_{dtype}"
    arguments, call = "int64 data, int64 part", "made(data, part)"
    return c_function(label, "compiled.native_rows", arguments, call, text, formulas, dtype), matrices, far


def _asked(stages: Sequence[Stage], product: int, matrices: Sequence[Any]) -> dict[PrefetchRows, bool]:
    """The formulas' rows, and whether the first product, stage `product`, prefetches them: no near cache has.

    Rows count as cached if the previous step wrote them, or read them as its previous state. Only the data
    say which rows are far: so a first step from an initial state has the code of the other steps.
    """

    def rows_of(vector: OperandPlace) -> int:
        """The vector's buffer: one buffer may be several of the loop's matrices."""
        return id(matrices[(vector.matrix - _HEAD) // _MATRIX])

    formulas = {number: stage for number, stage in enumerate(stages) if isinstance(stage, FormulaStage)}
    results = {vector for stage in formulas.values() for vector in stage.outputs}
    vectors = [
        (number, vector, rows_of(vector))
        for number in (*range(product, len(stages)), *range(product))
        if number in formulas
        for vector in (*chain(*formulas[number].inputs), *formulas[number].outputs)
        if vector and vector.at in Span._fields and not vector.of_row
    ]
    written = {rows for _, vector, rows in vectors if vector in results}
    before = {rows for _, vector, rows in vectors if vector.at == "before"}
    found: dict[tuple[int, str], PrefetchRows] = {}
    for number, vector, rows in vectors:
        found.setdefault((rows, vector.at), PrefetchRows(vector.matrix, vector.at, number < product))

    def is_far(rows: int, at: str) -> bool:
        return rows not in (written if at == "before" else before - written)

    return {asked: is_far(*key) for key, asked in found.items()}


def _made(
    stages: Sequence[Elementwise | Product], resets: Resets | None, matrices: list[Any]
) -> Iterator[Stage]:
    """The stages for `native_rows`; their matrices are appended to the loop's.

    An output that replaces an input must be the same vector. As two vectors they would overlap, and LLVM
    would not vectorize the loop.
    """
    products: set[int] = set()  # of previous rows, which a reset cuts off like these
    written: set[int] = set()  # by earlier stages: a carried buffer has the next step's cotangents until then

    def mark(operand: Operand) -> int:
        own = id(operand.rows)
        if resets is None or operand.rows is None:
            return 0
        if operand.at == "before" or own in products:
            return NOTHING_BEFORE
        return NOTHING_AFTER if own in resets.carried and own not in written else 0

    def vectors(operand: Operand, places: dict[tuple[int, str], int]) -> tuple[OperandPlace | None, ...]:
        if operand.rows is None:
            return (None,) * len(operand.places)
        key = id(operand.rows), operand.at
        if key not in places:
            places[key] = _HEAD + _MATRIX * len(matrices)
            matrices.append(operand.rows)
        of = (operand.blocks, operand.of_row)
        return tuple(OperandPlace(places[key], operand.at, k, *of) for k in operand.places)

    for stage in stages:
        if isinstance(stage, Product):
            yield ProductStage(stage.source.at, _HEAD + _MATRIX * len(matrices))
            matrices += [stage.source.rows, stage.weight, stage.target]
            written.add(id(stage.target))
            if stage.source.at == "before":
                products.add(id(stage.target))
        else:
            places: dict[tuple[int, str], int] = {}
            inputs, outputs = ([vectors(x, places) for x in of] for of in (stage.inputs, stage.outputs))
            cut = [mark(operand) for operand in stage.inputs for _ in operand.places]
            yield FormulaStage((*inputs,), (*chain(*outputs),), (*cut,))
            written |= {id(one.rows) for one in stage.outputs}
