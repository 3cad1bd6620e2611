"""Tensors of other classes, and other objects that replace PyTorch's functions (`__torch_function__`).

The class of an operand may replace a function of PyTorch, and so may an active mode: it gets the function and
its arguments, and mostly calls the function without itself and converts the result. Our functions ask it in
the same way. Kernels then get tensors of the class `Tensor` with the same memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.parameter import is_lazy
from torch.overrides import handle_torch_function, has_torch_function

from xpgrad_torch._private import PLAIN_KINDS, ExpandedWeight

__all__ = ["are_replaceable", "as_plain", "handed_over"]

_USUAL = {*PLAIN_KINDS, type(None)}


def are_replaceable(values: Sequence[Any]) -> bool:
    """Tell whether the class of a value, or a mode, may replace a function of these values.

    Proxies and expanded weights are looked after elsewhere, and compilers record what we call.
    """
    return (
        has_torch_function(values)
        and not torch.compiler.is_compiling()
        and not any(isinstance(x, Proxy | ExpandedWeight) for x in values)
    )


def handed_over(name: str, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Return ``function(*operands)``, which the operands' classes or a mode may replace.

    The function gets this name, which they read.
    """
    function.__name__ = function.__qualname__ = name
    return handle_torch_function(function, operands, *operands)


def as_plain(tensors: Sequence[Any]) -> Sequence[Any]:
    """Return tensors, each of the class `Tensor`, with the same memory and in the same graph.

    A class that replaces PyTorch's operators (`__torch_dispatch__`), or has no memory yet, stays.
    """
    if _USUAL.issuperset(map(type, tensors)) or torch.compiler.is_compiling():
        return tensors
    return [x.as_subclass(Tensor) if _is_only_named(x) else x for x in tensors]


def _is_only_named(x: Any) -> bool:
    """Tell whether a value is a tensor of another class with PyTorch's operators and memory."""
    return (
        isinstance(x, Tensor)
        and type(x) not in PLAIN_KINDS
        and type(x).__torch_dispatch__ is Tensor.__torch_dispatch__
        and not isinstance(x, ExpandedWeight)
        and not is_lazy(x)
    )
