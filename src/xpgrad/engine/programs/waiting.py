"""Threads for a host that lends no threads: they sleep until a program has parts for them. For Linux."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.process.blas import symbol
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.settings import thread_count

_SEMAPHORE = 8  # integers of memory for a semaphore, twice as many as it needs
_PLACES = 16  # the most tasks that wait for a thread; the caller itself computes the parts of further ones
_AT = records.positions(records.WaitingRecord)


class WaitingThreads:
    """`count` threads that last as long as the process; a forked child has none of them.

    `address` is the address of the WaitingRecord that `native_foreign.lend` takes.
    """

    def __init__(self, count: int) -> None:
        self._memory = np.zeros(_SEMAPHORE + _PLACES, dtype=np.int64)
        semaphore = address_of(self._memory)
        post, wait = _semaphore_calls(semaphore) if count else (0, 0)
        tasks, places = semaphore + 8 * _SEMAPHORE, _PLACES if post else 0
        about = records.WaitingRecord(post, wait, semaphore, tasks, places)
        self._about = np.asarray(about, dtype=np.int64)
        self.address = address_of(self._about)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)
        if not places:
            return
        address = c_function("waiting_thread", "programs.native_foreign", "int64 waiting", "wait(waiting)")
        loop = ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)  # never returns, and holds no lock of Python
        for number in range(count):
            name = f"xpgrad-waiting-{number}"
            threading.Thread(target=loop, args=(self.address,), name=name, daemon=True).start()

    def _forget(self) -> None:
        self._about[_AT.places] = 0


def _semaphore_calls(semaphore: int) -> tuple[int, int]:
    """Make a semaphore at an address; return the addresses of ``sem_post`` and ``sem_wait``, else zeros."""
    if sys.platform != "linux":
        return 0, 0
    library = ctypes.CDLL(None)
    make, post, wait = (symbol(library, f"sem_{verb}") for verb in ("init", "post", "wait"))
    if not (make and post and wait):
        return 0, 0
    made = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)(make)
    return (post, wait) if made(semaphore, 0, 0) == 0 else (0, 0)


@functools.cache
def waiting_threads() -> WaitingThreads:
    """The waiting threads of this process: with the caller, `thread_count` threads."""
    return WaitingThreads(thread_count() - 1)
