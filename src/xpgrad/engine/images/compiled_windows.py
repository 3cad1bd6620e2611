"""`from_windows` and `to_windows` compiled: the loops of `native_windows` for one transform."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.register_tiles import tiles
from xpgrad.engine.compiled.source import preamble
from xpgrad.engine.compiled.strided import distances, flat, forwards
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.images.windows import Transform, Windows
from xpgrad.engine.process.notice import Lazy


def from_windows(X: np.ndarray, windows: Windows, transform: Transform, M: np.ndarray) -> None:
    """The transformed windows of X (n, C, height, width) into M (m * m, C, n * rows * columns)."""
    X = forwards(X) if X.strides[3] == X.itemsize else np.ascontiguousarray(X)
    step, begin, rows, columns = windows
    loop = _loop("from_windows", transform, step, X.dtype)
    loop(flat(X, False), *X.shape, *distances(X)[:3], *begin, rows, columns, flat(M, True), *distances(M)[:2])


def to_windows(
    M: np.ndarray, windows: Windows, transform: Transform, B: np.ndarray | None, Y: np.ndarray
) -> None:
    """The results of windows M (m * m, O, n * rows * columns), plus B, into Y (n, O, height, width)."""
    B = np.zeros(Y.shape[1], dtype=Y.dtype) if B is None else np.array(B)
    loop = _loop("to_windows", transform, transform.made, M.dtype)
    rows, columns = windows.rows, windows.columns
    loop(flat(M, False), *distances(M)[:2], rows, columns, B, flat(Y, True), *Y.shape, *distances(Y)[:3])


def _loop(kind: str, transform: Transform, step: int, dtype: np.dtype) -> Any:
    formula, taken, made = transform
    return _compiled(
        kind, formula.function, formula.key[1], taken, made, step, dtype.name, tiles().bytes // dtype.itemsize
    )


@functools.cache
def _compiled(
    kind: str, function: Callable, constants: tuple, taken: int, made: int, step: int, dtype: str, lanes: int
) -> Any:
    formula, name = Formula(function, dict(constants)), function.__name__
    text = f"""{preamble([function], formula.constants, dtype)}
from numba import njit

from xpgrad.engine.images.native_windows import {kind}

inner = {kind}({name}, {taken}, {made}, {step}, {dtype!r}, {lanes}, __name__)


@njit(nogil=True, cache=True, error_model="numpy")
def loop(*arguments):
    inner(*arguments)
"""
    return Lazy(load(f"{kind}_{name.strip('_')}_{dtype}", text)).loop
