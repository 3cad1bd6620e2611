"""Uses of xpgrad and xpgrad_torch with tensors, as checkers of types see them; never run."""

from typing import assert_type

import torch
from torch import Tensor, nn

import xpgrad
import xpgrad_torch
from xpgrad_torch import functional


def kernels(X: Tensor, W: nn.Parameter, R: nn.Parameter) -> None:
    out = xpgrad.lstm(X, W, R, sequence_lens=torch.tensor([3, 2]))
    assert_type(out, xpgrad.LSTMForward[Tensor])
    assert_type(xpgrad.lstm_grad(X, W, R, H_all=X, C_all=X, iofc=X, grad_H_t=X).dW, Tensor)
    assert_type(xpgrad.relu(X), Tensor)
    assert_type(xpgrad.vjp(xpgrad.conv, X, W)[1](X), xpgrad.ConvGrads[Tensor])


def functions(X: Tensor, W: Tensor, R: Tensor) -> None:
    assert_type(functional.lstm(X, W, R), tuple[Tensor, Tensor, Tensor])
    assert_type(functional.gru(X, W, R, sequence_lens=[3, 2]), tuple[Tensor, Tensor])
    assert_type(functional.rnn(X, W, R), tuple[Tensor, Tensor])
    assert_type(functional.gru_cell(X, X, W, R), Tensor)
    assert_type(functional.conv2d(X, W, padding=1), Tensor)
    assert_type(functional.softmax(X, -1), Tensor)
    assert_type(functional.cross_entropy(X, X), Tensor)


def modules(X: Tensor) -> None:
    packed = nn.utils.rnn.pack_padded_sequence(X, torch.tensor([3, 2]))
    lstm = xpgrad_torch.LSTM(3, 5, peephole=True)
    Y, (h, c) = lstm(X, lengths=[3, 2])
    assert_type(Y, Tensor)
    assert_type(h, Tensor)
    assert_type(c, Tensor)
    assert_type(lstm(packed)[0], nn.utils.rnn.PackedSequence)
    assert_type(xpgrad_torch.GRU(3, 5)(X), tuple[Tensor, Tensor])
    assert_type(xpgrad_torch.RNN(3, 5)(X), tuple[Tensor, Tensor])
    assert_type(xpgrad_torch.RNNCell(3, 5)(X), Tensor)
    assert_type(xpgrad_torch.LSTMCell(3, 5)(X), tuple[Tensor, Tensor])
    assert_type(xpgrad_torch.GRUCell(3, 5)(X), Tensor)
    assert_type(xpgrad_torch.Conv2d(3, 5, 3)(X), Tensor)
    assert_type(xpgrad_torch.ConvTranspose1d(3, 5, 3)(X), Tensor)
    assert_type(xpgrad_torch.GELU()(X), Tensor)
    assert_type(xpgrad_torch.CrossEntropyLoss()(X, X), Tensor)


def swapping(model: nn.Sequential) -> None:
    """A model keeps its type; of modules that xpgrad has under a class of its own, the type is that."""
    assert_type(xpgrad_torch.swap(model), nn.Sequential)
    assert_type(xpgrad_torch.swap(nn.LSTM(3, 5), verbose=True), xpgrad_torch.LSTM)
    assert_type(xpgrad_torch.swap(nn.Conv1d(3, 5, 3)), nn.Conv1d)
    assert_type(xpgrad_torch.unswap(model), nn.Sequential)
    assert_type(xpgrad_torch.unswap(xpgrad_torch.GRU(3, 5)), nn.GRU)


def mistakes(X: Tensor, W: Tensor, R: Tensor) -> None:
    """Words that no kernel knows: each line would be an unused ignore if it passed."""
    functional.lstm(X, W, R, direction="backward")  # type: ignore
    functional.lstm(X, W, R, peephole="none")  # type: ignore
    xpgrad_torch.LSTM(3, 5, save="some")  # type: ignore
    xpgrad_torch.RNN(3, 5, nonlinearity="gelu")  # type: ignore
    functional.conv2d(X, W, method="direct")  # type: ignore
    functional.cross_entropy(X, X, reduction="max")  # type: ignore
