"""Time loops compiled whole: every way to run them gives what the standard engine gives."""

import contextvars
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import xpgrad
from xpgrad import engine
from xpgrad.engine.compiled import machine, time_loops
from xpgrad.engine.formulas import formula
from xpgrad.engine.process import sharing, team

pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")

from xpgrad.engine.compiled import native

T, N, I, H = 6, 11, 3, 5
GATES = {"lstm": 4, "gru": 3}
WAYS = ["whole", "parts"]
CASES = [("lstm", {}), ("gru", {"linear_before_reset": 0}), ("gru", {"linear_before_reset": 1})]


def engines():
    """The engines that compile: NumPy's, and torch's where that is installed."""
    return [engine._numpy_engine, *hosts()]


def hosts():
    """Torch's engine, where torch is installed."""
    return [adapter for adapter in [engine._adapter("torch")] if adapter is not None]


@pytest.fixture
def run_in(monkeypatch):
    """Make every engine run its time loops in the given way."""

    def set_way(way):
        if way == "columns":
            monkeypatch.setattr(machine, "_SAVED", -(1 << 60))
            for one in engines():  # whatever threads other tests have started
                monkeypatch.setattr(one.team, "is_quick", lambda: True)
        if way != "whole":
            monkeypatch.setattr(machine, "_TILE_ROWS", 2)
            monkeypatch.setattr(sharing, "TIME_LOOP", 0)
            monkeypatch.setattr(sharing, "PRODUCT", 0)
            for one in engines():
                monkeypatch.setattr(one.team, "size", lambda: 3)

    return set_way


def problem(operator, lengths, dtype, direction="forward", H=H):
    D, G = (2 if direction == "bidirectional" else 1), GATES[operator]
    rng = np.random.default_rng(4)
    shapes = [(T, N, I), (D, G * H, I), (D, G * H, H), (D, 2 * G * H)]
    arrays = [(rng.normal(size=shape) / 2).astype(dtype) for shape in shapes]
    states = [rng.normal(size=(D, N, H)).astype(dtype) for _ in range(2 if operator == "lstm" else 1)]
    cotangents = [rng.normal(size=(T, D, N, H)), *(rng.normal(size=(D, N, H)) for _ in states)]
    given = None if lengths is None else np.asarray(lengths)
    return [*arrays, given, *states], [cotangent.astype(dtype) for cotangent in cotangents]


def results(operator, arrays, cotangents, options):
    outputs, pullback = xpgrad.vjp(getattr(xpgrad, operator), *arrays, **options)
    return [np.asarray(a) for a in (*outputs, *pullback(*cotangents)) if a is not None]


UNEVEN = [6, 1, 0, 3, 6, 2, 2, 5, 4, 1, 6]


def check_way(way, operator, options, arrays, cotangents, asarray, run_in):
    """Results in this way are the standard engine's."""
    with xpgrad.use_engine("standard"):
        expected = results(operator, arrays, cotangents, options)
    run_in(way)
    tolerance = 2e-5 if arrays[0].dtype == np.float32 else 1e-12
    arrays = [None if a is None else asarray(a) for a in arrays]
    got = results(operator, arrays, [asarray(c) for c in cotangents], options)
    for want, value in zip(expected, got, strict=True):
        scale = np.max(np.abs(want), initial=1)
        np.testing.assert_allclose(value, want, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("lengths", [None, UNEVEN])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("operator", "options"), CASES)
def test_every_way_is_the_standard_one(operator, options, way, lengths, namespace, dtype, run_in):
    if namespace == "torch":
        asarray = pytest.importorskip("torch", reason="torch is not installed").from_numpy
    else:
        asarray = np.asarray
    arrays, cotangents = problem(operator, lengths, dtype)
    check_way(way, operator, options, arrays, cotangents, asarray, run_in)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, UNEVEN])
@pytest.mark.parametrize("hidden", [40, 100])
@pytest.mark.parametrize(("operator", "options"), CASES)
def test_threads_share_columns(operator, options, hidden, lengths, direction, dtype, run_in, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed: no team that compiled code starts")
    if hosts()[0].team.addresses is None:
        pytest.skip("no OpenMP team: only compiled code that starts the threads divides columns")
    shared = []
    loop = time_loops.compiled_loop

    def noting(stages, dtype, by_stages=False, resets=None):
        shared.append(by_stages)
        return loop(stages, dtype, by_stages, resets)

    monkeypatch.setattr(time_loops, "compiled_loop", noting)
    arrays, cotangents = problem(operator, lengths, dtype, direction, hidden)
    options = {**options, "direction": direction}
    check_way("columns", operator, options, arrays, cotangents, torch.from_numpy, run_in)
    assert any(shared)


@pytest.mark.parametrize(
    ("rows", "hidden", "threads", "expected"),
    [
        (1, 512, 2, True),  # one row is no work for two threads
        (1, 64, 2, False),  # too little to wait for one another
        (16, 1024, 2, False),  # a tall tile for each
        (20, 650, 2, True),  # ten rows take as long as twelve
        (32, 512, 16, True),
        (32, 512, 1, False),
    ],
)
def test_when_threads_share_columns(rows, hidden, threads, expected):
    weight = machine.LoopWeight(np.empty((hidden, 4 * hidden)))
    product = formula.Product(formula.Operand(None), weight, None)
    check_sharing(product, rows, threads, expected)


@pytest.mark.parametrize(
    ("heads", "width", "threads", "expected"),
    [
        (8, 128, 2, True),
        (2, 256, 2, True),
        (32, 64, 8, True),  # heads of one panel each
        (2, 64, 16, False),  # two threads have a head each, and too little saved
        (64, 8, 2, False),  # too few operations
    ],
)
def test_when_threads_share_heads(heads, width, threads, expected):
    weight = machine.LoopWeight(np.empty((4, heads, width, width)))
    product = formula.Product(formula.Operand(None), weight, np.empty((1, heads * width)))
    check_sharing(product, 1, threads, expected)


def check_sharing(product, rows, threads, expected):
    class Threads(team.OpenMPTeam):
        """Some, of which nobody asks for work."""

        def __init__(self):
            super().__init__(1, 1, 1, lambda: threads)

    class Functions:
        height, width = 8, 48

    parts = max(1, min(threads, rows // 8))
    assert machine._share_columns([product], rows, Threads(), parts, Functions) is expected
    mean = formula.Elementwise(None, (), (formula.Operand(None, of_row=True),))
    assert not machine._share_columns([product, mean], rows, Threads(), parts, Functions)
    assert not machine._share_columns([product], rows, team.PoolTeam(), parts, Functions)


def test_parts_share_several_things():
    """Each thing as a whole or in pieces, none twice, and no part without work."""
    for count, parts in itertools.product(range(1, 9), range(1, 18)):
        shares = [[native.share_of_one(k, count, part, parts) for k in range(count)] for part in range(parts)]
        for each in zip(*shares, strict=True):
            pieces = {of for _, of in each}
            assert len(pieces) == 1
            assert sorted(piece for piece, of in each if 0 <= piece < of) == [*range(pieces.pop())]
        work = [sum(1 / of for piece, of in own if 0 <= piece < of) for own in shares]
        assert min(work) > 0
        assert max(work) <= max(-(-count // parts), 1 / (parts // count) if parts >= count else 1)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_parts_cover_all_rows_with_equal_work(threads, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    counts = np.sort(rng.integers(1, 60, size=20))[::-1]
    steps = np.zeros((20, 4), dtype=np.int64)
    steps[:, 0] = counts
    size = machine.LoopSize.of(steps)
    assert size == (20, counts.sum(), counts[0])
    parts = machine._row_parts(size, 1000, threads, 4)
    bounds = machine._bounds(counts, size.most, parts)
    assert bounds[0] == 0
    assert bounds[-1] == counts[0]
    assert np.all(np.diff(bounds) > 0)
    assert len(bounds) - 1 == parts == min(threads, counts[0] // 4)
    work = [np.sum(np.clip(counts - low, 0, high - low)) for low, high in itertools.pairwise(bounds)]
    assert max(work) - min(work) <= 2 * 20  # a row more or less on each side


def teams():
    found = [team.PoolTeam()]
    return found + [one.team for one in hosts() if isinstance(one.team, team.OpenMPTeam)]


_variable = contextvars.ContextVar("variable", default="outside")


@pytest.mark.parametrize("kind", range(len(teams())))
def test_team(kind, monkeypatch):
    """Results in order, in more than one thread, with the caller's context, and with the first error."""
    one = teams()[kind]
    monkeypatch.setattr(one, "size", lambda: 2)
    both = threading.Barrier(2, timeout=20)

    def work(item):
        both.wait()  # two threads, or this never ends
        return item * item, _variable.get()

    token = _variable.set("inside")
    try:
        assert one.map(work, [2, 3]) == [(4, "inside"), (9, "inside")]
    finally:
        _variable.reset(token)
    assert one.map(lambda item: sum(one.map(lambda other: item * other, [1, 2, 3])), [1, 2]) == [6, 12]
    with pytest.raises(ZeroDivisionError):
        one.map(lambda item: 1 / item, [1, 0, 2])
    assert one.map(lambda item: -item, range(7)) == [0, -1, -2, -3, -4, -5, -6]
    assert one.map(lambda item: item, []) == []


def test_a_team_that_two_living_threads_call_is_not_quick():
    """Their teams together have more threads than there are cores, and an OpenMP runtime lets them sleep.

    A thread's team ends with it.
    """
    one = team.OpenMPTeam(1, 1, 1, lambda: 2)
    with ThreadPoolExecutor(1) as first:
        assert first.submit(one.is_quick).result()
        assert first.submit(one.is_quick).result()
    with ThreadPoolExecutor(1) as second:
        assert second.submit(one.is_quick).result()
        assert not one.is_quick()
        assert not one.is_quick()
        assert not second.submit(one.is_quick).result()
    assert one.is_quick()
    assert not team.PoolTeam().is_quick()


def test_a_forked_child_has_no_team():
    """It runs parts on NumPy arrays itself: OpenMP would wait for threads that did not come with it.

    (On tensors torch's own operators wait so, unless the child calls ``torch.set_num_threads(1)``.) The bits
    are its parent's: other threads change none.
    """
    pytest.importorskip("torch", reason="torch is not installed: no OpenMP team to lose")
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    code = """
        import os, warnings, numpy as np, torch, xpgrad
        X, W, R = (np.random.default_rng(0).normal(size=s) for s in [(9, 64, 32), (1, 96, 32), (1, 96, 32)])
        torch.set_num_threads(2)
        before = xpgrad.gru(X, W, R).H_all
        warnings.simplefilter("ignore")  # that this process has threads
        child = os.fork()
        same = all(np.array_equal(xpgrad.gru(X, W, R).H_all, before) for _ in range(2))
        if not child:
            os._exit(0 if same else 3)
        assert same
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
