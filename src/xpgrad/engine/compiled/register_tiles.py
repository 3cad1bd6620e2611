"""Products of small tiles in vector registers: the innermost loops of matrix products and convolutions.

Compilers do not keep a tile of sums in registers by themselves, so these loops are written as vector
instructions, with as many sums as registers can hold. Addresses come in at run time. Needs llvmlite.

A function returns a tile, which compiled code calls. Distances and counts are in elements.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.machine_code import features, target
from xpgrad.engine.compiled.vector_code import INT64, TileSums, VectorCode, vector_function
from xpgrad.engine.process.memory import LINE


class Tiles(NamedTuple):
    """The shapes of tiles for one kind of machine; a vector has `bytes` bytes.

    `tall` and `flat` are the rows and vectors of a `sum_tile`, for many rows and for the last few. `turned`
    are the most rows of a `turned_tile` and `products` the rows of a `product_tile`, for 1, 2, ... vectors. A
    matrix product's tallest tile has so many `passes` of its loop in one.
    """

    bytes: int
    tall: tuple[int, int]
    flat: tuple[int, int]
    turned: tuple[int, ...]
    products: tuple[int, ...]
    passes: int

    def lanes(self, dtype: str | np.dtype) -> int:
        """The elements of a vector."""
        return self.bytes // np.dtype(dtype).itemsize


# A tile of a matrix product prefetches B this many rows ahead: a weight too large for near caches comes from
# the last level, which answers after the time of these rows.
_AHEAD = 24
_PACE = 4  # passes for each row of C that is prefetched
COPIED = 16
"""Rows of B that are copied into all panels together: memory delivers whole rows sooner than parts."""

# The treatment of C by a tile of a matrix product: set it, add to it, set it past the caches, or continue its
# sums.
SET, ADD, STREAM, CONTINUE = range(4)

# A tile's sums, the vectors that it loads and a vector of equal elements fill 32 registers, or 16.
_MANY_REGISTERS = Tiles(64, (8, 3), (4, 6), (16, 14, 9), (8, 8, 8, 6), 1)
_FEW_REGISTERS = Tiles(32, (4, 3), (2, 5), (8, 6, 4), (8, 6, 4), 2)


@functools.cache
def tiles() -> Tiles:
    """The shapes for this machine."""
    known = features()
    if "avx512f" in known:
        return _MANY_REGISTERS
    if "avx2" in known:
        return _FEW_REGISTERS
    many = target()[0].startswith(("aarch64", "arm64"))
    return (_MANY_REGISTERS if many else _FEW_REGISTERS)._replace(bytes=16)


# CPUs with two units for multiplications of 64 bytes, by LLVM's names, and the features of later ones, which
# LLVM may take for another CPU in a virtual machine.
_TWO_UNITS = ("skylake-avx512", "cascadelake", "cooperlake", "icelake-server", "znver5")
_FEATURES_OF_TWO_UNITS = ("amx-tile", "avx512fp16")


@functools.cache
def has_two_units() -> bool:
    """Whether this machine multiplies two vectors of 64 bytes in a cycle; most machines multiply half."""
    known = features()
    return "avx512f" in known and (target()[1] in _TWO_UNITS or not known.isdisjoint(_FEATURES_OF_TWO_UNITS))


@functools.cache
def sum_tile(dtype: str, lanes: int, rows: int, vectors: int) -> Any:
    """Weighted sums of stretches of memory.

    Returns ``tile(weights, elements, offsets, count, target, line)``, with addresses and the number of
    offsets. For m below `rows` and t below ``vectors * lanes`` it sets

        target[m * line + t] = sum over k of weights[k * rows + m] * elements[offsets[k] + t]
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        weights, elements, offsets, count, target, line = arguments
        weights, elements, target = code.reals(weights), code.reals(elements), code.reals(target)
        offsets = code.builder.inttoptr(offsets, INT64.as_pointer())
        sums = TileSums.zeros(code, rows, vectors)
        with code.loop(count) as k:
            stretch = code.at(elements, code.builder.load(code.at(offsets, k)))
            loaded = [code.load(code.at(stretch, v * lanes)) for v in range(vectors)]
            sums.multiply_add(code.at(weights, code.times(k, rows)), None, loaded)
        sums.store(target, line)

    return vector_function(dtype, lanes, generate)


@functools.cache
def turned_tile(dtype: str, lanes: int, most: int, vectors: int) -> Any:
    """Weighted sums of stretches of memory, like those of a `sum_tile`, in vectors of sums.

    Returns ``tile(weights, elements, offsets, count, target, rows)``, with addresses and the number of
    offsets; `rows` is at most `most`. For t below `rows` and m below ``width = vectors * lanes`` it sets

        target[t * width + m] = sum over k of weights[k * width + m] * elements[offsets[k] + t]
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        weights, elements, offsets, count, target, height = arguments
        weights, elements, target = code.reals(weights), code.reals(elements), code.reals(target)
        offsets, width = code.builder.inttoptr(offsets, INT64.as_pointer()), vectors * lanes
        for rows in range(1, most + 1):
            with code.builder.if_then(code.equal(height, rows)):
                sums = TileSums.zeros(code, rows, vectors)
                with code.loop(count) as k:
                    stretch = code.at(elements, code.builder.load(code.at(offsets, k)))
                    start = code.at(weights, code.times(k, width))
                    loaded = [code.load(code.at(start, v * lanes)) for v in range(vectors)]
                    sums.multiply_add(stretch, None, loaded)
                sums.store(target, INT64(width))

    return vector_function(dtype, lanes, generate)


@functools.cache
def product_tile(dtype: str, lanes: int, rows: int, vectors: int) -> Any:
    """Inner products of some elements of memory with columns.

    Returns ``tile(elements, offsets, places, columns, count, target, line)``, with addresses, an offset for
    each row, and `count` places. For m below `rows` and i below ``width = vectors * lanes`` it sets

        target[m * line + i] += sum over p of elements[offsets[m] + places[p]] * columns[p * width + i]

    The target joins at the end: added to a sum of millions of products, a product would lose digits.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        elements, offsets, places, columns, count, target, line = arguments
        elements, columns, target = code.reals(elements), code.reals(columns), code.reals(target)
        offsets, places = (code.builder.inttoptr(one, INT64.as_pointer()) for one in (offsets, places))
        stretches = [code.at(elements, code.builder.load(code.at(offsets, m))) for m in range(rows)]
        sums = TileSums.zeros(code, rows, vectors)
        with code.loop(count) as p:
            start = code.at(columns, code.times(p, vectors * lanes))
            loaded = [code.load(code.at(start, v * lanes)) for v in range(vectors)]
            sums.multiply_add(stretches, code.builder.load(code.at(places, p)), loaded)
        sums.add(target, line)
        sums.store(target, line)

    return vector_function(dtype, lanes, generate)


@functools.cache
def matrix_tile(
    dtype: str, lanes: int, rows: int, vectors: int, panels: int, by_rows: bool, asks: int,
    goes_on: bool = False, streams: bool = False, paced: bool = False, passes: int = 1, near: bool = False,
) -> Any:  # fmt: skip
    """A tile of a matrix product, C = A B or C += A B.

    Returns ``tile(a, a_line, b, b_line, b_panel, count, c, c_line, columns, add, *asked)``. A sum has `count`
    terms. Only the last vector may have fewer `columns`. `add` is SET, ADD, STREAM or CONTINUE. B has
    `panels` panels of ``width = vectors * lanes`` columns each. For m below `rows` and t below `columns` it
    sets, or adds to,

        c[m * c_line + t] = sum over k of A[m, k] * b[(t // width) * b_panel + k * b_line + t % width]

    with ``A[m, k] = a[m * a_line + k]`` by rows, else ``a[k * a_line + m]``. It reads whole vectors of b,
    even if the last one has fewer columns. Each sum is a chain of multiply-adds from zero on, or from C on
    with CONTINUE, which needs `goes_on`. If it `streams`, STREAM needs a C whose rows begin with whole
    vectors of memory; otherwise STREAM is SET.

    It prefetches C during the first terms if it is `paced`, else before them, which takes half as long to
    compile. It prefetches B unless that is `near`: in a near cache, as a panel is behind its first tile. So
    many `passes` of its loop are one.

    It prefetches for later tiles: the byte at ``place + k * step`` for each k and each of `asks` pairs
    (place, step), the last arguments; without pairs, with A by rows and single passes, the rows of A behind
    its own.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        a, a_line, b, b_line, b_panel, count, c, c_line, columns, add, *asked = arguments
        a, b, c = code.reals(a), code.reals(b), code.reals(c)
        lines = [code.at(a, code.times(a_line, m) if by_rows else m) for m in range(rows)]
        starts = [code.at(b, code.times(b_panel, p)) for p in range(panels)]
        mask = code.mask(code.builder.sub(columns, INT64((panels * vectors - 1) * lanes)))
        sums = TileSums.zeros(code, rows, panels * vectors)
        if goes_on:
            with code.builder.if_then(code.equal(add, CONTINUE)):
                sums.load(c, c_line, mask)

        builder, apart = code.builder, max(1, LINE // (lanes * np.dtype(dtype).itemsize))

        def ask_row(m: Any) -> None:
            start = code.at(c, builder.mul(m, c_line))
            code.prefetch([code.at(start, v * lanes) for v in range(panels * vectors)], write=True)

        def multiply(k: Any) -> None:
            row = builder.mul(k, b_line)
            places = [[code.at(code.at(start, row), v * lanes) for v in range(vectors)] for start in starts]
            for one in [] if near else itertools.chain(*(panel[::apart] for panel in places)):
                code.prefetch([code.at(one, code.times(b_line, _AHEAD))], write=False)
            for place, step in zip(asked[::2], asked[1::2], strict=True):
                code.prefetch_byte(builder.add(place, builder.mul(k, step)))
            if by_rows and not asks and passes == 1 and rows in (4, 8):
                # one row for each k: a line has more elements
                row = builder.add(builder.and_(k, INT64(rows - 1)), INT64(rows))
                code.prefetch([code.at(code.at(a, builder.mul(row, a_line)), k)], write=False, level=2)
            loaded = [code.load(one) for one in itertools.chain(*places)]
            sums.multiply_add(lines, k if by_rows else builder.mul(k, a_line), loaded)

        # A paced tile prefetches C during the sums: all at once would delay A and B. The others do so all at
        # once: that leaves registers for the pairs, and a low tile has little of C. A loop around short loops
        # takes longer than both.
        if paced:
            most = INT64(_PACE * rows)
            first = builder.select(builder.icmp_signed("<", count, most), count, most)
            if streams:  # no prefetch of what goes past the caches
                first = builder.select(code.equal(add, STREAM), INT64(0), first)
            with code.loop(first) as k:
                ask_row(builder.sdiv(k, INT64(_PACE)))
                multiply(k)
            code.repeat(multiply, first, builder.sub(count, first), passes)
        else:
            for m in range(rows):
                ask_row(INT64(m))
            code.repeat(multiply, INT64(0), count, passes)
        with builder.if_then(code.equal(add, ADD)):
            sums.add(c, c_line, mask)
        past = None
        if streams:
            whole = code.equal(columns, panels * vectors * lanes)
            past = builder.and_(code.equal(add, STREAM), whole)
        sums.store(c, c_line, mask, past)

    return vector_function(dtype, lanes, generate)


@functools.cache
def copy_tile(dtype: str, lanes: int, vectors: int) -> Any:
    """A copy of rows of some vectors.

    Returns ``tile(source, row, count, target, line)``. For k below `count` and t below ``vectors * lanes`` it
    sets

        target[k * line + t] = source[k * row + t]

    and prefetches the rows `COPIED` further.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        source, row, count, target, line = arguments
        source, target = code.reals(source), code.reals(target)
        with code.loop(count) as k:
            start, to = code.at(source, code.builder.mul(k, row)), code.at(target, code.builder.mul(k, line))
            coming = code.at(start, code.times(row, COPIED))
            code.prefetch([code.at(coming, v * lanes) for v in range(vectors)], write=False, level=2)
            loaded = [code.load(code.at(start, v * lanes)) for v in range(vectors)]
            for v, vector in enumerate(loaded):
                code.store_first(vector, code.at(to, v * lanes), None)

    return vector_function(dtype, lanes, generate)


@functools.cache
def strip_tile(dtype: str, rows: int, strips: int) -> Any:
    """Strips of a matrix, each of `rows` elements of every line, which are packed line by line.

    Returns ``tile(source, line, count, target, apart)``. For m below `rows`, n below `strips` and k below
    `count` it sets

        target[n * apart + k * rows + m] = source[k * line + n * rows + m]
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        source, line, count, target, apart = arguments
        source, target = code.reals(source), code.reals(target)
        with code.loop(count) as k:
            start, to = code.at(source, code.builder.mul(k, line)), code.at(target, code.times(k, rows))
            loaded = [code.load(code.at(start, rows * n)) for n in range(strips)]
            for n, strip in enumerate(loaded):
                code.store_first(strip, code.at(to, code.times(apart, n)), None)

    return vector_function(dtype, rows, generate)


@functools.cache
def turn_tile(dtype: str, lanes: int) -> Any:
    """The transpose of a square of `lanes` rows.

    Returns ``tile(source, row, target, line)``. For p and i below `lanes` it sets

        target[p * line + i] = source[i * row + p]
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        source, row, target, line = arguments
        source, target = code.reals(source), code.reals(target)
        vectors = [code.load(code.at(source, code.times(row, i))) for i in range(lanes)]
        for _ in range(lanes.bit_length() - 1):  # each time, elements of two vectors alternate
            pairs = zip(vectors[: lanes // 2], vectors[lanes // 2 :], strict=True)
            vectors = [half for pair in pairs for half in code.alternating(*pair)]
        TileSums(code, [[vector] for vector in vectors]).store(target, line)

    return vector_function(dtype, lanes, generate)
