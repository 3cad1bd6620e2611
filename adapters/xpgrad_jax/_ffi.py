"""XLA's calls of our programs: the handler, its registration, and whether it fits this JAX."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from xpgrad.engine.process.locks import LastingLock
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.programs.foreign import ForeignProgram, host_functions, why_no_host

TARGET = "xpgrad_program"
Key = tuple[int, int]


class Registry:
    """The process' programs by their content, in a table that compiled code reads.

    XLA keeps executables in files, which other processes run. So an executable names a program by its key,
    the digest of its description, and never by its address. Programs are never freed.

    The table has open addressing and rows of four words: the key's two, the program's address (0 ends a
    search) and an unused one. Its first row holds only the mask of row numbers. Written rows never change,
    and a table that is too small stays in memory for threads that still read it.
    """

    def __init__(self) -> None:
        self._lock = LastingLock()
        self._known: dict[Key, ForeignProgram] = {}
        self._tables: list[np.ndarray] = []
        self.words = np.zeros(2, dtype=np.int64)
        """The words that compiled code finds by a symbol: the addresses of the table and of `schedule`."""
        self._build(64)

    def add(self, description: str, program: ForeignProgram) -> Key:
        """Keep a program, and return its key: the digest of its description."""
        digest = np.frombuffer(hashlib.blake2b(description.encode(), digest_size=16).digest(), ">i8")
        key = int(digest[0]), int(digest[1])
        with self._lock.own:
            if key not in self._known:
                self._known[key] = program
                rows = len(self._tables[-1]) - 1
                if 2 * len(self._known) > rows:
                    self._build(2 * rows)
                else:
                    self._enter(key)
        return key

    def findings(self) -> list[str]:
        """The guard's findings in any program."""
        return [found for program in [*self._known.values()] if (found := program.finding())]

    def _build(self, rows: int) -> None:
        table = np.zeros((1 + rows, 4), dtype=np.int64)
        table[0, 0] = rows - 1
        self._tables.append(table)
        for key in self._known:
            self._enter(key)
        self.words[0] = table.ctypes.data

    def _enter(self, key: Key) -> None:
        table = self._tables[-1]
        mask, place = int(table[0, 0]), key[0]
        while table[1 + (place & mask), 2]:
            place += 1
        row = table[1 + (place & mask)]
        row[:2] = key
        row[2] = self._known[key].address  # written last: it makes the row valid


_registry = Registry()


def registry() -> Registry:
    """The registry of this process."""
    return _registry


def why_not() -> str | None:
    """Why programs cannot run in XLA's calls now; None if they can, and are registered."""
    return why_no_host(_register)


def _register() -> None:
    from xpgrad.engine.compiled.machine_code import name_memory
    from xpgrad_jax import native_frame

    words = registry().words
    name_memory(native_frame.PROCESS, address_of(words))
    signatures = {"schedule": "int64(int64, int64, int64)", "handle": "int64(int64)"}
    functions = host_functions("xla_handler", native_frame, signatures)
    words[1] = functions.schedule.address
    handle = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(functions.handle.address)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handle), platform="cpu")


def call(key: Key, arrays: Sequence[Any], results: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
    """The results of the program with this key, as one call of XLA's."""
    function = jax.ffi.ffi_call(TARGET, list(results), vmap_method="sequential")
    return list(function(*arrays, key0=np.int64(key[0]), key1=np.int64(key[1])))
