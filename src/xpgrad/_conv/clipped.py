"""A product for each tap with the outputs for which it meets the image: padding is not multiplied.

Along each axis a tap meets an interval of the outputs, the others read padding. The elements that its outputs
read are a small image, and so are the products that it adds to: both are copied, as `patches` copies them.
This pays where many taps meet few outputs: dilations that are large beside the image, or images of few
elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from operator import sub
from typing import Any, NamedTuple

from xpgrad._conv.geometry import ConvGeometry, Sizes
from xpgrad._conv.method import Method, image_blocks, kept
from xpgrad._conv.shifted import tap_weights
from xpgrad.engine.images.shifts import Embedding
from xpgrad.engine.protocol import Engine
from xpgrad.engine.symbols import larger, smaller


class _Meeting(NamedTuple):
    """A tap, and the elements of inputs and of outputs that meet there; exchanged for the input gradient."""

    tap: int
    read: tuple[Embedding]
    made: tuple[Embedding]


class Clipped(Method):
    """One product for each tap and block of images, with copies of its inputs and outputs."""

    name = "clipped"

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        weights = tap_weights(engine, geometry, W)
        return _sums_over_taps(engine, geometry, X, weights, _meetings(geometry), geometry.output_shape, B)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        meetings = [_Meeting(tap, outputs, inputs) for tap, inputs, outputs in _meetings(geometry)]
        weights = tap_weights(engine, geometry, W, transposed=True)
        return _sums_over_taps(engine, geometry, dY, weights, meetings, geometry.input_shape, B)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        g, xp = geometry, engine.xp
        meetings = _meetings(g)

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            part, cotangents, found = X[images, ...], dY[images, ...], []
            for total, (_, inputs, outputs) in zip(totals or [None] * len(meetings), meetings, strict=True):
                rows = engine.patches(cotangents, outputs, g.group)
                columns = xp.matrix_transpose(engine.patches(part, inputs, g.group))
                found.append(engine.add_product(total, rows, columns))
            return found

        totals = engine.accumulate(block, image_blocks(engine, g), prod(g.weight_shape))
        met = dict(zip((tap for tap, *_ in meetings), totals, strict=True))
        nothing = xp.zeros_like(totals[0]) if len(met) < len(g.taps) else None
        dW = xp.stack([met.get(tap, nothing) for tap in range(len(g.taps))], axis=-1)
        return xp.reshape(dW, g.weight_shape)


def _sums_over_taps(
    engine: Engine, g: ConvGeometry, x: Any, weights: Any, meetings: Sequence[_Meeting], shape: Sizes, B: Any
) -> Any:
    """The sums of this shape: the elements that each tap reads times its weights, plus B (channels,)."""

    def block(images: slice, target: Any) -> Any:
        part, total = x[images, ...], None
        for tap, read, made in meetings:
            P = engine.product(weights[tap, ...], engine.patches(part, read, g.group))
            total = engine.add_patches(total, P, made, (part.shape[0], *shape[1:]), B, target)
        return total

    return engine.assemble(block, image_blocks(engine, g), shape=shape, like=x, alike=True)


@kept
def _meetings(g: ConvGeometry) -> list[_Meeting]:
    """For each tap that meets the image; if none does, one output of the first tap, which reads padding."""
    none, ones = (0,) * g.rank, (1,) * g.rank

    def meeting(tap: int, grid: Sizes, read: Sizes, made: Sizes) -> _Meeting:
        inputs, outputs = Embedding(grid, none, 0, read, g.strides), Embedding(grid, none, 0, made, ones)
        return _Meeting(tap, (inputs,), (outputs,))

    found = []
    for number, tap in enumerate(itertools.product(*_intervals(g))):
        starts, stops, reads = zip(*tap, strict=True)
        counts = tuple(map(sub, stops, starts))
        if min(counts) > 0:
            found.append(meeting(number, counts, reads, starts))
    return found or [meeting(0, ones, g.size, none)]


def _intervals(g: ConvGeometry) -> list[list[tuple[int, int, int]]]:
    """For each axis and tap: the first output that it meets, the end, and what the first one reads."""
    found = []
    axes = zip(g.kernel, g.strides, g.dilations, g.begin, g.size, g.output_size, strict=True)
    for kernel, stride, dilation, begin, size, made in axes:
        own = []
        for k in range(kernel):
            at = k * dilation - begin  # what output 0 reads
            start = larger(0, -(at // stride))
            stop = smaller(made, -((at - size) // stride))
            own.append((start, stop, start * stride + at))
        found.append(own)
    return found


def multiplications_inside(g: ConvGeometry) -> int:
    """The multiplications of a direct sum without padding."""
    met = (sum(larger(0, stop - start) for start, stop, _ in axis) for axis in _intervals(g))
    return prod(met) * g.batch * g.outputs * (g.channels // g.group)
