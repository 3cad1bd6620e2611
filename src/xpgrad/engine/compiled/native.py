"""What compiled code does besides arithmetic: memory and other compiled code, each by its address.

Addresses come in at run time, so that the compiled code can be kept on disk. Needs llvmlite.
"""

import functools

import numpy as np
from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import (
    INT64,
    SYSTEM,
    function_at,
    variable,
    words_by_name,
)
from xpgrad.engine.compiled.records import (
    Ahead,
    LoopHead,
    RowsProduct,
    SharedWork,
    SystemCalls,
    positions,
)
from xpgrad.engine.compiled.translate import Function, Intrinsic

__all__ = [
    "allocate",
    "array_at",
    "call_for_int",
    "call_for_number",
    "call_in_team",
    "call_with_numbers",
    "call_with_part",
    "elements",
    "fields",
    "free",
    "generated",
    "inside",
    "multiply_rows",
    "numbers",
    "release",
    "scratch",
    "settle_memory",
    "share",
    "share_of_one",
    "share_parts",
    "stack",
    "system",
    "text_at",
    "words",
]

_ROWS_PRODUCT, _SHARED, _CALLS = positions(RowsProduct), positions(SharedWork), positions(SystemCalls)
_LOOP, _AHEAD = positions(LoopHead), positions(Ahead)

_VOID, _INT32 = ir.VoidType(), ir.IntType(32)


def inside(*flags):
    """Decorator for a function that compiled code calls; for `flags` see `translate.Function`."""
    return functools.partial(Function, flags=flags)


def generated(write, *kinds):
    """The function whose instructions ``write(code, arguments)`` writes; it returns what that returns.

    `kinds` are the arguments' types: ``"int64"``, ``"float32"`` or ``"float64"``.
    """
    types = {"int64": INT64, "float32": ir.FloatType(), "float64": ir.DoubleType()}

    def instruction(code, *arguments):
        return write(code, [code.value(one, types[kind]) for one, kind in zip(arguments, kinds, strict=True)])

    return Intrinsic(instruction)


# --- memory


@Intrinsic
def array_at(code, address, kind, count=None, columns=None):
    """So many elements of a dtype at an address, or rows of them."""
    return code.memory(address, kind, count, columns)


@Intrinsic
def fields(code, address):
    """The integers of a record at an address."""
    return code.memory(address, np.int64)


@Intrinsic
def words(code, address, count):
    """So many integers at an address."""
    return code.memory(address, np.int64, count)


@Intrinsic
def numbers(code, address, rows, columns):
    """Integers (rows, columns) at an address."""
    return code.memory(address, np.int64, rows, columns)


@Intrinsic
def elements(code, address, offset, real):
    """The elements of an array of a dtype at an address, from number `offset` on."""
    return code.memory(address, real).part(code, offset, None)


@Intrinsic
def stack(code, count):
    """So many integers, whose number is known, that live as long as the compiled function's call."""
    place = variable(code.builder, ir.ArrayType(INT64, count))
    return code.memory(code.builder.ptrtoint(place, INT64), np.int64, count)


@Intrinsic
def system(code):
    """The addresses of the system's functions, 0 for those that it lacks; see `records.SystemCalls`."""
    word = words_by_name(code.module, SYSTEM)
    return code.memory(code.builder.ptrtoint(word, INT64), np.int64)


@Intrinsic
def text_at(code, text):
    """The address of a text, which stands in the code with a zero behind it, as C has it."""
    text = text.encode() + b"\0"
    kind = ir.ArrayType(ir.IntType(8), len(text))
    place = ir.GlobalVariable(code.module, kind, code.module.get_unique_name("text"))
    place.linkage, place.global_constant, place.initializer = "internal", True, kind(bytearray(text))
    return code.builder.ptrtoint(place, INT64)


@Intrinsic
def settle_memory(code):
    """What was written past the caches is in memory before anything that another thread is told of."""
    code.builder.fence("seq_cst")


@inside()
def allocate(size):
    """The address of so many bytes of Python's, 0 where there is no memory; whoever has it calls `free`."""
    return call_for_number(system()[_CALLS.malloc], (size,))


@inside()
def free(address):
    """Give memory back."""
    call_with_numbers(system()[_CALLS.free], (address,))


@inside()
def scratch(count, kind, columns=None):
    """Memory for so many elements of 64 bits or less, or rows of them; whoever has it calls `release`."""
    rows = 1 if columns is None else columns
    return array_at(allocate(max(1, 8 * count * rows)), kind, count, columns)


@inside()
def release(memory):
    """Give scratch memory back."""
    free(memory.ctypes.data)


# --- shares and other compiled code


@inside()
def share(columns, unit, part, parts):
    """The columns of a part, from the first to behind the last one: in units, none of which is divided."""
    units = (columns + unit - 1) // unit
    return units * part // parts * unit, min(columns, units * (part + 1) // parts * unit)


@inside()
def share_of_one(number, count, part, parts):
    """What a part has of thing `number`, where the parts share so many things: which piece, of how many.

    The piece is below 0, or one that there is not, where the part has none of it.
    """
    first = number * parts // count
    return part - first, max(1, (number + 1) * parts // count - first)


@inside()
def multiply_rows(head, m, itemsize, count, first, start, part, parts, ahead):
    """`count` rows of a source from `first` on, times a weight, into a target's rows from `start` on.

    `head` begins with a LoopHead, and the RowsProduct stands in it from m on. Matrix k of the weight
    multiplies part k of the source's columns into part k of the target's, both counted round and round; what
    meets in a part of the target is added. Of the target's columns, only one of so many parts. `ahead` is the
    address of an Ahead.
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
    def call(code, address, values):
        """Call the C function at an address with integers."""
        arguments = [code.integer(value) for value in values]
        function = function_at(code.builder, code.integer(address), result, [INT64] * len(arguments))
        return code.builder.call(function, arguments)

    return call


call_with_numbers, call_for_number = _caller(_VOID), _caller(INT64)


@Intrinsic
def call_for_int(code, address):
    """Call the C function ``int function()`` at an address."""
    function = function_at(code.builder, code.integer(address), _INT32, [])
    return code.integer(code.builder.call(function, []))


@inside()
def call_in_team(address, function, work, threads):
    """Call ``GOMP_parallel(function, work, threads, 0)``."""
    call_with_numbers(address, (function, work, threads, 0))


@inside()
def call_with_part(address, data, part):
    """Call the compiled ``function(data, part)``."""
    call_with_numbers(address, (data, part))


@inside()
def share_parts(work):
    """What one thread of an OpenMP team does: its share of the parts.

    `work` holds a SharedWork.
    """
    at = _SHARED
    first, step = call_for_int(work[at.team_first]), call_for_int(work[at.team_second])
    for part in range(first, work[at.parts], step):
        call_with_part(work[at.function], work[at.data], part)
