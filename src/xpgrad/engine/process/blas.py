"""The process's BLAS, by address, for the products of compiled time loops.

Libraries export the Fortran interface under names that differ by build. No name is trusted: a function must
multiply two test matrices correctly. If none is found, the loops run in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.process.locks import LastingLock
from xpgrad.engine.process.memory import address_of

_LETTERS = {"float32": "s", "float64": "d"}
_REALS: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double}
# {} is s for float32, d for float64
_GEMM_NAMES = ("{}gemm_", "scipy_{}gemm_64_", "scipy_{}gemm_", "{}gemm_64_")
_THREADS_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)


class PackedGemm(NamedTuple):
    """MKL's product with a packed matrix: addresses of its three functions."""

    size: int
    pack: int
    compute: int

    def bytes_of(self, k: int, n: int) -> int:
        """The size in bytes of a packed weight (k, n)."""
        sizes = [ctypes.byref(ctypes.c_int64(size)) for size in (n, 64, k)]
        return ctypes.CFUNCTYPE(ctypes.c_size_t, *[ctypes.c_void_p] * 4)(self.size)(_letter(b"A"), *sizes)


class Blas(NamedTuple):
    """Addresses of gemm by dtype, and of the packed gemm if there is one; and how to limit its threads.

    Inside the context `in_one_thread` each product uses one BLAS thread, because the caller's team already
    runs several. `has_pool` says whether the BLAS has its own pool of threads, so that this makes a
    difference. `extension` is the path of the module that is linked with it, `size` that file's size when the
    BLAS was found: later the file may be another version's, or gone.
    """

    gemm: dict[str, int]
    packed: dict[str, PackedGemm]
    in_one_thread: Callable[[], contextlib.AbstractContextManager[None]]
    has_pool: bool
    extension: str
    size: int


class PackedWeight(NamedTuple):
    """A weight (k, n), and its packed form for products; None if products read it row-major.

    `form` is ``"rows"``, ``"blas"`` for MKL's, or ``"panels"`` for our own.
    """

    array: np.ndarray
    buffer: np.ndarray | None = None
    form: str = "rows"

    @property
    def memory(self) -> np.ndarray:
        """The memory that products read."""
        return self.array if self.buffer is None else self.buffer


def find_blas(extension: str) -> Blas | None:
    """The BLAS that an extension module is linked with; None if none is found that works.

    Parameters
    ----------
    extension : str
        Path of a loaded extension module; its dependencies are searched as well.
    """
    if sys.byteorder != "little":  # see native._call_by_reference
        return None
    try:
        library = ctypes.CDLL(extension)
    except OSError:
        return None
    for name in _GEMM_NAMES:
        functions = {dtype: symbol(library, name.format(letter)) for dtype, letter in _LETTERS.items()}
        if all(address and _multiplies(address, dtype) for dtype, address in functions.items()):
            pool = _thread_functions(library)
            in_one_thread = functools.partial(_limited, pool)
            packed, size = _find_packed(library), _size_of(extension)
            return Blas(functions, packed, in_one_thread, pool is not None, extension, size)
    return None


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # a loaded library works without its file
        return 0


def _find_packed(library: ctypes.CDLL) -> dict[str, PackedGemm]:
    found = {}
    for dtype, letter in _LETTERS.items():
        names = (f"{letter}gemm_{name}_" for name in ("pack_get_size", "pack", "compute"))
        functions = PackedGemm(*(symbol(library, name) for name in names))
        if all(functions) and _multiplies(functions.compute, dtype, functions):
            found[dtype] = functions
    return found


def pack(weight: np.ndarray, functions: PackedGemm) -> PackedWeight:
    """Pack a weight (k, n), contiguous by rows or by columns, for products with blocks of rows."""
    by_rows = weight.flags.c_contiguous
    (k, n), rows = weight.shape, 64  # this packing is good for any number of rows
    sizes = [ctypes.byref(ctypes.c_int64(size)) for size in (n, rows, k)]
    which, form = _letter(b"A"), _letter(b"N" if by_rows else b"T")
    buffer = np.empty(functions.bytes_of(k, n) + 64, dtype=np.uint8)
    buffer = buffer[-buffer.ctypes.data % 64 :]
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 9)(functions.pack)
    one, length = ctypes.byref(_REALS[weight.dtype.name](1)), sizes[0] if by_rows else sizes[2]
    call(which, form, *sizes, one, weight.ctypes.data, length, buffer.ctypes.data)
    return PackedWeight(weight, buffer, "blas")


def _letter(name: bytes) -> Any:
    return ctypes.byref(ctypes.c_char(name))


def symbol(library: ctypes.CDLL, name: str) -> int:
    """The address of a function in a library or its dependencies; 0 if there is none."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def multiply(
    address: int, a: np.ndarray, b: np.ndarray, c: np.ndarray, packed: np.ndarray | None = None
) -> None:
    """C = A B by the gemm at an address, or by MKL's gemm_compute with B packed; B and C by rows.

    BLAS reads column by column, so the factors change places.
    """
    real = _REALS[c.dtype.name]
    (m, n), k, by_rows = c.shape, a.shape[1], a.flags.c_contiguous
    rows, columns, inner = (ctypes.byref(ctypes.c_int64(size)) for size in (n, m, k))
    one, zero = ctypes.byref(real(1)), ctypes.byref(real(0))
    arguments = [_letter(b"N" if packed is None else b"P"), _letter(b"N" if by_rows else b"T")]
    arguments += [rows, columns, inner, one] if packed is None else [rows, columns, inner]
    arguments += [address_of(b if packed is None else packed), rows]
    arguments += [address_of(a), inner if by_rows else columns, zero, address_of(c), rows]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arguments))(address)(*arguments)


def _multiplies(address: int, dtype: str, packing: PackedGemm | None = None) -> bool:
    """Whether a product of whole numbers is correct."""
    rows, inner, columns = 2, 3, 4
    a = np.arange(rows * inner, dtype=dtype).reshape(rows, inner)
    b = np.arange(inner * columns, dtype=dtype).reshape(inner, columns) - 5
    c = np.full((rows, columns), np.nan, dtype=dtype)
    multiply(address, a, b, c, None if packing is None else pack(np.asfortranarray(b), packing).memory)
    return bool(np.array_equal(c, a @ b))


def _thread_functions(library: ctypes.CDLL) -> tuple[Callable, Callable] | None:
    """OpenBLAS's getter and setter of its number of threads."""
    for name in _THREADS_NAMES:
        get, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
        if get is not None and put is not None:
            return get, put
    return None


_limits = LastingLock()
_limit_depth: dict[int, tuple[int, int]] = {}  # by setter: contexts open, number of threads before the first


@contextlib.contextmanager
def _limited(functions: tuple[Callable, Callable] | None) -> Iterator[None]:
    """One thread per product. OpenBLAS has one setting per process: the last context to close restores it."""
    if functions is None:
        yield
        return
    get, put = functions
    key = id(put)
    with _limits:
        depth, before = _limit_depth.get(key, (0, 0))
        if depth == 0:
            before = get()
            put(1)
        _limit_depth[key] = depth + 1, before
    try:
        yield
    finally:
        with _limits:
            depth, before = _limit_depth[key]
            _limit_depth[key] = depth - 1, before
            if depth == 1:
                put(before)
