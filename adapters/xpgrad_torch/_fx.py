"""The modules under those who read a model without running it: `torch.fx` and `torch.jit.script`.

The tracers of `torch.fx` follow every module but PyTorch's own, and ours need tensors. So a `forward` that is
given a `Proxy` is recorded as one call of the module. `torch.jit.script` would compile the text of `forward`.
"""

from typing import Any, NoReturn

from torch import nn
from torch.fx import Proxy

__all__ = ["Proxy", "Unscripted", "as_node"]


def as_node(module: nn.Module, input: Proxy, *others: Any, **named: Any) -> Any:  # noqa: A002
    """Record a call of the module with these arguments, and return what stands for its result."""
    tracer: Any = input.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (input, *others), named)


class Unscripted:
    """A module for which `torch.jit.script` says what to do instead; else it complains about our text."""

    def __prepare_scriptable__(self) -> NoReturn:
        """Raise RuntimeError. Another module, if returned, would stay in the model for good."""
        raise RuntimeError(
            f"{type(self).__name__}: torch.jit.script cannot compile xpgrad's modules, expected PyTorch's; "
            "script xpgrad_torch.unswap(model), which computes the same, or take torch.jit.trace, "
            "torch.compile or torch.export"
        )
