"""Uses of xpgrad with NumPy arrays, as checkers of types see them; never run."""

from collections.abc import Callable
from typing import Any, TypeAlias, assert_type

import numpy as np
from numpy.typing import NDArray

import xpgrad

Doubles = NDArray[np.float64]
Perhaps: TypeAlias = Doubles | Any


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
    assert_type(xpgrad.rnn(X, W, R, reset=np.zeros((3, 2), bool)).H_t, Doubles)
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


def wanted(X: Doubles, W: Doubles, R: Doubles, names: list[str]) -> None:
    """Gradients may be None where names say which are wanted, of whatever kind the names are."""
    assert_type(xpgrad.gru_grad(X, W, R, H_all=X, zrh=X, grad_H_t=X, wrt=names).dW, Perhaps)
    assert_type(xpgrad.rnn_grad(X, W, R, H_all=X, grad_H_t=X, wrt={"W", "R"}).dW, Perhaps)
    assert_type(xpgrad.rnn_grad(X, W, R, H_all=X, grad_H_t=X, wrt=None).dW, Doubles)
    assert_type(xpgrad.gru_cell_grad(X, X, W, R, zrh=X, grad_H=X, wrt=("W",)).dR, Perhaps)
    assert_type(xpgrad.conv_grad(X, X, W, wrt=("W",)), xpgrad.ConvGrads[Perhaps])
    assert_type(xpgrad.conv_transpose_grad(X, X, W), xpgrad.ConvTransposeGrads[Doubles])
    assert_type(xpgrad.prelu_grad(X, X, W, wrt=("slope",)).dX, Perhaps)
    assert_type(xpgrad.gate_inputs_grad(X, X, W, X).dR, Doubles)
    assert_type(xpgrad.vjp(xpgrad.conv_transpose, X, W, wrt=["W"])[1](X).dW, Perhaps)


def more_pullbacks(X: Doubles, W: Doubles) -> None:
    assert_type(xpgrad.vjp(xpgrad.conv_transpose, X, W)[1](X), xpgrad.ConvTransposeGrads[Doubles])
    assert_type(xpgrad.vjp(xpgrad.rnn, X, W, W)[1](X), xpgrad.RNNGrads[Doubles])
    assert_type(xpgrad.vjp(xpgrad.lstm_cell, X, X, X, W, W)[0].C_next, Doubles)
    assert_type(xpgrad.vjp(xpgrad.gru_cell, X, X, W, W)[1](X), xpgrad.GRUCellGrads[Doubles])
    assert_type(xpgrad.vjp(xpgrad.rnn_cell, X, X, W, W)[1](X), xpgrad.RNNCellGrads[Doubles])
    assert_type(xpgrad.vjp(xpgrad.layer_norm_gru, X, W, W, W, W, W)[1](X), xpgrad.LayerNormGRUGrads[Doubles])
    norms = xpgrad.vjp(xpgrad.layer_norm_lstm, X, W, W, W, W, W, W, W)
    assert_type(norms[0], xpgrad.LayerNormLSTMForward[Doubles])
    assert_type(xpgrad.vjp(xpgrad.slstm, X, W, W)[1](X), xpgrad.SLSTMGrads[Doubles])
    assert_type(xpgrad.vjp(xpgrad.augru, X, X, W, W)[0], xpgrad.AUGRUForward[Doubles])
    assert_type(xpgrad.vjp(xpgrad.gru_d, X, X, X, W, W, W, W)[1](X), xpgrad.GRUDGrads[Doubles])
    assert_type(xpgrad.vjp(xpgrad.binary_cross_entropy_with_logits, X, W)[1](X), Doubles)
    assert_type(xpgrad.vjp(xpgrad.leaky_relu, X, alpha=0.1)[0], Doubles)
    assert_type(xpgrad.vjp(xpgrad.softmax, X, axis=1)[1](X), Doubles)


def operations(X: Doubles, W: Doubles) -> None:
    operation = xpgrad.GradLSTMCellInputOp(5, 0, 9, (4, 5), "Float64", (2, 3))
    assert_type(operation(X, None, X, X, X, W, W, c_next=X, ifgo=X), Doubles)


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
    xpgrad.lstm(X, W, W, B=[1.0])  # type: ignore
    xpgrad.rnn_grad(X, W, W, H_all=X, wrt=3)  # type: ignore
    xpgrad.rnn_grad(X, W, W, H_all=X, wrt=[3])  # type: ignore
    xpgrad.rnn_grad(X, W, W, H_all=X, wrt=("W",), typo=1)  # type: ignore
    xpgrad.softmax_cross_entropy(X, [1, 2])  # type: ignore
    xpgrad.lstm(X, W, W, reset=True)  # type: ignore
    xpgrad.lstm(X, W, W, direction="backward")  # type: ignore
    xpgrad.convert("lstm", {"W": W}, "onnx", "tensorflow")  # type: ignore
    xpgrad.conv(X, W, auto_pad="SAME")  # type: ignore
