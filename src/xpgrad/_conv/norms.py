"""Norms of each sample's weight gradient from pairs of positions, if positions are few; see `per_sample`.

The weight gradient of a convolution is a sum of outer products over positions: the cotangents of a position
times its input patch.
"""

from __future__ import annotations

from math import prod
from typing import Any

from xpgrad._conv.geometry import ConvGeometry
from xpgrad._recurrent.per_sample import square_norms_of_products, takes_pairs
from xpgrad.engine.protocol import Engine


def takes_pairs_of_patches(g: ConvGeometry) -> bool:
    """Whether pairs of positions take fewer multiplications than the gradient itself."""
    return takes_pairs(prod(g.output_size), g.outputs // g.group, prod(g.weight_shape[1:]))


def elements_of_patches(g: ConvGeometry) -> int:
    """The number of elements of a sample's patches."""
    return prod(g.output_size) * g.channels * len(g.taps)


def square_norms_by_patches(engine: Engine, g: ConvGeometry, dY: Any, X: Any) -> Any:
    """The squared norms of each sample's dW, (n,), for dY (n, O, *output_size) and X (n, C, *size)."""
    xp, n, positions = engine.xp, X.shape[0], prod(g.output_size)
    d = xp.reshape(dY, (n * g.group, g.outputs // g.group, positions))
    x = xp.reshape(_patches(engine, g, X), (n * g.group, prod(g.weight_shape[1:]), positions))
    squares = square_norms_of_products(engine, *(xp.permute_dims(a, (2, 0, 1)) for a in (d, x)))
    return xp.sum(xp.reshape(squares, (n, g.group)), axis=1)


def _patches(engine: Engine, g: ConvGeometry, X: Any) -> Any:
    """The input patches of all outputs, (n, C, taps, *output_size)."""
    X = engine.pad(X, g.begin, g.end)

    def of_tap(tap: tuple[int, ...]) -> Any:
        places = zip(tap, g.dilations, g.output_size, g.strides, strict=True)
        return X[(..., *(slice(k * d, k * d + (o - 1) * s + 1, s) for k, d, o, s in places))]

    return engine.xp.stack([of_tap(tap) for tap in g.taps], axis=2)
