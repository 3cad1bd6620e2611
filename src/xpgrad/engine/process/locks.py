"""Locks that outlive a fork and a signal handler."""

from __future__ import annotations

import os
import threading


class LastingLock:
    """A lock for ``with lock.own``: its own thread may take it again, and in every forked child it is free.

    A signal handler may call a kernel in the middle of another call, in the same thread. A fork copies locks:
    if another thread holds one, nobody in the child can release it. So the child gets a new lock. The fork
    does not wait for the other thread, which may itself wait for a lock that the fork has taken, such as
    logging's.

    `own` is the lock itself, Python's in C: an interrupt (Ctrl-C) within an `__enter__` of ours, after the
    lock was taken, would leave it taken.
    """

    def __init__(self) -> None:
        self.own = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """In a child: replace the lock if another thread held it; keep it if the forking thread held it."""
        if self.own.acquire(blocking=False):
            self.own.release()
        else:
            self.own = threading.RLock()
