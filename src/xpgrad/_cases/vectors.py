"""Vectors: an operator's inputs and gradients, for tests of other kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import xpgrad
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.vjp import rule_of

from .._testing.comparing import relative_error
from .case import Case, KernelCases, from_differences
from .kernels import KERNELS

__all__ = ["Vector", "operators", "vectors"]

_ALLOWED = 1e-6  # central differences are good for about nine digits
_DRAWS = 3  # a draw may put a value at a kink, where differences are meaningless


class Vector(NamedTuple):
    """One case of an operator, in float64; every mapping is by the name of an argument or result.

    Parameters
    ----------
    operator, option : str
        What was computed, and the option's name.
    attributes : mapping of str to object
        The operator's attributes that were given.
    inputs : mapping of str to numpy.ndarray
        Its arrays: arguments with a gradient, arrays of whole numbers, and the samples' weights.
    outputs : mapping of str to numpy.ndarray
        All results of the forward: outputs, and arrays for the gradient.
    cotangents, gradients : mapping of str to numpy.ndarray
        By the gradient function's names.
    error : float
        The largest error against central differences, relative to each gradient's largest value.
    """

    operator: str
    option: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    cotangents: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    error: float


def operators() -> list[str]:
    """The operators that have vectors."""
    return [kernel.name for kernel in KERNELS]


def vectors(
    operator: str, cases: int | None = None, seed: int = 0, *, option: str | None = None
) -> Iterator[Vector]:
    """Inputs, saved arrays, cotangents and gradients of an operator, to test another kernel with.

    Each case is computed in float64, and its gradients are compared with central differences. Inputs and
    cotangents are numbers below 8 with few binary digits, which every floating-point type down to bfloat16
    holds exactly.

    Parameters
    ----------
    operator : str
        A forward of this package that has a gradient, such as ``"lstm"``.
    cases : int, optional
        The number of cases, which cycle through the operator's options. By default one case of each option.
    seed : int
        The seed of the numbers; the same seed gives the same cases.
    option : str, optional
        The only option, such as ``"lengths, bidirectional"``; by default all options. ``python -m xpgrad
        check --all`` prints their names.

    Yields
    ------
    Vector
        A case. Its arrays are NumPy arrays, by the argument's name.

    Raises
    ------
    ValueError
        For an unknown operator or option, or a number below its range.
    ArithmeticError
        If a gradient disagrees with the differences: then this package is wrong on this machine.

    Examples
    --------
    >>> from xpgrad.testing import vectors
    >>> [case] = vectors("lstm", option="peepholes, full")
    >>> case.attributes, case.gradients["dP"].shape, case.error < 1e-6
    ({}, (1, 12), True)
    """
    # Bad arguments raise at once, not with the first case.
    kernel = next((kernel for kernel in KERNELS if kernel.name == operator), None)
    if kernel is None:
        raise ValueError(f"vectors: operator is {operator!r}, expected one of {', '.join(operators())}")
    options = [name for name in kernel.options if _has_differences(kernel, name)]
    if option is not None:
        if option not in options:
            raise ValueError(f"vectors: option is {option!r}, expected one of {'; '.join(options)}")
        options = [option]
    count = len(options) if cases is None else cases
    for name, value, least in (("cases", count, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"vectors: {name} is {value!r}, expected a whole number of at least {least}")
    names = itertools.islice(itertools.cycle(options), count)
    return (_vector(kernel, name, seed, index) for index, name in enumerate(names))


def _has_differences(kernel: KernelCases, option: str) -> bool:
    """Whether an option has vectors: not truncated gradients, nor samples' gradients."""
    case = kernel.options[option]()
    return not option.startswith("per_sample") and case.gradient_attributes.get("peephole") != "truncated"


def _vector(kernel: KernelCases, option: str, seed: int, index: int) -> Vector:
    worst = math.inf
    for draw in range(_DRAWS):
        case = _finite(kernel.options[option](seed=[seed, index, draw]))
        results = {name: np.asarray(array) for name, array in kernel.run(case).items()}
        expected = from_differences(kernel.name, case) or {}
        worst = max(relative_error(results[name], array) for name, array in expected.items())
        if worst <= _ALLOWED:
            return _named(kernel, option, case, results, worst)
    raise ArithmeticError(
        f"vectors: a gradient of {kernel.name}, option {option!r}, differs from central differences by "
        f"{worst:.2g}, allowed {_ALLOWED:.0e}"
    )


def _finite(case: Case) -> Case:
    """The case with numbers instead of NaN in its padding, for kernels that do not ignore NaN."""

    def filled(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.where(np.isnan(array), 2.5, array) for name, array in arrays.items()}

    return case._replace(
        arguments=filled(case.arguments), cotangents=filled(case.cotangents), gradient_attributes={}
    )


def _named(kernel: KernelCases, option: str, case: Case, results: Mapping[str, Any], error: float) -> Vector:
    gradients = {name: a for name, a in results.items() if name.startswith("gradient of ")}
    outputs = {name: a for name, a in results.items() if name not in gradients}
    cotangents = rule_of(getattr(xpgrad, kernel.name)).cotangents
    attributes = {name: value for name, value in case.attributes.items() if name != "method"}
    return Vector(
        kernel.name,
        option,
        {name: list(value) if isinstance(value, tuple) else value for name, value in attributes.items()},
        {**case.arguments, **case.integers, **case.weights},
        outputs,
        {cotangents[name]: array for name, array in case.cotangents.items()},
        {gradient_name(name): gradients[f"gradient of {name}"] for name in case.arguments},
        error,
    )
