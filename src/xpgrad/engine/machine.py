"""What the process may use: numba, and how many threads."""

from __future__ import annotations

import functools
import importlib.util
import os


def jit_enabled() -> bool:
    """Whether formulas are compiled: numba is installed and ``XPGRAD_JIT`` is not 0."""
    return os.environ.get("XPGRAD_JIT", "1") != "0" and _numba_installed()


@functools.cache
def _numba_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def thread_count() -> int:
    """How many threads independent blocks may use: ``XPGRAD_NUM_THREADS``, else one a core."""
    chosen = os.environ.get("XPGRAD_NUM_THREADS")
    if chosen:
        return max(1, int(chosen))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
