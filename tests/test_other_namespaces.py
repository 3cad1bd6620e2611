"""Namespaces beside the backends: Dask and lazy ndonnx compute later, MLX lacks parts of the standard.

Arrays on the second device of array-api-strict stand for CuPy's: they refuse to be converted to NumPy's
(CuPy: "Implicit conversion to a NumPy array is not allowed"), and to meet arrays that are somewhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xpgrad
from xpgrad._cases.kernels import KERNELS

T, N, I, H = 4, 3, 2, 3


def lstm(X: Any, W: Any, R: Any, B: Any) -> Any:
    given: dict[str, Any] = {"B": B, "sequence_lens": [4, 2, 0], "direction": "reverse", "clip": 2.0}
    out = xpgrad.lstm(X, W, R, **given)
    saved = {"H_all": out.H_all, "C_all": out.C_all, "iofc": out.iofc}
    return *out, *xpgrad.lstm_grad(X, W, R, **given, **saved, grad_H_all=out.H_all)[:6]


def gru(X: Any, W: Any, R: Any, B: Any) -> Any:
    out = xpgrad.gru(X, W, R, B)
    saved = {"H_all": out.H_all, "zrh": out.zrh}
    return *out, *xpgrad.gru_grad(X, W, R, B=B, **saved, grad_H_t=out.H_t, per_sample=True)


def conv(X: Any, W: Any, B: Any) -> Any:
    Y = xpgrad.conv(X, W, B, pads=1, strides=2)
    return Y, *xpgrad.conv_grad(Y, X, W, pads=1, strides=2)


def elements(X: Any) -> Any:
    Y = xpgrad.softmax(X, axis=0)
    logs = xpgrad.log_softmax_grad(X, Y)
    return xpgrad.gelu(X), xpgrad.tanh_grad(X, Y), xpgrad.softmax_grad(X, Y, axis=0), logs


def binary(X: Any) -> Any:
    loss = xpgrad.binary_cross_entropy_with_logits(X, X * X)
    return loss, xpgrad.binary_cross_entropy_with_logits_grad(loss, X, X * X)


WORK: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "lstm": (lstm, [(T, N, I), (1, 4 * H, I), (1, 4 * H, H), (1, 8 * H)]),
    "gru": (gru, [(T, N, I), (1, 3 * H, I), (1, 3 * H, H), (1, 6 * H)]),
    "conv": (conv, [(2, 3, 6, 5), (4, 3, 3, 3), (4,)]),
    "elements": (elements, [(3, 4)]),
    "binary": (binary, [(3, 4)]),
}


@pytest.mark.parametrize("name", WORK)
def test_dask_computes_nothing_before_it_is_asked(name: str, rng: np.random.Generator) -> None:
    dask = pytest.importorskip("dask", reason="dask not installed")
    from dask import array

    function, shapes = WORK[name]
    given, loaded = [rng.normal(size=shape) for shape in shapes], []

    def later(values: np.ndarray) -> Any:
        def load(block: np.ndarray) -> np.ndarray:
            loaded.append(None)
            return block

        form = np.empty((0,) * values.ndim)
        return array.from_array(values, chunks=values.shape).map_blocks(load, dtype=form.dtype, meta=form)

    results = function(*map(later, given))
    assert not loaded
    assert all(isinstance(result, array.Array) for result in results)
    for ours, expected in zip(dask.compute(*results), function(*given), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


def evaluated(inputs: dict[str, Any], results: list[Any], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The values of lazy ndonnx arrays, by onnx's evaluator on the graph that they are."""
    import ndonnx
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = ndonnx.build(inputs, {f"y{k}": result for k, result in enumerate(results)})
    onnx.checker.check_model(model, full_check=True)
    with np.errstate(invalid="ignore"):  # of branches that nobody selects
        return list(ReferenceEvaluator(model).run([f"y{k}" for k in range(len(results))], feeds))


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("name", WORK)
def test_lazy_ndonnx_becomes_a_graph(name: str, unknown: bool, rng: np.random.Generator) -> None:
    """With sizes of X that are symbols, for what has loops or images."""
    ndonnx = pytest.importorskip("ndonnx", reason="ndonnx not installed")
    function, shapes = WORK[name]
    if unknown and name in ("elements", "binary"):
        pytest.skip("operations of ndonnx's own take no symbols")
    given = {f"x{k}": rng.normal(size=shape) for k, shape in enumerate(shapes)}
    names: Any = {4: ("N", 3, "height", "width"), 3: ("T", "N", I)}
    sizes = [names[len(shapes[0])] if unknown else shapes[0], *shapes[1:]]
    lazy = {
        name: ndonnx.argument(shape=size, dtype=ndonnx.float64)
        for name, size in zip(given, sizes, strict=True)
    }
    if unknown and name == "lstm":  # its lengths are those of three sequences
        lazy["x0"] = ndonnx.argument(shape=("T", N, I), dtype=ndonnx.float64)
    results = evaluated(lazy, list(function(*lazy.values())), given)
    for ours, expected in zip(results, function(*given.values()), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


def test_lazy_resets_are_refused() -> None:
    ndonnx = pytest.importorskip("ndonnx", reason="ndonnx not installed")
    X, W, R = (ndonnx.argument(shape=s, dtype=ndonnx.float64) for s in [(5, 2, 3), (1, 16, 3), (1, 16, 4)])
    reset = ndonnx.argument(shape=(5, 2), dtype=ndonnx.bool)
    with pytest.raises(TypeError, match="lstm: reset is a lazy array of ndonnx, expected known values"):
        xpgrad.lstm(X, W, R, reset=reset)


@pytest.mark.parametrize("number", range(len(KERNELS)), ids=[kernel.name for kernel in KERNELS])
def test_every_kernel_in_lazy_ndonnx(number: int) -> None:
    """Its first option, forward and gradient, beside the same in NumPy."""
    ndonnx = pytest.importorskip("ndonnx", reason="ndonnx not installed")
    kernel = KERNELS[number]
    case = next(iter(kernel.options.values()))()
    lazy: dict[str, Any] = {}
    feeds: dict[str, np.ndarray] = {}

    def arguments(arrays: Any) -> dict[str, Any]:
        names = {name: f"x{len(lazy) + k}" for k, name in enumerate(arrays)}
        feeds.update((names[name], values) for name, values in arrays.items())
        made = {n: ndonnx.argument(shape=a.shape, dtype=ndonnx.asarray(a).dtype) for n, a in arrays.items()}
        lazy.update((names[name], array) for name, array in made.items())
        return made

    parts = {part: arguments(getattr(case, part)) for part in ("arguments", "cotangents", "weights")}
    integers = {name: ndonnx.asarray(values) for name, values in case.integers.items()}
    results = kernel.run(case._replace(**parts, integers=integers))
    for ours, expected in zip(
        evaluated(lazy, list(results.values()), feeds), kernel.run(case).values(), strict=True
    ):
        np.testing.assert_allclose(ours, np.asarray(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", WORK)
def test_mlx(name: str, dtype: str, rng: np.random.Generator) -> None:
    mx = pytest.importorskip("mlx.core", reason="mlx not installed")
    function, shapes = WORK[name]
    given = [rng.normal(size=shape) for shape in shapes]
    tolerance = 1e-10 if dtype == "float64" else 1e-4
    results = function(*(mx.array(values, dtype=getattr(mx, dtype)) for values in given))
    for ours, expected in zip(results, function(*given), strict=True):
        assert isinstance(ours, mx.array)
        assert ours.dtype == getattr(mx, dtype)
        np.testing.assert_allclose(np.asarray(ours), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", WORK)
def test_arrays_that_never_become_those_of_numpy(name: str, rng: np.random.Generator) -> None:
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict not installed")
    there, here = strict.Device("device1"), strict.Device("CPU_DEVICE")
    function, shapes = WORK[name]
    given = [rng.normal(size=shape) for shape in shapes]
    far = [strict.asarray(values, device=there) for values in given]
    with pytest.raises(RuntimeError, match="NumPy array"):
        np.asarray(far[0])
    for ours, expected in zip(function(*far), function(*given), strict=True):
        assert ours.device == there
        np.testing.assert_allclose(np.asarray(ours.to_device(here)), expected, rtol=1e-10, atol=1e-12)


def test_arrays_of_two_kinds_are_named(rng: np.random.Generator) -> None:
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict not installed")
    there = strict.Device("device1")
    X, W = rng.normal(size=(1, 1, 4)), rng.normal(size=(1, 1, 2))
    with pytest.raises(TypeError, match="conv: "):
        xpgrad.conv(strict.asarray(X, device=there), W)
    with pytest.raises(TypeError, match=r"conv: W .* device"):
        xpgrad.conv(strict.asarray(X, device=there), strict.asarray(W))
