r"""Shifted flat views: a matrix product for each tap of the kernel, without an im2col.

An input is padded once and split into *phases*. With stride s and dilation d, tap k of output o reads element
``o * s + k * d``, which is element ``o + q`` of phase r, where ``k * d = q * s + r``. All phases have the
same grid; it is larger than the output's by the largest shift q. In the flattened grid every tap is a
contiguous slice of one phase, a matrix (C, L) that BLAS can read in place:

.. math::

    Y &= \sum_k W_k\,X_{r(k)}[:, q(k):q(k)+L] \\
    dX_r &= \sum_{k: r(k) = r} W_k^T\,dY[:, -q(k):] \qquad dW_k = dY\,X_{r(k)}[:, q(k):q(k)+L]^T

The rows of outputs are as long as the grid's, so some columns of a product are unused: they are dropped from
Y, and are zeros in dY.
"""

from __future__ import annotations

import functools
import itertools
from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import (
    Method,
    columns_of_images,
    image_size,
    kept,
    rows_of_channels,
    weights_of_taps,
    with_bias,
)
from xpgrad.engine.images.shifts import Embedding
from xpgrad.engine.protocol import Engine


class Grid:
    """The grid of the phases, and the place of every tap in it."""

    def __init__(self, geometry: ConvGeometry) -> None:
        self._geometry = geometry
        each = zip(geometry.kernel, geometry.dilations, geometry.strides, strict=True)
        shifts = [[divmod(k * d, s) for k in range(size)] for size, d, s in each]
        self.size = tuple(o + s[-1][0] for o, s in zip(geometry.output_size, shifts, strict=True))
        steps = [prod(self.size[axis + 1 :]) for axis in range(geometry.rank)]
        places = list(itertools.product(*shifts))
        phases = [tuple(r for _, r in place) for place in places]
        # only the phases that a tap reads; a pointwise kernel with a stride reads one
        self.phases = sorted(set(phases))
        self.taps = tuple(
            (self.phases.index(phase), sum(q * step for (q, _), step in zip(place, steps, strict=True)))
            for place, phase in zip(places, phases, strict=True)
        )
        self.length = prod(self.size)
        self.lead = self.taps[-1][1]
        self.output_length = prod((geometry.output_size[0], *self.size[1:]))
        # a slice that begins in the last rows ends less than one row behind the grid
        slack = int(geometry.rank > 1 and self.lead > 0)
        self.rows = (self.size[0] + slack, *self.size[1:])

    @functools.cached_property
    def places(self) -> tuple[Embedding, ...]:
        """The elements of an image in each phase, and their places."""
        g = self._geometry
        places = []
        for phase in self.phases:
            starts, before = [], []
            for r, s, b, size in zip(phase, g.strides, g.begin, g.size, strict=True):
                first = max(0, -((r - b) // s))  # the index of the phase's first element behind the padding
                starts.append(first * s + r - b)
                before.append(first if starts[-1] < size else 0)
            places.append(Embedding(self.rows, tuple(before), 0, tuple(starts), g.strides))
        return tuple(places)

    def split(self, engine: Engine, X: Any) -> list[Any]:
        """Images (n, C, *size) as phases, each (n, group, C / group, room)."""
        g = self._geometry
        parts = []
        for place in self.places:
            part = X[(slice(None), slice(None), *place.taken)]
            sizes = zip(self.rows, part.shape[2:], place.before, strict=True)
            part = engine.pad(part, place.before, [rows - count - before for rows, count, before in sizes])
            parts.append(rows_of_channels(engine.xp, g, part))
        return parts

    def join(self, engine: Engine, parts: list[Any], target: Any = None) -> Any:
        """The inverse of `split` for sums: phases, each (n, group, C / group, length), as (n, C, *size)."""
        g = self._geometry
        images = {
            phase: engine.xp.reshape(part, (part.shape[0], g.channels, *self.size))
            for phase, part in zip(self.phases, parts, strict=True)
        }
        return engine.interleave(images, g.strides, g.begin, g.size, target)

    def spread(self, engine: Engine, dY: Any) -> Any:
        """Output cotangents (n, O, *output_size) on the grid, (n, group, O / group, lead + length)."""
        return rows_of_channels(engine.xp, self._geometry, engine.spread(dY, self.size, self.lead))

    def spread_rows(self, engine: Engine, dY: Any) -> Any:
        """Output cotangents on the grid's rows of outputs, (n, group, O / group, output_length)."""
        g = self._geometry
        return rows_of_channels(engine.xp, g, engine.spread(dY, (g.output_size[0], *self.size[1:]), 0))

    def gather(self, xp: Any, Y: Any) -> Any:
        """Outputs (n, group, O / group, output_length) as (n, O, *output_size)."""
        g = self._geometry
        Y = xp.reshape(Y, (Y.shape[0], g.outputs, g.output_size[0], *self.size[1:]))
        return Y[(..., *(slice(0, o) for o in g.output_size))]


@kept
def grid_of(geometry: ConvGeometry) -> Grid:
    """The grid of a geometry."""
    return Grid(geometry)


def tap_weights(engine: Engine, geometry: ConvGeometry, W: Any, *, transposed: bool = False) -> Any:
    """W as (taps, group, O / group, C / group), or with the last two axes exchanged."""
    weights = weights_of_taps(engine.xp, geometry, W)
    return engine.pack(engine.xp.permute_dims(weights, (3, 0, 2, 1) if transposed else (3, 0, 1, 2)))


class Shifted(Method):
    """One product for each tap, on shifted flat views of the padded image."""

    name = "shifted"

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        xp, grid = engine.xp, grid_of(geometry)
        weights = tap_weights(engine, geometry, W)

        def block(images: slice, target: Any) -> Any:
            phases = grid.split(engine, X[images, ...])
            total = None
            for tap, (phase, shift) in enumerate(grid.taps):
                view = phases[phase][..., shift : shift + grid.output_length]
                total = engine.add_product(total, weights[tap, ...], view)
            return with_bias(engine, grid.gather(xp, total), B, target)

        return engine.assemble(
            block,
            engine.blocks(geometry.batch, image_size(geometry)),
            shape=geometry.output_shape,
            like=X,
            alike=True,
        )

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        grid = grid_of(geometry)
        weights = tap_weights(engine, geometry, W, transposed=True)

        def block(images: slice, target: Any) -> Any:
            cotangents = grid.spread(engine, dY[images, ...])
            totals: list[Any] = [None] * len(grid.phases)
            for tap, (phase, shift) in enumerate(grid.taps):
                start = grid.lead - shift
                view = cotangents[..., start : start + grid.length]
                totals[phase] = engine.add_product(totals[phase], weights[tap, ...], view)
            return with_bias(engine, grid.join(engine, totals, target), B, target)

        return engine.assemble(
            block,
            engine.blocks(geometry.batch, image_size(geometry)),
            shape=geometry.input_shape,
            like=dY,
            alike=True,
        )

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        xp, grid, g = engine.xp, grid_of(geometry), geometry

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            phases = grid.split(engine, X[images, ...])
            cotangents = grid.spread_rows(engine, dY[images, ...])
            # one product over the positions of all images of a block
            rows = columns_of_images(xp, cotangents)
            totals = totals or [None] * len(grid.taps)
            for tap, (phase, shift) in enumerate(grid.taps):
                view = columns_of_images(xp, phases[phase][..., shift : shift + grid.output_length])
                totals[tap] = engine.add_product(totals[tap], rows, xp.matrix_transpose(view))
            return totals

        blocks = engine.blocks(geometry.batch, image_size(geometry))
        totals = engine.accumulate(block, blocks, prod(g.weight_shape))
        dW = xp.stack(totals, axis=-1)  # (group, O / group, C / group, taps)
        return xp.reshape(dW, g.weight_shape)
