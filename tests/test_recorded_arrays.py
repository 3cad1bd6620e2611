"""Kernels of whole arrays written down as programs, as a host that knows no Python runs them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import xpgrad
from xpgrad._conv import winograd
from xpgrad._conv.choice import METHODS, choose
from xpgrad._conv.geometry import conv_geometry
from xpgrad.engine import Recorder, of_type
from xpgrad.engine.images import in_place
from xpgrad.engine.images.methods import Images
from xpgrad.engine.images.parts import each_slice
from xpgrad.engine.process import memory, sharing
from xpgrad.engine.process.settings import jit_enabled
from xpgrad.engine.programs import alike, arena, program, recorded_images
from xpgrad.engine.programs.instructions import CannotRecordError
from xpgrad.engine.programs.recorded import row_major
from xpgrad.engine.programs.shares import regions_of

pytestmark = pytest.mark.skipif(not jit_enabled(), reason="programs need llvmlite")

PLAIN: dict[str, Any] = {"strides": 1, "pads": 0, "dilations": 1, "group": 1, "auto_pad": "NOTSET"}
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "strides": ((2, 2, 5, 4), (2, 2, 3, 3), {"pads": 1, "strides": 2}),
    "uneven": ((3, 4, 7, 6), (8, 4, 3, 2), {"dilations": (1, 2), "pads": (1, 0, 2, 1), "strides": (2, 1)}),
    "groups": ((3, 4, 7, 6), (8, 2, 3, 2), {"group": 2, "pads": 1}),
    "phases that nothing meets": ((2, 3, 9, 8), (9, 3, 2, 1), {"strides": 3}),
    "plain": ((3, 4, 9, 14), (6, 4, 3, 3), {"pads": 1}),
    "depthwise": ((3, 4, 7, 6), (4, 1, 3, 3), {"group": 4, "strides": (1, 2)}),
    "pointwise": ((3, 4, 7, 6), (8, 2, 1, 1), {"group": 2}),
    "covering": ((3, 4, 5, 2), (8, 4, 5, 2), {}),
    "one dimension": ((3, 4, 7), (8, 4, 3), {"auto_pad": "SAME_UPPER", "strides": 2}),
    "row": ((3, 4, 70), (6, 4, 7), {"pads": 3}),
    "dilated row": ((3, 4, 31), (6, 4, 5), {"dilations": 2, "pads": (4, 3)}),
    "dilated image": ((3, 4, 9, 11), (6, 4, 3, 3), {"dilations": (2, 3), "pads": (2, 3)}),
    "wide kernels": ((3, 4, 9, 11), (6, 4, 5, 5), {"pads": 2}),
    "wide kernels, strides": ((3, 4, 13, 11), (6, 4, 5, 5), {"pads": 2, "strides": 2}),
    "three dimensions": ((2, 4, 5, 4, 3), (8, 4, 3, 2, 2), {"pads": 1, "strides": (2, 1, 1)}),
}


def run(write: Any, *given: Any) -> np.ndarray:
    """The result of what `write` asks a recorder for."""
    engine = of_type(given[0])
    arrays = [np.asarray(x) for x in given]
    layouts = {str(k): (x.shape, row_major(x.shape)) for k, x in enumerate(arrays)}
    recorder = Recorder(engine, layouts, arrays[0].dtype)
    written = recorder.program([write(recorder, *map(recorder.input, layouts))])
    look = engine.look(given)

    def fresh(shape: tuple[int, ...], dtype: Any) -> Any:
        result, address = look.fresh(shape, dtype)
        result[...] = np.nan  # what is not written is seen
        return result, address

    return np.asarray(written.run(look.addresses, fresh)[0])


def check_convolution(case: str, name: str, rng: np.random.Generator, kind: Any = np.asarray) -> None:
    """Forward and both gradients by the method of that name, or by the usual one where it is no choice."""
    x_shape, w_shape, options = CASES[case]
    geometry = conv_geometry("conv", x_shape, w_shape, **PLAIN | options)
    if name != "auto" and METHODS[name].why_not(geometry, True) is not None:
        name = "auto"
    X, W, B, dY = (rng.normal(size=s) for s in (x_shape, w_shape, w_shape[0], geometry.output_shape))

    def sums(of: str) -> Any:
        def write(recorder: Any, *arrays: Any) -> Any:
            method = choose("conv", name, recorder, geometry)
            return getattr(method, of)(recorder, geometry, *arrays)

        return write

    with xpgrad.use_engine("standard"):
        Y, grads = xpgrad.conv(X, W, B, **options), xpgrad.conv_grad(dY, X, W, **options)
    X, W, B, dY = map(kind, (X, W, B, dY))
    np.testing.assert_allclose(run(sums("forward"), X, W, B), Y, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(run(sums("input_gradient"), dY, W), grads.dX, rtol=1e-11, atol=1e-11)
    added = rng.normal(size=x_shape[1])
    expected = grads.dX + added.reshape(-1, *[1] * geometry.rank)
    found = run(sums("input_gradient"), dY, W, kind(added))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(run(sums("weight_gradient"), dY, X), grads.dW, rtol=1e-11, atol=1e-11)


METHOD_NAMES = ["auto", *(name for name in METHODS if name != "fft")]


@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("case", CASES)
def test_convolutions(case: str, name: str, rng: np.random.Generator) -> None:
    check_convolution(case, name, rng)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("case", CASES)
def test_convolutions_in_threads(
    case: str,
    name: str,
    kind: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    set_threads: Any,
) -> None:
    """However small they are, started by Python or by compiled code."""
    monkeypatch.setattr(sharing, "PRODUCT", 0)
    monkeypatch.setattr(sharing, "COPY", 0)
    if kind == "numpy":
        set_threads(3)
        check_convolution(case, name, rng)
        return
    torch = pytest.importorskip("torch", reason="its team of threads can be started by compiled code")
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        check_convolution(case, name, rng, torch.from_numpy)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("kept", [300, 1100, 4000])
@pytest.mark.parametrize("case", CASES)
def test_kernels_that_do_not_fit_into_memory(
    case: str, kept: int, kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
    three_threads: Any,
) -> None:  # fmt: skip
    """They come in parts: for all images, for each block of images, or for each band of an image."""
    monkeypatch.setattr(winograd, "_KEPT", kept)
    monkeypatch.setattr(winograd, "_PART", 2)
    monkeypatch.setattr(winograd, "_LARGE_PART", kept // 8)
    monkeypatch.setattr(winograd, "_LARGE_KERNELS", kept // 4)
    monkeypatch.setattr(winograd, "_FEW_IMAGES", 100)
    monkeypatch.setattr(in_place, "BAND", 60)
    monkeypatch.setattr(recorded_images, "BLOCK_ELEMENTS", 60)
    check_convolution(case, "winograd", rng, np.asarray if kind == "numpy" else three_threads)


@pytest.fixture
def three_threads():
    """PyTorch's, which compiled code starts."""
    torch = pytest.importorskip("torch", reason="its team of threads can be started by compiled code")
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield torch.from_numpy
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("batch", [*range(1, 9), 15, 21])
@pytest.mark.parametrize("kernels", ["few", "many"])
def test_threads_share_the_images_of_a_batch(kernels, batch, name, three_threads, rng, monkeypatch):
    """As many for each; all of them together compute the rest, and kernels in parts."""
    monkeypatch.setattr(sharing, "PRODUCT", 0)
    monkeypatch.setattr(sharing, "COPY", 0)
    monkeypatch.setattr(sharing, "OWN_IMAGES", 1)
    monkeypatch.setattr(in_place, "BAND", 4000 if kernels == "many" else 500)
    monkeypatch.setattr(recorded_images, "BLOCK_ELEMENTS", 2000)
    sizes = (batch, 5, 9, 10), (70 if kernels == "many" else 6, 5, 3, 3), {"pads": 1}
    monkeypatch.setitem(CASES, "batch", sizes)
    made = []
    monkeypatch.setattr(program, "regions_of", lambda shares: made.append(regions_of(shares)) or made[-1])
    check_convolution("batch", name, rng, three_threads)
    for regions in made:
        assert all(len(region.bounds) == 4 for region in regions), "each thread has a share"
        counts = [np.diff(region.bounds) for region in regions]
        assert all(len(set(each)) == 1 for each in counts), counts
    if name in ("winograd", "patches") and batch >= 3:
        assert any(made)


def each_part_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record all parts, also those that are alike."""
    monkeypatch.setattr(
        Recorder, "map_alike", lambda self, function, parts: self.map(function, each_slice(parts))
    )
    monkeypatch.setattr(Recorder, "_total", Images.accumulate)


@pytest.mark.parametrize("size", [3, 7, 16])
@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("case", CASES)
def test_parts_that_are_alike_are_recorded_once(case, name, size, three_threads, rng, monkeypatch):
    """If nothing runs several times, a program's integers are equal, as if each part were recorded."""
    (_, *sizes), w_shape, options = CASES[case]
    monkeypatch.setattr(sharing, "OWN_IMAGES", 1)
    monkeypatch.setattr(in_place, "BAND", 500)
    monkeypatch.setattr(recorded_images, "BLOCK_ELEMENTS", 2000)
    shape = (size, *sizes)
    geometry = conv_geometry("conv", shape, w_shape, **PLAIN | options)
    if name != "auto" and METHODS[name].why_not(geometry, True) is not None:
        pytest.skip("the method is not possible here")
    machine = of_type(three_threads(rng.normal(size=2)))

    def program() -> Any:
        sizes = {"X": shape, "W": w_shape, "dY": geometry.output_shape}
        layouts = {name: (own, row_major(own)) for name, own in sizes.items()}
        recorder = Recorder(machine, layouts, np.dtype("float64"))
        X, W, dY = map(recorder.input, layouts)
        method = choose("conv", name, recorder, geometry)
        Y = method.forward(recorder, geometry, X, W, None)
        dX, dW = (getattr(method, f"{of}_gradient") for of in ("input", "weight"))
        return recorder.program([Y, dX(recorder, geometry, dY, W), dW(recorder, geometry, dY, X)])

    shortest = program()
    monkeypatch.setattr(alike.Pattern, "runs_again", lambda self, distance, count=1: False)
    once = program()
    assert shortest.arena_bytes == once.arena_bytes
    each_part_by_itself(monkeypatch)
    each = program()
    np.testing.assert_array_equal(once.memory, each.memory)
    np.testing.assert_array_equal(once.where, each.where)
    numbers = [np.where(one.code < 1 << 32, one.code, 0) for one in (once, each)]  # without tables' addresses
    np.testing.assert_array_equal(*numbers)
    assert once.arena_bytes == each.arena_bytes


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [5, 16, 17])
@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("case", CASES)
def test_instructions_run_for_several_blocks(case, name, size, threads, three_threads, rng, monkeypatch):
    """The results are those of programs without repetitions, and no instruction stands twice for a thread."""
    torch = pytest.importorskip("torch", reason="its team of threads can be started by compiled code")
    torch.set_num_threads(threads)
    monkeypatch.setattr(sharing, "OWN_IMAGES", 1)
    monkeypatch.setattr(sharing, "PRODUCT", 0)
    monkeypatch.setattr(sharing, "COPY", 0)
    monkeypatch.setattr(in_place, "BAND", 500)
    monkeypatch.setattr(recorded_images, "BLOCK_ELEMENTS", 500)
    monkeypatch.setattr(winograd, "_FEW_IMAGES", 100)
    (_, *sizes), w_shape, options = CASES[case]
    monkeypatch.setitem(CASES, case, ((size, *sizes), w_shape, options))
    made = []
    build = alike.Repetition.append_head
    monkeypatch.setattr(alike.Repetition, "append_head", lambda *a: made.append(a[0].count) or build(*a))
    check_convolution(case, name, rng, three_threads)
    if name in ("winograd", "patches", "shifted") and case == "plain" and size > 5:
        assert max(made) >= size // threads - 2
    if name in ("taps",):
        assert not made  # a plan has all images


@pytest.mark.parametrize(
    ("images", "channels", "size", "dilation", "threads"),
    [(3, 512, 33, 1, 3), (3, 512, 33, 2, 3), (3, 512, 33, 4, 3), (5, 512, 25, 1, 2), (4, 1024, 16, 1, 16)],
)
@pytest.mark.parametrize("sums", ["forward", "input_gradient"])
def test_threads_share_the_memory_for_large_kernels(
    sums, images, channels, size, dilation, threads, three_threads
):
    """With images or kernels of their own they would need more than a thread keeps: new memory each time."""
    three_threads(np.zeros(1))
    pytest.importorskip("torch", reason="as three_threads").set_num_threads(threads)
    options = {"pads": dilation, "dilations": dilation}
    shapes = (images, channels, size, size), (channels, channels, 3, 3)
    geometry = conv_geometry("conv", *shapes, **PLAIN | options)
    layouts = {name: (shape, row_major(shape)) for name, shape in zip("xw", shapes, strict=True)}
    recorder = Recorder(of_type(three_threads(np.zeros(1))), layouts, np.dtype("float32"))
    x, w = map(recorder.input, layouts)
    result = getattr(METHODS["winograd"], sums)(recorder, geometry, x, w, None)
    assert recorder.program([result]).arena_bytes <= memory._KEPT


def test_only_parts_of_one_size_are_alike(three_threads, rng):
    X = three_threads(rng.normal(size=(9, 8)))
    recorder = Recorder(of_type(X), {"x": ((9, 8), (8, 1))}, np.dtype("float64"))
    x, whole, recorded = recorder.input("x"), recorder.fresh((9, 8)), []

    def double(part: slice) -> None:
        recorded.append(part)
        recorder.copy(whole[part], x[part] + x[part])

    recorder.map_alike(double, [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 9)])
    assert recorded == [slice(0, 2), slice(2, 5), slice(7, 9)]  # the last one by all threads
    written = recorder.program([whole])
    np.testing.assert_array_equal(written.run([X.data_ptr()], of_type(X).look([X]).fresh)[0], 2 * X)


@pytest.mark.parametrize(
    ("ends", "shared"),
    [
        ((0, 2, 4, 6), True),
        ((0, 1, 7, 8), False),
        ((0, 2, 4), False),
        ((0, 3, 4, 7, 8, 11, 12), True),
        ((0, 3, 6, 7, 8, 9, 10), False),
    ],
)
def test_threads_share_equal_parts(ends, shared, three_threads, rng):
    """One thread would have most of the work where a part, or a thread's parts together, are much larger."""
    X = three_threads(rng.normal(size=(12, 8)))
    recorder = Recorder(of_type(X), {"x": ((12, 8), (8, 1))}, np.dtype("float64"))
    x, whole = recorder.input("x"), recorder.fresh((12, 8))
    parts = [slice(*pair) for pair in itertools.pairwise(ends)]
    recorder.map(lambda part: recorder.copy(whole[part], x[part] + x[part]), parts)
    assert bool(regions_of(recorder._draft.shares)) == shared


def test_parts_are_counted_as_python_does():
    """Also empty ones, and ends beyond the axis or counted from its end."""
    recorder = Recorder(of_type(np.zeros(1)), {"x": ((7, 8), (8, 1))}, np.dtype("float64"))
    x, ends = recorder.input("x"), (None, -9, -7, -3, 0, 2, 6, 7, 12)
    for start, stop, step in itertools.product(ends, ends, (None, 1, 2, 3)):
        part, expected = x[start:stop:step, 1], range(7)[start:stop:step]
        assert part.shape == (len(expected),)
        if expected:
            assert part.offset == 8 * expected[0] + 1


def test_shares_have_memory_of_their_own(three_threads, rng):
    """What a share needs for one item, it uses again for the next one; another share has it elsewhere."""
    X = three_threads(rng.normal(size=(7, 8)))
    recorder = Recorder(of_type(X), {"x": ((7, 8), (8, 1))}, np.dtype("float64"))
    x = recorder.input("x")
    whole, before = recorder.fresh((7, 8)), x + x
    own: dict[Any, list[Any]] = {}

    def double(row: int) -> None:
        made = x[row] + x[row]
        recorder.emit_arithmetic("add", whole[row], [made, before[row]])
        own.setdefault(recorder._draft.share, []).append(made.block)

    recorder.map(double, range(7))
    draft = recorder._draft
    (region,) = regions_of(draft.shares)
    assert [*region.bounds] == [1, 5, 9, 13]
    begins, size = arena.arranged(draft, dict.fromkeys(draft.inputs, 0), 8, [region.instructions()])
    assert [len({begins[block] for block in blocks}) for blocks in own.values()] == [1, 1, 1, 1]
    assert len({begins[blocks[0]] for share, blocks in own.items() if share is not None}) == 3
    assert size == 2 * 7 * 64 + 3 * 64
    written = recorder.program([whole])
    found = written.run([X.data_ptr()], of_type(X).look([X]).fresh)[0]
    np.testing.assert_array_equal(found, 4 * X)


# Shapes of both factors of a stack; a key that makes the first one's distances unequal or backwards.
STACKS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any]] = {
    "each with its own": ((5, 3, 4), (5, 4, 6), ...),
    "one factor for all": ((3, 4), (5, 4, 6), ...),
    "two axes": ((2, 4, 3, 4), (2, 4, 4, 6), ...),
    "unequal distances": ((2, 4, 3, 4), (2, 3, 4, 6), (slice(None), slice(0, 3))),
    "every other one": ((8, 3, 4), (4, 4, 6), slice(None, None, 2)),
    "fewer than threads": ((2, 3, 4), (2, 4, 6), ...),
    "neither by rows nor by columns": ((4, 3, 8), (4, 4, 6), (..., slice(None, None, 2))),
}


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", STACKS)
def test_stacks_of_matrices(
    name: str,
    turned: bool,
    add: bool,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    set_threads: Any,
) -> None:
    monkeypatch.setattr(sharing, "PRODUCT", 0)
    set_threads(3)
    shape, other, key = STACKS[name]
    a, b = rng.normal(size=shape), rng.normal(size=other)
    if turned:
        b = np.ascontiguousarray(b.swapaxes(-1, -2))

    def write(recorder: Any, a: Any, b: Any) -> Any:
        factors = a[key], recorder.xp.matrix_transpose(b) if turned else b
        total = recorder.product(*factors) if add else None
        return recorder.product(*factors, total, add=add)

    expected = a[key] @ (b.swapaxes(-1, -2) if turned else b)
    np.testing.assert_allclose(run(write, a, b), (1 + add) * expected, rtol=1e-12, atol=1e-13)


def test_what_has_no_instruction_is_refused(rng: np.random.Generator) -> None:
    geometry = conv_geometry("conv", (1, 8, 200), (8, 8, 150), **PLAIN)

    def large(recorder: Any, X: Any, W: Any) -> Any:
        return choose("conv", "fft", recorder, geometry).forward(recorder, geometry, X, W, None)

    with pytest.raises(CannotRecordError, match="Fourier transforms"):
        run(large, rng.normal(size=geometry.input_shape), rng.normal(size=geometry.weight_shape))


# Around the fewest elements of a row, the elements of a line, the pieces of a row.
AXIS_SIZES = (2, 3, 7, 8, 9, 16, 17, 33, 64, 511, 512, 513, 576, 640, 1024, 1025, 2048)


@pytest.mark.parametrize("seed", range(120))
def test_arithmetic_on_arrays_with_many_axes_in_any_order(seed: int, three_threads: Any) -> None:
    """A copy and a sum of slices, in one thread and in three; up to seven axes, also repeated elements."""
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    while len(sizes) < 1 + seed % 7:
        sizes.append(int(rng.choice(AXIS_SIZES[: 5 if len(sizes) > 2 else None])))
    sizes = [size if np.prod(sizes) < 3e5 else min(size, 9) for size in map(int, rng.permutation(sizes))]
    order = [*map(int, rng.permutation(len(sizes)))]
    steps = (*(slice(int(rng.integers(2)), None, int(rng.integers(1, 3))) for _ in sizes),)
    x, y = rng.normal(size=sizes), rng.normal(size=[1 if rng.integers(4) == 0 else size for size in sizes])

    def copied(recorder: Any, x: Any, y: Any) -> Any:
        target = recorder.fresh(tuple(sizes[axis] for axis in order))
        recorder.copy(target, recorder.xp.permute_dims(x, order))
        return target[(*(steps[axis] for axis in order),)]

    def added(recorder: Any, x: Any, y: Any) -> Any:
        turned = (recorder.xp.permute_dims(recorder.broadcast(one, tuple(sizes)), order) for one in (x, y))
        return recorder.arithmetic("add", *(one[(*(steps[axis] for axis in order),)] for one in turned))

    for kind in (np.asarray, three_threads):
        given = kind(x), kind(y)
        np.testing.assert_array_equal(run(copied, *given), x[steps].transpose(order))
        np.testing.assert_array_equal(run(added, *given), (x + y)[steps].transpose(order))


def test_arithmetic_on_five_axes_is_one_instruction(rng: np.random.Generator) -> None:
    recorder = Recorder(of_type(np.zeros(1)), {"x": ((2, 3, 4, 5, 6), (360, 120, 30, 6, 1))}, np.dtype(float))
    recorder.contiguous(recorder.xp.permute_dims(recorder.input("x"), (4, 2, 0, 3, 1)))
    assert len(recorder._draft.instructions) == 1


def test_the_size_of_an_axis_that_is_left_open_follows_from_the_others(rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 4, 5))
    flat = run(lambda recorder, x: recorder.contiguous(recorder.xp.reshape(x, (6, -1))), x)
    np.testing.assert_array_equal(flat, x.reshape(6, 10))
