"""How the NumPy engine evaluates formulas over whole arrays: compiled, or by NumPy in blocks.

Blocks stay in the cache. Compiled loops read contiguous arrays, contiguous rows anywhere and repeated
elements directly. Other arrays are copied block by block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import gcd, prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.compiled.records import BESIDE, MOST_ROWS, Lines
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.formulas.row_formula import RowFormula
from xpgrad.engine.process.memory import COMPUTED, address_of, name_of, new_array
from xpgrad.engine.process.remembered import remembered
from xpgrad.engine.process.settings import jit_enabled

# Elements of a block that compiled loops evaluate on copies: one for each thread, if that is not too large.
# Threads copy under the interpreter lock: blocks that fit the first caches took up to five times as long.
_LEAST_COPIED, _MOST_COPIED = 1 << 14, 1 << 17
# Elements of a block of neighbouring rows. A second-level cache may be smaller: long stretches of memory,
# which the processor prefetches, gain more than short stretches that stay in a cache from pass to pass.
_ROWS_ELEMENTS = 1 << 18
_NUMPY_BLOCK = 32768  # larger for NumPy: between two of its functions threads wait for the interpreter lock
_LEAST_ROWS = 128  # neighbouring rows in a block
_SHORT = 32  # elements of a row for which a loop over rows is slower than copies
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

    Its axes have the same order in memory as the axes of the first input of that shape that is not broadcast.
    """
    given = [array for array in inputs if array is not None]
    shape = given[0].shape
    if any(array.shape != shape for array in given):
        shape = np.broadcast_shapes(*(array.shape for array in given))
    whole = [array for array in given if array.shape == shape] or given
    order = _memory_order(next((array for array in whole if 0 not in array.strides), whole[0]))
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
    loop = None
    if compiling:
        loop = ((), kinds, [array.reshape(-1) for array in given]) if plain else _as_rows(inputs, out)
    if loop is not None:
        sizes, forms, views = loop
        code = loop_code(formula, forms, replaced, name_of(out.dtype))
        if replaced is None:
            views.append(out.reshape(-1))
        addresses = [*map(address_of, views)]
        machine.deal_compiled(out.size // prod(sizes), out.size, code, sizes, addresses, numbers)
    else:
        blocks: list[Array | None] = [
            x if x is None else x.reshape(-1) if plain or kind == "one" else _at_shape(x, shape)
            for x, kind in zip(inputs, kinds, strict=True)
        ]
        evaluate = (
            _by_loop(formula, kinds, numbers, name_of(dtype)) if compiling else _by_numpy(formula, numbers)
        )
        size = _copied(machine, out.size) if compiling else _NUMPY_BLOCK
        _in_blocks(machine, evaluate, blocks, out.reshape(-1) if plain else out, size)
    return out


def _as_rows(
    inputs: Operands, out: Array
) -> tuple[tuple[int, ...], tuple[str | None, ...], list[Array]] | None:
    """The inputs as arrays of rows: (their width,), and a form and an array for the loop of each input.

    An input has an element for each of the result's, or one for each row, or for each column, or contiguous
    rows anywhere, as a mean's cotangent in the middle of the axes. None if an input is none of these, or rows
    are short. Without a width, all inputs have an element for each.
    """
    if not _is_plain(out):
        return None
    shape, whole = out.shape, [None if x is None else _at_shape(x, out.shape) for x in inputs]
    if all(x is None or _is_plain(x) for x in whole):  # axes of size 1 were added, or nothing is there
        forms = [None if x is None else "each" for x in whole]
        return (), tuple(forms), [x.reshape(-1) for x in whole if x is not None]
    for first in range(1, out.ndim):
        width = prod(shape[first:])
        forms = [None if x is None else _form(x, first) for x in whole]
        if width < _SHORT or "other" in forms:
            continue
        pairs = zip(whole, forms, strict=True)
        arrays = [_rows(x, form, first) for x, form in pairs if x is not None and form is not None]
        return (width,), tuple(forms), arrays
    return None


def _form(array: Array, first: int) -> str:
    """The form of an array for a loop over rows, if these begin at axis `first`."""
    if _is_plain(array):
        return "each"
    repeats = [not stride or size == 1 for stride, size in zip(array.strides, array.shape, strict=True)]
    if all(repeats[first:]):
        return "row"
    if all(repeats[:first]):
        return "column"
    is_placed = array.flags.aligned and array[(0,) * first].flags.c_contiguous
    return "placed" if is_placed else "other"


def _rows(array: Array, form: str, first: int) -> Array:
    """The loop's array: a view or a small copy, for placed rows their addresses."""
    if form == "placed":
        places = np.asarray(array.__array_interface__["data"][0], dtype=np.int64)
        for size, stride in zip(array.shape[:first], array.strides, strict=False):
            places = places[..., None] + np.arange(size, dtype=np.int64) * stride
        return places.reshape(-1)
    corner: Any = ...
    if form == "row":
        corner = (..., *[0] * (array.ndim - first))
    elif form == "column":
        corner = (0,) * first
    return np.ascontiguousarray(array[corner]).reshape(-1)


def quick_elementwise(
    machine: Machine, formula: Formula, arrays: Sequence[Array], numbers: Numbers, out: Array | None = None
) -> Array | None:
    """The result for plain arrays of one shape and dtype, in `out` if given.

    None for others, for an `out` that needs copies, and for large arrays without llvmlite.
    """
    result = _new_if_plain(arrays) if out is None else out
    if result is None:
        return None
    if not jit_enabled():
        if out is not None or result.size > _NUMPY_BLOCK:
            return None
        _by_numpy(formula, numbers)(arrays, result, _Copies())
        return result
    if out is not None and not (out.flags.writeable and all(map(_is_plain, (*arrays, out)))):
        return None
    addresses = [*map(address_of, arrays), address_of(result)]
    return result if over_elements(machine, formula, addresses, result.size, result.dtype, numbers) else None


def over_elements(
    machine: Machine, formula: Formula, addresses: Sequence[int], size: int, dtype: np.dtype, numbers: Numbers
) -> bool:
    """Evaluate a formula on contiguous arrays at these addresses, of which the result's is the last.

    The result may be one of the arrays. It returns False, and does nothing, if the result meets them in any
    other way.
    """
    arrays, result = addresses[:-1], addresses[-1]
    met = [place for place, one in enumerate(arrays) if abs(one - result) < size * dtype.itemsize]
    if met and (len(met) > 1 or arrays[met[0]] != result):
        return False
    code = loop_code(formula, ("each",) * len(arrays), met[0] if met else None, name_of(dtype))
    machine.deal_compiled(size, size, code, (), arrays if met else addresses, numbers)
    return True


def _new_if_plain(arrays: Sequence[Array]) -> Array | None:
    """A new array like the first one if all arrays are plain, else None."""
    for array in arrays:
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
    return new_array(arrays[0].shape, arrays[0].dtype)


@remembered
def loop_code(
    formula: Formula | RowFormula,
    kinds: tuple[str | None, ...],
    replaced: int | None,
    dtype: str,
    side_by_side: bool = False,
) -> Any:
    """The compiled loop over elements or rows, see `compiled.arrays`."""
    from xpgrad.engine.compiled.arrays import compiled_elements, compiled_rows

    if isinstance(formula, RowFormula):
        return compiled_rows(formula, kinds, replaced, dtype, side_by_side)
    return compiled_elements(formula, kinds, replaced, dtype)


class _Copies:
    """Contiguous copies of blocks, in memory that is used again and again."""

    def __init__(self) -> None:
        self._memory: dict[int, Array] = {}

    def room(self, key: int, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """An array without values, in the memory of the key."""
        size, memory = prod(shape), self._memory.get(key)
        if memory is None or memory.size < size:  # a thread's first block may be a smaller one at an edge
            memory = self._memory[key] = new_array((size,), dtype)
        return memory[:size].reshape(shape)

    def of(self, key: int, array: Array) -> Array:
        """A copy of the array, or the array itself if it is contiguous."""
        if _is_plain(array):
            return array
        copy = self.room(key, array.shape, array.dtype)
        np.copyto(copy, array)
        return copy


def _by_loop(
    formula: Formula, kinds: tuple[str | None, ...], numbers: Numbers, dtype: str
) -> Callable[[Operands, Array, _Copies], None]:
    """Evaluation of a block by the compiled loop."""
    run = loop_code(formula, kinds, None, dtype).run

    def evaluate(operands: Operands, target: Array, copies: _Copies) -> None:
        place = target if _is_plain(target) else copies.room(-1, target.shape, target.dtype)
        arrays = [copies.of(key, x) for key, x in enumerate(operands) if x is not None]
        run(0, place.size, *map(address_of, (*arrays, place)), *numbers)
        if place is not target:
            target[...] = place

    return evaluate


def _by_numpy(formula: Formula, numbers: Numbers) -> Callable[[Operands, Array, _Copies], None]:
    """Evaluation of a block by NumPy."""
    named = dict(zip(formula.parameters, numbers, strict=True))

    def evaluate(operands: Operands, target: Array, copies: _Copies) -> None:
        with np.errstate(all="ignore"):  # of this thread
            (target[...],) = formula(NUMPY, *operands, **named)

    return evaluate


def _copied(machine: Machine, size: int) -> int:
    """The elements of a block that compiled loops evaluate on copies."""
    return max(_LEAST_COPIED, min(_MOST_COPIED, -(-size // machine.parts(size))))


def _in_blocks(
    machine: Machine, evaluate: Callable[[Operands, Array, _Copies], None], operands: Operands, out: Array,
    size: int,
) -> None:  # fmt: skip
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
        copies = _Copies()
        for start in starts[first:last]:
            here = slice(start, start + count)
            block = [x[here] if x is not None and x.shape == shape else x for x in operands]
            evaluate(block, out[here], copies)

    machine.deal(len(starts), out.size, part)


# --- rows -------------------------------------------------------------------------------------------


def over_rows(
    machine: Machine, formula: RowFormula, operands: Operands, numbers: Numbers, out: Array | None
) -> tuple:
    """The outputs of a row formula; their axes have the same order in memory as the axes of the operands."""
    each = [array for array in operands[: len(formula.each)] if array is not None]
    if out is None and jit_enabled() and all(map(_is_plain, each)):
        return _over_plain_rows(machine, formula, operands, numbers)
    order = _rows_order(each if out is None else [*each, out])
    if order is None:
        return _over_rows_in_order(machine, formula, operands, numbers, out)
    A, _, B = each[0].shape
    joined = order == _ROWS_LAST

    def turned(array: Array, name: str = "") -> Array:
        if name in formula.columns:
            return array
        array = array.transpose(order)
        return array.reshape(A * B, -1, 1) if joined else array

    found = _over_rows_in_order(
        machine, formula,
        [x if x is None else turned(x, name) for name, x in zip(formula.operands, operands, strict=True)],
        numbers, None if out is None else turned(out),
    )  # fmt: skip
    return tuple((x.reshape(A, B, -1) if joined else x).transpose(order) for x in found)


def _over_plain_rows(machine: Machine, formula: RowFormula, operands: Operands, numbers: Numbers) -> tuple:
    """The outputs for plain operands, as most calls have them: half the time of the way for all others."""
    given = [x if _is_plain(x) else x.copy() for x in operands if x is not None]
    shape, dtype = given[0].shape, given[0].dtype
    results = _row_results(formula, shape, dtype)
    if shape[0] * shape[2]:
        code = loop_code(formula, tuple(map(_kind, operands)), None, name_of(dtype), shape[2] > 1)
        addresses = [*map(address_of, (*given, *_elements_first(formula, results)))]
        _deal_rows(machine, code, shape, addresses, numbers)
    return tuple([results[name] for name in formula.outputs])


def _elements_first(formula: RowFormula, results: Mapping[str, Array]) -> list[Array]:
    """The results in the order of a loop's arguments: elements before numbers of rows."""
    return [results[name] for name in sorted(formula.outputs, key=formula.each_output.__ne__)]


_ROWS_LAST, _ROWS_SWAPPED = (0, 2, 1), (2, 1, 0)


def _rows_order(arrays: Sequence[Array]) -> tuple[int, ...] | None:
    """An order of the axes in which all arrays are plain; None if it is theirs, or if there is none."""
    if not jit_enabled() or all(map(_is_plain, arrays)):
        return None
    orders = (_ROWS_LAST, _ROWS_SWAPPED)
    return next((o for o in orders if all(_is_plain(array.transpose(o)) for array in arrays)), None)


def _over_rows_in_order(
    machine: Machine, formula: RowFormula, operands: Operands, numbers: Numbers, out: Array | None
) -> tuple:
    """The outputs: by the loops for rows, for rows side by side, or on copies."""
    compiling = jit_enabled()
    first = next(array for array in operands if array is not None)
    A, n, B = shape = first.shape
    dtype = first.dtype
    replaced = None
    if out is not None and formula.each_output is not None:
        replaceable = [name in formula.replaceable for name in formula.operands]
        operands, replaced = _apart(operands, out, replaceable)
    results = _row_results(formula, shape, dtype, out)
    kinds = _row_kinds(formula, operands, B > 1) if compiling and (out is None or _is_plain(out)) else None
    if kinds and A * B:
        code = loop_code(formula, kinds, replaced, name_of(dtype), B > 1)
        arrays = _row_arguments(formula, operands, kinds, results, replaced)
        _deal_rows(machine, code, shape, [*map(address_of, arrays)], numbers)
    elif A * B:
        evaluate = _rows_by_loop if compiling else _rows_by_numpy
        size = _copied(machine, A * n * B) if compiling else _NUMPY_BLOCK
        run = functools.partial(evaluate, formula, numbers)
        # a loop that writes over an operand is another one
        directly = formula.each_output if compiling and replaced is None else None
        _row_blocks(machine, formula, operands, run, results, size, directly)
    return tuple(results[name] for name in formula.outputs)


def quick_rows(machine: Machine, formula: RowFormula, arrays: Sequence[Array], axis: int) -> Array | None:
    """The single output along an axis; None unless the arrays are plain."""
    out = _new_if_plain(arrays)
    if out is None:
        return None
    addresses = [*map(address_of, arrays), address_of(out)]
    along_axis(machine, formula, addresses, out.shape, axis, out.dtype)
    return out


def along_axis(
    machine: Machine, formula: RowFormula, addresses: Sequence[int], shape: Sequence[int], axis: int,
    dtype: np.dtype,
) -> None:  # fmt: skip
    """Evaluate a row formula on contiguous arrays at these addresses, of which the result's is the last."""
    rows = rows_along(shape, axis)
    code = loop_code(formula, ("each",) * (len(addresses) - 1), None, name_of(dtype), rows[2] > 1)
    _deal_rows(machine, code, rows, addresses, ())


def rows_along(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """The shape with all axes before and after an axis joined."""
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _deal_rows(
    machine: Machine, code: Any, shape: tuple[int, int, int], addresses: Sequence[int], numbers: Numbers
) -> None:
    """Run a compiled loop over rows, or over rows side by side, in threads."""
    A, n, B = shape
    together = 1 if B == 1 else _rows_together(n, B, A, machine)
    sizes = (n,) if B == 1 else (n, B, together)
    machine.deal_compiled(A * -(-B // together), A * n * B, code, sizes, addresses, numbers)


def _rows_together(n: int, B: int, A: int, machine: Machine) -> int:
    """How many of B neighbouring rows are a block; all threads have about as many blocks."""
    parts = machine.parts(A * n * B)
    # of an item; with many items the threads' shares are nearly equal without division
    pieces = 1 if 8 * parts <= A else parts // gcd(A, parts)
    return min(B, max(_LEAST_ROWS, min(MOST_ROWS, _ROWS_ELEMENTS // n, -(-B // pieces))))


def _kind(array: Array | None) -> str | None:
    """The kind of an operand of a compiled loop, if it is contiguous."""
    return None if array is None else "integers" if array.dtype.kind == "i" else "each"


def _row_kinds(formula: RowFormula, operands: Operands, side_by_side: bool) -> tuple[str | None, ...] | None:
    """The kinds of the operands of a compiled loop; None if an operand needs a copy."""
    kinds: list[str | None] = []
    for name, array in zip(formula.operands, operands, strict=True):
        kind = _kind(array)
        if array is not None and name in formula.each and not _is_plain(array):
            if not side_by_side or not array.flags.aligned or array.strides[-1] not in (0, array.itemsize):
                return None
            kind = "lines" if array.strides[-1] else "repeated"
        kinds.append(kind)
    return tuple(kinds)


def _row_arguments(
    formula: RowFormula,
    operands: Operands,
    kinds: Sequence[str | None],
    results: dict[str, Array],
    replaced: int | None,
) -> list[Array]:
    """The arrays of a compiled loop: their elements, or where these are."""
    arrays: list[Array] = []
    for name, array, kind in zip(formula.operands, operands, kinds, strict=True):
        if array is not None and kind in BESIDE:
            place = array.__array_interface__["data"][0]
            strides = [stride // array.itemsize for stride in array.strides]
            arrays.append(np.asarray(Lines(place, *strides[:2]), dtype=np.int64))
        elif array is not None and name in formula.each:
            arrays.append(array.reshape(-1))
        elif array is not None:
            numbers = array.reshape(-1)
            arrays.append(numbers if _is_plain(numbers) else numbers.copy())
    targets = _elements_first(formula, results)
    return arrays + [target.reshape(-1) for target in (targets if replaced is None else targets[1:])]


def _row_blocks(
    machine: Machine,
    formula: RowFormula,
    operands: Operands,
    evaluate: Callable[[Operands, Array | None], Sequence[Array]],
    results: dict[str, Array],
    size: int,
    directly: str | None,
) -> None:
    """Evaluate block by block, on copies with contiguous rows; one result perhaps `directly` in its place."""
    A, n, B = next(array for array in operands if array is not None).shape
    at_once = max(1, size // n)
    inner = min(B, max(16, at_once))  # enough to copy whole cache lines
    outer = max(1, at_once // inner)
    starts = [(a, b) for a in range(0, A, outer) for b in range(0, B, inner)]

    def part(first: int, last: int) -> None:
        copies = _Copies()
        for a, b in starts[first:last]:
            here = (slice(a, a + outer), slice(None), slice(b, b + inner))
            block: list[Array | None] = []
            for key, (name, array) in enumerate(zip(formula.operands, operands, strict=True)):
                if array is not None:
                    place = (...,) if name in formula.columns else here
                    rows = array[place].transpose(0, 2, 1)
                    array = copies.of(key, rows).reshape(-1, rows.shape[2])
                block.append(array)
            targets = {name: results[name][here].transpose(0, 2, 1) for name in formula.outputs}
            out = None if directly is None else targets[directly]
            whole = out.reshape(-1, n) if out is not None and _is_plain(out) else None
            for target, value in zip(targets.values(), evaluate(block, whole), strict=True):
                if value is not whole:
                    target[...] = value.reshape(target.shape)

    machine.deal(len(starts), A * n * B, part)


def _rows_by_loop(
    formula: RowFormula, numbers: Numbers, operands: Operands, out: Array | None
) -> list[Array]:
    """The outputs for contiguous rows (rows, n) by the compiled loop, perhaps in the memory of `out`."""
    (rows, n), dtype = next((x.shape, x.dtype) for x in operands if x is not None)
    values = _row_results(formula, (rows, n), dtype, out)
    kinds = tuple(map(_kind, operands))
    run = loop_code(formula, kinds, None, name_of(dtype)).run
    run(0, rows, n, *map(address_of, _row_arguments(formula, operands, kinds, values, None)), *numbers)
    return [values[name] for name in formula.outputs]


def _rows_by_numpy(
    formula: RowFormula, numbers: Numbers, operands: Operands, out: Array | None
) -> list[Array]:
    """The outputs by NumPy."""
    with np.errstate(all="ignore"):  # of this thread
        return formula.evaluate(NUMPY, operands, numbers)


def _row_results(
    formula: RowFormula, shape: tuple[int, ...], dtype: np.dtype, out: Array | None = None
) -> dict[str, Array]:
    """Memory for the outputs, one number for each row or element; elements go to `out` if given."""
    of_rows = (shape[0], 1, *shape[2:])
    each = formula.each_output
    made = {name: new_array(of_rows, dtype) for name in formula.outputs if name != each}
    if each is not None:
        made[each] = new_array(shape, dtype) if out is None else out
    return made
