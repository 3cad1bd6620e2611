"""Kernels in PyTorch's profiler, by their names."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.profiler import record_function

from xpgrad_torch._private import is_profiling

__all__ = ["shown"]

_NOTHING: AbstractContextManager[Any] = nullcontext()


def shown(name: str) -> AbstractContextManager[Any]:
    """Return a context whose time a running profiler shows under the name of a kernel."""
    return record_function(f"xpgrad::{name}") if is_profiling() else _NOTHING
