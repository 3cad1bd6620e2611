"""What compiled code does besides arithmetic: memory, BLAS and other compiled code, each by its address.

Addresses come in at run time, so that numba can keep the compiled code on disk. Needs numba.
"""

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from xpgrad.engine.compiled.records import RowsProduct, SharedWork, positions
from xpgrad.engine.process import numba_private

__all__ = [
    "LINE",
    "call_in_team",
    "call_with_numbers",
    "call_with_part",
    "elements",
    "gemm",
    "multiply_rows",
    "multiply_rows_by_panels",
    "multiply_rows_packed",
    "numbers",
    "pack_weight",
    "pointer",
    "share_parts",
    "variant",
    "words",
]

_ROWS_PRODUCT, _SHARED = positions(RowsProduct), positions(SharedWork)

LINE = 64
"""Bytes of a cache line; where they are more, or less, nothing is wrong but the speed."""

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
        return njit(**settings)(function)

    return compiled


def _function(builder, address, result, arguments):
    return builder.inttoptr(address, ir.FunctionType(result, arguments).as_pointer())


@intrinsic
def pointer(typingctx, address):
    """The address as a pointer, for ``carray``."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], _POINTER)

    return types.voidptr(types.int64), codegen


@intrinsic
def elements(typingctx, address, offset, one):
    """A pointer to element `offset` of an array of the type of `one` at an address."""
    kind = types.CPointer(one)

    def codegen(context, builder, signature, args):
        begin = builder.inttoptr(args[0], context.get_value_type(kind))
        return builder.gep(begin, [args[1]])

    return kind(types.int64, types.int64, one), codegen


def _stored(builder, value):
    """A pointer to the value, as Fortran takes its arguments."""
    slot = numba_private.alloca_once(builder, value.type)
    builder.store(value, slot)
    return builder.bitcast(slot, _POINTER)


@njit(forceinline=True)
def words(address, count):
    """Integers at an address."""
    return carray(pointer(address), (count,), np.int64)


@njit(forceinline=True)
def numbers(address, rows, columns):
    """Integers (rows, columns) at an address."""
    return carray(pointer(address), (rows, columns), np.int64)


def _letter(builder, number):
    return _stored(builder, builder.trunc(number, _BYTE))


def _gemm(packed):
    """The Fortran interface of BLAS's gemm: C (m, n) = A (m, k) B (k, n) + beta C, column-major.

    The forms of A and B are letters, N as it is or T transposed. `packed` calls MKL's gemm_compute instead,
    whose A has the form P. Integers are stored in 64 bits: a BLAS with 32-bit integers reads the lower half,
    which on a little-endian machine stands at the same address.
    """

    @intrinsic
    def gemm(typingctx, address, one, a_form, b_form, m, n, k, a, lda, b, ldb, beta, c, ldc):
        def codegen(context, builder, signature, args):
            address, one, a_form, b_form, m, n, k, a, lda, b, ldb, beta, c, ldc = args

            def at(number):
                return builder.inttoptr(number, _POINTER)

            arguments = [_letter(builder, a_form), _letter(builder, b_form)]
            arguments += [_stored(builder, size) for size in (m, n, k)]
            arguments += [] if packed else [_stored(builder, one)]
            arguments += [at(a), _stored(builder, lda), at(b), _stored(builder, ldb)]
            beta = _stored(builder, builder.sitofp(beta, one.type))
            arguments += [beta, at(c), _stored(builder, ldc)]
            builder.call(_function(builder, address, _VOID, [_POINTER] * len(arguments)), arguments)
            return context.get_dummy_value()

        return types.void(types.int64, one, *[types.int64] * 12), codegen

    return gemm


gemm = _gemm(packed=False)
_gemm_packed = _gemm(packed=True)


def _rows_multiplier(gemm, weight_form):
    plain = ord("N")

    @njit(forceinline=True)
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


@njit(forceinline=True)
def multiply_rows_by_panels(tiles, by_panels, height, itemsize, count, first, start, head, m):
    """The same by our own product, its weight in panels; for the first three see `products.Functions`."""
    source, weight, target = _ROWS_PRODUCT
    line, to_line = head[m + source.line], head[m + target.line]
    begin, to = head[m + source.address] + first * line * itemsize, head[m + target.address]
    call_with_numbers(
        by_panels,
        (tiles, 1, begin, line, height * line, count, head[m + weight.address], 0, head[m + weight.rows], 0,
         head[m + weight.columns], to + start * to_line * itemsize, to_line, 0),
    )  # fmt: skip


@intrinsic
def pack_weight(typingctx, address, one, form, n, k, source, length, target):
    """MKL's gemm_pack of a weight (k, n), for the factor A of products as in `multiply_rows`."""

    def codegen(context, builder, signature, args):
        address, one, form, n, k, source, length, target = args
        rows = ir.Constant(_INT64, 64)  # it packs well for any number of rows
        arguments = [_letter(builder, ir.Constant(_INT64, ord("A"))), _letter(builder, form)]
        arguments += [_stored(builder, size) for size in (n, rows, k)]
        arguments += [_stored(builder, one), builder.inttoptr(source, _POINTER), _stored(builder, length)]
        arguments += [builder.inttoptr(target, _POINTER)]
        builder.call(_function(builder, address, _VOID, [_POINTER] * len(arguments)), arguments)
        return context.get_dummy_value()

    return types.void(types.int64, one, *[types.int64] * 6), codegen


@intrinsic
def call_in_team(typingctx, address, function, work, threads):
    """Call ``GOMP_parallel(function, work, threads, 0)``."""

    def codegen(context, builder, signature, args):
        address, function, work, threads = args
        call = _function(builder, address, _VOID, [_POINTER, _POINTER, _INT32, _INT32])
        function, work = (builder.inttoptr(number, _POINTER) for number in (function, work))
        builder.call(call, [function, work, builder.trunc(threads, _INT32), ir.Constant(_INT32, 0)])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def _call_for_number(typingctx, address):
    def codegen(context, builder, signature, args):
        number = builder.call(_function(builder, args[0], _INT32, []), [])
        return builder.sext(number, _INT64)

    return types.int64(types.int64), codegen


@intrinsic
def call_with_numbers(typingctx, address, values):
    """Call a compiled function of integers."""

    def codegen(context, builder, signature, args):
        call = _function(builder, args[0], _VOID, [_INT64] * len(signature.args[1]))
        builder.call(call, numba_private.unpack_tuple(builder, args[1]))
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, len(values))), codegen


@intrinsic
def call_with_part(typingctx, address, data, part):
    """Call the compiled ``function(data, part)``."""

    def codegen(context, builder, signature, args):
        call = _function(builder, args[0], _VOID, [_POINTER, _INT64])
        builder.call(call, [builder.inttoptr(args[1], _POINTER), args[2]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@njit(forceinline=True)
def share_parts(work):
    """What one thread of an OpenMP team does: its share of the parts.

    `work` holds a SharedWork.
    """
    at = _SHARED
    first, step = _call_for_number(work[at.team_first]), _call_for_number(work[at.team_second])
    for part in range(first, work[at.parts], step):
        call_with_part(work[at.function], work[at.data], part)
