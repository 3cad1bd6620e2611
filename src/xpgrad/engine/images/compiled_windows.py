"""`from_windows` and `to_windows` compiled: a formula in vector loops over cache-sized sets of windows.

As many windows as fit the first-level cache are split into vectors, one for each element of a window,
transformed in place along both axes, and written out. All vectors are in one array at constant distances, so
LLVM sees that they do not overlap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.source import preamble
from xpgrad.engine.compiled.strided import distances, flat, forwards
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.images.windows import Transform, Windows
from xpgrad.engine.process.notice import Lazy

_AT_ONCE = 64  # windows in a vector; two arrays of 36 such vectors of float32 are 18 KB


def from_windows(X: np.ndarray, windows: Windows, transform: Transform, M: np.ndarray) -> None:
    """The transformed windows of X (n, C, height, width) into M (m * m, C, n * rows * columns)."""
    X = forwards(X) if X.strides[3] == X.itemsize else np.ascontiguousarray(X)
    step, begin, rows, columns = windows
    loop = _loop("from", transform, step, X.dtype)
    loop(flat(X, False), *X.shape, *distances(X)[:3], *begin, rows, columns, flat(M, True), *distances(M)[:2])


def to_windows(
    M: np.ndarray, windows: Windows, transform: Transform, B: np.ndarray | None, Y: np.ndarray
) -> None:
    """The results of windows M (m * m, O, n * rows * columns), plus B, into Y (n, O, height, width)."""
    B = np.zeros(Y.shape[1], dtype=Y.dtype) if B is None else np.array(B)
    loop = _loop("to", transform, transform.made, M.dtype)
    rows, columns = windows.rows, windows.columns
    loop(flat(M, False), *distances(M)[:2], rows, columns, B, flat(Y, True), *Y.shape, *distances(Y)[:3])


def _loop(kind: str, transform: Transform, step: int, dtype: np.dtype) -> Any:
    formula, taken, made = transform
    return _compiled(kind, formula.function, formula.key[1], taken, made, step, dtype.name)


@functools.cache
def _compiled(
    kind: str, function: Callable, constants: tuple, taken: int, made: int, step: int, dtype: str
) -> Any:
    formula = Formula(function, dict(constants))
    side = max(taken, made)  # vectors in a row of a window, before and after
    sizes = {"taken": taken, "made": made, "step": step, "side": side}

    def assignment(targets: str, values: str) -> str:
        """``a[...], a[...], = formula(b[...], ...)``: all reads come before the writes."""
        left = ", ".join(targets.format(k, **sizes) for k in range(made))
        right = ", ".join(values.format(k, **sizes) for k in range(taken))
        return f"{left}, = {function.__name__}({right})"

    columns_of_cells = "cells[({} * {side} + j) * VECTOR + t]"
    rows_of_cells = "cells[(i * {side} + {}) * VECTOR + t]"
    if kind == "from":
        body = _FROM.format(
            **sizes,
            apart=_lines(
                32, (f"cells[at + {j} * VECTOR + t] = x[U(source + {step} * t + {j})]" for j in range(taken))
            ),
            columns=assignment(columns_of_cells, columns_of_cells),
            rows=assignment(rows_of_cells, rows_of_cells),
        )
    else:
        body = _TO.format(
            **sizes,
            columns=assignment(columns_of_cells, "m[U(source + ({} * {taken} + j) * by_point + t)]"),
            rows=assignment(rows_of_cells, rows_of_cells),
            together=_lines(
                32, (f"y[U(to + {step} * t + {j})] = cells[at + {j} * VECTOR + t] + b" for j in range(made))
            ),
        )
    # for numba a signed index may count from the end, and this prevents vectorization
    head = f"\nimport numpy as np\n\nVECTOR = {_AT_ONCE}\nU = np.uintp\n"
    name = f"{kind}_windows_{function.__name__.strip('_')}_{dtype}"
    text = preamble([formula.function], formula.constants, dtype) + head + body
    return Lazy(load(name, text)).loop


def _lines(indent: int, lines: Iterable[str]) -> str:
    return f"\n{' ' * indent}".join(lines)


_FROM = """

@njit(nogil=True, cache=True, error_model='numpy', fastmath={{'contract'}})
def loop(
    x, images, channels, height, width, by_image, by_channel, by_row, top, left, rows, columns,
    m, by_point, by_line,
):
    cells = np.empty({side} * {side} * VECTOR, x.dtype)
    group = max(1, VECTOR // columns)
    for c in range(channels):
        for n in range(images):
            for first_row in range(0, rows, group):
                for first in range(0, columns, VECTOR):
                    across = min(VECTOR, columns - first)
                    begin = first * {step} - left
                    # windows from low to high lie within the image's columns
                    low = min(across, max(0, (-begin + {step} - 1) // {step}))
                    high = max(low, min(across, (width - begin - {taken}) // {step} + 1))
                    count = 0
                    for r in range(first_row, min(rows, first_row + group)):
                        for i in range({taken}):
                            h = r * {step} + i - top
                            at = i * {side} * VECTOR + count
                            if h < 0 or h >= height:
                                for j in range({taken}):
                                    for t in range(across):
                                        cells[at + j * VECTOR + t] = 0
                                continue
                            source = n * by_image + c * by_channel + h * by_row + begin
                            for t in range(low, high):
                                {apart}
                            for edge in range(across - high + low):
                                t = edge if edge < low else edge - low + high
                                for j in range({taken}):
                                    w = begin + {step} * t + j
                                    inside = w >= 0 and w < width
                                    cells[at + j * VECTOR + t] = x[U(source - begin + w)] if inside else 0
                        count += across
                    for j in range({taken}):
                        for t in range(count):
                            {columns}
                    for i in range({made}):
                        for t in range(count):
                            {rows}
                    to = c * by_line + (n * rows + first_row) * columns + first
                    for i in range({made}):
                        for j in range({made}):
                            at = (i * {side} + j) * VECTOR
                            place = to + (i * {made} + j) * by_point
                            for t in range(count):
                                m[U(place + t)] = cells[at + t]
"""

_TO = """

@njit(nogil=True, cache=True, error_model='numpy', fastmath={{'contract'}})
def loop(
    m, by_point, by_line, rows, columns, bias,
    y, images, channels, height, width, by_image, by_channel, by_row,
):
    cells = np.empty({side} * {side} * VECTOR, m.dtype)
    group = max(1, VECTOR // columns)
    for c in range(channels):
        b = bias[c]
        for n in range(images):
            for first_row in range(0, rows, group):
                for first in range(0, columns, VECTOR):
                    across = min(VECTOR, columns - first)
                    count = across * min(group, rows - first_row)
                    source = c * by_line + (n * rows + first_row) * columns + first
                    for j in range({taken}):
                        for t in range(count):
                            {columns}
                    for i in range({made}):
                        for t in range(count):
                            {rows}
                    whole = max(0, min(across, width // {step} - first))
                    end = min(across * {step}, width - first * {step})
                    for r in range(first_row, min(rows, first_row + group)):
                        for i in range(min({step}, height - r * {step})):
                            at = i * {side} * VECTOR + (r - first_row) * across
                            to = n * by_image + c * by_channel + (r * {step} + i) * by_row + first * {step}
                            for t in range(whole):
                                {together}
                            for w in range(whole * {step}, end):
                                y[U(to + w)] = cells[at + (w % {step}) * VECTOR + w // {step}] + b
"""
