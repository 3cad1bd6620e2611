"""The activations by their definitions, in extended precision, apart from the formulas under test."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from xpgrad._cases.activations import DEFINITIONS
from xpgrad._operators.declaration import DECLARED

Long = np.longdouble
ALPHA, GAMMA = Long(1.67326319217681884765625), Long(1.05070102214813232421875)
KAPPA = np.sqrt(Long(2) / Long(np.pi))


class Activation(NamedTuple):
    """A function of x and its derivative, by definition; `takes` is what its gradient takes."""

    name: str
    value: Callable[..., Any]
    slope: Callable[..., Any]
    takes: str = "X"
    kinks: Mapping[float, float] = {}
    """Where there is no derivative, and what it is there by PyTorch's choice."""
    attributes: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{name}={value}" for name, value in self.attributes.items())])


def sigma(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def soft(x: Any) -> Any:
    """log(1 + exp(x))."""
    return np.where(x > 40, x, np.log1p(np.exp(np.minimum(x, 40))))


def below(x: Any) -> Any:
    """The normal distribution, in double precision but accurate at both ends."""
    return np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2, otypes=[float])(x).astype(Long)


def density(x: Any) -> Any:
    return np.exp(-x * x / 2) / np.sqrt(2 * Long(np.pi))


def by_sign(x: Any, positive: Any, negative: Any) -> Any:
    return np.where(x > 0, positive, negative)


def mish_slope(x: Any) -> Any:
    t = np.tanh(soft(x))
    return t + x * sigma(x) / np.cosh(np.minimum(soft(x), 5000)) ** 2


def inner(x: Any) -> Any:
    return 2 * KAPPA * (x + Long("0.044715") * x**3)


def inner_slope(x: Any) -> Any:
    return 2 * KAPPA * (1 + 3 * Long("0.044715") * x**2)


def swish(x: Any, a: Any) -> Any:
    return sigma(a * x) * (1 + a * x * sigma(-a * x))


def make(
    name: str, value: Any, slope: Any, takes: str = "X", kinks: Any = None, **attributes: Any
) -> Activation:
    return Activation(name, value, slope, takes, kinks or {}, attributes)


TWO_THIRDS = {"alpha": 2 / 3}
CASES = (
    make("relu", lambda x: np.maximum(x, 0), lambda x: x > 0, kinks={0.0: 0.0}),
    make(
        "leaky_relu", lambda x: by_sign(x, x, x / 100), lambda x: by_sign(x, 1, Long(0.01)), "Y", {0.0: 0.01}
    ),
    make(
        "leaky_relu", lambda x: by_sign(x, x, Long(0.3) * x), lambda x: by_sign(x, 1, Long(0.3)), "Y",
        {0.0: 0.3}, alpha=0.3,
    ),
    make(
        "thresholded_relu", lambda x: np.where(x > 1, x, 0), lambda x: x > 1, kinks={1.0: 0.0}
    ),
    make(
        "thresholded_relu", lambda x: np.where(x > -0.5, x, 0), lambda x: x > -0.5, kinks={-0.5: 0.0},
        alpha=-0.5,
    ),
    make("elu", lambda x: by_sign(x, x, np.expm1(x)), lambda x: by_sign(x, 1, np.exp(x))),
    make(
        "elu", lambda x: by_sign(x, x, Long(0.4) * np.expm1(x)),
        lambda x: by_sign(x, 1, Long(0.4) * np.exp(x)), kinks={0.0: 0.4}, alpha=0.4,
    ),
    make(
        "selu", lambda x: GAMMA * by_sign(x, x, ALPHA * np.expm1(x)),
        lambda x: GAMMA * by_sign(x, 1, ALPHA * np.exp(x)), kinks={0.0: float(GAMMA * ALPHA)},
    ),
    make(
        "selu", lambda x: 2 * by_sign(x, x, Long(0.5) * np.expm1(x)),
        lambda x: 2 * by_sign(x, 1, Long(0.5) * np.exp(x)), kinks={0.0: 1.0}, alpha=0.5, gamma=2.0,
    ),
    make("celu", lambda x: by_sign(x, x, np.expm1(x)), lambda x: by_sign(x, 1, np.exp(x))),
    make(
        "celu", lambda x: by_sign(x, x, 2 * np.expm1(x / 2)), lambda x: by_sign(x, 1, np.exp(x / 2)),
        kinks={0.0: 1.0}, alpha=2.0,
    ),
    make("softplus", soft, sigma),
    make(
        "softplus", lambda x: np.where(2 * x > 3, x, soft(2 * x) / 2),
        lambda x: np.where(2 * x > 3, 1, sigma(2 * x)), beta=2.0, threshold=3.0,
    ),
    make("log_sigmoid", lambda x: -soft(-x), lambda x: sigma(-x)),
    make("gelu", lambda x: x * below(x), lambda x: below(x) + x * density(x)),
    make(
        "gelu", lambda x: x * sigma(inner(x)),
        lambda x: sigma(inner(x)) * (1 + x * inner_slope(x) * sigma(-inner(x))), approximate="tanh",
    ),
    make("quick_gelu", lambda x: x * sigma(Long(1.702) * x), lambda x: swish(x, Long(1.702))),
    make("quick_gelu", lambda x: x * sigma(-x / 2), lambda x: swish(x, Long(-0.5)), alpha=-0.5),
    make("silu", lambda x: x * sigma(x), lambda x: swish(x, 1)),
    make("mish", lambda x: x * np.tanh(soft(x)), mish_slope),
    make("sigmoid", sigma, lambda x: sigma(x) * sigma(-x), "Y"),
    make("tanh", np.tanh, lambda x: 1 / np.cosh(np.clip(x, -5000, 5000)) ** 2, "Y"),
    make(
        "scaled_tanh", np.tanh, lambda x: 1 / np.cosh(np.clip(x, -5000, 5000)) ** 2
    ),
    make(
        "scaled_tanh", lambda x: 3 * np.tanh(x / 2),
        lambda x: Long(1.5) / np.cosh(np.clip(x / 2, -5000, 5000)) ** 2, alpha=3.0, beta=0.5,
    ),
    make("softsign", lambda x: x / (1 + np.abs(x)), lambda x: 1 / (1 + np.abs(x)) ** 2),
    make(
        "hard_sigmoid", lambda x: np.clip(Long(0.2) * x + Long(0.5), 0, 1),
        lambda x: np.where(np.abs(x) < 2.5, Long(0.2), 0), kinks={-2.5: 0.0, 2.5: 0.0},
    ),
    make(
        "hard_sigmoid", lambda x: np.clip(x / 4 + Long(0.25), 0, 1),
        lambda x: np.where((x > -1) & (x < 3), Long(0.25), 0), kinks={-1.0: 0.0, 3.0: 0.0},
        alpha=0.25, beta=0.25,
    ),
    make(
        "hard_sigmoid", lambda x: np.clip(x / 6 + Long(0.5), 0, 1),
        lambda x: np.where(np.abs(x) < 3, 1 / Long(6), 0), kinks={-3.0: 0.0, 3.0: 0.0}, alpha=1 / 6,
    ),
    make(
        "hard_swish", lambda x: x * np.clip(x / 6 + Long(0.5), 0, 1),
        lambda x: np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + Long(0.5))), kinks={-3.0: 0.0, 3.0: 1.0},
    ),
    make(
        "hard_tanh", lambda x: np.clip(x, -1, 1), lambda x: np.abs(x) < 1, kinks={-1.0: 0.0, 1.0: 0.0}
    ),
    make(
        "hard_tanh", lambda x: np.clip(x, -0.5, 2), lambda x: (x > -0.5) & (x < 2),
        kinks={-0.5: 0.0, 2.0: 0.0}, min_val=-0.5, max_val=2.0,
    ),
)  # fmt: skip


def by_definition(name: str) -> Activation:
    """The definition that `check` has, and its derivative by a complex step."""
    definition, step = DEFINITIONS[name], np.clongdouble(1e-150j)
    slope = lambda x: definition(np, x + step).imag / step.imag  # noqa: E731
    return make(name, functools.partial(definition, np), slope, DECLARED[name].residual)


WITH_OPERANDS = [name for name, declaration in DECLARED.items() if declaration.operands]
CASES += tuple(
    by_definition(name) for name in DECLARED if name not in {*WITH_OPERANDS, *(case.name for case in CASES)}
)
