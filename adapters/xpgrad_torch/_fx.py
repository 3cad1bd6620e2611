"""Modules under `torch.fx` and `torch.jit.script`, which read a model without running it.

The tracers of `torch.fx` trace every module except PyTorch's, and ours need tensors. So a `forward` with a
`Proxy` is recorded as one call of the module. `torch.jit.script` would compile the text of `forward`.
"""

from typing import Any, NoReturn

from torch import nn
from torch.fx import Proxy

__all__ = ["Proxy", "Unscripted", "as_node"]


def as_node(module: nn.Module, input: Proxy, *others: Any, **named: Any) -> Any:  # noqa: A002
    """Record a call of the module with these arguments, and return its result's proxy."""
    tracer: Any = input.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (input, *others), named)


class Unscripted:
    """A module for which `torch.jit.script` raises a clear error instead of one about our text."""

    def __prepare_scriptable__(self) -> NoReturn:
        """Raise RuntimeError. A returned module would stay in the model."""
        raise RuntimeError(
            f"{type(self).__name__}: torch.jit.script cannot compile xpgrad's modules, expected PyTorch's; "
            "script xpgrad_torch.unswap(model), which computes the same, or take torch.jit.trace, "
            "torch.compile or torch.export"
        )
