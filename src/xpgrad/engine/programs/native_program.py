"""What walks through a program's instructions, compiled; needs numba. See `program` for what they mean."""

import numpy as np
from numba import njit

from xpgrad.engine.compiled.native import (
    call_in_team,
    call_with_part,
    elements,
    gemm,
    numbers,
    pack_weight,
    words,
)
from xpgrad.engine.compiled.records import (
    Arithmetic,
    ArithmeticKind,
    BlasPacking,
    BlasProduct,
    InstructionHead,
    Kind,
    LoopHead,
    ProgramHead,
    Work,
    length,
    positions,
)

_FAR = 1 << 60
_ARITHMETIC, _WORK = positions(Arithmetic), positions(Work)
_BLAS_PRODUCT, _BLAS_PACKING = positions(BlasProduct), positions(BlasPacking)
_PROGRAM, _HEAD, _HEAD_LENGTH = positions(ProgramHead), positions(InstructionHead), length(InstructionHead)
_LINES = 4  # for each part, at least, where parts have rows
_KIND, _ARITHMETIC_KIND = positions(Kind), positions(ArithmeticKind)
_LOOP, _LOOP_LENGTH = positions(LoopHead), length(LoopHead)


# --- arithmetic


@njit(forceinline=True)
def _row(kind, target, first, second, y, x, z, count):
    """Zero, a copy, a sum, a product or a root on one row, whose elements are y, x and z apart."""
    if kind == _ARITHMETIC_KIND.zero:
        for j in range(count):
            target[j * y] = 0
    elif kind == _ARITHMETIC_KIND.copy:
        for j in range(count):
            target[j * y] = first[j * x]
    elif kind == _ARITHMETIC_KIND.add:
        for j in range(count):
            target[j * y] = first[j * x] + second[j * z]
    elif kind == _ARITHMETIC_KIND.root:
        for j in range(count):
            square = first[j * x]
            target[j * y] = np.sqrt(square if not square < 0 else square - square)  # NaN stays what it is
    else:
        for j in range(count):
            target[j * y] = first[j * x] * second[j * z]


@njit(forceinline=True)
def _column_sums(data, low, count, products, one):
    """Of a matrix, or of its product with another, four rows at a time: the target is written less often."""
    at, rows = _ARITHMETIC, data[_ARITHMETIC.rows]
    x, x_line = data[at.first.address], data[at.first.row]
    z, z_line = data[at.second.address], data[at.second.row]
    target = elements(data[at.target.address], low, one)
    for j in range(count):
        target[j] = 0
    whole = rows - rows % 4
    for k in range(0, whole, 4):
        a, b = elements(x, k * x_line + low, one), elements(x, (k + 1) * x_line + low, one)
        c, d = elements(x, (k + 2) * x_line + low, one), elements(x, (k + 3) * x_line + low, one)
        if not products:
            for j in range(count):
                target[j] += (a[j] + b[j]) + (c[j] + d[j])
        else:
            e, f = elements(z, k * z_line + low, one), elements(z, (k + 1) * z_line + low, one)
            g, h = elements(z, (k + 2) * z_line + low, one), elements(z, (k + 3) * z_line + low, one)
            for j in range(count):
                target[j] += (a[j] * e[j] + b[j] * f[j]) + (c[j] * g[j] + d[j] * h[j])
    for k in range(whole, rows):
        a, e = elements(x, k * x_line + low, one), elements(z, k * z_line + low, one)
        for j in range(count):
            target[j] += a[j] * e[j] if products else a[j]


@njit(forceinline=True)
def _begin(data, at, plane, row, column, one):
    """A pointer to an element of the operand whose record stands at `at`."""
    offset = data[at.outer] * plane + data[at.row] * row + data[at.column] * column
    return elements(data[at.address], offset, one)


@njit
def arithmetic(data, part, one):
    """One part of an Arithmetic: some of its rows, or of its columns where rows are few or summed up."""
    at = _ARITHMETIC
    kind, parts, columns = data[at.kind], data[at.parts], data[at.columns]
    sums, products = kind == _ARITHMETIC_KIND.column_sums, kind == _ARITHMETIC_KIND.column_sums_of_products
    rows, lines = data[at.rows], data[at.planes] * data[at.rows]
    by_rows = lines >= _LINES * parts and not (sums or products)
    whole = lines if by_rows else columns
    low, high = whole * part // parts, whole * (part + 1) // parts
    if sums or products:
        _column_sums(data, low, high - low, products, one)
    elif not by_rows:
        _rows(data, kind, 0, 0, lines, low, high - low, one)
    elif low < high:
        _rows(data, kind, low // rows, low % rows, high - low, 0, columns, one)


@njit(forceinline=True)
def _rows(data, kind, plane, row, lines, low, count, one):
    """So many rows, from one of a plane on, of which `count` columns from `low` on."""
    at = _ARITHMETIC
    y, x, z = data[at.target.column], data[at.first.column], data[at.second.column]
    for _ in range(lines):
        target = _begin(data, at.target, plane, row, low, one)
        first = _begin(data, at.first, plane, row, low, one)
        second = _begin(data, at.second, plane, row, low, one)
        if y == 1 and x == 1 and z == 1:  # known to be, it takes vector instructions
            _row(kind, target, first, second, 1, 1, 1, count)
        elif y == 1 and x == 1 and z == 0:
            _row(kind, target, first, second, 1, 1, 0, count)
        else:
            _row(kind, target, first, second, y, x, z, count)
        row += 1
        if row == data[at.rows]:
            plane, row = plane + 1, 0


# --- the walk


@njit(forceinline=True)
def _multiply(address, code, i, one):
    at = _BLAS_PRODUCT
    # Read column by column, as BLAS does, a matrix is its own transpose: so the factors change places.
    gemm(
        address, one, code[i + at.b_form], code[i + at.a_form], code[i + at.n], code[i + at.m],
        code[i + at.k], code[i + at.b], code[i + at.b_line], code[i + at.a], code[i + at.a_line],
        code[i + at.add], code[i + at.c], code[i + at.c_line],
    )  # fmt: skip


@njit(forceinline=True)
def _pack_by_blas(code, i, one):
    at = _BLAS_PACKING
    pack_weight(
        code[i + at.function], one, code[i + at.form], code[i + at.n], code[i + at.k], code[i + at.source],
        code[i + at.line], code[i + at.target],
    )  # fmt: skip


@njit(forceinline=True)
def _work(code, i):
    """In one part it runs here, in more in the team's threads."""
    at = _WORK.shared
    parts = code[i + at.parts]
    if parts == 1:
        call_with_part(code[i + at.function], code[i + at.data], 0)
    else:
        call_in_team(code[_PROGRAM.team], code[_PROGRAM.share], code[i + _WORK.address], parts)


@njit(forceinline=True)
def _steps(code, i):
    """A time loop whose parts have columns: they wait for one another after each stage of each step."""
    loop = words(code[i + _WORK.shared.data], _LOOP_LENGTH)
    for step in range(loop[_LOOP.steps]):
        for stage in range(loop[_LOOP.stages]):
            loop[_LOOP.step], loop[_LOOP.stage] = step, stage
            _work(code, i)


@njit(forceinline=True)
def execute(address, begin, end, one):
    """Run the instructions that stand from `begin` to `end` in the program's array at the address.

    `one` is the number in the dtype of the arrays.
    """
    code = words(address, end)
    i = begin
    while i < end:
        kind, record = code[i + _HEAD.kind], i + _HEAD_LENGTH
        if kind == _KIND.blas_product:
            _multiply(code[_PROGRAM.gemm], code, record, one)
        elif kind == _KIND.blas_packing:
            _pack_by_blas(code, record, one)
        elif kind == _KIND.steps:
            _steps(code, record)
        else:
            _work(code, record)
        i += code[i + _HEAD.length]


@njit(forceinline=True)
def link_and_execute(address, begin, end, links, count, addresses, one):
    """Write addresses into a program's array, then run instructions.

    Of each of `count` places in it, `links` holds, one behind the other: the places, which of the memories at
    `addresses` is meant, and the distance from its beginning.
    """
    code, begins = words(address, _FAR), words(addresses, _FAR)
    table = numbers(links, 3, count)
    places, memories, distances = table[0], table[1], table[2]
    for k in range(count):
        code[places[k]] = distances[k] + begins[memories[k]]
    execute(address, begin, end, one)
