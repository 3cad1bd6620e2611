"""Which rows of images meet which rows of a grid: tables of integers for compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import mul
from typing import NamedTuple

import numpy as np

from xpgrad.engine.images.shifts import Embedding, Shifts


class SumTables(NamedTuple):
    """What a sum of shifts of a size reads and writes.

    Parameters
    ----------
    rows, wanted : array, shape (n, 5)
        The images' rows in the grid, and the results' rows, part by part; see `native_shifts`.
    parts : array, shape (parts, 5)
        Where a part's weights begin, how many taps and wanted rows it has, where its first result is in an
        image, and how many elements of the grid it needs.
    taps : array, shape (taps, 2)
        Those of all parts.
    begin, end : int
        The elements of the grid that are wanted.
    reach : int
        The largest shift.
    complete : bool
        Whether every result is some part's.
    """

    rows: np.ndarray
    wanted: np.ndarray
    parts: np.ndarray
    taps: np.ndarray
    begin: int
    end: int
    reach: int
    complete: bool


def sum_tables(shifts: Shifts, size: tuple[int, ...], weights: Sequence[int]) -> SumTables:
    """Those of images of a size; `weights` tells where each part's weights begin."""
    wanted, table, steps = [], [], _steps(shifts.size)
    for part, own in zip(shifts.parts, weights, strict=True):
        by = tuple(map(mul, steps, part.steps))
        rows = _layer(Embedding.of_all(shifts.places[0].grid, part.crop.begin), part.crop.size, by, 0)
        found = _joined(rows[rows[:, 1] < part.crop.length])
        wanted.append(found)
        table.append([own, len(part.taps), len(found), sum(map(mul, steps, part.first)), part.crop.length])
    every, taps = np.concatenate(wanted), [tap for part in shifts.parts for tap in part.taps]
    return SumTables(
        rows=rows_in_grid(shifts.places, size),
        wanted=every,
        parts=np.asarray(table, dtype=np.int64),
        taps=np.asarray(taps, dtype=np.int64),
        begin=int(every[:, 1].min()) if len(every) else 0,
        end=int((every[:, 1] + every[:, 2]).max(initial=0)),
        reach=max(shift for _, shift in taps),
        complete=int(every[:, 2].sum()) == prod(shifts.size),
    )


def rows_in_grid(places: tuple[Embedding, ...], size: tuple[int, ...]) -> np.ndarray:
    """The rows of images (see `native_shifts`) in a grid, by layer and in memory order."""
    return _joined(
        np.concatenate([_layer(place, size, _steps(size), layer) for layer, place in enumerate(places)])
    )


def _steps(size: Sequence[int]) -> tuple[int, ...]:
    """The distances of an image's elements along each axis."""
    return tuple(prod(size[axis + 1 :]) for axis in range(len(size)))


def _layer(place: Embedding, size: tuple[int, ...], by: tuple[int, ...], layer: int) -> np.ndarray:
    """The rows of images of this size, with these strides, that are in a grid."""
    *counts, columns = place.counts(size)
    skipped = max(0, -place.before[-1])
    count = min(columns, place.grid[-1] - place.before[-1]) - skipped
    if count <= 0 or not 0 <= skipped + place.before[-1] < place.grid[-1]:
        return np.empty((0, 5), dtype=np.int64)
    # Along each axis those elements that the grid has: of rows, the first element.
    indices = [
        np.arange(max(0, -before), min(own, large - before))
        for own, before, large in zip(counts, place.before[:-1], place.grid[:-1], strict=True)
    ]
    indices.append(np.asarray([skipped]))
    source, to = np.zeros((), dtype=np.int64), np.full((), place.lead, dtype=np.int64)
    each = zip(indices, place.first, place.steps, by, place.before, _steps(place.grid), strict=True)
    for index, first, step, distance, before, line in each:
        source = source[..., None] + (first + index * step) * distance
        to = to[..., None] + (index + before) * line
    rows = np.empty((source.size, 5), dtype=np.int64)
    rows[:, 0], rows[:, 1] = source.ravel(), to.ravel()
    rows[:, 2:] = count, by[-1] * place.steps[-1], layer
    return rows


def _joined(rows: np.ndarray) -> np.ndarray:
    """Merge rows that are contiguous in both places."""
    source, to, count, step, _ = rows.T
    follows = (np.diff(source) == count[:-1] * step[:-1]) & (np.diff(to) == count[:-1])
    follows &= (rows[1:, 3:] == rows[:-1, 3:]).all(axis=1)
    begins = np.flatnonzero(np.concatenate([np.ones(min(len(rows), 1), dtype=bool), ~follows]))
    joined = rows[begins]
    joined[:, 2] = np.add.reduceat(count, begins) if len(rows) else 0
    return joined
