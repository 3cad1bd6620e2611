"""Operators and their gradients in float64, only from their definitions.

Forwards are written out in NumPy on complex numbers, sequence by sequence and step by step. Gradients are
their derivatives by the complex step (Squire and Trapp 1998): f'(x) = Im f(x + ih) / h, with h so small that
only rounding errors remain. No code here comes from a kernel, ours or another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = [
    "POINTWISE", "binary_cross_entropy_with_logits", "conv", "conv_transpose", "gradients", "gru", "gru_cell",
    "layer_norm_gru", "layer_norm_lstm", "log_softmax", "lstm", "lstm_cell", "rnn", "rnn_cell", "softmax",
    "softmax_cross_entropy",
]  # fmt: skip

Array = np.ndarray
_STEP = 1e-150


def gradients(
    forward: Callable[..., dict[str, Array]],
    arguments: Mapping[str, Array],
    cotangents: Mapping[str, Array],
    samples: Mapping[str, int] | None = None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """A forward's outputs, and the gradients of its arguments for cotangents of its outputs, by name.

    `forward` is a function of complex arrays. `samples` has the sample axis of each argument and output that
    has such an axis; other arguments get a gradient for each sample, with a leading axis.
    """
    point = {name: np.asarray(array, dtype=np.complex128) for name, array in arguments.items()}
    outputs = {name: array.real for name, array in forward(**point).items()}
    found = {}
    for name, array in point.items():
        each = samples is not None and name not in samples
        columns = []
        for index in np.ndindex(array.shape):
            moved = array.copy()
            moved[index] += 1j * _STEP
            # nothing depends on padding, which is NaN
            there = outputs if np.isnan(array[index]) else forward(**{**point, name: moved})
            slopes = {k: np.nan_to_num(cotangents[k]) * there[k].imag / _STEP for k in cotangents}
            if each and samples is not None:
                columns.append(
                    sum(np.moveaxis(v, samples[k], 0).sum(tuple(range(1, v.ndim))) for k, v in slopes.items())
                )
            else:
                columns.append(sum(np.sum(v) for v in slopes.values()))
        gradient = np.asarray(columns)
        found[name] = gradient.T.reshape(-1, *array.shape) if each else gradient.reshape(array.shape)
    return outputs, found


# --- activations --------------------------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.log(1 + np.exp(x))


def _bounded(x: Array, low: float, high: float) -> Array:
    return np.where(x.real < low, low + 0j, np.where(x.real > high, high + 0j, x))


def _normal_distribution(x: Array) -> Array:
    value = np.vectorize(math.erf)(x.real / math.sqrt(2))
    return (1 + value) / 2 + 1j * x.imag * np.exp(-(x.real**2) / 2) / math.sqrt(2 * math.pi)


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x * _normal_distribution(x)


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x.real > 0, x, alpha * (np.exp(x) - 1))


def _absolute(x: Array) -> Array:
    return np.where(x.real < 0, -x, x)


def _softplus_with_threshold(x: Array, beta: float = 1.0, threshold: float | None = None) -> Array:
    soft = _softplus(beta * x) / beta
    return soft if threshold is None else np.where(beta * x.real > threshold, x, soft)


_SELU = 1.67326319217681884765625, 1.05070102214813232421875  # ONNX's defaults
POINTWISE: dict[str, Callable[..., Array]] = {
    "relu": lambda x: np.where(x.real > 0, x, 0),
    "leaky_relu": lambda x, alpha=0.01: np.where(x.real > 0, x, alpha * x),
    "prelu": lambda x, slope: np.where(x.real > 0, x, slope * x),
    "thresholded_relu": lambda x, alpha=1.0: np.where(x.real > alpha, x, 0),
    "elu": _elu,
    "selu": lambda x, alpha=_SELU[0], gamma=_SELU[1]: gamma * _elu(x, alpha),
    "celu": lambda x, alpha=1.0: np.where(x.real > 0, x, alpha * (np.exp(x / alpha) - 1)),
    "softplus": _softplus_with_threshold,
    "gelu": _gelu,
    "quick_gelu": lambda x, alpha=1.702: x * _sigmoid(alpha * x),
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "sigmoid": _sigmoid,
    "log_sigmoid": lambda x: -_softplus(-x),
    "hard_sigmoid": lambda x, alpha=0.2, beta=0.5: _bounded(alpha * x + beta, 0, 1),
    "hard_swish": lambda x: x * _bounded(x / 6 + 0.5, 0, 1),
    "tanh": np.tanh,
    "softsign": lambda x: x / (1 + _absolute(x)),
    "scaled_tanh": lambda x, alpha=1.0, beta=1.0: alpha * np.tanh(beta * x),
    "hard_tanh": lambda x, min_val=-1.0, max_val=1.0: _bounded(x, min_val, max_val),
}

_GATE_FUNCTIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "Sigmoid": lambda x, a, b: _sigmoid(x),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Relu": lambda x, a, b: np.where(x.real > 0, x, 0),
    "LeakyRelu": lambda x, a, b: np.where(x.real > 0, x, a * x),
    "ThresholdedRelu": lambda x, a, b: np.where(x.real > a, x, 0),
    "Elu": lambda x, a, b: _elu(x, a),
    "Affine": lambda x, a, b: a * x + b,
    "HardSigmoid": lambda x, a, b: _bounded(a * x + b, 0, 1),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Softplus": lambda x, a, b: _softplus(x),
    "Softsign": lambda x, a, b: x / (1 + _absolute(x)),
}
# ONNX's parameters by name, and its defaults
_ALPHA = {"LeakyRelu": 0.01, "HardSigmoid": 0.2}
_ALPHA |= dict.fromkeys(("ThresholdedRelu", "Elu", "Affine", "ScaledTanh"), 1.0)
_BETA = {"Affine": 0.0, "HardSigmoid": 0.5, "ScaledTanh": 1.0}


def _gate_functions(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Callable]:
    """Functions of one argument; functions with parameters get these in order."""
    alphas, betas = list(alphas), list(betas)
    functions = []
    for name in names:
        a = (alphas.pop(0) if alphas else _ALPHA[name]) if name in _ALPHA else 0.0
        b = (betas.pop(0) if betas else _BETA[name]) if name in _BETA else 0.0
        functions.append(lambda x, f=_GATE_FUNCTIONS[name], a=a, b=b: f(x, a, b))
    return functions


# --- recurrent operators ------------------------------------------------------------------------------------


def _sequences(
    gates: int,
    step: Callable[..., tuple],
    defaults: Sequence[str],
    *,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    states: Sequence[Any],
    sequence_lens: Any,
    direction: str,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    clip: float | None,
    layout: int,
    extra: Callable[[int], Any],
    S: Array | None = None,
    recurrent_mask: Array | None = None,
    zoneout: Sequence[Array | None] = (None, None),
    reset: Any = None,
) -> tuple[list[Array], list[Array]]:
    """Each state at all times (T, D, N, width), and at the sequences' ends, sequence by sequence.

    S projects the output, a mask multiplies the last output before R, zoneout keeps a share of each state,
    and a reset sets the states to zero.
    """
    if layout:
        X, reset = X.swapaxes(0, 1), None if reset is None else reset.swapaxes(0, 1)
        states = [None if s is None else s.swapaxes(0, 1) for s in states]
    T, N, _ = X.shape
    D, width = R.shape[0], R.shape[2]
    sizes = [width, R.shape[1] // gates][: len(states)]
    names = list(activations or list(defaults) * D)
    functions = _gate_functions(names, activation_alpha or (), activation_beta or ())
    lengths = [T] * N if sequence_lens is None else [int(n) for n in sequence_lens]
    tracks = [np.zeros((T, D, N, size), dtype=complex) for size in sizes]
    ends: list[Array] = [np.zeros((D, N, size), dtype=complex) for size in sizes]

    def bounded(z: Array) -> Array:
        return z if clip is None else _bounded(z, -clip, clip)

    for d in range(D):
        own = functions[d * len(defaults) : (d + 1) * len(defaults)]
        bias = np.zeros(2 * R.shape[1]) if B is None else B[d]
        backwards = direction == "reverse" or d == 1
        for n in range(N):
            now: Sequence[Array] = [
                np.zeros(size, dtype=complex) if s is None else s[d, n]
                for s, size in zip(states, sizes, strict=True)
            ]
            seen = R[d] if recurrent_mask is None else R[d] * recurrent_mask[d, n]
            times = range(lengths[n])
            for t in reversed(times) if backwards else times:
                later = t + 1 if backwards else t
                if reset is not None and later < lengths[n] and reset[later, n]:
                    now = [np.zeros(size, dtype=complex) for size in sizes]
                new = list(step(X[t, n], now, W[d], seen, bias, own, bounded, extra(d)))
                if S is not None:
                    new[0] = S[d] @ new[0]
                now = [
                    made if z is None else z[t, d, n] * old + (1 - z[t, d, n]) * made
                    for old, made, z in zip(now, new, zoneout, strict=False)
                ]
                for track, state in zip(tracks, now, strict=True):
                    track[t, d, n] = state
            for end, state in zip(ends, now, strict=True):
                end[d, n] = state
    if layout:
        tracks = [track.transpose(2, 0, 1, 3) for track in tracks]
        ends = [end.swapaxes(0, 1) for end in ends]
    return tracks, ends


def lstm(
    *, X: Array, W: Array, R: Array, B: Array | None = None, sequence_lens: Any = None,
    initial_h: Array | None = None, initial_c: Array | None = None, P: Array | None = None,
    direction: str = "forward", activations: Any = None, activation_alpha: Any = None,
    activation_beta: Any = None, clip: float | None = None, input_forget: bool = False, layout: int = 0,
    truncated: bool = False, S: Array | None = None, recurrent_mask: Array | None = None,
    zoneout_h: Array | None = None, zoneout_c: Array | None = None, reset: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """ONNX's LSTM; truncated: the path through a peephole into a cell state has no derivative."""
    H = R.shape[1] // 4

    def seen(c: Array) -> Array:
        return c.real if truncated else c

    def step(x: Array, now: Any, w: Array, r: Array, b: Array, own: Any, bounded: Any, p: Array) -> tuple:
        f, g, h = own
        last_h, last_c = now
        z = w @ x + r @ last_h + b[: 4 * H] + b[4 * H :]
        zi, zo, zf, zc = (z[k * H : (k + 1) * H] for k in range(4))
        i = f(bounded(zi + p[:H] * seen(last_c)))
        forget = 1 - i if input_forget else f(bounded(zf + p[2 * H :] * seen(last_c)))
        c = forget * last_c + i * g(bounded(zc))
        return f(bounded(zo + p[H : 2 * H] * seen(c))) * h(c), c

    (Y, C_all), (H_t, C_t) = _sequences(
        4, step, ("Sigmoid", "Tanh", "Tanh"), X=X, W=W, R=R, B=B, states=(initial_h, initial_c),
        sequence_lens=sequence_lens, direction=direction, activations=activations,
        activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip, layout=layout,
        extra=lambda d: np.zeros(3 * H) if P is None else P[d],
        S=S, recurrent_mask=recurrent_mask, zoneout=(zoneout_h, zoneout_c), reset=reset,
    )  # fmt: skip
    return {"H_all": Y, "H_t": H_t, "C_t": C_t, "C_all": C_all}


def gru(
    *, X: Array, W: Array, R: Array, B: Array | None = None, sequence_lens: Any = None,
    initial_h: Array | None = None, direction: str = "forward", activations: Any = None,
    activation_alpha: Any = None, activation_beta: Any = None, clip: float | None = None,
    linear_before_reset: int = 0, layout: int = 0, recurrent_mask: Array | None = None,
    zoneout_h: Array | None = None, reset: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """ONNX's GRU."""
    H = R.shape[2]

    def step(x: Array, now: Any, w: Array, r: Array, b: Array, own: Any, bounded: Any, _: None) -> tuple:
        f, g = own
        [last] = now
        wz, wr, wh = (w[k * H : (k + 1) * H] @ x + b[k * H : (k + 1) * H] for k in range(3))
        rz, rr, rh = (r[k * H : (k + 1) * H] for k in range(3))
        bz, br, bh = (b[(3 + k) * H : (4 + k) * H] for k in range(3))
        z, reset = f(bounded(wz + rz @ last + bz)), f(bounded(wr + rr @ last + br))
        new = reset * (rh @ last + bh) if linear_before_reset else rh @ (reset * last) + bh
        return ((1 - z) * g(bounded(wh + new)) + z * last,)

    [Y], [H_t] = _sequences(
        3, step, ("Sigmoid", "Tanh"), X=X, W=W, R=R, B=B, states=(initial_h,), sequence_lens=sequence_lens,
        direction=direction, activations=activations, activation_alpha=activation_alpha,
        activation_beta=activation_beta, clip=clip, layout=layout, extra=lambda d: None,
        recurrent_mask=recurrent_mask, zoneout=(zoneout_h,), reset=reset,
    )  # fmt: skip
    return {"H_all": Y, "H_t": H_t}


def rnn(
    *, X: Array, W: Array, R: Array, B: Array | None = None, sequence_lens: Any = None,
    initial_h: Array | None = None, direction: str = "forward", activations: Any = None,
    activation_alpha: Any = None, activation_beta: Any = None, clip: float | None = None, layout: int = 0,
    reset: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """ONNX's RNN."""
    H = R.shape[2]

    def step(x: Array, now: Any, w: Array, r: Array, b: Array, own: Any, bounded: Any, _: None) -> tuple:
        return (own[0](bounded(w @ x + r @ now[0] + b[:H] + b[H:])),)

    [Y], [H_t] = _sequences(
        1, step, ("Tanh",), X=X, W=W, R=R, B=B, states=(initial_h,), sequence_lens=sequence_lens,
        direction=direction, activations=activations, activation_alpha=activation_alpha,
        activation_beta=activation_beta, clip=clip, layout=layout, extra=lambda d: None,
        reset=reset,
    )  # fmt: skip
    return {"H_all": Y, "H_t": H_t}


def _normalized(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """Of mean 0 and variance 1, scaled and moved (Ba, Kiros and Hinton 2016)."""
    centred = x - x.sum() / x.size
    return gamma * centred / np.sqrt((centred * centred).sum() / x.size + epsilon) + beta


def layer_norm_lstm(
    *, X: Array, W: Array, R: Array, B: Array | None = None, gamma: Array, beta: Array, gamma_c: Array,
    beta_c: Array, sequence_lens: Any = None, initial_h: Array | None = None, initial_c: Array | None = None,
    epsilon: float = 1e-5, direction: str = "forward", activations: Any = None, activation_alpha: Any = None,
    activation_beta: Any = None, clip: float | None = None, layout: int = 0, reset: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """An LSTM with layer normalization of both products and of the cell state."""
    H = R.shape[2]

    def step(x: Array, now: Any, w: Array, r: Array, b: Array, own: Any, bounded: Any, d: int) -> tuple:
        f, g, h = own
        z = _normalized(w @ x, gamma[d, 0], beta[d, 0], epsilon) + b[: 4 * H] + b[4 * H :]
        z = z + _normalized(r @ now[0], gamma[d, 1], beta[d, 1], epsilon)
        i, o, forget = (f(bounded(z[k * H : (k + 1) * H])) for k in range(3))
        c = forget * now[1] + i * g(bounded(z[3 * H :]))
        return o * h(_normalized(c, gamma_c[d], beta_c[d], epsilon)), c

    (Y, C_all), (H_t, C_t) = _sequences(
        4, step, ("Sigmoid", "Tanh", "Tanh"), X=X, W=W, R=R, B=B, states=(initial_h, initial_c),
        sequence_lens=sequence_lens, direction=direction, activations=activations,
        activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip, layout=layout,
        extra=lambda d: d, reset=reset,
    )  # fmt: skip
    return {"H_all": Y, "H_t": H_t, "C_t": C_t, "C_all": C_all}


def layer_norm_gru(
    *, X: Array, W: Array, R: Array, B: Array | None = None, gamma: Array, beta: Array,
    sequence_lens: Any = None, initial_h: Array | None = None, epsilon: float = 1e-5,
    direction: str = "forward", activations: Any = None, activation_alpha: Any = None,
    activation_beta: Any = None, clip: float | None = None, layout: int = 0, reset: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """A GRU with layer normalization of both products, which resets after the product."""
    H = R.shape[2]

    def step(x: Array, now: Any, w: Array, r: Array, b: Array, own: Any, bounded: Any, d: int) -> tuple:
        f, g = own
        [last] = now
        u = _normalized(w @ x, gamma[d, 0], beta[d, 0], epsilon) + b[: 3 * H]
        v = _normalized(r @ last, gamma[d, 1], beta[d, 1], epsilon) + b[3 * H :]
        z, reset = (f(bounded((u + v)[k * H : (k + 1) * H])) for k in range(2))
        return ((1 - z) * g(bounded(u[2 * H :] + reset * v[2 * H :])) + z * last,)

    [Y], [H_t] = _sequences(
        3, step, ("Sigmoid", "Tanh"), X=X, W=W, R=R, B=B, states=(initial_h,), sequence_lens=sequence_lens,
        direction=direction, activations=activations, activation_alpha=activation_alpha,
        activation_beta=activation_beta, clip=clip, layout=layout, extra=lambda d: d,
        reset=reset,
    )  # fmt: skip
    return {"H_all": Y, "H_t": H_t}


_STATES = {"H": ("initial_h", "H_t"), "C": ("initial_c", "C_t")}


def _cell(sequence: Callable[..., dict[str, Array]]) -> Callable[..., dict[str, Array]]:
    """A sequence of one step."""

    def cell(**given: Any) -> dict[str, Array]:
        named = {_STATES[k][0] if k in _STATES else k: v for k, v in given.items()}
        ends = sequence(**{k: v[None] if isinstance(v, Array) else v for k, v in named.items()})
        return {f"{k}_next": ends[end][0] for k, (_, end) in _STATES.items() if end in ends}

    return cell


lstm_cell, gru_cell, rnn_cell = _cell(lstm), _cell(gru), _cell(rnn)


# --- convolutions -------------------------------------------------------------------------------------------


def conv(numbers: Any) -> Callable[..., dict[str, Array]]:
    """A convolution with explicit geometry, tap by tap."""

    def forward(X: Array, W: Array, B: Array | None = None) -> dict[str, Array]:
        around = [(0, 0), (0, 0), *zip(numbers.begins, numbers.ends, strict=True)]
        padded = np.pad(X, around)
        size = numbers.output
        Y = np.zeros((X.shape[0], W.shape[0], *size), dtype=complex)
        c, o = X.shape[1] // numbers.group, W.shape[0] // numbers.group
        for tap in np.ndindex(W.shape[2:]):
            seen = padded[(slice(None), slice(None), *_window(tap, numbers, size))]
            for g in range(numbers.group):
                weights = W[(slice(g * o, (g + 1) * o), slice(None), *tap)]
                inputs = seen[:, g * c : (g + 1) * c]
                Y[:, g * o : (g + 1) * o] += np.einsum("oc,nc...->no...", weights, inputs)
        return {"Y": Y if B is None else Y + B.reshape(-1, *[1] * len(size))}

    return forward


def conv_transpose(numbers: Any) -> Callable[..., dict[str, Array]]:
    """A transposed convolution: each input adds its taps to the output, whose ends are then cropped."""

    def forward(X: Array, W: Array, B: Array | None = None) -> dict[str, Array]:
        whole = [
            s + b + e + max(0, a)
            for s, b, e, a in zip(numbers.output, numbers.begins, numbers.ends, numbers.added, strict=True)
        ]
        sizes = zip(X.shape[2:], numbers.strides, W.shape[2:], numbers.dilations, strict=True)
        reach = [(size - 1) * s + (k - 1) * d + 1 for size, s, k, d in sizes]
        whole = [max(pair) for pair in zip(whole, reach, strict=True)]
        o, c = W.shape[1], X.shape[1] // numbers.group
        Y = np.zeros((X.shape[0], o * numbers.group, *whole), dtype=complex)
        for tap in np.ndindex(W.shape[2:]):
            place = _window(tap, numbers, X.shape[2:])
            for g in range(numbers.group):
                weights = W[(slice(g * c, (g + 1) * c), slice(None), *tap)]
                Y[(slice(None), slice(g * o, (g + 1) * o), *place)] += np.einsum(
                    "co,nc...->no...", weights, X[:, g * c : (g + 1) * c]
                )
        kept = (slice(b, b + s) for b, s in zip(numbers.begins, numbers.output, strict=True))
        Y = Y[(slice(None), slice(None), *kept)]
        return {"Y": Y if B is None else Y + B.reshape(-1, *[1] * len(whole))}

    return forward


def _window(tap: Sequence[int], numbers: Any, size: Sequence[int]) -> list[slice]:
    """The elements that a tap reads, by dimension."""
    return [
        slice(k * d, k * d + s * (n - 1) + 1, s)
        for k, d, s, n in zip(tap, numbers.dilations, numbers.strides, size, strict=True)
    ]


# --- along an axis ------------------------------------------------------------------------------------------


def _along(X: Array, axis: int, flatten: bool, log: bool) -> Array:
    rows = X.reshape(math.prod(X.shape[:axis]), -1) if flatten else X
    along = 1 if flatten else axis
    total = np.exp(rows).sum(along, keepdims=True)
    return (rows - np.log(total) if log else np.exp(rows) / total).reshape(X.shape)


def softmax(X: Array, axis: int = -1, flatten: bool = False) -> dict[str, Array]:
    """Shares of a whole."""
    return {"Y": _along(X, axis, flatten, False)}


def log_softmax(X: Array, axis: int = -1, flatten: bool = False) -> dict[str, Array]:
    """Their logarithms."""
    return {"Y": _along(X, axis, flatten, True)}


# --- losses -------------------------------------------------------------------------------------------------


def _reduced(losses: Array, reduction: str, count: Any) -> Array:
    return losses if reduction == "none" else losses.sum() / (count if reduction == "mean" else 1)


def softmax_cross_entropy(
    X: Array, labels: Array, weights: Array | None = None, ignore_index: int | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> dict[str, Array]:  # fmt: skip
    """-sum over classes of weight * target * log-probability; the mean of labels is weighted."""
    C = X.shape[1]
    w = np.ones(C) if weights is None else weights
    logs = np.moveaxis(log_softmax(X, axis=1)["Y"], 1, -1)
    numbered = labels.ndim < X.ndim
    targets = labels if numbered else np.moveaxis(labels, 1, -1)
    losses, count = np.zeros(logs.shape[:-1], dtype=complex), 0.0
    for place in np.ndindex(losses.shape):
        if numbered and targets[place] == ignore_index:
            continue
        target = np.eye(C)[targets[place]] if numbered else targets[place]
        count += w[targets[place]] if numbered else 1
        smooth = (1 - label_smoothing) * target + label_smoothing / C
        losses[place] = -(w * smooth * logs[place]).sum()
    return {"Y": np.asarray(_reduced(losses, reduction, count))}


def binary_cross_entropy_with_logits(
    X: Array, targets: Array, weight: Array | float = 1.0, pos_weight: Array | float = 1.0,
    reduction: str = "mean",
) -> dict[str, Array]:  # fmt: skip
    """-t log p - (1 - t) log(1 - p), with weights for elements and for positive targets."""
    positive = pos_weight * targets * np.log(_sigmoid(X))
    losses = -weight * (positive + (1 - targets) * np.log(_sigmoid(-X)))
    return {"Y": np.asarray(_reduced(losses, reduction, losses.size))}
