"""Formulas over whole arrays, compiled; a formula of elements sees the array as one row."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from xpgrad.engine.compiled.formula_code import ScalarFormula, load_with
from xpgrad.engine.compiled.records import BESIDE, ArraysHead, length, positions
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula

_AT, _HEAD = positions(ArraysHead), length(ArraysHead)


class LoopArray(NamedTuple):
    """An array of a loop, by its name in passes.

    `kind` says whether it has an element for each row and column ("each"), each "row", or each "column";
    "placed" has rows anywhere, and the loop gets their addresses. `integers` are integers of 32 bits.

    Rows side by side may lie in "lines" of neighbours anywhere, or neighbours may have the same elements,
    which are then "repeated". Of these the loop gets a `records.Lines`.
    """

    name: str
    kind: str
    integers: bool = False


def compiled_elements(
    formula: Formula, operands: Sequence[str | None], same_as: int | None, dtype: str
) -> ArrayFunctions:
    """The functions ``run(start, stop, *arrays, [result], *numbers)`` over one-dimensional arrays.

    The formula has one result. A call omits absent operands, and the result if it replaces an operand. With
    operands of rows or columns the arguments are those of `compiled_rows`.

    Parameters
    ----------
    operands : sequence of {"each", "one", "row", "column", "placed", "lines", "repeated", "integers", None}
        The form of each operand: an element for each of the result's, one for all, one for each row, one for
        each column, rows anywhere (see LoopArray for the three forms), integers of 32 bits, or absent. A row
        formula itself says for what its operands have elements.
    same_as : int or None
        The operand whose memory the result replaces: LLVM would not vectorize two vectors in one place.
    dtype : str
        The dtype of all other arrays.
    """
    names = [kind and f"x{number}" for number, kind in enumerate(operands)]
    kinds = zip(names, operands, strict=True)
    arrays = [LoopArray(name, "row" if kind == "one" else kind) for name, kind in kinds if name and kind]
    target = "y" if same_as is None else names[same_as]
    if same_as is None:
        arrays.append(LoopArray("y", "each"))
    scalars, numbers = ScalarFormula(*formula.key), formula.parameters
    passes = [f"Pass(formulas[0], {[*names, *numbers]}, [('result', 'each')])"]
    sizes = ("width",) if {"row", "column", "placed"} & {*operands} else ()
    return _functions(_label(formula), [scalars], arrays, passes, numbers, target, (), dtype, sizes)


def compiled_rows(
    formula: RowFormula,
    operands: Sequence[str | None],
    same_as: int | None,
    dtype: str,
    side_by_side: bool = False,
) -> ArrayFunctions:
    """The functions as for elements: ``run(start, stop, width, *arrays, [result], *row results, *numbers)``.

    A result with an element for each row and column comes before the results of rows. Rows that lie
    `side_by_side` go in blocks: after `width` come the number of neighbours, and of rows in a block.
    """
    named = dict(zip(formula.operands, operands, strict=True))
    absent = {name for name, kind in named.items() if kind is None}
    target = formula.each_output
    if target is not None and same_as is not None:
        target = formula.operands[same_as]
    of_rows = [name for name in formula.outputs if name != formula.each_output]
    kinds = {name: kind if (kind := named[name]) in BESIDE else "each" for name in formula.each}
    kinds |= dict.fromkeys(formula.rows, "row")
    kinds |= dict.fromkeys(formula.columns, "column")
    kinds = {name: kind for name, kind in kinds.items() if name not in absent}
    if target is not None:
        kinds.setdefault(target, "each")
    arrays = [LoopArray(name, kind, named.get(name) == "integers") for name, kind in kinds.items()]
    arrays += [LoopArray(name, "row") for name in of_rows]
    scalars, passes = [], []
    for number, step in enumerate(formula.steps):
        numbers = tuple(name for name in step.constants if name in formula.parameters)
        constants = {name: formula.constants[name] for name in step.constants if name not in numbers}
        scalars.append(ScalarFormula(*Formula(step.function, constants, numbers).key))
        taken = [None if operand in absent else operand for operand in step.operands]
        passes.append(f"Pass(formulas[{number}], {[*taken, *numbers]}, {[*step.results.items()]})")
    name = formula.steps[-1].function.__name__
    sizes = ("width", "inner", "together") if side_by_side else ("width",)
    return _functions(name, scalars, arrays, passes, formula.parameters, target, of_rows, dtype, sizes)


class ArrayFunctions(NamedTuple):
    """The compiled functions of a formula.

    `run` is the loop on addresses, ``run(start, stop, *sizes, *arrays, *numbers)``. `part` is the address of
    the C function ``part(data, number)``, the loop on one part of the rows. Its data are an ArraysHead, the
    sizes, and the addresses of the arrays.
    """

    run: Callable[..., None]
    part: int


_IMPORTS = """\
from xpgrad.engine.compiled.cache import cfunc
from xpgrad.engine.compiled.native import elements, fields
from xpgrad.engine.compiled.native_arrays import LoopArray, Pass, RowsLoop, array_loop
from xpgrad.engine.compiled.native_columns import column_loop
from xpgrad.engine.compiled.scalar_common import wide_vectors
"""


def _functions(
    name: str,
    formulas: Sequence[ScalarFormula],
    arrays: Sequence[LoopArray],
    passes: Sequence[str],
    numbers: Sequence[str],
    target: str | None,
    outputs: Sequence[str],
    dtype: str,
    sizes: Sequence[str] = (),
) -> ArrayFunctions:
    """The functions of a `native_arrays.RowsLoop`; without sizes, elements start .. stop are one row."""
    names = [array.name for array in arrays]
    outer = ["start", "stop", *sizes]
    if sizes:
        what, places = ", ".join(outer), names
    else:
        first = f" + {np.dtype(dtype).itemsize} * start"
        what, places = "0, 1, stop - start", [x.name + first * (x.kind == "each") for x in arrays]
    kinds = ", ".join(["int64"] * (len(outer) + len(names)) + ["float64"] * len(numbers))
    after = _HEAD + len(outer) - 2 + len(names)
    given = [f"head[{place}]" for place in range(_HEAD, after)]
    given += [f"numbers[{place}]" for place in range(len(numbers))]
    lines = [
        _IMPORTS,
        f"PASSES = [{', '.join(passes)}]",
        f"LOOP = RowsLoop({[*arrays]}, {[*numbers]}, PASSES, {target!r}, {[*outputs]})",
        f"run = {'column_loop' if len(sizes) > 1 else 'array_loop'}(LOOP, real)\n\n",
        f"@cfunc('void({kinds})')",
        f"def on_addresses({', '.join([*outer, *names, *numbers])}):",
        "    wide_vectors()",
        f"    run({what}, {_tuple(places)}, {_tuple(numbers)})\n\n",
        "@cfunc('void(int64, int64)')",
        "def part(data, number):",
        "    head = fields(data)",
        f"    count, parts = head[{_AT.count}], head[{_AT.parts}]",
        f"    numbers = elements(data + {8 * after}, 0, np.float64)",
        "    start, stop = count * number // parts, count * (number + 1) // parts",
        f"    on_addresses(start, stop, {', '.join(given)})",
    ]
    loaded = load_with(f"{name}_{dtype}", "\n".join(lines), formulas, dtype)
    # ctypes passes integers fastest as pointers
    taken_by = [ctypes.c_void_p] * (len(outer) + len(names)) + [ctypes.c_double] * len(numbers)
    return ArrayFunctions(ctypes.CFUNCTYPE(None, *taken_by)(loaded.on_addresses.address), loaded.part.address)


def _tuple(names: Iterable[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names) + ")"


def _label(formula: Formula) -> str:
    """A name for the generated file: that of the function in the formula's constants, if any."""
    about = next((value for value in formula.constants.values() if callable(value)), formula.function)
    return about.__name__.strip("_")
