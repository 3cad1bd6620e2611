"""Matrix products of our own: C = A B or C += A B, compiled, for few rows and many, in any number of parts.

The columns of C follow one another, of each factor the rows' elements or the columns'. A product has the same
bits in any number of parts, and whether a factor was packed before or not: each element is the same sum, see
`native_products`. Needs llvmlite.

Who chooses: `plan`, from the sizes and the threads, the parts and how many columns of B are packed at a time;
`native_products.multiply`, in each part, whether B is packed at all; `register_tiles.tiles`, from the
machine, the tallest tile; `tiles_text` lower tiles for the last rows.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.products.tiles_text import tiles_text
from xpgrad.engine.compiled.records import Factor, ProductRecord, Products, flat
from xpgrad.engine.process import settings, sharing
from xpgrad.engine.process.memory import LINE, WorkMemory, Workspaces, address_of, aligned, name_of
from xpgrad.engine.process.team import Team, integers
from xpgrad.engine.symbols import of_numbers, rounded_up

_INNER = 256  # elements of a block of a sum, at most
ROWS, PACKED_ROWS = 32, 64
"""Rows of A that meet one panel of B after the other: of an A by rows, and of one by columns, to be packed.

For each summed element these come from another page of memory: so several lines at a time.
"""

FEW_ROWS = 16
"""Rows of an A by rows for which a B by rows is not packed: that takes as long as the product.

Their sums take the memory of B's packed block, of at least so many rows (`largest_block`).
"""
STRIP, FEW_PANELS, WIDE = 64, 2, 2
"""Of a transposed product, see `native_few_rows`: the columns of B in a strip, and the most panels of A.

With more than one panel, B has at least `WIDE` columns for each row of A. The result of each strip is
transposed back.
"""

# Rows of each thread from which on a product is divided by rows, though each thread then packs all of B; if B
# has so many times as many columns, that takes longer than to read all of A.
_MANY_ROWS, _WIDE = 64, 3


_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def block_of(inner: int) -> int:
    """Elements of a block of a sum, of which the last one may have fewer.

    A panel of B and the rows of A that meet it stay in near caches meanwhile. Blocks are about equal: each
    one reads and writes C, which a short one is not worth. Longer ones would have larger rounding errors.
    """
    inner = max(inner, 1)
    count = (inner + _INNER - 1) // _INNER
    even = (inner + count - 1) // count
    return (even + 15) // 16 * 16  # in whole vectors, as a factor is turned


@of_numbers
def largest_block(inner: int) -> int:
    """The largest `block_of` any sum of at most so many elements.

    A longer sum may have shorter blocks: 544 elements are three blocks of 192, 256 elements one block of 256.
    """
    return min((max(inner, 1) + 15) // 16 * 16, _INNER)


class Functions(NamedTuple):
    """The compiled functions for a dtype, by address, and how they lay out a packed matrix.

    Parameters
    ----------
    tiles : int
        Runs through the tiles of some rows and one panel.
    pack : int
        ``(source, row, column, inner, columns, target)``: a matrix (inner, columns), with the distances of
        its rows and of its columns, into panels.
    pack_part : int
        ``(data, part)``: some of the panels; see `records.Packing`.
    by_panels : int
        Multiplies with panels; see `native_products`.
    multiply : int
        ``(data, part)``: a part of the product that a `ProductPlan` describes.
    height, width, lanes : int
        Rows of the tallest tile; columns of the widest panel, and of a vector.
    """

    tiles: int
    pack: int
    pack_part: int
    by_panels: int
    multiply: int
    height: int
    width: int
    lanes: int

    def padded(self, columns: int) -> int:
        """How many columns a packed matrix has."""
        return rounded_up(columns, self.lanes)

    def panels(self, shape: Sequence[int]) -> int:
        """How many elements a packed matrix has, or a stack of them."""
        *lead, rows, columns = shape
        return prod(lead) * rows * self.padded(columns)


class ProductPlan(NamedTuple):
    """How a product is computed: in how many parts, and with how much memory.

    Parameters
    ----------
    functions : Functions
        Of its dtype.
    parts : int
        Each for a thread.
    by_rows : bool
        Whether a part is some of C's rows, else some of its columns.
    columns : int
        Of B that are packed at a time.
    bytes : int
        Memory of each part.
    """

    functions: Functions
    parts: int
    by_rows: bool
    columns: int
    bytes: int

    def workspaces(self, parts: int) -> Workspaces:
        """The memory of so many parts."""
        return Workspaces(parts, self.bytes)

    def record(
        self, sizes: Sequence[Any], c: Factor, a: Factor, b: Factor, add: bool, memory: Any
    ) -> ProductRecord:
        """What `multiply` takes; each size is at most the one that `plan` was given."""
        m, n, k = sizes
        return ProductRecord(
            tiles=self.functions.tiles,
            pack=self.functions.pack,
            by_panels=self.functions.by_panels,
            m=m,
            n=n,
            k=k,
            add=int(add),
            by_rows=int(self.by_rows),
            parts=self.parts,
            c=c.address,
            c_line=c.row,
            a=a,
            b=b,
            memory=memory,
            bytes=self.workspaces(self.parts).stride,
            columns=self.columns,
        )


def plan(dtype: str, sizes: tuple[int, int, int], threads: int, grain: int = 1) -> ProductPlan:
    """How to compute a product in at most `threads` threads.

    The sizes are rows and columns of C, and how many elements a sum has: the largest ones, where a run may
    have smaller ones. For `grain` see `process.team`.
    """
    functions = compiled_products(dtype)
    m, n, k = sizes
    parts, by_rows = 1, True
    if threads > 1 and (threads := sharing.product_threads(m * n * k, threads, grain)) > 1:
        by_rows = m >= n or (m >= _MANY_ROWS * threads and m * _WIDE >= n)
        parts = max(1, min(threads, m // functions.height if by_rows else n // functions.width))
    itemsize = np.dtype(dtype).itemsize
    columns = _columns_packed(functions.padded(n), k, functions.width, itemsize)
    size = _bytes(m, n, k, columns, functions.height, functions.width, itemsize)
    return ProductPlan(functions, parts, by_rows, columns, size)


@of_numbers
def _columns_packed(n: int, k: int, width: int, itemsize: int) -> int:
    """How many columns of B are packed at a time.

    They leave a second-level cache room for A, which is read again for each part of B.
    """
    fitting = 3 * settings.second_level_cache() // 8 // (largest_block(k) * itemsize)
    return min(fitting // width * width, n)


@of_numbers
def _bytes(m: int, n: int, k: int, columns: int, height: int, width: int, itemsize: int) -> int:
    """The memory of a part of a product, which may be computed as its transpose."""
    gaps = PACKED_ROWS // height - 1  # between groups of rows
    packed = itemsize * largest_block(k) * (columns + PACKED_ROWS) + gaps * LINE
    turned_rows = width * (FEW_PANELS if m > width and n > WIDE * width else 1)  # the most rows of A
    return max(packed, itemsize * (largest_block(k) + 2 * STRIP) * turned_rows)


def can_multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    """Whether `multiply` takes these: one dtype that it knows, and C's elements follow one another."""
    return all(x.dtype == a.dtype and x.flags.aligned for x in (a, b, c)) and (
        a.dtype in _DTYPES and min(c.strides[-2:], default=0) == c.itemsize
    )


def multiply(team: Team, a: np.ndarray, b: np.ndarray, c: np.ndarray, add: bool = False) -> None:
    """C = A B or C += A B, in the team's threads, for matrices or stacks of them as `can_multiply` tells.

    A stack of factors may be broadcast. C meets neither factor. A factor whose elements follow one another
    along neither axis, or backwards along one, is copied.
    """
    if not c.size:
        return
    if c.strides[-1] != c.itemsize and c.shape[-1] > 1:  # by columns: its transpose is by rows
        a, b, c = b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2)
    a, b = (x if _is_lined_up(x) else np.ascontiguousarray(x) for x in (a, b))
    lead = c.shape[:-2]
    if prod(lead) == 1:
        a, b, c = (x.reshape(x.shape[-2:]) for x in (a, b, c))
        _multiply_one(team, a, b, c, add)
        return
    a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    if all(map(_is_one_stack, (a, b, c))):
        a, b, c = map(_as_one_stack, (a, b, c))
        _multiply_each(team, a, b, c, add)
    else:
        for parts in zip(a, b, c, strict=True):
            multiply(team, *parts, add)


def _multiply_one(team: Team, a: np.ndarray, b: np.ndarray, c: np.ndarray, add: bool) -> None:
    sizes = (*c.shape, a.shape[1])
    planned = plan(name_of(c.dtype), sizes, team.free(), team.grain)
    with WorkMemory(planned.workspaces(planned.parts), f"a product of {sizes}") as memory:
        numbers = integers(flat(planned.record(sizes, _matrix(c), _matrix(a), _matrix(b), add, memory)))
        team.run(planned.functions.multiply, ctypes.addressof(numbers), planned.parts)


def _multiply_each(team: Team, a: np.ndarray, b: np.ndarray, c: np.ndarray, add: bool) -> None:
    """Products of stacks with one axis: each thread computes some of them."""
    (count, m, n), k = c.shape, a.shape[2]
    sizes = m, n, k
    planned = plan(name_of(c.dtype), sizes, 1)
    parts = min(count, sharing.product_threads(prod(sizes) * count, team.free(), team.grain))
    c_step, a_step, b_step = (x.strides[0] // x.itemsize for x in (c, a, b))
    with WorkMemory(planned.workspaces(parts), f"{count} products of {sizes}") as memory:
        first = planned.record(sizes, _matrix(c[0]), _matrix(a[0]), _matrix(b[0]), add, memory)
        record = Products(planned.functions.multiply, count, parts, c_step, a_step, b_step, first)
        numbers = integers(flat(record))
        team.run(compiled_stack_product(name_of(c.dtype)), ctypes.addressof(numbers), parts)


def _is_one_stack(x: np.ndarray) -> bool:
    """Whether its matrices are at equal distances; all of them may be the same one."""
    lead = [(size, step) for size, step in zip(x.shape[:-2], x.strides, strict=False) if size > 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(lead))


def _as_one_stack(x: np.ndarray) -> np.ndarray:
    """Its matrices along one axis."""
    steps = [step for size, step in zip(x.shape[:-2], x.strides, strict=False) if size > 1]
    shape, strides = (prod(x.shape[:-2]), *x.shape[-2:]), (steps[-1], *x.strides[-2:])
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=x.flags.writeable)


def packed(b: np.ndarray) -> np.ndarray:
    """A matrix in panels, for products of some rows with it; those of a stack one behind the other."""
    functions = compiled_products(name_of(b.dtype))
    b = b if _is_lined_up(b) else np.ascontiguousarray(b)
    result = aligned((functions.panels(b.shape),), b.dtype)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(functions.pack)
    size = functions.panels(b.shape[-2:])
    for number, index in enumerate(np.ndindex(b.shape[:-2])):
        one = b[index]
        where = _matrix(one)
        to = address_of(result) + b.itemsize * size * number
        call(where.address, where.row, where.column, *one.shape, to)
    return result


def packed_product(a: np.ndarray, panels: np.ndarray, c: np.ndarray) -> Callable[[], None]:
    """A function that computes C = A B in its caller's thread, for a packed B.

    A and C are by rows, and A is not empty along its rows.
    """
    functions, line = compiled_products(name_of(c.dtype)), a.strides[0] // a.itemsize
    numbers = (
        functions.tiles, 1, address_of(a), line, functions.height * line, len(a), address_of(panels), 0,
        a.shape[1], c.shape[1], 0, 1, address_of(c), c.strides[0] // c.itemsize, 0, 0,
    )  # fmt: skip
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(numbers))(functions.by_panels)
    arguments, kept = [*map(ctypes.c_int64, numbers)], (a, panels, c)

    def product(memory: tuple = kept) -> None:
        call(*arguments)

    return product


def _is_lined_up(x: np.ndarray) -> bool:
    """Whether the elements of rows or of columns follow one another, and no axis runs backwards in memory.

    Elements of a record's field may lie at no multiple of their size: such a matrix is not lined up.
    """
    if not x.flags.aligned or any(stride % x.itemsize for stride in x.strides):
        return False
    return (x.itemsize in x.strides[-2:] or 1 in x.shape[-2:]) and min(x.strides[-2:]) >= 0


def _matrix(x: np.ndarray) -> Factor:
    row, column = (stride // x.itemsize for stride in x.strides)
    if column != 1 and x.shape[1] == 1:
        column = 1
    elif 1 not in (row, column):  # it has one row
        row = 1
    return Factor(address_of(x), row, column)


_PACK_TAKES = "source, row, column, inner, columns, target"
_BY_PANELS_TAKES = (
    "tiles, by_rows, a, a_line, a_tile, rows, b, b_line, inner, columns, part, parts, c, c_line, add, ahead"
)


@functools.cache
def compiled_products(dtype: str) -> Functions:
    """The compiled functions for a dtype."""
    from xpgrad.engine.compiled.cache import load
    from xpgrad.engine.compiled.register_tiles import tiles

    lanes, height, vectors = _shape(dtype)
    text = tiles_text(dtype, lanes, height, vectors, tiles().passes)
    run_tiles = load(f"tiles_{dtype}", text).run
    compiled = functools.partial(_compiled, dtype)
    return Functions(
        tiles=run_tiles.address,
        pack=compiled("pack", _PACK_TAKES),
        pack_part=compiled("pack_part", "data, part", "fields(data), part"),
        by_panels=compiled("by_panels", _BY_PANELS_TAKES),
        multiply=compiled("multiply", "data, part", "fields(data), part"),
        height=height,
        width=vectors * lanes,
        lanes=lanes,
    )


@functools.cache
def compiled_stack_product(dtype: str) -> int:
    """The address of ``(data, part)``: some of the products of a stack; see `records.Products`."""
    return _compiled(dtype, "multiply_each", "data, part", "fields(data), part")


def _compiled(dtype: str, name: str, arguments: str, call: str = "") -> int:
    """The address of one of the functions of `native_products`."""
    from xpgrad.engine.compiled.formula_code import c_function

    made = f"{name}({dtype!r}, {', '.join(map(str, _shape(dtype)))})"
    integers = ", ".join(f"int64 {argument}" for argument in arguments.split(", "))
    module = "compiled.products.native_products"
    return c_function(f"{name}_{dtype}", module, integers, f"made({call or arguments})", made)


def _shape(dtype: str) -> tuple[int, int, int]:
    """Elements of a vector, rows and vectors of the tallest tile."""
    from xpgrad.engine.compiled.register_tiles import tiles

    shape = tiles()
    return shape.lanes(dtype), *shape.tall
