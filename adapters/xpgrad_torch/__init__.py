"""xpgrad in PyTorch: differentiable functions, drop-in modules, and `swap`, which puts them into a model."""

from xpgrad_torch import functional
from xpgrad_torch.activations import *  # noqa: F403
from xpgrad_torch.activations import __all__ as __all__
from xpgrad_torch.augru import AUGRU
from xpgrad_torch.cells import CellLayer, run_cell
from xpgrad_torch.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from xpgrad_torch.gru_d import GRUD
from xpgrad_torch.layer_norm import LayerNormGRU, LayerNormLSTM
from xpgrad_torch.losses import BCEWithLogitsLoss, CrossEntropyLoss
from xpgrad_torch.modules import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from xpgrad_torch.slstm import SLSTM
from xpgrad_torch.swap import swap, swap_report, unswap

__all__ = [
    *(name for name in __all__ if not name.islower()),
    "AUGRU", "BCEWithLogitsLoss", "CellLayer", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
    "ConvTranspose2d", "ConvTranspose3d", "CrossEntropyLoss", "GRU", "GRUCell", "GRUD", "LSTM", "LSTMCell",
    "LayerNormGRU", "LayerNormLSTM", "RNN", "RNNCell", "SLSTM", "functional", "run_cell", "swap",
    "swap_report", "unswap"
]  # fmt: skip
__all__.sort()
