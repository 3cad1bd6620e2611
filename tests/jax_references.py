"""ONNX's LSTM, GRU and RNN as a ``lax.scan`` for JAX's own autodiff, written from their definition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

FUNCTIONS = {
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "softsign": jax.nn.soft_sign,
    "hardsigmoid": lambda x: jnp.clip(0.2 * x + 0.5, 0, 1),
    "softplus": jax.nn.softplus,
    "leakyrelu": lambda x: jnp.where(x >= 0, x, 0.01 * x),
}


def _over_time(
    step: Any, X: Any, states: tuple, lengths: Any, reverse: bool, kept: tuple = ()
) -> tuple[Any, tuple]:
    """Outputs (T, N, H), 0 behind each end, and the states at the end.

    `kept` are shares of the old states that stay, (T, N, width) each, None for none.
    """
    T = X.shape[0]
    kept = kept or (None,) * len(states)
    valid = jnp.arange(T)[:, None] < (jnp.full(X.shape[1], T) if lengths is None else lengths)
    X = jnp.where(valid[..., None], X, 0)

    def masked(carry: tuple, given: tuple) -> tuple[tuple, Any]:
        x, mask, shares = given
        new = step(carry, x)
        new = tuple(
            n if z is None else z * o + (1 - z) * n for n, o, z in zip(new, carry, shares, strict=True)
        )
        kept = tuple(jnp.where(mask[:, None], n, o) for n, o in zip(new, carry, strict=True))
        return kept, jnp.where(mask[:, None], new[0], 0)

    final, outputs = jax.lax.scan(masked, states, (X, valid, kept), reverse=reverse)
    return outputs, final


def _directions(direction: str) -> list[bool]:
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]


def _time_major(layout: int, *arrays: Any) -> list[Any]:
    return [a if a is None or not layout else jnp.swapaxes(a, 0, 1) for a in arrays]


def lstm(
    X: Any, W: Any, R: Any, B: Any = None, lengths: Any = None, h0: Any = None, c0: Any = None, P: Any = None,
    *, direction: str = "forward", activations: Any = None, clip: Any = None, input_forget: bool = False,
    layout: int = 0, S: Any = None, recurrent_mask: Any = None, zoneout_h: Any = None, zoneout_c: Any = None,
) -> tuple:  # fmt: skip
    X, h0, c0 = _time_major(layout, X, h0, c0)
    H, N, results = W.shape[1] // 4, X.shape[1], []
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * len(_directions(direction))
    bound = (lambda z: z) if clip is None else (lambda z: jnp.clip(z, -clip, clip))
    for d, reverse in enumerate(_directions(direction)):
        f, g, h = (FUNCTIONS[name.lower()] for name in names[3 * d : 3 * d + 3])
        b = jnp.zeros(4 * H, X.dtype) if B is None else B[d, : 4 * H] + B[d, 4 * H :]
        p_i, p_o, p_f = (jnp.zeros(H, X.dtype),) * 3 if P is None else jnp.split(P[d], 3)

        def step(carry: tuple, x: Any, d=d, b=b, p=(p_i, p_o, p_f), f=f, g=g, h=h) -> tuple:
            y, c = carry
            taken = y if recurrent_mask is None else y * recurrent_mask[d]
            i, o, forget, cell = jnp.split(x @ W[d].T + taken @ R[d].T + b, 4, axis=-1)
            i = f(bound(i + p[0] * c))
            forget = 1 - i if input_forget else f(bound(forget + p[2] * c))
            c = forget * c + i * g(bound(cell))
            o = f(bound(o + p[1] * c))
            made = o * h(c)
            return made if S is None else made @ S[d].T, c

        zero = jnp.zeros((N, H), X.dtype)
        states = (jnp.zeros((N, R.shape[2]), X.dtype) if h0 is None else h0[d], zero if c0 is None else c0[d])
        kept = tuple(None if z is None else z[:, d] for z in (zoneout_h, zoneout_c))
        results.append(_over_time(step, X, states, lengths, reverse, kept))
    H_all = jnp.stack([outputs for outputs, _ in results], axis=1)
    last = [jnp.stack([states[k] for _, states in results]) for k in (0, 1)]
    if layout:
        return H_all.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in last)
    return H_all, *last


def gru(
    X: Any, W: Any, R: Any, B: Any = None, lengths: Any = None, h0: Any = None,
    *, direction: str = "forward", activations: Any = None, clip: Any = None, linear_before_reset: int = 0,
    layout: int = 0, recurrent_mask: Any = None, zoneout_h: Any = None,
) -> tuple:  # fmt: skip
    X, h0 = _time_major(layout, X, h0)
    H, N, results = R.shape[2], X.shape[1], []
    names = activations or ["Sigmoid", "Tanh"] * len(_directions(direction))
    bound = (lambda z: z) if clip is None else (lambda z: jnp.clip(z, -clip, clip))
    for d, reverse in enumerate(_directions(direction)):
        f, g = (FUNCTIONS[name.lower()] for name in names[2 * d : 2 * d + 2])
        b = jnp.zeros(6 * H, X.dtype) if B is None else B[d]

        def step(carry: tuple, x: Any, d=d, b=b, f=f, g=g) -> tuple:
            (y,) = carry
            x_z, x_r, x_n = jnp.split(x @ W[d].T + b[: 3 * H], 3, axis=-1)
            R_z, R_r, R_n = jnp.split(R[d], 3)
            b_z, b_r, b_n = jnp.split(b[3 * H :], 3)
            u = y if recurrent_mask is None else y * recurrent_mask[d]
            z, r = f(bound(x_z + u @ R_z.T + b_z)), f(bound(x_r + u @ R_r.T + b_r))
            through = r * (u @ R_n.T + b_n) if linear_before_reset else (r * u) @ R_n.T + b_n
            n = g(bound(x_n + through))
            return ((1 - z) * n + z * y,)

        states = (jnp.zeros((N, H), X.dtype) if h0 is None else h0[d],)
        kept = (None if zoneout_h is None else zoneout_h[:, d],)
        results.append(_over_time(step, X, states, lengths, reverse, kept))
    H_all = jnp.stack([outputs for outputs, _ in results], axis=1)
    last = jnp.stack([states[0] for _, states in results])
    if layout:
        return H_all.transpose(2, 0, 1, 3), last.transpose(1, 0, 2)
    return H_all, last


def rnn(
    X: Any, W: Any, R: Any, B: Any = None, lengths: Any = None, h0: Any = None,
    *, direction: str = "forward", activations: Any = None, clip: Any = None, layout: int = 0,
) -> tuple:  # fmt: skip
    X, h0 = _time_major(layout, X, h0)
    H, N, results = R.shape[2], X.shape[1], []
    names = activations or ["Tanh"] * len(_directions(direction))
    bound = (lambda z: z) if clip is None else (lambda z: jnp.clip(z, -clip, clip))
    for d, reverse in enumerate(_directions(direction)):
        f = FUNCTIONS[names[d].lower()]
        b = jnp.zeros(H, X.dtype) if B is None else B[d, :H] + B[d, H:]

        def step(carry: tuple, x: Any, d=d, b=b, f=f) -> tuple:
            return (f(bound(x @ W[d].T + carry[0] @ R[d].T + b)),)

        states = (jnp.zeros((N, H), X.dtype) if h0 is None else h0[d],)
        results.append(_over_time(step, X, states, lengths, reverse))
    H_all = jnp.stack([outputs for outputs, _ in results], axis=1)
    last = jnp.stack([states[0] for _, states in results])
    if layout:
        return H_all.transpose(2, 0, 1, 3), last.transpose(1, 0, 2)
    return H_all, last
