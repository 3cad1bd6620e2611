"""xpgrad's operators as differentiable functions of PyTorch tensors.

Recurrent functions have ONNX's shapes and gate orders. Activations and losses that are also in
`torch.nn.functional` have its names and arguments.
"""

# ruff: noqa: D103 - recurrent functions get their docstrings from their declaration

from collections.abc import Sequence

from torch import Tensor

from xpgrad._operators.words import Peephole, Saved, TimeDirection
from xpgrad_torch._docs import described_recurrent
from xpgrad_torch._recurrent import run_recurrent
from xpgrad_torch.activations import *  # noqa: F403
from xpgrad_torch.activations import __all__ as __all__
from xpgrad_torch.augru import augru
from xpgrad_torch.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from xpgrad_torch.gru_d import gru_d
from xpgrad_torch.losses import binary_cross_entropy_with_logits, cross_entropy
from xpgrad_torch.slstm import slstm

__all__ = [
    *(name for name in __all__ if name.islower()),
    "augru", "binary_cross_entropy_with_logits", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "cross_entropy", "gru", "gru_cell", "gru_d", "layer_norm_gru",
    "layer_norm_lstm", "lstm", "lstm_cell", "rnn", "rnn_cell", "slstm"
]  # fmt: skip
__all__.sort()


def __dir__() -> list[str]:
    """Return the functions, for completion, without the module's imports."""
    return list(__all__)


@described_recurrent("X, W, R, clip=3.0")
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
    return run_recurrent("lstm", locals(), wanted_outputs=3)


@described_recurrent("X, W, R, linear_before_reset=1")
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
    return run_recurrent("gru", locals())


@described_recurrent('X, W, R, activations=["Relu"]')
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
    return run_recurrent("rnn", locals())


@described_recurrent(
    "\n...     X, W, R, None, torch.ones(1, 2, 20), torch.zeros(1, 2, 20),"
    "\n...     torch.ones(1, 5), torch.zeros(1, 5),\n... ",
    "H_all", "H_t", "C_t", "C_all",
)  # fmt: skip
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
    return run_recurrent("layer_norm_lstm", locals())


@described_recurrent("X, W, R, None, torch.ones(1, 2, 15), torch.zeros(1, 2, 15)")
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
    return run_recurrent("layer_norm_gru", locals())


@described_recurrent()
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
    return run_recurrent("lstm_cell", locals())


@described_recurrent("X, H, W, R, linear_before_reset=1")
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
    (H_next,) = run_recurrent("gru_cell", locals())
    return H_next


@described_recurrent()
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
    (H_next,) = run_recurrent("rnn_cell", locals())
    return H_next
