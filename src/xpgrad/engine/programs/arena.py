"""The arena of a program: one memory for everything between a call's arrays and its results."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from xpgrad.engine.process import guard
from xpgrad.engine.process.memory import LINE
from xpgrad.engine.programs.instructions import Block
from xpgrad.engine.programs.shares import Share
from xpgrad.engine.symbols import larger

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft


@dataclass(slots=True)
class _Life:
    """The first and the last instruction that uses a block; its share, if only one share uses it."""

    first: int
    last: int
    share: Share | None


class _Place(NamedTuple):
    """Bytes of the arena, and the last instruction that uses them."""

    begin: int
    behind: int
    last: int


def arranged(
    draft: Draft, elsewhere: Container[Block], itemsize: int, side_by_side: Sequence[range]
) -> tuple[dict[Block, int], int]:
    """Where in the arena each block begins, and the arena's size: first fit, by first and last use.

    Threads may run the instructions of each range at the same time.
    """
    begins: dict[Block, int] = {}
    in_use: list[_Place] = []
    of_share: list[_Place] = []  # all that the share has used so far
    share: Share | None = None
    arena_bytes: Any = 0
    lives = _lives(draft, elsewhere, side_by_side)
    for block, life in sorted(lives.items(), key=lambda item: item[1].first):
        in_use = [place for place in in_use if place.last >= life.first]
        if life.share is not None and life.share != share:
            if share is not None and share.region == life.share.region:
                end = next(together[-1] for together in side_by_side if life.first in together)
                in_use += _joined(of_share, end)  # its thread may be anywhere in its instructions
            share, of_share = life.share, []
        size, begin = -(-block.size * itemsize // LINE) * LINE + (2 * guard.RED if guard.on else 0), 0
        for place in sorted(in_use):
            if begin + size <= place.begin:
                break
            begin = max(begin, place.behind)
        begins[block] = begin + guard.RED if guard.on else begin
        in_use.append(_Place(begin, begin + size, life.last))
        if life.share is not None:
            of_share.append(in_use[-1])
        arena_bytes = larger(arena_bytes, begin + size)
    return begins, arena_bytes


def _joined(places: Sequence[_Place], last: int) -> list[_Place]:
    """The bytes of all places, in use up to an instruction."""
    joined: list[_Place] = []
    for begin, behind, _ in sorted(places):
        if joined and begin <= joined[-1].behind:
            begin, behind = joined[-1].begin, max(behind, joined.pop().behind)
        joined.append(_Place(begin, behind, last))
    return joined


def _lives(draft: Draft, elsewhere: Container[Block], side_by_side: Sequence[range]) -> dict[Block, _Life]:
    """The life of each block of the arena; in a range it is the whole range, but for blocks of one share."""
    around = {number: together for together in side_by_side for number in together}
    again = {number: one for one in draft.repetitions for number in range(one.begin, one.end)}
    lives: dict[Block, _Life] = {}
    for number, instruction in enumerate(draft.instructions):
        together, repetition = around.get(number), again.get(number)
        share = None if together is None else draft.shares[number]
        for part in instruction.blocks():
            block = draft.outermost(part)
            if block in elsewhere:
                continue
            first = last = number
            if repetition is not None and part not in repetition.own:
                first, last = repetition.begin, repetition.end - 1
            begin, end = (first, last) if together is None else (together[0], together[-1])
            life = lives.get(block)
            if life is None:
                lives[block] = _Life(begin, end, None) if share is None else _Life(first, last, share)
            elif life.share is None:
                life.first, life.last = min(life.first, begin), max(life.last, end)
            elif life.share == share:
                life.last = max(life.last, last)
            else:  # another share uses it too, or all threads do
                own = around[life.first]
                life.first, life.last, life.share = min(own[0], begin), max(own[-1], end), None
    return lives
