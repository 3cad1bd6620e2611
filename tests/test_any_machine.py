"""One step of every family in float32, on whatever machine this is: for processors and systems that are rare.

It needs pytest and xpgrad alone, so that it runs where little can be installed, an emulated processor among
them: few forms, each of which is compiled once.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import xpgrad

T, N, I, H = 7, 20, 24, 17
LENGTHS = [7, 7, 5, 1, 0, 6, 7, 3, 2, 7, 4, 4, 1, 7, 6, 5, 2, 2, 7, 3]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) / 4


def recurrent(gates: int) -> dict[str, np.ndarray]:
    return {
        "X": normal(1, T, N, I),
        "W": normal(2, 1, gates * H, I),
        "R": normal(3, 1, gates * H, H),
        "B": normal(4, 1, 2 * gates * H),
    }


IMAGES = {"X": normal(5, 3, 10, 9, 8), "W": normal(6, 20, 10, 3, 3), "B": normal(7, 20)}
CASES: dict[str, tuple[Any, dict[str, np.ndarray], dict[str, Any]]] = {
    "lstm": (xpgrad.lstm, recurrent(4), {}),
    "lstm with lengths": (xpgrad.lstm, recurrent(4), {"sequence_lens": LENGTHS}),
    "gru": (xpgrad.gru, recurrent(3), {}),
    "gru with the reset after its product": (
        xpgrad.gru,
        recurrent(3),
        {"linear_before_reset": 1, "direction": "reverse", "sequence_lens": LENGTHS},
    ),
    "rnn": (xpgrad.rnn, recurrent(1), {"sequence_lens": LENGTHS}),
    "conv": (xpgrad.conv, IMAGES, {"pads": 1}),
    "softmax": (xpgrad.softmax, {"X": normal(8, 30, 45)}, {}),
    "gelu": (xpgrad.gelu, {"X": normal(9, 30, 45)}, {}),
}


def step(kernel: Any, arrays: dict[str, np.ndarray], options: dict[str, Any], dtype: str) -> list[np.ndarray]:
    """Return the outputs and the gradients for a cotangent of the first output."""
    given = {name: array.astype(dtype) for name, array in arrays.items()}
    outputs, pullback = xpgrad.vjp(kernel, **given, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cotangent = normal(10, *outputs[0].shape).astype(dtype)
    gradients = pullback(cotangent)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    return [np.asarray(array) for array in (*outputs, *gradients) if array is not None]


@pytest.mark.parametrize("name", CASES)
def test_a_step_three_times(name: str) -> None:
    """Right by the standard engine in float64, and the same bits in each call."""
    first = step(*CASES[name], "float32")
    for size in (3, 1001):
        between = np.empty(size)  # so that what follows has another place in memory
        again = step(*CASES[name], "float32")
        assert [array.tobytes() for array in again] == [array.tobytes() for array in first]
        del between
    with xpgrad.use_engine("standard"):
        expected = step(*CASES[name], "float64")
    for found, exact in zip(first, expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5 * max(1, np.abs(exact).max(initial=0)))


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 9, 70), (3, 300, 33), (40, 65, 96), (130, 7, 5)])
def test_products(rows: int, inner: int, columns: int) -> None:
    """Of our own tiles: alone, and added to what is there."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: products are NumPy's")
    if os.environ.get("XPGRAD_JIT") == "0":
        pytest.skip("nothing is compiled: products are NumPy's")
    from xpgrad.engine.compiled.products import matrix
    from xpgrad.engine.process.team import PoolTeam

    a, b, c = normal(1, rows, inner), normal(2, inner, columns), normal(3, rows, columns)
    left, right, target = (array.astype("float32") for array in (a, b, c))
    matrix.multiply(PoolTeam(), left, right, target, add=True)
    np.testing.assert_allclose(target, c + a @ b, rtol=0, atol=1e-5)
    matrix.multiply(PoolTeam(), left, np.asfortranarray(right), target)
    np.testing.assert_allclose(target, a @ b, rtol=0, atol=1e-5)
