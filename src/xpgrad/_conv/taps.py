"""A sum over channels and taps at once, for any group, including depthwise kernels.

In the flat grid of `shifted` a sum over channels and taps is a weighted sum of shifted rows, each contiguous
in memory; the weight gradient is one inner product for each weight. So no matrix is built from an image.
Compiled, these are products of tiles in registers, or loops over positions for groups of few channels.
"""

from __future__ import annotations

from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method, kept, weights_of_taps
from xpgrad._conv.shifted import grid_of
from xpgrad.engine.images.shifts import Crop, Embedding, PlacedSums, Shifts
from xpgrad.engine.protocol import Engine


class Taps(Method):
    """Weighted sums of shifted rows."""

    name = "taps"

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        weights = engine.pack_taps(weights_of_taps(engine.xp, geometry, W), [range(len(geometry.taps))])
        return engine.sum_of_shifts(X, weights, _forward_shifts(geometry), B)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        taps, shifts = _gradient_shifts(geometry)
        weights = engine.xp.permute_dims(weights_of_taps(engine.xp, geometry, W), (0, 2, 1, 3))
        return engine.sum_of_shifts(dY, engine.pack_taps(weights, taps), shifts, B)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        grid = grid_of(geometry)
        dW = engine.products_of_shifts(dY, X, grid.places, grid.taps, geometry.group)
        return engine.xp.reshape(dW, geometry.weight_shape)


@kept
def _forward_shifts(g: ConvGeometry) -> Shifts:
    """The sums over a group's channels and all taps."""
    grid = grid_of(g)
    crop = Crop(grid.output_length, (0,) * g.rank, g.output_size)
    part = PlacedSums(grid.taps, crop, (0,) * g.rank, (1,) * g.rank)
    return Shifts(grid.places, (part,), g.output_size)


@kept
def _gradient_shifts(g: ConvGeometry) -> tuple[list[list[int]], Shifts]:
    """The taps of each phase, and its sums over the group's outputs and the taps that read it."""
    grid = grid_of(g)
    meeting = [
        [(tap, (0, grid.lead - shift)) for tap, (at, shift) in enumerate(grid.taps) if at == phase]
        for phase in range(len(grid.phases))
    ]
    parts = []
    for taps, place in zip(meeting, grid.places, strict=True):
        crop = Crop(grid.length, place.before, place.counts(g.size))
        parts.append(PlacedSums(tuple(shift for _, shift in taps), crop, place.first, place.steps))
    place = Embedding.of_all(grid.size, (0,) * g.rank, grid.lead)
    return [[tap for tap, _ in taps] for taps in meeting], Shifts((place,), tuple(parts), g.size)
