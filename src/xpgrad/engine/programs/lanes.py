"""Lanes of a program, each of which may run in a thread: directions, or the gradients of a convolution."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xpgrad.engine.process import sharing
from xpgrad.engine.process.team import Team
from xpgrad.engine.programs.instructions import Block, Work
from xpgrad.engine.programs.schedule import Schedule

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft


def side_by_side(draft: Draft, team: Team) -> range:
    """The instructions of all lanes, if it pays to run each lane in a thread; else an empty range.

    It pays if the large works have one part each: time loops of few rows, without a team that shares their
    columns, and sums over small images.
    """
    count = len(draft.instructions)
    numbers = [k for k, lane in enumerate(draft.lanes) if lane is not None]
    none = range(count, count)
    if team.addresses is not None or team.size() < 2 or not numbers:
        return none
    together = range(numbers[0], numbers[-1] + 1)
    lanes = [list(lane) for _, lane in itertools.groupby(together, key=lambda k: draft.lanes[k])]
    works = [[draft.instructions[k] for k in lane] for lane in lanes]
    if len(lanes) != len({draft.lanes[k] for k in together}) or len(lanes) < 2:
        return none
    return together if all(map(_pays, works)) and _are_apart(draft, together, works) else none


def _pays(lane: Sequence[Work]) -> bool:
    large = [one for one in lane if one.multiplications]
    return all(one.parts == 1 for one in large) and sum(one.multiplications for one in large) >= sharing.LANE


def _are_apart(draft: Draft, together: range, lanes: Sequence[Sequence[Work]]) -> bool:
    """Whether no lane writes memory that another lane uses.

    Nobody writes the call's arrays, and only the schedule, which comes before the lanes, writes its tables.
    """
    read = {*draft.inputs}
    for number, one in enumerate(draft.instructions):
        if isinstance(one, Schedule):
            read |= {*one.blocks()}
            if number >= together.start:
                return False
    own = [{block for one in lane for block in one.blocks()} - read for lane in lanes]
    around = [set[Block]().union(*map(draft.around, blocks)) for blocks in own]
    return all(own[a].isdisjoint(around[b]) for a in range(len(lanes)) for b in range(len(lanes)) if a != b)
