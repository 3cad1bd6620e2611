"""The array API's elementwise functions for float64 scalars, in place of ``xp`` in compiled formulas.

Full accuracy before speed: these are the C library's functions.
"""

import math

import numpy as np

from xpgrad.engine.scalar_common import (
    abs,  # noqa: A004
    add_up,
    erfcx_by,
    inline,
    maximum,
    minimum,
    normal_cdf_by,
    ordered,
    where,
    wide_vectors,
)
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
    "maximum",
    "minimum",
    "normal_cdf",
    "real",
    "tanh",
    "to_ordered",
    "where",
    "wide_vectors",
    "zeros_like",
]

real = np.float64
inf = real(np.inf)
erfcx = erfcx_by(real, ERFCX_DOUBLE)
normal_cdf = normal_cdf_by(real, erfcx)
to_ordered, from_ordered, LOWEST = ordered(real, np.int64)


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
