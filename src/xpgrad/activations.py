"""Activation functions and their gradients, each pair side by side.

Each function is one formula of `_activation_formulas`, evaluated in one pass. The recurrent operators use the
same table. At a kink the slope is PyTorch's. Values and slopes at -inf and inf are their limits; NaN
propagates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from xpgrad import _activation_formulas as formulas
from xpgrad._arguments import check_choice, check_given, check_number, check_wrt
from xpgrad._elementwise import ElementwiseKernel, evaluate, pull
from xpgrad._types import A, AnyArray, Array, MaybeNone, Wanted
from xpgrad._words import Approximate
from xpgrad.engine import Formula

# ruff: noqa: D103 - each function gets its docstring from its pair

_Function = TypeVar("_Function", bound=Callable)

_DOCSTRING = """{summary}

.. math::

    {equation}

Parameters
----------
{arrays}{attributes}out : array, optional
    Array for the result, of its shape and dtype; it may be one of the inputs.

Returns
-------
array, shape (...)
    {result}

Raises
------
ValueError
    If shapes differ, an attribute breaks its rule, or `out` is read-only.
TypeError
    If an argument is not an array, or arrays differ in namespace, dtype or device.

References
----------
{source}

Examples
--------
>>> import numpy as np
>>> from xpgrad import {name}
>>> {name}({example}).round(4)
{expected}
"""
_FLOATS = "float32 or float64; float16 and bfloat16 if the namespace has them, computed in float32."
_INPUT = f"X : array, shape (...)\n    Input. {_FLOATS}\n"
_COTANGENT = f"dY : array, shape (...)\n    Cotangent of the output. {_FLOATS}\n"
_RESIDUALS = {
    "X": "X : array, shape (...)\n    The input of `{name}`.\n",
    "Y": "Y : array, shape (...)\n    The output of `{name}`.\n",
}


@dataclass(frozen=True)
class _Pair:
    """An activation and its gradient: their kernels, and the docstrings that they share.

    Parameters
    ----------
    name : str
        The forward's public name.
    activation : Activation
        Its formulas.
    summary, equation, slope, source : str
        For the docstrings; `slope` is the gradient's equation.
    residual : {"X", "Y"}
        What the gradient takes besides the cotangent.
    parameters : tuple of str, optional
        Which of the formulas' alpha and beta the caller sets.
    fixed : dict of str to float, optional
        Those with a fixed value.
    attributes : dict of str to str, optional
        The public parameters, described.
    examples : tuple of str
        The results for X = [-1, 0.5], without and with the gradient, for dY = [1, 2].
    """

    name: str
    activation: formulas.Activation
    summary: str
    equation: str
    slope: str
    source: str
    examples: tuple[str, str]
    residual: str = "X"
    parameters: tuple[str, ...] = ()
    fixed: Mapping[str, float] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def value(self) -> ElementwiseKernel:
        """The forward's kernel."""
        return self._kernel(self.name, ("X",), evaluate, {"value": self.activation.value})

    @cached_property
    def gradient(self) -> ElementwiseKernel:
        """The gradient's kernel."""
        by_input = self.activation.input_pullback if self.residual == "X" else None
        pullback = by_input or self.activation.pullback
        return self._kernel(f"{self.name}_grad", ("dY", self.residual), pull, {"pullback": pullback})

    def _kernel(
        self, operator: str, names: tuple[str, ...], function: Callable, constants: dict
    ) -> ElementwiseKernel:
        fixed = {name: self.fixed.get(name, 0.0) for name in ("alpha", "beta") if name not in self.parameters}
        return ElementwiseKernel(operator, names, Formula(function, constants | fixed, self.parameters))

    def forward(self, function: _Function) -> _Function:
        """Give the forward its docstring."""
        return self._document(
            function, self.summary, self.equation, _INPUT, "Y, of X's shape and dtype.",
            "np.asarray([-1.0, 0.5])", self.examples[0],
        )  # fmt: skip

    def backward(self, function: _Function) -> _Function:
        """Give the gradient its docstring."""
        arrays = _COTANGENT + _RESIDUALS[self.residual].format(name=self.name)
        x = "np.asarray([-1.0, 0.5])"
        example = f"np.asarray([1.0, 2.0]), {x if self.residual == 'X' else f'xpgrad.{self.name}({x})'}"
        return self._document(
            function, f"Gradient of `{self.name}`.", self.slope, arrays,
            f"dX, the cotangent of the input, of {self.residual}'s shape and dtype.", example,
            self.examples[1],
        )  # fmt: skip

    def _document(
        self,
        function: _Function,
        summary: str,
        equation: str,
        arrays: str,
        result: str,
        example: str,
        expected: str,
    ) -> _Function:
        described = [f"{name}\n    {text}\n" for name, text in self.attributes.items()]
        text = _DOCSTRING.format(
            summary=summary, equation=equation, arrays=arrays, attributes="".join(described), result=result,
            source=self.source, name=function.__name__, example=example, expected=expected,
        )  # fmt: skip
        if "xpgrad." in example:
            text = text.replace(">>> from xpgrad import", ">>> import xpgrad\n>>> from xpgrad import")
        function.__doc__ = text
        return function


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


def _threshold(operator: str, value: Any) -> float:
    return float("inf") if value is None else check_number(operator, "threshold", value)


def _told_by_output(operator: str, alpha: Any) -> float:
    number = check_number(operator, "alpha", alpha)
    if number < 0:
        raise ValueError(
            f"{operator}: alpha is {number}, expected at least 0: with a negative alpha the output does not "
            "tell the slope; prelu_grad takes the input instead"
        )
    return number


_CELU = _Pair(
    "celu",
    formulas.ACTIVATIONS["Celu"],
    "Continuously differentiable exponential linear unit.",
    r"y = \max(x, 0) + \min(0, \alpha (e^{x / \alpha} - 1))",
    r"dx = dy \cdot (1 \text{ if } x > 0 \text{ else } e^{x / \alpha})",
    "ONNX operator Celu; Barron (2017).",
    ("array([-0.6321,  0.5   ])", "array([0.3679, 2.    ])"),
    parameters=("alpha",),
    attributes={"alpha : float": "Scale of the negative side; not 0."},
)


@_CELU.forward
def celu(X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _CELU.value((X,), (_nonzero("celu", "alpha", alpha),), out)


@_CELU.backward
def celu_grad(dY: Array[A], X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _CELU.gradient((dY, X), (_nonzero("celu_grad", "alpha", alpha),), out)


_ELU = _Pair(
    "elu",
    formulas.ACTIVATIONS["Elu"],
    "Exponential linear unit.",
    r"y = x \text{ if } x > 0 \text{ else } \alpha (e^x - 1)",
    r"dx = dy \cdot (1 \text{ if } x > 0 \text{ else } \alpha e^x)",
    "ONNX operator Elu; Clevert, Unterthiner and Hochreiter (2015).",
    ("array([-0.6321,  0.5   ])", "array([0.3679, 2.    ])"),
    parameters=("alpha",),
    attributes={"alpha : float": "Scale of the negative side."},
)


@_ELU.forward
def elu(X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _ELU.value((X,), (check_number("elu", "alpha", alpha),), out)


@_ELU.backward
def elu_grad(dY: Array[A], X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _ELU.gradient((dY, X), (check_number("elu_grad", "alpha", alpha),), out)


_GELU_EXACT = _Pair(
    "gelu",
    formulas.ACTIVATIONS["Gelu"],
    "Gaussian error linear unit.",
    r"y = x \Phi(x) \quad \text{or} \quad x \sigma(2 u), \; u = \sqrt{2 / \pi} (x + 0.044715 x^3)",
    r"dx = dy (\Phi(x) + x \phi(x)) \quad \text{or} \quad dy (s + 2 x u' s (1 - s)), \; s = \sigma(2 u)",
    "ONNX operator Gelu; Hendrycks and Gimpel (2016).",
    ("array([-0.1587,  0.3457])", "array([-0.0833,  1.735 ])"),
    attributes={"approximate : {'none', 'tanh'}": "The normal distribution, or its approximation by tanh."},
)
_GELU_TANH = replace(_GELU_EXACT, activation=formulas.ACTIVATIONS["GeluTanh"])


@_GELU_EXACT.forward
def gelu(X: Array[A], *, approximate: Approximate = "none", out: Array[A] | None = None) -> A:
    return _gelu("gelu", approximate).value((X,), (), out)


@_GELU_EXACT.backward
def gelu_grad(
    dY: Array[A], X: Array[A], *, approximate: Approximate = "none", out: Array[A] | None = None
) -> A:
    return _gelu("gelu_grad", approximate).gradient((dY, X), (), out)


def _gelu(operator: str, approximate: str) -> _Pair:
    check_choice(operator, "approximate", approximate, ("none", "tanh"))
    return _GELU_EXACT if approximate == "none" else _GELU_TANH


_HARD_SIGMOID = _Pair(
    "hard_sigmoid",
    formulas.ACTIVATIONS["HardSigmoid"],
    "Piecewise linear sigmoid.",
    r"y = \max(0, \min(1, \alpha x + \beta))",
    r"dx = dy \cdot (\alpha \text{ if } 0 < \alpha x + \beta < 1 \text{ else } 0)",
    "ONNX operator HardSigmoid.",
    ("array([0.3, 0.6])", "array([0.2, 0.4])"),
    parameters=("alpha", "beta"),
    attributes={"alpha : float": "Slope; PyTorch's is 1/6.", "beta : float": "Value at 0."},
)


@_HARD_SIGMOID.forward
def hard_sigmoid(X: Array[A], *, alpha: float = 0.2, beta: float = 0.5, out: Array[A] | None = None) -> A:
    return _HARD_SIGMOID.value(
        (X,), (check_number("hard_sigmoid", "alpha", alpha), check_number("hard_sigmoid", "beta", beta)), out
    )


@_HARD_SIGMOID.backward
def hard_sigmoid_grad(
    dY: Array[A], X: Array[A], *, alpha: float = 0.2, beta: float = 0.5, out: Array[A] | None = None
) -> A:
    return _HARD_SIGMOID.gradient(
        (dY, X),
        (check_number("hard_sigmoid_grad", "alpha", alpha), check_number("hard_sigmoid_grad", "beta", beta)),
        out,
    )


_HARD_SWISH = _Pair(
    "hard_swish",
    formulas.ACTIVATIONS["HardSwish"],
    "Piecewise quadratic silu.",
    r"y = x \max(0, \min(1, x / 6 + 1 / 2))",
    r"dx = dy \cdot (0 \text{ if } x \le -3, \; 1 \text{ if } x \ge 3, \; x / 3 + 1 / 2 \text{ between})",
    "ONNX operator HardSwish; Howard and others (2019).",
    ("array([-0.3333,  0.2917])", "array([0.1667, 1.3333])"),
)


@_HARD_SWISH.forward
def hard_swish(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _HARD_SWISH.value((X,), (), out)


@_HARD_SWISH.backward
def hard_swish_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _HARD_SWISH.gradient((dY, X), (), out)


_HARD_TANH = _Pair(
    "hard_tanh",
    formulas.ACTIVATIONS["HardTanh"],
    "Clamp between two bounds.",
    r"y = \max(a, \min(b, x))",
    r"dx = dy \cdot (1 \text{ if } a < x < b \text{ else } 0)",
    "PyTorch's hardtanh; a and b are `min_val` and `max_val`.",
    ("array([-1. ,  0.5])", "array([0., 2.])"),
    parameters=("alpha", "beta"),
    attributes={
        "min_val : float": "Lower bound.",
        "max_val : float": "Upper bound, not below the lower one.",
    },
)


@_HARD_TANH.forward
def hard_tanh(X: Array[A], *, min_val: float = -1.0, max_val: float = 1.0, out: Array[A] | None = None) -> A:
    return _HARD_TANH.value((X,), _bounds("hard_tanh", min_val, max_val), out)


@_HARD_TANH.backward
def hard_tanh_grad(
    dY: Array[A], X: Array[A], *, min_val: float = -1.0, max_val: float = 1.0, out: Array[A] | None = None
) -> A:
    return _HARD_TANH.gradient((dY, X), _bounds("hard_tanh_grad", min_val, max_val), out)


_LEAKY_RELU = _Pair(
    "leaky_relu",
    formulas.ACTIVATIONS["LeakyRelu"],
    "Rectified linear unit with a leak.",
    r"y = x \text{ if } x > 0 \text{ else } \alpha x",
    r"dx = dy \cdot (1 \text{ if } y > 0 \text{ else } \alpha)",
    "ONNX operator LeakyRelu.",
    ("array([-0.01,  0.5 ])", "array([0.01, 2.  ])"),
    residual="Y",
    parameters=("alpha",),
    attributes={"alpha : float": "Slope of the negative side."},
)


@_LEAKY_RELU.forward
def leaky_relu(X: Array[A], *, alpha: float = 0.01, out: Array[A] | None = None) -> A:
    return _LEAKY_RELU.value((X,), (check_number("leaky_relu", "alpha", alpha),), out)


@_LEAKY_RELU.backward
def leaky_relu_grad(dY: Array[A], Y: Array[A], *, alpha: float = 0.01, out: Array[A] | None = None) -> A:
    return _LEAKY_RELU.gradient((dY, Y), (_told_by_output("leaky_relu_grad", alpha),), out)


_LOG_SIGMOID = _Pair(
    "log_sigmoid",
    formulas.ACTIVATIONS["LogSigmoid"],
    "Logarithm of the sigmoid.",
    r"y = \log \sigma(x) = -\log(1 + e^{-x})",
    r"dx = dy \cdot \sigma(-x)",
    "PyTorch's logsigmoid.",
    ("array([-1.3133, -0.4741])", "array([0.7311, 0.7551])"),
)


@_LOG_SIGMOID.forward
def log_sigmoid(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _LOG_SIGMOID.value((X,), (), out)


@_LOG_SIGMOID.backward
def log_sigmoid_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _LOG_SIGMOID.gradient((dY, X), (), out)


_MISH = _Pair(
    "mish",
    formulas.ACTIVATIONS["Mish"],
    "Self-regularized smooth activation.",
    r"y = x \tanh(\log(1 + e^x))",
    r"dx = dy \cdot (t + x (1 - t^2) \sigma(x)), \quad t = \tanh(\log(1 + e^x))",
    "ONNX operator Mish; Misra (2019).",
    ("array([-0.3034,  0.3752])", "array([0.0592, 1.7728])"),
)


@_MISH.forward
def mish(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _MISH.value((X,), (), out)


@_MISH.backward
def mish_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _MISH.gradient((dY, X), (), out)


_QUICK_GELU = _Pair(
    "quick_gelu",
    formulas.ACTIVATIONS["QuickGelu"],
    "Sigmoid approximation of gelu.",
    r"y = x \sigma(\alpha x)",
    r"dx = dy \cdot (s + \alpha x s (1 - s)), \quad s = \sigma(\alpha x)",
    "ONNX Runtime's QuickGelu; Hendrycks and Gimpel (2016).",
    ("array([-0.1542,  0.3504])", "array([-0.0678,  1.7584])"),
    parameters=("alpha",),
    attributes={"alpha : float": "Scale of the sigmoid's argument."},
)


@_QUICK_GELU.forward
def quick_gelu(X: Array[A], *, alpha: float = 1.702, out: Array[A] | None = None) -> A:
    return _QUICK_GELU.value((X,), (check_number("quick_gelu", "alpha", alpha),), out)


@_QUICK_GELU.backward
def quick_gelu_grad(dY: Array[A], X: Array[A], *, alpha: float = 1.702, out: Array[A] | None = None) -> A:
    return _QUICK_GELU.gradient((dY, X), (check_number("quick_gelu_grad", "alpha", alpha),), out)


_RELU = _Pair(
    "relu",
    formulas.ACTIVATIONS["Relu"],
    "Rectified linear unit.",
    r"y = \max(x, 0)",
    r"dx = dy \cdot (1 \text{ if } x > 0 \text{ else } 0)",
    "ONNX operator Relu.",
    ("array([0. , 0.5])", "array([0., 2.])"),
)


@_RELU.forward
def relu(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _RELU.value((X,), (), out)


@_RELU.backward
def relu_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _RELU.gradient((dY, X), (), out)


_SCALED_TANH = _Pair(
    "scaled_tanh",
    formulas.ACTIVATIONS["ScaledTanh"],
    "Hyperbolic tangent, scaled on both sides.",
    r"y = \alpha \tanh(\beta x)",
    r"dx = dy \cdot \alpha \beta (1 - \tanh^2(\beta x))",
    "ONNX's recurrent activation ScaledTanh.",
    ("array([-0.7616,  0.4621])", "array([0.42  , 1.5729])"),
    parameters=("alpha", "beta"),
    attributes={"alpha : float": "Scale of the output.", "beta : float": "Scale of the input."},
)


@_SCALED_TANH.forward
def scaled_tanh(X: Array[A], *, alpha: float = 1.0, beta: float = 1.0, out: Array[A] | None = None) -> A:
    return _SCALED_TANH.value(
        (X,), (check_number("scaled_tanh", "alpha", alpha), check_number("scaled_tanh", "beta", beta)), out
    )


@_SCALED_TANH.backward
def scaled_tanh_grad(
    dY: Array[A], X: Array[A], *, alpha: float = 1.0, beta: float = 1.0, out: Array[A] | None = None
) -> A:
    return _SCALED_TANH.gradient(
        (dY, X),
        (check_number("scaled_tanh_grad", "alpha", alpha), check_number("scaled_tanh_grad", "beta", beta)),
        out,
    )


_SELU = _Pair(
    "selu",
    formulas.ACTIVATIONS["Selu"],
    "Scaled exponential linear unit.",
    r"y = \gamma (x \text{ if } x > 0 \text{ else } \alpha (e^x - 1))",
    r"dx = dy \cdot \gamma (1 \text{ if } x > 0 \text{ else } \alpha e^x)",
    "ONNX operator Selu; Klambauer and others (2017).",
    ("array([-1.1113,  0.5254])", "array([0.6468, 2.1014])"),
    parameters=("alpha", "beta"),
    attributes={"alpha : float": "Scale of the negative side.", "gamma : float": "Scale of both sides."},
)


@_SELU.forward
def selu(
    X: Array[A],
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    out: Array[A] | None = None,
) -> A:
    return _SELU.value(
        (X,), (check_number("selu", "alpha", alpha), check_number("selu", "gamma", gamma)), out
    )


@_SELU.backward
def selu_grad(
    dY: Array[A],
    X: Array[A],
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    out: Array[A] | None = None,
) -> A:
    return _SELU.gradient(
        (dY, X), (check_number("selu_grad", "alpha", alpha), check_number("selu_grad", "gamma", gamma)), out
    )


_SIGMOID = _Pair(
    "sigmoid",
    formulas.ACTIVATIONS["Sigmoid"],
    "Logistic function.",
    r"y = \sigma(x) = 1 / (1 + e^{-x})",
    r"dx = dy \cdot y (1 - y)",
    "ONNX operator Sigmoid.",
    ("array([0.2689, 0.6225])", "array([0.1966, 0.47  ])"),
    residual="Y",
)


@_SIGMOID.forward
def sigmoid(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SIGMOID.value((X,), (), out)


@_SIGMOID.backward
def sigmoid_grad(dY: Array[A], Y: Array[A], *, out: Array[A] | None = None) -> A:
    return _SIGMOID.gradient((dY, Y), (), out)


_SILU = _Pair(
    "silu",
    formulas.ACTIVATIONS["QuickGelu"],
    "Sigmoid linear unit, also called swish.",
    r"y = x \sigma(x)",
    r"dx = dy \cdot (s + x s (1 - s)), \quad s = \sigma(x)",
    "Elfwing, Uchibe and Doya (2017).",
    ("array([-0.2689,  0.3112])", "array([0.0723, 1.4799])"),
    fixed={"alpha": 1.0},
)


@_SILU.forward
def silu(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SILU.value((X,), (), out)


@_SILU.backward
def silu_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SILU.gradient((dY, X), (), out)


_SOFTPLUS = _Pair(
    "softplus",
    formulas.ACTIVATIONS["ScaledSoftplus"],
    "Smooth rectified linear unit.",
    r"y = \log(1 + e^{\beta x}) / \beta",
    r"dx = dy \cdot \sigma(\beta x)",
    "ONNX operator Softplus; PyTorch's `beta` and `threshold`.",
    ("array([0.3133, 0.9741])", "array([0.2689, 1.2449])"),
    parameters=("alpha", "beta"),
    attributes={
        "beta : float": "Sharpness; not 0.",
        "threshold : float or None": "Where ``beta x`` is above it, y is x; 20 in PyTorch. None: nowhere.",
    },
)


@_SOFTPLUS.forward
def softplus(
    X: Array[A], *, beta: float = 1.0, threshold: float | None = None, out: Array[A] | None = None
) -> A:
    return _SOFTPLUS.value((X,), (_threshold("softplus", threshold), _nonzero("softplus", "beta", beta)), out)


@_SOFTPLUS.backward
def softplus_grad(
    dY: Array[A],
    X: Array[A],
    *,
    beta: float = 1.0,
    threshold: float | None = None,
    out: Array[A] | None = None,
) -> A:
    return _SOFTPLUS.gradient(
        (dY, X), (_threshold("softplus_grad", threshold), _nonzero("softplus_grad", "beta", beta)), out
    )


_SOFTSIGN = _Pair(
    "softsign",
    formulas.ACTIVATIONS["Softsign"],
    "Rational sigmoid.",
    r"y = x / (1 + |x|)",
    r"dx = dy / (1 + |x|)^2",
    "ONNX operator Softsign.",
    ("array([-0.5   ,  0.3333])", "array([0.25  , 0.8889])"),
)


@_SOFTSIGN.forward
def softsign(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SOFTSIGN.value((X,), (), out)


@_SOFTSIGN.backward
def softsign_grad(dY: Array[A], X: Array[A], *, out: Array[A] | None = None) -> A:
    return _SOFTSIGN.gradient((dY, X), (), out)


_TANH = _Pair(
    "tanh",
    formulas.ACTIVATIONS["Tanh"],
    "Hyperbolic tangent.",
    r"y = \tanh(x)",
    r"dx = dy \cdot (1 - y^2)",
    "ONNX operator Tanh.",
    ("array([-0.7616,  0.4621])", "array([0.42  , 1.5729])"),
    residual="Y",
)


@_TANH.forward
def tanh(X: Array[A], *, out: Array[A] | None = None) -> A:
    return _TANH.value((X,), (), out)


@_TANH.backward
def tanh_grad(dY: Array[A], Y: Array[A], *, out: Array[A] | None = None) -> A:
    return _TANH.gradient((dY, Y), (), out)


_THRESHOLDED_RELU = _Pair(
    "thresholded_relu",
    formulas.ACTIVATIONS["ThresholdedRelu"],
    "Identity above a threshold, 0 up to it.",
    r"y = x \text{ if } x > \alpha \text{ else } 0",
    r"dx = dy \cdot (1 \text{ if } x > \alpha \text{ else } 0)",
    "ONNX operator ThresholdedRelu.",
    ("array([0., 0.])", "array([0., 0.])"),
    parameters=("alpha",),
    attributes={"alpha : float": "The threshold."},
)


@_THRESHOLDED_RELU.forward
def thresholded_relu(X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _THRESHOLDED_RELU.value((X,), (check_number("thresholded_relu", "alpha", alpha),), out)


@_THRESHOLDED_RELU.backward
def thresholded_relu_grad(dY: Array[A], X: Array[A], *, alpha: float = 1.0, out: Array[A] | None = None) -> A:
    return _THRESHOLDED_RELU.gradient((dY, X), (check_number("thresholded_relu_grad", "alpha", alpha),), out)


_PRELU = ElementwiseKernel("prelu", ("X", "slope"), Formula(formulas.prelu), "X", ("slope",))
_PRELU_GRAD = ElementwiseKernel(
    "prelu_grad", ("dY", "X", "slope"), Formula(formulas.prelu_pullback), "X", ("slope",)
)
_PRELU_SLOPE_FORMULA = Formula(formulas.prelu_slope_pullback)


class PReLUGrads(NamedTuple, Generic[AnyArray]):
    """What `prelu_grad` returns: one gradient each, None if it was not asked for.

    Parameters
    ----------
    dX : array, shape (...)
        Of the input.
    dslope : array
        Of the slope, of its shape.
    """

    dX: AnyArray
    dslope: AnyArray


def prelu(X: Array[A], slope: Array[A], *, out: Array[A] | None = None) -> A:
    r"""Rectified linear unit with a learnt leak.

    .. math::

        y = x \text{ if } x > 0 \text{ else } s x

    Parameters
    ----------
    X : array, shape (...)
        Input. float32 or float64; float16 and bfloat16 if the namespace has them, computed in float32.
    slope : array
        The slope s of the negative side, of a shape that broadcasts to X's; (C, 1, 1) is one slope per
        channel of an (N, C, H, W) input.
    out : array, optional
        Array for the result, of its shape and dtype; it may be one of the inputs.

    Returns
    -------
    array, shape (...)
        Y, of X's shape and dtype.

    Raises
    ------
    ValueError
        For a slope that does not broadcast to X's shape, or an `out` of another shape or read-only.
    TypeError
        If an argument is not an array, or arrays differ in namespace, dtype or device.

    References
    ----------
    ONNX operator PRelu; He and others (2015).

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import prelu
    >>> prelu(np.asarray([[-1.0, 0.5], [2.0, -4.0]]), np.asarray([0.1, 0.25]))
    array([[-0.1,  0.5],
           [ 2. , -1. ]])
    """
    check_given("prelu", {"X": X, "slope": slope})
    return _PRELU((X, slope), (), out)


def prelu_grad(
    dY: Array[A],
    X: Array[A],
    slope: Array[A],
    *,
    wrt: Wanted[MaybeNone] | None = None,
    out: Array[A] | None = None,
) -> PReLUGrads[A | MaybeNone]:
    r"""Gradient of `prelu`.

    .. math::

        dx = dy \cdot (1 \text{ if } x > 0 \text{ else } s), \qquad
        ds = \sum dy \cdot (0 \text{ if } x > 0 \text{ else } x)

    Parameters
    ----------
    dY : array, shape (...)
        Cotangent of the output, of X's shape.
    X : array, shape (...)
        The input of `prelu`.
    slope : array
        Its slope.
    wrt : iterable of {"X", "slope"}, optional
        Which gradients to compute; both by default.
    out : array, optional
        Array for dX, of X's shape and dtype; it may be dY or X.

    Returns
    -------
    PReLUGrads
        ``(dX, dslope)``; dslope sums over all elements that share a slope.

    Raises
    ------
    ValueError
        For shapes that do not fit, an unknown name in `wrt`, or an `out` without dX being wanted.
    TypeError
        If an argument is not an array, or arrays differ in namespace, dtype or device.

    References
    ----------
    ONNX operator PRelu; He and others (2015).

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import prelu_grad
    >>> X, slope = np.asarray([[-1.0, 0.5], [2.0, -4.0]]), np.asarray([0.1, 0.25])
    >>> grads = prelu_grad(np.ones((2, 2)), X, slope)
    >>> grads.dX, grads.dslope
    (array([[0.1 , 1.  ],
           [1.  , 0.25]]), array([-1., -4.]))
    """
    check_given("prelu_grad", {"dY": dY, "X": X, "slope": slope})
    wanted = check_wrt("prelu_grad", wrt, ("X", "slope"))
    if out is not None and "X" not in wanted:
        raise ValueError("prelu_grad: out is given, expected 'X' in wrt: out is for dX")
    # dslope first: out may be the memory of dY or X
    dslope: Any = _prelu_slope_gradient(dY, X, slope) if "slope" in wanted else None
    dX: Any = _PRELU_GRAD((dY, X, slope), (), out) if "X" in wanted else None
    return PReLUGrads(dX, dslope)


def _prelu_slope_gradient(dY: Any, X: Any, slope: Any) -> Any:
    computation = _PRELU_GRAD.check((dY, X, slope))
    d, x, s = (computation.lift(array) for array in (dY, X, slope))
    xp, engine = computation.xp, computation.engine
    terms = engine.elementwise(_PRELU_SLOPE_FORMULA, (d, x))
    added = tuple(range(terms.ndim - s.ndim))
    alike = tuple(terms.ndim - s.ndim + axis for axis, size in enumerate(s.shape) if size == 1)
    with engine.quiet():
        total = xp.sum(terms, axis=(*added, *alike), keepdims=True) if added or alike else terms
    return computation.lower(xp.reshape(total, tuple(s.shape)))
