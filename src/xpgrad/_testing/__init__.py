"""The tools of `xpgrad.testing`, which share no code with the kernels; the core imports them from here."""

from xpgrad._testing.augru import augru_reference, augru_step
from xpgrad._testing.cells import cell_reference, check_cell, unit_reference
from xpgrad._testing.comparing import assert_close, dtype_name, relative_error, to_numpy
from xpgrad._testing.convolution import conv_grad_reference, conv_reference
from xpgrad._testing.differences import check_vjp, numerical_jacobian
from xpgrad._testing.gru import gru_grad_reference, gru_reference
from xpgrad._testing.gru_d import gru_d_reference
from xpgrad._testing.layer_norm import layer_norm_gru_reference, layer_norm_lstm_reference
from xpgrad._testing.lstm import lstm_grad_reference, lstm_reference
from xpgrad._testing.rnn import rnn_grad_reference, rnn_reference
from xpgrad._testing.slstm import slstm_reference, slstm_step

__all__ = [
    "assert_close",
    "augru_reference",
    "augru_step",
    "cell_reference",
    "check_cell",
    "check_vjp",
    "conv_grad_reference",
    "conv_reference",
    "dtype_name",
    "gru_d_reference",
    "gru_grad_reference",
    "gru_reference",
    "layer_norm_gru_reference",
    "layer_norm_lstm_reference",
    "lstm_grad_reference",
    "lstm_reference",
    "numerical_jacobian",
    "relative_error",
    "rnn_grad_reference",
    "rnn_reference",
    "slstm_reference",
    "slstm_step",
    "to_numpy",
    "unit_reference",
]
