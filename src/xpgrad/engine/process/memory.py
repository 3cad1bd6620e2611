"""Addresses of arrays, and memory that is reused."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.process import guard

LINE = 64
_ALIASED = 2048  # bytes: what lies so far apart, or a multiple of it, meets in few lines of the caches
"""Bytes of a cache line: what begins in one shares it with nothing else."""
_addressof, _from_buffer = ctypes.addressof, ctypes.c_char.from_buffer
_KEPT = 1 << 26  # bytes of arenas that a thread keeps for its next calls


def address_of(array: np.ndarray) -> int:
    """The address of its first element.

    ctypes tells it five times as fast as NumPy, of arrays that may be written and are one piece.
    """
    try:
        return _addressof(_from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
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
    if guard.on:
        return guard.memory(size)
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
    if guard.on:
        return
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


def line_of(count: int, itemsize: int) -> int:
    """How many elements a line of so many takes: more, where lines would meet in few places of the caches."""
    return count + (LINE // itemsize if count * itemsize % _ALIASED == 0 else 0)


class Workspaces(NamedTuple):
    """Memory for `parts` parts of some work, so many bytes each: what they need, and no more.

    Compiled code finds that of a part at `stride` times its number.
    """

    parts: int
    bytes: int

    @property
    def stride(self) -> int:
        """Bytes from one part's memory to the next: whole cache lines, and a red zone if there is a guard."""
        return -(-self.bytes // LINE) * LINE + (guard.RED if guard.on else 0)

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return self.parts * self.stride

    def zones(self) -> Iterator[guard.Zone]:
        """What lies between the parts' memory."""
        if guard.on:
            for part in range(self.parts):
                yield guard.Zone(part * self.stride + self.bytes, (part + 1) * self.stride)


class WorkMemory:
    """``with WorkMemory(workspaces, what) as address``: memory for the parts of a compiled function.

    `what` tells a guard's error what was computed.
    """

    def __init__(self, workspaces: Workspaces, what: str) -> None:
        self._workspaces, self._what = workspaces, what

    def __enter__(self) -> int:
        self._arena = take_arena(self._workspaces.total)
        address = self._arena[1]
        for begin, end in self._workspaces.zones():
            self._arena[0][begin:end] = guard.WORD
        return address

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:  # a thread may still write to it
            return
        if guard.on:
            guard.check(self._what, self._arena[1], self._workspaces.total, self._workspaces.zones())
        keep_arena(self._arena)


def new_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new array; not cleared."""
    return guard.result(shape, dtype) if guard.on else np.empty(shape, dtype)


LARGE = 1 << 22
"""Bytes from which on a result's memory is used again.

The C library returns such memory to the system, glibc always that of 32 MB and more. The next step would get
it anew and cleared, which takes from a sixth of a step to as long as the step.
"""
_PAGE = 1 << 12
_POOL = 1 << 28  # bytes that a process keeps
_pool: dict[int, np.ndarray] = {}  # by address, those kept last behind the others


class _Lease:
    """Memory for an array; the pool gets it back when nothing refers to the array any more."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        _keep_result(self._memory)


def result_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory for a result; not cleared. Of large ones that are gone it is used again.

    All but the smallest begin with a cache line: TensorFlow copies arrays that do not.
    """
    array = new_array(shape, dtype)
    size = array.nbytes
    if size < LARGE:  # most are; an array of which nothing is used costs little
        fits = size < _PAGE or guard.on or address_of(array) % LINE == 0
        return array if fits else aligned(array.size, array.dtype).reshape(shape)
    if guard.on:
        return array
    memory = _pooled(size)
    if memory is None:
        memory = aligned(size, np.dtype(np.uint8))
    return np.asarray(_Lease(memory))[:size].view(dtype).reshape(shape)


def _pooled(size: int) -> np.ndarray | None:
    """The smallest memory of the pool that has room, if no more than half of it would stay unused."""
    fitting = [item for item in [*_pool.items()] if size <= len(item[1]) <= 2 * size]
    for address, _ in sorted(fitting, key=lambda item: len(item[1])):
        # One step: another thread, or a finalizer in this one, may look at the pool too.
        memory = _pool.pop(address, None)
        if memory is not None:
            return memory
    return None


def _keep_result(memory: np.ndarray) -> None:
    """Keep it, and those kept last beside it as far as there is room."""
    _pool[address_of(memory)] = memory
    room = _POOL
    for address, kept in reversed([*_pool.items()]):
        room -= len(kept)
        if room < 0:
            _pool.pop(address, None)
