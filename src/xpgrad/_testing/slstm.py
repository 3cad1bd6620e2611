"""The sLSTM by its definition, one sample and one step at a time."""

from __future__ import annotations

import itertools
from typing import Any

from array_api_compat import array_namespace, device

from xpgrad._testing.sequences import lengths_of, time_order

Array = Any


def _product(xp: Any, R: Array, h: Array, heads: int) -> Array:
    """R h for a block-diagonal R (4H, H / heads), gate by gate and head by head."""
    width = h.shape[0] // heads
    parts = [
        xp.matmul(R[row : row + width, :], h[row % h.shape[0] : row % h.shape[0] + width])
        for row in range(0, R.shape[0], width)
    ]
    return xp.concat(parts, axis=0)


def _sigmoid(xp: Any, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def slstm_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    initial_n: Array | None = None,
    initial_m: Array | None = None,
    *,
    heads: int = 1,
    forget: str = "sigmoid",
    direction: str = "forward",
) -> tuple[Array, ...]:
    r"""Naive sLSTM: `xpgrad.slstm` by the definition.

    Only plain operations of the array namespace, nothing written in place: with torch tensors that require
    gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h, initial_c, initial_n, initial_m : array
        As for `xpgrad.slstm`. They are taken to be valid.
    heads, forget, direction
        As for `xpgrad.slstm`.

    Returns
    -------
    tuple of array
        H_all, H_t, C_t, N_t, M_t, C_all, N_all, M_all.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import slstm_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 16, 3)), rng.normal(size=(1, 16, 2))
    >>> slstm_reference(X, W, R, heads=2)[0].shape
    (5, 1, 2, 4)
    """
    xp, (T, N, _), (D, rows, _) = array_namespace(X), X.shape, W.shape
    H, lengths = rows // 4, lengths_of(sequence_lens, X.shape[0], X.shape[1])
    zeros = xp.zeros((H,), dtype=X.dtype, device=device(X))
    given = (initial_h, initial_c, initial_n, initial_m)
    steps: dict[tuple[int, int, int], tuple[Array, ...]] = {}
    ends: dict[tuple[int, int], tuple[Array, ...]] = {}
    for d, n in itertools.product(range(D), range(N)):
        states = tuple(zeros if state is None else state[d, n, :] for state in given)
        for t in time_order(direction, d, lengths[n]):
            z = xp.matmul(W[d, :, :], X[t, n, :]) + _product(xp, R[d, :, :], states[0], heads)
            z = z if B is None else z + B[d, :]
            steps[t, d, n] = states = _step(xp, z, states, forget)
        ends[d, n] = states

    def stack(found: dict[Any, tuple[Array, ...]], k: int, *shape: int) -> Array:
        none = (zeros,) * 4
        values = [found.get(key, none)[k] for key in itertools.product(*map(range, shape))]
        return xp.reshape(xp.stack(values), (*shape, H)) if values else xp.zeros((*shape, H), dtype=X.dtype)

    over_time = [stack(steps, k, T, D, N) for k in range(4)]
    return over_time[0], *(stack(ends, k, D, N) for k in range(4)), *over_time[1:]


def _step(xp: Any, z: Array, states: tuple[Array, ...], forget: str) -> tuple[Array, ...]:
    """The states after a step, from its pre-activations and the states before."""
    H, (_, c, n, m) = z.shape[0] // 4, states
    zi, zf, zz, zo = (z[k * H : (k + 1) * H] for k in range(4))
    kept = m + (xp.log(_sigmoid(xp, zf)) if forget == "sigmoid" else zf)
    m = xp.where(n == 0, zi, xp.where(kept > zi, kept, zi))
    i, f = xp.exp(zi - m), xp.exp(kept - m)
    c, n = f * c + i * xp.tanh(zz), f * n + i
    return _sigmoid(xp, zo) * c / n, c, n, m
