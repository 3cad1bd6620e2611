"""`xpgrad.Cell` in PyTorch: as a differentiable function of tensors, and as a layer."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import xpgrad
from xpgrad_torch._autograd import apply, autocasts
from xpgrad_torch._kernel import Kernel
from xpgrad_torch._library import registered
from xpgrad_torch._memory import check_save
from xpgrad_torch.functional import lengths_tensor

_kernels: dict[xpgrad.Cell, Kernel] = {}
_number = itertools.count()


def _kernel_of(cell: xpgrad.Cell) -> Kernel:
    """Return what PyTorch has to know of a cell; made when it is first used here."""
    if not isinstance(cell, xpgrad.Cell):
        raise TypeError(f"run_cell: cell is {type(cell).__name__}, expected xpgrad.Cell")
    found = _kernels.get(cell)
    if found is None:
        counts = {kind: len(names) for kind, names in cell.blocks.items()}
        tails = {"W": " I", "R": " H", "v": ""}
        shapes = {kind: f"D {count}H{tails[kind]}" for kind, count in counts.items()}
        shapes |= {"X": "T N I", "sequence_lens": "N"}
        shapes |= {f"initial_{state}": "D N H" for state in cell.carried}
        shapes |= {name: "T D N H" if name.endswith("_all") else "D N H" for name in cell.cotangents}
        kept = {name: width for name, width in cell.saved.items() if name not in cell.cotangents}
        shapes |= {name: f"T D N {f'{width}H' if width > 0 else -width}" for name, width in kept.items()}
        found = _kernels[cell] = registered(
            Kernel(
                cell.__name__,
                cell.outputs,
                tuple(cell.cotangents.values()),
                shapes=shapes,
                ordered=True,
                operator=f"cell_{cell.__name__}_{next(_number)}",
                functions=(cell, cell.grad),
            )
        )
    return found


def run_cell(
    cell: xpgrad.Cell,
    X: Tensor,
    W: Tensor,
    R: Tensor | None = None,
    v: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial: Sequence[Tensor | None] | None = None,
    *,
    direction: str = "forward",
    layout: int = 0,
    save: str = "all",
) -> tuple[Tensor, ...]:
    """Run a cell of one's own as a differentiable function of PyTorch tensors.

    What a cell computes is described in `xpgrad.Cell`. Only what requires a gradient is computed, and the
    gradient is itself differentiable, then through PyTorch's own operators.

    Parameters
    ----------
    cell : xpgrad.Cell
        The cell.
    X : Tensor
        Input, (T, N, I).
    W, R, v : Tensor
        The cell's parameters, (D, k·H, I), (D, k·H, H), (D, k·H) for k blocks each; None for those that it
        does not have.
    sequence_lens : Tensor, other integer array or sequence of int, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial : sequence of Tensor, optional
        The initial value of each state that the cell's step reads, (D, N, H); zero where left out or None.
    direction, layout
        As of the cell.
    save : {"all", "states"}
        What is kept for the gradient: ``"all"``, what the cell saves; ``"states"``, the operands alone, and
        the gradient runs the cell again.

    Returns
    -------
    tuple of Tensor
        Each state over time (T, D, N, H), then each state at the sequences' ends (D, N, H).

    Raises
    ------
    TypeError
        Where an operand is no tensor, or the operands differ in dtype or device.
    ValueError
        Where a shape or an attribute breaks the cell's rules.

    Examples
    --------
    >>> import torch
    >>> import xpgrad
    >>> from xpgrad_torch import run_cell
    >>> def elman(xp, x, h, W, R):
    ...     return xp.tanh(W.z(x) + R.z(h))
    >>> cell = xpgrad.Cell(elman, W="z", R="z")
    >>> R = torch.randn(1, 5, 5, requires_grad=True)
    >>> H_all, H_t = run_cell(cell, torch.randn(7, 2, 3), torch.randn(1, 5, 3), R)
    >>> H_t.sum().backward()
    >>> R.grad.shape
    torch.Size([1, 5, 5])
    """
    kernel, name = _kernel_of(cell), cell.__name__
    check_save(name, save)
    if save not in ("all", "states"):
        raise ValueError(f"{name}: save is {save!r}, expected 'all' or 'states'")
    parameters: dict[str, Any] = {"W": W, "R": R, "v": v}
    for kind, parameter in parameters.items():
        if parameter is not None and not cell.blocks[kind]:
            raise TypeError(f"{name}: {kind} is given, expected None: the cell has no blocks of it")
    states = [None] * len(cell.carried) if initial is None else list(initial)
    if len(states) != len(cell.carried):
        raise ValueError(
            f"{name}: initial has {len(states)} tensors, expected {len(cell.carried)}: "
            f"{', '.join(cell.carried)}"
        )
    lengths = lengths_tensor(name, "sequence_lens", sequence_lens)
    operands = {"X": X, **parameters, "sequence_lens": lengths}
    operands |= {f"initial_{state}": array for state, array in zip(cell.carried, states, strict=True)}
    ordered = [operands[one] for one in kernel.operands]
    return apply(kernel, ordered, {"direction": direction, "layout": layout}, again=save == "states")


class CellLayer(nn.Module):
    """A layer of a cell of one's own, over sequences, in one or two directions.

    Parameters
    ----------
    cell : xpgrad.Cell
        The cell.
    input_size, hidden_size : int
        I and H.
    bidirectional : bool
        Whether a second set of parameters runs from the sequences' ends.
    batch_first : bool
        Whether input and output are (N, T, ...).
    save : {"all", "states"}
        As of `run_cell`.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    W, R, v : Parameter
        (D, k·H, I), (D, k·H, H), (D, k·H) for k blocks each, those that the cell has. They begin uniform
        between -1/sqrt(H) and 1/sqrt(H), as those of `torch.nn.LSTM`.

    Examples
    --------
    >>> import torch
    >>> import xpgrad
    >>> from xpgrad_torch import CellLayer
    >>> def elman(xp, x, h, W, R, v):
    ...     return xp.tanh(W.z(x) + R.z(h) + v.z)
    >>> layer = CellLayer(xpgrad.Cell(elman, W="z", R="z", v="z"), 3, 5)
    >>> output, h_n = layer(torch.randn(7, 2, 3), lengths=[7, 4])
    >>> output.shape, h_n.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    W: Tensor

    def __init__(
        self,
        cell: xpgrad.Cell,
        input_size: int,
        hidden_size: int,
        *,
        bidirectional: bool = False,
        batch_first: bool = False,
        save: str = "all",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _kernel_of(cell)
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"CellLayer: {name} is {size!r}, expected an integer from 1 on")
        if save not in ("all", "states"):
            raise ValueError(f"CellLayer: save is {save!r}, expected 'all' or 'states'")
        self.cell, self.input_size, self.hidden_size = cell, input_size, hidden_size
        self.bidirectional, self.batch_first, self.save = bidirectional, batch_first, save
        D = 2 if bidirectional else 1
        tails = {"W": (input_size,), "R": (hidden_size,), "v": ()}
        for kind, names in cell.blocks.items():
            if names:
                rows = torch.empty((D, len(names) * hidden_size, *tails[kind]), device=device, dtype=dtype)
                self.register_parameter(kind, nn.Parameter(rows))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        extra = ", bidirectional=True" if self.bidirectional else ""
        extra += ", batch_first=True" if self.batch_first else ""
        return f"{self.cell}, {self.input_size}, {self.hidden_size}{extra}"

    def forward(
        self,
        input: Tensor,  # noqa: A002, PyTorch's name for it
        hx: Tensor | Sequence[Tensor | None] | None = None,
        lengths: Any = None,
    ) -> tuple[Tensor, Any]:
        """Run the layer over a batch of sequences.

        Parameters
        ----------
        input : Tensor
            (T, N, I), or (N, T, I) where `batch_first`.
        hx : Tensor or sequence of Tensor, optional
            Initial values (D, N, H) of the states that the step reads, of several a sequence; default zeros.
        lengths : Tensor or sequence of int, optional
            Length of each sequence, (N,).

        Returns
        -------
        output : Tensor
            The first state over time, (T, N, D·H) or (N, T, D·H).
        finals : Tensor or tuple of Tensor
            The states at the sequences' ends (D, N, H), of one state alone it.
        """
        if not isinstance(input, Tensor) or input.dim() != 3:
            got = f"{input.dim()} dimensions" if isinstance(input, Tensor) else type(input).__name__
            raise ValueError(f"CellLayer: input has {got}, expected a tensor of 3: time, batch, features")
        X = input.transpose(0, 1) if self.batch_first else input
        initial = [hx] if isinstance(hx, Tensor) else hx
        W = self.W
        if autocasts(X):
            X = X.to(W.dtype)
            initial = None if initial is None else [s if s is None else s.to(W.dtype) for s in initial]
        outputs = run_cell(
            self.cell, X, W, getattr(self, "R", None), getattr(self, "v", None), lengths, initial,
            direction="bidirectional" if self.bidirectional else "forward", save=self.save,
        )  # fmt: skip
        output, finals = outputs[0].transpose(1, 2).flatten(2), outputs[len(self.cell.states) :]
        if self.batch_first:
            output = output.transpose(0, 1)
        return output, finals if len(finals) > 1 else finals[0]
