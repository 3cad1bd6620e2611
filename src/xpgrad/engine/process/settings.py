"""Settings of the process: whether it compiles, its number of threads, the size of its caches."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from pathlib import Path

_WORDS = {
    **dict.fromkeys(("", "1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_MOST_THREADS = 1 << 16


def jit_enabled() -> bool:
    """Whether formulas are compiled: ``XPGRAD_JIT`` allows it, llvmlite and our source files are there."""
    return wants_jit(_variable("XPGRAD_JIT")) and _has_compiler()


def _variable(name: str) -> str:
    """An environment variable, empty if there is none.

    For a missing one `os.environ` raises an exception and catches it. Each kernel looks. A kernel on arrays
    larger than the caches finds Python's own memory evicted: then this took 15 of its 140 microseconds.
    """
    stored = getattr(os.environ, "_data", None)
    if stored is not None and _key(name) not in stored:
        return ""
    return os.environ.get(name, "")


_key = functools.cache(getattr(os.environ, "encodekey", str))
"""A variable's name as `os.environ` keeps it: bytes, or text on Windows."""


def wants_jit(word: str) -> bool:
    """The meaning of a value of ``XPGRAD_JIT``; empty means yes."""
    wanted = _WORDS.get(word.strip().lower())
    if wanted is None:
        raise ValueError(f"XPGRAD_JIT is {word!r}, expected 1, true, yes or on, or 0, false, no or off")
    return wanted


@functools.cache
def _has_compiler() -> bool:
    return has_sources() and importlib.util.find_spec("llvmlite") is not None


def has_sources() -> bool:
    """Whether our modules are source files, which the compiler reads: not in some packed applications."""
    return Path(__file__).suffix == ".py" and Path(__file__).is_file()


def thread_count() -> int:
    """The number of threads: ``XPGRAD_NUM_THREADS``, or else one per core."""
    if chosen := _variable("XPGRAD_NUM_THREADS"):
        if not (chosen.strip().isdecimal() and 0 < int(chosen) <= _MOST_THREADS):
            raise ValueError(
                f"XPGRAD_NUM_THREADS is {chosen!r}, expected a whole number from 1 to {_MOST_THREADS}"
            )
        return int(chosen)
    return schedulable_cores()


def schedulable_cores() -> int:
    """The number of cores on which this process may run; all cores if the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def second_level_cache() -> int:
    """The bytes of a core's second-level cache, from 1 to 2 MB; 1 MB if the system does not tell."""
    known = 1 << 20
    with contextlib.suppress(OSError, ValueError, IndexError):
        size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        known = int(size[:-1]) << {"K": 10, "M": 20}.get(size[-1], 0)
    return min(max(known, 1 << 20), 1 << 21)
