"""Threads for a host that lends none: they sleep until a program has parts for them. For Linux."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading

import numpy as np

from xpgrad.engine.compiled import records
from xpgrad.engine.process.blas import symbol
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.settings import thread_count

_SEMAPHORE = 8
"""Integers of memory for a semaphore, which has half as many."""
_PLACES = 16
"""Tasks that may wait for a thread; where there are more, the caller computes their parts itself."""
_AT = records.positions(records.WaitingRecord)


class WaitingThreads:
    """So many threads. They last as long as the process, and none is in a forked child.

    Attributes
    ----------
    address : int
        Of the WaitingRecord that `native_foreign.lend` takes; it lends nothing where there are no threads.
    """

    def __init__(self, count: int) -> None:
        self._memory = np.zeros(_SEMAPHORE + _PLACES, dtype=np.int64)
        semaphore = address_of(self._memory)
        post, wait = _semaphore_calls(semaphore) if count else (0, 0)
        tasks, places = semaphore + 8 * _SEMAPHORE, _PLACES if post else 0
        about = records.WaitingRecord(post, wait, semaphore, tasks, places)
        self._about = np.asarray(about, dtype=np.int64)
        self.address = address_of(self._about)
        if places:
            self._start(count)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _start(self, count: int) -> None:
        from xpgrad.engine.programs.entry_points import compiled_wait

        # it returns never, and holds no lock of Python's meanwhile
        wait = ctypes.CFUNCTYPE(None, ctypes.c_int64)(compiled_wait())
        for number in range(count):
            name = f"xpgrad-waiting-{number}"
            threading.Thread(target=wait, args=(self.address,), name=name, daemon=True).start()

    def _forget(self) -> None:
        self._about[_AT.places] = 0


def _semaphore_calls(semaphore: int) -> tuple[int, int]:
    """The addresses of ``sem_post`` and ``sem_wait``, for a semaphore that is made here; or zeros."""
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
    """Those of this process: with the caller, as many as `thread_count` says."""
    return WaitingThreads(thread_count() - 1)
