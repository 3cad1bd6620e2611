"""The GRU with an attentional update gate by its definition, one sample and one step at a time."""

from __future__ import annotations

import itertools
from typing import Any

from array_api_compat import array_namespace, device

from xpgrad._testing.sequences import lengths_of, time_order

Array = Any


def augru_reference(
    X: Array,
    attention: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    linear_before_reset: int = 0,
    direction: str = "forward",
) -> tuple[Array, ...]:
    r"""Naive AUGRU: `xpgrad.augru` by the definition.

    Only plain operations of the array namespace, nothing written in place: with torch tensors that require
    gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, attention, W, R, B, sequence_lens, initial_h : array
        As for `xpgrad.augru`. They are taken to be valid.
    linear_before_reset, direction
        As for `xpgrad.augru`.

    Returns
    -------
    tuple of array
        H_all, H_t.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import augru_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 12, 4))
    >>> augru_reference(X, rng.uniform(size=(5, 2, 1)), W, R)[0].shape
    (5, 1, 2, 4)
    """
    xp, (T, N, _), (D, rows, _) = array_namespace(X), X.shape, W.shape
    H, lengths = rows // 3, lengths_of(sequence_lens, X.shape[0], X.shape[1])
    zeros = xp.zeros((H,), dtype=X.dtype, device=device(X))

    def sigmoid(x: Array) -> Array:
        return 1 / (1 + xp.exp(-x))

    def step(d: int, x: Array, a: Array, h: Array) -> Array:
        wz, wr, wh = (xp.matmul(W[d, k * H : (k + 1) * H, :], x) for k in range(3))
        Rz, Rr, Rh = (R[d, k * H : (k + 1) * H, :] for k in range(3))
        bz, br, bh, cz, cr, ch = (0 if B is None else B[d, k * H : (k + 1) * H] for k in range(6))
        r = sigmoid(wr + xp.matmul(Rr, h) + br + cr)
        z = (1 - a) * sigmoid(wz + xp.matmul(Rz, h) + bz + cz)
        inside = r * (xp.matmul(Rh, h) + ch) if linear_before_reset else xp.matmul(Rh, r * h) + ch
        return (1 - z) * xp.tanh(wh + bh + inside) + z * h

    steps: dict[tuple[int, int, int], Array] = {}
    ends: dict[tuple[int, int], Array] = {}
    for d, n in itertools.product(range(D), range(N)):
        h = zeros if initial_h is None else initial_h[d, n, :]
        for t in time_order(direction, d, lengths[n]):
            steps[t, d, n] = h = step(d, X[t, n, :], attention[t, n, :], h)
        ends[d, n] = h

    def stack(found: dict[Any, Array], *shape: int) -> Array:
        values = [found.get(key, zeros) for key in itertools.product(*map(range, shape))]
        return xp.reshape(xp.stack(values), (*shape, H)) if values else xp.zeros((*shape, H), dtype=X.dtype)

    return stack(steps, T, D, N), stack(ends, D, N)
