"""The array API's elementwise functions for float32 scalars, in place of ``xp`` in compiled formulas.

They have no branches and no calls, so that LLVM makes vector instructions of the loops around them. A test
asserts their errors against float64: 1e-7 relative for ``exp``, 3e-7 for ``tanh``, without fused
multiply-adds 3.5e-7 for ``tanh``.

References: exp is reduced to |r| <= log(2)/2 with log(2) split in two, as in Cody and Waite, "Software
Manual for the Elementary Functions" (1980), with a minimax polynomial of our own; tanh is the rational
approximation of degree 13 over 6 with the coefficients that Eigen uses.
"""

import numpy as np

from xpgrad.engine.compiled.scalar_common import inline, log_or_limit, normal_tails, ordered, polynomial_of
from xpgrad.engine.formulas.special import TAIL_SINGLE

real = np.float32
inf = real(np.inf)
sqrt = np.sqrt
tail_ratio, normal_cdf = normal_tails(real, TAIL_SINGLE)
to_ordered, from_ordered, LOWEST = ordered(real, np.int32)

_EXP_MIN = real(-87.3)  # exp is 0 from here: the power of two is 2**-126, which `_split` makes 0
_EXP_MAX = real(88.8)  # the product with 2**128 is inf
_LOG2_E = real(1.4426950408889634)
_LN2_HIGH = real(0.693359375)
_LN2_LOW = real(-2.12194440e-4)
_SHIFT = real(1.5 * 2**23 + 126)  # a sum with it has integer spacing
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_HIGH_BITS = np.int32(-1 << 12)  # the first half of a number
_GAUSSIAN_MAX = real(13.24)  # gaussian is 0 from here: the power of two is 2**-126, as in exp
_TANH_MAX = real(7.90531110763549805)  # the end of the approximation
_TANH_ONE = real(9.0109)  # tanh rounds to 1
_NORMAL_MIN = real(2.0**-126)
_TO_NORMAL = real(2.0**25)


@inline
def _split(x):
    """Return r and 2**(n - 1) of x = n log(2) + r, |r| <= log(2)/2, -126 <= n <= 128.

    The sum with 1.5 * 2**23 + 126 has n + 126 in its last bits, which become the exponent of 2**(n - 1), or
    of 0 for n = -126. 2**n could be above the largest number.
    """
    v = _EXP_MAX if x > _EXP_MAX else x
    return _split_bounded(_EXP_MIN if v < _EXP_MIN else v)


@inline
def _split_bounded(v):
    """`_split` of numbers that give such n."""
    shifted = v * _LOG2_E + _SHIFT
    n = shifted - _SHIFT
    r = v - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    return r, np.int32(real(shifted).view(np.int32) << 23).view(np.float32)


# (exp(r) - 1 - r) / r**2, minimax: an error of 3e-9 of exp(r)
_EXP_REST = (1.38145986467e-3, 8.36871687973e-3, 4.16683880453e-2, 1.66665206317e-1, 4.99999934478e-1)
_exp_rest = polynomial_of(real, _EXP_REST)
_twice_exp = polynomial_of(real, [2 * c for c in (*_EXP_REST, 1, 1)])
# of s**2 for s = f / (2 + f), in the logarithm of 1 + f
_log_rest = polynomial_of(real, (2.2222222e-1, 2.8571429e-1, 0.4, 6.6666667e-1))
# the numerator, without a factor x, and the denominator of tanh(x), in x**2
_tanh_above = polynomial_of(
    real,
    (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
     1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)  # fmt: skip
_tanh_below = polynomial_of(
    real, (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
)


@inline
def exp(x):
    """Exponential function; 0 below 2**-125.5."""
    r, half_power = _split(x)
    return _twice_exp(r) * half_power


@inline
def logistic(x):
    """1 / (1 + exp(-x))."""
    r, half_power = _split(-x)
    return 1 / (1 + _twice_exp(r) * half_power)


@inline
def gaussian(z):
    """exp(-z**2 / 2) for finite z.

    An error of z**2 would be multiplied by z**2. The square of the first half of z's bits is exact, and the
    rest of z**2 is small.
    """
    v = _GAUSSIAN_MAX if z > _GAUSSIAN_MAX else z
    v = -_GAUSSIAN_MAX if v < -_GAUSSIAN_MAX else v
    high = np.int32(real(v).view(np.int32) & _HIGH_BITS).view(np.float32)
    r, half_power = _split_bounded(-0.5 * (high * high))
    return _twice_exp(r - 0.5 * ((v - high) * (v + high))) * half_power


@inline
def expm1(x):
    """exp(x) - 1, accurate near 0."""
    r, half_power = _split(x)
    return (half_power * (_exp_rest(r) * (r * r) + r) + (half_power - 0.5)) * 2


@inline
def _log_of(n, f):
    """The sum of n log(2) and log(1 + f)."""
    s = f / (2 + f)
    z = s * s
    half_square = 0.5 * f * f
    return n * _LN2_HIGH + (f - (half_square - s * (half_square + z * _log_rest(z)) - n * _LN2_LOW))


@inline
def log1p(x):
    """log(1 + x), accurate near 0."""
    u = 1 + x
    # u = 2**k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2)
    bits = real(u).view(np.int32)
    k = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> 23)
    scale = np.int32(np.int32(127 - k) << 23).view(np.float32)
    lost = 1 - (u - x) if x > 1 else x - (u - 1)
    f = np.int32(bits - np.int32(k << 23)).view(np.float32) - 1 + lost * scale
    f = x if k == 0 else f
    y = _log_of(real(k), f)
    y = -np.inf if x == -1 else y
    y = np.nan if x < -1 else y
    return np.inf if x == np.inf else y


@inline
def tanh(x):
    """Hyperbolic tangent. By exp it would be slower: as many instructions, each dependent on the last."""
    v = _TANH_MAX if x > _TANH_MAX else x
    v = -_TANH_MAX if v < -_TANH_MAX else v
    s = v * v
    y = v * _tanh_above(s) / _tanh_below(s)
    y = 1 if x > _TANH_ONE else y
    return -1 if x < -_TANH_ONE else y


@inline
def log(x):
    """Natural logarithm."""
    small = x < _NORMAL_MIN
    bits = real(x * _TO_NORMAL if small else x).view(np.int32)
    k = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> 23)
    n = real(k)
    n = n - real(25) if small else n
    return log_or_limit(x, 0, _log_of(n, np.int32(bits - np.int32(k << 23)).view(np.float32) - 1))
