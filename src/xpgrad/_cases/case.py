"""Kernels with their options and oracles, and code that all oracles share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import xpgrad
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.vjp import rule_of

from .._testing.differences import numerical_jacobian, pull_back

__all__ = [
    "Array",
    "Arrays",
    "Case",
    "KernelCases",
    "Oracle",
    "draw",
    "from_differences",
    "kernel_cases",
    "named_results",
    "resets_of",
    "seeded",
    "sum_or_stack",
]

Array = Any
Arrays = Mapping[str, Any]
"""Arrays by name."""


class Case(NamedTuple):
    """One option of a kernel, as float64 NumPy arrays."""

    arguments: Arrays
    """The arguments with a gradient: floating-point arrays."""
    integers: Arrays
    """Arrays without a gradient: lengths, and masks, which are floating-point."""
    attributes: Mapping[str, Any]
    cotangents: Arrays
    """A cotangent for each differentiable output, by the output's name."""
    gradient_attributes: Mapping[str, Any] = {}
    """Attributes that only the gradient takes."""
    sample_axes: Mapping[str, int] = {}
    """The samples' axis of each argument and cotangent that has one; parameters have none."""
    numbers: Any = None
    """The case in plain numbers, for an operator's oracles."""
    weights: Mapping[str, Any] = {}
    """`sample_weight`, if the case has it."""


class Oracle(NamedTuple):
    """An independent source of a kernel's results.

    `compute` returns the results of a case that it knows, by name, or None if it knows none. `floor` is the
    oracle's own accuracy.
    """

    label: str
    compute: Callable[[Case], Arrays | None]
    floor: float = 0.0
    module: str | None = None


class KernelCases(NamedTuple):
    """A kernel with its options and oracles."""

    name: str
    options: Mapping[str, Callable[..., Case]]
    """Functions that make a case; another `seed` gives other numbers."""
    run: Callable[[Case], Mapping[str, Array]]
    """The kernel's outputs and gradients by name, for a case in any namespace."""
    oracles: Sequence[Oracle]


def run_vjp(name: str, case: Case) -> dict[str, Array]:
    """A kernel's outputs and gradients, with every cotangent."""
    kernel = getattr(xpgrad, name)
    outputs, pullback = xpgrad.vjp(
        kernel, **case.arguments, **case.integers, **case.weights, **case.attributes,
        **case.gradient_attributes,
    )  # fmt: skip
    cotangents = rule_of(kernel).cotangents
    grads = pullback(**{cotangents[output]: cotangent for output, cotangent in case.cotangents.items()})
    return named_results(case, outputs, grads)


def named_results(case: Case, outputs: Any, grads: Any) -> dict[str, Array]:
    """Outputs and gradients by name; a kernel with one argument returns a bare array for each."""
    named = outputs._asdict() if hasattr(outputs, "_fields") else {"Y": outputs}
    if not hasattr(grads, "_fields"):
        return {**named, "gradient of X": grads}
    return named | {f"gradient of {name}": getattr(grads, gradient_name(name)) for name in case.arguments}


def kernel_cases(
    name: str,
    options: Mapping[str, Callable[..., Case]],
    reference: Callable[[Case], Arrays | None],
    autograd: Callable[[Case], Arrays | None] | None = None,
    module: Callable[[Case], Arrays | None] | None = None,
) -> KernelCases:
    """A kernel with its oracles: a reference, central differences, PyTorch's autograd and its module."""
    oracles = [
        Oracle("reference", reference),
        Oracle("differences", functools.partial(from_differences, name), floor=1e-7),
    ]
    for label, compute in (("autograd", autograd), ("torch.nn", module)):
        if compute is not None:
            oracles.append(Oracle(label, compute, module="torch"))
    return KernelCases(name, options, functools.partial(run_vjp, name), oracles)


def seeded(
    make: Callable[..., Case], options: Mapping[str, Mapping[str, Any]]
) -> dict[str, Callable[..., Case]]:
    """A case of each option, with a seed for each."""
    return {
        name: functools.partial(make, seed=seed, **option)
        for seed, (name, option) in enumerate(options.items())
    }


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random values that every dtype down to bfloat16 holds exactly: multiples of 1/32 below 4."""
    return np.clip(np.round(24 * rng.standard_normal(shape)), -127, 127) / 32


def resets_of(rng: np.random.Generator, T: int, N: int) -> np.ndarray:
    """Resets (T, N): in the middle of each sequence, before the first step of one sequence, and by chance."""
    reset = rng.uniform(size=(T, N)) < 0.2
    reset[T // 2], reset[0] = True, np.arange(N) == 0
    return reset


def from_differences(kernel: str, case: Case) -> Arrays | None:
    """Central differences of a kernel's own forward."""
    if case.gradient_attributes.get("peephole") == "truncated":
        return None  # no function has this gradient

    def outputs(**arguments: Any) -> tuple[np.ndarray, ...]:
        forward = getattr(xpgrad, kernel)(**arguments, **case.integers, **case.attributes)
        if not isinstance(forward, tuple):
            return (forward,)
        return tuple(getattr(forward, name) for name in case.cotangents)

    jacobians = {name: numerical_jacobian(outputs, case.arguments, name) for name in case.arguments}

    def pullback(cotangents: Arrays) -> dict[str, np.ndarray]:
        return {
            name: pull_back(jacobians[name], cotangents.values(), argument.shape)
            for name, argument in case.arguments.items()
        }

    return sum_or_stack(case, pullback)


def sum_or_stack(case: Case, pullback: Callable[[Arrays], Arrays]) -> dict[str, np.ndarray]:
    """The batch's gradients. For per_sample, the parameters' gradients by samples, or their norms."""
    cotangents = {name: np.nan_to_num(c) for name, c in case.cotangents.items()}  # only padding holds NaN
    grads = dict(pullback(cotangents))
    per_sample = case.gradient_attributes.get("per_sample")
    if per_sample or case.weights:
        samples = []
        for n in range(case.arguments["X"].shape[case.sample_axes["X"]]):
            only = {name: cotangent.copy() for name, cotangent in cotangents.items()}
            for name, cotangent in only.items():
                by_sample = np.moveaxis(cotangent, case.sample_axes[name], 0)
                by_sample[np.arange(len(by_sample)) != n] = 0
            samples.append(pullback(only))
        for name in set(grads) - set(case.sample_axes):
            each = np.stack([sample[name] for sample in samples])
            if case.weights:
                each *= case.weights["sample_weight"].reshape(-1, *(1 for _ in each.shape[1:]))
            grads[name] = each if per_sample else each.sum(axis=0)
            if per_sample == "norm":
                grads[name] = _norms(each, 2 if "R" in grads else 1)
    return {f"gradient of {name}": gradient for name, gradient in grads.items()}


def _norms(grads: np.ndarray, leading: int) -> np.ndarray:
    """Euclidean norms of parameters' gradients, by their first axes: samples and directions."""
    return np.linalg.norm(grads.reshape(*grads.shape[:leading], -1), axis=-1)
