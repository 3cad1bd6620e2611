"""Time loops, compiled: a step is one stage after the other, products and formulas.

`native_rows.time_loop` writes a loop. It reads of each stage a tuple: ``("product", at, begin, asked)``, the
step's rows, at which of the loop's integers the matrices begin, and which rows it asks for ahead, or
``("formula", inputs, outputs, cut)``. Of a formula's operands and results these are the vectors, one for each
block; None stands for absent ones. `cut` has for each of the inputs' vectors the mark of rows that find zeros
in its place; 0 for none.
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

_HEAD, _MATRIX = length(LoopHead), length(Rows)  # integers in front of the matrices, and of each


class OperandPlace(NamedTuple):
    """Where one of a formula's operands or results is.

    Its matrix, a Rows, stands at number `matrix` of the loop's integers. `at` says which rows of the step:
    "first", "now", "before", "local", or "every" for the only row. The columns are divided into equal blocks,
    of which it is one. With `of_row` there is one number for each row: as a result, the mean over it.
    """

    matrix: int
    at: str
    block: int = 0
    blocks: int = 1
    of_row: bool = False


class PrefetchRows(NamedTuple):
    """Rows of a formula that a product asks for while it runs: which matrix, which rows, of which step."""

    matrix: int
    at: str
    coming: bool  # the next step's


def compiled_loop(
    stages: Sequence[Elementwise | Product],
    dtype: str,
    by_stages: bool = False,
    resets: Resets | None = None,
) -> tuple[int, list[Any]]:
    """The address of ``loop(data, part)``, which runs a time loop on one part of the rows; its matrices.

    With `by_stages` each call does one stage of one step, on one part of the columns. `data` points to a
    LoopHead, and behind it to the record of each matrix: Panels of a weight, Rows of others. Of a product's
    weight the matrix is what the engine's ``loop_weight`` returned.
    """
    matrices: list[Any] = []
    cuts = _cuts(stages, resets)
    texts = [_text_of(stage, matrices, next(cuts)) for stage in stages]
    first = next((number for number, (kind, *_) in enumerate(texts) if kind == "product"), None)
    if first is not None and not by_stages:
        texts[first] = (*texts[first][:3], tuple((*one,) for one in _asked(texts, matrices)))
    marks = 0 if resets is None else _HEAD + _MATRIX * len(matrices)
    matrices += [] if resets is None else [resets.marks]
    formulas = tuple(ScalarFormula.of(one.formula) for one in stages if isinstance(one, Elementwise))
    made = f"time_loop(formulas, {(*texts,)}, {dtype!r}, {marks}, {by_stages})"
    label = f"{formulas[0].function.__name__.strip('_')}_{dtype}"
    arguments, call = "int64 data, int64 part", "made(data, part)"
    return c_function(label, "compiled.native_rows", arguments, call, made, formulas, dtype), matrices


def _asked(texts: Sequence[tuple], matrices: Sequence[Any]) -> tuple[PrefetchRows, ...]:
    """What the first product asks for: the rows of formulas that are in no near cache.

    Near are rows that the step before wrote, and rows that it read as those before its own.
    """
    product = [kind for kind, *_ in texts].index("product")
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


def _vectors(text: tuple, inputs: bool = True) -> list[OperandPlace]:
    """The vectors of a formula that other steps have elsewhere."""
    kind, read, written, *_ = text
    places = [] if kind == "product" else [*chain(*read), *written] if inputs else written
    vectors = [OperandPlace(*place) for place in places if place]
    return [vector for vector in vectors if vector.at in Span._fields and not vector.of_row]


def _rows_of(vector: OperandPlace, matrices: Sequence[Any]) -> int:
    """Which buffer it belongs to: one buffer may be several of the loop's matrices."""
    return id(matrices[(vector.matrix - _HEAD) // _MATRIX])


def _cuts(stages: Sequence[Elementwise | Product], resets: Resets | None) -> Iterator[tuple[int, ...]]:
    """For each stage the marks of its inputs' vectors, see above.

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


def _text_of(stage: Elementwise | Product, matrices: list[Any], cut: tuple[int, ...]) -> tuple[Any, ...]:
    """A stage as a tuple; its matrices become the next ones of the loop's.

    An output that replaces an input must be the same vector in the generated text. As two vectors they would
    overlap, and the loop that LLVM made for that case is not vectorized.
    """
    if isinstance(stage, Product):
        begin = _HEAD + _MATRIX * len(matrices)
        matrices += [stage.source.rows, stage.weight, stage.target]
        return "product", stage.source.at, begin, ()
    places: dict[tuple[int, str], int] = {}

    def vectors(operand: Operand) -> tuple[tuple | None, ...]:
        if operand.rows is None:
            return (None,) * len(operand.places)
        key = id(operand.rows), operand.at
        if key not in places:
            places[key] = _HEAD + _MATRIX * len(matrices)
            matrices.append(operand.rows)
        of = (operand.blocks, operand.of_row)
        return tuple((*OperandPlace(places[key], operand.at, k, *of),) for k in operand.places)

    inputs = tuple(map(vectors, stage.inputs))
    return "formula", inputs, tuple(chain.from_iterable(map(vectors, stage.outputs))), cut
