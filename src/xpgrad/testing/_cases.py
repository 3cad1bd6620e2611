"""Cases for the tests of other people's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xpgrad._vectors import Vector


def vectors(
    operator: str, cases: int | None = None, seed: int = 0, *, option: str | None = None
) -> Iterator[Vector]:
    """Inputs, saved arrays, cotangents and gradients of an operator, to test another kernel with.

    Each case is computed in float64, and its gradients are held against central differences while it is
    made. Inputs and cotangents are multiples of 1/64 below 8, of so few digits that every floating-point type
    down to bfloat16 holds them exactly.

    Parameters
    ----------
    operator : str
        A forward of this package that has a gradient, such as ``"lstm"``.
    cases : int, optional
        How many; they go through the operator's options in turn. By default one of each option.
    seed : int
        Of the numbers; the same seed gives the same cases.
    option : str, optional
        The only option to take, such as ``"lengths, bidirectional"``; all by default. They are those that
        ``python -m xpgrad check`` prints.

    Yields
    ------
    Vector
        A case. Its arrays are NumPy arrays by their argument's name.

    Raises
    ------
    ValueError
        For an unknown operator or option, or a number below its range.
    ArithmeticError
        If a gradient does not agree with the differences: then this package is wrong on this machine.

    Examples
    --------
    >>> from xpgrad.testing import vectors
    >>> [case] = vectors("lstm", option="peepholes, full")
    >>> case.attributes, case.gradients["dP"].shape, case.error < 1e-6
    ({}, (1, 12), True)
    """
    from xpgrad._vectors import make  # the cases are those of the command line's check

    return make(operator, cases, seed, option)
