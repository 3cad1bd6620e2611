"""Convolutions against direct sums, PyTorch's autograd, central differences, and one another."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import xpgrad
from backends import BACKENDS, Backend, without_programs
from conv_cases import CASES, Case, geometries, squares
from xpgrad._conv.choice import METHODS
from xpgrad.testing import assert_close, check_vjp, conv_grad_reference, conv_reference

RTOL = {"float64": 1e-12, "float32": 1e-5}
POINTWISE = ("pointwise", "pointwise-groups", "covering", "covering-1d", "covering-one-element")
COMBINED = [
    (method, name)
    for method in METHODS
    for name, case in CASES.items()
    if (method != "winograd" or name.startswith(("3x3", "4x4", "5x5", "6x6", "row")))
    and (method != "pointwise" or name in POINTWISE)
    and (method != "fft" or not {"strides", "dilations"} & set(case.attributes))
]


def results(arrays: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    """Y, dX, dW and dB."""
    X, W, B, dY = (arrays[name] for name in ("X", "W", "B", "dY"))
    Y = xpgrad.conv(X, W, B, **attributes)
    return {"Y": Y, **xpgrad.conv_grad(dY, X, W, **attributes)._asdict()}


# --- the direct sums


@functools.cache
def expected_of(name: str) -> Mapping[str, np.ndarray]:
    """The direct sums of a case, which take seconds for some."""
    return CASES[name].expected(CASES[name].arrays())


@pytest.mark.parametrize(("method", "name"), [*COMBINED, *(("auto", name) for name in CASES)])
def test_every_method_is_the_direct_sum(method: str, name: str, backend: Backend) -> None:
    case = CASES[name]
    arrays, expected = case.arrays(), expected_of(name)
    for dtype in ("float64", "float32"):
        here = backend.arrays(arrays, dtype)
        for label, actual in results(here, method=method, **case.attributes).items():
            # what float32 rounds of the inputs is part of the tolerance
            assert_close(
                actual, expected[label], like=here["X"], rtol=RTOL[dtype], label=f"{method} {name} {label}"
            )


@pytest.mark.parametrize("method", ["winograd", "clipped"])
def test_each_case_is_the_direct_sum(method: str) -> None:
    """In each suite, for the methods that treat many geometries in their own way."""
    for name in (name for one, name in COMBINED if one == method):
        case = CASES[name]
        for label, actual in results(case.arrays(), method=method, **case.attributes).items():
            assert_close(actual, expected_of(name)[label], rtol=1e-12, label=f"{name} {label}")


@settings(max_examples=30)
@given(squares())
def test_random_squares_by_winograd(case: Case) -> None:
    """In programs, and without."""
    arrays = case.arrays()
    expected = case.expected(arrays)
    for label, actual in results(arrays, method="winograd", **case.attributes).items():
        assert_close(actual, expected[label], rtol=1e-12, atol=1e-13, label=label)
    with without_programs():
        for label, actual in results(arrays, method="winograd", **case.attributes).items():
            assert_close(actual, expected[label], rtol=1e-12, atol=1e-13, label=label)


def test_the_cases_reach_every_method() -> None:
    assert {method for method, _ in COMBINED} == set(METHODS)
    assert all(sum(method == m for m, _ in COMBINED) >= 2 for method in METHODS)


@pytest.mark.parametrize("name", [name for name in CASES if name != "3x3-much-padding"])
def test_transposed_by_the_direct_sum(name: str, backend: Backend) -> None:
    """conv_transpose of dY is dX of the convolution, and its gradients are Y and the same dW."""
    case = CASES[name]
    arrays = case.arrays()
    pads = case.attributes.get("pads", 0)
    n = len(case.X) - 2
    begin, end = ([pads] * n,) * 2 if isinstance(pads, int) else (pads[:n], pads[n:] or pads)
    attributes = {key: value for key, value in case.attributes.items() if key != "pads"}
    # what the convolution leaves unread at its end is output padding
    at = {"strides": 1, "dilations": 1, **attributes}
    strides, dilations = ([v] * n if isinstance(v, int) else v for v in (at["strides"], at["dilations"]))
    added = [
        (x + b + e - (k - 1) * d - 1) % s
        for x, b, e, k, d, s in zip(case.X[2:], begin, end, case.W[2:], dilations, strides, strict=True)
    ]
    bias = np.random.default_rng(1).standard_normal(case.X[1])
    here = backend.arrays({**arrays, "bias": bias}, "float64")
    attributes |= {"pads": [*begin, *end], "output_padding": added}
    expected = expected_of(name)
    Y = xpgrad.conv_transpose(here["dY"], here["W"], here["bias"], **attributes)
    shift = bias.reshape(-1, *[1] * n)
    assert_close(Y, expected["dX"] + shift, like=here["X"], rtol=1e-12, label=f"{name} Y")
    grads = xpgrad.conv_transpose_grad(here["X"], here["dY"], here["W"], **attributes)
    without_bias = expected["Y"] - arrays["B"].reshape(-1, *[1] * n)
    assert_close(grads.dX, without_bias, like=here["X"], rtol=1e-12, label=f"{name} dX")
    assert_close(grads.dW, expected["dW"], like=here["X"], rtol=1e-12, label=f"{name} dW")
    sums = arrays["X"].sum(axis=(0, *range(2, n + 2)))
    assert_close(grads.dB, sums, like=here["X"], rtol=1e-12, label=f"{name} dB")


# --- PyTorch's autograd


@settings(max_examples=150)
@given(geometries(), st.sampled_from(["auto", "shifted", "patches", "clipped", "taps"]))
def test_random_geometries_against_autograd(case: Case, method: str) -> None:
    torch = pytest.importorskip("torch")
    arrays = case.arrays()
    X, W, B = (torch.tensor(arrays[name], requires_grad=True) for name in ("X", "W", "B"))
    at, n = case.attributes, len(case.X) - 2
    ends = [pad for axis in reversed(range(n)) for pad in (at["pads"][axis], at["pads"][n + axis])]
    function = getattr(torch.nn.functional, f"conv{n}d")
    padded = torch.nn.functional.pad(X, ends)
    Y = function(padded, W, B, at["strides"], 0, at["dilations"], at["group"])
    expected = dict(
        zip(("dX", "dW", "dB"), torch.autograd.grad(Y, (X, W, B), torch.tensor(arrays["dY"])), strict=True)
    )
    expected["Y"] = Y.detach()
    for label, actual in results(arrays, method=method, **at).items():
        assert_close(actual, expected[label].numpy(), rtol=1e-10, label=label)


@settings(max_examples=100)
@given(geometries(), st.data())
def test_random_transposed_geometries_against_autograd(case: Case, data: st.DataObject) -> None:
    torch = pytest.importorskip("torch")
    at, n = case.attributes, len(case.X) - 2
    pads = at["pads"][:n]
    added = [
        data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(at["strides"], at["dilations"], strict=True)
    ]
    sizes = zip(case.X[2:], at["strides"], case.W[2:], at["dilations"], pads, added, strict=True)
    assume(all((x - 1) * s + (k - 1) * d + 1 + a - 2 * p >= 1 for x, s, k, d, p, a in sizes))
    rng = np.random.default_rng(case.seed)
    O, seen, *kernel = case.W
    group = at["group"]
    arrays = [rng.standard_normal(s) for s in (case.X, (seen * group, O // group, *kernel), O)]
    X, W, B = (torch.tensor(a, requires_grad=True) for a in arrays)
    function = getattr(torch.nn.functional, f"conv_transpose{n}d")
    Y = function(X, W, B, at["strides"], pads, added, group, at["dilations"])
    dY = torch.randn(Y.shape, dtype=Y.dtype, generator=torch.Generator().manual_seed(case.seed))
    attributes = {**at, "pads": pads, "output_padding": added}
    actual = xpgrad.conv_transpose(*arrays, **attributes)
    assert_close(actual, Y.detach().numpy(), rtol=1e-10, label="Y")
    grads = xpgrad.conv_transpose_grad(dY.numpy(), *arrays[:2], **attributes)
    for label, gradient, desired in zip("XWB", grads, torch.autograd.grad(Y, (X, W, B), dY), strict=True):
        assert_close(gradient, desired.numpy(), rtol=1e-10, label=f"d{label}")


@pytest.mark.parametrize("shape", [(2, 32, 19, 22), (1, 16, 33, 8), (4, 20, 14, 14)])
def test_the_automatic_choice_in_float64_is_exact(shape: tuple[int, ...]) -> None:
    """Shapes at which the rule takes Winograd's filtering, and Fourier transforms."""
    torch = pytest.importorskip("torch")
    for kernel, pad in ((3, 1), (21, 10)):
        rng = np.random.default_rng(0)
        X, W, B = (rng.standard_normal(s) for s in (shape, (24, shape[1], kernel, kernel), 24))
        x, w, b = (torch.tensor(a, requires_grad=True) for a in (X, W, B))
        y = torch.nn.functional.conv2d(x, w, b, 1, pad)
        dY = rng.standard_normal(y.shape)
        assert_close(xpgrad.conv(X, W, B, pads=pad), y.detach().numpy(), rtol=1e-12)
        grads = xpgrad.conv_grad(dY, X, W, pads=pad)
        for actual, desired in zip(grads, torch.autograd.grad(y, (x, w, b), torch.tensor(dY)), strict=True):
            assert_close(actual, desired.numpy(), rtol=1e-12)


# --- central differences


@pytest.mark.parametrize(
    "name", ["strides", "dilations", "1d", "depthwise-multiplier", "3x3-asymmetric", "row-dilated"]
)
def test_against_central_differences(name: str) -> None:
    case = CASES[name]
    arrays = {key: value for key, value in case.arrays().items() if key != "dY"}

    def gradient(dY: Any, X: Any, W: Any, B: Any) -> Any:
        return xpgrad.conv_grad(dY, X, W, **case.attributes)

    check_vjp(lambda **a: xpgrad.conv(**a, **case.attributes), gradient, arrays, operator=f"conv {name}")


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": 2, "output_padding": [1, 0], "group": 2},
        {"strides": [3, 1], "pads": [1, 0, 0, 1], "dilations": [1, 2]},
        {"strides": 3, "auto_pad": "SAME_LOWER"},
        {"strides": [2, 3], "output_shape": [7, 9]},
    ],
)
def test_transposed_against_central_differences(attributes: dict[str, Any], rng: np.random.Generator) -> None:
    made = 6 // attributes.get("group", 1)
    shapes = {"X": (2, 4, 3, 2), "W": (4, made, 3, 2), "B": (6,)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    def gradient(dY: Any, X: Any, W: Any, B: Any) -> Any:
        return xpgrad.conv_transpose_grad(dY, X, W, **attributes)

    check_vjp(lambda **a: xpgrad.conv_transpose(**a, **attributes), gradient, arrays)


# --- adjoints


@settings(max_examples=60)
@given(geometries())
def test_conv_and_conv_transpose_are_adjoint(case: Case) -> None:
    """<conv(x), y> = <x, conv_transpose(y)>, where the output's shape is x's."""
    at = dict(case.attributes)
    n = len(case.X) - 2
    pads = at.pop("pads")
    arrays = case.arrays()
    sizes = zip(case.X[2:], pads[:n], pads[n:], case.W[2:], at["dilations"], at["strides"], strict=True)
    added = [(x + b + e - (k - 1) * d - 1) % s for x, b, e, k, d, s in sizes]
    X, W, Y = (arrays[name] for name in ("X", "W", "dY"))
    back = xpgrad.conv_transpose(Y, W, pads=pads, output_padding=added, **at)
    assert back.shape == X.shape
    there = xpgrad.conv(X, W, pads=pads, **at)
    left, right = np.sum(there * Y), np.sum(X * back)
    assert left == pytest.approx(right, rel=1e-10, abs=1e-10)


# --- auto_pad


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [1, 2, 3])
def test_auto_pad_is_explicit_padding(auto_pad: str, strides: int, rng: np.random.Generator) -> None:
    X, W = rng.standard_normal((2, 3, 8, 7)), rng.standard_normal((4, 3, 4, 3))
    total = [max((-(-x // strides) - 1) * strides + k - x, 0) for x, k in ((8, 4), (7, 3))]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    pads = {"SAME_UPPER": less + more, "SAME_LOWER": more + less, "VALID": [0] * 4}[auto_pad]
    Y = xpgrad.conv(X, W, strides=strides, auto_pad=auto_pad)
    assert_close(Y, conv_reference(X, W, strides=strides, pads=pads), rtol=1e-12)
    if auto_pad != "VALID":
        assert Y.shape[2:] == tuple(-(-x // strides) for x in (8, 7))
    dY = rng.standard_normal(Y.shape)
    grads = xpgrad.conv_grad(dY, X, W, strides=strides, auto_pad=auto_pad)
    for actual, desired in zip(grads, conv_grad_reference(dY, X, W, strides=strides, pads=pads), strict=True):
        assert_close(actual, desired, rtol=1e-12)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_auto_pad_gives_size_times_stride(auto_pad: str, rng: np.random.Generator) -> None:
    X, W = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((3, 2, 4, 3))
    full = xpgrad.conv_transpose(X, W, strides=[3, 2])
    Y = xpgrad.conv_transpose(X, W, strides=[3, 2], auto_pad=auto_pad)
    assert full.shape[2:] == (13, 11)
    assert Y.shape[2:] == (12, 10)
    first = 0 if auto_pad == "SAME_UPPER" else 1
    assert np.array_equal(Y, full[:, :, first : first + 12, first : first + 10])


# --- half precision


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["3x3", "strides", "depthwise", "large"])
def test_half_precision_sums_in_float32(name: str, dtype: str) -> None:
    case = CASES[name]
    for backend in BACKENDS:
        if dtype not in backend.dtypes or backend.missing():
            continue
        with backend.active():
            here = backend.arrays(case.arrays(), dtype)
            exact = backend.arrays(case.arrays(), "float64")
            rounded = {key: backend.xp.astype(here[key], backend.xp.float64) for key in exact}
            expected = results(rounded, **case.attributes)
            tolerance = {"float16": 6e-4, "bfloat16": 5e-3}[dtype]  # half a unit in the last place
            for label, actual in results(here, **case.attributes).items():
                assert_close(actual, expected[label], like=here["X"], rtol=tolerance, label=label)
