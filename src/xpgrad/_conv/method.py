"""What a method of convolution offers: a forward, and the two gradients, all of one geometry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad.engine.protocol import Engine


class Method(ABC):
    """A way to compute a convolution; every method gives the same numbers but for rounding.

    Arrays come lifted, in the engine's namespace, with the shapes of the geometry, and none is empty.
    """

    name: str

    def why_not(self, engine: Engine, geometry: ConvGeometry) -> str | None:
        """Why the method can't compute this geometry here, as the end of a sentence, or None."""
        return None

    @abstractmethod
    def forward(self, engine: Engine, geometry: ConvGeometry, X: Any, W: Any, B: Any) -> Any:
        """Y, (N, O, *output_size); B, (O,), may be None."""

    @abstractmethod
    def input_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, W: Any, B: Any = None) -> Any:
        """dX, (N, C, *size); plus B, (C,), where given: then it is a transposed convolution."""

    @abstractmethod
    def weight_gradient(self, engine: Engine, geometry: ConvGeometry, dY: Any, X: Any) -> Any:
        """dW, (O, C / group, *kernel)."""


def with_bias(engine: Engine, Y: Any, B: Any, target: Any = None) -> Any:
    """Y (n, O, ...) plus B (O,) along its channels, where B is given, perhaps in the memory of `target`."""
    if B is None:
        return Y
    return engine.add(Y, engine.xp.reshape(B, (B.shape[0],) + (1,) * (Y.ndim - 2)), target)


def image_size(geometry: ConvGeometry) -> int:
    """The elements of one image of input and one of output, for which an engine is to plan blocks."""
    return prod(geometry.input_shape[1:]) + prod(geometry.output_shape[1:])


def columns_of_images(xp: Any, array: Any) -> Any:
    """(n, group, rows, L) as (group, rows, n * L); a view where n is 1."""
    n, group, rows, length = array.shape
    if n == 1:
        return array[0, ...]
    return xp.reshape(xp.permute_dims(array, (1, 2, 0, 3)), (group, rows, n * length))
