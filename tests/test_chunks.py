"""The backward loop in chunks of rows: where a chunk ends must not show in any gradient."""

import numpy as np
import pytest

import xpgrad
from xpgrad._calls import families
from xpgrad._recurrent.timeline import Timeline
from xpgrad.engine.compiled import machine

T, N, I, H = 7, 4, 3, 5
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def problem(operator, direction, lengths):
    D, G = (2 if direction == "bidirectional" else 1), GATES[operator]
    rng = np.random.default_rng(0)
    shapes = [(T, N, I), (D, G * H, I), (D, G * H, H), (D, 2 * G * H)]
    arrays = [rng.normal(size=shape) / 2 for shape in shapes]
    states = [rng.normal(size=(D, N, H)) for _ in range(2 if operator == "lstm" else 1)]
    cotangents = [rng.normal(size=(T, D, N, H)), *(rng.normal(size=(D, N, H)) for _ in states)]
    return (*arrays, None if lengths is None else np.asarray(lengths), *states), cotangents, rng


@pytest.mark.parametrize("rows", [1, 4, 9, 26, 30])  # 26: the second chunk has no whole step
@pytest.mark.parametrize("lengths", [None, [7, 3, 0, 5]])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("operator", "options"),
    [
        ("lstm", {}),
        ("lstm", {"clip": 0.3, "P": True}),
        ("gru", {"linear_before_reset": 0}),
        ("gru", {"linear_before_reset": 1}),
        ("gru", {"linear_before_reset": 0, "clip": 0.3}),
        ("gru", {"linear_before_reset": 1, "clip": 0.3}),
        ("rnn", {}),
        ("rnn", {"clip": 0.3}),
    ],
)
def test_small_chunks(operator, options, direction, lengths, rows, monkeypatch):
    arrays, cotangents, rng = problem(operator, direction, lengths)
    options = {"direction": direction, **options}
    if options.get("P"):
        options["P"] = rng.normal(size=(arrays[1].shape[0], 3 * H))
    _, pullback = xpgrad.vjp(getattr(xpgrad, operator), *arrays, **options)
    whole = pullback(*cotangents)
    monkeypatch.setattr(machine, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(machine, "CHUNK_ROWS", rows)
    monkeypatch.setattr(families, "known", families.CallCache())  # programs keep their chunks
    for name, expected, actual in zip(whole._fields, whole, pullback(*cotangents), strict=True):
        if expected is not None:
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("operator", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("cut", ["nothing", "lengths", "resets"])
def test_one_step_of_many_rows(operator, rows, cut, monkeypatch):
    arrays, cotangents, _rng = problem(operator, "forward", None)
    X, W, R, B, _, *states = arrays
    given = {
        "nothing": {},
        "lengths": {"sequence_lens": np.array([1, 0, 1, 1])},
        "resets": {"reset": np.array([[False, True, False, True]])},
    }[cut]
    if operator == "gru":
        given["linear_before_reset"] = 1
    monkeypatch.setattr(machine, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(machine, "CHUNK_ROWS", rows)
    monkeypatch.setattr(families, "known", families.CallCache())

    def gradients():
        _, pullback = xpgrad.vjp(getattr(xpgrad, operator), X[:1], W, R, B, initial_h=states[0], **given)
        return pullback(cotangents[0][:1], *cotangents[1:])

    found = gradients()
    with xpgrad.use_engine("standard"):
        expected = gradients()
    for name, a, b in zip(found._fields, found, expected, strict=True):
        if b is not None:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, [7, 3, 0, 5], [0, 0, 0, 0], [2, 2, 2, 2]])
@pytest.mark.parametrize("limit", [None, 1, 5, 100])
def test_chunks_cover_all_rows_once(lengths, reverse, limit):
    timeline = Timeline(np, T, N, lengths, reverse, np.zeros((T, N, I)))
    chunks = list(timeline.chunks(limit))
    covered = np.concatenate([np.arange(c.start, c.start + c.rows) for c in chunks])
    assert sorted(covered) == list(range(timeline.rows))
    steps = [step for chunk in chunks for part in (chunk.later, chunk.first) for step in part.tolist()]
    first, later = timeline.forward()
    assert [step[:3] for step in steps] == [step[:3] for step in [*first.tolist(), *later.tolist()]][::-1]
    assert [len(chunk.first) for chunk in chunks] == [0] * (len(chunks) - 1) + [min(1, timeline.rows)]
    for chunk in chunks:
        inside = [row for count, now, *_ in [*chunk.later, *chunk.first] for row in range(now, now + count)]
        assert sorted(inside) == list(range(chunk.start, chunk.start + chunk.rows))
        assert all(now == chunk.start + local for _, now, _, local in [*chunk.later, *chunk.first])
        assert limit is None or chunk.rows <= limit or len(chunk.later) + len(chunk.first) == 1
