"""What walks through a program's instructions, compiled; needs numba. See `program` for what they mean."""

import numpy as np
from numba import carray, njit

from xpgrad.engine.native import (
    call_in_team,
    call_with_part,
    gemm,
    pack_weight,
    pointer,
)

_FAR = 1 << 60


@njit(forceinline=True)
def _multiply(address, code, i, one):
    m, n, k, a_form, a, a_length, b_form, b, b_length, add, c, c_length = code[i : i + 12]
    # Read column by column, as BLAS does, a matrix is its own transpose: so the factors change places.
    gemm(address, one, b_form, a_form, n, m, k, b, b_length, a, a_length, add, c, c_length)


@njit(forceinline=True)
def _vector(address, one):
    return carray(pointer(address), (_FAR,), type(one))


@njit
def _arithmetic(code, i, real):
    """One of Arithmetic.KINDS, on three axes."""
    kind, planes, rows, columns = code[i : i + 4]
    y, x, z = code[i + 4 : i + 8], code[i + 8 : i + 12], code[i + 12 : i + 16]
    for plane in range(planes):
        for row in range(rows):
            to = y[1] * plane + y[2] * row
            one, other = x[1] * plane + x[2] * row, z[1] * plane + z[2] * row
            target = _vector(y[0], real)[to : to + (columns - 1) * y[3] + 1]
            if kind == 0:
                target[:: y[3]] = 0
                continue
            first = _vector(x[0], real)[one : one + (columns - 1) * x[3] + 1]
            if kind == 1:
                if x[3] == 1 and y[3] == 1:
                    for j in range(columns):
                        target[j] = first[j]
                else:
                    for j in range(columns):
                        target[j * y[3]] = first[j * x[3]]
                continue
            second = _vector(z[0], real)[other : other + (columns - 1) * z[3] + 1]
            if kind == 2:
                for j in range(columns):
                    target[j * y[3]] = first[j * x[3]] + second[j * z[3]]
            else:
                for j in range(columns):
                    target[j * y[3]] = first[j * x[3]] * second[j * z[3]]


@njit(forceinline=True)
def _loop(code, i):
    """In one part it runs here, in more in the team's threads."""
    work, function, data, parts = code[i : i + 4]
    if parts == 1:
        call_with_part(function, data, 0)
    else:
        call_in_team(code[1], code[2], work, parts)


@njit(forceinline=True)
def execute(address, begin, end, one):
    """Run the instructions that stand from `begin` to `end` in the program's array at the address.

    In front of all instructions stand the addresses of gemm, of the team's entry point and of the compiled
    share_parts. `one` is the number in the dtype of the arrays.
    """
    code = carray(pointer(address), (end,), np.int64)
    i = begin
    while i < end:
        kind = code[i + 1]
        if kind == 0:
            _multiply(code[0], code, i + 2, one)
        elif kind == 1:
            function, form, n, k, source, length, target = code[i + 2 : i + 9]
            pack_weight(function, one, form, n, k, source, length, target)
        elif kind == 2:
            _arithmetic(code, i + 2, one)
        else:
            _loop(code, i + 2)
        i += code[i]
