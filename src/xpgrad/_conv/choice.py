"""Which method computes a convolution: by name, or by the cost rule.

The rule asks in this order, for each of the three sums of a call; C and O are counted within a group:

1. a kernel of one element, at stride 1 and without padding: ``pointwise``;
2. at most 4 products of channels, C * O: ``taps``, for BLAS has nothing to do there;
3. at stride 1, where the transforms need fewer operations than the multiplications of the direct sum, with
   what an operation of each kind was measured to cost: ``fft``;
4. 3 x 3 at stride 1, at least 16 channels on both sides, at least 5 outputs in each direction: ``winograd``;
5. at least 12 input channels, enough for a product at each tap: ``shifted``;
6. else ``patches``.

``asv_bench/conv_sweep.py`` measures the methods on both sides of every switch.
"""

from __future__ import annotations

from math import log2, prod
from typing import Any

from xpgrad._arguments import check_choice
from xpgrad._conv.fourier import Fourier, spectrum_shape
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

# The cost, in multiplications of a matrix product, of an operation of a transform, of a complex
# multiplication of spectra, and of a multiplication of a sum over taps.
_TRANSFORM, _SPECTRAL, _TAP = 23.0, 18.0, 1.5
_FEW = 4
_WINOGRAD_CHANNELS, _WINOGRAD_OUTPUTS = 16, 5
_SHIFTED_CHANNELS = 12


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
    """The name of the method that the cost rule prefers."""
    g = geometry
    seen, made = g.channels // g.group, g.outputs // g.group
    if METHODS["pointwise"].why_not(engine, g) is None:
        return "pointwise"
    if METHODS["fft"].why_not(engine, g) is None and _fourier_cost(g) < _direct_cost(g):
        return "fft"
    if seen * made <= _FEW:
        return "taps"
    if (
        METHODS["winograd"].why_not(engine, g) is None
        and min(seen, made) >= _WINOGRAD_CHANNELS
        and min(g.output_size) >= _WINOGRAD_OUTPUTS
    ):
        return "winograd"
    return "shifted" if seen >= _SHIFTED_CHANNELS else "patches"


def _direct_cost(g: ConvGeometry) -> float:
    """Of one sum, by matrix products or over taps."""
    few = g.channels // g.group * (g.outputs // g.group) <= _FEW
    return g.multiplications * (_TAP if few else 1.0)


def _fourier_cost(g: ConvGeometry) -> float:
    """Of the transforms of all three arrays, and of the products of their spectra."""
    elements = prod(spectrum_shape(g))
    seen = g.channels // g.group
    transforms = g.batch * (g.channels + g.outputs) + g.outputs * seen
    transform = elements * log2(2 * elements)
    return _TRANSFORM * transforms * transform + _SPECTRAL * g.batch * g.outputs * seen * elements
