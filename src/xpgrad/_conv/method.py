"""The interface of a convolution method: a forward and two gradients of one geometry."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar, cast

from xpgrad._conv.geometry import ConvGeometry
from xpgrad.engine.images.parts import Part
from xpgrad.engine.protocol import Engine

_COLUMNS = 512  # of a product: for so many it is worth reading all weights
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Method(ABC):
    """A way to compute a convolution; all methods give the same numbers except for rounding.

    Arrays are in the engine's namespace, have the shapes of the geometry, and are not empty.
    """

    name: str

    def why_not(self, geometry: ConvGeometry, transforms: bool) -> str | None:
        """The end of a sentence: why the method cannot compute this geometry; None if it can.

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


def by_groups(
    compute: Callable[..., Any], engine: Engine, geometry: ConvGeometry, arrays: Sequence[Any],
    axes: Sequence[int], shape: Sequence[int],
) -> Any:  # fmt: skip
    """A sum of this shape, whose groups are ``compute(engine, geometry, *arrays)`` with one group each.

    `axes` has the axis of the groups in each array, and in the sum: that of channels, or the first one.
    """
    xp, count, own = engine.xp, geometry.group, geometry.of_a_group()

    def in_groups(sizes: Sequence[int], axis: int) -> tuple[int, ...]:
        return (*sizes[:axis], count, sizes[axis] // count, *sizes[axis + 1 :])

    *given, axis = axes
    each = zip(arrays, given, strict=True)
    apart = [None if x is None else xp.reshape(x, in_groups(x.shape, at)) for x, at in each]

    def some(group: slice, target: Any) -> Any:
        parts = []
        for x, at in zip(apart, given, strict=True):
            before = (slice(None),) * at
            parts.append(None if x is None else x[(*before, group, ...)][(*before, 0, ...)])
        return xp.expand_dims(compute(engine, own, *parts), axis=axis)

    groups = [slice(number, number + 1) for number in range(count)]
    whole = engine.assemble(some, groups, axis=axis, shape=in_groups(shape, axis), like=arrays[0], alike=True)
    return xp.reshape(whole, tuple(shape))


def image_size(geometry: ConvGeometry) -> int:
    """The elements of one input image and one output image, for an engine's choice of blocks."""
    return prod(geometry.input_shape[1:]) + prod(geometry.output_shape[1:])


def image_blocks(engine: Engine, geometry: ConvGeometry, most: int | None = None) -> Sequence[Part]:
    """An engine's blocks of images; each block reads all weights."""
    least = prod(geometry.weight_shape) // 2
    return engine.blocks(geometry.batch, image_size(geometry), most=most, least=least)


def few_images(engine: Engine, geometry: ConvGeometry) -> Sequence[Part]:
    """Blocks of images, as few as give products of many columns."""
    return image_blocks(engine, geometry, -(-_COLUMNS // prod(geometry.output_size)))


def columns_of_images(xp: Any, array: Any) -> Any:
    """(n, group, rows, L) as (group, rows, n * L); a view if n is 1."""
    n, group, rows, length = array.shape
    if n == 1:
        return array[0, ...]
    return xp.reshape(xp.permute_dims(array, (1, 2, 0, 3)), (group, rows, n * length))


def weights_of_taps(xp: Any, g: ConvGeometry, W: Any) -> Any:
    """W as (group, O / group, C / group, taps)."""
    return xp.reshape(W, (g.group, g.outputs // g.group, g.channels // g.group, len(g.taps)))


def weight_matrices(xp: Any, g: ConvGeometry, W: Any) -> Any:
    """W as (group, O / group, C / group * taps)."""
    return xp.reshape(W, (g.group, g.outputs // g.group, g.channels // g.group * len(g.taps)))


def rows_of_channels(xp: Any, g: ConvGeometry, images: Any) -> Any:
    """Images (n, channels, *size) as (n, group, channels / group, elements)."""
    n, channels, *size = images.shape
    return xp.reshape(images, (n, g.group, channels // g.group, prod(size)))


def kept(function: _Function) -> _Function:
    """Keep a function's results for geometries; a compiler's symbols for sizes cannot be keys."""
    cached = functools.lru_cache(maxsize=256)(function)

    @functools.wraps(function)
    def call(geometry: ConvGeometry, *rest: Any) -> Any:
        return (cached if geometry.is_known else function)(geometry, *rest)

    return cast(_Function, call)
