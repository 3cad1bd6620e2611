"""The activations of ONNX's recurrent operators and their slopes, one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any


class ReferenceActivation(NamedTuple):
    """An activation with its parameters; NaN for a parameter that it lacks."""

    name: str
    alpha: float
    beta: float


_DEFAULT_ALPHA = {
    "affine": 1.0,
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "scaledtanh": 1.0,
    "hardsigmoid": 0.2,
    "elu": 1.0,
}
_DEFAULT_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}
_ACTIVATIONS = {*_DEFAULT_ALPHA, "relu", "sigmoid", "softplus", "softsign", "tanh"}


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
        if name not in _ACTIVATIONS:
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
    """The value of an activation. Autograd of it gives the documented slopes at the kinks."""
    name, alpha, beta = activation
    zero = xp.zeros_like(x)
    if name == "sigmoid":
        return 0.5 * (1 + xp.tanh(0.5 * x))
    if name == "tanh":
        return xp.tanh(x)
    if name == "relu":
        return xp.where(x <= 0, zero, x)
    if name == "affine":
        return alpha * x + beta
    if name == "leakyrelu":
        return xp.where(x > 0, x, alpha * x)
    if name == "thresholdedrelu":
        return xp.where(x <= alpha, zero, x)
    if name == "scaledtanh":
        return alpha * xp.tanh(beta * x)
    if name == "hardsigmoid":
        y = alpha * x + beta
        return xp.where(y <= 0, zero, xp.where(y >= 1, zero + 1, y))
    if name == "elu":
        return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, zero, x)))
    if name == "softsign":
        return x / (1 + xp.abs(x))
    return xp.logaddexp(x, zero)  # softplus


def slope_from_output(activation: ReferenceActivation, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The slope of an activation at x, with the value y; x is read only if y does not tell the branch."""
    name, alpha, beta = activation
    if name == "sigmoid":
        return y * (1 - y)
    if name == "tanh":
        return 1 - y**2
    if name == "relu":
        return np.where(y > 0, 1.0, 0.0)
    if name == "affine":
        return np.full_like(y, alpha)
    if name == "leakyrelu":
        return np.where(x > 0 if alpha < 0 else y > 0, 1.0, alpha)
    if name == "thresholdedrelu":
        return np.where(x > alpha if alpha < 0 else y > alpha, 1.0, 0.0)
    if name == "scaledtanh":
        return beta * (alpha - y**2 / alpha) if alpha else np.zeros_like(y)
    if name == "hardsigmoid":
        return np.where((y > 0) & (y < 1), alpha, 0.0)
    if name == "elu":
        return np.where(x > 0 if alpha < 0 else y > 0, 1.0, y + alpha)
    if name == "softsign":
        return (1 - np.abs(y)) ** 2
    return -np.expm1(-y)  # softplus
