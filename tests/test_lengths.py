"""Lengths of sequences: any sequence of integers, or an integer array of any namespace."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpgrad

pytestmark = pytest.mark.usefixtures("interpreted")
LENGTHS = [2, 0, 4]
KINDS: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "list of NumPy's": lambda v: [np.int32(n) for n in v],
    "uint8": lambda v: np.asarray(v, dtype=np.uint8), "strided": lambda v: np.repeat(v, 2)[::2],
}  # fmt: skip
NAMESPACES = ("numpy", "torch", "array_api_strict", "dask.array")


def namespace(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def forward_and_gradient(xp: Any, lengths: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    X, W, R, d = (
        xp.asarray(rng.normal(size=s).astype("float32"))
        for s in [(4, 3, 2), (1, 12, 2), (1, 12, 3), (4, 1, 3, 3)]
    )
    out = xpgrad.lstm(X, W, R, sequence_lens=lengths)
    saved = {name: getattr(out, name) for name in ("H_all", "C_all", "iofc")}
    grads = xpgrad.lstm_grad(X, W, R, **saved, grad_H_all=d, sequence_lens=lengths)
    g = xpgrad.gru(X, W[:, :9, :], R[:, :9, :], sequence_lens=lengths)
    return [np.asarray(a) for a in (*out, *g, *grads) if a is not None]


@pytest.fixture
def expected(interpreted: None) -> list[np.ndarray]:
    return forward_and_gradient(np, np.asarray(LENGTHS))


def assert_same(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences(kind: str, expected: list[np.ndarray]) -> None:
    for _ in range(3):
        assert_same(forward_and_gradient(np, KINDS[kind](LENGTHS)), expected)


def test_a_range(expected: list[np.ndarray]) -> None:
    assert_same(forward_and_gradient(np, range(2, 5)), forward_and_gradient(np, [2, 3, 4]))


@pytest.mark.parametrize("name", NAMESPACES)
def test_beside_data_of_every_namespace(name: str, expected: list[np.ndarray]) -> None:
    """Lists and NumPy arrays beside any data, and that namespace's own arrays beside NumPy's."""
    beside(namespace(name), expected)


def test_beside_jax() -> None:
    """In a process of its own: JAX's threads do not stand other tests' forks."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    code = (
        "import jax.numpy, numpy, test_lengths as t;"
        "t.beside(jax.numpy, t.forward_and_gradient(numpy, numpy.asarray(t.LENGTHS)))"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=os.environ | {"XPGRAD_JIT": "0"},
        check=True,
    )


def test_lengths_load_no_framework() -> None:
    code = (
        "import sys, numpy as np, xpgrad;"
        "X, W, R = (np.ones(s) for s in [(2, 1, 2), (1, 8, 2), (1, 8, 2)]);"
        "xpgrad.lstm(X, W, R, sequence_lens=[1]); xpgrad.lstm(X, W, R, sequence_lens=np.asarray([1]));"
        "assert not {'jax', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"XPGRAD_JIT": "0"}, check=True)


def beside(xp: Any, expected: list[np.ndarray]) -> None:
    assert_same(forward_and_gradient(xp, LENGTHS), expected)
    assert_same(forward_and_gradient(xp, np.asarray(LENGTHS)), expected)
    assert_same(forward_and_gradient(xp, xp.asarray(LENGTHS)), expected)
    assert_same(forward_and_gradient(np, xp.asarray(LENGTHS)), expected)


@pytest.mark.parametrize("save", ["all", 2])
def test_errors_of_layers_name_their_argument(save: str | int) -> None:
    torch, xpgrad_torch = namespace("torch"), importlib.import_module("xpgrad_torch")

    def elman(xp: Any, x: Any, h: Any, W: Any, R: Any) -> Any:
        return xp.tanh(W.z(x) + R.z(h))

    layers = {name: getattr(xpgrad_torch, name)(2, 3, save=save) for name in ("LSTM", "GRU", "RNN")}
    layers |= {
        name: getattr(xpgrad_torch, name)(2, 3, save=save) for name in ("LayerNormLSTM", "LayerNormGRU")
    }
    layers["CellLayer"] = xpgrad_torch.CellLayer(xpgrad.Cell(elman, W="z", R="z"), 2, 3)
    for name, layer in layers.items():
        for wrong in ([2, 0, 5], [2, -1, 4], [2.0, 0, 4], [2, 0], torch.tensor([2, 0, 7]), torch.ones(3)):
            with pytest.raises((ValueError, TypeError), match=rf"^{name}: lengths.*expected"):
                layer(torch.randn(4, 3, 2), lengths=wrong)


def test_modules_and_functions_of_the_adapter() -> None:
    torch = namespace("torch")
    xpgrad_torch = importlib.import_module("xpgrad_torch")
    functional = xpgrad_torch.functional
    torch.manual_seed(0)
    X, W, R = torch.randn(4, 3, 2), torch.randn(1, 12, 2), torch.randn(1, 12, 3)
    modules = [xpgrad_torch.LSTM(2, 3), xpgrad_torch.GRU(2, 3)]
    calls = [
        lambda lengths: functional.lstm(X, W, R, sequence_lens=lengths)[0],
        lambda lengths: functional.lstm(X, W, R, sequence_lens=lengths, save=2)[0],
        lambda lengths: functional.gru(X, W[:, :9], R[:, :9], sequence_lens=lengths)[0],
        *(lambda lengths, m=m: m(X, lengths=lengths)[0] for m in modules),
    ]
    for call in calls:
        right = call(torch.tensor(LENGTHS))
        for lengths in (LENGTHS, tuple(LENGTHS), np.asarray(LENGTHS), np.asarray(LENGTHS, dtype=np.uint16)):
            assert torch.equal(call(lengths), right)
        for wrong in (
            [2, True, 4],
            [2, 0.0, 4],
            np.zeros(3),
            np.zeros(3, dtype=bool),
            "204",
            b"204",
            3,
            {2, 0, 4},
        ):
            with pytest.raises(TypeError, match=r"(sequence_lens|lengths).*expected"):
                call(wrong)
        for wrong in ([2, 0, 5], [2, -1, 4], [2, 0, 10**30], [2, 0], [[2], [0], [4]][:2]):
            with pytest.raises((ValueError, TypeError), match=r"(sequence_lens|lengths).*expected"):
                call(wrong)


def test_lengths_of_two_axes_are_no_resets():
    X, W, R = np.ones((4, 3, 2)), np.ones((1, 16, 2)), np.ones((1, 16, 4))
    with pytest.raises(ValueError, match=r"lstm: sequence_lens has shape \(3, 5\), expected \(N,\)"):
        xpgrad.lstm(X, W, R, sequence_lens=np.ones((3, 5), dtype=np.int64))
    for layout in (np.ones(5), True, 2):
        with pytest.raises(ValueError, match="lstm: layout is "):
            xpgrad.lstm(X, W, R, reset=np.ones((4, 3), dtype=bool), layout=layout)
