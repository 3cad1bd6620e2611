"""Gradient (backward-pass) kernels, written once against the Python array API standard."""

from xpgrad._version import __version__
from xpgrad._vjp import vjp
from xpgrad.engine import use_engine
from xpgrad.gru import GRUForward, GRUGrads, gru, gru_grad
from xpgrad.lstm import LSTMForward, LSTMGrads, lstm, lstm_grad

__all__ = [
    "GRUForward",
    "GRUGrads",
    "LSTMForward",
    "LSTMGrads",
    "__version__",
    "gru",
    "gru_grad",
    "lstm",
    "lstm_grad",
    "use_engine",
    "vjp",
]
