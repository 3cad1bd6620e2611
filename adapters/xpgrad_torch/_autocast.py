"""Autocast: whether it is on, and how it is kept out of kernels."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocasts(x: Tensor) -> bool:
    """Tell whether autocast is on where x is."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which it is off where x is."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()
