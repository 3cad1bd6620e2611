"""Locks that outlive a fork and a signal handler."""

from __future__ import annotations

import os
import threading


class LastingLock:
    """A lock, for `with`, that its own thread may take again, and that is free in every forked child.

    A signal handler may call a kernel in the middle of another call, in the same thread. A fork copies locks:
    if another thread holds one, nobody in the child can release it. So the child gets a new lock. The fork
    does not wait for the other thread, which may itself wait for a lock that the fork has taken, such as
    logging's.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """In a child: replace the lock if another thread held it; keep it if the forking thread held it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
