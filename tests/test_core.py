"""The core of the suite: every family of kernels once, on whatever is installed.

It needs pytest and xpgrad alone, so that `tools/versions.py` can run it in many environments.
"""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

import xpgrad
from xpgrad.testing import check_vjp, lstm_reference

rng = np.random.default_rng(0)
T, N, I, H = 3, 2, 2, 3


def recurrent(gates: int) -> dict[str, np.ndarray]:
    return {
        "X": rng.normal(size=(T, N, I)),
        "W": rng.normal(size=(1, gates * H, I)),
        "R": rng.normal(size=(1, gates * H, H)),
        "B": rng.normal(size=(1, 2 * gates * H)),
    }


CASES = {
    "lstm": (recurrent(4), {"sequence_lens": [3, 1], "clip": 3.0}),
    "gru": (recurrent(3), {"linear_before_reset": 1}),
    "rnn": (recurrent(1), {}),
    "conv": ({"X": rng.normal(size=(2, 3, 5)), "W": rng.normal(size=(4, 3, 3))}, {"pads": 1}),
    "gelu": ({"X": rng.normal(size=(3, 4))}, {}),
    "log_softmax": ({"X": rng.normal(size=(3, 4))}, {}),
}


@pytest.mark.parametrize("engine", ["numpy", "standard"])
@pytest.mark.parametrize("name", CASES)
def test_gradient(name: str, engine: str) -> None:
    arguments, options = CASES[name]
    kernel = getattr(xpgrad, name)

    def forward(**arrays):
        outputs = kernel(**arrays, **options)
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def gradient(dY, **arrays):
        with xpgrad.use_engine(engine):
            gradients = xpgrad.vjp(kernel, **arrays, **options)[1](dY)
        return gradients[: len(arrays)] if isinstance(gradients, tuple) else (gradients,)

    check_vjp(forward, gradient, arguments)


def test_forward_has_a_reference() -> None:
    arguments, _ = CASES["lstm"]
    ours, naive = xpgrad.lstm(**arguments), lstm_reference(**arguments)
    np.testing.assert_allclose(ours.H_all, naive.H_all, rtol=1e-12, atol=1e-12)


def test_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    xpgrad_torch = pytest.importorskip("xpgrad_torch")
    theirs = torch.nn.LSTM(I, H).double()
    ours = xpgrad_torch.LSTM(I, H).double()
    ours.load_state_dict(theirs.state_dict())
    X = torch.randn(T, N, I, dtype=torch.float64)
    for module in (ours, theirs):
        module(X)[0].square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_jax() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    xpgrad_jax = pytest.importorskip("xpgrad_jax")
    arrays = {name: x.astype(np.float32) for name, x in recurrent(3).items()}

    def loss(R):
        return xpgrad_jax.gru(arrays["X"], arrays["W"], R, arrays["B"])[1].sum()

    outputs, pullback = xpgrad.vjp(xpgrad.gru, *arrays.values())
    expected = pullback(grad_H_t=np.ones_like(outputs.H_t)).dR
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(arrays["R"]), expected, rtol=2e-5, atol=1e-6)


def test_info_says_what_is_missing() -> None:
    command = [sys.executable, "-m", "xpgrad", "info"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for package in ("torch", "jax", "llvmlite"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                __import__(package)
            except ImportError:
                assert f"{package} is not installed: " in text
            else:
                assert f"{package} is not installed: " not in text
