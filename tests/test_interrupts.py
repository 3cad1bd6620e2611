"""Whatever interrupts a call, the next one's numbers are right."""

from __future__ import annotations

import contextvars
import dis
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
import types

import numpy as np
import pytest

from free_locks import is_free
from xpgrad.engine.process import blas, garbage, memory
from xpgrad.engine.process.remembered import Remembered
from xpgrad.engine.process.team import PoolTeam, _Others
from xpgrad.engine.process.variables import with_value

_CODE = """
    import os, random, signal, sys, threading, time
    import numpy as np
    import xpgrad

    assert "torch" not in sys.modules
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also if our parent ignores it
    rng = np.random.default_rng(0)

    def arrays():
        shapes = [(40, 64, 24), (1, 128, 24), (1, 128, 32)]
        return [rng.normal(size=shape).astype("float32") for shape in shapes]

    def call(X, W, R):
        out = xpgrad.lstm(X, W, R)
        saved = {name: getattr(out, name) for name in ("H_all", "C_all", "iofc")}
        return [*out, *xpgrad.lstm_grad(X, W, R, grad_H_all=out.H_all, **saved)]

    cases = [arrays() for _ in range(4)]
    expected = [call(*case) for case in cases]
    begin = time.perf_counter()
    call(*cases[0])
    usual = time.perf_counter() - begin
    random.seed(1)
    interrupts = 0
    for number in range(150):
        case = number % 4
        sender = threading.Timer(random.uniform(0, 1.2 * usual), os.kill, (os.getpid(), signal.SIGINT))
        try:
            sender.start()
            call(*cases[case])
            sender.join()
            time.sleep(0.01)  # it may arrive here
        except KeyboardInterrupt:
            interrupts += 1
        sender.join()
        case = (case + 1) % 4
        for got, right in zip(call(*cases[case]), expected[case]):
            assert got is right is None or np.array_equal(got, right), number
    assert interrupts == 150, interrupts
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to one process")
@pytest.mark.parametrize("jit", ["1", "0"])
def test_ctrl_c_at_any_moment(jit):
    environment = {**os.environ, "XPGRAD_NUM_THREADS": "3", "XPGRAD_JIT": jit}
    subprocess.run([sys.executable, "-c", textwrap.dedent(_CODE)], check=True, timeout=300, env=environment)


def test_the_caller_waits_for_threads_that_have_begun():
    begun, ended = threading.Event(), []

    def slow():
        begun.set()
        time.sleep(0.2)
        ended.append(True)

    others = _Others(slow)
    thread = threading.Thread(target=others.work)
    thread.start()
    begun.wait()
    others.close()
    assert ended == [True]
    others.work()  # too late: there is nothing left to do
    assert ended == [True]
    thread.join()


def test_every_interrupt_waits_for_the_threads():
    ended, interrupts = [], []

    class Interrupting:
        def put(self, _):
            pass

        def get(self):
            interrupts.append(True)
            time.sleep(0.02)
            raise KeyboardInterrupt

    others = _Others(lambda: time.sleep(0.2) or ended.append(True))
    others._messages = Interrupting()
    thread = threading.Thread(target=others.work)
    thread.start()
    while not others._begun:
        time.sleep(0.001)
    with pytest.raises(KeyboardInterrupt):
        others.close()
    assert ended == [True]
    assert len(interrupts) > 1
    thread.join()


def test_an_error_of_the_caller_waits_too():
    team, ended = PoolTeam(), []

    def item(number):
        if number == 0:
            raise KeyboardInterrupt
        time.sleep(0.1)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        team.map(item, [0, 1, 2])
    count = len(ended)
    time.sleep(0.3)
    assert len(ended) == count


def _interrupted(function, moment, after=""):
    """Whether the function ended before an interrupt at this opcode of a module that it calls.

    Only opcodes whose frame has just executed one with such a beginning count.
    """
    left, latest = [moment], {}

    def follow(frame, event, _):
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = latest.get(frame, "")
            latest[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            left[0] -= before.startswith(after)
            if left[0] == 0:
                raise KeyboardInterrupt
        return follow

    def enter(frame, *_):
        return None if frame.f_code.co_filename == __file__ else follow(frame, "call", None)

    was = gc.isenabled()
    gc.disable()  # a collection would call functions of JAX, which the interrupt would hit
    sys.settrace(enter)
    try:
        function()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(None)
        latest.clear()  # a frame holds what it holds
        if was:
            gc.enable()
    return True


def test_an_interrupt_at_any_opcode_leaves_threads_that_work(monkeypatch):
    """No lock stays taken, and no thread runs an item when the interrupt arrives at the caller."""
    monkeypatch.setenv("XPGRAD_NUM_THREADS", "3")
    team, wrong = PoolTeam(), []

    def all_moments():
        for moment in itertools.count(1):
            begun, ended = [], []

            def item(number, begun=begun, ended=ended):
                begun.append(number)
                time.sleep(0.0005)
                ended.append(number)

            finished = _interrupted(lambda item=item: team.map(item, range(3)), moment)
            count = len(ended)
            time.sleep(0.001)  # a thread that begins too late
            if not len(begun) == len(ended) == count:
                wrong.append(moment)
            if finished:
                return

    thread = threading.Thread(target=all_moments, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    meeting = threading.Barrier(3)  # all threads still take work
    team.map(lambda _: meeting.wait(30), range(3))
    assert not wrong


_SIGNALS_AFTER = "CALL"  # the opcodes after which Python handles signals, but for jumps and beginnings


def test_an_interrupt_after_any_call_leaves_no_lock_taken():
    table = Remembered()
    for moment in itertools.count(1):
        finished = _interrupted(lambda: table.__setitem__(1, 2), moment, _SIGNALS_AFTER)
        assert is_free(Remembered._writing), moment
        if finished:
            return


def test_an_interrupt_after_any_call_leaves_the_threads_of_blas(monkeypatch):
    threads, seen = [4], []

    def put(number):
        threads[0] = number

    monkeypatch.setattr(blas, "_numpy_threads", lambda: (lambda: threads[0], put))
    monkeypatch.setattr(blas, "_open", set())
    monkeypatch.setattr(blas, "_before", [])

    def work():
        blas.in_one_thread(lambda: seen.append(threads[0]))

    moment = 0
    while not seen:  # later, Python would raise within the `try`, and not at the next opcode
        moment += 1
        _interrupted(work, moment, _SIGNALS_AFTER)
        assert is_free(blas._limits), moment
        assert seen or (threads, blas._open) == ([4], set()), moment
    assert seen == [1]


def test_an_interrupt_leaves_the_garbage_collector_on(monkeypatch):
    def disable():
        gc.disable()
        raise KeyboardInterrupt

    switched = []
    work = garbage.without_collections(lambda: switched.append(gc.isenabled()))
    work()
    assert gc.isenabled()
    interrupted = types.SimpleNamespace(isenabled=gc.isenabled, disable=disable, enable=gc.enable)
    monkeypatch.setattr(garbage, "gc", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert gc.isenabled()
    assert switched == [False]


def test_an_interrupt_after_any_call_leaves_a_context_variable():
    variable = contextvars.ContextVar("variable", default=0)
    seen = []
    for moment in itertools.count(1):
        finished = _interrupted(
            lambda: with_value(variable, 1, lambda: seen.append(variable.get())), moment, _SIGNALS_AFTER
        )
        assert variable.get() == 0, moment
        if finished:
            break
    assert seen[-1] == 1


def test_a_call_inside_of_a_call_has_its_own_arena():
    memory.keep_arena(memory.take_arena(1000))  # which the next call takes
    outer = memory.take_arena(1000)
    inner = memory.take_arena(1000)
    assert not np.shares_memory(outer[0], inner[0])
    memory.keep_arena(inner)
    memory.keep_arena(outer)
    assert memory.take_arena(500) is outer


def test_a_thread_keeps_the_arenas_that_it_used_last(monkeypatch):
    monkeypatch.setattr(memory, "_KEPT", 10_000)
    monkeypatch.setattr(memory, "_arenas", memory._Arenas())
    small, middle, large = (memory.take_arena(size) for size in (1_000, 3_000, 8_000))
    memory.keep_arena(middle)
    memory.keep_arena(small)
    assert memory.take_arena(900) is small
    memory.keep_arena(small)
    assert memory.take_arena(2_000) is middle
    memory.keep_arena(middle)
    memory.keep_arena(large)  # with which one more small one fits
    memory.keep_arena(small)
    assert memory.take_arena(7_000) is large
    assert memory.take_arena(900) is small
    assert memory.take_arena(900) is not middle
    memory.keep_arena(memory.take_arena(20_000))
    assert len(memory.take_arena(5_000)[0]) < 10_000


def test_a_larger_arena_takes_the_place_of_smaller_ones(monkeypatch):
    """A network's calls grow from layer to layer: what each of them needed would stay."""
    monkeypatch.setattr(memory, "_arenas", memory._Arenas())
    for size in (1_000, 9_000, 20_000):
        memory.keep_arena(memory.take_arena(size))
    (kept,) = memory._arenas.kept
    assert len(kept[0]) >= 20_000
    outer, inner = memory.take_arena(20_000), memory.take_arena(500)  # two at once
    memory.keep_arena(inner)
    memory.keep_arena(outer)
    assert [memory.take_arena(size) for size in (20_000, 500)] == [outer, inner]
