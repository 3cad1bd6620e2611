"""The arena of a program: one memory for everything between a call's arrays and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from xpgrad.engine.process import guard
from xpgrad.engine.process.memory import LINE
from xpgrad.engine.programs.instructions import Block
from xpgrad.engine.programs.shares import Share

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft


class _Life(NamedTuple):
    """The first and the last instruction that uses a block; its share, if only one share uses it."""

    first: int
    last: int
    share: Share | None

    def meets(self, other: _Life) -> bool:
        """Whether both blocks are needed at one time; `other` does not begin later."""
        if other.last >= self.first or self.share is None or other.share is None:
            return other.last >= self.first
        return self.share != other.share and self.share.region == other.share.region


def arranged(
    draft: Draft, elsewhere: Mapping[Block, int], itemsize: int, side_by_side: Sequence[range]
) -> tuple[dict[Block, int], int]:
    """Where in the arena each block begins, and the arena's size: first fit, by first and last use.

    Threads may run the instructions of each range at the same time.
    """
    placed: list[tuple[int, int, _Life]] = []  # first byte, behind the last byte
    begins: dict[Block, int] = {}
    lives = _lives(draft, elsewhere, side_by_side)
    for block, life in sorted(lives.items(), key=lambda item: item[1].first):
        size = -(-block.size * itemsize // LINE) * LINE + (2 * guard.RED if guard.on else 0)
        begin = 0
        for first, behind in sorted((low, high) for low, high, other in placed if life.meets(other)):
            if begin + size <= first:
                break
            begin = max(begin, behind)
        begins[block] = begin + guard.RED if guard.on else begin
        placed.append((begin, begin + size, life))
    return begins, max((behind for _, behind, _ in placed), default=0)


def _lives(draft: Draft, elsewhere: Mapping[Block, int], side_by_side: Sequence[range]) -> dict[Block, _Life]:
    """The life of each block of the arena; in a range it is the whole range, but for blocks of one share."""
    around = {number: together for together in side_by_side for number in together}
    lives: dict[Block, _Life] = {}
    for number, instruction in enumerate(draft.instructions):
        together = around.get(number, range(number, number + 1))
        share = draft.shares[number] if number in around else None
        for part in instruction.blocks():
            block = draft.whole(part).block
            if block in elsewhere:
                continue
            life = lives.get(block)
            if share is not None and (life is None or life.share == share):
                lives[block] = _Life(number if life is None else life.first, number, share)
                continue
            first = together[0] if life is None else min(life.first, together[0])
            if life is not None and life.share is not None:
                first = min(first, around[life.first][0])
                together = range(first, max(around[life.first][-1], together[-1]) + 1)
            lives[block] = _Life(first, together[-1], None)
    return lives
