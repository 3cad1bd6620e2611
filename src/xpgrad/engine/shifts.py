"""Where images are in a larger grid, flat in memory, so that a shift in any direction is one number."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Where images are in a grid; the rest of it is zero.

    Parameters
    ----------
    grid : tuple of int
        The grid's sizes.
    before : tuple of int
        Index of an image's first element in the grid; negative where the first elements are left out.
    lead : int
        Zeros before the whole grid.
    """

    grid: tuple[int, ...]
    before: tuple[int, ...]
    lead: int


class Crop(NamedTuple):
    """Which elements of a grid are wanted.

    Parameters
    ----------
    length : int
        How many elements of the flat grid are computed, whole rows of its first dimension.
    begin, size : tuple of int
        The first one wanted, and how many, in each dimension; those behind the grid are zero.
    """

    length: int
    begin: tuple[int, ...]
    size: tuple[int, ...]
