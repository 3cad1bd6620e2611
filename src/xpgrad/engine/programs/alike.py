"""Parts of work that are alike: the first one is recorded, and the others follow from it.

Parts that follow one another at equal distances are a `Repetition`: the same instructions run on other
addresses. Other parts are copies of the instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.records import RepetitionRecord, length
from xpgrad.engine.process import guard
from xpgrad.engine.process.team import Team
from xpgrad.engine.programs.code import ProgramCode
from xpgrad.engine.programs.instructions import Address, Block, OperandAddress, Work
from xpgrad.engine.programs.recorded import Recorded
from xpgrad.engine.programs.shares import Share

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft


@dataclass
class Repetition:
    """Instructions, from number `begin` on, that run `count` times, for parts at a `distance`.

    Each time needs its `own` memory, and no longer than this time.
    """

    begin: int
    instructions: Sequence[Work]
    own: Set[Block]
    distance: Any = None
    count: int = 1

    @property
    def end(self) -> int:
        """The number after the last instruction."""
        return self.begin + len(self.instructions)

    def append_head(self, code: ProgramCode, team: Team) -> int:
        """Append the instruction that runs them, for `settle` to complete; tell its place."""
        call = "repeat(fields(data))"
        run = c_function("program_repeat", "programs.native_program", "int64 data, int64 part", call)
        start, moves = len(code), len([*self._moves(code.itemsize)])
        record = RepetitionRecord(Address(None, 0), 0, 0, self.count, moves)
        numbers = [*record, *[0] * (2 * moves)]
        code.append_work(Work("Repeat", (), run, 1, team, [], lambda _: numbers))
        return start

    def settle(self, code: ProgramCode, head: int, starts: Sequence[int]) -> None:
        """Write into the head what moves, and a length that lets `execute` skip the instructions."""
        own, data = [head + code.numbers[head], *starts[self.begin + 1 : self.end]], head + Work.DATA
        code.numbers[head] = len(code) - head
        code.numbers[data + 1 : data + 3] = own[0], len(code)
        data += length(RepetitionRecord)
        for number, place, by in self._moves(code.itemsize):
            code.numbers[data : data + 2] = own[number] + place, by
            data += 2

    def _moves(self, itemsize: int) -> Iterator[tuple[int, int, int]]:
        """Which of the instructions has an address that moves, its place there, and by how many bytes."""
        for number, work in enumerate(self.instructions):
            for place, value in work.body().others:
                if value.__class__ is OperandAddress and (by := work.places[value.number].by_part):
                    yield number, place, by * self.distance * itemsize


class Pattern:
    """The instructions of a part that begins at `start` of the divided axis, up to ``complete(result)``."""

    def __init__(self, draft: Draft, start: int) -> None:
        self._draft, self._first, self._start = draft, start, start  # of the first and of the last part
        self._begin, self._known, self._placed = len(draft.instructions), Block(0).number, draft.placed()
        self._inner: list[Repetition] = []
        self._shares: list[Share | None] = []
        self._result: Any = None
        self._can_run_again = False

    def complete(self, result: Any) -> bool:
        """Whether the part can be repeated: plain work whose new memory stands alone."""
        draft, self._result = self._draft, result
        self._instructions = draft.instructions[self._begin :]
        self._inner = [one for one in draft.repetitions if one.begin >= self._begin]
        # of regions within the part; the part itself may be in a share, which has no regions within
        self._shares = [None if share == draft.share else share for share in draft.shares[self._begin :]]
        used = {block for one in self._instructions for block in one.blocks()}
        own = {block for block in used if block.number > self._known}
        self._last = Repetition(self._begin, self._instructions, own)
        # a guard checks each instruction, and Python may have to start an instruction's threads
        can = bool(self._instructions) and all(one.is_native() for one in self._instructions)
        plain = not self._inner and not any(self._shares)
        self._can_run_again = can and result is None and plain and not guard.on
        return all(type(one) is Work for one in self._instructions) and self._placed == draft.placed()

    def repeat(self, start: int) -> Any:
        """The same for a part that begins there, with memory like the first part's; return its result."""
        if self.runs_again(start - self._start):
            return None
        self._start = start
        draft, copies = self._draft, dict[Block, Block]()

        def own(block: Block) -> Block:
            if block.number <= self._known:
                return block
            if block not in copies:
                copies[block] = copy = Block(block.size)
                copy.zones = block.zones
            return copies[block]

        begin, distance, outer = len(draft.instructions), start - self._first, draft.share
        for one, share in zip(self._instructions, self._shares, strict=True):
            draft.share = Share(share.region + begin - self._begin, share.number) if share else outer
            draft.add(one.moved(distance, own))
        draft.share = outer
        for inner in self._inner:
            first = inner.begin - self._begin + begin
            works = draft.instructions[first : first + len(inner.instructions)]
            draft.repetitions.append(
                replace(inner, begin=first, instructions=works, own={*map(own, inner.own)})
            )
        self._last = Repetition(begin, draft.instructions[begin:], {*copies.values()})
        return _moved(self._result, distance, own)

    def runs_again(self, distance: int, count: int = 1) -> bool:
        """Whether the last part's instructions run so many times more, if nothing has followed them."""
        draft, last = self._draft, self._last
        if last.end != len(draft.instructions) or not self._can_run_again:
            return False
        if (draft.lanes[last.begin], draft.shares[last.begin]) != (draft.lane, draft.share):
            return False
        if last.distance is None:
            last.distance = distance
            draft.repetitions.append(last)
        if last.distance != distance:
            return False
        last.count += count
        self._start += count * distance
        return True


def _moved(result: Any, distance: int, own: Callable[[Block], Block]) -> Any:
    if isinstance(result, list):
        return [_moved(one, distance, own) for one in result]
    return result.moved(distance, own) if isinstance(result, Recorded) else result
