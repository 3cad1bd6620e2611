"""Errors name the help that explains what is expected, and a caller's own names for what it was given."""

from __future__ import annotations

import numpy as np
import pytest

import xpgrad

X = np.ones((3, 2, 4))


def step(xp, x, h, W, R):  # type: ignore[no-untyped-def]
    return xp.tanh(W.a(x) + R.a(h))


WRONG = {
    "recurrent, lengths": (lambda: xpgrad.lstm(X, X, X, sequence_lens=[9, 9]), "lstm"),
    "recurrent, shapes": (lambda: xpgrad.gru(X, X, X), "gru"),
    "recurrent, options": (lambda: xpgrad.rnn(X, X, X, clip="wide"), "rnn"),
    "a single step": (lambda: xpgrad.lstm_cell(X, X, X, X, X), "lstm_cell"),
    "own cell": (lambda: xpgrad.Cell(step, W="a", R="a")(X, X, X), "Cell"),
    "convolution": (lambda: xpgrad.conv(X, X, strides=0), "conv"),
    "transposed convolution": (
        lambda: xpgrad.conv_transpose(X, np.ones((2, 4, 3)), pads=-1),
        "conv_transpose",
    ),
    "activation": (lambda: xpgrad.relu_grad(X, X[:1]), "relu_grad"),
    "softmax": (lambda: xpgrad.softmax(X, axis=7), "softmax"),
    "loss": (
        lambda: xpgrad.softmax_cross_entropy(X, np.ones(3, int), label_smoothing=2.0),
        "softmax_cross_entropy",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_its_help_once(case: str) -> None:
    """A wheel has no pages: what is named is there wherever the package is."""
    call, name = WRONG[case]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert caught.value.__notes__ == [f"help(xpgrad.{name}) explains what is expected."]
    assert getattr(xpgrad, name).__doc__


IN_PYTORCH = {
    "conv1d": ("F.conv1d(x, w[:, :2])", "input has 3 channels, expected groups * weight.shape[1] = 1"),
    "conv2d": ("F.conv2d(x[None], w[None], stride=0)", "stride is 0, expected at least 1"),
    "conv_transpose1d": ("F.conv_transpose1d(x, w, dilation=0)", "dilation is 0, expected at least 1"),
    "bias": ("F.conv1d(x, w, w[0, 0, :2])", "bias has shape (2,), expected (O,) = (4,)"),
    "padding": ("F.conv1d(x, w, padding=-1)", "padding is -1, expected at least 0"),
    "dtype": ("F.conv1d(x.double(), w)", "weight has dtype torch.float32, expected torch.float64, the"),
    "cross_entropy": ("F.cross_entropy(x, w)", "target has shape (4, 3, 3), expected (the shape of input, "),
    "weight": ("F.cross_entropy(x[:, :, 0], torch.tensor([0, 1]), x[0])", "weight has shape"),
    "binary": ("F.binary_cross_entropy_with_logits(x, w)", "target has shape (4, 3, 3), expected (the "),
    "softmax": ("F.softmax(x, dim=7)", "dim is 7, expected -3 to 2 for input of shape (2, 3, 8)"),
    "leaky_relu": ("F.leaky_relu(x, 'a')", "negative_slope is 'a' of type str, expected a number"),
    "threshold": ("F.threshold(x, 'a', 0)", "threshold is 'a' of type str, expected a number"),
    "hardtanh": ("F.hardtanh(x, 2, 1)", "min_val is 2.0, expected at most max_val, which is 1.0"),
    "relu6": ("F.relu6(x.long())", "input has dtype torch.int64, expected one of"),
    "logsigmoid": ("F.logsigmoid(x.long())", "input has dtype torch.int64, expected one of"),
    "hardswish": ("F.hardswish(x.long())", "input has dtype torch.int64, expected one of"),
    "LSTM": ("xpgrad_torch.LSTM(8, 2)(x, lengths=[9, 9, 9])", "lengths[0] is 9, expected 0 to T = 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_PYTORCH)
def test_an_error_has_the_adapter_s_own_names(case: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: the functions are for its tensors")
    import xpgrad_torch

    call, words = IN_PYTORCH[case]
    name = call.split("(")[0].removeprefix("F.").removeprefix("xpgrad_torch.")
    F = xpgrad_torch.functional
    names = {"F": F, "torch": torch, "xpgrad_torch": xpgrad_torch}
    names |= {"x": torch.ones(2, 3, 8), "w": torch.ones(4, 3, 3)}
    with pytest.raises((TypeError, ValueError)) as caught:
        eval(call, names)
    assert str(caught.value).startswith(f"{name}: {words}")
    shown = f"xpgrad_torch.{name}" if name == "LSTM" else f"xpgrad_torch.functional.{name}"
    notes = getattr(caught.value, "__notes__", [f"help({shown}) explains what is expected."])
    assert notes == [f"help({shown}) explains what is expected."]
