"""Activation functions: each formula beside its pullback, the eleven of ONNX's recurrent operators.

A *value* is ``value(xp, x, alpha, beta)``; a *pullback* ``pullback(xp, d, x, y, alpha, beta)`` is the
cotangent of x for the cotangent d of y = value(x). Recurrent kernels keep y alone: unless `needs_input` says
otherwise, y itself may stand for x, which is asked only on which side of the kink it lies.

At a kink the slope is PyTorch's: 0 for relu at 0, alpha for leaky_relu and elu at 0, 0 for hard_sigmoid at
both ends and for thresholded_relu at the threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

# ruff: noqa: D103 - each pair is described by the table below


def relu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x <= 0, xp.zeros_like(x), x)


def relu_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(y > 0, d, xp.zeros_like(d))


def leaky_relu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, x, alpha * x)


def leaky_relu_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, d, alpha * d)


def thresholded_relu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x <= alpha, xp.zeros_like(x), x)


def thresholded_relu_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x <= alpha, xp.zeros_like(d), d)


def tanh(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.tanh(x)


def tanh_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * (1 - y * y)


def scaled_tanh(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return alpha * xp.tanh(beta * x)


def scaled_tanh_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    if alpha == 0:
        return 0 * d
    return d * (beta * (alpha - y * y / alpha))


def sigmoid(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    # exp(-|x|) never overflows; `where` and not `abs`, whose slope at 0 would make autograd's wrong there
    e = xp.exp(xp.where(x < 0, x, -x))
    return xp.where(x < 0, e, xp.zeros_like(e) + 1) / (1 + e)


def sigmoid_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * (y * (1 - y))


def hard_sigmoid(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    z = alpha * x + beta
    z = xp.where(z < 0, xp.zeros_like(z), z)
    return xp.where(z > 1, xp.zeros_like(z) + 1, z)


def hard_sigmoid_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where((y > 0) & (y < 1), alpha * d, xp.zeros_like(d))


def affine(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return alpha * x + beta


def affine_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return alpha * d


def elu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, xp.zeros_like(x), x)))


def elu_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, d, d * (y + alpha))


def softsign(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return x / (1 + xp.abs(x))


def softsign_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    r = 1 - xp.abs(y)
    return d * (r * r)


def softplus(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x < 0, xp.zeros_like(x), x) + xp.log1p(xp.exp(xp.where(x < 0, x, -x)))


def softplus_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * -xp.expm1(-y)


def clip_value(xp: Any, z: Any, clip: Any) -> Any:
    if clip is None:
        return z
    top = xp.zeros_like(z) + clip
    z = xp.where(z > top, top, z)
    return xp.where(z < -top, -top, z)


def clip_pullback(xp: Any, d: Any, z: Any, clip: Any) -> Any:
    """The cotangent before clipping: it passes up to and at the bounds."""
    if clip is None:
        return d
    return xp.where(xp.abs(z) > clip, xp.zeros_like(d), d)


class Activation(NamedTuple):
    """One activation function, its pullback, and its parameters as ONNX has them.

    Parameters
    ----------
    name : str
        ONNX's name.
    value, pullback : callable
        See the module's docstring.
    alpha, beta : float or None
        ONNX's default; None where the function has no such parameter.
    """

    name: str
    value: Callable
    pullback: Callable
    alpha: float | None = None
    beta: float | None = None

    def needs_input(self, alpha: float) -> bool:
        """Whether the output does not tell the slope: with a negative alpha different inputs share it."""
        return self.name in ("LeakyRelu", "Elu", "ThresholdedRelu") and alpha < 0


_ALL = (
    Activation("Affine", affine, affine_pullback, 1.0, 0.0),
    Activation("Elu", elu, elu_pullback, 1.0),
    Activation("HardSigmoid", hard_sigmoid, hard_sigmoid_pullback, 0.2, 0.5),
    Activation("LeakyRelu", leaky_relu, leaky_relu_pullback, 0.01),
    Activation("Relu", relu, relu_pullback),
    Activation("ScaledTanh", scaled_tanh, scaled_tanh_pullback, 1.0, 1.0),
    Activation("Sigmoid", sigmoid, sigmoid_pullback),
    Activation("Softplus", softplus, softplus_pullback),
    Activation("Softsign", softsign, softsign_pullback),
    Activation("Tanh", tanh, tanh_pullback),
    Activation("ThresholdedRelu", thresholded_relu, thresholded_relu_pullback, 1.0),
)

#: The activations of ONNX's recurrent operators, by lower-case name.
ONNX_ACTIVATIONS = {activation.name.lower(): activation for activation in _ALL}
