"""The array API's elementwise functions for float64 scalars, in place of ``xp`` in compiled formulas.

Full accuracy before speed: these are the C library's functions.
"""

import math

import numpy as np

from xpgrad.engine.scalar_common import abs, add_up, inline, where, wide_vectors  # noqa: A004
from xpgrad.engine.special import ERFCX_DOUBLE

__all__ = [
    "LOWEST",
    "abs",
    "add_up",
    "erfcx",
    "exp",
    "expm1",
    "from_ordered",
    "inf",
    "log",
    "log1p",
    "real",
    "tanh",
    "to_ordered",
    "where",
    "wide_vectors",
    "zeros_like",
]

real = np.float64
inf = real(np.inf)
_ERFCX_CENTER = real(ERFCX_DOUBLE.center)
_ERFCX = tuple(real(c) for c in ERFCX_DOUBLE.coefficients)
LOWEST = np.int64(np.iinfo(np.int64).min)
_MAGNITUDE = np.int64(np.iinfo(np.int64).max)
_SIGN_SHIFT = np.int64(63)


@inline
def exp(x):
    """Exponential function."""
    return math.exp(x)


@inline
def expm1(x):
    """exp(x) - 1, accurate near 0."""
    return math.expm1(x)


@inline
def log1p(x):
    """log(1 + x), accurate near 0."""
    return math.log1p(x)


@inline
def tanh(x):
    """Hyperbolic tangent."""
    return math.tanh(x)


@inline
def zeros_like(x):
    """Zero of x's type."""
    return np.float64(0)


@inline
def log(x):
    """Natural logarithm."""
    return real(math.log(x))


@inline
def to_ordered(x):
    """An integer that is greater for a greater x: the greatest of them is found in vector instructions."""
    bits = real(x).view(np.int64)
    return np.int64(bits ^ ((bits >> _SIGN_SHIFT) & _MAGNITUDE))


@inline
def from_ordered(bits):
    """The way back from `to_ordered`."""
    return np.int64(bits ^ ((bits >> _SIGN_SHIFT) & _MAGNITUDE)).view(real)


@inline
def erfcx(z):
    """exp(z**2) erfc(z) for finite z >= 0."""
    q = (z - _ERFCX_CENTER) / (z + _ERFCX_CENTER)
    p = _ERFCX[0]
    for coefficient in _ERFCX[1:]:
        p = p * q + coefficient
    return p / (real(1) + real(2) * z)
