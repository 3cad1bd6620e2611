"""Products of few rows, whose B is not packed: that takes as long as half of the product; needs llvmlite.

The functions have the arguments ``(tiles, pack, by_panels, a, a_row, a_column, m, b, b_row, b_column, n, k,
c, c_line, add, work, most)``: compiled functions, factors with the distances of their rows and columns, the
result, memory of a part, and how many columns are packed at a time.
"""

import numpy as np

from xpgrad.engine.compiled.native import call_with_numbers, elements, inside
from xpgrad.engine.compiled.products.matrix import FEW_PANELS, STRIP, WIDE, block_of
from xpgrad.engine.compiled.register_tiles import CONTINUE, COPIED, SET, turn_tile

__all__ = ["few_by_columns", "few_by_rows", "is_by_columns"]

# A B by columns with so many bytes, in a product with so many multiply-adds, comes from memory. Then its
# reading takes the time, whatever the product leaves unused of a vector.
_FAR, _FAR_PRODUCT = 1 << 22, 1 << 22
# The least elements of any other B that is read where it is. In its place A is packed, so B needs `WIDE`
# columns for each row of A: more if A's rows do not fill their vectors, which they must do for the most part.
_LEAST, _WIDE_UNFILLED = 1 << 14, 10


def _add_rows(dtype):
    size, real = np.dtype(dtype).itemsize, np.dtype(dtype).type

    @inside()
    def add_rows(source, line, rows, columns, c, c_line, add):
        """Rows into those of C, or added to them."""
        for i in range(rows):
            to, one = elements(c + size * c_line * i, 0, real), elements(source + size * line * i, 0, real)
            for t in range(columns):
                to[t] = to[t] + one[t] if add else one[t]

    return add_rows


def few_by_rows(dtype, lanes, height, vectors):
    """The function for a B by rows, and whole panels of columns."""
    size, add_rows = np.dtype(dtype).itemsize, _add_rows(dtype)

    @inside()
    def few_by_rows(
        tiles, pack, by_panels, a, a_row, a_column, m, b, b_row, b_column, n, k, c, c_line, add, work, most
    ):
        """Some rows of B meet all panels before the next ones do: memory delivers whole rows sooner.

        The sums of a block are in memory meanwhile, of as many columns as stay in a near cache.
        """
        by_rows, block = a_column == 1, block_of(k)
        a_line, tile, some = a_column, height, block
        if by_rows:
            a_line, tile, some = a_row, height * a_row, COPIED
        for j in range(0, n, most):
            columns, to = min(most, n - j), c + size * j
            for first in range(0, max(k, 1), block):
                inner, adds = min(block, k - first), 1 if first > 0 else add
                sums, line = (work, most) if adds else (to, c_line)
                for at in range(first, first + max(inner, 1), some):
                    more, count = CONTINUE if at > first else SET, min(some, first + inner - at)
                    source, begin = a + size * a_column * at, b + size * (b_row * at + j)
                    call_with_numbers(
                        by_panels,
                        (tiles, by_rows, source, a_line, tile, m, begin, b_row, count, columns, 0, 1, sums,
                         line, more, 0),
                    )  # fmt: skip
                if adds:
                    add_rows(work, most, m, columns, to, c_line, 1)

    return few_by_rows


def is_by_columns(dtype, lanes, vectors):
    """The function that tells whether `few_by_columns` pays, for a B by columns."""
    size, width = np.dtype(dtype).itemsize, lanes * vectors

    @inside()
    def is_by_columns(m, n, k):
        if m <= width and size * n * k >= _FAR and m * n * k >= _FAR_PRODUCT:
            return True
        padded = (m + lanes - 1) // lanes * lanes
        wide = WIDE if m == padded else _WIDE_UNFILLED
        return m <= FEW_PANELS * width and wide * m <= n and n * k >= _LEAST and 4 * m >= 3 * padded

    return is_by_columns


def few_by_columns(dtype, lanes, height, vectors):
    """The function for a B by columns, and at most `FEW_PANELS` times as many rows as a panel has columns."""
    size, turn, add_rows = np.dtype(dtype).itemsize, turn_tile(dtype, lanes), _add_rows(dtype)

    @inside()
    def turn_sums(sums, rows, padded, turned):
        for i in range(0, rows, lanes):
            for j in range(0, padded, lanes):
                turn(sums + size * (padded * i + j), padded, turned + size * (STRIP * j + i), STRIP)

    @inside()
    def few_by_columns(
        tiles, pack, by_panels, a, a_row, a_column, m, b, b_row, b_column, n, k, c, c_line, add, work, most
    ):
        """The transpose, a strip at a time: the columns of B are its many rows, and A is packed."""
        block, padded = block_of(k), (m + lanes - 1) // lanes * lanes
        sums = work + size * block * padded
        turned, tile = sums + size * STRIP * padded, height * b_column
        for first in range(0, max(k, 1), block):
            inner, adds = min(block, k - first), 1 if first > 0 else add
            call_with_numbers(pack, (a + size * a_column * first, a_column, a_row, inner, m, work))
            for j in range(0, n, STRIP):
                rows, begin = min(STRIP, n - j), b + size * (b_column * j + first)
                call_with_numbers(
                    by_panels,
                    (tiles, 1, begin, b_column, tile, rows, work, 0, inner, m, 0, 1, sums, padded, SET, 0),
                )
                turn_sums(sums, rows, padded, turned)
                add_rows(turned, STRIP, m, rows, c + size * j, c_line, adds)

    return few_by_columns
