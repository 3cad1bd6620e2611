"""Tools to check gradient kernels: finite differences, naive references, comparisons.

These functions are slow and share no code with the kernels. Each is a short transcription of a definition,
which a reader can verify.

- `check_vjp` compares a gradient rule with central differences.
- `lstm_reference` and `lstm_grad_reference` are the LSTM and its backward, one sample and one step at a time;
  `gru_reference`, `rnn_reference` and their `grad` functions are the GRU's and the RNN's.
- `slstm_reference`, `augru_reference`, `gru_d_reference`, `layer_norm_lstm_reference` and
  `layer_norm_gru_reference` are forwards only.
- `conv_reference` and `conv_grad_reference` are the direct sums of a convolution, position by position. With
  X and dY exchanged they are a transposed convolution's sums.
- `vectors` makes cases for the tests of other people's kernels.
- `cell_reference` runs the plain formula of a `xpgrad.Cell`, and `check_cell` compares the cell with it.
- `assert_close` and `relative_error` compare arrays of any namespace.
"""

from xpgrad._cases.vectors import vectors
from xpgrad._testing.augru import augru_reference
from xpgrad._testing.cells import cell_reference, check_cell
from xpgrad._testing.comparing import assert_close, relative_error, to_numpy
from xpgrad._testing.comparing import dtype_name as dtype_name
from xpgrad._testing.convolution import conv_grad_reference, conv_reference
from xpgrad._testing.differences import check_vjp, numerical_jacobian
from xpgrad._testing.gru import gru_grad_reference, gru_reference
from xpgrad._testing.gru_d import gru_d_reference
from xpgrad._testing.layer_norm import layer_norm_gru_reference, layer_norm_lstm_reference
from xpgrad._testing.lstm import lstm_grad_reference, lstm_reference
from xpgrad._testing.rnn import rnn_grad_reference, rnn_reference
from xpgrad._testing.slstm import slstm_reference

__all__ = [
    "assert_close",
    "augru_reference",
    "cell_reference",
    "check_cell",
    "check_vjp",
    "conv_grad_reference",
    "conv_reference",
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
    "to_numpy",
    "vectors",
]
