"""Places of images in a larger flat grid, in which a shift in any direction is one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Embedding(NamedTuple):
    """Which elements of images are where in a grid; the rest of the grid is zero.

    Parameters
    ----------
    grid : tuple of int
        The grid's sizes.
    before : tuple of int
        Index in the grid of the first element; negative if the first elements are left out.
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
