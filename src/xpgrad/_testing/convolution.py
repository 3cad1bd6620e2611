"""Convolutions and their gradients, element by element."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from xpgrad._testing.comparing import to_numpy
from xpgrad._testing.sequences import of_samples
from xpgrad.conv import ConvGrads

Array = Any


def _meetings(
    X_size: Sequence[int], kernel: Sequence[int], Y_size: Sequence[int], attributes: Mapping[str, Any]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """The spatial indices (of X, of W, of Y) of each product; products with the padding are left out."""
    for j in itertools.product(*map(range, Y_size)):
        for k in itertools.product(*map(range, kernel)):
            i = tuple(
                j[axis] * attributes["strides"][axis]
                + k[axis] * attributes["dilations"][axis]
                - attributes["pads"][axis]
                for axis in range(len(j))
            )
            if all(0 <= i[axis] < X_size[axis] for axis in range(len(j))):
                yield i, k, j


def _spelled_out(n: int, strides: Any, pads: Any, dilations: Any) -> dict[str, list[int]]:
    """The attributes with one number for each dimension; pads have two."""

    def each(value: Any) -> list[int]:
        return [value] * n if isinstance(value, int) else list(value)

    ends = each(pads)
    return {
        "strides": each(strides),
        "dilations": each(dilations),
        "pads": ends if len(ends) == 2 * n else ends * 2,
    }


def conv_reference(
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
) -> np.ndarray:
    """`xpgrad.conv` as its direct sum in float64, one pair of positions after the other.

    Parameters
    ----------
    X, W, B, strides, pads, dilations, group
        As in `xpgrad.conv`.

    Returns
    -------
    numpy.ndarray, shape (N, O, *output_size)
        The output, float64.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import conv_reference
    >>> conv_reference(np.ones((1, 1, 4)), np.ones((1, 1, 3)), pads=1)
    array([[[2., 3., 3., 2.]]])
    """
    x, w = to_numpy(X), to_numpy(W)
    n, kernel = x.ndim - 2, w.shape[2:]
    at = _spelled_out(n, strides, pads, dilations)
    size = [
        (x.shape[2 + a] + at["pads"][a] + at["pads"][n + a] - (kernel[a] - 1) * at["dilations"][a] - 1)
        // at["strides"][a]
        + 1
        for a in range(n)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *size))
    for i, k, j in _meetings(x.shape[2:], kernel, size, at):
        for sees, makes in _group_channels(x.shape[1], w.shape[0], group):
            _at(y, j)[:, makes] += _at(x, i)[:, sees] @ _at(w, k)[makes].T
    return y if B is None else y + to_numpy(B).reshape(-1, *[1] * n)


def _at(array: np.ndarray, position: tuple[int, ...]) -> np.ndarray:
    """A view of an array's first two dimensions as a matrix, at one position of the other dimensions."""
    index: tuple[Any, ...] = (slice(None), slice(None), *position)
    return array[index]


def _group_channels(channels: int, outputs: int, group: int) -> Iterator[tuple[slice, slice]]:
    """The input channels and the output channels of each group."""
    c, o = channels // group, outputs // group
    return ((slice(g * c, (g + 1) * c), slice(g * o, (g + 1) * o)) for g in range(group))


def conv_grad_reference(
    dY: Array,
    X: Array,
    W: Array,
    *,
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    group: int = 1,
    per_sample: bool | str = False,
    sample_weight: Array | None = None,
) -> ConvGrads:
    """`xpgrad.conv_grad` as its direct sums in float64.

    Parameters
    ----------
    dY, X, W, strides, pads, dilations, group, per_sample, sample_weight
        As in `xpgrad.conv_grad`.

    Returns
    -------
    ConvGrads
        ``(dX, dW, dB)`` as NumPy arrays, float64.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import conv_grad_reference
    >>> conv_grad_reference(np.ones((1, 1, 2)), np.asarray([[[1.0, 2.0, 4.0]]]), np.ones((1, 1, 2))).dW
    array([[[3., 6.]]])
    """
    dy, x, w = to_numpy(dY), to_numpy(X), to_numpy(W)
    at = _spelled_out(x.ndim - 2, strides, pads, dilations)
    dx, dw = np.zeros(x.shape), np.zeros((x.shape[0], *w.shape))
    for i, k, j in _meetings(x.shape[2:], w.shape[2:], dy.shape[2:], at):
        for sees, makes in _group_channels(x.shape[1], w.shape[0], group):
            cotangent = _at(dy, j)[:, makes]
            _at(dx, i)[:, sees] += cotangent @ _at(w, k)[makes]
            for own, d, seen in zip(dw, cotangent, _at(x, i)[:, sees], strict=True):
                own[(..., *k)][makes] += np.outer(d, seen)
    db = dy.sum(axis=tuple(range(2, dy.ndim)))
    return ConvGrads(dx, *(of_samples(a, per_sample, sample_weight, leading=1) for a in (dw, db)))
