"""PyTorch's recurrent modules and cells, as oracles of the operators that are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xpgrad._operators.units import Unit
from xpgrad.convert import convert

from .._testing.comparing import to_numpy
from .case import Arrays, Case

__all__ = ["from_module"]

_WEIGHTS = ("W", "R", "B")


def from_module(unit: Unit, native: Mapping[str, Any], case: Case, *, cell: bool = False) -> Arrays | None:
    """The results of PyTorch's module or cell in float64; None if it lacks an option of the case.

    `native` are the attributes with which the operator is PyTorch's.
    """
    if not _is_native(unit, native, case):
        return None
    import torch

    (D, _, I), H = case.arguments["W"].shape, case.arguments["R"].shape[2]
    batch_first = case.attributes.get("layout", 0) == 1
    options = {} if cell else {"bidirectional": D == 2, "batch_first": batch_first}
    module = getattr(torch.nn, unit.name.upper() + "Cell" * cell)(I, H, dtype=torch.float64, **options)
    # the ends of parameters' names, by direction
    ends_of_names = [""] if cell else ["_l0", "_l0_reverse"][:D]
    for d, end in enumerate(ends_of_names):
        own = {name: case.arguments[name][d] for name in _WEIGHTS}
        for name, weight in _converted(unit, own, "onnx", "torch").items():
            getattr(module, f"{name}{end}").data = torch.tensor(weight)
    names = ("X", *unit.initial)
    x, *states = (torch.tensor(case.arguments[name], requires_grad=True) for name in names)
    # the module's states are (D, N, H) in either layout, the cell's (N, H) and its input (N, I)
    given = [s[0] if cell else s.swapaxes(0, 1) if batch_first else s for s in states]
    results = module(x[0] if cell else x, tuple(given) if len(given) > 1 else given[0])
    ends = results if cell else results[1]
    ends = list(ends) if len(given) > 1 else [ends]
    if cell:
        found = [ends[0][None, None], *(end[None] for end in ends)]
    else:
        y = results[0].unflatten(-1, (D, H))  # (T, N, D, H), or (N, T, D, H)
        found = [y, *(end.swapaxes(0, 1) for end in ends)] if batch_first else [y.swapaxes(1, 2), *ends]
    outputs = dict(zip(("H_all", *unit.ends), found, strict=True))
    torch.autograd.backward(found, [torch.tensor(case.cotangents[name]) for name in outputs])

    by_direction = []
    for end in ends_of_names:
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        own = {name: to_numpy(getattr(module, f"{name}{end}").grad) for name in parts}
        by_direction.append(_converted(unit, own, "torch", "onnx"))
    grads = {name: np.stack([own[name] for own in by_direction]) for name in _WEIGHTS}
    grads |= {name: to_numpy(a.grad) for name, a in zip(names, (x, *states), strict=True)}
    values = {name: to_numpy(a) for name, a in outputs.items()}
    return values | {f"gradient of {name}": gradient for name, gradient in grads.items()}


def _is_native(unit: Unit, native: Mapping[str, Any], case: Case) -> bool:
    """Whether the module has the case's options."""
    attributes = {k: v for k, v in case.attributes.items() if k not in ("direction", "layout")}
    return (
        {*case.arguments} == {"X", *_WEIGHTS, *unit.initial}
        and {*case.cotangents} == {"H_all", *unit.ends}
        and attributes == native
        and case.attributes.get("direction") != "reverse"
        and not (case.integers or case.gradient_attributes or case.weights)
    )


def _converted(unit: Unit, arrays: Mapping[str, Any], source: Any, target: Any) -> dict[str, Any]:
    operator: Any = unit.name
    return convert(operator, arrays, source, target, linear_before_reset=int(operator == "gru"))
