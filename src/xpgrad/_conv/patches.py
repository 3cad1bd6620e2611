"""Patches: the input elements of many outputs side by side as one matrix, band by band (im2col, col2im).

The matrix has a row for every channel and tap and a column for every output. So a band of outputs is one
product with the inner size C/G times the number of taps, which is fast even with few channels. A row is a
shifted flat view of a phase (see `shifted`), so it is a plain copy of memory. A band is so short that the
matrix stays in the cache. Several small images share a matrix, because every product reads all weights.
"""

from __future__ import annotations

from math import prod
from typing import Any

from array_api_compat import device

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method, columns_of_images, image_size, with_bias
from xpgrad._conv.shifted import Grid, grid_of
from xpgrad.engine.protocol import Engine

_COLUMNS = 512  # columns of a product that is worth reading all weights


class Patches(Method):
    """One product for each band of outputs, with a copy of its patches."""

    name = "patches"

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        xp, g, grid = engine.xp, geometry, grid_of(geometry)
        weights = _matrices(engine, g, W)

        def block(images: slice, target: Any) -> Any:
            phases = grid.split(engine, X[images, ...])
            n, length = phases[0].shape[0], grid.output_length

            def band(columns: slice, target: Any) -> Any:
                return engine.product(weights, _patches(engine, g, grid, phases, columns), target)

            bands = _bands(engine, g, n, length)
            if len(bands) == 1:
                Y = band(bands[0], None)
            else:  # of one image
                place = engine.room((g.group, g.outputs // g.group, length), X)
                Y = engine.assemble(band, bands, axis=2, target=place)
            return with_bias(engine, grid.gather(xp, _by_image(xp, Y, n)), B, target)

        return engine.assemble(block, _blocks(engine, g, grid), shape=g.output_shape, like=X)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        xp, g, grid = engine.xp, geometry, grid_of(geometry)
        weights = xp.matrix_transpose(_matrices(engine, g, W))

        def block(images: slice, target: Any) -> Any:
            cotangents = grid.spread_rows(engine, dY[images, ...])
            n = cotangents.shape[0]
            totals = [
                xp.zeros((n, g.group, g.channels // g.group, grid.room), dtype=dY.dtype, device=device(dY))
                for _ in grid.phases
            ]
            for columns in _bands(engine, g, n, grid.output_length):
                parts = engine.product(weights, columns_of_images(xp, cotangents[..., columns]))
                shape = (g.group, g.channels // g.group, len(g.taps), n, columns.stop - columns.start)
                parts = xp.permute_dims(xp.reshape(parts, shape), (2, 3, 0, 1, 4))
                for tap, (phase, shift) in enumerate(grid.taps):
                    totals[phase] = engine.add_shifted(totals[phase], parts[tap, ...], shift + columns.start)
            phases = [total[..., : grid.length] for total in totals]
            return with_bias(engine, grid.join(engine, phases, target), B, target)

        return engine.assemble(block, _blocks(engine, g, grid), shape=g.input_shape, like=dY)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        xp, g, grid = engine.xp, geometry, grid_of(geometry)

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            phases = grid.split(engine, X[images, ...])
            cotangents = grid.spread_rows(engine, dY[images, ...])
            for columns in _bands(engine, g, phases[0].shape[0], grid.output_length):
                patches = _patches(engine, g, grid, phases, columns)
                rows = columns_of_images(xp, cotangents[..., columns])
                (total,) = totals or (None,)
                totals = [engine.add_product(total, rows, xp.matrix_transpose(patches))]
            return totals or []

        (dW,) = engine.accumulate(block, _blocks(engine, g, grid))
        return xp.reshape(dW, g.weight_shape)


def _matrices(engine: Engine, g: ConvGeometry, W: Any) -> Any:
    """W as (group, O / group, C / group * taps)."""
    return engine.xp.reshape(W, (g.group, g.outputs // g.group, g.channels // g.group * len(g.taps)))


def _patches(engine: Engine, g: ConvGeometry, grid: Grid, phases: list[Any], columns: slice) -> Any:
    """The patches of a band of columns, (group, C / group * taps, n * columns)."""
    xp = engine.xp
    views = [phases[phase][..., shift + columns.start : shift + columns.stop] for phase, shift in grid.taps]
    stacked = xp.stack([xp.permute_dims(view, (1, 2, 0, 3)) for view in views], axis=2)
    n, width = stacked.shape[3:]
    return xp.reshape(stacked, (g.group, g.channels // g.group * len(g.taps), n * width))


def _by_image(xp: Any, Y: Any, n: int) -> Any:
    """The inverse of `columns_of_images`."""
    group, rows, columns = Y.shape
    return xp.permute_dims(xp.reshape(Y, (group, rows, n, columns // n)), (2, 0, 1, 3))


def _blocks(engine: Engine, g: ConvGeometry, grid: Grid) -> list[slice]:
    """The fewest images whose products have many columns."""
    return engine.blocks(g.batch, image_size(g), most=-(-_COLUMNS // grid.output_length))


def _bands(engine: Engine, g: ConvGeometry, images: int, length: int) -> list[slice]:
    """Bands of columns that fit a cache; several images are small, and have one band."""
    if images > 1:
        return [slice(0, length)]
    return engine.bands(length, g.channels * prod(g.kernel))
