"""The table of forwards and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["RULES", "GradientRule"]


class GradientRule(NamedTuple):
    """How a gradient takes the outputs of its forward kernel.

    A forward with one output, Y, returns the bare array.
    """

    gradient: Callable
    saved: tuple[str, ...] = ()  # outputs that the gradient takes
    cotangents: Mapping[str, str] = MappingProxyType({"Y": "dY"})  # output -> the cotangent's argument


RULES: dict[Callable, GradientRule] = {}
"""The rules by forward."""
