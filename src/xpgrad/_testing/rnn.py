"""The plain recurrent network and its backward, one sample and one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from xpgrad._testing.activations import activate, read_activations
from xpgrad._testing.sequences import StepBack, Track, bounded, gate_slope, walk, walk_back
from xpgrad.rnn import RNNForward, RNNGrads

Array = Any


def rnn_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: Array | None = None,
) -> RNNForward:
    r"""Naive RNN: `xpgrad.rnn` by the definition, one sample and one step at a time.

    .. math:: h_t = f(W x_t + w + R h_{t-1} + v)

    w and v are B's halves, the input and the recurrence bias. `clip` bounds the argument of f to
    [-clip, clip].

    The function uses plain operations of the array namespace and writes nothing in place. With torch tensors
    that require gradients, PyTorch's autograd differentiates it: an oracle for every option.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h : array
        As for `xpgrad.rnn`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, layout, reset
        As for `xpgrad.rnn`.

    Returns
    -------
    RNNForward
        H_all, H_t, in the dtype of X; half precision is computed in float32.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import rnn_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4, 4))
    >>> rnn_reference(X, W, R).H_all.shape
    (5, 1, 2, 4)
    """
    xp = array_namespace(X)
    acts = read_activations("rnn_reference", 1, activations, activation_alpha, activation_beta, W.shape[0])

    def step(d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array) -> Any:
        H = R.shape[0]
        z = xp.matmul(W, x) + xp.matmul(R, states[0]) + b[:H] + b[H:]
        h = activate(xp, acts[d][0], bounded(xp, z, clip))
        return (h,), h

    [H_all], [H_t], _ = walk(step, 1, X, W, R, B, sequence_lens, [initial_h], direction, layout, reset=reset)
    return RNNForward(H_all=H_all, H_t=H_t)


def rnn_grad_reference(
    X: np.ndarray,
    W: np.ndarray,
    R: np.ndarray,
    *,
    H_all: np.ndarray,
    grad_H_all: np.ndarray | None = None,
    grad_H_t: np.ndarray | None = None,
    B: np.ndarray | None = None,
    sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    layout: int = 0,
    reset: np.ndarray | None = None,
    per_sample: bool | str = False,
    sample_weight: np.ndarray | None = None,
) -> RNNGrads:
    r"""Naive RNN backward in NumPy: `xpgrad.rnn_grad`, one sample and one step at a time.

    With :math:`a_t` the argument of f, a step takes :math:`\bar h_t`, the sum from later steps and
    cotangents, to

    .. math:: \bar a_t = \bar h_t \odot f'(a_t), \quad \bar h_{t-1} = R^T \bar a_t

    and the parameters' gradients sum over steps. The saved outputs give the slopes. They do not tell the
    branch of every f, nor what was clipped; for these the function computes :math:`a_t` again.

    Parameters
    ----------
    X, W, R, H_all, grad_H_all, grad_H_t, B, sequence_lens, initial_h
        NumPy arrays, as for `xpgrad.rnn_grad`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, layout, reset
        As for `xpgrad.rnn_grad`.
    per_sample, sample_weight
        As for `xpgrad.rnn_grad`.

    Returns
    -------
    RNNGrads
        dX, dW, dR, dB, dH0, in the dtype of X; computed in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import rnn_grad_reference, rnn_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4, 4))
    >>> y = rnn_reference(X, W, R)
    >>> cotangent = rng.normal(size=(1, 2, 4))
    >>> rnn_grad_reference(X, W, R, H_all=y.H_all, grad_H_t=cotangent).dR.shape
    (1, 4, 4)
    """
    D, H = W.shape[0], R.shape[2]
    acts = read_activations("rnn_grad_reference", 1, activations, activation_alpha, activation_beta, D)

    def step(at: StepBack) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        [h_prev], [h], [dh] = at.before, at.after, at.cotangents
        x, w, r, b = at.x, at.W, at.R, at.b
        a = w @ x + r @ h_prev + b[:H] + b[H:]
        da = dh * gate_slope(acts[at.d][0], h, a, clip)
        found = {
            "X": w.T @ da,
            "W": np.outer(da, x),
            "R": np.outer(da, h_prev),
            "B": np.concatenate([da, da]),
        }
        return found, [r.T @ da]

    tracks = (Track(H_all, grad_H_all, grad_H_t, initial_h),)
    grads, [dH0] = walk_back(
        step, X, W, R, B, sequence_lens, tracks, H_all, {"B": 2 * H}, direction, layout, per_sample,
        sample_weight, reset=reset,
    )  # fmt: skip
    return RNNGrads(grads["X"], grads["W"], grads["R"], grads["B"], dH0)
