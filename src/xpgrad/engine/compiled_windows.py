"""`from_windows` and `to_windows` compiled: a formula in vector loops over a cache's worth of windows.

As many windows as a first-level cache holds are taken apart into vectors, one for each element of a window,
transformed along both axes in place, and written out. All vectors lie in one array at distances that are
constants, so that LLVM sees that they do not overlap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from xpgrad.engine.compiler import load, scalar_source
from xpgrad.engine.formula import Formula
from xpgrad.engine.windows import Transform, Windows

_AT_ONCE = 64  # windows in a vector; two arrays of 36 such vectors of float32 are 18 KB


def from_windows(X: np.ndarray, windows: Windows, transform: Transform, M: np.ndarray) -> None:
    """The transformed windows of X (n, C, height, width) into M (m * m, C, n * rows * columns)."""
    if X.strides[3] != X.itemsize:
        X = np.ascontiguousarray(X)
    step, begin, rows, columns = windows
    _loop("from", transform, step, X.dtype)(*_flat(X, writeable=False), *begin, rows, columns, M)


def to_windows(
    M: np.ndarray, windows: Windows, transform: Transform, B: np.ndarray | None, Y: np.ndarray
) -> None:
    """The results of windows M (m * m, O, n * rows * columns), plus B, into Y (n, O, height, width)."""
    B = np.zeros(Y.shape[1], dtype=Y.dtype) if B is None else np.array(B)
    loop = _loop("to", transform, transform.made, M.dtype)
    loop(M, windows.rows, windows.columns, B, *_flat(Y, writeable=True))


def _flat(images: np.ndarray, *, writeable: bool) -> tuple[Any, ...]:
    """Memory from the first element to the last, the shape, and the distances along all axes but the last."""
    distances = [stride // images.itemsize for stride in images.strides[:3]]
    span = 1 + sum(d * (s - 1) for d, s in zip([*distances, 1], images.shape, strict=True))
    flat = np.lib.stride_tricks.as_strided(images, (span,), (images.itemsize,), writeable=writeable)
    return flat, *images.shape, *distances


def _loop(kind: str, transform: Transform, step: int, dtype: np.dtype) -> Any:
    formula, taken, made = transform
    return _compiled(kind, formula.function, formula.key[1], taken, made, step, dtype.name)


@functools.cache
def _compiled(
    kind: str, function: Callable, constants: tuple, taken: int, made: int, step: int, dtype: str
) -> Any:
    source = _FROM if kind == "from" else _TO
    formula = Formula(function, dict(constants))
    side = max(taken, made)  # vectors of a row of windows' elements, before and after
    text = source.format(
        vector=_AT_ONCE,
        line=_AT_ONCE * step + taken,
        taken=taken,
        made=made,
        step=step,
        side=side,
        along_columns=_assignment(function, taken, made, "lines", "{} * LINE + w")
        if kind == "from"
        else _assignment(function, taken, made, "cells", f"({{}} * {side} + j) * VECTOR + t"),
        along_rows=_assignment(function, taken, made, "cells", f"(i * {side} + {{}}) * VECTOR + t"),
        apart="\n".join(
            f"                                cells[at + {j} * VECTOR + t] = lines[i * LINE + {step} * t + {j}]"
            for j in range(taken)
        ),
        together="\n".join(
            f"                                y[to + {step} * t + {j}] = cells[at + {j} * VECTOR + t] + b"
            for j in range(made)
        ),
    )
    return load(
        f"{kind}_windows_{function.__name__.strip('_')}_{dtype}", scalar_source(formula, dtype) + text
    ).loop


def _assignment(function: Callable, taken: int, made: int, array: str, index: str) -> str:
    """``a[...], a[...] = formula(a[...], ...)``; what is taken is read before anything is written."""
    targets = ", ".join(f"{array}[{index.format(k)}]" for k in range(made))
    values = ", ".join(f"{array}[{index.format(k)}]" for k in range(taken))
    return f"{targets}, = {function.__name__}({values})"


_HEAD = """
import numpy as np

VECTOR = {vector}
LINE = {line}


@njit(nogil=True, cache=True, error_model='numpy', fastmath={{'contract'}})
"""

_FROM = (
    _HEAD
    + """def loop(x, images, channels, height, width, by_image, by_channel, by_row, top, left, rows, columns, m):
    lines = np.empty({side} * LINE, x.dtype)
    cells = np.empty({side} * {side} * VECTOR, x.dtype)
    group = max(1, VECTOR // columns)
    for c in range(channels):
        for n in range(images):
            for first_row in range(0, rows, group):
                for first in range(0, columns, VECTOR):
                    across = min(VECTOR, columns - first)
                    reach = (across - 1) * {step} + {taken}
                    begin = first * {step} - left
                    low, high = min(reach, max(0, -begin)), max(0, min(reach, width - begin))
                    count = 0
                    for r in range(first_row, min(rows, first_row + group)):
                        for i in range({taken}):
                            h = r * {step} + i - top
                            if h < 0 or h >= height:
                                for w in range(reach):
                                    lines[i * LINE + w] = 0
                            else:
                                source = n * by_image + c * by_channel + h * by_row + begin
                                for w in range(low):
                                    lines[i * LINE + w] = 0
                                for w in range(low, high):
                                    lines[i * LINE + w] = x[source + w]
                                for w in range(high, reach):
                                    lines[i * LINE + w] = 0
                        for w in range(reach):
                            {along_columns}
                        for i in range({made}):
                            at = i * {side} * VECTOR + count
                            for t in range(across):
{apart}
                        count += across
                    for i in range({made}):
                        for t in range(count):
                            {along_rows}
                    to = (n * rows + first_row) * columns + first
                    for i in range({made}):
                        for j in range({made}):
                            row = m[i * {made} + j, c, to:]
                            at = (i * {side} + j) * VECTOR
                            for t in range(count):
                                row[t] = cells[at + t]
"""
)

_TO = (
    _HEAD
    + """def loop(m, rows, columns, bias, y, images, channels, height, width, by_image, by_channel, by_row):
    cells = np.empty({side} * {side} * VECTOR, m.dtype)
    group = max(1, VECTOR // columns)
    for c in range(channels):
        b = bias[c]
        for n in range(images):
            for first_row in range(0, rows, group):
                for first in range(0, columns, VECTOR):
                    across = min(VECTOR, columns - first)
                    count = across * min(group, rows - first_row)
                    start = (n * rows + first_row) * columns + first
                    for i in range({taken}):
                        for j in range({taken}):
                            row = m[i * {taken} + j, c, start:]
                            at = (i * {side} + j) * VECTOR
                            for t in range(count):
                                cells[at + t] = row[t]
                    for j in range({taken}):
                        for t in range(count):
                            {along_columns}
                    for i in range({made}):
                        for t in range(count):
                            {along_rows}
                    whole = max(0, min(across, width // {step} - first))
                    for r in range(first_row, min(rows, first_row + group)):
                        for i in range(min({step}, height - r * {step})):
                            at = i * {side} * VECTOR + (r - first_row) * across
                            to = n * by_image + c * by_channel + (r * {step} + i) * by_row + first * {step}
                            for t in range(whole):
{together}
                            for w in range(whole * {step}, min(across * {step}, width - first * {step})):
                                y[to + w] = cells[at + (w % {step}) * VECTOR + w // {step}] + b
"""
)
