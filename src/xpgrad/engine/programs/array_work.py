"""Instructions for loops over whole arrays: elements, rows, and whatever else is compiled to such a loop.

Needs no numba itself; the loops are those of `compiled.arrays`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from xpgrad.engine.compiled.records import ArraysHead, length
from xpgrad.engine.process import sharing
from xpgrad.engine.process.team import Team
from xpgrad.engine.programs.program import Address, Block, Location, Work


class ArrayLoop(Work):
    """``loop(start, stop, *sizes, *arrays, *numbers)`` over 0 .. count, each part some of that.

    Parameters
    ----------
    function : int
        The address of the loop's ``part(data, number)``, see `compiled.arrays`.
    count, elements : int
        What is cut into parts, and how many elements there are in all.
    sizes : sequence of int
        What the loop takes first.
    arrays : sequence of Location
        Where each array is; its elements follow one another.
    numbers : sequence of float
        What it takes last.
    team
        The threads.
    """

    def __init__(
        self,
        function: int,
        count: int,
        elements: int,
        sizes: Sequence[int],
        arrays: Sequence[Location],
        numbers: Sequence[float],
        team: Team,
    ) -> None:
        parts = min(sharing.compiled_parts(elements, team, sharing.ARRAY), max(1, count))
        super().__init__(function, parts, team)
        self._cuts = sharing.cuts(count, parts)
        self._sizes, self._arrays = list(sizes), list(arrays)
        self._numbers = [struct.unpack("q", struct.pack("d", number))[0] for number in numbers]
        self._start = 0

    def blocks(self) -> list[Block]:
        """See Instruction."""
        return [place.block for place in self._arrays]

    def code(self, start: int, itemsize: int) -> list[Any]:
        """See Instruction: behind what the function takes stand the cuts and the numbers."""
        self._start = self.data_start(start)
        return super().code(start, itemsize)

    def data(self, itemsize: int) -> list[Any]:
        """See Work."""
        taken = [*self._sizes, *(place.address(itemsize) for place in self._arrays)]
        behind = self._start + length(ArraysHead) + len(taken)
        cuts, numbers = (Address(None, 8 * at) for at in (behind, behind + len(self._cuts)))
        return [*ArraysHead(cuts, numbers), *taken, *self._cuts, *self._numbers]
