"""GRU-D as a function: two cells one behind the other, each with its own gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from xpgrad._operators.for_adapters import GRU_D_FILL, GRU_D_GRU, GRUDCall
from xpgrad_torch.cells import run_cell

__all__ = ["gru_d"]


def gru_d(
    X: Tensor,
    mask: Tensor,
    delta: Tensor,
    W: Tensor,
    R: Tensor,
    decay_x: Tensor,
    decay_h: Tensor,
    B: Tensor | None = None,
    mean: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    *,
    direction: str = "forward",
    layout: int = 0,
    reset: Tensor | None = None,
    save: str = "all",
) -> tuple[Tensor, Tensor]:
    """GRU-D as a differentiable function of PyTorch tensors.

    What it computes, and what each attribute does, is described in `xpgrad.gru_d`. The gradient is itself
    differentiable, then through PyTorch's own operators.

    Parameters
    ----------
    X, mask, delta : Tensor
        Values, 1 where one was observed and 0 where none was, and the time since each variable's last
        observation, (T, N, I). The mask has no gradient.
    W, R : Tensor
        Weights, (D, 3H, 2I) and (D, 3H, H). The rows are in order z r h.
    decay_x, decay_h : Tensor
        The decays of input and state, (D, 2, I) and (D, H, I + 1).
    B, mean : Tensor, optional
        Biases, (D, 3H), and each variable's mean, (D, I).
    sequence_lens : Tensor or sequence of int, optional
        Length of each sequence, (N,), from 0 to T; integers.
    initial_h : Tensor, optional
        Initial hidden state, (D, N, H); zero where left out.
    direction, layout, reset
        The attributes of `xpgrad.gru_d`.
    save : {"all", "states"}
        As of `run_cell`.

    Returns
    -------
    H_all : Tensor
        Hidden states, (T, D, N, H).
    H_t : Tensor
        Hidden state at each sequence's end, (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks the operator's rules.

    Notes
    -----
    Source: Che and others, "Recurrent neural networks for multivariate time series with missing values"
    (2018).

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch.functional import gru_d
    >>> X, delta = torch.randn(7, 2, 3), torch.rand(7, 2, 3)
    >>> mask = (torch.rand(7, 2, 3) < 0.5).float()
    >>> R = torch.randn(1, 12, 4, requires_grad=True)
    >>> weights = torch.randn(1, 12, 6), R, torch.randn(1, 2, 3), torch.randn(1, 4, 4)
    >>> H_all, H_t = gru_d(X, mask, delta, *weights)
    >>> H_t.sum().backward()
    >>> R.grad.shape
    torch.Size([1, 12, 4])
    """
    operands = {
        "X": X, "mask": mask, "delta": delta, "W": W, "R": R, "decay_x": decay_x, "decay_h": decay_h, "B": B,
        "mean": mean, "initial_h": initial_h,
    }  # fmt: skip
    for name, x in operands.items():
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"gru_d: {name} is {type(x).__name__}, expected torch.Tensor")
    if isinstance(mask, Tensor) and mask.requires_grad:
        raise ValueError("gru_d: mask requires a gradient, expected a mask, which has none")
    call = GRUDCall("gru_d", operands, sequence_lens, direction, layout, reset)
    parts = []
    for d in range(len(call.directions)):
        options: dict[str, Any] = {**call.options(d), "save": save}
        lengths = options.pop("sequence_lens")
        filled, *_ = run_cell(
            GRU_D_FILL, call.arrays["X"], None, None, call.vectors(d), lengths, **options, **call.inputs()
        )
        H_all, H_t = run_cell(
            GRU_D_GRU, call.second_input(filled), call.of("W", d), call.of("R", d), call.bias(d), lengths,
            [call.of("initial_h", d)], **options, gap=call.gap(d),
        )  # fmt: skip
        parts.append((H_all, H_t))
    H_all, H_t = (torch.cat(each, dim) for each, dim in zip(zip(*parts, strict=True), (1, 0), strict=True))
    return call.turned(H_all), call.turned(H_t)
