"""Parts of the scalar functions for float32 and for float64."""

import numpy as np

from xpgrad.engine.compiled.native import inside
from xpgrad.engine.compiled.translate import Intrinsic

inline = inside("contract")


def ordered(real, integer):
    """The functions from numbers to integers in the same order, and back; and the least integer."""
    limits = np.iinfo(integer)
    magnitude, sign_shift = integer(limits.max), integer(limits.bits - 1)

    @inline
    def turned(bits):
        return bits ^ ((bits >> sign_shift) & magnitude)

    @inline
    def to_ordered(x):
        """An integer that is greater for a greater x: vector instructions find the greatest integer."""
        return integer(turned(real(x).view(integer)))

    @inline
    def from_ordered(bits):
        """The inverse of `to_ordered`."""
        return integer(turned(bits)).view(real)

    return to_ordered, from_ordered, integer(limits.min)


def polynomial_of(real, coefficients):
    """A polynomial by its coefficients, highest power first."""
    first, *others = map(real, coefficients)

    @inline
    def polynomial(q):
        p = first
        for coefficient in others:
            p = p * q + coefficient
        return p

    return polynomial


def normal_tails(real, ratio):
    """`special.tail_ratio` and `special.normal_cdf` in a dtype, by the quotient of the first."""
    above, below = polynomial_of(real, ratio.above), polynomial_of(real, ratio.below)

    @inline
    def tail_ratio(z):
        """The normal distribution's probability beyond z, times exp(z**2 / 2), as in `special`."""
        return above(z) / below(z)

    @inline
    def normal_cdf(z, e):
        """The normal distribution's probability below z."""
        tail = e * tail_ratio(abs(z))
        return tail if z < 0 else 1 - tail

    return tail_ratio, normal_cdf


@inline
def log_or_limit(x, pole, y):
    """The logarithm y of x, which is -inf at the pole and NaN below, or its limit; NaN for NaN."""
    y = -np.inf if x == pole else y
    y = np.nan if x < pole else y
    y = np.inf if x == np.inf else y
    return x if x != x else y


@Intrinsic
def wide_vectors(code):
    """Compile the calling function for vector registers of 512 bits, if the machine has them.

    LLVM prefers 256 bits, which take twice the time in loops that compute more than they load.
    """
    # llvmlite writes all attributes in its set, but `add` accepts only those that it knows
    set.add(code.builder.function.attributes, '"prefer-vector-width"="512"')
