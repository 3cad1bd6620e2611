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
_arenas = threading.local()


def take_arena(size: int) -> Arena:
    """Memory for `size` bytes; not cleared.

    It belongs to the caller until `keep_arena` returns it. Calls in between in the same thread (from a
    finalizer, a signal handler, another greenlet) get another one. After an exception it is not returned.
    """
    kept = _kept()
    fitting = [arena for arena in reversed([*kept.values()]) if len(arena[0]) >= size + LINE]
    smallest = min(fitting, key=lambda arena: len(arena[0]), default=None)
    found = None if smallest is None else kept.pop(smallest[1], None)
    if found is not None:
        return found
    memory = np.empty(size + LINE, dtype=np.uint8)
    return memory, -(-address_of(memory) // LINE) * LINE


def keep_arena(arena: Arena) -> None:
    """Keep it for the thread's next calls, and those kept last beside it as far as there is room."""
    kept, room = _kept(), _KEPT + LINE
    kept[arena[1]] = arena
    for address, (memory, _) in reversed([*kept.items()]):
        room -= len(memory)
        if room < 0:
            kept.pop(address, None)


def _kept() -> dict[int, Arena]:
    """The thread's arenas by address, those kept last behind the others."""
    return vars(_arenas).setdefault("kept", {})
