"""Products of small tiles in vector registers: the innermost loops of matrix products and convolutions.

Compilers do not keep a tile of sums in registers by themselves, so these loops are written as vector
instructions, as many sums at a time as there are registers for. Addresses come in at run time. Needs numba.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from xpgrad.engine.process import numba_private

_INT64 = ir.IntType(64)
_REALS = {"float32": (ir.FloatType(), 4), "float64": (ir.DoubleType(), 8)}


class Tiles(NamedTuple):
    """The shapes of tiles for one kind of machine.

    Parameters
    ----------
    bytes : int
        Of a vector.
    tall, flat : tuple of int
        Rows and vectors of a tile of `sum_tile`, for many rows and for the last few.
    products : tuple of int
        Rows of a tile of `product_tile`, for 1, 2, ... vectors.
    """

    bytes: int
    tall: tuple[int, int]
    flat: tuple[int, int]
    products: tuple[int, ...]


# A tile's sums, the vectors that it loads and one of equal elements fill 32 registers, or 16.
_MANY_REGISTERS = Tiles(64, (8, 3), (4, 6), (8, 8, 8, 6))
_FEW_REGISTERS = Tiles(32, (4, 3), (2, 5), (8, 6, 4))


def _features() -> Mapping[str, bool]:
    """What compiled code may use: the host's, or what numba was told (``NUMBA_CPU_FEATURES``)."""
    told = os.environ.get("NUMBA_CPU_FEATURES")
    if told is None:
        return binding.get_host_cpu_features()
    return {word[1:]: word[0] == "+" for word in told.split(",") if word}


@functools.cache
def tiles() -> Tiles:
    """The shapes for this machine."""
    features = _features()
    if features.get("avx512f"):
        return _MANY_REGISTERS
    if features.get("avx2"):
        return _FEW_REGISTERS
    many = binding.get_process_triple().startswith(("aarch64", "arm64"))
    return (_MANY_REGISTERS if many else _FEW_REGISTERS)._replace(bytes=16)


@functools.cache
def sum_tile(dtype: str, lanes: int, rows: int, vectors: int) -> Any:
    """Weighted sums of stretches of memory.

    Returns ``tile(weights, elements, offsets, count, target, line)``: the first four are addresses and how
    many offsets there are. For m below `rows` and t below ``vectors * lanes`` it sets

        target[m * line + t] = sum over k of weights[k * rows + m] * elements[offsets[k] + t]
    """

    def generate(code: _Code, arguments: list[Any]) -> None:
        weights, elements, offsets, count, target, line = arguments
        weights, elements, target = code.reals(weights), code.reals(elements), code.reals(target)
        offsets = code.builder.inttoptr(offsets, _INT64.as_pointer())
        sums = [[code.variable(code.zero) for _ in range(vectors)] for _ in range(rows)]
        with code.loop(count) as k:
            stretch = code.at(elements, code.builder.load(code.at(offsets, k)))
            loaded = [code.load(code.at(stretch, v * lanes)) for v in range(vectors)]
            code.multiply_add(sums, code.at(weights, code.times(k, rows)), None, loaded)
        code.store(sums, target, line)

    return _tile(dtype, lanes, generate)


@functools.cache
def product_tile(dtype: str, lanes: int, rows: int, vectors: int) -> Any:
    """Inner products of stretches of memory with columns.

    Returns ``tile(elements, offsets, columns, count, target, line)``: `offsets` is the address of one for
    each row, `count` how many elements a stretch has. For m below `rows` and i below
    ``width = vectors * lanes`` it sets

        target[m * line + i] += sum over p of elements[offsets[m] + p] * columns[p * width + i]
    """

    def generate(code: _Code, arguments: list[Any]) -> None:
        elements, offsets, columns, count, target, line = arguments
        elements, columns, target = code.reals(elements), code.reals(columns), code.reals(target)
        offsets = code.builder.inttoptr(offsets, _INT64.as_pointer())
        stretches = [code.at(elements, code.builder.load(code.at(offsets, m))) for m in range(rows)]
        places = code.places(target, line, rows, vectors)
        sums = [[code.variable(code.load(place)) for place in row] for row in places]
        with code.loop(count) as p:
            start = code.at(columns, code.times(p, vectors * lanes))
            loaded = [code.load(code.at(start, v * lanes)) for v in range(vectors)]
            code.multiply_add(sums, stretches, p, loaded)
        code.store(sums, target, line)

    return _tile(dtype, lanes, generate)


@functools.cache
def matrix_tile(dtype: str, lanes: int, rows: int, vectors: int, panels: int, by_rows: bool) -> Any:
    """A tile of a matrix product, C = A B or C += A B.

    Returns ``tile(a, a_line, b, b_line, b_panel, count, c, c_line, columns, add)``: addresses of elements,
    distances in elements, how many elements a sum has, how many columns the tile has (all of its vectors'
    but some of the last one's), and whether to add to C. B has `panels` panels of ``width = vectors * lanes``
    columns each. For m below `rows` and t below `columns` it sets, or adds to,

        c[m * c_line + t] = sum over k of A[m, k] * b[(t // width) * b_panel + k * b_line + t % width]

    with ``A[m, k] = a[m * a_line + k]`` by rows, else ``a[k * a_line + m]``. A whole vector is read of b
    where the last one has fewer columns. Each sum is a chain of fused multiply-adds from zero on.
    """

    def generate(code: _Code, arguments: list[Any]) -> None:
        a, a_line, b, b_line, b_panel, count, c, c_line, columns, add = arguments
        a, b, c = code.reals(a), code.reals(b), code.reals(c)
        lines = [code.at(a, code.times(a_line, m) if by_rows else m) for m in range(rows)]
        starts = [code.at(b, code.times(b_panel, p)) for p in range(panels)]
        sums = [[code.variable(code.zero) for _ in range(panels * vectors)] for _ in range(rows)]
        with code.loop(count) as k:
            row = code.builder.mul(k, b_line)
            places = [code.at(start, row) for start in starts]
            loaded = [code.load(code.at(place, v * lanes)) for place in places for v in range(vectors)]
            code.multiply_add(sums, lines, k if by_rows else code.builder.mul(k, a_line), loaded)
        mask = code.mask(code.builder.sub(columns, _INT64((panels * vectors - 1) * lanes)))
        code.store_or_add(sums, c, c_line, mask, add)

    return _tile(dtype, lanes, generate, 10)


@functools.cache
def turn_tile(dtype: str, lanes: int) -> Any:
    """A square of as many rows as a vector has elements, rows becoming columns.

    Returns ``tile(source, row, target, line)``, with addresses and distances in elements. For p and i below
    `lanes` it sets

        target[p * line + i] = source[i * row + p]
    """

    def generate(code: _Code, arguments: list[Any]) -> None:
        source, row, target, line = arguments
        source, target = code.reals(source), code.reals(target)
        vectors = [code.load(code.at(source, code.times(row, i))) for i in range(lanes)]
        for _ in range(lanes.bit_length() - 1):  # each time the elements of two vectors alternate
            pairs = zip(vectors[: lanes // 2], vectors[lanes // 2 :], strict=True)
            vectors = [half for pair in pairs for half in code.alternating(*pair)]
        code.store([[code.variable(vector)] for vector in vectors], target, line)

    return _tile(dtype, lanes, generate, 4)


@functools.cache
def row_tile(dtype: str, lanes: int, from_step: int, to_step: int) -> Any:
    """A row of numbers from one place to another; one of the steps is 1, the other 1 or 2.

    Returns ``tile(source, target, count, more)``, with addresses, and `count` at least 1. For t below `count`
    it sets

        target[t * to_step] = source[t * from_step] + more

    and touches nothing else: rows are short, and what a compiler makes of the loop takes most of them one by
    one.
    """

    def generate(code: _Code, arguments: list[Any]) -> None:
        source, target, count, more = arguments
        source, target, more = code.reals(source), code.reals(target), code.everywhere(more)
        builder = code.builder
        whole = builder.udiv(builder.sub(count, _INT64(1)), _INT64(lanes))

        def move(i: Any, rest: Any) -> None:
            at = code.at(source, code.times(i, lanes * from_step))
            to = code.at(target, code.times(i, lanes * to_step))
            is_whole = from_step == 1
            row = code.load_first(at, rest) if is_whole else code.even(*code.load_spread(at, rest))
            row = builder.fadd(row, more)
            if to_step == 1:
                code.store_first(row, to, rest)
            else:
                code.store_spread(row, to, rest)

        with code.loop(whole) as i:
            move(i, None)
        move(whole, builder.sub(count, code.times(whole, lanes)))

    def codegen(context, builder, signature, args):
        generate(_Code(builder, dtype, lanes), list(args))
        return context.get_dummy_value()

    def row(typingctx, source, target, count, more):
        real = types.float32 if dtype == "float32" else types.float64
        return types.void(types.int64, types.int64, types.int64, real), codegen

    return intrinsic(row)


def _tile(dtype: str, lanes: int, generate: Any, count: int = 6) -> Any:
    """The generated function of `count` integers."""

    def codegen(context, builder, signature, args):
        generate(_Code(builder, dtype, lanes), list(args))
        return context.get_dummy_value()

    def ten(typingctx, a, b, c, d, e, f, g, h, i, j):
        return types.void(*[types.int64] * 10), codegen

    def six(typingctx, a, b, c, d, e, f):
        return types.void(*[types.int64] * 6), codegen

    def four(typingctx, a, b, c, d):
        return types.void(*[types.int64] * 4), codegen

    return intrinsic({10: ten, 6: six, 4: four}[count])


class _Code:
    """Vector instructions."""

    def __init__(self, builder: Any, dtype: str, lanes: int) -> None:
        self.builder = builder
        self._lanes = lanes
        self._real, self._size = _REALS[dtype]
        self._vector = ir.VectorType(self._real, lanes)
        self.zero = ir.Constant(self._vector, [0.0] * lanes)
        name = f"llvm.fma.v{lanes}f{8 * self._size}"
        kind = ir.FunctionType(self._vector, [self._vector] * 3)
        self._fma = numba_private.get_or_insert_function(builder.module, kind, name)

    def reals(self, address: Any) -> Any:
        """A pointer to real numbers."""
        return self.builder.inttoptr(address, self._real.as_pointer())

    def at(self, pointer: Any, number: Any) -> Any:
        """The pointer `number` elements further."""
        return self.builder.gep(pointer, [_INT64(number) if isinstance(number, int) else number])

    def times(self, number: Any, factor: int) -> Any:
        """A product of integers."""
        return self.builder.mul(number, _INT64(factor))

    def variable(self, value: Any) -> Any:
        """A variable, which becomes a register."""
        return numba_private.alloca_once_value(self.builder, value)

    @contextlib.contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """A loop over the numbers below `count`."""
        with numba_private.for_range(self.builder, count, intp=_INT64) as loop:
            yield loop.index

    def load(self, pointer: Any) -> Any:
        """A vector, from wherever it begins."""
        return self.builder.load(self.builder.bitcast(pointer, self._vector.as_pointer()), align=self._size)

    def places(self, target: Any, line: Any, rows: int, vectors: int) -> list[list[Any]]:
        """Where the vectors of a tile are in memory."""
        starts = [self.at(target, self.times(line, m)) for m in range(rows)]
        return [[self.at(start, v * self._lanes) for v in range(vectors)] for start in starts]

    def store(self, sums: list[list[Any]], target: Any, line: Any) -> None:
        """A tile into memory."""
        for row, places in zip(sums, self.places(target, line, len(sums), len(sums[0])), strict=True):
            for variable, place in zip(row, places, strict=True):
                to = self.builder.bitcast(place, self._vector.as_pointer())
                self.builder.store(self.builder.load(variable), to, align=self._size)

    def mask(self, count: Any) -> Any:
        """A mask of a vector's first `count` elements."""
        numbers = ir.VectorType(_INT64, self._lanes)
        places = ir.Constant(numbers, list(range(self._lanes)))
        return self.builder.icmp_signed("<", places, self._everywhere(count, numbers))

    def store_or_add(self, sums: list[list[Any]], target: Any, line: Any, mask: Any, add: Any) -> None:
        """A tile into memory, or added to what is there; of the last vector of each row what the mask has."""
        places = self.places(target, line, len(sums), len(sums[0]))
        adds = self.builder.icmp_signed("!=", add, _INT64(0))
        with self.builder.if_then(adds):
            for row, line_of in zip(sums, places, strict=True):
                for number, (variable, place) in enumerate(zip(row, line_of, strict=True)):
                    last = number == len(row) - 1
                    before = self._masked_load(place, mask) if last else self.load(place)
                    self.builder.store(self.builder.fadd(before, self.builder.load(variable)), variable)
        for row, line_of in zip(sums, places, strict=True):
            for variable, place in zip(row[:-1], line_of[:-1], strict=True):
                to = self.builder.bitcast(place, self._vector.as_pointer())
                self.builder.store(self.builder.load(variable), to, align=self._size)
            self._masked_store(self.builder.load(row[-1]), line_of[-1], mask)

    def _masked(self, kind: str, result: Any, arguments: list[Any]) -> Any:
        name = f"llvm.masked.{kind}.v{self._lanes}f{8 * self._size}.p0"
        function = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(
            numba_private.get_or_insert_function(self.builder.module, function, name), arguments
        )

    def _masked_load(self, place: Any, mask: Any) -> Any:
        pointer = self.builder.bitcast(place, self._vector.as_pointer())
        return self._masked("load", self._vector, [pointer, ir.IntType(32)(self._size), mask, self.zero])

    def _masked_store(self, vector: Any, place: Any, mask: Any) -> None:
        pointer = self.builder.bitcast(place, self._vector.as_pointer())
        self._masked("store", ir.VoidType(), [vector, pointer, ir.IntType(32)(self._size), mask])

    def multiply_add(self, sums: list[list[Any]], factors: Any, number: Any, vectors: list[Any]) -> None:
        """Add to each row's sums its factor times the vectors.

        The factors of all rows stand in a line, or each row has a line of its own, of which this is the
        element of that number.
        """
        for m, row in enumerate(sums):
            place = self.at(factors, m) if number is None else self.at(factors[m], number)
            factor = self._everywhere(self.builder.load(place), self._vector)
            for variable, vector in zip(row, vectors, strict=True):
                total = self.builder.call(self._fma, [factor, vector, self.builder.load(variable)])
                self.builder.store(total, variable)

    # Of a contiguous row: the whole vector where `rest` is None, else its first `rest` elements.

    def load_first(self, place: Any, rest: Any) -> Any:
        """The elements; what is behind them is 0."""
        return self.load(place) if rest is None else self._masked_load(place, self.mask(rest))

    def store_first(self, vector: Any, place: Any, rest: Any) -> None:
        """Into memory."""
        if rest is None:
            to = self.builder.bitcast(place, self._vector.as_pointer())
            self.builder.store(vector, to, align=self._size)
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
        all_of_them = _INT64(self._lanes) if rest is None else rest
        for half, to, mask in zip(halves, places, self._spread_masks(all_of_them), strict=True):
            others = ir.Constant(mask.type, [k % 2 == 0 for k in range(self._lanes)])
            self._masked_store(half, to, self.builder.and_(mask, others))

    def _spread_masks(self, rest: Any) -> tuple[Any, Any]:
        """Masks of two vectors that reach to the last of `rest` elements with a stride of 2."""
        reach = self.builder.sub(self.times(rest, 2), _INT64(1))
        return self.mask(reach), self.mask(self.builder.sub(reach, _INT64(self._lanes)))

    def even(self, a: Any, b: Any) -> Any:
        """Every other element of two vectors."""
        kind = ir.VectorType(ir.IntType(32), self._lanes)
        return self.builder.shuffle_vector(a, b, ir.Constant(kind, [2 * k for k in range(self._lanes)]))

    def everywhere(self, number: Any) -> Any:
        """A vector of equal elements."""
        return self._everywhere(number, self._vector)

    def alternating(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The elements of two vectors in turns: those of the first halves, and those of the second."""
        half = self._lanes // 2
        order = [place for i in range(self._lanes) for place in (i, self._lanes + i)]
        kind = ir.VectorType(ir.IntType(32), self._lanes)
        first, second = (
            self.builder.shuffle_vector(a, b, ir.Constant(kind, part))
            for part in (order[: 2 * half], order[2 * half :])
        )
        return first, second

    def _everywhere(self, number: Any, kind: Any) -> Any:
        """A vector, of that kind, of equal elements."""
        nothing = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(nothing, number, ir.IntType(32)(0))
        same = ir.Constant(ir.VectorType(ir.IntType(32), self._lanes), [0] * self._lanes)
        return self.builder.shuffle_vector(first, nothing, same)
