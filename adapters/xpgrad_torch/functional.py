"""xpgrad's operators as differentiable functions of PyTorch tensors, in ONNX's shapes and gate orders."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import xpgrad

__all__ = ["gru", "gru_cell", "lstm", "lstm_cell"]


class _Kernel:
    """What autograd has to know of a kernel of xpgrad and of its gradient.

    Parameters
    ----------
    name : str
        The kernel's name; with ``_grad`` behind it, the gradient's.
    outputs : type
        The kernel's named tuple, those outputs first that have a cotangent.
    saved : tuple of str
        The outputs that the gradient takes.
    cotangents : tuple of str
        The gradient's names for the cotangents of the first outputs.
    """

    def __init__(self, name: str, outputs: Any, saved: tuple[str, ...], cotangents: tuple[str, ...]) -> None:
        parameters = inspect.signature(getattr(xpgrad, name)).parameters.values()
        operands = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.name = name
        self.operands = tuple(p.name for p in operands)
        self.required = {p.name for p in operands if p.default is p.empty}
        # What has a gradient, in the order in which the gradient returns them.
        self.differentiable = tuple(name for name in self.operands if name != "sequence_lens")
        self.outputs: tuple[str, ...] = outputs._fields
        self.saved, self.cotangents = saved, cotangents

    def forward(self, *operands: Any, **attributes: Any) -> Any:
        """Run the kernel."""
        return getattr(xpgrad, self.name)(*operands, **attributes)

    def gradient(self, **arguments: Any) -> dict[str, Tensor | None]:
        """Run the gradient, and name what it returns after the operands."""
        grads = getattr(xpgrad, f"{self.name}_grad")(**arguments)
        return dict(zip(self.differentiable, grads, strict=True))

    def check(self, operands: Sequence[Any]) -> None:
        """Raise TypeError for an operand that is no tensor."""
        for name, operand in zip(self.operands, operands, strict=True):
            if not isinstance(operand, Tensor) and (operand is not None or name in self.required):
                raise TypeError(f"{self.name}: {name} is {type(operand).__name__}, expected torch.Tensor")


_LSTM = _Kernel(
    "lstm", xpgrad.LSTMForward, ("H_all", "C_all", "iofc"), ("grad_H_all", "grad_H_t", "grad_C_t")
)
_GRU = _Kernel("gru", xpgrad.GRUForward, ("H_all", "zrh"), ("grad_H_all", "grad_H_t"))
_LSTM_CELL = _Kernel("lstm_cell", xpgrad.LSTMCellForward, ("C_next", "iofc"), ("grad_H", "grad_C"))
_GRU_CELL = _Kernel("gru_cell", xpgrad.GRUCellForward, ("zrh",), ("grad_H",))


class _XpgradKernel(torch.autograd.Function):
    """A kernel with its gradient as the backward.

    Its arguments are a `_Kernel`, the operands, the attributes of both, and those of the gradient alone. What
    is saved are outputs, not attributes of the context, so that autograd owns and frees them.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        kernel, *operands, attributes, _ = args
        return tuple(kernel.forward(*operands, **attributes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *operands, attributes, asked = inputs
        outputs = dict(zip(kernel.outputs, output, strict=True))
        ctx.save_for_backward(*operands, *(outputs[name] for name in kernel.saved))
        ctx.mark_non_differentiable(*output[len(kernel.cotangents) :])
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.attributes, ctx.asked = kernel, attributes, asked

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        kernel = ctx.kernel
        tensors = dict(zip((*kernel.operands, *kernel.saved), ctx.saved_tensors, strict=True))
        operands = {name: tensors[name] for name in kernel.operands}
        saved = {name: tensors[name] for name in kernel.saved}
        needs = ctx.needs_input_grad[1 : len(operands) + 1]
        asked = {
            **ctx.attributes,
            **ctx.asked,
            **dict(zip(kernel.cotangents, cotangents, strict=False)),
            "wrt": tuple(name for name, need in zip(kernel.operands, needs, strict=True) if need),
        }
        if not torch.is_grad_enabled():
            grads = kernel.gradient(**operands, **saved, **asked)
        else:
            # create_graph=True: the gradients must carry a graph themselves. The standard engine consists of
            # differentiable operators; the saved arrays are functions of the operands, so make them anew.
            with xpgrad.use_engine("standard"):
                again = kernel.forward(**operands, **ctx.attributes)
                saved = {name: getattr(again, name) for name in kernel.saved}
                grads = kernel.gradient(**operands, **saved, **asked)
        return None, *(grads.get(name) for name in kernel.operands), None, None


def _apply(
    kernel: _Kernel, operands: Sequence[Tensor | None], attributes: dict[str, Any], **asked: Any
) -> tuple[Tensor, ...]:
    """Return the kernel's outputs that have a cotangent; `asked` are attributes of the gradient alone."""
    kernel.check(operands)
    # The kernel's forward does not know this attribute, and the backward is late for an error.
    if asked.get("peephole", "full") not in ("full", "truncated"):
        raise ValueError(f"{kernel.name}: peephole is {asked['peephole']!r}, expected 'full' or 'truncated'")
    outputs = _XpgradKernel.apply(kernel, *operands, attributes, asked)
    return tuple(outputs[: len(kernel.cotangents)])


def lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
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
    peephole: str = "full",
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
    sequence_lens : Tensor, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial_h, initial_c : Tensor, optional
        Initial states, (D, N, H); zero where left out.
    P : Tensor, optional
        Peephole weights, (D, 3H), in order i o f.
    direction, activations, activation_alpha, activation_beta, clip, input_forget, layout
        The attributes of `xpgrad.lstm`.
    peephole : {"full", "truncated"}
        ``"full"`` is the true gradient. ``"truncated"`` leaves out the path from the peepholes into the cell
        state, as ONNX Runtime's LSTMGrad does.

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
    attributes = {
        "direction": direction,
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "clip": clip,
        "input_forget": input_forget,
        "layout": layout,
    }
    operands = (X, W, R, B, sequence_lens, initial_h, initial_c, P)
    H_all, H_t, C_t = _apply(_LSTM, operands, attributes, peephole=peephole)
    return H_all, H_t, C_t


def gru(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
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
    sequence_lens : Tensor, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial_h : Tensor, optional
        Initial state, (D, N, H); zero where left out.
    direction, activations, activation_alpha, activation_beta, clip, layout
        The attributes of `xpgrad.gru`.
    linear_before_reset : {0, 1}
        Where the reset gate multiplies: 1 behind the recurrent product, as in `torch.nn.GRU`; 0 in front of
        it, ONNX's default.

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
    attributes = {
        "direction": direction,
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "clip": clip,
        "linear_before_reset": linear_before_reset,
        "layout": layout,
    }
    H_all, H_t = _apply(_GRU, (X, W, R, B, sequence_lens, initial_h), attributes)
    return H_all, H_t


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
    H_next, C_next = _apply(_LSTM_CELL, (X, H, C, W, R, B, P), attributes, peephole=peephole)
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
    (H_next,) = _apply(_GRU_CELL, (X, H, W, R, B), attributes)
    return H_next
