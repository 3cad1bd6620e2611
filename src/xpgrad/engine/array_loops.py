"""How the NumPy engine evaluates formulas over whole arrays: compiled, or by NumPy in blocks.

Blocks stay in the cache. Compiled loops read contiguous arrays directly. Strided, transposed and broadcast
arrays are copied block by block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula
from xpgrad.engine.process.memory import COMPUTED, address_of, name_of, new_array
from xpgrad.engine.process.remembered import remembered
from xpgrad.engine.process.settings import jit_enabled

_BLOCK_ELEMENTS = 16384  # of a block for compiled loops: its copies are still in the cache when they are read
_NUMPY_BLOCK = 32768  # larger for NumPy: between two of its functions threads wait for the interpreter lock
_FEW = 4096  # elements for which a processor predicts most branches

Array = np.ndarray
Operands = Sequence[Array | None]
Numbers = Sequence[float]


def _logistic(x: Any) -> Any:
    """1 / (1 + exp(-x)); an overflow of exp is harmless."""
    return 1 / (1 + np.exp(-x))


def _where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, else `y`: with masks, because NumPy branches on each element."""
    dtype = np.result_type(x, y)
    if np.size(condition) < _FEW or dtype not in COMPUTED:
        return np.where(condition, x, y)
    x, y = (np.asarray(one, dtype).view(_INTEGERS[dtype]) for one in (x, y))
    mask = np.negative(condition.view(np.int8)).astype(x.dtype)
    return (((x ^ y) & mask) ^ y).view(dtype)


_INTEGERS = {dtype: np.dtype(f"int{8 * dtype.itemsize}") for dtype in COMPUTED}
NUMPY = SimpleNamespace(**{**vars(np), "logistic": _logistic, "where": _where})
"""NumPy for formulas: they prefer a namespace's functions to the functions in `formulas.special`."""


def _is_plain(array: Array) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def _apart(inputs: Operands, out: Array, replaceable: Sequence[bool]) -> tuple[Operands, int | None]:
    """The inputs of a loop that writes `out`, and the number of the input that is `out`, or None.

    A loop can write over one `replaceable` input. All other inputs that share memory with `out` are copied.
    """
    shared = {n: a for n, a in enumerate(inputs) if a is not None and np.may_share_memory(a, out)}
    if not shared:
        return inputs, None
    place = out.ctypes.data, out.shape, out.strides
    for number, array in shared.items():
        is_out = (array.ctypes.data, array.shape, array.strides) == place
        if len(shared) == 1 and is_out and replaceable[number]:
            return inputs, number
    return [a.copy() if a is not None and n in shared else a for n, a in enumerate(inputs)], None


# --- elements -----------------------------------------------------------------------------------------


def elementwise(
    machine: Machine, formula: Formula, inputs: Operands, numbers: Numbers, out: Array | None
) -> Array:
    """The result of a formula, in the shape to which its inputs broadcast.

    Its axes have the same order in memory as the axes of the first input of that shape.
    """
    given = [array for array in inputs if array is not None]
    shape = given[0].shape
    if any(array.shape != shape for array in given):
        shape = np.broadcast_shapes(*(array.shape for array in given))
    order = _memory_order(next((array for array in given if array.shape == shape), given[0]))
    if order is None:
        return _elementwise_in_order(machine, formula, inputs, shape, numbers, out)
    turned = [
        array if array is None or array.size == 1 else _at_shape(array, shape).transpose(order)
        for array in inputs
    ]
    target = None if out is None else out.transpose(order)
    sizes = tuple([shape[axis] for axis in order])
    result = _elementwise_in_order(machine, formula, turned, sizes, numbers, target)
    return result.transpose(sorted(range(len(order)), key=order.__getitem__)) if out is None else out


def _at_shape(array: Array, shape: tuple[int, ...]) -> Array:
    """The array broadcast to a shape; if it has this shape, the array itself, which is writable."""
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _memory_order(array: Array) -> list[int] | None:
    """The axes from the largest stride to the smallest; None if they are in this order.

    A broadcast axis repeats its elements: such an array counts as ordered.
    """
    if array.flags.c_contiguous:
        return None
    strides = [abs(stride) for stride in array.strides]
    if any(not stride and size > 1 for stride, size in zip(strides, array.shape, strict=True)):
        return None
    order = sorted(range(array.ndim), key=strides.__getitem__, reverse=True)
    return None if order == list(range(array.ndim)) else order


def _elementwise_in_order(
    machine: Machine, formula: Formula, inputs: Operands, shape: tuple[int, ...], numbers: Numbers,
    out: Array | None,
) -> Array:  # fmt: skip
    """The result of `elementwise` for a shape whose axes are in memory from first to last."""
    compiling = jit_enabled()
    dtype, replaced = next(array for array in inputs if array is not None).dtype, None
    if out is None:
        out = new_array(shape, dtype)
    else:
        inputs, replaced = _apart(inputs, out, [True] * len(inputs))
    kinds = tuple(
        [None if a is None else "one" if a.size == 1 and a.shape != shape else "each" for a in inputs]
    )
    given = [array for array in inputs if array is not None]
    each = [array for array in given if array.size != 1 or array.shape == shape]
    plain = all(array.shape == shape and _is_plain(array) for array in (*each, out))
    if compiling and plain:
        code = loop_code(formula, kinds, replaced, out.dtype.name)
        views = [array.reshape(-1) for array in given]
        if replaced is None:
            views.append(out.reshape(-1))
        machine.deal_compiled(out.size, out.size, code, (), views, numbers)
    else:
        blocks: list[Array | None] = [
            x if x is None else x.reshape(-1) if plain or kind == "one" else _at_shape(x, shape)
            for x, kind in zip(inputs, kinds, strict=True)
        ]
        evaluate = _by_loop(formula, kinds, numbers, dtype.name) if compiling else _by_numpy(formula, numbers)
        size = _BLOCK_ELEMENTS if compiling else _NUMPY_BLOCK
        _in_blocks(machine, evaluate, blocks, out.reshape(-1) if plain else out, size)
    return out


def quick_elementwise(
    machine: Machine, formula: Formula, arrays: Sequence[Array], numbers: Numbers
) -> Array | None:
    """The result for plain arrays of one shape and dtype; else None, also for large ones without llvmlite."""
    out = _new_if_plain(arrays)
    if out is None:
        return None
    if not jit_enabled():
        if out.size > _NUMPY_BLOCK:
            return None
        _by_numpy(formula, numbers)(arrays, out)
        return out
    code = loop_code(formula, ("each",) * len(arrays), None, name_of(out.dtype))
    views = [*arrays, out] if out.ndim == 1 else [array.reshape(-1) for array in (*arrays, out)]
    machine.deal_compiled(out.size, out.size, code, (), views, numbers)
    return out


def _new_if_plain(arrays: Sequence[Array]) -> Array | None:
    """A new array like the first one if all arrays are plain, else None."""
    for array in arrays:
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
    return new_array(arrays[0].shape, arrays[0].dtype)


@remembered
def loop_code(
    formula: Formula | RowFormula, kinds: tuple[str | None, ...], replaced: int | None, dtype: str
) -> Any:
    """The compiled loop over elements or rows, see `compiled.arrays`."""
    from xpgrad.engine.compiled.arrays import compiled_elements, compiled_rows

    if isinstance(formula, RowFormula):
        return compiled_rows(formula, kinds, replaced, dtype)
    return compiled_elements(formula, kinds, replaced, dtype)


def _by_loop(
    formula: Formula, kinds: tuple[str | None, ...], numbers: Numbers, dtype: str
) -> Callable[[Operands, Array], None]:
    """Evaluation of a block by the compiled loop."""
    run = loop_code(formula, kinds, None, dtype).run

    def evaluate(operands: Operands, target: Array) -> None:
        place = target if _is_plain(target) else new_array(target.shape, target.dtype)
        arrays = [np.require(x, requirements=("C", "A")) for x in operands if x is not None]
        run(0, place.size, *map(address_of, (*arrays, place)), *numbers)
        if place is not target:
            target[...] = place

    return evaluate


def _by_numpy(formula: Formula, numbers: Numbers) -> Callable[[Operands, Array], None]:
    """Evaluation of a block by NumPy."""
    named = dict(zip(formula.parameters, numbers, strict=True))

    def evaluate(operands: Operands, target: Array) -> None:
        with np.errstate(all="ignore"):  # of this thread
            (target[...],) = formula(NUMPY, *operands, **named)

    return evaluate


def _in_blocks(
    machine: Machine, evaluate: Callable[[Operands, Array], None], operands: Operands, out: Array, size: int
) -> None:
    """Evaluate block by block along the first axis; operands have the result's shape, or the shape (1,)."""
    if not out.size:
        return
    if not out.ndim:
        operands, out = [x if x is None else x.reshape(1) for x in operands], out.reshape(1)
    while out.ndim > 1 and len(out) == 1:
        operands, out = [x[0] if x is not None and x.shape == out.shape else x for x in operands], out[0]
    shape = out.shape
    count = max(1, size * len(out) // out.size)
    starts = range(0, len(out), count)

    def part(first: int, last: int) -> None:
        for start in starts[first:last]:
            here = slice(start, start + count)
            evaluate([x[here] if x is not None and x.shape == shape else x for x in operands], out[here])

    machine.deal(len(starts), out.size, part)


# --- rows -------------------------------------------------------------------------------------------


def over_rows(
    machine: Machine, formula: RowFormula, operands: Operands, numbers: Numbers, out: Array | None
) -> tuple:
    """The outputs of a row formula."""
    compiling = jit_enabled()
    each = [array for array in operands[: len(formula.each)] if array is not None]
    A, n, B = shape = each[0].shape
    dtype = each[0].dtype
    replaced = None
    if out is not None and formula.each_output is not None:
        replaceable = [name in formula.replaceable for name in formula.operands]
        operands, replaced = _apart(operands, out, replaceable)
        each = [array for array in operands[: len(formula.each)] if array is not None]
    results = _row_results(formula, shape, dtype, out)
    plain = B == 1 and all(map(_is_plain, each)) and (out is None or _is_plain(out))
    if plain and compiling and A:
        code = _row_code(formula, operands, replaced, dtype.name)
        arrays = _row_arguments(formula, operands, results, replaced)
        machine.deal_compiled(A, A * n, code, (n,), arrays, numbers)
    elif A * B:
        evaluate = _rows_by_loop if compiling else _rows_by_numpy
        size = _BLOCK_ELEMENTS if compiling else _NUMPY_BLOCK
        _row_blocks(machine, formula, operands, functools.partial(evaluate, formula, numbers), results, size)
    return tuple(results[name] for name in formula.outputs)


def quick_rows(machine: Machine, formula: RowFormula, arrays: Sequence[Array]) -> Array | None:
    """The single output along the last axis; None unless the arrays are plain."""
    out = _new_if_plain(arrays)
    if out is None:
        return None
    width = out.shape[-1]
    code = loop_code(formula, ("each",) * len(arrays), None, name_of(out.dtype))
    views = [*arrays, out] if out.ndim == 2 else [array.reshape(-1, width) for array in (*arrays, out)]
    machine.deal_compiled(out.size // width, out.size, code, (width,), views, ())
    return out


def _row_code(formula: RowFormula, operands: Operands, replaced: int | None, dtype: str) -> Any:
    kinds = [None if a is None else "integers" if a.dtype.kind == "i" else "each" for a in operands]
    return loop_code(formula, tuple(kinds), replaced, dtype)


def _row_arguments(
    formula: RowFormula, operands: Operands, results: dict[str, Array], replaced: int | None
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


def _row_blocks(
    machine: Machine,
    formula: RowFormula,
    operands: Operands,
    evaluate: Callable[[Operands], Sequence[Array]],
    results: dict[str, Array],
    size: int,
) -> None:
    """Evaluate block by block, on copies with contiguous rows."""
    A, n, B = next(array for array in operands if array is not None).shape
    at_once = max(1, size // n)
    inner = min(B, max(16, at_once))  # enough to copy whole cache lines
    outer = max(1, at_once // inner)
    starts = [(a, b) for a in range(0, A, outer) for b in range(0, B, inner)]

    def part(first: int, last: int) -> None:
        for a, b in starts[first:last]:
            here = (slice(a, a + outer), slice(None), slice(b, b + inner))
            block: list[Array | None] = []
            for name, array in zip(formula.operands, operands, strict=True):
                if array is not None:
                    place = (...,) if name in formula.columns else here
                    rows = array[place].transpose(0, 2, 1)
                    array = np.ascontiguousarray(rows).reshape(-1, rows.shape[2])
                block.append(array)
            for name, value in zip(formula.outputs, evaluate(block), strict=True):
                target = results[name][here].transpose(0, 2, 1)
                target[...] = value.reshape(target.shape)

    machine.deal(len(starts), A * n * B, part)


def _rows_by_loop(formula: RowFormula, numbers: Numbers, operands: Operands) -> list[Array]:
    """The outputs for contiguous rows (rows, n) by the compiled loop."""
    (rows, n), dtype = next((x.shape, x.dtype) for x in operands if x is not None)
    values = _row_results(formula, (rows, n), dtype)
    run = _row_code(formula, operands, None, dtype.name).run
    run(0, rows, n, *map(address_of, _row_arguments(formula, operands, values, None)), *numbers)
    return [values[name] for name in formula.outputs]


def _rows_by_numpy(formula: RowFormula, numbers: Numbers, operands: Operands) -> list[Array]:
    """The outputs by NumPy."""
    with np.errstate(all="ignore"):  # of this thread
        return formula.evaluate(NUMPY, operands, numbers)


def _row_results(
    formula: RowFormula, shape: tuple[int, ...], dtype: np.dtype, out: Array | None = None
) -> dict[str, Array]:
    """Memory for the outputs, one number for each row or element; elements go to `out` if given."""
    of_rows = (shape[0], 1, *shape[2:])
    made = {name: new_array(of_rows, dtype) for name in formula.outputs}
    if formula.each_output is not None:
        made[formula.each_output] = new_array(shape, dtype) if out is None else out
    return made
