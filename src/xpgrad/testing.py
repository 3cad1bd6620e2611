"""Tools to check gradient kernels: finite differences, naive references, comparisons.

Nothing here is fast and nothing here shares code with the kernels: each function is the shortest
transcription of a definition that was found, so that it can be believed by reading it.

- `check_vjp` holds a gradient rule against central differences.
- `lstm_reference` and `lstm_grad_reference` are the LSTM and its backward, one sample and one step at a time;
  `gru_reference` and `gru_grad_reference` the GRU and its own.
- `slstm_reference`, `augru_reference` and `gru_d_reference` are these operators, without a backward.
- `conv_reference` and `conv_grad_reference` are the direct sums of a convolution, position by position;
  with X and dY exchanged they are those of a transposed one, too.
- `vectors` makes cases for the tests of other people's kernels.
- `cell_reference` runs the plain formula of a `xpgrad.Cell`, and `check_cell` holds the cell against it.
- `assert_close` and `relative_error` compare arrays of any namespace.
"""

from xpgrad._cases.vectors import vectors
from xpgrad._testing import (
    assert_close,
    augru_reference,
    cell_reference,
    check_cell,
    check_vjp,
    conv_grad_reference,
    conv_reference,
    gru_d_reference,
    gru_grad_reference,
    gru_reference,
    layer_norm_gru_reference,
    layer_norm_lstm_reference,
    lstm_grad_reference,
    lstm_reference,
    numerical_jacobian,
    relative_error,
    rnn_grad_reference,
    rnn_reference,
    slstm_reference,
    to_numpy,
)
from xpgrad._testing import dtype_name as dtype_name

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
