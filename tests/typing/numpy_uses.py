"""Uses of xpgrad with NumPy arrays, as checkers of types see them; never run."""

from collections.abc import Callable
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import xpgrad

Doubles = NDArray[np.float64]


def recurrent(X: Doubles, W: Doubles, R: Doubles, P: Doubles) -> None:
    out = xpgrad.lstm(X, W, R, sequence_lens=[3, 2], clip=3.0)
    assert_type(out, xpgrad.LSTMForward[Doubles])
    assert_type(out.H_all, Doubles)
    H_all, H_t, C_t, C_all, iofc = out
    assert_type(C_t, Doubles)
    grads = xpgrad.lstm_grad(X, W, R, H_all=H_all, C_all=C_all, iofc=iofc, grad_H_t=H_t, P=P)
    assert_type(grads.dW, Doubles)
    assert_type(grads.dP, Doubles | Any)  # None where P is left out
    some = xpgrad.lstm_grad(X, W, R, H_all=H_all, C_all=C_all, iofc=iofc, grad_H_t=H_t, wrt=("W",))
    assert_type(some.dW, Doubles | Any)  # None where it was not asked for
    print(some.dW.sum(), some.dX is None)
    assert_type(xpgrad.gru(X, W, R, sequence_lens=np.asarray([3, 2])).zrh, Doubles)
    assert_type(xpgrad.rnn(X, W, R).H_t, Doubles)
    assert_type(xpgrad.gru_cell(X, H_t, W, R).H_next, Doubles)


def shapes() -> None:
    """The number of axes is no part of a result's type: an output has another number than X."""
    X, W, R, B = np.ones((2, 2, 2)), np.ones((1, 8, 2)), np.ones((1, 8, 2)), np.ones((1, 16))
    out = xpgrad.lstm(X, W, R, B)
    assert_type(out.H_all, Doubles)
    T, D, N, H = out.H_all.shape
    print(T, D, N, H)


def single(X: NDArray[np.float32], W: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
    Floats = NDArray[np.float32]
    assert_type(xpgrad.conv(X, W, pads=1), Floats)
    assert_type(xpgrad.conv_grad(X, X, W).dB, Floats)
    assert_type(xpgrad.conv_transpose(X, W), Floats)
    assert_type(xpgrad.relu(X), Floats)
    assert_type(xpgrad.relu_grad(X, X, out=X), Floats)
    assert_type(xpgrad.prelu_grad(X, X, W).dslope, Floats)
    assert_type(xpgrad.softmax(X, axis=1), Floats)
    assert_type(xpgrad.softmax_cross_entropy(X, labels, label_smoothing=0.1), Floats)
    assert_type(xpgrad.softmax_cross_entropy_grad(X, X, labels), Floats)
    assert_type(xpgrad.gate_inputs(X, W), Floats)


def pullbacks(X: Doubles, W: Doubles, R: Doubles) -> None:
    outputs, pullback = xpgrad.vjp(xpgrad.lstm, X, W, R)
    assert_type(outputs, xpgrad.LSTMForward[Doubles])
    assert_type(pullback, Callable[..., xpgrad.LSTMGrads[Doubles]])
    assert_type(pullback(outputs.H_all).dR, Doubles)
    _, some = xpgrad.vjp(xpgrad.lstm, X, W, R, wrt=("R",))
    print(some(outputs.H_all).dX is None)
    assert_type(xpgrad.vjp(xpgrad.gru, X, W, R)[0].zrh, Doubles)
    assert_type(xpgrad.vjp(xpgrad.conv, X, W)[1](X).dB, Doubles)
    assert_type(xpgrad.vjp(xpgrad.prelu, X, W)[1](X), xpgrad.PReLUGrads[Doubles])
    assert_type(xpgrad.vjp(xpgrad.softmax_cross_entropy, X, W)[1](X), Doubles)
    Y, back = xpgrad.vjp(xpgrad.gelu, X)
    assert_type(Y, Doubles)
    assert_type(back(Y), Doubles)


def words(X: Doubles, W: Doubles, R: Doubles) -> None:
    for direction in ("forward", "reverse"):
        xpgrad.gru(X, W, R, direction=direction)
    xpgrad.gru_grad(X, W, R, H_all=X, zrh=X, grad_H_t=X, per_sample="norm")


def tools(W: Doubles) -> None:
    assert_type(xpgrad.convert("lstm", {"W": W, "R": W}, "onnx", "torch"), dict[str, Doubles])
    with xpgrad.use_engine("standard"):
        pass


def unparametrized(out: xpgrad.LSTMForward) -> None:
    assert_type(out.H_all, Any)


def mistakes(X: Doubles, W: Doubles) -> None:
    """What a checker refuses: each line would be an unused ignore if it passed."""
    xpgrad.lstm([[[1.0]]], W, W)  # type: ignore
    xpgrad.lstm(X, W, W, direction=1)  # type: ignore
    xpgrad.lstm(X, W, W, None, "ab")  # type: ignore
    xpgrad.relu(X, alpha=1.0)  # type: ignore
    xpgrad.lstm(X, W, W, direction="backward")  # type: ignore
    xpgrad.convert("lstm", {"W": W}, "onnx", "tensorflow")  # type: ignore
    xpgrad.conv(X, W, auto_pad="SAME")  # type: ignore
