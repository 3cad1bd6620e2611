"""Calls that run from a program: the same numbers as without one, for every call of the form."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import xpgrad
from backends import without_programs
from xpgrad._calls import families
from xpgrad._calls import shared_steps as _shared_steps
from xpgrad._calls.adapter_calls import run_foreign
from xpgrad.engine import numpy_engine
from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.process import sharing
from xpgrad.engine.process.memory import LINE
from xpgrad.engine.process.team import PoolTeam
from xpgrad.engine.programs.program import Lanes
from xpgrad.engine.programs.recorded import Recorded
from xpgrad.engine.programs.recorder import Recorder

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no programs")

T, N, I, H = 9, 6, 5, 7
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
SAVED = {"lstm": ("H_all", "C_all", "iofc"), "gru": ("H_all", "zrh"), "rnn": ("H_all",)}


@pytest.fixture(autouse=True)
def no_plans_yet(monkeypatch):
    monkeypatch.setattr(families, "known", families.CallCache())


def operands(kind, rng, sizes=(T, N, I, H), dtype="float32", directions=1):
    steps, batch, width, hidden = sizes
    gates = GATES[kind] * hidden
    shapes = {
        "X": (steps, batch, width),
        "W": (directions, gates, width),
        "R": (directions, gates, hidden),
        "B": (directions, 2 * gates),
        "initial_h": (directions, batch, hidden),
    }
    return {name: rng.normal(size=shape).astype(dtype) * 0.5 for name, shape in shapes.items()}


def step(kind, arrays, rng, **attributes):
    """All outputs and all gradients."""
    out = getattr(xpgrad, kind)(**arrays, **attributes)
    draw = np.random.default_rng(7)
    cotangents = {f"grad_{name}": draw.normal(size=getattr(out, name).shape) for name in ("H_all", "H_t")}
    cotangents = {name: array.astype(arrays["X"].dtype) for name, array in cotangents.items()}
    saved = {name: getattr(out, name) for name in SAVED[kind]}
    gradient = getattr(xpgrad, f"{kind}_grad")
    return [*out, *gradient(**arrays, **saved, **cotangents, **attributes)]


def without_plans(function):
    with without_programs():
        return function()


def compare(got, expected, tolerance):
    for a, b in zip(got, expected, strict=True):
        if b is not None:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def programs_made():
    """How many there are; calls of several T may share one."""
    return len({id(value[0].code) for value in families.known.calls.values() if isinstance(value, tuple)})


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_each_call_has_its_own_numbers(kind, dtype, direction, rng):
    """A program keeps nothing of the call that it was made for, and no call writes to another's results."""
    directions = 2 if direction == "bidirectional" else 1
    kept = []
    for _ in range(3):
        arrays = operands(kind, rng, dtype=dtype, directions=directions)
        expected = without_plans(lambda arrays=arrays: step(kind, arrays, rng, direction=direction))
        kept.append((step(kind, arrays, rng, direction=direction), expected))
    for got, expected in kept:
        compare(got, expected, 2e-5 if dtype == "float32" else 1e-12)
    assert programs_made() == 2


def test_the_first_call_of_a_form_writes_its_program(rng):
    arrays = operands("lstm", rng)
    for _ in range(3):
        xpgrad.lstm(**arrays)
        assert programs_made() == 1


def test_strides_have_programs_of_their_own(rng):
    arrays = operands("gru", rng)
    expected = xpgrad.gru(**arrays)
    for strange in (
        np.asfortranarray(arrays["X"]),
        np.repeat(arrays["X"], 2, axis=2)[..., ::2],
        arrays["X"][::-1].copy()[::-1],  # negative strides: no program
    ):
        compare(xpgrad.gru(**arrays | {"X": strange}), expected, 1e-6)
    repeated = np.broadcast_to(arrays["X"][:, :1], arrays["X"].shape)
    compare(xpgrad.gru(**arrays | {"X": repeated}), xpgrad.gru(**arrays | {"X": repeated.copy()}), 1e-6)
    assert programs_made() == 4


@pytest.mark.parametrize("kind", ["lstm_cell", "gru_cell"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_single_step_has_its_own_numbers(kind, dtype, rng):
    """With its weights as they are, rows after rows and as a transposed matrix."""
    states = ("H", "C") if kind == "lstm_cell" else ("H",)
    gates = GATES[kind.removesuffix("_cell")] * H
    shapes = {
        "X": (N, I),
        **dict.fromkeys(states, (N, H)),
        "W": (gates, I),
        "R": (gates, H),
        "B": (2 * gates,),
    }
    for number in range(3):
        arrays = {name: rng.normal(size=shape).astype(dtype) * 0.5 for name, shape in shapes.items()}
        if number == 2:
            arrays["R"] = np.asfortranarray(arrays["R"])

        def step(arrays=arrays):
            out = getattr(xpgrad, kind)(**arrays)
            saved = {name: x for name, x in out._asdict().items() if name not in ("H_next",)}
            return [*out, *getattr(xpgrad, f"{kind}_grad")(**arrays, **saved, grad_H=out.H_next)]

        compare(step(), without_plans(step), 2e-5 if dtype == "float32" else 1e-12)
    assert programs_made() == 4


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", GATES)
def test_operands_that_consist_of_several_arrays(kind, directions, rng):
    """A program takes the arrays that were joined, and returns their gradients apart."""
    direction = "bidirectional" if directions == 2 else "forward"
    arrays = operands(kind, rng, directions=directions)
    out = getattr(xpgrad, kind)(**arrays, direction=direction)
    saved = {name: getattr(out, name) for name in SAVED[kind]}
    given = {**arrays, **saved, "grad_H_all": rng.normal(size=out.H_all.shape).astype("float32")}
    gradient = getattr(xpgrad, f"{kind}_grad")
    expected = gradient(**given, direction=direction)
    half = arrays["B"].shape[1] // 2
    pieces = {
        "W": [*arrays["W"].copy()],
        "R": [*arrays["R"].copy()],
        "B": [part.copy() for row in arrays["B"] for part in (row[:half], row[half:])],
    }
    for _ in range(2):
        plans = []
        again = run_foreign(
            getattr(xpgrad, kind), **arrays, direction=direction, joined=pieces, plans_out=plans
        )
        compare(again, out, 1e-6)
        assert plans[0].program.count == len(arrays) - 3 + sum(map(len, pieces.values()))
        grads = run_foreign(gradient, **given, direction=direction, joined=pieces)
        for name, parts in pieces.items():
            whole, found = getattr(expected, f"d{name}"), getattr(grads, f"d{name}")
            assert [x.shape for x in found] == [x.shape for x in parts]
            np.testing.assert_array_equal(np.concatenate(found), whole.reshape(-1, *parts[0].shape[1:]))
        np.testing.assert_array_equal(grads.dX, expected.dX)
    numbers = {**given, **{name: array + 1 for name, array in arrays.items() if name in pieces}}
    for parts in pieces.values():  # their numbers, and not the joined ones', are what counts
        for part in parts:
            part += 1
    grads = run_foreign(gradient, **given, direction=direction, joined=pieces)
    np.testing.assert_array_equal(grads.dX, gradient(**numbers, direction=direction).dX)


@pytest.mark.parametrize(
    "way", ["a program", "lengths of NumPy's integers", "the standard engine", "float16"]
)
@pytest.mark.parametrize("kind", GATES)
def test_nobody_reads_the_elements_of_joined_operands(kind, way, rng):
    """Their parts are joined where a call has no program."""
    arrays = operands(kind, rng, directions=2)
    T, N = arrays["X"].shape[:2]
    if way == "float16":
        arrays = {name: x.astype(np.float16) for name, x in arrays.items()}
    options = {"direction": "bidirectional"}
    if way == "lengths of NumPy's integers":
        options["sequence_lens"] = [np.int64(T - k % 2) for k in range(N)]
    pieces = {name: [*arrays[name]] for name in ("W", "R", "B")}
    shapes = {name: np.broadcast_to(arrays["X"].dtype.type("nan"), arrays[name].shape) for name in pieces}
    with xpgrad.use_engine("standard" if way == "the standard engine" else None):
        expected = getattr(xpgrad, kind)(**arrays, **options)
        found = run_foreign(getattr(xpgrad, kind), **{**arrays, **shapes}, **options, joined=pieces)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_equal_attributes_of_another_type_are_still_wrong(rng):
    arrays = operands("gru", rng)
    X = arrays["X"].swapaxes(0, 1).copy()
    arrays = arrays | {"X": X, "initial_h": arrays["initial_h"].swapaxes(0, 1).copy()}
    xpgrad.gru(**arrays, layout=1)
    with pytest.raises(ValueError, match="layout"):
        xpgrad.gru(**arrays, layout=True)


def test_arrays_of_one_form_under_other_names(rng):
    """A cotangent of the state is not one of the cell, though it looks the same."""
    arrays = operands("lstm", rng)
    out = xpgrad.lstm(**arrays)
    saved = {name: getattr(out, name) for name in SAVED["lstm"]}
    for name in ("grad_H_t", "grad_C_t"):
        given = arrays | saved | {name: out.H_t}
        expected = without_plans(lambda given=given: xpgrad.lstm_grad(**given))
        compare(xpgrad.lstm_grad(**given), expected, 1e-5)


def test_what_has_no_program(rng):
    arrays = operands("lstm", rng)
    with pytest.raises((TypeError, ValueError), match="activations"):
        xpgrad.lstm(**arrays, activations=["Sigmoid", ["Tanh"], "Tanh"])
    xpgrad.lstm(**arrays | {"X": arrays["X"][:0]})
    assert programs_made() == 0


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("lengths", [False, True])
def test_gradients_per_sample(kind, direction, lengths, rng):
    """Each sample's is what it has alone."""
    attributes = {"direction": direction}
    for _ in range(3):
        arrays = operands(kind, rng, dtype="float64", directions=1 + (direction == "bidirectional"))
        if lengths:
            attributes["sequence_lens"] = rng.integers(0, T, size=N)
        out = getattr(xpgrad, kind)(**arrays, **attributes)
        given = {name: getattr(out, name) for name in SAVED[kind]}
        given |= {f"grad_{name}": rng.normal(size=getattr(out, name).shape) for name in ("H_all", "H_t")}
        gradient = getattr(xpgrad, f"{kind}_grad")
        got = gradient(**arrays, **given, **attributes, per_sample=True)
        with xpgrad.use_engine("standard"):
            expected = gradient(**arrays, **given, **attributes, per_sample=True)
        compare(got, expected, 1e-11)
    assert programs_made() == 2


def test_without_jit_there_are_none(rng, monkeypatch):
    monkeypatch.setenv("XPGRAD_JIT", "0")
    xpgrad.lstm(**operands("lstm", rng))
    assert not any(families.known.calls.values())


def test_old_forms_are_forgotten(rng, monkeypatch):
    monkeypatch.setattr(families.Remembered, "MOST", 3)
    for steps in range(1, 6):
        xpgrad.lstm(**operands("lstm", rng, (steps, N, I, H)))
    assert len(families.known.calls) == 3


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("team", ["pool", "torch"])
def test_loops_in_parts(kind, team, rng, monkeypatch):
    """Large enough for threads; a pool's threads are started by Python, between two runs of a program."""
    sizes, made, own = (30, 64, 8, 40), [], Machine.time_loop

    def watched(*asked):
        made.append(own(*asked))
        return made[-1]

    monkeypatch.setattr(Machine, "time_loop", watched)
    if team == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
    else:
        monkeypatch.setattr(PoolTeam, "size", lambda self: 2)
        pool = PoolTeam()
        monkeypatch.setattr(xpgrad.engine._numpy_engine, "_find_host", lambda: None)
        monkeypatch.setattr(xpgrad.engine._numpy_engine, "_own_team", pool)
    try:
        arrays = operands(kind, rng, sizes)
        arrays["R"] *= np.float32(0.3)  # gradients that do not grow from step to step
        expected = without_plans(lambda: step(kind, arrays, rng))
        if team == "torch":
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            getattr(xpgrad, kind)(**tensors)  # the first tensors of a process load their engine
            out = getattr(xpgrad, kind)(**tensors)
            compare([x.numpy() for x in out], expected[: len(out)], 1e-5)
        else:
            compare(step(kind, arrays, rng), expected, 1e-4)
        (first, *_) = (value[0] for value in families.known.calls.values() if isinstance(value, tuple))
        loops = [loop for *_, loop in first._rest if loop is not None]
        assert max(loop.parts for loop in made) == 2
        assert {loop.size for loop in made} >= {(1, 64, 64), (31, 31 * 64, 64)}  # of 32 steps
        assert bool(loops) == (team == "pool")
    finally:
        if team == "torch":
            torch.set_num_threads(threads)


def test_a_call_inside_of_a_program(rng, monkeypatch):
    """As a signal handler or a finalizer makes one, between two parts: each has its own memory."""
    sizes, inside, results = (30, 64, 8, 40), [], []
    outer, inner = (operands("lstm", rng, sizes) for _ in range(2))
    expected, right = (without_plans(lambda a=a: xpgrad.lstm(**a)) for a in (outer, inner))

    class Interrupted(PoolTeam):
        def size(self):
            return 2

        def run(self, *args):
            if not inside:
                inside.append(True)
                results.append(xpgrad.lstm(**inner))
                inside.clear()
            super().run(*args)

    monkeypatch.setattr(xpgrad.engine._numpy_engine, "_find_host", lambda: None)
    monkeypatch.setattr(xpgrad.engine._numpy_engine, "_own_team", Interrupted())
    for _ in range(3):
        compare(xpgrad.lstm(**outer), expected, 1e-4)
    for found in results:
        compare(found, right, 1e-4)
    assert len(results) > 3, "a program has several parts"
    assert programs_made() == 1


def test_one_program_in_several_threads(rng):
    cases = [operands("gru", rng, (40, 8, 16, 24)) for _ in range(8)]
    expected = [step("gru", arrays, rng) for arrays in cases]
    with ThreadPoolExecutor(4) as pool:
        for got, right in zip(pool.map(lambda a: step("gru", a, rng), cases * 4), expected * 4, strict=True):
            for a, b in zip(got, right, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.fixture
def python_threads(monkeypatch):
    """A process without an OpenMP team: Python starts the threads, two of them."""
    engine = xpgrad.engine._numpy_engine
    monkeypatch.setattr(engine, "_find_host", lambda: None)
    monkeypatch.setattr(engine, "_own_team", PoolTeam())
    monkeypatch.setenv("XPGRAD_NUM_THREADS", "2")
    monkeypatch.setattr(sharing, "PRODUCT", 0)
    monkeypatch.setattr(sharing, "LANE", 0)


def lanes_of(program):
    return [one for one in program._rest if isinstance(one, Lanes)]


@pytest.mark.parametrize("lengths", [None, [9, 4, 1]])
@pytest.mark.parametrize("kind", GATES)
def test_directions_run_side_by_side(kind, lengths, rng, monkeypatch, python_threads):
    """The bits are those of one after the other."""
    arrays = operands(kind, rng, (T, 3, I, H), directions=2)
    if lengths is not None:
        arrays["sequence_lens"] = np.asarray(lengths)
    side_by_side = step(kind, arrays, rng, direction="bidirectional")
    for program, _ in families.known.calls.values():
        (lanes,) = lanes_of(program._run.__self__)
        assert len(lanes.each) == 2
    monkeypatch.setenv("XPGRAD_NUM_THREADS", "1")
    one_after_the_other = step(kind, arrays, rng, direction="bidirectional")
    assert len(families.known.calls) == 4
    for ours, right in zip(side_by_side, one_after_the_other, strict=True):
        assert (ours is None) == (right is None)
        if ours is not None:
            np.testing.assert_array_equal(ours, right)


def test_gradients_of_small_images_run_side_by_side(rng, python_threads):
    """Their sums have one part each."""
    X, W, dY = (
        rng.normal(size=shape).astype("float32") for shape in ((1, 9, 6, 7), (16, 9, 3, 3), (1, 16, 6, 7))
    )
    got = xpgrad.conv_grad(dY, X, W, pads=1)
    ((program, _),) = families.known.calls.values()
    (lanes,) = lanes_of(program)
    assert len(lanes.each) == 2
    for ours, right in zip(got, without_plans(lambda: xpgrad.conv_grad(dY, X, W, pads=1)), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depends", [False, True])
def test_lanes_that_have_memory_in_common_do_not_run_side_by_side(depends, python_threads):
    recorder = Recorder(xpgrad.engine._numpy_engine, {"a": ((4, 6), (6, 1))}, np.dtype("float64"))
    a = recorder.input("a")
    with recorder.lane(0):
        first = a + a
    with recorder.lane(1):
        second = (first if depends else a) * a
    program = recorder.program([first + second])
    assert len(lanes_of(program)) == (not depends)
    (got,) = run_program(program, {"a": ARRAYS["a"]})
    np.testing.assert_array_equal(got, 2 * ARRAYS["a"] + (1 + depends) * ARRAYS["a"] ** 2)


def test_a_convolution_has_a_program_where_python_starts_the_threads(rng, python_threads):
    """Each instruction with parts is started by itself."""
    X, W = (rng.normal(size=shape).astype("float32") for shape in ((3, 5, 9, 8), (6, 5, 3, 3)))

    def both():
        Y = xpgrad.conv(X, W, pads=1)
        return [Y, *xpgrad.conv_grad(Y, X, W, pads=1)]

    got = both()
    assert len(families.known.calls) == 2
    assert all(families.known.calls.values())
    assert any(program._rest for program, _ in families.known.calls.values())  # it has parts
    for ours, right in zip(got, without_plans(both), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-4)


# --- the recorder and the program, for themselves ------------------------------------------------------


@pytest.fixture(params=["in one part", "in parts"])
def recorder(request, monkeypatch):
    """One whose arithmetic runs in one part, and one where it is cut into three."""
    if request.param == "in parts":
        pytest.importorskip("torch", reason="programs start threads by OpenMP's team, which torch brings")
        monkeypatch.setattr(sharing, "COPY", 0)
        monkeypatch.setattr(xpgrad.engine._numpy_engine.team, "size", lambda: 3)
    layouts = {"a": ((4, 6), (6, 1)), "b": ((6, 3), (1, 6)), "c": ((2, 4, 6), (24, 6, 1))}
    return Recorder(xpgrad.engine._numpy_engine, layouts, np.dtype("float64"))


def run(recorder, result, **arrays):
    (got,) = run_program(recorder.program([result]), arrays)
    return got


def run_program(program, arrays):
    return program.run([array.ctypes.data for array in arrays.values()], numpy_engine._fresh)


ARRAYS = {
    "a": np.arange(24.0).reshape(4, 6),
    "b": (np.arange(18.0) * 2 - 9).reshape(3, 6).T,
    "c": np.arange(48.0).reshape(2, 4, 6) + 0.5,
}


@pytest.mark.parametrize(
    "expression",
    [
        lambda xp, a, b, c: a + a,
        lambda xp, a, b, c: a[1:, 2:4] * a[:3, ::1][:, 4:],
        lambda xp, a, b, c: xp.roll(a, 1, axis=0),
        lambda xp, a, b, c: xp.roll(b, -2, axis=1),
        lambda xp, a, b, c: xp.concat([a, c[1, ...], a[:1, :]], axis=0),
        lambda xp, a, b, c: xp.stack([a, c[0, ...]], axis=1),
        lambda xp, a, b, c: xp.reshape(b, (18,)),
        lambda xp, a, b, c: xp.reshape(xp.permute_dims(c, (1, 0, 2)), (8, 6)),
        lambda xp, a, b, c: xp.permute_dims(c, (2, 0, 1)) + xp.permute_dims(c, (2, 0, 1)),
        lambda xp, a, b, c: xp.expand_dims(a[2, :], axis=1),
        lambda xp, a, b, c: xp.zeros((3, 2)),
        lambda xp, a, b, c: a,
    ],
)
def test_array_functions(expression, recorder):
    recorded = expression(recorder.xp, *(recorder.input(name) for name in "abc"))
    expected = expression(np, *ARRAYS.values())
    np.testing.assert_array_equal(run(recorder, recorded, **ARRAYS), expected)


@pytest.mark.parametrize(
    "factors",
    [
        lambda a, b, c: (a, b),
        lambda a, b, c: (b.T, a.T),
        lambda a, b, c: (a[:, 1:5], b[1:5, :]),
        lambda a, b, c: (a[:1, :], b),
        lambda a, b, c: (a, b[:, 1:2]),
        lambda a, b, c: (a[:, :1], b[:1, :]),
        lambda a, b, c: (c[:, 1, :], b),
    ],
)
def test_products(factors, recorder):
    left, right = factors(*(recorder.input(name) for name in "abc"))
    total = recorder.add_product(recorder.matmul(left, right), left, right)
    left, right = factors(*ARRAYS.values())
    np.testing.assert_allclose(run(recorder, total, **ARRAYS), 2 * left @ right, rtol=1e-14)


def test_a_result_twice_is_two_arrays(recorder):
    doubled = recorder.input("a") + recorder.input("a")
    program = recorder.program([doubled, None, doubled])
    one, nothing, other = run_program(program, ARRAYS)
    assert nothing is None
    assert not np.shares_memory(one, other)
    np.testing.assert_array_equal(one, other)


def test_joined_arrays_are_made_in_their_place(recorder):
    """Along the first axis nothing is copied, but what is joined twice, a view, or a result of its own."""
    a, xp = recorder.input("a"), recorder.xp
    one, other = a + a, a * a
    joined = xp.concat([one, xp.stack([other[0, :]], axis=0), other, one], axis=0)
    copies = [i for i in recorder._draft.instructions if i.what == "copy"]
    assert len(copies) == 2
    program = recorder.program([joined, one])
    got, alone = run_program(program, ARRAYS)
    A = ARRAYS["a"]
    np.testing.assert_array_equal(got, np.concatenate([A + A, (A * A)[:1], A * A, A + A]))
    np.testing.assert_array_equal(alone, A + A)
    assert not np.shares_memory(got, alone)


@pytest.mark.parametrize("rows", range(1, 10))
def test_sums_over_rows(recorder, rows):
    """Of any number of rows, of a part of the columns, and of columns whose elements lie apart."""
    c = ARRAYS["c"].reshape(8, 6)
    many, b = recorder.xp.reshape(recorder.input("c"), (8, 6)), recorder.input("b")
    first, second = many[:rows, 1:], recorder.xp.permute_dims(b, (1, 0))
    sums = recorder.xp.concat(
        [
            recorder.column_sums(first),
            recorder.column_dots(first, first[:, :]),
            recorder.column_sums(b),
            recorder.column_dots(second[:, :5], many[:3, 1:]),
        ]
    )
    x, y = c[:rows, 1:], ARRAYS["b"]
    dots = (y.T[:, :5] * c[:3, 1:]).sum(axis=0)
    expected = [x.sum(axis=0), (x * x).sum(axis=0), y.sum(axis=0), dots]
    np.testing.assert_allclose(run(recorder, sums, **ARRAYS), np.concatenate(expected), rtol=1e-14)


@pytest.mark.parametrize("rows", [1023, 1024, 1025, 2048, 4097, 9000])
def test_sums_over_many_rows_are_sums_of_blocks(rows):
    """In the programs and in the engine; added to 2 ** 24 in float32, a 1 would be lost."""
    engine = xpgrad.engine._numpy_engine
    for dtype in ("float64", "float32"):
        recorder = Recorder(engine, {"a": ((rows, 5), (5, 1)), "b": ((3, rows), (rows, 1))}, np.dtype(dtype))
        a, b = recorder.input("a"), recorder.xp.permute_dims(recorder.input("b"), (1, 0))
        sums = [recorder.column_sums(a), recorder.column_dots(a[:, 1:4], b), recorder.column_sums(b)]
        x, y = (
            np.random.default_rng(k).normal(size=s).astype(dtype) for k, s in ((0, (rows, 5)), (1, (3, rows)))
        )
        if dtype == "float32":
            x, y = np.ones_like(x), np.ones_like(y)
            x[0], y[:, 0] = 2**24, 1
        exact = [
            x.sum(axis=0, dtype=float),
            (x[:, 1:4] * y.T).sum(axis=0, dtype=float),
            y.sum(axis=1, dtype=float),
        ]
        found = run(recorder, recorder.xp.concat(sums), a=x, b=y)
        alone = [engine.column_sums(x), engine.column_dots(x[:, 1:4], y.T), engine.column_sums(y.T)]
        for each in (found, np.concatenate(alone)):
            # a block that has it may lose the others' ones
            bound = 1e-10 if dtype == "float64" else 4100
            np.testing.assert_allclose(
                each, np.concatenate(exact), rtol=1e-12 if dtype == "float64" else 0, atol=bound
            )


def test_an_array_that_is_broadcast():
    """A cotangent of a sum is one number with strides of 0."""
    layouts = {"a": ((4, 6), (0, 0)), "b": ((4, 6), (6, 0)), "c": ((4, 6), (0, 1))}
    recorder = Recorder(xpgrad.engine._numpy_engine, layouts, np.dtype("float64"))
    a, b, c = (recorder.input(name) for name in "abc")
    number, rows = np.asarray(3.0), np.arange(24.0)
    total = run(recorder, recorder.xp.concat([a + b, c + c, a]), a=number, b=rows, c=rows)
    expected = [np.full((4, 6), 3.0) + rows[:24:6, None], np.tile(2 * rows[:6], (4, 1)), np.full((4, 6), 3.0)]
    np.testing.assert_array_equal(total, np.concatenate(expected))


def test_the_arena_shares_places_but_not_at_one_time(recorder):
    """Ten sums in a chain need two places, not ten; what is read later keeps its own."""
    first = recorder.input("a") + recorder.input("a")
    total = first
    for _ in range(10):
        total = total + first
    program = recorder.program([total + first])
    size = LINE * -(-24 * 8 // LINE)
    assert program.arena_bytes == 3 * size
    (got,) = run_program(program, ARRAYS)
    np.testing.assert_array_equal(got, 24 * ARRAYS["a"])


def test_a_recorded_view_is_where_the_array_is(recorder):
    c = recorder.input("c")
    assert isinstance(c, Recorded)
    part = c[1, :, 2:]
    view = ARRAYS["c"][1, :, 2:]
    assert (part.shape, part.ndim, part.size) == (view.shape, view.ndim, view.size)
    assert [8 * s for s in part.strides] == list(view.strides)
    assert 8 * part.offset == view.ctypes.data - ARRAYS["c"].ctypes.data


def test_what_adapters_add_is_not_in_the_signature():
    for name in ("lstm", "gru_grad", "rnn_cell", "layer_norm_lstm_grad"):
        kernel = getattr(xpgrad, name)
        assert kernel.takes_foreign
        assert "_foreign" not in inspect.signature(kernel).parameters
        with pytest.raises(TypeError, match="foreign"):
            kernel(foreign=None)


def test_a_function_in_a_kernels_place_must_not_ignore_the_order_of_gates():
    X, W, R = np.ones((2, 1, 3)), np.ones((1, 8, 3)), np.ones((1, 8, 2))

    def ours(X, W, R):
        return xpgrad.lstm(X, W, R)

    def passes_on(*arrays, **options):
        return xpgrad.lstm(*arrays, **options)

    np.testing.assert_array_equal(run_foreign(ours, X, W, R, plans_out=[]).H_t, xpgrad.lstm(X, W, R).H_t)
    with pytest.raises(TypeError, match="_foreign"):
        run_foreign(ours, X, W, R, gate_order=(0, 3, 1, 2))
    W[:, 2:4] = -1
    ordered = run_foreign(passes_on, X, W[:, [0, 1, 4, 5, 6, 7, 2, 3]], R, gate_order=(0, 3, 1, 2))
    np.testing.assert_array_equal(ordered.H_t, xpgrad.lstm(X, W, R).H_t)


@pytest.mark.parametrize("per_sample", [False, True, "norm"])
@pytest.mark.parametrize("has_plans", [True, False])
@pytest.mark.parametrize(("kind", "options"), [("lstm", {}), ("rnn", {}), ("gru", {"linear_before_reset": 0}),
                                               ("gru", {"linear_before_reset": 1})])  # fmt: skip
def test_weights_with_their_inputs_first(kind, options, has_plans, per_sample, rng):
    """The numbers of weights as ONNX has them; gradients lie in memory as the caller's weights do."""
    arrays = operands(kind, rng, dtype="float64", directions=2)
    options = options | {"direction": "bidirectional"}

    def run(arrays, **more):
        out = run_foreign(getattr(xpgrad, kind), **arrays, **options, **more)
        given = {name: getattr(out, name) for name in SAVED[kind]} | {"grad_H_all": out.H_all}
        gradient = getattr(xpgrad, f"{kind}_grad")
        return out, run_foreign(gradient, **arrays, **given, **options, **more, per_sample=per_sample)

    swapped = arrays | {name: arrays[name].swapaxes(1, 2).copy() for name in "WR"}
    expected = run(arrays)
    got = (
        run(swapped, input_major=True) if has_plans else without_plans(lambda: run(swapped, input_major=True))
    )
    compare(got[0], expected[0], 1e-12)
    grads = got[1]
    if per_sample != "norm":
        assert grads.dW.flags.c_contiguous
        assert grads.dR.shape[-2:] == (H, GATES[kind] * H)
        grads = grads._replace(dW=grads.dW.swapaxes(-1, -2), dR=grads.dR.swapaxes(-1, -2))
    compare(grads, expected[1], 1e-10)
    with pytest.raises(
        ValueError, match=f"W has shape .*, expected \\(D, I, {GATES[kind] if kind != 'rnn' else ''}H\\)"
    ):
        run(arrays | {"R": swapped["R"]}, input_major=True)


# --- programs for several T


def lengths_for(kind, rng, T, N):
    return {} if kind == "all" else {"sequence_lens": rng.integers(0, T + 1, size=N)}


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", ["all", "some"])
@pytest.mark.parametrize("kind", GATES)
def test_many_lengths_of_sequences_share_a_program(kind, lengths, direction, layout, rng):
    """Two programs serve T of 17 to 20 in any order, right at the first call of each T and at the next."""
    directions = 2 if direction == "bidirectional" else 1
    options = {"direction": direction, "layout": layout}
    for steps in (19, 17, 20, 18, 17, 20):
        arrays = operands(kind, rng, (steps, N, I, H), "float64", directions)
        if layout:
            arrays |= {name: arrays[name].swapaxes(0, 1).copy() for name in ("X", "initial_h")}
        given = options | lengths_for(lengths, rng, steps, N)
        expected = without_plans(lambda arrays=arrays, given=given: step(kind, arrays, rng, **given))
        got = step(kind, arrays, rng, **given)
        assert [x.shape for x in got if x is not None] == [x.shape for x in expected if x is not None]
        compare(got, expected, 1e-12)
    assert programs_made() == 2


def test_classes_of_steps():
    """At most a quarter is planned in vain, and a class is what its largest T says."""
    for steps in range(1, 3000):
        most = _shared_steps.largest_steps(steps)
        assert steps <= most <= max(8, 1.25 * steps)
        assert _shared_steps.largest_steps(most) == most
    assert len({_shared_steps.largest_steps(steps) for steps in range(1, 1025)}) == 36


@pytest.mark.parametrize("kind", GATES)
def test_bits_do_not_depend_on_earlier_calls(kind, rng):
    """The program is that of the class, whichever of its T came first."""
    arrays = operands(kind, rng, (18, N, I, H))
    first = step(kind, arrays, rng)
    for steps in (20, 17):
        families.known.clear()
        step(kind, operands(kind, rng, (steps, N, I, H)), rng)
        for a, b in zip(step(kind, arrays, rng), first, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_array_of_another_t_is_named(rng):
    """Its program's T is not the call's, which is in the message."""
    arrays = operands("lstm", rng, (18, N, I, H))
    out = xpgrad.lstm(**arrays)
    saved = {name: getattr(out, name) for name in SAVED["lstm"]}
    with pytest.raises(ValueError, match=rf"grad_H_all has shape \(19, .*expected .*\(18, 1, {N}, {H}\)"):
        xpgrad.lstm_grad(**arrays, **saved, grad_H_all=np.ones((19, 1, N, H), np.float32))
    with pytest.raises(ValueError, match=r"sequence_lens\[0\] is 19, expected 0 to T = 18"):
        xpgrad.lstm(**arrays, sequence_lens=[19] * N)


def test_adapters_options_of_equal_values_have_programs_of_their_own(rng):
    """Square weights keep their shape with exchanged axes: only an option's name tells the calls apart."""
    X, (W, R) = rng.normal(size=(5, N, H)), rng.normal(size=(2, 1, H, H))
    run_foreign(xpgrad.rnn, X, W, R, sequence_lens=[5, *[3] * (N - 1)], input_major=True)
    packed = run_foreign(xpgrad.rnn, X, W, R, sequence_lens=[5, *[3] * (N - 1)], packed=True)
    families.known.clear()
    again = run_foreign(xpgrad.rnn, X, W, R, sequence_lens=[5, *[3] * (N - 1)], packed=True)
    np.testing.assert_array_equal(packed.H_t, again.H_t)


def test_new_steps_push_no_program_out(rng, monkeypatch):
    monkeypatch.setattr(families.Remembered, "MOST", 3)
    for steps in (17, 18, 19, 20, 17, 18):
        step("gru", operands("gru", rng, (steps, N, I, H)), rng)
    assert programs_made() == 2


@pytest.mark.parametrize("view", ["a part of longer sequences", "batch first", "broadcast", "columns"])
def test_layouts_of_many_steps(view, rng):
    """Strides that depend on T, and strides that do not."""
    for steps in (18, 17, 20):
        arrays = operands("lstm", rng, (steps, N, I, H), "float64")
        X = arrays["X"]
        if view == "a part of longer sequences":
            X = np.concatenate([X, X], axis=1)[:, :N]
        elif view == "batch first":
            X = X.swapaxes(0, 1).copy().swapaxes(0, 1)
        elif view == "broadcast":
            X = np.broadcast_to(X[:, :1], X.shape)
        else:
            X = np.repeat(X, 2, axis=2)[:, :, ::2]
        arrays["X"] = X
        compare(step("lstm", arrays, rng), without_plans(lambda a=arrays: step("lstm", a, rng)), 1e-12)
    assert programs_made() <= (3 if view == "columns" else 2) + (view == "broadcast")


def test_inputs_of_each_step_share_a_program_too(rng):
    def decayed(xp, x, h, W, R, delta):
        return xp.tanh(W.z(x) + delta * R.z(h))

    cell = xpgrad.Cell(decayed, W="z", R="z", inputs="delta")
    weights = {"W": rng.normal(size=(1, H, I)), "R": 0.3 * rng.normal(size=(1, H, H))}
    for steps in (18, 17, 20, 3):
        given = {"X": rng.normal(size=(steps, N, I)), "delta": rng.normal(size=(steps, N, H)), **weights}

        def both(given=given):
            out, pullback = xpgrad.vjp(cell, **given)
            return [*out, *pullback(grad_H_all=np.cos(out.H_all))]

        compare(both(), without_plans(both), 1e-12)
    assert programs_made() == 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "conv"])
def test_half_precision_runs_programs_of_float32(kind, dtype, rng):
    """With results rounded once; also where parameters are joined, and where an argument is missing."""
    torch = pytest.importorskip("torch", reason="torch not installed")
    import xpgrad_torch

    modules = {
        "lstm": lambda: xpgrad_torch.LSTM(I, H, bidirectional=True),
        "gru": lambda: xpgrad_torch.GRU(I, H, bias=False),
        "conv": lambda: xpgrad_torch.Conv1d(I, H, 3),
    }
    module = modules[kind]().to(getattr(torch, dtype))
    shape = (N, I, T) if kind == "conv" else (T, N, I)
    X = torch.from_numpy(rng.normal(size=shape)).to(getattr(torch, dtype)).requires_grad_()
    wide = modules[kind]()
    wide.load_state_dict(module.state_dict())

    def output(module, X):
        return module(X) if kind == "conv" else module(X)[0]

    for _ in range(2):
        Y = output(module, X)
        grads = torch.autograd.grad(Y, [X, *module.parameters()], torch.ones_like(Y))
        assert programs_made() == 2
        exact = output(wide, X.float())
        assert torch.equal(Y, exact.to(Y.dtype))
        expected = torch.autograd.grad(exact, [X, *wide.parameters()], torch.ones_like(exact))
        for a, b in zip(grads, expected, strict=True):
            assert a.dtype == Y.dtype
            allowed = 8 * torch.finfo(Y.dtype).eps * float(b.abs().max())
            torch.testing.assert_close(a.float(), b.float(), rtol=0, atol=allowed)


def test_values_beyond_half_precision_are_infinite(rng):
    X, W = np.full((1, 64, 4), 100, "float16"), np.full((2, 64, 1), 100, "float16")
    assert np.isinf(xpgrad.conv(X, W)).all()
