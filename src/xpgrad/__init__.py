"""Gradient (backward-pass) kernels, written once against the Python array API standard."""

from xpgrad._operators.vjp import vjp
from xpgrad._version import __version__
from xpgrad.activations import *  # noqa: F403
from xpgrad.activations import __all__ as __all__
from xpgrad.augru import AUGRUForward, AUGRUGrads, augru, augru_grad
from xpgrad.cells import Cell
from xpgrad.conv import (
    ConvGrads,
    ConvTransposeGrads,
    conv,
    conv_grad,
    conv_transpose,
    conv_transpose_grad,
)
from xpgrad.convert import convert
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
from xpgrad.gru_d import GRUDForward, GRUDGrads, gru_d, gru_d_grad
from xpgrad.layer_norm import (
    LayerNormGRUForward,
    LayerNormGRUGrads,
    LayerNormLSTMForward,
    LayerNormLSTMGrads,
    layer_norm_gru,
    layer_norm_gru_grad,
    layer_norm_lstm,
    layer_norm_lstm_grad,
)
from xpgrad.loops import GateGrads, gate_inputs, gate_inputs_grad
from xpgrad.losses import (
    binary_cross_entropy_with_logits,
    binary_cross_entropy_with_logits_grad,
    softmax_cross_entropy,
    softmax_cross_entropy_grad,
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
from xpgrad.operations import GradGRUCellInputOp, GradLSTMCellInputOp, GradOperation, Validation
from xpgrad.rnn import (
    RNNCellForward,
    RNNCellGrads,
    RNNForward,
    RNNGrads,
    rnn,
    rnn_cell,
    rnn_cell_grad,
    rnn_grad,
)
from xpgrad.slstm import SLSTMForward, SLSTMGrads, slstm, slstm_grad
from xpgrad.softmax import (
    log_softmax,
    log_softmax_grad,
    softmax,
    softmax_grad,
)

__all__ = [
    *__all__,
    "AUGRUForward",
    "AUGRUGrads",
    "Cell",
    "ConvGrads",
    "ConvTransposeGrads",
    "GRUCellForward",
    "GRUCellGrads",
    "GRUDForward",
    "GRUDGrads",
    "GRUForward",
    "GRUGrads",
    "GateGrads",
    "GradGRUCellInputOp",
    "GradLSTMCellInputOp",
    "GradOperation",
    "LSTMCellForward",
    "LSTMCellGrads",
    "LSTMForward",
    "LSTMGrads",
    "LayerNormGRUForward",
    "LayerNormGRUGrads",
    "LayerNormLSTMForward",
    "LayerNormLSTMGrads",
    "RNNCellForward",
    "RNNCellGrads",
    "RNNForward",
    "RNNGrads",
    "SLSTMForward",
    "SLSTMGrads",
    "Validation",
    "__version__",
    "augru",
    "augru_grad",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy_with_logits_grad",
    "conv",
    "conv_grad",
    "conv_transpose",
    "conv_transpose_grad",
    "convert",
    "gate_inputs",
    "gate_inputs_grad",
    "gru",
    "gru_cell",
    "gru_cell_grad",
    "gru_d",
    "gru_d_grad",
    "gru_grad",
    "layer_norm_gru",
    "layer_norm_gru_grad",
    "layer_norm_lstm",
    "layer_norm_lstm_grad",
    "log_softmax",
    "log_softmax_grad",
    "lstm",
    "lstm_cell",
    "lstm_cell_grad",
    "lstm_grad",
    "rnn",
    "rnn_cell",
    "rnn_cell_grad",
    "rnn_grad",
    "slstm",
    "slstm_grad",
    "softmax",
    "softmax_cross_entropy",
    "softmax_cross_entropy_grad",
    "softmax_grad",
    "use_engine",
    "vjp",
]
__all__.sort()
