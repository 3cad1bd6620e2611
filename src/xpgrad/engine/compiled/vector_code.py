"""Vector instructions for loops that a compiler does not vectorize by itself; needs llvmlite.

Addresses come in at run time. `register_tiles` and `images.row_tiles` are written with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from llvmlite import ir

from xpgrad.engine.compiled.llvm_code import INT64, declared, loop
from xpgrad.engine.compiled.llvm_code import variable as variable_of
from xpgrad.engine.compiled.machine_code import features
from xpgrad.engine.compiled.native import generated
from xpgrad.engine.compiled.translate import Code

_REALS = {"float32": (ir.FloatType(), 4), "float64": (ir.DoubleType(), 8)}


def vector_function(dtype: str, lanes: int, generate: Callable[[VectorCode, list[Any]], None]) -> Any:
    """The function whose instructions ``generate(code, arguments)`` writes, as `native.generated`."""

    def write(code: Code, arguments: list[Any]) -> None:
        generate(VectorCode(code.builder, dtype, lanes), arguments)

    return generated(write)


def prefetch(builder: Any, place: Any, write: bool, level: int = 1) -> None:
    """Prefetch the cache line of a place for writing or reading, into the cache of this level."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    near, data = number(4 - level), number(1)
    builder.call(function, [builder.bitcast(place, byte), number(int(write)), near, data])


def store_past_caches(builder: Any, vector: Any, place: Any, align: int) -> None:
    """Store a vector by a non-temporal instruction; its address is a multiple of `align`."""
    store = builder.store(vector, place, align=align)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


class VectorCode:
    """Vector instructions."""

    def __init__(self, builder: Any, dtype: str, lanes: int) -> None:
        self.builder, self._lanes = builder, lanes
        self._real, self._size = _REALS[dtype]
        self._vector = ir.VectorType(self._real, lanes)
        self._name = f"v{lanes}f{8 * self._size}"  # of the type in LLVM's functions
        self.zero = ir.Constant(self._vector, [0.0] * lanes)
        # One instruction if the machine has it, else two. Without that instruction `llvm.fma` would call the
        # C library for each element, to round the result only once.
        kind = ir.FunctionType(self._vector, [self._vector] * 3)
        self._multiply_add = declared(builder.module, kind, f"llvm.fmuladd.{self._name}")

    def multiply_add(self, factor: Any, vector: Any, total: Any) -> Any:
        """``factor * vector + total``."""
        return self.builder.call(self._multiply_add, [factor, vector, total])

    # --- numbers, places and loops

    def reals(self, address: Any) -> Any:
        """A pointer to real numbers."""
        return self.builder.inttoptr(address, self._real.as_pointer())

    def at(self, pointer: Any, number: Any) -> Any:
        """The pointer `number` elements further."""
        return self.builder.gep(pointer, [INT64(number) if isinstance(number, int) else number])

    def times(self, number: Any, factor: int) -> Any:
        """A product of integers."""
        return self.builder.mul(number, INT64(factor))

    def equal(self, number: Any, other: int) -> Any:
        """Whether an integer equals another."""
        return self.builder.icmp_signed("==", number, INT64(other))

    def variable(self, value: Any) -> Any:
        """A variable, which becomes a register."""
        place = variable_of(self.builder, value.type)
        self.builder.store(value, place)
        return place

    def loop(self, count: Any) -> AbstractContextManager[Any]:
        """A loop over the numbers below `count`."""
        return loop(self.builder, count)

    def repeat(self, write: Callable[[Any], None], first: Any, count: Any, passes: int) -> None:
        """Call ``write(number)`` in a loop over `count` numbers from `first` on, so many `passes` in one."""
        builder = self.builder
        if passes > 1:
            whole = builder.sdiv(count, INT64(passes))
            with self.loop(whole) as k:
                for p in range(passes):
                    write(builder.add(first, builder.add(self.times(k, passes), INT64(p))))
            done = self.times(whole, passes)
            first, count = builder.add(first, done), builder.sub(count, done)
        with self.loop(count) as k:
            write(builder.add(first, k))

    def in_vectors(self, count: Any, write: Callable[[Any, Any], None]) -> None:
        """Call ``write(number, rest)`` for each vector of `count` elements, which begins at element `number`.

        `rest` is None for whole vectors. For the last vector it is the number of its elements.
        """
        before = self.builder.sdiv(self.builder.sub(count, INT64(1)), INT64(self._lanes))
        with self.loop(before) as number:
            write(self.times(number, self._lanes), None)
        last = self.times(before, self._lanes)
        write(last, self.builder.sub(count, last))

    def prefetch(self, places: Iterable[Any], write: bool, level: int = 1) -> None:
        """Prefetch the lines of these places, as `prefetch`."""
        for place in places:
            prefetch(self.builder, place, write, level)

    def prefetch_byte(self, address: Any) -> None:
        """Prefetch the line of a byte into the second-level cache."""
        prefetch(self.builder, self.builder.inttoptr(address, ir.IntType(8).as_pointer()), False, level=2)

    # --- vectors

    def everywhere(self, number: Any) -> Any:
        """A vector of equal elements."""
        nothing = ir.Constant(ir.VectorType(number.type, self._lanes), ir.Undefined)
        first = self.builder.insert_element(nothing, number, ir.IntType(32)(0))
        return self._shuffled(first, nothing, [0] * self._lanes)

    def root(self, square: Any) -> Any:
        """The square roots of a vector; 0 for numbers that rounding made negative, NaN for NaN."""
        nothing = self.builder.fsub(square, square)
        below = self.builder.fcmp_ordered("<", square, nothing)
        kind = ir.FunctionType(self._vector, [self._vector])
        sqrt = declared(self.builder.module, kind, f"llvm.sqrt.{self._name}")
        return self.builder.call(sqrt, [self.builder.select(below, nothing, square)])

    def picked(self, vectors: list[Any], places: list[tuple[int, int]]) -> Any:
        """A vector of elements of several vectors; a place is a vector's number and an element's number."""
        first = min(q for q, _ in places)
        result, order = vectors[first], [i for _, i in places]
        for q in sorted({q for q, _ in places} - {first}) or [first]:
            order = [self._lanes + i if p == q else o for (p, i), o in zip(places, order, strict=True)]
            result = self._shuffled(result, vectors[q], order)
            order = [k if p <= q else o for k, ((p, _), o) in enumerate(zip(places, order, strict=True))]
        return result

    def even(self, a: Any, b: Any) -> Any:
        """Every other element of two vectors."""
        return self._shuffled(a, b, [2 * k for k in range(self._lanes)])

    def alternating(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Two vectors in which elements of a and b alternate: their first halves, and their second halves."""
        half = self._lanes // 2
        order = [place for i in range(self._lanes) for place in (i, self._lanes + i)]
        return self._shuffled(a, b, order[: 2 * half]), self._shuffled(a, b, order[2 * half :])

    def _shuffled(self, a: Any, b: Any, order: list[int]) -> Any:
        """A vector of elements of a and b; the elements of b are numbered after the elements of a."""
        kind = ir.VectorType(ir.IntType(32), self._lanes)
        return self.builder.shuffle_vector(a, b, ir.Constant(kind, order))

    # --- loads and stores

    def mask(self, count: Any) -> Any:
        """A mask of a vector's first `count` elements."""
        return self._compared(">", count)

    def _compared(self, relation: str, number: Any) -> Any:
        """A mask of the elements k for which ``number relation k`` holds."""
        places = ir.Constant(ir.VectorType(INT64, self._lanes), list(range(self._lanes)))
        return self.builder.icmp_signed(relation, self.everywhere(number), places)

    def load(self, place: Any, mask: Any = None) -> Any:
        """A vector from any place; elements outside the mask are 0, and not read."""
        pointer = self._pointer(place)
        if mask is None:
            return self.builder.load(pointer, align=self._size)
        return self._masked("load", self._vector, [pointer, ir.IntType(32)(self._size), mask, self.zero])

    def store(self, vector: Any, place: Any, mask: Any = None) -> None:
        """Store a vector, only the elements in the mask."""
        pointer = self._pointer(place)
        if mask is None:
            self.builder.store(vector, pointer, align=self._size)
        else:
            self._masked("store", ir.VoidType(), [vector, pointer, ir.IntType(32)(self._size), mask])

    def _masked(self, kind: str, result: Any, arguments: list[Any]) -> Any:
        type_of = ir.FunctionType(result, [argument.type for argument in arguments])
        function = declared(self.builder.module, type_of, f"llvm.masked.{kind}.{self._name}.p0")
        return self.builder.call(function, arguments)

    def _pointer(self, place: Any) -> Any:
        return self.builder.bitcast(place, self._vector.as_pointer())

    # Of a contiguous row: the whole vector if `rest` is None, else its first `rest` elements.

    def load_first(self, place: Any, rest: Any) -> Any:
        """The elements; those behind them are 0."""
        return self.load(place, None if rest is None else self.mask(rest))

    def store_first(self, vector: Any, place: Any, rest: Any) -> None:
        """Store the elements."""
        self.store(vector, place, None if rest is None else self.mask(rest))

    def load_between(self, place: Any, number: int, low: Any, high: Any) -> Any:
        """A row's elements from `number` on; elements below `low` and from `high` on are 0, and not read."""
        bounds = [("<=", low), (">", high)]
        masks = [self._compared(sign, self.builder.sub(end, INT64(number))) for sign, end in bounds]
        return self.load(place, self.builder.and_(*masks))

    def load_spread(self, place: Any, rest: Any) -> tuple[Any, Any]:
        """Two vectors in which every other element belongs to the row."""
        places = (place, self.at(place, self._lanes))
        masks = (None, None) if rest is None else self._spread_masks(rest)
        return self.load(places[0], masks[0]), self.load(places[1], masks[1])

    def store_spread(self, vector: Any, place: Any, rest: Any) -> None:
        """Store into every other element of memory."""
        if "avx512f" not in features():
            self._store_one_by_one(vector, place, rest)
            return
        halves = self.alternating(vector, vector)
        places = (place, self.at(place, self._lanes))
        count = INT64(self._lanes) if rest is None else rest
        for half, to, mask in zip(halves, places, self._spread_masks(count), strict=True):
            others = ir.Constant(mask.type, [k % 2 == 0 for k in range(self._lanes)])
            self.store(half, to, self.builder.and_(mask, others))

    def _store_one_by_one(self, vector: Any, place: Any, rest: Any) -> None:
        """The same where stores by a mask are slow: on AMD's CPUs with AVX2 they took seven times as long."""
        for k in range(self._lanes):
            is_there = None if rest is None else self.builder.icmp_signed("<", INT64(k), rest)
            with nullcontext() if is_there is None else self.builder.if_then(is_there):
                element = self.builder.extract_element(vector, ir.IntType(32)(k))
                self.builder.store(element, self.at(place, 2 * k))

    def _spread_masks(self, rest: Any) -> tuple[Any, Any]:
        """Masks of two vectors that reach to the last of `rest` elements with a stride of 2."""
        reach = self.builder.sub(self.times(rest, 2), INT64(1))
        return self.mask(reach), self.mask(self.builder.sub(reach, INT64(self._lanes)))

    def store_past_caches(self, vector: Any, place: Any) -> None:
        """Store a vector past the caches; it begins at a multiple of its size."""
        store_past_caches(self.builder, vector, self._pointer(place), self._lanes * self._size)

    def places(self, target: Any, line: Any, rows: int, vectors: int) -> list[list[Any]]:
        """The places of a tile's vectors in memory."""
        starts = [self.at(target, self.times(line, m)) for m in range(rows)]
        return [[self.at(start, v * self._lanes) for v in range(vectors)] for start in starts]


class TileSums:
    """The sums of a tile, in registers: rows of vectors, which begin as the given ones.

    In memory a tile has rows of `line` elements. A mask selects the elements of each row's last vector.
    """

    def __init__(self, code: VectorCode, vectors: Iterable[Iterable[Any]]) -> None:
        self._code = code
        self._rows = [[code.variable(vector) for vector in row] for row in vectors]

    @classmethod
    def zeros(cls, code: VectorCode, rows: int, vectors: int) -> TileSums:
        """Sums that begin as zeros."""
        return cls(code, [[code.zero] * vectors] * rows)

    def _vectors(self, target: Any, line: Any, mask: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Each variable with its place in memory and its mask."""
        places = self._code.places(target, line, len(self._rows), len(self._rows[0]))
        for row, there in zip(self._rows, places, strict=True):
            yield from zip(row, there, [None] * (len(row) - 1) + [mask], strict=True)

    def load(self, source: Any, line: Any, mask: Any) -> None:
        """Load the tile."""
        for variable, place, own in self._vectors(source, line, mask):
            self._code.builder.store(self._code.load(place, own), variable)

    def add(self, source: Any, line: Any, mask: Any = None) -> None:
        """Load a tile and add it."""
        builder = self._code.builder
        before = TileSums.zeros(self._code, len(self._rows), len(self._rows[0]))
        before.load(source, line, mask)
        for row, others in zip(self._rows, before._rows, strict=True):
            for variable, other in zip(row, others, strict=True):
                builder.store(builder.fadd(builder.load(other), builder.load(variable)), variable)

    def store(self, target: Any, line: Any, mask: Any = None, past: Any = None) -> None:
        """Store the tile; if `past` holds, whole vectors past the caches."""
        if past is not None:
            with self._code.builder.if_else(past) as (holds, otherwise):
                with holds:
                    for variable, place, _ in self._vectors(target, line, None):
                        self._code.store_past_caches(self._code.builder.load(variable), place)
                with otherwise:
                    self.store(target, line, mask)
            return
        for variable, place, own in self._vectors(target, line, mask):
            self._code.store(self._code.builder.load(variable), place, own)

    def multiply_add(self, factors: Any, number: Any, vectors: list[Any]) -> None:
        """Add to each row its factor times the vectors, fused if the machine can.

        Without `number` all rows' factors are one line. Otherwise each row has a line of factors, and its
        factor is element `number` of that line.
        """
        code = self._code
        for m, row in enumerate(self._rows):
            place = code.at(factors, m) if number is None else code.at(factors[m], number)
            factor = code.everywhere(code.builder.load(place))
            for variable, vector in zip(row, vectors, strict=True):
                total = code.multiply_add(factor, vector, code.builder.load(variable))
                code.builder.store(total, variable)
