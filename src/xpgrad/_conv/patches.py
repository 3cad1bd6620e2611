"""Patches: the input elements of many outputs side by side as one matrix, band by band (im2col, col2im).

The matrix has a row for every channel and tap and a column for every output. So a band of outputs is one
product with the inner size C/G times the number of taps: it is fast even with few channels, and wastes no
column. The matrix of a band fits the cache. Small images share a matrix, because every product reads all
weights.
"""

from __future__ import annotations

from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import (
    Method,
    columns_of_images,
    few_images,
    kept,
    rows_of_channels,
    weight_matrices,
    with_bias,
)
from xpgrad.engine.images.shifts import Embedding
from xpgrad.engine.protocol import Engine

_SMALLER = 2  # times smaller than an engine's usual bands: elements are copied before they are packed


class Patches(Method):
    """One product for each band of outputs, with a copy of its patches."""

    name = "patches"

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        xp, g = engine.xp, geometry
        weights = weight_matrices(xp, g, W)

        def block(images: slice, target: Any) -> Any:
            part = X[images, ...]
            n = part.shape[0]

            def band(columns: slice, target: Any) -> Any:
                return engine.product(weights, engine.patches(part, _places(g, columns), g.group), target)

            bands = _bands(engine, g, n)
            if len(bands) == 1:
                Y = band(bands[0], None)
            else:  # of one image
                place = engine.room((g.group, g.outputs // g.group, prod(g.output_size)), X)
                Y = engine.assemble(band, bands, axis=2, target=place)
            Y = xp.reshape(Y, (g.outputs, n, *g.output_size))
            return with_bias(engine, xp.permute_dims(Y, (1, 0, *range(2, Y.ndim))), B, target)

        return engine.assemble(block, few_images(engine, g), shape=g.output_shape, like=X, alike=True)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        xp, g = engine.xp, geometry
        weights = xp.matrix_transpose(weight_matrices(xp, g, W))

        def block(images: slice, target: Any) -> Any:
            cotangents = rows_of_channels(xp, g, dY[images, ...])
            n, total = cotangents.shape[0], None
            for columns in _bands(engine, g, n):
                P = engine.product(weights, columns_of_images(xp, cotangents[..., columns]))
                shape = (n, *g.input_shape[1:])
                total = engine.add_patches(total, P, _places(g, columns), shape, B, target)
            return total

        return engine.assemble(block, few_images(engine, g), shape=g.input_shape, like=dY, alike=True)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        xp, g = engine.xp, geometry

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            part, cotangents = X[images, ...], rows_of_channels(xp, g, dY[images, ...])
            for columns in _bands(engine, g, part.shape[0]):
                patches = engine.patches(part, _places(g, columns), g.group)
                rows = columns_of_images(xp, cotangents[..., columns])
                (total,) = totals or (None,)
                totals = [engine.add_product(total, rows, xp.matrix_transpose(patches))]
            return totals or []

        (dW,) = engine.accumulate(block, few_images(engine, g), prod(g.weight_shape))
        return xp.reshape(dW, g.weight_shape)


def _places(g: ConvGeometry, columns: slice) -> tuple[Embedding, ...]:
    """For each tap the input's elements that a band of outputs reads; a band has whole rows."""
    width = prod(g.output_size[1:])
    return _places_of_rows(g, columns.start // width, columns.stop // width)


@kept
def _places_of_rows(g: ConvGeometry, start: int, stop: int) -> tuple[Embedding, ...]:
    begins, grid, places = (start, *[0] * (g.rank - 1)), (stop - start, *g.output_size[1:]), []
    for tap in g.taps:
        # where the first output of the band reads, and how many outputs read padding before the image
        each = zip(begins, g.strides, tap, g.dilations, g.begin, strict=True)
        at = [o * s + k * d - b for o, s, k, d, b in each]
        before = [max(0, -(a // s)) for a, s in zip(at, g.strides, strict=True)]
        first = [a + b * s for a, b, s in zip(at, before, g.strides, strict=True)]
        for axis, (b, large) in enumerate(zip(before, grid, strict=True)):
            if b >= large or first[axis] >= g.size[axis]:  # the tap reads only padding
                before[axis], first[axis] = 0, g.size[axis]
        places.append(Embedding(grid, tuple(before), 0, tuple(first), g.strides))
    return tuple(places)


def _bands(engine: Engine, g: ConvGeometry, images: int) -> list[slice]:
    """Bands of columns that fit a cache; several images are small, and are one band."""
    positions = prod(g.output_size)
    if images > 1:
        return [slice(0, positions)]
    return engine.bands(positions, _SMALLER * g.channels * prod(g.kernel), prod(g.output_size[1:]))
