"""Activations: golden data, definitions, differences, shapes and layouts, kinks, extremes, every backend."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import xpgrad
from activation_cases import CASES, WITH_OPERANDS, Activation, Long
from backends import BACKENDS, Backend
from test_recurrent_golden import load, names
from xpgrad._cases.activations import DEFINITIONS
from xpgrad._elementwise import activation_formulas as formulas
from xpgrad._operators.declaration import DECLARED, formulas_of
from xpgrad.cli import check_random
from xpgrad.engine import Formula
from xpgrad.engine.process import sharing
from xpgrad.testing import assert_close, check_vjp, to_numpy

each_activation = pytest.mark.parametrize("activation", CASES, ids=str)
DEFAULTS = [case for case in CASES if not case.attributes]
GOLDEN = {
    "ReluGrad": ("relu_grad", "X", {}),
    "SigmoidGrad": ("sigmoid_grad", "Y", {}),
    "TanhGrad": ("tanh_grad", "Y", {}),
    "QuickGeluGrad": ("quick_gelu_grad", "X", {}),
    "LeakyReluGrad": ("leaky_relu_grad", "Y", {}),
    "GeluGrad": ("gelu_grad", "X", {}),
    "FastGeluGrad": ("gelu_grad", "X", {"approximate": "tanh"}),
}


def value_of(activation: Activation, X: Any, **more: Any) -> Any:
    return getattr(xpgrad, activation.name)(X, **activation.attributes, **more)


def gradient_of(activation: Activation, dY: Any, X: Any, **more: Any) -> Any:
    """The gradient, for the input or its output as the gradient takes it."""
    saved = X if activation.takes == "X" else value_of(activation, X)
    return getattr(xpgrad, f"{activation.name}_grad")(dY, saved, **activation.attributes, **more)


def away_from_kinks(activation: Activation, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape) * 3
    for kink in (*activation.kinks, 0.0, 1.5):  # 1.5 is where a softplus turns into x
        x = np.where(np.abs(x - kink) < 1e-2, kink + 0.05, x)
    return x


def expected_gradient(activation: Activation, dY: np.ndarray, X: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (dY * np.asarray(activation.slope(X.astype(Long)), dtype=Long)).astype(np.float64)


# --- golden -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names("ort_training.npz", *GOLDEN))
def test_golden(name: str, backend: Backend) -> None:
    case = load("ort_training.npz")[name]
    kernel, residual, attributes = GOLDEN[case["op"]]
    for dtype in {"float32"} & set(backend.dtypes):
        dY, saved = (backend.array(case["in"][operand], dtype) for operand in ("dY", residual))
        dX = getattr(xpgrad, kernel)(dY, saved, **attributes, **case["attrs"])
        assert_close(dX, case["out"]["dX"], like=saved, rtol=2e-6, label=name)


def test_all_golden_cases_are_there() -> None:
    assert len(names("ort_training.npz", *GOLDEN)) == 15


# --- definitions and differences ------------------------------------------------------------------------


def test_every_activation_is_tested() -> None:
    tested = {case.name for case in CASES} | {*WITH_OPERANDS}
    public = {
        n for n in xpgrad.__all__ if getattr(getattr(xpgrad, n), "__module__", "") == "xpgrad.activations"
    }
    assert {n.removesuffix("_grad") for n in public if n.islower()} == tested
    assert tested == {*DEFINITIONS}


@each_activation
def test_definition(activation: Activation, backend: Backend) -> None:
    """Values and gradients on every backend and dtype, for random cotangents."""
    X = away_from_kinks(activation, (3, 4, 5))
    dY = np.random.default_rng(1).normal(size=X.shape)
    for dtype in backend.dtypes:
        if dtype == "float64" or backend.name in ("numpy", "torch", "numpy-without-jit", "torch-standard"):
            x, d = backend.array(X, dtype), backend.array(dY, dtype)
            exact, cotangent = (to_numpy(v).astype(np.float64) for v in (x, d))
            before = to_numpy(x).copy(), to_numpy(d).copy()
            with np.errstate(all="raise"):
                y, dx = value_of(activation, x), gradient_of(activation, d, x)
            desired = np.asarray(activation.value(exact.astype(Long)), dtype=np.float64)
            assert_close(y, desired, like=x, rtol=_RTOL[dtype], label=f"{activation} {dtype}")
            # a gradient that takes Y is told it in that dtype
            looser = 4 if activation.takes == "Y" and dtype not in ("float32", "float64") else 1
            slope = expected_gradient(activation, cotangent, exact)
            assert_close(dx, slope, like=x, rtol=looser * _RTOL[dtype], label=f"{activation}_grad {dtype}")
            np.testing.assert_array_equal(to_numpy(x), before[0])
            np.testing.assert_array_equal(to_numpy(d), before[1])


_RTOL = {"float64": 2e-15, "float32": 6e-7, "float16": 1e-3, "bfloat16": 8e-3}


@each_activation
@pytest.mark.parametrize("engine", [None, "standard"])
def test_differences(activation: Activation, engine: str | None) -> None:
    X = away_from_kinks(activation, (3, 4), seed=2)
    with xpgrad.use_engine(engine):
        check_vjp(
            lambda X: value_of(activation, X),
            lambda dY, X: gradient_of(activation, dY, X),
            {"X": X},
            operator=str(activation),
        )


# --- accuracy ---------------------------------------------------------------------------------------------

BOUNDS = {"float64": 1.5e-15, "float32": 1e-6}
"""Largest error of values and of slopes, relative to them or, where they are smaller, to 0.01."""
CROSSING = ("gelu", "quick_gelu", "silu", "mish", "hard_swish", "hard_sigmoid")
"""Those with a difference of two terms that crosses 0: there ten times as much."""
POINTS = np.concatenate(
    [np.linspace(-30, 30, 6001), np.geomspace(1e-6, 1e4, 500), -np.geomspace(1e-6, 1e4, 500)]
)


@pytest.mark.parametrize("activation", DEFAULTS, ids=str)
@pytest.mark.parametrize("how", ["compiled", "blocks"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_accuracy(activation: Activation, how: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "compiled" and importlib.util.find_spec("llvmlite") is None:
        pytest.skip("llvmlite is not installed: nothing is compiled")
    monkeypatch.setenv("XPGRAD_JIT", "1" if how == "compiled" else "0")
    x = POINTS.astype(dtype)
    exact = x.astype(Long)
    one = np.ones_like(x)
    with np.errstate(all="ignore"):
        values, slopes = activation.value(exact), np.asarray(activation.slope(exact), dtype=Long)
    measured = [(value_of(activation, x), values)]
    if activation.takes == "X":
        measured.append((gradient_of(activation, one, x), slopes))
    else:  # the slope for the output as it was rounded
        y = np.asarray(value_of(activation, x)).astype(Long)
        told = {"sigmoid": y * (1 - y), "tanh": 1 - y * y, "leaky_relu": slopes}[activation.name]
        measured.append((gradient_of(activation, one, x), told))
    for actual, desired in measured:
        error = np.abs(actual.astype(Long) - desired) / np.maximum(np.abs(desired), Long(0.01))
        worst = int(np.argmax(error))
        bound = BOUNDS[dtype] * (10 if activation.name in CROSSING else 1)
        assert error[worst] < bound, f"{error[worst]:.2e} at {x[worst]}"


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "elu", "log_sigmoid", "softplus", "quick_gelu"])
def test_tails_keep_relative_accuracy(name: str) -> None:
    """Where the value vanishes it is right to many digits, and no difference of two larger ones."""
    activation = next(case for case in DEFAULTS if case.name == name)
    x = -np.linspace(5, 12, 101)
    if name == "log_sigmoid":
        x = -x
    for actual, desired in (
        (value_of(activation, x), activation.value(x.astype(Long))),
        (gradient_of(activation, np.ones_like(x), x), activation.slope(x.astype(Long))),
    ):
        np.testing.assert_allclose(actual, desired.astype(np.float64), rtol=3e-14)


# --- kinks, extremes, NaN ---------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [case for case in CASES if case.kinks], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kinks(activation: Activation, dtype: str) -> None:
    """The table of the documentation: PyTorch's choices."""
    x = np.asarray(list(activation.kinks), dtype=dtype)
    dY = np.asarray([2.0, -3.0][: x.size], dtype=dtype)
    dX = gradient_of(activation, dY, x)
    np.testing.assert_allclose(dX, dY * np.asarray(list(activation.kinks.values())), rtol=1e-6)


ALPHAS = (0.1, 0.15, 1 / 6, 0.2, 0.25, 0.3, 1 / 3, 0.7, 1.3, -0.2)
BETAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, -0.4, 3.0)


def test_both_ends_of_hard_sigmoid(backend: Backend) -> None:
    """The slope is 0 at an end, though alpha, beta and x are rounded; values are rounded as NumPy does."""
    for dtype in {"float32", "float64"} & set(backend.dtypes):
        for alpha, beta in itertools.product(ALPHAS, BETAS):
            numbers = {"alpha": alpha, "beta": beta}
            ends = np.asarray([-beta / alpha, (1 - beta) / alpha] * 9)  # enough for vectors and the rest
            x, one = backend.array(ends, dtype), backend.array(np.ones(18), dtype)
            values = to_numpy(xpgrad.hard_sigmoid(x, **numbers))
            plain = np.clip(getattr(np, dtype)(alpha) * ends.astype(dtype) + getattr(np, dtype)(beta), 0, 1)
            np.testing.assert_array_equal(values, plain, err_msg=f"{dtype} {numbers}")
            slopes = to_numpy(xpgrad.hard_sigmoid_grad(one, x, **numbers))
            np.testing.assert_array_equal(slopes, 0, err_msg=f"{dtype} {numbers}")
            inside = backend.array(ends * (1 - 1e-5) + 1e-5 * (0.5 - beta) / alpha, dtype)
            slopes = to_numpy(xpgrad.hard_sigmoid_grad(one, inside, **numbers))
            np.testing.assert_allclose(slopes, alpha, rtol=1e-6, err_msg=f"{dtype} {numbers}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_hard_sigmoid_without_shift_keeps_small_values(dtype: str) -> None:
    x = np.asarray([1e-30, 1e-20, 1e-9], dtype=dtype)
    np.testing.assert_array_equal(xpgrad.hard_sigmoid(x, alpha=1.0, beta=0.0), x)
    np.testing.assert_array_equal(xpgrad.hard_sigmoid_grad(np.ones_like(x), x, alpha=1.0, beta=0.0), 1)


@each_activation
def test_kinks_are_pytorchs(activation: Activation) -> None:
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: PyTorch's choices cannot be compared"
    )
    F = torch.nn.functional
    peers = {
        "relu": F.relu, "leaky_relu": lambda x, alpha=0.01: F.leaky_relu(x, alpha), "elu": F.elu,
        "selu": lambda x: F.selu(x), "celu": F.celu, "hard_swish": F.hardswish, "hard_tanh": F.hardtanh,
        "thresholded_relu": lambda x, alpha=1.0: F.threshold(x, alpha, 0.0),
    }  # fmt: skip
    if activation.attributes == {"alpha": 1 / 6}:
        peers["hard_sigmoid"] = lambda x, alpha: F.hardsigmoid(x)
    if not activation.kinks or activation.name not in peers or "gamma" in activation.attributes:
        return
    x = torch.tensor(list(activation.kinks), dtype=torch.float64, requires_grad=True)
    peers[activation.name](x, **activation.attributes).sum().backward()
    ours = gradient_of(activation, np.ones(x.shape), x.detach().numpy())
    np.testing.assert_allclose(ours, x.grad.numpy(), rtol=1e-6)


INF = np.inf
LIMITS = {  # at -inf, -1e4, 1e4, inf: values, then slopes
    "relu": ((0, 0, 1e4, INF), (0, 0, 1, 1)),
    "leaky_relu": ((-INF, -100, 1e4, INF), (0.01, 0.01, 1, 1)),
    "thresholded_relu": ((0, 0, 1e4, INF), (0, 0, 1, 1)),
    "elu": ((-1, -1, 1e4, INF), (0, 0, 1, 1)),
    "selu": ((-1.7580993, -1.7580993, 10507.01, INF), (0, 0, 1.0507010, 1.0507010)),
    "celu": ((-1, -1, 1e4, INF), (0, 0, 1, 1)),
    "softplus": ((0, 0, 1e4, INF), (0, 0, 1, 1)),
    "log_sigmoid": ((-INF, -1e4, 0, 0), (1, 1, 0, 0)),
    "gelu": ((0, 0, 1e4, INF), (0, 0, 1, 1)),
    "quick_gelu": ((0, 0, 1e4, INF), (0, 0, 1, 1)),
    "silu": ((0, 0, 1e4, INF), (0, 0, 1, 1)),
    "mish": ((0, 0, 1e4, INF), (0, 0, 1, 1)),
    "sigmoid": ((0, 0, 1, 1), (0, 0, 0, 0)),
    "tanh": ((-1, -1, 1, 1), (0, 0, 0, 0)),
    "scaled_tanh": ((-1, -1, 1, 1), (0, 0, 0, 0)),
    "softsign": ((-1, -0.99990001, 0.99990001, 1), (0, 9.998e-9, 9.998e-9, 0)),
    "hard_sigmoid": ((0, 0, 1, 1), (0, 0, 0, 0)),
    "hard_swish": ((0, 0, 1e4, INF), (0, 0, 1, 1)),
    "hard_tanh": ((-1, -1, 1, 1), (0, 0, 0, 0)),
}


@pytest.mark.parametrize("name", LIMITS)
def test_extremes(name: str, backend: Backend) -> None:
    """Limits, without a warning, and NaN for NaN."""
    kernels = [next(case for case in DEFAULTS if case.name == name)]
    if name == "gelu":
        kernels.append(next(case for case in CASES if "approximate" in case.attributes))
    for activation in kernels:
        for dtype in {"float32", "float64"} & set(backend.dtypes):
            x = backend.array(np.asarray([-INF, -1e4, 1e4, INF, np.nan]), dtype)
            d = backend.array(np.asarray([2.0, -3.0, 0.5, 4.0, 1.0]), dtype)
            with np.errstate(all="raise"):
                y, dx = to_numpy(value_of(activation, x)), to_numpy(gradient_of(activation, d, x))
            values, slopes = LIMITS[name]
            np.testing.assert_allclose(y[:4], values, rtol=1e-6, atol=1e-30)
            np.testing.assert_allclose(dx[:4], np.asarray(slopes) * to_numpy(d)[:4], rtol=1e-4, atol=1e-30)
            assert np.isnan(y[4])


# --- shapes, layouts, out -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1), (7,), (2, 3, 4, 5, 6)], ids=str)
def test_shapes(shape: tuple[int, ...], backend: Backend) -> None:
    activation = next(case for case in DEFAULTS if case.name == "silu")
    X, dY = (np.random.default_rng(seed).normal(size=shape) for seed in range(2))
    x, d = backend.array(X), backend.array(dY)
    assert_close(value_of(activation, x), activation.value(X.astype(Long)).astype(float), like=x, rtol=1e-14)
    assert_close(gradient_of(activation, d, x), expected_gradient(activation, dY, X), like=x, rtol=1e-14)


@pytest.mark.parametrize("jit", ["0", "1"])
def test_layouts(
    jit: str, monkeypatch: pytest.MonkeyPatch, set_threads: Any, rng: np.random.Generator
) -> None:
    """Transposed, strided, reversed, broadcast and unaligned arrays, enough for threads and many blocks."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    set_threads(3)
    base = rng.normal(size=(2 * 331, 2 * 420))
    raw = np.zeros(331 * 420 * 8 + 1, np.uint8)
    unaligned = raw[1:].view(np.float64).reshape(331, 420)
    unaligned[...] = base[:331, :420]
    layouts = {
        "plain": np.ascontiguousarray(base[:331, :420]),
        "transposed": np.asfortranarray(base[:331, :420]),
        "strided": base[::2, ::2],
        "reversed": base[:331, :420][::-1, ::-1],
        "broadcast": np.broadcast_to(base[:1, :420], (331, 420)),
        "unaligned": unaligned,
    }
    for first, dY in layouts.items():
        for second, X in layouts.items():
            expected = dY * ((1 - X) * (1 + X))
            for out in (
                None,
                np.empty_like(X),
                np.asfortranarray(base[:331, :420]),
                np.empty((662, 420))[::2],
            ):
                result = xpgrad.tanh_grad(dY, X, out=out)
                assert out is None or result is out
                np.testing.assert_allclose(result, expected, rtol=1e-12, err_msg=f"{first} {second}")


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh"])
def test_out(name: str, backend: Backend) -> None:
    activation = next(case for case in DEFAULTS if case.name == name)
    X, dY = (np.random.default_rng(seed).normal(size=(4, 6)) for seed in range(2))
    for dtype in backend.dtypes:
        expected = (
            value_of(activation, backend.array(X, dtype)),
            gradient_of(activation, backend.array(dY, dtype), backend.array(X, dtype)),
        )
        for number, call in enumerate((lambda x, d, **o: value_of(activation, x, **o),
                                       lambda x, d, **o: gradient_of(activation, d, x, **o))):  # fmt: skip
            x, d = backend.array(X, dtype), backend.array(dY, dtype)
            writable = backend.xp.zeros(x.shape, dtype=x.dtype)
            assert call(x, d, out=writable) is writable
            assert_close(writable, expected[number], rtol=0 if activation.takes == "X" else None)
            if backend.readonly:
                with pytest.raises(ValueError, match=r"out is read-only, expected an array that can"):
                    call(x, d, out=x)
            elif activation.takes == "X":
                assert call(x, d, out=x) is x
                assert_close(x, expected[number], rtol=1e-15 if dtype == "float64" else None)
                x = backend.array(X, dtype)
                if number:
                    assert call(x, d, out=d) is d
                    assert_close(d, expected[number], rtol=1e-15 if dtype == "float64" else None)


@pytest.mark.parametrize("jit", ["0", "1"])
@pytest.mark.parametrize("shift", [1, 7])
def test_out_that_overlaps(jit: str, shift: int, monkeypatch: pytest.MonkeyPatch, rng: Any) -> None:
    """As if the result were made first and then copied."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    memory = rng.normal(size=40_000)
    expected = xpgrad.silu(memory[:-shift].copy())
    xpgrad.silu(memory[:-shift], out=memory[shift:])
    np.testing.assert_allclose(memory[shift:], expected, rtol=1e-14)
    memory = rng.normal(size=40_000)
    expected = xpgrad.silu_grad(memory[shift:].copy(), memory[:-shift].copy())
    xpgrad.silu_grad(memory[shift:], memory[:-shift], out=memory[shift:])
    np.testing.assert_allclose(memory[shift:], expected, rtol=1e-14)


@pytest.mark.parametrize("jit", ["0", "1"])
def test_out_is_every_operand(jit: str, monkeypatch: pytest.MonkeyPatch, rng: Any) -> None:
    """One array is both operands and the result."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    x = rng.standard_normal(5000)
    expected = xpgrad.mish_grad(x.copy(), x.copy())
    assert xpgrad.mish_grad(x, x, out=x) is x
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("shift", [0, 1, 7, 20_000])
def test_an_out_of_torch_that_overlaps(shift: int) -> None:
    """A tensor over the same memory, a part of it, or memory behind it; its loop gets addresses."""
    torch = pytest.importorskip("torch", reason="torch is not installed: there are no tensors")
    generator = torch.Generator().manual_seed(shift)
    memory = torch.randn(40_000, dtype=torch.float64, generator=generator)
    d, x, out = memory[:20_000], memory[15_000:35_000], memory[shift : 20_000 + shift]
    expected = xpgrad.silu_grad(d.clone(), x.clone())
    behind = memory[20_000 + shift :].clone()
    assert xpgrad.silu_grad(d, x, out=out) is out
    torch.testing.assert_close(out, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(memory[20_000 + shift :], behind, rtol=0, atol=0)
    strided = torch.zeros(20_000, 2, dtype=torch.float64)[:, 0]
    expected = xpgrad.silu(x.clone())
    assert xpgrad.silu(x, out=strided) is strided
    torch.testing.assert_close(strided, expected, rtol=1e-14, atol=0)


def test_namespace_without_writing() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed: its arrays cannot be written to")
    with pytest.raises(TypeError, match=r"relu: out is a \w+ that cannot be written to \("):
        xpgrad.relu(jax.numpy.ones(3), out=jax.numpy.zeros(3))


@pytest.mark.parametrize("jit", ["0", "1"])
def test_hypothesis_shapes(jit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    from hypothesis import given
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    monkeypatch.setenv("XPGRAD_JIT", jit)

    @given(
        hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
                   elements=st.floats(-50, 50)),
        st.randoms(use_true_random=False),
    )  # fmt: skip
    def run(X: np.ndarray, random: Any) -> None:
        axes = list(range(X.ndim))
        random.shuffle(axes)
        x = X.transpose(axes)[tuple(slice(None, None, random.choice([1, -1, 2])) for _ in axes)]
        dY = np.random.default_rng(X.size).normal(size=x.shape)
        for name in ("silu", "softsign"):
            activation = next(case for case in DEFAULTS if case.name == name)
            y, dx = value_of(activation, x), gradient_of(activation, dY, x)
            assert y.shape == dx.shape == x.shape
            np.testing.assert_allclose(y, np.asarray(activation.value(x.astype(Long)), float), rtol=1e-13)
            np.testing.assert_allclose(dx, expected_gradient(activation, dY, x), rtol=1e-12, atol=1e-15)

    run()


# --- with an operand --------------------------------------------------------------------------------------

SLOPES = [(), (1,), (5,), (4, 1), (4, 5), (3, 1, 1), (3, 4, 5), (1, 1, 1), (3, 1, 5)]


def by_definition(name: str, X: np.ndarray, operand: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The value, and its derivatives by X and by the operand: complex steps."""
    definition, step = DEFINITIONS[name], 1e-150j
    y, slope, other = (definition(np, X + a * step, operand + b * step) for a, b in ((0, 0), (1, 0), (0, 1)))
    return y.real, slope.imag / 1e-150, other.imag / 1e-150


@pytest.mark.parametrize("shape", SLOPES, ids=str)
@pytest.mark.parametrize("name", WITH_OPERANDS)
def test_an_operand(name: str, shape: tuple[int, ...], backend: Backend) -> None:
    rng = np.random.default_rng(5)
    X, dY, operand = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 4, 5)), rng.normal(size=shape)
    Y, slope, of_operand = by_definition(name, X, operand)
    padded = (1,) * (3 - operand.ndim) + operand.shape
    axes = tuple(axis for axis, size in enumerate(padded) if size == 1)
    expected = np.sum(dY * of_operand, axis=axes, keepdims=True).reshape(shape)
    forward, gradient = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")
    (key,) = DECLARED[name].operands
    for dtype in {"float32", "float64"} & set(backend.dtypes):
        x, d, s = (backend.array(v, dtype) for v in (X, dY, operand))
        assert_close(forward(x, s), Y, like=x)
        grads = gradient(d, x, s)
        assert_close(grads[0], dY * slope, like=x)
        assert_close(grads[1], expected, like=s)
        assert gradient(d, x, s, wrt="X")[1] is None
        only = gradient(d, x, s, wrt=[key])
        assert only[0] is None
        assert_close(only[1], expected, like=s)


@pytest.mark.parametrize("name", WITH_OPERANDS)
def test_differences_by_an_operand(name: str) -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(2, 3, 4))
    X = np.where(np.abs(X) < 0.01, 0.5, X)
    (key,) = DECLARED[name].operands
    functions = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")
    check_vjp(*functions, {"X": X, key: rng.normal(size=(3, 1))})


def test_kink_of_prelu() -> None:
    grads = xpgrad.prelu_grad(np.asarray([2.0]), np.zeros(1), np.asarray([0.25]))
    assert grads.dX == 0.5
    assert grads.dslope == 0


@pytest.mark.parametrize("name", WITH_OPERANDS)
def test_an_operand_in_place_and_in_half_precision(name: str) -> None:
    rng = np.random.default_rng(7)
    X, dY, operand = (rng.normal(size=(64, 100)).astype(np.float16) for _ in range(3))
    operand, gradient = operand[:1], getattr(xpgrad, f"{name}_grad")
    expected = gradient(*(v.astype(np.float64) for v in (dY, X, operand)))
    grads = gradient(dY, X, operand, out=dY)
    assert grads[0] is dY
    assert_close(grads[0], expected[0], like=X, rtol=1e-3)
    assert_close(grads[1], expected[1], like=X, rtol=1e-3)


# --- bad input --------------------------------------------------------------------------------------------

X = np.ones((2, 3))
BAD = {
    "list": (lambda: xpgrad.relu([1.0]), TypeError, "relu: X is a list, expected an array"),
    "none": (lambda: xpgrad.relu_grad(None, X), TypeError, "relu_grad: dY is None, expected an array"),
    "integers": (
        lambda: xpgrad.silu(np.ones(3, int)), TypeError,
        "silu: X has dtype int64, expected one of float16, float32, float64",
    ),
    "dtypes": (
        lambda: xpgrad.gelu_grad(X.astype("f4"), X), TypeError,
        "gelu_grad: X has dtype float64, expected float32, the dtype of dY",
    ),
    "byte order": (
        lambda: xpgrad.relu(X.astype(">f8")), TypeError,
        "relu: X has dtype >f8, expected one of float16, float32, float64; convert it: "
        "X.astype(X.dtype.newbyteorder('='))",
    ),
    "shapes": (
        lambda: xpgrad.tanh_grad(X[0], X), ValueError,
        "tanh_grad: dY has shape (3,), expected (the shape of Y) = (2, 3)",
    ),
    "out shape": (
        lambda: xpgrad.mish(X, out=np.ones(3)), ValueError,
        "mish: out has shape (3,), expected (the shape of the result) = (2, 3)",
    ),
    "out dtype": (
        lambda: xpgrad.mish(X, out=np.ones((2, 3), "f4")), TypeError,
        "mish: out has dtype float32, expected float64, the dtype of X",
    ),
    "attribute": (
        lambda: xpgrad.elu(X, alpha="1"), TypeError, "elu: alpha is '1' of type str, expected a number",
    ),
    "celu": (lambda: xpgrad.celu(X, alpha=0), ValueError, "celu: alpha is 0, expected another number"),
    "softplus": (lambda: xpgrad.softplus_grad(X, X, beta=0), ValueError, "softplus_grad: beta is 0, exp"),
    "bounds": (
        lambda: xpgrad.hard_tanh(X, min_val=2, max_val=1), ValueError,
        "hard_tanh: min_val is 2.0, expected at most max_val, which is 1.0",
    ),
    "approximate": (
        lambda: xpgrad.gelu(X, approximate="sigmoid"), ValueError,
        "gelu: approximate is 'sigmoid', expected one of 'none', 'tanh'",
    ),
    "negative leak": (
        lambda: xpgrad.leaky_relu_grad(X, X, alpha=-0.1), ValueError,
        "leaky_relu_grad: alpha is -0.1, expected at least 0",
    ),
    "slope": (
        lambda: xpgrad.prelu(X, np.ones(2)), ValueError,
        "prelu: slope has shape (2,), expected one that broadcasts to (2, 3), the shape of X",
    ),
    "larger slope": (
        lambda: xpgrad.prelu_grad(X, X, np.ones((1, 2, 3))), ValueError,
        "prelu_grad: slope has shape (1, 2, 3), expected one that broadcasts to (2, 3), the shape of X",
    ),
    "no slope": (lambda: xpgrad.prelu(X, None), TypeError, "prelu: slope is None, expected an array"),
    "wrt": (lambda: xpgrad.prelu_grad(X, X, X, wrt="Y"), ValueError, "prelu_grad: wrt has 'Y', expected"),
    "useless out": (
        lambda: xpgrad.prelu_grad(X, X, X, wrt="slope", out=X.copy()), ValueError,
        "prelu_grad: out is given, expected 'X' in wrt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind: str) -> None:
    call, error, message = BAD[kind]
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message), str(caught.value)


def options_that_are_numbers() -> list[tuple[str, str]]:
    """Each elementwise function and gradient, with each of its options whose default is a float."""
    found = []
    for function in filter(inspect.isfunction, map(vars(xpgrad).get, xpgrad.__all__)):
        parameters = inspect.signature(function).parameters.items()
        if {name for name, p in parameters if p.default is p.empty} <= {"dY", "X", "Y"}:
            found += [(function.__name__, name) for name, p in parameters if isinstance(p.default, float)]
    return found


@pytest.mark.parametrize(("function", "option"), options_that_are_numbers())
def test_a_text_for_a_number_is_refused_by_name(function: str, option: str) -> None:
    """Of every function: the names in the message are those of the call."""
    arrays = [X] * (2 if function.endswith("_grad") else 1)
    message = f"^{function}: {option} is 'much' of type str, expected a number$"
    with pytest.raises(TypeError, match=message):
        getattr(xpgrad, function)(*arrays, **{option: "much"})


def test_every_option_that_is_a_number_is_tried() -> None:
    tried = options_that_are_numbers()
    assert len(tried) > 20
    assert {("selu", "gamma"), ("selu_grad", "alpha"), ("hard_tanh_grad", "min_val")} <= set(tried)


def test_bad_input_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(TypeError, match=r"relu_grad: X is an array of torch, expected numpy"):
        xpgrad.relu_grad(X, torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"relu_grad: X has dtype torch.float64, expected torch.float32"):
        xpgrad.relu_grad(torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64))
    leaf = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(TypeError, match=r"relu: out is a Tensor that cannot be written to \(a leaf Variable"):
        xpgrad.relu(torch.ones(2, 3), out=leaf)


# --- one table ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", formulas.ACTIVATIONS.values(), ids=lambda a: a.name)
def test_both_pullbacks_are_the_slope(activation: formulas.Activation) -> None:
    """By the input and, where the recurrent kernels use it, by the output; what has no value is not used."""
    alpha, beta = activation.alpha, activation.beta
    x = np.random.default_rng(9).normal(size=200)
    h = 1e-6
    slope = (activation.value(np, x + h, alpha, beta) - activation.value(np, x - h, alpha, beta)) / (2 * h)
    y = activation.value(np, x, alpha, beta)
    assert activation.input_pullback or activation.pullback
    near = np.abs(x) < 1e-4
    for pullback, seen in ((activation.input_pullback, x), (activation.pullback, y)):
        if pullback is not None:
            result = pullback(np, np.full_like(x, 3.0), seen, y, alpha, beta)
            np.testing.assert_allclose(result[~near], 3 * slope[~near], rtol=1e-6, atol=1e-8)


def test_a_parameter_without_a_value_is_an_error() -> None:
    """And not 0, whether nobody gives it or the call lacks it."""
    with pytest.raises(TypeError, match="HardSigmoid: beta has no value, expected a parameter or a number"):
        formulas_of(formulas.ACTIVATIONS["HardSigmoid"], parameters=("alpha",))
    for formula in formulas_of(formulas.ACTIVATIONS["HardSigmoid"], parameters=("alpha",), beta=0.5):
        assert formula.constants["beta"] == 0.5
    value, pullback = formulas_of(formulas.ACTIVATIONS["Celu"], parameters=("alpha",))
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'alpha'"):
        value(np, X)
    lacking = Formula(value.function, {"value": value.constants["value"], "beta": None})
    for made, attributes in (((value, pullback), {}), ((lacking, lacking), {})):
        with pytest.raises(TypeError, match=r"^x: its attributes are \[\], expected a number for .*'alpha'"):
            dataclasses.replace(DECLARED["elu"], name="x", formulas=made, attributes=attributes)


def test_differentiable_tensors() -> None:
    """Through the standard engine, twice: a gradient of the gradient is the derivative of the slope."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for activation in CASES:
        if activation.takes == "Y":
            continue
        x = torch.tensor(away_from_kinks(activation, (11,)), requires_grad=True)
        d = torch.ones(11, dtype=torch.float64)
        y = value_of(activation, x)
        (by_autograd,) = torch.autograd.grad(y.sum(), x)
        dx = gradient_of(activation, d, x)
        np.testing.assert_allclose(by_autograd.numpy(), dx.detach().numpy(), rtol=1e-9, atol=1e-12)
        if not dx.requires_grad:
            continue
        (second,) = torch.autograd.grad(dx.sum(), x, allow_unused=True)
        h = 1e-5
        near = [gradient_of(activation, d, x.detach() + s * h) for s in (1, -1)]
        numeric = (near[0] - near[1]) / (2 * h)
        second = torch.zeros_like(x) if second is None else second
        np.testing.assert_allclose(
            second.numpy(), numeric.numpy(), rtol=1e-5, atol=1e-7, err_msg=str(activation)
        )


def test_backends_are_known() -> None:
    """The variants whose dtypes test_definition picks by name."""
    assert {"numpy", "torch", "numpy-without-jit", "torch-standard"} <= {b.name for b in BACKENDS}


LAYOUTS = {
    "fortran": lambda a: np.asfortranarray(a),
    "permuted": lambda a: np.ascontiguousarray(a.transpose(1, 2, 0)).transpose(2, 0, 1),
    "part": lambda a: np.asfortranarray(a)[::2],
    "backwards": lambda a: np.asfortranarray(a)[:, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[0], a.shape),
}


@pytest.mark.parametrize("jit", ["0", "1"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_results_lie_in_memory_as_numpys_do(layout, jit, rng, monkeypatch):
    monkeypatch.setenv("XPGRAD_JIT", jit)
    x = layout(rng.normal(size=(4, 5, 6)))
    plain, slope = np.ascontiguousarray(x), rng.normal(size=(6,))
    pairs = [
        (xpgrad.gelu(x), xpgrad.gelu(plain)),
        (xpgrad.gelu_grad(x, x), xpgrad.gelu_grad(plain, plain)),
        (xpgrad.gelu_grad(x, plain), xpgrad.gelu_grad(plain, plain)),  # the first one's order
        (xpgrad.prelu(x, slope), xpgrad.prelu(plain, slope)),
    ]
    for y, expected in pairs:
        assert y.strides == np.exp(x).strides
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    half = x.astype(np.float16)
    assert xpgrad.relu(half).strides == np.exp(half).strides
    out = np.empty(x.shape)
    assert xpgrad.gelu(x, out=out) is out
    np.testing.assert_allclose(out, xpgrad.gelu(plain), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["leaky_relu", "elu"])
def test_an_alpha_of_zero_is_told_by_the_output(name):
    """The least that is allowed: the slope is 0 on the left, whose output is 0."""
    X = np.asarray([-1.5, 2.0])
    Y = getattr(xpgrad, name)(X, alpha=0.0)
    np.testing.assert_array_equal(Y, [0.0, 2.0])
    np.testing.assert_array_equal(getattr(xpgrad, f"{name}_grad")(X, Y, alpha=0.0), [0.0, 2.0])


# --- large arrays: compiled loops store their results past the caches


@pytest.mark.parametrize("begin", [0, 1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_large_arrays(threads: str, dtype: str, begin: int, set_threads: Any) -> None:
    """Blocks that begin anywhere in a cache line; nothing beside the result is written."""
    set_threads(threads)
    count = (1 << 22) + 301
    rng = np.random.default_rng(begin)
    Y, dY, memory = (rng.normal(size=count + 8).astype(dtype) for _ in range(3))
    before, part = memory.copy(), slice(begin, begin + count)
    slope = np.asarray(0.01, dtype)
    before[part] = np.where(Y > 0, dY, slope * dY)[part]
    made = xpgrad.leaky_relu_grad(dY[part], Y[part])
    np.testing.assert_array_equal(made, before[part])
    xpgrad.leaky_relu_grad(dY[part], Y[part], out=memory[part])
    np.testing.assert_array_equal(memory, before)
    xpgrad.leaky_relu_grad(dY[part], Y[part], out=dY[part])  # in place
    np.testing.assert_array_equal(dY[part], before[part])


@pytest.mark.parametrize("width", [256, 1000, 1024])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_large_arrays_by_rows(name: str, width: int) -> None:
    """Also rows of one block that begin within a cache line."""
    rng = np.random.default_rng(width)
    X, dY = (rng.normal(size=((9 << 19) // width, width)).astype("float32") for _ in range(2))
    aside = np.empty(X.size + 1, "float32")[1:].reshape(X.shape)
    function, gradient = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")
    Y = function(X)
    with xpgrad.use_engine("standard"):
        expected = function(X), gradient(dY, Y)
    np.testing.assert_allclose(Y, expected[0], rtol=1e-5, atol=1e-7)
    for out in (None, aside):
        np.testing.assert_allclose(gradient(dY, Y, out=out), expected[1], rtol=1e-4, atol=1e-6)


def few_forms(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All shapes that repeat an array along some of the axes of a shape."""
    return itertools.product(*((1, size) for size in shape))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(3, 40), (5, 31), (2, 3, 64), (3, 1, 2, 33), (1, 50, 1)], ids=str)
def test_arrays_that_repeat_elements(
    shape: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each row, each column, in the middle, on both sides: as their copies, also over an operand."""
    monkeypatch.setattr(sharing, "ARRAY", 1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=shape)
    with check_random.in_threads(threads):
        for few in few_forms(shape):
            d = np.broadcast_to(rng.normal(size=few), shape)
            expected = xpgrad.gelu_grad(d.copy(), X)
            assert_close(xpgrad.gelu_grad(d, X), expected, label=f"d {few}")
            assert_close(xpgrad.prelu(X, d), xpgrad.prelu(X, d.copy()), label=f"alpha {few}")
            over = X.copy()
            assert xpgrad.gelu_grad(d, over, out=over) is over
            assert_close(over, expected, label=f"d {few}, over X")


ROWS_ELSEWHERE = {
    "channels of a concatenation": lambda a: a[:, 1:3],
    "every other item": lambda a: a[::2, :2],
    "backwards": lambda a: a[::-1, 1::-1],
    "items swapped with channels": lambda a: a.transpose(1, 0, 2, 3)[:2],
    "columns of longer rows": lambda a: a[:, :2, :, 3:36],
    "repeated items": lambda a: np.broadcast_to(a[:1, :2], (4, 2, *a.shape[2:])),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("part", ROWS_ELSEWHERE.values(), ids=ROWS_ELSEWHERE)
def test_arrays_whose_rows_lie_elsewhere(part, threads, monkeypatch):
    """As their copies: loops find such rows by their addresses."""
    monkeypatch.setattr(sharing, "ARRAY", 1)
    rng = np.random.default_rng(0)
    d = part(rng.normal(size=(4, 4, 3, 40)))
    X = rng.normal(size=d.shape)
    with check_random.in_threads(threads):
        expected = xpgrad.gelu_grad(d.copy(), X)
        assert_close(xpgrad.gelu_grad(d, X), expected)
        assert_close(xpgrad.gelu_grad(X, d), xpgrad.gelu_grad(X, d.copy()))
        over = X.copy()
        assert_close(xpgrad.gelu_grad(d, over, out=over), expected)
