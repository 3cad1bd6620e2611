"""Elementwise functions that formulas need beside the array API's.

Formulas call them like helpers of their own, with ``xp`` first. What is here works on arrays of any
namespace; the compiler takes the function of the same name in the dtype's module of scalar functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["erfcx", "normal_cdf"]


class Polynomial(NamedTuple):
    """(1 + 2 z) erfcx(z) as a polynomial in (z - center) / (z + center), highest power first."""

    center: float
    coefficients: tuple[float, ...]


# Chebyshev expansions over 0 <= z <= inf, cut where the dtype's rounding is reached and written as powers.
# Their variable is that of Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x**2) erfc x in
# 0 <= x < inf" (1981).
ERFCX_SINGLE = Polynomial(
    2.0,
    (
        0.000160803582, -0.000183654437, -0.00139570695, 0.00104314458, 0.00868915966, -0.0079427217,
        -0.0542119585, 0.16403584, -0.166031096, -0.092763082, 1.27697839,
    ),
)  # fmt: skip
ERFCX_DOUBLE = Polynomial(
    3.75,
    (
        3.1114333768812383e-10, -2.6231073472366233e-09, -3.744210078573782e-09, 3.197926671728299e-08,
        2.326350870282696e-08, -2.485712624817476e-07, -5.7218230594577646e-08, 1.7419821586247688e-06,
        -9.735598967445084e-07, -1.1438048033348938e-05, 2.23842391550867e-05, 5.164652974177533e-05,
        -0.0002901540805408434, 0.00029371437804495763, 0.0017556258528952956, -0.009746579683265262,
        0.028362277418956403, -0.05869339857664934, 0.09230432116037748, -0.10880393014244462,
        0.0822767384901452, 0.0035854154854790257, -0.14024059858554697, 1.2375126308378275,
    ),
)  # fmt: skip


def erfcx(xp: Any, z: Any) -> Any:
    """exp(z**2) erfc(z), the scaled complementary error function, for finite z >= 0."""
    center, coefficients = ERFCX_DOUBLE if z.dtype == xp.float64 else ERFCX_SINGLE
    q = (z - center) / (z + center)
    p = q * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        p = p * q + coefficient
    return p / (1 + 2 * z)


def normal_cdf(xp: Any, z: Any, e: Any) -> Any:
    """The normal distribution's probability below a finite z, for e = exp(-z**2 / 2)."""
    own = getattr(xp, "normal_cdf", None)
    if own is not None:
        return own(z)
    tail = 0.5 * e * erfcx(xp, 0.7071067811865476 * xp.where(z < 0, -z, z))
    return xp.where(z < 0, tail, 1 - tail)
