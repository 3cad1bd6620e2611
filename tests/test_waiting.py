"""Threads of our own for a host that lends none."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from xpgrad.engine.compiled.cache import load
from xpgrad.engine.compiled.folder import versions
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.programs.foreign import HostTeam
from xpgrad.engine.programs.native_foreign import DATA, FUNCTION, LEFT, OVER, THERE, USERS
from xpgrad.engine.programs.waiting import WaitingThreads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are such threads on Linux")


@pytest.fixture
def lend():
    """The compiled function: 0 where a thread will run the task."""
    text = f"""# lends threads; generated, {versions()}
from xpgrad.engine.compiled.cache import cfunc
from xpgrad.engine.programs.native_foreign import lend


@cfunc("int64(int64, int64, int64)")
def run(waiting, task, data):
    return lend(waiting, task, data)
"""
    return ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(load("test_lend", text).run.address)


def task():
    """The address of the compiled task."""
    return HostTeam().addresses[2]


def _crew(function, parts):
    """Work for a thread, which no other one does; the caller is one more user, so nothing is freed."""
    crew = np.zeros(8, dtype=np.int64)
    crew[LEFT], crew[USERS], crew[THERE] = parts, 2, 1
    crew[FUNCTION], crew[DATA] = ctypes.cast(function, ctypes.c_void_p).value, 7
    return crew


def test_a_waiting_thread_runs_all_parts_again_and_again(lend):
    seen: list[tuple[int, int, int]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    def part_of_work(data, part):
        seen.append((data, part, threading.get_ident()))

    threads = WaitingThreads(1)
    for count in (3, 2):
        seen.clear()
        crew = _crew(part_of_work, count)
        assert lend(threads.address, task(), address_of(crew)) == 0
        end = time.monotonic() + 60
        while crew[THERE] and time.monotonic() < end:
            time.sleep(0.001)
        crew[OVER] = 1
        assert sorted(one[:2] for one in seen) == [(7, part) for part in range(count)]
        assert threading.get_ident() not in {one[2] for one in seen}
        while crew[USERS] != 1 and time.monotonic() < end:  # it looks at the crew until then
            time.sleep(0.001)


def test_no_threads_lend_nothing(lend):
    assert lend(WaitingThreads(0).address, task(), 1) == 1


def test_a_forked_child_has_no_threads(lend):
    threads = WaitingThreads(1)
    task()
    child = os.fork()
    if child == 0:
        os._exit(lend(threads.address, task(), 1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
