"""The choice of the method that computes a convolution: by name, or by the cost rule.

For each of the three sums of a call, the rule takes the first of these. C and O are counted within a group.

1. ``pointwise``: a kernel of one element, stride 1 and no padding, if loops are not compiled;
2. ``fft``, if it is possible and its operations cost less than the direct sum;
3. ``taps``, for few channels: C * O of at most 64 if loops are compiled, of at most 4 otherwise;
4. ``winograd``, if it is possible and costs less than the direct sum;
5. if loops are compiled: ``taps``, or ``patches`` if it costs less: for few, small images with many channels,
   where ``taps`` spends its time packing weights;
6. ``shifted``, from 8 input channels on: enough for a product at each tap;
7. ``patches``.

Costs are counted in multiplications of the products of ``shifted``, with measured weights.
``asv_bench/conv_sweep.py`` measures the methods on both sides of every switch.
"""

from __future__ import annotations

import functools
from math import log2, prod
from operator import itemgetter
from typing import NamedTuple

from xpgrad._conv.fourier import Fourier, spectrum_shape
from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method
from xpgrad._conv.patches import Patches
from xpgrad._conv.pointwise import Pointwise
from xpgrad._conv.shifted import Shifted
from xpgrad._conv.taps import Taps
from xpgrad._conv.winograd import POINTS, Winograd, points_of_windows
from xpgrad._operators.arguments import check_choice
from xpgrad.engine.protocol import Engine

METHODS: dict[str, Method] = {
    method.name: method for method in (Pointwise(), Winograd(), Patches(), Shifted(), Taps(), Fourier())
}


class _FourierCosts(NamedTuple):
    """Costs of an operation of a Fourier transform, and of a complex multiplication of spectra."""

    transform: float
    product: float


class _PatchCosts(NamedTuple):
    """Costs of patches: of a multiplication, a weight, an element of the patches, and all passes."""

    product: float
    weight: float
    element: float
    passes: float


class _WinogradCosts(NamedTuple):
    """Winograd's costs: a multiplication, elements of a window's and a kernel's transform, all passes."""

    product: float
    window: float
    kernel: float
    passes: float


# Fitted to the methods' times on 102 geometries, one thread of an AMD EPYC (Zen 4).
# Compiled, the other methods are faster relative to Fourier's.
_COMPILED_FOURIER, _FOURIER = _FourierCosts(28.0, 25.0), _FourierCosts(18.0, 26.0)
_COMPILED_WINOGRAD = _WinogradCosts(0.6, 24.0, 27.0, 7e6)
_WINOGRAD = _WinogradCosts(1.0, 25.0, 5.0, 12e6)
# The cost of a multiplication in a sum over taps: with few channels, and compiled with more.
_TAP, _TAP_IN_TILES = 1.5, 0.52
# The cost of packing a weight for tiles, and of its place in a sum of gradients.
_WEIGHT_IN_TILES = 50.0
_COMPILED_PATCHES = _PatchCosts(0.52, 15.0, 12.0, 5e6)
_FEW_COMPILED, _FEW = 64, 4
_SHIFTED_CHANNELS = 8


def choose(operator: str, method: str, engine: Engine, geometry: ConvGeometry) -> Method:
    """The method of this name, or for ``"auto"`` the method that the cost rule prefers."""
    check_choice(operator, "method", method, ("auto", *METHODS))
    if method == "auto":
        return METHODS[preferred(engine, geometry)]
    chosen = METHODS[method]
    reason = chosen.why_not(geometry, engine.can_transform())
    if reason is not None:
        raise ValueError(f"{operator}: method is {method!r}, expected one that computes this: {reason}")
    return chosen


def preferred(engine: Engine, geometry: ConvGeometry) -> str:
    """The name of the method that the cost rule prefers."""
    if not geometry.static:
        return "shifted"  # a compiler traces only shapes, with symbols that have no cost
    return _preferred(engine.compiles(), engine.can_transform(), geometry)


@functools.lru_cache(maxsize=512)
def _preferred(compiled: bool, transforms: bool, geometry: ConvGeometry) -> str:
    g = geometry
    channels_in, made = g.channels // g.group, g.outputs // g.group
    few = channels_in * made <= (_FEW_COMPILED if compiled else _FEW)
    cost = g.multiplications * (_TAP if few else _TAP_IN_TILES if compiled else 1.0)

    def possible(name: str) -> bool:
        return METHODS[name].why_not(g, transforms) is None

    if not compiled and possible("pointwise"):
        return "pointwise"
    if possible("fft") and _fourier_cost(g, compiled) < cost:
        return "fft"
    if few:
        return "taps"
    if compiled:
        direct, cost = min(_compiled_costs(g).items(), key=itemgetter(1))
    else:
        direct = "shifted" if channels_in >= _SHIFTED_CHANNELS else "patches"
    return "winograd" if possible("winograd") and _winograd_cost(g, compiled) < cost else direct


def _compiled_costs(g: ConvGeometry) -> dict[str, float]:
    """The costs of the compiled methods of the direct sum."""
    weights = g.channels // g.group * g.outputs * prod(g.kernel)
    costs, elements = _COMPILED_PATCHES, g.multiplications // (g.outputs // g.group)
    passes = costs.weight * weights + costs.element * elements + costs.passes
    return {
        "taps": _TAP_IN_TILES * g.multiplications + _WEIGHT_IN_TILES * weights,
        "patches": costs.product * g.multiplications + passes,
    }


def _winograd_cost(g: ConvGeometry, compiled: bool) -> float:
    """The cost of the transforms of windows and kernels, and of the products at each of their elements."""
    costs = _COMPILED_WINOGRAD if compiled else _WINOGRAD
    elements, kernels = g.batch * points_of_windows(g), g.channels * g.outputs
    each = costs.product * kernels + costs.window * (g.channels + g.outputs)
    return elements * each + costs.kernel * POINTS * kernels + costs.passes


def _fourier_cost(g: ConvGeometry, compiled: bool) -> float:
    """The cost of the transforms of all three arrays, and of the products of their spectra."""
    costs = _COMPILED_FOURIER if compiled else _FOURIER
    elements = prod(spectrum_shape(g))
    channels_in = g.channels // g.group
    transforms = g.batch * (g.channels + g.outputs) + g.outputs * channels_in
    transform = elements * log2(2 * elements)
    products = g.batch * g.outputs * channels_in * elements
    return costs.transform * transforms * transform + costs.product * products
