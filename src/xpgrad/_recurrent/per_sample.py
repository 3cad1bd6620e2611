r"""Norms of per-sample gradients, without the gradients themselves.

The gradient of a weight for one sample is a sum of outer products, :math:`G = \sum_t d_t x_t^T`. The square
of its Euclidean norm is also a sum over pairs,

.. math:: \|G\|^2 = \sum_{t,s} (d_t \cdot d_s)\,(x_t \cdot x_s),

which takes T·T·(out + in) multiplications instead of T·out·in, and T·T numbers instead of out·in. The cheaper
way is used, for as many samples at a time as fit the cache.

References
----------
Goodfellow, "Efficient per-example gradient computations" (2015), for T = 1. Rochette, Manoel, Tramel,
"Efficient per-example gradient computations in convolutional neural networks" (2019), Li et al., "Large
language models can be strong differentially private learners" (2022), for the sum over pairs.
"""

from __future__ import annotations

from typing import Any

from xpgrad.engine import TimeLoops
from xpgrad.engine.images.parts import slices

# The most numbers in the products of a block of samples, and the most samples in a block.
_ELEMENTS, _SAMPLES = 1 << 20, 256

PER_SAMPLE = (False, True, "norm")
"""The values of the argument `per_sample`."""


def square_norms(engine: TimeLoops, vectors: Any) -> Any:
    """The squares of each sample's norm, (N,), of vectors (N, width)."""
    return engine.column_dots(vectors.T, vectors.T)


def square_norms_of_products(engine: TimeLoops, d: Any, x: Any) -> Any:
    """The squared norms (N,) of each sample's sum over time of outer products, d (T, N, out), x (T, N, in).

    Padding is 0 in both.
    """
    xp = engine.xp
    T, N, out = d.shape
    inner = x.shape[2]
    pairs = takes_pairs(T, out, inner)
    squares: list[Any] = []
    for samples in samples_at_a_time(N, T * T if pairs else out * inner):
        own = [a[:, samples, :] for a in (d, x)]
        by_time = [xp.permute_dims(a, (1, 0, 2)) for a in own]
        by_width = [xp.permute_dims(a, (1, 2, 0)) for a in own]
        if pairs:
            products = [engine.matmul(a, b) for a, b in zip(by_time, by_width, strict=True)]
        else:
            products = [engine.matmul(by_width[0], by_time[1])] * 2
        squares.append(_dots(engine, *products))
    if not squares:
        return xp.sum(d, axis=(0, 2))
    return squares[0] if len(squares) == 1 else xp.concat(squares, axis=0)


def takes_pairs(T: int, out: int, inner: int) -> bool:
    """Whether the sum over pairs of T vectors takes fewer multiplications than the gradient (out, inner)."""
    return T * (out + inner) < out * inner


def samples_at_a_time(count: int, size: int) -> list[slice]:
    """Blocks of a batch, for samples of `size` numbers each."""
    return slices(count, min(_SAMPLES, max(1, _ELEMENTS // max(1, size))))


def _dots(engine: TimeLoops, a: Any, b: Any) -> Any:
    """Inner products, (n,), of each pair of matrices in stacks (n, rows, columns)."""
    xp = engine.xp
    n, rows, columns = a.shape
    if n == 1:  # in the order of memory
        whole = engine.column_dots(a[0, ...], b[0, ...])
        return engine.column_sums(xp.reshape(whole, (columns, 1)))
    flat = [xp.reshape(each, (n, rows * columns)).T for each in (a, b)]
    return engine.column_dots(*flat)
