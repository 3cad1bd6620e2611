# Written by tools/stubs.py from the functions' signatures. Do not edit.
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import jax
from numpy.typing import NDArray

from xpgrad_jax._ffi import why_not as why_plain

__all__ = [
    "augru",
    "binary_cross_entropy_with_logits",
    "celu",
    "conv",
    "conv_transpose",
    "elu",
    "gelu",
    "gru",
    "gru_cell",
    "gru_d",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "lstm",
    "lstm_cell",
    "mish",
    "prelu",
    "quick_gelu",
    "relu",
    "rnn",
    "rnn_cell",
    "scaled_tanh",
    "selu",
    "sigmoid",
    "silu",
    "slstm",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "softsign",
    "tanh",
    "thresholded_relu",
    "why_plain",
]

class _IntegerArray(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

ArrayLike: TypeAlias = jax.Array | NDArray[Any]
_Lengths: TypeAlias = Sequence[int] | _IntegerArray

def augru(
    X: ArrayLike,
    attention: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: ArrayLike | None = None,
    *,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]: ...
def binary_cross_entropy_with_logits(
    X: ArrayLike,
    targets: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    pos_weight: ArrayLike | None = None,
    reduction: str = "mean",
) -> jax.Array: ...
def celu(X: ArrayLike, *, alpha: float = 1.0) -> jax.Array: ...
def conv(
    X: ArrayLike,
    W: ArrayLike,
    B: ArrayLike | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
) -> jax.Array: ...
def conv_transpose(
    X: ArrayLike,
    W: ArrayLike,
    B: ArrayLike | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
) -> jax.Array: ...
def elu(X: ArrayLike, *, alpha: float = 1.0) -> jax.Array: ...
def gelu(X: ArrayLike, *, approximate: str = "none") -> jax.Array: ...
def gru(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: ArrayLike | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: ArrayLike | None = None,
    recurrent_mask: ArrayLike | None = None,
    zoneout_h: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]: ...
def gru_cell(
    X: ArrayLike,
    H: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
) -> jax.Array: ...
def gru_d(
    X: ArrayLike,
    mask: ArrayLike,
    delta: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    decay_x: ArrayLike,
    decay_h: ArrayLike,
    B: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: ArrayLike | None = None,
    *,
    direction: str = "forward",
    layout: int = 0,
    reset: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]: ...
def hard_sigmoid(X: ArrayLike, *, alpha: float = 0.2, beta: float = 0.5) -> jax.Array: ...
def hard_swish(X: ArrayLike) -> jax.Array: ...
def hard_tanh(X: ArrayLike, *, min_val: float = -1.0, max_val: float = 1.0) -> jax.Array: ...
def leaky_relu(X: ArrayLike, *, alpha: float = 0.01) -> jax.Array: ...
def log_sigmoid(X: ArrayLike) -> jax.Array: ...
def log_softmax(X: ArrayLike, *, axis: int = -1, flatten: bool = False) -> jax.Array: ...
def lstm(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: ArrayLike | None = None,
    initial_c: ArrayLike | None = None,
    P: ArrayLike | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: ArrayLike | None = None,
    S: ArrayLike | None = None,
    recurrent_mask: ArrayLike | None = None,
    zoneout_h: ArrayLike | None = None,
    zoneout_c: ArrayLike | None = None,
    peephole: str = "full",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...
def lstm_cell(
    X: ArrayLike,
    H: ArrayLike,
    C: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    P: ArrayLike | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    peephole: str = "full",
) -> tuple[jax.Array, jax.Array]: ...
def mish(X: ArrayLike) -> jax.Array: ...
def prelu(X: ArrayLike, slope: ArrayLike) -> jax.Array: ...
def quick_gelu(X: ArrayLike, *, alpha: float = 1.702) -> jax.Array: ...
def relu(X: ArrayLike) -> jax.Array: ...
def rnn(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: ArrayLike | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]: ...
def rnn_cell(
    X: ArrayLike,
    H: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
) -> jax.Array: ...
def scaled_tanh(X: ArrayLike, *, alpha: float = 1.0, beta: float = 1.0) -> jax.Array: ...
def selu(
    X: ArrayLike, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> jax.Array: ...
def sigmoid(X: ArrayLike) -> jax.Array: ...
def silu(X: ArrayLike) -> jax.Array: ...
def slstm(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: ArrayLike | None = None,
    initial_c: ArrayLike | None = None,
    initial_n: ArrayLike | None = None,
    initial_m: ArrayLike | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]: ...
def softmax(X: ArrayLike, *, axis: int = -1, flatten: bool = False) -> jax.Array: ...
def softmax_cross_entropy(
    X: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> jax.Array: ...
def softplus(X: ArrayLike, *, beta: float = 1.0, threshold: float | None = None) -> jax.Array: ...
def softsign(X: ArrayLike) -> jax.Array: ...
def tanh(X: ArrayLike) -> jax.Array: ...
def thresholded_relu(X: ArrayLike, *, alpha: float = 1.0) -> jax.Array: ...
