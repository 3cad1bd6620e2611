"""A sum over channels and taps at once: for any group, depthwise kernels included.

In the flat grid of `shifted` a sum over channels and taps is a weighted sum of shifted rows, each a
contiguous run of memory; the weight gradient is one inner product for each weight. So no matrix is built from
an image: only the image, the weights and the result are read and written. Compiled, this is a product of
tiles in registers, or loops over positions for a group of one channel.
"""

from __future__ import annotations

from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method, image_size
from xpgrad._conv.shifted import grid_of
from xpgrad.engine.images.shifts import Crop, Embedding, Part
from xpgrad.engine.protocol import Engine


class Taps(Method):
    """Weighted sums of shifted rows."""

    name = "taps"

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        g, grid = geometry, grid_of(geometry)
        (weights,) = engine.pack_taps(_weights(engine, g, W), [range(len(g.taps))])
        crop = Crop(grid.output_length, (0,) * g.rank, g.output_size)
        part = Part(weights, grid.taps, crop, (slice(0, None, 1),) * g.rank)

        def block(images: slice, target: Any) -> Any:
            return engine.sum_of_shifts(X[images, ...], grid.places, [part], g.output_size, B, target)

        return engine.assemble(block, engine.blocks(g.batch, image_size(g)), shape=g.output_shape, like=X)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        g, grid = geometry, grid_of(geometry)
        # a phase's sum runs over the group's outputs and the taps that read the phase
        meeting = [
            [(tap, (0, grid.lead - shift)) for tap, (at, shift) in enumerate(grid.taps) if at == phase]
            for phase in range(len(grid.phases))
        ]
        weights = engine.xp.permute_dims(_weights(engine, g, W), (0, 2, 1, 3))
        packed = engine.pack_taps(weights, [[tap for tap, _ in taps] for taps in meeting])
        parts = []
        for kernels, taps, place in zip(packed, meeting, grid.places, strict=True):
            crop = Crop(grid.length, place.before, place.counts(g.size))
            parts.append(Part(kernels, [shift for _, shift in taps], crop, place.taken))
        places = [Embedding.of_all(grid.size, (0,) * g.rank, grid.lead)]

        def block(images: slice, target: Any) -> Any:
            return engine.sum_of_shifts(dY[images, ...], places, parts, g.size, B, target)

        return engine.assemble(block, engine.blocks(g.batch, image_size(g)), shape=g.input_shape, like=dY)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        g, grid = geometry, grid_of(geometry)

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            products = engine.products_of_shifts(
                dY[images, ...], X[images, ...], grid.places, grid.taps, g.group
            )
            return [products if totals is None else totals[0] + products]

        (dW,) = engine.accumulate(block, engine.blocks(g.batch, image_size(g)))
        return engine.xp.reshape(dW, g.weight_shape)


def _weights(engine: Engine, g: ConvGeometry, W: Any) -> Any:
    """W as (group, O / group, C / group, taps)."""
    return engine.xp.reshape(W, (g.group, g.outputs // g.group, g.channels // g.group, len(g.taps)))
