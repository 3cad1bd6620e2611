"""Python's garbage collector, and work that makes many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Python's garbage collector waits.

    A module of compiled code and a recording are many thousand objects, which go at their end. Collections
    before find them alive: they took an eighth of a first call, and a complete one takes as long as many new
    shapes.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
