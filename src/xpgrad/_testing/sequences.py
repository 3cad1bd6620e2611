"""Loops over a batch, one sample and one step at a time, forwards and backwards."""

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
"""The order of axes that turns layout 0 into layout 1, by the array's rank: states 3, sequences 4."""
_TIME_FIRST = {3: (1, 0, 2), 4: (1, 2, 0, 3)}
"""The order that turns layout 1 into layout 0."""


def _runs_backwards(direction: str, d: int) -> bool:
    return direction == "reverse" or d == 1


def _time_order(direction: str, d: int, length: int) -> range:
    """Steps of one sample in the order in which direction d visits them."""
    return range(length - 1, -1, -1) if _runs_backwards(direction, d) else range(length)


def lengths_of(sequence_lens: Array | None, steps: int, samples: int) -> list[int]:
    return [steps] * samples if sequence_lens is None else [int(sequence_lens[n]) for n in range(samples)]


def _is_cleared(
    reset: Array | None, t: int, n: int, length: int, direction: str, d: int, layout: int
) -> bool:
    """Whether a reset lies between a step of one sample and the step visited before it."""
    place = t + _runs_backwards(direction, d)  # a reset lies between its step and the step before it in time
    if reset is None or place == length:
        return False
    return bool(reset[n, place] if layout == 1 else reset[place, n])


def each_step(
    visit: Callable[[int, int, int, tuple[Array, ...]], tuple[Array, ...]],
    begin: Callable[[int, int], tuple[Array, ...]],
    padding: Sequence[Array],
    steps: int,
    lengths: Sequence[int],
    directions: int,
    direction: str,
) -> tuple[list[Array], list[Array]]:
    """The arrays of all steps: over time (T, D, N, ...), and at the sequences' ends (D, N, ...).

    ``visit(t, d, n, before)`` computes the arrays of one sample's step from the arrays of the step before.
    ``begin(d, n)`` gives the arrays before the first step, `padding` the arrays past a sequence's end.
    """
    over_time: dict[tuple[int, ...], tuple[Array, ...]] = {}
    ends: dict[tuple[int, ...], tuple[Array, ...]] = {}
    for d, n in itertools.product(range(directions), range(len(lengths))):
        made = begin(d, n)
        for t in _time_order(direction, d, lengths[n]):
            made = over_time[t, d, n] = visit(t, d, n, made)
        ends[d, n] = made

    def stack(found: Mapping[tuple[int, ...], tuple[Array, ...]], *shape: int) -> list[Array]:
        rows = [found.get(key, padding) for key in itertools.product(*map(range, shape))]
        return [_stacked([row[k] for row in rows], one, shape) for k, one in enumerate(padding)]

    return stack(over_time, steps, directions, len(lengths)), stack(ends, directions, len(lengths))


def _stacked(rows: Sequence[Array], padding: Array, shape: tuple[int, ...]) -> Array:
    """Rows as one array with these first axes."""
    xp, whole = array_namespace(padding), (*shape, *padding.shape)
    if not rows:
        return xp.zeros(whole, dtype=padding.dtype, device=device(padding))
    return xp.reshape(xp.stack(rows), whole)


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

    ``step(d, x, states, W, R, b)`` computes one sample's next states and gates from its input, its states and
    the parameters of direction d; b is zeros if B is None. S projects the first state. `zoneout` is the share
    of each old state in the new one. The mask multiplies the columns of R. A reset sets the states to zero.
    Half precision is computed in float32.
    """
    xp, dtype = array_namespace(X), X.dtype
    work = dtype if dtype in (xp.float32, xp.float64) else xp.float32

    def prepare(array: Array | None, over_batch: bool = True) -> Array | None:
        if array is None:
            return None
        turned = layout == 1 and over_batch
        return xp.astype(xp.permute_dims(array, _TIME_FIRST[array.ndim]) if turned else array, work)

    W, R, b, S = (prepare(a, False) for a in (W, R, B, S))
    X, recurrent_mask, *initial = (prepare(a) for a in (X, recurrent_mask, *initial))
    kept = [prepare(a) for a in zoneout]
    T, N, D, H = X.shape[0], X.shape[1], W.shape[0], R.shape[1] // gates
    widths = [R.shape[2], H][: len(initial)]
    lengths = lengths_of(sequence_lens, T, N)
    b = xp.zeros((D, 2 * gates * H), dtype=work, device=device(X)) if b is None else b
    *zeros, no_gates = (xp.zeros((size,), dtype=work, device=device(X)) for size in (*widths, gates * H))

    def begin(d: int, n: int) -> tuple[Array, ...]:
        given = zip(initial, zeros, strict=True)
        return *(zero if state is None else state[d, n, :] for state, zero in given), no_gates

    def visit(t: int, d: int, n: int, before: tuple[Array, ...]) -> tuple[Array, ...]:
        states = tuple(zeros if _is_cleared(reset, t, n, lengths[n], direction, d, layout) else before[:-1])
        r = R[d, :, :] if recurrent_mask is None else R[d, :, :] * recurrent_mask[d, n, :]
        made, values = step(d, X[t, n, :], states, W[d, :, :], r, b[d, :])
        if S is not None:
            made = xp.matmul(S[d, :, :], made[0]), *made[1:]
        after = (
            new if share is None else share[t, d, n, :] * old + (1 - share[t, d, n, :]) * new
            for new, old, share in zip(made, states, kept, strict=False)
        )
        return *after, values

    def finished(whole: Array) -> Array:
        return xp.astype(xp.permute_dims(whole, _BATCH_FIRST[whole.ndim]) if layout == 1 else whole, dtype)

    found = each_step(visit, begin, (*zeros, no_gates), T, lengths, D, direction)
    (*over_time, values), (*ends, _) = ([finished(whole) for whole in part] for part in found)
    return over_time, ends, values


class StepBack(NamedTuple):
    """One sample's step in direction d, with the arrays for its gradient."""

    d: int
    x: np.ndarray
    before: list[np.ndarray]
    """The states before the step."""
    after: list[np.ndarray]
    """The states after it."""
    gates: np.ndarray
    cotangents: list[np.ndarray]
    """The cotangents of the states after it."""
    W: np.ndarray
    R: np.ndarray
    b: np.ndarray


class Track(NamedTuple):
    """A state with its cotangents: over time, at the ends, in the beginning (None: zeros)."""

    over_time: Array
    grad_over_time: Array | None
    grad_end: Array | None
    initial: Array | None


def walk_back(
    step: Callable[[StepBack], tuple[dict[str, np.ndarray], list[np.ndarray]]],
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

    `step` returns what one sample's step adds to each gradient, by name, and the cotangents of the states
    before it. With S, its "made" is the state that S projects. `parameters` holds the length of each vector
    of parameters. B, S, the mask and zoneout are as for `walk`.
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
        order = _time_order(direction, d, lengths[n])
        for k in reversed(range(len(order))):
            t = order[k]
            kept_on = not _is_cleared(reset, t, n, lengths[n], direction, d, layout)
            before = [a[d, n] * kept_on for a in ([a[order[k - 1]] for a in over_time] if k else initial)]
            after = [a[t, d, n] for a in over_time]
            cotangents = [c + g[t, d, n] for c, g in zip(cotangents, grads_over_time, strict=True)]
            passed = [a[t, d, n] * c for a, c in zip(kept, cotangents, strict=True)]
            made = [(1 - a[t, d, n]) * c for a, c in zip(kept, cotangents, strict=True)]
            projected = made[0]
            if projection is not None:
                made[0] = projection[d].T @ projected
            masked = r[d] * mask[d, n]
            found, back = step(StepBack(d, x[t, n], before, after, values[t, d, n], made, w[d], masked, b[d]))
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
    """A parameter's gradient from its gradients by samples: weighted, then summed, kept, or their norms.

    The first `leading` axes (samples, directions) are no axes of the parameter.
    """
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
    """The slope at x of a clipped activation with the value y."""
    slope = slope_from_output(activation, y, x)
    return slope if clip is None else slope * (np.abs(x) <= clip)
