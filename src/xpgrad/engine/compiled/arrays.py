"""Formulas over whole arrays compiled by numba: one flat loop for elements, one nest of loops for rows.

The scalar functions come from the same source as those of the time loops. Inputs are
typed as read-only and every loop has one signature, so that it is compiled once for arrays of both kinds.

Loops run in short blocks. Each block first prefetches the next ones, inputs and result, so that memory is
always at work. A block ends at a cache line of the result, so that no store touches two. Stores past the
cache were no faster, and whoever reads the result would have to fetch it from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.native import LINE
from xpgrad.engine.compiled.records import ArraysHead, length, positions
from xpgrad.engine.compiled.source import preamble
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula, Step

_OPTIONS = "nogil=True, cache=True, error_model='numpy', fastmath={'contract'}"
_IMPORTS = """from numba.types import Array, float32, float64, int32, intp, uint64, void
from xpgrad.engine.compiled.native import fetch, fetch_to_write, pointer, up_to_line"""
# Bytes of each vector in a block, and how far ahead of it memory is fetched.
_BLOCK_BYTES = 1024
_AHEAD_BYTES = 2 * _BLOCK_BYTES
_AT, _HEAD = positions(ArraysHead), length(ArraysHead)


class ArrayLayout(NamedTuple):
    """What the generated text depends on besides the formula.

    Parameters
    ----------
    operands : tuple of {"each", "one", None}
        Of each operand: whether it has an element for each of the result's, one for all, or is absent.
    same_as : int or None
        Which operand's very memory the result replaces: as two vectors in one place the loop would not be
        vectorized.
    """

    operands: tuple[str | None, ...]
    same_as: int | None = None


def compiled_elements(formula: Formula, layout: ArrayLayout, dtype: str) -> Any:
    """Return a module with ``loop(start, stop, *arrays, [result], *numbers)`` over one-dimensional arrays.

    Its ``part_function()`` is a C function ``part(data, number)``, which runs the loop on one part.

    Parameters
    ----------
    formula : Formula
        With one result.
    layout : ArrayLayout
        The arrays' part; those absent, and a result that is an operand, have no place in the call.
    dtype : str
        ``"float32"`` or ``"float64"``.
    """
    name = formula.function.__name__
    reals = [f"p{number}" for number in range(len(formula.parameters))]
    arrays, types, arguments = [], [], []
    for number, kind in enumerate(layout.operands):
        if kind is None:
            arguments.append("None")
            continue
        arrays.append(f"x{number}")
        types.append("write" if layout.same_as == number else "read")
        arguments.append(f"x{number}[j]" if kind == "each" else f"x{number}[0]")
    target = "y" if layout.same_as is None else f"x{layout.same_as}"
    if layout.same_as is None:
        arrays.append("y")
        types.append("write")
    vectors = _whole(arrays, layout)
    loop = _Loop("stop - start", [v for v in vectors if v != target], target)
    text = [
        preamble([formula.function], formula.constants, dtype, {name: formula.parameters}),
        *_array_types(dtype, 1),
        f"@njit(void(intp, intp, {', '.join([*types, *('float64' for _ in reals)])}), {_OPTIONS})",
        f"def loop({', '.join(['start', 'stop', *arrays, *reals])}):",
        "    xp.wide_vectors()",
        *(f"    r{real} = xp.real({real})" for real in reals),
        *(f"    {vector} = {vector}[start:stop]" for vector in vectors),
        *(
            f"    {line}"
            for line in _in_blocks(
                loop, dtype, [f"{target}[j], = {name}({', '.join([*arguments, *(f'r{r}' for r in reals)])})"]
            )
        ),
        *_part([(dtype, 1)] * len(arrays), 0, len(reals)),
    ]
    return load(f"{_label(formula)}_{dtype}", "\n".join(text) + "\n")


class _Loop(NamedTuple):
    """A loop over vectors.

    Parameters
    ----------
    length : str
        Of each vector.
    read : sequence of str
        The names of those that come from memory.
    written : str or None
        That of the one that goes there.
    """

    length: str
    read: Sequence[str]
    written: str | None


def _in_blocks(
    loop: _Loop, dtype: str, body: Sequence[str], start: Sequence[str] = (), end: Sequence[str] = ()
) -> list[str]:
    """The lines of a loop: its body for the element j of a block, what comes before a block, and after it.

    j is unsigned: an index that could be negative would count from the end, which no vector loop does.
    """
    size = np.dtype(dtype).itemsize
    block, ahead, line = _BLOCK_BYTES // size, _AHEAD_BYTES // size, LINE // size
    first = f"up_to_line({loop.written}, {size}) + {block}" if loop.written else f"{block}"
    span = f"low + {ahead}, high + {ahead}, {line}"
    return [
        f"length = {loop.length}",
        f"low, high = 0, min(length, {first})",
        "while low < length:",
        *(f"    fetch({vector}, {span})" for vector in loop.read),
        *([f"    fetch_to_write({loop.written}, {span})"] if loop.written else []),
        *(f"    {text}" for text in start),
        "    for j in range(uint64(low), uint64(high)):",
        *(f"        {text}" for text in body),
        *(f"    {text}" for text in end),
        f"    low, high = high, min(length, high + {block})",
    ]


def _part(arrays: list[tuple[str, int]], sizes: int, reals: int) -> list[str]:
    """A C function for one part of the work, whose data are integers behind a pointer.

    Those are the addresses of the parts' bounds and of the numbers, the loop's sizes, and of each array (by
    dtype and rank) the address and the shape. Compiled when it is first asked for.
    """
    arguments = [f"head[{_HEAD + number}]" for number in range(sizes)]
    place = _HEAD + sizes
    for scalar, rank in arrays:
        shape = ", ".join(f"head[{place + 1 + axis}]" for axis in range(rank))
        arguments.append(f"carray(pointer(head[{place}]), ({shape},), np.{scalar})")
        place += 1 + rank
    arguments += [f"reals[{number}]" for number in range(reals)]
    return [
        "\n",
        "import functools\n",
        "import numpy as np",
        "from numba import carray, cfunc\n\n",
        "def part(data, number):",
        f"    head = carray(data, ({place},), np.int64)",
        f"    bounds = carray(pointer(head[{_AT.bounds}]), (number + 2,), np.int64)",
        f"    reals = carray(pointer(head[{_AT.numbers}]), ({reals},), np.float64)",
        f"    loop(bounds[number], bounds[number + 1], {', '.join(arguments)})\n\n",
        "@functools.cache",
        "def part_function():",
        "    return cfunc('void(voidptr, int64)', cache=True)(part)",
    ]


def _whole(arrays: list[str], layout: ArrayLayout) -> list[str]:
    """The arrays that have an element for each of the result's."""
    return [a for a in arrays if a == "y" or layout.operands[int(a[1:])] == "each"]


def _label(formula: Formula) -> str:
    """A name for the generated file: of the function that the formula is about."""
    about = next((value for value in formula.constants.values() if callable(value)), formula.function)
    return about.__name__.strip("_")


def _array_types(dtype: str, rank: int) -> list[str]:
    return [
        _IMPORTS,
        f"read = Array({dtype}, {rank}, 'C', readonly=True)",
        f"write = Array({dtype}, {rank}, 'C')\n",
    ]


# --- rows -------------------------------------------------------------------------------------------


def compiled_rows(formula: RowFormula, layout: ArrayLayout, integers: frozenset[str], dtype: str) -> Any:
    """A module as for elements: ``loop(start, stop, width, *arrays, [result], *row results, *numbers)``.

    Parameters
    ----------
    formula : RowFormula
        What to evaluate.
    layout : ArrayLayout
        As for elements; a result that has an element for each comes before the numbers of rows.
    integers : frozenset of str
        Which operands hold integers, of 32 bits.
    dtype : str
        ``"float32"`` or ``"float64"``.
    """
    reals = [f"p_{name}" for name in formula.parameters]
    names, types = [], []
    values: dict[str, str] = {}
    rows = formula.each_output is not None
    for number, (name, kind) in enumerate(zip(formula.operands, layout.operands, strict=True)):
        if kind is None:
            values[name] = "None"
            continue
        names.append(f"a_{name}")
        access = "write" if layout.same_as == number else "read"
        part = "each" if name in formula.each else "line"
        types.append(f"{'int32_' if name in integers else ''}{access}_{part}")
        values[name] = f"x_{name}[j]" if name not in formula.rows else f"x_{name}"
    target = None
    if rows:
        target = f"x_{formula.operands[layout.same_as]}" if layout.same_as is not None else "result"
        if layout.same_as is None:
            names.append("a_result")
            types.append("write_each")
    row_outputs = [name for name in formula.outputs if name != formula.each_output]
    names += [f"o_{name}" for name in row_outputs]
    types += ["write_line"] * len(row_outputs)
    body = []
    for name in formula.operands:
        if values[name] == "None" or name in formula.columns:
            continue
        body.append(f"x_{name} = a_{name}[k, :]" if name in formula.each else f"x_{name} = a_{name}[k]")
    if target == "result":
        body.append("result = a_result[k, :]")
    touched: set[str] = set()
    for step in formula.steps:
        body += _step(step, formula, values, target, touched, dtype)
    body += [f"o_{name}[k] = {values[name]}" for name in row_outputs]
    functions = [step.function for step in formula.steps]
    parameters = {
        step.function.__name__: tuple(n for n in step.constants if n in formula.parameters)
        for step in formula.steps
    }
    text = [
        preamble(functions, formula.constants, dtype, parameters),
        _IMPORTS,
        *(
            f"{prefix}{access}_{part} = Array({scalar}, {rank}, 'C', readonly={access == 'read'})"
            for prefix, scalar in (("", dtype), ("int32_", "int32"))
            for access in ("read", "write")
            for part, rank in (("each", 2), ("line", 1))
        ),
        f"\n@njit(void(intp, intp, intp, {', '.join([*types, *('float64' for _ in reals)])}), {_OPTIONS})",
        f"def loop({', '.join(['start', 'stop', 'width', *names, *reals])}):",
        "    xp.wide_vectors()",
        *(f"    r_{name} = xp.real(p_{name})" for name in formula.parameters),
        *(f"    x_{name} = a_{name}[:width]" for name in formula.columns if values[name] != "None"),
        "    for k in range(start, stop):",
        *(f"        {line}" for line in body),
        *_part([_dtype_and_rank(name, dtype) for name in types], 1, len(reals)),
    ]
    return load(f"{formula.steps[-1].function.__name__}_{dtype}", "\n".join(text) + "\n")


def _dtype_and_rank(type_name: str, dtype: str) -> tuple[str, int]:
    return "int32" if type_name.startswith("int32_") else dtype, 2 if type_name.endswith("each") else 1


def _step(
    step: Step, formula: RowFormula, values: dict[str, str], target: str | None, touched: set[str], dtype: str
) -> list[str]:
    """The lines of a step; its results come among the values, and its vectors among those touched."""
    numbers = [f"r_{name}" for name in step.constants if name in formula.parameters]
    operands = [values[name] for name in step.operands]
    results = [f"t_{name}" for name in step.results]
    call = f"{', '.join(results)}, = {step.function.__name__}({', '.join([*operands, *numbers])})"
    for name, kind in step.results.items():
        values[name] = f"{target}[j]" if kind == "each" else f"t_{name}" if kind == "row" else f"s_{name}"
    if set(step.results.values()) == {"row"}:
        return [call]
    start, block_start, inside, block_end, end = [], [], [], [], []
    for name, kind in step.results.items():
        if kind == "each":
            inside.append(f"{target}[j] = t_{name}")
            continue
        if kind == "sum":
            first, one_more, value = "xp.real(0)", "xp.add_up", f"t_{name}"
            start.append(f"s_{name} = {first}")
            block_end.append(f"s_{name} += b_{name}")
        else:
            first, one_more, value = "xp.LOWEST", "max", f"xp.to_ordered(t_{name})"
            start.append(f"i_{name} = {first}")
            block_end.append(f"i_{name} = max(i_{name}, b_{name})")
            end.append(f"s_{name} = xp.from_ordered(i_{name})")
        # from a known value on, which LLVM needs to see for a vector of them
        block_start.append(f"b_{name} = {first}")
        inside.append(f"b_{name} = {one_more}(b_{name}, {value})")
    written = target if "each" in step.results.values() else None
    vectors = {text.removesuffix("[j]") for text in operands if text.endswith("[j]")}
    columns = {f"x_{name}" for name in formula.columns}
    loop = _Loop("width", sorted(vectors - touched - columns - {target}), written)
    touched |= vectors
    return [*start, *_in_blocks(loop, dtype, [call, *inside], block_start, block_end), *end]
