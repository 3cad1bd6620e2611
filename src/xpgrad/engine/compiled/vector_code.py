"""Vector instructions for loops that a compiler does not find by itself; needs llvmlite.

Addresses come in at run time. `register_tiles` and `images.row_tiles` are written with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import INT64, declared, loop, variable_with
from xpgrad.engine.compiled.native import generated
from xpgrad.engine.compiled.translate import Code

_REALS = {"float32": (ir.FloatType(), 4), "float64": (ir.DoubleType(), 8)}
_Generate = Callable[["VectorCode", list[Any]], None]


def vector_function(dtype: str, lanes: int, generate: _Generate, count: int = 6, reals: int = 0) -> Any:
    """The generated function of `count` integers, and then of so many real numbers."""

    def write(code: Code, arguments: list[Any]) -> None:
        generate(VectorCode(code.builder, dtype, lanes), arguments)

    return generated(write, *["int64"] * count, *[dtype] * reals)


def prefetch(builder: Any, place: Any, write: bool, level: int = 1) -> None:
    """Ask for the line of memory at a place, which will be written to or read, into a cache of this level."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    near, data = number(4 - level), number(1)
    builder.call(function, [builder.bitcast(place, byte), number(int(write)), near, data])


class VectorCode:
    """Vector instructions."""

    def __init__(self, builder: Any, dtype: str, lanes: int) -> None:
        self.builder = builder
        self._dtype, self._lanes = dtype, lanes
        self._real, self._size = _REALS[dtype]
        self._vector = ir.VectorType(self._real, lanes)
        self.zero = ir.Constant(self._vector, [0.0] * lanes)
        # One instruction where the machine has it, else two. `llvm.fma` would call the C library for each
        # element there: its result is rounded once on every machine.
        name = f"llvm.fmuladd.v{lanes}f{8 * self._size}"
        kind = ir.FunctionType(self._vector, [self._vector] * 3)
        self._multiply_add = declared(builder.module, kind, name)

    def reals(self, address: Any) -> Any:
        """A pointer to real numbers."""
        return self.builder.inttoptr(address, self._real.as_pointer())

    def at(self, pointer: Any, number: Any) -> Any:
        """The pointer `number` elements further."""
        return self.builder.gep(pointer, [INT64(number) if isinstance(number, int) else number])

    def times(self, number: Any, factor: int) -> Any:
        """A product of integers."""
        return self.builder.mul(number, INT64(factor))

    def variable(self, value: Any) -> Any:
        """A variable, which becomes a register."""
        return variable_with(self.builder, value)

    @contextlib.contextmanager
    def loop(self, count: Any, advice: str = "") -> Iterator[Any]:
        """A loop over the numbers below `count`; for `advice` see `llvm_code.advise`."""
        with loop(self.builder, count, advice=advice) as index:
            yield index

    def at_most(self, number: Any, limit: int) -> Any:
        """The number, or the limit where it is larger."""
        return self.builder.select(self.builder.icmp_signed("<", number, INT64(limit)), number, INT64(limit))

    def in_vectors(self, count: Any, write: Callable[[Any, Any], None]) -> None:
        """Call ``write(number, rest)`` for each vector of `count` elements, from element `number` on.

        `rest` is as for `load_first`: of the last vector how many elements it has, else None.
        """
        before = self.builder.sdiv(self.builder.sub(count, INT64(1)), INT64(self._lanes))
        with self.loop(before) as number:
            write(self.times(number, self._lanes), None)
        last = self.times(before, self._lanes)
        write(last, self.builder.sub(count, last))

    def of_elements(self) -> VectorCode:
        """Instructions on vectors of one element."""
        return VectorCode(self.builder, self._dtype, 1)

    def equal(self, number: Any, other: int) -> Any:
        """Whether an integer is another one."""
        return self.builder.icmp_signed("==", number, INT64(other))

    def root(self, square: Any) -> Any:
        """The roots of a vector; of what rounding made negative, 0, and NaN stays what it is."""
        nothing = self.builder.fsub(square, square)
        below = self.builder.fcmp_ordered("<", square, nothing)
        kind = ir.FunctionType(self._vector, [self._vector])
        name = f"llvm.sqrt.v{self._lanes}f{8 * self._size}"
        sqrt = declared(self.builder.module, kind, name)
        return self.builder.call(sqrt, [self.builder.select(below, nothing, square)])

    def load(self, place: Any) -> Any:
        """A vector, from wherever it begins."""
        return self.builder.load(self._pointer(place), align=self._size)

    def _store(self, vector: Any, place: Any) -> None:
        self.builder.store(vector, self._pointer(place), align=self._size)

    def _pointer(self, place: Any) -> Any:
        return self.builder.bitcast(place, self._vector.as_pointer())

    def prefetch(self, places: Iterable[Any], write: bool, level: int = 1) -> None:
        """Ask for the lines at these places, which will be written to or read, into a cache of this level."""
        for place in places:
            prefetch(self.builder, place, write, level)

    def prefetch_byte(self, address: Any) -> None:
        """Ask for the line of a byte, into the second-level cache."""
        prefetch(self.builder, self.builder.inttoptr(address, ir.IntType(8).as_pointer()), False, level=2)

    def places(self, target: Any, line: Any, rows: int, vectors: int) -> list[list[Any]]:
        """Where the vectors of a tile are in memory."""
        starts = [self.at(target, self.times(line, m)) for m in range(rows)]
        return [[self.at(start, v * self._lanes) for v in range(vectors)] for start in starts]

    def store(self, sums: list[list[Any]], target: Any, line: Any) -> None:
        """A tile into memory."""
        for row, places in zip(sums, self.places(target, line, len(sums), len(sums[0])), strict=True):
            for variable, place in zip(row, places, strict=True):
                self._store(self.builder.load(variable), place)

    def mask(self, count: Any) -> Any:
        """A mask of a vector's first `count` elements."""
        return self._compared(">", count)

    def _compared(self, relation: str, number: Any) -> Any:
        """A mask of the elements to whose place the number has that relation."""
        numbers = ir.VectorType(INT64, self._lanes)
        places = ir.Constant(numbers, list(range(self._lanes)))
        return self.builder.icmp_signed(relation, self.everywhere(number, numbers), places)

    def load_sums(self, sums: list[list[Any]], source: Any, line: Any, mask: Any) -> None:
        """A tile from memory; of the last vector of each row what the mask has."""
        for row, places in zip(sums, self.places(source, line, len(sums), len(sums[0])), strict=True):
            for number, (variable, place) in enumerate(zip(row, places, strict=True)):
                last = number == len(row) - 1
                self.builder.store(self._masked_load(place, mask) if last else self.load(place), variable)

    def add_to_sums(self, sums: list[list[Any]], source: Any, line: Any, mask: Any, adds: Any) -> None:
        """A tile from memory, if it `adds`, added to the sums."""
        with self.builder.if_then(adds):
            before = [[self.variable(self.zero) for _ in row] for row in sums]
            self.load_sums(before, source, line, mask)
            for row, others in zip(sums, before, strict=True):
                for variable, other in zip(row, others, strict=True):
                    total = self.builder.fadd(self.builder.load(other), self.builder.load(variable))
                    self.builder.store(total, variable)

    def store_masked(self, sums: list[list[Any]], target: Any, line: Any, mask: Any) -> None:
        """A tile into memory; of the last vector of each row what the mask has."""
        for row, places in zip(sums, self.places(target, line, len(sums), len(sums[0])), strict=True):
            for variable, place in zip(row[:-1], places[:-1], strict=True):
                self._store(self.builder.load(variable), place)
            self._masked_store(self.builder.load(row[-1]), places[-1], mask)

    def stream(self, sums: list[list[Any]], target: Any, line: Any) -> None:
        """A tile into memory, past the caches; each vector begins at a multiple of its size."""
        now = self.builder.module.add_metadata([ir.IntType(32)(1)])
        for row, places in zip(sums, self.places(target, line, len(sums), len(sums[0])), strict=True):
            for variable, place in zip(row, places, strict=True):
                vector, pointer = self.builder.load(variable), self._pointer(place)
                stored = self.builder.store(vector, pointer, align=self._lanes * self._size)
                stored.set_metadata("nontemporal", now)

    def _masked(self, kind: str, result: Any, arguments: list[Any]) -> Any:
        name = f"llvm.masked.{kind}.v{self._lanes}f{8 * self._size}.p0"
        type_of = ir.FunctionType(result, [argument.type for argument in arguments])
        function = declared(self.builder.module, type_of, name)
        return self.builder.call(function, arguments)

    def _masked_load(self, place: Any, mask: Any) -> Any:
        return self._masked(
            "load", self._vector, [self._pointer(place), ir.IntType(32)(self._size), mask, self.zero]
        )

    def _masked_store(self, vector: Any, place: Any, mask: Any) -> None:
        self._masked("store", ir.VoidType(), [vector, self._pointer(place), ir.IntType(32)(self._size), mask])

    def multiply_add(self, sums: list[list[Any]], factors: Any, number: Any, vectors: list[Any]) -> None:
        """Add to each row's sums its factor times the vectors, fused where the machine has that.

        The factors of all rows stand in a line, or each row has a line of its own, of which this is the
        element of that number.
        """
        for m, row in enumerate(sums):
            place = self.at(factors, m) if number is None else self.at(factors[m], number)
            factor = self.everywhere(self.builder.load(place))
            for variable, vector in zip(row, vectors, strict=True):
                total = self.builder.call(self._multiply_add, [factor, vector, self.builder.load(variable)])
                self.builder.store(total, variable)

    def picked(self, vectors: list[Any], places: list[tuple[int, int]]) -> Any:
        """A vector of elements of several ones; each place is the number of a vector and of its element."""
        first = min(q for q, _ in places)
        result, order = vectors[first], [i for _, i in places]
        for q in sorted({q for q, _ in places} - {first}) or [first]:
            order = [self._lanes + i if p == q else o for (p, i), o in zip(places, order, strict=True)]
            result = self._shuffled(result, vectors[q], order)
            order = [
                i if p <= q else o for i, (p, _), o in zip(range(self._lanes), places, order, strict=True)
            ]
        return result

    def load_between(self, place: Any, number: int, low: Any, high: Any) -> Any:
        """A row's elements from `number` on; those before `low` and from `high` on are 0, and not read."""
        masks = [
            self._compared("<=", self.builder.sub(low, INT64(number))),
            self._compared(">", self.builder.sub(high, INT64(number))),
        ]
        return self._masked_load(place, self.builder.and_(*masks))

    # Of a contiguous row: the whole vector where `rest` is None, else its first `rest` elements.

    def load_first(self, place: Any, rest: Any) -> Any:
        """The elements; what is behind them is 0."""
        return self.load(place) if rest is None else self._masked_load(place, self.mask(rest))

    def store_first(self, vector: Any, place: Any, rest: Any) -> None:
        """Into memory."""
        if rest is None:
            self._store(vector, place)
        else:
            self._masked_store(vector, place, self.mask(rest))

    def load_spread(self, place: Any, rest: Any) -> tuple[Any, Any]:
        """Two vectors, of which every other element is one of the row."""
        places = (place, self.at(place, self._lanes))
        if rest is None:
            return self.load(places[0]), self.load(places[1])
        low, high = (self._masked_load(p, m) for p, m in zip(places, self._spread_masks(rest), strict=True))
        return low, high

    def store_spread(self, vector: Any, place: Any, rest: Any) -> None:
        """Into every other element of memory."""
        halves = self.alternating(vector, vector)
        places = (place, self.at(place, self._lanes))
        all_of_them = INT64(self._lanes) if rest is None else rest
        for half, to, mask in zip(halves, places, self._spread_masks(all_of_them), strict=True):
            others = ir.Constant(mask.type, [k % 2 == 0 for k in range(self._lanes)])
            self._masked_store(half, to, self.builder.and_(mask, others))

    def _spread_masks(self, rest: Any) -> tuple[Any, Any]:
        """Masks of two vectors that reach to the last of `rest` elements with a stride of 2."""
        reach = self.builder.sub(self.times(rest, 2), INT64(1))
        return self.mask(reach), self.mask(self.builder.sub(reach, INT64(self._lanes)))

    def even(self, a: Any, b: Any) -> Any:
        """Every other element of two vectors."""
        return self._shuffled(a, b, [2 * k for k in range(self._lanes)])

    def alternating(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The elements of two vectors in turns: those of the first halves, and those of the second."""
        half = self._lanes // 2
        order = [place for i in range(self._lanes) for place in (i, self._lanes + i)]
        return self._shuffled(a, b, order[: 2 * half]), self._shuffled(a, b, order[2 * half :])

    def everywhere(self, number: Any, kind: Any = None) -> Any:
        """A vector of equal elements; of that kind, if it is not one of real numbers."""
        nothing = ir.Constant(kind or self._vector, ir.Undefined)
        first = self.builder.insert_element(nothing, number, ir.IntType(32)(0))
        return self._shuffled(first, nothing, [0] * self._lanes)

    def _shuffled(self, a: Any, b: Any, order: list[int]) -> Any:
        """A vector of elements of two, whose places are numbered through."""
        kind = ir.VectorType(ir.IntType(32), self._lanes)
        return self.builder.shuffle_vector(a, b, ir.Constant(kind, order))
