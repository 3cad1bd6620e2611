"""Convolutions by tiles in registers: every shape of a tile, and images in several stretches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no tiles")

import xpgrad
from backends import without_programs
from compiled_calls import compiled
from conv_cases import Case
from xpgrad._calls import families
from xpgrad._conv import patches
from xpgrad._conv.geometry import conv_geometry
from xpgrad._conv.winograd_formulas import DENSE, PIECES, ROW, STRIDED, Scheme
from xpgrad.engine import NumpyEngine
from xpgrad.engine.compiled import register_tiles, vector_code
from xpgrad.engine.images import compiled_shifts, row_tiles, shifts, windows
from xpgrad.testing import assert_close

RTOL = {"float64": 1e-12, "float32": 1e-5}
# Sums of a group that fill vectors, or end in a low panel of tiles, in a tall one, in none; products of one
# vector up to four.
CASES = {
    "a vector": Case((3, 6, 9, 11), (3, 6, 3, 3), {"pads": 1}),
    "two vectors": Case((2, 9, 23, 21), (30, 9, 5, 4), {"strides": [2, 3], "pads": [2, 1, 1, 2]}),
    "three vectors": Case((2, 24, 9, 11), (94, 12, 3, 3), {"pads": 1, "group": 2, "dilations": [2, 1]}),
    "four vectors": Case((1, 16, 301), (70, 16, 3), {"strides": 2, "pads": [3, 0]}),
    "rows in pieces that overlap": Case((2, 33, 9, 31), (48, 33, 3, 3), {"pads": 1}),
    "three dimensions": Case((2, 6, 5, 6, 7), (12, 3, 2, 3, 2), {"strides": [2, 1, 3], "group": 2}),
    "phases that nothing meets": Case((2, 7, 13, 9), (8, 7, 2, 1), {"strides": [4, 3], "pads": [1, 0, 3, 0]}),
}
SHAPES = {
    "many registers": register_tiles._MANY_REGISTERS,
    "few registers": register_tiles._FEW_REGISTERS,
    "short vectors": register_tiles._FEW_REGISTERS._replace(bytes=16),
}


def check(case: Case, dtype: str) -> None:
    """Y, dX, dW, dB and the samples' own dW against the direct sums."""
    arrays = case.arrays()
    expected = case.expected(arrays)
    X, W, B, dY = (arrays[name].astype(dtype) for name in ("X", "W", "B", "dY"))
    found = xpgrad.conv_grad(dY, X, W, method="taps", **case.attributes)._asdict()
    found["Y"] = xpgrad.conv(X, W, B, method="taps", **case.attributes)
    for name, actual in found.items():
        assert_close(actual, expected[name], like=X, rtol=RTOL[dtype], label=name)
    each = xpgrad.conv_grad(dY, X, W, method="taps", per_sample=True, wrt="W", **case.attributes).dW
    assert_close(each.sum(axis=0), expected["dW"], like=X, rtol=RTOL[dtype], label="the samples' dW")


@pytest.fixture(autouse=True, params=["in a program", "in the engine"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loops run as a program's instructions, and called one by one."""
    if request.param == "in the engine":
        with without_programs():
            yield
        return
    pytest.importorskip("torch", reason="its team of threads can be started by compiled code")
    monkeypatch.setattr(families, "known", families.CallCache())
    yield


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("name", CASES)
def test_many_channels(name: str, dtype: str) -> None:
    seen, made = CASES[name].W[1], CASES[name].W[0] // CASES[name].group
    assert compiled_shifts._many_channels(seen, made)
    assert compiled_shifts._many_channels(made, seen)
    check(CASES[name], dtype)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("many registers", "two vectors"),
        ("few registers", "phases that nothing meets"),
        ("short vectors", "two vectors"),
        ("short vectors", "rows in pieces that overlap"),
    ],
)
def test_tiles_for_other_machines(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_shifts, "tiles", lambda: SHAPES[name])
    check(CASES[case], "float32")


@pytest.mark.parametrize("bytes_of_vector", [16, 64])
@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("steps", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("features", ["+avx512f", ""])
def test_rows_of_every_length(
    features: str, adds: bool, steps: tuple[int, int], dtype: str, bytes_of_vector: int,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nothing beside a row is read into it, or written; with stores by a mask and without."""
    monkeypatch.setattr(vector_code, "features", lambda: frozenset([features[1:]]))
    size = np.dtype(dtype).itemsize
    lanes = bytes_of_vector // size
    tile = row_tiles.row_tile.__wrapped__(dtype, lanes, *steps, adds)

    def moved(source, target, count, more):
        tile(source + size, target + size, count, more)

    move = compiled(moved, f"void(int64, int64, int64, {dtype})")

    for count in range(1, 3 * lanes + 2):
        source = np.full(2 * count + 2, np.nan, dtype)
        target = np.full(2 * count + 2, 7, dtype)
        row, expected = rng.normal(size=count).astype(dtype), target.copy()
        source[1 : 1 + count * steps[0] : steps[0]] = row
        before = target[1 : 1 + count * steps[1] : steps[1]] if adds else np.dtype(dtype).type(0)
        expected[1 : 1 + count * steps[1] : steps[1]] = before + (row + np.dtype(dtype).type(3))
        move(source.ctypes.data, target.ctypes.data, count, 3)
        np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("bytes_of_vector", [16, 32, 64])
@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize(("step", "taken"), [(4, 6), (4, 4), (3, 3), (2, 5)])
def test_windows_of_a_row(
    step: int, taken: int, dtype: str, bytes_of_vector: int, rng: np.random.Generator
) -> None:
    """What lies outside of the row is 0, and not read."""
    size = np.dtype(dtype).itemsize
    lanes = bytes_of_vector // size
    some = row_tiles.split_tile(dtype, lanes, step, taken, False)
    whole = row_tiles.split_tile(dtype, lanes, step, taken, True)

    def windows_of(source, low, high, target, line, all_of_it):
        if all_of_it:
            whole(source, 0, 0, target, line)
        else:
            some(source, low, high, target, line)

    split = compiled(windows_of, f"void({'int64, ' * 5}int64)")

    reach, line = (lanes - 1) * step + taken, lanes + 3
    row = rng.normal(size=reach + lanes).astype(dtype)
    for low, high in [(0, len(row)), (-3, reach - 1), (1, 9), (lanes + 1, 2 * lanes + 3), (5, 6), (4, 0)]:
        inside = (np.arange(len(row)) >= low) & (np.arange(len(row)) < high)
        kept, source = np.where(inside, row, 0).astype(dtype), np.where(inside, row, np.nan).astype(dtype)
        expected = np.full((taken, line), 7, dtype)
        for j in range(taken):
            expected[j, :lanes] = kept[j : j + (lanes - 1) * step + 1 : step]
        for all_of_it in (False, True) if inside.all() else (False,):
            target = np.full((taken, line), 7, dtype)
            split(source.ctypes.data, low, high, target.ctypes.data, line, all_of_it)
            np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("bytes_of_vector", [16, 32, 64])
@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("step", [2, 3, 4])
def test_lines_as_a_row(step: int, dtype: str, bytes_of_vector: int, rng: np.random.Generator) -> None:
    """Nothing behind the row is written."""
    real = np.dtype(dtype).type
    lanes = bytes_of_vector // np.dtype(dtype).itemsize
    some = row_tiles.weave_tile(dtype, lanes, step, False)
    whole = row_tiles.weave_tile(dtype, lanes, step, True)

    def woven(source, line, target, count, more):
        if count < 0:
            whole(source, line, target, 0, more)
        else:
            some(source, line, target, count, more)

    weave = compiled(woven, f"void(int64, int64, int64, int64, {dtype})")

    lines = rng.normal(size=(step, lanes + 5)).astype(dtype)
    for count in range(-1, step * lanes + 2):
        target = np.full(step * lanes + 4, 7, dtype)
        kept = step * lanes if count < 0 else min(count, step * lanes)
        expected = target.copy()
        expected[:kept] = (lines[:, :lanes].T.reshape(-1) + real(2))[:kept]
        weave(lines.ctypes.data, lanes + 5, target.ctypes.data, count, 2)
        np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("sums", [6, 16])
@pytest.mark.parametrize("name", CASES)
def test_images_in_stretches(name: str, sums: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a few columns at a time: rows are cut anywhere, in four stretches or more."""
    stretches = []
    grid_of = compiled_shifts._grid_of_tiles

    def small(*args: object) -> object:
        made = grid_of(*args)
        stretches.append((args[4], made.stretch))
        return made

    monkeypatch.setattr(compiled_shifts, "_STRETCH_BYTES", 1)
    monkeypatch.setattr(compiled_shifts, "_grid_of_tiles", small)
    _forget_plans()
    images = Case((1, 3, *(2 * s for s in CASES[name].X[2:])), (sums, 3, *CASES[name].W[2:]))
    check(images, "float64")
    _forget_plans()
    assert stretches
    assert all(length > 3 * stretch for length, stretch in stretches)


def _forget_plans() -> None:
    for plans in (compiled_shifts.plan_of_sums, compiled_shifts.plan_of_products):
        plans.cache_clear()


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize(("channels", "sums"), [(1, 1), (2, 4)])
def test_products_in_pieces(channels: int, sums: int, dtype: str) -> None:
    """Groups of few channels, and an image of more products than a partial sum has."""
    check(Case((1, channels, 41, 803), (sums, channels, 3, 3), {"pads": 1}), dtype)


@pytest.mark.parametrize(("channels", "sums"), [(1, 1), (6, 16)], ids=["few channels", "tiles"])
def test_a_large_product_hides_few_small_ones(channels: int, sums: int) -> None:
    """Weight gradients are sums of partial sums: in float32, 1 added to 2 ** 24 is lost."""
    X, W = np.ones((1, channels, 400_001), np.float32), np.zeros((sums, channels, 2), np.float32)
    X[..., 0] = 2**24
    dY = np.ones((1, sums, 400_000), np.float32)
    dW = xpgrad.conv_grad(dY, X, W, wrt="W", method="taps").dW
    # the partial sum that has it loses at most as many as a lane adds
    np.testing.assert_allclose(dW[..., 0], 2**24 + 399_999, rtol=0, atol=4_500)
    np.testing.assert_array_equal(dW[..., 1], 400_000)


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize(
    "name", ["two vectors", "one channel each", "phases that nothing meets", "one image"]
)
def test_items_in_threads(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, groups and stretches are divided between threads, whose products are added up."""
    cases = CASES | {
        "one channel each": Case((3, 10, 9, 11), (10, 1, 3, 3), {"group": 10, "pads": 1, "strides": [2, 1]}),
        "one image": Case((1, 9, 40, 40), (12, 9, 3, 3), {"pads": 1}),
    }
    parts = []
    numbers = compiled_shifts.ShiftPlan.numbers

    def counted(plan: compiled_shifts.ShiftPlan, *args: Any) -> list[Any]:
        parts.append(plan.parts)
        return numbers(plan, *args)

    setting = compiled_shifts.Setting(threads, 0, compiled_shifts.tiles())
    monkeypatch.setattr(compiled_shifts.Setting, "of", lambda team: setting)
    monkeypatch.setattr(compiled_shifts.ShiftPlan, "numbers", counted)
    check(cases[name], "float64")
    assert max(parts) > 1


def test_what_is_beside_an_image_is_not_read(rng: np.random.Generator) -> None:
    """Tiles reach over the ends of rows: NaN there must not come into any result."""
    whole = np.full((4, 12, 14, 18), np.nan, dtype=np.float32)
    whole[1:3, :, 2:11, 3:14] = rng.standard_normal((2, 12, 9, 11))
    X = whole[1:3, :, 2:11, 3:14]
    W = rng.standard_normal((10, 12, 3, 3)).astype(np.float32)
    Y = xpgrad.conv(X, W, pads=1, method="taps")
    grads = xpgrad.conv_grad(Y, X, W, pads=1, method="taps")
    assert all(np.isfinite(a).all() for a in (Y, *grads))


def test_a_nan_stays_in_its_window(rng: np.random.Generator) -> None:
    X = rng.standard_normal((2, 8, 9, 20))
    X[0, 3, 4, 10] = np.nan
    Y = xpgrad.conv(X, rng.standard_normal((9, 8, 3, 3)), pads=1, method="taps")
    reached = np.zeros(Y.shape, dtype=bool)
    reached[0, :, 3:6, 9:12] = True
    assert np.array_equal(np.isnan(Y), reached)


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_shares_of_blocks_are_added_up(count: int, rng: np.random.Generator) -> None:
    """Every block once, whichever share it is in."""
    rows = rng.integers(0, 9, size=(count, 5)).astype("float64")

    def add(block: slice, totals: list | None) -> list:
        own = rows[block].sum(axis=0)
        return [own, 2 * own] if totals is None else [totals[0] + own, totals[1] + 2 * own]

    found = NumpyEngine().accumulate(add, [slice(number, number + 1) for number in range(count)])
    for total, factor in zip(found, (1, 2), strict=True):
        np.testing.assert_array_equal(total, factor * rows.sum(axis=0))


@pytest.mark.parametrize("scheme", DENSE.values())
@pytest.mark.parametrize("size", [(5, 7), (9, 70), (6, 259), (3, 256)])
def test_windows_of_wide_images(scheme: Scheme, size: tuple[int, int], rng: np.random.Generator) -> None:
    """Several vectors and sets in a row; nothing beside the results is written."""
    X = rng.normal(size=(2, 3, *size))
    places = windows.Windows(4, (1, 1), -(-size[0] // 4), -(-size[1] // 4))
    count = 2 * places.rows * places.columns
    M = np.full((scheme.points, 3, count + 5), 7.0)
    NumpyEngine().from_windows(X, places, scheme.window, M[..., :count])
    np.testing.assert_allclose(M[..., :count], windows.from_windows(np, X, places, scheme.window), atol=1e-12)
    assert np.all(M[..., count:] == 7)
    Y, B = np.full((2, 4, size[0] + 1, size[1] + 6), 7.0), rng.normal(size=3)
    part = Y[:, :3, : size[0], : size[1]]
    NumpyEngine().to_windows(M[..., :count], places, scheme.tile, B, part.shape, part)
    expected = windows.to_windows(np, M[..., :count], places, scheme.tile, B, (2, 3, *size))
    np.testing.assert_allclose(part, expected, atol=1e-11)
    part[...] = 7
    assert np.all(Y == 7)


@pytest.mark.parametrize("scheme", [ROW, PIECES])
@pytest.mark.parametrize(("width", "behind"), [(7, 0), (70, 1), (256, 2), (259, 64), (510, 9)])
def test_windows_of_rows(scheme: Scheme, width: int, behind: int, rng: np.random.Generator) -> None:
    """With windows behind a row's end, also in a set of their own; nothing beside the results is written."""
    X = rng.normal(size=(2, 3, 3, width))
    places = windows.Windows(4, (1, 2), 4, -(-width // 4) + behind)
    shape = scheme.window.shape(3, 2 * places.rows * places.columns)
    M = np.full((*shape[:2], shape[2] + 5), 7.0)
    NumpyEngine().from_windows(X, places, scheme.window, M[..., :-5])
    np.testing.assert_allclose(M[..., :-5], windows.from_windows(np, X, places, scheme.window), atol=1e-12)
    assert np.all(M[..., -5:] == 7)
    Y, B = np.full((2, 4, 6, width + 6), 7.0), rng.normal(size=3)
    part = Y[:, :3, :4, :width]
    NumpyEngine().to_windows(M[..., :-5], places, scheme.tile, B, part.shape, part)
    expected = windows.to_windows(np, M[..., :-5], places, scheme.tile, B, part.shape)
    np.testing.assert_allclose(part, expected, atol=1e-11)
    part[...] = 7
    assert np.all(Y == 7)


@pytest.mark.parametrize("scheme", [ROW, PIECES])
@pytest.mark.parametrize("taps", [1, 2, 3, 7])
def test_kernels_of_rows(scheme: Scheme, taps: int, rng: np.random.Generator) -> None:
    """Read and written where they are if they follow one another; pieces of longer ones are copied."""
    side, engine = scheme.side, NumpyEngine()
    W = rng.normal(size=(5, 21, 1, side * taps))
    for k in range(taps):
        image = W[None, ..., side * k : side * (k + 1)].transpose(0, 1, 3, 2, 4)
        places = windows.Windows(side, (0, 0), 1, 21)
        expected = windows.from_windows(np, image, places, scheme.kernel)
        found = engine.from_windows(image, places, scheme.kernel)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        M = rng.normal(size=scheme.taps.shape(5, 21))
        result = engine.to_windows(M, places, scheme.taps, None, image.shape, image)
        np.testing.assert_allclose(
            result, windows.to_windows(np, M, places, scheme.taps, None, image.shape), atol=1e-11
        )
        assert np.shares_memory(result, W) == (taps == 1)


def test_kernels_are_read_where_they_are(rng: np.random.Generator) -> None:
    """Every kernel is a window of its own, whichever of its axes are apart in memory."""
    W = rng.normal(size=(3, 21, 4, 3, 3))
    for kernels in (
        W[:, :, 2],
        W[..., 0, :, :],
        W[:, ::2, 1],
        np.moveaxis(W[:, :, 0], 1, 3).copy().swapaxes(1, 3),
    ):
        image = kernels[None].transpose(0, 1, 3, 2, 4)
        places, transform = windows.Windows(3, (0, 0), 1, image.shape[3]), DENSE[3].back_kernel
        expected = windows.from_windows(np, image, places, transform)
        found = NumpyEngine().from_windows(image, places, transform)
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("jit", ["1", "0"])
@pytest.mark.parametrize(
    ("X", "kernel", "strides", "pads", "dilations"),
    [((2, 3, 11, 38), (3, 2), (1, 2), (1, 0), (2, 1)), ((1, 2, 4, 5), (4, 1), (3, 2), (6, 3), (1, 1)),
     ((3, 2, 3, 4, 21), (2, 1, 3), (1, 2, 1), (1, 0, 2), (1, 1, 1))],
)  # fmt: skip
def test_patches_and_their_sums(
    X: tuple, kernel: tuple, strides: tuple, pads: tuple, dilations: tuple, jit: str,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each band of outputs; a sum of patches begins with the bias, or goes on."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    engine, attributes = NumpyEngine(), {"strides": strides, "pads": pads, "dilations": dilations}
    g = conv_geometry("conv", X, (1, X[1], *kernel), group=1, auto_pad="NOTSET", **attributes)
    images, before, B = rng.normal(size=X), rng.normal(size=X), rng.normal(size=X[1])
    width, rows = np.prod(g.output_size[1:], dtype=int), g.output_size[0]
    for columns in (slice(0, rows * width), slice(width, rows * width)):
        places = patches._places(g, columns)
        P = engine.patches(images, places, 1)
        np.testing.assert_array_equal(P, shifts.patches(np, images, places, 1))
        sums = shifts.images_of_patches(np, P, places, X)
        assert np.vdot(sums, before) == pytest.approx(np.vdot(P, engine.patches(before, places, 1)))
        each = B.reshape(-1, *[1] * g.rank)
        np.testing.assert_allclose(engine.add_patches(None, P, places, X, B), sums + each, atol=1e-12)
        np.testing.assert_allclose(engine.add_patches(None, P, places, X), sums, atol=1e-12)
        found = engine.add_patches(before.copy(), P, places, X)
        np.testing.assert_allclose(found, before + sums, atol=1e-12)


@pytest.mark.parametrize("scheme", STRIDED.values())
@pytest.mark.parametrize("name", ["window", "back_window"])
def test_windows_of_volumes_and_phases(name: str, scheme: Scheme, rng: np.random.Generator) -> None:
    """Slice by slice, of several volumes; each phase behind the other."""
    transform, side = getattr(scheme, name), {"window": 8, "back_window": 4}[name]
    X = rng.normal(size=(3, 2, 5, 9, 21))
    places = windows.Windows(side, (1, 1), -(-9 // side), -(-21 // side), slices=5)
    expected = windows.from_windows(np, X, places, transform)
    M = np.full((*expected.shape[:2], expected.shape[2] + 3), 7.0)
    NumpyEngine().from_windows(X, places, transform, M[..., :-3])
    np.testing.assert_allclose(M[..., :-3], expected, atol=1e-12)
    assert np.all(M[..., -3:] == 7)


@pytest.mark.parametrize("scheme", STRIDED.values())
@pytest.mark.parametrize("name", ["tile", "back_tile"])
def test_volumes_of_windows(name: str, scheme: Scheme, rng: np.random.Generator) -> None:
    """Nothing beside the results is written."""
    transform, shape = getattr(scheme, name), (3, 2, 5, 9, 21)
    places = windows.Windows(0, (0, 0), -(-9 // transform.made), -(-21 // transform.made), slices=5)
    M, B = rng.normal(size=transform.shape(2, 15 * places.rows * places.columns)), rng.normal(size=2)
    Y = np.full((3, 3, 5, 10, 23), 7.0)
    part = Y[:, :2, :, :9, :21]
    NumpyEngine().to_windows(M, places, transform, B, part.shape, part)
    np.testing.assert_allclose(part, windows.to_windows(np, M, places, transform, B, shape), atol=1e-11)
    part[...] = 7
    assert np.all(Y == 7)
