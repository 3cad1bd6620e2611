"""Gradient (backward-pass) kernels, written once against the Python array API standard."""

from xpgrad._version import __version__
from xpgrad._vjp import vjp
from xpgrad.engine import use_engine
from xpgrad.gru import (
    GRUCellForward,
    GRUCellGrads,
    GRUForward,
    GRUGrads,
    gru,
    gru_cell,
    gru_cell_grad,
    gru_grad,
)
from xpgrad.lstm import (
    LSTMCellForward,
    LSTMCellGrads,
    LSTMForward,
    LSTMGrads,
    lstm,
    lstm_cell,
    lstm_cell_grad,
    lstm_grad,
)

__all__ = [
    "GRUCellForward",
    "GRUCellGrads",
    "GRUForward",
    "GRUGrads",
    "LSTMCellForward",
    "LSTMCellGrads",
    "LSTMForward",
    "LSTMGrads",
    "__version__",
    "gru",
    "gru_cell",
    "gru_cell_grad",
    "gru_grad",
    "lstm",
    "lstm_cell",
    "lstm_cell_grad",
    "lstm_grad",
    "use_engine",
    "vjp",
]
