"""The instructions of a program: each says which memory it touches, and what compiled code reads of it.

An operand is a `Location` in a `Block` of memory. Where the block will be is settled when the program is
complete (`program`), so instructions write an `Address` for it. `native_program` runs what they write.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.machine import TimeLoop
from xpgrad.engine.compiled.products.matrix import Functions, compiled_stack_product, plan
from xpgrad.engine.compiled.records import Factor, Strided
from xpgrad.engine.formulas.formula import Elementwise, Product, Span
from xpgrad.engine.process import sharing
from xpgrad.engine.process.guard import Zone
from xpgrad.engine.process.memory import Workspaces, name_of
from xpgrad.engine.process.team import Team

_KIND = records.positions(records.Kind)
_ROWS_OF_SPAN = records.positions(Span).rows
_SHARED_AT = records.positions(records.WorkRecord).shared.function


class Block:
    """Memory that is used as a whole: an array of the caller, a result or something between.

    Parameters
    ----------
    size : int
        How many elements it has.

    Attributes
    ----------
    zones : list of Zone
        Bytes of it that nobody may touch.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.zones: list[Zone] = []

    @classmethod
    def of_workspaces(cls, workspaces: Workspaces, itemsize: int) -> Block:
        """Memory for the parts of some work."""
        block = cls(-(-workspaces.total // itemsize))
        block.zones = [*workspaces.zones()]
        return block


class CannotRecordError(Exception):
    """What is asked for has no instruction: the call runs without a program."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An integer that a call decides, by its lengths or its T; a product with an integer is one, too.

    `number` says which of a Schedule's table it is, `factor` times that; `most` is the largest value.
    """

    number: int
    most: int
    factor: int = 1

    def __mul__(self, other: int | Quantity) -> Quantity:
        if isinstance(other, Quantity):
            raise CannotRecordError("a product of two sizes that a call decides")
        return Quantity(self.number, self.most * other, self.factor * other)

    __rmul__ = __mul__


Shift = tuple[Quantity, int]
"""A distance that a call decides: the product of the two."""


class Additions(Enum):
    """In a program's integers: where its table of quantities to be added stands, and how many there are."""

    WHERE = 0
    COUNT = 1


Starter = Callable[[np.ndarray], None]
"""Runs a work on the integers that its function takes."""

HOST = Block(0)
"""Where a host that runs programs itself stands: its HostWords."""


class Address(NamedTuple):
    """A place in memory: bytes from the beginning of a block; None is the program's own array.

    Each shift adds so many bytes.
    """

    block: Block | None
    bytes: int
    shifts: Sequence[Shift] = ()


class Location(NamedTuple):
    """An operand: its first element, and its strides, in elements; each shift moves the first element."""

    block: Block
    offset: int = 0
    strides: Sequence[Any] = ()  # integers, and quantities where they depend on a call's T
    shifts: Sequence[Shift] = ()

    def address(self, itemsize: int) -> Address:
        """Of the first element."""
        shifts = [(quantity, unit * itemsize) for quantity, unit in self.shifts]
        return Address(self.block, self.offset * itemsize, shifts)

    def strided(self, itemsize: int) -> Strided:
        """The address and three strides; an axis that it lacks has none.

        Without axes, it is a vector of one element.
        """
        outer, row, column = [0, 0, 0, *(self.strides or [1])][-3:]
        return Strided(self.address(itemsize), outer, row, column)


def most(size: int | Quantity) -> int:
    """The size, or the largest that it can be."""
    return size.most if isinstance(size, Quantity) else size


def parts_for(elements: int, team: Team) -> int:
    """Into how many parts to cut arithmetic on `elements` elements."""
    return sharing.compiled_parts(elements, team, sharing.COPY * team.grain)


def three_strided(places: Sequence[Location], itemsize: int) -> list[Strided]:
    """The target and one or two sources; nothing reads a source that is not there."""
    found = [place.strided(itemsize) for place in places]
    return found + [Strided(0, 0, 0, 1)] * (3 - len(found))


class Instruction(ABC):
    """One of a program's instructions.

    Its `kind` is one of `records.Kind`; `places` is what it reads or writes, and a program needs what it has
    in `kept`.
    """

    kind: int
    kept: Any = None

    def __init__(self, places: Sequence[Location]) -> None:
        self.places = places

    def blocks(self) -> list[Block]:
        """The memory that it reads or writes."""
        return [place.block for place in self.places]

    @abstractmethod
    def code(self, start: int, itemsize: int) -> list[Any]:
        """Its integers and addresses; `start` is where it will stand in the program's array."""


class Work(Instruction):
    """A compiled ``function(data, part)``, run in one part or in several, a thread each.

    `multiplications` are its multiply-adds, where lanes are chosen by them; else 0.
    """

    kind = _KIND.work
    multiplications = 0
    _BEFORE_DATA = 1 + records.length(records.WorkRecord)  # its kind stands in front

    def __init__(self, function: int, parts: int, team: Team, places: Sequence[Location]) -> None:
        super().__init__(places)
        self._function, self._parts, self._team = function, parts, team

    @property
    def parts(self) -> int:
        """In how many parts it runs."""
        return self._parts

    @abstractmethod
    def data(self, start: int, itemsize: int) -> list[Any]:
        """The integers and addresses that the function takes; `start` is where they will stand."""

    def code(self, start: int, itemsize: int) -> list[Any]:
        """See Instruction."""
        begin = self.data_start(start)
        for_team = (self._team.addresses or (0, 0, 0))[1:]
        shared = records.SharedWork(self._function, Address(None, 8 * begin), self._parts, *for_team)
        record = records.WorkRecord(Address(None, 8 * (start + 1 + _SHARED_AT)), shared)
        return [self.kind, *records.flat(record), *self.data(begin, itemsize)]

    def data_start(self, start: int) -> int:
        """Where, in the program's array, the integers begin that the function takes."""
        return start + self._BEFORE_DATA

    def is_native(self) -> bool:
        """Whether compiled code can start it, without Python's help for its threads."""
        return self._parts == 1 or self._team.addresses is not None

    def starter(self) -> Starter:
        """What runs it with Python's help, and keeps nothing of the recording alive."""
        team, function, parts = self._team, self._function, self._parts
        return lambda data: team.run(function, data.ctypes.data, parts)


class Pack(Work):
    """A weight (k, n) into panels, or `count` of them, `apart` elements from each to the next.

    The places are those of the first one and of the target.
    """

    def __init__(
        self,
        functions: Functions,
        shape: tuple[int, ...],
        count: int,
        apart: int,
        places: Sequence[Location],
        team: Team,
    ) -> None:
        super().__init__(functions.pack_part, parts_for(count * prod(shape), team), team, places)
        self._functions, self._shape, self._count, self._apart = functions, shape, count, apart

    def data(self, start: int, itemsize: int) -> list[Any]:
        """See Work."""
        source, target = (place.address(itemsize) for place in self.places)
        factor, (k, n) = Factor(source, *self.places[0].strides), self._shape
        pack = self._functions.pack
        return records.flat(
            records.Packing(pack, self._parts, k, n, factor, target, self._count, self._apart)
        )


class Multiply(Work):
    """A matrix product, C = A B or C += A B; each factor is contiguous by rows or by columns.

    The sizes are rows and columns of C, and how many elements a sum has; the places are those of C, A and B.
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
        parts = self._plan.parts
        memory = Location(Block.of_workspaces(self._plan.workspaces(parts), dtype.itemsize))
        super().__init__(self._plan.functions.multiply, parts, team, [*places, memory])
        self.sizes, self._add = sizes, add

    def data(self, start: int, itemsize: int) -> list[Any]:
        """See Work."""
        *matrices, memory = self.places
        c, a, b = (Factor(place.address(itemsize), *place.strides) for place in matrices)
        return records.flat(self._plan.record(self.sizes, c, a, b, self._add, memory.address(itemsize)))


class MultiplyEach(Work):
    """Products of a stack of `count` matrices, each as a whole in one thread; for the rest see Multiply.

    `steps` are the distances from one matrix to the next, of C, A and B.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int],
        count: int,
        steps: Sequence[int],
        places: Sequence[Location],
        add: bool,
        team: Team,
        dtype: np.dtype,
    ) -> None:
        self._plan = plan(name_of(dtype), sizes, 1)
        parts = sharing.product_threads(prod(sizes) * count, team.size(), team.grain)
        memory = Location(Block.of_workspaces(self._plan.workspaces(parts), dtype.itemsize))
        super().__init__(compiled_stack_product(name_of(dtype)), parts, team, [*places, memory])
        self._sizes, self._count, self._steps, self._add = sizes, count, steps, add

    def data(self, start: int, itemsize: int) -> list[Any]:
        """See Work."""
        *matrices, memory = self.places
        c, a, b = (Factor(place.address(itemsize), *place.strides) for place in matrices)
        first = self._plan.record(self._sizes, c, a, b, self._add, memory.address(itemsize))
        multiply, (c_step, a_step, b_step) = self._plan.functions.multiply, self._steps
        return records.flat(
            records.Products(multiply, self._count, self._parts, c_step, a_step, b_step, first)
        )


class Arithmetic(Work):
    """Zero, a copy, sum, product, root, or sums over rows: of arrays of one shape, in parts of columns.

    The result of sums over rows has no strides but along the columns.
    """

    AXES = 3

    def __init__(
        self, kind: str, shape: Sequence[int | Quantity], places: Sequence[Location], team: Team, dtype: str
    ) -> None:
        from xpgrad.engine.programs.entry_points import compiled_arithmetic

        parts = parts_for(prod(map(most, shape)), team)
        super().__init__(compiled_arithmetic(dtype), parts, team, places)
        self.operation, self._shape = kind, shape

    def data(self, start: int, itemsize: int) -> list[Any]:
        """See Work."""
        planes, rows, columns = [1, 1, 1, *self._shape][-self.AXES :]
        target, first, second = three_strided(self.places, itemsize)
        return records.flat(
            records.ArithmeticRecord(
                kind=records.ArithmeticKind._fields.index(self.operation),
                parts=self._parts,
                planes=planes,
                rows=rows,
                columns=columns,
                target=target,
                first=first,
                second=second,
            )
        )


class ArrayLoop(Work):
    """``loop(start, stop, *sizes, *arrays, *numbers)`` over 0 .. count, each part some of that.

    `function` is the address of the loop's ``part(data, number)``, see `compiled.arrays`; `elements` is how
    many there are in all. The elements of each array follow one another.
    """

    def __init__(
        self,
        function: int,
        count: int,
        elements: int,
        sizes: Sequence[int],
        arrays: Sequence[Location],
        numbers: Sequence[float],
        team: Team,
    ) -> None:
        parts = min(sharing.compiled_parts(elements, team, sharing.ARRAY), max(1, count))
        super().__init__(function, parts, team, arrays)
        self._cuts, self._sizes = sharing.cuts(count, parts), sizes
        self._numbers = [struct.unpack("q", struct.pack("d", number))[0] for number in numbers]

    def data(self, start: int, itemsize: int) -> list[Any]:
        """See Work: behind what the function takes stand the cuts and the numbers."""
        taken = [*self._sizes, *(place.address(itemsize) for place in self.places)]
        behind = start + records.length(records.ArraysHead) + len(taken)
        cuts, numbers = (Address(None, 8 * at) for at in (behind, behind + len(self._cuts)))
        return [*records.ArraysHead(cuts, numbers), *taken, *self._cuts, *self._numbers]


class Planned(Work):
    """A compiled function for which all is found but where its arrays are.

    ``numbers(addresses)`` are the integers that it takes, `kept` is what they point into.
    """

    def __init__(
        self,
        function: int,
        parts: int,
        numbers: Callable[[list[Address]], Sequence[Any]],
        places: Sequence[Location],
        kept: Any,
        team: Team,
        multiplications: int = 0,
    ) -> None:
        super().__init__(function, parts, team, places)
        self._numbers, self.kept, self.multiplications = numbers, kept, multiplications

    def data(self, start: int, itemsize: int) -> list[Any]:
        """See Work."""
        return [*self._numbers([place.address(itemsize) for place in self.places])]


class RunTimeLoop(Work):
    """A compiled time loop of some stages; where its parts have columns, all of them do a stage together."""

    def __init__(self, loop: TimeLoop, stages: Sequence[Elementwise | Product], team: Team) -> None:
        if loop.head.stages:
            self.kind = _KIND.steps
        tables = [Location(value.block) for value in loop.head if isinstance(value, Address) and value.block]
        places = [*tables, *(matrix.memory.place for matrix in loop.matrices)]
        super().__init__(loop.function, loop.parts, team, places)
        self.loop, self.kept = loop, loop.kept
        self.stages = stages
        weights = [stage.weight.array.shape for stage in stages if isinstance(stage, Product)]
        self.multiplications = int(loop.kept[0][:, _ROWS_OF_SPAN].sum()) * sum(map(prod, weights))

    def data(self, start: int, itemsize: int) -> list[Any]:
        """See Work."""
        head: list[Any] = [*self.loop.head]
        for matrix in self.loop.matrices:
            place = matrix.memory.place
            head += matrix.record(place.address(itemsize), place.strides[0])
        return head
