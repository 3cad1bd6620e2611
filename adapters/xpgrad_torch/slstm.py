"""The sLSTM: the function and the layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from xpgrad._operators.arguments import check_choice
from xpgrad_torch._docs import described_recurrent
from xpgrad_torch._recurrent import run_recurrent
from xpgrad_torch._unit_layer import UnitLayer

__all__ = ["SLSTM"]


@described_recurrent()
def slstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    initial_n: Tensor | None = None,
    initial_m: Tensor | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
    layout: int = 0,
    reset: Tensor | None = None,
    save: str | int = "all",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return run_recurrent("slstm", locals(), wanted_outputs=5)


class SLSTM(UnitLayer, function=slstm):
    """The sLSTM of xLSTM.

    heads : int
        The number of parts of each state; it divides H.
    forget : {"sigmoid", "exp"}
        The forget gate's activation.
    """

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
        check_choice("SLSTM", "forget", forget, ("sigmoid", "exp"))
        options: dict[str, Any] = {"save": save, "heads": heads}
        super().__init__(input_size, hidden_size, bias, batch_first, bidirectional, device, dtype, **options)
        self.heads, self.forget = heads, forget

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        extra = f", heads={self.heads}" if self.heads > 1 else ""
        extra += f", forget={self.forget!r}" if self.forget != "sigmoid" else ""
        return super().extra_repr() + extra

    def _attributes(self) -> dict[str, Any]:
        return {"heads": self.heads, "forget": self.forget}
