"""xpgrad in PyTorch: differentiable functions, drop-in modules, and `swap`, which puts them into a model."""

from xpgrad_torch import functional
from xpgrad_torch.modules import GRU, LSTM, GRUCell, LSTMCell
from xpgrad_torch.swap import swap

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "functional", "swap"]
