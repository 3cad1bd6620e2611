"""The GRU with an attentional update gate as a layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from xpgrad._operators.arguments import check_choice
from xpgrad_torch import functional
from xpgrad_torch._sequence_layer import SequenceLayer

__all__ = ["AUGRU"]


class AUGRU(SequenceLayer):
    """GRU with an attentional update gate; what it computes is described in `xpgrad.augru`.

    It is called as ``layer(input, hx=None, lengths=None, reset=None, attention=attention)``, with the
    attention (T, N, 1) or (T, N, H), (N, T, ...) where `batch_first`.

    Parameters
    ----------
    input_size, hidden_size : int
        I and H.
    bias : bool
        Whether there are biases B.
    batch_first : bool
        Whether input and output are (N, T, ...).
    bidirectional : bool
        Whether a second set of parameters runs from the sequences' ends.
    device, dtype
        Of the parameters.
    reset_after : bool
        Whether the reset gate multiplies behind the recurrent product, as in `torch.nn.GRU`.
    save : "all", "states" or int
        What is kept for the gradient; see `xpgrad_torch.functional.lstm`.

    Attributes
    ----------
    W, R, B : Parameter
        As `xpgrad.augru` has them, gates in the order z r h. They begin as those of `torch.nn.GRU`.

    Raises
    ------
    ValueError, TypeError
        From the constructor and from a call, where a size or an attribute breaks the operator's rules.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch import AUGRU
    >>> output, h_n = AUGRU(3, 5)(torch.randn(7, 2, 3), lengths=[7, 4], attention=torch.rand(7, 2, 1))
    >>> output.shape, h_n.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    R: Tensor
    B: Tensor | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        reset_after: bool = True,
        save: str | int = "all",
    ) -> None:
        self._check_sizes(input_size=input_size, hidden_size=hidden_size)
        check_choice("AUGRU", "reset_after", reset_after, (False, True))
        rows = 3 * hidden_size
        shapes: dict[str, tuple[int, ...]] = {"W": (rows, input_size), "R": (rows, hidden_size)}
        super().__init__(
            input_size,
            hidden_size,
            shapes | ({"B": (2 * rows,)} if bias else {}),
            bidirectional=bidirectional,
            batch_first=batch_first,
            save=save,
            device=device,
            dtype=dtype,
        )
        self.bias, self.reset_after = bias, reset_after
        if not bias:
            self.register_parameter("B", None)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        extra = "" if self.bias else ", bias=False"
        return super().extra_repr() + extra + ("" if self.reset_after else ", reset_after=False")

    def _input_names(self) -> tuple[str, ...]:
        return ("attention",)

    def _run(
        self, X: Tensor, initial: Sequence[Tensor | None] | None, lengths: Any, **inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        states = [None] if initial is None else list(initial)
        if len(states) != 1:
            raise ValueError(f"AUGRU: hx has {len(states)} tensors, expected 1: h_0")
        direction = "bidirectional" if self.bidirectional else "forward"
        H_all, H_t = functional.augru(
            X, inputs["attention"], self.W, self.R, self.B, lengths, states[0],
            linear_before_reset=int(self.reset_after), direction=direction, save=self.save,
        )  # fmt: skip
        return H_all, (H_t,)
