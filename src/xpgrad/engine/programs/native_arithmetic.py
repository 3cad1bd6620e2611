"""The compiled functions for an ArithmeticRecord: row by row, in vector instructions; needs llvmlite.

The vector instructions are generated: loops over elements would take five times as long to compile.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xpgrad.engine.compiled.native import inside, release, scratch
from xpgrad.engine.compiled.records import ArithmeticKind, ArithmeticRecord, positions
from xpgrad.engine.compiled.vector_code import INT64, VectorCode, vector_function

__all__ = ["arithmetic"]

_AT, _KIND = positions(ArithmeticRecord), positions(ArithmeticKind)
_LINES = 4  # the least rows of a part; with fewer, parts are columns
_TOGETHER = 4  # rows that a sum over rows adds before it writes its target
_BLOCK = 1024  # rows of a partial sum: one sum of millions of rows would lose digits


def arithmetic(dtype: str, lanes: int) -> Any:
    """The function ``(data, part)`` for a dtype, with `lanes` elements in a vector.

    A part has some of the rows, or some of the columns if rows are few or summed.
    """
    write_row, add_rows, size = _row(dtype, lanes), _column_sums(dtype, lanes), np.dtype(dtype).itemsize
    real = np.dtype(dtype).type

    @inside()
    def sum_rows(products, to, first, line, second, other, rows, count):
        add_rows(products, to, first, line, second, other, min(rows, _BLOCK), count)
        if rows <= _BLOCK:
            return
        partial = scratch(count, real)
        partial_at = partial.ctypes.data
        for row in range(_BLOCK, rows, _BLOCK):
            here, there = first + size * line * row, second + size * other * row
            add_rows(products, partial_at, here, line, there, other, min(_BLOCK, rows - row), count)
            write_row(_KIND.add, to, to, partial_at, 1, 1, 1, count)
        release(partial)

    @inside()
    def place(data, at, plane, row, column):
        """The address of an element of the operand with its record at `at`; `plane` counts all planes."""
        block = plane // data[_AT.planes]
        slab = block // data[_AT.blocks]
        number = data[at.slab] * slab + data[at.block] * (block - slab * data[_AT.blocks])
        number += data[at.plane] * (plane - block * data[_AT.planes])
        return data[at.address] + size * (number + data[at.row] * row + data[at.column] * column)

    @inside()
    def run(data, part):
        kind, parts, columns, rows = data[_AT.kind], data[_AT.parts], data[_AT.columns], data[_AT.rows]
        products = 1 if kind == _KIND.column_sums_of_products else 0
        lines = data[_AT.slabs] * data[_AT.blocks] * data[_AT.planes] * rows
        sums = products or kind == _KIND.column_sums
        by_rows = lines >= _LINES * parts and not sums
        whole = lines if by_rows else columns
        low, high = whole * part // parts, whole * (part + 1) // parts
        if sums:
            to, first = place(data, _AT.target, 0, 0, low), place(data, _AT.first, 0, 0, low)
            second = place(data, _AT.second, 0, 0, low)
            line, other = data[_AT.first.row], data[_AT.second.row]
            sum_rows(products, to, first, line, second, other, rows, high - low)
            return
        begin, end, left, count = (low, high, 0, columns) if by_rows else (0, lines, low, high - low)
        y, x, z = data[_AT.target.column], data[_AT.first.column], data[_AT.second.column]
        line = begin
        while line < end:
            plane = line // rows
            row, next_plane = line - plane * rows, min(end, (plane + 1) * rows)
            to, first = place(data, _AT.target, plane, row, left), place(data, _AT.first, plane, row, left)
            second = place(data, _AT.second, plane, row, left)
            while line < next_plane:
                write_row(kind, to, first, second, y, x, z, count)
                to += size * data[_AT.target.row]
                first += size * data[_AT.first.row]
                second += size * data[_AT.second.row]
                line += 1

    return run


# for each kind, the number of its sources and its result from their vectors
_RESULTS: dict[str, tuple[int, Callable[..., Any]]] = {
    "zero": (0, lambda code: code.zero),
    "copy": (1, lambda code, a: a),
    "root": (1, lambda code, a: code.root(a)),
    "add": (2, lambda code, a, b: code.builder.fadd(a, b)),
    "multiply": (2, lambda code, a, b: code.builder.fmul(a, b)),
}


def _row(dtype: str, lanes: int) -> Any:
    """The function ``(kind, target, first, second, y, x, z, count)``, which computes one row.

    `target`, `first` and `second` are addresses; y, x and z are the distances of their elements. If the
    distances are 1, or z is 0, whole vectors are computed, else single elements.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        kind, *addresses, y, x, z, count = arguments
        builder, (target, first, second) = code.builder, map(code.reals, addresses)
        dense = builder.and_(code.equal(y, 1), code.equal(x, 1))
        is_each, is_one = (builder.and_(dense, code.equal(z, step)) for step in (1, 0))

        def write(result: Callable[..., Any], loads: Sequence[_Load]) -> None:
            def some(number: Any, rest: Any) -> None:
                found = result(code, *(load(number, rest) for load in loads))
                code.store_first(found, code.at(target, number), rest)

            code.in_vectors(count, some)

        def each(source: Any) -> _Load:
            return lambda number, rest: code.load_first(code.at(source, number), rest)

        def one(number: Any, rest: Any) -> Any:
            return code.everywhere(builder.load(second))

        for name, (used, result) in _RESULTS.items():
            with builder.if_then(code.equal(kind, getattr(_KIND, name))):
                with builder.if_then(is_each):
                    write(result, [each(first), each(second)][:used])
                if used == 2:
                    with builder.if_then(is_one):
                        write(result, [each(first), one])
                is_done = builder.or_(is_each, is_one) if used == 2 else is_each
                with builder.if_then(builder.not_(is_done)), code.loop(count) as j:
                    sources, element = [(first, x), (second, z)][:used], VectorCode(builder, dtype, 1)
                    loaded = [element.load(code.at(at, builder.mul(j, step))) for at, step in sources]
                    to = code.at(target, builder.mul(j, y))
                    element.store_first(result(element, *loaded), to, None)

    return vector_function(dtype, lanes, generate)


_Load = Callable[[Any, Any], Any]
"""Loads the vector of a source from an element on; the second argument is as for `VectorCode.load_first`."""


def _column_sums(dtype: str, lanes: int) -> Any:
    """The function ``(products, target, first, line, second, other, rows, count)``, which sums over rows.

    It sums a matrix, whose rows are `line` elements apart, or, if `products` is 1, its product with a second.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        products, target, first, line, second, other, rows, count = arguments
        builder, target = code.builder, code.reals(target)
        first, second = code.reals(first), code.reals(second)

        def clear(number: Any, rest: Any) -> None:
            code.store_first(code.zero, code.at(target, number), rest)

        def add(k: Any, together: int, is_product: bool) -> None:
            """Add `together` rows, from the k-th on, to the target."""
            numbers = [builder.add(k, INT64(m)) for m in range(together)]
            starts = [
                (code.at(first, builder.mul(row, line)), code.at(second, builder.mul(row, other)))
                for row in numbers
            ]

            def some(number: Any, rest: Any) -> None:
                def loaded(start: Any) -> Any:
                    return code.load_first(code.at(start, number), rest)

                terms = [builder.fmul(loaded(a), loaded(b)) if is_product else loaded(a) for a, b in starts]
                while len(terms) > 1:
                    terms = [builder.fadd(*pair) for pair in zip(terms[::2], terms[1::2], strict=True)]
                code.store_first(builder.fadd(loaded(target), terms[0]), code.at(target, number), rest)

            code.in_vectors(count, some)

        code.in_vectors(count, clear)
        whole = builder.sdiv(rows, INT64(_TOGETHER))
        done = code.times(whole, _TOGETHER)
        for is_product in (False, True):
            with builder.if_then(code.equal(products, int(is_product))):
                with code.loop(whole) as k:
                    add(code.times(k, _TOGETHER), _TOGETHER, is_product)
                with code.loop(builder.sub(rows, done)) as k:
                    add(builder.add(done, k), 1, is_product)

    return vector_function(dtype, lanes, generate)
