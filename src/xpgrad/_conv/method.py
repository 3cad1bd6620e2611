"""The interface of a convolution method: a forward and two gradients of one geometry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad.engine.protocol import Engine

_COLUMNS = 512


class Method(ABC):
    """A way to compute a convolution; all methods give the same numbers except for rounding.

    Arrays are lifted to the engine's namespace, have the shapes of the geometry, and are not empty.
    """

    name: str

    def why_not(self, geometry: ConvGeometry, transforms: bool) -> str | None:
        """Why the method can't compute this geometry, as the end of a sentence, or None.

        `transforms` says whether the engine has a Fourier transform.
        """
        return None

    @abstractmethod
    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """Y, (N, O, *output_size); B, (O,), may be None."""

    @abstractmethod
    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """dX, (N, C, *size), plus B, (C,), if given: then it is a transposed convolution."""

    @abstractmethod
    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """dW, (O, C / group, *kernel)."""


def with_bias(engine: Engine, Y: Any, B: Any, target: Any = None) -> Any:
    """Y (n, O, ...) plus B (O,), if given, along its channels, perhaps in the memory of `target`."""
    if B is None:
        return Y
    return engine.add(Y, engine.xp.reshape(B, (B.shape[0],) + (1,) * (Y.ndim - 2)), target)


def image_size(geometry: ConvGeometry) -> int:
    """The elements of one input image and one output image, for an engine's choice of blocks."""
    return prod(geometry.input_shape[1:]) + prod(geometry.output_shape[1:])


def few_images(engine: Engine, geometry: ConvGeometry) -> list[slice]:
    """Blocks of as few images as make products of many columns, for which it is worth reading all weights."""
    most = -(-_COLUMNS // prod(geometry.output_size))
    return engine.blocks(geometry.batch, image_size(geometry), most=most)


def columns_of_images(xp: Any, array: Any) -> Any:
    """(n, group, rows, L) as (group, rows, n * L); a view if n is 1."""
    n, group, rows, length = array.shape
    if n == 1:
        return array[0, ...]
    return xp.reshape(xp.permute_dims(array, (1, 2, 0, 3)), (group, rows, n * length))
