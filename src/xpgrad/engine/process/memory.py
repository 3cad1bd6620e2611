"""Addresses of arrays, and memory that is reused."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xpgrad.engine.process import guard
from xpgrad.engine.symbols import of_numbers, rounded_up

LINE = 64
"""The number of bytes of a cache line."""
_ALIASED = 2048  # bytes: addresses at multiples of this distance share few lines of the caches
_BYTE = np.dtype(np.uint8)
_addressof, _from_buffer = ctypes.addressof, ctypes.c_char.from_buffer
_KEPT = 1 << 26  # bytes of arenas that a thread keeps for its next calls


def address_of(array: np.ndarray) -> int:
    """The address of an array's first element; for contiguous writable arrays ctypes is the faster way."""
    try:
        return _addressof(_from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return array.__array_interface__["data"][0]


address_of_kept = of_numbers(address_of)
"""The address of memory that a program keeps, which may depend on symbols."""

COMPUTED = {np.dtype(name): name for name in ("float32", "float64")}
"""The dtypes of compiled computations, by name."""


@functools.cache
def name_of(dtype: np.dtype) -> str:
    """The dtype's name, cached because NumPy rebuilds it each time."""
    return dtype.name


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that begins with a cache line; not cleared."""
    memory = np.empty(prod(shape) * dtype.itemsize + LINE, _BYTE)
    return np.ndarray(shape, dtype, memory, -address_of(memory) % LINE)


Arena = tuple[np.ndarray, int]
"""Memory, and the address of the first cache line in it."""
_Kept = TypeVar("_Kept")


class _Arenas(threading.local):
    """A thread's arenas that no call uses, ordered by the time when they were kept.

    A signal handler, a finalizer or another greenlet may run a kernel between any two steps of the functions
    below. So each step takes one arena off the list or adds one, and only the list is shared.
    """

    def __init__(self) -> None:
        self.kept: list[Arena] = []


_arenas = _Arenas()


def take_arena(size: int) -> Arena:
    """Memory for `size` bytes; not cleared.

    It belongs to the caller until `keep_arena` returns it; meanwhile calls in the same thread get other
    memory. After an exception it is not returned.
    """
    if guard.on:
        return guard.memory(size)
    kept, least, small = _arenas.kept, size + LINE, []
    while (found := _popped(kept)) is not None and len(found[0]) < least:
        small.append(found)
    if found is not None:
        kept += reversed(small)
        return found
    # Smaller ones are dropped: the new one serves their calls too. What is larger than a thread keeps would
    # be new in each call.
    memory = np.empty(max(least, min(_rounded(least), _KEPT + LINE)), dtype=np.uint8)
    return memory, rounded_up(address_of(memory), LINE)


def _rounded(size: int) -> int:
    """The next of four sizes for each doubling, so that somewhat larger calls can use memory again.

    Nobody touches the pages beyond `size`, so the system does not provide them. It took 2 ms for each MB that
    two threads began to use.
    """
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step


def keep_arena(arena: Arena) -> None:
    """Keep it for the thread's next calls; drop the arenas that were kept first if there is no room."""
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


def _popped(kept: list[_Kept]) -> _Kept | None:
    """Take what was kept last; None if there is nothing."""
    try:
        return kept.pop()
    except IndexError:
        return None


@of_numbers
def line_of(count: int, itemsize: int) -> int:
    """The stride for rows of `count` elements: larger if rows would share few lines of the caches."""
    return count + (LINE // itemsize if count * itemsize % _ALIASED == 0 else 0)


class Workspaces(NamedTuple):
    """Memory for `parts` parts of some work, `bytes` bytes for each.

    Compiled code finds a part's memory at `stride` times the part's number.
    """

    parts: int
    bytes: int

    @property
    def stride(self) -> int:
        """Bytes from one part's memory to the next: whole cache lines, and a red zone if there is a guard."""
        return rounded_up(self.bytes, LINE) + (guard.RED if guard.on else 0)

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return self.parts * self.stride

    def zones(self) -> Iterator[guard.Zone]:
        """The red zones between the parts' memory."""
        if guard.on:
            for part in range(self.parts):
                yield guard.Zone(part * self.stride + self.bytes, (part + 1) * self.stride)


class WorkMemory:
    """``with WorkMemory(workspaces, what) as address``: memory for the parts of a compiled function.

    `what` names the computation in a guard's error.
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


LARGE = 1 << 17
"""The least bytes of a result whose memory is used again.

The C library maps so large memory anew, or returns it to the system, glibc always from 32 MB on. Getting it
back, cleared, took between a sixth of a step and a whole step of large layers, and half of a step of a cell
with weights of 1 MB.
"""
_PAGE = 1 << 12
_RESULTS_KEPT = 1 << 28  # bytes that a process keeps


class _ResultBytes(np.ndarray):
    """Memory for results.

    NumPy keeps it as the base of a `_Lease`, and this as the base of an array, because they are of different
    classes.
    """

    __slots__ = ()


class _Lease(np.ndarray):
    """All of a `_ResultBytes`, for one array. It ends with the array's last view."""

    __slots__ = ()


class _Loan(weakref.ref):
    """A `_Lease` that may have ended, and its memory."""

    __slots__ = ("memory",)
    memory: _ResultBytes


class _ResultMemory:
    """The memory that was lent last, up to `_RESULTS_KEPT` bytes, whether its lease has ended or not.

    No Python code runs when a lease ends: an interrupt that came there would be lost.
    """

    def __init__(self) -> None:
        self._loans: dict[int, _Loan] = {}  # by identity, in the order of lending
        self._ended: deque[_Loan] = deque()  # since the last step, in the order of their ends
        self._free: defaultdict[int, list[_Loan]] = defaultdict(list)  # by size
        self.bytes = 0

    def lease(self, size: int) -> _Lease:
        """At least `size` bytes: of ended loans of this size or the next larger ones, or new."""
        self._collect_ended()
        memory = self._taken(size)
        if memory is None:
            memory = aligned((_rounded(size),), _BYTE).view(_ResultBytes)
        lease = _Lease(len(memory), _BYTE, memory)
        if len(memory) <= _RESULTS_KEPT:
            loan = _Loan(lease, self._ended.append)
            loan.memory = memory
            self._loans[id(loan)] = loan
            self.bytes += len(memory)
            self._forget_the_first()
        return lease

    def _collect_ended(self) -> None:
        while self._ended:
            loan = self._ended.popleft()
            if id(loan) in self._loans:  # else it ended after it was forgotten
                self._free[len(loan.memory)].append(loan)

    def _taken(self, size: int) -> _ResultBytes | None:
        """The memory of the last ended loan of the least size, at most twice as large."""
        fitting = _rounded(size)
        while fitting <= 2 * size:
            if free := self._free[fitting]:
                return self._forget(free.pop())
            fitting = _rounded(fitting + 1)
        return None

    def _forget(self, loan: _Loan) -> _ResultBytes:
        del self._loans[id(loan)]
        self.bytes -= len(loan.memory)
        return loan.memory

    def _forget_the_first(self) -> None:
        """Forget the first loans if there is no room for all. Lent memory goes with its lease."""
        while self.bytes > _RESULTS_KEPT:
            loan = next(iter(self._loans.values()))
            free = self._free[len(self._forget(loan))]
            if loan in free:
                free.remove(loan)


_results: list[_ResultMemory] = []
"""The memory of the process's results, while no call takes a step with it.

A signal handler, a finalizer or another thread may make results during such a step: they get memory of their
own. After an exception it is not returned; the next call has a new one.
"""


def _lease(size: int) -> _Lease:
    own = _popped(_results) or _ResultMemory()
    lease = own.lease(size)
    other = _popped(_results)  # of a step at the same time: the larger memory stays
    _results.append(own if other is None or own.bytes >= other.bytes else other)
    return lease


def result_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory for a result; not cleared. Large results use the memory of earlier ones again.

    All but the smallest results begin with a cache line: TensorFlow copies arrays that do not.
    """
    size = prod(shape) * dtype.itemsize
    if guard.on:
        return guard.result(shape, dtype)
    if size < LARGE:
        return np.empty(shape, dtype) if size < _PAGE else aligned(shape, dtype)
    return np.ndarray(shape, dtype, _lease(size))


def new_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `result_array`, but a small array begins anywhere, which takes less time."""
    if guard.on or prod(shape) * dtype.itemsize >= LARGE:
        return result_array(shape, dtype)
    return np.empty(shape, dtype)
