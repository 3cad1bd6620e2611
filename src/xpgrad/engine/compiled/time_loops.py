"""Time loops compiled by numba: a step is one stage after the other, products and formulas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.source import preamble
from xpgrad.engine.formulas.formula import Elementwise, Operand, Product


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
        Of a C function. `data` points to 64-bit integers: how many steps there are, the address of their
        spans (rows, now, before, local), those of the parts' bounds, of BLAS's gemm and of the one with a
        packed weight, of our own products' tiles and what multiplies with panels, their height; and of each
        matrix of `operands_of` its address, rows, columns and the length of a
        whole row.
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
    loop = _loop(stages, dtype)
    parts = [
        preamble([stage.function for stage in formulas], constants, dtype),
        "import numpy as np\nfrom numba import carray, cfunc\n",
        "from xpgrad.engine.compiled.native import multiply_rows, multiply_rows_by_panels",
        "from xpgrad.engine.compiled.native import multiply_rows_packed, numbers, pointer\n",
        *(["from xpgrad.engine.compiled.native import element, put\n"] if "element(" in loop else []),
        "real = xp.real",
        loop,
    ]
    return "\n".join(parts) + "\n"


_HEAD = 8  # integers in front of the matrices
_MATRIX = 4  # integers of each


# Pairs of vectors, at least one of which is written, up to which LLVM may look at run time whether they meet.
# It gives up vectorizing at 128; each pair takes time for every row.
_PAIRS = 100

# How a product is begun, by the form of its weight.
_PRODUCTS = {
    "rows": "multiply_rows(head[3], real(1), ",
    "blas": "multiply_rows_packed(head[4], real(1), ",
    "panels": "multiply_rows_by_panels(head[5], head[6], head[7], ",
}


def _loop(stages: tuple[FormulaText | ProductText, ...], dtype: str) -> str:
    """A loop over steps; a step is one stage after the other, on the rows low .. high that are the part's."""
    matrices = iter(range(_HEAD, 1 << 30, _MATRIX))
    before: list[str] = []
    body: list[str] = []
    for number, stage in enumerate(stages):
        if isinstance(stage, ProductText):
            source, *_ = (next(matrices) for _ in range(3))
            call = f"{np.dtype(dtype).itemsize}, count, {stage.at}, first, head, {source})"
            body.append(_PRODUCTS[stage.form] + call)
        else:
            made, loops = _rows_loop(stage, f"s{number}", matrices)
            before += made
            body += loops
    indented = [f"        {line}" for line in body]
    lines = [
        "",
        "@cfunc('void(voidptr, int64)', cache=True, error_model='numpy', fastmath={'contract'})",
        "def loop(data, part):",
        "    xp.wide_vectors()",
        f"    head = carray(data, ({next(matrices)},), np.int64)",
        "    steps, bounds = numbers(head[1], head[0], 4), numbers(head[2], 1, part + 2)[0]",
        "    low, high = bounds[part], bounds[part + 1]",
        *(f"    {line}" for line in before),
        "    for step in range(head[0]):",
        "        count = min(steps[step, 0], high) - low",
        "        if count <= 0:",
        "            continue",
        "        first, now, before = low, low + steps[step, 1], low + steps[step, 2]",
        "        local = low + steps[step, 3]",
        *indented,
    ]
    return "\n".join(lines)


def _rows_loop(stage: FormulaText, prefix: str, matrices: Iterator[int]) -> tuple[list[str], list[str]]:
    """Its matrices by name; and the loop over rows and columns that calls a formula's scalar function.

    Every operand gets a view of its row first: the inner loop then runs over plain vectors. Numbers of rows
    are variables there, and written when a row is done.
    """
    made: list[str] = []
    views: list[str] = []
    arguments: list[str] = []
    targets: list[str] = []
    means: list[str] = []
    width = f"{prefix}_width"
    for kind, places, elements in (("x", stage.inputs, arguments), ("y", stage.outputs, targets)):
        for number, (blocks, at, absent, same_as, order, of_row) in enumerate(places):
            if absent:
                elements += ["None"] * len(order)
                continue
            if same_as is not None:
                elements += [f"{prefix}x{same_as}_{block}[j]" for block in order]
                continue
            array, m = f"{prefix}{kind}{number}", next(matrices)
            made.append(f"{array} = carray(pointer(head[{m}]), (head[{m + 1}], head[{m + 3}]), real)")
            if of_row:
                here = f"{array}[{'0' if at == 'every' else f'{at} + k'}, 0]"
                views.append(f"{array}_0 = {here if kind == 'x' else 'real(0)'}")
                elements.append(f"{array}_0")
                if kind == "y":
                    means.append(f"{here} = {array}_0 / real({width})")
                continue
            if not any(line.startswith(width) for line in made):
                made.append(f"{width} = head[{m + 2}] // {blocks}")
            row = "0" if at == "every" else f"{at} + k"
            replaced = [y.order for y in stage.outputs if kind == "x" and y.same_as == number]
            for block in sorted({*order, *(block for other in replaced for block in other)}):
                view = f"{array}_{block}"
                views.append(f"{view} = {array}[{row}, {block} * {width}:{block + 1} * {width}]")
            elements += [f"{array}_{block}[j]" for block in order]
    results = [f"r{number}" for number in range(len(targets))]
    set_apart = _set_apart(prefix, arguments, targets)
    arguments = [set_apart.get(argument, argument) for argument in arguments]
    call = f"{', '.join(results)}, = {stage.function.__name__}({', '.join(arguments)})"
    loops = [
        "for k in range(count):",
        *(f"    {view}" for view in views),
        f"    for j in range({width}):",
        f"        {call}",
        *(
            f"        {_written(target, result, set_apart)}"
            for target, result in zip(targets, results, strict=True)
            if target != "None"
        ),
        *(f"    {mean}" for mean in means),
    ]
    return made, loops


def _set_apart(prefix: str, arguments: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    """How elements are read of vectors that are said to share no memory; empty where they are few.

    They share none: an output that replaces an input is the same vector, and all others are other columns,
    other rows or other matrices.
    """
    written = {target for target in targets if target.endswith("]")}
    read = {argument for argument in arguments if argument.endswith("]")} - written
    if len(written) * (len(read) + len(written) / 2) <= _PAIRS:
        return {}
    vectors = sorted(read | written)
    names = [vector.removesuffix("[j]") for vector in vectors]
    return {
        vector: f"element({name}, j, {prefix[1:]}, {own}, {len(vectors)})"
        for own, (vector, name) in enumerate(zip(vectors, names, strict=True))
    }


def _written(target: str, result: str, set_apart: dict[str, str]) -> str:
    """The statement that puts a result where it goes: into a vector, or to a sum over the row."""
    if not target.endswith("]"):
        return f"{target} = xp.add_up({target}, {result})"
    if target not in set_apart:
        return f"{target} = {result}"
    _, vector, *_, loop, own, count = set_apart[target].replace("(", ", ").replace(")", "").split(", ")
    return f"put({vector}, j, {result}, {loop}, {own}, {count})"
