"""How the NumPy engine evaluates formulas over whole arrays: compiled, or in blocks that stay in the cache.

Contiguous arrays are taken as they are. What is strided, transposed or broadcast comes block by block:
elements through the buffers of NumPy's iterator, rows through copies of some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xpgrad.engine.arrays import block_functions, traced_formula
from xpgrad.engine.arrays.tape import Untraceable
from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula

# Elements of a block for compiled loops: what its operands need is in the cache when the loop reads it.
_BLOCK_ELEMENTS = 16384
# For rows by NumPy: larger, since threads wait for one another between any two of its functions.
_NUMPY_BLOCK = 131072
# Fewer elements of rows than these are no blocks, and no work for threads.
_ROWS_AT_ONCE = 1 << 17
_PROGRAMS = 512
"""So many are kept: with one number or another a formula is another program."""

Array = np.ndarray
Deal = Callable[[int, int, Callable[[int, int], None]], None]


_codes: dict[tuple, tuple[Any, Any]] = {}
"""Compiled loops, as generated modules; each keeps its formula, which its key holds by identity."""


_programs: dict[tuple, tuple[Any, Any]] = {}
"""Formulas, traced, or None where that cannot be; each keeps its formula, as above."""


_quick: dict[tuple[int, str], Any] = {}
"""Of the compiled loops those for plain arrays that are all given, by formula and dtype."""


def _is_plain(array: Array) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def _replaced(inputs: Sequence[Array | None], out: Array) -> int | None:
    """Which input `out` is, element for element."""
    place = (out.ctypes.data, out.shape, out.strides)
    for number, array in enumerate(inputs):
        if array is not None and (array.ctypes.data, array.shape, array.strides) == place:
            return number
    return None


def _safe(inputs: Sequence[Array | None], out: Array, replaceable: Sequence[bool]) -> bool:
    """Whether `out` may be written while the inputs are read: it is none, or only one that may be replaced.

    Compiled loops expect no other to share its memory.
    """
    place = (out.ctypes.data, out.shape, out.strides)
    sharing = [
        may_be and (array.ctypes.data, array.shape, array.strides) == place
        for array, may_be in zip(inputs, replaceable, strict=True)
        if array is not None and np.may_share_memory(array, out)
    ]
    return not sharing or sharing == [True]


# --- elements -----------------------------------------------------------------------------------------


def elementwise(
    machine: Machine,
    formula: Formula,
    inputs: Sequence[Array | None],
    numbers: Sequence[float],
    out: Array | None,
    compiling: bool,
) -> Array:
    """The one result of a formula, of the shape to which its inputs broadcast.

    Its axes lie in memory as those of the first input of that shape do.
    """
    given = [array for array in inputs if array is not None]
    shape = given[0].shape
    if any(array.shape != shape for array in given):
        shape = np.broadcast_shapes(*(array.shape for array in given))
    order = _memory_order(next((array for array in given if array.shape == shape), given[0]))
    if order is None:
        return _elementwise_in_order(machine, formula, inputs, shape, numbers, out, compiling)
    turned = [
        array if array is None or array.size == 1 else _at_shape(array, shape).transpose(order)
        for array in inputs
    ]
    target = None if out is None else out.transpose(order)
    sizes = tuple([shape[axis] for axis in order])
    result = _elementwise_in_order(machine, formula, turned, sizes, numbers, target, compiling)
    return result.transpose(sorted(range(len(order)), key=order.__getitem__)) if out is None else out


def _at_shape(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the array broadcast to a shape; itself, which can be written to, where it has it."""
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _memory_order(array: Array) -> list[int] | None:
    """Return the axes from the largest stride to the smallest; None where they are in that order already.

    Elements that a broadcast axis repeats have no order: such an array counts as being in order.
    """
    if array.flags.c_contiguous:
        return None
    strides = [abs(stride) for stride in array.strides]
    if any(not stride and size > 1 for stride, size in zip(strides, array.shape, strict=True)):
        return None
    order = sorted(range(array.ndim), key=strides.__getitem__, reverse=True)
    return None if order == list(range(array.ndim)) else order


def _elementwise_in_order(
    machine: Machine,
    formula: Formula,
    inputs: Sequence[Array | None],
    shape: tuple[int, ...],
    numbers: Sequence[float],
    out: Array | None,
    compiling: bool,
) -> Array:
    """The result of the given shape, with its axes in memory from first to last."""
    given = [array for array in inputs if array is not None]
    replaced, plain = None, True
    if out is None:
        out = np.empty(shape, given[0].dtype)
    else:
        if not _safe(inputs, out, [True] * len(inputs)):
            inputs = [None if array is None else array.copy() for array in inputs]
            given = [array for array in inputs if array is not None]
        replaced = _replaced(inputs, out)
        plain = plain and _is_plain(out)
    kinds = tuple(
        [None if a is None else "one" if a.size == 1 and a.shape != shape else "each" for a in inputs]
    )
    each = [array for array, kind in zip(given, [k for k in kinds if k], strict=True) if kind == "each"]
    plain = plain and all(array.shape == shape and _is_plain(array) for array in each)
    if compiling and plain:
        code = element_code(formula, kinds, replaced, out.dtype.name)
        views = [array.reshape(-1) for array in given]
        if replaced is None:
            views.append(out.reshape(-1))
        machine.deal_compiled(out.size, out.size, code, (), views, numbers)
    else:
        evaluate = (_by_loop if compiling else _by_numpy)(formula, kinds, numbers, out.dtype.name)
        _in_blocks(
            machine.deal, evaluate, inputs, kinds, out, _BLOCK_ELEMENTS if compiling else traced_formula.BLOCK
        )
    return out


def quick_elementwise(
    machine: Machine, formula: Formula, arrays: Sequence[Array], numbers: Sequence[float], compiling: bool
) -> Array | None:
    """The result by the shortest way; None unless the arrays are plain.

    All arrays are given, of one shape and dtype, without numba of a few elements.
    """
    for array in arrays:
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
    first = arrays[0]
    out = np.empty(first.shape, first.dtype)
    if not compiling:
        program = _program(formula, arrays, first.dtype, numbers)
        with np.errstate(all="ignore"):
            program(out.reshape(-1), [array.reshape(-1) for array in arrays])
        return out
    code = _quick.get((id(formula), first.dtype.char))
    if code is None:
        code = element_code(formula, ("each",) * len(arrays), None, out.dtype.name)
        _quick[id(formula), first.dtype.char] = code
    views = [*arrays, out] if first.ndim == 1 else [array.reshape(-1) for array in (*arrays, out)]
    machine.deal_compiled(out.size, out.size, code, (), views, numbers)
    return out


def element_code(formula: Formula, kinds: tuple[str | None, ...], replaced: int | None, dtype: str) -> Any:
    """The compiled loop over elements, see `compiled.arrays`."""
    key = (id(formula), kinds, replaced, dtype)
    found = _codes.get(key)
    if found is None:
        from xpgrad.engine.compiled.arrays import ArrayLayout, compiled_elements

        found = _codes[key] = formula, compiled_elements(formula, ArrayLayout(kinds, replaced), dtype)
    return found[1]


def _by_loop(
    formula: Formula, kinds: tuple[str | None, ...], numbers: Sequence[float], dtype: str
) -> Callable[..., None]:
    """Evaluation of a block by the compiled loop."""
    loop = element_code(formula, kinds, None, dtype).loop

    def evaluate(views: list[Array | None], target: Array) -> None:
        loop(0, target.size, *(view for view in views if view is not None), target, *numbers)

    return evaluate


def _by_numpy(
    formula: Formula, kinds: tuple[str | None, ...], numbers: Sequence[float], dtype: str
) -> Callable[..., None]:
    """Evaluation of a block by NumPy."""
    program = _program(formula, kinds, np.dtype(dtype), numbers)

    def evaluate(views: list[Array | None], target: Array) -> None:
        with np.errstate(all="ignore"):  # of this thread
            program(target, [view for view in views if view is not None])

    return evaluate


def _program(
    formula: Formula | RowFormula,
    operands: Sequence[Any],
    dtype: np.dtype,
    numbers: Sequence[float],
) -> Any:
    """The formula traced, without the operands that are None; None where that can't be done."""
    absent = tuple([operand is None for operand in operands])
    key = (id(formula), absent, dtype.char, *map(float.hex, numbers))  # 0.0 equals -0.0, NaN not itself
    found = _programs.get(key)
    if found is None:
        if len(_programs) >= _PROGRAMS:
            _programs.clear()
        found = _programs[key] = formula, _traced(formula, absent, dtype, numbers)
    return found[1]


def _traced(formula: Any, absent: tuple[bool, ...], dtype: np.dtype, numbers: Sequence[float]) -> Any:
    kind = traced_formula.TracedRows if isinstance(formula, RowFormula) else traced_formula.TracedFormula
    try:
        return kind(formula, absent, dtype, numbers)
    except Untraceable:
        return None


def _in_blocks(
    deal: Deal,
    evaluate: Callable[[list[Array | None], Array], None],
    inputs: Sequence[Array | None],
    kinds: tuple[str | None, ...],
    out: Array,
    block_size: int,
) -> None:
    """Evaluate on one contiguous block of every operand after the other."""
    each = [number for number, kind in enumerate(kinds) if kind == "each"]
    views = [array if array is None else array.reshape(-1) if kind == "one" else None
             for array, kind in zip(inputs, kinds, strict=True)]  # fmt: skip
    read: list[Any] = ["readonly", "contig", "aligned", "nbo"]
    operands: list[Any] = [*(inputs[number] for number in each), out]

    def part(start: int, stop: int) -> None:
        block = list(views)
        iterator = np.nditer(
            operands,
            # buffers are made when the range is known: those of a first range would be written back
            flags=["external_loop", "buffered", "delay_bufalloc", "ranged"],
            op_flags=[*(read for _ in each), ["writeonly", *read[1:]]],
            buffersize=block_size,
        )
        with iterator:
            iterator.iterrange = (start, stop)  # type: ignore[misc]
            for parts in iterator:
                for number, view in zip(each, parts, strict=False):
                    block[number] = view
                evaluate(block, parts[-1])

    if out.size:
        deal(out.size, out.size, part)


# --- rows -------------------------------------------------------------------------------------------


def over_rows(
    machine: Machine,
    formula: RowFormula,
    operands: Sequence[Array | None],
    numbers: Sequence[float],
    out: Array | None,
    compiling: bool,
) -> tuple:
    """The outputs of a row formula."""
    each = [array for array in operands[: len(formula.each)] if array is not None]
    A, n, B = shape = each[0].shape
    dtype = each[0].dtype
    results = {name: np.empty((A, 1, B), dtype) for name in formula.outputs}
    replaced, plain = None, B == 1 and all(_is_plain(array) for array in each)
    if formula.each_output is not None:
        if out is None:
            out = np.empty(shape, dtype)
        else:
            safe = _safe(operands, out, [name in formula.replaceable for name in formula.operands])
            if not safe and not _safe(operands, out, [True] * len(operands)):
                operands = [None if array is None else array.copy() for array in operands]
            replaced = _replaced(operands, out) if safe else None
            plain = plain and safe and _is_plain(out)
        results[formula.each_output] = out
    if not A * B:
        pass  # no rows
    elif plain and not compiling and _few_rows(formula, operands, numbers, results):
        pass
    elif not (plain and compiling):
        _row_blocks(machine.deal, formula, operands, numbers, results, compiling)
    else:
        code = _row_code(formula, operands, replaced, dtype.name)
        arrays = _row_arguments(formula, operands, results, replaced)
        machine.deal_compiled(A, A * n, code, (n,), arrays, numbers)
    return tuple(results[name] for name in formula.outputs)


def quick_rows(machine: Machine, formula: RowFormula, arrays: Sequence[Array]) -> Array | None:
    """The one output along the last axis; None unless the arrays are plain."""
    for array in arrays:
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
    first = arrays[0]
    out = np.empty(first.shape, first.dtype)
    width = first.shape[-1]
    code = _quick.get((id(formula), first.dtype.char))
    if code is None:
        code = _row_code(formula, arrays, None, out.dtype.name)
        _quick[id(formula), first.dtype.char] = code
    views = [*arrays, out] if first.ndim == 2 else [array.reshape(-1, width) for array in (*arrays, out)]
    machine.deal_compiled(out.size // width, out.size, code, (width,), views, ())
    return out


def _row_code(formula: RowFormula, operands: Sequence[Array | None], replaced: int | None, dtype: str) -> Any:
    kinds = tuple([None if array is None else "each" for array in operands])
    found = _codes.get((id(formula), kinds, replaced, dtype))
    if found is not None:
        return found[1]
    integers = frozenset(
        name
        for name, array in zip(formula.operands, operands, strict=True)
        if array is not None and array.dtype.kind == "i"
    )
    return row_code(formula, kinds, integers, replaced, dtype)


def row_code(
    formula: RowFormula,
    kinds: tuple[str | None, ...],
    integers: frozenset[str],
    replaced: int | None,
    dtype: str,
) -> Any:
    """The compiled loop over rows, see `compiled.arrays`."""
    key = (id(formula), kinds, replaced, dtype)
    found = _codes.get(key)
    if found is None:
        from xpgrad.engine.compiled.arrays import ArrayLayout, compiled_rows

        code = compiled_rows(formula, ArrayLayout(kinds, replaced), integers, dtype)
        found = _codes[key] = formula, code
    return found[1]


def _row_arguments(
    formula: RowFormula,
    operands: Sequence[Array | None],
    results: dict[str, Array],
    replaced: int | None,
) -> list[Array]:
    """The arrays of a compiled loop: two axes, or one for numbers of rows and columns."""
    arrays: list[Array] = []
    for name, array in zip(formula.operands, operands, strict=True):
        if array is not None and name in formula.each:
            arrays.append(array.reshape(array.shape[:2]))
        elif array is not None:
            arrays.append(np.require(array.reshape(-1), requirements=("C", "A")))
    each_output = formula.each_output
    if each_output is not None and replaced is None:
        arrays.append(results[each_output].reshape(results[each_output].shape[:2]))
    arrays += [results[name].reshape(-1) for name in formula.outputs if name != each_output]
    return arrays


def _few_rows(
    formula: RowFormula,
    operands: Sequence[Array | None],
    numbers: Sequence[float],
    results: dict[str, Array],
) -> bool:
    """Evaluate on few plain rows, straight into the results; whether that could be done."""
    A, n, _ = next(array for array in operands if array is not None).shape
    return A * n < _ROWS_AT_ONCE and _rows_at_once(formula, operands, numbers, results)


def _rows_at_once(
    formula: RowFormula,
    operands: Sequence[Array | None],
    numbers: Sequence[float],
    results: dict[str, Array],
) -> bool:
    """Evaluate on a few rows by NumPy."""
    dtype = results[formula.outputs[0]].dtype
    program = _program(formula, operands, dtype, numbers)
    if program is None:
        return False
    views = [array.reshape(array.shape[:2]) for array in operands if array is not None]
    outs = [array.reshape(array.shape[:2]) for array in results.values()]
    with np.errstate(all="ignore"):  # of this thread
        program(outs, views, views[0].shape)
    return True


def _row_blocks(
    deal: Deal,
    formula: RowFormula,
    operands: Sequence[Array | None],
    numbers: Sequence[float],
    results: dict[str, Array],
    compiling: bool,
) -> None:
    """Evaluate on some rows after the others, which are copied to where a row is contiguous."""
    A, n, B = next(array for array in operands if array is not None).shape
    at_once = max(1, (_BLOCK_ELEMENTS if compiling else _NUMPY_BLOCK) // n)
    inner = min(B, max(16, at_once))  # enough to copy whole cache lines
    outer = max(1, at_once // inner)
    starts = [(a, b) for a in range(0, A, outer) for b in range(0, B, inner)]

    def part(first: int, last: int) -> None:
        for a, b in starts[first:last]:
            here = (slice(a, a + outer), slice(None), slice(b, b + inner))
            block: list[Array | None] = []
            for name, array in zip(formula.operands, operands, strict=True):
                if array is None or name in formula.columns:
                    block.append(array)
                else:
                    piece = array[here].transpose(0, 2, 1)
                    block.append(np.ascontiguousarray(piece).reshape(-1, piece.shape[2], 1))
            values = (_rows_by_loop if compiling else _rows_by_numpy)(formula, block, numbers)
            for name, value in zip(formula.outputs, values, strict=True):
                target = results[name][here].transpose(0, 2, 1)
                target[...] = value.reshape(target.shape)

    deal(len(starts), A * n * B, part)


def _rows_by_loop(formula: RowFormula, block: list[Array | None], numbers: Sequence[float]) -> list[Array]:
    """The outputs for a block of contiguous rows, by the compiled loop."""
    each = next(array for array in block if array is not None)
    results = _row_results(formula, each)
    loop = _row_code(formula, block, None, each.dtype.name).loop
    loop(0, each.shape[0], each.shape[1], *_row_arguments(formula, block, results, None), *numbers)
    return list(results.values())


def _rows_by_numpy(formula: RowFormula, block: list[Array | None], numbers: Sequence[float]) -> list[Array]:
    """The outputs for a block of contiguous rows, by NumPy."""
    results = _row_results(formula, next(array for array in block if array is not None))
    if _rows_at_once(formula, block, numbers, results):
        return list(results.values())
    views = [None if array is None else array.reshape(array.shape[:2]) for array in block]
    with np.errstate(all="ignore"):  # of this thread
        return formula.evaluate(block_functions, views, numbers)


def _row_results(formula: RowFormula, each: Array) -> dict[str, Array]:
    """Memory for the outputs, for as many rows as the operand has."""
    A, n = each.shape[:2]
    return {
        name: np.empty((A, n if name == formula.each_output else 1), each.dtype) for name in formula.outputs
    }
