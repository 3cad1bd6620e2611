"""Patches: the input elements of many outputs side by side as one matrix, band by band (im2col, col2im).

The matrix has a row for every channel and tap and a column for every output. So a band of outputs is one
product with the inner size C/G times the number of taps, which is fast even with few channels. A row is a
shifted flat view of a phase (see `shifted`), so it is a plain copy of memory. A band is short enough that the
matrix stays in the cache.
"""

from __future__ import annotations

from math import prod
from typing import Any

from array_api_compat import device

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method, columns_of_images, image_size, with_bias
from xpgrad._conv.shifted import Grid, grid_of
from xpgrad.engine.protocol import Engine


class Patches(Method):
    """One product for each band of outputs, with a copy of its patches."""

    name = "patches"

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        xp, g, grid = engine.xp, geometry, grid_of(geometry)
        weights = _matrices(engine, g, W)

        def block(images: slice, target: Any) -> Any:
            phases = grid.split(engine, X[images, ...])

            def band(columns: slice, target: Any) -> Any:
                return engine.product(weights, _patches(engine, g, grid, phases, columns), target)

            n = phases[0].shape[0]
            shape = (n, g.group, g.outputs // g.group, grid.output_length)
            bands = _bands(engine, g, n, grid.output_length)
            Y = engine.assemble(band, bands, axis=3, target=engine.room(shape, X))
            return with_bias(engine, grid.gather(xp, Y), B, target)

        return engine.assemble(block, engine.blocks(g.batch, image_size(g)), shape=g.output_shape, like=X)

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
                parts = engine.product(weights, cotangents[..., columns])
                parts = xp.reshape(parts, (n, g.group, g.channels // g.group, len(g.taps), -1))
                for tap, (phase, shift) in enumerate(grid.taps):
                    totals[phase] = engine.add_shifted(
                        totals[phase], parts[:, :, :, tap, :], shift + columns.start
                    )
            phases = [total[..., : grid.length] for total in totals]
            return with_bias(engine, grid.join(engine, phases, target), B, target)

        return engine.assemble(block, engine.blocks(g.batch, image_size(g)), shape=g.input_shape, like=dY)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        xp, g, grid = engine.xp, geometry, grid_of(geometry)

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            phases = grid.split(engine, X[images, ...])
            cotangents = grid.spread_rows(engine, dY[images, ...])
            for columns in _bands(engine, g, phases[0].shape[0], grid.output_length):
                patches = columns_of_images(xp, _patches(engine, g, grid, phases, columns))
                rows = columns_of_images(xp, cotangents[..., columns])
                (total,) = totals or (None,)
                totals = [engine.add_product(total, rows, xp.matrix_transpose(patches))]
            return totals or []

        (dW,) = engine.accumulate(block, engine.blocks(g.batch, image_size(g)))
        return xp.reshape(dW, g.weight_shape)


def _matrices(engine: Engine, g: ConvGeometry, W: Any) -> Any:
    """W as (group, O / group, C / group * taps)."""
    return engine.xp.reshape(W, (g.group, g.outputs // g.group, g.channels // g.group * len(g.taps)))


def _patches(engine: Engine, g: ConvGeometry, grid: Grid, phases: list[Any], columns: slice) -> Any:
    """The patches of a band of columns, (n, group, C / group * taps, columns)."""
    views = [phases[phase][..., shift + columns.start : shift + columns.stop] for phase, shift in grid.taps]
    stacked = engine.xp.stack(views, axis=3)
    n, width = stacked.shape[0], columns.stop - columns.start
    return engine.xp.reshape(stacked, (n, g.group, g.channels // g.group * len(g.taps), width))


def _bands(engine: Engine, g: ConvGeometry, images: int, length: int) -> list[slice]:
    return engine.bands(length, images * g.channels * prod(g.kernel))
