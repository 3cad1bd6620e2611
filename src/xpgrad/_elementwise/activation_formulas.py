"""Activation functions: each formula with its pullbacks, in the library's only table.

A *value* is ``value(xp, x, alpha, beta)``; a *pullback* ``pullback(xp, d, x, y, alpha, beta)`` is the
cotangent of x for the cotangent d of y = value(x). Recurrent kernels keep only y. Unless a bound activation
needs its input, a pullback may get y instead of x, because x only tells the side of the kink. An *input
pullback* has the same signature and uses only x. It is accurate even if y has lost the slope (1 + y of elu
near y = -1), and also exists for functions without an inverse.

At a kink the slope is PyTorch's. At 0 it is 0 for relu, alpha for leaky_relu and prelu, and the lower
branch's slope for elu, selu and celu. It is 0 for hard_sigmoid and hard_tanh at both ends and for
thresholded_relu at the threshold, and 0 and 1 for hard_swish at its lower and upper end.

At -inf and inf values and slopes are their limits, even if the formula reads 0 times inf, unless a
parameter is 0.

References
----------
ONNX operators of the same names. Hendrycks and Gimpel, "Gaussian error linear units" (2016). Elfwing, Uchibe
and Doya, "Sigmoid-weighted linear units" (2017), for silu. Misra, "Mish" (2019). Clevert, Unterthiner and
Hochreiter, "Exponential linear units" (2015). Klambauer and others, "Self-normalizing neural networks"
(2017), for selu. Barron, "Continuously differentiable exponential linear units" (2017). Howard and others,
"Searching for MobileNetV3" (2019), for hard_swish. He and others, "Delving deep into rectifiers" (2015), for
prelu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xpgrad.engine.formulas.special import epsilon, exp_minus_abs, gaussian, logistic, normal_cdf, tail_ratio


def relu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x <= 0, xp.zeros_like(x), x)


def relu_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(y <= 0, xp.zeros_like(d), d)


def leaky_relu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, x, alpha * x)


def leaky_relu_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, d, alpha * d)


def thresholded_relu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x <= alpha, xp.zeros_like(x), x)


def thresholded_relu_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    if alpha < 0:
        return thresholded_relu_input_pullback(xp, d, x, y, alpha, beta)
    # not y <= alpha, because rounding may move an output from just above the threshold below it
    return relu_pullback(xp, d, x, y, alpha, beta)


def tanh(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.tanh(x)


def tanh_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * ((1 - y) * (1 + y))  # 1 - y**2 would cancel near y = 1


def scaled_tanh(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return alpha * xp.tanh(beta * x)


def scaled_tanh_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    if alpha == 0:
        return 0 * d
    return d * (beta * (alpha - y * y / alpha))


def sigmoid(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return logistic(xp, x)


def sigmoid_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * (y * (1 - y))


def hard_sigmoid(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    z = alpha * x + beta
    z = xp.where(z <= 0, xp.zeros_like(z), z)
    return xp.where(z >= 1, xp.zeros_like(z) + 1, z)


def hard_sigmoid_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    # At an end y differs from 0 or 1 by the rounding of alpha, beta, x and the product (some compilers do not
    # round the product). So every y within this rounding counts as the end.
    margin = 2 * epsilon(xp, y)
    near = margin * abs(beta)
    return xp.where((y > near) & (y < 1 - margin - near), alpha * d, xp.zeros_like(d))


def affine(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return alpha * x + beta


def affine_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return alpha * d


def elu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, xp.zeros_like(x), x)))


def elu_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, d, d * (y + alpha))


def softsign(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    x = xp.where(x > 1e30, xp.zeros_like(x) + 1e30, x)  # avoids inf / inf
    x = xp.where(x < -1e30, xp.zeros_like(x) - 1e30, x)
    return x / (1 + xp.abs(x))


def softsign_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    r = 1 - xp.abs(y)
    return d * (r * r)


def softplus(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x < 0, xp.zeros_like(x), x) + xp.log1p(exp_minus_abs(xp, x))


def softplus_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * -xp.expm1(-y)


# --- pullbacks by the input ---------------------------------------------------------------------------


def scaled_tanh_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * (alpha * beta) * sech_squared(xp, beta * x)


def sech_squared(xp: Any, u: Any) -> Any:
    """The derivative of tanh, from a sigmoid below 1/2: 1 - tanh(u)**2 would cancel."""
    e = exp_minus_abs(xp, 2 * u)
    s = e / (1 + e)
    return 4 * (s - s * s)


def hard_sigmoid_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return hard_sigmoid_pullback(xp, d, x, alpha * x + beta, alpha, beta)


def thresholded_relu_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x <= alpha, xp.zeros_like(d), d)


def elu_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, d, d * (alpha * xp.exp(xp.where(x > 0, xp.zeros_like(x), x))))


def softsign_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    r = 1 / (1 + xp.abs(x))
    return d * (r * r)


# --- activations that recurrent operators lack ------------------------------------------------------------


def scaled_softplus(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    """Softplus of scale beta; x itself if beta x is above alpha: PyTorch's beta and threshold."""
    u = beta * x
    # max(u, 0) / beta without u, which may overflow
    above = xp.where(u < 0.0, xp.zeros_like(x), x)
    return xp.where(u > alpha, x, above + xp.log1p(exp_minus_abs(xp, u)) / beta)


def scaled_softplus_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    u = beta * x
    return xp.where(u > alpha, d, d * sigmoid(xp, u, alpha, beta))


def log_sigmoid(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return -softplus(xp, -x, alpha, beta)


def log_sigmoid_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * sigmoid(xp, -x, alpha, beta)


def bounded(xp: Any, x: Any) -> Any:
    """X bounded to -1000 .. 1000, so that inf times 0 is 0: beyond, x exp(-|x|) is 0 in every dtype."""
    zero = xp.zeros_like(x)
    return xp.minimum(xp.maximum(x, zero - 1000), zero + 1000)


def quick_gelu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    # if the sigmoid is 0 the result is 0, even for infinite x
    s = sigmoid(xp, alpha * x, alpha, beta)
    return xp.where(s == 0, xp.zeros_like(x), x * s)


def quick_gelu_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    u = bounded(xp, alpha * x)
    s, slope = sigmoid_and_slope(xp, u)
    return d * (s + u * slope)


def sigmoid_and_slope(xp: Any, u: Any) -> tuple:
    """The sigmoid s, and its derivative for a sum with s: its cancellation near s = 1 is small against s."""
    s = sigmoid(xp, u, None, None)
    return s, s - s * s


def gelu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    z = bounded(xp, x)
    below = z * upper_tail(xp, z)
    return xp.where(x < 0, below, x - below)


def gelu_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    z = bounded(xp, x)
    e = gaussian(xp, z)
    return d * (normal_cdf(xp, z, e) + 0.3989422804014327 * z * e)


def upper_tail(xp: Any, z: Any) -> Any:
    """The normal distribution's probability beyond abs(z)."""
    return gaussian(xp, z) * tail_ratio(xp, xp.where(z < 0, -z, z))


def gelu_tanh(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    # 0.5 (1 + tanh(u)) is sigmoid(2 u), but cancels
    z = bounded(xp, x)
    s = sigmoid(xp, gelu_tanh_argument(xp, z), alpha, beta)
    return xp.where(x >= 1000, x, z * s)


def gelu_tanh_argument(xp: Any, z: Any) -> Any:
    """2 sqrt(2 / pi) (z + 0.044715 z**3)."""
    return 1.5957691216057308 * z * (1 + 0.044715 * z * z)


def gelu_tanh_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    z = bounded(xp, x)
    u = gelu_tanh_argument(xp, z)
    s, slope = sigmoid_and_slope(xp, u)
    return d * (s + 1.5957691216057308 * z * (1 + 0.134145 * z * z) * slope)


def mish(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    # tanh(log(1 + exp(x))) = n / (n + 2) with n = exp(x) (exp(x) + 2); for x > 0 from exp(-x)
    z = bounded(xp, x)
    e = exp_minus_abs(xp, z)
    n = xp.where(z < 0, e * (e + 2), 1 + 2 * e)
    ratio = n / (n + xp.where(z < 0, xp.zeros_like(e) + 2, 2 * e * e))
    return xp.where(x >= 1000, x, z * ratio)


def mish_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    z = bounded(xp, x)
    e = exp_minus_abs(xp, z)
    n = xp.where(z < 0, e * (e + 2), 1 + 2 * e)
    r = 1 / (n + xp.where(z < 0, xp.zeros_like(e) + 2, 2 * e * e))
    # the slope of tanh(softplus(z)) is 4 exp(z) (1 + exp(z)) / (n + 2)**2
    slope = 4 * (1 + e) * xp.where(z < 0, e, e * e) * (r * r)
    return d * (n * r + z * slope)


def selu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return beta * elu(xp, x, alpha, beta)


def selu_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    slope = alpha * beta * xp.exp(xp.where(x > 0, xp.zeros_like(x), x))
    return d * xp.where(x > 0, xp.zeros_like(x) + beta, slope)


def celu(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, xp.zeros_like(x), x) / alpha))


def celu_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return d * xp.exp(xp.where(x > 0, xp.zeros_like(x), x) / alpha)


def hard_swish(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    z = xp.where(x >= 3, xp.zeros_like(x) + 3, x)
    y = z * ((z + 3) / 6)
    y = xp.where(z <= -3, xp.zeros_like(x), y)
    return xp.where(x >= 3, x, y)


def hard_swish_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    z = xp.where(x <= -3, xp.zeros_like(x), x)  # no slope of -inf
    below = xp.where(z > 3, xp.zeros_like(x) + 3, z) / 3
    slope = below + xp.where(x < 3, xp.zeros_like(x) + 0.5, xp.zeros_like(x))
    return xp.where(x <= -3, xp.zeros_like(d), d * slope)


def hard_tanh(xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
    x = xp.where(x <= alpha, xp.zeros_like(x) + alpha, x)
    return xp.where(x >= beta, xp.zeros_like(x) + beta, x)


def hard_tanh_input_pullback(xp: Any, d: Any, x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    return xp.where((x > alpha) & (x < beta), d, xp.zeros_like(d))


# --- as a loss ----------------------------------------------------------------------------------------


def times_share(xp: Any, share: Any, value: Any) -> Any:
    """``share * value``, which is 0 for a share of 0 even if the value is inf or NaN.

    The value changes, not the product, so that its derivative for the share is right at 0 too.
    """
    return share * xp.where(share == 0, finite_or_zero(xp, value), value)


def finite_or_zero(xp: Any, value: Any) -> Any:
    """The value; 0 in place of inf and NaN."""
    return xp.where(value - value == 0, value, xp.zeros_like(value))


def binary_cross_entropy(xp: Any, x: Any, t: Any, weight: Any, pos_weight: Any) -> tuple:
    """For logits x and targets t."""
    small = xp.log1p(exp_minus_abs(xp, x))
    yes = times_share(xp, t, xp.where(x < 0, -x, xp.zeros_like(x)) + small)
    no = times_share(xp, 1 - t, xp.where(x < 0, xp.zeros_like(x), x) + small)
    if pos_weight is not None:
        yes = yes * pos_weight
    loss = yes + no
    if weight is not None:
        loss = loss * weight
    return (loss,)


def binary_cross_entropy_pullback(
    xp: Any, d: Any, x: Any, t: Any, weight: Any, pos_weight: Any, *, scale: Any
) -> tuple:
    e = exp_minus_abs(xp, x)
    one = xp.zeros_like(e) + 1
    r = 1 / (1 + e)
    yes = t * (xp.where(x < 0, one, e) * r)
    no = (1 - t) * (xp.where(x < 0, e, one) * r)
    if pos_weight is not None:
        yes = yes * pos_weight
    slope = no - yes
    if weight is not None:
        slope = slope * weight
    return (d * scale * slope,)


# --- clipping, of recurrent operators ----------------------------------------------------------------


def clip_value(xp: Any, z: Any, clip: Any) -> Any:
    if clip is None:
        return z
    top = xp.zeros_like(z) + clip
    z = xp.where(z > top, top, z)
    return xp.where(z < -top, -top, z)


def clip_pullback(xp: Any, d: Any, z: Any, clip: Any) -> Any:
    """The cotangent before clipping; it passes within the bounds and at them."""
    if clip is None:
        return d
    return xp.where(xp.abs(z) > clip, xp.zeros_like(d), d)


# --- activations with their parameters, for recurrent operators -----------------------------------------


class BoundActivation(NamedTuple):
    """An activation function with its parameters: a constant of formulas.

    Parameters
    ----------
    value, pullback : callable
        See the module's docstring.
    alpha, beta : float
        Its parameters.
    needs_input : bool
        Whether the slope needs the input: with a negative alpha several inputs have the same output.
    """

    value: Callable
    pullback: Callable
    alpha: float
    beta: float
    needs_input: bool


def activate(xp: Any, activation: BoundActivation, z: Any, clip: Any) -> Any:
    """The activation of z, after clipping z."""
    return activation.value(xp, clip_value(xp, z, clip), activation.alpha, activation.beta)


def activate_pullback(xp: Any, activation: BoundActivation, d: Any, z: Any, y: Any, clip: Any) -> Any:
    """The cotangent of z; without `clip`, y may stand for z unless the activation needs its input."""
    return clip_pullback(xp, activation.pullback(xp, d, z, y, activation.alpha, activation.beta), z, clip)


# --- the table -----------------------------------------------------------------------------------------


class Activation(NamedTuple):
    """One activation function, its pullbacks, and its parameters with their defaults.

    Parameters
    ----------
    name : str
        ONNX's name if ONNX has the function.
    value : callable
        See the module's docstring.
    pullback : callable or None
        The pullback by the output; None if the output does not determine the slope.
    alpha, beta : float or None
        ONNX's default; None if the function has no such parameter.
    input_pullback : callable or None
        The pullback by the input; None if `pullback` is accurate, because it needs only x's side of the kink.
    """

    name: str
    value: Callable
    pullback: Callable | None
    alpha: float | None = None
    beta: float | None = None
    input_pullback: Callable | None = None

    def bind(self, alpha: float, beta: float) -> BoundActivation:
        """The function with these parameters; a pullback by the output must exist."""
        if self.pullback is None:
            raise TypeError(f"{self.name} has no pullback by its output")
        needs_input = self.name in ("LeakyRelu", "Elu", "ThresholdedRelu") and alpha < 0
        return BoundActivation(self.value, self.pullback, alpha, beta, needs_input)


_RECURRENT = (
    Activation("Affine", affine, affine_pullback, 1.0, 0.0),
    Activation("Elu", elu, elu_pullback, 1.0, None, elu_input_pullback),
    Activation("HardSigmoid", hard_sigmoid, hard_sigmoid_pullback, 0.2, 0.5, hard_sigmoid_input_pullback),
    Activation("LeakyRelu", leaky_relu, leaky_relu_pullback, 0.01),
    Activation("Relu", relu, relu_pullback),
    Activation("ScaledTanh", scaled_tanh, scaled_tanh_pullback, 1.0, 1.0, scaled_tanh_input_pullback),
    Activation("Sigmoid", sigmoid, sigmoid_pullback),
    Activation("Softplus", softplus, softplus_pullback),
    Activation("Softsign", softsign, softsign_pullback, None, None, softsign_input_pullback),
    Activation("Tanh", tanh, tanh_pullback),
    Activation(
        "ThresholdedRelu", thresholded_relu, thresholded_relu_pullback, 1.0, None,
        thresholded_relu_input_pullback,
    ),
)  # fmt: skip
_OTHERS = (
    Activation("Celu", celu, None, 1.0, None, celu_input_pullback),
    Activation("Gelu", gelu, None, None, None, gelu_input_pullback),
    Activation("GeluTanh", gelu_tanh, None, None, None, gelu_tanh_input_pullback),
    Activation("HardSwish", hard_swish, None, None, None, hard_swish_input_pullback),
    Activation("HardTanh", hard_tanh, None, -1.0, 1.0, hard_tanh_input_pullback),
    Activation("LogSigmoid", log_sigmoid, None, None, None, log_sigmoid_input_pullback),
    Activation("Mish", mish, None, None, None, mish_input_pullback),
    Activation("QuickGelu", quick_gelu, None, 1.702, None, quick_gelu_input_pullback),
    Activation("ScaledSoftplus", scaled_softplus, None, float("inf"), 1.0, scaled_softplus_input_pullback),
    Activation("Selu", selu, None, 1.67326319217681884765625, 1.05070102214813232421875, selu_input_pullback),
)

#: The activations of ONNX's recurrent operators, by lower-case name.
ONNX_ACTIVATIONS = {activation.name.lower(): activation for activation in _RECURRENT}

#: All activations, by name.
ACTIVATIONS = {activation.name: activation for activation in (*_RECURRENT, *_OTHERS)}
