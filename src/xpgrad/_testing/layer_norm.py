"""Recurrent networks with layer normalization, one sample and one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from array_api_compat import array_namespace

from xpgrad._testing.activations import activate, read_activations
from xpgrad._testing.sequences import bounded, walk

Array = Any


def _normalized(xp: Any, z: Array, scale: Array, shift: Array, epsilon: float) -> Array:
    centered = z - xp.mean(z)
    variance = xp.mean(centered * centered)
    return xp.astype(scale, z.dtype) * centered / xp.sqrt(variance + epsilon) + xp.astype(shift, z.dtype)


def layer_norm_lstm_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    gamma: Array,
    beta: Array,
    gamma_c: Array,
    beta_c: Array,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    *,
    epsilon: float = 1e-5,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Array | None = None,
) -> tuple[Array, ...]:
    r"""Naive LSTM with layer normalization: `xpgrad.layer_norm_lstm` by the definition.

    The function uses plain operations of the array namespace and writes nothing in place. With torch tensors
    that require gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, W, R, B, gamma, beta, gamma_c, beta_c, sequence_lens, initial_h, initial_c : array
        As for `xpgrad.layer_norm_lstm`. They are taken to be valid.
    epsilon, direction, activations, activation_alpha, activation_beta, clip, layout, reset
        As for `xpgrad.layer_norm_lstm`.

    Returns
    -------
    tuple of array
        H_all, H_t, C_t, C_all.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import layer_norm_lstm_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 16, 3)), rng.normal(size=(1, 16, 4))
    >>> gamma, beta = np.ones((1, 2, 16)), np.zeros((1, 2, 16))
    >>> layer_norm_lstm_reference(X, W, R, None, gamma, beta, np.ones((1, 4)), np.zeros((1, 4)))[0].shape
    (5, 1, 2, 4)
    """
    xp, D, H = array_namespace(X), R.shape[0], R.shape[2]
    acts = read_activations("layer_norm_lstm_reference", 3, activations, activation_alpha, activation_beta, D)

    def step(d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array) -> Any:
        f, g, h = acts[d]
        z = _normalized(xp, xp.matmul(W, x), gamma[d, 0, :], beta[d, 0, :], epsilon)
        z = z + _normalized(xp, xp.matmul(R, states[0]), gamma[d, 1, :], beta[d, 1, :], epsilon)
        z = z + b[: 4 * H] + b[4 * H :]
        z_i, z_o, z_f, z_c = (bounded(xp, z[k * H : (k + 1) * H], clip) for k in range(4))
        c = activate(xp, f, z_f) * states[1] + activate(xp, f, z_i) * activate(xp, g, z_c)
        normal = _normalized(xp, c, gamma_c[d, :], beta_c[d, :], epsilon)
        return (activate(xp, f, z_o) * activate(xp, h, normal), c), z

    initial = (initial_h, initial_c)
    (H_all, C_all), ends, _ = walk(
        step, 4, X, W, R, B, sequence_lens, initial, direction, layout, reset=reset
    )
    return H_all, *ends, C_all


def layer_norm_gru_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    gamma: Array,
    beta: Array,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    epsilon: float = 1e-5,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Array | None = None,
) -> tuple[Array, ...]:
    r"""Naive GRU with layer normalization: `xpgrad.layer_norm_gru` by the definition.

    The function uses plain operations of the array namespace and writes nothing in place. With torch tensors
    that require gradients, PyTorch's autograd differentiates it.

    Parameters
    ----------
    X, W, R, B, gamma, beta, sequence_lens, initial_h : array
        As for `xpgrad.layer_norm_gru`. They are taken to be valid.
    epsilon, direction, activations, activation_alpha, activation_beta, clip, layout, reset
        As for `xpgrad.layer_norm_gru`.

    Returns
    -------
    tuple of array
        H_all, H_t.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import layer_norm_gru_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 12, 4))
    >>> layer_norm_gru_reference(X, W, R, None, np.ones((1, 2, 12)), np.zeros((1, 2, 12)))[0].shape
    (5, 1, 2, 4)
    """
    xp, D, H = array_namespace(X), R.shape[0], R.shape[2]
    acts = read_activations("layer_norm_gru_reference", 2, activations, activation_alpha, activation_beta, D)

    def step(d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array) -> Any:
        (f, g), [h] = acts[d], states
        a = _normalized(xp, xp.matmul(W, x), gamma[d, 0, :], beta[d, 0, :], epsilon) + b[: 3 * H]
        p = _normalized(xp, xp.matmul(R, h), gamma[d, 1, :], beta[d, 1, :], epsilon) + b[3 * H :]
        z, r = (activate(xp, f, bounded(xp, (a + p)[k * H : (k + 1) * H], clip)) for k in range(2))
        n = activate(xp, g, bounded(xp, a[2 * H :] + r * p[2 * H :], clip))
        return ((1 - z) * n + z * h,), a

    over_time, ends, _ = walk(step, 3, X, W, R, B, sequence_lens, [initial_h], direction, layout, reset=reset)
    return *over_time, *ends
