"""xpgrad's operators as differentiable functions of PyTorch tensors, in ONNX's shapes and gate orders."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import xpgrad

__all__ = ["lstm"]

# The arguments of `xpgrad.lstm` in the order in which `_LSTM.apply` takes them.
_OPERANDS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


class _LSTM(torch.autograd.Function):
    """`xpgrad.lstm` with `xpgrad.lstm_grad` as its backward.

    C_all and iofc are outputs, not attributes of the context, so that autograd owns and frees them.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        *operands, attributes, _ = args
        return tuple(xpgrad.lstm(*operands, **attributes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *operands, attributes, peephole = inputs
        H_all, _, _, C_all, iofc = output
        ctx.save_for_backward(*operands, H_all, C_all, iofc)
        ctx.mark_non_differentiable(C_all, iofc)
        ctx.set_materialize_grads(False)
        ctx.attributes, ctx.peephole = attributes, peephole

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        *tensors, H_all, C_all, iofc = ctx.saved_tensors
        operands = dict(zip(_OPERANDS, tensors, strict=True))
        saved = {"H_all": H_all, "C_all": C_all, "iofc": iofc}
        asked = {
            **dict(zip(("grad_H_all", "grad_H_t", "grad_C_t"), cotangents, strict=False)),
            "wrt": tuple(name for name, need in zip(_OPERANDS, ctx.needs_input_grad, strict=False) if need),
            "peephole": ctx.peephole,
        }
        if not torch.is_grad_enabled():
            grads = xpgrad.lstm_grad(**operands, **saved, **ctx.attributes, **asked)
        else:
            # create_graph=True: the gradients must carry a graph themselves. The standard engine consists of
            # differentiable operators; the saved arrays are functions of the operands, so make them anew.
            with xpgrad.use_engine("standard"):
                again = xpgrad.lstm(**operands, **ctx.attributes)
                saved = {"H_all": again.H_all, "C_all": again.C_all, "iofc": again.iofc}
                grads = xpgrad.lstm_grad(**operands, **saved, **ctx.attributes, **asked)
        dX, dW, dR, dB, dH0, dC0, dP = grads
        return dX, dW, dR, dB, None, dH0, dC0, dP, None, None


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
    operands = (X, W, R, B, sequence_lens, initial_h, initial_c, P)
    for name, operand in zip(_OPERANDS, operands, strict=True):
        if not isinstance(operand, Tensor) and (operand is not None or name in ("X", "W", "R")):
            raise TypeError(f"lstm: {name} is {type(operand).__name__}, expected torch.Tensor")
    # The kernel's forward does not know this attribute, and the backward is late for an error.
    if peephole not in ("full", "truncated"):
        raise ValueError(f"lstm: peephole is {peephole!r}, expected 'full' or 'truncated'")
    attributes = {
        "direction": direction,
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "clip": clip,
        "input_forget": input_forget,
        "layout": layout,
    }
    H_all, H_t, C_t, _, _ = _LSTM.apply(*operands, attributes, peephole)
    return H_all, H_t, C_t
