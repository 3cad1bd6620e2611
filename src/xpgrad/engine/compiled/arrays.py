"""Formulas over whole arrays, compiled by numba: elements are one row, rows come one after the other.

Every loop has one signature, in which inputs are read-only, so that it is compiled once for arrays of both
kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.records import ArraysHead, length, positions
from xpgrad.engine.compiled.source import preamble
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula

_OPTIONS = "nogil=True, error_model='numpy'"
_AT, _HEAD = positions(ArraysHead), length(ArraysHead)


class ArrayLayout(NamedTuple):
    """What the generated code depends on besides the formula.

    Parameters
    ----------
    operands : tuple of {"each", "one", "integers", None}
        Of each operand: whether it has an element for each of the result's, or one for all; whether these are
        integers of 32 bits; or whether it is absent. A row formula says itself for what its operands have
        elements.
    same_as : int or None
        Which operand's very memory the result replaces: as two vectors in one place the loop would not be
        vectorized.
    """

    operands: tuple[str | None, ...]
    same_as: int | None = None


class LoopArray(NamedTuple):
    """An array of a loop.

    Parameters
    ----------
    name : str
        What passes call it.
    kind : {"each", "row", "column"}
        What it has an element for: each row and column, each row, or each column.
    integers : bool
        Whether it holds integers of 32 bits.
    """

    name: str
    kind: str
    integers: bool = False


def compiled_elements(formula: Formula, layout: ArrayLayout, dtype: str) -> Any:
    """A module with ``loop(start, stop, *arrays, [result], *numbers)`` over one-dimensional arrays.

    The formula has one result. Arrays that are absent, and a result that is an operand, have no place in the
    call. ``part_function()`` of the module is a C function ``part(data, number)``, the loop on one part.
    """
    names = [kind and f"x{number}" for number, kind in enumerate(layout.operands)]
    kinds = zip(names, layout.operands, strict=True)
    arrays = [LoopArray(name, "each" if kind == "each" else "row") for name, kind in kinds if name]
    target = "y" if layout.same_as is None else names[layout.same_as]
    if layout.same_as is None:
        arrays.append(LoopArray("y", "each"))
    function, numbers = formula.function.__name__, formula.parameters
    passes = [f"Pass({function}, {[*names, *numbers]}, [('result', 'each')])"]
    head = preamble([formula.function], formula.constants, dtype, {function: numbers})
    return load(f"{_label(formula)}_{dtype}", head + _module(arrays, passes, numbers, target, (), dtype))


def compiled_rows(formula: RowFormula, layout: ArrayLayout, dtype: str) -> Any:
    """A module as for elements: ``loop(start, stop, width, *arrays, [result], *row results, *numbers)``.

    A result that has an element for each comes before the numbers of rows.
    """
    named = dict(zip(formula.operands, layout.operands, strict=True))
    absent = {name for name, kind in named.items() if kind is None}
    target = formula.each_output
    if target is not None and layout.same_as is not None:
        target = formula.operands[layout.same_as]
    of_rows = [name for name in formula.outputs if name != formula.each_output]
    kinds = dict.fromkeys(formula.each, "each") | dict.fromkeys(formula.rows, "row")
    kinds |= dict.fromkeys(formula.columns, "column")
    kinds = {name: kind for name, kind in kinds.items() if name not in absent}
    if target is not None:
        kinds.setdefault(target, "each")
    arrays = [LoopArray(name, kind, named.get(name) == "integers") for name, kind in kinds.items()]
    arrays += [LoopArray(name, "row") for name in of_rows]
    parameters, passes = {}, []
    for step in formula.steps:
        name, numbers = step.function.__name__, [n for n in step.constants if n in formula.parameters]
        operands = [None if operand in absent else operand for operand in step.operands]
        passes.append(f"Pass({name}, {[*operands, *numbers]}, {[*step.results.items()]})")
        parameters[name] = tuple(numbers)
    head = preamble([step.function for step in formula.steps], formula.constants, dtype, parameters)
    module = _module(arrays, passes, formula.parameters, target, of_rows, dtype, by_rows=True)
    return load(f"{formula.steps[-1].function.__name__}_{dtype}", head + module)


_IMPORTS = """\
import functools

import numpy as np
from numba import carray, types
from numba.types import float64, int64, void

from xpgrad.engine.compiled.cache import cfunc, njit
from xpgrad.engine.compiled.native import pointer
from xpgrad.engine.compiled.native_arrays import LoopArray, Pass, RowsLoop, array_loop
from xpgrad.engine.compiled.scalar_common import wide_vectors
"""


def _module(
    arrays: Sequence[LoopArray],
    passes: Sequence[str],
    numbers: Sequence[str],
    target: str | None,
    outputs: Sequence[str],
    dtype: str,
    by_rows: bool = False,
) -> str:
    """The loop on addresses, on arrays, and for one part of the work; see `native_arrays.RowsLoop`.

    Without rows, the elements from start to stop are one row.
    """
    names = [array.name for array in arrays]
    outer = ["start", "stop", "width"] if by_rows else ["start", "stop"]
    if by_rows:
        what, places = "start, stop, width", names
    else:
        first = f" + {np.dtype(dtype).itemsize} * start"
        what, places = "0, 1, stop - start", [x.name + first * (x.kind == "each") for x in arrays]
    integers, reals = ["int64"] * len(outer), ["float64"] * len(numbers)
    kinds = _array_types(arrays, {target, *outputs}, dtype, rank=2 if by_rows else 1)
    lines = [
        _IMPORTS,
        f"ARRAYS = [{', '.join(f'LoopArray{(*array,)}' for array in arrays)}]",
        f"PASSES = [{', '.join(passes)}]",
        f"LOOP = RowsLoop(ARRAYS, {[*numbers]}, PASSES, {target!r}, {[*outputs]})",
        "run = array_loop(LOOP, xp.real)\n\n",
        f"@njit(void({', '.join([*integers, *('int64' for _ in names), *reals])}), {_OPTIONS})",
        f"def on_addresses({', '.join([*outer, *names, *numbers])}):",
        "    wide_vectors()",
        f"    run({what}, {_tuple(places)}, {_tuple(numbers)})\n\n",
        f"@njit(void({', '.join([*integers, *kinds, *reals])}), {_OPTIONS})",
        f"def loop({', '.join([*outer, *names, *numbers])}):",
        f"    on_addresses({', '.join([*outer, *(f'{name}.ctypes.data' for name in names), *numbers])})\n\n",
        *_part(len(outer) - 2 + len(names), len(numbers)),
    ]
    return "\n".join(lines) + "\n"


def _array_types(
    arrays: Sequence[LoopArray], written: set[str | None], dtype: str, rank: int
) -> Iterator[str]:
    """Numba's types of the arrays."""
    for name, kind, is_integer in arrays:
        scalar, axes = "int32" if is_integer else dtype, rank if kind == "each" else 1
        yield f"types.Array(types.{scalar}, {axes}, 'C', readonly={name not in written})"


def _part(taken: int, numbers: int) -> list[str]:
    """A C function for one part of the work, whose data are integers behind a pointer.

    Those are the addresses of the parts' bounds and of the numbers, the loop's size, and the addresses of the
    arrays. Compiled when it is first asked for.
    """
    count = _HEAD + taken
    arguments = [f"head[{place}]" for place in range(_HEAD, count)]
    arguments += [f"numbers[{place}]" for place in range(numbers)]
    return [
        "def part(data, number):",
        f"    head = carray(data, ({count},), np.int64)",
        f"    bounds = carray(pointer(head[{_AT.bounds}]), (number + 2,), np.int64)",
        f"    numbers = carray(pointer(head[{_AT.numbers}]), ({numbers},), np.float64)",
        f"    on_addresses(bounds[number], bounds[number + 1], {', '.join(arguments)})\n\n",
        "@functools.cache",
        "def part_function():",
        "    return cfunc('void(voidptr, int64)')(part)",
    ]


def _tuple(names: Iterable[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names) + ")"


def _label(formula: Formula) -> str:
    """A name for the generated file: of the function that the formula is about."""
    about = next((value for value in formula.constants.values() if callable(value)), formula.function)
    return about.__name__.strip("_")
