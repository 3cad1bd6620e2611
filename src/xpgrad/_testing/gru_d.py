"""GRU-D by its definition, one sample and one step at a time."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device

from xpgrad._testing.activations import sigmoid
from xpgrad._testing.sequences import each_step, lengths_of

Array = Any


def gru_d_reference(
    X: Array,
    mask: Array,
    delta: Array,
    W: Array,
    R: Array,
    decay_x: Array,
    decay_h: Array,
    B: Array | None = None,
    mean: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    direction: str = "forward",
) -> tuple[Array, ...]:
    r"""Naive GRU-D: `xpgrad.gru_d` by the definition, for values without NaN.

    The function uses plain operations of the array namespace and writes nothing in place. With torch tensors
    that require gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, mask, delta, W, R, decay_x, decay_h, B, mean, sequence_lens, initial_h : array
        As for `xpgrad.gru_d`. They are taken to be valid, the mask to be of 0 and 1.
    direction
        As for `xpgrad.gru_d`.

    Returns
    -------
    tuple of array
        H_all, H_t.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import gru_d_reference
    >>> rng = np.random.default_rng(0)
    >>> X, mask, delta = rng.normal(size=(5, 2, 3)), np.ones((5, 2, 3)), np.ones((5, 2, 3))
    >>> shapes = [(1, 12, 6), (1, 12, 4), (1, 2, 3), (1, 4, 4)]
    >>> gru_d_reference(X, mask, delta, *(rng.normal(size=s) for s in shapes))[0].shape
    (5, 1, 2, 4)
    """
    xp, (T, N, I), (D, rows, _) = array_namespace(X), X.shape, R.shape
    H, lengths = rows // 3, lengths_of(sequence_lens, T, N)
    zeros = xp.zeros((H,), dtype=X.dtype, device=device(X))

    def decay(x: Array) -> Array:
        return xp.exp(-xp.where(x > 0, x, 0 * x))

    def step(d: int, x: Array, m: Array, gap: Array, last: Array, h: Array) -> tuple[Array, Array]:
        average = 0 * x if mean is None else mean[d, :]
        last = m * x + (1 - m) * last
        g = decay(decay_x[d, 0, :] * gap + decay_x[d, 1, :])
        filled = m * x + (1 - m) * (g * last + (1 - g) * average)
        h = h * decay(xp.matmul(decay_h[d, :, :I], gap) + decay_h[d, :, I])
        p = xp.matmul(W[d, :, :], xp.concat([filled, m], axis=0))
        p = p if B is None else p + B[d, :]
        (pz, pr, ph), (Rz, Rr, Rh) = (
            [a[k * H : (k + 1) * H, ...] for k in range(3)] for a in (p, R[d, :, :])
        )
        z, r = sigmoid(xp, pz + xp.matmul(Rz, h)), sigmoid(xp, pr + xp.matmul(Rr, h))
        return last, (1 - z) * h + z * xp.tanh(ph + xp.matmul(Rh, r * h))

    def begin(d: int, n: int) -> tuple[Array, ...]:
        state = zeros if initial_h is None else initial_h[d, n, :]
        return (0 * X[0, n, :] if mean is None else mean[d, :]), state

    def visit(t: int, d: int, n: int, before: tuple[Array, ...]) -> tuple[Array, ...]:
        return step(d, X[t, n, :], mask[t, n, :], delta[t, n, :], *before)

    padding = xp.zeros((I,), dtype=X.dtype, device=device(X)), zeros
    (_, H_all), (_, H_t) = each_step(visit, begin, padding, T, lengths, D, direction)
    return H_all, H_t
