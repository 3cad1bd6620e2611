# Written by tools/stubs.py from the functions' signatures. Do not edit.
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from xpgrad._version import __version__ as __version__
from xpgrad.cells import Cell as Cell
from xpgrad.engine import use_engine as use_engine
from xpgrad.operations import GradGRUCellInputOp as GradGRUCellInputOp
from xpgrad.operations import GradLSTMCellInputOp as GradLSTMCellInputOp
from xpgrad.operations import GradOperation as GradOperation
from xpgrad.operations import Validation as Validation

class _Array(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

class _IntegerArray(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

_T = TypeVar("_T", default=Any)
_S = TypeVar("_S", bound=np.generic)
_A = TypeVar("_A", bound=_Array)
_Lengths: TypeAlias = Sequence[int] | _IntegerArray
_MaybeNone: TypeAlias = Any

__all__ = [
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
    "PReLUGrads",
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
    "celu",
    "celu_grad",
    "conv",
    "conv_grad",
    "conv_transpose",
    "conv_transpose_grad",
    "convert",
    "elu",
    "elu_grad",
    "gate_inputs",
    "gate_inputs_grad",
    "gelu",
    "gelu_grad",
    "gru",
    "gru_cell",
    "gru_cell_grad",
    "gru_d",
    "gru_d_grad",
    "gru_grad",
    "hard_sigmoid",
    "hard_sigmoid_grad",
    "hard_swish",
    "hard_swish_grad",
    "hard_tanh",
    "hard_tanh_grad",
    "layer_norm_gru",
    "layer_norm_gru_grad",
    "layer_norm_lstm",
    "layer_norm_lstm_grad",
    "leaky_relu",
    "leaky_relu_grad",
    "log_sigmoid",
    "log_sigmoid_grad",
    "log_softmax",
    "log_softmax_grad",
    "lstm",
    "lstm_cell",
    "lstm_cell_grad",
    "lstm_grad",
    "mish",
    "mish_grad",
    "prelu",
    "prelu_grad",
    "quick_gelu",
    "quick_gelu_grad",
    "relu",
    "relu_grad",
    "rnn",
    "rnn_cell",
    "rnn_cell_grad",
    "rnn_grad",
    "scaled_tanh",
    "scaled_tanh_grad",
    "selu",
    "selu_grad",
    "sigmoid",
    "sigmoid_grad",
    "silu",
    "silu_grad",
    "slstm",
    "slstm_grad",
    "softmax",
    "softmax_cross_entropy",
    "softmax_cross_entropy_grad",
    "softmax_grad",
    "softplus",
    "softplus_grad",
    "softsign",
    "softsign_grad",
    "tanh",
    "tanh_grad",
    "thresholded_relu",
    "thresholded_relu_grad",
    "use_engine",
    "vjp",
]

class AUGRUForward(NamedTuple, Generic[_T]):
    H_all: _T
    H_t: _T
    saved: _T

class AUGRUGrads(NamedTuple, Generic[_T]):
    dX: _T
    dattention: _T
    dW: _T
    dR: _T
    dB: _T
    dH0: _T

class ConvGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dB: _T

class ConvTransposeGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dB: _T

class GRUCellForward(NamedTuple, Generic[_T]):
    H_next: _T
    zrh: _T

class GRUCellGrads(NamedTuple, Generic[_T]):
    dX: _T
    dH: _T
    dW: _T
    dR: _T
    dB: _T

class GRUDForward(NamedTuple, Generic[_T]):
    H_all: _T
    H_t: _T
    filled: _T
    last: _T
    saved_x: _T
    saved: _T

class GRUDGrads(NamedTuple, Generic[_T]):
    dX: _T
    ddelta: _T
    dW: _T
    dR: _T
    ddecay_x: _T
    ddecay_h: _T
    dB: _T
    dmean: _T
    dH0: _T

class GRUForward(NamedTuple, Generic[_T]):
    H_all: _T
    H_t: _T
    zrh: _T

class GRUGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dR: _T
    dB: _T
    dH0: _T

class GateGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dR: _T
    dB: _T

class LSTMCellForward(NamedTuple, Generic[_T]):
    H_next: _T
    C_next: _T
    iofc: _T

class LSTMCellGrads(NamedTuple, Generic[_T]):
    dX: _T
    dH: _T
    dC: _T
    dW: _T
    dR: _T
    dB: _T
    dP: _T | _MaybeNone

class LSTMForward(NamedTuple, Generic[_T]):
    H_all: _T
    H_t: _T
    C_t: _T
    C_all: _T
    iofc: _T

class LSTMGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dR: _T
    dB: _T
    dH0: _T
    dC0: _T
    dP: _T | _MaybeNone
    dS: _T | _MaybeNone

class LayerNormGRUForward(NamedTuple, Generic[_T]):
    H_all: _T
    H_t: _T
    saved: _T
    means: _T

class LayerNormGRUGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dR: _T
    dB: _T
    dH0: _T
    dgamma: _T
    dbeta: _T

class LayerNormLSTMForward(NamedTuple, Generic[_T]):
    H_all: _T
    H_t: _T
    C_t: _T
    C_all: _T
    saved: _T
    means: _T

class LayerNormLSTMGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dR: _T
    dB: _T
    dH0: _T
    dC0: _T
    dgamma: _T
    dbeta: _T
    dgamma_c: _T
    dbeta_c: _T

class PReLUGrads(NamedTuple, Generic[_T]):
    dX: _T
    dslope: _T

class RNNCellForward(NamedTuple, Generic[_T]):
    H_next: _T

class RNNCellGrads(NamedTuple, Generic[_T]):
    dX: _T
    dH: _T
    dW: _T
    dR: _T
    dB: _T

class RNNForward(NamedTuple, Generic[_T]):
    H_all: _T
    H_t: _T

class RNNGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dR: _T
    dB: _T
    dH0: _T

class SLSTMForward(NamedTuple, Generic[_T]):
    H_all: _T
    H_t: _T
    C_t: _T
    N_t: _T
    M_t: _T
    C_all: _T
    N_all: _T
    M_all: _T
    saved: _T

class SLSTMGrads(NamedTuple, Generic[_T]):
    dX: _T
    dW: _T
    dR: _T
    dB: _T
    dH0: _T
    dC0: _T
    dN0: _T
    dM0: _T

@overload
def augru(
    X: NDArray[_S],
    attention: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    *,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
) -> AUGRUForward[NDArray[_S]]: ...
@overload
def augru(
    X: _A,
    attention: _A,
    W: _A,
    R: _A,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    *,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
) -> AUGRUForward[_A]: ...
@overload
def augru_grad(
    X: NDArray[_S],
    attention: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    saved: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> AUGRUGrads[NDArray[_S]]: ...
@overload
def augru_grad(
    X: NDArray[_S],
    attention: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    saved: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> AUGRUGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def augru_grad(
    X: _A,
    attention: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    saved: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> AUGRUGrads[_A]: ...
@overload
def augru_grad(
    X: _A,
    attention: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    saved: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> AUGRUGrads[_A | _MaybeNone]: ...
@overload
def binary_cross_entropy_with_logits(
    X: NDArray[_S],
    targets: NDArray[_S],
    weight: NDArray[_S] | None = None,
    *,
    pos_weight: NDArray[_S] | None = None,
    reduction: str = "mean",
    out: NDArray[_S] | None = None,
) -> NDArray[_S]: ...
@overload
def binary_cross_entropy_with_logits(
    X: _A,
    targets: _A,
    weight: _A | None = None,
    *,
    pos_weight: _A | None = None,
    reduction: str = "mean",
    out: _A | None = None,
) -> _A: ...
@overload
def binary_cross_entropy_with_logits_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    targets: NDArray[_S],
    weight: NDArray[_S] | None = None,
    *,
    pos_weight: NDArray[_S] | None = None,
    reduction: str = "mean",
    out: NDArray[_S] | None = None,
) -> NDArray[_S]: ...
@overload
def binary_cross_entropy_with_logits_grad(
    dY: _A,
    X: _A,
    targets: _A,
    weight: _A | None = None,
    *,
    pos_weight: _A | None = None,
    reduction: str = "mean",
    out: _A | None = None,
) -> _A: ...
@overload
def celu(X: NDArray[_S], *, alpha: float = 1.0, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def celu(X: _A, *, alpha: float = 1.0, out: _A | None = None) -> _A: ...
@overload
def celu_grad(
    dY: NDArray[_S], X: NDArray[_S], *, alpha: float = 1.0, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def celu_grad(dY: _A, X: _A, *, alpha: float = 1.0, out: _A | None = None) -> _A: ...
@overload
def conv(
    X: NDArray[_S],
    W: NDArray[_S],
    B: NDArray[_S] | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
) -> NDArray[_S]: ...
@overload
def conv(
    X: _A,
    W: _A,
    B: _A | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
) -> _A: ...
@overload
def conv_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    W: NDArray[_S],
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> ConvGrads[NDArray[_S]]: ...
@overload
def conv_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    W: NDArray[_S],
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> ConvGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def conv_grad(
    dY: _A,
    X: _A,
    W: _A,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> ConvGrads[_A]: ...
@overload
def conv_grad(
    dY: _A,
    X: _A,
    W: _A,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> ConvGrads[_A | _MaybeNone]: ...
@overload
def conv_transpose(
    X: NDArray[_S],
    W: NDArray[_S],
    B: NDArray[_S] | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
) -> NDArray[_S]: ...
@overload
def conv_transpose(
    X: _A,
    W: _A,
    B: _A | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
) -> _A: ...
@overload
def conv_transpose_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    W: NDArray[_S],
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> ConvTransposeGrads[NDArray[_S]]: ...
@overload
def conv_transpose_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    W: NDArray[_S],
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> ConvTransposeGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def conv_transpose_grad(
    dY: _A,
    X: _A,
    W: _A,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> ConvTransposeGrads[_A]: ...
@overload
def conv_transpose_grad(
    dY: _A,
    X: _A,
    W: _A,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    method: str = "auto",
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> ConvTransposeGrads[_A | _MaybeNone]: ...
@overload
def elu(X: NDArray[_S], *, alpha: float = 1.0, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def elu(X: _A, *, alpha: float = 1.0, out: _A | None = None) -> _A: ...
@overload
def elu_grad(
    dY: NDArray[_S], X: NDArray[_S], *, alpha: float = 1.0, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def elu_grad(dY: _A, X: _A, *, alpha: float = 1.0, out: _A | None = None) -> _A: ...
@overload
def gate_inputs(X: NDArray[_S], W: NDArray[_S], B: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def gate_inputs(X: _A, W: _A, B: _A | None = None) -> _A: ...
@overload
def gate_inputs_grad(
    dZ: NDArray[_S],
    X: NDArray[_S],
    W: NDArray[_S],
    H_all: NDArray[_S],
    initial_h: NDArray[_S] | None = None,
    *,
    wrt: None = None,
) -> GateGrads[NDArray[_S]]: ...
@overload
def gate_inputs_grad(
    dZ: NDArray[_S],
    X: NDArray[_S],
    W: NDArray[_S],
    H_all: NDArray[_S],
    initial_h: NDArray[_S] | None = None,
    *,
    wrt: Iterable[str],
) -> GateGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def gate_inputs_grad(
    dZ: _A, X: _A, W: _A, H_all: _A, initial_h: _A | None = None, *, wrt: None = None
) -> GateGrads[_A]: ...
@overload
def gate_inputs_grad(
    dZ: _A, X: _A, W: _A, H_all: _A, initial_h: _A | None = None, *, wrt: Iterable[str]
) -> GateGrads[_A | _MaybeNone]: ...
@overload
def gelu(X: NDArray[_S], *, approximate: str = "none", out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def gelu(X: _A, *, approximate: str = "none", out: _A | None = None) -> _A: ...
@overload
def gelu_grad(
    dY: NDArray[_S], X: NDArray[_S], *, approximate: str = "none", out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def gelu_grad(dY: _A, X: _A, *, approximate: str = "none", out: _A | None = None) -> _A: ...
@overload
def gru(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    recurrent_mask: NDArray[_S] | None = None,
    zoneout_h: NDArray[_S] | None = None,
) -> GRUForward[NDArray[_S]]: ...
@overload
def gru(
    X: _A,
    W: _A,
    R: _A,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    recurrent_mask: _A | None = None,
    zoneout_h: _A | None = None,
) -> GRUForward[_A]: ...
@overload
def gru_cell(
    X: NDArray[_S],
    H: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S] | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
) -> GRUCellForward[NDArray[_S]]: ...
@overload
def gru_cell(
    X: _A,
    H: _A,
    W: _A,
    R: _A,
    B: _A | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
) -> GRUCellForward[_A]: ...
@overload
def gru_cell_grad(
    X: NDArray[_S],
    H: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    zrh: NDArray[_S],
    grad_H: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> GRUCellGrads[NDArray[_S]]: ...
@overload
def gru_cell_grad(
    X: NDArray[_S],
    H: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    zrh: NDArray[_S],
    grad_H: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> GRUCellGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def gru_cell_grad(
    X: _A,
    H: _A,
    W: _A,
    R: _A,
    *,
    zrh: _A,
    grad_H: _A | None = None,
    B: _A | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> GRUCellGrads[_A]: ...
@overload
def gru_cell_grad(
    X: _A,
    H: _A,
    W: _A,
    R: _A,
    *,
    zrh: _A,
    grad_H: _A | None = None,
    B: _A | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> GRUCellGrads[_A | _MaybeNone]: ...
@overload
def gru_d(
    X: NDArray[_S],
    mask: NDArray[_S],
    delta: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    decay_x: NDArray[_S],
    decay_h: NDArray[_S],
    B: NDArray[_S] | None = None,
    mean: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    *,
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
) -> GRUDForward[NDArray[_S]]: ...
@overload
def gru_d(
    X: _A,
    mask: _A,
    delta: _A,
    W: _A,
    R: _A,
    decay_x: _A,
    decay_h: _A,
    B: _A | None = None,
    mean: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    *,
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
) -> GRUDForward[_A]: ...
@overload
def gru_d_grad(
    X: NDArray[_S],
    mask: NDArray[_S],
    delta: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    decay_x: NDArray[_S],
    decay_h: NDArray[_S],
    *,
    H_all: NDArray[_S],
    filled: NDArray[_S],
    last: NDArray[_S],
    saved_x: NDArray[_S],
    saved: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    mean: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> GRUDGrads[NDArray[_S]]: ...
@overload
def gru_d_grad(
    X: NDArray[_S],
    mask: NDArray[_S],
    delta: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    decay_x: NDArray[_S],
    decay_h: NDArray[_S],
    *,
    H_all: NDArray[_S],
    filled: NDArray[_S],
    last: NDArray[_S],
    saved_x: NDArray[_S],
    saved: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    mean: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> GRUDGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def gru_d_grad(
    X: _A,
    mask: _A,
    delta: _A,
    W: _A,
    R: _A,
    decay_x: _A,
    decay_h: _A,
    *,
    H_all: _A,
    filled: _A,
    last: _A,
    saved_x: _A,
    saved: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    mean: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> GRUDGrads[_A]: ...
@overload
def gru_d_grad(
    X: _A,
    mask: _A,
    delta: _A,
    W: _A,
    R: _A,
    decay_x: _A,
    decay_h: _A,
    *,
    H_all: _A,
    filled: _A,
    last: _A,
    saved_x: _A,
    saved: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    mean: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> GRUDGrads[_A | _MaybeNone]: ...
@overload
def gru_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    zrh: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    recurrent_mask: NDArray[_S] | None = None,
    zoneout_h: NDArray[_S] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> GRUGrads[NDArray[_S]]: ...
@overload
def gru_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    zrh: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    recurrent_mask: NDArray[_S] | None = None,
    zoneout_h: NDArray[_S] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> GRUGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def gru_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    zrh: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    recurrent_mask: _A | None = None,
    zoneout_h: _A | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> GRUGrads[_A]: ...
@overload
def gru_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    zrh: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    recurrent_mask: _A | None = None,
    zoneout_h: _A | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> GRUGrads[_A | _MaybeNone]: ...
@overload
def hard_sigmoid(
    X: NDArray[_S], *, alpha: float = 0.2, beta: float = 0.5, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def hard_sigmoid(X: _A, *, alpha: float = 0.2, beta: float = 0.5, out: _A | None = None) -> _A: ...
@overload
def hard_sigmoid_grad(
    dY: NDArray[_S], X: NDArray[_S], *, alpha: float = 0.2, beta: float = 0.5, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def hard_sigmoid_grad(
    dY: _A, X: _A, *, alpha: float = 0.2, beta: float = 0.5, out: _A | None = None
) -> _A: ...
@overload
def hard_swish(X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def hard_swish(X: _A, *, out: _A | None = None) -> _A: ...
@overload
def hard_swish_grad(dY: NDArray[_S], X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def hard_swish_grad(dY: _A, X: _A, *, out: _A | None = None) -> _A: ...
@overload
def hard_tanh(
    X: NDArray[_S], *, min_val: float = -1.0, max_val: float = 1.0, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def hard_tanh(X: _A, *, min_val: float = -1.0, max_val: float = 1.0, out: _A | None = None) -> _A: ...
@overload
def hard_tanh_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    *,
    min_val: float = -1.0,
    max_val: float = 1.0,
    out: NDArray[_S] | None = None,
) -> NDArray[_S]: ...
@overload
def hard_tanh_grad(
    dY: _A, X: _A, *, min_val: float = -1.0, max_val: float = 1.0, out: _A | None = None
) -> _A: ...
@overload
def layer_norm_gru(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S],
    gamma: NDArray[_S],
    beta: NDArray[_S],
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    *,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
) -> LayerNormGRUForward[NDArray[_S]]: ...
@overload
def layer_norm_gru(
    X: _A,
    W: _A,
    R: _A,
    B: _A,
    gamma: _A,
    beta: _A,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    *,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
) -> LayerNormGRUForward[_A]: ...
@overload
def layer_norm_gru_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    gamma: NDArray[_S],
    beta: NDArray[_S],
    H_all: NDArray[_S],
    saved: NDArray[_S],
    means: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> LayerNormGRUGrads[NDArray[_S]]: ...
@overload
def layer_norm_gru_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    gamma: NDArray[_S],
    beta: NDArray[_S],
    H_all: NDArray[_S],
    saved: NDArray[_S],
    means: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> LayerNormGRUGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def layer_norm_gru_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    gamma: _A,
    beta: _A,
    H_all: _A,
    saved: _A,
    means: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> LayerNormGRUGrads[_A]: ...
@overload
def layer_norm_gru_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    gamma: _A,
    beta: _A,
    H_all: _A,
    saved: _A,
    means: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> LayerNormGRUGrads[_A | _MaybeNone]: ...
@overload
def layer_norm_lstm(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S],
    gamma: NDArray[_S],
    beta: NDArray[_S],
    gamma_c: NDArray[_S],
    beta_c: NDArray[_S],
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    *,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
) -> LayerNormLSTMForward[NDArray[_S]]: ...
@overload
def layer_norm_lstm(
    X: _A,
    W: _A,
    R: _A,
    B: _A,
    gamma: _A,
    beta: _A,
    gamma_c: _A,
    beta_c: _A,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    *,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
) -> LayerNormLSTMForward[_A]: ...
@overload
def layer_norm_lstm_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    gamma: NDArray[_S],
    beta: NDArray[_S],
    gamma_c: NDArray[_S],
    beta_c: NDArray[_S],
    H_all: NDArray[_S],
    C_all: NDArray[_S],
    saved: NDArray[_S],
    means: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_C_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    grad_C_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> LayerNormLSTMGrads[NDArray[_S]]: ...
@overload
def layer_norm_lstm_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    gamma: NDArray[_S],
    beta: NDArray[_S],
    gamma_c: NDArray[_S],
    beta_c: NDArray[_S],
    H_all: NDArray[_S],
    C_all: NDArray[_S],
    saved: NDArray[_S],
    means: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_C_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    grad_C_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> LayerNormLSTMGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def layer_norm_lstm_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    gamma: _A,
    beta: _A,
    gamma_c: _A,
    beta_c: _A,
    H_all: _A,
    C_all: _A,
    saved: _A,
    means: _A,
    grad_H_all: _A | None = None,
    grad_C_all: _A | None = None,
    grad_H_t: _A | None = None,
    grad_C_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> LayerNormLSTMGrads[_A]: ...
@overload
def layer_norm_lstm_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    gamma: _A,
    beta: _A,
    gamma_c: _A,
    beta_c: _A,
    H_all: _A,
    C_all: _A,
    saved: _A,
    means: _A,
    grad_H_all: _A | None = None,
    grad_C_all: _A | None = None,
    grad_H_t: _A | None = None,
    grad_C_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    epsilon: float = 1e-05,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> LayerNormLSTMGrads[_A | _MaybeNone]: ...
@overload
def leaky_relu(X: NDArray[_S], *, alpha: float = 0.01, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def leaky_relu(X: _A, *, alpha: float = 0.01, out: _A | None = None) -> _A: ...
@overload
def leaky_relu_grad(
    dY: NDArray[_S], Y: NDArray[_S], *, alpha: float = 0.01, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def leaky_relu_grad(dY: _A, Y: _A, *, alpha: float = 0.01, out: _A | None = None) -> _A: ...
@overload
def log_sigmoid(X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def log_sigmoid(X: _A, *, out: _A | None = None) -> _A: ...
@overload
def log_sigmoid_grad(dY: NDArray[_S], X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def log_sigmoid_grad(dY: _A, X: _A, *, out: _A | None = None) -> _A: ...
@overload
def log_softmax(
    X: NDArray[_S], *, axis: int = -1, flatten: bool = False, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def log_softmax(X: _A, *, axis: int = -1, flatten: bool = False, out: _A | None = None) -> _A: ...
@overload
def log_softmax_grad(
    dY: NDArray[_S], Y: NDArray[_S], *, axis: int = -1, flatten: bool = False, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def log_softmax_grad(
    dY: _A, Y: _A, *, axis: int = -1, flatten: bool = False, out: _A | None = None
) -> _A: ...
@overload
def lstm(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    P: NDArray[_S] | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    S: NDArray[_S] | None = None,
    recurrent_mask: NDArray[_S] | None = None,
    zoneout_h: NDArray[_S] | None = None,
    zoneout_c: NDArray[_S] | None = None,
) -> LSTMForward[NDArray[_S]]: ...
@overload
def lstm(
    X: _A,
    W: _A,
    R: _A,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    P: _A | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    S: _A | None = None,
    recurrent_mask: _A | None = None,
    zoneout_h: _A | None = None,
    zoneout_c: _A | None = None,
) -> LSTMForward[_A]: ...
@overload
def lstm_cell(
    X: NDArray[_S],
    H: NDArray[_S],
    C: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S] | None = None,
    P: NDArray[_S] | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
) -> LSTMCellForward[NDArray[_S]]: ...
@overload
def lstm_cell(
    X: _A,
    H: _A,
    C: _A,
    W: _A,
    R: _A,
    B: _A | None = None,
    P: _A | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
) -> LSTMCellForward[_A]: ...
@overload
def lstm_cell_grad(
    X: NDArray[_S],
    H: NDArray[_S],
    C: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    C_next: NDArray[_S],
    iofc: NDArray[_S],
    grad_H: NDArray[_S] | None = None,
    grad_C: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    P: NDArray[_S] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> LSTMCellGrads[NDArray[_S]]: ...
@overload
def lstm_cell_grad(
    X: NDArray[_S],
    H: NDArray[_S],
    C: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    C_next: NDArray[_S],
    iofc: NDArray[_S],
    grad_H: NDArray[_S] | None = None,
    grad_C: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    P: NDArray[_S] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> LSTMCellGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def lstm_cell_grad(
    X: _A,
    H: _A,
    C: _A,
    W: _A,
    R: _A,
    *,
    C_next: _A,
    iofc: _A,
    grad_H: _A | None = None,
    grad_C: _A | None = None,
    B: _A | None = None,
    P: _A | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> LSTMCellGrads[_A]: ...
@overload
def lstm_cell_grad(
    X: _A,
    H: _A,
    C: _A,
    W: _A,
    R: _A,
    *,
    C_next: _A,
    iofc: _A,
    grad_H: _A | None = None,
    grad_C: _A | None = None,
    B: _A | None = None,
    P: _A | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> LSTMCellGrads[_A | _MaybeNone]: ...
@overload
def lstm_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    C_all: NDArray[_S],
    iofc: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    grad_C_t: NDArray[_S] | None = None,
    grad_C_all: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    P: NDArray[_S] | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    S: NDArray[_S] | None = None,
    recurrent_mask: NDArray[_S] | None = None,
    zoneout_h: NDArray[_S] | None = None,
    zoneout_c: NDArray[_S] | None = None,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> LSTMGrads[NDArray[_S]]: ...
@overload
def lstm_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    C_all: NDArray[_S],
    iofc: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    grad_C_t: NDArray[_S] | None = None,
    grad_C_all: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    P: NDArray[_S] | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    S: NDArray[_S] | None = None,
    recurrent_mask: NDArray[_S] | None = None,
    zoneout_h: NDArray[_S] | None = None,
    zoneout_c: NDArray[_S] | None = None,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> LSTMGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def lstm_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    C_all: _A,
    iofc: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    grad_C_t: _A | None = None,
    grad_C_all: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    P: _A | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    S: _A | None = None,
    recurrent_mask: _A | None = None,
    zoneout_h: _A | None = None,
    zoneout_c: _A | None = None,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> LSTMGrads[_A]: ...
@overload
def lstm_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    C_all: _A,
    iofc: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    grad_C_t: _A | None = None,
    grad_C_all: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    P: _A | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    S: _A | None = None,
    recurrent_mask: _A | None = None,
    zoneout_h: _A | None = None,
    zoneout_c: _A | None = None,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> LSTMGrads[_A | _MaybeNone]: ...
@overload
def mish(X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def mish(X: _A, *, out: _A | None = None) -> _A: ...
@overload
def mish_grad(dY: NDArray[_S], X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def mish_grad(dY: _A, X: _A, *, out: _A | None = None) -> _A: ...
@overload
def prelu(X: NDArray[_S], slope: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def prelu(X: _A, slope: _A, *, out: _A | None = None) -> _A: ...
@overload
def prelu_grad(
    dY: NDArray[_S], X: NDArray[_S], slope: NDArray[_S], *, wrt: None = None, out: NDArray[_S] | None = None
) -> PReLUGrads[NDArray[_S]]: ...
@overload
def prelu_grad(
    dY: NDArray[_S], X: NDArray[_S], slope: NDArray[_S], *, wrt: Iterable[str], out: NDArray[_S] | None = None
) -> PReLUGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def prelu_grad(dY: _A, X: _A, slope: _A, *, wrt: None = None, out: _A | None = None) -> PReLUGrads[_A]: ...
@overload
def prelu_grad(
    dY: _A, X: _A, slope: _A, *, wrt: Iterable[str], out: _A | None = None
) -> PReLUGrads[_A | _MaybeNone]: ...
@overload
def quick_gelu(X: NDArray[_S], *, alpha: float = 1.702, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def quick_gelu(X: _A, *, alpha: float = 1.702, out: _A | None = None) -> _A: ...
@overload
def quick_gelu_grad(
    dY: NDArray[_S], X: NDArray[_S], *, alpha: float = 1.702, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def quick_gelu_grad(dY: _A, X: _A, *, alpha: float = 1.702, out: _A | None = None) -> _A: ...
@overload
def relu(X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def relu(X: _A, *, out: _A | None = None) -> _A: ...
@overload
def relu_grad(dY: NDArray[_S], X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def relu_grad(dY: _A, X: _A, *, out: _A | None = None) -> _A: ...
@overload
def rnn(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
) -> RNNForward[NDArray[_S]]: ...
@overload
def rnn(
    X: _A,
    W: _A,
    R: _A,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
) -> RNNForward[_A]: ...
@overload
def rnn_cell(
    X: NDArray[_S],
    H: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S] | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
) -> RNNCellForward[NDArray[_S]]: ...
@overload
def rnn_cell(
    X: _A,
    H: _A,
    W: _A,
    R: _A,
    B: _A | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
) -> RNNCellForward[_A]: ...
@overload
def rnn_cell_grad(
    X: NDArray[_S],
    H: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_next: NDArray[_S],
    grad_H: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> RNNCellGrads[NDArray[_S]]: ...
@overload
def rnn_cell_grad(
    X: NDArray[_S],
    H: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_next: NDArray[_S],
    grad_H: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> RNNCellGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def rnn_cell_grad(
    X: _A,
    H: _A,
    W: _A,
    R: _A,
    *,
    H_next: _A,
    grad_H: _A | None = None,
    B: _A | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> RNNCellGrads[_A]: ...
@overload
def rnn_cell_grad(
    X: _A,
    H: _A,
    W: _A,
    R: _A,
    *,
    H_next: _A,
    grad_H: _A | None = None,
    B: _A | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> RNNCellGrads[_A | _MaybeNone]: ...
@overload
def rnn_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> RNNGrads[NDArray[_S]]: ...
@overload
def rnn_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> RNNGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def rnn_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> RNNGrads[_A]: ...
@overload
def rnn_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> RNNGrads[_A | _MaybeNone]: ...
@overload
def scaled_tanh(
    X: NDArray[_S], *, alpha: float = 1.0, beta: float = 1.0, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def scaled_tanh(X: _A, *, alpha: float = 1.0, beta: float = 1.0, out: _A | None = None) -> _A: ...
@overload
def scaled_tanh_grad(
    dY: NDArray[_S], X: NDArray[_S], *, alpha: float = 1.0, beta: float = 1.0, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def scaled_tanh_grad(
    dY: _A, X: _A, *, alpha: float = 1.0, beta: float = 1.0, out: _A | None = None
) -> _A: ...
@overload
def selu(
    X: NDArray[_S],
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    out: NDArray[_S] | None = None,
) -> NDArray[_S]: ...
@overload
def selu(
    X: _A, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323, out: _A | None = None
) -> _A: ...
@overload
def selu_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    out: NDArray[_S] | None = None,
) -> NDArray[_S]: ...
@overload
def selu_grad(
    dY: _A,
    X: _A,
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    out: _A | None = None,
) -> _A: ...
@overload
def sigmoid(X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def sigmoid(X: _A, *, out: _A | None = None) -> _A: ...
@overload
def sigmoid_grad(dY: NDArray[_S], Y: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def sigmoid_grad(dY: _A, Y: _A, *, out: _A | None = None) -> _A: ...
@overload
def silu(X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def silu(X: _A, *, out: _A | None = None) -> _A: ...
@overload
def silu_grad(dY: NDArray[_S], X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def silu_grad(dY: _A, X: _A, *, out: _A | None = None) -> _A: ...
@overload
def slstm(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    initial_n: NDArray[_S] | None = None,
    initial_m: NDArray[_S] | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
) -> SLSTMForward[NDArray[_S]]: ...
@overload
def slstm(
    X: _A,
    W: _A,
    R: _A,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    initial_n: _A | None = None,
    initial_m: _A | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
) -> SLSTMForward[_A]: ...
@overload
def slstm_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    C_all: NDArray[_S],
    N_all: NDArray[_S],
    M_all: NDArray[_S],
    saved: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    grad_C_t: NDArray[_S] | None = None,
    grad_N_t: NDArray[_S] | None = None,
    grad_M_t: NDArray[_S] | None = None,
    grad_C_all: NDArray[_S] | None = None,
    grad_N_all: NDArray[_S] | None = None,
    grad_M_all: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    initial_n: NDArray[_S] | None = None,
    initial_m: NDArray[_S] | None = None,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: None = None,
) -> SLSTMGrads[NDArray[_S]]: ...
@overload
def slstm_grad(
    X: NDArray[_S],
    W: NDArray[_S],
    R: NDArray[_S],
    *,
    H_all: NDArray[_S],
    C_all: NDArray[_S],
    N_all: NDArray[_S],
    M_all: NDArray[_S],
    saved: NDArray[_S],
    grad_H_all: NDArray[_S] | None = None,
    grad_H_t: NDArray[_S] | None = None,
    grad_C_t: NDArray[_S] | None = None,
    grad_N_t: NDArray[_S] | None = None,
    grad_M_t: NDArray[_S] | None = None,
    grad_C_all: NDArray[_S] | None = None,
    grad_N_all: NDArray[_S] | None = None,
    grad_M_all: NDArray[_S] | None = None,
    B: NDArray[_S] | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: NDArray[_S] | None = None,
    initial_c: NDArray[_S] | None = None,
    initial_n: NDArray[_S] | None = None,
    initial_m: NDArray[_S] | None = None,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: NDArray[np.bool_] | None = None,
    per_sample: bool | str = False,
    sample_weight: NDArray[_S] | None = None,
    wrt: Iterable[str],
) -> SLSTMGrads[NDArray[_S] | _MaybeNone]: ...
@overload
def slstm_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    C_all: _A,
    N_all: _A,
    M_all: _A,
    saved: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    grad_C_t: _A | None = None,
    grad_N_t: _A | None = None,
    grad_M_t: _A | None = None,
    grad_C_all: _A | None = None,
    grad_N_all: _A | None = None,
    grad_M_all: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    initial_n: _A | None = None,
    initial_m: _A | None = None,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: None = None,
) -> SLSTMGrads[_A]: ...
@overload
def slstm_grad(
    X: _A,
    W: _A,
    R: _A,
    *,
    H_all: _A,
    C_all: _A,
    N_all: _A,
    M_all: _A,
    saved: _A,
    grad_H_all: _A | None = None,
    grad_H_t: _A | None = None,
    grad_C_t: _A | None = None,
    grad_N_t: _A | None = None,
    grad_M_t: _A | None = None,
    grad_C_all: _A | None = None,
    grad_N_all: _A | None = None,
    grad_M_all: _A | None = None,
    B: _A | None = None,
    sequence_lens: _Lengths | None = None,
    initial_h: _A | None = None,
    initial_c: _A | None = None,
    initial_n: _A | None = None,
    initial_m: _A | None = None,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: _IntegerArray | None = None,
    per_sample: bool | str = False,
    sample_weight: _A | None = None,
    wrt: Iterable[str],
) -> SLSTMGrads[_A | _MaybeNone]: ...
@overload
def softmax(
    X: NDArray[_S], *, axis: int = -1, flatten: bool = False, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def softmax(X: _A, *, axis: int = -1, flatten: bool = False, out: _A | None = None) -> _A: ...
@overload
def softmax_cross_entropy(
    X: NDArray[_S],
    labels: NDArray[np.integer[Any]],
    weights: NDArray[_S] | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    out: NDArray[_S] | None = None,
) -> NDArray[_S]: ...
@overload
def softmax_cross_entropy(
    X: _A,
    labels: _A,
    weights: _A | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    out: _A | None = None,
) -> _A: ...
@overload
def softmax_cross_entropy_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    labels: NDArray[np.integer[Any]],
    weights: NDArray[_S] | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    out: NDArray[_S] | None = None,
) -> NDArray[_S]: ...
@overload
def softmax_cross_entropy_grad(
    dY: _A,
    X: _A,
    labels: _A,
    weights: _A | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    out: _A | None = None,
) -> _A: ...
@overload
def softmax_grad(
    dY: NDArray[_S], Y: NDArray[_S], *, axis: int = -1, flatten: bool = False, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def softmax_grad(dY: _A, Y: _A, *, axis: int = -1, flatten: bool = False, out: _A | None = None) -> _A: ...
@overload
def softplus(
    X: NDArray[_S], *, beta: float = 1.0, threshold: float | None = None, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def softplus(X: _A, *, beta: float = 1.0, threshold: float | None = None, out: _A | None = None) -> _A: ...
@overload
def softplus_grad(
    dY: NDArray[_S],
    X: NDArray[_S],
    *,
    beta: float = 1.0,
    threshold: float | None = None,
    out: NDArray[_S] | None = None,
) -> NDArray[_S]: ...
@overload
def softplus_grad(
    dY: _A, X: _A, *, beta: float = 1.0, threshold: float | None = None, out: _A | None = None
) -> _A: ...
@overload
def softsign(X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def softsign(X: _A, *, out: _A | None = None) -> _A: ...
@overload
def softsign_grad(dY: NDArray[_S], X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def softsign_grad(dY: _A, X: _A, *, out: _A | None = None) -> _A: ...
@overload
def tanh(X: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def tanh(X: _A, *, out: _A | None = None) -> _A: ...
@overload
def tanh_grad(dY: NDArray[_S], Y: NDArray[_S], *, out: NDArray[_S] | None = None) -> NDArray[_S]: ...
@overload
def tanh_grad(dY: _A, Y: _A, *, out: _A | None = None) -> _A: ...
@overload
def thresholded_relu(
    X: NDArray[_S], *, alpha: float = 1.0, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def thresholded_relu(X: _A, *, alpha: float = 1.0, out: _A | None = None) -> _A: ...
@overload
def thresholded_relu_grad(
    dY: NDArray[_S], X: NDArray[_S], *, alpha: float = 1.0, out: NDArray[_S] | None = None
) -> NDArray[_S]: ...
@overload
def thresholded_relu_grad(dY: _A, X: _A, *, alpha: float = 1.0, out: _A | None = None) -> _A: ...
@overload
def convert(
    operator: str,
    parameters: Mapping[str, NDArray[_S]],
    source: str,
    target: str,
    *,
    linear_before_reset: int = 0,
    biases: int | None = None,
    gradients: bool = False,
) -> dict[str, NDArray[_S]]: ...
@overload
def convert(
    operator: str,
    parameters: Mapping[str, _A],
    source: str,
    target: str,
    *,
    linear_before_reset: int = 0,
    biases: int | None = None,
    gradients: bool = False,
) -> dict[str, _A]: ...

class _Lstm(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        sequence_lens: _Lengths | None = None,
        initial_h: NDArray[np.float64] | None = None,
        initial_c: NDArray[np.float64] | None = None,
        P: NDArray[np.float64] | None = None,
        *,
        direction: str = "forward",
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        input_forget: bool = False,
        layout: int = 0,
        reset: NDArray[np.bool_] | None = None,
        S: NDArray[np.float64] | None = None,
        recurrent_mask: NDArray[np.float64] | None = None,
        zoneout_h: NDArray[np.float64] | None = None,
        zoneout_c: NDArray[np.float64] | None = None,
    ) -> LSTMForward[NDArray[np.float64]]: ...

class _LayerNormLstm(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64],
        gamma: NDArray[np.float64],
        beta: NDArray[np.float64],
        gamma_c: NDArray[np.float64],
        beta_c: NDArray[np.float64],
        sequence_lens: _Lengths | None = None,
        initial_h: NDArray[np.float64] | None = None,
        initial_c: NDArray[np.float64] | None = None,
        *,
        epsilon: float = 1e-05,
        direction: str = "forward",
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        layout: int = 0,
        reset: NDArray[np.bool_] | None = None,
    ) -> LayerNormLSTMForward[NDArray[np.float64]]: ...

class _Gru(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        sequence_lens: _Lengths | None = None,
        initial_h: NDArray[np.float64] | None = None,
        *,
        direction: str = "forward",
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        linear_before_reset: int = 0,
        layout: int = 0,
        reset: NDArray[np.bool_] | None = None,
        recurrent_mask: NDArray[np.float64] | None = None,
        zoneout_h: NDArray[np.float64] | None = None,
    ) -> GRUForward[NDArray[np.float64]]: ...

class _LayerNormGru(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64],
        gamma: NDArray[np.float64],
        beta: NDArray[np.float64],
        sequence_lens: _Lengths | None = None,
        initial_h: NDArray[np.float64] | None = None,
        *,
        epsilon: float = 1e-05,
        direction: str = "forward",
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        layout: int = 0,
        reset: NDArray[np.bool_] | None = None,
    ) -> LayerNormGRUForward[NDArray[np.float64]]: ...

class _GruD(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        mask: NDArray[np.float64],
        delta: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        decay_x: NDArray[np.float64],
        decay_h: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        mean: NDArray[np.float64] | None = None,
        sequence_lens: _Lengths | None = None,
        initial_h: NDArray[np.float64] | None = None,
        *,
        direction: str = "forward",
        layout: int = 0,
        reset: NDArray[np.bool_] | None = None,
    ) -> GRUDForward[NDArray[np.float64]]: ...

class _Slstm(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        sequence_lens: _Lengths | None = None,
        initial_h: NDArray[np.float64] | None = None,
        initial_c: NDArray[np.float64] | None = None,
        initial_n: NDArray[np.float64] | None = None,
        initial_m: NDArray[np.float64] | None = None,
        *,
        heads: int = 1,
        forget: str = "sigmoid",
        direction: str = "forward",
        layout: int = 0,
        reset: NDArray[np.bool_] | None = None,
    ) -> SLSTMForward[NDArray[np.float64]]: ...

class _Rnn(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        sequence_lens: _Lengths | None = None,
        initial_h: NDArray[np.float64] | None = None,
        *,
        direction: str = "forward",
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        layout: int = 0,
        reset: NDArray[np.bool_] | None = None,
    ) -> RNNForward[NDArray[np.float64]]: ...

class _LstmCell(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        H: NDArray[np.float64],
        C: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        P: NDArray[np.float64] | None = None,
        *,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        input_forget: bool = False,
    ) -> LSTMCellForward[NDArray[np.float64]]: ...

class _Augru(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        attention: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        sequence_lens: _Lengths | None = None,
        initial_h: NDArray[np.float64] | None = None,
        *,
        linear_before_reset: int = 0,
        direction: str = "forward",
        layout: int = 0,
        reset: NDArray[np.bool_] | None = None,
    ) -> AUGRUForward[NDArray[np.float64]]: ...

class _ConvTranspose(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        W: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        *,
        strides: int | Sequence[int] = 1,
        pads: int | Sequence[int] = 0,
        dilations: int | Sequence[int] = 1,
        group: int = 1,
        auto_pad: str = "NOTSET",
        output_padding: int | Sequence[int] = 0,
        output_shape: Sequence[int] | None = None,
        method: str = "auto",
    ) -> NDArray[np.float64]: ...

class _GruCell(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        H: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        *,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        linear_before_reset: int = 0,
    ) -> GRUCellForward[NDArray[np.float64]]: ...

class _Conv(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        W: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        *,
        strides: int | Sequence[int] = 1,
        pads: int | Sequence[int] = 0,
        dilations: int | Sequence[int] = 1,
        group: int = 1,
        auto_pad: str = "NOTSET",
        method: str = "auto",
    ) -> NDArray[np.float64]: ...

class _RnnCell(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        H: NDArray[np.float64],
        W: NDArray[np.float64],
        R: NDArray[np.float64],
        B: NDArray[np.float64] | None = None,
        *,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
    ) -> RNNCellForward[NDArray[np.float64]]: ...

class _SoftmaxCrossEntropy(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        labels: NDArray[np.integer[Any]],
        weights: NDArray[np.float64] | None = None,
        *,
        ignore_index: int | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        out: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]: ...

class _BinaryCrossEntropyWithLogits(Protocol):
    def __call__(
        self,
        X: NDArray[np.float64],
        targets: NDArray[np.float64],
        weight: NDArray[np.float64] | None = None,
        *,
        pos_weight: NDArray[np.float64] | None = None,
        reduction: str = "mean",
        out: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]: ...

class _Prelu(Protocol):
    def __call__(
        self, X: NDArray[np.float64], slope: NDArray[np.float64], *, out: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]: ...

@overload
def vjp(fn: Cell, *args: Any, **kwargs: Any) -> tuple[Any, Callable[..., Any]]: ...
@overload
def vjp(
    fn: _Lstm, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[LSTMForward[NDArray[_S]], Callable[..., LSTMGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Lstm, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[LSTMForward[NDArray[_S]], Callable[..., LSTMGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _Lstm, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[LSTMForward[_A], Callable[..., LSTMGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Lstm, X: _A, *args: Any, **kwargs: Any
) -> tuple[LSTMForward[_A], Callable[..., LSTMGrads[_A]]]: ...
@overload
def vjp(
    fn: _LayerNormLstm, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[
    LayerNormLSTMForward[NDArray[_S]], Callable[..., LayerNormLSTMGrads[NDArray[_S] | _MaybeNone]]
]: ...
@overload
def vjp(
    fn: _LayerNormLstm, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[LayerNormLSTMForward[NDArray[_S]], Callable[..., LayerNormLSTMGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _LayerNormLstm, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[LayerNormLSTMForward[_A], Callable[..., LayerNormLSTMGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _LayerNormLstm, X: _A, *args: Any, **kwargs: Any
) -> tuple[LayerNormLSTMForward[_A], Callable[..., LayerNormLSTMGrads[_A]]]: ...
@overload
def vjp(
    fn: _Gru, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[GRUForward[NDArray[_S]], Callable[..., GRUGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Gru, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[GRUForward[NDArray[_S]], Callable[..., GRUGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _Gru, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[GRUForward[_A], Callable[..., GRUGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(fn: _Gru, X: _A, *args: Any, **kwargs: Any) -> tuple[GRUForward[_A], Callable[..., GRUGrads[_A]]]: ...
@overload
def vjp(
    fn: _LayerNormGru, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[LayerNormGRUForward[NDArray[_S]], Callable[..., LayerNormGRUGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _LayerNormGru, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[LayerNormGRUForward[NDArray[_S]], Callable[..., LayerNormGRUGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _LayerNormGru, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[LayerNormGRUForward[_A], Callable[..., LayerNormGRUGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _LayerNormGru, X: _A, *args: Any, **kwargs: Any
) -> tuple[LayerNormGRUForward[_A], Callable[..., LayerNormGRUGrads[_A]]]: ...
@overload
def vjp(
    fn: _GruD, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[GRUDForward[NDArray[_S]], Callable[..., GRUDGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _GruD, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[GRUDForward[NDArray[_S]], Callable[..., GRUDGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _GruD, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[GRUDForward[_A], Callable[..., GRUDGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _GruD, X: _A, *args: Any, **kwargs: Any
) -> tuple[GRUDForward[_A], Callable[..., GRUDGrads[_A]]]: ...
@overload
def vjp(
    fn: _Slstm, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[SLSTMForward[NDArray[_S]], Callable[..., SLSTMGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Slstm, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[SLSTMForward[NDArray[_S]], Callable[..., SLSTMGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _Slstm, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[SLSTMForward[_A], Callable[..., SLSTMGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Slstm, X: _A, *args: Any, **kwargs: Any
) -> tuple[SLSTMForward[_A], Callable[..., SLSTMGrads[_A]]]: ...
@overload
def vjp(
    fn: _Rnn, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[RNNForward[NDArray[_S]], Callable[..., RNNGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Rnn, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[RNNForward[NDArray[_S]], Callable[..., RNNGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _Rnn, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[RNNForward[_A], Callable[..., RNNGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(fn: _Rnn, X: _A, *args: Any, **kwargs: Any) -> tuple[RNNForward[_A], Callable[..., RNNGrads[_A]]]: ...
@overload
def vjp(
    fn: _LstmCell, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[LSTMCellForward[NDArray[_S]], Callable[..., LSTMCellGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _LstmCell, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[LSTMCellForward[NDArray[_S]], Callable[..., LSTMCellGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _LstmCell, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[LSTMCellForward[_A], Callable[..., LSTMCellGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _LstmCell, X: _A, *args: Any, **kwargs: Any
) -> tuple[LSTMCellForward[_A], Callable[..., LSTMCellGrads[_A]]]: ...
@overload
def vjp(
    fn: _Augru, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[AUGRUForward[NDArray[_S]], Callable[..., AUGRUGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Augru, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[AUGRUForward[NDArray[_S]], Callable[..., AUGRUGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _Augru, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[AUGRUForward[_A], Callable[..., AUGRUGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Augru, X: _A, *args: Any, **kwargs: Any
) -> tuple[AUGRUForward[_A], Callable[..., AUGRUGrads[_A]]]: ...
@overload
def vjp(
    fn: _ConvTranspose, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., ConvTransposeGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _ConvTranspose, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., ConvTransposeGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _ConvTranspose, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[_A, Callable[..., ConvTransposeGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _ConvTranspose, X: _A, *args: Any, **kwargs: Any
) -> tuple[_A, Callable[..., ConvTransposeGrads[_A]]]: ...
@overload
def vjp(
    fn: _GruCell, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[GRUCellForward[NDArray[_S]], Callable[..., GRUCellGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _GruCell, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[GRUCellForward[NDArray[_S]], Callable[..., GRUCellGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _GruCell, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[GRUCellForward[_A], Callable[..., GRUCellGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _GruCell, X: _A, *args: Any, **kwargs: Any
) -> tuple[GRUCellForward[_A], Callable[..., GRUCellGrads[_A]]]: ...
@overload
def vjp(
    fn: _Conv, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., ConvGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Conv, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., ConvGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _Conv, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[_A, Callable[..., ConvGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(fn: _Conv, X: _A, *args: Any, **kwargs: Any) -> tuple[_A, Callable[..., ConvGrads[_A]]]: ...
@overload
def vjp(
    fn: _RnnCell, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[RNNCellForward[NDArray[_S]], Callable[..., RNNCellGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _RnnCell, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[RNNCellForward[NDArray[_S]], Callable[..., RNNCellGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _RnnCell, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[RNNCellForward[_A], Callable[..., RNNCellGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _RnnCell, X: _A, *args: Any, **kwargs: Any
) -> tuple[RNNCellForward[_A], Callable[..., RNNCellGrads[_A]]]: ...
@overload
def vjp(
    fn: _SoftmaxCrossEntropy, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., NDArray[_S]]]: ...
@overload
def vjp(fn: _SoftmaxCrossEntropy, X: _A, *args: Any, **kwargs: Any) -> tuple[_A, Callable[..., _A]]: ...
@overload
def vjp(
    fn: _BinaryCrossEntropyWithLogits, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., NDArray[_S]]]: ...
@overload
def vjp(
    fn: _BinaryCrossEntropyWithLogits, X: _A, *args: Any, **kwargs: Any
) -> tuple[_A, Callable[..., _A]]: ...
@overload
def vjp(
    fn: _Prelu, X: NDArray[_S], *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., PReLUGrads[NDArray[_S] | _MaybeNone]]]: ...
@overload
def vjp(
    fn: _Prelu, X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., PReLUGrads[NDArray[_S]]]]: ...
@overload
def vjp(
    fn: _Prelu, X: _A, *args: Any, wrt: Iterable[str], **kwargs: Any
) -> tuple[_A, Callable[..., PReLUGrads[_A | _MaybeNone]]]: ...
@overload
def vjp(fn: _Prelu, X: _A, *args: Any, **kwargs: Any) -> tuple[_A, Callable[..., PReLUGrads[_A]]]: ...
@overload
def vjp(
    fn: Callable[[NDArray[np.float64]], NDArray[np.float64]], X: NDArray[_S], *args: Any, **kwargs: Any
) -> tuple[NDArray[_S], Callable[..., NDArray[_S]]]: ...
@overload
def vjp(
    fn: Callable[[NDArray[np.float64]], NDArray[np.float64]], X: _A, *args: Any, **kwargs: Any
) -> tuple[_A, Callable[..., _A]]: ...
