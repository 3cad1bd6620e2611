"""Regions of a program in which each thread runs a share of the instructions: those of its images.

A thread with whole images, or with all work on a part of the kernels, reads only its own results. If each
instruction were divided, the other threads' results would come from the caches of their cores: slow where
cores have no cache in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.process import guard
from xpgrad.engine.process.team import Team
from xpgrad.engine.programs.code import ProgramCode
from xpgrad.engine.programs.instructions import Address, Work


class Share(NamedTuple):
    """The region of a program to which an instruction belongs, and the share in it, for one thread."""

    region: int
    number: int


class Region(NamedTuple):
    """The number of the first instruction of each share, and the number after the last instruction."""

    bounds: Sequence[int]

    @property
    def begin(self) -> int:
        """The number of the first instruction."""
        return self.bounds[0]

    @property
    def end(self) -> int:
        """The number after the last instruction."""
        return self.bounds[-1]

    def instructions(self) -> range:
        """The numbers of all instructions."""
        return range(self.begin, self.end)

    def append_head(self, code: ProgramCode, team: Team) -> int:
        """Append the instruction that runs the region in a team, for `settle` to complete; tell its place."""
        call = "execute_share(fields(data), part)"
        run = c_function("program_share", "programs.native_program", "int64 data, int64 part", call)
        start = len(code)
        bounds = start + Work.DATA + records.length(records.Shares)
        numbers = [Address(None, 0), Address(None, 8 * bounds), *self.bounds]
        code.append_work(Work("Shares", (), run, len(self.bounds) - 1, team, [], lambda _: numbers))
        return start

    def settle(self, code: ProgramCode, head: int, starts: Sequence[int]) -> None:
        """Write into the head where the shares begin, and a length that lets `execute` skip the region."""
        behind = head + code.numbers[head]
        ends = [behind, *(starts[number] for number in self.bounds[1:-1]), len(code)]
        code.numbers[behind - len(ends) : behind] = ends
        code.numbers[head] = len(code) - head


def regions_of(shares: Sequence[Share | None]) -> list[Region]:
    """The regions of instructions with these shares; none under a guard, which checks each instruction."""
    found: dict[int, dict[int, int]] = {}
    ends: dict[int, int] = {}
    if guard.on:
        return []
    for number, share in enumerate(shares):
        if share is not None:
            found.setdefault(share.region, {}).setdefault(share.number, number)
            ends[share.region] = number + 1
    return [Region([*firsts.values(), ends[region]]) for region, firsts in found.items() if len(firsts) > 1]
