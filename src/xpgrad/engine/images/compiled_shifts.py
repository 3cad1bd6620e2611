"""Plans of `sum_of_shifts` and `products_of_shifts`: functions of `native_shifts`, and their records.

Groups of few channels use loops over positions, other groups tiles in vector registers. A thread computes a
stretch of the grid that fits its cache. A plan is made once for all calls with arrays of the same shapes.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.records import (
    Batch,
    PatchRows,
    Shared,
    ShiftedProducts,
    ShiftedSums,
    Table,
    TapPacking,
    flat,
    positions,
)
from xpgrad.engine.compiled.register_tiles import Tiles, tiles
from xpgrad.engine.images.shift_tables import rows_in_grid, sum_tables
from xpgrad.engine.images.shifts import Embedding, Shifts
from xpgrad.engine.process import sharing
from xpgrad.engine.process.memory import Workspaces, address_of, address_of_kept, name_of
from xpgrad.engine.process.team import Team, integers
from xpgrad.engine.symbols import SizeSymbol, of_numbers, rounded_up

# Tiles pay from so many sums in a group, and so many pairs of a sum and an image.
_SUMS, _PAIRS = 3, 16
# The least share of the vectors' elements that are sums: with fewer, vectors of positions are faster.
_FILLED = 0.8
# A stretch of the grid, with all of a group's channels: with the weights it fits the second-level cache.
_STRETCH_BYTES = 1 << 19
# Positions at a time: their cotangents, for the channels of a tile's columns, fit the first-level cache.
COLUMNS = 128
_PLANS = 256  # plans that are kept, of each kind

_PART = "int64 data, int64 part"
_AT_SUMS, _AT_PRODUCTS = positions(ShiftedSums), positions(ShiftedProducts)
_AT_SHARED = positions(Shared)  # both records begin with it


class PackedTaps(NamedTuple):
    """The weights (group, I, J) of each part's taps; part k begins at ``starts[k]``.

    For tiles they are in panels (J * taps, sums of a tile) of I; zeros fill the last panel.
    """

    memory: Any
    starts: tuple[int, ...]
    shape: tuple[int, ...]


def _many_channels(sums: int, images: int) -> bool:
    """Whether tiles compute a group with so many sums and images."""
    return sums >= _SUMS and sums * images >= _PAIRS


def packed_starts(
    dtype: np.dtype, shape: Sequence[int], taps: Sequence[Sequence[int]]
) -> tuple[bool, tuple[int, ...], int]:
    """Whether weights of a shape are for tiles, where each part begins when packed, and the packed size."""
    group, sums, channels_in, _ = shape
    each = group * channels_in * _Panels.of(dtype, sums, channels_in, tiles()).rows
    *starts, size = itertools.accumulate((each * len(part) for part in taps), initial=0)
    return _many_channels(sums, channels_in), tuple(starts), size


class _Panels(NamedTuple):
    """The panels of a group's packed weights.

    Parameters
    ----------
    vectors : int
        The number of vectors in a tile if these have sums; 0 if they have positions.
    height, rows : int
        The rows of a panel, and of all of a group: the last panel may be lower.
    behind, tile : int
        The elements of memory that tiles need behind each line of sums, and behind the last line.
    """

    vectors: int
    height: int
    rows: int
    behind: int = 0
    tile: int = 0

    @classmethod
    def of(cls, dtype: np.dtype, sums: int, channels_in: int, kinds: Tiles) -> _Panels:
        """Without tiles a panel is a sum. Vectors have sums unless too much of them would be empty."""
        if not _many_channels(sums, channels_in):
            return cls(0, 1, sums)
        lanes, tall, low = kinds.lanes(dtype), kinds.tall[0], kinds.flat[0]
        vectors = _vectors(sums, lanes, kinds.turned)
        rows = rounded_up(sums, vectors * lanes)
        if sums >= _FILLED * rows:
            width = vectors * lanes  # a square of `lanes` rows may begin with a line's last position
            return cls(vectors, width, rows, lanes, rounded_up(kinds.turned[vectors - 1], lanes) * width)
        return cls(0, tall, rounded_up(sums, low if 0 < sums % tall <= low else tall))


def tap_packing(
    dtype: np.dtype, shape: Sequence[int], by: Sequence[int], part: Sequence[int], parts: int
) -> tuple[int, TapPacking, Any]:
    """The compiled function that packs a part's taps for tiles, its record, and the memory of its table.

    `by` are the weights' distances in memory; the record lacks the addresses of weights and target.
    """
    numbers = integers(part)
    by_group, by_sum, by_channel_in, by_tap = by
    group, sums, channels_in, _ = shape
    panels = _Panels.of(dtype, sums, channels_in, tiles())
    record = TapPacking(
        parts=parts, weights=0, by_group=by_group, by_sum=by_sum, by_channel_in=by_channel_in,
        by_tap=by_tap, groups=group, sums=sums, panel_rows=panels.rows, height=panels.height,
        channels_in=channels_in, taps=ctypes.addressof(numbers), count=len(part),
        lines=int(by_tap == 1 and by_channel_in == len(part) and [*part] == [*range(len(part))]), target=0,
    )  # fmt: skip
    return _loop("tap_packing", dtype, tiles()), record, numbers


def row_sums_loop(dtype: np.dtype) -> int:
    """The compiled function for a RowSums."""
    name = name_of(dtype)
    call = f"row_sums(fields(data), part, np.{name})"
    return c_function(f"row_sums_{name}", "images.native_shifts", _PART, call)


# --- plans


class ShiftPlan:
    """A compiled function, by its address, and all that it reads except the addresses of a call's arrays.

    Its record begins with a Shared, and has an array's address at each of the places `arrays`; its other
    addresses point into `kept`. At most `threads` parts share the items; each part has memory for so many
    elements of the dtype. `complete` says whether the function sets the whole result.
    """

    def __init__(
        self, function: int, record: tuple, dtype: np.dtype, items: int, threads: int, elements: int,
        arrays: Sequence[int], multiplications: int, kept: tuple = (), complete: bool = True,
    ) -> None:  # fmt: skip
        self.parts, self.complete = max(1, min(threads, items)), complete
        self.multiplications = multiplications
        bounds = integers(sharing.cuts(items, self.parts))
        self.function, self._arrays = function, arrays
        self.kept: Any = kept, bounds
        self.workspaces = Workspaces(self.parts, elements * dtype.itemsize)
        self._numbers = flat(record)
        self._numbers[_AT_SHARED.bounds] = ctypes.addressof(bounds)
        self._numbers[_AT_SHARED.bytes] = self.workspaces.stride

    def numbers(self, arrays: Sequence[Any], memory: Any) -> list[Any]:
        """The function's record, with the addresses of the arrays and of memory for the workspaces."""
        numbers = self._numbers.copy()
        for place, address in zip(self._arrays, arrays, strict=True):
            numbers[place] = address
        numbers[_AT_SHARED.memory] = memory
        return numbers


class _SymbolicPlan(ShiftPlan):
    """A plan that depends on symbols: the same function in as many parts, with other numbers."""

    def __init__(self, plan: SizeSymbol) -> None:
        get, own = of_numbers(getattr), plan.value
        self.function, self.parts = int(get(plan, "function")), int(get(plan, "parts"))
        self.complete, self.multiplications = bool(get(plan, "complete")), get(plan, "multiplications")
        self.workspaces = Workspaces(self.parts, get(get(plan, "workspaces"), "bytes"))
        self._arrays, self.kept = own._arrays, get(plan, "kept")
        number, numbers = of_numbers(operator.getitem), get(plan, "_numbers")
        self._numbers = [number(numbers, place) for place in range(len(own._numbers))]


def plan_for(plan_of: Callable[..., ShiftPlan], *arguments: Any) -> ShiftPlan:
    """``plan_of(*arguments)``, where sizes may be symbols."""
    plan = of_numbers(plan_of)(*arguments)
    return _SymbolicPlan(plan) if plan.__class__ is SizeSymbol else plan


_LATER = Shared(0, 0, 0)  # a plan fills it in


class Setting(NamedTuple):
    """The number of threads, how much work they need (see `Team.grain`), and the tiles."""

    threads: int
    grain: int
    tiles: Tiles

    @classmethod
    def of(cls, team: Team) -> Setting:
        """The present setting."""
        return cls(team.free(), team.grain, tiles())

    def threads_for(self, multiplications: int) -> int:
        """The number of threads for so many multiplications."""
        return sharing.product_threads(multiplications, self.threads, self.grain)


@functools.lru_cache(maxsize=_PLANS)
def plan_of_sums(
    dtype: np.dtype, images: tuple[int, ...], weights: tuple[int, ...], starts: tuple[int, ...],
    shifts: Shifts, setting: Setting,
) -> ShiftPlan:  # fmt: skip
    """The plan of `sum_of_shifts`; its arrays: images, weights, bias, results."""
    (group, sums, channels_in), places = weights, shifts.places
    tables = sum_tables(shifts, images[2:], starts)
    many, taken = _many_channels(sums, channels_in), tables.end - tables.begin
    name = "sums_by_tiles" if many else "sums_by_positions"
    panels = _Panels.of(dtype, sums, channels_in, setting.tiles)
    multiplications = images[0] * group * sums * channels_in * len(tables.taps) * taken
    threads = setting.threads_for(multiplications)
    if many and taken:
        channels, groups = len(places) * channels_in, images[0] * group
        grid = _grid_of_tiles(dtype, setting.tiles, channels, tables.reach, taken, groups, threads)
        begin, line = tables.begin, rounded_up(grid.stretch, grid.step) + panels.behind
    else:
        grid = _grid_of_images(places, channels_in, tables.end)
        begin, line = 0, int(tables.parts[:, 4].max())
    record = ShiftedSums(
        shared=_LATER, images=_batch(images), rows=_table(tables.rows), groups=group, channels_in=channels_in,
        sums=sums, panel_rows=panels.rows, parts=_table(tables.parts),
        taps=address_of(tables.taps), wanted=address_of(tables.wanted), weights=0, bias=0,
        results=_batch((images[0], group * sums, *shifts.size)), begin=begin, end=tables.end,
        stretch=grid.stretch, stretches=grid.stretches, room=grid.room, grid=grid.elements, line=line,
    )  # fmt: skip
    at = _AT_SUMS
    return ShiftPlan(
        _loop(name, dtype, setting.tiles, panels.vectors), record, dtype,
        images[0] * group * grid.stretches if taken else 0, threads,
        grid.elements + panels.height * line + panels.tile,
        (at.images.address, at.weights, at.bias, at.results.address), multiplications, (tables,),
        tables.complete,
    )  # fmt: skip


@functools.lru_cache(maxsize=_PLANS)
def plan_of_products(
    dtype: np.dtype, a: tuple[int, ...], images: tuple[int, ...], places: tuple[Embedding, ...],
    taps: tuple[tuple[int, int], ...], group: int, setting: Setting,
) -> ShiftPlan:  # fmt: skip
    """The plan of `products_of_shifts`; its arrays: both factors, results of each part."""
    size = (a[2], *places[0].grid[1:])
    taken, reach = prod(size), max(shift for _, shift in taps)
    a_rows = rows_in_grid((Embedding.of_all(size, (0,) * len(size)),), a[2:])
    rows, numbers = rows_in_grid(places, images[2:]), np.asarray(taps, dtype=np.int64)
    sums, channels_in = a[1] // group, images[1] // group
    multiplications = prod(a) * channels_in * len(taps)
    threads, kinds = setting.threads_for(multiplications), setting.tiles
    name, vectors, more = "products_by_positions", 0, taken
    if _many_channels(sums, channels_in):
        lanes = kinds.lanes(dtype)
        name, vectors = "products_by_tiles", _vectors(sums, lanes, kinds.products)
        width, height = vectors * lanes, kinds.products[vectors - 1]
        channels, groups = len(places) * channels_in, images[0] * group
        grid = _grid_of_tiles(dtype, kinds, channels, reach, taken, groups, threads)
        more = width * (COLUMNS + -(-sums // width) * -(-channels_in * len(taps) // height) * height)
    else:
        grid = _grid_of_images(places, channels_in, taken)
    record = ShiftedProducts(
        shared=_LATER, a=_batch(a), a_rows=_table(a_rows), images=_batch(images), rows=_table(rows),
        count=images[0], groups=group, channels_in=channels_in, sums=sums, taps=_table(numbers), length=taken,
        stretch=grid.stretch, stretches=grid.stretches, room=grid.room, grid=grid.elements, results=0,
    )  # fmt: skip
    at = _AT_PRODUCTS
    return ShiftPlan(
        _loop(name, dtype, kinds, vectors), record, dtype,
        images[0] * group * grid.stretches, threads, grid.elements + more,
        (at.a.address, at.images.address, at.results), multiplications, (rows, a_rows, numbers),
    )  # fmt: skip


def _batch(shape: Sequence[int]) -> Batch:
    """Images that follow one another."""
    return Batch(0, prod(shape[1:]), prod(shape[2:]))


_length = of_numbers(len)


@of_numbers
def _elements_of(rows: np.ndarray) -> int:
    """The elements of all rows of a grid."""
    return int(rows[:, 2].sum())


def _table(rows: np.ndarray) -> Table:
    return Table(address_of_kept(rows), _length(rows))


# --- how much of the grid is in memory


class _GridMemory(NamedTuple):
    """Memory for a stretch of the grid with all channels of a group, in elements.

    The grid has so many `stretches`. A channel takes `room` of all `elements`; a tile's row has `step`.
    """

    stretch: int
    stretches: int
    room: int
    elements: int
    step: int = 1


def _grid_of_images(places: Sequence[Embedding], channels_in: int, end: int) -> _GridMemory:
    """Memory for whole images."""
    layer = places[0].lead + prod(places[0].grid)
    return _GridMemory(end, 1, layer, len(places) * channels_in * layer)


def _grid_of_tiles(
    dtype: np.dtype, kinds: Tiles, channels: int, reach: int, length: int, images: int, threads: int
) -> _GridMemory:
    """Memory for stretches that fit the cache; their number divides the work evenly."""
    lanes = kinds.lanes(dtype)
    step = max(kinds.tall[1], kinds.flat[1]) * lanes
    fitting = max(_STRETCH_BYTES // (dtype.itemsize * channels) - reach, reach, 2 * step)
    least = -(-length // fitting)
    even = (count for count in range(least, least + threads) if images * count % threads == 0)
    stretches = next(even, least) if length >= 2 * step * threads else least
    even_length = -(-length // stretches)
    stretch = min(length, rounded_up(even_length, step))
    # an odd number of vectors: with a power of two all channels would compete for a few cache lines
    room = (-(-(stretch + reach) // lanes) | 1) * lanes
    # tiles read beyond a channel's end
    return _GridMemory(stretch, -(-length // stretch), room, channels * room + step, step)


def _vectors(sums: int, lanes: int, rows: Sequence[int]) -> int:
    """The number of vectors in a tile with which the tiles waste the fewest vectors.

    `rows` are those of tiles of 1, 2, ... vectors.
    """
    choices = range(1, len(rows) + 1)
    return min(choices, key=lambda vectors: (-(-sums // (vectors * lanes)) * vectors, -vectors))


# --- patches


def patch_work(
    kind: str, dtype: np.dtype, images: Sequence[int], places: tuple[Embedding, ...], parts: int, begins: bool
) -> tuple[int, PatchRows, Any]:
    """The compiled function, its record without the arrays' addresses, and the memory of its tables."""
    count, channels, *size = images
    positions = prod(places[0].grid)
    rows = _rows_of_patches(places, tuple(size), count * positions)
    if kind == "patches":
        begins = _elements_of(rows) < len(places) * positions
    record = PatchRows(
        parts=parts, images=_batch(images), count=count, channels=channels,
        size=prod(size), rows=_table(rows), taps=len(places), positions=positions,
        columns=count * positions, patches=0, bias=0, begins=int(begins),
    )  # fmt: skip
    return _loop(kind, dtype, tiles()), record, rows


@of_numbers
@functools.lru_cache(maxsize=256)
def _rows_of_patches(places: tuple[Embedding, ...], size: tuple[int, ...], columns: int) -> np.ndarray:
    """The rows of an image in the rows of patches; each place begins `columns` after the previous place."""
    rows = rows_in_grid(places, size).copy()
    rows[:, 1] += rows[:, 4] * columns
    return rows


# --- compiled code


@functools.cache
def _loop(name: str, dtype: np.dtype, kinds: Tiles, vectors: int = 0) -> int:
    """The address of a compiled ``(data, part)``; a tile has so many `vectors` of sums."""
    if name == "sums_by_tiles":
        made = f"{name}({dtype.name!r}, {(*kinds,)}, {vectors})"
    elif name == "products_by_tiles":
        made = f"{name}({dtype.name!r}, {(*kinds,)}, {vectors}, {COLUMNS})"
    else:
        made = f"{name}({dtype.name!r}, {kinds.lanes(dtype)})"
    return c_function(f"{name}_{dtype.name}", "images.native_shifts", _PART, "made(fields(data), part)", made)
