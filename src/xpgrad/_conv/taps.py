"""A sum over channels and taps, without a matrix product: for depthwise kernels and groups of few channels.

A group of one channel has no matrix: its output is a weighted sum of as many shifted copies of its input as the
kernel has taps, and its weight gradient one inner product for each of them. The shifted flat views of `shifted` make
a copy a contiguous run of memory, and all groups are computed in one go.
"""

from __future__ import annotations

from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import Method, image_size, with_bias
from xpgrad._conv.shifted import Grid


class Taps(Method):
    """Weighted sums of shifted rows."""

    name = "taps"

    def forward(self, engine: Any, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        xp, g, grid = engine.xp, geometry, Grid(geometry)
        terms = _terms(g, grid)
        weights = xp.reshape(W, (g.group, g.outputs // g.group, len(terms)))

        def block(images: slice, target: Any) -> Any:
            rows = _rows(xp, grid.split(engine, X[images, ...]))
            Y = engine.sum_of_shifts(rows, weights, terms, grid.output_length)
            return with_bias(engine, grid.gather(xp, Y), B, target)

        return engine.assemble(block, engine.blocks(g.batch, image_size(g)), shape=g.output_shape, like=X)

    def input_gradient(self, engine: Any, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        xp, g, grid = engine.xp, geometry, Grid(geometry)
        made, seen, taps = g.outputs // g.group, g.channels // g.group, len(g.taps)
        # a phase's sum runs over the group's outputs and those taps that meet the phase
        weights = xp.permute_dims(xp.reshape(W, (g.group, made, seen, taps)), (0, 2, 1, 3))
        plans = []
        for phase in range(len(grid.phases)):
            meeting = [(tap, shift) for tap, (at, shift) in enumerate(grid.taps) if at == phase]
            of_phase = xp.stack([weights[..., tap] for tap, _ in meeting], axis=-1)
            terms = [(o, grid.lead - shift) for o in range(made) for _, shift in meeting]
            plans.append((xp.reshape(of_phase, (g.group, seen, made * len(meeting))), terms))

        def block(images: slice, target: Any) -> Any:
            rows = grid.spread(engine, dY[images, ...])
            totals = [engine.sum_of_shifts(rows, *plan, grid.length) for plan in plans]
            return with_bias(engine, grid.join(engine, totals, target), B, target)

        return engine.assemble(block, engine.blocks(g.batch, image_size(g)), shape=g.input_shape, like=dY)

    def weight_gradient(self, engine: Any, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        xp, g, grid = engine.xp, geometry, Grid(geometry)
        terms = _terms(g, grid)

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            rows = _rows(xp, grid.split(engine, X[images, ...]))
            cotangents = grid.spread_rows(engine, dY[images, ...])
            products = engine.products_of_shifts(cotangents, rows, terms)
            return [products if totals is None else totals[0] + products]

        (dW,) = engine.accumulate(block, engine.blocks(g.batch, image_size(g)))
        return xp.reshape(dW, g.weight_shape)


def _terms(g: ConvGeometry, grid: Grid) -> list[tuple[int, int]]:
    """The row and the shift of every channel of a group and tap, in the order of the weights."""
    seen = g.channels // g.group
    return [(phase * seen + c, shift) for c in range(seen) for phase, shift in grid.taps]


def _rows(xp: Any, phases: list[Any]) -> Any:
    """All phases' channels, (n, group, phases * C / group, room)."""
    return phases[0] if len(phases) == 1 else xp.concat(phases, axis=2)
