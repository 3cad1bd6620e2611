"""`from_windows` and `to_windows` compiled: the loops of `native_windows` for one transform."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from xpgrad.engine.compiled.register_tiles import tiles
from xpgrad.engine.compiled.source import c_function, preamble
from xpgrad.engine.compiled.strided import distances, forwards
from xpgrad.engine.images.windows import Transform, Windows
from xpgrad.engine.process.memory import address_of

# what the loops take: addresses, sizes, and distances in elements
_IMAGES = "images, channels, height, width, by_image, by_channel, by_row"
_FROM = f"x, {_IMAGES}, top, left, rows, columns, m, by_point, by_line"
_TO = f"m, by_point, by_line, rows, columns, bias, y, {_IMAGES}"


def from_windows(X: np.ndarray, windows: Windows, transform: Transform, M: np.ndarray) -> None:
    """The transformed windows of X (n, C, height, width) into M (m * m, C, n * rows * columns)."""
    X = forwards(X) if X.strides[3] == X.itemsize else np.ascontiguousarray(X)
    step, begin, rows, columns = windows
    loop = _loop("from_windows", transform, step, X.dtype)
    images = address_of(X), *X.shape, *distances(X)[:3]
    loop(*images, *begin, rows, columns, address_of(M), *distances(M)[:2])


def to_windows(
    M: np.ndarray, windows: Windows, transform: Transform, B: np.ndarray | None, Y: np.ndarray
) -> None:
    """The results of windows M (m * m, O, n * rows * columns), plus B, into Y (n, O, height, width)."""
    B = np.zeros(Y.shape[1], dtype=Y.dtype) if B is None else np.ascontiguousarray(B)
    loop = _loop("to_windows", transform, transform.made, M.dtype)
    made = address_of(Y), *Y.shape, *distances(Y)[:3]
    loop(address_of(M), *distances(M)[:2], windows.rows, windows.columns, address_of(B), *made)


def _loop(kind: str, transform: Transform, step: int, dtype: np.dtype) -> Callable[..., None]:
    formula, taken, made = transform
    return _compiled(
        kind, formula.function, formula.key[1], taken, made, step, dtype.name, tiles().bytes // dtype.itemsize
    )


@functools.cache
def _compiled(
    kind: str, function: Callable, constants: tuple, taken: int, made: int, step: int, dtype: str, lanes: int
) -> Callable[..., None]:
    name, takes = function.__name__, _FROM if kind == "from_windows" else _TO
    address = c_function(
        f"{kind}_{name.strip('_')}_{dtype}",
        "images.native_windows",
        ", ".join(f"int64 {argument}" for argument in takes.split(", ")),
        f"made({takes})",
        f"{kind}({name}, {taken}, {made}, {step}, {dtype!r}, {lanes}, __name__)",
        preamble([function], dict(constants), dtype),
    )
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(takes.split(", ")))(address)
