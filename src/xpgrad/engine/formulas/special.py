"""Elementwise functions for formulas that the array API lacks.

Formulas call them with ``xp`` first, on arrays of any namespace. A namespace's own function of the same name
takes precedence: compiled scalars have all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["epsilon", "exp_minus_abs", "gaussian", "logistic", "normal_cdf", "tail_ratio"]


class Rational(NamedTuple):
    """A polynomial over another one, both with the highest power first."""

    above: tuple[float, ...]
    below: tuple[float, ...]


# Minimax approximations of tail_ratio for 0 <= z <= 14.5 and for 0 <= z <= 39, with relative errors of 6e-9
# and 5e-17. All coefficients are positive, so no sum cancels. Hart and others, "Computer approximations"
# (1968), approximate the normal distribution's tail in this way.
TAIL_SINGLE = Rational(
    (0.00411482001, 0.0406238418, 0.18320833, 0.438260382, 0.5),
    (0.0103142043, 0.101835324, 0.469399569, 1.20239438, 1.67440574, 1),
)
TAIL_DOUBLE = Rational(
    (
        1.38631041935413997e-06, 3.72679784253443036e-05, 0.000490570578179188118, 0.00409037824626914466,
        0.0236274558130706953, 0.0977158570920639822, 0.289369480025214975, 0.594097931839666288,
        0.774909643732224664, 0.5,
    ),
    (
        3.47496489457890605e-06, 9.34169684571807043e-05, 0.00123315304705912886, 0.0103464747233425607,
        0.0604479773750607059, 0.255003542406381077, 0.782142606335799067, 1.71454410008920516,
        2.56139251754960866, 2.34770384826730466, 1,
    ),
)  # fmt: skip


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


def exp_minus_abs(xp: Any, x: Any) -> Any:
    """exp(-abs(x)), which never overflows; without `abs`, whose slope at 0 would mislead autograd."""
    return xp.exp(xp.where(x < 0, x, -x))


@_own_first
def logistic(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    e = exp_minus_abs(xp, x)
    return xp.where(x < 0, e, xp.zeros_like(e) + 1) / (1 + e)


@_own_first
def tail_ratio(xp: Any, z: Any) -> Any:
    """(1 - Phi(z)) exp(z**2 / 2): Mills' ratio, over sqrt(2 pi).

    For z from 0 to the first number whose gaussian is 0; beyond, it is less accurate, and finite up to 1e7.
    """
    tail = TAIL_DOUBLE if z.dtype == xp.float64 else TAIL_SINGLE
    return _polynomial(tail.above, z) / _polynomial(tail.below, z)


def _polynomial(coefficients: Sequence[float], z: Any) -> Any:
    p: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        p = p * z + coefficient
    return p


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
