"""The instructions of a program: each is a `Work`, a compiled function and what it reads.

An operand is a `Location` in a `Block` of memory. Where the block will be is settled when the program is
complete (`program`), so instructions write an `Address` for it. `native_program` runs what they write.
"""

from __future__ import annotations

import ctypes
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
from xpgrad.engine.process.team import Team, integers

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


def most(size: int | Quantity) -> int:
    """The size, or the largest that it can be."""
    return size.most if isinstance(size, Quantity) else size


def parts_for(elements: int, team: Team) -> int:
    """Into how many parts to cut arithmetic on `elements` elements."""
    return sharing.compiled_parts(elements, team, sharing.COPY * team.grain)


def three_strided(places: Sequence[Location], addresses: Sequence[Address]) -> list[Strided]:
    """The target and one or two sources, with three strides each; nothing reads a source that is not there.

    An axis that an operand lacks has no stride. Without axes, it is a vector of one element.
    """
    found = [
        Strided(address, *[0, 0, 0, *(place.strides or [1])][-3:])
        for place, address in zip(places, addresses, strict=False)
    ]
    return found + [Strided(0, 0, 0, 1)] * (3 - len(found))


class Work:
    """An instruction: a compiled ``function(data, part)``, run in one part or in several, a thread each.

    `what` and `sizes` are for messages. `places` is what it reads or writes; ``numbers(addresses)`` are the
    integers that the function takes, for the addresses of the places, and `kept` is what else they point
    into. `multiplications` are its multiply-adds, where lanes are chosen by them; else 0.
    """

    kind = _KIND.work
    _BEFORE_DATA = 1 + records.length(records.WorkRecord)  # its kind stands in front

    def __init__(
        self,
        what: str,
        sizes: Any,
        function: int,
        parts: int,
        team: Team,
        places: Sequence[Location],
        numbers: Callable[[list[Address]], Sequence[Any]] | None = None,
        kept: Any = None,
        multiplications: int = 0,
    ) -> None:
        self.what, self.sizes, self.parts, self.places = what, sizes, parts, places
        self._function, self._team, self._numbers = function, team, numbers
        self.kept, self.multiplications = kept, multiplications

    def __str__(self) -> str:
        return f"{self.what} (sizes {self.sizes}, parts {self.parts})"

    def blocks(self) -> list[Block]:
        """The memory that it reads or writes."""
        return [place.block for place in self.places]

    def numbers(self, addresses: list[Address]) -> Sequence[Any]:
        """The integers and addresses that the function takes."""
        return self._numbers(addresses) if self._numbers else []

    def code(self, start: int, itemsize: int) -> list[Any]:
        """Its integers and addresses; `start` is where it will stand in the program's array."""
        for_team = (self._team.addresses or (0, 0, 0))[1:]
        data = Address(None, 8 * self.data_start(start))
        shared = records.SharedWork(self._function, data, self.parts, *for_team)
        record = records.WorkRecord(Address(None, 8 * (start + 1 + _SHARED_AT)), shared)
        addresses = [place.address(itemsize) for place in self.places]
        return [self.kind, *records.flat(record), *self.numbers(addresses)]

    def data_start(self, start: int) -> int:
        """Where, in the program's array, the integers begin that the function takes."""
        return start + self._BEFORE_DATA

    def is_native(self) -> bool:
        """Whether compiled code can start it, without Python's help for its threads."""
        return self.parts == 1 or self._team.addresses is not None

    def starter(self) -> Starter:
        """What runs it with Python's help, and keeps nothing of the recording alive."""
        team, function, parts = self._team, self._function, self.parts
        return lambda data: team.run(function, data.ctypes.data, parts)


def pack(
    functions: Functions,
    shape: tuple[int, ...],
    count: int,
    apart: int,
    places: Sequence[Location],
    team: Team,
) -> Work:
    """A weight (k, n) into panels, or `count` of them, `apart` elements from each to the next.

    The places are those of the first one and of the target.
    """
    parts, (k, n) = parts_for(count * prod(shape), team), shape

    def numbers(addresses: list[Address]) -> list[Any]:
        factor, target = Factor(addresses[0], *places[0].strides), addresses[1]
        return records.flat(records.Packing(functions.pack, parts, k, n, factor, target, count, apart))

    return Work("Pack", shape, functions.pack_part, parts, team, places, numbers)


def multiply(
    sizes: Sequence[int | Quantity], places: Sequence[Location], add: bool, team: Team, dtype: np.dtype
) -> Work:
    """A matrix product, C = A B or C += A B; each factor is contiguous by rows or by columns.

    The sizes are rows and columns of C, and how many elements a sum has; the places are those of C, A and B.
    """
    m, n, k = map(most, sizes)
    planned = plan(name_of(dtype), (m, n, k), team.size(), team.grain)
    memory = Location(Block.of_workspaces(planned.workspaces(planned.parts), dtype.itemsize))

    def numbers(addresses: list[Address]) -> list[Any]:
        c, a, b = _factors(places, addresses)
        return records.flat(planned.record(sizes, c, a, b, add, addresses[-1]))

    function = planned.functions.multiply
    return Work("Multiply", sizes, function, planned.parts, team, [*places, memory], numbers)


def multiply_each(
    sizes: tuple[int, int, int],
    count: int,
    steps: Sequence[int],
    places: Sequence[Location],
    add: bool,
    team: Team,
    dtype: np.dtype,
) -> Work:
    """Products of a stack of `count` matrices, each as a whole in one thread; for the rest see `multiply`.

    `steps` are the distances from one matrix to the next, of C, A and B.
    """
    planned = plan(name_of(dtype), sizes, 1)
    parts = sharing.product_threads(prod(sizes) * count, team.size(), team.grain)
    memory = Location(Block.of_workspaces(planned.workspaces(parts), dtype.itemsize))

    def numbers(addresses: list[Address]) -> list[Any]:
        c, a, b = _factors(places, addresses)
        first = planned.record(sizes, c, a, b, add, addresses[-1])
        return records.flat(
            records.Products(planned.functions.multiply, count, parts, c_step, a_step, b_step, first)
        )

    c_step, a_step, b_step = steps
    function = compiled_stack_product(name_of(dtype))
    return Work("MultiplyEach", (count, *sizes), function, parts, team, [*places, memory], numbers)


def _factors(places: Sequence[Location], addresses: Sequence[Address]) -> list[Factor]:
    """C, A and B of a product."""
    return [Factor(address, *place.strides) for place, address in zip(places, addresses, strict=False)]


AXES = 3
"""Of arrays in arithmetic, at most."""


def arithmetic(
    kind: str, shape: Sequence[int | Quantity], places: Sequence[Location], team: Team, dtype: str
) -> Work:
    """Zero, a copy, sum, product, root, or sums over rows: of arrays of one shape, in parts of columns.

    `kind` is one of `records.ArithmeticKind`. The result of sums over rows has no strides but along the
    columns.
    """
    from xpgrad.engine.programs.entry_points import compiled_arithmetic

    parts, number = parts_for(prod(map(most, shape)), team), records.ArithmeticKind._fields.index(kind)
    sizes = [1, 1, 1, *shape][-AXES:]

    def numbers(addresses: list[Address]) -> list[Any]:
        operands = three_strided(places, addresses)
        return records.flat(records.ArithmeticRecord(number, parts, *sizes, *operands))

    return Work(kind, shape, compiled_arithmetic(dtype), parts, team, places, numbers)


def array_loop(
    function: int,
    count: int,
    elements: int,
    sizes: Sequence[int],
    places: Sequence[Location],
    numbers: Sequence[float],
    team: Team,
) -> Work:
    """``loop(start, stop, *sizes, *arrays, *numbers)`` over 0 .. count, each part some of that.

    `function` is the address of the loop's ``part(data, number)``, see `compiled.arrays`; `elements` is how
    many there are in all. The elements of each array follow one another.
    """
    parts = min(sharing.compiled_parts(elements, team, sharing.ARRAY), max(1, count))
    bounds, reals = integers(sharing.cuts(count, parts)), (ctypes.c_double * len(numbers))(*numbers)
    head = records.ArraysHead(ctypes.addressof(bounds), ctypes.addressof(reals))

    def taken(addresses: list[Address]) -> list[Any]:
        return [*head, *sizes, *addresses]

    return Work("ArrayLoop", elements, function, parts, team, places, taken, (bounds, reals))


class RunTimeLoop(Work):
    """A compiled time loop of some stages; where its parts have columns, all of them do a stage together."""

    def __init__(self, loop: TimeLoop, stages: Sequence[Elementwise | Product], team: Team) -> None:
        if loop.head.stages:
            self.kind = _KIND.steps
        places = [matrix.memory.place for matrix in loop.matrices]
        tables = [Location(value.block) for value in loop.head if isinstance(value, Address) and value.block]
        weights = [stage.weight.array.shape for stage in stages if isinstance(stage, Product)]
        steps = loop.kept[0]
        multiplications = int(steps[:, _ROWS_OF_SPAN].sum()) * sum(map(prod, weights))
        self.loop, self.stages = loop, stages
        super().__init__(
            "RunTimeLoop", len(steps), loop.function, loop.parts, team, [*places, *tables],
            kept=loop.kept, multiplications=multiplications,
        )  # fmt: skip

    def numbers(self, addresses: list[Address]) -> list[Any]:
        """See Work."""
        head: list[Any] = [*self.loop.head]
        for matrix, place, address in zip(self.loop.matrices, self.places, addresses, strict=False):
            head += matrix.record(address, place.strides[0])
        return head
