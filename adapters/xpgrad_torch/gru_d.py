"""GRU-D, two cells in sequence, each with its own gradient: the function and the layer."""

from collections.abc import Sequence
from typing import Any, cast

import array_api_compat.torch as xp
import torch
from torch import Tensor, nn

from xpgrad._operators.for_adapters import GRU_D_FILL, GRU_D_GRU, GRUDCall
from xpgrad_torch._fx import Proxy, as_node
from xpgrad_torch._kernel import type_of
from xpgrad_torch._sequence_layer import SequenceLayer, check_sizes
from xpgrad_torch.cells import kernel_of, run_cell

__all__ = ["GRUD"]


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

    The gradient is itself differentiable, then in PyTorch's own operators.

    Parameters
    ----------
    X, mask, delta, W, R, decay_x, decay_h, B, mean, sequence_lens, initial_h
        As `xpgrad.gru_d` takes them; arrays are tensors. The mask has no gradient.
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
        If an operand is not a tensor, or operands differ in dtype or device.
    ValueError
        If a shape or an attribute breaks the operator's rules.

    See Also
    --------
    xpgrad.gru_d : The equations and their source.

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
    known = xp if torch.compiler.is_compiling() else None
    call = GRUDCall("gru_d", operands, sequence_lens, direction, layout, reset, known)
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
    return call.rounded(call.turned(H_all)), call.rounded(call.turned(H_t))


class GRUD(SequenceLayer):
    """GRU-D for series with missing values; `xpgrad.gru_d` has the equations.

    It is called as ``layer(values, mask, delta, hx=None, lengths=None, reset=None)``.

    Parameters
    ----------
    input_size, hidden_size : int
        I and H.
    mean : Tensor, optional
        Each variable's mean, (I,), a buffer of the layer; zero by default.
    bias : bool
        Whether there are biases B.
    batch_first : bool
        Whether input and output are (N, T, ...).
    bidirectional : bool
        Whether a second set of parameters runs from the sequences' ends.
    device, dtype
        Of the parameters.
    save : {"all", "states"}
        What is kept for the gradient; see `xpgrad_torch.run_cell`.

    Attributes
    ----------
    W, R, B, decay_x, decay_h : Parameter
        As `xpgrad.gru_d` has them, gates in the order z r h, drawn as in `torch.nn.GRU`.
    mean : Tensor
        (I,).

    Raises
    ------
    ValueError, TypeError
        From the constructor and from a call, if a size or an attribute breaks the operator's rules.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch import GRUD
    >>> values, delta = torch.randn(7, 2, 3), torch.rand(7, 2, 3)
    >>> mask = (torch.rand(7, 2, 3) < 0.5).float()
    >>> output, h_n = GRUD(3, 5)(values, mask, delta, lengths=[7, 4])
    >>> output.shape, h_n.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    W: Tensor
    R: Tensor
    B: Tensor | None
    decay_x: Tensor
    decay_h: Tensor
    mean: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        mean: Tensor | None = None,
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        save: str = "all",
    ) -> None:
        check_sizes("GRUD", input_size, hidden_size)
        for cell in (GRU_D_FILL, GRU_D_GRU):
            kernel_of(cell)  # torch.compile cannot register them
        I, H = input_size, hidden_size
        shapes: dict[str, tuple[int, ...] | None] = {"W": (3 * H, 2 * I), "R": (3 * H, H)}
        shapes |= {"B": (3 * H,) if bias else None, "decay_x": (2, I), "decay_h": (H, I + 1)}
        options: dict[str, Any] = {"bidirectional": bidirectional, "batch_first": batch_first, "save": save}
        super().__init__(I, H, shapes, **options, device=device, dtype=dtype)
        if mean is not None and (not isinstance(mean, Tensor) or mean.shape != (I,)):
            shown = tuple(mean.shape) if isinstance(mean, Tensor) else type_of(mean)
            raise ValueError(f"GRUD: mean is {shown}, expected a tensor of shape (I,) = ({I},)")
        zeros = torch.zeros(I, device=device, dtype=dtype)
        self.register_buffer("mean", zeros if mean is None else mean.to(zeros))

    def _kernel_parameters(self) -> list[nn.Parameter]:
        return []  # the kernels take parts of them

    def forward(  # type: ignore[override]  # SequenceLayer has no names for further inputs
        self,
        values: Tensor,
        mask: Tensor,
        delta: Tensor,
        hx: Tensor | None = None,
        lengths: Any = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer over a batch of series.

        Parameters
        ----------
        values, mask, delta : Tensor
            (T, N, I), (N, T, I) where `batch_first`, or (T, I) for a single series: values, 1 for an observed
            value and 0 for a missing one, and the time since each variable's last observation.
        hx : Tensor, optional
            Initial state (D, N, H), without N for a single series; default zeros.
        lengths : Tensor or sequence of int, optional
            Length of each series, (N,).
        reset : Tensor, optional
            Booleans (T, N), (N, T) where `batch_first`, or (T,): the state starts at zero before these steps,
            and the last value is forgotten.

        Returns
        -------
        output, h_n : Tensor
            The state over time, (T, N, D·H), (N, T, D·H) or (T, D·H), and at the ends, (D, N, H) or (D, H).
        """
        if isinstance(values, Proxy):
            return as_node(self, values, mask, delta, hx, lengths, reset)
        return super().forward(values, hx, lengths, reset, mask=mask, delta=delta)

    def _input_names(self) -> tuple[str, ...]:
        return ("mask", "delta")

    def _run(
        self, X: Tensor, initial: Sequence[Tensor | None] | None, lengths: Any, **inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (begin,) = initial or (None,)
        H_all, H_t = gru_d(
            X, inputs["mask"], inputs["delta"], self.W, self.R, self.decay_x, self.decay_h, self.B,
            self.mean.expand(len(self.W), -1), lengths, begin, direction=self._direction,
            save=cast(str, self.save),
        )  # fmt: skip
        return H_all, (H_t,)
