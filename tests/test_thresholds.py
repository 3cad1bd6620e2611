"""Sizes around every threshold of compiled code, with lengths of every sum, under the guard."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import numpy as np
import pytest

import own_cells
import xpgrad
from backends import without_programs
from xpgrad._calls import families
from xpgrad._testing.thresholds import near, thresholds
from xpgrad.cli import check_random

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there is no compiled code with thresholds")

from xpgrad.engine.compiled import records
from xpgrad.engine.process import guard

CHUNK = records.positions(records.ChunkQuantities)


@pytest.fixture
def guarded(monkeypatch, compiled):
    monkeypatch.setattr(guard, "on", True)
    monkeypatch.setattr(families, "known", families.CallCache())


def starts_of(timeline, lengths, steps, is_full=False):
    """The first row of each step, how many steps there are, and the lengths in order."""
    batch, starts = len(lengths), np.full(steps + 2, -1)
    order, place, ordered = np.full((3, batch), -1)
    if is_full:
        longest = timeline._fill(batch, steps, order, place, ordered, starts)
    else:
        longest = timeline._sort(np.asarray(lengths), 1, batch, steps, order, place, ordered, starts)
    assert sorted(order) == list(range(batch))
    return starts, longest, ordered


def test_chunks_are_never_longer_than_planned(rng, timeline_in_python):
    """`Schedule.chunks` plans for limit + N rows: a chunk is complete once it has `limit` rows or more."""
    for steps, batch in itertools.product([1, 2, 3, 7, 20], [1, 2, 5, 16]):
        for limit in {1, 2, 3, batch, 2 * batch + 1, steps * batch // 2 + 1, steps * batch}:
            most = -(-steps * batch // limit)
            for trial in range(8):
                longest = steps if trial < 4 else max(1, steps // 2)
                lengths = rng.integers(0, longest + 1, size=batch) if trial else np.full(batch, steps)
                starts, found, _ = starts_of(timeline_in_python, lengths, steps)
                quantities, spans = np.full(len(CHUNK) * most, -1), np.full(4 * steps, -1)
                timeline_in_python._write_chunks(limit, most, False, quantities, spans, starts, found)
                table = quantities.reshape(most, len(CHUNK))
                assert (table >= 0).all()
                assert table[:, CHUNK.count].max() <= min(limit + batch, steps * batch)
                assert table[:, CHUNK.count].sum() == lengths.sum()
                assert table[:, [CHUNK.low, CHUNK.middle, CHUNK.high]].max() <= steps
                assert (table[:, CHUNK.later_place] + table[:, CHUNK.later] <= steps).all()
                assert (table[:, CHUNK.first_place] + table[:, CHUNK.first] <= steps).all()


@pytest.mark.parametrize("limit", [1, 4, 7, 12, 100])
def test_chunks_whose_rows_have_the_order_of_time(limit, timeline_in_python):
    """In reverse, step k of a full batch is time T - 1 - k; the rows before it follow in memory."""
    steps, batch = 6, 3
    starts, found, ordered = starts_of(timeline_in_python, [steps] * batch, steps)
    of_full = starts_of(timeline_in_python, [steps] * batch, steps, is_full=True)
    np.testing.assert_array_equal(of_full[0][: steps + 1], starts[: steps + 1])
    assert of_full[1] == found
    np.testing.assert_array_equal(of_full[2], ordered)
    most = -(-steps * batch // limit)
    quantities, spans = np.full(len(CHUNK) * most, -1), np.full(4 * steps, -1)
    timeline_in_python._write_chunks(limit, most, True, quantities, spans, starts, found)
    behind = 0
    for values in quantities.reshape(most, len(CHUNK)):
        chunk = CHUNK._make(values.tolist())
        if not chunk.count:
            continue
        assert chunk.start == behind
        behind += chunk.count
        for step in range(chunk.high - 1, chunk.low - 1, -1):
            rows, now, before, local = spans[4 * (steps - 1 - step) :][:4]
            assert (rows, now) == (batch, (steps - 1 - step) * batch)
            assert local == now - chunk.start
            assert not step or before == now + batch
    assert behind == steps * batch


def test_cuts_between_threads_stay_within_the_batch(rng, timeline_in_python):
    for batch, parts in itertools.product([1, 2, 5, 16, 33], [1, 2, 3, 8]):
        for lengths in (
            rng.integers(0, 9, size=batch),
            np.full(batch, 8),
            np.eye(1, batch, dtype=int)[0] * 8,
        ):
            starts, longest, ordered = starts_of(timeline_in_python, lengths, 8)
            for low, high in [(0, longest), (0, min(longest, 1)), (longest // 2, longest)]:
                count = starts[low + 1] - starts[low] if high > low else 0
                cuts = np.full(parts + 1, -1)
                timeline_in_python._write_cuts(cuts, parts, ordered, low, high, count)
                assert cuts[0] == 0
                assert cuts[-1] == count
                assert (np.diff(cuts) >= 0).all()


def sums(rng, T, N):
    """Lengths with sums around each threshold of rows."""
    for rows in sorted({1, N, T * N // 2, T * N - 1, *thresholds().rows}):
        for total in (rows - 1, rows, rows + 1):
            if 0 < total < T * N:
                lengths = rng.multinomial(total, np.full(N, 1 / N))
                while lengths.max() > T:  # spread what is too long
                    rest = int((lengths - T).clip(0).sum())
                    lengths = lengths.clip(0, T)
                    room = np.flatnonzero(lengths < T)
                    lengths += np.bincount(rng.choice(room, rest), minlength=N)
                yield lengths


CALLS = {
    "lstm": (4, {}, ("H_all", "C_all", "iofc")),
    "gru": (3, {}, ("H_all", "zrh")),
    "gru, reset after": (3, {"linear_before_reset": 1}, ("H_all", "zrh")),
    "rnn": (1, {}, ("H_all",)),
    "layer_norm_lstm": (4, {}, ("H_all", "C_all", "saved", "means")),
    "layer_norm_gru": (3, {}, ("H_all", "saved", "means")),
}


def both_passes(name, arrays, lengths, options):
    """Outputs and gradients for a cotangent of H_all."""
    _, attributes, kept = CALLS[name]
    operator = name.split(",")[0]
    attributes = attributes | options | {"sequence_lens": lengths}
    out = getattr(xpgrad, operator)(**arrays, **attributes)
    saved = {field: getattr(out, field) for field in kept}
    cotangent = np.cos(np.arange(out.H_all.size)).reshape(out.H_all.shape).astype(out.H_all.dtype)
    grads = getattr(xpgrad, f"{operator}_grad")(**arrays, **saved, grad_H_all=cotangent, **attributes)
    return {f: np.asarray(x) for f, x in (out._asdict() | grads._asdict()).items() if x is not None}


def operands(name, rng, sizes, dtype):
    (T, N, I, H), gates = sizes, CALLS[name][0]
    shapes = {"X": (T, N, I), "W": (1, gates * H, I), "R": (1, gates * H, H), "B": (1, 2 * gates * H)}
    if name.startswith("layer_norm"):
        shapes |= {"gamma": (1, 2, gates * H), "beta": (1, 2, gates * H)}
        shapes |= {"gamma_c": (1, H), "beta_c": (1, H)} if name.endswith("lstm") else {}
    return {
        n: (rng.normal(size=s) / np.sqrt(s[-1] if n in "WR" else 1)).astype(dtype) for n, s in shapes.items()
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_lengths_of_every_sum_for_one_form(name, dtype, rng, guarded):
    """Sums around each block of a product, in one to three threads, from programs of one form."""
    table = thresholds()
    T, N = 41, 26
    sizes = T, N, near(rng, table.features, 34), near(rng, table.features, 34)
    options = {"direction": str(rng.choice(["forward", "reverse"]))}
    arrays = operands(name, rng, sizes, dtype)
    exact = {field: x.astype(float) for field, x in arrays.items()}
    chosen = [lengths for k, lengths in enumerate(sums(rng, T, N)) if k % 4 == 1]
    for threads, lengths in zip(itertools.cycle([1, 2, 3]), chosen, strict=False):
        with check_random.in_threads(threads):
            got = both_passes(name, arrays, lengths, options)
        with xpgrad.use_engine("standard"):
            expected = both_passes(name, exact, lengths, options)
        for field, right in expected.items():
            bound = (1e-10 if dtype == "float64" else 1e-4) * max(np.abs(right).max(), 1e-3)
            np.testing.assert_allclose(
                got[field], right, rtol=0, atol=bound, err_msg=f"{field} {lengths.sum()}"
            )


def test_a_cell_with_lengths_of_every_sum(rng, guarded):
    cell = xpgrad.Cell(own_cells.minimal_gated_unit, W="f n", R="f n", v="f n")
    T, N, I, H = 21, 27, 8, 16
    arrays = [rng.normal(size=s) * 0.3 for s in [(T, N, I), (1, 2 * H, I), (1, 2 * H, H), (1, 2 * H)]]

    def both(lengths):
        out = cell(*arrays, sequence_lens=lengths)
        saved = {"H_all": out.H_all, "saved": out.saved, "grad_H_all": np.ones_like(out.H_all)}
        return cell.grad(*arrays, **saved, sequence_lens=lengths)

    for lengths in itertools.islice(sums(rng, T, N), 0, None, 3):
        got = both(lengths)
        with xpgrad.use_engine("standard"):
            for a, b in zip(got, both(lengths), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("planned", [True, False], ids=["programs", "no programs"])
@pytest.mark.parametrize("seed", range(8))
def test_convolutions(seed, planned, guarded):
    """Channels, positions and images around the thresholds, by tiles and by loops."""
    rng, table = np.random.default_rng(seed), thresholds()
    for dtype, threads in itertools.product(["float32", "float64"], [1, 2, 3]):
        group = int(rng.choice([1, 1, 2]))
        C, O = (group * near(rng, table.channels, 50) for _ in "CO")
        positions, height = near(rng, table.positions, 1100), int(rng.integers(1, 9))
        size = height, max(positions // height, 1)
        kernel = [int(rng.integers(1, min(4, s) + 1)) for s in size]
        X = rng.normal(size=(int(rng.integers(1, 4)), C, *size))
        W = rng.normal(size=(O, C // group, *kernel)) / np.sqrt(C * np.prod(kernel))
        options = {
            "group": group,
            "strides": [1, int(rng.integers(1, 3))],
            "pads": [int(rng.integers(0, 2))] * 4,
        }
        exact = [x.astype(dtype).astype(float) for x in (X, W)]
        with nullcontext() if planned else without_programs(), check_random.in_threads(threads):
            got = conv_passes(*(x.astype(dtype) for x in exact), options)
        with xpgrad.use_engine("standard"):
            for a, b in zip(got, conv_passes(*exact, options), strict=True):
                bound = (1e-11 if dtype == "float64" else 1e-4) * np.abs(b).max()
                np.testing.assert_allclose(a, b, rtol=0, atol=bound)


def conv_passes(X, W, options):
    """A convolution and its gradients, the bias's too."""
    Y = xpgrad.conv(X, W, X[0, 0, 0, 0] * np.ones(len(W), X.dtype), **options)
    return Y, *xpgrad.conv_grad(np.cos(Y), X, W, **options)


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_random_calls_of_uneven_lengths(namespace, guarded):
    """Sizes and lengths as `check --random --lengths` draws them."""
    pytest.importorskip("torch", reason="torch is not installed: calls are drawn as if it were")
    pytest.importorskip("jax", reason="jax is not installed: calls are drawn as if it were")
    calls = (check_random.draw_call(seed, of_lengths=True) for seed in range(10_000, 20_000))
    few = itertools.islice(
        (call for call in calls if call.namespace == namespace), 3 if namespace == "jax" else 12
    )
    found = {str(call): check_random.failure(call) for call in few}
    assert {call: text for call, text in found.items() if text} == {}
