"""xpgrad's operators as differentiable functions of PyTorch tensors.

The recurrent ones have ONNX's shapes and gate orders. Activations and losses that `torch.nn.functional` has
too bear its names and take its arguments.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from xpgrad._operators.words import Peephole, Saved, TimeDirection
from xpgrad_torch._autograd import CallTemplate, Kernel, apply, call_of
from xpgrad_torch._docs import described_recurrent
from xpgrad_torch._gru_d import gru_d
from xpgrad_torch._lengths import lengths_tensor, with_resets
from xpgrad_torch._library import registered
from xpgrad_torch._memory import apply_sequence
from xpgrad_torch._packed import apply_packed
from xpgrad_torch._packing import PackedRows
from xpgrad_torch._stacked import flattened
from xpgrad_torch.activations import *  # noqa: F403
from xpgrad_torch.activations import __all__ as __all__
from xpgrad_torch.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from xpgrad_torch.losses import binary_cross_entropy_with_logits, cross_entropy

__all__ = [
    *(name for name in __all__ if name.islower()),
    "augru",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "gru",
    "gru_cell",
    "gru_d",
    "layer_norm_gru",
    "layer_norm_lstm",
    "lstm",
    "lstm_cell",
    "rnn",
    "rnn_cell",
    "slstm",
]
__all__.sort()


def __dir__() -> list[str]:
    """Return the functions, for completion: what the module needs of the package is none of them."""
    return list(__all__)


_RECURRENT: dict[str, Kernel] = {}


def _kernel(name: str, **options: Any) -> Kernel:
    _RECURRENT[name] = kernel = registered(Kernel(name, planned=True, **options))
    return kernel


_LSTM = _kernel("lstm", ordered=True)
_GRU = _kernel("gru", ordered=True, products=True)
_RNN = _kernel("rnn", ordered=True)
_LSTM_CELL = _kernel("lstm_cell", ordered=True)
_GRU_CELL = _kernel("gru_cell", ordered=True)
_RNN_CELL = _kernel("rnn_cell", ordered=True)
_LAYER_NORM_LSTM = _kernel("layer_norm_lstm")
_LAYER_NORM_GRU = _kernel("layer_norm_gru")
_SLSTM = _kernel("slstm")
_AUGRU = _kernel("augru")


def run_recurrent(name: str, given: dict[str, Any], wanted_outputs: int | None = None) -> Any:
    """Return what the kernel of that name computes from arguments by name, which it takes out of `given`.

    Operands are tensors or `Stacked`; one that is missing is None. `wanted_outputs` is how many of the first
    results the caller reads; by default all that have a cotangent.
    """
    kernel = _RECURRENT[name]
    if (lengths := given.get("sequence_lens")) is not None:
        given["sequence_lens"] = lengths_tensor(name, "sequence_lens", lengths)
    if (reset := given.pop("reset", None)) is not None:
        layout = given.get("layout", 0)
        given["sequence_lens"] = with_resets(name, given["X"], given["sequence_lens"], reset, layout)
    for mask in kernel.masks:
        if isinstance(x := given.get(mask), Tensor) and x.requires_grad:
            raise ValueError(f"{name}: {mask} requires a gradient, expected a mask, which has none")
    operands, asked = _taken_out(kernel, given)
    if "save" in given:
        return apply_sequence(
            kernel, operands, given, given.pop("save"), wanted_outputs=wanted_outputs, **asked
        )
    return apply(kernel, operands, given, wanted_outputs=wanted_outputs, **asked)


def run_packed(
    name: str, given: dict[str, Any], packing: PackedRows, wanted_outputs: int
) -> tuple[Tensor, ...]:
    """Return the same for rows of a packed sequence in X's place, which H_all then has too."""
    kernel = _RECURRENT[name]
    operands, asked = _taken_out(kernel, given)
    attributes = {name: value for name, value in given.items() if name != "save"}
    return apply_packed(kernel, operands, attributes, packing, wanted_outputs, **asked)


def recurrent_call(
    name: str, given: dict[str, Any], wanted_outputs: int | None = None
) -> tuple[CallTemplate, tuple[str, ...]]:
    """Return the data of calls that differ from this one in tensors alone, and the names of its operands."""
    kernel = _RECURRENT[name]
    operands, asked = _taken_out(kernel, given)
    attributes = {name: value for name, value in given.items() if name != "save"}
    if rows := kernel.rows_of(operands, wanted_outputs):
        attributes["rows_of"] = rows
    return call_of(kernel, flattened(operands)[0], attributes, asked, False), kernel.operands


def _taken_out(kernel: Kernel, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return operands in the kernel's order, and attributes of the gradient alone; others are left."""
    operands = [given.pop(operand, None) for operand in kernel.operands]
    return operands, {name: given.pop(name) for name in kernel.gradient_attributes}


@described_recurrent("H_all, H_t, C_t", "X, W, R, clip=3.0")
def lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    *,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    reset: Tensor | None = None,
    S: Tensor | None = None,
    recurrent_mask: Tensor | None = None,
    zoneout_h: Tensor | None = None,
    zoneout_c: Tensor | None = None,
    peephole: Peephole = "full",
    save: Saved | int = "all",
) -> tuple[Tensor, Tensor, Tensor]:
    """The ONNX LSTM as a differentiable function of PyTorch tensors."""
    return run_recurrent("lstm", locals(), wanted_outputs=3)


@described_recurrent("H_all, H_t", "X, W, R, linear_before_reset=1")
def gru(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    *,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    reset: Tensor | None = None,
    recurrent_mask: Tensor | None = None,
    zoneout_h: Tensor | None = None,
    save: Saved | int = "all",
) -> tuple[Tensor, Tensor]:
    """The ONNX GRU as a differentiable function of PyTorch tensors."""
    return run_recurrent("gru", locals())


@described_recurrent("H_all, H_t", 'X, W, R, activations=["Relu"]')
def rnn(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    *,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Tensor | None = None,
    save: Saved | int = "all",
) -> tuple[Tensor, Tensor]:
    """The ONNX RNN as a differentiable function of PyTorch tensors."""
    return run_recurrent("rnn", locals())


@described_recurrent(
    "H_all, H_t, C_t, C_all",
    "\n...     X, W, R, None, torch.ones(1, 2, 20), torch.zeros(1, 2, 20),"
    "\n...     torch.ones(1, 5), torch.zeros(1, 5),\n... ",
)
def layer_norm_lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    gamma_c: Tensor,
    beta_c: Tensor,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Tensor | None = None,
    save: Saved | int = "all",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The LSTM with layer normalization as a differentiable function of PyTorch tensors."""
    return run_recurrent("layer_norm_lstm", locals())


@described_recurrent("H_all, H_t", "X, W, R, None, torch.ones(1, 2, 15), torch.zeros(1, 2, 15)")
def layer_norm_gru(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    direction: TimeDirection = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Tensor | None = None,
    save: Saved | int = "all",
) -> tuple[Tensor, Tensor]:
    """The GRU with layer normalization as a differentiable function of PyTorch tensors."""
    return run_recurrent("layer_norm_gru", locals())


@described_recurrent("H_all, H_t", "X, torch.rand(7, 2, 1), W, R")
def augru(
    X: Tensor,
    attention: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    *,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: Tensor | None = None,
    save: str | int = "all",
) -> tuple[Tensor, Tensor]:
    """The GRU with an attentional update gate as a differentiable function of PyTorch tensors."""
    return run_recurrent("augru", locals())


@described_recurrent("H_all, H_t, C_t, N_t, M_t", "X, W, R")
def slstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    initial_n: Tensor | None = None,
    initial_m: Tensor | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: Tensor | None = None,
    save: str | int = "all",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The sLSTM of xLSTM as a differentiable function of PyTorch tensors."""
    return run_recurrent("slstm", locals(), wanted_outputs=5)


@described_recurrent("H_next, C_next", "X, H, C, W, R")
def lstm_cell(
    X: Tensor,
    H: Tensor,
    C: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    P: Tensor | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    peephole: Peephole = "full",
) -> tuple[Tensor, Tensor]:
    """One step of `lstm`, for a loop that you write."""
    return run_recurrent("lstm_cell", locals())


@described_recurrent("H_next", "X, H, W, R, linear_before_reset=1")
def gru_cell(
    X: Tensor,
    H: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
) -> Tensor:
    """One step of `gru`, for a loop that you write."""
    (H_next,) = run_recurrent("gru_cell", locals())
    return H_next


@described_recurrent("H_next", "X, H, W, R")
def rnn_cell(
    X: Tensor,
    H: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
) -> Tensor:
    """One step of `rnn`, for a loop that you write."""
    (H_next,) = run_recurrent("rnn_cell", locals())
    return H_next
