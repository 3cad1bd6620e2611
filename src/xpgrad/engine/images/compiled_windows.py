"""`from_windows` and `to_windows` compiled: the loops of `native_windows` for one transform."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.formula_code import ScalarFormula, c_function
from xpgrad.engine.compiled.records import FromWindows, ToWindows, WindowImages, WindowPoints, flat
from xpgrad.engine.compiled.register_tiles import tiles
from xpgrad.engine.compiled.strided import distances, forwards
from xpgrad.engine.images.windows import Transform, Windows
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.team import compiled_function, integers

# A function's address, and what it reads.
_Work = tuple[int, FromWindows | ToWindows]


def from_windows(X: np.ndarray, windows: Windows, transform: Transform, M: np.ndarray) -> None:
    """The transformed windows of X (n, C, height, width) into M (m * m, C, n * rows * columns)."""
    X = forwards(X) if X.strides[3] == X.itemsize else np.ascontiguousarray(X)
    x, m = Layout(address_of(X), X.shape, distances(X)), Layout(address_of(M), M.shape, distances(M))
    _run(work_from_windows(x, windows, transform, m, X.dtype))


def to_windows(
    M: np.ndarray, windows: Windows, transform: Transform, B: np.ndarray | None, Y: np.ndarray
) -> None:
    """The results of windows M (m * m, O, n * rows * columns), plus B, into Y (n, O, height, width)."""
    B = np.zeros(Y.shape[1], dtype=Y.dtype) if B is None else np.ascontiguousarray(B)
    m, y = Layout(address_of(M), M.shape, distances(M)), Layout(address_of(Y), Y.shape, distances(Y))
    _run(work_to_windows(m, windows, transform, address_of(B), y, M.dtype))


def _run(work: _Work) -> None:
    """In this thread."""
    function, record = work
    data = integers(flat(record))
    compiled_function(function)(ctypes.addressof(data), 0)


class Layout(NamedTuple):
    """An array: its address, its shape, and its strides in elements."""

    address: Any
    shape: Sequence[int]
    strides: Sequence[int]


def work_from_windows(
    X: Layout, windows: Windows, transform: Transform, M: Layout, dtype: np.dtype, parts: int = 1
) -> _Work:
    """The compiled ``(data, part)`` for `from_windows`, and what it reads; rows of X are contiguous."""
    step, (top, left), *_ = windows
    images, points = _images(X), _points(M, windows)
    return _loop("from_windows", transform, step, dtype), FromWindows(parts, images, top, left, points)


def work_to_windows(
    M: Layout, windows: Windows, transform: Transform, bias: Any, Y: Layout, dtype: np.dtype, parts: int = 1
) -> _Work:
    """The same for `to_windows`."""
    function = _loop("to_windows", transform, transform.made, dtype)
    return function, ToWindows(parts, _points(M, windows), bias, _images(Y))


def _images(x: Layout) -> WindowImages:
    return WindowImages(x.address, *x.shape, *x.strides[:3])


def _points(m: Layout, windows: Windows) -> WindowPoints:
    by_point, by_line, _ = m.strides
    return WindowPoints(m.address, by_point, by_line, windows.rows, windows.columns)


def _loop(kind: str, transform: Transform, step: int, dtype: np.dtype) -> int:
    formula, taken, made = transform
    return c_function(
        f"{kind}_{formula.function.__name__.strip('_')}_{dtype.name}",
        "images.native_windows",
        "int64 data, int64 part",
        "made(fields(data), part)",
        f"{kind}(formulas[0], {taken}, {made}, {step}, {dtype.name!r}, {tiles().lanes(dtype)})",
        (ScalarFormula.of(formula),),
        dtype.name,
    )
