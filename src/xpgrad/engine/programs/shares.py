"""Parts of a program that threads run side by side: each has a share of some independent items.

A thread whose share are whole images, or all that one part of the kernels needs, reads what it has written
itself. If it had a part of each instruction instead, the others' results would come from their cores' caches,
which are far where cores have no cache in common: a step of a convolution took 1.7 times as long on a machine
with two chips of cores (AMD EPYC, Zen 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.process import guard
from xpgrad.engine.process.team import Team
from xpgrad.engine.programs.instructions import Address, Work


class Share(NamedTuple):
    """To what an instruction belongs: the region of a program, and the share that one thread runs."""

    region: int
    number: int


class Region(NamedTuple):
    """Instructions that are shared: the number of each share's first one, and behind the last one."""

    bounds: Sequence[int]

    def instructions(self) -> range:
        """Their numbers."""
        return range(self.bounds[0], self.bounds[-1])

    def head(self, start: int, team: Team, itemsize: int) -> list[Any]:
        """The instruction that lets a team run them, as it stands in front; `settle` completes it."""
        call = "execute_share(fields(data), part)"
        run = c_function("program_share", "programs.native_program", "int64 data, int64 part", call)
        work = Work("Shares", (), run, len(self.bounds) - 1, team, [])
        bounds = work.data_start(start + 1) + 2
        return [0, *work.code(start + 1, itemsize), Address(None, 0), Address(None, 8 * bounds), *self.bounds]

    def settle(self, code: list[Any], head: int, starts: Sequence[int]) -> None:
        """Write where the shares begin in the code, and that the head is as long as all."""
        ends = [*(starts[number] for number in self.bounds[:-1]), len(code)]
        behind = starts[self.bounds[0]]
        code[behind - len(ends) : behind] = ends
        code[head] = len(code) - head


def regions_of(shares: Sequence[Share | None]) -> list[Region]:
    """The regions among the instructions with these shares; none under a guard, which looks at each one."""
    found: dict[int, dict[int, int]] = {}
    ends: dict[int, int] = {}
    if guard.on:
        return []
    for number, share in enumerate(shares):
        if share is not None:
            found.setdefault(share.region, {}).setdefault(share.number, number)
            ends[share.region] = number + 1
    return [Region([*firsts.values(), ends[region]]) for region, firsts in found.items() if len(firsts) > 1]
