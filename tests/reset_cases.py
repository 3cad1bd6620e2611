"""Calls with resets, and what they must be: a call of its own for each piece."""

import functools

import numpy as np

import xpgrad
from own_cells import CELLS as ALL_CELLS
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.vjp import rule_of

T, N, I, H = 7, 5, 3, 4
DIRECTIONS = ["forward", "reverse", "bidirectional"]
LENGTHS = [7, 4, 0, 1, 6]
# in the middle, before the first step, behind the end, in a sequence of no steps, one after the other
RESETS = np.zeros((T, N), dtype=bool)
for time, sequence in [(2, 0), (3, 0), (0, 1), (2, 1), (5, 1), (0, 2), (3, 2), (0, 3), (5, 4)]:
    RESETS[time, sequence] = True

CELLS = {name: ALL_CELLS[name] for name in ("minimal gated unit", "peephole LSTM", "centered")}
MASKS = {"recurrent_mask", "zoneout_h", "zoneout_c"}
GATES = {"lstm": 4, "gru": 3, "rnn": 1, "layer_norm_lstm": 4, "layer_norm_gru": 3}
OPTIONS = {"gru": {"linear_before_reset": 1}}


def operands_of(name, D, rng, dtype=np.float64):
    """Operands by name, without lengths; of a cell too."""
    if name in CELLS:
        cell = CELLS[name]
        counts = {kind: len(blocks) * H for kind, blocks in cell.blocks.items() if blocks}
        shapes = {"X": (T, N, I)} | {
            kind: (D, rows, *{"W": (I,), "R": (H,), "v": ()}[kind]) for kind, rows in counts.items()
        }
        states = cell.carried
    else:
        G = GATES[name] * H
        shapes = {"X": (T, N, I), "W": (D, G, I), "R": (D, G, H), "B": (D, 2 * G)}
        if name.startswith("layer_norm"):
            shapes |= {"gamma": (D, 2, G), "beta": (D, 2, G)}
        if name == "layer_norm_lstm":
            shapes |= {"gamma_c": (D, H), "beta_c": (D, H)}
        states = "hc" if name.endswith("lstm") else "h"
    shapes |= {f"initial_{state}": (D, N, H) for state in states}
    return {key: rng.normal(size=shape).astype(dtype) for key, shape in shapes.items()}


def base(name):
    return CELLS[name] if name in CELLS else getattr(xpgrad, name)


def pieces_of(lengths, resets):
    """Of each sequence the pieces in order of time, as (begin, end)."""
    for n in range(N):
        cuts = [t for t in range(1, lengths[n]) if resets[t, n]]
        yield n, list(zip([0, *cuts], [*cuts, lengths[n]], strict=True))


def by_pieces(name, operands, cotangents, lengths, resets, direction):
    """Outputs and gradients from one call for each piece of one direction; what is summed is summed here."""
    options = OPTIONS.get(name, {})
    rule = rule_of(base(name))
    outputs, grads = {}, {key: np.zeros_like(value) for key, value in operands.items()}
    for output in rule.cotangents:
        outputs[output] = np.zeros_like(cotangents[rule.cotangents[output]])
    for n, pieces in pieces_of(lengths, resets):
        starts, ends = (pieces[-1], pieces[0]) if direction == "reverse" else (pieces[0], pieces[-1])
        for begin, end in pieces:
            given = dict(operands, X=operands["X"][begin:end, n : n + 1])
            initial = [key for key in operands if key.startswith("initial_")]
            has_state = (begin, end) == starts and not (
                direction == "forward" and end > begin and resets[begin, n]
            )
            for key in initial:
                given[key] = operands[key][:, n : n + 1] * has_state
            for key in MASKS & operands.keys():
                over_time = operands[key].ndim == 4
                given[key] = (
                    operands[key][begin:end, :, n : n + 1] if over_time else operands[key][:, n : n + 1]
                )
            made, pullback = xpgrad.vjp(base(name), **given, **options, direction=direction)
            own = {}
            for output, cotangent in rule.cotangents.items():
                value, whole = getattr(made, output), cotangents[cotangent]
                if output.endswith("_all"):
                    outputs[output][begin:end, :, n : n + 1] = value
                    own[cotangent] = whole[begin:end, :, n : n + 1]
                else:
                    is_end = (begin, end) == ends
                    if is_end:
                        outputs[output][:, n : n + 1] = value
                    own[cotangent] = whole[:, n : n + 1] * is_end
            found = pullback(**own)
            for key in operands.keys() - MASKS:
                grad = getattr(found, gradient_name(key))
                if key == "X":
                    grads[key][begin:end, n : n + 1] = grad
                elif key in initial:
                    grads[key][:, n : n + 1] += grad * has_state
                else:
                    grads[key] += grad
    return outputs, grads


def expected(name, operands, cotangents, lengths, resets, direction):
    """The same for one direction or both, on the standard engine: pieces of many lengths are no programs."""
    if direction != "bidirectional":
        with xpgrad.use_engine("standard"):
            return by_pieces(name, operands, cotangents, lengths, resets, direction)
    parts = []
    for d, one in enumerate(("forward", "reverse")):
        own = {k: v if k == "X" else v[d : d + 1] for k, v in operands.items()}
        seeds = {k: v[:, d : d + 1] if v.ndim == 4 else v[d : d + 1] for k, v in cotangents.items()}
        parts.append(by_pieces(name, own, seeds, lengths, resets, one))
    outputs = {
        k: np.concatenate([p[0][k] for p in parts], 1 if v.ndim == 4 else 0) for k, v in parts[0][0].items()
    }
    grads = {k: np.concatenate([p[1][k] for p in parts], 0) for k in operands if k != "X"}
    return outputs, grads | {"X": parts[0][1]["X"] + parts[1][1]["X"]}


def cotangents_of(name, D, rng, dtype=np.float64):
    return {
        cotangent: rng.normal(size=(T, D, N, H) if output.endswith("_all") else (D, N, H)).astype(dtype)
        for output, cotangent in rule_of(base(name)).cotangents.items()
    }


def found(name, operands, cotangents, **options):
    outputs, pullback = xpgrad.vjp(base(name), **operands, **OPTIONS.get(name, {}), **options)
    return outputs, pullback(**cotangents)


def piece_by_piece(name, direction, lengths):
    """Operands, cotangents, and what the call with resets must be."""
    known = _known(name, direction, (T,) * N if lengths is None else tuple(map(int, lengths)))
    operands, cotangents, (outputs, grads) = known
    return dict(operands), dict(cotangents), (dict(outputs), dict(grads))


@functools.cache
def _known(name, direction, lengths):
    rng = np.random.default_rng(len(name))
    D = 2 if direction == "bidirectional" else 1
    operands, cotangents = operands_of(name, D, rng), cotangents_of(name, D, rng)
    return operands, cotangents, expected(name, operands, cotangents, lengths, RESETS, direction)
