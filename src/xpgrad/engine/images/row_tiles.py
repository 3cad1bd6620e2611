"""Rows of images to lines of a grid or of windows and back, by vector instructions; needs llvmlite.

Rows are short, and a compiler's loops would handle most of their elements one by one.
"""

from __future__ import annotations

import functools
from typing import Any

from xpgrad.engine.compiled.vector_code import INT64, VectorCode, vector_function


@functools.cache
def row_tile(dtype: str, lanes: int, from_step: int, to_step: int, adds: bool = False) -> Any:
    """``tile(source, target, count, more)`` copies a row: one of the steps is 1, the other 1 or 2.

    For t below `count`, which is at least 1, it sets

        target[t * to_step] = source[t * from_step] + more

    or `adds` this to the target's elements. It touches no other element.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        source, target, count, more = arguments
        source, target, more = code.reals(source), code.reals(target), code.everywhere(more)

        def loaded(place: Any, step: int, rest: Any) -> Any:
            return code.load_first(place, rest) if step == 1 else code.even(*code.load_spread(place, rest))

        def move(number: Any, rest: Any) -> None:
            at = code.at(source, code.times(number, from_step))
            to = code.at(target, code.times(number, to_step))
            row = code.builder.fadd(loaded(at, from_step, rest), more)
            if adds:
                row = code.builder.fadd(loaded(to, to_step, rest), row)
            if to_step == 1:
                code.store_first(row, to, rest)
            else:
                code.store_spread(row, to, rest)

        code.in_vectors(count, move)

    return vector_function(dtype, lanes, generate)


@functools.cache
def split_tile(dtype: str, lanes: int, step: int, taken: int, whole: bool) -> Any:
    """``tile(source, low, high, target, line)`` splits a row into `lanes` windows, and these into lines.

    For t below `lanes` and j below `taken` it sets

        target[j * line + t] = source[t * step + j]

    Elements before number `low`, and from `high` on, count as 0 and are not read. A `whole` tile reads all
    elements, up to the end of the last vector.
    """
    count = -(-(step * (lanes - 1) + taken) // lanes)

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        source, low, high, target, line = arguments
        source, target = code.reals(source), code.reals(target)
        places = [code.at(source, q * lanes) for q in range(count)]
        if whole:
            vectors = [code.load(place) for place in places]
        else:
            vectors = [code.load_between(place, q * lanes, low, high) for q, place in enumerate(places)]
        for j in range(taken):
            row = code.picked(vectors, [divmod(t * step + j, lanes) for t in range(lanes)])
            code.store(row, code.at(target, code.times(line, j)))

    return vector_function(dtype, lanes, generate)


@functools.cache
def weave_tile(dtype: str, lanes: int, step: int, whole: bool) -> Any:
    """``tile(source, line, target, count, more)`` weaves lines: the first element of each, then the second.

    For t below `lanes` and j below `step`, if ``t * step + j`` is below `count`, it sets

        target[t * step + j] = source[j * line + t] + more

    A `whole` tile sets all of them.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        source, line, target, count, more = arguments
        source, target, more = code.reals(source), code.reals(target), code.everywhere(more)
        lines = [code.load(code.at(source, code.times(line, j))) for j in range(step)]
        for q in range(step):
            order = [divmod(q * lanes + i, step) for i in range(lanes)]
            row = code.builder.fadd(code.picked(lines, [(j, t) for t, j in order]), more)
            rest = None if whole else code.builder.sub(count, INT64(q * lanes))
            code.store_first(row, code.at(target, q * lanes), rest)

    return vector_function(dtype, lanes, generate)
