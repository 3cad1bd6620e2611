"""Matrix products of our own: every shape of tile, order of the factors, division and dtype."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no compiled products")

from llvmlite import binding

from compiled_calls import written
from xpgrad.engine import NumpyEngine, describe_products
from xpgrad.engine.compiled import formula_code, register_tiles
from xpgrad.engine.compiled.machine_code import linker
from xpgrad.engine.compiled.products import matrix as products
from xpgrad.engine.compiled.products.tiles_text import tiles_text
from xpgrad.engine.compiled.records import Factor, Packing, flat
from xpgrad.engine.process import sharing
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.team import PoolTeam, integers

# Sizes at which tiles, panels, vectors and blocks of a sum end, and their neighbours.
SIZES = [
    0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 49, 64, 95, 97, 193, 255, 256, 257, 300,
    513, 520, 600,
]  # fmt: skip
DTYPES = ["float32", "float64"]
ORDERS = list(itertools.product(["rows", "columns"], repeat=2))
SHAPES = {
    "this machine": register_tiles.tiles(),
    "many registers": register_tiles._MANY_REGISTERS,
    "few registers": register_tiles._FEW_REGISTERS,
    "short vectors": register_tiles._FEW_REGISTERS._replace(bytes=16),
}


class Team(PoolTeam):
    """So many threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def size(self) -> int:
        return self._threads


def matrix(rng, rows, columns, dtype, order):
    """Random numbers by rows or by columns, within a larger array whose other elements are NaN."""
    if order == "columns":
        return matrix(rng, columns, rows, dtype, "rows").T
    whole = np.full((rows, columns + int(rng.integers(0, 3))), np.nan, dtype=dtype)
    whole[:, :columns] = rng.normal(size=(rows, columns))
    return whole[:, :columns]


def exact(a, b, c, add):
    """In float64, and how large its error may be in the arrays' dtype."""
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    magnitude = np.abs(a) @ np.abs(b) + np.abs(c)
    return a @ b + (c if add else 0), magnitude


def problem(rng, m, n, k, dtype, orders):
    a, b = matrix(rng, m, k, dtype, orders[0]), matrix(rng, k, n, dtype, orders[1])
    return a, b, rng.normal(size=(m, n + 3)).astype(dtype)


def computed(a, b, whole, n, add, threads):
    """C within its whole array, behind which nothing may change."""
    result = whole.copy()
    products.multiply(Team(threads), a, b, result[:, :n], add)
    np.testing.assert_array_equal(result[:, n:], whole[:, n:])
    return result[:, :n]


def check(rng, m, n, k, dtype, orders, add, monkeypatch):
    a, b, whole = problem(rng, m, n, k, dtype, orders)
    expected, magnitude = exact(a, b, whole[:, :n], add)
    found = computed(a, b, whole, n, add, 1)
    assert np.all(np.abs(found - expected) <= 40 * np.finfo(dtype).eps * magnitude)
    for threads, many in [(2, 1), (3, 1 << 20)]:  # by rows, by columns
        monkeypatch.setattr(sharing, "PRODUCT", 0)
        monkeypatch.setattr(products, "_MANY_ROWS", many)
        monkeypatch.setattr(products, "_WIDE", 1 << 20)
        np.testing.assert_array_equal(computed(a, b, whole, n, add, threads), found)
    monkeypatch.undo()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("add", [False, True])
def test_product(add, orders, dtype, monkeypatch):
    rng = np.random.default_rng(len(orders[0]) + 2 * len(orders[1]))
    for _ in range(40):
        check(rng, *(int(rng.choice(SIZES)) for _ in range(3)), dtype, orders, add, monkeypatch)


@pytest.mark.parametrize("rows", range(1, 18))
def test_every_number_of_rows(rows, monkeypatch):
    rng = np.random.default_rng(rows)
    for orders in ORDERS:
        check(rng, rows, 250, 35, "float32", orders, False, monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_tiles_for_other_machines(name, dtype, monkeypatch):
    monkeypatch.setattr(register_tiles, "tiles", lambda: SHAPES[name])
    monkeypatch.setattr(
        products, "compiled_products", functools.cache(products.compiled_products.__wrapped__)
    )
    rng = np.random.default_rng(1)
    for m, orders in itertools.product([1, 2, 13], ORDERS):
        a, b, whole = problem(rng, m, 101, 300, dtype, orders)
        expected, magnitude = exact(a, b, whole[:, :101], True)
        found = computed(a, b, whole, 101, True, 1)
        assert np.all(np.abs(found - expected) <= 40 * np.finfo(dtype).eps * magnitude)


@pytest.mark.parametrize("paced", [True, False])
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_loop_of_a_tile_has_the_passes_of_the_machine(dtype, by_rows, paced):
    """LLVM adds none: of two passes with many sums it keeps some on the stack, which takes twice as long."""
    shape = register_tiles.tiles()
    height, vectors = shape.tall
    for passes in (1, shape.passes):
        kind = height, vectors, 1, by_rows, 0
        tile = register_tiles.matrix_tile(dtype, shape.lanes(dtype), *kind, paced=paced, passes=passes)

        def run(a, a_line, b, b_line, b_panel, count, c, c_line, columns, add, tile=tile):
            tile(a, a_line, b, b_line, b_panel, count, c, c_line, columns, add)

        module = binding.parse_assembly(str(written(run, f"void({', '.join(['int64'] * 10)})")[0]))
        linker().optimize(module)
        multiply_adds = re.findall(r"= (?:tail )?call .* @llvm\.fmuladd\.", str(module))
        loops = 1 + paced + passes * (passes > 1)  # a paced tile has two loops; several passes leave a rest
        assert len(multiply_adds) == loops * height * vectors


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_columns_than_are_packed_at_a_time(dtype, monkeypatch):
    rng = np.random.default_rng(2)
    check(rng, 40, 900, 270, dtype, ("rows", "columns"), True, monkeypatch)
    check(rng, 40, 900, 270, dtype, ("columns", "rows"), False, monkeypatch)


@pytest.mark.parametrize(("rows", "order"), [(1, "columns"), (12, "columns"), (47, "columns"), (12, "rows")])
@pytest.mark.parametrize("add", [False, True])
def test_few_rows_and_a_large_weight_have_the_bits_of_many_rows(rows, order, add):
    """The weight is read where it is: turned if it is by columns, and some rows at a time if by rows."""
    check_few_rows(rows, 8200 if rows == 1 else 2100, 516, "float32", order, add)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(128, 128), (127, 130), (300, 257), (61, 1030), (1030, 61)], ids=str)
def test_few_rows_and_a_near_weight_by_columns_have_the_bits_of_many_rows(dtype, sizes):
    """Rows of all numbers around those that fill vectors and panels."""
    width, lanes = (getattr(products.compiled_products(dtype), name) for name in ("width", "lanes"))
    some = {1, 3 * lanes // 4 - 1, 3 * lanes // 4, lanes, lanes + 1, 2 * lanes, width - 1, width, width + 1}
    some |= {products.FEW_PANELS * width, products.FEW_PANELS * width + 1}
    for rows in sorted(some):
        check_few_rows(rows, *sizes, dtype, "columns", rows % 2 == 0)


def check_few_rows(rows, n, k, dtype, order, add):
    """The first rows of a product have the same bits in a product of only these."""
    rng = np.random.default_rng(rows)
    a, b, whole = problem(rng, 200, n, k, dtype, ("rows", order))
    expected = computed(a, b, whole, n, add, 1)[:rows]
    for threads in (1, 2):
        for by in ("rows", "columns"):
            few = matrix(rng, rows, k, dtype, by)
            few[...] = a[:rows]
            np.testing.assert_array_equal(computed(few, b, whole[:rows], n, add, threads), expected)


@pytest.mark.parametrize(("dtype", "order"), [("float32", "columns"), ("float64", "rows")])
def test_a_result_larger_than_caches(dtype, order):
    """It goes past them in whole vectors, where its rows begin with such, and only without a sum in it."""
    rng, (m, n, k) = np.random.default_rng(6), (4100, 1024, 5)
    a, b = matrix(rng, m, k, dtype, order), matrix(rng, k, n, dtype, "rows")
    for columns, first in [(n, 0), (n - 19, 0), (n, 1)]:
        memory = np.full(m * n + 64, np.nan, dtype)
        begin = -(address_of(memory) // memory.itemsize) % 16 + first
        c = memory[begin : begin + m * n].reshape(m, n)[:, :columns]
        expected, magnitude = exact(a, b[:, :columns], np.zeros_like(c), False)
        for threads, add in [(1, False), (1, True), (2, False)]:
            products.multiply(Team(threads), a, b[:, :columns], c, add)
            assert np.all(np.abs(c - (1 + add) * expected) <= 40 * np.finfo(dtype).eps * magnitude)
        assert np.isnan(memory).sum() == memory.size - m * columns


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_packed_before_it_has_the_same_bits(order, dtype):
    rng = np.random.default_rng(3)
    functions = products.compiled_products(dtype)
    for m, n, k in [(1, 500, 300), (2, 200, 31), (13, 49, 600), (32, 48, 16), (3, 5, 1), (9, 112, 20)]:
        a, b, whole = problem(rng, m, n, k, dtype, ("rows", order))
        packed = products.packed(b)
        result = np.array(whole)
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 16)(functions.by_panels)
        row = a.strides[0] // a.itemsize
        for part in range(3):
            call(functions.tiles, 1, address_of(a), row, functions.height * row, m, address_of(packed), 0, k,
                 n, part, 3, address_of(result), n + 3, 0, 0)  # fmt: skip
        np.testing.assert_array_equal(result[:, :n], computed(a, b, whole, n, False, 1))
        np.testing.assert_array_equal(result[:, n:], whole[:, n:])


def test_what_it_takes():
    """Other dtypes, orders and alignments are told, or copied where that is possible."""
    rng = np.random.default_rng(4)
    a, b, c = rng.normal(size=(6, 4)), rng.normal(size=(4, 10)), np.empty((6, 5))
    assert products.can_multiply(a, b[:, ::2], c)
    products.multiply(Team(1), a, b[:, ::2], c)
    np.testing.assert_allclose(c, a @ b[:, ::2], rtol=1e-14)
    products.multiply(Team(1), a[::-1], b[:, 4::-1], c)
    np.testing.assert_allclose(c, a[::-1] @ b[:, 4::-1], rtol=1e-14)
    turned = np.empty((5, 6)).T
    products.multiply(Team(1), a, b[:, :5], turned)
    np.testing.assert_allclose(turned, a @ b[:, :5], rtol=1e-14)
    products.multiply(Team(1), np.broadcast_to(2.0, (6, 4)), b[:, :5], turned, add=True)
    np.testing.assert_allclose(turned, (a + 2) @ b[:, :5], rtol=1e-14)
    assert not products.can_multiply(a, b[:, ::2], np.empty((6, 10))[:, ::2])
    assert not products.can_multiply(a, b.astype(np.float32)[:, :5], c)
    assert not products.can_multiply(a.astype(int), b.astype(int)[:, :5], c.astype(int))
    assert not products.can_multiply(
        a, b[:, :5], np.empty(6 * 5 * 8 + 1, np.uint8)[1:].view(float).reshape(6, 5)
    )
    assert not products.can_multiply(a.astype(">f8"), b[:, :5].astype(">f8"), c.astype(">f8"))


STACKS = {
    "each with its own": ((5,), (5,), (5,)),
    "one factor for all": ((), (5,), (5,)),
    "two axes": ((3, 4), (3, 4), (3, 4)),
    "the same ones along an axis": ((4,), (3, 4), (3, 4)),
    "the same one along another": ((3, 1), (3, 4), (3, 4)),
    "a single one": ((1, 1), (1,), (1, 1)),
    "none": ((0,), (0,), (0,)),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("name", STACKS)
def test_stacks(name, orders, threads, monkeypatch):
    """At any distances, which need not be those of one stack."""
    monkeypatch.setattr(sharing, "PRODUCT", 0)
    rng, (a_lead, b_lead, c_lead), (m, n, k) = np.random.default_rng(5), STACKS[name], (9, 53, 20)
    whole = rng.normal(size=(*(size + 1 for size in c_lead), m, n + 3))
    for add, apart in itertools.product((False, True), repeat=2):
        a, b = (
            rng.normal(size=(*lead, *(size if order == "rows" else size[::-1])))
            for lead, size, order in ((a_lead, (m, k), orders[0]), (b_lead, (k, n), orders[1]))
        )
        a, b = (x if order == "rows" else x.swapaxes(-1, -2) for x, order in zip((a, b), orders, strict=True))
        c = whole.copy()
        place = (*(slice(0, size) for size in c_lead), ..., slice(0, n))
        target = c[place] if apart else np.ascontiguousarray(c[place])
        before = target.copy()
        assert products.can_multiply(a, b, target)
        products.multiply(Team(threads), a, b, target, add)
        np.testing.assert_allclose(target, a @ b + (before if add else 0), rtol=1e-12, atol=1e-13)
        if apart:
            c[place] = whole[place]
            np.testing.assert_array_equal(c, whole)


def test_each_thread_packs_into_its_own_memory():
    rng = np.random.default_rng(6)
    a, b, c = rng.normal(size=(60, 9, 300)), rng.normal(size=(60, 300, 260)), np.empty((60, 9, 260))
    for _ in range(5):
        products.multiply(Team(4), a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-11, atol=1e-12)


def test_every_product_of_a_compiled_dtype_is_ours(rng, compiled, monkeypatch):
    """Of whatever sizes and layouts, added or not; those of other dtypes are NumPy's."""
    one, library = NumpyEngine(), []

    def note(a, *others):
        library.append(a.dtype.name)

    monkeypatch.setattr(one, "_write_library_product", note)
    monkeypatch.setattr(one, "_add_library_product", note)
    sizes = [(1, 1, 1), (300, 64, 200), (200, 300, 64), (300, 200, 200), (5, 31, 16), (2, 256, 1024)]
    for dtype in (*DTYPES, "complex128"):
        for (m, k, n), orders in itertools.product(sizes, ORDERS):
            a, b = (matrix(rng, *s, dtype, order) for s, order in zip([(m, k), (k, n)], orders, strict=True))
            c = one.product(a, b)
            one.add_product(c, a, b)
            if dtype != "complex128":
                np.testing.assert_allclose(c, 2 * (a @ b), rtol=0, atol=1e-3)
    assert library == ["complex128"] * 2 * len(sizes) * len(ORDERS)


def test_it_is_told_whose_products_are_used(compiled, monkeypatch):
    lines = describe_products()
    assert {lines[f"numpy, {dtype}"].partition(":")[0] for dtype in DTYPES} == {"own"}
    monkeypatch.setenv("XPGRAD_PRODUCTS", "blas")
    assert describe_products() == lines
    monkeypatch.setenv("XPGRAD_JIT", "0")
    assert describe_products() == {}


def test_products_in_threads_of_a_map_use_one_thread(monkeypatch):
    """The others are busy; their number is right again after the map, and after an error in it."""
    team, found = Team(3), []

    def one(number):
        found.append((team.size(), team.free(), team.map(lambda item: team.free(), range(2))))
        if number == 5:
            raise ValueError("five")

    team.map(one, range(4))
    with pytest.raises(ValueError, match="five"):
        team.map(one, range(6))
    assert set(map(str, found)) == {str((3, 1, [1, 1]))}
    assert team.free() == 3


def test_the_text_says_what_it_holds(monkeypatch: pytest.MonkeyPatch):
    """A change of the tiles or of what goes around them is another file of the cache."""
    assert formula_code.versions() in tiles_text("float32", 16, 8, 3, 1)
    texts: list[str] = []
    made = SimpleNamespace(run=SimpleNamespace(address=5))
    monkeypatch.setattr(formula_code, "load", lambda label, text, given: texts.append(text) or made)
    assert (
        formula_code.c_function("one", "compiled.native", "int64 data, int64 part", "made(data)", "f(1)") == 5
    )
    assert formula_code.versions() in texts[0]
    assert "from xpgrad.engine.compiled.native import *\n" in texts[0]
    assert "\n\nmade = f(1)\n" in texts[0]


_FROM_CACHE = """
import sys
import numpy as np
from xpgrad.engine.compiled.products import matrix as products

for dtype in sys.argv[1:]:
    b = np.arange(1.0, 4097).reshape(64, 64).astype(dtype) / 4096
    c = np.empty((32, 64), dtype)
    a, panels = np.eye(32, 64, dtype=dtype), products.packed(b)
    products.packed_product(a, panels, c)()
    assert np.array_equal(c, b[:32]), dtype
"""


def test_dtypes_that_two_processes_compiled_stay_apart_in_a_third(tmp_path):
    """Their functions are alike but for the dtype, and so could be one symbol."""
    environment = {**os.environ, "XPGRAD_CACHE_DIR": str(tmp_path)}
    for dtypes in (["float32"], ["float64"], ["float64", "float32"]):
        subprocess.run([sys.executable, "-c", _FROM_CACHE, *dtypes], env=environment, check=True)


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("inner", "columns"), [(33, 1), (5, 47), (64, 48), (18, 60), (20, 65), (9, 112), (7, 200), (31, 333)]
)
def test_panels_are_packed_in_parts(inner, columns, dtype, order):
    rng = np.random.default_rng(inner)
    check_packing(matrix(rng, inner, columns, dtype, order)[None], order)
    check_packing(rng.normal(size=(5, inner, columns)).astype(dtype), order)


def check_packing(stack, order):
    """In any number of parts the panels of matrices are those of each one by itself."""
    if order == "columns":
        stack = np.ascontiguousarray(stack.swapaxes(1, 2)).swapaxes(1, 2)
    count, inner, columns = stack.shape
    functions = products.compiled_products(stack.dtype.name)
    expected = np.concatenate([products.packed(b) for b in stack])
    np.testing.assert_array_equal(products.packed(stack), expected)
    found = np.full_like(expected, np.nan)
    apart, *strides = (stride // stack.itemsize for stride in stack.strides)
    factor = Factor(address_of(stack), *strides)
    for parts in (1, 2, 3, 16):
        record = Packing(functions.pack, parts, inner, columns, factor, address_of(found), count, apart)
        data = integers(flat(record))
        for part in range(parts):
            ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(functions.pack_part)(
                ctypes.addressof(data), part
            )
        np.testing.assert_array_equal(found, expected)
        found[:] = np.nan


def test_blocks_of_a_sum_are_about_equal():
    for inner in [*range(1, 1000), 25600]:
        block = products.block_of(inner)
        count, last = divmod(inner - 1, block)
        assert block % 16 == 0
        assert 128 < block <= 256 or not count
        assert last >= block // 2 or count not in (1, 2, 3)


def test_a_product_is_divided_where_less_is_packed():
    """By rows each thread packs B, by columns each reads all of A."""
    by_rows = {
        shape: products.plan("float32", shape, 2).by_rows for shape in [(700, 2600, 650), (1600, 1024, 256)]
    }
    assert by_rows == {(700, 2600, 650): False, (1600, 1024, 256): True}


def test_the_largest_block_of_all_shorter_sums():
    """`block_of` is not monotonic: the longest sum's blocks are shorter than those of some shorter sums."""
    largest = 0
    for inner in range(5000):
        largest = max(largest, products.block_of(inner))
        assert products.largest_block(inner) == largest


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
def test_a_plan_has_room_for_every_smaller_product(dtype, threads, orders, rng):
    """Lengths of sequences make a sum shorter than planned, and the rows of C fewer."""
    m, n, k = 260, 90, 544
    planned = products.plan(dtype, (m, n, k), threads)
    assert planned.parts == threads
    room = planned.workspaces(planned.parts)
    memory = np.empty(room.total + 4096, np.uint8)
    run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(planned.functions.multiply)
    for rows, inner in [*((m, k) for k in (0, 240, 256, 257, 513, 543)), (17, 256), (3, 256), (1, 1)]:
        a, b = matrix(rng, rows, inner, dtype, orders[0]), matrix(rng, inner, n, dtype, orders[1])
        c = np.full((rows, n), np.nan, dtype)
        # a part after the other: each must leave alone what others keep in their memory
        expected = np.full_like(memory, 0xA5)
        factors = [Factor(address_of(x), *(s // x.itemsize for s in x.strides)) for x in (c, a, b)]
        record = planned.record((rows, n, inner), *factors, False, address_of(memory))
        data = integers(flat(record))
        for part in range(planned.parts):
            memory[:] = 0xA5
            run(ctypes.addressof(data), part)
            own = slice(room.stride * part, room.stride * part + room.bytes)
            expected[own] = memory[own]
            np.testing.assert_array_equal(memory, expected)
            expected[:] = 0xA5
        right, magnitude = exact(a, b, np.zeros_like(c), False)
        assert np.all(np.abs(c - right) <= 4 * np.finfo(dtype).eps * magnitude + 1e-30)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 16, 17, 40])
@pytest.mark.parametrize("columns", [1, 15, 16, 60, 130])
def test_a_row_or_a_column_that_is_repeated(rows, columns):
    """A distance of 0 between rows also meant packed panels."""
    rng = np.random.default_rng(0)
    a, row, c = rng.normal(size=(rows, 9)), rng.normal(size=columns), np.zeros((rows, columns))
    B = np.broadcast_to(row, (9, columns))
    for A in (a, np.asfortranarray(a)):
        products.multiply(Team(1), A, B, c)
        np.testing.assert_allclose(c, A @ B, rtol=1e-12, atol=1e-12)
    turned = np.zeros((columns, rows)).T
    other = np.broadcast_to(rng.normal(size=(rows, 1)), (rows, 9))
    b = rng.normal(size=(9, columns))
    products.multiply(Team(1), other, b, turned)
    np.testing.assert_allclose(turned, other @ b, rtol=1e-12, atol=1e-12)
