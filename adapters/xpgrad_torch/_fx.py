"""The modules under `torch.fx`, which records a model's operations without running them.

Its tracers follow every module but PyTorch's own, and ours need tensors. So a `forward` that is given a
`Proxy` is recorded as one call of the module.
"""

from typing import Any

from torch import nn
from torch.fx import Proxy

__all__ = ["Proxy", "as_node"]


def as_node(module: nn.Module, input: Proxy, *others: Any) -> Any:  # noqa: A002, PyTorch's name for it
    """Record a call of the module with these arguments, and return what stands for its result."""
    tracer: Any = input.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (input, *others), {})
