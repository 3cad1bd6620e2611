"""Every wrong argument is refused with the operator's name, the argument's and the rule."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpgrad
from bad_calls import GOOD, draw
from xpgrad.engine import thread_count
from xpgrad.engine.process.settings import jit_enabled

pytestmark = pytest.mark.usefixtures("interpreted")
X = np.asarray([[0.25, -0.5], [1.5, 2.0]])


def test_right_calls_are_right() -> None:
    """Else a wrong argument would not be what is refused; every public function with arrays is there."""
    for operator, arguments in GOOD.items():
        getattr(xpgrad, operator)(**arguments)
    gradients = {name for name in xpgrad.__all__ if name.endswith("_grad")}
    assert gradients | {name.removesuffix("_grad") for name in gradients} <= set(GOOD)


def test_random_wrong_arguments() -> None:
    complaints = [f"{call}: {call.complaint()}" for call in draw(1500, seed=20) if call.complaint()]
    assert [c for c in complaints if not c.endswith(": accepted")] == []
    assert len(complaints) < 500, "most are refused"


OWN: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: xpgrad.softmax(X, axis=np.array([0, 1])),
        "softmax: axis is an array of shape (2,), expected an integer",
    ),
    (
        lambda: xpgrad.softmax(X, axis=True),
        "softmax: axis is True of type bool, expected an integer",
    ),
    (
        lambda: xpgrad.prelu_grad(X, X, X, wrt=3),
        "prelu_grad: wrt is 3 of type int, expected names of 'X', 'slope'",
    ),
    (
        lambda: xpgrad.prelu_grad(X, X, X, wrt=[["X"]]),
        "prelu_grad: wrt is [['X']] of type list, expected names of 'X'",
    ),
    (
        lambda: xpgrad.elu(X, alpha=np.array([1, 2, 3])),
        "elu: alpha is an array of shape (3,), expected a number",
    ),
    (
        lambda: xpgrad.elu(X, alpha=np.array([1.0])),
        "elu: alpha is an array of shape (1,), expected a number",
    ),
    (
        lambda: xpgrad.elu(X, alpha=np.array("1")),
        "elu: alpha is array('1', dtype='<U1') of type ndarray, expected a number",
    ),
    (
        lambda: xpgrad.elu(X, alpha=1j),
        "elu: alpha is 1j of type complex, expected a number",
    ),
    (
        lambda: xpgrad.elu(X, alpha=np.True_),
        "elu: alpha is np.True_ of type bool, expected a number",
    ),
    (
        lambda: xpgrad.relu(np.ma.masked_invalid([1.0, np.nan])),
        "relu: X is a MaskedArray, whose mask would have no effect, expected a plain array: X.filled(...)",
    ),
    (
        lambda: xpgrad.relu_grad(X, np.ma.asarray(X)),
        "relu_grad: X is a MaskedArray, whose mask would have no effect",
    ),
    (
        lambda: xpgrad.relu(X, out=np.ma.zeros((2, 2))),
        "relu: out is a MaskedArray, whose mask would have no effect",
    ),
    (
        lambda: xpgrad.relu(X.view(np.matrix)),
        "relu: X is a matrix, whose own meaning would be lost, expected a plain array: numpy.asarray(X)",
    ),
    (
        lambda: xpgrad.gate_inputs(X[None], X.view(np.recarray)),
        "gate_inputs: W is a recarray, whose own meaning would be lost",
    ),
]


@pytest.mark.parametrize(("call", "message"), OWN)
def test_own_messages(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_a_tensor_of_one_element_is_no_number() -> None:
    """PyTorch's own conversions take it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(TypeError, match=r"softmax: axis is an array of shape \(1,\), expected an integer"):
        xpgrad.softmax(X, axis=torch.tensor([1]))
    with pytest.raises(TypeError, match=r"elu: alpha is an array of shape \(1,\), expected a number"):
        xpgrad.elu(X, alpha=torch.tensor([1.0]))


def test_a_number_that_no_float_holds() -> None:
    message = "^elu: alpha is an integer of 1329 bits, expected one that a float can hold(?m:$)"
    with pytest.raises(ValueError, match=message):
        xpgrad.elu(X, alpha=10**400)


def test_a_mapped_file_is_a_plain_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "numbers", dtype=np.float64, mode="w+", shape=X.shape)
    mapped[:] = X
    for _ in range(3):
        np.testing.assert_array_equal(xpgrad.tanh(mapped), np.tanh(X))
        np.testing.assert_array_equal(xpgrad.softmax(mapped), xpgrad.softmax(X))


@pytest.mark.parametrize("word", ["0", "false", "no", "off", "False", " OFF "])
def test_words_that_turn_compiling_off(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPGRAD_JIT", word)
    assert not jit_enabled()


@pytest.mark.parametrize("word", ["", "1", "true", "Yes", "on"])
def test_words_that_leave_compiling_on(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    monkeypatch.setenv("XPGRAD_JIT", word)
    assert jit_enabled()


def test_other_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPGRAD_JIT", "maybe")
    message = "^XPGRAD_JIT is 'maybe', expected 1, true, yes or on, or 0, false, no or off$"
    with pytest.raises(ValueError, match=message):
        xpgrad.relu(X)


@pytest.mark.parametrize("word", ["abc", "0", "-2", "1.5", "9" * 20])
def test_number_of_threads(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPGRAD_NUM_THREADS", word)
    message = f"^XPGRAD_NUM_THREADS is {word!r}, expected a whole number from 1 to 65536$"
    with pytest.raises(ValueError, match=message):
        thread_count()


def test_as_a_script() -> None:
    run = subprocess.run(
        [sys.executable, "tests/bad_calls.py", "--calls", "50"], capture_output=True, text=True, check=True,
        env=os.environ | {"XPGRAD_JIT": "0"},
    )  # fmt: skip
    assert "0 of 50 errors say too little; accepted:" in run.stdout


@pytest.mark.parametrize(("x", "beta"), [(1.7e308, 10.0), (-1.7e308, -10.0)])
def test_softplus_does_not_overflow(x: float, beta: float) -> None:
    assert xpgrad.softplus(np.asarray([x]), beta=beta)[0] == x
