"""Gradient (backward-pass) kernels, written once against the Python array API standard."""

from xpgrad._version import __version__
from xpgrad._vjp import vjp
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
from xpgrad.loops import GateGrads, gate_inputs, gate_inputs_grad
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

__all__ = [
    "ConvGrads",
    "ConvTransposeGrads",
    "GRUCellForward",
    "GRUCellGrads",
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
    "Validation",
    "__version__",
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
    "gru_grad",
    "lstm",
    "lstm_cell",
    "lstm_cell_grad",
    "lstm_grad",
    "use_engine",
    "vjp",
]
