"""Steps of optimizers, as PyTorch has them: for adapters that write training steps.

Each function takes ``xp``, the parameter, its gradient, the learning rate, the number of this step from 1 on
in float64, the arrays that the optimizer keeps for the parameter, and the optimizer's numbers. It returns the
new parameter, then the new kept arrays. ``xp`` is any namespace of the array API.

References
----------
Loshchilov and Hutter, "Decoupled weight decay regularization" (2017), for adamw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


def sgd(xp: Any, w: Any, g: Any, rate: Any, step: Any, *, weight_decay: float) -> tuple:
    """Gradient descent."""
    return (w - rate * _decayed(w, g, weight_decay),)


def momentum(
    xp: Any, w: Any, g: Any, rate: Any, step: Any, velocity: Any, *, momentum: float, weight_decay: float
) -> tuple:
    """Gradient descent along a decaying sum of gradients."""
    velocity = momentum * velocity + _decayed(w, g, weight_decay)
    return w - rate * velocity, velocity


def adamw(
    xp: Any, w: Any, g: Any, rate: Any, step: Any, mean: Any, square: Any,
    *, beta1: float, beta2: float, epsilon: float, weight_decay: float,
) -> tuple:  # fmt: skip
    """The mean gradient over the root of the mean square, both over steps; weights decay separately."""
    mean = beta1 * mean + (1 - beta1) * g
    square = beta2 * square + (1 - beta2) * (g * g)
    # 1 - beta^step corrects the means of the first steps
    share1, share2 = (
        xp.astype(1 - xp.pow(xp.zeros_like(step) + beta, step), w.dtype) for beta in (beta1, beta2)
    )
    scale = xp.sqrt(square) / xp.sqrt(share2) + epsilon
    w = w * (1 - rate * weight_decay)
    return w - (rate / share1) * (mean / scale), mean, square


def _decayed(w: Any, g: Any, weight_decay: float) -> Any:
    return g + weight_decay * w if weight_decay else g


class Optimizer(NamedTuple):
    """An optimizer.

    Its step, the names of the arrays that it keeps for a parameter, its numbers' defaults, and whether it
    depends on the number of the step.
    """

    step: Callable[..., tuple]
    kept: tuple[str, ...]
    numbers: Mapping[str, float]
    counts: bool = False


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "sgd": Optimizer(sgd, (), {"weight_decay": 0.0}),
        "momentum": Optimizer(momentum, ("velocity",), {"momentum": 0.9, "weight_decay": 0.0}),
        "adamw": Optimizer(
            adamw,
            ("mean", "square"),
            {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01},
            counts=True,
        ),
    }
)
