"""The LSTM and its backward, one sample and one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from xpgrad._testing.activations import activate, read_activations, slope_from_output
from xpgrad._testing.sequences import StepBack, Track, bounded, gate_slope, walk, walk_back
from xpgrad.lstm import LSTMForward, LSTMGrads

Array = Any


def lstm_reference(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    P: Array | None = None,
    *,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    S: Array | None = None,
    recurrent_mask: Array | None = None,
    zoneout_h: Array | None = None,
    zoneout_c: Array | None = None,
    reset: Array | None = None,
    detach: Callable[[Array], Array] | None = None,
) -> LSTMForward:
    r"""Naive LSTM: `xpgrad.lstm` by the definition, one sample and one step at a time.

    .. math::

        i_t &= f(W_i x_t + R_i h_{t-1} + b_i + p_i \odot c_{t-1}) \\
        f_t &= f(W_f x_t + R_f h_{t-1} + b_f + p_f \odot c_{t-1}) \\
        g_t &= g(W_c x_t + R_c h_{t-1} + b_c) \\
        c_t &= f_t \odot c_{t-1} + i_t \odot g_t \\
        o_t &= f(W_o x_t + R_o h_{t-1} + b_o + p_o \odot c_t) \\
        h_t &= o_t \odot h(c_t)

    Each bias is the sum of B's two halves. With `input_forget`, :math:`f_t = 1 - i_t`. `clip` bounds every
    argument of f and g to [-clip, clip]. S replaces :math:`h_t` by :math:`S h_t` in the output and in the
    next step. Zoneout replaces each state :math:`s_t` by :math:`z \odot s_{t-1} + (1 - z) \odot s_t`.
    `recurrent_mask` multiplies :math:`h_{t-1}` in its product with R.

    The function uses plain operations of the array namespace and writes nothing in place. With torch tensors
    that require gradients, PyTorch's autograd differentiates it: an oracle for every option.

    Parameters
    ----------
    X, W, R, B, sequence_lens, initial_h, initial_c, P : array
        As for `xpgrad.lstm`. They are taken to be valid.
    direction, activations, activation_alpha, activation_beta, clip, input_forget, layout
        As for `xpgrad.lstm`.
    S, recurrent_mask, zoneout_h, zoneout_c, reset
        As for `xpgrad.lstm`.
    detach : callable, optional
        Applied to the cell state that a peephole multiplies. With ``torch.Tensor.detach`` autograd gives the
        truncated peephole gradient.

    Returns
    -------
    LSTMForward
        H_all, H_t, C_t, C_all, iofc, in the dtype of X; half precision is computed in float32.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import lstm_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 16, 3)), rng.normal(size=(1, 16, 4))
    >>> lstm_reference(X, W, R).H_all.shape
    (5, 1, 2, 4)
    """
    xp = array_namespace(X)
    acts = read_activations("lstm_reference", 3, activations, activation_alpha, activation_beta, W.shape[0])

    def step(d: int, x: Array, states: tuple[Array, ...], W: Array, R: Array, b: Array) -> Any:
        """One step of one sample: x (I,), h (H,) or (proj,), c (H,), W (4H, I), R (4H, ...), b (8H,)."""
        (h, c), (f_act, g_act, h_act) = states, acts[d]
        H = c.shape[0]
        z = xp.matmul(W, x) + xp.matmul(R, h) + b[: 4 * H] + b[4 * H :]
        z_i, z_o, z_f, z_c = z[:H], z[H : 2 * H], z[2 * H : 3 * H], z[3 * H :]

        def peep(gate: int, state: Array) -> Array | float:
            if P is None:
                return 0.0
            p = xp.astype(P[d, gate * H : (gate + 1) * H], x.dtype)
            return p * (state if detach is None else detach(state))

        i = activate(xp, f_act, bounded(xp, z_i + peep(0, c), clip))
        f = 1 - i if input_forget else activate(xp, f_act, bounded(xp, z_f + peep(2, c), clip))
        g = activate(xp, g_act, bounded(xp, z_c, clip))
        c = f * c + i * g
        o = activate(xp, f_act, bounded(xp, z_o + peep(1, c), clip))
        return (o * activate(xp, h_act, c), c), xp.concat([i, o, f, g])

    initial = (initial_h, initial_c)
    (H_all, C_all), (H_t, C_t), iofc = walk(
        step, 4, X, W, R, B, sequence_lens, initial, direction, layout, S, recurrent_mask,
        (zoneout_h, zoneout_c), reset,
    )  # fmt: skip
    return LSTMForward(H_all=H_all, H_t=H_t, C_t=C_t, C_all=C_all, iofc=iofc)


def lstm_grad_reference(
    X: np.ndarray,
    W: np.ndarray,
    R: np.ndarray,
    *,
    H_all: np.ndarray,
    C_all: np.ndarray,
    iofc: np.ndarray,
    grad_H_all: np.ndarray | None = None,
    grad_H_t: np.ndarray | None = None,
    grad_C_t: np.ndarray | None = None,
    grad_C_all: np.ndarray | None = None,
    B: np.ndarray | None = None,
    sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None,
    initial_c: np.ndarray | None = None,
    P: np.ndarray | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
    S: np.ndarray | None = None,
    recurrent_mask: np.ndarray | None = None,
    zoneout_h: np.ndarray | None = None,
    zoneout_c: np.ndarray | None = None,
    reset: np.ndarray | None = None,
    peephole: str = "full",
    per_sample: bool | str = False,
    sample_weight: np.ndarray | None = None,
) -> LSTMGrads:
    r"""Naive LSTM backward in NumPy: `xpgrad.lstm_grad`, one sample and one step at a time.

    A step takes :math:`\bar h_t, \bar c_t`, the sums from later steps and cotangents, to

    .. math::

        \bar z_o &= \bar h_t \odot h(c_t) \odot f'(z_o) \\
        \bar c_t &\mathrel{+}= \bar h_t \odot o_t \odot h'(c_t) + p_o \odot \bar z_o \\
        \bar z_i &= \bar c_t \odot g_t \odot f'(z_i), \quad \bar z_f = \bar c_t \odot c_{t-1} \odot f'(z_f),
            \quad \bar z_c = \bar c_t \odot i_t \odot g'(z_c) \\
        \bar c_{t-1} &= \bar c_t \odot f_t + p_i \odot \bar z_i + p_f \odot \bar z_f, \quad
            \bar h_{t-1} = R^T \bar z

    and the parameters' gradients sum over steps. With input_forget :math:`\bar z_i = \bar c_t \odot
    (g_t - c_{t-1}) \odot f'(z_i)` and :math:`\bar z_f = 0`. With ``peephole="truncated"`` the terms with
    :math:`p` in both :math:`\bar c` are left out.

    Zoneout passes its share of both cotangents to the states before the step, and the rest to the step. S
    takes :math:`\bar h_t` to :math:`S^T \bar h_t` before that. `recurrent_mask` multiplies the columns of R.

    The saved gates give the slopes. They do not tell which arguments of f and g were clipped, nor the branch
    of LeakyRelu, Elu and ThresholdedRelu with a negative alpha. For these the function computes the arguments
    again, from X, the saved states and the parameters.

    Parameters
    ----------
    X, W, R, H_all, C_all, iofc, grad_H_all, grad_H_t, grad_C_t, grad_C_all, B, sequence_lens, initial_h
        NumPy arrays, as for `xpgrad.lstm_grad`. They are taken to be valid.
    initial_c, P, S, recurrent_mask, zoneout_h, zoneout_c, reset
        The same.
    direction, activations, activation_alpha, activation_beta, clip, input_forget, layout
        As for `xpgrad.lstm_grad`.
    peephole, per_sample, sample_weight
        As for `xpgrad.lstm_grad`.

    Returns
    -------
    LSTMGrads
        dX, dW, dR, dB, dH0, dC0, dP, dS, in the dtype of X; computed in float64. dP is None without P, dS
        without S.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad.testing import lstm_grad_reference, lstm_reference
    >>> rng = np.random.default_rng(0)
    >>> X, W, R = rng.normal(size=(5, 2, 3)), rng.normal(size=(1, 16, 3)), rng.normal(size=(1, 16, 4))
    >>> y = lstm_reference(X, W, R)
    >>> saved = {"H_all": y.H_all, "C_all": y.C_all, "iofc": y.iofc}
    >>> lstm_grad_reference(X, W, R, **saved, grad_H_t=rng.normal(size=(1, 2, 4))).dR.shape
    (1, 16, 4)
    """
    D, H = W.shape[0], R.shape[1] // 4
    peepholes = np.zeros((D, 3 * H)) if P is None else np.asarray(P, dtype=np.float64)
    into_state = 1.0 if peephole == "full" else 0.0
    acts = read_activations("lstm_grad_reference", 3, activations, activation_alpha, activation_beta, D)

    def step(at: StepBack) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        (h_prev, c_prev), (_, c), (dh, dc) = at.before, at.after, at.cotangents
        x, w, r, b = at.x, at.W, at.R, at.b
        i, o, f, g = np.split(at.gates, 4)
        f_act, g_act, h_act = acts[at.d]
        c = c if zoneout_c is None else f * c_prev + i * g  # the step's state before zoneout
        squashed = activate(np, h_act, c)
        p_i, p_o, p_f = np.split(peepholes[at.d], 3)

        # slopes of the four gates with respect to their arguments z
        z = w @ x + r @ h_prev + b[: 4 * H] + b[4 * H :]
        z = z + np.concatenate([p_i * c_prev, p_o * c, p_f * c_prev, np.zeros(H)])
        s_i, s_o, s_f, s_g = (
            gate_slope(act, value, pre, clip)
            for act, value, pre in zip(
                (f_act, f_act, f_act, g_act), (i, o, f, g), np.split(z, 4), strict=True
            )
        )

        dz_o = dh * squashed * s_o
        dc = dc + dh * o * slope_from_output(h_act, squashed, c) + into_state * p_o * dz_o
        if input_forget:
            dz_i, dz_f = dc * (g - c_prev) * s_i, np.zeros(H)
        else:
            dz_i, dz_f = dc * g * s_i, dc * c_prev * s_f
        dz = np.concatenate([dz_i, dz_o, dz_f, dc * i * s_g])

        found = {
            "X": w.T @ dz,
            "W": np.outer(dz, x),
            "R": np.outer(dz, h_prev),
            "B": np.concatenate([dz, dz]),
            "P": np.concatenate([dz_i * c_prev, dz_o * c, dz_f * c_prev]),
            "made": o * squashed,
        }
        return found, [r.T @ dz, dc * f + into_state * (p_i * dz_i + p_f * dz_f)]

    tracks = (Track(H_all, grad_H_all, grad_H_t, initial_h), Track(C_all, grad_C_all, grad_C_t, initial_c))
    vectors = {"B": 8 * H, "P": 3 * H}
    grads, (dH0, dC0) = walk_back(
        step, X, W, R, B, sequence_lens, tracks, iofc, vectors, direction, layout, per_sample,
        sample_weight, S, recurrent_mask, (zoneout_h, zoneout_c), reset,
    )  # fmt: skip
    dX, dW, dR, dB, dP = (grads[name] for name in ("X", "W", "R", "B", "P"))
    return LSTMGrads(dX, dW, dR, dB, dH0, dC0, None if P is None else dP, grads.get("S"))
