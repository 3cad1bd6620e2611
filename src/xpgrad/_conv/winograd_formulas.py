"""The transforms of Winograd's filtering; see `winograd`.

The points are 0, +-a, +-b and infinity; for kernels of two taps without 0; for four taps of a row 0, +-a, +-b
and +-c. So each transform splits into even and odd parts, and the formulas are written this way. The points
are exact and keep the factors near 1. In float32 the error, relative to the largest value, is about seven
times that of direct sums along two axes, 2e-6 with 128 channels, and a quarter of that of the usual 1 and 2;
along a row twice and four times that of direct sums, with three and four taps.

Points: B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural
Networks" (2020), arXiv:1803.10986.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.images.windows import Transform

TILE = 4
"""The side of a tile of outputs."""

_POINTS, _POINTS_2 = {"a": 0.625, "b": 1.5}, {"a": 0.5, "b": 1.5}
_POINTS_4 = {"a": 0.5, "b": 1.0, "c": 2.0}


def _window(xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, d5: Any, *, a: Any, b: Any) -> tuple:
    """B^T d: an input window at the points 0, a, -a, b, -b and infinity."""
    aa, bb = a * a, b * b
    even_a, odd_a = d4 - bb * d2, a * (d3 - bb * d1)
    even_b, odd_b = d4 - aa * d2, b * (d3 - aa * d1)
    return (
        d4 - (aa + bb) * d2 + aa * bb * d0,
        even_a + odd_a,
        even_a - odd_a,
        even_b + odd_b,
        even_b - odd_b,
        d5 - (aa + bb) * d3 + aa * bb * d1,
    )


def _kernel(xp: Any, g0: Any, g1: Any, g2: Any, *, a: Any, b: Any) -> tuple:
    """G g: a kernel of three taps at the points."""
    aa, bb = a * a, b * b
    scale_a, scale_b = 1 / (2 * aa * (aa - bb)), 1 / (2 * bb * (bb - aa))
    even_a, odd_a = scale_a * (g0 + aa * g2), scale_a * a * g1
    even_b, odd_b = scale_b * (g0 + bb * g2), scale_b * b * g1
    return 1 / (aa * bb) * g0, even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g2


def _cotangent(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: Any, b: Any) -> tuple:
    """G g for four taps: an output's tile of cotangents at the points."""
    aa, bb = a * a, b * b
    scale_a, scale_b = 1 / (2 * aa * (aa - bb)), 1 / (2 * bb * (bb - aa))
    even_a, odd_a = scale_a * (g0 + aa * g2), scale_a * a * (g1 + aa * g3)
    even_b, odd_b = scale_b * (g0 + bb * g2), scale_b * b * (g1 + bb * g3)
    return 1 / (aa * bb) * g0, even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g3


def _tile(xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, *, a: Any, b: Any) -> tuple:
    """A^T m: four outputs from the products at the points."""
    aa, bb = a * a, b * b
    even_a, odd_a, even_b, odd_b = m1 + m2, a * (m1 - m2), m3 + m4, b * (m3 - m4)
    return m0 + even_a + even_b, odd_a + odd_b, aa * even_a + bb * even_b, aa * odd_a + bb * odd_b + m5


def _taps(xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, *, a: Any, b: Any) -> tuple:
    """A^T m for three results: a kernel's gradient from the products at the points."""
    even_a, odd_a, even_b, odd_b = m1 + m2, a * (m1 - m2), m3 + m4, b * (m3 - m4)
    return m0 + even_a + even_b, odd_a + odd_b, a * a * even_a + b * b * even_b + m5


def _kernel_backwards(xp: Any, g0: Any, g1: Any, g2: Any, *, a: float, b: float) -> tuple:
    """The same for the taps in reverse order."""
    return _kernel(xp, g2, g1, g0, a=a, b=b)


# --- the phases of a stride of 2: the points a, -a, b, -b and infinity of each


def _window_2(xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, *, a: float, b: float) -> tuple:
    """B^T d: an input window for two taps."""
    aa, bb = a * a, b * b
    even_a, odd_a = a * (d2 - bb * d0), d3 - bb * d1
    even_b, odd_b = b * (d2 - aa * d0), d3 - aa * d1
    last = d4 - (aa + bb) * d2 + aa * bb * d0
    return even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, last


def _kernel_2(xp: Any, g0: Any, g1: Any, *, a: float, b: float) -> tuple:
    """G g: a kernel of two taps."""
    scale_a, scale_b = 1 / (2 * a * (a * a - b * b)), 1 / (2 * b * (b * b - a * a))
    even_a, odd_a, even_b, odd_b = scale_a * g0, scale_a * a * g1, scale_b * g0, scale_b * b * g1
    return even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g1


def _cotangent_2(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: float, b: float) -> tuple:
    """G g for four taps: an output's tile of cotangents."""
    aa, bb = a * a, b * b
    scale_a, scale_b = 1 / (2 * a * (aa - bb)), 1 / (2 * b * (bb - aa))
    even_a, odd_a = scale_a * (g0 + aa * g2), scale_a * a * (g1 + aa * g3)
    even_b, odd_b = scale_b * (g0 + bb * g2), scale_b * b * (g1 + bb * g3)
    return even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g3


def _tile_2(xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, *, a: float, b: float) -> tuple:
    """A^T m: four outputs."""
    aa, bb = a * a, b * b
    even_a, odd_a, even_b, odd_b = m0 + m1, a * (m0 - m1), m2 + m3, b * (m2 - m3)
    return even_a + even_b, odd_a + odd_b, aa * even_a + bb * even_b, aa * odd_a + bb * odd_b + m4


def _taps_2(xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, *, a: float, b: float) -> tuple:
    """A^T m for two results: the gradient of two taps."""
    return m0 + m1 + (m2 + m3), a * (m0 - m1) + b * (m2 - m3) + m4


def _windows_of_phases(
    xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, d5: Any, d6: Any, d7: Any, d8: Any, d9: Any,
    *, a: float, b: float,
) -> tuple:  # fmt: skip
    """The windows of both phases."""
    even, odd = _window_2(xp, d0, d2, d4, d6, d8, a=a, b=b), _window_2(xp, d1, d3, d5, d7, d9, a=a, b=b)
    return (*even, *odd)


def _kernels_of_phases(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: float, b: float) -> tuple:
    """The taps that each phase meets."""
    return (*_kernel_2(xp, g0, g2, a=a, b=b), *_kernel_2(xp, g1, g3, a=a, b=b))


def _taps_of_phases(
    xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, m6: Any, m7: Any, m8: Any, m9: Any,
    *, a: float, b: float,
) -> tuple:  # fmt: skip
    """Their gradients."""
    g0, g2 = _taps_2(xp, m0, m1, m2, m3, m4, a=a, b=b)
    g1, g3 = _taps_2(xp, m5, m6, m7, m8, m9, a=a, b=b)
    return g0, g1, g2, g3


# In the input gradient an input of the first phase meets the taps 0 and 2, and it is one further on: the
# padding is odd.


def _windows_for_phases(
    xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, d5: Any, *, a: float, b: float
) -> tuple:
    """The cotangents that the inputs of each phase meet."""
    return (*_window_2(xp, d1, d2, d3, d4, d5, a=a, b=b), *_window_2(xp, d0, d1, d2, d3, d4, a=a, b=b))


def _kernels_for_phases(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: float, b: float) -> tuple:
    """The taps that they meet, backwards."""
    return (*_kernel_2(xp, g2, g0, a=a, b=b), *_kernel_2(xp, g3, g1, a=a, b=b))


def _tiles_of_phases(
    xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, m6: Any, m7: Any, m8: Any, m9: Any,
    *, a: float, b: float,
) -> tuple:  # fmt: skip
    """Eight inputs' sums, of both phases in turns."""
    y1, y3, y5, y7 = _tile_2(xp, m0, m1, m2, m3, m4, a=a, b=b)
    y0, y2, y4, y6 = _tile_2(xp, m5, m6, m7, m8, m9, a=a, b=b)
    return y0, y1, y2, y3, y4, y5, y6, y7


# --- pieces of four taps of a row: the points 0, a, -a, b, -b, c and -c


def _window_4(
    xp: Any, d0: Any, d1: Any, d2: Any, d3: Any, d4: Any, d5: Any, d6: Any, *, a: float, b: float, c: float
) -> tuple:
    """B^T d: an input window for four taps."""
    aa, bb, cc = a * a, b * b, c * c
    found = [d6 - (aa + bb + cc) * d4 + (aa * bb + aa * cc + bb * cc) * d2 - aa * bb * cc * d0]
    for p, q, r in ((a, bb, cc), (b, aa, cc), (c, aa, bb)):
        even, odd = d6 - (q + r) * d4 + q * r * d2, p * (d5 - (q + r) * d3 + q * r * d1)
        found += even + odd, even - odd
    return tuple(found)


def _kernel_4(xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: float, b: float, c: float) -> tuple:
    """G g: four taps of a kernel, or an output's tile of cotangents."""
    aa, bb, cc = a * a, b * b, c * c
    found = [-1 / (aa * bb * cc) * g0]
    for p, q, r in ((a, bb, cc), (b, aa, cc), (c, aa, bb)):
        pp = p * p
        scale = 1 / (2 * pp * (pp - q) * (pp - r))
        even, odd = scale * (g0 + pp * g2), scale * p * (g1 + pp * g3)
        found += even + odd, even - odd
    return tuple(found)


def _kernel_4_backwards(
    xp: Any, g0: Any, g1: Any, g2: Any, g3: Any, *, a: float, b: float, c: float
) -> tuple:
    """The same for the taps in reverse order."""
    return _kernel_4(xp, g3, g2, g1, g0, a=a, b=b, c=c)


def _tile_4(
    xp: Any, m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any, m6: Any, *, a: float, b: float, c: float
) -> tuple:
    """A^T m: four outputs, or the gradient of four taps."""
    even = [m1 + m2, m3 + m4, m5 + m6]
    odd = [p * (m - n) for p, m, n in ((a, m1, m2), (b, m3, m4), (c, m5, m6))]
    squares = a * a, b * b, c * c
    return (
        m0 + even[0] + even[1] + even[2],
        odd[0] + odd[1] + odd[2],
        squares[0] * even[0] + squares[1] * even[1] + squares[2] * even[2],
        squares[0] * odd[0] + squares[1] * odd[1] + squares[2] * odd[2],
    )


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


def _dense(flat: bool) -> Scheme:
    def transform(function: Callable[..., tuple], taken: int, made: int) -> Transform:
        return Transform(Formula(function, _POINTS), taken, made, flat=flat)

    window, tile = transform(_window, 6, 6), transform(_tile, 6, 4)
    return Scheme(
        3, 1, window, transform(_kernel, 3, 6), tile, transform(_cotangent, 4, 6), transform(_taps, 6, 3),
        window, transform(_kernel_backwards, 3, 6), tile,
    )  # fmt: skip


def _strided() -> Scheme:
    """The phases are channels, behind one another; in the input gradient they have matrices of their own."""

    def transform(function: Callable[..., tuple], taken: int, made: int, axis: int) -> Transform:
        return Transform(Formula(function, _POINTS_2), taken, made, 2, axis)

    return Scheme(
        4, 2,
        transform(_windows_of_phases, 10, 10, 1),
        transform(_kernels_of_phases, 4, 10, 2),
        Transform(Formula(_tile_2, _POINTS_2), 5, 4),
        Transform(Formula(_cotangent_2, _POINTS_2), 4, 5),
        transform(_taps_of_phases, 10, 4, 2),
        transform(_windows_for_phases, 6, 10, 0),
        transform(_kernels_for_phases, 4, 10, 0),
        transform(_tiles_of_phases, 10, 8, 0),
    )  # fmt: skip


def _in_pieces() -> Scheme:
    def transform(function: Callable[..., tuple], taken: int, made: int) -> Transform:
        return Transform(Formula(function, _POINTS_4), taken, made, flat=True)

    window, kernel, tile = transform(_window_4, 7, 7), transform(_kernel_4, 4, 7), transform(_tile_4, 7, 4)
    return Scheme(
        4, 1, window, kernel, tile, kernel, tile, window, transform(_kernel_4_backwards, 4, 7), tile
    )


DENSE, STRIDED, ROW, PIECES = _dense(False), _strided(), _dense(True), _in_pieces()
