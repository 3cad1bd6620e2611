"""xpgrad in PyTorch: differentiable functions, drop-in modules, and `swap`, which puts them into a model."""

from xpgrad_torch import functional
from xpgrad_torch.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from xpgrad_torch.modules import GRU, LSTM, GRUCell, LSTMCell
from xpgrad_torch.swap import swap, swap_report, unswap

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "GRU",
    "GRUCell",
    "LSTM",
    "LSTMCell",
    "functional",
    "swap",
    "swap_report",
    "unswap",
]
