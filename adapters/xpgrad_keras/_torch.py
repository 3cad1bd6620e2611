"""The kernels of xpgrad_torch for Keras on PyTorch: under autograd, and in `torch.compile`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from xpgrad_keras._backends import Backend
from xpgrad_keras._calls import Call
from xpgrad_torch import functional

__all__ = ["BACKEND"]

# Which block of rows each of ONNX's gates is in Keras' weights: they need no copies then.
_GATE_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (0, 1, 2), "rnn": (0,)}


class _Torch(Backend):
    where = staticmethod(torch.where)

    def takes(self, X: Any, mask: Any) -> bool:
        return X.device.type == "cpu" or (X.device.type == "meta" and mask is None)

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        # a compiler takes no branches that depend on data; `no` is right for every mask
        return no() if torch.compiler.is_compiling() else super().choose(condition, yes, no)

    def run(
        self,
        call: Call,
        X: Tensor,
        weights: Mapping[str, Tensor],
        states: Sequence[Tensor],
        lengths: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        given: dict[str, Any] = {
            "X": X,
            "W": weights["kernel"].T[None],
            "R": weights["recurrent_kernel"].T[None],
            "B": _biases(weights.get("bias")),
            "sequence_lens": lengths,
            **{f"initial_{name}": x[:, None] for name, x in zip("hc", states, strict=False)},
            **call.attributes,
            "gate_order": _GATE_ORDERS[call.kernel],
        }
        if call.kernel == "lstm":
            given["peephole"] = "full"
        H_all, *ends = functional.run_recurrent(call.kernel, given, 1 + len(states))
        return H_all[:, :, 0], [x[:, 0] for x in ends]


def _biases(bias: Tensor | None) -> Tensor | None:
    """Return input and recurrence biases (1, 2 GH) from Keras' one (GH,) or two (2, GH)."""
    if bias is None:
        return None
    both = bias if bias.dim() == 2 else torch.stack([bias, torch.zeros_like(bias)])
    return both.reshape(1, -1)


BACKEND = _Torch()
