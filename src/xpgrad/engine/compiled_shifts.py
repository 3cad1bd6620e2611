"""`sum_of_shifts` and `products_of_shifts` compiled: vector loops over stretches that a first-level cache holds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from xpgrad.engine.compiler import load, one_at_a_time


def sum_of_shifts(
    rows: np.ndarray, weights: np.ndarray, terms: Sequence[tuple[int, int]], length: int
) -> np.ndarray:
    """See `Images.sum_of_shifts`."""
    total = np.empty((*rows.shape[:2], weights.shape[1], length), dtype=rows.dtype)
    numbers = np.asarray(terms, dtype=np.int64)
    _loops().sum_of_shifts(np.ascontiguousarray(rows), np.array(weights, order="C"), numbers, total)
    return total


def products_of_shifts(a: np.ndarray, rows: np.ndarray, terms: Sequence[tuple[int, int]]) -> np.ndarray:
    """See `Images.products_of_shifts`."""
    products = np.empty((*a.shape[1:3], len(terms)), dtype=rows.dtype)
    numbers = np.asarray(terms, dtype=np.int64)
    _loops().products_of_shifts(a, np.ascontiguousarray(rows), numbers, products)
    return products


@functools.cache
def _loops() -> Any:
    with one_at_a_time:
        return load("shifts", _SOURCE)


# Four terms at a time, so that a sum is read and written once for four multiplications. In the inner products the
# order of additions is free ("reassoc", "nsz"): each lane of a vector keeps a sum of its own.
_SOURCE = """# weighted sums of shifted rows, and their gradient; generated
from numba import njit

STRETCH = 1024


@njit(nogil=True, cache=True, error_model='numpy', fastmath={'contract'})
def sum_of_shifts(rows, weights, terms, total):
    images, groups, sums, length = total.shape
    count = len(terms)
    for n in range(images):
        for g in range(groups):
            for i in range(sums):
                for first in range(0, length, STRETCH):
                    size = min(STRETCH, length - first)
                    y = total[n, g, i, first:first + size]
                    for t in range(size):
                        y[t] = 0
                    whole = count // 4 * 4
                    for k in range(0, whole, 4):
                        a, b, c, d = weights[g, i, k], weights[g, i, k + 1], weights[g, i, k + 2], weights[g, i, k + 3]
                        p = rows[n, g, terms[k, 0], terms[k, 1] + first:]
                        q = rows[n, g, terms[k + 1, 0], terms[k + 1, 1] + first:]
                        r = rows[n, g, terms[k + 2, 0], terms[k + 2, 1] + first:]
                        s = rows[n, g, terms[k + 3, 0], terms[k + 3, 1] + first:]
                        for t in range(size):
                            y[t] += a * p[t] + b * q[t] + (c * r[t] + d * s[t])
                    for k in range(whole, count):
                        a = weights[g, i, k]
                        p = rows[n, g, terms[k, 0], terms[k, 1] + first:]
                        for t in range(size):
                            y[t] += a * p[t]


@njit(nogil=True, cache=True, error_model='numpy', fastmath={'contract', 'reassoc', 'nsz'})
def products_of_shifts(a, rows, terms, products):
    images, groups, sums, length = a.shape
    for g in range(groups):
        for i in range(sums):
            for k in range(len(terms)):
                total = products.dtype.type(0)
                for n in range(images):
                    x = a[n, g, i]
                    y = rows[n, g, terms[k, 0], terms[k, 1]:]
                    for t in range(length):
                        total += x[t] * y[t]
                products[g, i, k] = total
"""
