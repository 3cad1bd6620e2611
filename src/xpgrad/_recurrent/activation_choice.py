"""The activations and the clip of a recurrent operator's call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xpgrad._elementwise.activation_formulas import ONNX_ACTIVATIONS, BoundActivation
from xpgrad._operators.arguments import check_number, is_list


def check_clip(operator: str, clip: Any) -> float | None:
    """The bound of pre-activations as a number, or None."""
    if clip is None:
        return None
    number = check_number(operator, "clip", clip)
    if not number > 0:
        raise ValueError(f"{operator}: clip is {number}, expected None or a number > 0")
    return number


def choose_activations(
    operator: str,
    D: int,
    names: Sequence[str] | None,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    defaults: Sequence[str],
) -> list[list[BoundActivation]]:
    """The activations with their parameters, a list for each direction."""
    if names is not None and not is_list(names):
        raise TypeError(f"{operator}: activations is {names!r}, expected a list of names")
    chosen = list(defaults) * D if names is None else list(names)
    if len(chosen) != len(defaults) * D:
        raise ValueError(
            f"{operator}: activations has {len(chosen)} names, expected {len(defaults)} for each of "
            f"{D} directions = {len(defaults) * D}"
        )
    for name in chosen:
        if not isinstance(name, str) or name.lower() not in ONNX_ACTIVATIONS:
            known = ", ".join(activation.name for activation in ONNX_ACTIVATIONS.values())
            raise ValueError(f"{operator}: activations has {name!r}, expected one of {known}")
    functions = [ONNX_ACTIVATIONS[name.lower()] for name in chosen]
    alpha = _deal(operator, "activation_alpha", alphas, [function.alpha for function in functions])
    beta = _deal(operator, "activation_beta", betas, [function.beta for function in functions])
    choices = [function.bind(a, b) for function, a, b in zip(functions, alpha, beta, strict=True)]
    count = len(defaults)
    return [choices[d * count : (d + 1) * count] for d in range(D)]


def halves(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[dict[str, Any]]:
    """The activations' attributes for each of two directions, as a call in one direction takes them."""
    middle = len(names) // 2
    first = [ONNX_ACTIVATIONS.get(str(name).lower()) for name in names[:middle]]
    rows = {"activations": names, "activation_alpha": alphas, "activation_beta": betas}
    cuts = {"activations": middle}
    for parameter in ("alpha", "beta"):  # the first direction's activations take the first values
        takers = [one for one in first if getattr(one, parameter, None) is not None]
        cuts[f"activation_{parameter}"] = len(takers)
    return [
        {name: row and row[: cuts[name]] for name, row in rows.items()},
        {name: row and row[cuts[name] :] for name, row in rows.items()},
    ]


def _deal(
    operator: str, name: str, values: Sequence[float] | None, defaults: list[float | None]
) -> list[float]:
    """Give the values, in order, to the activations with this parameter; the rest keep ONNX's defaults."""
    if values is not None and not is_list(values):
        raise TypeError(f"{operator}: {name} is {values!r}, expected a list of numbers")
    numbers = [check_number(operator, name, value) for value in values or ()]
    takers = sum(default is not None for default in defaults)
    if len(numbers) > takers:
        raise ValueError(
            f"{operator}: {name} has {len(numbers)} values, expected at most {takers}, one for each "
            "activation that takes it"
        )
    supply = iter(numbers)
    return [0.0 if default is None else next(supply, default) for default in defaults]
