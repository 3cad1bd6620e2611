"""A framework that nobody knows: its arrays hold those of array-api-strict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import array_api_strict

_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "pow", "neg", "pos", "abs",
    "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "invert", "getitem", "setitem", "bool", "float", "int",
)  # fmt: skip


def _inside(value: Any) -> Any:
    if isinstance(value, ndarray):
        return value.data
    return type(value)(map(_inside, value)) if isinstance(value, list | tuple) else value


def _outside(value: Any) -> Any:
    if isinstance(value, array_api_strict._array_object.Array):
        return ndarray(value)
    return type(value)(map(_outside, value)) if isinstance(value, list | tuple) else value


class ndarray:  # noqa: N801 - as frameworks name it
    def __init__(self, data: Any) -> None:
        self.data = data

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return sys.modules[__name__]

    def __getattr__(self, name: str) -> Any:
        if name not in ("dtype", "shape", "ndim", "size", "device", "T", "mT"):
            raise AttributeError(name)
        return _outside(getattr(self.data, name))


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: ndarray, *others: Any) -> Any:
        return _outside(getattr(self.data, name)(*map(_inside, others)))

    return apply


for _name in _OPERATORS:
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))


def __getattr__(name: str) -> Any:
    """A function of the standard, or a dtype."""
    value = getattr(array_api_strict, name)
    if not callable(value) or isinstance(value, type):
        return value
    return lambda *given, **more: _outside(
        value(*map(_inside, given), **{key: _inside(x) for key, x in more.items()})
    )
