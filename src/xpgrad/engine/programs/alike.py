"""Parts of work that are alike: the first one is recorded, the others are copies that begin elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xpgrad.engine.programs.instructions import Block, Work
from xpgrad.engine.programs.recorded import Recorded

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft


class Pattern:
    """The instructions of a part that begins at `start` of the divided axis, up to ``complete(result)``."""

    def __init__(self, draft: Draft, start: int) -> None:
        self._draft, self._start = draft, start
        self._begin, self._known, self._placed = len(draft.instructions), Block(0).number, draft.placed()
        self._result: Any = None
        self._instructions: list[Work] = []

    def complete(self, result: Any) -> bool:
        """Whether the part can be repeated: plain work whose new memory stands alone."""
        self._instructions, self._result = self._draft.instructions[self._begin :], result
        return all(type(one) is Work for one in self._instructions) and self._placed == self._draft.placed()

    def repeat(self, start: int) -> Any:
        """Write the same for a part that begins there, with new memory of its own; return its result."""
        blocks: dict[Block, Block] = {}

        def own(block: Block) -> Block:
            if block.number < self._known:
                return block
            if block not in blocks:
                blocks[block] = again = Block(block.size)
                again.zones = block.zones
            return blocks[block]

        distance = start - self._start
        for one in self._instructions:
            self._draft.add(one.moved(distance, own))
        return _moved(self._result, distance, own)


def _moved(result: Any, distance: int, own: Callable[[Block], Block]) -> Any:
    if isinstance(result, list):
        return [_moved(one, distance, own) for one in result]
    return result.moved(distance, own) if isinstance(result, Recorded) else result
