"""`xpgrad.Cell` in PyTorch: as a differentiable function of tensors, and as a layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

import xpgrad
from xpgrad._operators.axes import axes_of_cell
from xpgrad._operators.words import Saved, TimeDirection
from xpgrad.engine.process.locks import LastingLock
from xpgrad_torch._autograd import apply
from xpgrad_torch._kernel import TorchKernel
from xpgrad_torch._lengths import lengths_tensor, with_resets
from xpgrad_torch._library import MOST_ARGUMENTS, count_arguments, registered
from xpgrad_torch._memory import check_save
from xpgrad_torch._sequence_layer import SequenceLayer, check_sizes

_kernels: dict[str, TorchKernel] = {}  # by the names of their operators, which PyTorch keeps forever
_registering = LastingLock()


def kernel_of(cell: xpgrad.Cell) -> TorchKernel:
    """Return the kernel of a cell and of all equal cells, which the first use makes."""
    if not isinstance(cell, xpgrad.Cell):
        raise TypeError(f"run_cell: cell is {type(cell).__name__}, expected xpgrad.Cell")
    # Exported programs and compilers' caches keep the name: a formula has the same in each process.
    operator = f"cell_{cell.__name__}_{cell.digest}"
    found = _kernels.get(operator)
    if found is None:
        with _registering.own:
            found = _kernels[operator] = _kernels.get(operator) or _made(cell, operator)
    return found


def _made(cell: xpgrad.Cell, operator: str) -> TorchKernel:
    """Return a new kernel for the cell, and register its operators under this name."""
    kernel = TorchKernel(cell.__name__, shapes=axes_of_cell(cell), planned=True, operator=operator, cell=cell)
    if (count := count_arguments(kernel)) > MOST_ARGUMENTS:
        raise ValueError(
            f"{cell.__name__}: {len(cell.states)} states make {count} arguments of the gradient's operator, "
            f"expected at most {MOST_ARGUMENTS} in PyTorch"
        )
    return registered(kernel)


def run_cell(
    cell: xpgrad.Cell,
    X: Tensor,
    W: Tensor | None,
    R: Tensor | None = None,
    v: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial: Sequence[Tensor | None] | None = None,
    *,
    direction: TimeDirection = "forward",
    layout: int = 0,
    reset: Tensor | None = None,
    save: Saved = "all",
    **inputs: Tensor,
) -> tuple[Tensor, ...]:
    """Run your own cell as a differentiable function of PyTorch tensors.

    `xpgrad.Cell` describes cells. Gradients are computed only for operands that require one. They are
    themselves differentiable, then in PyTorch's own operators.

    Parameters
    ----------
    cell : xpgrad.Cell
        The cell.
    X : Tensor
        Input, (T, N, I).
    W, R, v : Tensor
        The cell's parameters, (D, k·H, I), (D, k·H, H), (D, k·H) for k blocks each; None for a parameter
        that the cell does not have.
    sequence_lens : Tensor, other integer array or sequence of int, optional
        Length of each sequence, (N,), integers from 0 to T.
    initial : sequence of Tensor, optional
        The initial value of each state that the cell's step reads, (D, N, H); None for zeros.
    direction, layout
        As of the cell.
    reset : Tensor, optional
        Booleans (T, N), in layout 1 (N, T): the states start at zero before these steps.
    save : {"all", "states"}
        What is kept for the gradient: with ``"all"`` the values that the cell saves; with ``"states"``
        only the operands, and the gradient runs the cell again.
    **inputs : Tensor
        The cell's further inputs by name, (T, N, H), (T, N, 1), or (T, N, k·H) for k blocks.

    Returns
    -------
    tuple of Tensor
        Each state over time (T, D, N, H), then each state at the sequences' ends (D, N, H).

    Raises
    ------
    TypeError
        If an operand is not a tensor, or operands differ in dtype or device.
    ValueError
        If a shape or an attribute breaks the cell's rules.

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
    kernel, name = kernel_of(cell), cell.__name__
    check_save(name, save, steps=False)
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
    lengths = with_resets(name, X, lengths, reset, layout)
    operands = {"X": X, **parameters, "sequence_lens": lengths}
    if set(inputs) != set(cell.inputs):
        raise TypeError(
            f"{name}: inputs are {', '.join(inputs) or 'none'}, expected {', '.join(cell.inputs) or 'none'}"
        )
    operands |= inputs
    operands |= {f"initial_{state}": array for state, array in zip(cell.carried, states, strict=True)}
    ordered = [operands[one] for one in kernel.operands]
    return apply(kernel, ordered, {"direction": direction, "layout": layout}, again=save == "states")


class CellLayer(SequenceLayer):
    """A layer of your own cell over sequences, in one or two directions.

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
        (D, k·H, I), (D, k·H, H / heads), (D, k·H) for k blocks each, if the cell has them. They are drawn
        uniform between -1/sqrt(H) and 1/sqrt(H), as in `torch.nn.LSTM`.

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

    def __init__(
        self,
        cell: xpgrad.Cell,
        input_size: int,
        hidden_size: int,
        *,
        bidirectional: bool = False,
        batch_first: bool = False,
        save: Saved = "all",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        kernel_of(cell)
        check_sizes(type(self).__name__, input_size, hidden_size, cell.heads)
        tails: dict[str, tuple[int, ...]] = {
            "W": (input_size,), "R": (hidden_size // cell.heads,), "v": ()
        }  # fmt: skip
        blocks = {kind: len(names) for kind, names in cell.blocks.items() if names}
        shapes = {kind: (count * hidden_size, *tails[kind]) for kind, count in blocks.items()}
        super().__init__(
            input_size, hidden_size, shapes, bidirectional=bidirectional, batch_first=batch_first, save=save,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.cell = cell

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return f"{self.cell}, {super().extra_repr()}"

    def _input_names(self) -> tuple[str, ...]:
        return tuple(self.cell.inputs)

    def _run(
        self, X: Tensor, initial: Sequence[Tensor | None] | None, lengths: Any, **inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        W, R, v = (getattr(self, kind, None) for kind in ("W", "R", "v"))
        options: dict[str, Any] = {"direction": self._direction, "save": self.save, **inputs}
        outputs = run_cell(self.cell, X, W, R, v, lengths, initial, **options)
        return outputs[0], outputs[len(self.cell.states) :]
