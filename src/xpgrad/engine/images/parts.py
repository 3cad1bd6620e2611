"""Parts of an axis, such as blocks of a batch: slices, and several slices of one size as one `Alike`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from xpgrad.engine.symbols import is_symbol, larger, smaller


class Alike:
    """Slices of one size, one after the other; their number may be a symbol, also for none.

    Work on the `first` is recorded, and repeated for the others. A sum begins with the `first`, and adds the
    others: then work on the `second` is recorded and repeated. Both are always the same objects, because a
    recorder knows a slice by its identity. `size` is given: a slice's end minus its start may be another
    symbol.
    """

    def __init__(self, first: slice, size: int, count: int) -> None:
        self.first, self.size, self.count = first, size, count
        self.second = self._slice(1)

    def _slice(self, number: int) -> slice:
        begin = self.first.start + number * self.size
        return slice(begin, begin + self.size)

    def each(self) -> list[slice]:
        """All slices; if their number is a symbol, this makes a condition."""
        return [self.first, *(self._slice(number) for number in range(1, int(self.count)))]


Part = slice | Alike


_Part = TypeVar("_Part", bound=Part)


class InTurn(list[_Part]):
    """Parts that all threads compute together, one after the other: memory is for one of them."""


def size_of(part: Part) -> int:
    """The number of elements."""
    return part.size * part.count if isinstance(part, Alike) else part.stop - part.start


def indices(part: Part) -> list[tuple[slice, int | None]]:
    """The slices of a part on which work is recorded, with their size if no axis ends within them."""
    return [(part.first, part.size), (part.second, part.size)] if isinstance(part, Alike) else [(part, None)]


def each_slice(parts: Iterable[Part]) -> list[slice]:
    """The slices of all parts."""
    found = [one for part in parts for one in (part.each() if isinstance(part, Alike) else [part])]
    return InTurn[slice](found) if isinstance(parts, InTurn) else found


def slices(count: int, at_once: int, start: int = 0) -> list[slice]:
    """Slices of `count` elements from a start on, `at_once` in each but the last."""
    at_once, end = larger(1, at_once), start + count
    begins = [start + number * at_once for number in range(-(-count // at_once))]
    return [slice(begin, smaller(end, begin + at_once)) for begin in begins]


def in_parts(count: int, parts: int) -> list[slice]:
    """At most so many slices of 0 .. count, all but the last of one size."""
    return slices(count, _even(count, parts))


def in_alike_parts(count: int, parts: int, start: int = 0, may_be_empty: bool = False) -> list[Part]:
    """The same from a start on; the number of slices is no condition.

    With `may_be_empty`, whether the last slice is smaller, or there are any slices, is no condition either.
    """
    if not (may_be_empty and is_symbol(count)) and not count:
        return []
    at_once = larger(1, _even(count, parts))
    full = count // at_once
    rest, behind = count - full * at_once, start + full * at_once
    found: list[Part] = [Alike(slice(start, start + at_once), at_once, full)]
    if may_be_empty and is_symbol(rest):
        # work on no images is recorded like work on some
        size = (count - 1) % at_once + 1
        found.append(Alike(slice(behind, behind + size), size, smaller(1, rest)))
    elif rest:
        found.append(slice(behind, behind + rest))
    return found


def _even(count: int, parts: int) -> int:
    return -(-count // larger(1, parts))


def images_at_once(count: int, size: int, room: int, most: int | None) -> int:
    """How many of `count` images with `size` elements fit into `room`: at least one, at most `most`."""
    return larger(1, smaller(room // larger(1, size), most or count))


def without_first(parts: Sequence[Part]) -> tuple[slice, list[Part]]:
    """The first slice, and the other parts."""
    first, *others = parts
    if not isinstance(first, Alike):
        return first, others
    if is_symbol(first.count) or first.count > 1:
        others.insert(0, Alike(first.second, first.size, first.count - 1))
    return first.first, others
