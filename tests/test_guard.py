"""The guard finds what is written or read in the wrong place, and nothing where all is right."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

import xpgrad
from xpgrad._calls import families

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there is no compiled code to guard")

from xpgrad.cli import check_random
from xpgrad.engine.compiled import machine
from xpgrad.engine.compiled.products import matrix
from xpgrad.engine.images import compiled_shifts
from xpgrad.engine.process import guard
from xpgrad.engine.process.guard import GuardError
from xpgrad.engine.process.memory import Workspaces
from xpgrad.engine.process.team import PoolTeam
from xpgrad.engine.programs import schedule
from xpgrad.engine.programs.schedule import Schedule, ScheduledChunk


@pytest.fixture(autouse=True)
def guarded(monkeypatch, compiled):
    """The guard, with nothing that was planned without it, or with a fault.

    The tests' faults are in the plans of two threads.
    """
    monkeypatch.setenv("XPGRAD_NUM_THREADS", "2")
    monkeypatch.setattr(guard, "on", True)
    monkeypatch.setattr(families, "known", families.CallCache())
    for plans in (compiled_shifts.plan_of_sums, compiled_shifts.plan_of_products):
        plans.cache_clear()
    yield
    for plans in (compiled_shifts.plan_of_sums, compiled_shifts.plan_of_products):
        plans.cache_clear()


def recurrent(rng, lengths, T=28, N=14, I=40, H=40, dtype="float32", times=1, reset=None):
    """An LSTM's forward and gradient."""
    cut = {"sequence_lens": lengths, "reset": reset}
    shapes = {"X": (T, N, I), "W": (1, 4 * H, I), "R": (1, 4 * H, H)}
    arrays = {name: (0.2 * rng.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}
    for _ in range(times):
        out = xpgrad.lstm(**arrays, **cut)
        saved = {name: getattr(out, name) for name in ("H_all", "C_all", "iofc")}
        xpgrad.lstm_grad(**arrays, **saved, grad_H_all=np.ones_like(out.H_all), **cut)


def convolution(rng, channels, made, size=20, dtype="float32"):
    """A convolution's forward and gradient, by tiles or by loops."""
    X = rng.normal(size=(2, channels, size, size)).astype(dtype)
    W = rng.normal(size=(made, channels, 3, 3)).astype(dtype)
    Y = xpgrad.conv(X, W, pads=[1, 1, 1, 1])
    xpgrad.conv_grad(np.ones_like(Y), X, W, pads=[1, 1, 1, 1])


def test_nothing_is_found_where_all_is_right(rng):
    recurrent(rng, [17] * 14, times=2)
    convolution(rng, 2, 2)
    convolution(rng, 8, 8)
    matrix_product(rng)
    assert not np.isnan(xpgrad.softmax(rng.normal(size=(3, 5)))).any()


def matrix_product(rng, m=300, n=200, k=256, dtype="float32"):
    """A product without a program: panels of one factor and rows of the other fill all of its memory."""
    a, b = rng.normal(size=(k, m)).astype(dtype).T, rng.normal(size=(k, n)).astype(dtype)
    matrix.multiply(PoolTeam(), a, b, np.empty((m, n), dtype))


def test_blocks_of_a_sum_that_are_planned_for_the_longest(rng, monkeypatch):
    """The fault that the guard was made for: 392 rows are planned, 238 come."""
    monkeypatch.setattr(matrix, "largest_block", matrix.block_of)
    with pytest.raises(GuardError, match=r"Multiply \(sizes \(160, 40, Quantity.*wrote to bytes"):
        recurrent(rng, [17] * 14)


SHORTER = 64


@pytest.mark.parametrize("name", ["product", "program", "sums by tiles", "products by tiles", "sums by loops",
                                  "products by loops"])  # fmt: skip
def test_a_workspace_that_is_a_line_too_short(name, rng, monkeypatch):
    def shorter(kind):
        class Shorter(Workspaces):
            def __new__(cls, parts, size):
                return Workspaces(parts, size - SHORTER)

        monkeypatch.setattr(kind, "Workspaces", Shorter)

    shorter(matrix if name in ("product", "program") else compiled_shifts)
    works = {
        "product": lambda: matrix_product(rng),
        "program": lambda: recurrent(rng, None, T=64, N=4, I=48, H=48),
        "tiles": lambda: convolution(rng, 8, 8),
        "loops": lambda: convolution(rng, 2, 2),
    }
    with pytest.raises(GuardError, match=r"wrote to bytes|left its memory"):
        works[name.split()[-1]]()


@pytest.mark.parametrize("short", [0, 1])
def test_a_chunk_that_is_a_row_longer_than_planned(short, rng, monkeypatch):
    """The longest chunk of these lengths, six steps of 14 sequences, has 84 rows."""

    class Shorter(ScheduledChunk):
        def __init__(self, plan, base, table, most, reverse):
            super().__init__(plan, base, table, 84 - short, reverse)

    monkeypatch.setattr(schedule, "ScheduledChunk", Shorter)
    monkeypatch.setattr(machine, "CHUNK_ROWS", 80)
    monkeypatch.setattr(machine, "_CHUNK_BYTES", 1)
    with pytest.raises(GuardError, match=r"found 84 for quantity.*at most 83") if short else nullcontext():
        recurrent(rng, [17] * 14)


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_chunks_of_sequences_with_resets(share, rng, monkeypatch):
    monkeypatch.setattr(machine, "CHUNK_ROWS", 20)
    monkeypatch.setattr(machine, "_CHUNK_BYTES", 1)
    recurrent(rng, [28] * 14, reset=rng.uniform(size=(28, 14)) < share)


@pytest.mark.parametrize("short", [*range(8), *(f"{number} with resets" for number in range(7))])
def test_a_table_that_is_an_entry_too_short(short, rng, monkeypatch):
    """Each of a schedule's tables: of sequences, starts, spans, chunks' spans, marks of full sequences."""
    number, resets = int(str(short)[0]), "resets" in str(short)
    table, asked = Schedule._table, iter(range(100))
    monkeypatch.setattr(Schedule, "_table", lambda self, count: table(self, count - (next(asked) == number)))
    lengths, reset = [28] + [17] * 13, None
    if resets:
        lengths, reset = [28] * 13 + [17 if number == 3 else 28], np.ones((28, 14), dtype=bool)
    with pytest.raises(GuardError, match="wrote to bytes"):
        recurrent(rng, lengths, reset=reset)


def test_memory_that_is_read_before_it_is_written(rng, monkeypatch):
    """It holds NaN: here the sums of a gradient begin with what is there."""
    from xpgrad.engine.programs import recorder

    multiply = recorder.Recorder.multiply

    def added(self, target, a, b, add=False):
        multiply(self, target, a, b, True)

    monkeypatch.setattr(recorder.Recorder, "multiply", added)
    X, W = np.ones((3, 4, 2)), np.ones((1, 8, 2))
    assert np.isnan(xpgrad.rnn(X, W[:, :5], np.ones((1, 5, 5))).H_all).all()


def test_a_write_beside_a_result_that_no_program_computes(rng):
    """As long as a view of the result is there; whatever is computed next finds it."""
    X = rng.normal(size=1000)
    view = xpgrad.softplus(X)[10:]
    assert xpgrad.softplus(X).shape == X.shape
    behind = ctypes.c_uint8.from_address(view.ctypes.data + view.nbytes)
    behind.value ^= 1
    with pytest.raises(GuardError, match="wrote outside a result of 8000 bytes"):
        xpgrad.softplus(X)
    behind.value ^= 1
    xpgrad.softplus(X)


def test_random_calls_under_the_guard():
    calls = [check_random.draw_call(seed, of_lengths=True) for seed in range(30)]
    for call in [call for call in calls if call.namespace == "numpy"][:8]:
        assert check_random.failure(call) is None


@pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by mprotect")
def test_the_page_behind_an_arena():
    code = "\n".join(
        [
            "import ctypes",
            "from xpgrad.engine.process import guard",
            "memory, address = guard.memory(1000)",
            "for k in range(1000 + guard.RED): ctypes.c_uint8.from_address(address + k).value",
            "print('before', flush=True)",
            "ctypes.c_uint8.from_address(address + 1000 + guard.RED + 64).value",
            "print('behind')",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout == "before\n"
    assert done.returncode < 0
