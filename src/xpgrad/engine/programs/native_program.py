"""What walks through a program's instructions, compiled; needs numba. See `program` for what they mean."""

import numpy as np
from numba import carray, njit

from xpgrad.engine.compiled.native import (
    call_in_team,
    call_with_numbers,
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


@njit(forceinline=True)
def _row(kind, target, first, second, steps, count):
    """Zero, a copy, a sum, a product or a root on one row."""
    y, x, z = steps
    if kind == 0:
        for j in range(count):
            target[j * y] = 0
    elif kind == 1:
        for j in range(count):
            target[j * y] = first[j * x]
    elif kind == 2:
        for j in range(count):
            target[j * y] = first[j * x] + second[j * z]
    elif kind == 4:
        for j in range(count):
            square = first[j * x]
            target[j * y] = np.sqrt(square if not square < 0 else square - square)  # NaN stays what it is
    else:
        for j in range(count):
            target[j * y] = first[j * x] * second[j * z]


@njit(forceinline=True)
def _column_sums(products, target, x, row, z, other, rows, count):
    """Of the matrix x, or of its product with z, four rows at a time: the target is written less often."""
    for j in range(count):
        target[j] = 0
    whole = rows - rows % 4
    for k in range(0, whole, 4):
        a, b, c, d = x[k * row :], x[(k + 1) * row :], x[(k + 2) * row :], x[(k + 3) * row :]
        if not products:
            for j in range(count):
                target[j] += (a[j] + b[j]) + (c[j] + d[j])
        else:
            e, f, g, h = z[k * other :], z[(k + 1) * other :], z[(k + 2) * other :], z[(k + 3) * other :]
            for j in range(count):
                target[j] += (a[j] * e[j] + b[j] * f[j]) + (c[j] * g[j] + d[j] * h[j])
    for k in range(whole, rows):
        a, e = x[k * row :], z[k * other :]
        for j in range(count):
            target[j] += a[j] * e[j] if products else a[j]


@njit
def arithmetic(data, part, real):
    """Part of what an Arithmetic asks for, by its data."""
    kind, parts, planes, rows, columns = data[0], data[1], data[2], data[3], data[4]
    y, x, z = data[5:9], data[9:13], data[13:17]
    low = columns * part // parts
    count = columns * (part + 1) // parts - low
    if kind >= 5:
        target, first = _vector(y[0], real)[low:], _vector(x[0], real)[low:]
        second = _vector(z[0], real)[low:]
        _column_sums(kind == 6, target, first, x[2], second, z[2], rows, count)
        return
    for plane in range(planes):
        for row in range(rows):
            target = _vector(y[0], real)[y[1] * plane + y[2] * row + y[3] * low :]
            first = _vector(x[0], real)[x[1] * plane + x[2] * row + x[3] * low :]
            second = _vector(z[0], real)[z[1] * plane + z[2] * row + z[3] * low :]
            if y[3] == 1 and x[3] == 1 and z[3] == 1:  # known to be, it takes vector instructions
                _row(kind, target, first, second, (1, 1, 1), count)
            elif y[3] == 1 and x[3] == 1 and z[3] == 0:
                _row(kind, target, first, second, (1, 1, 0), count)
            else:
                _row(kind, target, first, second, (y[3], x[3], z[3]), count)


@njit(forceinline=True)
def _work(code, i):
    """In one part it runs here, in more in the team's threads."""
    work, function, data, parts = code[i : i + 4]
    if parts == 1:
        call_with_part(function, data, 0)
    else:
        call_in_team(code[1], code[2], work, parts)


@njit(forceinline=True)
def link(address, links, count, addresses):
    """Write the addresses into a program's array.

    Of each of `count` places in it, `links` holds, one behind the other: the places, which of the memories at
    `addresses` is meant, and the distance from its beginning.
    """
    code = carray(pointer(address), (_FAR,), np.int64)
    places = carray(pointer(links), (3, count), np.int64)
    begins = carray(pointer(addresses), (_FAR,), np.int64)
    for k in range(count):
        code[places[0, k]] = places[2, k] + begins[places[1, k]]


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
        elif kind == 7:
            source, row, column, k, n, target = code[i + 3 : i + 9]
            call_with_numbers(code[i + 2], (source, row, column, k, n, target))
        else:
            _work(code, i + 2)
        i += code[i]
