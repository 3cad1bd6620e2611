"""The instructions of a program: each is a `Work`, a compiled function and its operands.

An operand is a `Location` in a `Block` of memory. The complete program decides where the block will be
(`program`), so an instruction writes an `Address` for it. `native_program` runs the written integers.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.machine import TimeLoop
from xpgrad.engine.compiled.products.matrix import Functions, compiled_stack_product, plan
from xpgrad.engine.compiled.records import Factor
from xpgrad.engine.formulas.formula import Elementwise, Product
from xpgrad.engine.process import sharing
from xpgrad.engine.process.guard import Zone
from xpgrad.engine.process.memory import Workspaces, name_of
from xpgrad.engine.process.team import Team, bits

_KIND = records.positions(records.Kind)
_HEAD = records.length(records.InstructionHead)
_WORK = records.positions(records.WorkRecord)
_numbers = itertools.count()


class Block:
    """Memory that is used as a whole, of `size` elements: the caller's array, a result or a temporary array.

    Nobody may touch the bytes in its `zones`. A block that was made later has a larger `number`.
    """

    def __init__(self, size: int) -> None:
        self.size, self.number = size, next(_numbers)
        self.zones: list[Zone] = []

    @classmethod
    def of_workspaces(cls, workspaces: Workspaces, itemsize: int) -> Block:
        """Memory for the parts of some work."""
        block = cls(workspaces.total // itemsize)  # whole cache lines
        block.zones = [*workspaces.zones()]
        return block


class CannotRecordError(Exception):
    """No instruction does what a kernel asks for: the call runs without a program."""


class Quantity(NamedTuple):
    """`factor` times an integer that a call decides by its lengths or its T.

    `number` is the integer's place in the Schedule's table of quantities; `most` is the largest product.
    """

    number: int
    most: int
    factor: int = 1

    def __mul__(self, other: int | Quantity) -> Quantity:  # type: ignore[override]
        if isinstance(other, Quantity):
            raise CannotRecordError("a product of two sizes that a call decides")
        return Quantity(self.number, self.most * other, self.factor * other)

    def __rmul__(self, other: int) -> Quantity:  # type: ignore[override]
        return self * other


Shift = tuple[Quantity, int]
"""A distance that a call decides: the product of the two."""


class Additions(Enum):
    """Placeholders in a program's integers: the address of its table of additions, and their number."""

    WHERE = 0
    COUNT = 1


HOST = Block(0)
"""The HostWords of a host that runs the program."""


class Address(NamedTuple):
    """A place in memory: bytes from the beginning of a block, or for None of the program's own array.

    Each shift adds a number of bytes that the call decides.
    """

    block: Block | None
    bytes: int
    shifts: Sequence[Shift] = ()


class OperandAddress(NamedTuple):
    """Among the integers of a work, the address of the operand with this number."""

    number: int


WAITING = {Address, Quantity, Additions, OperandAddress}
"""The classes of what stands for integers that the complete program decides."""


class Location(NamedTuple):
    """An operand: the offset of its first element, which each shift moves, and its strides, in elements.

    In work on one of several parts that are alike, `by_part` is the distance to the operand of a part that
    begins one element further along the divided axis.
    """

    block: Block
    offset: int = 0
    strides: tuple[Any, ...] = ()  # integers, or quantities if they depend on a call's T
    shifts: Sequence[Shift] = ()
    by_part: int = 0

    def moved(self, distance: int, own: Callable[[Block], Block]) -> Location:
        """The operand of a part that begins so much further on; `own` has that part's memory."""
        block, offset, strides, shifts, by_part = self
        return Location(own(block), offset + distance * by_part, strides, shifts, by_part)


class WorkNumbers(NamedTuple):
    """The integers of an instruction, wherever it stands in a program.

    Other integers wait: `own` has places, and the places in the instruction of which they are the addresses;
    `others` has places with operands, addresses and quantities.
    """

    numbers: list[int]
    own: Sequence[tuple[int, int]]
    others: Sequence[tuple[int, Any]]


def most(size: int | Quantity) -> int:
    """The size, or the largest value of a quantity."""
    return size.most if isinstance(size, Quantity) else size


def parts_for(elements: int, team: Team) -> int:
    """The number of parts for arithmetic on `elements` elements."""
    return sharing.compiled_parts(elements, team, sharing.COPY * team.grain)


def strided(kind: Any, places: Sequence[Location], addresses: Sequence[Any]) -> list[Any]:
    """The target and two sources as records of a kind, `Strided` or `Nested`; nothing reads a missing source.

    An axis that an operand lacks has stride 0. An operand without axes is a vector of one element.
    """
    axes = len(kind._fields) - 1
    found = [
        kind(address, *[*[0] * axes, *(place.strides or [1])][-axes:])
        for place, address in zip(places, addresses, strict=False)
    ]
    return found + [kind(*[0] * axes, 1)] * (3 - len(found))


class Work:
    """An instruction: a compiled ``function(data, part)``; each part may run in a thread of its own.

    `what` and `sizes` are for messages. `places` are its operands; ``numbers(addresses)`` returns the
    integers that the function reads, for the places' addresses, and `kept` is other memory they point to.
    `multiplications` is the number of multiply-adds if lanes are chosen by it, else 0.
    """

    kind = _KIND.work
    DATA = _HEAD + records.length(records.WorkRecord)
    """The place of the integers that the function reads, in the instruction."""

    def __init__(
        self,
        what: str,
        sizes: Any,
        function: int,
        parts: int,
        team: Team,
        places: Sequence[Location],
        numbers: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
        kept: Any = None,
        multiplications: int = 0,
    ) -> None:
        self.what, self.sizes, self.parts, self.places = what, sizes, parts, places
        self.function, self._team, self._numbers = function, team, numbers
        self._body: WorkNumbers | None = None
        self.kept, self.multiplications = kept, multiplications

    def __str__(self) -> str:
        return f"{self.what} (sizes {self.sizes}, parts {self.parts})"

    def blocks(self) -> list[Block]:
        """The memory that it reads or writes."""
        return [place.block for place in self.places]

    def numbers(self, addresses: Sequence[Any]) -> Sequence[Any]:
        """The integers and addresses that the function reads."""
        return self._numbers(addresses) if self._numbers else []

    def body(self) -> WorkNumbers:
        """Its integers."""
        if self._body is None:
            for_team = (self._team.addresses or (0, 0, 0))[1:]
            record = records.WorkRecord(0, records.SharedWork(self.function, 0, self.parts, *for_team))
            data = self.numbers([OperandAddress(number) for number in range(len(self.places))])
            values = [0, self.kind, *records.flat(record), *data]
            values[0] = len(values)
            # plain integers, most of the values, are told by a first look
            others = [
                (k, v) for k, v in enumerate(values) if v.__class__ is not int and v.__class__ in WAITING
            ]
            for place, _ in others:
                values[place] = 0
            shared = _WORK.shared
            own = (_HEAD + _WORK.address, _HEAD + shared.function), (_HEAD + shared.data, self.DATA)
            self._body = WorkNumbers(values, own, others)
        return self._body

    def moved(self, distance: int, own: Callable[[Block], Block]) -> Work:
        """The same work for a part that begins so much further on; see `Location.moved`."""
        self.body()  # the copy has it too
        again = copy.copy(self)
        again.places = [place.moved(distance, own) for place in self.places]
        return again

    def is_native(self) -> bool:
        """Whether compiled code can start it; else Python must start its threads."""
        return self.parts == 1 or self._team.addresses is not None


def pack(
    functions: Functions,
    shape: tuple[int, ...],
    count: int,
    apart: int,
    places: Sequence[Location],
    team: Team,
) -> Work:
    """Pack `count` weights (k, n) into panels; consecutive weights are `apart` elements apart.

    The places are the first weight and the target.
    """
    parts, (k, n) = parts_for(count * prod(shape), team), shape

    def numbers(addresses: Sequence[Any]) -> list[Any]:
        factor, target = Factor(addresses[0], *places[0].strides), addresses[1]
        return records.flat(records.Packing(functions.pack, parts, k, n, factor, target, count, apart))

    return Work("Pack", shape, functions.pack_part, parts, team, places, numbers)


def multiply(
    sizes: Sequence[int | Quantity], places: Sequence[Location], add: bool, team: Team, dtype: np.dtype
) -> Work:
    """A matrix product, C = A B or C += A B; each factor is contiguous by rows or by columns.

    The sizes are the rows and columns of C and the terms of each sum; the places are C, A and B.
    """
    m, n, k = map(most, sizes)
    planned = plan(name_of(dtype), (m, n, k), team.size(), team.grain)
    memory = Location(Block.of_workspaces(planned.workspaces(planned.parts), dtype.itemsize))

    def numbers(addresses: Sequence[Any]) -> list[Any]:
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

    def numbers(addresses: Sequence[Any]) -> list[Any]:
        c, a, b = _factors(places, addresses)
        first = planned.record(sizes, c, a, b, add, addresses[-1])
        return records.flat(
            records.Products(planned.functions.multiply, count, parts, c_step, a_step, b_step, first)
        )

    c_step, a_step, b_step = steps
    function = compiled_stack_product(name_of(dtype))
    return Work("MultiplyEach", (count, *sizes), function, parts, team, [*places, memory], numbers)


def _factors(places: Sequence[Location], addresses: Sequence[Any]) -> list[Factor]:
    """C, A and B of a product."""
    return [Factor(address, *place.strides) for place, address in zip(places, addresses, strict=False)]


AXES = len(records.Nested._fields) - 1
"""The most axes of arrays in arithmetic."""


def arithmetic(
    kind: str, shape: Sequence[int | Quantity], places: Sequence[Location], team: Team, dtype: str
) -> Work:
    """Zero, a copy, sum, product or root of arrays of one shape, or sums over their rows.

    `kind` is one of `records.ArithmeticKind`. The result of sums has stride 0 but along the columns.
    """
    from xpgrad.engine.compiled.register_tiles import tiles

    parts, number = parts_for(prod(map(most, shape)), team), records.ArithmeticKind._fields.index(kind)
    sizes = [*[1] * AXES, *shape][-AXES:]

    def numbers(addresses: Sequence[Any]) -> list[Any]:
        operands = strided(records.Nested, places, addresses)
        return records.flat(records.ArithmeticRecord(number, parts, *sizes, *operands))

    made, label = f"arithmetic({dtype!r}, {tiles().lanes(dtype)})", f"arithmetic_{dtype}"
    module, arguments = "programs.native_arithmetic", "int64 data, int64 part"
    function = c_function(label, module, arguments, "made(fields(data), part)", made)
    return Work(kind, shape, function, parts, team, places, numbers)


def array_loop(
    function: int,
    count: int,
    elements: int,
    sizes: Sequence[int],
    places: Sequence[Location],
    numbers: Sequence[float],
    team: Team,
) -> Work:
    """``loop(start, stop, *sizes, *arrays, *numbers)`` over 0 .. count, in parts.

    `function` is the address of the loop's ``part(data, number)``, see `compiled.arrays`; `elements` is the
    number of all elements. Each array is contiguous.
    """
    parts = min(sharing.compiled_parts(elements, team, sharing.ARRAY), max(1, count))
    head, reals = records.ArraysHead(count, parts), [*map(bits, numbers)]

    def taken(addresses: Sequence[Any]) -> list[Any]:
        return [*head, *sizes, *addresses, *reals]

    return Work("ArrayLoop", elements, function, parts, team, places, taken)


class RunTimeLoop(Work):
    """A compiled time loop of some stages; if its parts are columns, all parts run each stage together."""

    def __init__(self, loop: TimeLoop, stages: Sequence[Elementwise | Product], team: Team) -> None:
        if loop.head.stages:
            self.kind = _KIND.steps
        places = [matrix.memory.place for matrix in loop.matrices]
        tables = [Location(value.block) for value in loop.head if isinstance(value, Address) and value.block]
        weights = [stage.weight.array.shape for stage in stages if isinstance(stage, Product)]
        multiplications = loop.size.rows * sum(map(prod, weights))
        self.loop, self.stages = loop, stages
        super().__init__(
            "RunTimeLoop", loop.size.steps, loop.function, loop.parts, team, [*places, *tables],
            kept=loop.kept or None, multiplications=multiplications,
        )  # fmt: skip

    def numbers(self, addresses: Sequence[Any]) -> list[Any]:
        """See Work."""
        head: list[Any] = [*self.loop.head]
        for matrix, place, address in zip(self.loop.matrices, self.places, addresses, strict=False):
            head += matrix.record(address, place.strides[0])
        return head
