"""`sum_of_shifts` and `products_of_shifts` compiled: one channel after the other, within a cache."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from xpgrad.engine.compiler import load
from xpgrad.engine.shifts import Crop, Place


def sum_of_shifts(
    images: np.ndarray,
    place: Place,
    weights: np.ndarray,
    terms: Sequence[tuple[int, int]],
    crop: Crop,
    B: np.ndarray | None,
    target: np.ndarray | None,
) -> np.ndarray:
    """See `Images.sum_of_shifts`."""
    images = np.ascontiguousarray(images)
    outputs = weights.shape[0] * weights.shape[1]
    shape = (images.shape[0], outputs, *crop.size)
    Y = target if target is not None and target.flags.c_contiguous else np.empty(shape, dtype=images.dtype)
    to = _rows(place.grid, crop.begin, crop.size, crop.length)
    _loops().sum_of_shifts(
        _to_read(images), *_rows(place.grid, place.before, images.shape[2:], prod(place.grid)),
        place.lead, prod(place.grid) + place.lead, np.array(weights, order="C"), _numbers(terms), crop.length,
        *to, np.zeros(outputs, images.dtype) if B is None else np.array(B), Y.reshape(Y.shape[0], -1),
    )  # fmt: skip
    return Y


def products_of_shifts(
    a: np.ndarray, images: np.ndarray, place: Place, terms: Sequence[tuple[int, int]], group: int
) -> np.ndarray:
    """See `Images.products_of_shifts`."""
    a, images = np.ascontiguousarray(a), np.ascontiguousarray(images)
    length = prod((a.shape[2], *place.grid[1:]))
    products = np.zeros((group, a.shape[1] // group, len(terms)), dtype=images.dtype)
    _loops().products_of_shifts(
        _to_read(a), *_rows(place.grid, (0,) * len(place.grid), a.shape[2:], length), length,
        _to_read(images), *_rows(place.grid, place.before, images.shape[2:], prod(place.grid)),
        place.lead, prod(place.grid) + place.lead, images.shape[0], _numbers(terms), products,
    )  # fmt: skip
    return products


def _to_read(array: np.ndarray) -> np.ndarray:
    """The array flat and read only, whatever it was: what is compiled depends on that."""
    flat = array.reshape(-1)[:]
    flat.flags.writeable = False
    return flat


def _numbers(terms: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.asarray(terms, dtype=np.int64)


@functools.lru_cache(maxsize=256)
def _rows(
    grid: tuple[int, ...], before: tuple[int, ...], size: tuple[int, ...], length: int
) -> tuple[np.ndarray, int, int, int]:
    """Where the rows of images are in a flat grid.

    Returns
    -------
    places : numpy.ndarray
        Of each row's first column that is in the grid; -1 for a row outside of it.
    first, count, width : int
        That column, how many there are in the grid, and how many a row has.
    """
    first = max(0, -before[-1])
    count = max(0, min(size[-1], grid[-1] - before[-1]) - first)
    places = []
    for index in itertools.product(*map(range, size[:-1])):
        at = [i + b for i, b in zip(index, before, strict=False)]
        inside = all(0 <= i < large for i, large in zip(at, grid, strict=False))
        flat = 0
        for i, large in zip([*at, first + before[-1]], grid, strict=True):
            flat = flat * large + i
        places.append(flat if inside and flat < length else -1)
    return np.asarray(places, dtype=np.int64), first, count, size[-1]


@functools.cache
def _loops() -> Any:
    return load("shifts", _SOURCE)


def _terms_at_once(count: int, indent: int, operation: str) -> str:
    """The text that adds so many terms, from number k on, to a stretch of the sum."""
    lines = [f"w{i} = weights[g, i, k + {i}]" for i in range(count)]
    lines += [f"x{i} = grid[terms[k + {i}, 0] * room + terms[k + {i}, 1] + start:]" for i in range(count)]
    lines += ["for t in range(stretch):"]
    lines += [f"    part[t] {operation} " + " + ".join(f"w{i} * x{i}[t]" for i in range(count))]
    return f"\n{' ' * indent}".join(lines)


# Up to eight terms at a time, so that a sum is read and written once for so many multiplications; LLVM checks
# eight pairs of pointers for overlap, and leaves loops with more as they are. In the inner products the order
# of additions is free ("reassoc", "nsz"): each lane of a vector keeps a sum of its own. Rows are short: views
# of them would cost more than their elements. They are read and written by unsigned numbers, for numba
# takes a signed one for an index that may count from the end.
_SOURCE = f"""# weighted sums of shifted images, and their gradient; generated
import numpy as np
from numba import njit

STRETCH = 1024
U = np.uintp


@njit(nogil=True, cache=True, error_model='numpy', forceinline=True)
def place(x, start, width, places, first, count, grid, lead):
    for r in range(len(places)):
        if places[r] >= 0:
            source, to = start + r * width + first, lead + places[r]
            for t in range(count):
                grid[U(to + t)] = x[U(source + t)]


@njit(nogil=True, cache=True, error_model='numpy', fastmath={{'contract'}})
def sum_of_shifts(
    x, places, first, count, width, lead, room, weights, terms, length, wanted, low, across, size, bias, y
):
    groups, sums = weights.shape[0], weights.shape[1]
    images, seen = y.shape[0], len(x) // (y.shape[0] * groups * len(places) * width)
    grid = np.zeros(seen * room, x.dtype)
    total = np.empty(length, x.dtype)
    flat = y.reshape(y.size)
    for n in range(images):
        for g in range(groups):
            for j in range(seen):
                start = ((n * groups + g) * seen + j) * len(places) * width
                place(x, start, width, places, first, count, grid, lead + j * room)
            for i in range(sums):
                for start in range(0, length, STRETCH):
                    stretch = min(STRETCH, length - start)
                    part = total[start:start + stretch]
                    k = 0
                    if len(terms) >= 8:
                        {_terms_at_once(8, 24, "=")}
                        k = 8
                    else:
                        for t in range(stretch):
                            part[t] = 0
                    while k + 8 <= len(terms):
                        {_terms_at_once(8, 24, "+=")}
                        k += 8
                    while k + 4 <= len(terms):
                        {_terms_at_once(4, 24, "+=")}
                        k += 4
                    while k < len(terms):
                        {_terms_at_once(1, 24, "+=")}
                        k += 1
                b = bias[g * sums + i]
                for r in range(len(wanted)):
                    to = (((n * groups + g) * sums + i) * len(wanted) + r) * size
                    if wanted[r] < 0 or across < size:
                        for t in range(size):
                            flat[U(to + t)] = b
                    if wanted[r] >= 0:
                        source = wanted[r]
                        for t in range(across):
                            flat[U(to + low + t)] = total[U(source + t)] + b


@njit(nogil=True, cache=True, error_model='numpy', fastmath={{'contract', 'reassoc', 'nsz'}})
def products_of_shifts(
    a, a_places, a_first, a_count, a_width, length,
    x, places, first, count, width, lead, room, images, terms, products,
):
    groups, sums = products.shape[0], products.shape[1]
    seen = len(x) // (images * groups * len(places) * width)
    grid = np.zeros(seen * room, x.dtype)
    other = np.zeros(length, x.dtype)
    for n in range(images):
        for g in range(groups):
            for j in range(seen):
                start = ((n * groups + g) * seen + j) * len(places) * width
                place(x, start, width, places, first, count, grid, lead + j * room)
            for i in range(sums):
                start = ((n * groups + g) * sums + i) * len(a_places) * a_width
                place(a, start, a_width, a_places, a_first, a_count, other, 0)
                for k in range(len(terms)):
                    shifted = grid[terms[k, 0] * room + terms[k, 1]:]
                    total = products[g, i, k] * 0
                    for t in range(length):
                        total += other[t] * shifted[t]
                    products[g, i, k] += total
"""
