"""The choice of the method that computes a convolution: by name, or by the cost rule.

For each of the three sums of a call, the rule takes the first method that fits. C and O count one group.

1. ``pointwise`` for kernels that cover whole images; unless loops are compiled, also for a kernel of one
   element, at stride 1 and without padding;
2. ``fft`` if it is possible and costs less than the direct sum;
3. ``taps`` for few channels: C * O at most 64 with compiled loops, else at most 4;
4. ``winograd`` if it is possible and costs less than the direct sum;
5. with compiled loops the cheapest of ``taps``, ``patches`` and ``pointwise``. ``taps`` copies no patches,
   but packs weights slowly and wastes parts of tiles if rows are short; ``pointwise`` copies nothing, but
   wastes the rest of a vector behind each image;
6. ``shifted`` from 8 input channels on, enough for a product at each tap;
7. else ``patches``.

On a GPU, each operation costs a launch: ``patches`` has the fewest, and takes the place of 3, 4 and 6.

The unit of cost is a multiplication in the products of ``shifted``; all weights are measured.
``asv_bench/conv_sweep.py`` measures the methods on both sides of every switch.
"""

from __future__ import annotations

from math import log2, prod
from operator import itemgetter
from typing import NamedTuple

from xpgrad._conv.fourier import Fourier, spectrum_shape
from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method, kept
from xpgrad._conv.patches import Patches
from xpgrad._conv.pointwise import Pointwise
from xpgrad._conv.shifted import Shifted
from xpgrad._conv.taps import Taps
from xpgrad._conv.winograd import Winograd
from xpgrad._conv.winograd_sizes import (
    elements_added,
    elements_of_windows,
    of_images,
    points_of_kernels,
    points_of_products,
    takes_rows,
    tiles_of_images,
)
from xpgrad._operators.arguments import check_choice
from xpgrad.engine.protocol import Engine

METHODS: dict[str, Method] = {
    method.name: method for method in (Pointwise(), Winograd(), Patches(), Shifted(), Taps(), Fourier())
}


class _FourierCosts(NamedTuple):
    """Fourier's costs: an operation of a transform, a complex multiplication of spectra."""

    transform: float
    product: float


class _WinogradCosts(NamedTuple):
    """Winograd's costs: a multiplication, an element of a window, an element of a kernel, all passes.

    For rows of taps, an element of the products that a later piece is added to, and an element of sequences
    that are split into the phases of a dilation.
    """

    product: float
    window: float
    kernel: float
    passes: float
    added: float = 0.0
    split: float = 0.0


# Fitted to times of one thread of an AMD EPYC (Zen 4): 100 geometries with compiled loops, 102 without.
# With compiled loops all methods except Fourier's are faster.
_COMPILED_FOURIER, _FOURIER = _FourierCosts(28.0, 25.0), _FourierCosts(18.0, 26.0)
_COMPILED_WINOGRAD = _WinogradCosts(0.49, 16.0, 12.0, 2e5)
_WINOGRAD = _WinogradCosts(1.0, 25.0, 5.0, 12e6)
# Rows of taps: 3,000 geometries, one thread and two. A new shape takes 2 ms longer to record than `taps`, so
# the weights are above the fit, and all passes cost as much as 0.1 ms: of 530 geometries that the rule
# chooses, 8 take longer than by the best direct sum.
_COMPILED_ROWS = _WinogradCosts(0.55, 10.0, 12.0, 3e6, added=5.0, split=25.0)
# A multiplication in a sum over taps: with few channels, and in compiled tiles.
_TAP, _TAP_IN_TILES = 1.5, 0.52
# Packing a weight for tiles and adding up its gradient; all passes.
_WEIGHT_IN_TILES, _PASSES_OF_TILES = 28.0, 1e6
# Of patches: a multiplication, a weight (also of products for each image), an element of the patches.
_PATCHES, _WEIGHT, _PATCH_ELEMENT = 0.46, 5.0, 7.5
# A multiplication in a product for each image; the elements of a vector.
_POINTWISE, _VECTOR = 0.43, 16
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
    return _preferred(geometry, engine.compiles(), engine.can_transform(), engine.launches())


@kept
def _preferred(g: ConvGeometry, compiled: bool, transforms: bool, launches: bool = False) -> str:
    if not g.static:
        return "shifted"  # a compiler traces shapes with symbols, for which no cost is known
    channels_in, made = g.channels // g.group, g.outputs // g.group
    few = channels_in * made <= (_FEW_COMPILED if compiled else _FEW)
    cost = g.multiplications * (_TAP if few else _TAP_IN_TILES if compiled else 1.0)

    def possible(name: str) -> bool:
        return METHODS[name].why_not(g, transforms) is None

    if g.is_one_product or (not compiled and possible("pointwise")):
        return "pointwise"
    if possible("fft") and _fourier_cost(g, compiled) < cost:
        return "fft"
    if launches:
        return "patches"
    if few:
        return "taps"
    if compiled:
        direct, cost = min(_compiled_costs(g).items(), key=itemgetter(1))
    else:
        direct = "shifted" if channels_in >= _SHIFTED_CHANNELS else "patches"
    # without compiled loops the transforms of a row take longer than the products that they save
    filters = possible("winograd") and (compiled or not takes_rows(g))
    return "winograd" if filters and _winograd_cost(g, compiled) < cost else direct


def _compiled_costs(g: ConvGeometry) -> dict[str, float]:
    """The costs of the compiled methods of the direct sum."""
    weights = g.channels // g.group * g.outputs * prod(g.kernel)
    made = g.outputs // g.group
    elements = g.multiplications // made
    passes = _PASSES_OF_TILES * min(1.0, made / 8)  # a tile has up to eight outputs
    found = {
        "taps": _TAP_IN_TILES * g.multiplications + _WEIGHT_IN_TILES * weights + passes,
        "patches": _PATCHES * g.multiplications + _WEIGHT * weights + _PATCH_ELEMENT * elements,
    }
    if g.group == 1 and METHODS["pointwise"].why_not(g, False) is None:
        found["pointwise"] = _POINTWISE * _filled(prod(g.size)) * g.multiplications + _WEIGHT * weights
    return found


def _filled(columns: int) -> float:
    """The columns that a product computes, in whole vectors, divided by its columns."""
    return -(-columns // _VECTOR) * _VECTOR / columns


def _winograd_cost(g: ConvGeometry, compiled: bool) -> float:
    """The cost of the transforms of windows and kernels, and of the products at each of their elements."""
    costs, split = _WINOGRAD, 0
    if g.rank == 1 and g.dilations != (1,):
        split = g.channels * g.size[0] + g.outputs * g.output_size[0]
    g = of_images(g)
    if compiled:
        costs = _COMPILED_ROWS if takes_rows(g) else _COMPILED_WINOGRAD
    kernels = g.channels * g.outputs
    filled = _filled(g.batch * tiles_of_images(g)) if compiled else 1.0
    each = costs.product * filled * points_of_products(g) * kernels + costs.window * elements_of_windows(g)
    each += costs.added * elements_added(g) + costs.split * split
    return g.batch * each + costs.kernel * points_of_kernels(g) * kernels + costs.passes


def _fourier_cost(g: ConvGeometry, compiled: bool) -> float:
    """The cost of the transforms of all three arrays, and of the products of their spectra."""
    costs = _COMPILED_FOURIER if compiled else _FOURIER
    elements = prod(spectrum_shape(g))
    channels_in = g.channels // g.group
    transforms = g.batch * (g.channels + g.outputs) + g.outputs * channels_in
    transform = elements * log2(2 * elements)
    products = g.batch * g.outputs * channels_in * elements
    return costs.transform * transforms * transform + costs.product * products
