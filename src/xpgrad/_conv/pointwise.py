"""Pointwise kernels at stride 1: only channels mix, so an image is one matrix product.

If kernels cover whole images, an image is a row, and so is a kernel: the whole batch is one product.
"""

from __future__ import annotations

from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._conv.method import (
    Method,
    columns_of_images,
    few_images,
    image_blocks,
    rows_of_channels,
    weight_matrices,
    with_bias,
)
from xpgrad.engine.protocol import Engine


class Pointwise(Method):
    """One matrix product per image, or per batch, from the images' own memory into the result's."""

    name = "pointwise"

    def why_not(self, geometry: ConvGeometry, transforms: bool) -> str | None:
        """Input and output must have the same grid, or kernels must cover images."""
        if geometry.is_one_product:
            return None
        if prod(geometry.kernel) != 1:
            return f"the kernel has shape {geometry.kernel}, not one element, and covers no whole image"
        if prod(geometry.strides) != 1 or geometry.output_size != geometry.size or any(geometry.begin):
            return f"with strides {geometry.strides} and padding outputs are not at the inputs' places"
        return None

    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """See `Method`."""
        if geometry.is_one_product:
            xp, W = engine.xp, _rows(engine.xp, W)
            Y = engine.product(_rows(xp, X), xp.matrix_transpose(W))
            return with_bias(engine, xp.reshape(Y, geometry.output_shape), B)
        weights = weight_matrices(engine.xp, geometry, W)
        return _mix(engine, geometry, X, weights, B, geometry.output_shape)

    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """See `Method`."""
        if geometry.is_one_product:
            dX = engine.product(_rows(engine.xp, dY), _rows(engine.xp, W))
            return with_bias(engine, engine.xp.reshape(dX, geometry.input_shape), B)
        weights = engine.xp.matrix_transpose(weight_matrices(engine.xp, geometry, W))
        return _mix(engine, geometry, dY, weights, B, geometry.input_shape)

    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """See `Method`."""
        xp, g = engine.xp, geometry
        if g.is_one_product:
            dW = engine.product(xp.matrix_transpose(_rows(xp, dY)), _rows(xp, X))
            return xp.reshape(dW, g.weight_shape)

        def block(images: slice, totals: list[Any] | None) -> list[Any]:
            rows = columns_of_images(xp, rows_of_channels(xp, g, dY[images, ...]))
            others = columns_of_images(xp, rows_of_channels(xp, g, X[images, ...]))
            (total,) = totals or (None,)
            return [engine.add_product(total, rows, xp.matrix_transpose(others))]

        (dW,) = engine.accumulate(block, few_images(engine, g), prod(g.weight_shape))
        return xp.reshape(dW, g.weight_shape)


def _rows(xp: Any, array: Any) -> Any:
    """A row for each image, or each kernel."""
    return xp.reshape(array, (array.shape[0], prod(array.shape[1:])))


def _mix(engine: Engine, g: ConvGeometry, images: Any, weights: Any, B: Any, shape: tuple[int, ...]) -> Any:
    """The product of every position's channels with the weights, plus B."""
    xp = engine.xp

    def block(block: slice, target: Any) -> Any:
        place = None if target is None else rows_of_channels(xp, g, target)
        Y = engine.product(weights, rows_of_channels(xp, g, images[block, ...]), place)
        return with_bias(engine, xp.reshape(Y, (-1, *shape[1:])), B, target)

    return engine.assemble(block, image_blocks(engine, g), shape=shape, like=images, alike=True)
