"""Rows of images to lines of a grid or of windows and back, by vector instructions; needs llvmlite.

Rows are short: what a compiler makes of such loops takes most of their elements one by one.
"""

from __future__ import annotations

import functools
from typing import Any

from xpgrad.engine.compiled.vector_code import INT64, VectorCode, vector_function


@functools.cache
def row_tile(dtype: str, lanes: int, from_step: int, to_step: int, adds: bool = False) -> Any:
    """A row of numbers from one place to another; one of the steps is 1, the other 1 or 2.

    Returns ``tile(source, target, count, more)``, with addresses, and `count` at least 1. For t below `count`
    it sets

        target[t * to_step] = source[t * from_step] + more

    or `adds` this to what is there, and touches nothing else.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        source, target, count, more = arguments
        source, target, more = code.reals(source), code.reals(target), code.everywhere(more)

        def move(number: Any, rest: Any) -> None:
            at = code.at(source, code.times(number, from_step))
            to = code.at(target, code.times(number, to_step))
            is_whole = from_step == 1
            row = code.load_first(at, rest) if is_whole else code.even(*code.load_spread(at, rest))
            row = code.builder.fadd(row, more)
            if adds:
                there = code.load_first(to, rest) if to_step == 1 else code.even(*code.load_spread(to, rest))
                row = code.builder.fadd(there, row)
            if to_step == 1:
                code.store_first(row, to, rest)
            else:
                code.store_spread(row, to, rest)

        code.in_vectors(count, move)

    return vector_function(dtype, lanes, generate, 3, reals=1)


@functools.cache
def split_tile(dtype: str, lanes: int, step: int, taken: int, whole: bool) -> Any:
    """Equal windows of a row, as many as a vector has elements, and the elements of each in lines.

    Returns ``tile(source, low, high, target, line)``, with addresses and numbers of elements. For t below
    `lanes` and j below `taken` it sets

        target[j * line + t] = source[t * step + j]

    Elements before number `low` and from `high` on are not read, but taken for 0. A tile that is `whole`
    reads all of them, also those in the last vector behind what it needs.
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
            code.store([[code.variable(row)]], code.at(target, code.times(line, j)), line)

    return vector_function(dtype, lanes, generate, 5)


@functools.cache
def weave_tile(dtype: str, lanes: int, step: int, whole: bool) -> Any:
    """Lines as one row: the first element of each, then the second one of each, and so on.

    Returns ``tile(source, line, target, count, more)``, with addresses and numbers of elements. For t below
    `lanes` and j below `step`, where ``t * step + j`` is below `count`, it sets

        target[t * step + j] = source[j * line + t] + more

    A tile that is `whole` sets all of them.
    """

    def generate(code: VectorCode, arguments: list[Any]) -> None:
        source, line, target, count, more = arguments
        source, target, more = code.reals(source), code.reals(target), code.everywhere(more)
        lines = [code.load(code.at(source, code.times(line, j))) for j in range(step)]
        for q in range(step):
            order = [divmod(q * lanes + i, step) for i in range(lanes)]
            row = code.picked(lines, [(j, t) for t, j in order])
            row = code.builder.fadd(row, more)
            place = code.at(target, q * lanes)
            rest = None if whole else code.builder.sub(count, INT64(q * lanes))
            code.store_first(row, place, rest)

    return vector_function(dtype, lanes, generate, 4, reals=1)
