"""What convolutions promise beside their numbers: samples apart, nothing extra, little memory, NaN."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest

import xpgrad
from backends import Backend, without_programs
from conv_cases import CASES, Case
from xpgrad._calls import families
from xpgrad._calls.plans import Asked
from xpgrad._conv import choice
from xpgrad._conv import method as conv_method
from xpgrad._conv.clipped import multiplications_inside
from xpgrad._conv.geometry import conv_geometry
from xpgrad._conv.winograd_sizes import WindowSums, elements_of_kernels, of_images
from xpgrad.engine import StandardEngine
from xpgrad.engine.images.methods import Images
from xpgrad.engine.numpy_engine import NumpyEngine
from xpgrad.testing import assert_close, to_numpy

SOME = ["pointwise-strides", "3x3", "strides", "1d", "depthwise-multiplier", "few-channels", "large-groups"]


# --- per sample


@pytest.mark.parametrize("name", SOME)
def test_per_sample_is_one_sample_at_a_time(name: str, backend: Backend) -> None:
    case = CASES[name]
    arrays = case.arrays()
    here = backend.arrays(arrays, "float64")
    X, W, dY = (here[key] for key in ("X", "W", "dY"))
    grads = xpgrad.conv_grad(dY, X, W, per_sample=True, **case.attributes)
    together = xpgrad.conv_grad(dY, X, W, **case.attributes)
    assert_close(grads.dX, together.dX)
    for n in range(case.X[0]):
        alone = xpgrad.conv_grad(dY[n : n + 1, ...], X[n : n + 1, ...], W, **case.attributes)
        assert_close(grads.dW[n, ...], alone.dW, rtol=1e-12)
        assert_close(grads.dB[n, ...], alone.dB, rtol=1e-12)


@pytest.mark.parametrize("method", ["auto", "pointwise"])
@pytest.mark.parametrize(("size", "options"), [((7, 7), {}), ((1,), {"strides": 3})])
def test_per_sample_of_kernels_that_cover_an_image(method, size, options, rng: np.random.Generator) -> None:
    X, W, dY = rng.normal(size=(2, 3, *size)), rng.normal(size=(4, 3, *size)), rng.normal(size=(2, 4))
    dY = dY.reshape(2, 4, *(1 for _ in size))
    dW = xpgrad.conv_grad(dY, X, W, method=method, per_sample=True, **options).dW
    for n in range(2):
        alone = xpgrad.conv_grad(dY[n : n + 1], X[n : n + 1], W, **options).dW
        np.testing.assert_allclose(dW[n], alone, rtol=1e-12, atol=1e-14)


def test_per_sample_of_a_transposed_convolution(backend: Backend, rng: np.random.Generator) -> None:
    shapes = {"X": (3, 4, 5, 4), "W": (4, 3, 3, 2), "dY": (3, 6, 11, 8)}
    here = backend.arrays({name: rng.standard_normal(shape) for name, shape in shapes.items()}, "float64")
    options = {"strides": 2, "group": 2}
    grads = xpgrad.conv_transpose_grad(**here, **options, per_sample=True)
    for n in range(3):
        one = {name: a if name == "W" else a[n : n + 1, ...] for name, a in here.items()}
        alone = xpgrad.conv_transpose_grad(**one, **options)
        assert_close(grads.dW[n, ...], alone.dW, rtol=1e-12)
        assert_close(grads.dB[n, ...], alone.dB, rtol=1e-12)


# --- the choice of the method


def test_the_method_is_chosen_for_each_engine_and_geometry(monkeypatch) -> None:
    module = sys.modules[xpgrad.conv.__module__]
    chosen: list[tuple[Any, Any]] = []

    def choose(operator: str, name: str, engine: Any, geometry: Any, sums: str = "forward") -> Any:
        chosen.append((engine, geometry))
        return choice.choose(operator, name, engine, geometry, sums)

    monkeypatch.setattr(module, "choose", choose)
    arrays = {"X": np.ones((2, 3, 6, 6)), "W": np.ones((4, 3, 3, 3))}
    with without_programs():
        dY = xpgrad.conv(**arrays)
        assert len(chosen) == 1
        xpgrad.conv_grad(dY, **arrays)
        assert len(chosen) == 3
        assert chosen[1] == chosen[2]
        xpgrad.conv_grad(dY, **arrays, wrt="W", per_sample=True)
    assert chosen[-1][1].group == 2  # each sample is a group
    assert chosen[-1][1] is not chosen[1][1]
    sums = module._Sums(Asked("conv", arrays), ("X", "W"), lambda *_, **__: chosen[0][1], {}, "auto")
    other = xpgrad.engine.StandardEngine(np)
    monkeypatch.setattr(type(sums._engine), "whole", lambda _, compute, arrays, *__: compute(other, *arrays))
    assert_close(sums.forward("X", "W"), dY)
    assert chosen[-1][0] is other


@pytest.mark.parametrize(
    ("images", "channels", "size", "expected"),
    [(1, 512, 7, "patches"), (2, 512, 7, "patches"), (2, 128, 14, "winograd"), (8, 512, 7, "winograd"),
     (2, 256, 4, "patches"), (16, 256, 4, "winograd"), (200, 64, 1, "patches"), (1, 8, 4, "taps")],
)  # fmt: skip
def test_the_rule_counts_the_packing_of_weights(images: int, channels: int, size: int, expected: str) -> None:
    """Of 3 x 3 kernels with compiled loops: it costs most where images are few and small."""
    assert preferred((images, channels, size, size), (channels, channels, 3, 3), 1) == expected


@pytest.mark.parametrize(
    ("X", "W", "strides", "expected"),
    [((16, 64, 32, 32), (128, 64, 4, 4), 2, "winograd"), ((16, 256, 8, 8), (512, 256, 4, 4), 2, "patches"),
     ((8, 256, 14, 14), (512, 256, 3, 3), 2, "patches"), ((8, 960, 7, 7), (160, 960, 1, 1), 1, "patches"),
     ((8, 64, 56, 56), (64, 64, 1, 1), 1, "pointwise"), ((1, 16, 8, 8), (16, 16, 1, 1), 1, "pointwise"),
     ((8, 256, 14, 14), (512, 256, 1, 1), 2, "patches"),
     ((2, 32, 16, 16, 16), (32, 32, 3, 3, 3), 1, "winograd"),
     ((16, 512, 4, 4), (1, 512, 2, 2), 2, "taps"), ((16, 512, 1, 1), (64, 512, 1, 1), 1, "pointwise"),
     ((16, 3, 2, 2), (8, 3, 2, 2), 2, "pointwise")],
)  # fmt: skip
def test_the_rule_for_strides_and_volumes(X: tuple, W: tuple, strides: int, expected: str) -> None:
    pads = (W[2] - 1) // 2
    attributes = {"strides": strides, "pads": pads, "dilations": 1, "group": 1, "auto_pad": "NOTSET"}
    assert _preferred(conv_geometry("conv", X, W, **attributes), True, True)["forward"] == expected


def test_the_rule_on_machines_with_two_units() -> None:
    """Only multiplications are faster there."""
    attributes = {"strides": 2, "pads": 2, "dilations": 1, "group": 1, "auto_pad": "NOTSET"}
    geometry = conv_geometry("conv", (4, 128, 32, 32), (192, 128, 5, 5), **attributes)
    assert _preferred(geometry, True, True)["forward"] == "winograd"
    assert _preferred(geometry, choice._TWO_UNITS, True)["forward"] == "patches"


@pytest.mark.parametrize(
    ("cpu", "features", "two"),
    [("haswell", "+avx2", False), ("znver4", "+avx2,+avx512f", False), ("znver5", "+avx2,+avx512f", True),
     ("rocketlake", "+avx512f,+amx-tile", True), ("icelake-server", "+avx2", False)],
)  # fmt: skip
def test_an_engine_asks_its_machine(cpu, features, two, monkeypatch):
    tiles = pytest.importorskip("xpgrad.engine.compiled.register_tiles", reason="needs llvmlite")
    monkeypatch.setenv("XPGRAD_JIT", "1")
    monkeypatch.setenv("XPGRAD_CPU", cpu)
    monkeypatch.setenv("XPGRAD_CPU_FEATURES", features)
    tiles.has_two_units.cache_clear()
    try:
        engine, other = NumpyEngine(), StandardEngine(np)
        assert engine.has_two_units() == two
        assert choice._compiled_costs(engine) is (choice._TWO_UNITS if two else choice._COMPILED)
        assert not other.has_two_units()
    finally:
        tiles.has_two_units.cache_clear()


@pytest.mark.parametrize(
    ("X", "kernel", "group", "expected"),
    [((4, 16, 4096), 129, 1, "taps"), ((4, 16, 4096), 257, 1, "fft"), ((4, 16, 4096), 65, 4, "taps"),
     ((8, 32, 64, 64), 21, 32, "taps"),
     ((8, 32, 64, 64), 31, 32, "fft"), ((8, 64, 28, 28), 15, 1, "fft")],
)  # fmt: skip
def test_the_rule_takes_transforms_for_large_kernels(
    X: tuple[int, ...], kernel: int, group: int, expected: str
) -> None:
    assert preferred(X, (X[1], X[1] // group, *[kernel] * (len(X) - 2)), group) == expected


@pytest.mark.parametrize(
    ("X", "W", "dilations", "expected"),
    [((8, 256, 128), (256, 256, 7), 1, "winograd"), ((8, 256, 128), (256, 256, 3), 3, "winograd"),
     ((8, 32, 1000), (32, 32, 41), 1, "winograd"), ((1, 512, 8), (64, 512, 9), 1, "patches"),
     ((8, 256, 100), (8, 256, 3), 16, "taps"),
     ((4, 64, 6, 128), (64, 64, 1, 7), 1, "winograd")],
)  # fmt: skip
def test_the_rule_for_rows_of_taps(X: tuple, W: tuple, dilations: int, expected: str) -> None:
    """Without compiled loops the transforms do not pay."""
    pads = [(k - 1) // 2 * dilations for k in W[2:]] * 2
    attributes = {"strides": 1, "pads": pads, "dilations": dilations, "group": 1, "auto_pad": "NOTSET"}
    geometry = conv_geometry("conv", X, W, **attributes)
    assert _preferred(geometry, True, True)["forward"] == expected
    assert "winograd" not in _preferred(geometry, False, True).values()


@pytest.mark.parametrize(
    ("X", "W", "attributes", "expected"),
    [((8, 64, 27, 27), (192, 64, 5, 5), {"pads": 2}, "winograd winograd winograd"),
     ((4, 128, 64, 64), (128, 128, 5, 5), {"pads": 2, "strides": 2}, "winograd winograd winograd"),
     ((8, 128, 56, 56), (128, 128, 3, 3), {"pads": 1, "strides": 2}, "patches patches patches"),
     ((4, 256, 28, 28), (256, 256, 3, 3), {"pads": 2, "dilations": 2}, "winograd winograd winograd"),
     ((8, 32, 28, 28), (32, 32, 3, 3), {"pads": 2, "dilations": 2}, "taps taps taps"),
     ((2, 256, 33, 33), (256, 256, 3, 3), {"pads": 12, "dilations": 12}, "clipped clipped clipped"),
     ((128, 512, 2, 2), (512, 512, 3, 3), {"pads": 1}, "clipped clipped clipped"),
     ((64, 64, 2, 2), (64, 64, 3, 3), {"pads": 1}, "patches patches patches"),
     ((8, 240, 28, 28), (240, 120, 3, 3), {"pads": 1, "group": 2}, "winograd winograd winograd"),
     ((8, 64, 28, 28), (64, 16, 3, 3), {"pads": 1, "group": 4}, "taps taps taps"),
     ((16, 64, 7, 7), (256, 64, 5, 5), {}, "winograd patches winograd"),
     ((16, 32, 8, 8), (64, 32, 7, 7), {}, "patches patches patches"),
     ((64, 6, 14, 14), (16, 6, 5, 5), {}, "taps taps taps"),
     ((8, 32, 16, 16), (128, 32, 5, 5), {"pads": 2, "strides": 2}, "winograd patches winograd")],
)  # fmt: skip
def test_the_rule_for_each_sum(X: tuple, W: tuple, attributes: dict, expected: str) -> None:
    """Without padding the input gradient has more results than the output, most of them of few taps."""
    attributes = {"strides": 1, "pads": 0, "dilations": 1, "group": 1, "auto_pad": "NOTSET"} | attributes
    geometry = conv_geometry("conv", X, W, **attributes)
    assert " ".join(_preferred(geometry, True, True).values()) == expected


@pytest.mark.parametrize("name", ["3x3-much-padding", "dilations", "covering-with-a-gap", "4d", "1d"])
def test_multiplications_without_padding(name: str) -> None:
    """Each output and tap with ones as input, and zeros outside."""
    case = CASES[name]
    W = np.ones((1, 1, *case.W[2:]))
    attributes = case.attributes | {"group": 1}
    met = xpgrad.conv(np.ones((1, 1, *case.X[2:])), W, method="shifted", **attributes).sum()
    defaults = {"strides": 1, "dilations": 1, "group": 1, "auto_pad": "NOTSET"}
    geometry = conv_geometry("conv", case.X, case.W, **defaults | case.attributes)
    assert multiplications_inside(geometry) == round(met) * case.X[0] * case.W[0] * case.W[1]
    assert multiplications_inside(geometry) < geometry.multiplications


def test_the_rule_without_compiled_loops() -> None:
    attributes = {"strides": 1, "group": 1, "auto_pad": "NOTSET"}
    found = [
        _preferred(conv_geometry("conv", X, W, pads=d, dilations=d, **attributes), False, True)
        for X, W, d in (
            ((8, 64, 28, 28), (64, 64, 3, 3), 1), ((4, 256, 28, 28), (256, 256, 3, 3), 1),
            ((2, 256, 33, 33), (256, 256, 3, 3), 6), ((2, 4, 33, 33), (8, 4, 3, 3), 6),
        )
    ]  # fmt: skip
    assert [own["forward"] for own in found] == ["shifted", "winograd", "clipped", "patches"]


@pytest.mark.parametrize("name", ["3x3-asymmetric", "3x3-dilated", "4x4-asymmetric", "5x5", "row-of-pieces"])
def test_what_winograd_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The elements of windows and products, by which it divides its work, are those of its arrays."""
    case, counted = CASES[name], []
    arrays = case.arrays()
    for function in ("from_windows", "to_windows"):
        monkeypatch.setattr(Images, function, _counted(getattr(Images, function), counted))
    geometry = conv_geometry("conv", case.X, case.W, **{"strides": 1, "dilations": 1, "group": 1,
                             "auto_pad": "NOTSET"} | case.attributes)  # fmt: skip
    engine, g = StandardEngine(np), of_images(geometry)
    method, kernels = choice.METHODS["winograd"], elements_of_kernels(g)
    method.forward(engine, geometry, arrays["X"], arrays["W"], None)
    assert sum(counted) == g.batch * WindowSums.of_forward(g).elements + kernels
    counted.clear()
    method.input_gradient(engine, geometry, arrays["dY"], arrays["W"])
    assert sum(counted) == g.batch * WindowSums.of_input_gradient(g).elements + kernels


def _counted(function: Any, counted: list[int]) -> Any:
    def call(self: Any, array: Any, *rest: Any) -> Any:
        result = function(self, array, *rest)
        counted.append((result if function.__name__ == "from_windows" else array).size)
        return result

    return call


@pytest.mark.parametrize(
    ("X", "W", "group", "expected"),
    [((8, 64, 56, 56), (64, 64, 3, 3), 1, "patches"), ((8, 3, 64, 64), (1, 3, 3, 3), 1, "patches"),
     ((8, 32, 28, 28), (32, 1, 3, 3), 32, "patches"), ((8, 64, 28, 28), (64, 64, 15, 15), 1, "fft"),
     ((8, 64, 28, 28), (64, 64, 1, 1), 1, "pointwise")],
)  # fmt: skip
def test_the_rule_on_a_gpu(X: tuple, W: tuple, group: int, expected: str) -> None:
    """A method of few operations."""
    pads = [(k - 1) // 2 for k in W[2:]] * 2
    attributes = {"strides": 1, "pads": pads, "dilations": 1, "group": group, "auto_pad": "NOTSET"}
    geometry = conv_geometry("conv", X, W, **attributes)
    assert choice.preferred(StandardEngine(np, launches=True), geometry) == expected


def _preferred(geometry: Any, compiled: Any, *asked: bool) -> dict[str, str]:
    """The method for each sum of a geometry and an engine's properties; `compiled` may be the costs."""
    compiled = (choice._COMPILED if compiled else None) if isinstance(compiled, bool) else compiled
    return {
        sums: choice._cheapest(costs) for sums, costs in choice._costs(geometry, compiled, *asked).items()
    }


def preferred(X: tuple[int, ...], W: tuple[int, ...], group: int) -> str:
    """The rule's choice with compiled loops; the output is as large as the input."""
    pads = (W[2] - 1) // 2
    geometry = conv_geometry("conv", X, W, strides=1, pads=pads, dilations=1, group=group, auto_pad="NOTSET")
    return _preferred(geometry, True, True)["forward"]


@pytest.mark.parametrize("method", ["auto", "taps", "winograd", "patches", "clipped", "shifted", "fft"])
def test_arrays_that_run_backwards(method: str, rng: np.random.Generator) -> None:
    """No program takes them."""
    X, W, dY = (rng.normal(size=s) for s in ((2, 9, 10, 9), (12, 9, 3, 3), (2, 12, 10, 9)))
    turned = X[::-1], W[:, ::-1], dY[..., ::-1]

    def sums(x: Any, w: Any, d: Any) -> list[Any]:
        Y = xpgrad.conv(x, w, pads=1, method=method)
        return [Y, *xpgrad.conv_grad(d, x, w, pads=1, method=method)]

    for actual, expected in zip(sums(*turned), sums(*map(np.ascontiguousarray, turned)), strict=True):
        assert_close(actual, expected, rtol=1e-11)


# --- only what is asked for


@pytest.mark.parametrize("wrt", [(), ("X",), "W", ("B",), ("X", "B"), ("W", "B", "X")])
def test_wrt_computes_nothing_else(wrt: Any) -> None:
    case = CASES["3x3"]
    arrays = case.arrays()
    X, W, dY = (arrays[name] for name in ("X", "W", "dY"))
    everything = xpgrad.conv_grad(dY, X, W, **case.attributes)
    work = [
        mock.patch.object(type(choice.METHODS[name]), sums, autospec=True, side_effect=AssertionError)
        for name in choice.METHODS
        for sums, argument in (("input_gradient", "X"), ("weight_gradient", "W"))
        if argument not in wrt
    ]
    if "B" not in wrt:
        work.append(
            mock.patch(
                "xpgrad.engine.images.numpy_images.NumpyImages.last_axis_sums", side_effect=AssertionError
            )
        )
    for patch in work:
        patch.start()
    try:
        grads = xpgrad.conv_grad(dY, X, W, **case.attributes, wrt=wrt)
    finally:
        mock.patch.stopall()
    for name, field in (("X", "dX"), ("W", "dW"), ("B", "dB")):
        if name in wrt:
            assert_close(getattr(grads, field), getattr(everything, field))
        else:
            assert getattr(grads, field) is None


# --- vjp


def test_vjp_is_the_forward_and_the_gradient(backend: Backend) -> None:
    case = CASES["strides"]
    here = backend.arrays(case.arrays(), "float64")
    X, W, B, dY = (here[key] for key in ("X", "W", "B", "dY"))
    Y, pullback = xpgrad.vjp(xpgrad.conv, X, W, B, **case.attributes)
    assert_close(Y, xpgrad.conv(X, W, B, **case.attributes))
    expected = xpgrad.conv_grad(dY, X, W, **case.attributes)
    for grads in (pullback(dY), pullback(dY=dY)):
        for actual, desired in zip(grads, expected, strict=True):
            assert_close(actual, desired)
    _, pullback = xpgrad.vjp(xpgrad.conv_transpose, dY, W, wrt="W", **case.attributes)
    assert pullback(xpgrad.conv_transpose(dY, W, **case.attributes)).dX is None
    with pytest.raises(TypeError, match="got 2 cotangents"):
        pullback(dY, dY)


# --- empty sizes


@pytest.mark.parametrize(
    ("X", "W"), [((0, 4, 6, 5), (3, 4, 2, 2)), ((2, 0, 6, 5), (3, 0, 2, 2)), ((2, 4, 6, 5), (0, 4, 2, 2))]
)
def test_empty_sizes(X: tuple[int, ...], W: tuple[int, ...], backend: Backend) -> None:
    here = backend.arrays({"X": np.ones(X), "W": np.ones(W), "B": np.arange(1.0, W[0] + 1)}, "float32")
    Y = xpgrad.conv(**here, pads=1)
    assert_close(Y, np.broadcast_to(to_numpy(here["B"])[:, None, None], (X[0], W[0], 7, 6)), like=here["X"])
    grads = xpgrad.conv_grad(Y, here["X"], here["W"], pads=1)
    assert_close(grads.dX, np.zeros(X), like=here["X"])
    assert_close(grads.dW, np.zeros(W), like=here["X"])
    apart = xpgrad.conv_grad(Y, here["X"], here["W"], pads=1, per_sample=True)
    assert tuple(apart.dW.shape) == (X[0], *W)
    assert tuple(apart.dB.shape) == (X[0], W[0])


# --- memory


def test_the_gradient_needs_little_memory(rng: np.random.Generator) -> None:
    """NumPy's own allocations, beyond inputs and results."""
    X, dY = (rng.standard_normal((8, 64, 56, 56), dtype=np.float32) for _ in range(2))
    W = rng.standard_normal((64, 64, 3, 3), dtype=np.float32)
    xpgrad.conv_grad(dY, X, W, pads=1)  # compile first: fewer images may take another method
    tracemalloc.start()
    try:
        grads = xpgrad.conv_grad(dY, X, W, pads=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    results = sum(a.nbytes for a in grads)
    assert peak - results < 16e6, f"{(peak - results) / 1e6:.1f} MB"


_PEAK = """
import resource, torch, xpgrad
X, dY, W = (torch.randn(s) for s in [(8, 64, 56, 56), (8, 64, 56, 56), (64, 64, 3, 3)])
small = [a[:2] for a in (dY, X)]
for _ in range(2):
    xpgrad.conv_grad(*small, W, pads=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
grads = xpgrad.conv_grad(dY, X, W, pads=1)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 - sum(a.numel() * 4 for a in grads))
"""


def test_the_process_grows_by_little_on_tensors() -> None:
    """What the system counts, with whatever torch and BLAS take."""
    pytest.importorskip("torch")
    run = subprocess.run(
        [sys.executable, "-c", _PEAK], capture_output=True, text=True, check=True, env=os.environ
    )
    assert float(run.stdout) < 16e6, f"{float(run.stdout) / 1e6:.1f} MB"


# --- special values, inputs, threads


@pytest.mark.parametrize("method", ["shifted", "patches", "clipped", "taps"])
def test_a_nan_reaches_what_it_meets_and_nothing_else(method: str) -> None:
    X, W = np.ones((1, 2, 7, 8)), np.ones((3, 2, 3, 3))
    X[0, 1, 4, 5] = np.nan
    Y = xpgrad.conv(X, W, pads=1, method=method)
    expected = np.zeros((7, 8), dtype=bool)
    expected[3:6, 4:7] = True
    assert np.array_equal(np.isnan(Y), np.broadcast_to(expected, Y.shape))


@pytest.mark.parametrize("name", SOME)
def test_inputs_are_not_written_to(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays()
    before = {key: array.copy() for key, array in arrays.items()}
    for method in ("auto", "shifted", "patches", "clipped", "taps"):
        xpgrad.conv(arrays["X"], arrays["W"], arrays["B"], method=method, **case.attributes)
        xpgrad.conv_grad(arrays["dY"], arrays["X"], arrays["W"], method=method, **case.attributes)
    for key, array in arrays.items():
        assert np.array_equal(array, before[key])


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("name", ["3x3-asymmetric", "1d", "depthwise", "large"])
def test_any_number_of_threads(name: str, threads: str, set_threads: Any) -> None:
    set_threads(threads)
    case = CASES[name]
    arrays = case.arrays()
    expected = case.expected(arrays)
    X, W, B, dY = (arrays[key] for key in ("X", "W", "B", "dY"))
    assert_close(xpgrad.conv(X, W, B, **case.attributes), expected["Y"], rtol=1e-12)
    for actual, field in zip(xpgrad.conv_grad(dY, X, W, **case.attributes), ("dX", "dW", "dB"), strict=True):
        assert_close(actual, expected[field], rtol=1e-12)


@pytest.mark.parametrize(
    ("method", "size", "kernel", "options"),
    [("winograd", (21, 17), (3, 3), {"pads": 1}), ("patches", (21, 17), (3, 3), {"pads": 1}),
     ("winograd", (83,), (3,), {"pads": 1}), ("winograd", (83,), (10,), {"pads": [6, 3]}),
     ("winograd", (101,), (7,), {"pads": 9, "dilations": 3}),
     ("winograd", (5, 57), (1, 5), {"pads": [0, 2] * 2}), ("winograd", (21, 17), (5, 5), {"pads": 2}),
     ("winograd", (21, 27), (3, 3), {"pads": [2, 3] * 2, "dilations": [2, 3]})],
)  # fmt: skip
def test_bands_of_one_image(
    method: str, size: tuple, kernel: tuple, options: dict, monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """An image that does not fit the cache is computed in bands of rows or columns."""
    X, W, dY = (rng.standard_normal(s) for s in ((2, 3, *size), (4, 3, *kernel), (2, 4, *size)))
    options = {**options, "method": method}
    whole = [xpgrad.conv(X, W, **options), *xpgrad.conv_grad(dY, X, W, **options)]
    monkeypatch.setattr("xpgrad.engine.images.in_place.BAND", 1)
    monkeypatch.setattr(conv_method, "_COLUMNS", 1)
    monkeypatch.setattr(families, "known", families.CallCache())
    for jit in ("1", "0"):
        monkeypatch.setenv("XPGRAD_JIT", jit)
        apart = [xpgrad.conv(X, W, **options), *xpgrad.conv_grad(dY, X, W, **options)]
        for actual, desired in zip(apart, whole, strict=True):
            assert_close(actual, desired, rtol=1e-12)


@pytest.mark.parametrize(
    ("size", "kernel", "rtol"),
    [((14, 14), (3, 3), 4e-6), ((14, 14), (5, 5), 2e-5), ((128,), (3,), 2e-6), ((128,), (11,), 3e-6)],
)
def test_winograds_error_in_float32(
    size: tuple[int, ...], kernel: tuple[int, ...], rtol: float, rng: np.random.Generator
) -> None:
    """Relative to the largest value, with many channels."""
    shapes = (2, 64, *size), (2, 256, *size), (64, 256, *kernel)
    dY, X, W = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    pads = kernel[0] // 2
    exact = [a.astype(np.float64) for a in (dY, X, W)]
    expected = [
        xpgrad.conv(*exact[1:], pads=pads, method="shifted"),
        *xpgrad.conv_grad(*exact, pads=pads, method="shifted"),
    ]
    actual = [
        xpgrad.conv(X, W, pads=pads, method="winograd"),
        *xpgrad.conv_grad(dY, X, W, pads=pads, method="winograd"),
    ]
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b, like=X, rtol=rtol)


@pytest.mark.parametrize("method", ["winograd", "taps"])
def test_results_stay_when_other_calls_follow(method: str, rng: np.random.Generator) -> None:
    """What a method uses again is no result's memory."""
    X, W = rng.normal(size=(3, 20, 9, 30)), rng.normal(size=(17, 20, 3, 3))
    Y = xpgrad.conv(X, W, pads=1, method=method)
    results = [Y, *xpgrad.conv_grad(np.ones_like(Y), X, W, pads=1, method=method)]
    before = [np.array(result) for result in results if result is not None]
    for _ in range(2):
        other = xpgrad.conv(X + 1, W - 1, pads=1, method=method)
        xpgrad.conv_grad(other, X + 1, W - 1, pads=1, method=method)
    for result, kept in zip((r for r in results if r is not None), before, strict=True):
        np.testing.assert_array_equal(result, kept)


@pytest.mark.parametrize("programs", [True, False])
@pytest.mark.parametrize(
    "case",
    [
        Case((21, 4, 7, 5), (6, 2, 3, 3), {"pads": [1, 0, 2, 1], "group": 2}),
        Case((70, 3, 9), (5, 3, 3), {"strides": 2, "pads": 1, "dilations": 2}),
        Case((19, 6, 5, 6), (6, 1, 2, 2), {"group": 6, "strides": [2, 1]}),
    ],
)
def test_patches_of_several_images_at_a_time(
    case: Case, programs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last product has fewer images than the others."""
    monkeypatch.setattr("xpgrad.engine.images.in_place.BAND", 64)
    monkeypatch.setattr(conv_method, "_COLUMNS", 200)
    monkeypatch.setattr(families, "known", families.CallCache())
    arrays = case.arrays()
    expected = case.expected(arrays)
    X, W, B, dY = (arrays[name] for name in ("X", "W", "B", "dY"))
    with nullcontext() if programs else without_programs():
        found = xpgrad.conv_grad(dY, X, W, method="patches", **case.attributes)._asdict()
        found["Y"] = xpgrad.conv(X, W, B, method="patches", **case.attributes)
    for name, actual in found.items():
        assert_close(actual, expected[name], rtol=1e-12, label=name)


@pytest.mark.parametrize("method", ["auto", "winograd", "taps", "shifted", "patches"])
@pytest.mark.parametrize(("dtype", "other"), [("f8", "i4"), ("f8", "i1"), ("f4", "i1")])
def test_fields_of_records(dtype: str, other: str, method: Any, rng: np.random.Generator) -> None:
    """Their elements lie at no multiple of their size."""

    def field(*shape: int) -> np.ndarray:
        records = np.zeros(shape, [("x", dtype), ("label", other)])
        records["x"] = rng.normal(size=shape)
        return records["x"]

    X, W, dY = field(3, 16, 20, 20), field(20, 16, 3, 3), field(3, 20, 20, 20)
    given = [array.copy() for array in (X, W, dY)]

    def results(X: np.ndarray, W: np.ndarray, dY: np.ndarray) -> list[np.ndarray]:
        grads = xpgrad.conv_grad(dY, X, W, pads=1, method=method)
        return [xpgrad.conv(X, W, pads=1, method=method), grads.dX, grads.dW, grads.dB]

    for a, b in zip(results(X, W, dY), results(*given), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("jit", ["1", "0"])
def test_sums_of_many_positions_keep_their_digits(jit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the cotangent of a mean, which is the same everywhere."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    dY = np.full((1, 1, 1 << 20), 0.1, np.float32)
    grads = xpgrad.conv_grad(dY, dY, np.ones((1, 1, 1), np.float32), wrt=["B"])
    assert abs(float(grads.dB[0]) / (float(dY[0, 0, 0]) * dY.size) - 1) < 1e-5
