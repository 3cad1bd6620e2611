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
from xpgrad.engine.process.team import OneThread
from xpgrad.engine.programs.code import ProgramCode
from xpgrad.engine.programs.instructions import Address, Block, OperandAddress, Work
from xpgrad.engine.programs.recorded import Recorded

if TYPE_CHECKING:
    from xpgrad.engine.programs.program import Draft


@dataclass
class Repetition:
    """Instructions from number `begin` up to `end` that run `count` times, for parts so much apart.

    Each time needs its `own` memory, and no longer than this time.
    """

    begin: int
    end: int
    own: Set[Block]
    distance: int
    count: int

    def append_head(self, code: ProgramCode, instructions: Sequence[Work]) -> int:
        """Append the instruction that runs them, for `settle` to complete; tell its place."""
        call = "repeat(fields(data))"
        run = c_function("program_repeat", "programs.native_program", "int64 data, int64 part", call)
        start, moves = len(code), len([*self._moves(instructions, code)])
        record = RepetitionRecord(Address(None, 0), 0, 0, self.count, moves)
        numbers = [*record, *[0] * (2 * moves)]
        code.append_work(Work("Repeat", (), run, 1, OneThread(), [], lambda _: numbers))
        return start

    def settle(
        self, code: ProgramCode, head: int, starts: Sequence[int], instructions: Sequence[Work]
    ) -> None:
        """Write into the head what moves, and a length that lets `execute` skip the instructions."""
        data = head + Work.DATA
        code.numbers[head] = len(code) - head
        code.numbers[data + 1 : data + 3] = starts[self.begin], len(code)
        data += length(RepetitionRecord)
        for number, place, by in self._moves(instructions, code):
            code.numbers[data : data + 2] = starts[number] + place, by
            data += 2

    def _moves(self, instructions: Sequence[Work], code: ProgramCode) -> Iterator[tuple[int, int, int]]:
        """The number of an instruction, the place of an address in it, and by how many bytes it moves."""
        for number in range(self.begin, self.end):
            work = instructions[number]
            for place, value in work.body().others:
                if value.__class__ is OperandAddress and (by := work.places[value.number].by_part):
                    yield number, place, by * self.distance * code.itemsize


class Pattern:
    """The instructions of a part that begins at `start` of the divided axis, up to ``complete(result)``."""

    def __init__(self, draft: Draft, start: int) -> None:
        self._draft, self._first = draft, start
        self._begin, self._known, self._placed = len(draft.instructions), Block(0).number, draft.placed()
        self._instructions: list[Work] = []
        self._inner: list[Repetition] = []
        self._result: Any = None
        self._can_run_again = False
        # of the last part: where it begins, the number behind its instructions, its memory, how often it runs
        self._start, self._end, self._own = start, 0, set[Block]()
        self._repetition: Repetition | None = None

    def complete(self, result: Any) -> bool:
        """Whether the part can be repeated: plain work whose new memory stands alone."""
        draft = self._draft
        self._instructions, self._result = draft.instructions[self._begin :], result
        self._inner = [one for one in draft.repetitions if one.begin >= self._begin]
        used = {block for one in self._instructions for block in one.blocks()}
        self._own = {block for block in used if block.number > self._known}
        self._end = len(draft.instructions)
        # a guard checks each instruction, and Python may have to start an instruction's threads
        can = bool(self._instructions) and all(one.is_native() for one in self._instructions)
        self._can_run_again = can and result is None and not self._inner and not guard.on
        return all(type(one) is Work for one in self._instructions) and self._placed == draft.placed()

    def repeat(self, start: int) -> Any:
        """The same for a part that begins there, with memory like the first part's; return its result."""
        distance, self._start = start - self._start, start
        if self._runs_again(distance):
            return None
        draft, copies = self._draft, dict[Block, Block]()

        def own(block: Block) -> Block:
            if block.number <= self._known:
                return block
            if block not in copies:
                copies[block] = copy = Block(block.size)
                copy.zones = block.zones
            return copies[block]

        begin, distance = len(draft.instructions), start - self._first
        for one in self._instructions:
            draft.add(one.moved(distance, own))
        for inner in self._inner:
            first = inner.begin - self._begin + begin
            last, memory = first + inner.end - inner.begin, {*map(own, inner.own)}
            draft.repetitions.append(replace(inner, begin=first, end=last, own=memory))
        self._own, self._end, self._repetition = {*copies.values()}, len(draft.instructions), None
        return _moved(self._result, distance, own)

    def _runs_again(self, distance: int) -> bool:
        """Whether the last part's instructions run once more, if nothing has followed them."""
        draft, begin = self._draft, self._end - len(self._instructions)
        if self._end != len(draft.instructions) or not self._can_run_again:
            return False
        if (draft.lanes[begin], draft.shares[begin]) != (draft.lane, draft.share):
            return False
        if self._repetition is None:
            self._repetition = Repetition(begin, self._end, self._own, distance, 1)
            draft.repetitions.append(self._repetition)
        if self._repetition.distance != distance:
            return False
        self._repetition.count += 1
        return True


def _moved(result: Any, distance: int, own: Callable[[Block], Block]) -> Any:
    if isinstance(result, list):
        return [_moved(one, distance, own) for one in result]
    return result.moved(distance, own) if isinstance(result, Recorded) else result
