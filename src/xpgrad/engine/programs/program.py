"""A kernel's work as a list of instructions on memory, made once and run for every call of the same form.

A program is an array of 64-bit integers that compiled code walks through (`native_program`). Where an
instruction needs an address, the array holds a distance from the beginning of some memory; a run adds, in a
copy of it, where that memory is: the call's arrays, fresh ones for the results, and one arena for all that
lies between, in which memory that is used one after the other shares its place.
"""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.machine import Machine, TimeLoop
from xpgrad.engine.compiled.products.matrix import plan
from xpgrad.engine.compiled.records import Factor
from xpgrad.engine.process import sharing
from xpgrad.engine.process.blas import PackedGemm
from xpgrad.engine.process.memory import LINE, address_of, keep_arena, name_of, take_arena
from xpgrad.engine.process.team import Team

_KIND = records.positions(records.Kind)
_SHARED_AT = records.positions(records.Work).shared.function

Fresh = Callable[[tuple[int, ...], Any], tuple[Any, int]]
"""Makes memory for a result by shape and dtype: an array of the caller's kind, and its address."""


class Block:
    """Memory that is used as a whole: an array of the caller, a result or something between.

    Parameters
    ----------
    size : int
        How many elements it has.
    """

    def __init__(self, size: int) -> None:
        self.size = size


class Quantity(NamedTuple):
    """An integer that a call's lengths decide: its number in a Schedule's table, and the largest value."""

    number: int
    most: int


class Additions(Enum):
    """In a program's integers: where its table of quantities to be added stands, and how many there are."""

    WHERE = 0
    COUNT = 1


HOST = Block(0)
"""Where a host that runs programs itself stands: its HostWords."""


class Address(NamedTuple):
    """A place in memory: bytes from the beginning of a block; None is the program's own array.

    A quantity adds its value times `unit` bytes.
    """

    block: Block | None
    bytes: int
    quantity: Quantity | None = None
    unit: int = 0


class Location(NamedTuple):
    """An operand: its first element, and its strides, in elements.

    A quantity moves the first element by its value times `unit` elements.
    """

    block: Block
    offset: int
    strides: Sequence[int]
    quantity: Quantity | None = None
    unit: int = 0

    def address(self, itemsize: int) -> Address:
        """Of the first element."""
        return Address(self.block, self.offset * itemsize, self.quantity, self.unit * itemsize)


class Form(NamedTuple):
    """What a program depends on, of a call's arrays and of the machine.

    `layouts` holds each array's shape and strides, in elements; `threads` what runs it and in how many.
    """

    dtype: np.dtype
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    machine: Machine
    threads: tuple[Team, int]


class Look(NamedTuple):
    """What one look at a call's arrays shows: all that a program needs to run on them.

    Parameters
    ----------
    form : Form
        Calls with equal forms share a program.
    addresses : list of int
        Where the arrays are; each run needs a list of its own.
    fresh : callable
        Makes memory for results.
    """

    form: Form
    addresses: list[int]
    fresh: Fresh


class Instruction(ABC):
    """One of a program's instructions.

    Attributes
    ----------
    kind : int
        One of `records.Kind`.
    """

    kind: int

    @abstractmethod
    def blocks(self) -> list[Block]:
        """The memory that it reads or writes."""

    @abstractmethod
    def code(self, start: int, itemsize: int) -> list[Any]:
        """Its integers and addresses; `start` is where it will stand in the program's array."""


class BlasMultiply(Instruction):
    """A matrix product by BLAS, C = A B or C += A B; each factor is contiguous by rows or by columns."""

    kind = _KIND.blas_product

    def __init__(self, sizes: Sequence[int | Quantity], places: Sequence[Location], add: bool) -> None:
        self._sizes, self._places, self._add = sizes, places, add

    def blocks(self) -> list[Block]:
        """See Instruction."""
        return [place.block for place in self._places]

    def code(self, start: int, itemsize: int) -> list[Any]:
        """See Instruction."""
        m, n, k = self._sizes
        c, a, b = (place.address(itemsize) for place in self._places)
        (c_length, _), *factors = (place.strides for place in self._places)
        (a_form, a_length), (b_form, b_length) = (
            (ord("N"), rows) if columns == 1 else (ord("T"), columns) for rows, columns in factors
        )
        record = records.BlasProduct(
            m, n, k, a_form, a, a_length, b_form, b, b_length, int(self._add), c, c_length
        )
        return [self.kind, *record]


class BlasPack(Instruction):
    """A weight (k, n) into the form in which BLAS's product takes it."""

    kind = _KIND.blas_packing

    def __init__(
        self,
        functions: PackedGemm,
        shape: tuple[int, ...],
        by_columns: bool,
        source: tuple[Block, int],
        target: Block,
    ) -> None:
        self._function, self._shape, self._by_columns = functions.pack, shape, by_columns
        self._source, self._target = source, target

    def blocks(self) -> list[Block]:
        """See Instruction."""
        return [self._source[0], self._target]

    def code(self, start: int, itemsize: int) -> list[Any]:
        """See Instruction."""
        k, n = self._shape
        block, offset = self._source
        form, length = (ord("T"), k) if self._by_columns else (ord("N"), n)
        source, target = Address(block, offset * itemsize), Address(self._target, 0)
        return [self.kind, *records.BlasPacking(self._function, form, n, k, source, length, target)]


class Work(Instruction):
    """A compiled ``function(data, part)``, run in one part or in several, a thread each."""

    kind = _KIND.work
    _BEFORE_DATA = 1 + records.length(records.Work)  # its kind stands in front

    def __init__(self, function: int, parts: int, team: Team) -> None:
        self._function, self._parts, self._team = function, parts, team

    @abstractmethod
    def data(self, itemsize: int) -> list[Any]:
        """The integers and addresses that the function takes."""

    def code(self, start: int, itemsize: int) -> list[Any]:
        """See Instruction."""
        data = Address(None, 8 * self.data_start(start))
        for_team = (self._team.addresses or (0, 0, 0))[1:]
        shared = records.SharedWork(self._function, data, self._parts, *for_team)
        record = records.Work(Address(None, 8 * (start + 1 + _SHARED_AT)), shared)
        return [self.kind, *records.flat(record), *self.data(itemsize)]

    def data_start(self, start: int) -> int:
        """Where, in the program's array, the integers begin that the function takes."""
        return start + self._BEFORE_DATA

    def is_native(self) -> bool:
        """Whether compiled code can start it, without Python's help for its threads."""
        return self._parts == 1 or self._team.addresses is not None

    def run(self, data: np.ndarray) -> None:
        """Run it with Python's help, on the integers that its function takes."""
        self._team.run(self._function, data.ctypes.data, self._parts)


class Multiply(Work):
    """A matrix product of our own, C = A B or C += A B; each factor is contiguous by rows or by columns.

    Parameters
    ----------
    sizes : sequence of int or Quantity
        Rows and columns of C, and how many elements a sum has.
    places : sequence of Location
        Of C, A and B.
    add : bool
        Whether to add to C.
    team, dtype
        The threads, and the arrays' dtype.
    """

    def __init__(
        self,
        sizes: Sequence[int | Quantity],
        places: Sequence[Location],
        add: bool,
        team: Team,
        dtype: np.dtype,
    ) -> None:
        m, n, k = map(most, sizes)
        self._plan = plan(name_of(dtype), (m, n, k), team.size(), team.grain)
        super().__init__(self._plan.functions.multiply, self._plan.parts, team)
        self._sizes, self._places, self._add = sizes, places, add
        self._memory = Block(-(-self._parts * self._plan.bytes // dtype.itemsize))

    def blocks(self) -> list[Block]:
        """See Instruction."""
        return [*(place.block for place in self._places), self._memory]

    def data(self, itemsize: int) -> list[Any]:
        """See Work."""
        c, a, b = (Factor(place.address(itemsize), *place.strides) for place in self._places)
        return self._plan.data(self._sizes, c, a, b, self._add, Address(self._memory, 0))


class Pack(Instruction):
    """A weight (k, n) into panels, for products of our own."""

    kind = _KIND.packing

    def __init__(
        self, function: int, shape: tuple[int, ...], strides: Sequence[int], source: Location, target: Block
    ) -> None:
        self._function, self._shape, self._strides = function, shape, strides
        self._source, self._target = source, target

    def blocks(self) -> list[Block]:
        """See Instruction."""
        return [self._source.block, self._target]

    def code(self, start: int, itemsize: int) -> list[Any]:
        """See Instruction."""
        row, column = self._strides
        k, n = self._shape
        source, target = self._source.address(itemsize), Address(self._target, 0)
        return [self.kind, *records.Packing(self._function, source, row, column, k, n, target)]


class Arithmetic(Work):
    """Zero, a copy, sum, product, root, or sums over rows: of arrays of one shape, in parts of columns.

    The result of sums over rows has no strides but along the columns.
    """

    AXES = 3

    def __init__(
        self, kind: str, shape: Sequence[int | Quantity], places: Sequence[Location], team: Team, dtype: str
    ) -> None:
        from xpgrad.engine.programs.entry_points import compiled_arithmetic

        super().__init__(compiled_arithmetic(dtype), parts_for(prod(map(most, shape)), team), team)
        self._kind, self._shape, self._places = kind, shape, places

    def blocks(self) -> list[Block]:
        """See Instruction."""
        return [place.block for place in self._places]

    def data(self, itemsize: int) -> list[Any]:
        """See Work."""
        places = []
        for place in self._places:
            # without axes, the last one has the stride of a vector of one element
            outer, row, column = [0, 0, 0, *(place.strides or [1])][-self.AXES :]
            places.append(records.Strided(place.address(itemsize), outer, row, column))
        places += [records.Strided(0, 0, 0, 1)] * (3 - len(places))  # contiguous, as far as that matters
        planes, rows, columns = [1, 1, 1, *self._shape][-self.AXES :]
        target, first, second = places
        return records.flat(
            records.Arithmetic(
                kind=records.ArithmeticKind._fields.index(self._kind),
                parts=self._parts,
                planes=planes,
                rows=rows,
                columns=columns,
                target=target,
                first=first,
                second=second,
            )
        )


class Loop(Work):
    """A compiled time loop."""

    def __init__(self, loop: TimeLoop, machine: Machine) -> None:
        super().__init__(loop.function, loop.parts, machine.team)
        self.loop, self._machine = loop, machine

    def blocks(self) -> list[Block]:
        """See Instruction."""
        tables = [value.block for value in self.loop.head if isinstance(value, Address)]
        return [*tables, *(memory.block for memory, _ in self.loop.matrices)]

    def data(self, itemsize: int) -> list[Any]:
        """See Work."""
        head: list[Any] = [*self.loop.head]
        for memory, matrix in self.loop.matrices:
            rows, columns = matrix.shape
            line = matrix.strides[0] if rows > 1 else columns
            head += records.Rows(memory.place.address(itemsize), rows, columns, line)
        return head

    def is_native(self) -> bool:
        """See Work: Python also holds back the threads of a BLAS that has its own."""
        return super().is_native() and (self._parts == 1 or not (self.loop.blas and self.loop.blas.has_pool))

    def run(self, data: np.ndarray) -> None:
        """See Work."""
        self._machine.run_loop(self.loop, data)


class Program:
    """Instructions and the memory on which they work.

    Parameters
    ----------
    machine : Machine
        On whose threads and BLAS it runs.
    dtype : dtype
        Of all arrays.
    inputs : int
        How many arrays a call has.
    """

    def __init__(self, machine: Machine, dtype: Any, inputs: int) -> None:
        self._machine, self._dtype, self._name = machine, dtype, name_of(dtype)
        self.inputs = [Block(0) for _ in range(inputs)]
        self._inside: dict[Block, tuple[Block, int]] = {}
        self._instructions: list[Instruction] = []

    # --- writing it

    def place(self, block: Block, whole: Block, start: int) -> bool:
        """Let a block's memory be a part of a larger one's, where it is free to be; tell whether it was."""
        if block in self.inputs or block in self._inside:
            return False
        self._inside[block] = (whole, start)
        return True

    def is_placed(self, block: Block) -> bool:
        """Whether the block is a part of another one."""
        return block in self._inside

    def _whole(self, block: Block) -> tuple[Block, int]:
        """The block that is no part of another, and where in it this one begins, in elements."""
        start = 0
        while block in self._inside:
            block, distance = self._inside[block]
            start += distance
        return block, start

    def add(self, instruction: Instruction) -> None:
        """Write down the next instruction."""
        self._instructions.append(instruction)

    def finish(self, outputs: Sequence[tuple[Block, tuple[int, ...]] | None]) -> None:
        """Settle where everything is; of the outputs the memory and the shape, None for none."""
        from xpgrad.engine.compiled.share import compiled_share

        self._shapes = [None if output is None else output[1] for output in outputs]
        results = [output[0] for output in outputs if output is not None]
        number_of = {block: number for number, block in enumerate([*self.inputs, *results])}
        number_of[HOST] = len(number_of) + 2
        addresses = self._machine.team.addresses or (0, 0, 0)
        blas = self._machine.blas
        gemm = 0 if blas is None else blas.gemm[self._name]
        code: list[Any] = [*records.ProgramHead(gemm, addresses[0], compiled_share())]
        self._parts: list[tuple[int, int, Work | None]] = []
        begin = len(code)
        for instruction in self._instructions:
            start = len(code)
            body = instruction.code(start + 1, self._dtype.itemsize)
            code += [len(body) + 1, *body]
            if isinstance(instruction, Work) and not instruction.is_native():
                self._parts += [(begin, start, None), (instruction.data_start(start + 1), start, instruction)]
                begin = len(code)
        self._parts.append((begin, len(code), None))
        self._parts = [part for part in self._parts if part[2] is not None or part[0] < part[1]]

        self._code, self._where, self._memory = self._relocatable(code, number_of)
        self._spare = list[tuple[np.ndarray, int]]()
        self._links = np.stack([self._where, self._memory, self._code[self._where]])
        self._linking = address_of(self._links), len(self._where)
        self._loops = [i.loop for i in self._instructions if isinstance(i, Loop)]  # whose arrays are needed
        self._link = _linker(self._name)
        # Compiled code does the first instructions with the same call that adds the addresses.
        first = self._parts.pop(0) if self._parts and self._parts[0][2] is None else (0, 0, None)
        self._first = first[:2]
        del self._instructions

    def _relocatable(
        self, code: list[Any], number_of: Mapping[Block, int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The program as integers; where among them distances stand, and from the beginning of which memory.

        Behind the memories of inputs and results come the arena, the program's own array, and a host.
        """
        arena, own = number_of[HOST] - 2, number_of[HOST] - 1
        begins, self._arena_bytes = self._arrange(number_of)
        where, memory = [], []
        for place, value in _addresses(code):
            if value.block is None:
                number, distance = own, value.bytes
            else:
                block, first = self._whole(value.block)
                distance = value.bytes + first * self._dtype.itemsize
                number = number_of.get(block, arena)
                distance += begins.get(block, 0)
            code[place] = distance
            where.append(place)
            memory.append(number)
        return (
            np.asarray(code, dtype=np.int64),
            np.asarray(where, dtype=np.intp),
            np.asarray(memory, dtype=np.intp),
        )

    def _arrange(self, elsewhere: Mapping[Block, int]) -> tuple[dict[Block, int], int]:
        """Where in the arena each memory begins, and the arena's size: first fit, by first and last use."""
        uses: dict[Block, list[int]] = {}
        for number, instruction in enumerate(self._instructions):
            for part in instruction.blocks():
                block, _ = self._whole(part)
                if block not in elsewhere:
                    uses.setdefault(block, []).append(number)
        placed: list[tuple[int, int, int]] = []  # first byte, behind the last byte, last use
        begins: dict[Block, int] = {}
        for block, numbers in sorted(uses.items(), key=lambda item: item[1][0]):
            size = -(-block.size * self._dtype.itemsize // LINE) * LINE
            busy = sorted(one for one in placed if one[2] >= numbers[0])
            begin = 0
            for first, behind, _ in busy:
                if begin + size <= first:
                    break
                begin = max(begin, behind)
            begins[block] = begin
            placed.append((begin, begin + size, numbers[-1]))
        return begins, max((behind for _, behind, _ in placed), default=0)

    # --- running it

    def relocatable(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """The code, where in it distances stand, from which memory each, and the bytes of the arena.

        The memories are those of inputs and results, the arena, the code, and a host's.
        """
        return self._code, self._where, self._memory, self._arena_bytes

    @property
    def extent(self) -> tuple[int, int]:
        """Where the instructions begin and end."""
        parts = [self._first] if self._first[1] else []
        parts += [part[:2] for part in self._parts]
        return (parts[0][0], parts[-1][1]) if parts else (0, 0)

    @property
    def executor(self) -> int:
        """The address of what walks through instructions, ``(code, begin, end)``."""
        from xpgrad.engine.programs.entry_points import compiled_executor

        return compiled_executor(self._name)

    def run(self, addresses: list[int], fresh: Fresh) -> list[Any]:
        """The results, for the call's arrays at these addresses."""
        if len(addresses) != len(self.inputs):  # compiled code would read behind them
            raise ValueError(f"a program of {len(self.inputs)} arrays was given {len(addresses)}")
        results: list[Any] = []
        for shape in self._shapes:
            if shape is None:
                results.append(None)
                continue
            result, address = fresh(shape, self._dtype)
            results.append(result)
            addresses.append(address)
        arena = take_arena(self._arena_bytes)
        try:  # a copy of the code for each run that is under way
            code, own = self._spare.pop()
        except IndexError:
            code = self._code.copy()
            own = address_of(code)
        addresses += [arena[1], own]
        held = array("q", addresses)  # until it was read
        self._link(own, *self._first, *self._linking, held.buffer_info()[0])
        for begin, end, work in self._parts:
            if work is None:
                _executor(self._name)(own, begin, end)
            else:
                work.run(code[begin:])
        # Both are given back when nothing can write to them any more, and never after an exception.
        self._spare.append((code, own))
        keep_arena(arena)
        return results


def _addresses(code: list[Any]) -> list[tuple[int, Address]]:
    """The addresses in a program's integers, by their places.

    The table of additions follows the instructions, and the Schedule gets its address. An addition has four
    integers: the place, the quantity, its factor, and whether to keep what stood there.
    """
    # Most of a program are plain integers: one look at each is most of what this takes.
    others = [(place, value) for place, value in enumerate(code) if value.__class__ is not int]
    addresses: list[tuple[int, Address]] = []
    additions: list[int] = []
    asked: list[tuple[int, Additions]] = []
    for place, value in others:
        if isinstance(value, Address):
            addresses.append((place, value))
            if value.quantity is not None:
                additions += [place, value.quantity.number, value.unit, 1]
        elif isinstance(value, Quantity):
            additions += [place, value.number, 1, 0]
            code[place] = 0
        elif isinstance(value, Additions):
            asked.append((place, value))
    for place, what in asked:
        if what is Additions.WHERE:
            addresses.append((place, Address(None, 8 * len(code))))
        else:
            code[place] = len(additions) // 4
    code += additions
    return addresses


def most(size: int | Quantity) -> int:
    """The size, or the largest that it can be."""
    return size.most if isinstance(size, Quantity) else size


def parts_for(elements: int, team: Team) -> int:
    """Into how many parts to cut arithmetic on `elements` elements."""
    return sharing.compiled_parts(elements, team, sharing.COPY * team.grain)


@functools.cache
def _executor(dtype: str) -> Any:
    """``(code, begin, end)``, which walks through the instructions of a program's array."""
    from xpgrad.engine.programs.entry_points import compiled_executor

    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(compiled_executor(dtype))


@functools.cache
def _linker(dtype: str) -> Any:
    """``(code, begin, end, links, count, addresses)``, which adds addresses before it does the same."""
    from xpgrad.engine.programs.entry_points import compiled_linker

    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(compiled_linker(dtype))
