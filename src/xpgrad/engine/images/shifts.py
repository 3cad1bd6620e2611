"""Shifted images: their places in a larger flat grid, in which a shift is one number, and sums in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from array_api_compat import device

from xpgrad.engine.images.padding import interleaved, padded


class Embedding(NamedTuple):
    """The places of images' elements in a grid; the rest of the grid is zero.

    Parameters
    ----------
    grid : tuple of int
        The grid's sizes.
    before : tuple of int
        Index in the grid of the first element; negative if the grid leaves out the first elements.
    lead : int
        Zeros before the whole grid.
    first, steps : tuple of int
        The first element of an image that is used, and the step to the next, in each dimension.
    """

    grid: tuple[int, ...]
    before: tuple[int, ...]
    lead: int
    first: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of_all(cls, grid: tuple[int, ...], before: tuple[int, ...], lead: int = 0) -> Embedding:
        """Every element is used."""
        return cls(grid, before, lead, (0,) * len(grid), (1,) * len(grid))

    @property
    def taken(self) -> tuple[slice, ...]:
        """The elements as indices of the last dimensions."""
        return tuple(slice(f, None, s) for f, s in zip(self.first, self.steps, strict=True))

    def counts(self, size: Sequence[int]) -> tuple[int, ...]:
        """The number of elements used from images of that size."""
        each = zip(self.first, size, self.steps, strict=True)
        return tuple(max(0, -((first - s) // step)) for first, s, step in each)

    def kept(self, size: Sequence[int]) -> tuple[slice, ...]:
        """The grid's indices of the elements of images of that size; none is left out at the beginning."""
        each = zip(self.before, self.counts(size), self.grid, strict=True)
        return tuple(slice(b, min(b + count, large)) for b, count, large in each)


class Crop(NamedTuple):
    """Which elements of a grid are wanted.

    Parameters
    ----------
    length : int
        The number of elements of the flat grid to compute: whole rows of its first dimension.
    begin, size : tuple of int
        The first wanted element and their number, in each dimension; those beyond the grid are zero.
    """

    length: int
    begin: tuple[int, ...]
    size: tuple[int, ...]


class PlacedSums(NamedTuple):
    """Weighted sums of shifted images, and their place in the result.

    Parameters
    ----------
    taps : tuple of (int, int)
        For each tap the layer of the grid and the shift.
    crop : Crop
        The wanted elements of the sums.
    first, steps : tuple of int
        Their first place in the result, and the step to the next, in each dimension.
    """

    taps: tuple[tuple[int, int], ...]
    crop: Crop
    first: tuple[int, ...]
    steps: tuple[int, ...]


class Shifts(NamedTuple):
    """Sums of shifted images: where the images are in the flat grid, the sums, and the results' size.

    The grid has one layer for each place. The steps of all parts are the same.
    """

    places: tuple[Embedding, ...]
    parts: tuple[PlacedSums, ...]
    size: tuple[int, ...]


def sum_of_shifts(xp: Any, images: Any, weights: Any, shifts: Shifts, B: Any = None) -> Any:
    """See `Images.sum_of_shifts`."""
    places, parts, size = shifts
    group, sums = weights[0].shape[:2]
    rows = _grid(xp, images, places, group)
    found = {
        part.first: _sums(xp, rows, places[0].grid, own, part)
        for own, part in zip(weights, parts, strict=True)
    }
    steps = parts[0].steps
    whole = found.popitem()[1] if prod(steps) == 1 else _weave(xp, found, steps, size)
    return whole if B is None else whole + xp.reshape(B, (1, group * sums) + (1,) * len(size))


def products_of_shifts(
    xp: Any, a: Any, images: Any, places: Sequence[Embedding], taps: Sequence[tuple[int, int]], group: int
) -> Any:
    """See `Images.products_of_shifts`."""
    rows = _grid(xp, images, places, group)
    begin = Embedding.of_all((a.shape[2], *places[0].grid[1:]), (0,) * (a.ndim - 2))
    others = _grid(xp, a, [begin], group)[:, :, 0, :, None, :]
    length = others.shape[-1]
    shifted = (rows[:, :, layer, None, :, shift : shift + length] for layer, shift in taps)
    return xp.stack([xp.sum(others * own, axis=(0, 4)) for own in shifted], axis=-1)


def patches(xp: Any, images: Any, places: Sequence[Embedding], group: int) -> Any:
    """See `Images.patches`."""
    rows = _grid(xp, images, places, group)
    n, _, count, channels, length = rows.shape
    return xp.reshape(xp.permute_dims(rows, (1, 3, 2, 0, 4)), (group, channels * count, n * length))


def images_of_patches(xp: Any, P: Any, places: Sequence[Embedding], shape: Sequence[int]) -> Any:
    """The sums of `Images.add_patches`, without a total or B."""
    n, channels, *size = shape
    total = xp.zeros(tuple(shape), dtype=P.dtype, device=device(P))
    each = xp.reshape(P, (channels, len(places), n, *places[0].grid))
    for k, place in enumerate(places):
        part = xp.permute_dims(each[:, k, ...], (1, 0, *range(2, len(shape))))[(..., *place.kept(size))]
        if 0 in part.shape:
            continue
        spread = interleaved(xp, {(0,) * len(size): part}, place.steps)
        sizes = zip(size, place.first, spread.shape[2:], strict=True)
        total = total + padded(xp, spread, place.first, [s - f - own for s, f, own in sizes])
    return total


def _sums(xp: Any, rows: Any, grid: Sequence[int], weights: Any, part: PlacedSums) -> Any:
    """The sums of one part, (n, group * I, *crop.size)."""
    (n, group), crop = rows.shape[:2], part.crop
    total = None
    for k, (layer, shift) in enumerate(part.taps):
        for j in range(rows.shape[3]):
            shifted = rows[:, :, layer, j, None, shift : shift + crop.length]
            term = weights[None, :, :, j, k, None] * shifted
            total = term if total is None else total + term
    whole = xp.reshape(total, (n, group * weights.shape[1], -1, *grid[1:]))
    sizes = zip(crop.begin, crop.size, whole.shape[2:], strict=True)
    whole = whole[(..., *(slice(b, min(b + size, have)) for b, size, have in sizes))]
    behind = [size - have for size, have in zip(crop.size, whole.shape[2:], strict=True)]
    return padded(xp, whole, (0,) * len(behind), behind)


def _weave(xp: Any, phases: Mapping[tuple[int, ...], Any], steps: Sequence[int], size: Sequence[int]) -> Any:
    """Phases of unequal sizes as one array."""
    large, equal = [-(-s // step) for s, step in zip(size, steps, strict=True)], {}
    for first, part in phases.items():
        behind = [b - s for b, s in zip(large, part.shape[2:], strict=True)]
        equal[first] = padded(xp, part, (0,) * len(large), behind)
    return interleaved(xp, equal, steps)[(..., *(slice(0, s) for s in size))]


def _grid(xp: Any, images: Any, places: Sequence[Embedding], group: int) -> Any:
    """Images in flat grids, (n, group, places, channels / group, lead + elements)."""
    layers = []
    for place in places:
        taken = images[(..., *place.taken)]
        sizes = zip(place.grid, place.before, taken.shape[2:], strict=True)
        whole = padded(xp, taken, place.before, [large - b - size for large, b, size in sizes])
        n, channels = images.shape[:2]
        whole = xp.reshape(whole, (n, group, channels // group, prod(place.grid)))
        layers.append(padded(xp, whole, (place.lead,), (0,)))
    return xp.stack(layers, axis=2)
