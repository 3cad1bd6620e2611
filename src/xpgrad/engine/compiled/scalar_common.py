"""Scalar functions for float32 and float64 alike, and those that the dtype alone tells apart."""

import numpy as np

from xpgrad.engine.compiled.native import inside
from xpgrad.engine.compiled.translate import Intrinsic
from xpgrad.engine.formulas.special import TAIL_SHIFT, TAIL_STEP

__all__ = ["abs", "sqrt", "wide_vectors"]

inline = inside("contract")


@inline
def abs(x):  # noqa: A001 - the standard's name
    """Absolute value."""
    return -x if x < 0 else x


@inline
def sqrt(x):
    """Square root, NaN below 0: an instruction."""
    return np.sqrt(x)


def ordered(real, integer):
    """Numbers as integers in their order, the way back, and the integer below all: see `to_ordered`."""
    limits = np.iinfo(integer)
    magnitude, sign_shift = integer(limits.max), integer(limits.bits - 1)

    @inline
    def turned(bits):
        return bits ^ ((bits >> sign_shift) & magnitude)

    @inline
    def to_ordered(x):
        """An integer that is greater for a greater x: vector instructions find the greatest of them."""
        return integer(turned(real(x).view(integer)))

    @inline
    def from_ordered(bits):
        """The way back from `to_ordered`."""
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


def tail_ratio_by(real, polynomial):
    """`special.tail_ratio` by a polynomial in a dtype."""
    center, shift, step = real(polynomial.center), real(TAIL_SHIFT), real(TAIL_STEP)
    first, one = real(0.5 * TAIL_SHIFT), real(1)
    series = polynomial_of(real, polynomial.coefficients)

    @inline
    def tail_ratio(z):
        """The normal distribution's probability beyond z, times exp(z**2 / 2), for finite z >= 0."""
        inverse = one / (z + center)
        p = series((z - center) * inverse)
        return (first + z * inverse * (step + inverse * p)) / (z + shift)

    return tail_ratio


def normal_cdf_by(real, tail_ratio):
    """`special.normal_cdf` in a dtype."""
    one = real(1)

    @inline
    def normal_cdf(z, e):
        """The normal distribution's probability below z."""
        tail = e * tail_ratio(abs(z))
        return tail if z < 0 else one - tail

    return normal_cdf


@Intrinsic
def wide_vectors(code):
    """Have the function that calls it compiled for vector registers of 512 bits, where there are any.

    LLVM takes those of 256 bits otherwise, half as fast in loops that compute more than they load.
    """
    # llvmlite passes on what is in its set of attributes, but adds to it only those that it knows
    set.add(code.builder.function.attributes, '"prefer-vector-width"="512"')
