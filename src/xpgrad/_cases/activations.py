"""The options and oracles of activations, softmax and losses, for `check`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from xpgrad._operators.declaration import DECLARED

from .._testing.activations import sigmoid
from .._testing.comparing import to_numpy
from .case import Arrays, Case, KernelCases, draw, kernel_cases, seeded

__all__ = ["ACTIVATIONS", "DEFINITIONS"]


class ActivationCase(NamedTuple):
    """An operator with one output: its definition, and PyTorch's function.

    ``definition(xp, *arrays, **attributes)`` gets NumPy or torch as xp. `peer` gets torch.nn.functional. It
    is None, or returns None, if PyTorch lacks the function or the option.
    """

    name: str
    definition: Callable[..., Any]
    peer: Callable[..., Any] | None
    options: Mapping[str, Mapping[str, Any]]
    case: Callable[..., Case]


# ------------------------------------------------------------------------------------------- the activations


def _pointwise_case(*, seed: int, operands: Mapping[str, tuple[int, ...]], **attributes: Any) -> Case:
    """Values on both sides of every kink but not at a kink: odd sixteenths below 8."""
    rng = np.random.default_rng(seed)
    X = np.clip(2 * np.round(20 * rng.standard_normal((3, 4, 5))) + 1, -127, 127) / 16
    arguments = {"X": X, **{name: draw(rng, *shape) for name, shape in operands.items()}}
    return Case(arguments, {}, attributes, {"Y": draw(rng, 3, 4, 5)})


def _normal_distribution(xp: Any, x: Any) -> Any:
    erf = getattr(xp, "erf", None) or np.vectorize(math.erf)
    return (1 + erf(x / math.sqrt(2))) / 2


def _gelu(xp: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x * _normal_distribution(xp, x)


def _softplus(xp: Any, x: Any, beta: float = 1.0, threshold: float | None = None) -> Any:
    soft = xp.log(1 + xp.exp(beta * x)) / beta
    return soft if threshold is None else xp.where(beta * x > threshold, x, soft)


def _elu(xp: Any, x: Any, alpha: float = 1.0) -> Any:
    return xp.where(x > 0, x, alpha * (xp.exp(x) - 1))


def _torch_hard_sigmoid(F: Any, x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    """PyTorch's function, which has only these numbers; its gradient uses 1/6 in single precision."""
    return F.hardsigmoid(x) if (alpha, beta) == (1 / 6, 0.5) and x.element_size() < 8 else None


def _hard_sigmoid(xp: Any, x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return xp.clip(alpha * x + beta, 0, 1)


_SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}  # ONNX's defaults
_PAPERS_SELU = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}  # PyTorch's


def _pointwise(
    name: str,
    definition: Callable[..., Any],
    peer: Callable[..., Any] | None = None,
    **options: Mapping[str, Any],
) -> ActivationCase:
    """Each option has one value of each operand. Two more have a value per channel and per element."""
    operands = DECLARED[name].operands

    def sized(*shape: int) -> dict[str, Any]:
        return {"operands": dict.fromkeys(operands, shape)}

    every = {option: sized(1) | dict(given) for option, given in {"plain": {}, **options}.items()}
    if operands:
        names = " and ".join(operands)
        every |= {f"a {names} per channel": sized(4, 1), f"all {names}s": sized(3, 4, 5)}
    return ActivationCase(name, definition, peer, every, _pointwise_case)


_POINTWISE = (
    _pointwise("relu", lambda xp, x: xp.where(x > 0, x, 0 * x), lambda F, x: F.relu(x)),
    _pointwise(
        "leaky_relu",
        lambda xp, x, alpha=0.01: xp.where(x > 0, x, alpha * x),
        lambda F, x, alpha=0.01: F.leaky_relu(x, alpha),
        alpha={"alpha": 0.3},
    ),
    _pointwise(
        "prelu",
        lambda xp, x, slope: xp.where(x > 0, x, slope * x),
        lambda F, x, slope: F.prelu(x, slope.flatten()) if slope.ndim < 3 else None,
    ),
    _pointwise(
        "thresholded_relu",
        lambda xp, x, alpha=1.0: xp.where(x > alpha, x, 0 * x),
        lambda F, x, alpha=1.0: F.threshold(x, alpha, 0.0),
        alpha={"alpha": 0.7},
    ),
    _pointwise("elu", _elu, lambda F, x, alpha=1.0: F.elu(x, alpha), alpha={"alpha": 0.4}),
    _pointwise(
        "selu",
        lambda xp, x, alpha=_SELU["alpha"], gamma=_SELU["gamma"]: gamma * _elu(xp, x, alpha),
        lambda F, x, **own: F.selu(x) if own == _PAPERS_SELU else None,
        attributes={"alpha": 1.2, "gamma": 0.8},
        paper=_PAPERS_SELU,
    ),
    _pointwise(
        "celu",
        lambda xp, x, alpha=1.0: xp.where(x > 0, x, alpha * (xp.exp(x / alpha) - 1)),
        lambda F, x, alpha=1.0: F.celu(x) if alpha == 1 else None,  # it rounds another alpha to float32
        alpha={"alpha": 2.5},
    ),
    _pointwise(
        "softplus",
        _softplus,
        lambda F, x, beta=1.0, threshold=1e9: F.softplus(x, beta, threshold),
        beta={"beta": 2.0},
        threshold={"beta": 0.5, "threshold": 3.0},
    ),
    _pointwise(
        "gelu",
        _gelu,
        lambda F, x, approximate="none": F.gelu(x, approximate=approximate),
        tanh={"approximate": "tanh"},
    ),
    _pointwise("quick_gelu", lambda xp, x, alpha=1.702: x * sigmoid(xp, alpha * x), alpha={"alpha": 0.8}),
    _pointwise("silu", lambda xp, x: x * sigmoid(xp, x), lambda F, x: F.silu(x)),
    _pointwise("mish", lambda xp, x: x * xp.tanh(_softplus(xp, x)), lambda F, x: F.mish(x)),
    _pointwise("sigmoid", sigmoid, lambda F, x: x.sigmoid()),
    _pointwise("log_sigmoid", lambda xp, x: -_softplus(xp, -x), lambda F, x: F.logsigmoid(x)),
    _pointwise(
        "hard_sigmoid",
        _hard_sigmoid,
        _torch_hard_sigmoid,
        alpha={"alpha": 1 / 6, "beta": 0.4},
        frameworks={"alpha": 1 / 6},
    ),
    _pointwise("hard_swish", lambda xp, x: x * _hard_sigmoid(xp, x, 1 / 6), lambda F, x: F.hardswish(x)),
    _pointwise("tanh", lambda xp, x: xp.tanh(x), lambda F, x: x.tanh()),
    _pointwise(
        "scaled_tanh",
        lambda xp, x, alpha=1.0, beta=1.0: alpha * xp.tanh(beta * x),
        attributes={"alpha": 1.7, "beta": 0.3},
    ),
    _pointwise(
        "hard_tanh",
        lambda xp, x, min_val=-1.0, max_val=1.0: xp.clip(x, min_val, max_val),
        lambda F, x, min_val=-1.0, max_val=1.0: F.hardtanh(x, min_val, max_val),
        bounds={"min_val": -0.3, "max_val": 2.1},
    ),
    _pointwise("softsign", lambda xp, x: x / (1 + xp.abs(x)), lambda F, x: F.softsign(x)),
)

DEFINITIONS = {operator.name: operator.definition for operator in _POINTWISE}
"""The definitions of elementwise functions, by name."""


# ------------------------------------------------------------------------------------------------ softmax


def _along_axis_case(*, seed: int, **attributes: Any) -> Case:
    rng = np.random.default_rng(seed)
    return Case({"X": draw(rng, 3, 4, 5)}, {}, attributes, {"Y": draw(rng, 3, 4, 5)})


def _softmax(xp: Any, x: Any, axis: int = -1, flatten: bool = False) -> Any:
    if flatten:
        rows = x.reshape(math.prod(x.shape[:axis]), -1)
        return _softmax(xp, rows).reshape(x.shape)
    e = xp.exp(x)
    return e / e.sum(axis, keepdims=True)


def _softmax_operator(name: str, definition: Callable[..., Any]) -> ActivationCase:
    def peer(F: Any, x: Any, axis: int = -1, flatten: bool = False) -> Any:
        return None if flatten else getattr(F, name)(x, axis)

    options = {
        "plain": {},
        "first axis": {"axis": 0},
        "middle axis": {"axis": 1},
        "flatten": {"axis": 1, "flatten": True},
    }
    return ActivationCase(name, definition, peer, options, _along_axis_case)


_ALONG_AXIS = (
    _softmax_operator("softmax", _softmax),
    _softmax_operator("log_softmax", lambda xp, x, **attributes: xp.log(_softmax(xp, x, **attributes))),
)


# ------------------------------------------------------------------------------------------------- losses


def _reduce(losses: Any, reduction: str, count: Any) -> Any:
    return losses if reduction == "none" else losses.sum() / (count if reduction == "mean" else 1)


def _cross_entropy(
    xp: Any,
    x: Any,
    labels: Any,
    weights: Any = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """-w_c q_c log(p_c), summed over the classes c, axis 1; q is the label, smoothed."""
    classes = xp.arange(x.shape[1]).reshape(-1, *(1,) * (x.ndim - 2))
    one = x * 0 + 1
    w = one if weights is None else one * weights.reshape(classes.shape)
    if labels.ndim == x.ndim:
        q, counts = labels, one[:, 0]
    else:
        kept = xp.ones_like(labels) if ignore_index is None else 1 * (labels != ignore_index)
        q = one * (classes == labels[:, None]) * kept[:, None]
        counts = (w * q).sum(1)
        w = w * kept[:, None]
    q = q * (1 - label_smoothing) + label_smoothing / x.shape[1]
    losses = -(w * q * xp.log(_softmax(xp, x, axis=1))).sum(1)
    return _reduce(losses, reduction, counts.sum())


def _cross_entropy_case(
    *, seed: int, probabilities: bool = False, weights: bool = False, **attributes: Any
) -> Case:
    rng = np.random.default_rng(seed)
    X = draw(rng, 3, 4, 5)
    labels = np.abs(draw(rng, 3, 4, 5)) / 4 if probabilities else rng.integers(0, 4, (3, 5))
    others = {"labels": labels}
    if weights:
        others["weights"] = np.abs(draw(rng, 4)) + 1 / 32
    shape = (3, 5) if attributes.get("reduction") == "none" else ()
    return Case({"X": X}, others, attributes, {"Y": draw(rng, *shape) + 1 / 32})


def _binary_cross_entropy(
    xp: Any, x: Any, targets: Any, weight: Any = None, pos_weight: Any = None, reduction: str = "mean"
) -> Any:
    p = sigmoid(xp, x)
    positive = targets * xp.log(p) * (1 if pos_weight is None else pos_weight)
    losses = -(positive + (1 - targets) * xp.log(1 - p)) * (1 if weight is None else weight)
    return _reduce(losses, reduction, math.prod(x.shape))


def _binary_case(*, seed: int, weight: bool = False, pos_weight: bool = False, **attributes: Any) -> Case:
    rng = np.random.default_rng(seed)
    others = {"targets": np.abs(draw(rng, 3, 4)) / 4}
    others |= {"weight": np.abs(draw(rng, 3, 4))} if weight else {}
    others |= {"pos_weight": np.abs(draw(rng, 4))} if pos_weight else {}
    shape = (3, 4) if attributes.get("reduction") == "none" else ()
    return Case({"X": draw(rng, 3, 4)}, others, attributes, {"Y": draw(rng, *shape) + 1 / 32})


_REDUCTIONS: dict[str, dict[str, Any]] = {"sum": {"reduction": "sum"}, "none": {"reduction": "none"}}
_LOSSES = (
    ActivationCase(
        "softmax_cross_entropy",
        _cross_entropy,
        lambda F, x, labels, weights=None, **attributes: F.cross_entropy(x, labels, weights, **attributes),
        {
            "plain": {},
            **_REDUCTIONS,
            "weights": {"weights": True},
            "ignore_index": {"ignore_index": 1},
            "ignore_index, weights": {"ignore_index": 1, "weights": True},
            "label smoothing": {"label_smoothing": 0.2},
            "label smoothing, weights": {"label_smoothing": 0.2, "weights": True},
            "probabilities": {"probabilities": True},
            "probabilities, none": {"probabilities": True, "reduction": "none"},
            "probabilities, everything": {
                "probabilities": True,
                "weights": True,
                "label_smoothing": 0.2,
                "reduction": "none",
            },
        },
        _cross_entropy_case,
    ),
    ActivationCase(
        "binary_cross_entropy_with_logits",
        _binary_cross_entropy,
        lambda F, x, targets, **others: F.binary_cross_entropy_with_logits(x, targets, **others),
        {"plain": {}, **_REDUCTIONS, "weights": {"weight": True, "pos_weight": True}},
        _binary_case,
    ),
)


# --------------------------------------------------------------------------- the kernels, and their oracles


def _from_definition(operator: ActivationCase, case: Case) -> Arrays:
    return {"Y": np.asarray(operator.definition(np, **_by_position(case)))}


def _by_position(case: Case) -> dict[str, Any]:
    """The case's arrays and attributes, with the definitions' name for X."""
    arrays = {**case.arguments, **case.integers}
    return {"x": arrays.pop("X"), **arrays, **case.attributes}


def _from_torch(function: Callable[..., Any], namespace: str, case: Case) -> Arrays | None:
    """The value of a function of tensors, and its gradients by PyTorch's autograd."""
    import torch

    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in case.arguments.items()}
    others = {name: torch.tensor(array) for name, array in case.integers.items()}
    xp = torch if namespace == "torch" else torch.nn.functional
    Y = function(xp, **_by_position(case._replace(arguments=leaves, integers=others)))
    if Y is None:
        return None
    grads = torch.autograd.grad(Y, list(leaves.values()), torch.tensor(case.cotangents["Y"]))
    named = {f"gradient of {name}": to_numpy(grad) for name, grad in zip(leaves, grads, strict=True)}
    return {"Y": to_numpy(Y), **named}


def _kernel(operator: ActivationCase) -> KernelCases:
    peer = operator.peer and functools.partial(_from_torch, operator.peer, "functional")
    return kernel_cases(
        operator.name,
        seeded(operator.case, operator.options),
        functools.partial(_from_definition, operator),
        functools.partial(_from_torch, operator.definition, "torch"),
        peer,
    )


ACTIVATIONS: tuple[KernelCases, ...] = tuple(map(_kernel, (*_POINTWISE, *_ALONG_AXIS, *_LOSSES)))
