"""Functions of the operating system that compiled code calls, by address; 0 for each that the system lacks.

Compiled code does not name them: where a system has no function of that name, linking it ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

from xpgrad.engine.compiled.records import SystemCalls
from xpgrad.engine.process.blas import symbol


def find_system_calls() -> SystemCalls:
    """What this system has.

    Memory is Python's, which is everywhere. Advice has other numbers on every system; compiled code knows
    those of Linux.
    """
    python = (ctypes.pythonapi.PyMem_RawMalloc, ctypes.pythonapi.PyMem_RawFree)
    malloc, free = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in python)
    advise = _first("madvise") if sys.platform == "linux" else 0
    return SystemCalls(malloc, free, _first("sched_yield", "SwitchToThread"), advise, mmap.PAGESIZE)


def _first(*names: str) -> int:
    """The address of the first of these functions that a library of the system has; 0 for none."""
    windows = sys.platform == "win32"
    libraries = [ctypes.CDLL(name) for name in (("ucrtbase", "kernel32") if windows else (None,))]
    addresses = (symbol(library, name) for name in names for library in libraries)
    return next((address for address in addresses if address), 0)
