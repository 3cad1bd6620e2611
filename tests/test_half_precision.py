"""Activations in half precision at every number that there is, beside PyTorch's own backward."""

import weakref

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import xpgrad
import xpgrad_torch
from torch_activation_cases import DEFINED, ELEMENTWISE, Case
from xpgrad._elementwise import activation_formulas as formulas
from xpgrad_torch import functional

pytestmark = pytest.mark.usefixtures("interpreted")

ROUNDED = {
    f"{name}-{bound}": Case(name, arguments, getattr(F, name), (), True)
    for bound in (0.1, 0.3, 0.7)
    for name, arguments in [
        ("hardtanh", {"min_val": -bound, "max_val": bound}),
        ("threshold", {"threshold": bound, "value": 5.0}),
        ("threshold", {"threshold": bound, "value": 0.0}),
        ("threshold", {"threshold": -bound, "value": 5.0}),
    ]
}
OTHERS = {
    "threshold-0.1-0": Case("threshold", {"threshold": 0.1, "value": 0.0}, F.threshold),
    "celu-0.4": Case("celu", {"alpha": 0.4}, F.celu, (), True),
}
CASES = ELEMENTWISE | ROUNDED | OTHERS
COMPOSED = ("quick_gelu", "softsign", "hardsigmoid", "hard_sigmoid", "scaled_tanh", *DEFINED)
"""Whose references are several operators of PyTorch's, which would round in between."""
DTYPES = [torch.float16, torch.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def every_number(dtype):
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def with_slopes(function, x):
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, torch.ones_like(y))[0]


@every_dtype
@pytest.mark.parametrize("name", CASES)
def test_values_and_slopes_are_pytorchs(name, dtype):
    """To one unit in the last place; the side of each kink exactly. At infinity ours are the limits."""
    case, x = CASES[name], every_number(dtype)
    wide = with_slopes(case.theirs, x.double())
    if name.startswith(COMPOSED):
        theirs = [result.to(dtype) for result in with_slopes(case.theirs, x.float())]
    else:
        theirs = with_slopes(case.theirs, x)
    eps = torch.finfo(dtype).eps
    for ours, there, exact in zip(with_slopes(case.ours, x), theirs, wide, strict=True):
        there = torch.where(there.isfinite() | ~x.isfinite(), there, exact.to(dtype))  # no overflow between
        compared = ~(there.isnan() & x.isinf())
        got, expected = ours.double()[compared], there.double()[compared]
        np.testing.assert_array_equal(got.isnan(), expected.isnan())
        bound = eps * expected.abs().clamp(min=0.01)
        wrong = (got - expected).abs() > bound
        wrong &= got != expected
        assert not wrong.any(), (x[compared][wrong][:3], got[wrong][:3], expected[wrong][:3])


@every_dtype
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.inplace])
def test_the_same_in_place(name, dtype):
    x = every_number(dtype)
    expected = with_slopes(CASES[name].ours, x)
    for got, plain in zip(
        with_slopes(lambda x: CASES[name].ours(1 * x, inplace=True), x), expected, strict=True
    ):
        assert torch.equal(got.nan_to_num(nan=7), plain.nan_to_num(nan=7))


@every_dtype
def test_relu6_keeps_its_output_alone(dtype):
    """Bounds that are numbers of the dtype are told by the output: nothing else is kept."""
    x = torch.randn(8).to(dtype).requires_grad_()
    for bounds, kept in (((0.0, 6.0), 1), ((-1.0, 1.0), 1), ((-0.1, 0.1), 2)):
        between = 2 * x
        y = functional.hardtanh(between, *bounds)
        alive = weakref.ref(between)
        del between
        assert (alive() is None) is (kept == 1)
        y.sum().backward()


@every_dtype
def test_hardtanh_compiled(dtype):
    x = torch.linspace(-1, 1, 513).to(dtype)
    for bound in (0.1, 0.7, 1.0):
        module = xpgrad_torch.Hardtanh(-bound, bound)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        peer = torch.nn.Hardtanh(-bound, bound)
        assert torch.equal(with_slopes(compiled, x)[1], with_slopes(peer, x)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bounds_in_single_and_double_precision(dtype):
    """Where the bound is rounded to the dtype before it is compared, here and there."""
    for bound in (0.1, 0.3, 0.7):
        points = torch.tensor([bound], dtype=dtype)
        one = torch.tensor([2.0], dtype=dtype)
        x = torch.cat([points, points.nextafter(one), points.nextafter(-one), 5 * points])
        for name in (f"hardtanh-{bound}", f"threshold-{bound}"):
            ours, theirs = (with_slopes(f, x) for f in (CASES[name].ours, CASES[name].theirs))
            assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(
    ("name", "alpha"),
    [("Relu", None), ("LeakyRelu", 0.01), ("ThresholdedRelu", 0.1), ("ThresholdedRelu", 0.7)],
)
@every_dtype
def test_a_rounded_output_tells_the_side_of_the_kink(name, alpha, dtype):
    """Recurrent kernels compute in float32 and keep outputs in half precision."""
    activation = formulas.ACTIVATIONS[name]
    kink = alpha if name == "ThresholdedRelu" else 0.0
    x = (kink + np.concatenate([np.linspace(-1e-2, 1e-2, 2001), [-1, 1]])).astype(np.float32)
    y = torch.from_numpy(activation.value(np, x, alpha, None)).to(dtype).float().numpy()
    slope = activation.pullback(np, np.ones_like(y), y, y, alpha, None)
    np.testing.assert_array_equal(slope == 1, x > np.float32(kink))


@every_dtype
@pytest.mark.parametrize("clip", [0.1, 0.7])
def test_clipped_gates_have_slope_zero(dtype, clip):
    """Also where the bound is rounded inwards: slopes come from pre-activations, not from outputs."""
    rng = np.random.default_rng(0)
    X, W, R = (
        torch.from_numpy(rng.normal(size=s) * 9).to(dtype) for s in [(6, 3, 4), (1, 20, 4), (1, 20, 5)]
    )
    out = xpgrad.lstm(X, W, R, clip=clip)
    z = torch.einsum("tni,gi->tng", X.double(), W[0].double())[0].abs()  # of the first step, without a state
    grads = xpgrad.lstm_grad(
        X[:1], W, R, H_all=out.H_all[:1], C_all=out.C_all[:1], iofc=out.iofc[:1], clip=clip, per_sample=True,
        grad_H_all=torch.ones_like(out.H_all[:1]),
    )  # fmt: skip
    passed = (grads.dW[:, 0] != 0).any(dim=2)  # (N, 4H)
    forget = torch.arange(20) // 5 == 2  # without a state before it has no effect
    assert (z > clip).any()
    assert not passed[z > clip].any()
    assert passed[(z < clip) & ~forget].all()
