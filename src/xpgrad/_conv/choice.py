"""Which method computes a convolution: by name, or by the cost rule."""

from __future__ import annotations

from typing import Any

from xpgrad._arguments import check_choice
from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method
from xpgrad._conv.shifted import Shifted

METHODS: dict[str, Method] = {method.name: method for method in (Shifted(),)}


def choose(operator: str, method: str, engine: Any, geometry: ConvGeometry) -> Method:
    """The method of that name, or for ``"auto"`` the one that the cost rule prefers."""
    check_choice(operator, "method", method, ("auto", *METHODS))
    if method == "auto":
        return METHODS["shifted"]
    chosen = METHODS[method]
    reason = chosen.why_not(engine, geometry)
    if reason is not None:
        raise ValueError(f"{operator}: method is {method!r}, expected one that computes this: {reason}")
    return chosen
