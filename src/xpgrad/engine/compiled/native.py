"""Compiled code besides arithmetic: memory and other compiled code, each by its address.

Addresses come in at run time, so that the compiled code can be kept on disk. Needs llvmlite.
"""

import functools

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import INT64, SYSTEM, variable, words_by_name
from xpgrad.engine.compiled.records import Ahead, LoopHead, RowsProduct, SharedWork, SystemCalls, positions
from xpgrad.engine.compiled.translate import Function, Intrinsic

_ROWS_PRODUCT, _SHARED, _CALLS = positions(RowsProduct), positions(SharedWork), positions(SystemCalls)
_LOOP, _AHEAD = positions(LoopHead), positions(Ahead)


def inside(*flags):
    """Decorator for a function that compiled code calls; for `flags` see `translate.Function`."""
    return functools.partial(Function, flags=flags)


def generated(write):
    """The function whose instructions ``write(code, arguments)`` writes; it returns the result of `write`.

    Real numbers keep their type. Other numbers become integers of 64 bits.
    """

    def instruction(code, *arguments):
        kinds = map(code.kind_of, arguments)
        kinds = [INT64 if isinstance(kind, ir.IntType) else kind for kind in kinds]
        return write(code, [*map(code.value, arguments, kinds)])

    return Intrinsic(instruction)


# --- memory


@Intrinsic
def array_at(code, address, kind, count=None, columns=None):
    """`count` elements of a dtype at an address, or `count` rows of them."""
    return code.memory(address, kind, count, columns)


@Intrinsic
def fields(code, address):
    """The integers of a record at an address."""
    return code.memory(address, np.int64)


@Intrinsic
def words(code, address, count, columns=None):
    """`count` integers at an address, or `count` rows of them."""
    return code.memory(address, np.int64, count, columns)


@Intrinsic
def elements(code, address, offset, real):
    """The elements of an array of a dtype at an address, from number `offset` on."""
    return code.memory(address, real).part(code, offset, None)


@Intrinsic
def stack(code, count):
    """Integers that live as long as the call of the compiled function; `count` is known to Python."""
    place = variable(code.builder, ir.ArrayType(INT64, count))
    return code.memory(code.builder.ptrtoint(place, INT64), np.int64, count)


@Intrinsic
def system(code):
    """The addresses of the system's functions, 0 for each that it lacks; see `records.SystemCalls`."""
    word = words_by_name(code.module, SYSTEM)
    return code.memory(code.builder.ptrtoint(word, INT64), np.int64)


@Intrinsic
def text_at(code, text):
    """The address of a text in the code, which ends with a zero, as in C."""
    text = text.encode() + b"\0"
    kind = ir.ArrayType(ir.IntType(8), len(text))
    place = ir.GlobalVariable(code.module, kind, code.module.get_unique_name("text"))
    place.linkage, place.global_constant, place.initializer = "internal", True, kind(bytearray(text))
    return code.builder.ptrtoint(place, INT64)


@Intrinsic
def settle_memory(code):
    """Finish all writes past the caches before another thread is told of them."""
    code.builder.fence("seq_cst")


@inside()
def allocate(size):
    """The address of `size` bytes of Python's memory, 0 if none is left; the caller must call `free`."""
    return call_for_number(system()[_CALLS.malloc], (size,))


@inside()
def free(address):
    """Give memory back."""
    call_with_numbers(system()[_CALLS.free], (address,))


@inside()
def scratch(count, kind, columns=None):
    """Memory for `count` elements of at most 64 bits, or rows of them; the caller must call `release`."""
    rows = 1 if columns is None else columns
    return array_at(allocate(max(1, 8 * count * rows)), kind, count, columns)


@inside()
def release(memory):
    """Give scratch memory back."""
    free(memory.ctypes.data)


# --- shares and other compiled code


@inside()
def share(columns, unit, part, parts):
    """The first column of a part and the column behind its last; no unit of columns is divided."""
    units = (columns + unit - 1) // unit
    return units * part // parts * unit, min(columns, units * (part + 1) // parts * unit)


@inside()
def share_of_one(number, count, part, parts):
    """A part's share of thing `number`, if `parts` share `count` things: which piece, of how many pieces.

    If the part has no share of the thing, the piece is negative or at least the number of pieces.
    """
    first = number * parts // count
    return part - first, max(1, (number + 1) * parts // count - first)


@inside()
def multiply_rows(head, m, itemsize, count, first, start, part, parts, ahead):
    """Multiply `count` rows of a source, from `first` on, by a weight, into a target's rows from `start` on.

    `head` begins with a LoopHead, and its RowsProduct begins at m. Matrix k of the weight multiplies part k
    of the source's columns into part k of the target's. Both counts start again at the last part, and
    products into one part of the target are added. Part `part` of `parts` computes its share of the target's
    columns. `ahead` is the address of an Ahead.
    """
    source, weight, target = _ROWS_PRODUCT
    line, to_line = head[m + source.line], head[m + target.line]
    begin = head[m + source.address] + first * line * itemsize
    to = head[m + target.address] + start * to_line * itemsize
    inner, columns, matrices = head[m + weight.rows], head[m + weight.columns], head[m + weight.count]
    lanes = head[_LOOP.lanes]
    apart = itemsize * inner * ((columns + lanes - 1) // lanes * lanes)
    sources = max(1, min(matrices, head[m + source.columns] // max(inner, 1)))
    targets = max(1, min(matrices, head[m + target.columns] // max(columns, 1)))
    fields(ahead)[_AHEAD.products] = matrices
    for k in range(matrices):
        place = k % targets
        piece, pieces = share_of_one(place, targets, part, parts)
        if 0 <= piece < pieces:
            call_with_numbers(
                head[_LOOP.by_panels],
                (head[_LOOP.tiles], 1, begin + itemsize * inner * (k % sources), line,
                 head[_LOOP.height] * line, count, head[m + weight.address] + apart * k, 0, inner, columns,
                 piece, pieces, to + itemsize * columns * place, to_line, k >= targets, ahead),
            )  # fmt: skip


def _caller(result):
    @Intrinsic
    def call(code, address, values=()):
        """Call the C function at an address with integers."""
        arguments = [code.integer(value) for value in values]
        kind = ir.FunctionType(result, [INT64] * len(arguments)).as_pointer()
        found = code.builder.call(code.builder.inttoptr(code.integer(address), kind), arguments)
        return code.integer(found) if isinstance(result, ir.IntType) else None

    return call


call_with_numbers, call_for_number, call_for_int = map(_caller, (ir.VoidType(), INT64, ir.IntType(32)))


@inside()
def share_parts(work):
    """Run one thread's share of the parts in an OpenMP team; `work` holds a SharedWork."""
    at = _SHARED
    first, step = call_for_int(work[at.team_first]), call_for_int(work[at.team_second])
    for part in range(first, work[at.parts], step):
        call_with_numbers(work[at.function], (work[at.data], part))
