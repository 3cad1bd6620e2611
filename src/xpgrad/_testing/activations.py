"""The activations of ONNX's recurrent operators and their slopes, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any


class ReferenceActivation(NamedTuple):
    """An activation with its parameters; NaN for a parameter that it lacks."""

    name: str
    alpha: float
    beta: float


_DEFAULT_ALPHA = dict.fromkeys(("affine", "elu", "scaledtanh", "thresholdedrelu"), 1.0)
_DEFAULT_ALPHA |= {"hardsigmoid": 0.2, "leakyrelu": 0.01}
_DEFAULT_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


def _clipped(xp: Any, y: Array) -> Array:
    zero = xp.zeros_like(y)
    return xp.where(y <= 0, zero, xp.where(y >= 1, zero + 1, y))


_VALUES: dict[str, Callable[[Any, Array, float, float], Array]] = {
    "affine": lambda xp, x, alpha, beta: alpha * x + beta,
    "elu": lambda xp, x, alpha, beta: xp.where(
        x > 0, x, alpha * xp.expm1(xp.where(x > 0, xp.zeros_like(x), x))
    ),
    "hardsigmoid": lambda xp, x, alpha, beta: _clipped(xp, alpha * x + beta),
    "leakyrelu": lambda xp, x, alpha, beta: xp.where(x > 0, x, alpha * x),
    "relu": lambda xp, x, alpha, beta: xp.where(x <= 0, xp.zeros_like(x), x),
    "scaledtanh": lambda xp, x, alpha, beta: alpha * xp.tanh(beta * x),
    "sigmoid": lambda xp, x, alpha, beta: 0.5 * (1 + xp.tanh(0.5 * x)),
    "softplus": lambda xp, x, alpha, beta: xp.logaddexp(x, xp.zeros_like(x)),
    "softsign": lambda xp, x, alpha, beta: x / (1 + xp.abs(x)),
    "tanh": lambda xp, x, alpha, beta: xp.tanh(x),
    "thresholdedrelu": lambda xp, x, alpha, beta: xp.where(x <= alpha, xp.zeros_like(x), x),
}
"""The activations by name. Autograd of a value gives the documented slope at a kink."""
_SLOPES: dict[str, Callable[[np.ndarray, np.ndarray, float, float], Any]] = {
    "affine": lambda y, x, alpha, beta: np.full_like(y, alpha),
    "elu": lambda y, x, alpha, beta: np.where((x if alpha < 0 else y) > 0, 1.0, y + alpha),
    "hardsigmoid": lambda y, x, alpha, beta: np.where((y > 0) & (y < 1), alpha, 0.0),
    "leakyrelu": lambda y, x, alpha, beta: np.where((x if alpha < 0 else y) > 0, 1.0, alpha),
    "relu": lambda y, x, alpha, beta: np.where(y > 0, 1.0, 0.0),
    "scaledtanh": lambda y, x, alpha, beta: beta * (alpha - y**2 / alpha) if alpha else np.zeros_like(y),
    "sigmoid": lambda y, x, alpha, beta: y * (1 - y),
    "softplus": lambda y, x, alpha, beta: -np.expm1(-y),
    "softsign": lambda y, x, alpha, beta: (1 - np.abs(y)) ** 2,
    "tanh": lambda y, x, alpha, beta: 1 - y**2,
    "thresholdedrelu": lambda y, x, alpha, beta: np.where((x if alpha < 0 else y) > alpha, 1.0, 0.0),
}
"""Their slopes from the value y; x is read only if y does not tell the branch."""


def read_activations(
    operator: str,
    count: int,
    names: Sequence[str] | None,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    directions: int,
) -> list[list[ReferenceActivation]]:
    """The `count` activations of each direction; alphas and betas only for the activations that take them."""
    if names is None:
        names = (["Tanh"] if count == 1 else ["Sigmoid", "Tanh", "Tanh"][:count]) * directions
    left_alphas, left_betas = list(alphas or []), list(betas or [])
    read = []
    for name in (n.lower() for n in names):
        if name not in _VALUES:
            raise ValueError(f"{operator}: activation {name!r} is none of ONNX's eleven")
        alpha, beta = _DEFAULT_ALPHA.get(name, math.nan), _DEFAULT_BETA.get(name, math.nan)
        if name in _DEFAULT_ALPHA and left_alphas:
            alpha = float(left_alphas.pop(0))
        if name in _DEFAULT_BETA and left_betas:
            beta = float(left_betas.pop(0))
        read.append(ReferenceActivation(name, alpha, beta))
    return [read[count * d : count * (d + 1)] for d in range(directions)]


def sigmoid(xp: Any, x: Array) -> Array:
    """The logistic function by its definition."""
    return 1 / (1 + xp.exp(-x))


def activate(xp: Any, activation: ReferenceActivation, x: Array) -> Array:
    """The value of an activation at x."""
    return _VALUES[activation.name](xp, x, activation.alpha, activation.beta)


def slope_from_output(activation: ReferenceActivation, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The slope of an activation at x, with the value y."""
    slope: np.ndarray = _SLOPES[activation.name](y, x, activation.alpha, activation.beta)
    return slope
