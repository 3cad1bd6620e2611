"""The GRU and its backward, one sample and one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from xpgrad._testing.activations import activate, read_activations
from xpgrad._testing.sequences import StepBack, Track, bounded, gate_slope, walk, walk_back
from xpgrad.gru import GRUForward, GRUGrads

Array = Any


def gru_reference(
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
    linear_before_reset: int = 0,
    layout: int = 0,
    recurrent_mask: Array | None = None,
    zoneout_h: Array | None = None,
    reset: Array | None = None,
) -> GRUForward:
    r"""Naive GRU: `xpgrad.gru` by the definition, one sample and one step at a time.

    .. math::

        z_t &= f(W_z x_t + w_z + R_z h_{t-1} + v_z) \\
        r_t &= f(W_r x_t + w_r + R_r h_{t-1} + v_r) \\
        n_t &= g(W_h x_t + w_h + R_h (r_t \odot h_{t-1}) + v_h)
            &\text{with linear_before_reset} = 0 \\
        n_t &= g(W_h x_t + w_h + r_t \odot (R_h h_{t-1} + v_h))
            &\text{with linear_before_reset} = 1 \\
        h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}

    w and v are B's halves, the input and the recurrence biases. `clip` bounds every argument of f and g to
    [-clip, clip]. Zoneout replaces the state by :math:`k \odot h_{t-1} + (1 - k) \odot h_t`.
    `recurrent_mask` multiplies :math:`h_{t-1}` in its product with R.

    The function uses plain operations of the array namespace and writes nothing in place. With torch tensors
    that require gradients, PyTorch's autograd differentiates it: an oracle for every option.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h : array
        As for `xpgrad.gru`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, linear_before_reset, layout
        As for `xpgrad.gru`.
    recurrent_mask, zoneout_h, reset
        As for `xpgrad.gru`.

    Returns
    -------
    GRUForward
        H_all, H_t, zrh, in the dtype of X; half precision is computed in float32.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import gru_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 12, 4))
    >>> gru_reference(X, W, R, linear_before_reset=1).H_all.shape
    (5, 1, 2, 4)
    """
    xp = array_namespace(X)
    acts = read_activations("gru_reference", 2, activations, activation_alpha, activation_beta, W.shape[0])

    def step(d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array) -> Any:
        """One step of one sample: x (I,), h (H,), W (3H, I), R (3H, H), b (6H,)."""
        [h], (f_act, g_act) = states, acts[d]
        H = h.shape[0]
        inputs, product, v = xp.matmul(W, x) + b[: 3 * H], xp.matmul(R, h), b[3 * H :]
        a = inputs + product + v
        z, r = (activate(xp, f_act, bounded(xp, a[k * H : (k + 1) * H], clip)) for k in range(2))
        after, before = r * (product + v)[2 * H :], xp.matmul(R[2 * H :, :], r * h) + v[2 * H :]
        a_n = inputs[2 * H :] + (after if linear_before_reset else before)
        n = activate(xp, g_act, bounded(xp, a_n, clip))
        return ((1 - z) * n + z * h,), xp.concat([z, r, n])

    [H_all], [H_t], zrh = walk(
        step, 3, X, W, R, B, sequence_lens, [initial_h], direction, layout, None, recurrent_mask,
        (zoneout_h,), reset,
    )  # fmt: skip
    return GRUForward(H_all=H_all, H_t=H_t, zrh=zrh)


def gru_grad_reference(
    X: np.ndarray,
    W: np.ndarray,
    R: np.ndarray,
    *,
    H_all: np.ndarray,
    zrh: np.ndarray,
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
    linear_before_reset: int = 0,
    layout: int = 0,
    recurrent_mask: np.ndarray | None = None,
    zoneout_h: np.ndarray | None = None,
    reset: np.ndarray | None = None,
    per_sample: bool | str = False,
    sample_weight: np.ndarray | None = None,
) -> GRUGrads:
    r"""Naive GRU backward in NumPy: `xpgrad.gru_grad`, one sample and one step at a time.

    A step takes :math:`\bar h_t`, the sum from later steps and cotangents, to the cotangents of the arguments
    of f and g

    .. math::

        \bar a_z &= \bar h_t \odot (h_{t-1} - n_t) \odot f'(a_z), \quad
            \bar a_n = \bar h_t \odot (1 - z_t) \odot g'(a_n) \\
        \bar a_r &= \bar r_t \odot f'(a_r)

    With ``linear_before_reset=1`` the recurrent product :math:`q = R_h h_{t-1} + v_h` has the cotangent
    :math:`\bar q = \bar a_n \odot r_t`, and :math:`\bar r_t = \bar a_n \odot q`. With 0 it is :math:`q =
    R_h s + v_h` of :math:`s = r_t \odot h_{t-1}`, with :math:`\bar q = \bar a_n, \bar s = R_h^T \bar q` and
    :math:`\bar r_t = \bar s \odot h_{t-1}`. The state before the step gets

    .. math::

        \bar h_{t-1} = \bar h_t \odot z_t + R_z^T \bar a_z + R_r^T \bar a_r
            + (R_h^T \bar q \quad\text{or}\quad \bar s \odot r_t)

    and the parameters' gradients sum over steps.

    The saved gates give the slopes. They do not tell which arguments of f and g were clipped, nor the branch
    of LeakyRelu, Elu and ThresholdedRelu with a negative alpha. For these the function computes the arguments
    again, from X, the saved arrays and the parameters.

    Parameters
    ----------
    X, W, R, H_all, zrh, grad_H_all, grad_H_t, B, sequence_lens, initial_h
        NumPy arrays, as for `xpgrad.gru_grad`. They are taken to be valid.
    recurrent_mask, zoneout_h, reset
        The same.
    direction, activations, activation_alpha, activation_beta, clip, linear_before_reset, layout
        As for `xpgrad.gru_grad`.
    per_sample, sample_weight
        As for `xpgrad.gru_grad`.

    Returns
    -------
    GRUGrads
        dX, dW, dR, dB, dH0, in the dtype of X; computed in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import gru_grad_reference, gru_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 12, 4))
    >>> y = gru_reference(X, W, R)
    >>> cotangent = rng.normal(size=(1, 2, 4))
    >>> gru_grad_reference(X, W, R, H_all=y.H_all, zrh=y.zrh, grad_H_t=cotangent).dR.shape
    (1, 12, 4)
    """
    D, H = W.shape[0], R.shape[2]
    acts = read_activations("gru_grad_reference", 2, activations, activation_alpha, activation_beta, D)

    def step(at: StepBack) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        [h_prev], [dh] = at.before, at.cotangents
        x, w, r, b = at.x, at.W, at.R, at.b
        z, reset, n = np.split(at.gates, 3)
        f_act, g_act = acts[at.d]
        R_z, R_r, R_h = np.split(r, 3)
        b_x, b_h = b[: 3 * H], b[3 * H :]

        # the arguments of f and g
        source = h_prev if linear_before_reset else reset * h_prev
        q = R_h @ source + b_h[2 * H :]
        inputs = w @ x + b_x
        a_z, a_r = np.split(inputs[: 2 * H] + r[: 2 * H] @ h_prev + b_h[: 2 * H], 2)
        a_n = inputs[2 * H :] + (reset * q if linear_before_reset else q)

        da_z = dh * (h_prev - n) * gate_slope(f_act, z, a_z, clip)
        da_n = dh * (1 - z) * gate_slope(g_act, n, a_n, clip)
        if linear_before_reset:
            dq = da_n * reset
            d_reset, d_state = da_n * q, R_h.T @ dq
        else:
            dq = da_n
            d_source = R_h.T @ dq
            d_reset, d_state = d_source * h_prev, d_source * reset
        da_r = d_reset * gate_slope(f_act, reset, a_r, clip)

        from_input = np.concatenate([da_z, da_r, da_n])
        from_state = np.concatenate([da_z, da_r, dq])
        found = {
            "X": w.T @ from_input,
            "W": np.outer(from_input, x),
            "R": np.concatenate([np.outer(da_z, h_prev), np.outer(da_r, h_prev), np.outer(dq, source)]),
            "B": np.concatenate([from_input, from_state]),
        }
        return found, [dh * z + R_z.T @ da_z + R_r.T @ da_r + d_state]

    tracks = (Track(H_all, grad_H_all, grad_H_t, initial_h),)
    grads, [dH0] = walk_back(
        step, X, W, R, B, sequence_lens, tracks, zrh, {"B": 6 * H}, direction, layout, per_sample,
        sample_weight, None, recurrent_mask, (zoneout_h,), reset,
    )  # fmt: skip
    return GRUGrads(grads["X"], grads["W"], grads["R"], grads["B"], dH0)
