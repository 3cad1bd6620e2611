"""The integers of a program while it is written, and the places among them that wait for an address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xpgrad.engine.compiled import records
from xpgrad.engine.programs.instructions import (
    HOST,
    WAITING,
    Additions,
    Address,
    Block,
    OperandAddress,
    Quantity,
    Shift,
    Work,
)

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft


class ProgramCode:
    """A program's integers, `numbers`, for arrays of `itemsize` bytes an element.

    `links` are the addresses among them, which `settle` finds: each has its place, its block or None for the
    program's own integers, bytes from the beginning, and shifts in bytes. `quantities` are the sizes that a
    call decides, with their places.
    """

    def __init__(self, itemsize: int) -> None:
        self.itemsize = itemsize
        self.numbers: list[int] = []
        self.links: list[tuple[int, Block | None, int, Sequence[Shift]]] = []
        self.quantities: list[tuple[int, Quantity]] = []
        self._asked: list[tuple[int, Additions]] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def append(self, values: Iterable[Any]) -> None:
        """Append integers, addresses and quantities."""
        for value in values:
            is_known = value.__class__ not in WAITING
            self.numbers.append(value if is_known else 0)
            if not is_known:
                self._link(len(self.numbers) - 1, value)

    def append_work(self, work: Work) -> None:
        """Append an instruction."""
        begin, body, places = len(self.numbers), work.body(), work.places
        self.numbers += body.numbers
        for at, distance in body.own:
            self.links.append((begin + at, None, 8 * (begin + distance), ()))
        for at, value in body.others:
            if value.__class__ is OperandAddress:
                block, offset, _, shifts, _ = places[value.number]
                moved = [(quantity, unit * self.itemsize) for quantity, unit in shifts] if shifts else ()
                self.links.append((begin + at, block, offset * self.itemsize, moved))
            else:
                self._link(begin + at, value)

    def _link(self, place: int, value: Any) -> None:
        if isinstance(value, Address):
            self.links.append((place, value.block, value.bytes, value.shifts))
        elif isinstance(value, Quantity):
            self.quantities.append((place, value))
        else:
            self._asked.append((place, value))

    def settle(
        self, draft: Draft, outside: Sequence[Block], begins: Mapping[Block, int]
    ) -> tuple[list[int], list[int]]:
        """Write a distance for each address; return its places, and the numbers of the memories.

        These are the memories from outside, the arena, in which other blocks have their beginnings, the
        program's own integers, and a host. What a call adds to the integers follows them as a table, for the
        Schedule.
        """
        arena = len(outside)
        number_of = {block: number for number, block in enumerate(outside)} | {HOST: arena + 2}
        found: dict[Block | None, _BlockMemory] = {None: _BlockMemory(arena + 1, 0, ())}
        for _, block, *_ in self.links:
            if block not in found and block is not None:
                whole, start, shifts = draft.whole(block)
                begin = begins.get(whole, 0) + start * self.itemsize
                moves = [(quantity, unit * self.itemsize) for quantity, unit in shifts]
                found[block] = _BlockMemory(number_of.get(whole, arena), begin, moves)
        where, memory = [], []
        additions: list[int] = []
        for place, one in self.quantities:
            additions += records.Addition(place, one.number, one.factor, kept=0)
        for place, block, distance, shifts in self.links:
            number, begin, further = found[block]
            self.numbers[place] = begin + distance
            where.append(place)
            memory.append(number)
            for quantity, unit in (*shifts, *further):
                additions += records.Addition(place, quantity.number, quantity.factor * unit, kept=1)
        for place, what in self._asked:
            if what is Additions.WHERE:
                self.numbers[place] = 8 * len(self.numbers)
                where.append(place)
                memory.append(arena + 1)
            else:
                self.numbers[place] = len(additions) // records.length(records.Addition)
        self.numbers += additions
        return where, memory


class _BlockMemory(NamedTuple):
    """The number of a memory, the bytes before a block in it, and shifts of the block in bytes."""

    number: int
    begin: int
    shifts: Sequence[Shift]
