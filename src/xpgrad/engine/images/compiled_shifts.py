"""`sum_of_shifts` and `products_of_shifts` compiled, one cache-sized stretch of the grid at a time.

Groups of few channels use loops over positions, others tiles in vector registers; both are in
`native_shifts`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.register_tiles import Tiles, tiles
from xpgrad.engine.compiled.source import versions
from xpgrad.engine.compiled.strided import distances, flat, forwards
from xpgrad.engine.images.shifts import Crop, Embedding, Part
from xpgrad.engine.process.notice import Lazy

# The number of sums in a group, and of pairs of sums and images, from which tiles pay.
_SUMS, _PAIRS = 3, 16
# Of a stretch of the grid, with all of a group's channels: it fits the second-level cache beside the weights.
_STRETCH_BYTES = 1 << 19
# Positions whose cotangents fit the first-level cache, for as many channels as a tile has columns.
_COLUMNS = 128


class Panels(NamedTuple):
    """Weights (group, I, K) packed for tiles: panels (K, rows of a tile) of I, the last padded with zeros."""

    memory: np.ndarray  # of all parts
    start: int
    shape: tuple[int, int, int]


def _many_channels(sums: int, images: int) -> bool:
    """Whether tiles compute a group with these numbers of both."""
    return sums >= _SUMS and sums * images >= _PAIRS


def pack_taps(weights: np.ndarray, taps: Sequence[Sequence[int]]) -> list[Any]:
    """See `Images.pack_taps`."""
    group, sums, seen, _ = weights.shape
    if not _many_channels(sums, seen):
        parts = [np.ascontiguousarray(weights[..., list(part)]) for part in taps]
        return [part.reshape(group, sums, -1) for part in parts]
    kinds = tiles()
    tall, low = kinds.tall[0], kinds.flat[0]
    padded = -(-sums // low) * low if 0 < sums % tall <= low else -(-sums // tall) * tall
    weights = forwards(weights)
    starts = np.cumsum([0, *(group * padded * seen * len(part) for part in taps)]).tolist()
    memory = np.empty(starts[-1], dtype=weights.dtype)
    pack = _many(weights.dtype.name, 1).pack
    for part, start, end in zip(taps, starts, starts[1:], strict=False):
        numbers = np.asarray(part, dtype=np.int64)
        pack(flat(weights, False), *distances(weights), group, sums, seen, numbers, memory[start:end])
    return [
        Panels(memory, start, (group, sums, seen * len(part)))
        for part, start in zip(taps, starts, strict=False)
    ]


def sum_of_shifts(
    images: np.ndarray,
    places: Sequence[Embedding],
    parts: Sequence[Part],
    size: Sequence[int],
    B: np.ndarray | None,
    target: np.ndarray | None,
) -> np.ndarray:
    """See `Images.sum_of_shifts`."""
    images, dtype = np.ascontiguousarray(images), images.dtype
    group, sums, _ = parts[0].weights.shape
    Y = np.empty((images.shape[0], group * sums, *size), dtype=dtype) if target is None else target
    bias = np.zeros(group * sums, dtype) if B is None else np.ascontiguousarray(B)
    rows, channels = _rows(tuple(places), images.shape[2:]), images.shape[1] // group
    reach = max(shift for part in parts for _, shift in part.taps)
    results = [_result(Y, part, places[0].grid) for part in parts]
    if len(parts) < prod(axis.step for axis in parts[0].phase) or not all(r.complete for r in results):
        Y[...] = bias.reshape(-1, *[1] * len(size))
    taken = [flat(images, False), *distances(images)[:2], rows, channels]
    made = [bias, flat(Y, True), *distances(Y)[:2], images.shape[0]]
    if isinstance(parts[0].weights, Panels):
        wanted = np.concatenate([result.rows for result in results])
        if not len(wanted):
            return Y
        begin, end = wanted[:, 1].min(), (wanted[:, 1] + wanted[:, 2]).max()
        room = _Room(dtype, len(places) * channels, reach, end - begin, tiles())
        table = [
            [part.weights.start, len(part.taps), len(result.rows), result.start]
            for part, result in zip(parts, results, strict=True)
        ]
        taps = np.concatenate([_taps(part.taps) for part in parts])
        _many(dtype.name, 1).sum_of_shifts(
            *taken, np.asarray(table, dtype=np.int64), taps, wanted, parts[0].weights.memory, group, sums,
            begin, end, room.stretch, room.length, room.grid(), room.sums(), *made,
        )  # fmt: skip
        return Y
    length, layer = max(part.crop.length for part in parts), _whole(places[0])
    grid = np.empty(len(places) * channels * layer, dtype)
    for part, (start, wanted, _) in zip(parts, results, strict=True):
        _few(dtype.name).sum_of_shifts(
            *taken, _taps(part.taps), part.weights, length, layer, grid, wanted, start, *made
        )  # fmt: skip
    return Y


def products_of_shifts(
    a: np.ndarray,
    images: np.ndarray,
    places: Sequence[Embedding],
    taps: Sequence[tuple[int, int]],
    group: int,
) -> np.ndarray:
    """See `Images.products_of_shifts`."""
    a, images, dtype = np.ascontiguousarray(a), np.ascontiguousarray(images), images.dtype
    grid = (a.shape[2], *places[0].grid[1:])
    length, reach = prod(grid), max(shift for _, shift in taps)
    others = _rows((Embedding.of_all(grid, (0,) * len(grid)),), a.shape[2:])
    rows, seen = _rows(tuple(places), images.shape[2:]), images.shape[1] // group
    sums, channels = a.shape[1] // group, len(places) * seen
    products = np.empty((group, sums, seen, len(taps)), dtype=dtype)
    results = products.reshape(group, sums, -1)
    taken = [flat(a, False), *distances(a)[:2], others, length, flat(images, False)]
    taken += [*distances(images)[:2], rows, seen, images.shape[0], _taps(taps)]
    if _many_channels(sums, seen):
        kinds = tiles()
        lanes = kinds.bytes // dtype.itemsize
        vectors = _vectors(sums, lanes, kinds)
        height, width = kinds.products[vectors - 1], vectors * lanes
        room = _Room(dtype, channels, reach, length, kinds)
        count = -(-results.shape[2] // height) * height
        _many(dtype.name, vectors).products_of_shifts(
            *taken, room.stretch, room.length, room.grid(), np.empty(_COLUMNS * width, dtype),
            np.empty((-(-sums // width), count, width), dtype), results,
        )  # fmt: skip
    else:
        layer = _whole(places[0])
        _few(dtype.name).products_of_shifts(
            *taken, layer, np.empty(channels * layer, dtype), np.zeros(length, dtype), results
        )
    return products


def row_sums(rows: np.ndarray) -> np.ndarray:
    """The sums of the rows of a matrix."""
    rows = np.ascontiguousarray(rows)
    sums = np.zeros(rows.shape[0], dtype=rows.dtype)
    _few(rows.dtype.name).row_sums(flat(rows, False), rows.shape[1], sums)
    return sums


class _Result(NamedTuple):
    """Where the sums of a part go: the offset, the rows, and whether these are all."""

    start: int
    rows: np.ndarray
    complete: bool


def _result(Y: np.ndarray, part: Part, grid: tuple[int, ...]) -> _Result:
    where: tuple[Any, ...] = (..., *part.phase)
    place = Y[where]
    if not place.size:
        return _Result(0, np.empty((0, 5), dtype=np.int64), complete=True)
    start = (place.__array_interface__["data"][0] - Y.__array_interface__["data"][0]) // Y.itemsize
    return _Result(start, *_wanted(grid, part.crop, tuple(distances(place)[2:])))


def _whole(place: Embedding) -> int:
    """The elements of a grid's layer."""
    return place.lead + prod(place.grid)


class _Room:
    """Memory for a stretch of the grid with all channels of a group, and for the sums of a tile's rows."""

    def __init__(self, dtype: np.dtype, channels: int, reach: int, length: int, kinds: Tiles) -> None:
        lanes = kinds.bytes // dtype.itemsize
        step = max(kinds.tall[1], kinds.flat[1]) * lanes
        fitting = max(_STRETCH_BYTES // (dtype.itemsize * channels) - reach, reach, 2 * step)
        equal = -(-length // -(-length // fitting))
        self.stretch = min(length, -(-equal // step) * step)
        # an odd number of vectors: with a power of two all channels would compete for a few cache lines
        self.length = (-(-(self.stretch + reach) // lanes) | 1) * lanes
        self._dtype, self._channels, self._step, self._rows = dtype, channels, step, kinds.tall[0]

    def grid(self) -> np.ndarray:
        """Tiles read beyond a channel's end."""
        return np.empty(self._channels * self.length + self._step, self._dtype)

    def sums(self) -> np.ndarray:
        """Tiles write beyond a row's end."""
        return np.empty((self._rows, -(-self.stretch // self._step) * self._step), self._dtype)


def _vectors(sums: int, lanes: int, kinds: Tiles) -> int:
    """The number of vectors of a tile that wastes the least of them."""
    choices = range(1, len(kinds.products) + 1)
    return min(choices, key=lambda vectors: (-(-sums // (vectors * lanes)) * vectors, -vectors))


def _taps(taps: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.asarray(taps, dtype=np.int64)


@functools.lru_cache(maxsize=256)
def _rows(places: tuple[Embedding, ...], size: tuple[int, ...]) -> np.ndarray:
    """The rows of images (see `native_shifts`) in a grid, by layer and in memory order."""
    distances = tuple(prod(size[axis + 1 :]) for axis in range(len(size)))
    return _joined(
        [row for layer, place in enumerate(places) for row in _layer(place, size, distances, layer)]
    )


@functools.lru_cache(maxsize=256)
def _wanted(grid: tuple[int, ...], crop: Crop, by: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """The rows of a result with these strides that are in the grid, and whether these are all."""
    rows = [
        row for row in _layer(Embedding.of_all(grid, crop.begin), crop.size, by, 0) if row[1] < crop.length
    ]
    return _joined(rows), sum(count for _, _, count, _, _ in rows) == prod(crop.size)


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


def _few(dtype: str) -> Any:
    """The loops over positions."""
    return _position_loops(dtype, tiles())


def _many(dtype: str, vectors: int) -> Any:
    """The loops with tiles; `vectors` are those of a tile of products."""
    return _tile_loops(dtype, tiles(), vectors)


@functools.cache
def _position_loops(dtype: str, kinds: Tiles) -> Any:
    lanes = kinds.bytes // np.dtype(dtype).itemsize
    loops = f"position_loops({dtype!r}, {lanes}, __name__)"
    return _compiled(f"shifts_{dtype}", loops, ("sum_of_shifts", "products_of_shifts", "row_sums"))


@functools.cache
def _tile_loops(dtype: str, kinds: Tiles, vectors: int) -> Any:
    loops = f"tile_loops({dtype!r}, {kinds}, {vectors}, {_COLUMNS}, __name__)"
    return _compiled(f"tiles_{dtype}", loops, ("pack", "sum_of_shifts", "products_of_shifts"))


def _compiled(label: str, loops: str, names: Sequence[str]) -> Any:
    """A module with those functions of `native_shifts`; the text makes numba keep them on disk."""
    functions = "\n".join(
        f"""

@njit(nogil=True, cache=True, error_model="numpy")
def {name}(*arguments):
    return made_{name}(*arguments)
"""
        for name in names
    )
    return Lazy(
        load(
            label,
            f"""# weighted sums of shifted images, and their gradient; generated, {versions()}
from numba import njit

from xpgrad.engine.compiled.register_tiles import Tiles
from xpgrad.engine.images.native_shifts import position_loops, tile_loops

{", ".join(f"made_{name}" for name in names)} = {loops}
{functions}""",
        )
    )
