"""The methods of `Images` that write results piece by piece into their memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from xpgrad.engine.images.methods import Images
from xpgrad.engine.images.padding import Index, kept_and_places, phase_places
from xpgrad.engine.images.parts import Part, each_slice, slices
from xpgrad.engine.symbols import larger, rounded_up

BLOCK_ELEMENTS = 5 << 18  # of the temporary arrays of a block of images, in each thread
BAND = 1 << 21  # elements of the temporary arrays of a band of columns


class InPlaceImages(Images, ABC):
    """Padding, assembling and interleaving for arrays that can be written to; subclasses write."""

    @abstractmethod
    def _zeros(self, shape: Sequence[int], like: Any) -> Any:
        """A new array of zeros."""

    @abstractmethod
    def _clear(self, target: Any) -> None:
        """Fill an array with zeros."""

    @abstractmethod
    def _write(self, target: Any, places: Index, part: Any) -> None:
        """Write a part, which may be empty or broadcast, into its places."""

    @abstractmethod
    def _is_in(self, part: Any, place: Any) -> bool:
        """Whether a part is in its place already."""

    @abstractmethod
    def _split_last(self, array: Any, sizes: Sequence[int]) -> Any:
        """A view of an array with several axes in the place of the last one."""

    def bands(self, count: int, size: int, multiple: int = 1, least: int = 0) -> list[slice]:
        """Bands of about equal size that fit the second-level cache."""
        at_once = -(-count // -(-count * size // larger(BAND, least)))
        return slices(count, rounded_up(at_once, multiple))

    def pad(self, array: Any, before: Sequence[int], behind: Sequence[int]) -> Any:
        """In one pass; a view if nothing is added."""
        first = array.ndim - len(before)
        sizes = [size + b + e for size, b, e in zip(array.shape[first:], before, behind, strict=True)]
        kept, places = kept_and_places(array.shape[first:], before, behind)
        array = array[kept]
        if max(*before, *behind) <= 0:
            return array
        whole = self._zeros((*array.shape[:first], *sizes), like=array)
        self._write(whole, places, array)
        return whole

    def assemble(
        self, function: Callable[[slice, Any], Any], parts: Sequence[Part], *, axis: int = 0,
        shape: Sequence[int] = (), like: Any = None, target: Any = None, memory: Any = None,
        alike: bool = False,
    ) -> Any:  # fmt: skip
        """Each part goes to its place, by `map`."""
        whole = target if target is not None else memory
        if whole is None:
            whole = self.room(shape, like)

        def fill(part: slice) -> None:
            place = whole[(*[slice(None)] * axis, part)]
            made = function(part, place)
            if not self._is_in(made, place):
                self._write(place, (...,), made)

        if alike:
            self.map_alike(fill, parts)
        else:
            self.map(fill, each_slice(parts))
        return whole

    def map_alike(self, function: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
        """`map` for parts that are alike, or sequences of them; see `assemble`."""
        return self.map(function, parts)

    def _sum_of_shares(
        self, function: Callable[[slice, list[Any] | None], list[Any]], shares: Sequence[Sequence[Part]]
    ) -> list[Any]:
        """The totals of `accumulate`, of all shares of the blocks; by `map`."""
        totals, *others = self.map_alike(lambda share: self._total(function, share), shares)
        for other in others:
            totals = [self.add(total, part, total) for total, part in zip(totals, other, strict=True)]
        return totals

    def _total(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[Part]
    ) -> list[Any]:
        """The totals of one share of the blocks."""
        return Images.accumulate(self, function, blocks)

    def spread(self, array: Any, size: Sequence[int], lead: int) -> Any:
        """In one pass; a view if nothing is added."""
        outer, inner = array.shape[: -len(size)], array.shape[-len(size) :]
        if not lead and inner == tuple(size):
            return self.xp.reshape(array, (*outer, prod(size)))
        whole = self._zeros((*outer, lead + prod(size)), like=array)
        grid = self._split_last(whole[..., lead:], size)
        self._write(grid, (..., *(slice(0, small) for small in inner)), array)
        return whole

    def interleave(
        self, parts: Mapping[tuple[int, ...], Any], steps: Sequence[int], begin: Sequence[int],
        size: Sequence[int], target: Any = None,
    ) -> Any:  # fmt: skip
        """Each part goes directly to its places."""
        some = next(iter(parts.values()))
        if target is None:
            target = self.room((*some.shape[: -len(size)], *size), like=some)
        each = zip(size, begin, some.shape[-len(size) :], steps, strict=True)
        if len(parts) < prod(steps) or any(s + b > large * step for s, b, large, step in each):
            self._clear(target)
        for phase, part in parts.items():
            places, kept = phase_places(phase, part.shape[-len(size) :], steps, begin, size)
            self._write(target, places, part[kept])
        return target
