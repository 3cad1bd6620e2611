"""The message for a person who waits for the compiler: once per process, after two seconds."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

# seconds of compiling before the message, and the longest time of a load from the cache
_PATIENCE, _LOADING = 2.0, 0.2

_TEXT = (
    "xpgrad: compiling for this machine; the result is kept, so this happens once. "
    "'python -m xpgrad warm' does it ahead, XPGRAD_NOTICE=0 silences this line."
)


class _CompileMessage:
    """Counts the seconds of compiling, and prints the message when they exceed the limit."""

    def __init__(self) -> None:
        self._spent, self._told, self._running = 0.0, False, False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        if self._told or self._running or not _someone_is_looking():
            yield
            return
        timer = threading.Timer(max(0.0, _PATIENCE - self._spent), self._tell)
        timer.daemon = True
        started = time.monotonic()
        try:
            self._running = True
            with contextlib.suppress(RuntimeError):  # the system starts no more threads
                timer.start()
            yield
        finally:
            timer.cancel()
            self._running = False
            seconds = time.monotonic() - started
            self._spent += seconds if seconds > _LOADING else 0.0

    def _tell(self) -> None:
        self._told = True
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone, a closed stream
            print(_TEXT, file=sys.stderr, flush=True)


def _someone_is_looking() -> bool:
    """Whether the error stream is a terminal or a notebook's, and ``XPGRAD_NOTICE`` is not 0."""
    if os.environ.get("XPGRAD_NOTICE", "1") == "0":
        return False
    stream = sys.stderr
    try:
        return stream is not None and (stream.isatty() or _is_of_notebook(stream))
    except ValueError:  # closed
        return False


def _is_of_notebook(stream: Any) -> bool:
    """Whether an IPython kernel runs this process and shows the stream, which nothing captures."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") and not isinstance(stream, io.TextIOWrapper | io.StringIO)


compiling = _CompileMessage()
"""Context in which something is compiled, or loaded from the cache."""
