"""The array API's elementwise functions for float64 scalars, in place of ``xp`` in compiled formulas.

They have no branches and no calls, so that LLVM makes vector instructions of the loops around them. A test
asserts their errors against numbers of 200 bits: at most 4 units in the last place, also for subnormal
numbers.

References: exp is reduced to |r| <= log(2)/2 with log(2) split in two, as in Cody and Waite, "Software Manual
for the Elementary Functions" (1980); the polynomial is the minimax one of degree 10 for
(exp(r) - 1 - r) / r**2, whose error is 1.4e-18. The logarithms have the reduction and the
coefficients of Sun's fdlibm (1993).
"""

import numpy as np

from xpgrad.engine.compiled.scalar_common import inline, log_or_limit, normal_tails, ordered, polynomial_of
from xpgrad.engine.formulas.special import TAIL_DOUBLE

real = np.float64
inf = real(np.inf)
sqrt = np.sqrt
tail_ratio, normal_cdf = normal_tails(real, TAIL_DOUBLE)
to_ordered, from_ordered, LOWEST = ordered(real, np.int64)

_LOG2_E = real(1.4426950408889634)
_LN2_HIGH = real(6.93147180369123816490e-01)  # its products with n are exact
_LN2_LOW = real(1.90821492927058770002e-10)
_SHIFT = real(6755399441055744)  # 1.5 * 2**52: a sum with it has integer spacing
_SHIFT_BITS = np.int64(0x4338000000000000)
_BIAS = np.int64(1023)
_MANTISSA = np.int64(52)
_SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)
_HIGH_BITS = np.int64(-1 << 27)  # the first half of a number
_EXP_MIN, _EXP_MAX = real(-746), real(710)  # beyond them exp is 0 and inf
_EXPM1_MIN = real(-40)  # expm1 rounds to -1
_TANH_MAX = real(20)  # tanh rounds to 1
_GAUSSIAN_MAX = real(40)  # beyond it gaussian is 0
_NORMAL_MIN = real(2.0**-1022)
_TO_NORMAL = real(2.0**54)


@inline
def _between(x, low, high):
    """The number, limited to low .. high; NaN for NaN."""
    v = high if x > high else x
    return low if v < low else v


@inline
def _power(shifted):
    """2**n for -1023 < n < 1024, from n + 1.5 * 2**52, which has n in its last bits."""
    return np.int64((real(shifted).view(np.int64) + _BIAS) << _MANTISSA).view(np.float64)


@inline
def _reduced(v):
    """The integer n and r of v = n log(2) + r, |r| <= log(2) / 2."""
    n = (v * _LOG2_E + _SHIFT) - _SHIFT
    r = v - n * _LN2_HIGH
    return n, r - n * _LN2_LOW


# (exp(r) - 1 - r) / r**2
_exp_rest = polynomial_of(
    real,
    (2.0921615121819257e-09, 2.5105245693181622e-08, 2.75572528356932e-07, 2.7557255331087424e-06,
     2.4801587347419556e-05, 1.984126987487531e-04, 1.3888888888874365e-03, 8.33333333332612e-03,
     4.1666666666666685e-02, 1.666666666666667e-01, 0.5),
)  # fmt: skip
# of s**2 for s = f / (2 + f), in the logarithm of 1 + f
_log_rest = polynomial_of(
    real,
    (1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
     2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01),
)  # fmt: skip


@inline
def _exp_of_sum(v, small):
    """exp(v + small) for v between the bounds of exp and |small| < 1e-4.

    The power of two has two factors, since it may be too large or too small for a number. Only the last
    product rounds, to a subnormal number or to inf.
    """
    n, r = _reduced(v)
    r = r + small
    y = _exp_rest(r) * (r * r) + r + 1
    half = n * 0.5 + _SHIFT
    return y * _power(half) * _power(n - (half - _SHIFT) + _SHIFT)


@inline
def exp(x):
    """Exponential function."""
    return _exp_of_sum(_between(x, _EXP_MIN, _EXP_MAX), 0)


@inline
def logistic(x):
    """1 / (1 + exp(-x)), by exp(-abs(x)), since exp(-x) could overflow."""
    e = exp(x if x < 0 else -x)
    return (e if x < 0 else 1) / (1 + e)


@inline
def gaussian(z):
    """exp(-z**2 / 2) for finite z.

    An error of z**2 would be multiplied by z**2. The square of the first half of z's bits is exact, and the
    rest of z**2 is small.
    """
    v = _between(z, -_GAUSSIAN_MAX, _GAUSSIAN_MAX)
    high = np.int64(real(v).view(np.int64) & _HIGH_BITS).view(np.float64)
    return _exp_of_sum(-0.5 * (high * high), -0.5 * ((v - high) * (v + high)))


@inline
def expm1(x):
    """exp(x) - 1, accurate near 0."""
    n, r = _reduced(_between(x, _EXPM1_MIN, _EXP_MAX))
    y = _exp_rest(r) * (r * r) + r
    # 2**(n - 1), since 2**1024 is above the largest number
    half_power = _power(n - 1 + _SHIFT)
    scaled = (half_power * y + (half_power - 0.5)) * 2
    y = y if n == 0 else scaled
    return x if x == 0 else y  # with its sign


@inline
def tanh(x):
    """Hyperbolic tangent."""
    # by exp(-2 |x|) = p (1 + y); 1 - p and 1 + p are exact where y matters
    v = abs(x)
    v = _TANH_MAX if v > _TANH_MAX else v
    n, r = _reduced(-2 * v)
    y = _exp_rest(r) * (r * r) + r
    power = _power(n + _SHIFT)
    t = ((1 - power) - power * y) / ((1 + power) + power * y)
    t = -t if x < 0 else t
    return x if x == 0 else t  # with its sign


@inline
def _number(k):
    """An integer as a real number; some processors have no vector instruction for that."""
    return np.int64(k + _SHIFT_BITS).view(np.float64) - _SHIFT


@inline
def _parts(u):
    """The integer k and m of u = 2**k m, m between sqrt(1/2) and sqrt(2)."""
    bits = real(u).view(np.int64)
    k = np.int64(bits - _SQRT_HALF_BITS) >> _MANTISSA
    return k, np.int64(bits - np.int64(k << _MANTISSA)).view(np.float64)


@inline
def _log_of(n, f):
    """The sum of n log(2) and log(1 + f)."""
    s = f / (2 + f)
    z = s * s
    half_square = 0.5 * f * f
    return n * _LN2_HIGH + (f - (half_square - (s * (half_square + z * _log_rest(z)) + n * _LN2_LOW)))


@inline
def log(x):
    """Natural logarithm."""
    small = x < _NORMAL_MIN
    k, m = _parts(x * _TO_NORMAL if small else x)
    n = _number(k)
    n = n - real(54) if small else n
    return log_or_limit(x, 0, _log_of(n, m - 1))


@inline
def log1p(x):
    """log(1 + x), accurate near 0."""
    u = 1 + x
    k, m = _parts(u)
    scale = np.int64((_BIAS - k) << _MANTISSA).view(np.float64)
    lost = 1 - (u - x) if x > 1 else x - (u - 1)
    f = m - 1 + lost * scale
    f = x if k == 0 else f
    y = log_or_limit(x, -1, _log_of(_number(k), f))
    return x if x == 0 else y  # with its sign
