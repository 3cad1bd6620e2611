"""Matrix products, compiled: what goes around the tiles of `register_tiles`; needs llvmlite.

`pack` to `multiply_each` return the functions for a dtype and a tallest tile of `height` rows and `vectors`
vectors of so many `lanes`. These call one another by the addresses in `products.Functions`, each of which is
compiled once. A packed matrix consists of panels: of ``width = vectors * lanes`` columns while enough columns
are left, then of fewer vectors, the last one padded with zeros. A panel is stored row by row.

A product is a sum over blocks of k, and a block's sum one chain of multiply-adds: whatever the tiles, the
parts and the order of the factors in memory, each element has the same bits. They are fused where the machine
has such an instruction; elsewhere the bits are others.
"""

from typing import NamedTuple

import numpy as np

from xpgrad.engine.compiled.native import (
    call_with_numbers,
    elements,
    inside,
    settle_memory,
    share,
    share_of_one,
    stack,
)
from xpgrad.engine.compiled.native_ahead import begin
from xpgrad.engine.compiled.products.matrix import FEW_ROWS, PACKED_ROWS, ROWS, block_of
from xpgrad.engine.compiled.products.native_few_rows import few_by_columns, few_by_rows, is_by_columns
from xpgrad.engine.compiled.records import Packing, ProductRecord, Products, length, positions
from xpgrad.engine.compiled.register_tiles import (
    ADD,
    COPIED,
    SET,
    STREAM,
    copy_tile,
    strip_tile,
    turn_tile,
)
from xpgrad.engine.process.memory import LINE

__all__ = ["by_panels", "multiply", "multiply_each", "pack", "pack_part"]

# Bytes of a C that is written past the caches: it has left them before anybody reads it, and a line that
# is written in a cache was read from memory first.
_STREAMED = 1 << 24
# Rows of an A by columns for which a B by rows is not packed.
_FEW_BY_COLUMNS = 4
_PRODUCT, _LENGTH = positions(ProductRecord), length(ProductRecord)
_PRODUCTS, _PACKING = positions(Products), positions(Packing)


class _Division(NamedTuple):
    """Functions that divide columns into panels."""

    panel: object
    whole_panels: object
    share_panels: object


def _panels(lanes, vectors):
    width = lanes * vectors

    @inside()
    def panel(left):
        """How many columns the next panel has, of so many that are left.

        Never one vector alone unless that is all: its tiles have so few sums that these wait for one another.
        """
        if left > width + lanes:
            return width
        if left > width:
            return (vectors + 1) // 2 * lanes
        return (left + lanes - 1) // lanes * lanes

    @inside()
    def whole_panels(columns):
        """How many of the panels are of the full width."""
        count, rest = columns // width, columns % width
        return count - 1 if 0 < rest <= lanes and count else count + (rest > width - lanes)

    @inside()
    def share_panels(columns, part, parts):
        """The columns of a part, from the first to behind the last one: each as `panel` divides all."""
        units = max(1, (columns + width - lanes - 1) // width)
        high = columns if part + 1 == parts else width * (units * (part + 1) // parts)
        return width * (units * part // parts), high

    return _Division(panel, whole_panels, share_panels)


def pack(dtype, lanes, height, vectors):
    """The function ``(source, row, column, inner, columns, target)``: a matrix in panels."""
    real, size, width = np.dtype(dtype).type, np.dtype(dtype).itemsize, lanes * vectors
    turn, panel = turn_tile(dtype, lanes), _panels(lanes, vectors).panel
    copy, copy_panel = copy_tile(dtype, lanes, 1), copy_tile(dtype, lanes, vectors)

    @inside()
    def copy_vectors(source, row, columns, inner, target, line):
        if columns == width:
            copy_panel(source, row, inner, target, line)
        else:
            for j in range(0, columns, lanes):
                copy(source + size * j, row, inner, target + size * j, line)

    @inside()
    def copy_rows(source, row, inner, columns, target):
        """The whole vectors of rows."""
        for k in range(0, inner, COPIED):
            first, count = 0, min(COPIED, inner - k)
            while first < columns:
                line = panel(columns - first)
                whole = min(line, columns - first) // lanes * lanes
                start, to = source + size * (row * k + first), target + size * (first * inner + line * k)
                copy_vectors(start, row, whole, count, to, line)
                first += line

    @inside()
    def pack(source, row, column, inner, columns, target):
        """A matrix (inner, columns) in panels."""
        first = 0
        if column == 1:
            copy_rows(source, row, inner, columns, target)
        while first < columns:
            line = panel(columns - first)
            count = min(line, columns - first)
            whole, done = count // lanes * lanes, 0  # columns in whole vectors; how many of their rows
            start, to = source + size * column * first, target + size * first * inner
            if column == 1:
                done = inner
            elif row == 1:
                done = inner // lanes * lanes
                for k in range(0, done, lanes):
                    for j in range(0, whole, lanes):
                        turn(start + size * (column * j + k), column, to + size * (line * k + j), line)
            one, other = elements(start, 0, real), elements(to, 0, real)
            for k in range(done, inner):
                for j in range(whole):
                    other[line * k + j] = one[column * j + row * k]
            for k in range(inner):
                for j in range(whole, line):
                    other[line * k + j] = one[column * j + row * k] if j < count else 0
            first += line

    return pack


def pack_part(dtype, lanes, height, vectors):
    """The function ``(data, part)`` of a `records.Packing`."""
    size, share_panels = np.dtype(dtype).itemsize, _panels(lanes, vectors).share_panels

    @inside()
    def pack_part(data, part):
        """Some panels of matrices. For the integers see `records.Packing`."""
        at, inner, count = _PACKING, data[_PACKING.k], data[_PACKING.count]
        row, column = data[at.source.row], data[at.source.column]
        panels = inner * ((data[at.n] + lanes - 1) // lanes * lanes)
        for k in range(count):
            piece, pieces = share_of_one(k, count, part, data[at.parts])
            if 0 <= piece < pieces:
                low, high = share_panels(data[at.n], piece, pieces)
                source = data[at.source.address] + size * (data[at.apart] * k + column * low)
                target = data[at.target] + size * (panels * k + inner * low)
                if high > low:
                    call_with_numbers(data[at.pack], (source, row, column, inner, high - low, target))

    return pack_part


def by_panels(dtype, lanes, height, vectors):
    """The function of `products.matrix.Functions.by_panels`: rows of A and a packed B."""
    size, width = np.dtype(dtype).itemsize, lanes * vectors
    panel, whole_panels, share_panels = _panels(lanes, vectors)

    @inside()
    def by_panels(
        tiles, by_rows, a, a_line, a_tile, rows, b, b_line, inner, columns, part, parts, c, c_line, add, ahead
    ):
        """C = A B or += A B, a part of its columns; `ahead` is an Ahead or 0.

        B is packed where `b_line` is 0, else it stands row by row. Few rows meet several panels at once.
        """
        low, high = share_panels(columns, part, parts)
        several = (4 // rows if by_rows and rows <= 2 else 1) * width
        if ahead:
            begin(ahead, rows // height * whole_panels(high - low) * inner)
        a_step, block = size if by_rows else size * a_line, block_of(inner)
        j = low
        while j < high:
            line = panel(high - j)
            step, rest = min(line, high - j), high - j - several
            if rest == 0 or rest > lanes:  # all of them as wide as this one
                step = several
            for k in range(0, max(inner, 1), block):
                if b_line:
                    at, b_next, b_panel = b + size * (k * b_line + j), b_line, width
                else:
                    at, b_next, b_panel = b + size * (j * inner + k * line), line, width * inner
                count, more = min(block, inner - k), 1 if k > 0 else add
                call_with_numbers(tiles, (by_rows, a + a_step * k, a_line, a_tile, rows, at, b_next, b_panel,
                                          count, c + size * j, c_line, step, more, ahead))  # fmt: skip
            j += step

    return by_panels


def _packed_rows(dtype, height):
    """The function that packs rows of a column-major A."""
    real, size = np.dtype(dtype).type, np.dtype(dtype).itemsize
    strip, strips = strip_tile(dtype, height, 1), strip_tile(dtype, height, PACKED_ROWS // height)

    @inside()
    def pack_rows(source, line, inner, rows, target, apart):
        """Pack rows of a column-major A, in groups as tall as a tile and so far apart."""
        if rows == PACKED_ROWS:
            strips(source, line, inner, target, apart)
            return
        for first in range(0, rows, height):
            count = min(height, rows - first)
            begin, to = source + size * first, target + size * (first // height) * apart
            if count == height:
                strip(begin, line, inner, to, apart)
                continue
            for k in range(inner):
                one, other = (
                    elements(begin + size * line * k, 0, real),
                    elements(to + size * height * k, 0, real),
                )
                for m in range(count):
                    other[m] = one[m]

    return pack_rows


def _many_rows(dtype, lanes, height, vectors):
    """The function for any number of rows; for its arguments see `native_few_rows`."""
    size, width = np.dtype(dtype).itemsize, lanes * vectors
    # Between groups of packed rows: at a power of two, as many bytes as a tile has, they would push one
    # another out of a near cache.
    gap, pack_rows = LINE // size, _packed_rows(dtype, height)

    @inside()
    def many_rows(
        tiles, pack, by_panels, a, a_row, a_column, m, b, b_row, b_column, n, k, c, c_line, add, work, most
    ):
        """B is packed, as many columns of a block as stay in a cache: about equally many each time.

        A few last columns would read all of A once more.
        """
        by_rows = 1 if a_column == 1 else 0
        a_line = a_row if by_rows else a_column
        block, some = block_of(k), ROWS if by_rows else PACKED_ROWS
        packed_a = work + size * block * most
        pieces = max(1, (n + most - 1) // most)
        even = (n + width * pieces - 1) // (width * pieces) * width
        for j in range(0, n, even):
            columns = min(even, n - j)
            for first in range(0, max(k, 1), block):
                inner = min(block, k - first)
                source = b + size * (b_row * first + b_column * j)
                call_with_numbers(pack, (source, b_row, b_column, inner, columns, work))
                more = ADD if first > 0 else add
                for i in range(0, m, some):
                    rows = min(some, m - i)
                    at, to = a + size * (a_row * i + a_column * first), c + size * (c_line * i + j)
                    line, tile = a_line, height * a_line
                    if not by_rows:
                        line, tile = height, height * inner + gap
                        pack_rows(at, a_line, inner, rows, packed_a, tile)
                        at = packed_a
                    call_with_numbers(
                        by_panels,
                        (tiles, by_rows, at, line, tile, rows, work, 0, inner, columns, 0, 1, to, c_line,
                         more, 0),
                    )  # fmt: skip

    return many_rows


def multiply(dtype, lanes, height, vectors):
    """The function ``(data, part)`` of a `records.ProductRecord`."""
    size, width = np.dtype(dtype).itemsize, lanes * vectors
    share_panels = _panels(lanes, vectors).share_panels
    shape = (dtype, lanes, height, vectors)
    by_rows, by_columns, many_rows = few_by_rows(*shape), few_by_columns(*shape), _many_rows(*shape)
    pays_by_columns = is_by_columns(dtype, lanes, vectors)
    whole_lines = size * width % LINE == 0

    @inside()
    def multiply(data, part):
        """Some of the rows or columns of a product. For the integers see `records.ProductRecord`."""
        at = _PRODUCT
        tiles, pack, by_panels = data[at.tiles], data[at.pack], data[at.by_panels]
        m, n, k, add, parts = data[at.m], data[at.n], data[at.k], data[at.add], data[at.parts]
        work, most = data[at.memory] + data[at.bytes] * part, data[at.columns]
        c, c_line = data[at.c], data[at.c_line]
        a, a_row, a_column = data[at.a.address], data[at.a.row], data[at.a.column]
        b, b_row, b_column = data[at.b.address], data[at.b.row], data[at.b.column]
        large = size * c_line * m >= _STREAMED
        if data[at.by_rows]:
            low, high = share(m, height, part, parts)
            a, c, m = a + size * a_row * low, c + size * c_line * low, high - low
        else:
            low, high = share_panels(n, part, parts)
            b, c, n = b + size * b_column * low, c + size * low, high - low
        if m <= 0 or n <= 0:
            return
        done = 0  # columns
        # a row of B that is repeated, with a distance of 0, must be packed
        if b_column == 1 and b_row and m <= (FEW_ROWS if a_column == 1 else _FEW_BY_COLUMNS):
            done = n // width * width
            by_rows(tiles, pack, by_panels, a, a_row, a_column, m, b, b_row, 1, done, k, c, c_line, add, work,
                    most)  # fmt: skip
        elif b_column != 1 and pays_by_columns(m, n, k):
            done = n
            by_columns(tiles, pack, by_panels, a, a_row, a_column, m, b, b_row, b_column, n, k, c, c_line,
                       add, work, most)  # fmt: skip
        elif whole_lines and large and add == SET and k <= block_of(k):
            add = STREAM if c % LINE == 0 and c_line % lanes == 0 else SET
        b, c = b + size * b_column * done, c + size * done
        many_rows(tiles, pack, by_panels, a, a_row, a_column, m, b, b_row, b_column, n - done, k, c, c_line,
                  add, work, most)  # fmt: skip
        if add == STREAM:
            settle_memory()

    return multiply


def multiply_each(dtype, lanes, height, vectors):
    """The function ``(data, part)`` of a `records.Products`."""
    size = np.dtype(dtype).itemsize

    @inside()
    def multiply_each(data, part):
        """Some of the products of a stack, each as a whole. For the integers see `records.Products`."""
        at, one = _PRODUCTS, stack(_LENGTH)
        count, parts = data[at.count], data[at.parts]
        for i in range(_LENGTH):
            one[i] = data[at.first.tiles + i]
        one[_PRODUCT.memory] += data[at.first.bytes] * part
        for number in range(count * part // parts, count * (part + 1) // parts):
            one[_PRODUCT.c] = data[at.first.c] + size * data[at.c] * number
            one[_PRODUCT.a.address] = data[at.first.a.address] + size * data[at.a] * number
            one[_PRODUCT.b.address] = data[at.first.b.address] + size * data[at.b] * number
            call_with_numbers(data[at.multiply], (one.ctypes.data, 0))

    return multiply_each
