"""Checks of the public functions' arguments; errors name function, argument, rule and value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from xpgrad._operators.arguments import check_number

_BELOW_ONE = ("beta1", "beta2")


def check_model(function: str, name: str, model: Any) -> None:
    """Raise TypeError unless the argument is a model."""
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(f"{function}: {name} is a {type(model).__name__}, expected an onnx.ModelProto")


def check_mapping(function: str, name: str, values: Any) -> None:
    """Raise TypeError unless the argument is a mapping of names."""
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{function}: {name} is a {type(values).__name__}, expected a mapping of names to arrays"
        )


def names_in(function: str, name: str, values: Any) -> list[str]:
    """The different names in an argument."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(
            f"{function}: {name} is the {type(values).__name__} {values!r}, expected an iterable of names"
        )
    names = list(dict.fromkeys(values))
    for own in names:
        if not isinstance(own, str):
            raise TypeError(f"{function}: {name} has {own!r}, expected names")
    return names


def check_words(function: str, name: str, value: Any, optional: bool) -> None:
    """Raise TypeError unless the argument is a text, or None if it may be."""
    if not isinstance(value, str) and not (optional and value is None):
        raise TypeError(f"{function}: {name} is {value!r}, expected a str{' or None' if optional else ''}")


def optimizer_number(function: str, name: str, value: Any) -> float:
    """An optimizer's number, within PyTorch's bounds."""
    number = check_number(function, name, value)
    if not (0 <= number < (1 if name in _BELOW_ONE else float("inf"))):
        bounds = "at least 0 and less than 1" if name in _BELOW_ONE else "a finite number of at least 0"
        raise ValueError(f"{function}: {name} is {number}, expected {bounds}")
    return number
