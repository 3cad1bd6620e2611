"""The choice of the method that computes a convolution: by name, or by the cost rule.

For each of the three sums of a call, the rule takes the first method that fits. C and O count one group.

1. ``pointwise`` for kernels that cover whole images; unless loops are compiled, also for a kernel of one
   element, at stride 1 and without padding;
2. ``fft`` if it is possible and costs less than the direct sum;
3. ``taps`` for few channels: C * O at most 64 with compiled loops, else at most 4;
4. ``winograd`` if it is possible and costs less than the direct sum;
5. with compiled loops the cheapest of ``taps``, ``patches``, ``clipped`` and ``pointwise``. ``taps`` copies
   no patches, but packs weights slowly, and a tile has no more positions than a row; ``clipped`` does not
   multiply padding, but has a product for each tap; ``pointwise`` copies nothing, but wastes the rest of a
   vector behind each image;
6. from 8 input channels on, enough for a product at each tap, ``clipped`` if a fifth of the multiplications
   is padding, else ``shifted``;
7. else ``patches``.

On a GPU, each operation costs a launch: ``patches`` has the fewest, and takes the place of 3, 4 and 6.

The unit of cost is a multiplication in the products of ``shifted``; all weights are measured.
``asv_bench/conv_sweep.py`` measures the methods on both sides of every switch, ``asv_bench/conv_choice.py``
in random geometries.
"""

from __future__ import annotations

import math
from math import prod
from typing import NamedTuple

from xpgrad._conv.clipped import Clipped, multiplications_inside
from xpgrad._conv.fourier import Fourier, spectrum_shape
from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method, kept
from xpgrad._conv.patches import Patches
from xpgrad._conv.pointwise import Pointwise
from xpgrad._conv.shifted import Shifted
from xpgrad._conv.taps import Taps
from xpgrad._conv.winograd import Winograd
from xpgrad._conv.winograd_sizes import WindowSums, of_images, points_of_kernels, takes_rows
from xpgrad._operators.arguments import check_choice
from xpgrad.engine.protocol import Engine
from xpgrad.engine.symbols import of_numbers, rounded_up

METHODS: dict[str, Method] = {
    method.name: method
    for method in (Pointwise(), Winograd(), Patches(), Clipped(), Shifted(), Taps(), Fourier())
}

SUMS = "forward", "input_gradient", "weight_gradient"
"""The names of a method's sums."""


class _FourierCosts(NamedTuple):
    """Fourier's costs: an operation of a transform, a complex multiplication of spectra."""

    transform: float
    product: float


class _WinogradCosts(NamedTuple):
    """Winograd's costs: a multiplication, an element of a window, an element of a kernel, all passes.

    An element of the products that a later piece of a row of taps is added to, and an element of inputs and
    outputs that are split into the phases of a dilation.
    """

    product: float
    window: float
    kernel: float
    passes: float
    added: float = 0.0
    split: float = 0.0


class _CompiledCosts(NamedTuple):
    """The costs of compiled methods, but for Fourier's.

    Parameters
    ----------
    tap, tap_of_input, weight_in_tiles, passes_of_tiles : float
        Of ``taps``: a multiplication, also for an input gradient, packing a weight and adding up its
        gradient, all passes.
    patches, weight, patch_element, patch_element_added : float
        Of ``patches``: a multiplication, a weight (also of products for each image), an element that is
        copied, and one that is added to the input gradient.
    weight_of_tap, passes_of_tap : float
        Of ``clipped``: a weight, and its passes.
    pointwise : float
        A multiplication in a product for each image.
    dense, rows, phases : _WinogradCosts
        Of Winograd's method: usually, for rows of taps, and for strides of 2.
    """

    tap: float
    tap_of_input: float
    weight_in_tiles: float
    passes_of_tiles: float
    patches: float
    weight: float
    patch_element: float
    patch_element_added: float
    weight_of_tap: float
    passes_of_tap: float
    pointwise: float
    dense: _WinogradCosts
    rows: _WinogradCosts
    phases: _WinogradCosts


# Fitted to times of an AMD EPYC (Zen 4), but for other machines named here. Winograd's usual costs and
# Fourier's: 100 geometries with compiled loops and one thread, 19 without, with one thread and two. With
# compiled loops all methods except Fourier's are faster. Rows of taps: 3,000 geometries, one thread and two.
# A new shape takes 2 ms longer to record than `taps`, so the weights are above the fit, and all passes cost
# as much as 0.1 ms: of 530 geometries that the rule chooses, 8 take longer than by the best direct sum.
# Strides of 2: 250 geometries, one thread and two. Input gradients and weights of ``taps``: 760 geometries,
# two threads. In 510 others, one thread and two, the chosen methods take 1.03 of the best ones' time.
_COMPILED = _CompiledCosts(
    tap=0.52, tap_of_input=0.55, weight_in_tiles=12.0, passes_of_tiles=1e6,
    patches=0.46, weight=5.0, patch_element=7.5, patch_element_added=11.0,
    weight_of_tap=30.0, passes_of_tap=1.3e6,
    pointwise=0.43,
    dense=_WinogradCosts(0.49, 16.0, 12.0, 2e5, split=75.0),
    rows=_WinogradCosts(0.55, 10.0, 12.0, 3e6, added=15.0, split=25.0),
    phases=_WinogradCosts(0.49, 25.0, 12.0, 2e5),
)  # fmt: skip
# With two units a multiplication takes half the time, so all else costs twice as much; fitted to 744
# geometries on an Intel Xeon with AMX, one thread and two. Some weights differ: the phases' kernels cost
# twice as much again, elements that are added 0.6. In 459 other geometries (`asv_bench/conv_choice.py`) the
# chosen methods take 1.034 of the best ones' time, by the costs above 1.048. For elements that are split and
# passes of a tap there were 132 dilated geometries more; there it is 1.033.
_TWO_UNITS = _CompiledCosts(
    tap=0.52, tap_of_input=0.52, weight_in_tiles=56.0, passes_of_tiles=2e6,
    patches=0.46, weight=10.0, patch_element=15.0, patch_element_added=13.0,
    weight_of_tap=60.0, passes_of_tap=1.3e6,
    pointwise=0.43,
    dense=_WinogradCosts(0.49, 32.0, 24.0, 4e5, split=40.0),
    rows=_WinogradCosts(0.55, 20.0, 24.0, 6e6, added=30.0, split=50.0),
    phases=_WinogradCosts(0.49, 50.0, 48.0, 4e5),
)  # fmt: skip
_COMPILED_FOURIER, _FOURIER = _FourierCosts(28.0, 25.0), _FourierCosts(18.0, 26.0)
_WINOGRAD = _WinogradCosts(1.0, 200.0, 5.0, 12e6, split=100.0)
_TAP = 1.5  # a multiplication in a sum over taps with few channels
# The share of multiplications without padding below which each tap may have its own product.
_INSIDE = 0.8
_VECTOR = 16  # its elements
_FEW_COMPILED, _FEW = 64, 4
_SHIFTED_CHANNELS = 8
_log2 = of_numbers(math.log2)


def choose(
    operator: str, method: str, engine: Engine, geometry: ConvGeometry, sums: str = "forward"
) -> Method:
    """The method of this name, or for ``"auto"`` the method that the cost rule prefers.

    `sums` is one of `SUMS`.
    """
    check_choice(operator, "method", method, ("auto", *METHODS))
    if method == "auto":
        return METHODS[preferred(engine, geometry, sums)]
    chosen = METHODS[method]
    reason = chosen.why_not(geometry, engine.can_transform())
    if reason is not None:
        raise ValueError(f"{operator}: method is {method!r}, expected one that computes this: {reason}")
    return chosen


def preferred(engine: Engine, geometry: ConvGeometry, sums: str = "forward") -> str:
    """The name of the method that the cost rule prefers for one of the sums."""
    costs = _costs(geometry, _compiled_costs(engine), engine.can_transform(), engine.launches())
    return _cheapest(costs[sums])


def _compiled_costs(engine: Engine) -> _CompiledCosts | None:
    """The costs of compiled methods on this machine; None if the engine does not compile."""
    if not engine.compiles():
        return None
    return _TWO_UNITS if engine.has_two_units() else _COMPILED


def _cheapest(costs: dict[str, float]) -> str:
    """The name of the method with the lowest cost, the first one of several."""
    return [*costs][int(_place_of_least(*costs.values()))] if len(costs) > 1 else next(iter(costs))


@of_numbers
def _place_of_least(*costs: float) -> int:
    return min(range(len(costs)), key=costs.__getitem__)


@kept
def _costs(
    g: ConvGeometry, compiled: _CompiledCosts | None, transforms: bool, launches: bool = False
) -> dict[str, dict[str, float]]:
    """For each of the sums the costs of methods, the simplest one first; only one where no cost decides."""
    name = _for_all_sums(g, compiled, transforms, launches)
    if name is not None:
        return {sums: {name: 0.0} for sums in SUMS}
    inside = multiplications_inside(g)
    costs = {
        sums: _direct_costs(g, compiled, inside, sums) if compiled else _uncompiled_cost(g, inside)
        for sums in SUMS
    }
    # without compiled loops the transforms of a row take longer than the products that they save
    if METHODS["winograd"].why_not(g, transforms) is None and (compiled or not takes_rows(g)):
        for sums, cost in _winograd_costs(g, compiled).items():
            costs[sums]["winograd"] = cost
    return costs


def _uncompiled_cost(g: ConvGeometry, inside: int) -> dict[str, float]:
    """The method of the direct sum, and its cost; `inside` is `multiplications_inside`."""
    if g.channels // g.group < _SHIFTED_CHANNELS:
        return {"patches": g.multiplications}
    if inside < _INSIDE * g.multiplications:
        return {"clipped": inside}
    return {"shifted": g.multiplications}


def _for_all_sums(
    g: ConvGeometry, compiled: _CompiledCosts | None, transforms: bool, launches: bool
) -> str | None:
    """The method where all sums have the same one; None where their costs decide."""
    if not g.static:
        return "shifted"  # a compiler traces shapes with symbols, for which no cost is known
    few = g.channels // g.group * g.outputs // g.group <= (_FEW_COMPILED if compiled else _FEW)
    cost = g.multiplications * (_TAP if few else compiled.tap if compiled else 1.0)

    def possible(name: str) -> bool:
        return METHODS[name].why_not(g, transforms) is None

    if g.is_one_product or (not compiled and possible("pointwise")):
        return "pointwise"
    if possible("fft") and _fourier_cost(g, compiled) < cost:
        return "fft"
    return "patches" if launches else "taps" if few else None


def _direct_costs(g: ConvGeometry, costs: _CompiledCosts, inside: int, sums: str) -> dict[str, float]:
    """The costs of the compiled methods of the direct sum."""
    weights = g.channels // g.group * g.outputs * prod(g.kernel)
    made = g.outputs // g.group
    elements = g.multiplications // made
    passes = costs.passes_of_tiles * min(1.0, made / 8)  # a tile has up to eight outputs
    in_tiles, patch_element, tap = g.multiplications, costs.patch_element, costs.tap
    if sums == "input_gradient":
        tap = costs.tap_of_input
        # every input is a sum in tiles, even if some of its taps meet zeros only; patches are added to images
        in_tiles = prod(g.input_shape) * made * prod(g.kernel) // prod(g.strides)
        patch_element = costs.patch_element_added
    found = {
        "taps": tap * in_tiles + costs.weight_in_tiles * weights + passes,
        "patches": costs.patches * g.multiplications + costs.weight * weights + patch_element * elements,
    }
    if inside < _INSIDE * g.multiplications:
        copied = costs.patch_element / made + costs.patch_element_added * g.group / g.channels
        products = costs.weight_of_tap * weights + costs.passes_of_tap * prod(g.kernel)
        found["clipped"] = (costs.patches + copied) * inside + products
    if g.group == 1 and METHODS["pointwise"].why_not(g, False) is None:
        products = costs.pointwise * _filled(prod(g.size)) * g.multiplications
        found["pointwise"] = products + costs.weight * weights
    return found


def _filled(columns: int) -> float:
    """The columns that a product computes, in whole vectors, divided by its columns."""
    return rounded_up(columns, _VECTOR) / columns


def _winograd_costs(g: ConvGeometry, compiled: _CompiledCosts | None) -> dict[str, float]:
    """For each sum the transforms of windows and kernels, and the products at each of their elements."""
    if g.group > 1:
        return {sums: g.group * cost for sums, cost in _winograd_costs(g.of_a_group(), compiled).items()}
    costs, split = _WINOGRAD, 0
    if max(g.dilations) > 1:
        split = g.channels * prod(g.size) + g.outputs * prod(g.output_size)
    g = of_images(g)
    if compiled:
        dense = compiled.rows if takes_rows(g) else compiled.dense
        costs = dense if max(g.strides) == 1 else compiled.phases
    kernels = points_of_kernels(g) * g.channels * g.outputs

    def cost(windows: WindowSums, added: int) -> float:
        products = kernels * windows.tiles * (_filled(g.batch * windows.tiles) if compiled else 1.0)
        each = costs.product * products + costs.window * windows.elements + costs.split * split
        return g.batch * (each + costs.added * added) + costs.kernel * kernels + costs.passes

    ahead, back = WindowSums.of_forward(g), WindowSums.of_input_gradient(g)
    return {
        "forward": cost(ahead, ahead.more * ahead.elements_made),
        "input_gradient": cost(back, back.more * back.elements_made),
        "weight_gradient": cost(ahead, 0),
    }


def _fourier_cost(g: ConvGeometry, compiled: _CompiledCosts | None) -> float:
    """The cost of the transforms of all three arrays, and of the products of their spectra."""
    costs = _COMPILED_FOURIER if compiled else _FOURIER
    elements = prod(spectrum_shape(g))
    channels_in = g.channels // g.group
    transforms = g.batch * (g.channels + g.outputs) + g.outputs * channels_in
    transform = elements * _log2(2 * elements)
    products = g.batch * g.outputs * channels_in * elements
    return costs.transform * transforms * transform + costs.product * products
