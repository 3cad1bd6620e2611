"""Functions of loaded libraries by name, and one thread for NumPy's BLAS while parts run.

NumPy computes products that are not compiled. Its OpenBLAS would start its own threads for each part.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

import numpy as np

from xpgrad.engine.process.locks import LastingLock

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


def in_one_thread() -> contextlib.AbstractContextManager[None]:
    """Context in which each product of NumPy's uses one thread: the caller's team already runs several."""
    return _limited(_numpy_threads())


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
_open: list[int] = []  # for each open context, the number of threads before it


@contextlib.contextmanager
def _limited(functions: tuple[Callable, Callable] | None) -> Iterator[None]:
    """Set one thread. OpenBLAS has one setting per process, which the last context to close restores."""
    if functions is None:
        yield
        return
    get, put = functions
    with _limits:
        _open.append(get())
        if len(_open) == 1:
            put(1)
    try:
        yield
    finally:
        with _limits:
            before = _open.pop()
            if not _open:
                put(before)
