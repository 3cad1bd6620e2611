"""Elementwise functions for formulas that the array API lacks.

Formulas call them with ``xp`` first, on arrays of any namespace. A namespace's own function of the same name
takes precedence: compiled scalars have all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["epsilon", "gaussian", "logistic", "normal_cdf", "tail_ratio"]


class Polynomial(NamedTuple):
    """A polynomial p, highest power first, in q = (z - center) / (z + center).

    With i = 1 / (z + center) and d = 0.75, (z + d) tail_ratio(z) is
    d / 2 + z i (1 / sqrt(2 pi) - d / 2 + i p(q)). The value at 0 and the limit do not depend on p, so the
    rounding of p matters little.
    """

    center: float
    coefficients: tuple[float, ...]


# Chebyshev expansions over 0 <= z <= inf, truncated at the dtype's rounding and written as powers.
# Their variable is from Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x**2) erfc x in
# 0 <= x < inf" (1981); tail_ratio(z) is half of that function at z / sqrt(2).
TAIL_SINGLE = Polynomial(
    2.75,
    (
        3.91252395e-05, -0.000285948352, -0.000578965417, 0.00161865112, 0.00429377663, -0.0060631797,
        -0.0262661935, 0.0371418386, 0.15514552, -0.576216431, 0.776219713,
    ),
)  # fmt: skip
TAIL_DOUBLE = Polynomial(
    5.25,
    (
        -3.0176240456658923e-09, -9.332838847292861e-11, 3.525424439721184e-08, 1.419770789475772e-09,
        -2.547762480522287e-07, 1.6735925249388954e-08, 1.6409472856645358e-06, -7.042631088803152e-07,
        -1.0483628625545486e-05, 1.279431342905588e-05, 6.176614940342277e-05, -0.00017562896613601973,
        -0.00019593849932584182, 0.0018530935107867244, -0.0029494102748600214, -0.008290029629461983,
        0.06199121334829602, -0.20519072610769884, 0.47738168574605316, -0.8630944461252585,
        1.2473824843409962, -1.4169965672001772, 1.1331231432242588,
    ),
)  # fmt: skip
TAIL_SHIFT, TAIL_STEP = 0.75, 0.02394228040143268  # d, and 1 / sqrt(2 pi) - d / 2


def _own_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """The namespace's own function of this name, if it has one, else this one."""
    name = function.__name__

    @functools.wraps(function)
    def call(xp: Any, *arrays: Any) -> Any:
        own = getattr(xp, name, None)
        return function(xp, *arrays) if own is None else own(*arrays)

    return call


@_own_first
def epsilon(xp: Any, x: Any) -> Any:
    """The distance from 1 to the next number of x's dtype."""
    return 2.0**-52 if x.dtype == xp.float64 else 2.0**-23


@_own_first
def logistic(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    # exp(-|x|) never overflows; `where` instead of `abs`, whose slope at 0 would mislead autograd
    e = xp.exp(xp.where(x < 0, x, -x))
    return xp.where(x < 0, e, xp.zeros_like(e) + 1) / (1 + e)


@_own_first
def tail_ratio(xp: Any, z: Any) -> Any:
    """(1 - Phi(z)) exp(z**2 / 2) for finite z >= 0: Mills' ratio, over sqrt(2 pi)."""
    center, coefficients = TAIL_DOUBLE if z.dtype == xp.float64 else TAIL_SINGLE
    inverse = 1 / (z + center)
    q = (z - center) * inverse
    p = q * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        p = p * q + coefficient
    return (0.5 * TAIL_SHIFT + z * inverse * (TAIL_STEP + inverse * p)) / (z + TAIL_SHIFT)


@_own_first
def gaussian(xp: Any, z: Any) -> Any:
    """exp(-z**2 / 2) for finite z.

    The rounding error of z**2 would be multiplied by its size. So z is split into two halves of its bits
    (Dekker, "A floating-point technique for extending the available precision", 1971): the square of the
    first is exact, and the rest of z**2 is small.
    """
    zero = xp.zeros_like(z)
    z = xp.minimum(xp.maximum(z, zero - 40), zero + 40)  # beyond, the two parts are 0 and inf
    spread = (134217729.0 if z.dtype == xp.float64 else 4097.0) * z
    high = spread - (spread - z)
    return xp.exp(-0.5 * (high * high)) * xp.exp(-0.5 * ((z - high) * (z + high)))


@_own_first
def normal_cdf(xp: Any, z: Any, e: Any) -> Any:
    """The normal distribution's probability below a finite z; e is gaussian(z)."""
    tail = e * tail_ratio(xp, xp.where(z < 0, -z, z))
    return xp.where(z < 0, tail, 1 - tail)
