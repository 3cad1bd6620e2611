"""Formulas over whole arrays, compiled by numba: elements are one row, rows come one after the other.

Every loop has one signature, in which inputs are read-only, so that it is compiled once for arrays of both
kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.records import ArraysHead, length, positions
from xpgrad.engine.compiled.source import preamble
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula

_OPTIONS = "nogil=True, cache=True, error_model='numpy'"
_AT, _HEAD = positions(ArraysHead), length(ArraysHead)


class ArrayLayout(NamedTuple):
    """What the generated code depends on besides the formula.

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
    names = [kind and f"x{number}" for number, kind in enumerate(layout.operands)]
    kinds = zip(names, layout.operands, strict=True)
    arrays = [(name, "each" if kind == "each" else "row") for name, kind in kinds if name]
    target = "y" if layout.same_as is None else names[layout.same_as]
    if layout.same_as is None:
        arrays.append(("y", "each"))
    function, numbers = formula.function.__name__, formula.parameters
    size = np.dtype(dtype).itemsize
    places = [f"{name} + {size} * start" if kind == "each" else name for name, kind in arrays]
    text = _Text(
        arrays=arrays,
        integers=frozenset(),
        numbers=numbers,
        passes=[f"Pass({function}, {[*names, *numbers]}, [('result', 'each')])"],
        target=target,
        outputs=[],
        sizes=[],
        call=f"run(0, 1, stop - start, {_tuple(places)}, {_tuple(numbers)})",
    )
    head = preamble([formula.function], formula.constants, dtype, {function: numbers})
    return load(f"{_label(formula)}_{dtype}", head + _module(text, dtype, rank=1))


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
    absent = {name for name, kind in zip(formula.operands, layout.operands, strict=True) if kind is None}
    target = formula.each_output
    if target is not None and layout.same_as is not None:
        target = formula.operands[layout.same_as]
    kinds = {name: kind for names, kind in ((formula.each, "each"), (formula.rows, "row"),
             (formula.columns, "column")) for name in names if name not in absent}  # fmt: skip
    of_rows = [name for name in formula.outputs if name != formula.each_output]
    if target is not None:
        kinds.setdefault(target, "each")
    arrays = [*kinds.items(), *((name, "row") for name in of_rows)]
    functions = [step.function for step in formula.steps]
    numbers = {
        step.function.__name__: tuple(name for name in step.constants if name in formula.parameters)
        for step in formula.steps
    }
    passes = []
    for step in formula.steps:
        name = step.function.__name__
        operands = [None if operand in absent else operand for operand in step.operands]
        passes.append(f"Pass({name}, {[*operands, *numbers[name]]}, {[*step.results.items()]})")
    names = [name for name, _ in arrays]
    text = _Text(
        arrays=arrays,
        integers=integers,
        numbers=formula.parameters,
        passes=passes,
        target=target,
        outputs=of_rows,
        sizes=["width"],
        call=f"run(start, stop, width, {_tuple(names)}, {_tuple(formula.parameters)})",
    )
    head = preamble(functions, formula.constants, dtype, numbers)
    return load(f"{formula.steps[-1].function.__name__}_{dtype}", head + _module(text, dtype, rank=2))


class _Text(NamedTuple):
    """What the text of a loop says.

    Parameters
    ----------
    arrays : sequence of (str, str)
        Their names and kinds, see `native_arrays.Array`, in the order of a call.
    integers : frozenset of str
        Those that hold integers.
    numbers, passes, target, outputs
        As `native_arrays.Loop` has them; passes as text.
    sizes : sequence of str
        What a call has between the rows and the arrays.
    call : str
        How the intrinsic is called on the arrays' addresses.
    """

    arrays: Sequence[tuple[str, str]]
    integers: frozenset[str]
    numbers: Sequence[str]
    passes: Sequence[str]
    target: str | None
    outputs: Sequence[str]
    sizes: Sequence[str]
    call: str


def _module(text: _Text, dtype: str, rank: int) -> str:
    """The loop on addresses, on arrays, and for one part of the work."""
    arrays = [f"Array{(name, kind, name in text.integers)}" for name, kind in text.arrays]
    names = [name for name, _ in text.arrays]
    outer = ["start", "stop", *text.sizes]
    integers, reals = ["int64"] * len(outer), ["float64"] * len(text.numbers)
    lines = [
        "import functools\n",
        "import numpy as np",
        "from numba import carray, cfunc, njit, types",
        "from numba.types import float64, int64, void\n",
        "from xpgrad.engine.compiled.native import pointer",
        "from xpgrad.engine.compiled.native_arrays import Array, Loop, Pass, array_loop",
        "from xpgrad.engine.compiled.scalar_common import wide_vectors\n",
        f"ARRAYS = [{', '.join(arrays)}]",
        f"PASSES = [{', '.join(text.passes)}]",
        f"LOOP = Loop(ARRAYS, {[*text.numbers]}, PASSES, {text.target!r}, {[*text.outputs]})",
        "run = array_loop(LOOP, xp.real)\n\n",
        f"@njit(void({', '.join([*integers, *('int64' for _ in names), *reals])}), {_OPTIONS})",
        f"def on_addresses({', '.join([*outer, *names, *text.numbers])}):",
        "    wide_vectors()",
        f"    {text.call}\n\n",
        f"@njit(void({', '.join([*integers, *_array_types(text, dtype, rank), *reals])}), {_OPTIONS})",
        f"def loop({', '.join([*outer, *names, *text.numbers])}):",
        f"    on_addresses({', '.join([*outer, *(f'{n}.ctypes.data' for n in names), *text.numbers])})\n\n",
        *_part(text),
    ]
    return "\n".join(lines) + "\n"


def _array_types(text: _Text, dtype: str, rank: int) -> Iterable[str]:
    """Numba's types of the arrays."""
    for name, kind in text.arrays:
        scalar = "int32" if name in text.integers else dtype
        axes = rank if kind == "each" else 1
        is_read = name != text.target and name not in text.outputs
        yield f"types.Array(types.{scalar}, {axes}, 'C', readonly={is_read})"


def _part(text: _Text) -> list[str]:
    """A C function for one part of the work, whose data are integers behind a pointer.

    Those are the addresses of the parts' bounds and of the numbers, the loop's sizes, and the addresses of
    the arrays. Compiled when it is first asked for.
    """
    count = _HEAD + len(text.sizes) + len(text.arrays)
    arguments = [f"head[{place}]" for place in range(_HEAD, count)]
    arguments += [f"numbers[{place}]" for place in range(len(text.numbers))]
    return [
        "def part(data, number):",
        f"    head = carray(data, ({count},), np.int64)",
        f"    bounds = carray(pointer(head[{_AT.bounds}]), (number + 2,), np.int64)",
        f"    numbers = carray(pointer(head[{_AT.numbers}]), ({len(text.numbers)},), np.float64)",
        f"    on_addresses(bounds[number], bounds[number + 1], {', '.join(arguments)})\n\n",
        "@functools.cache",
        "def part_function():",
        "    return cfunc('void(voidptr, int64)', cache=True)(part)",
    ]


def _tuple(names: Iterable[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names) + ")"


def _label(formula: Formula) -> str:
    """A name for the generated file: of the function that the formula is about."""
    about = next((value for value in formula.constants.values() if callable(value)), formula.function)
    return about.__name__.strip("_")
