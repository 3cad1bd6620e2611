"""Autocast: whether it is on, its conversions, and a context without it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_HAVE_AUTOCAST = ("cpu", "cuda")  # the compiler of PyTorch 2.11 cannot trace the question


def autocasts(x: Tensor) -> bool:
    """Tell whether autocast is on for the device of x."""
    device = x.device.type
    known = device in _HAVE_AUTOCAST or torch.amp.is_autocast_available(device)
    return known and torch.is_autocast_enabled(device)


def lowered(x: Any, device: str) -> Any:
    """Convert to autocast's dtype, as autocast does: all dtypes except float64."""
    return x if x is None or x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(device))


def raised(x: Any) -> Any:
    """Convert half precision to float32."""
    half = isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if half else x


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast for the device of x."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()
