"""Which rows of images meet which rows of a grid: tables of integers for compiled loops.

They do not depend on the number of images, so batches of all sizes share them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from operator import add, mul
from typing import NamedTuple

import numpy as np

from xpgrad.engine.images.shifts import Embedding, Shifts

_KEPT = 256  # tables that are kept, of each kind


class SumTables(NamedTuple):
    """The tables of a sum of shifted images.

    Parameters
    ----------
    rows, wanted : array, shape (n, 5)
        The images' rows in the grid, and the results' rows, part by part; see `native_shifts`.
    parts : array, shape (parts, 5)
        For each part: the place of its weights, the numbers of its taps and of its wanted rows, the place of
        its first result in an image, and the number of the grid's elements that it needs.
    taps : array, shape (taps, 2)
        The taps of all parts.
    begin, end : int
        The range of the grid's elements that are wanted.
    reach : int
        The largest shift.
    complete : bool
        Whether every result belongs to a part.
    """

    rows: np.ndarray
    wanted: np.ndarray
    parts: np.ndarray
    taps: np.ndarray
    begin: int
    end: int
    reach: int
    complete: bool


@functools.lru_cache(maxsize=_KEPT)
def sum_tables(shifts: Shifts, size: tuple[int, ...], weights: Sequence[int]) -> SumTables:
    """The tables for images of a size; `weights` are the places of each part's weights."""
    wanted, table, steps = [], [], _steps(shifts.size)
    lines, *others = shifts.places[0].grid
    for part, own in zip(shifts.parts, weights, strict=True):
        by = tuple(map(mul, steps, part.steps))
        computed = min(lines, part.crop.length // prod(others)), *others
        found = _rows(Embedding.of_all(computed, part.crop.begin), part.crop.size, by, 0)
        wanted.append(found)
        table.append([own, len(part.taps), len(found), sum(map(mul, steps, part.first)), part.crop.length])
    every, taps = np.concatenate(wanted), [tap for part in shifts.parts for tap in part.taps]
    return SumTables(
        rows=rows_in_grid(shifts.places, size),
        wanted=_shared(every),
        parts=_shared(np.asarray(table, dtype=np.int64)),
        taps=_shared(np.asarray(taps, dtype=np.int64)),
        begin=int(every[:, 1].min()) if len(every) else 0,
        end=int((every[:, 1] + every[:, 2]).max()) if len(every) else 0,
        reach=max(shift for _, shift in taps),
        complete=int(every[:, 2].sum()) == prod(shifts.size),
    )


@functools.lru_cache(maxsize=_KEPT)
def rows_in_grid(places: tuple[Embedding, ...], size: tuple[int, ...]) -> np.ndarray:
    """The rows of images in a grid (see `native_shifts`), by layer and in memory order."""
    by = _steps(size)
    return _shared(np.concatenate([_rows(place, size, by, layer) for layer, place in enumerate(places)]))


def _shared(table: np.ndarray) -> np.ndarray:
    """The table, to be read only."""
    table.flags.writeable = False
    return table


def _steps(size: Sequence[int]) -> tuple[int, ...]:
    """The distances of an image's elements along each axis."""
    steps = [1] * len(size)
    for axis in range(len(size) - 1, 0, -1):
        steps[axis - 1] = steps[axis] * size[axis]
    return tuple(steps)


def _rows(place: Embedding, size: tuple[int, ...], by: tuple[int, ...], layer: int) -> np.ndarray:
    """The rows in a grid of images with this size and these strides; contiguous rows become one row."""
    # along each axis, how many elements the grid leaves out at the beginning, and how many it has
    skipped = [max(0, -before) for before in place.before]
    each = zip(place.counts(size), place.before, place.grid, skipped, strict=True)
    counts = [min(own, large - before) - skip for own, before, large, skip in each]
    if min(counts) <= 0:
        return np.empty((0, 5), dtype=np.int64)
    sources, lines = [*map(mul, place.steps, by)], _steps(place.grid)
    source = sum(map(mul, place.first, by)) + sum(map(mul, skipped, sources))
    to = place.lead + sum(map(mul, map(add, skipped, place.before), lines))
    axis, count = len(counts) - 1, counts[-1]
    step = sources[axis]
    while axis and (counts[axis - 1] == 1 or (lines[axis - 1], sources[axis - 1]) == (count, count * step)):
        axis -= 1
        count *= counts[axis]
    begins = np.full((1, 2), (source, to), dtype=np.int64)
    for number, distance, line in zip(counts[:axis], sources, lines, strict=False):
        moved = np.arange(number, dtype=np.int64)[:, None] * (distance, line)
        begins = (begins[:, None] + moved).reshape(-1, 2)
    rows = np.empty((len(begins), 5), dtype=np.int64)
    rows[:, :2], rows[:, 2:] = begins, (count, step, layer)
    return rows
