"""The GRU with an attentional update gate: the function and the layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from xpgrad._operators.arguments import check_choice
from xpgrad_torch._docs import described_recurrent
from xpgrad_torch._recurrent import run_recurrent
from xpgrad_torch._unit_layer import UnitLayer

__all__ = ["AUGRU"]


@described_recurrent("X, torch.rand(7, 2, 1), W, R")
def augru(
    X: Tensor,
    attention: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | Sequence[int] | None = None,
    initial_h: Tensor | None = None,
    *,
    linear_before_reset: int = 0,
    direction: str = "forward",
    layout: int = 0,
    reset: Tensor | None = None,
    save: str | int = "all",
) -> tuple[Tensor, Tensor]:
    return run_recurrent("augru", locals())


class AUGRU(UnitLayer, function=augru):
    """GRU with an attentional update gate.

    reset_after : bool
        Whether the reset gate multiplies after the recurrent product, as in `torch.nn.GRU`.
    """

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
        check_choice("AUGRU", "reset_after", reset_after, (False, True))
        super().__init__(input_size, hidden_size, bias, batch_first, bidirectional, device, dtype, save=save)
        self.reset_after = reset_after

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return super().extra_repr() + ("" if self.reset_after else ", reset_after=False")

    def _attributes(self) -> dict[str, Any]:
        return {"linear_before_reset": int(self.reset_after)}
