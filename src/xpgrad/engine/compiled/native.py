"""What compiled code does besides arithmetic: memory, BLAS and other compiled code, each by its address.

Addresses come in at run time, so that numba can keep the compiled code on disk. Needs numba.
"""

import functools
import inspect

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from xpgrad.engine.compiled.records import RowsProduct, SharedWork, positions
from xpgrad.engine.process import numba_private

__all__ = [
    "LINE",
    "call_in_team",
    "call_for_int",
    "call_for_number",
    "call_with_numbers",
    "call_with_part",
    "elements",
    "fields",
    "gemm",
    "generated",
    "inlined",
    "inside",
    "multiply_rows",
    "multiply_rows_by_panels",
    "multiply_rows_packed",
    "numbers",
    "pack_weight",
    "pointer",
    "share",
    "share_parts",
    "variant",
    "words",
]

_ROWS_PRODUCT, _SHARED = positions(RowsProduct), positions(SharedWork)

LINE = 64
"""Bytes of a cache line; where they are more, or less, nothing is wrong but the speed."""

inside = functools.partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorator for a function that compiled code alone calls: it gets no wrappers for Python and C, which take a
seventh of the time of all compiling."""
inlined = inside(forceinline=True)

_VOID, _BYTE = ir.VoidType(), ir.IntType(8)
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_POINTER = _BYTE.as_pointer()


def variant(label, **options):
    """Decorator for a function that is compiled in several variants, with names of their own.

    Variants can have equal names and arguments of equal types. Their symbols would differ by numba's counter
    alone, which begins anew in each process: code from the cache that two processes compiled would share a
    symbol, and one would be taken for the other.
    """
    settings = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}} | options

    def compiled(function):
        function.__qualname__ = f"{label}.{function.__name__}"
        return inside(**settings)(function)

    return compiled


def generated(write, *kinds, result=types.void):
    """The function whose instructions ``write(context, builder, arguments)`` writes.

    `kinds` are numba's types of the arguments. A value is returned if the function has a result.
    """

    def codegen(context, builder, signature, arguments):
        value = write(context, builder, arguments)
        return context.get_dummy_value() if result is types.void else value

    def function(*_):
        return result(*kinds), codegen

    names = ["typingctx", *(f"argument_{number}" for number in range(len(kinds)))]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    function.__signature__ = inspect.Signature(parameters)
    return intrinsic(function)


def _function(builder, address, result, arguments):
    return builder.inttoptr(address, ir.FunctionType(result, arguments).as_pointer())


def _to_pointer(context, builder, arguments):
    return builder.inttoptr(arguments[0], _POINTER)


# the address as a pointer, for ``carray``
pointer = generated(_to_pointer, types.int64, result=types.voidptr)


@intrinsic
def elements(typingctx, address, offset, one):
    """A pointer to element `offset` of an array of the type of `one` at an address."""
    kind = types.CPointer(one)

    def codegen(context, builder, signature, args):
        begin = builder.inttoptr(args[0], context.get_value_type(kind))
        return builder.gep(begin, [args[1]])

    return kind(types.int64, types.int64, one), codegen


@intrinsic
def fields(typingctx, address):
    """The integers of a record at an address, as a pointer: that takes less to compile than an array."""
    kind = types.CPointer(types.int64)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.int64), codegen


@inlined
def words(address, count):
    """Integers at an address, as an array."""
    return carray(pointer(address), (count,), np.int64)


@inlined
def numbers(address, rows, columns):
    """Integers (rows, columns) at an address."""
    return carray(pointer(address), (rows, columns), np.int64)


@intrinsic
def _call_by_reference(typingctx, address, values):
    """Call a Fortran function: pointers are passed as they are, of numbers their addresses.

    Integers and letters are stored in 64 bits: a BLAS with 32-bit integers reads the lower half, which on a
    little-endian machine stands at the same address.
    """

    def codegen(context, builder, signature, args):
        def passed(value):
            if value.type == _POINTER:
                return value
            slot = numba_private.alloca_once(builder, value.type)
            builder.store(value, slot)
            return builder.bitcast(slot, _POINTER)

        arguments = [passed(value) for value in numba_private.unpack_tuple(builder, args[1])]
        builder.call(_function(builder, args[0], _VOID, [_POINTER] * len(arguments)), arguments)
        return context.get_dummy_value()

    kinds = [types.int64 if isinstance(kind, types.Integer) else kind for kind in values]
    return types.void(types.int64, types.Tuple(kinds)), codegen


@inlined
def _line(elements):
    """The length of a line, for a BLAS: it prints an error where an empty matrix's is 0."""
    return max(elements, 1)


@inlined
def gemm(address, one, a_form, b_form, m, n, k, a, lda, b, ldb, beta, c, ldc):
    """BLAS's gemm: C (m, n) = A (m, k) B (k, n) + beta C, column-major.

    The forms of A and B are letters, N as it is or T transposed.
    """
    _call_by_reference(
        address,
        (a_form, b_form, m, n, k, one, pointer(a), _line(lda), pointer(b), _line(ldb), type(one)(beta),
         pointer(c), _line(ldc)),
    )  # fmt: skip


@inlined
def _gemm_packed(address, one, a_form, b_form, m, n, k, a, lda, b, ldb, beta, c, ldc):
    """MKL's gemm_compute: its A has the form P, which is packed."""
    _call_by_reference(
        address,
        (a_form, b_form, m, n, k, pointer(a), _line(lda), pointer(b), _line(ldb), type(one)(beta), pointer(c),
         _line(ldc)),
    )  # fmt: skip


def _rows_multiplier(gemm, weight_form):
    plain = ord("N")

    @inlined
    def multiply_rows(address, one, itemsize, count, first, start, head, m):
        source, weight, target = _ROWS_PRODUCT
        line, to_line = head[m + source.line], head[m + target.line]
        gemm(
            address, one, weight_form, plain, head[m + weight.columns], count, head[m + weight.rows],
            head[m + weight.address], head[m + weight.line],
            head[m + source.address] + first * line * itemsize, line,
            0, head[m + target.address] + start * to_line * itemsize, to_line,
        )  # fmt: skip

    return multiply_rows


# `count` rows of a source from `first` on, times a weight, into a target's rows from `start` on. Their
# RowsProduct stands in head from m on. They are row-major; read column by column, as BLAS does, a matrix is
# its own transpose, and so the factors change places.
multiply_rows = _rows_multiplier(gemm, ord("N"))
multiply_rows_packed = _rows_multiplier(_gemm_packed, ord("P"))


@inlined
def share(columns, unit, part, parts):
    """The columns of a part, from the first to behind the last one: in units, none of which is divided."""
    units = (columns + unit - 1) // unit
    return units * part // parts * unit, min(columns, units * (part + 1) // parts * unit)


@inlined
def multiply_rows_by_panels(
    tiles, by_panels, height, part, parts, ahead, itemsize, count, first, start, head, m
):
    """The same by our own product, its weight in panels; for the first three see `products.Functions`.

    Of the columns, those of one of so many parts. `ahead` is the address of an Ahead, or 0.
    """
    source, weight, target = _ROWS_PRODUCT
    line, to_line = head[m + source.line], head[m + target.line]
    begin, to = head[m + source.address] + first * line * itemsize, head[m + target.address]
    call_with_numbers(
        by_panels,
        (tiles, 1, begin, line, height * line, count, head[m + weight.address], 0, head[m + weight.rows],
         head[m + weight.columns], part, parts, to + start * to_line * itemsize, to_line, 0, ahead),
    )  # fmt: skip


@inlined
def pack_weight(address, one, form, n, k, source, length, target):
    """MKL's gemm_pack of a weight (k, n), for the factor A of products as in `multiply_rows`."""
    rows = 64  # it packs well for any number of rows
    _call_by_reference(address, (ord("A"), form, n, rows, k, one, pointer(source), length, pointer(target)))


@inlined
def call_in_team(address, function, work, threads):
    """Call ``GOMP_parallel(function, work, threads, 0)``."""
    call_with_numbers(address, (function, work, threads, 0))


def _number_of(context, builder, arguments):
    return builder.sext(builder.call(_function(builder, arguments[0], _INT32, []), []), _INT64)


# call the C function ``int function()`` at an address
call_for_int = generated(_number_of, types.int64, result=types.int64)


def _caller(result):
    @intrinsic
    def call(typingctx, address, values):
        """Call the C function at an address; pointers are integers here."""

        def codegen(context, builder, signature, args):
            arguments = numba_private.unpack_tuple(builder, args[1])
            found = builder.call(_function(builder, args[0], result, [_INT64] * len(arguments)), arguments)
            return context.get_dummy_value() if result is _VOID else found

        returned = types.void if result is _VOID else types.int64
        return returned(types.int64, types.UniTuple(types.int64, len(values))), codegen

    return call


call_with_numbers, call_for_number = _caller(_VOID), _caller(_INT64)


@inlined
def call_with_part(address, data, part):
    """Call the compiled ``function(data, part)``."""
    call_with_numbers(address, (data, part))


@inlined
def share_parts(work):
    """What one thread of an OpenMP team does: its share of the parts.

    `work` holds a SharedWork.
    """
    at = _SHARED
    first, step = call_for_int(work[at.team_first]), call_for_int(work[at.team_second])
    for part in range(first, work[at.parts], step):
        call_with_part(work[at.function], work[at.data], part)
