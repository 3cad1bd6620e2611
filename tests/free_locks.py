"""Whether another thread could take one of our locks."""

from __future__ import annotations

import threading

from xpgrad.engine.process.locks import LastingLock


def is_free(lock: LastingLock) -> bool:
    """Whether another thread could take it now."""
    took: list[bool] = []

    def take() -> None:
        took.append(lock.own.acquire(blocking=False))
        if took[0]:
            lock.own.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return took[0]
