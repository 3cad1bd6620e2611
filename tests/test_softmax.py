"""Softmax and log-softmax: golden data, definitions, differences, axes, masks, extremes, every backend."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import Backend
from test_recurrent_golden import load, names
from xpgrad.cli import check_random
from xpgrad.engine.process import sharing
from xpgrad.testing import assert_close, check_vjp, to_numpy

Long = np.longdouble
BOTH = pytest.mark.parametrize("name", ["softmax", "log_softmax"])
OPERATORS = ("SoftmaxGrad", "LogSoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad_13")


def definition(name: str, X: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """In extended precision, for rows that are not masked throughout."""
    x = X.astype(Long)
    e = np.exp(x - np.max(x, axis=axes, keepdims=True))
    total = np.sum(e, axis=axes, keepdims=True)
    return e / total if name == "softmax" else x - np.max(x, axis=axes, keepdims=True) - np.log(total)


def definition_grad(name: str, dY: np.ndarray, X: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Through the softmax's shares y: y (d - sum d y) and d - y sum d."""
    y, d = definition("softmax", X, axes), dY.astype(Long)
    if name == "softmax":
        return (y * (d - np.sum(d * y, axis=axes, keepdims=True))).astype(float)
    return (d - y * np.sum(d, axis=axes, keepdims=True)).astype(float)


def axes_of(axis: int, flatten: bool, rank: int) -> tuple[int, ...]:
    first = axis % rank
    return tuple(range(first, rank)) if flatten else (first,)


@pytest.mark.parametrize("name", names("ort_training.npz", *OPERATORS))
def test_golden(name: str, backend: Backend) -> None:
    case = load("ort_training.npz")[name]
    kernel = xpgrad.log_softmax_grad if case["op"].startswith("Log") else xpgrad.softmax_grad
    for dtype in {"float32"} & set(backend.dtypes):
        dY, Y = (backend.array(case["in"][operand], dtype) for operand in ("dY", "Y"))
        dX = kernel(dY, Y, axis=case["attrs"]["axis"], flatten=not case["op"].endswith("_13"))
        assert_close(dX, case["out"]["dX"], like=Y, rtol=2e-6, label=name)


def test_all_golden_cases_are_there() -> None:
    assert len(names("ort_training.npz", *OPERATORS)) == 12


@BOTH
@pytest.mark.parametrize(
    ("axis", "flatten"), [(-1, False), (0, False), (1, False), (-3, False), (1, True), (-2, True), (0, True)]
)
def test_definition(name: str, axis: int, flatten: bool, backend: Backend) -> None:
    rng = np.random.default_rng(3)
    X, dY = rng.normal(size=(3, 5, 2, 4)) * 4, rng.normal(size=(3, 5, 2, 4))
    axes = axes_of(axis, flatten, 4)
    for dtype in backend.dtypes:
        if dtype in ("float16", "bfloat16") and flatten:
            continue
        x, d = backend.array(X, dtype), backend.array(dY, dtype)
        exact, cotangent = (to_numpy(v).astype(float) for v in (x, d))
        tolerance = {"float64": 3e-14, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
        with np.errstate(all="raise"):
            y = getattr(xpgrad, name)(x, axis=axis, flatten=flatten)
            dx = getattr(xpgrad, f"{name}_grad")(d, y, axis=axis, flatten=flatten)
        assert_close(y, definition(name, exact, axes).astype(float), like=x, rtol=tolerance)
        assert_close(dx, definition_grad(name, cotangent, exact, axes), like=x, rtol=tolerance)
        np.testing.assert_array_equal(to_numpy(x), exact)
        np.testing.assert_array_equal(to_numpy(d), cotangent)


@BOTH
@pytest.mark.parametrize("engine", [None, "standard"])
@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 1, "flatten": True}], ids=str)
def test_differences(name: str, engine: str | None, attributes: dict[str, Any]) -> None:
    forward, gradient = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")
    with xpgrad.use_engine(engine):
        check_vjp(
            lambda X: forward(X, **attributes),
            lambda dY, X: gradient(dY, forward(X, **attributes), **attributes),
            {"X": np.random.default_rng(4).normal(size=(3, 4, 2))},
            operator=name,
        )


@BOTH
@pytest.mark.parametrize("how", ["compiled", "blocks"])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 4e-6), ("float64", 8e-15)])
def test_accuracy(
    name: str, how: str, dtype: str, bound: float, monkeypatch: pytest.MonkeyPatch, set_threads: Any
) -> None:
    """Of every single share, also tiny ones, relative to itself; long rows, and threads.

    A logit 30 below the peak is known to 30 roundings' worth, and its share no better.
    """
    if how == "compiled" and importlib.util.find_spec("llvmlite") is None:
        pytest.skip("llvmlite is not installed: nothing is compiled")
    monkeypatch.setenv("XPGRAD_JIT", "1" if how == "compiled" else "0")
    set_threads(3)
    rng = np.random.default_rng(5)
    X, dY = ((rng.normal(size=(9, 20011)) * scale).astype(dtype) for scale in (4, 1))
    y = getattr(xpgrad, name)(X)
    desired = definition(name, X, (1,))
    assert np.max(np.abs(y - desired) / np.abs(desired)) < bound
    dx = getattr(xpgrad, f"{name}_grad")(dY, y)
    expected = definition_grad(name, dY, X, (1,))
    assert np.max(np.abs(dx - expected)) < bound * np.max(np.abs(expected))


@BOTH
def test_infinite_and_missing_logits_are_pytorchs(name: str, backend: Backend) -> None:
    """Every row of three; but a row of -inf is a mask of all, with softmax 0 and gradient 0."""
    torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to compare with")
    X = np.asarray([*itertools.product((0.5, 2.0, -np.inf, np.inf, np.nan), repeat=3)])
    masked = np.isneginf(X).all(axis=1)
    for dtype in {"float32", "float64"} & set(backend.dtypes):
        d = np.random.default_rng(8).normal(size=X.shape).astype(dtype)
        x = torch.tensor(X.astype(dtype), requires_grad=True)
        desired = getattr(torch, name)(x, 1)
        desired.backward(torch.tensor(d))
        with np.errstate(all="raise"):
            y = getattr(xpgrad, name)(backend.array(X, dtype))
            dx = to_numpy(getattr(xpgrad, f"{name}_grad")(backend.array(d, dtype), y))
        np.testing.assert_allclose(to_numpy(y)[~masked], desired.detach().numpy()[~masked], rtol=1e-5)
        np.testing.assert_allclose(dx[~masked], x.grad.numpy()[~masked], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(to_numpy(y)[masked], 0 if name == "softmax" else -np.inf)
        np.testing.assert_array_equal(dx[masked], 0)


@BOTH
def test_extremes(name: str, backend: Backend) -> None:
    """Masks, huge logits and infinite ones, without a warning; as in PyTorch inf leaves no number."""
    inf, third = np.inf, 1 / 3
    rows = {
        "large": ([1e4, 1e4 - 1, -1e4], [1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(1.0)), 0]),
        "small": ([-1e4, -1e4, -1e4], [third] * 3),
        "masked": ([-inf, 2.0, 2.0], [0, 0.5, 0.5]),
        "masked throughout": ([-inf, -inf, -inf], [0, 0, 0]),
        "one infinite": ([inf, 3.0, -inf], [np.nan] * 3),
        "two infinite": ([inf, inf, 0.0], [np.nan] * 3),
    }
    X = np.asarray([row for row, _ in rows.values()])
    shares = np.asarray([share for _, share in rows.values()])
    dY = np.random.default_rng(6).normal(size=X.shape)
    for dtype in {"float32", "float64"} & set(backend.dtypes):
        for axis in (1, 0):
            x, d = (backend.array(v if axis else v.T, dtype) for v in (X, dY))
            with np.errstate(all="raise"):
                y = getattr(xpgrad, name)(x, axis=axis)
                dx = getattr(xpgrad, f"{name}_grad")(d, y, axis=axis)
            y, dx = (to_numpy(v) if axis else to_numpy(v).T for v in (y, dx))
            with np.errstate(divide="ignore"):
                np.testing.assert_allclose(
                    y[1:], (shares if name == "softmax" else np.log(shares))[1:], rtol=1e-6, atol=1e-7
                )
            if name == "softmax":
                expected = shares * (dY - np.sum(dY * shares, axis=1, keepdims=True))
                np.testing.assert_allclose(y[0], shares[0], rtol=1e-6)
            else:
                expected = dY - shares * np.sum(dY, axis=1, keepdims=True)
                expected[3] = 0
                np.testing.assert_allclose(
                    y[0], [np.log(shares[0][0]), np.log(shares[0][1]), -2e4], rtol=1e-4
                )
            np.testing.assert_allclose(dx, expected, rtol=1e-5, atol=1e-6)


@BOTH
def test_nan_stays_in_its_row(name: str, backend: Backend) -> None:
    x = backend.array(np.asarray([[1.0, np.nan, 0.0], [1.0, 2.0, 0.0]]), "float32")
    y = to_numpy(getattr(xpgrad, name)(x))
    assert np.all(np.isnan(y[0]))
    np.testing.assert_allclose(
        y[1], definition(name, np.asarray([[1.0, 2.0, 0.0]]), (1,))[0].astype(float), 1e-6
    )


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 3), (1,), (2, 1, 3)], ids=str)
def test_empty_and_single(shape: tuple[int, ...], backend: Backend) -> None:
    X = np.random.default_rng(7).normal(size=shape)
    x = backend.array(X)
    for axis in range(len(shape)):
        y = xpgrad.softmax(x, axis=axis)
        dx = xpgrad.softmax_grad(x, y, axis=axis)
        assert_close(y, definition("softmax", X, (axis,)).astype(float) if X.size else X, like=x)
        assert_close(dx, definition_grad("softmax", X, X, (axis,)) if X.size else X, like=x, atol=1e-15)


def test_flatten_of_no_axes_and_past_the_end() -> None:
    np.testing.assert_array_equal(xpgrad.softmax(np.asarray(3.0), axis=0, flatten=True), 1)
    np.testing.assert_array_equal(xpgrad.softmax(np.ones((2, 3)), axis=2, flatten=True), np.ones((2, 3)))


@pytest.mark.parametrize("jit", ["0", "1"])
def test_layouts_and_out(jit: str, monkeypatch: pytest.MonkeyPatch, set_threads: Any) -> None:
    monkeypatch.setenv("XPGRAD_JIT", jit)
    set_threads(3)
    rng = np.random.default_rng(8)
    base = rng.normal(size=(60, 44, 70))
    layouts = [base, np.asfortranarray(base), np.repeat(base, 2, axis=1)[:, ::2], base[::-1, :, ::-1]]
    for axis in (-1, 0, 1):
        for X in layouts:
            Y = definition("softmax", X, (axis,)).astype(float)
            np.testing.assert_allclose(xpgrad.softmax(X, axis=axis), Y, rtol=1e-13)
            expected = definition_grad("softmax", X, X, (axis,))
            for out in (np.empty_like(base), np.asfortranarray(base), np.empty((60, 88, 70))[:, ::2]):
                result = xpgrad.softmax_grad(X, Y, axis=axis, out=out)
                assert result is out
                np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("jit", ["0", "1"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@BOTH
def test_in_place(name: str, dtype: str, jit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`out` as any of the inputs, or both, along any axis."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    rng = np.random.default_rng(9)
    forward, gradient = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")
    for axis in (-1, 0):
        X, dY = (rng.normal(size=(7, 33)).astype(dtype) for _ in range(2))
        Y = forward(X, axis=axis)
        dX = gradient(dY, Y, axis=axis)
        twice = gradient(Y, Y, axis=axis)
        tolerance = {"rtol": 1e-6, "atol": 1e-6} if dtype != "float16" else {"rtol": 2e-3}
        x = X.copy()
        assert forward(x, axis=axis, out=x) is x
        np.testing.assert_allclose(x, Y, **tolerance)
        for position in range(2):
            operands = [dY.copy(), Y.copy()]
            result = gradient(*operands, axis=axis, out=operands[position])
            assert result is operands[position]
            np.testing.assert_allclose(result, dX, **tolerance)
        both = Y.copy()
        np.testing.assert_allclose(gradient(both, both, axis=axis, out=both), twice, **tolerance)
        shifted = np.empty(X.size + 1, dtype)
        shifted[1:] = X.ravel()
        forward(shifted[1:].reshape(X.shape), axis=axis, out=shifted[:-1].reshape(X.shape))
        np.testing.assert_allclose(shifted[:-1].reshape(X.shape), Y, **tolerance)


def test_hypothesis() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    from hypothesis import given
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)

    @given(hnp.arrays(np.float64, shapes, elements=st.floats(-800, 800)), st.integers(-4, 3), st.booleans())
    def run(X: np.ndarray, axis: int, flatten: bool) -> None:
        axis = axis % X.ndim
        axes = axes_of(axis, flatten, X.ndim)
        Y = xpgrad.softmax(X, axis=axis, flatten=flatten)
        assert Y.shape == X.shape
        if X.size:
            np.testing.assert_allclose(np.sum(Y, axis=axes), 1, rtol=1e-12)
            np.testing.assert_allclose(
                Y, definition("softmax", X, axes).astype(float), rtol=1e-11, atol=1e-300
            )
        dY = np.random.default_rng(X.size).normal(size=X.shape)
        dX = xpgrad.softmax_grad(dY, Y, axis=axis, flatten=flatten)
        if X.size:
            np.testing.assert_allclose(dX, definition_grad("softmax", dY, X, axes), rtol=1e-8, atol=1e-12)

    run()


X = np.ones((2, 3))
BAD = {
    "axis": (
        lambda: xpgrad.softmax(X, axis=2), ValueError,
        "softmax: axis is 2, expected -2 to 1 for X of shape (2, 3)",
    ),
    "axis past the end": (
        lambda: xpgrad.softmax(X, axis=3, flatten=True), ValueError,
        "softmax: axis is 3, expected -2 to 2 for X of shape (2, 3)",
    ),
    "axis type": (
        lambda: xpgrad.softmax(X, axis=1.0), TypeError, "softmax: axis is 1.0 of type float, expected an",
    ),
    "no axes": (
        lambda: xpgrad.log_softmax(np.asarray(1.0)), ValueError, "log_softmax: X has no axes, expected",
    ),
    "flatten": (
        lambda: xpgrad.softmax(X, flatten=1), ValueError, "softmax: flatten is 1, expected one of",
    ),
    "shapes": (
        lambda: xpgrad.softmax_grad(X, X[:1]), ValueError,
        "softmax_grad: dY has shape (2, 3), expected (the shape of Y) = (1, 3)",
    ),
    "dtypes": (
        lambda: xpgrad.log_softmax_grad(X, X.astype("f4")), TypeError,
        "log_softmax_grad: Y has dtype float32, expected float64, the dtype of dY",
    ),
    "out": (
        lambda: xpgrad.softmax(X, out=X[0]), ValueError,
        "softmax: out has shape (3,), expected (the shape of the result) = (2, 3)",
    ),
    "none": (lambda: xpgrad.softmax(None), TypeError, "softmax: X is None, expected an array"),
    "integers": (lambda: xpgrad.softmax(np.ones(3, int)), TypeError, "softmax: X has dtype int64, exp"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind: str) -> None:
    call, error, message = BAD[kind]
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message), str(caught.value)


SIDES = [(1, 1, 2), (3, 2, 31), (2, 5, 127), (1, 33, 128), (3, 7, 129), (1, 4, 1024), (2, 3, 1025),
         (25, 2, 40), (1, 20, 2100), (1, 257, 1022), (2, 300, 880)]  # fmt: skip
"""Items, elements of a row, and rows side by side, around the sizes of a block of rows."""


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SIDES)
def test_rows_side_by_side(shape: tuple, dtype: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops take them as they lie; the same rows in one piece have the same results."""
    monkeypatch.setattr(sharing, "ARRAY", 1)
    rng = np.random.default_rng(0)
    X, d = (3 * rng.normal(size=shape).astype(dtype) for _ in range(2))
    if shape[1] > 1:
        X[0, 0, 0] = -np.inf
    labels = rng.integers(0, shape[1], (shape[0], shape[2]))
    weights = rng.random(shape[1]).astype(dtype)
    apart = X.transpose(0, 2, 1).reshape(-1, shape[1]).copy()
    loss = {"weights": weights, "ignore_index": 0, "label_smoothing": 0.1, "reduction": "none"}
    loss_of_rows = xpgrad.softmax_cross_entropy(apart, labels.ravel(), **loss)
    dloss = rng.normal(size=labels.shape).astype(dtype)
    dX_of_rows = xpgrad.softmax_cross_entropy_grad(dloss.ravel(), apart, labels.ravel(), **loss)
    with check_random.in_threads(threads):
        for name in ("softmax", "log_softmax"):
            Y = getattr(xpgrad, name)(X, axis=1)
            assert_close(Y, definition(name, X, (1,)).astype(dtype), label=name)
            dX = getattr(xpgrad, f"{name}_grad")(d, Y, axis=1)
            assert_close(dX, definition_grad(name, d, X, (1,)).astype(dtype), label=f"{name}_grad")
            out = np.empty_like(X)
            assert getattr(xpgrad, name)(X, axis=1, out=out) is out
            assert (out == Y).all()
            over = X.copy()
            getattr(xpgrad, name)(over, axis=1, out=over)
            assert_close(over, Y, label=f"{name} in place")
        assert_close(xpgrad.softmax_cross_entropy(X, labels, **loss).ravel(), loss_of_rows)
        dX = xpgrad.softmax_cross_entropy_grad(dloss, X, labels, **loss)
        assert_close(dX.transpose(0, 2, 1).reshape(apart.shape), dX_of_rows)


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_rows_in_any_order_in_memory(order: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    shape = (6, 40, 50)
    labels = rng.integers(0, 40, (6, 50))
    X, d = (rng.normal(size=[shape[axis] for axis in order]).transpose(np.argsort(order)) for _ in range(2))
    for name in ("softmax", "log_softmax"):
        Y = getattr(xpgrad, name)(X, axis=1)
        assert_close(Y, getattr(xpgrad, name)(X.copy(), axis=1))
        dX, out = getattr(xpgrad, f"{name}_grad"), np.empty_like(X)
        expected = dX(d.copy(), Y.copy(), axis=1)
        assert_close(dX(d, Y, axis=1), expected)
        assert dX(d, Y, axis=1, out=out) is out
        assert_close(out, expected)
    one = np.asarray(1.0)
    assert_close(xpgrad.softmax_cross_entropy(X, labels), xpgrad.softmax_cross_entropy(X.copy(), labels))
    dX = xpgrad.softmax_cross_entropy_grad(one, X, labels)
    assert_close(dX, xpgrad.softmax_cross_entropy_grad(one, X.copy(), labels))


@pytest.mark.parametrize("axis", [1, 2])
def test_cotangents_that_repeat_elements(axis: int) -> None:
    """Those of sums and means: blocks of copies, of the first size and of the last."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70, 90, 100)).astype("float32")
    Y = xpgrad.softmax(X, axis=axis)
    for few in (rng.normal(size=(1, 1, 1)), rng.normal(size=(70, 1, 100)), rng.normal(size=(1, 90, 100))):
        d = np.broadcast_to(few.astype("float32"), X.shape)
        dX, expected = (xpgrad.softmax_grad(given, Y, axis=axis) for given in (d, d.copy()))
        assert_close(dX, expected, atol=1e-6)  # an equal d has no gradient but rounding errors
        assert_close(xpgrad.tanh_grad(d, Y), xpgrad.tanh_grad(d.copy(), Y))
