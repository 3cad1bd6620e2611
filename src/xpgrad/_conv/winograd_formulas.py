r"""The transforms of Winograd's filtering; see `winograd`.

A polynomial of n coefficients is known from its values at n points: pairs +-p, often 0, and often infinity,
where the value is the highest coefficient. So each transform splits into even and odd parts. With
:math:`N(x) = \prod_i (x - x_i)` over the finite points

- a window d has at the point :math:`x_i` the inner product with the coefficients of :math:`N(x) / (x - x_i)`,
  at infinity with those of N (B^T d);
- a kernel g has there its value divided by :math:`N'(x_i)`, and at infinity its last tap (G g);
- output k of a tile is the sum of :math:`x_i^k m_i`; the last one also has the product at infinity (A^T m).

The points are exact and keep the factors near 1. In float32 the error of 3 x 3 kernels is a quarter of that
of the usual points 1 and 2; kernels of 5 x 5 have four times as much. Bounds are in docs/convolution.md.

Points: B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural
Networks" (2020), arXiv:1803.10986.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.images.windows import Transform

TILE = 4
"""The side of a tile of outputs."""


class Points(NamedTuple):
    """The points +-a, +-b and perhaps +-c; 0; infinity."""

    a: float
    b: float
    c: float | None
    zero: bool
    infinity: bool


# functions: the key of compiled code has their text


def _pairs(points: Points) -> list[float]:
    return [p for p in (points.a, points.b, points.c) if p is not None]


def _count(points: Points) -> int:
    return 2 * len(_pairs(points)) + points.zero + points.infinity


def _times(number: float, value: Any) -> Any:
    return value if number == 1 else number * value


def _sum_of_products(numbers: Sequence[float], values: Sequence[Any]) -> Any:
    total = None
    for number, value in reversed([*zip(numbers, values, strict=False)]):
        total = _times(number, value) if total is None else total + _times(number, value)
    return total


def _coefficients(roots: Sequence[float]) -> list[float]:
    """Those of the product of (y - root), the highest one last."""
    found = [1.0]
    for root in roots:
        found = [low - root * high for low, high in zip([0.0, *found], [*found, 0.0], strict=True)]
    return found


def _window(xp: Any, *d: Any, points: Points) -> tuple:
    """B^T d: an input window at the points."""
    first, squares = int(points.zero), [p * p for p in _pairs(points)]
    whole = _coefficients(squares)
    found = [_sum_of_products(whole, d[::2])] if points.zero else []
    for k, p in enumerate(_pairs(points)):
        others = _coefficients(squares[:k] + squares[k + 1 :])
        odd = _times(p, _sum_of_products(others, d[first::2]))
        even = _sum_of_products(others, d[first + 1 :: 2])
        found += [even + odd, even - odd]
    return (*found, _sum_of_products(whole, d[first::2])) if points.infinity else tuple(found)


def _kernel(xp: Any, *g: Any, points: Points) -> tuple:
    """G g: the taps of a kernel, or an output's tile of cotangents, at the points."""
    squares = [p * p for p in _pairs(points)]
    found = [_times(1 / prod(-q for q in squares), g[0])] if points.zero else []
    for k, (p, q) in enumerate(zip(_pairs(points), squares, strict=True)):
        slope = 2 * prod(q - other for other in squares[:k] + squares[k + 1 :]) * (q if points.zero else p)
        powers = [q**j / slope for j in range(len(g))]
        even = _sum_of_products(powers, g[::2])
        odd = _sum_of_products([p * power for power in powers], g[1::2])
        # without 0, the slope at -p is the opposite one
        found += [even + odd, even - odd if points.zero else odd - even]
    return (*found, g[-1]) if points.infinity else tuple(found)


def _kernel_backwards(xp: Any, *g: Any, points: Points) -> tuple:
    """The same for the taps in reverse order."""
    return _kernel(xp, *reversed(g), points=points)


def _tile(xp: Any, *m: Any, points: Points, results: float) -> tuple:
    """A^T m: so many outputs, or taps of a kernel's gradient, from the products at the points."""
    first, pairs = int(points.zero), _pairs(points)
    even = [m[first + 2 * k] + m[first + 2 * k + 1] for k in range(len(pairs))]
    odd = [_times(p, m[first + 2 * k] - m[first + 2 * k + 1]) for k, p in enumerate(pairs)]
    found = [
        _sum_of_products([p ** (j - j % 2) for p in pairs], (even, odd)[j % 2]) for j in range(int(results))
    ]
    if points.zero:
        found[0] = m[0] + found[0]
    if points.infinity:
        found[-1] = found[-1] + m[-1]
    return tuple(found)


# --- the phases of a stride of 2, one behind the other


def _windows_of_phases(xp: Any, *d: Any, points: Points) -> tuple:
    """The windows of both phases."""
    return (*_window(xp, *d[::2], points=points), *_window(xp, *d[1::2], points=points))


def _kernels_of_phases(xp: Any, *g: Any, points: Points) -> tuple:
    """The taps that each phase meets."""
    return (*_kernel(xp, *g[::2], points=points), *_kernel(xp, *g[1::2], points=points))


def _taps_of_phases(xp: Any, *m: Any, points: Points, results: float) -> tuple:
    """Their gradients."""
    even = _tile(xp, *m[: _count(points)], points=points, results=results / 2)
    odd = _tile(xp, *m[_count(points) :], points=points, results=results / 2)
    return _in_turns(even, odd)


# In the input gradient an input of the first phase meets the taps 0, 2 and so on, and it is one further on:
# the padding is odd.


def _windows_for_phases(xp: Any, *d: Any, points: Points) -> tuple:
    """The cotangents that the inputs of each phase meet."""
    return (*_window(xp, *d[1:], points=points), *_window(xp, *d[:-1], points=points))


def _kernels_for_phases(xp: Any, *g: Any, points: Points) -> tuple:
    """The taps that they meet, backwards."""
    even, odd = g[::2], g[1::2]
    return (*_kernel_backwards(xp, *even, points=points), *_kernel_backwards(xp, *odd, points=points))


def _tiles_of_phases(xp: Any, *m: Any, points: Points, results: float) -> tuple:
    """Inputs' sums, of both phases in turns."""
    odd = _tile(xp, *m[: _count(points)], points=points, results=results / 2)
    even = _tile(xp, *m[_count(points) :], points=points, results=results / 2)
    return _in_turns(even, odd)


def _in_turns(even: tuple, odd: tuple) -> tuple:
    return tuple(one for pair in zip(even, odd, strict=True) for one in pair)


class Scheme(NamedTuple):
    """The transforms for kernels of a side and a stride.

    `window`, `kernel` and `tile` are those of the forward, `cotangent` and `taps` of the weight gradient
    besides. The input gradient has its own ones.
    """

    side: int
    stride: int
    window: Transform
    kernel: Transform
    tile: Transform
    cotangent: Transform
    taps: Transform
    back_window: Transform
    back_kernel: Transform
    back_tile: Transform

    @property
    def points(self) -> int:
        """The number of points of a window."""
        return self.window.shape(1, 1)[0]


def _scheme(side: int, points: Points, flat: bool = False) -> Scheme:
    """For kernels of this side at stride 1, or flat ones."""

    def transform(function: Callable[..., tuple], taken: int, made: int, **settings: Any) -> Transform:
        return Transform(Formula(function, {"points": points, **settings}), taken, made, flat=flat)

    n = _count(points)
    window, tile = transform(_window, n, n), transform(_tile, n, TILE, results=TILE)
    return Scheme(
        side, 1, window, transform(_kernel, side, n), tile,
        transform(_kernel, TILE, n), transform(_tile, n, side, results=side),
        window, transform(_kernel_backwards, side, n), tile,
    )  # fmt: skip


def _strided(side: int, points: Points) -> Scheme:
    """For kernels of this side at stride 2; phases are channels, and matrices in the input gradient."""

    def transform(
        function: Callable[..., tuple], taken: int, made: int, phases: int, axis: int = 1, **settings: Any
    ) -> Transform:
        return Transform(Formula(function, {"points": points, **settings}), taken, made, phases, axis)

    n = _count(points)
    return Scheme(
        side, 2,
        transform(_windows_of_phases, 2 * n, 2 * n, 2),
        transform(_kernels_of_phases, side, 2 * n, 2, 2),
        transform(_tile, n, TILE, 1, results=TILE),
        transform(_kernel, TILE, n, 1),
        transform(_taps_of_phases, 2 * n, side, 2, 2, results=side),
        transform(_windows_for_phases, n + 1, 2 * n, 2, 0),
        transform(_kernels_for_phases, side, 2 * n, 2, 0),
        transform(_tiles_of_phases, 2 * n, 2 * TILE, 2, 0, results=2 * TILE),
    )  # fmt: skip


_TWO_TAPS = Points(0.5, 1.5, None, zero=False, infinity=True)
_THREE_TAPS = Points(0.625, 1.5, None, zero=True, infinity=True)
_FOUR_TAPS = Points(0.5, 1.0, 2.0, zero=True, infinity=False)
_FIVE_TAPS = Points(0.5, 1.0, 1.75, zero=True, infinity=True)

DENSE = {3: _scheme(3, _THREE_TAPS), 5: _scheme(5, _FIVE_TAPS)}
STRIDED = {4: _strided(4, _TWO_TAPS), 6: _strided(6, _THREE_TAPS)}
ROW, PIECES = _scheme(3, _THREE_TAPS, flat=True), _scheme(4, _FOUR_TAPS, flat=True)
