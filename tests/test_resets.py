"""Resets within sequences: a call of its own for each piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import Backend
from reset_cases import (
    CELLS,
    DIRECTIONS,
    GATES,
    LENGTHS,
    RESETS,
    H,
    N,
    T,
    base,
    cotangents_of,
    expected,
    found,
    operands_of,
    piece_by_piece,
)
from xpgrad._operators.axes import gradient_name
from xpgrad.testing import to_numpy

NAMES = [*GATES, *CELLS]
both_lengths = pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])


def given(lengths: Any) -> dict[str, Any]:
    return {} if lengths is None else {"sequence_lens": lengths}


def compare(outputs: Any, grads: Any, wanted: Any, tolerance: float = 1e-11) -> None:
    for output, value in wanted[0].items():
        np.testing.assert_allclose(getattr(outputs, output), value, rtol=0, atol=tolerance, err_msg=output)
    for name, value in wanted[1].items():
        grad = getattr(grads, gradient_name(name))
        np.testing.assert_allclose(grad, value, rtol=0, atol=tolerance, err_msg=f"gradient of {name}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@both_lengths
def test_pieces_are_calls_of_their_own(name: str, direction: str, lengths: Any) -> None:
    operands, cotangents, wanted = piece_by_piece(name, direction, lengths)
    compare(*found(name, operands, cotangents, direction=direction, reset=RESETS, **given(lengths)), wanted)


@pytest.mark.parametrize("name", ["lstm", "layer_norm_gru"])
@pytest.mark.parametrize(("direction", "lengths"), [("forward", LENGTHS), ("reverse", None)])
def test_resets_on_every_backend(backend: Backend, name: str, direction: str, lengths: Any) -> None:
    operands, cotangents, wanted = piece_by_piece(name, direction, lengths)
    arrays, seeds = (
        {key: backend.array(x, "float64") for key, x in part.items()} for part in (operands, cotangents)
    )
    reset = backend.xp.asarray(RESETS) if backend.name.startswith("strict") else RESETS
    outputs, grads = found(name, arrays, seeds, direction=direction, reset=reset, **given(lengths))
    in_numpy = [
        type(part)._make(None if x is None else to_numpy(x) for x in part) for part in (outputs, grads)
    ]
    compare(*in_numpy, wanted)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_regularizers_follow_their_sequences(name: str, rng: np.random.Generator) -> None:
    """A mask before R holds for every piece of its sequence, shares to keep for their own steps."""
    operands = operands_of(name, 1, rng)
    cotangents = cotangents_of(name, 1, rng)
    masks = {"recurrent_mask": rng.uniform(size=(1, N, H)), "zoneout_h": rng.uniform(size=(T, 1, N, H))}
    if name == "lstm":
        masks["zoneout_c"] = rng.uniform(size=(T, 1, N, H))
    operands |= {} if name == "rnn" else masks
    wanted = expected(name, operands, cotangents, LENGTHS, RESETS, "forward")
    for mask in masks:
        wanted[1].pop(mask, None)
    compare(*found(name, operands, cotangents, reset=RESETS, sequence_lens=LENGTHS), wanted)


@pytest.mark.parametrize("name", ["lstm", "layer_norm_gru"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_gradients_of_each_sample(name: str, direction: str) -> None:
    """Those of a sample are the ones of a batch that has no other."""
    operands, cotangents, _ = piece_by_piece(name, direction, LENGTHS)
    options = {"direction": direction}
    _, each = found(
        name, operands, cotangents, reset=RESETS, sequence_lens=LENGTHS, per_sample=True, **options
    )
    _, norms = found(
        name, operands, cotangents, reset=RESETS, sequence_lens=LENGTHS, per_sample="norm", **options
    )
    for n in range(N):
        one = {
            key: x[:, n : n + 1] if key in ("X", "initial_h", "initial_c") else x
            for key, x in operands.items()
        }
        seeds = {key: x[..., n : n + 1, :] for key, x in cotangents.items()}
        own = {"sequence_lens": LENGTHS[n : n + 1], "reset": RESETS[:, n : n + 1]}
        _, alone = found(name, one, seeds, **own, **options)
        for field in ("dW", "dR", "dB"):
            np.testing.assert_allclose(getattr(each, field)[n], getattr(alone, field), rtol=0, atol=1e-12)
            norm = np.sqrt((getattr(alone, field) ** 2).sum(axis=tuple(range(1, getattr(alone, field).ndim))))
            np.testing.assert_allclose(getattr(norms, field)[n], norm, rtol=1e-11)


def test_other_resets_run_from_the_same_program(rng: np.random.Generator) -> None:
    """A program takes the resets of each call: none, some, all, and lengths between them."""
    operands, cotangents = operands_of("lstm", 1, rng), cotangents_of("lstm", 1, rng)
    every = np.ones((T, N), dtype=bool)
    for resets, lengths in [
        (RESETS, LENGTHS), (every, LENGTHS), (rng.uniform(size=(T, N)) < 0.3, [T] * N), (~every, LENGTHS),
        (every, None), (RESETS, None), (~every, None),
    ]:  # fmt: skip
        wanted = expected("lstm", operands, cotangents, lengths or [T] * N, resets, "forward")
        compare(*found("lstm", operands, cotangents, reset=resets, **given(lengths)), wanted)


@pytest.mark.parametrize(
    ("name", "direction"), [("lstm", "forward"), ("gru", "reverse"), ("centered", "reverse")]
)
def test_nothing_passes_a_reset(name: str, direction: str) -> None:
    """NaN in one piece, and in its cotangents, reaches no other one."""
    operands, cotangents, (outputs, grads) = piece_by_piece(name, direction, None)
    X, seed = operands["X"].copy(), cotangents["grad_H_all"].copy()
    inside = slice(2, 5)  # of the second sequence, between two resets
    X[inside, 1] = seed[inside, :, 1] = np.nan
    options = {"direction": direction, "reset": RESETS}
    made, found_grads = found(name, operands | {"X": X}, cotangents | {"grad_H_all": seed}, **options)
    for rows, right, axis in [(made.H_all, outputs["H_all"], 2), (found_grads.dX, grads["X"], 1)]:
        own, wanted = np.moveaxis(rows, axis, 1).copy(), np.moveaxis(right, axis, 1).copy()
        assert np.isnan(own[inside, 1]).all()
        own[inside, 1] = wanted[inside, 1] = 0
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-11)


def test_the_batch_in_front(rng: np.random.Generator) -> None:
    operands, cotangents, wanted = piece_by_piece("gru", "bidirectional", LENGTHS)

    def turned(x: np.ndarray) -> np.ndarray:
        return np.moveaxis(x, -2, 0)

    front = {key: turned(x) if key in ("X", "initial_h") else x for key, x in operands.items()}
    seeds = {key: turned(x) for key, x in cotangents.items()}
    outputs, grads = found(
        "gru", front, seeds, reset=RESETS.T, sequence_lens=LENGTHS, direction="bidirectional", layout=1
    )
    for output, value in wanted[0].items():
        np.testing.assert_allclose(getattr(outputs, output), turned(value), rtol=0, atol=1e-11)
    for key, value in wanted[1].items():
        expected_grad = turned(value) if key in ("X", "initial_h") else value
        np.testing.assert_allclose(getattr(grads, gradient_name(key)), expected_grad, rtol=0, atol=1e-11)


def test_a_pullback_keeps_its_resets(rng: np.random.Generator) -> None:
    operands, cotangents, wanted = piece_by_piece("lstm", "forward", None)
    resets = RESETS.copy()
    outputs, pullback = xpgrad.vjp(xpgrad.lstm, **operands, reset=resets)
    resets[:] = True
    compare(outputs, pullback(**cotangents), wanted)


@pytest.mark.parametrize(
    ("reset", "error", "text"),
    [
        (RESETS.astype(np.float64), TypeError, "reset has dtype float64, expected booleans"),
        (RESETS.astype(np.int64), TypeError, "reset has dtype int64, expected booleans"),
        (RESETS.T, ValueError, r"reset has shape \(5, 7\), expected \(T, N\) = \(7, 5\)"),
        (RESETS[0], ValueError, r"reset has shape \(5,\), expected \(T, N\) = \(7, 5\)"),
        ([[True]], TypeError, "reset is a list, expected an array of booleans"),
    ],
)
@pytest.mark.parametrize("name", ["lstm", "peephole LSTM"])
def test_wrong_resets(name: str, reset: Any, error: type, text: str, rng: np.random.Generator) -> None:
    operands = operands_of(name, 1, rng)
    with pytest.raises(error, match=f"^{base(name).__name__}: {text}"):
        base(name)(**operands, reset=reset)
    saved = found(name, operands, cotangents_of(name, 1, rng))[0]
    kept = {key: getattr(saved, key) for key in ("H_all", "C_all", "iofc", "saved") if hasattr(saved, key)}
    seed = {"grad_H_t": np.ones((1, N, H))}
    gradient = xpgrad.lstm_grad if name == "lstm" else base(name).grad
    taken = {key: x for key, x in operands.items() if key != "B"}
    with pytest.raises(error, match=f"_grad: {text}"):
        gradient(**taken, **kept, **seed, reset=reset)
