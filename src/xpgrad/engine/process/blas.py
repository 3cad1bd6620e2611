"""Functions of loaded libraries by name, and one thread for NumPy's BLAS while parts run.

NumPy computes products that are not compiled. Its OpenBLAS would start its own threads for each part.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from xpgrad.engine.process.locks import LastingLock

_Result = TypeVar("_Result")
_THREADS_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)


def symbol(library: ctypes.CDLL, name: str) -> int:
    """The address of a function in a library or its dependencies; 0 if there is none."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def in_one_thread(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call the function; each product of NumPy's uses one thread: the caller's team already runs several.

    No context manager: an interrupt (Ctrl-C) within its functions would leave NumPy one thread.
    """
    functions = _numpy_threads()
    if functions is None:
        return function(*arguments)
    limit = _Limit(*functions)
    try:
        limit.begin()
        return function(*arguments)
    finally:
        limit.end()


@functools.cache
def _numpy_threads() -> tuple[Callable, Callable] | None:
    """OpenBLAS's getter and setter of its number of threads; None if NumPy has another BLAS.

    They are in the libraries of NumPy's extension module `_umath_linalg`, which a later NumPy may lack.
    """
    extension = getattr(np.linalg, "_umath_linalg", None)
    if extension is None:
        return None
    try:
        library = ctypes.CDLL(extension.__file__)
    except OSError:
        return None
    for name in _THREADS_NAMES:
        get, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
        if get is not None and put is not None:
            return get, put
    return None


_limits = LastingLock()
_open: set[_Limit] = set()
_before: list[int] = []  # the number of threads before the first of them


class _Limit:
    """One thread, by OpenBLAS's getter and setter of the process's number, which the last to end restores."""

    def __init__(self, get: Callable[[], int], put: Callable[[int], Any]) -> None:
        self._get, self._put = get, put

    def begin(self) -> None:
        """In this order an interrupt leaves nothing that `end` does not undo."""
        with _limits.own:
            if not _open:
                _before[:] = [self._get()]
            _open.add(self)
            if len(_open) == 1:
                self._put(1)

    def end(self) -> None:
        with _limits.own:
            if self in _open:
                _open.remove(self)
                if not _open:
                    self._put(*_before)
