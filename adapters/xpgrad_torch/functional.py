"""xpgrad's operators as differentiable functions of PyTorch tensors.

The recurrent ones have ONNX's shapes and gate orders. Activations and losses that `torch.nn.functional` has
too bear its names and take its arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import xpgrad
from xpgrad._arguments import check_integers
from xpgrad._axes import AXES
from xpgrad._recurrent import sequence_attributes
from xpgrad_torch._autograd import Kernel, apply
from xpgrad_torch._library import registered
from xpgrad_torch._memory import apply_sequence
from xpgrad_torch.activations import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    prelu,
    quick_gelu,
    relu,
    relu6,
    scaled_tanh,
    selu,
    sigmoid,
    silu,
    softmax,
    softplus,
    softsign,
    tanh,
    threshold,
    thresholded_relu,
)
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
    "binary_cross_entropy_with_logits",
    "celu",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "elu",
    "gelu",
    "gru",
    "gru_cell",
    "hard_sigmoid",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "layer_norm_gru",
    "layer_norm_lstm",
    "leaky_relu",
    "log_softmax",
    "logsigmoid",
    "lstm",
    "lstm_cell",
    "mish",
    "prelu",
    "quick_gelu",
    "relu",
    "relu6",
    "rnn",
    "rnn_cell",
    "scaled_tanh",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "tanh",
    "threshold",
    "thresholded_relu",
]

_MASKS = ("recurrent_mask", "zoneout_h", "zoneout_c")  # which have no gradient
_STATES = ("grad_H_all", "grad_H_t")


def _kernel(name: str, result: Any, cotangents: tuple[str, ...], **options: Any) -> Kernel:
    described = {"shapes": AXES[name], "ordered": True, **options}
    return registered(Kernel(name, result._fields, cotangents, **described))


_LSTM = _kernel(
    "lstm", xpgrad.LSTMForward, (*_STATES, "grad_C_t", "grad_C_all"), constants=("sequence_lens", *_MASKS)
)
_GRU = _kernel(
    "gru", xpgrad.GRUForward, _STATES, constants=("sequence_lens", *_MASKS), products=True,
    shapes={**AXES["gru"], "products": "T D N H"},
)  # fmt: skip
_RNN = _kernel("rnn", xpgrad.RNNForward, _STATES)
_LSTM_CELL = _kernel("lstm_cell", xpgrad.LSTMCellForward, ("grad_H", "grad_C"))
_GRU_CELL = _kernel("gru_cell", xpgrad.GRUCellForward, ("grad_H",))
_RNN_CELL = _kernel("rnn_cell", xpgrad.RNNCellForward, ("grad_H",))
_LAYER_NORM_LSTM = _kernel(
    "layer_norm_lstm", xpgrad.LayerNormLSTMForward, (*_STATES, "grad_C_t", "grad_C_all"),
    ordered=False, planned=True, optional=("B",),
    gradients=("X", "W", "R", "B", "initial_h", "initial_c", "gamma", "beta", "gamma_c", "beta_c"),
)  # fmt: skip
_LAYER_NORM_GRU = _kernel(
    "layer_norm_gru", xpgrad.LayerNormGRUForward, _STATES, ordered=False, planned=True, optional=("B",),
    gradients=("X", "W", "R", "B", "initial_h", "gamma", "beta"),
)  # fmt: skip
_RECURRENT = {kernel.name: kernel for kernel in (_LSTM, _GRU, _RNN, _LSTM_CELL, _GRU_CELL, _RNN_CELL)}


def run_recurrent(
    name: str, operands: Mapping[str, Any], attributes: Mapping[str, Any]
) -> tuple[Tensor, ...]:
    """Return what the function of that name does, for weights in the order of gates of an attribute.

    Operands are tensors or `Stacked`.
    """
    kernel, own = _RECURRENT[name], dict(attributes)
    asked = {p.name: own.pop(p.name) for p in kernel.gradient_attributes}
    ordered = [operands.get(name) for name in kernel.operands]
    if "save" in own:
        return apply_sequence(kernel, ordered, own, own.pop("save"), **asked)
    return apply(kernel, ordered, own, **asked)


def lengths_tensor(operator: str, name: str, lengths: Any) -> Tensor | None:
    """Return lengths, which may be any sequence or array of integers, as a tensor; None for None."""
    if lengths is None or isinstance(lengths, Tensor):
        return lengths
    numbers = check_integers(operator, name, lengths)
    if any(number.bit_length() > 63 for number in numbers):
        raise ValueError(f"{operator}: {name} is {numbers}, expected numbers from 0 to T")
    return torch.tensor(numbers, dtype=torch.int64)


def check_masks(operator: str, masks: Sequence[Tensor | None]) -> None:
    """Raise ValueError for a mask whose gradient is asked for."""
    for name, mask in zip(_MASKS, masks, strict=False):
        if isinstance(mask, Tensor) and mask.requires_grad:
            raise ValueError(f"{operator}: {name} requires a gradient, expected a mask, which has none")


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
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    S: Tensor | None = None,
    recurrent_mask: Tensor | None = None,
    zoneout_h: Tensor | None = None,
    zoneout_c: Tensor | None = None,
    peephole: str = "full",
    save: str | int = "all",
) -> tuple[Tensor, Tensor, Tensor]:
    """The ONNX LSTM as a differentiable function of PyTorch tensors.

    What it computes, and what each attribute does, is described in `xpgrad.lstm`; the gradient is
    `xpgrad.lstm_grad`, which is asked only for the operands that require one. The gradient is itself
    differentiable (``create_graph=True``), then through PyTorch's own operators, which is slower.

    Parameters
    ----------
    X : Tensor
        Input, (T, N, I).
    W, R : Tensor
        Input weights (D, 4H, I) and recurrence weights (D, 4H, H), rows in order i o f c.
    B : Tensor, optional
        Biases, (D, 8H): the input's, then the recurrence's.
    sequence_lens : Tensor, other integer array or sequence of int, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial_h, initial_c : Tensor, optional
        Initial states, (D, N, H); zero where left out.
    P : Tensor, optional
        Peephole weights, (D, 3H), in order i o f.
    direction, activations, activation_alpha, activation_beta, clip, input_forget, layout
        The attributes of `xpgrad.lstm`.
    S : Tensor, optional
        Projection of the output, (D, proj, H); H_all, H_t, initial_h and the last axis of R have the width
        proj then.
    recurrent_mask : Tensor, optional
        Multiplies the state on its way into R, (D, N, H or proj). No gradient, as of the next two.
    zoneout_h, zoneout_c : Tensor, optional
        Share of the old states that stays at each step, (T, D, N, H or proj) and (T, D, N, H).
    peephole : {"full", "truncated"}
        ``"full"`` is the true gradient. ``"truncated"`` leaves out the path from the peepholes into the cell
        state, as ONNX Runtime's LSTMGrad does.
    save : "all", "states" or int
        What is kept for the gradient. ``"all"``: every step's states and gates, 6H numbers a step and
        sequence. ``"states"``: the operands alone, among them the initial states; the gradient runs the
        kernel again and gets the same numbers, to the last bit. A number k: the states of every k-th step,
        from which the gradient rebuilds k steps at a time; sums over steps are then added in another order.

    Returns
    -------
    H_all, H_t, C_t : Tensor
        The hidden states (T, D, N, H), and hidden and cell state at each sequence's end (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator LSTM of the ONNX specification, version 14.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import lstm
    >>> X, W, R = torch.randn(7, 2, 3), torch.randn(1, 20, 3), torch.randn(1, 20, 5, requires_grad=True)
    >>> H_all, H_t, C_t = lstm(X, W, R, clip=3.0)
    >>> H_t.sum().backward()
    >>> R.grad.shape
    torch.Size([1, 20, 5])
    """
    attributes = sequence_attributes(direction, activations, activation_alpha, activation_beta, clip, layout)
    attributes |= {"input_forget": input_forget}
    lengths = lengths_tensor("lstm", "sequence_lens", sequence_lens)
    masks = (recurrent_mask, zoneout_h, zoneout_c)
    check_masks("lstm", masks)
    operands = (X, W, R, B, lengths, initial_h, initial_c, P, S, *masks)
    H_all, H_t, C_t, _ = apply_sequence(_LSTM, operands, attributes, save, peephole=peephole)
    return H_all, H_t, C_t


def gru(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    recurrent_mask: Tensor | None = None,
    zoneout_h: Tensor | None = None,
    save: str | int = "all",
) -> tuple[Tensor, Tensor]:
    """The ONNX GRU as a differentiable function of PyTorch tensors.

    What it computes, and what each attribute does, is described in `xpgrad.gru`; the gradient is
    `xpgrad.gru_grad`. As with `lstm`, only what requires a gradient is computed, and the gradient is itself
    differentiable.

    Parameters
    ----------
    X : Tensor
        Input, (T, N, I).
    W, R : Tensor
        Input weights (D, 3H, I) and recurrence weights (D, 3H, H), rows in order z r h.
    B : Tensor, optional
        Biases, (D, 6H): the input's, then the recurrence's.
    sequence_lens : Tensor, other integer array or sequence of int, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial_h : Tensor, optional
        Initial state, (D, N, H); zero where left out.
    direction, activations, activation_alpha, activation_beta, clip, layout
        The attributes of `xpgrad.gru`.
    linear_before_reset : {0, 1}
        Where the reset gate multiplies: 1 behind the recurrent product, as in `torch.nn.GRU`; 0 in front of
        it, ONNX's default.
    recurrent_mask : Tensor, optional
        Multiplies the state on its way into R, (D, N, H). No gradient, as of the next.
    zoneout_h : Tensor, optional
        Share of the old state that stays at each step, (T, D, N, H).
    save : "all", "states" or int
        As in `lstm`; ``"all"`` is 5H numbers a step and sequence.

    Returns
    -------
    H_all, H_t : Tensor
        The hidden states (T, D, N, H), and the one at each sequence's end (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator GRU of the ONNX specification, version 14.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import gru
    >>> X, W, R = torch.randn(7, 2, 3), torch.randn(1, 15, 3), torch.randn(1, 15, 5, requires_grad=True)
    >>> H_all, H_t = gru(X, W, R, linear_before_reset=1)
    >>> H_t.sum().backward()
    >>> R.grad.shape
    torch.Size([1, 15, 5])
    """
    attributes = sequence_attributes(direction, activations, activation_alpha, activation_beta, clip, layout)
    attributes |= {"linear_before_reset": linear_before_reset}
    lengths = lengths_tensor("gru", "sequence_lens", sequence_lens)
    masks = (recurrent_mask, zoneout_h)
    check_masks("gru", masks)
    H_all, H_t = apply_sequence(_GRU, (X, W, R, B, lengths, initial_h, *masks), attributes, save)
    return H_all, H_t


def rnn(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    save: str | int = "all",
) -> tuple[Tensor, Tensor]:
    """The ONNX RNN as a differentiable function of PyTorch tensors.

    What it computes, and what each attribute does, is described in `xpgrad.rnn`; the gradient is
    `xpgrad.rnn_grad`. As with `lstm`, only what requires a gradient is computed, and the gradient is itself
    differentiable.

    Parameters
    ----------
    X : Tensor
        Input, (T, N, I).
    W, R : Tensor
        Input weights (D, H, I) and recurrence weights (D, H, H).
    B : Tensor, optional
        Biases, (D, 2H): the input's, then the recurrence's.
    sequence_lens : Tensor, other integer array or sequence of int, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial_h : Tensor, optional
        Initial state, (D, N, H); zero where left out.
    direction, activations, activation_alpha, activation_beta, clip, layout
        The attributes of `xpgrad.rnn`.
    save : "all", "states" or int
        As in `lstm`; ``"all"`` is H_all, H numbers a step and sequence.

    Returns
    -------
    H_all, H_t : Tensor
        The hidden states (T, D, N, H), and the one at each sequence's end (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator RNN of the ONNX specification, version 14.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import rnn
    >>> X, W, R = torch.randn(7, 2, 3), torch.randn(1, 5, 3), torch.randn(1, 5, 5, requires_grad=True)
    >>> H_all, H_t = rnn(X, W, R, activations=["Relu"])
    >>> H_t.sum().backward()
    >>> R.grad.shape
    torch.Size([1, 5, 5])
    """
    attributes = sequence_attributes(direction, activations, activation_alpha, activation_beta, clip, layout)
    lengths = lengths_tensor("rnn", "sequence_lens", sequence_lens)
    H_all, H_t = apply_sequence(_RNN, (X, W, R, B, lengths, initial_h), attributes, save)
    return H_all, H_t


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
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    save: str | int = "all",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The LSTM with layer normalization as a differentiable function of PyTorch tensors.

    What it computes, and what each attribute does, is described in `xpgrad.layer_norm_lstm`; the gradient is
    `xpgrad.layer_norm_lstm_grad`. As with `lstm`, only what requires a gradient is computed, and the gradient
    is itself differentiable.

    Parameters
    ----------
    X : Tensor
        Input, (T, N, I).
    W, R : Tensor
        Input weights (D, 4H, I) and recurrence weights (D, 4H, H), gates in the order i o f c.
    B : Tensor or None
        Biases, (D, 8H): the input's, then the recurrence's.
    gamma, beta : Tensor
        Scales and shifts of the input's and of the recurrent product, (D, 2, 4H).
    gamma_c, beta_c : Tensor
        Those of the cell state, (D, H).
    sequence_lens : Tensor, other integer array or sequence of int, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial_h, initial_c : Tensor, optional
        Initial states, (D, N, H); zero where left out.
    epsilon, direction, activations, activation_alpha, activation_beta, clip, layout
        The attributes of `xpgrad.layer_norm_lstm`.
    save : "all", "states" or int
        As in `lstm`; ``"all"`` is 16H + 3 numbers a step and sequence.

    Returns
    -------
    H_all, H_t, C_t, C_all : Tensor
        The hidden states (T, D, N, H), the states at each sequence's end (D, N, H), the cell states
        (T, D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks the operator's rules.

    Notes
    -----
    Source: Ba, Kiros, Hinton, "Layer normalization" (2016).

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import layer_norm_lstm
    >>> X, W, R = torch.randn(7, 2, 3), torch.randn(1, 20, 3), torch.randn(1, 20, 5)
    >>> gamma, beta = torch.ones(1, 2, 20, requires_grad=True), torch.zeros(1, 2, 20)
    >>> H_all, H_t, C_t, C_all = layer_norm_lstm(
    ...     X, W, R, None, gamma, beta, torch.ones(1, 5), torch.zeros(1, 5)
    ... )
    >>> H_all.sum().backward()
    >>> gamma.grad.shape
    torch.Size([1, 2, 20])
    """
    attributes = sequence_attributes(direction, activations, activation_alpha, activation_beta, clip, layout)
    attributes |= {"epsilon": epsilon}
    lengths = lengths_tensor("layer_norm_lstm", "sequence_lens", sequence_lens)
    operands = (X, W, R, B, gamma, beta, gamma_c, beta_c, lengths, initial_h, initial_c)
    return apply_sequence(_LAYER_NORM_LSTM, operands, attributes, save)  # type: ignore[return-value]


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
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    save: str | int = "all",
) -> tuple[Tensor, Tensor]:
    """The GRU with layer normalization as a differentiable function of PyTorch tensors.

    What it computes, and what each attribute does, is described in `xpgrad.layer_norm_gru`; the gradient is
    `xpgrad.layer_norm_gru_grad`. As with `lstm`, only what requires a gradient is computed, and the gradient
    is itself differentiable.

    Parameters
    ----------
    X : Tensor
        Input, (T, N, I).
    W, R : Tensor
        Input weights (D, 3H, I) and recurrence weights (D, 3H, H), gates in the order z r h.
    B : Tensor or None
        Biases, (D, 6H): the input's, then the recurrence's.
    gamma, beta : Tensor
        Scales and shifts of the input's and of the recurrent product, (D, 2, 3H).
    sequence_lens : Tensor, other integer array or sequence of int, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial_h : Tensor, optional
        Initial state, (D, N, H); zero where left out.
    epsilon, direction, activations, activation_alpha, activation_beta, clip, layout
        The attributes of `xpgrad.layer_norm_gru`.
    save : "all", "states" or int
        As in `lstm`; ``"all"`` is 10H + 2 numbers a step and sequence.

    Returns
    -------
    H_all, H_t : Tensor
        The hidden states (T, D, N, H), and the one at each sequence's end (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks the operator's rules.

    Notes
    -----
    Source: Ba, Kiros, Hinton, "Layer normalization" (2016).

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import layer_norm_gru
    >>> X, W, R = torch.randn(7, 2, 3), torch.randn(1, 15, 3), torch.randn(1, 15, 5)
    >>> gamma, beta = torch.ones(1, 2, 15, requires_grad=True), torch.zeros(1, 2, 15)
    >>> H_all, H_t = layer_norm_gru(X, W, R, None, gamma, beta)
    >>> H_all.sum().backward()
    >>> gamma.grad.shape
    torch.Size([1, 2, 15])
    """
    attributes = sequence_attributes(direction, activations, activation_alpha, activation_beta, clip, layout)
    attributes |= {"epsilon": epsilon}
    lengths = lengths_tensor("layer_norm_gru", "sequence_lens", sequence_lens)
    operands = (X, W, R, B, gamma, beta, lengths, initial_h)
    return apply_sequence(_LAYER_NORM_GRU, operands, attributes, save)  # type: ignore[return-value]


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
    peephole: str = "full",
) -> tuple[Tensor, Tensor]:
    """One step of `lstm`, for loops of one's own.

    The step is `xpgrad.lstm_cell`, its gradient `xpgrad.lstm_cell_grad`.

    Parameters
    ----------
    X : Tensor
        The step's input, (N, I).
    H, C : Tensor
        The states before the step, (N, H).
    W, R : Tensor
        Weights (4H, I) and (4H, H), rows in order i o f c.
    B : Tensor, optional
        Biases, (8H,): the input's, then the recurrence's.
    P : Tensor, optional
        Peephole weights, (3H,), in order i o f.
    activations, activation_alpha, activation_beta, clip, input_forget, peephole
        As for one direction of `lstm`.

    Returns
    -------
    H_next, C_next : Tensor
        The states after the step, (N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator LSTM of the ONNX specification, version 14.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import lstm_cell
    >>> X, H, C = torch.randn(2, 3), torch.zeros(2, 5), torch.zeros(2, 5)
    >>> W, R = torch.randn(20, 3, requires_grad=True), torch.randn(20, 5)
    >>> H, C = lstm_cell(X, H, C, W, R)
    >>> H.sum().backward()
    >>> W.grad.shape
    torch.Size([20, 3])
    """
    attributes = {
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "clip": clip,
        "input_forget": input_forget,
    }
    H_next, C_next = apply(_LSTM_CELL, (X, H, C, W, R, B, P), attributes, peephole=peephole)
    return H_next, C_next


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
    """One step of `gru`, for loops of one's own.

    The step is `xpgrad.gru_cell`, its gradient `xpgrad.gru_cell_grad`.

    Parameters
    ----------
    X : Tensor
        The step's input, (N, I).
    H : Tensor
        The state before the step, (N, H).
    W, R : Tensor
        Weights (3H, I) and (3H, H), rows in order z r h.
    B : Tensor, optional
        Biases, (6H,): the input's, then the recurrence's.
    activations, activation_alpha, activation_beta, clip, linear_before_reset
        As for one direction of `gru`.

    Returns
    -------
    H_next : Tensor
        The state after the step, (N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator GRU of the ONNX specification, version 14.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import gru_cell
    >>> X, H = torch.randn(2, 3), torch.zeros(2, 5)
    >>> W, R = torch.randn(15, 3, requires_grad=True), torch.randn(15, 5)
    >>> gru_cell(X, H, W, R, linear_before_reset=1).sum().backward()
    >>> W.grad.shape
    torch.Size([15, 3])
    """
    attributes = {
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "clip": clip,
        "linear_before_reset": linear_before_reset,
    }
    (H_next,) = apply(_GRU_CELL, (X, H, W, R, B), attributes)
    return H_next


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
    """One step of `rnn`, for loops of one's own.

    The step is `xpgrad.rnn_cell`, its gradient `xpgrad.rnn_cell_grad`.

    Parameters
    ----------
    X : Tensor
        The step's input, (N, I).
    H : Tensor
        The state before the step, (N, H).
    W, R : Tensor
        Weights (H, I) and (H, H).
    B : Tensor, optional
        Biases, (2H,): the input's, then the recurrence's.
    activations, activation_alpha, activation_beta, clip
        As for one direction of `rnn`.

    Returns
    -------
    H_next : Tensor
        The state after the step, (N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks ONNX's rules.

    Notes
    -----
    Source: the operator RNN of the ONNX specification, version 14.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import rnn_cell
    >>> X, H = torch.randn(2, 3), torch.zeros(2, 5)
    >>> W, R = torch.randn(5, 3, requires_grad=True), torch.randn(5, 5)
    >>> rnn_cell(X, H, W, R).sum().backward()
    >>> W.grad.shape
    torch.Size([5, 3])
    """
    attributes = {
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "clip": clip,
    }
    (H_next,) = apply(_RNN_CELL, (X, H, W, R, B), attributes)
    return H_next
