"""Addresses of arrays, and memory that is reused."""

from __future__ import annotations

import threading

import numpy as np

LINE = 64
"""Bytes of a cache line: what begins in one shares it with nothing else."""
_KEPT = 1 << 26  # bytes of arenas that a thread keeps for its next calls


def address_of(array: np.ndarray) -> int:
    """The address of its first element."""
    return array.__array_interface__["data"][0]


COMPUTED = {np.dtype(name): name for name in ("float32", "float64")}
"""The dtypes of compiled computations, by name."""
_NAMES: dict[np.dtype, str] = {}


def name_of(dtype: np.dtype) -> str:
    """The dtype's name, cached because NumPy rebuilds it each time."""
    name = _NAMES.get(dtype)
    if name is None:
        name = _NAMES[dtype] = dtype.name
    return name


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """A vector of `size` elements, aligned to a cache line; not cleared."""
    memory = np.empty(size * dtype.itemsize + LINE, dtype=np.uint8)
    first = -address_of(memory) % LINE
    return memory[first : first + size * dtype.itemsize].view(dtype)


Arena = tuple[np.ndarray, int]
"""Memory, and the address in it where a line begins."""


class _Arenas(threading.local):
    """A thread's arenas that no call uses, those kept last behind the others.

    A signal handler, a finalizer or another greenlet may run a kernel between any two steps of what follows.
    So each step takes an arena off the list or adds one, and the list is the only place that both use.
    """

    def __init__(self) -> None:
        self.kept: list[Arena] = []


_arenas = _Arenas()


def take_arena(size: int) -> Arena:
    """Memory for `size` bytes; not cleared.

    It belongs to the caller until `keep_arena` returns it. Calls in between in the same thread get another
    one. After an exception it is not returned.
    """
    kept, least = _arenas.kept, size + LINE
    small = []
    found = None
    while kept:
        found = _popped(kept)
        if found is None or len(found[0]) >= least:
            break
        small.append(found)
        found = None
    kept += reversed(small)
    if found is not None:
        return found
    memory = np.empty(least, dtype=np.uint8)
    return memory, -(-address_of(memory) // LINE) * LINE


def keep_arena(arena: Arena) -> None:
    """Keep it for the thread's next calls, and those kept last beside it as far as there is room."""
    kept = _arenas.kept
    kept.append(arena)
    if len(kept) == 1 and len(arena[0]) <= _KEPT + LINE:
        return
    room, fitting = _KEPT + LINE, []
    while (last := _popped(kept)) is not None:
        room -= len(last[0])
        if room >= 0:
            fitting.append(last)
    kept += reversed(fitting)


def _popped(kept: list[Arena]) -> Arena | None:
    """The arena kept last, and None if there is no more."""
    try:
        return kept.pop()
    except IndexError:
        return None
