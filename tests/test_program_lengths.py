"""Sequences of uneven lengths run from one program: the lengths are numbers of a call, not of its form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import xpgrad
from xpgrad._calls import families
from xpgrad._calls.adapter_calls import run_foreign
from xpgrad.engine.compiled import machine, records
from xpgrad.engine.formulas.formula import Span
from xpgrad.engine.process import sharing
from xpgrad.engine.programs.recorder import Recorder

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no programs")


GATES = {"lstm": 4, "gru": 3, "rnn": 1}
SAVED = {"lstm": ("H_all", "C_all", "iofc"), "gru": ("H_all", "zrh"), "rnn": ("H_all",)}
STATES = {"lstm": ("initial_h", "initial_c"), "gru": ("initial_h",), "rnn": ("initial_h",)}


@pytest.fixture(autouse=True)
def no_plans_yet(monkeypatch):
    monkeypatch.setattr(families, "known", families.CallCache())


@pytest.fixture
def small_pieces(monkeypatch):
    """Chunks of few rows, and threads for the smallest work."""
    torch = pytest.importorskip("torch", reason="programs start threads by OpenMP's team, which torch brings")
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    for name, value in {"CHUNK_ROWS": 7, "_CHUNK_BYTES": 1, "_TILE_ROWS": 2}.items():
        monkeypatch.setattr(machine, name, value)
    monkeypatch.setattr(sharing, "TIME_LOOP", 0)
    monkeypatch.setattr(sharing, "COPY", 0)
    yield
    torch.set_num_threads(threads)


def programs_made():
    """How many there are; calls of several T may share one."""
    return len({id(value[0].code) for value in families.known.calls.values() if isinstance(value, tuple)})


def draw(kind, rng, sizes, *, directions=1, peepholes=False, states=True, bias=True):
    T, N, I, H = sizes
    rows = GATES[kind] * H
    shapes = {"X": (T, N, I), "W": (directions, rows, I), "R": (directions, rows, H)}
    if bias:
        shapes["B"] = (directions, 2 * rows)
    if states:
        shapes |= dict.fromkeys(STATES[kind], (directions, N, H))
    if peepholes:
        shapes["P"] = (directions, 3 * H)
    return {name: rng.normal(size=shape) * 0.7 for name, shape in shapes.items()}


def both_passes(kind, arrays, lengths, cotangents, layout=0, **attributes):
    """All outputs and all gradients, in the layout with time first; cotangents are made once."""
    if layout:
        over_batch = ("X", "initial_h", "initial_c")
        arrays = {name: x.swapaxes(0, 1) if name in over_batch else x for name, x in arrays.items()}
    attributes |= {"layout": layout, "sequence_lens": lengths}
    out = getattr(xpgrad, kind)(**arrays, **attributes)
    if not cotangents:
        random = np.random.default_rng(5)
        names = ("H_all", "H_t", "C_t")[: len(STATES[kind]) + 1]
        cotangents |= {f"grad_{name}": random.normal(size=getattr(out, name).shape) for name in names}
    saved = {name: getattr(out, name) for name in SAVED[kind]}
    grads = getattr(xpgrad, f"{kind}_grad")(**arrays, **saved, **cotangents, **attributes)
    return dict(zip(out._fields + grads._fields, (*out, *grads), strict=True))


def check(kind, arrays, lengths, **attributes):
    """What a program gives is what the standard engine gives, which sees the lengths as numbers."""
    cotangents = {}
    got = both_passes(kind, arrays, lengths, cotangents, **attributes)
    with xpgrad.use_engine("standard"):
        expected = both_passes(kind, arrays, lengths, cotangents, **attributes)
    for name, right in expected.items():
        if right is not None:
            np.testing.assert_allclose(
                got[name], right, rtol=1e-9, atol=1e-11, err_msg=f"{name} of {lengths}"
            )


OPTIONS = {
    "lstm": [{}, {"clip": 0.5}, {"input_forget": True}],
    "gru": [{"linear_before_reset": 0}, {"linear_before_reset": 1}, {"linear_before_reset": 1, "clip": 0.5}],
    "rnn": [{}, {"clip": 0.5}, {}],
}
FORMS = [
    (kind, direction, layout, number)
    for kind, direction, layout in itertools.product(GATES, ["forward", "reverse", "bidirectional"], [0, 1])
    for number in range(3)
]


@pytest.mark.parametrize(("kind", "direction", "layout", "number"), FORMS)
def test_each_call_has_its_own_lengths(kind, direction, layout, number, rng):
    T, N = 6, 5
    two = direction == "bidirectional"
    attributes = {"direction": direction, "layout": layout, **OPTIONS[kind][number]}
    for lengths in ([3, 6, 0, 6, 1], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5], [2, 2, 2, 2, 2], [6, 0, 0, 0, 0]):
        arrays = draw(
            kind, rng, (T, N, 3, 4), directions=1 + two, peepholes=kind == "lstm", states=number != 1
        )
        for n, length in enumerate(lengths):
            arrays["X"][length:, n] = np.nan
        check(kind, arrays, np.asarray(lengths), **attributes)
    assert programs_made() == 2


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 4, 2, 3), (9, 1, 2, 3), (12, 7, 5, 6), (40, 11, 3, 2)])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_in_chunks_and_in_threads(kind, sizes, direction, rng, small_pieces):
    """Chunks that are empty for short sequences, cuts between threads that move with the lengths."""
    T, N = sizes[:2]
    for most in (T, T, max(1, T // 3), 1):
        check(kind, draw(kind, rng, sizes), rng.integers(0, most + 1, size=N), direction=direction)
    assert programs_made() in (2, 4)  # lengths that happen to be all T have another program


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("sizes", [(12, 7, 5, 6), (11, 2, 3, 70)])
def test_resets_in_chunks_and_in_threads(kind, direction, sizes, rng, small_pieces, monkeypatch):
    """Threads that share rows, and where these are few, columns."""
    T, N = sizes[:2]
    monkeypatch.setattr(machine, "_SAVED", 0 if N == 2 else 1 << 20)
    for lengths in (None, rng.integers(0, T + 1, size=N)):
        for share in (0.3, 1.0):
            reset = rng.uniform(size=(T, N)) < share
            check(kind, draw(kind, rng, sizes), lengths, direction=direction, reset=reset)
    assert programs_made() == 4


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_resets_of_full_sequences_move_no_rows(kind, direction, rng, monkeypatch):
    moved, move = [], Recorder.move_rows

    def noting(recorder, kind, *args, **options):
        moved.append(kind)
        return move(recorder, kind, *args, **options)

    monkeypatch.setattr(Recorder, "move_rows", noting)
    arrays = draw(kind, rng, (6, 5, 3, 4))
    check(kind, arrays, None, direction=direction, reset=rng.uniform(size=(6, 5)) < 0.5)
    assert set(moved) == {"last", "previous", "unsort"}


@pytest.mark.parametrize("kind", GATES)
def test_equal_lengths_have_the_program_of_no_lengths(kind, rng):
    arrays = draw(kind, rng, (4, 3, 2, 5))
    without = getattr(xpgrad, kind)(**arrays)
    assert programs_made() == 1
    for lengths in (np.full(3, 4), np.full(3, 4, dtype=np.uint8)):
        for a, b in zip(getattr(xpgrad, kind)(**arrays, sequence_lens=lengths), without, strict=True):
            np.testing.assert_array_equal(a, b)
    assert programs_made() == 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64"])
def test_lengths_of_any_integers(dtype, rng):
    arrays = draw("gru", rng, (4, 3, 2, 5))
    lengths = np.asarray([2, 9, 4, 9, 0, 9], dtype=dtype)[::2]
    expected = xpgrad.gru(**arrays, sequence_lens=np.asarray([2, 4, 0]))
    for a, b in zip(xpgrad.gru(**arrays, sequence_lens=lengths), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert programs_made() == 1


def test_wrong_lengths_of_a_known_form(rng):
    arrays = draw("lstm", rng, (4, 3, 2, 5))
    for _ in range(2):
        xpgrad.lstm(**arrays, sequence_lens=np.asarray([1, 2, 3]))
        for wrong, error in [
            (np.asarray([1, 2, 5]), ValueError),
            (np.asarray([1, -1, 3]), ValueError),
            (np.asarray([1, 2]), ValueError),
            (np.asarray([[1, 2, 3]]), ValueError),
            (np.asarray([1.0, 2.0, 3.0]), TypeError),
            ([1.0, 2, 3], TypeError),
        ]:
            with pytest.raises(error, match="sequence_lens"):
                xpgrad.lstm(**arrays, sequence_lens=wrong)


def test_only_what_is_wanted(rng):
    arrays = draw("lstm", rng, (5, 4, 3, 2), peepholes=True)
    lengths = np.asarray([2, 5, 0, 3])
    out = xpgrad.lstm(**arrays, sequence_lens=lengths)
    saved = {name: getattr(out, name) for name in SAVED["lstm"]}
    given = {**arrays, **saved, "sequence_lens": lengths, "grad_H_all": rng.normal(size=out.H_all.shape)}
    everything = xpgrad.lstm_grad(**given)
    fields = dict(zip(("X", "W", "R", "B", "initial_h", "initial_c", "P"), everything[:7], strict=True))
    for name, right in fields.items():
        alone = [grad for grad in xpgrad.lstm_grad(**given, wrt=[name]) if grad is not None]
        (got,) = alone
        np.testing.assert_allclose(got, right, rtol=1e-12, atol=1e-14)


def test_no_call_writes_to_another_ones_results(rng):
    arrays = draw("gru", rng, (6, 4, 3, 5))
    calls = [np.asarray(lengths) for lengths in ([1, 2, 3, 4], [6, 6, 6, 0], [0, 5, 0, 5])]
    kept = [xpgrad.gru(**arrays, sequence_lens=lengths) for lengths in calls]
    copies = [[x.copy() for x in out] for out in kept]
    for lengths in reversed(calls):
        xpgrad.gru(**arrays, sequence_lens=lengths)
    for out, copy in zip(kept, copies, strict=True):
        for a, b in zip(out, copy, strict=True):
            np.testing.assert_array_equal(a, b)


def test_tensors_with_lengths(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    arrays = draw("lstm", rng, (6, 4, 3, 5))
    for lengths in ([1, 2, 3, 4], [6, 0, 5, 6]):
        expected = xpgrad.lstm(**arrays, sequence_lens=np.asarray(lengths))
        tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
        got = xpgrad.lstm(**tensors, sequence_lens=torch.tensor(lengths, dtype=torch.int32))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-12, atol=1e-14)


ROWS = {"lstm": ("C_all", "iofc"), "gru": ("zrh", "products")}


def with_rows(kind, arrays, cotangents, lengths, rows_of, per_sample=False, **attributes):
    """The outputs that a caller sees, all gradients, and the arrays between both."""
    more = {"keep_products": True} if kind == "gru" else {}
    attributes |= {"sequence_lens": lengths, "rows_of": rows_of}
    out = run_foreign(getattr(xpgrad, kind), **arrays, **attributes, **more)._asdict()
    saved = {name: out.pop(name) for name in ROWS[kind]}
    given = {**arrays, **saved, **cotangents, "H_all": out["H_all"], "per_sample": per_sample}
    grads = run_foreign(getattr(xpgrad, f"{kind}_grad"), **given, **attributes)
    return [*out.values(), *grads], saved


@pytest.mark.parametrize("count", [3, 300])
def test_a_buffer_of_lengths_is_used_again_before_the_gradient(count):
    """A loader may write the next batch's lengths, of longer sequences too, into the same memory."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import xpgrad_torch

    layer, buffer = xpgrad_torch.GRU(2, 3), np.full(count, 4)
    lengths = torch.from_numpy(buffer)
    X, weights = torch.randn(4, count, 2), torch.randn(4, count, 3)
    for _ in range(3):
        grads = []
        for later in (2, 3, 1000):
            buffer[:] = 2
            output = layer(X, lengths=lengths)[0]
            buffer[:] = later
            grads.append(torch.autograd.grad((output * weights).sum(), layer.weight_hh_l0)[0])
        torch.testing.assert_close(grads[1:], grads[:1] * 2)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("engine", ["numpy", "standard"])
def test_saved_arrays_as_rows(kind, direction, layout, engine, rng):
    """To the last bit the same results, and nothing but the rows that are needed between both passes."""
    T, N, H, D = 6, 4, 3, 1 + (direction == "bidirectional")
    arrays = draw(kind, rng, (T, N, 2, H), directions=D)
    cotangents = {"grad_H_all": rng.normal(size=(T, D, N, H)), "grad_H_t": rng.normal(size=(D, N, H))}
    if layout:
        swapped = {*cotangents, "X", "initial_h", "initial_c"}
        arrays, cotangents = (
            {name: np.moveaxis(x, -2, 0) if name in swapped else x for name, x in given.items()}
            for given in (arrays, cotangents)
        )
    options = {"direction": direction, "layout": layout}
    with xpgrad.use_engine(engine):
        for lengths in ([2, 6, 0, 3], [6, 6, 6, 6], [0, 0, 0, 0], [5, 4, 3, 2], None):
            for per_sample in (False, True, "norm"):
                given = kind, arrays, cotangents, lengths
                expected, _ = with_rows(*given, (), per_sample, **options)
                got, saved = with_rows(*given, ROWS[kind], per_sample, **options)
                for a, b in zip(got, expected, strict=True):
                    np.testing.assert_array_equal(a, b)
                assert all(x.shape[:2] == (D, T * N) for x in saved.values())


@pytest.mark.parametrize("kind", ROWS)
def test_saved_rows_of_another_shape(kind, rng):
    arrays = draw(kind, rng, (6, 4, 2, 3))
    out = getattr(xpgrad, kind)(**arrays)
    saved = {name: getattr(out, name) for name in SAVED[kind]}
    with pytest.raises(ValueError, match=r"\(D, T \* N, [34]H\) = \(1, 24, "):
        run_foreign(getattr(xpgrad, f"{kind}_grad"), **arrays, **saved, rows_of=SAVED[kind][-1:])


@pytest.mark.parametrize("limit", [1, 4, 5, 100])
@pytest.mark.parametrize("counts", [[], [3], [4, 4, 2, 1], [5, 1, 1, 1, 1]])
def test_chunks_of_few_rows_are_written_first(limit, counts, timeline_in_python):
    """All rows from last to first; where fewer chunks are needed than there can be, the last are empty."""
    steps, most = len(counts), -(-25 // limit)
    starts = np.cumsum([0, *counts])
    chunk, span = records.length(records.ChunkQuantities), records.length(Span)
    chunks, spans = np.zeros(most * chunk, np.int64), np.zeros(5 * span, np.int64)
    timeline_in_python._write_chunks(limit, most, False, chunks, spans, starts, steps)
    found = [records.ChunkQuantities(*row) for row in chunks.reshape(most, chunk).tolist()]
    behind = starts[-1]
    for one in found:
        assert one.start + one.count == behind or not one.count
        behind = one.start if one.count else behind
    assert behind == 0
    assert [one.count > 0 for one in found] == sorted((one.count > 0 for one in found), reverse=True)
    rows = [row[0] for row in spans.reshape(5, span)[:steps]]
    assert rows == counts[::-1]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_cuts_between_threads_are_even(parts, rng, timeline_in_python):
    """Of two parts the larger one is as small as can be; all rows are in one part each."""
    for _ in range(20):
        lengths = np.sort(rng.integers(1, 20, size=rng.integers(1, 12)))[::-1]
        cuts = np.full(parts + 1, -1)
        timeline_in_python._write_cuts(cuts, parts, lengths, 0, 20, len(lengths))
        assert cuts[0] == 0
        assert cuts[-1] == len(lengths)
        assert (np.diff(cuts) >= 0).all()
        if parts == 2:
            larger = [max(lengths[:cut].sum(), lengths[cut:].sum()) for cut in range(len(lengths) + 1)]
            assert larger[cuts[1]] == min(larger)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "sizes", "total"),
    [
        ("lstm", (26, 14, 4, 32), 238),
        ("gru", (31, 9, 4, 64), 169),
        ("rnn", (20, 16, 8, 24), 256),
        ("lstm", (50, 32, 16, 40), 763),
        ("gru", (50, 32, 16, 40), 1011),
    ],
)
def test_sums_shorter_than_the_longest(kind, sizes, total, dtype, rng):
    """A sum over fewer rows than planned may have larger blocks."""
    T, N = sizes[:2]
    lengths = np.full(N, total // N)
    lengths[: total % N] += 1
    lengths[::2] += 3
    lengths[1::2] -= 3
    assert lengths.max() <= T
    drawn = draw(kind, rng, sizes)
    for name in ("W", "R"):  # else states are chaotic, and rounding errors grow
        drawn[name] /= np.sqrt(drawn[name].shape[-1])
    exact = {name: x.astype(dtype).astype(float) for name, x in drawn.items()}
    arrays = {name: x.astype(dtype) for name, x in exact.items()}
    with xpgrad.use_engine("standard"):
        expected = both_passes(kind, exact, lengths, cotangents := {})
    cotangents = {name: x.astype(dtype) for name, x in cotangents.items()}
    for _ in range(3):
        got = both_passes(kind, arrays, lengths, cotangents)
        for name, right in expected.items():
            if right is not None:
                error = np.abs(got[name] - right).max() / np.abs(right).max()
                assert error < (1e-5 if dtype == "float32" else 1e-12), name
