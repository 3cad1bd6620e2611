"""Walking through a batch, one sample and one step at a time, forwards and backwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from xpgrad._testing.activations import ReferenceActivation, slope_from_output
from xpgrad._testing.comparing import to_numpy

Array = Any


_BATCH_FIRST = {3: (1, 0, 2), 4: (2, 0, 1, 3)}
"""By rank, the order of axes that makes layout 0 (sequences, states) layout 1."""
_TIME_FIRST = {3: (1, 0, 2), 4: (1, 2, 0, 3)}
"""The way back."""


def time_order(direction: str, d: int, length: int) -> range:
    """Steps of one sample in the order in which direction d visits them."""
    backwards = direction == "reverse" or d == 1
    return range(length - 1, -1, -1) if backwards else range(length)


def lengths_of(sequence_lens: Array | None, steps: int, samples: int) -> list[int]:
    return [steps] * samples if sequence_lens is None else [int(sequence_lens[n]) for n in range(samples)]


def first_steps(reset: Array | None, n: int, length: int, order: range, layout: int) -> set[int]:
    """Steps of one sample before which a reset clears the state, in the order in which they are visited."""
    if reset is None:
        return set()
    own = reset[n, :] if layout == 1 else reset[:, n]
    backwards = order.step < 0  # a reset is between its step and the one before it in time
    return {t - backwards for t in range(backwards, length) if bool(own[t])}


def walk(
    step: Callable[..., tuple[tuple[Array, ...], Array]],
    gates: int,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    sequence_lens: Array | None,
    initial: Sequence[Array | None],
    direction: str,
    layout: int,
    S: Array | None = None,
    recurrent_mask: Array | None = None,
    zoneout: Sequence[Array | None] = (None, None),
    reset: Array | None = None,
) -> tuple[list[Array], list[Array], Array]:
    """States over time, states at the sequences' ends, gates over time, in the layout and dtype of X.

    ``step(d, x, states, W, R, b)`` takes one sample's input and states, and the parameters of direction d, to
    the next states and the gates. S projects the first of these states, a share `zoneout` of the states
    before takes the place of theirs, and the mask is in the columns of R. Half precision is computed in
    float32. No state passes a reset.
    """
    xp, dtype = array_namespace(X), X.dtype
    work = dtype if dtype in (xp.float32, xp.float64) else xp.float32

    def prepare(array: Array | None, over_batch: bool = True) -> Array | None:
        if array is None:
            return None
        turned = layout == 1 and over_batch
        return xp.astype(xp.permute_dims(array, _TIME_FIRST[array.ndim]) if turned else array, work)

    W, R, B, S = (prepare(a, False) for a in (W, R, B, S))
    X, recurrent_mask, *initial = (prepare(a) for a in (X, recurrent_mask, *initial))
    kept = [prepare(a) for a in zoneout]
    T, N, D, H = X.shape[0], X.shape[1], W.shape[0], R.shape[1] // gates
    widths = [R.shape[2], H][: len(initial)]
    lengths = lengths_of(sequence_lens, T, N)

    def zeros(*shape: int) -> Array:
        return xp.zeros(shape, dtype=work, device=device(X))

    steps = {}  # (t, d, n) -> states, gates
    ends = {}  # (d, n) -> states
    for d, n in itertools.product(range(D), range(N)):
        states = tuple(
            zeros(width) if state is None else state[d, n, :]
            for state, width in zip(initial, widths, strict=True)
        )
        b = None if B is None else B[d, :]
        r = R[d, :, :] if recurrent_mask is None else R[d, :, :] * recurrent_mask[d, n, :]
        order = time_order(direction, d, lengths[n])
        cleared = first_steps(reset, n, lengths[n], order, layout)
        for t in order:
            if t in cleared:
                states = tuple(map(zeros, widths))
            made, values = step(d, X[t, n, :], states, W[d, :, :], r, b)
            if S is not None:
                made = xp.matmul(S[d, :, :], made[0]), *made[1:]
            states = tuple(
                new if share is None else share[t, d, n, :] * old + (1 - share[t, d, n, :]) * new
                for new, old, share in zip(made, states, kept, strict=False)
            )
            steps[t, d, n] = *states, values
        ends[d, n] = states

    def stack(rows: list[Array], *shape: int) -> Array:
        whole = xp.reshape(xp.stack(rows), shape) if rows and 0 not in shape else zeros(*shape)
        return xp.astype(xp.permute_dims(whole, _BATCH_FIRST[whole.ndim]) if layout == 1 else whole, dtype)

    padding = *map(zeros, widths), zeros(gates * H)
    cells = [steps.get(key, padding) for key in itertools.product(range(T), range(D), range(N))]
    last = [ends[key] for key in itertools.product(range(D), range(N))]
    return (
        [stack([cell[k] for cell in cells], T, D, N, width) for k, width in enumerate(widths)],
        [stack([end[k] for end in last], D, N, width) for k, width in enumerate(widths)],
        stack([cell[-1] for cell in cells], T, D, N, gates * H),
    )


class Track(NamedTuple):
    """A state with its cotangents: over time, at the ends, in the beginning (None: zeros)."""

    over_time: Array
    grad_over_time: Array | None
    grad_end: Array | None
    initial: Array | None


def walk_back(
    step: Callable[..., tuple[dict[str, np.ndarray], list[np.ndarray]]],
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    sequence_lens: Array | None,
    tracks: Sequence[Track],
    gates: Array,
    parameters: Mapping[str, int],
    direction: str,
    layout: int,
    per_sample: bool | str,
    sample_weight: Array | None,
    S: Array | None = None,
    recurrent_mask: Array | None = None,
    zoneout: Sequence[Array | None] = (None, None),
    reset: Array | None = None,
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Gradients of X and the parameters by name, and of the initial states, in the layout and dtype of X.

    ``step(d, x, before, after, gates, cotangents, W, R, b)`` takes one sample's step, with its states before
    and after it and the cotangents of the latter, to what it adds to the gradients, by name, and to the
    cotangents of the states before it. `parameters` holds the length of each vector of parameters; B is given
    to the step as zeros where it is None. S, the mask and zoneout are as for `walk`; with S, "made" is what
    a step projects.
    """
    D = R.shape[0]
    widths = [track.over_time.shape[-1] for track in tracks]

    def prepare(array: Array | None, shape: tuple[int, ...] | None = None) -> np.ndarray:
        if array is None:
            return np.zeros(shape or ())
        array = np.asarray(array, dtype=np.float64)
        return np.transpose(array, _TIME_FIRST[array.ndim]) if layout == 1 else array

    w, r = np.asarray(W, dtype=np.float64), np.asarray(R, dtype=np.float64)
    b = np.zeros((D, parameters["B"])) if B is None else np.asarray(B, dtype=np.float64)
    x, values = prepare(X), prepare(gates)
    T, N = x.shape[:2]
    over_time = [prepare(track.over_time) for track in tracks]
    pairs = list(zip(tracks, widths, strict=True))
    grads_over_time = [prepare(track.grad_over_time, (T, D, N, width)) for track, width in pairs]
    grads_end = [prepare(track.grad_end, (D, N, width)) for track, width in pairs]
    initial = [prepare(track.initial, (D, N, width)) for track, width in pairs]
    lengths = lengths_of(sequence_lens, T, N)
    projection = None if S is None else np.asarray(S, dtype=np.float64)
    mask = np.ones((D, N, r.shape[2])) if recurrent_mask is None else prepare(recurrent_mask)
    kept = [prepare(a, (T, D, N, width)) for a, width in zip(zoneout, widths, strict=False)]

    dX, d_initial = np.zeros(x.shape), [np.zeros((D, N, width)) for width in widths]
    sums = {"W": np.zeros((N, *w.shape)), "R": np.zeros((N, *r.shape))}
    sums |= {name: np.zeros((N, D, length)) for name, length in parameters.items()}
    sums |= {} if projection is None else {"S": np.zeros((N, *projection.shape))}
    for d, n in itertools.product(range(D), range(N)):
        cotangents = [end[d, n] for end in grads_end]
        order = time_order(direction, d, lengths[n])
        cleared = first_steps(reset, n, lengths[n], order, layout)
        for k in reversed(range(len(order))):
            t = order[k]
            kept_on = t not in cleared
            before = [a[d, n] * kept_on for a in ([a[order[k - 1]] for a in over_time] if k else initial)]
            after = [a[t, d, n] for a in over_time]
            cotangents = [c + g[t, d, n] for c, g in zip(cotangents, grads_over_time, strict=True)]
            passed = [a[t, d, n] * c for a, c in zip(kept, cotangents, strict=True)]
            made = [(1 - a[t, d, n]) * c for a, c in zip(kept, cotangents, strict=True)]
            projected = made[0]
            if projection is not None:
                made[0] = projection[d].T @ projected
            masked = r[d] * mask[d, n]
            found, back = step(d, x[t, n], before, after, values[t, d, n], made, w[d], masked, b[d])
            found["R"] = found["R"] * mask[d, n]
            if projection is not None:
                found["S"] = np.outer(projected, found["made"])
            cotangents = [(c + p) * kept_on for c, p in zip(back, passed, strict=True)]
            dX[t, n] += found["X"]
            for name, total in sums.items():
                total[n, d] += found[name]
        for total, cotangent in zip(d_initial, cotangents, strict=True):
            total[d, n] = cotangent

    if layout == 1:
        dX, *d_initial = (np.transpose(a, _BATCH_FIRST[3]) for a in (dX, *d_initial))
    grads = {"X": dX} | {
        name: of_samples(a, per_sample, sample_weight, leading=2) for name, a in sums.items()
    }
    return {name: a.astype(X.dtype) for name, a in grads.items()}, [a.astype(X.dtype) for a in d_initial]


def of_samples(
    grads: np.ndarray, per_sample: bool | str, sample_weight: Array | None, leading: int
) -> np.ndarray:
    """What a gradient gives, of a parameter's by samples, whose `leading` first axes are no part of it."""
    if sample_weight is not None:
        weight = np.asarray(to_numpy(sample_weight), dtype=np.float64)
        grads = grads * np.reshape(weight, (-1,) + (1,) * (grads.ndim - 1))
    if per_sample == "norm":
        return np.sqrt(np.sum(grads**2, axis=tuple(range(leading, grads.ndim))))
    return grads if per_sample else np.sum(grads, axis=0)


def bounded(xp: Any, x: Array, clip: float | None) -> Array:
    if clip is None:
        return x
    top = xp.full_like(x, clip)
    return xp.where(x > clip, top, xp.where(x < -clip, -top, x))


def gate_slope(
    activation: ReferenceActivation, y: np.ndarray, x: np.ndarray, clip: float | None
) -> np.ndarray:
    """Derivative of a clipped activation whose value is y, at x."""
    slope = slope_from_output(activation, y, x)
    return slope if clip is None else slope * (np.abs(x) <= clip)
