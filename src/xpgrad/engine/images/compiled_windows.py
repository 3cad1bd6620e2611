"""What the compiled loops of `native_windows` read: from images to windows, and back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.formula_code import ScalarFormula, c_function
from xpgrad.engine.compiled.records import FromWindows, ToWindows, WindowImages, WindowPoints
from xpgrad.engine.compiled.register_tiles import tiles
from xpgrad.engine.images.windows import Transform, Windows

# Windows of their own are read where they are up to so many times their elements apart: as the kernels of
# each tap along a first axis of three. Each distance has code of its own.
_APART = 6

# A function's address, and what it reads.
_Work = tuple[int, FromWindows | ToWindows]


def can_be_written(shape: Sequence[int], strides: Sequence[int], windows: Windows) -> bool:
    """Whether `to_windows` writes there: rows of images, or one row of kernels that follow one another."""
    if len(shape) == 4 or windows.slices:
        return strides[-1] == 1
    high, side = shape[2], shape[4]
    follow = (*strides[3:],) == (high * side, 1) and (high == 1 or strides[2] == side)
    return shape[0] == 1 and high in (1, side) and follow


def can_be_read(shape: Sequence[int], strides: Sequence[int], windows: Windows) -> bool:
    """Whether `from_windows` reads images where they are: by rows, and windows apart as in kernels."""
    if strides[-1] != 1 or min(strides) < 0:
        return False
    if len(shape) == 4 or windows.slices:
        return True
    high, side = shape[2], shape[4]
    if high == 1:  # a piece of a longer row is copied: else each length of rows would have its own code
        return strides[3] == side
    return strides[3] == side or strides[3] in range(0, _APART * side * side, side * side)


class Layout(NamedTuple):
    """An array: its address, its shape, and its strides in elements."""

    address: Any
    shape: Sequence[int]
    strides: Sequence[int]


def work_from_windows(
    X: Layout, windows: Windows, transform: Transform, M: Layout, dtype: np.dtype, parts: int = 1
) -> _Work:
    """The compiled ``(data, part)`` for `from_windows`, and what it reads, where it can be read."""
    step, (top, left), *_ = windows
    apart = step if len(X.shape) == 4 or windows.slices else X.strides[3]
    images, points = _images(X, windows), _points(M, windows, transform)
    loop = _loop("from_windows", transform, (step, apart), dtype)
    return loop, FromWindows(parts, images, top, left, points)


def work_to_windows(
    M: Layout, windows: Windows, transform: Transform, bias: Any, Y: Layout, dtype: np.dtype, parts: int = 1
) -> _Work:
    """The same for `to_windows`."""
    kind = "to_windows" if len(Y.shape) == 4 or windows.slices else "to_kernels"
    function = _loop(kind, transform, (transform.made,), dtype)
    return function, ToWindows(parts, _points(M, windows, transform), bias, _images(Y, windows))


def _images(x: Layout, windows: Windows) -> WindowImages:
    (count, channels, *size), (by_image, by_channel, *by) = x.shape, x.strides
    slices, by_slice = 1, 0
    if windows.slices:
        slices, by_slice = size.pop(0), by.pop(0)
    height, *row = size
    width = row[0] if len(row) == 1 else (row[0] - 1) * by[1] + row[1]  # of windows on their own
    return WindowImages(
        x.address, count, slices, channels, height, width, by_image, by_slice, by_channel, by[0]
    )


def _points(m: Layout, windows: Windows, transform: Transform) -> WindowPoints:
    (by_point, by_line, _), count = m.strides, transform.phases**2
    by_phase = m.strides[transform.axis] * (m.shape[transform.axis] // count)
    if transform.axis == 0:
        by_point, by_phase = by_point * count, by_point
    return WindowPoints(m.address, by_point, by_line, by_phase, windows.rows, windows.columns)


@functools.cache
def _loop(kind: str, transform: Transform, steps: tuple[int, ...], dtype: np.dtype) -> int:
    formula, taken, made, phases, _, flat = transform
    sizes = ", ".join(map(str, (taken, made, phases, flat, *steps)))
    return c_function(
        f"{kind}_{formula.function.__name__.strip('_')}_{dtype.name}",
        "images.native_windows",
        "int64 data, int64 part",
        "made(fields(data), part)",
        f"{kind}(formulas[0], {sizes}, {dtype.name!r}, {tiles().lanes(dtype)})",
        (ScalarFormula(*formula.key),),
        dtype.name,
    )
