"""The arena of a program: one memory for everything between a call's arrays and its results."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from xpgrad.engine.process import guard
from xpgrad.engine.process.memory import LINE
from xpgrad.engine.programs.instructions import Block
from xpgrad.engine.programs.shares import Share
from xpgrad.engine.symbols import larger, rounded_up, value_of

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft


@dataclass(slots=True)
class _Life:
    """The first and the last instruction that uses a block; its share, if only one share uses it."""

    first: int
    last: int
    share: Share | None


@dataclass(slots=True, eq=False)
class _Placed:
    """A block's place for the recorded sizes; `size`, in bytes, may be a symbol.

    `beside` are the blocks in use with it that were placed before.
    """

    block: Block
    size: Any
    begin: int
    behind: int
    beside: Sequence[_Placed]


class _Place(NamedTuple):
    """Bytes of the arena, the last instruction that uses them, and the blocks there."""

    begin: int
    behind: int
    last: int
    blocks: Sequence[_Placed]


def arranged(
    draft: Draft, elsewhere: Container[Block], itemsize: int, side_by_side: Sequence[range]
) -> tuple[dict[Block, int], int]:
    """Where in the arena each block begins, and the arena's size.

    Threads may run the instructions of each range at the same time.
    """
    placed = _first_fit(draft, elsewhere, itemsize, side_by_side)
    begins, arena_bytes = _for_all_sizes(placed) if draft.has_symbols else _for_recorded_sizes(placed)
    red = guard.RED if guard.on else 0
    return {block: begin + red for block, begin in begins.items()}, arena_bytes


def _first_fit(
    draft: Draft, elsewhere: Container[Block], itemsize: int, side_by_side: Sequence[range]
) -> list[_Placed]:
    """The blocks of the arena, placed first fit by their first and last use, for the recorded sizes."""
    placed: list[_Placed] = []
    in_use: list[_Place] = []
    of_share: list[_Place] = []  # all that the share has used so far
    share: Share | None = None
    lives = _lives(draft, elsewhere, side_by_side)
    for block, life in sorted(lives.items(), key=lambda item: item[1].first):
        in_use = [place for place in in_use if place.last >= life.first]
        if life.share is not None and life.share != share:
            if share is not None and share.region == life.share.region:
                end = next(together[-1] for together in side_by_side if life.first in together)
                in_use += _joined(of_share, end)  # its thread may be anywhere in its instructions
            share, of_share = life.share, []
        size, begin = rounded_up(block.size * itemsize, LINE) + (2 * guard.RED if guard.on else 0), 0
        recorded = value_of(size)
        for place in sorted(in_use, key=_first_byte):
            if begin + recorded <= place.begin:
                break
            begin = max(begin, place.behind)
        beside = [other for place in in_use for other in place.blocks]
        placed.append(_Placed(block, size, begin, begin + recorded, beside))
        in_use.append(_Place(begin, begin + recorded, life.last, placed[-1:]))
        if life.share is not None:
            of_share.append(in_use[-1])
    return placed


def _first_byte(place: _Place) -> tuple[int, int]:
    return place.begin, place.behind


def _joined(places: Sequence[_Place], last: int) -> list[_Place]:
    """The bytes of all places, in use up to an instruction."""
    joined: list[_Place] = []
    for begin, behind, _, blocks in sorted(places, key=_first_byte):
        if joined and begin <= joined[-1].behind:
            lower = joined.pop()
            begin, behind, blocks = lower.begin, max(behind, lower.behind), [*lower.blocks, *blocks]
        joined.append(_Place(begin, behind, last, blocks))
    return joined


def _for_recorded_sizes(placed: Sequence[_Placed]) -> tuple[dict[Block, int], int]:
    """Where each block begins, and the arena's size."""
    return {one.block: one.begin for one in placed}, max([one.behind for one in placed], default=0)


def _for_all_sizes(placed: Sequence[_Placed]) -> tuple[dict[Block, Any], Any]:
    """The same for other sizes too, without a condition.

    A block begins behind all blocks beside it that are below it for the recorded sizes.
    """
    ranked = sorted(placed, key=lambda one: (one.begin, one.behind))  # from below
    rank = {one.block: number for number, one in enumerate(ranked)}
    below = [0] * len(ranked)  # sets of blocks, as bits at their ranks
    for one in placed:
        for other in one.beside:
            low, high = sorted((rank[one.block], rank[other.block]))
            below[high] |= 1 << low
    ends: list[Any] = []
    up_to: list[int] = []  # of each block: itself, and all blocks from whose ends its begin follows

    def behind(blocks: int) -> Any:
        """The first byte behind all of these blocks."""
        found: list[Any] = []
        while blocks:
            highest = blocks.bit_length() - 1
            found.append(ends[highest])
            up_to[-1] |= up_to[highest]
            blocks &= ~up_to[highest]
        return larger(*found) if len(found) > 1 else (found or [0])[0]

    begins: dict[Block, Any] = {}
    for number, one in enumerate(ranked):
        up_to.append(1 << number)
        begins[one.block] = behind(below[number])
        ends.append(begins[one.block] + one.size)
    up_to.append(0)
    return begins, behind((1 << len(ranked)) - 1)


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
