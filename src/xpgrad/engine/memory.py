"""Where arrays are, and memory that serves again."""

from __future__ import annotations

import threading

import numpy as np

LINE = 64
"""Bytes of a cache line: what begins in one shares it with nothing else."""
_KEPT = 1 << 25  # bytes of an arena that a thread keeps for its next one


def address_of(array: np.ndarray) -> int:
    """Of its first element."""
    return array.__array_interface__["data"][0]


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """A vector of so many elements that begins where a cache line does; not cleared."""
    memory = np.empty(size * dtype.itemsize + LINE, dtype=np.uint8)
    first = -address_of(memory) % LINE
    return memory[first : first + size * dtype.itemsize].view(dtype)


_arenas = threading.local()


def arena(size: int) -> tuple[np.ndarray, int]:
    """Memory for so many bytes, and where in it a line begins; its contents are whatever.

    A thread has one at a time: what asks for it must be done with it before anything else asks.
    """
    kept = getattr(_arenas, "kept", None)
    if kept is not None and len(kept[0]) >= size + LINE:
        return kept
    memory = np.empty(size + LINE, dtype=np.uint8)
    taken = memory, -(-address_of(memory) // LINE) * LINE
    if size <= _KEPT:
        _arenas.kept = taken
    return taken
