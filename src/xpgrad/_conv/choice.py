"""Which method computes a convolution: by name, or by the cost rule."""

from __future__ import annotations

from math import prod
from typing import Any

from xpgrad._arguments import check_choice
from xpgrad._conv.fourier import Fourier
from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method
from xpgrad._conv.patches import Patches
from xpgrad._conv.pointwise import Pointwise
from xpgrad._conv.shifted import Shifted
from xpgrad._conv.taps import Taps
from xpgrad._conv.winograd import Winograd

METHODS: dict[str, Method] = {
    method.name: method for method in (Pointwise(), Winograd(), Patches(), Shifted(), Taps(), Fourier())
}


def choose(operator: str, method: str, engine: Any, geometry: ConvGeometry) -> Method:
    """The method of that name, or for ``"auto"`` the one that the cost rule prefers."""
    check_choice(operator, "method", method, ("auto", *METHODS))
    if method == "auto":
        return METHODS[preferred(engine, geometry)]
    chosen = METHODS[method]
    reason = chosen.why_not(engine, geometry)
    if reason is not None:
        raise ValueError(f"{operator}: method is {method!r}, expected one that computes this: {reason}")
    return chosen


def preferred(engine: Any, geometry: ConvGeometry) -> str:
    """The cost rule."""
    g = geometry
    seen, made = g.channels // g.group, g.outputs // g.group

    def can(name: str) -> bool:
        return METHODS[name].why_not(engine, g) is None

    if can("pointwise"):
        return "pointwise"
    if can("fft") and prod(g.kernel) >= 400:
        return "fft"
    if seen * made <= 4:
        return "taps"
    if can("winograd") and min(seen, made) >= 16 and min(g.output_size) >= 7:
        return "winograd"
    return "patches" if seen < 32 else "shifted"
