"""Time loops compiled by numba: a step is one stage after the other, products and formulas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.records import LoopHead, Rows, length, positions
from xpgrad.engine.compiled.source import preamble
from xpgrad.engine.formulas.formula import Elementwise, Operand, Product, Span


class OperandText(NamedTuple):
    """What the generated text depends on of a formula's operand."""

    blocks: int
    at: str
    absent: bool
    same_as: int | None  # number of the input whose very rows an output replaces
    order: tuple[int, ...]
    of_row: bool


class FormulaText(NamedTuple):
    """What the generated text depends on of a formula's stage."""

    function: Callable
    constants: tuple
    inputs: tuple[OperandText, ...]
    outputs: tuple[OperandText, ...]


class ProductText(NamedTuple):
    """What the generated text depends on of a product's stage."""

    at: str
    form: str  # of the weight


def operands_of(stages: Sequence[Elementwise | Product]) -> list[Any]:
    """The matrices that a compiled loop takes, in its order."""
    taken = []
    for stage in stages:
        if isinstance(stage, Product):
            taken += [stage.source.rows, stage.weight, stage.target]
            continue
        replaced = {(id(o.rows), o.at) for o in stage.inputs}
        taken += [o.rows for o in stage.inputs if o.rows is not None]
        taken += [o.rows for o in stage.outputs if o.rows is not None and (id(o.rows), o.at) not in replaced]
    return taken


def _stage_text(stage: Elementwise | Product) -> FormulaText | ProductText:
    """An output that replaces an input must be the same vector in the generated text.

    As two vectors they would overlap, and the loop that LLVM made for that case is not vectorized.
    """
    if isinstance(stage, Product):
        return ProductText(stage.source.at, stage.weight.form)
    replaced = {(id(o.rows), o.at): number for number, o in reversed(list(enumerate(stage.inputs)))}
    function, constants = stage.formula.key
    return FormulaText(
        function,
        constants,
        tuple(_place(o, None) for o in stage.inputs),
        tuple(_place(o, None if o.rows is None else replaced.get((id(o.rows), o.at))) for o in stage.outputs),
    )


def _place(operand: Operand, same_as: int | None) -> OperandText:
    return OperandText(
        operand.blocks, operand.at, operand.rows is None, same_as, tuple(operand.places), operand.of_row
    )


def compiled_loop(stages: Sequence[Elementwise | Product], dtype: str) -> int:
    """The address of ``loop(data, part)``, which runs a time loop on one part of the rows.

    Parameters
    ----------
    stages : sequence of Elementwise or Product
        What a step does.
    dtype : str
        ``"float32"`` or ``"float64"``.

    Returns
    -------
    int
        Of a C function. `data` points to a LoopHead, and behind it to a Rows of each matrix of `operands_of`.
    """
    return _compiled_loop(tuple(_stage_text(stage) for stage in stages), dtype)


@functools.cache
def _compiled_loop(stages: tuple[FormulaText | ProductText, ...], dtype: str) -> int:
    name = next(stage.function.__name__ for stage in stages if isinstance(stage, FormulaText))
    return load(f"{name.strip('_')}_{dtype}", _source(stages, dtype)).loop.address


def _source(stages: tuple[FormulaText | ProductText, ...], dtype: str) -> str:
    formulas = [stage for stage in stages if isinstance(stage, FormulaText)]
    constants: dict[str, Any] = {}
    for name, value in (item for stage in formulas for item in stage.constants):
        if constants.setdefault(name, value) != value:
            raise ValueError(f"two formulas of one loop have a constant {name}")
    parts = [
        preamble([stage.function for stage in formulas], constants, dtype),
        "import numpy as np\nfrom numba import carray, cfunc\n",
        "from xpgrad.engine.compiled.native import multiply_rows, multiply_rows_by_panels",
        "from xpgrad.engine.compiled.native import multiply_rows_packed, numbers",
        "from xpgrad.engine.compiled.native_rows import Block, rows_loop",
        "from xpgrad.engine.compiled.scalar_common import wide_vectors\n",
        "real = xp.real",
        _loop(stages, dtype),
    ]
    return "\n".join(parts) + "\n"


_HEAD, _MATRIX = length(LoopHead), length(Rows)  # integers in front of the matrices, and of each
_AT, _SPAN = positions(LoopHead), positions(Span)


# How a product is begun, by the form of its weight.
_PRODUCTS = {
    "rows": f"multiply_rows(head[{_AT.gemm}], real(1), ",
    "blas": f"multiply_rows_packed(head[{_AT.gemm_packed}], real(1), ",
    "panels": f"multiply_rows_by_panels(head[{_AT.tiles}], head[{_AT.by_panels}], head[{_AT.height}], ",
}


def _loop(stages: tuple[FormulaText | ProductText, ...], dtype: str) -> str:
    """A loop over steps; a step is one stage after the other, on the rows low .. high that are the part's."""
    matrices = iter(range(_HEAD, 1 << 30, _MATRIX))
    formulas: list[str] = []
    body: list[str] = []
    for stage in stages:
        if isinstance(stage, ProductText):
            source, *_ = (next(matrices) for _ in range(3))
            call = f"{np.dtype(dtype).itemsize}, count, {stage.at}, first, head, {source})"
            body.append(_PRODUCTS[stage.form] + call)
        else:
            name = f"formula_{len(formulas)}"
            formulas.append(f"{name} = {_rows_loop(stage, matrices)}")
            body.append(f"{name}(data, count, first, now, before, local)")
    lines = [
        *formulas,
        "",
        "",
        "@cfunc('void(voidptr, int64)', cache=True, error_model='numpy', fastmath={'contract'})",
        "def loop(data, part):",
        "    wide_vectors()",
        f"    head = carray(data, ({next(matrices)},), np.int64)",
        f"    steps = numbers(head[{_AT.spans}], head[{_AT.steps}], {length(Span)})",
        f"    bounds = numbers(head[{_AT.bounds}], 1, part + 2)[0]",
        "    low, high = bounds[part], bounds[part + 1]",
        f"    for step in range(head[{_AT.steps}]):",
        f"        count = min(steps[step, {_SPAN.rows}], high) - low",
        "        if count <= 0:",
        "            continue",
        f"        first, now = low, low + steps[step, {_SPAN.now}]",
        f"        before, local = low + steps[step, {_SPAN.before}], low + steps[step, {_SPAN.local}]",
        *(f"        {line}" for line in body),
    ]
    return "\n".join(lines)


def _rows_loop(stage: FormulaText, matrices: Iterator[int]) -> str:
    """The text that makes a stage's loop over rows and columns."""
    begins = [None if operand.absent else next(matrices) for operand in stage.inputs]
    inputs = _blocks(stage.inputs, begins)
    replacing = [
        begins[o.same_as] if o.same_as is not None else None if o.absent else next(matrices)
        for o in stage.outputs
    ]
    outputs = _blocks(stage.outputs, replacing)
    return f"rows_loop({stage.function.__name__}, [{inputs}], [{outputs}], real)"


def _blocks(operands: Sequence[OperandText], begins: Sequence[int | None]) -> str:
    """Of each block of the operands, the text that says where it is."""
    places: list[str] = []
    for operand, begin in zip(operands, begins, strict=True):
        for block in operand.order:
            where = (begin, operand.at, block, operand.blocks, operand.of_row)
            places.append("None" if begin is None else f"Block{where}")
    return ", ".join(places)
