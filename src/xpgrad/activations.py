"""Activation functions and their gradients, each declared once, before its two functions.

Each function is one formula, evaluated in one pass. The formula is in the table of `activation_formulas`,
which recurrent operators use too, or in this module. At a kink the slope is PyTorch's. Values and slopes at
-inf and inf are their limits, unless a parameter is 0. The value at NaN is NaN; a slope that has two values,
as relu's, has one of them there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, NamedTuple

from xpgrad._elementwise import activation_formulas as formulas
from xpgrad._operators.arguments import check_choice, check_number
from xpgrad._operators.declaration import Attribute, Declaration, DeclaredOperand, formulas_of
from xpgrad._operators.types import A, AnyArray, Array, MaybeNone, Wanted
from xpgrad._operators.words import Approximate
from xpgrad.engine import Formula

__all__ = [
    "PReLUGrads",
    "celu",
    "celu_grad",
    "elu",
    "elu_grad",
    "gelu",
    "gelu_grad",
    "hard_sigmoid",
    "hard_sigmoid_grad",
    "hard_swish",
    "hard_swish_grad",
    "hard_tanh",
    "hard_tanh_grad",
    "leaky_relu",
    "leaky_relu_grad",
    "log_sigmoid",
    "log_sigmoid_grad",
    "mish",
    "mish_grad",
    "prelu",
    "prelu_grad",
    "quick_gelu",
    "quick_gelu_grad",
    "relu",
    "relu_grad",
    "scaled_tanh",
    "scaled_tanh_grad",
    "selu",
    "selu_grad",
    "sigmoid",
    "sigmoid_grad",
    "silu",
    "silu_grad",
    "softplus",
    "softplus_grad",
    "softsign",
    "softsign_grad",
    "tanh",
    "tanh_grad",
    "thresholded_relu",
    "thresholded_relu_grad",
]

# ruff: noqa: D103 - each function gets its docstring from its declaration


def _nonzero(operator: str, name: str, value: Any) -> float:
    number = check_number(operator, name, value)
    if number == 0:
        raise ValueError(f"{operator}: {name} is 0, expected another number: it is divided by")
    return number


def _bounds(operator: str, min_val: Any, max_val: Any) -> tuple[float, float]:
    low, high = check_number(operator, "min_val", min_val), check_number(operator, "max_val", max_val)
    if not low <= high:
        raise ValueError(f"{operator}: min_val is {low}, expected at most max_val, which is {high}")
    return low, high


def _threshold(operator: str, name: str, value: Any) -> float:
    return float("inf") if value is None else check_number(operator, name, value)


def _told_by_output(operator: str, alpha: Any) -> float:
    number = check_number(operator, "alpha", alpha)
    if number < 0:
        raise ValueError(
            f"{operator}: alpha is {number}, expected at least 0: with a negative alpha the output does not "
            "determine the slope; prelu_grad takes the input instead"
        )
    return number


_CELU = Declaration(
    "celu",
    formulas_of(formulas.ACTIVATIONS["Celu"], parameters=("alpha",)),
    "Continuously differentiable exponential linear unit.",
    r"y = \max(x, 0) + \min(0, \alpha (e^{x / \alpha} - 1))",
    r"dx = dy \cdot (1 \text{ if } x > 0 \text{ else } e^{x / \alpha})",
    "ONNX operator Celu; Barron (2017).",
    ("array([-0.6321,  0.5   ])", "array([0.3679, 2.    ])"),
    attributes={"alpha": Attribute("Scale of the negative side; not 0.", _nonzero)},
    shown={"alpha": 0.5},
    onnx="Celu alpha",
    torch="CELU",
)


@_CELU.forward
def celu(X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _CELU.value((X,), (alpha,), out)


@_CELU.backward
def celu_grad(dY: Array[A], X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _CELU.gradient((dY, X), (alpha,), out)


_ELU = Declaration(
    "elu",
    formulas_of(formulas.ACTIVATIONS["Elu"], parameters=("alpha",)),
    "Exponential linear unit.",
    r"y = x \text{ if } x > 0 \text{ else } \alpha (e^x - 1)",
    r"dx = dy \cdot (1 \text{ if } x > 0 \text{ else } \alpha e^x)",
    "ONNX operator Elu; Clevert, Unterthiner and Hochreiter (2015).",
    ("array([-0.6321,  0.5   ])", "array([0.3679, 2.    ])"),
    attributes={"alpha": Attribute("Scale of the negative side.")},
    onnx="Elu alpha",
    torch="ELU",
)


@_ELU.forward
def elu(X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _ELU.value((X,), (alpha,), out)


@_ELU.backward
def elu_grad(dY: Array[A], X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _ELU.gradient((dY, X), (alpha,), out)


_GELU_EXACT = Declaration(
    "gelu",
    formulas_of(formulas.ACTIVATIONS["Gelu"]),
    "Gaussian error linear unit.",
    r"y = x \Phi(x) \quad \text{or} \quad x \sigma(2 u), \; u = \sqrt{2 / \pi} (x + 0.044715 x^3)",
    r"dx = dy (\Phi(x) + x \phi(x)) \quad \text{or} \quad dy (s + 2 x u' s (1 - s)), \; s = \sigma(2 u)",
    "ONNX operator Gelu; Hendrycks and Gimpel (2016).",
    ("array([-0.1587,  0.3457])", "array([-0.0833,  1.735 ])"),
    attributes={
        "approximate": Attribute(
            "The normal distribution, or its approximation by tanh.", None, "{'none', 'tanh'}"
        )
    },
    onnx="Gelu approximate",
    torch="GELU",
)
_GELU_TANH = replace(_GELU_EXACT, formulas=formulas_of(formulas.ACTIVATIONS["GeluTanh"]))


@_GELU_EXACT.forward
def gelu(X: Array[A], *, approximate: Approximate = "none", out: Array[A] | None = None) -> A:
    return _gelu("gelu", approximate).value((X,), (), out)


@_GELU_EXACT.backward
def gelu_grad(
    dY: Array[A], X: Array[A], *, approximate: Approximate = "none", out: Array[A] | None = None
) -> A:
    return _gelu("gelu_grad", approximate).gradient((dY, X), (), out)


def _gelu(operator: str, approximate: str) -> Declaration:
    check_choice(operator, "approximate", approximate, ("none", "tanh"))
    return _GELU_EXACT if approximate == "none" else _GELU_TANH


_HARD_SIGMOID = Declaration(
    "hard_sigmoid",
    formulas_of(formulas.ACTIVATIONS["HardSigmoid"], parameters=("alpha", "beta")),
    "Piecewise linear sigmoid.",
    r"y = \max(0, \min(1, \alpha x + \beta))",
    r"dx = dy \cdot (\alpha \text{ if } 0 < \alpha x + \beta < 1 \text{ else } 0)",
    "ONNX operator HardSigmoid.",
    ("array([0.3, 0.6])", "array([0.2, 0.4])"),
    attributes={"alpha": Attribute("Slope; PyTorch's is 1/6."), "beta": Attribute("Value at 0.")},
    kinks=(-2.5, 2.5),
    onnx="HardSigmoid alpha beta",
    torch="Hardsigmoid",
)


@_HARD_SIGMOID.forward
def hard_sigmoid(X: Array[A], *, alpha: float = 0.2, beta: float = 0.5, out: Array[A] | None = None) -> A:
    return _HARD_SIGMOID.value((X,), (alpha, beta), out)


@_HARD_SIGMOID.backward
def hard_sigmoid_grad(
    dY: Array[A], X: Array[A], *, alpha: float = 0.2, beta: float = 0.5, out: Array[A] | None = None
) -> A:
    return _HARD_SIGMOID.gradient((dY, X), (alpha, beta), out)


_HARD_SWISH = Declaration(
    "hard_swish",
    formulas_of(formulas.ACTIVATIONS["HardSwish"]),
    "Piecewise quadratic silu.",
    r"y = x \max(0, \min(1, x / 6 + 1 / 2))",
    r"dx = dy \cdot (0 \text{ if } x \le -3, \; 1 \text{ if } x \ge 3, \; x / 3 + 1 / 2 \text{ between})",
    "ONNX operator HardSwish; Howard and others (2019).",
    ("array([-0.3333,  0.2917])", "array([0.1667, 1.3333])"),
    kinks=(-3, 3),
    onnx="HardSwish",
    torch="Hardswish",
)


@_HARD_SWISH.forward
def hard_swish(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _HARD_SWISH.value((X,), (), out)


@_HARD_SWISH.backward
def hard_swish_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _HARD_SWISH.gradient((dY, X), (), out)


_HARD_TANH = Declaration(
    "hard_tanh",
    formulas_of(formulas.ACTIVATIONS["HardTanh"], parameters=("alpha", "beta")),
    "Clamp between two bounds.",
    r"y = \max(a, \min(b, x))",
    r"dx = dy \cdot (1 \text{ if } a < x < b \text{ else } 0)",
    "PyTorch's hardtanh; a and b are `min_val` and `max_val`.",
    ("array([-1. ,  0.5])", "array([0., 2.])"),
    attributes={
        "min_val": Attribute("Lower bound."),
        "max_val": Attribute("Upper bound, not below the lower one."),
    },
    kinks=(-1, 1),
    torch="Hardtanh",
)


@_HARD_TANH.forward
def hard_tanh(X: Array[A], *, min_val: float = -1.0, max_val: float = 1.0, out: Array[A] | None = None) -> A:
    return _HARD_TANH.value((X,), _bounds("hard_tanh", min_val, max_val), out)


@_HARD_TANH.backward
def hard_tanh_grad(
    dY: Array[A], X: Array[A], *, min_val: float = -1.0, max_val: float = 1.0, out: Array[A] | None = None
) -> A:
    return _HARD_TANH.gradient((dY, X), _bounds("hard_tanh_grad", min_val, max_val), out)


_LEAKY_RELU = Declaration(
    "leaky_relu",
    formulas_of(formulas.ACTIVATIONS["LeakyRelu"], "Y", parameters=("alpha",)),
    "Rectified linear unit with a leak.",
    r"y = x \text{ if } x > 0 \text{ else } \alpha x",
    r"dx = dy \cdot (1 \text{ if } y > 0 \text{ else } \alpha)",
    "ONNX operator LeakyRelu.",
    ("array([-0.01,  0.5 ])", "array([0.01, 2.  ])"),
    residual="Y",
    attributes={"alpha": Attribute("Slope of the negative side.")},
    kinks=(0,),
    shown={"alpha": 0.1},
    onnx="LeakyRelu alpha",
    torch="LeakyReLU",
)


@_LEAKY_RELU.forward
def leaky_relu(X: Array[A], *, alpha: float = 0.01, out: Array[A] | None = None) -> A:
    return _LEAKY_RELU.value((X,), (alpha,), out)


@_LEAKY_RELU.backward
def leaky_relu_grad(dY: Array[A], Y: Array[A], *, alpha: float = 0.01, out: Array[A] | None = None) -> A:
    return _LEAKY_RELU.gradient((dY, Y), (_told_by_output("leaky_relu_grad", alpha),), out)


_LOG_SIGMOID = Declaration(
    "log_sigmoid",
    formulas_of(formulas.ACTIVATIONS["LogSigmoid"]),
    "Logarithm of the sigmoid.",
    r"y = \log \sigma(x) = -\log(1 + e^{-x})",
    r"dx = dy \cdot \sigma(-x)",
    "PyTorch's logsigmoid.",
    ("array([-1.3133, -0.4741])", "array([0.7311, 0.7551])"),
    torch="LogSigmoid",
)


@_LOG_SIGMOID.forward
def log_sigmoid(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _LOG_SIGMOID.value((X,), (), out)


@_LOG_SIGMOID.backward
def log_sigmoid_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _LOG_SIGMOID.gradient((dY, X), (), out)


_MISH = Declaration(
    "mish",
    formulas_of(formulas.ACTIVATIONS["Mish"]),
    "Self-regularized smooth activation.",
    r"y = x \tanh(\log(1 + e^x))",
    r"dx = dy \cdot (t + x (1 - t^2) \sigma(x)), \quad t = \tanh(\log(1 + e^x))",
    "ONNX operator Mish; Misra (2019).",
    ("array([-0.3034,  0.3752])", "array([0.0592, 1.7728])"),
    onnx="Mish",
    torch="Mish",
)


@_MISH.forward
def mish(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _MISH.value((X,), (), out)


@_MISH.backward
def mish_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _MISH.gradient((dY, X), (), out)


_QUICK_GELU = Declaration(
    "quick_gelu",
    formulas_of(formulas.ACTIVATIONS["QuickGelu"], parameters=("alpha",)),
    "Sigmoid approximation of gelu.",
    r"y = x \sigma(\alpha x)",
    r"dx = dy \cdot (s + \alpha x s (1 - s)), \quad s = \sigma(\alpha x)",
    "ONNX Runtime's QuickGelu; Hendrycks and Gimpel (2016).",
    ("array([-0.1542,  0.3504])", "array([-0.0678,  1.7584])"),
    attributes={"alpha": Attribute("Scale of the sigmoid's argument.")},
    onnx="Swish alpha",
    torch="QuickGELU",
)


@_QUICK_GELU.forward
def quick_gelu(X: Array[A], *, alpha: float = 1.702, out: Array[A] | None = None) -> A:
    return _QUICK_GELU.value((X,), (alpha,), out)


@_QUICK_GELU.backward
def quick_gelu_grad(dY: Array[A], X: Array[A], *, alpha: float = 1.702, out: Array[A] | None = None) -> A:
    return _QUICK_GELU.gradient((dY, X), (alpha,), out)


_RELU = Declaration(
    "relu",
    formulas_of(formulas.ACTIVATIONS["Relu"]),
    "Rectified linear unit.",
    r"y = \max(x, 0)",
    r"dx = dy \cdot (1 \text{ if } x > 0 \text{ else } 0)",
    "ONNX operator Relu.",
    ("array([0. , 0.5])", "array([0., 2.])"),
    kinks=(0,),
    onnx="Relu",
    torch="ReLU",
)


@_RELU.forward
def relu(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _RELU.value((X,), (), out)


@_RELU.backward
def relu_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _RELU.gradient((dY, X), (), out)


_SCALED_TANH = Declaration(
    "scaled_tanh",
    formulas_of(formulas.ACTIVATIONS["ScaledTanh"], parameters=("alpha", "beta")),
    "Hyperbolic tangent, scaled on both sides.",
    r"y = \alpha \tanh(\beta x)",
    r"dx = dy \cdot \alpha \beta (1 - \tanh^2(\beta x))",
    "ONNX's recurrent activation ScaledTanh.",
    ("array([-0.7616,  0.4621])", "array([0.42  , 1.5729])"),
    attributes={"alpha": Attribute("Scale of the output."), "beta": Attribute("Scale of the input.")},
    shown={"alpha": 1.5, "beta": 0.5},
)


@_SCALED_TANH.forward
def scaled_tanh(X: Array[A], *, alpha: float = 1.0, beta: float = 1.0, out: Array[A] | None = None) -> A:
    return _SCALED_TANH.value((X,), (alpha, beta), out)


@_SCALED_TANH.backward
def scaled_tanh_grad(
    dY: Array[A], X: Array[A], *, alpha: float = 1.0, beta: float = 1.0, out: Array[A] | None = None
) -> A:
    return _SCALED_TANH.gradient((dY, X), (alpha, beta), out)


_SELU = Declaration(
    "selu",
    formulas_of(formulas.ACTIVATIONS["Selu"], parameters=("alpha", "beta")),
    "Scaled exponential linear unit.",
    r"y = \gamma (x \text{ if } x > 0 \text{ else } \alpha (e^x - 1))",
    r"dx = dy \cdot \gamma (1 \text{ if } x > 0 \text{ else } \alpha e^x)",
    "ONNX operator Selu; Klambauer and others (2017).",
    ("array([-1.1113,  0.5254])", "array([0.6468, 2.1014])"),
    attributes={
        "alpha": Attribute("Scale of the negative side."),
        "gamma": Attribute("Scale of both sides."),
    },
    kinks=(0,),
    onnx="Selu alpha gamma",
    torch="SELU",
)


@_SELU.forward
def selu(
    X: Array[A],
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    out: Array[A] | None = None,
) -> A:
    return _SELU.value((X,), (alpha, gamma), out)


@_SELU.backward
def selu_grad(
    dY: Array[A],
    X: Array[A],
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    out: Array[A] | None = None,
) -> A:
    return _SELU.gradient((dY, X), (alpha, gamma), out)


_SIGMOID = Declaration(
    "sigmoid",
    formulas_of(formulas.ACTIVATIONS["Sigmoid"], "Y"),
    "Logistic function.",
    r"y = \sigma(x) = 1 / (1 + e^{-x})",
    r"dx = dy \cdot y (1 - y)",
    "ONNX operator Sigmoid.",
    ("array([0.2689, 0.6225])", "array([0.1966, 0.47  ])"),
    residual="Y",
    onnx="Sigmoid",
    torch="Sigmoid",
)


@_SIGMOID.forward
def sigmoid(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SIGMOID.value((X,), (), out)


@_SIGMOID.backward
def sigmoid_grad(dY: Array[A], Y: Array[A], *, out: Array[A] | None = None) -> A:
    return _SIGMOID.gradient((dY, Y), (), out)


_SILU = Declaration(
    "silu",
    formulas_of(formulas.ACTIVATIONS["QuickGelu"], alpha=1.0),
    "Sigmoid linear unit, also called swish.",
    r"y = x \sigma(x)",
    r"dx = dy \cdot (s + x s (1 - s)), \quad s = \sigma(x)",
    "Elfwing, Uchibe and Doya (2017).",
    ("array([-0.2689,  0.3112])", "array([0.0723, 1.4799])"),
    torch="SiLU",
)


@_SILU.forward
def silu(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SILU.value((X,), (), out)


@_SILU.backward
def silu_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SILU.gradient((dY, X), (), out)


_SOFTPLUS = Declaration(
    "softplus",
    formulas_of(formulas.ACTIVATIONS["ScaledSoftplus"], parameters=("beta", "alpha")),
    "Smooth rectified linear unit.",
    r"y = \log(1 + e^{\beta x}) / \beta",
    r"dx = dy \cdot \sigma(\beta x)",
    "ONNX operator Softplus; PyTorch's `beta` and `threshold`.",
    ("array([0.3133, 0.9741])", "array([0.2689, 1.2449])"),
    attributes={
        "beta": Attribute("Sharpness; not 0.", _nonzero),
        "threshold": Attribute(
            "Where ``beta x`` is above it, y is x; 20 in PyTorch. None: nowhere.", _threshold, "float or None"
        ),
    },
    onnx="Softplus",
    torch="Softplus",
)


@_SOFTPLUS.forward
def softplus(
    X: Array[A], *, beta: float = 1.0, threshold: float | None = None, out: Array[A] | None = None
) -> A:
    return _SOFTPLUS.value((X,), (beta, threshold), out)


@_SOFTPLUS.backward
def softplus_grad(
    dY: Array[A],
    X: Array[A],
    *,
    beta: float = 1.0,
    threshold: float | None = None,
    out: Array[A] | None = None,
) -> A:
    return _SOFTPLUS.gradient((dY, X), (beta, threshold), out)


_SOFTSIGN = Declaration(
    "softsign",
    formulas_of(formulas.ACTIVATIONS["Softsign"]),
    "Rational sigmoid.",
    r"y = x / (1 + \lvert x \rvert)",
    r"dx = dy / (1 + \lvert x \rvert)^2",
    "ONNX operator Softsign.",
    ("array([-0.5   ,  0.3333])", "array([0.25  , 0.8889])"),
    onnx="Softsign",
    torch="Softsign",
)


@_SOFTSIGN.forward
def softsign(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SOFTSIGN.value((X,), (), out)


@_SOFTSIGN.backward
def softsign_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SOFTSIGN.gradient((dY, X), (), out)


_TANH = Declaration(
    "tanh",
    formulas_of(formulas.ACTIVATIONS["Tanh"], "Y"),
    "Hyperbolic tangent.",
    r"y = \tanh(x)",
    r"dx = dy \cdot (1 - y^2)",
    "ONNX operator Tanh.",
    ("array([-0.7616,  0.4621])", "array([0.42  , 1.5729])"),
    residual="Y",
    onnx="Tanh",
    torch="Tanh",
)


@_TANH.forward
def tanh(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _TANH.value((X,), (), out)


@_TANH.backward
def tanh_grad(dY: Array[A], Y: Array[A], *, out: Array[A] | None = None) -> A:
    return _TANH.gradient((dY, Y), (), out)


_THRESHOLDED_RELU = Declaration(
    "thresholded_relu",
    formulas_of(formulas.ACTIVATIONS["ThresholdedRelu"], parameters=("alpha",)),
    "Identity above a threshold, 0 up to it.",
    r"y = x \text{ if } x > \alpha \text{ else } 0",
    r"dx = dy \cdot (1 \text{ if } x > \alpha \text{ else } 0)",
    "ONNX operator ThresholdedRelu.",
    ("array([0., 0.])", "array([0., 0.])"),
    attributes={"alpha": Attribute("The threshold.")},
    kinks=(1,),
    onnx="ThresholdedRelu alpha",
)


@_THRESHOLDED_RELU.forward
def thresholded_relu(X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _THRESHOLDED_RELU.value((X,), (alpha,), out)


@_THRESHOLDED_RELU.backward
def thresholded_relu_grad(dY: Array[A], X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _THRESHOLDED_RELU.gradient((dY, X), (alpha,), out)


def _prelu(xp: Any, x: Any, slope: Any) -> tuple:
    return (formulas.leaky_relu(xp, x, slope, slope),)


def _prelu_pullback(xp: Any, d: Any, x: Any, slope: Any) -> tuple:
    return (formulas.leaky_relu_pullback(xp, d, x, x, slope, slope),)


def _prelu_slope_pullback(xp: Any, d: Any, x: Any) -> tuple:
    return (xp.where(x > 0, xp.zeros_like(x), d * x),)


_PRELU = Declaration(
    "prelu",
    (Formula(_prelu), Formula(_prelu_pullback)),
    "Rectified linear unit with a learnt leak.",
    r"y = x \text{ if } x > 0 \text{ else } s x",
    r"dx = dy \cdot (1 \text{ if } x > 0 \text{ else } s), \qquad "
    r"ds = \sum dy \cdot (0 \text{ if } x > 0 \text{ else } x)",
    "ONNX operator PRelu; He and others (2015).",
    ("array([-0.25,  0.5 ])", "[array([0.25, 2.  ]), array([-1.])]"),
    operands={"slope": DeclaredOperand("The slope s of the negative side", _prelu_slope_pullback, 0.25)},
    kinks=(0,),
    torch="PReLU",
)


class PReLUGrads(NamedTuple, Generic[AnyArray]):
    """The gradients of `prelu_grad`; None for gradients that were not asked for.

    Parameters
    ----------
    dX : array, shape (...)
        Of the input.
    dslope : array
        Of the slope, of its shape.
    """

    dX: AnyArray
    dslope: AnyArray


@_PRELU.forward
def prelu(X: Array[A], slope: Array[A], *, out: Array[A] | None = None) -> A:
    return _PRELU.value((X, slope), (), out)


@_PRELU.backward
def prelu_grad(
    dY: Array[A],
    X: Array[A],
    slope: Array[A],
    *,
    wrt: Wanted[MaybeNone] | None = None,
    out: Array[A] | None = None,
) -> PReLUGrads[A | MaybeNone]:
    return PReLUGrads(*_PRELU.gradients((dY, X, slope), wrt, out))
