"""The sLSTM as a layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from xpgrad._operators.arguments import check_choice
from xpgrad_torch import functional
from xpgrad_torch._sequence_layer import SequenceLayer

__all__ = ["SLSTM"]


class SLSTM(SequenceLayer):
    """The sLSTM of xLSTM; what it computes is described in `xpgrad.slstm`.

    Parameters
    ----------
    input_size, hidden_size : int
        I and H.
    heads : int
        Into how many parts the states are cut; it divides H.
    bias : bool
        Whether there are biases B.
    batch_first : bool
        Whether input and output are (N, T, ...).
    bidirectional : bool
        Whether a second set of parameters runs from the sequences' ends.
    device, dtype
        Of the parameters.
    forget : {"sigmoid", "exp"}
        The forget gate's activation.
    save : "all", "states" or int
        What is kept for the gradient; see `xpgrad_torch.functional.lstm`.

    Attributes
    ----------
    W, R, B : Parameter
        As `xpgrad.slstm` has them, gates in the order i f z o. They begin as those of `torch.nn.LSTM`.

    Raises
    ------
    ValueError, TypeError
        From the constructor and from a call, where a size or an attribute breaks the operator's rules.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch import SLSTM
    >>> output, (h_n, c_n, n_n, m_n) = SLSTM(3, 4, heads=2)(torch.randn(7, 2, 3), lengths=[7, 4])
    >>> output.shape, c_n.shape
    (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    R: Tensor
    B: Tensor | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        heads: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        forget: str = "sigmoid",
        save: str | int = "all",
    ) -> None:
        self._check_sizes(input_size=input_size, hidden_size=hidden_size, heads=heads)
        if hidden_size % heads:
            raise ValueError(f"SLSTM: hidden_size is {hidden_size}, expected a multiple of heads = {heads}")
        check_choice("SLSTM", "forget", forget, ("sigmoid", "exp"))
        rows = 4 * hidden_size
        shapes: dict[str, tuple[int, ...]] = {"W": (rows, input_size), "R": (rows, hidden_size // heads)}
        super().__init__(
            input_size,
            hidden_size,
            shapes | ({"B": (rows,)} if bias else {}),
            bidirectional=bidirectional,
            batch_first=batch_first,
            save=save,
            device=device,
            dtype=dtype,
        )
        self.heads, self.bias, self.forget = heads, bias, forget
        if not bias:
            self.register_parameter("B", None)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        extra = f", heads={self.heads}" if self.heads > 1 else ""
        extra += "" if self.bias else ", bias=False"
        extra += f", forget={self.forget!r}" if self.forget != "sigmoid" else ""
        return super().extra_repr() + extra

    def _run(
        self, X: Tensor, initial: Sequence[Tensor | None] | None, lengths: Any, **inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        states = [None] * 4 if initial is None else list(initial)
        if len(states) != 4:
            raise ValueError(f"SLSTM: hx has {len(states)} tensors, expected 4: h_0, c_0, n_0, m_0")
        direction = "bidirectional" if self.bidirectional else "forward"
        H_all, *finals = functional.slstm(
            X, self.W, self.R, self.B, lengths, *states, heads=self.heads, forget=self.forget,
            direction=direction, save=self.save,
        )  # fmt: skip
        return H_all, tuple(finals)
