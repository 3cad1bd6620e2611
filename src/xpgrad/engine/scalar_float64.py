"""The array API's elementwise functions for float64 scalars, in place of ``xp`` in compiled formulas.

Full accuracy before speed: these are the C library's functions.
"""

import math

import numpy as np

from xpgrad.engine.scalar_common import abs, inline, where  # noqa: A004

__all__ = ["abs", "exp", "expm1", "log1p", "real", "tanh", "where", "zeros_like"]

real = np.float64


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
