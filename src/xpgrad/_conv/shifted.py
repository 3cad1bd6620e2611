r"""Shifted flat views: a sum over the taps of the kernel, one matrix product each, without an im2col.

An input is padded once and split into *phases*, the elements that one output after the other meets: with
stride s and dilation d, tap k meets element ``o * s + k * d``, which is element ``o + q`` of phase r, where
``k * d = q * s + r``. All phases have the same grid, larger than the output's by the largest shift q. Flattened,
every tap is then a contiguous slice of one phase, a matrix (C, L) that BLAS takes as it is:

.. math::

    Y &= \sum_k W_k\,X_{r(k)}[:, q(k):q(k)+L] \\
    dX_r &= \sum_{k: r(k) = r} W_k^T\,dY[:, -q(k):] \qquad dW_k = dY\,X_{r(k)}[:, q(k):q(k)+L]^T

The outputs' rows are as long as the grid's, so that some columns of a product are of no use: they are dropped
from Y, and are zeros in dY.
"""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry, Sizes
from xpgrad._conv.method import Method, with_bias
from xpgrad._conv.padding import padded


class _Grid:
    """The grid of the phases, and the place of every tap in it."""

    def __init__(self, geometry: ConvGeometry) -> None:
        self._geometry = geometry
        shifts = [
            [divmod(k * d, s) for k in range(size)]
            for size, d, s in zip(geometry.kernel, geometry.dilations, geometry.strides, strict=True)
        ]
        self.size = tuple(o + s[-1][0] for o, s in zip(geometry.output_size, shifts, strict=True))
        steps = [prod(self.size[axis + 1 :]) for axis in range(geometry.rank)]
        places = list(itertools.product(*shifts))
        phases = [tuple(r for _, r in place) for place in places]
        # the phases that some tap meets; a pointwise kernel with a stride meets one
        self.phases = sorted(set(phases))
        self.taps = [
            (self.phases.index(phase), sum(q * step for (q, _), step in zip(place, steps, strict=True)))
            for place, phase in zip(places, phases, strict=True)
        ]
        self.length = prod(self.size)
        self.lead = self.taps[-1][1]
        self.output_length = prod((geometry.output_size[0], *self.size[1:]))

    def split(self, xp: Any, X: Any) -> list[Any]:
        """Images (n, C, *size) as phases, each (n, group, C / group, length and a little more)."""
        g = self._geometry
        # a slice that begins in the last rows ends behind the grid, by less than a row
        rows = (self.size[0] + (g.rank > 1), *self.size[1:])
        behind = [r * s - b - size for r, s, b, size in zip(rows, g.strides, g.begin, g.size, strict=True)]
        X = padded(xp, X, g.begin, behind)
        n, length = X.shape[0], prod(rows)
        parts = []
        for phase in self.phases:
            steps = tuple(slice(r, None, s) for r, s in zip(phase, g.strides, strict=True))
            part = X[(slice(None), slice(None), *steps)]
            parts.append(xp.reshape(part, (n, g.group, g.channels // g.group, length)))
        return parts

    def join(self, xp: Any, parts: list[Any]) -> Any:
        """The way back of `split` for sums: phases, each (n, group, C / group, length), as (n, C, *size)."""
        g = self._geometry
        n = parts[0].shape[0]
        images = {
            phase: xp.reshape(part, (n, g.channels, *self.size))
            for phase, part in zip(self.phases, parts, strict=True)
        }
        if prod(g.strides) > 1:
            nothing = xp.zeros_like(parts[0])
            nothing = xp.reshape(nothing, (n, g.channels, *self.size))
            whole = _interleaved(xp, images, nothing, g.strides, ())
        else:
            whole = images[(0,) * g.rank]
        behind = [size + b - m for size, b, m in zip(g.size, g.begin, whole.shape[2:], strict=True)]
        return padded(xp, whole, [-b for b in g.begin], behind)

    def spread(self, xp: Any, dY: Any) -> Any:
        """Output cotangents (n, O, *output_size) on the grid, (n, group, O / group, lead + length)."""
        g = self._geometry
        behind = [m - o for m, o in zip(self.size, g.output_size, strict=True)]
        dY = padded(xp, dY, (0,) * g.rank, behind)
        dY = xp.reshape(dY, (dY.shape[0], g.group, g.outputs // g.group, self.length))
        return padded(xp, dY, (self.lead,), (0,))

    def gather(self, xp: Any, Y: Any) -> Any:
        """Outputs (n, group, O / group, output_length) as (n, O, *output_size)."""
        g = self._geometry
        Y = xp.reshape(Y, (Y.shape[0], g.outputs, g.output_size[0], *self.size[1:]))
        return Y[(..., *(slice(0, o) for o in g.output_size))]


def _interleaved(xp: Any, images: dict[Sizes, Any], nothing: Any, strides: Sizes, phase: Sizes) -> Any:
    """Phases put between one another, dimension by dimension."""
    axis = len(phase)
    if axis == len(strides):
        return images.get(phase, nothing)
    parts = [_interleaved(xp, images, nothing, strides, (*phase, r)) for r in range(strides[axis])]
    if len(parts) == 1:
        return parts[0]
    stacked = xp.stack(parts, axis=axis + 3)
    shape = list(parts[0].shape)
    shape[axis + 2] *= strides[axis]
    return xp.reshape(stacked, tuple(shape))


def tap_weights(engine: Any, geometry: ConvGeometry, W: Any, *, transposed: bool = False) -> Any:
    """W as (taps, group, O / group, C / group), or with the last two axes exchanged."""
    g = geometry
    W = engine.xp.reshape(W, (g.group, g.outputs // g.group, g.channels // g.group, len(g.taps)))
    return engine.pack(engine.xp.permute_dims(W, (3, 0, 2, 1) if transposed else (3, 0, 1, 2)))


class Shifted(Method):
    """One product for each tap, on shifted flat views of the padded image."""

    name = "shifted"

    def forward(self, engine: Any, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        xp, grid = engine.xp, _Grid(geometry)
        weights = tap_weights(engine, geometry, W)

        def block(images: slice, target: Any) -> Any:
            phases = grid.split(xp, X[images, ...])
            total = None
            for tap, (phase, shift) in enumerate(grid.taps):
                view = phases[phase][..., shift : shift + grid.output_length]
                total = engine.add_product(total, weights[tap, ...], view)
            return with_bias(engine, grid.gather(xp, total), B)

        return engine.assemble(block, engine.blocks(geometry.batch), geometry.output_shape, X)

    def input_gradient(self, engine: Any, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        xp, grid = engine.xp, _Grid(geometry)
        weights = tap_weights(engine, geometry, W, transposed=True)

        def block(images: slice, target: Any) -> Any:
            cotangents = grid.spread(xp, dY[images, ...])
            totals: list[Any] = [None] * len(grid.phases)
            for tap, (phase, shift) in enumerate(grid.taps):
                start = grid.lead - shift
                view = cotangents[..., start : start + grid.length]
                totals[phase] = engine.add_product(totals[phase], weights[tap, ...], view)
            return with_bias(engine, grid.join(xp, totals), B)

        return engine.assemble(block, engine.blocks(geometry.batch), geometry.input_shape, dY)

    def weight_gradient(self, engine: Any, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        xp, grid, g = engine.xp, _Grid(geometry), geometry

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            phases = grid.split(xp, X[images, ...])
            cotangents = grid.spread(xp, dY[images, ...])[..., grid.lead : grid.lead + grid.output_length]
            # one product over images and positions, where an engine takes several images at a time
            rows = _images_in_columns(xp, cotangents)
            totals = totals or [None] * len(grid.taps)
            for tap, (phase, shift) in enumerate(grid.taps):
                view = _images_in_columns(xp, phases[phase][..., shift : shift + grid.output_length])
                totals[tap] = engine.add_product(totals[tap], rows, xp.matrix_transpose(view))
            return totals

        totals = engine.accumulate(block, engine.blocks(geometry.batch))
        dW = xp.stack(totals, axis=-1)  # (group, O / group, C / group, taps)
        return xp.reshape(dW, g.weight_shape)


def _images_in_columns(xp: Any, array: Any) -> Any:
    """(n, group, rows, L) as (group, rows, n * L); a view where n is 1."""
    n, group, rows, length = array.shape
    if n == 1:
        return array[0, ...]
    return xp.reshape(xp.permute_dims(array, (1, 2, 0, 3)), (group, rows, n * length))
