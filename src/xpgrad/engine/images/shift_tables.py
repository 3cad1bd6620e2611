"""Which rows of images meet which rows of a grid: tables of integers for compiled loops."""

from __future__ import annotations

import itertools
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
        found = _joined([row for row in rows if row[1] < part.crop.length])
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
        [row for layer, place in enumerate(places) for row in _layer(place, size, _steps(size), layer)]
    )


def _steps(size: Sequence[int]) -> tuple[int, ...]:
    """The distances of an image's elements along each axis."""
    return tuple(prod(size[axis + 1 :]) for axis in range(len(size)))


def _layer(place: Embedding, size: tuple[int, ...], by: tuple[int, ...], layer: int) -> list[list[int]]:
    """The rows of images of this size, with these strides, that are in a grid."""
    counts, skipped = place.counts(size), max(0, -place.before[-1])
    count = min(counts[-1], place.grid[-1] - place.before[-1]) - skipped
    found = []
    for index in itertools.product(*map(range, counts[:-1])) if count > 0 else ():
        at = [i + b for i, b in zip((*index, skipped), place.before, strict=True)]
        if all(0 <= i < large for i, large in zip(at, place.grid, strict=True)):
            to = place.lead
            for axis, i in enumerate(at):
                to += i * prod(place.grid[axis + 1 :])
            taken = zip(place.first, (*index, skipped), place.steps, by, strict=True)
            found.append(
                [sum((f + i * s) * d for f, i, s, d in taken), to, count, by[-1] * place.steps[-1], layer]
            )
    return found


def _joined(rows: list[list[int]]) -> np.ndarray:
    """Merge rows that are contiguous in both places."""
    joined: list[list[int]] = []
    for source, to, count, step, layer in rows:
        last = joined[-1] if joined else [0, 0, 0, 0, -1]
        if last[3:] == [step, layer] and [source, to] == [last[0] + last[2] * step, last[1] + last[2]]:
            last[2] += count
        else:
            joined.append([source, to, count, step, layer])
    return np.asarray(joined, dtype=np.int64).reshape(-1, 5)
