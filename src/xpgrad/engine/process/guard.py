"""A mode for tests that finds writes and reads in the wrong place: ``XPGRAD_GUARD=1``.

A call's memory lies between red zones, which are checked after each instruction of a program, and after each
compiled function outside programs. It is filled with NaN before its first use. If the system allows it, a
page that nobody may touch follows. `programs.guarded` does this for programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

RED = 4096
"""The number of bytes of a red zone."""
WORD = 0xA5
"""Each byte of a red zone."""
UNWRITTEN = 0xFF
"""Each byte of memory before its first use: NaN as a float of any size, -1 as an integer."""
_PAGE = mmap.PAGESIZE

on = os.environ.get("XPGRAD_GUARD", "") not in ("", "0")
"""Whether memory is guarded; set before the first call."""


class GuardError(RuntimeError):
    """Something was written or read outside of its memory."""


class Zone(NamedTuple):
    """Bytes from `begin` up to `end`, counted from the beginning of some memory."""

    begin: int
    end: int


def memory(size: int) -> tuple[np.ndarray, int]:
    """New memory of `size` bytes between red zones, filled with NaN, and its address, a multiple of 64."""
    length = -(-(size + 2 * RED) // _PAGE) * _PAGE
    pages = mmap.mmap(-1, length + _PAGE)
    whole = np.frombuffer(pages, dtype=np.uint8)
    begin = whole.__array_interface__["data"][0]
    with contextlib.suppress(AttributeError, OSError, TypeError):  # systems without such a call
        _library().mprotect(ctypes.c_void_p(begin + length), ctypes.c_size_t(_PAGE), 0)
    first = (length - RED - size) // 64 * 64
    whole[:first] = whole[first + size : length] = WORD
    whole[first : first + size] = UNWRITTEN
    return whole[first : first + size], begin + first


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def damage(address: int, zones: Sequence[Zone]) -> str | None:
    """The message for writes into red zones of the memory at an address; None if there were none."""
    for begin, end in zones:
        found = np.frombuffer(ctypes.string_at(address + begin, end - begin), dtype=np.uint8)
        wrong = np.flatnonzero(found != WORD)
        if len(wrong):
            first, last = int(wrong[0]), int(wrong[-1])
            return f"{last + 1 - first} bytes, from {first} to {last} bytes after byte {begin}"
    return None


# --- results of calls without a program

_results: dict[int, tuple[weakref.ref, int]] = {}


def result(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new array between red zones, which `check_results` checks."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    whole, address = memory(size)
    array = whole.view(dtype).reshape(shape)
    # every view of the array refers to its base: the array itself may die while a view of it lives
    _results[address] = weakref.ref(array.base, lambda _: _results.pop(address, None)), size
    return array


def check_results(what: str) -> None:
    """Raise a GuardError if the last computation, `what`, wrote outside a result that is still alive."""
    if not on:
        return
    for address, (alive, size) in [*_results.items()]:
        if alive() is not None:
            found = damage(address, [Zone(-64, 0), Zone(size, size + RED)])
            if found:
                raise GuardError(f"guard: {what} wrote outside a result of {size} bytes: {found}")


def check(what: str, address: int, size: int, inside: Iterable[Zone] = ()) -> None:
    """Raise a GuardError if the last computation, `what`, left its memory, or wrote outside a result.

    `inside` are zones in this memory, which has `size` bytes.
    """
    found = damage(address, [Zone(-RED, 0), *inside, Zone(size, size + RED)])
    if found:
        raise GuardError(f"guard: {what} left its memory of {size} bytes: {found}")
    check_results(what)
