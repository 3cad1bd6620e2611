"""Options are numbers: any number, and the one that they are now."""

from __future__ import annotations

import math

import numpy as np
import pytest

import xpgrad


def arrays(rng, gates=4):
    shapes = {"X": (3, 2, 3), "W": (1, gates * 5, 3), "R": (1, gates * 5, 5)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def step(given, **options):
    out = xpgrad.lstm(**given, **options)
    saved = {name: getattr(out, name) for name in ("H_all", "C_all", "iofc")}
    return [*out, *xpgrad.lstm_grad(**given, **options, **saved, grad_H_all=np.ones_like(out.H_all))]


LEAKY = {"activations": ["Sigmoid", "LeakyRelu", "Tanh"]}


@pytest.mark.parametrize(
    "options",
    [
        {"clip": math.inf},
        LEAKY | {"activation_alpha": [math.inf]},
        LEAKY | {"activation_alpha": [-math.inf]},
        LEAKY | {"activation_alpha": [math.nan]},
        LEAKY | {"activation_alpha": [-0.0]},
        LEAKY | {"activation_alpha": [1e-320], "clip": 1e300},
    ],
    ids=str,
)
def test_every_number_is_compiled(options, rng):
    """Three times: NaN is the same option every time, though it is not equal to itself."""
    given = arrays(rng)
    with xpgrad.use_engine("standard"), np.errstate(all="ignore"):
        expected = step(given, **options)
    for _ in range(3):
        for got, right in zip(step(given, **options), expected, strict=True):
            if right is not None:
                np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-12)


def test_zeros_of_two_signs_are_two_options(rng):
    """LeakyRelu(-1) is -alpha: 0 or -0, whichever comes first."""
    X, W, R = -np.ones((1, 1, 1)), np.ones((1, 4, 1)), np.zeros((1, 4, 1))
    for alpha in (0.0, -0.0, 0.0):
        out = xpgrad.lstm(X, W, R, **LEAKY, activation_alpha=[alpha])
        assert np.signbit(out.iofc[0, 0, 0, 3]) == (alpha == 0 and math.copysign(1, alpha) > 0)


@pytest.mark.parametrize("name", ["leaky_relu", "elu"])
@pytest.mark.parametrize("jit", ["0", "1"])
def test_zeros_of_two_signs_of_an_elementwise_function(name, jit, monkeypatch):
    monkeypatch.setenv("XPGRAD_JIT", jit)
    for alpha in (0.0, -0.0, 0.0):
        found = getattr(xpgrad, name)(-np.ones(3), alpha=alpha)
        assert np.signbit(found).tolist() == [math.copysign(1, alpha) > 0] * 3


@pytest.mark.parametrize("name", ["clip", "activation_alpha"])
def test_an_option_that_changes(name, rng):
    """An array of one number is that number, as it is at each call."""
    given, option = arrays(rng), np.asarray(0.5)
    for value in (0.5, 0.1, 0.9):
        option[...] = value
        option_of = {"clip": lambda x: {"clip": x}, "activation_alpha": lambda x: LEAKY | {name: [x]}}[name]
        for got, right in zip(step(given, **option_of(option)), step(given, **option_of(value)), strict=True):
            assert got is right is None or np.array_equal(got, right)


_ACTIVATIONS = [
    ("elu", "alpha"),
    ("leaky_relu", "alpha"),
    ("quick_gelu", "alpha"),
    ("thresholded_relu", "alpha"),
    ("hard_sigmoid", "beta"),
    ("scaled_tanh", "alpha"),
    ("selu", "gamma"),
    ("softplus", "beta"),
]


@pytest.mark.parametrize(("kernel", "name"), [*_ACTIVATIONS, ("lstm", "clip"), ("gru", "activation_alpha")])
def test_what_requires_a_gradient_is_no_option(kernel, name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    parameter = torch.nn.Parameter(torch.tensor(0.5))
    X = torch.ones(3, 2, 3)
    function, options = getattr(xpgrad, kernel), {name: parameter}
    if kernel in ("lstm", "gru"):
        gates = 4 if kernel == "lstm" else 3
        given = [X, torch.ones(1, gates * 5, 3), torch.ones(1, gates * 5, 5)]
        if name == "activation_alpha":
            options = {"activations": ["LeakyRelu", "Tanh"], name: [parameter]}
    else:
        given = [X]
    with pytest.raises(TypeError, match=rf"{kernel}: {name} is .* that requires a gradient"):
        function(*given, **options)
    options = {key: [0.5] if value == [parameter] else value for key, value in options.items()}
    with torch.no_grad():
        plain = {key: 0.5 if value is parameter else value for key, value in options.items()}
        function(*given, **plain)
