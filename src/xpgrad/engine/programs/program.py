"""A kernel's work as a list of instructions on memory, made once and run for every call of the same form.

A program is an array of 64-bit integers that compiled code walks through (`native_program`). For an address,
the array holds a distance from the beginning of some memory. Each run works on a copy of the array, and adds
the address of that memory: the call's arrays, new arrays for the results, and one arena for all temporary
arrays, in which arrays that are used at different times share their place.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.process import guard
from xpgrad.engine.process.memory import address_of, keep_arena, take_arena
from xpgrad.engine.process.team import Team, compiled_share
from xpgrad.engine.programs import guarded
from xpgrad.engine.programs.alike import Repetition
from xpgrad.engine.programs.arena import arranged
from xpgrad.engine.programs.code import ProgramCode
from xpgrad.engine.programs.instructions import HOST, Block, Quantity, Shift, Work
from xpgrad.engine.programs.lanes import side_by_side
from xpgrad.engine.programs.shares import Region, Share, regions_of
from xpgrad.engine.symbols import SizeSymbol, value_of

_GUARD_AT = records.positions(records.ProgramHead).guard
_STEPS_AT = records.positions(records.ProgramHead).steps

Fresh = Callable[[tuple[int, ...], Any], tuple[Any, int]]
"""Makes a result of a shape and dtype: an array of the caller's kind, and its address."""


class Form(NamedTuple):
    """The properties of a call's arrays and of the machine that a program depends on.

    `layouts` holds each array's shape and strides, in elements; for `threads` see `Machine.program_threads`.
    """

    dtype: np.dtype
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    machine: Machine
    threads: tuple[Team, int, bool]


class Look(NamedTuple):
    """Everything that a program needs to run on a call's arrays.

    Calls with equal forms share a program. `addresses` are the arrays' addresses; each run needs a list of
    its own. `fresh` makes results. `copies` are arrays that live as long as the call.
    """

    form: Form
    addresses: list[int]
    fresh: Fresh
    copies: Sequence[Any] = ()


class BlockOffset(NamedTuple):
    """A place in a block, in elements from its beginning; each shift moves it."""

    block: Block
    start: int
    shifts: Sequence[Shift]


class Stretch(NamedTuple):
    """Instructions from `begin` to `end` in the code.

    A work whose threads Python starts is a stretch of its own, with its `function` and number of `parts`; its
    integers begin at `data`.
    """

    begin: int
    end: int
    function: int = 0
    data: int = 0
    parts: int = 0


class Lanes(NamedTuple):
    """The stretches of several lanes; each lane runs in a thread of its own."""

    each: Sequence[Sequence[Stretch]]


class SymbolicParts(NamedTuple):
    """What of a program depends on symbols: the bytes of its arena, the results' sizes, `kept`, `numbers`.

    The numbers stand in the code, each with its place.
    """

    arena_bytes: Any
    sizes: Sequence[tuple[Any, ...] | None]
    kept: Sequence[Any]
    numbers: Sequence[tuple[int, Any]]


class Draft:
    """A program that is being recorded: its instructions, and which blocks are parts of other blocks.

    `lanes` and `shares` hold the lane of each instruction, an integer, and its share in a region, or None.
    New instructions get the current `lane` and `share`. Instructions of different lanes, or of different
    shares of one region, do not depend on one another. `repetitions` run several times.
    """

    def __init__(self) -> None:
        self.inputs: list[Block] = []
        self.instructions: list[Work] = []
        self.lane: int | None = None
        self.lanes: list[int | None] = []
        self.repetitions: list[Repetition] = []
        self.share: Share | None = None
        self.shares: list[Share | None] = []
        self.has_symbols = False
        self._inside: dict[Block, BlockOffset] = {}

    def new_input(self) -> Block:
        """Add and return the memory of the call's next array."""
        self.inputs.append(Block(0))
        return self.inputs[-1]

    def add(self, instruction: Work) -> None:
        """Add the next instruction."""
        self.instructions.append(instruction)
        self.lanes.append(self.lane)
        self.shares.append(self.share)

    def place(self, block: Block, where: BlockOffset) -> bool:
        """Make a block a part of a larger one; return False if it is an input, or already a part."""
        if block in self.inputs or block in self._inside:
            return False
        self._inside[block] = where
        return True

    def placed(self) -> int:
        """The number of blocks that are parts of others."""
        return len(self._inside)

    def around(self, block: Block) -> set[Block]:
        """The block, and all blocks of which it is a part."""
        blocks = {block}
        while block in self._inside:
            block = self._inside[block].block
            blocks.add(block)
        return blocks

    def outermost(self, block: Block) -> Block:
        """The outermost block that contains it."""
        while block in self._inside:
            block = self._inside[block].block
        return block

    def whole(self, block: Block) -> BlockOffset:
        """Where this block begins in the outermost block that contains it."""
        start, shifts = 0, list[Shift]()
        while block in self._inside:
            block, distance, further = self._inside[block]
            start += distance
            shifts += further
        return BlockOffset(block, start, shifts)


class Program:
    """Instructions, and the memory on which they work.

    `outputs` has the memory and the sizes of each result, or None. The program runs on the threads of
    `machine`; all arrays have the `dtype`. A run takes `count` arrays.

    The integers are `code`, with the instructions from `begin` to `end`. ``code[where[k]]`` is a distance
    from the beginning of memory number ``memory[k]``: the inputs, the results, the arena of `arena_bytes`
    bytes, the code itself, a host's words. `watch` is what a guard watches, or None.
    """

    def __init__(
        self,
        draft: Draft,
        outputs: Sequence[tuple[Block, tuple[int | Quantity, ...]] | None],
        machine: Machine,
        dtype: np.dtype,
    ) -> None:
        self._dtype, self._team = dtype, machine.team
        self.count = len(draft.inputs)
        sizes = [None if output is None else output[1] for output in outputs]
        self._sizes = tuple([None if one is None else tuple(map(value_of, one)) for one in sizes])
        self._steps, self._shapes = 0, self.shapes(0)
        results = [output[0] for output in outputs if output is not None]
        outside = [*draft.inputs, *results]
        self._together = side_by_side(draft, machine.team)
        regions = regions_of(draft.shares)
        code = self._written(draft, machine, outside, regions)
        self._kept = tuple([one.kept for one in draft.instructions if one.kept is not None])
        self._relocate(
            code, sizes, draft, outside, [self._together, *(one.instructions() for one in regions)]
        )
        self._prepare()
        self._link = _linker()

    def _prepare(self) -> None:
        """Prepare runs of the code."""
        self._spare = list[tuple[np.ndarray, int]]()
        self._links = np.array([self.where, self.memory, self.code[self.where]])
        self._link_table = address_of(self._links), len(self.where)

    def _written(
        self, draft: Draft, machine: Machine, outside: Sequence[Block], regions: Sequence[Region]
    ) -> ProgramCode:
        """The program's integers and addresses."""
        team, code = (machine.team.addresses or (0, 0, 0))[0], ProgramCode(self._dtype.itemsize)
        code.append(records.ProgramHead(team, compiled_share(), guard=0, steps=0))
        self.begin = len(code)
        starts: list[int] = []  # of the heads in front of an instruction, if it has any
        each: list[Stretch] = []
        parts: list[Region | Repetition] = [*regions, *draft.repetitions]  # repetitions are within regions
        opening: dict[int, list[Region | Repetition]] = {}
        for part in parts:
            opening.setdefault(part.begin, []).append(part)
        opened: list[tuple[Region | Repetition, int]] = []
        for number, instruction in enumerate(draft.instructions):
            begin = len(code)
            starts.append(begin)
            opened += [(part, part.append_head(code, machine.team)) for part in opening.get(number, [])]
            code.append_work(instruction)
            while opened and opened[-1][0].end == number + 1:
                part, head = opened.pop()
                part.settle(code, head, starts)
            one = Stretch(begin, len(code))
            if not instruction.is_native():  # it has no head
                data = begin + instruction.DATA
                one = Stretch(begin, len(code), instruction.function, data, int(instruction.parts))
            each.append(one)
        self.end = len(code)
        self._settle_order(each, draft.lanes)
        self.watch = None
        if guard.on:
            self.watch = guarded.Watch(draft, starts, code, {*outside, HOST})
            code.links.append((_GUARD_AT, None, 8 * self.watch.head, ()))
        return code

    def _settle_order(self, each: Sequence[Stretch], lanes: Sequence[int | None]) -> None:
        """Find the order of stretches and lanes.

        The compiled call that adds the addresses also runs `_first`, a stretch that needs no Python; `_rest`
        follows.
        """
        together = self._together
        before = _joined(each[: together.start])
        has_first = before and not before[0].function
        self._first = before.pop(0) if has_first else Stretch(self.begin, self.begin)
        rest: list[Stretch | Lanes] = [*before]
        if together:
            of_lane: dict[int | None, list[Stretch]] = {}
            for k in together:
                of_lane.setdefault(lanes[k], []).append(each[k])
            rest.append(Lanes([*map(_joined, of_lane.values())]))
        self._rest = (*rest, *_joined(each[together.stop :]))
        self._by_python = {one.begin: one for one in each if one.function}

    def _relocate(
        self, code: ProgramCode, sizes: Sequence[Any], draft: Draft, outside: Sequence[Block],
        together: Sequence[range],
    ) -> None:  # fmt: skip
        """Replace each address by a memory number and a distance into that memory.

        Threads may run the instructions of each range of `together` at one time.
        """
        begins, arena_bytes = arranged(draft, {*outside, HOST}, code.itemsize, together)
        where, memory = code.settle(draft, outside, begins)
        self.arena_bytes, numbers = value_of(arena_bytes), code.numbers
        self.symbolic: SymbolicParts | None = None
        if draft.has_symbols:
            found = [
                (place, number) for place, number in enumerate(numbers) if number.__class__ is SizeSymbol
            ]
            self.symbolic = SymbolicParts(arena_bytes, sizes, self._kept, found)
            self._kept = tuple(map(value_of, self._kept))
            numbers = [*map(value_of, numbers)]
        self.code, self.where, self.memory = (
            np.asarray(one, dtype=np.int64) for one in (numbers, where, memory)
        )

    def shapes(self, steps: int) -> Sequence[tuple[int, ...] | None]:
        """The shapes of the results of a call with this T; None for a missing result."""

        def number(size: int | Quantity) -> int:
            return size.factor * steps if isinstance(size, Quantity) else size

        return tuple([None if sizes is None else tuple(map(number, sizes)) for sizes in self._sizes])

    def of_sizes(
        self, arena_bytes: int, sizes: Sequence[tuple[int | Quantity, ...] | None], kept: tuple[Any, ...],
        places: np.ndarray, numbers: Sequence[int],
    ) -> Program:  # fmt: skip
        """The same instructions for calls of other sizes, with other numbers in these places of the code."""
        program = copy.copy(self)
        program.arena_bytes, program._kept, program.code = arena_bytes, kept, self.code.copy()
        program._sizes = tuple(sizes)
        program._shapes = program.shapes(0)
        program.code[places] = numbers
        program._prepare()
        return program

    def for_steps(self, steps: int) -> Program:
        """The same program for calls with this T, if calls with several T share it."""
        program = copy.copy(self)
        program._steps, program._shapes = steps, self.shapes(steps)
        return program

    def of_call(self) -> tuple[np.ndarray, Sequence[tuple[int, ...] | None]]:
        """A copy of the code for calls with this T, and the shapes of their results."""
        code = self.code.copy()
        code[_STEPS_AT] = self._steps
        return code, self._shapes

    def run(self, addresses: list[int], fresh: Fresh) -> list[Any]:
        """Return the results for the call's arrays at these addresses."""
        if len(addresses) != self.count:  # compiled code would read beyond the list
            raise ValueError(f"a program of {self.count} arrays was given {len(addresses)}")
        results: list[Any] = []
        for shape in self._shapes:
            if shape is None:
                results.append(None)
                continue
            result, address = fresh(shape, self._dtype)
            results.append(result)
            addresses.append(address)
        arena = take_arena(self.arena_bytes)
        try:  # each run that is under way has a copy of the code
            code, own = self._spare.pop()
        except IndexError:
            code = self.code.copy()
            own = address_of(code)
        code[_STEPS_AT] = self._steps
        addresses += [arena[1], own]
        held = array("q", addresses)  # alive until compiled code has read it
        if self.watch is not None:
            self._link(own, self.begin, self.begin, *self._link_table, held.buffer_info()[0])
            self._run_watched(self.watch, code, own)
        else:
            self._link(own, *self._first[:2], *self._link_table, held.buffer_info()[0])
            self._run(self._rest, own)
        # Both are given back when nothing can write to them any more, and never after an exception.
        self._spare.append((code, own))
        keep_arena(arena)
        return results

    def _run(self, stretches: Sequence[Stretch | Lanes], own: int) -> None:
        """Run stretches and lanes of the code at the address `own`."""
        for one in stretches:
            if isinstance(one, Lanes):
                self._team.map(lambda lane: self._run(lane, own), one.each)
            elif one.function:
                self._team.run(one.function, own + 8 * one.data, one.parts)
            else:
                self._link(own, one.begin, one.end, 0, 0, 0)

    def _run_watched(self, watch: guarded.Watch, code: np.ndarray, own: int) -> None:
        """Run each instruction on its own, under a guard."""
        for number, (begin, end) in enumerate(itertools.pairwise([*watch.starts, self.end])):
            guarded.watcher("before")(own, number)
            watch.raise_if_broken(code)
            self._run([self._by_python.get(begin, Stretch(begin, end))], own)
            guarded.watcher("after")(own, number)
            watch.raise_if_broken(code)


def _joined(each: Sequence[Stretch]) -> list[Stretch]:
    """Join consecutive stretches that need no Python."""
    stretches: list[Stretch] = []
    for one in each:
        if stretches and not (one.function or stretches[-1].function):
            stretches[-1] = Stretch(stretches[-1].begin, one.end)
        else:
            stretches.append(one)
    return stretches


@functools.cache
def _linker() -> Any:
    """`native_program.link_and_execute`."""
    names = ("code", "begin", "end", "links", "count", "addresses")
    call, arguments = f"link_and_execute({', '.join(names)})", ", ".join(f"int64 {name}" for name in names)
    address = c_function("linked_program", "programs.native_program", arguments, call)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(names))(address)
