r"""Winograd's minimal filtering F(4 x 4, 3 x 3), for 3 x 3 kernels at stride 1: a fourth of the products.

An output tile of m x m needs an input window of n x n, n = m + 3 - 1. Window and kernel are polynomials: they
are evaluated at n points (one of them infinity) and multiplied point by point, and the result is
interpolated. For an input window d, a kernel g and an output tile Y

.. math:: Y = A^T\,[\,(G\,g\,G^T) \odot (B^T d\,B)\,]\,A

Over all channels and tiles the products at one point are one matrix product. The weight gradient of a tile is
the same kind of problem, F(3 x 3, 4 x 4), at the same points: 3 x 3 results from the window and 4 x 4
cotangents.

With the points 0, +-a, +-b and infinity each transform splits into even and odd parts; the formulas below are
written this way. a and b are 5/8 and 3/2, which are exact and keep the factors near 1. In float32 the error,
relative to the largest value, is about seven times the error of direct sums, 2e-6 with 128 channels, and a
quarter of the error with the usual points 1 and 2.

Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), arXiv:1509.09308;
points: B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep
Neural Networks" (2020), arXiv:1803.10986.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method
from xpgrad.engine.formulas.formula import Formula
from xpgrad.engine.images.windows import Transform, Windows
from xpgrad.engine.protocol import Engine

_TILE = 4
POINTS = 36
"""The number of points of a window or a kernel, 6 in both directions."""
_POINTS = {"a": 0.625, "b": 1.5}


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


_WINDOW = Transform(Formula(_window, _POINTS), 6, 6)
_KERNEL = Transform(Formula(_kernel, _POINTS), 3, 6)
_COTANGENT = Transform(Formula(_cotangent, _POINTS), 4, 6)
_TILE_SUMS = Transform(Formula(_tile, _POINTS), 6, 4)
_TAP_SUMS = Transform(Formula(_taps, _POINTS), 6, 3)


class Winograd(Method):
    """Products of transformed windows and transformed kernels, block by block of images."""

    name = "winograd"

    def why_not(self, geometry: ConvGeometry, transforms: bool) -> str | None:
        """It needs 3 x 3 kernels, and no strides, dilations or groups."""
        if geometry.kernel != (3, 3):
            return f"the kernel has shape {geometry.kernel}, not (3, 3)"
        for name, values in (("strides", geometry.strides), ("dilations", geometry.dilations)):
            if values != (1, 1):
                return f"{name} are {values}, not 1"
        if geometry.group != 1:
            return f"group is {geometry.group}, not 1"
        return None

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """In the order of the equation: G g, then for each block B^T d, the products, A^T m."""
        with engine.temporary((POINTS, geometry.outputs, geometry.channels), W) as memory:
            return _convolved(engine, geometry, X, _kernels_at_points(engine, W, memory), B)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """A forward of the adjoint geometry."""
        W = engine.xp.permute_dims(engine.xp.flip(W, axis=(2, 3)), (1, 0, 2, 3))
        return self.forward(engine, geometry.adjoint(), dY, W, B)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """Sums of products over all tiles, and one interpolation at the end."""
        xp, g = engine.xp, geometry

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            part = X[images, ...]
            for rows in _bands(engine, g, part):
                windows = _windows(g, rows)
                tiles = windows._replace(begin=(-rows.start, 0))
                # rows of dY after the band belong to the next band
                cotangents = dY[images, :, : rows.stop, :]
                with _points(engine, part, windows) as V, _points(engine, cotangents, windows) as D:
                    V = engine.from_windows(part, windows, _WINDOW, V)
                    D = engine.from_windows(cotangents, tiles, _COTANGENT, D)
                    (total,) = totals or (None,)
                    totals = [engine.add_product(total, D, xp.matrix_transpose(V))]
            return totals or []

        (M,) = engine.accumulate(block, _blocks(engine, g))
        windows = Windows(3, (0, 0), 1, g.channels)
        dW = engine.to_windows(M, windows, _TAP_SUMS, None, (1, g.outputs, 3, 3 * g.channels))
        return xp.permute_dims(xp.reshape(dW, (g.outputs, 3, g.channels, 3)), (0, 2, 1, 3))


def _convolved(engine: Engine, g: ConvGeometry, X: Any, U: Any, B: Any) -> Any:
    """Y, from the kernels at the points."""

    def block(images: slice, target: Any) -> Any:
        part = X[images, ...]

        def band(rows: slice, target: Any) -> Any:
            windows = _windows(g, rows)
            shape = (part.shape[0], g.outputs, rows.stop - rows.start, g.output_size[1])
            with _points(engine, part, windows) as V, _points(engine, part, windows, g.outputs) as M:
                V = engine.from_windows(part, windows, _WINDOW, V)
                M = engine.product(U, V, M)
                return engine.to_windows(M, windows, _TILE_SUMS, B, shape, target)

        return engine.assemble(band, _bands(engine, g, part), axis=2, target=target)

    return engine.assemble(block, _blocks(engine, g), shape=g.output_shape, like=X)


def _points(
    engine: Engine, images: Any, windows: Windows, channels: int | None = None
) -> AbstractContextManager[Any]:
    """Memory for the windows of images at the points, or for as many other channels."""
    count = images.shape[0] * windows.rows * windows.columns
    return engine.temporary((POINTS, channels or images.shape[1], count), images)


def _kernels_at_points(engine: Engine, W: Any, memory: Any) -> Any:
    """W (O, C, 3, 3) as (36, O, C): the kernels are transformed like windows of O images."""
    outputs, channels = W.shape[:2]

    def block(part: slice, target: Any) -> Any:
        image = engine.xp.permute_dims(W[part, ...], (0, 2, 1, 3))
        image = engine.xp.reshape(image, (1, image.shape[0], 3, 3 * channels))
        return engine.from_windows(image, Windows(3, (0, 0), 1, channels), _KERNEL, target)

    blocks = engine.blocks(outputs, POINTS * channels)
    shape = (POINTS, outputs, channels)
    return engine.assemble(block, blocks, axis=1, shape=shape, like=W, memory=memory)


def _windows(g: ConvGeometry, rows: slice) -> Windows:
    """The windows of a band of the output's rows."""
    tiles = -(-(rows.stop - rows.start) // _TILE)
    return Windows(_TILE, (g.begin[0] - rows.start, g.begin[1]), tiles, -(-g.output_size[1] // _TILE))


def points_of_windows(g: ConvGeometry) -> int:
    """The number of points of all windows of an image."""
    return POINTS * prod(-(-size // _TILE) for size in g.output_size)


def _elements(g: ConvGeometry) -> int:
    """The elements of the windows and products of an image."""
    return points_of_windows(g) * (g.channels + g.outputs)


def _blocks(engine: Engine, g: ConvGeometry) -> list[slice]:
    return engine.blocks(g.batch, _elements(g))


def _bands(engine: Engine, g: ConvGeometry, images: Any) -> list[slice]:
    """The output's rows, in bands of whole tiles."""
    return engine.bands(g.output_size[0], images.shape[0] * _elements(g) // g.output_size[0], _TILE)
