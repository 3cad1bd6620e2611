"""The activations of xpgrad_torch beside PyTorch's, for the tests: arguments, kinks and references."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from xpgrad._cases.activations import DEFINITIONS
from xpgrad._operators.declaration import DECLARED
from xpgrad_torch import functional


class Case(NamedTuple):
    """One function with arguments, what it is to equal, and where its slope jumps."""

    name: str
    arguments: dict
    reference: Callable
    kinks: tuple[float, ...] = ()
    inplace: bool = False

    def ours(self, x, **more):
        return getattr(functional, self.name)(x, **self.arguments, **more)

    def theirs(self, x, **more):
        return self.reference(x, **self.arguments, **more)


def _same(name, *kinks, inplace=False, **arguments):
    """A function that PyTorch has by the same name, with the same arguments."""
    return Case(name, arguments, getattr(F, name), kinks, inplace)


def _composed(formula):
    """A function of PyTorch's operators that knows `inplace`."""

    def call(x, inplace=False, **arguments):
        return x.copy_(formula(x.clone(), **arguments)) if inplace else formula(x, **arguments)

    return call


ELEMENTWISE = {
    "relu": _same("relu", 0.0, inplace=True),
    "relu6": _same("relu6", 0.0, 6.0, inplace=True),
    "leaky_relu": _same("leaky_relu", 0.0, inplace=True),
    "leaky_relu-0.3": _same("leaky_relu", 0.0, inplace=True, negative_slope=0.3),
    "leaky_relu-zero": _same("leaky_relu", 0.0, inplace=True, negative_slope=0.0),
    # which PyTorch does not differentiate in place
    "leaky_relu-falling": Case(
        "leaky_relu",
        {"negative_slope": -0.3},
        _composed(lambda x, negative_slope: torch.where(x > 0, x, negative_slope * x)),
        (0.0,),
        True,
    ),
    "sigmoid": Case("sigmoid", {}, torch.sigmoid),
    "tanh": Case("tanh", {}, torch.tanh),
    "gelu": _same("gelu"),
    "gelu-tanh": _same("gelu", approximate="tanh"),
    "quick_gelu": Case("quick_gelu", {}, lambda x: x * torch.sigmoid(1.702 * x)),
    "quick_gelu-0.7": Case("quick_gelu", {"alpha": 0.7}, lambda x, alpha: x * torch.sigmoid(alpha * x)),
    "silu": _same("silu", inplace=True),
    "mish": _same("mish", inplace=True),
    "softplus": _same("softplus", 20.0),
    "softplus-sharp": _same("softplus", beta=2.5, threshold=7.0),
    "softsign": _same("softsign", 0.0),
    "elu": _same("elu", 0.0, inplace=True),
    "elu-0.4": _same("elu", 0.0, inplace=True, alpha=0.4),
    "selu": _same("selu", 0.0, inplace=True),
    "celu": _same("celu", 0.0, inplace=True),
    # PyTorch's own kernels for these two compute with constants that are rounded to float32
    "celu-0.4": Case(
        "celu",
        {"alpha": 0.4},
        # `clamp` has another slope at its bound in PyTorch 2.14 than before
        _composed(
            lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(torch.where(x > 0, 0, x) / alpha))
        ),
        (0.0,),
        True,
    ),
    "hardsigmoid": Case(
        "hardsigmoid", {}, _composed(lambda x: F.hardtanh(x / 6 + 0.5, 0.0, 1.0)), (-3.0, 3.0), True
    ),
    "hard_sigmoid": Case("hard_sigmoid", {}, lambda x: F.hardtanh(0.2 * x + 0.5, 0.0, 1.0), (-2.5, 2.5)),
    "hardswish": _same("hardswish", -3.0, 3.0, inplace=True),
    "hardtanh": _same("hardtanh", -1.0, 1.0, inplace=True),
    "hardtanh-wide": _same("hardtanh", -0.5, 2.0, inplace=True, min_val=-0.5, max_val=2.0),
    "threshold-value": _same("threshold", 0.3, inplace=True, threshold=0.3, value=-1.5),
    "threshold": _same("threshold", 0.3, inplace=True, threshold=0.3, value=0.0),
    "threshold-negative": _same("threshold", -0.7, inplace=True, threshold=-0.7, value=0.0),
    "thresholded_relu": Case("thresholded_relu", {}, lambda x: F.threshold(x, 1.0, 0.0), (1.0,)),
    "scaled_tanh": Case(
        "scaled_tanh", {"alpha": 1.7, "beta": 0.6}, lambda x, alpha, beta: alpha * torch.tanh(beta * x)
    ),
    "logsigmoid": _same("logsigmoid", 0.0),
}
ALONG_AXIS = {
    f"{name}-{dim}": _same(name, dim=dim) for name in ("softmax", "log_softmax") for dim in (0, 1, -1)
}
WITH_OPERANDS = [name for name, declaration in DECLARED.items() if declaration.operands]
KNOWN = {*WITH_OPERANDS, *ELEMENTWISE}
DEFINED = [name for name in DECLARED if name in functional.__all__ and name not in KNOWN]
ELEMENTWISE |= {  # by the definitions that `check` has
    name: Case(name, {}, functools.partial(DEFINITIONS[name], torch), DECLARED[name].kinks)
    for name in DEFINED
}
CASES = ELEMENTWISE | ALONG_AXIS

MODULES = {
    "ReLU": {},
    "ReLU6": {},
    "LeakyReLU": {"negative_slope": 0.2},
    "PReLU": {"num_parameters": 4, "init": 0.1},
    "Sigmoid": {},
    "Tanh": {},
    "GELU": {"approximate": "tanh"},
    "SiLU": {},
    "Mish": {},
    "Softplus": {"beta": 2.0, "threshold": 5.0},
    "Softsign": {},
    "ELU": {"alpha": 0.7},
    "SELU": {},
    "CELU": {"alpha": 0.7},
    "Hardsigmoid": {},
    "Hardswish": {},
    "Hardtanh": {"min_val": -0.3, "max_val": 0.8},
    "Threshold": {"threshold": 0.2, "value": 0.0},
    "LogSigmoid": {},
    "Softmax": {"dim": 1},
    "LogSoftmax": {"dim": -1},
}
IN_PLACE = [
    "ReLU",
    "ReLU6",
    "LeakyReLU",
    "SiLU",
    "Mish",
    "ELU",
    "SELU",
    "CELU",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Threshold",
]
LOSSES = ("BCEWithLogitsLoss", "CrossEntropyLoss")

LACKING = {d.torch: name for name, d in DECLARED.items() if d.torch and not hasattr(nn, d.torch)}
"""Modules that PyTorch lacks, and their functions."""


def away_from_kinks(x, kinks, distance=1e-2):
    """Move what is near a kink away from it, so that differences can be taken."""
    for kink in kinks:
        x = torch.where((x - kink).abs() < distance, kink + 2 * distance, x)
    return x


def draw(*shape, seed=0, dtype=torch.float64, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype)


def module(family, name, inplace=False, **factory):
    """Build a module of a family, which is torch.nn or xpgrad_torch."""
    arguments = MODULES[name] | ({"inplace": True} if inplace else {})
    if name == "PReLU":
        arguments = arguments | factory
    return getattr(family, name)(**arguments)


assert all(hasattr(nn, name) for name in MODULES)
