"""Locks after a fork, and in a signal handler: nobody waits for a thread that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

_FORK = """
    def in_child(work):
        "Whether the work ends well in a forked child within some time."
        import os, signal, warnings
        warnings.simplefilter("ignore")  # threads and a fork: that is what is tested
        child = os.fork()
        if not child:
            signal.alarm(20)
            work()
            os._exit(0)
        return os.waitpid(child, 0)[1] == 0
"""


def run(code: str) -> None:
    """In a process of its own: threads of other tests would be forked along."""
    command = [sys.executable, "-c", textwrap.dedent(_FORK) + textwrap.dedent(code)]
    subprocess.run(command, check=True, timeout=240)


@pytest.mark.parametrize(
    "lock",
    [
        "compiled.cache:_lock",
        "process.blas:_limits",
        "process.remembered:Remembered._writing",
        "programs.foreign:_registering",
    ],
)
def test_a_child_finds_every_lock_free(lock: str) -> None:
    """Also one that another thread held at the fork."""
    if lock.startswith(("compiled", "programs")):
        pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    run(f"""
    import functools, importlib, threading
    module, _, name = {lock!r}.partition(":")
    lock = functools.reduce(getattr, name.split("."), importlib.import_module(f"xpgrad.engine.{{module}}"))
    held, go = threading.Event(), threading.Event()

    def hold():
        with lock.own:
            held.set()
            go.wait()

    def take():
        with lock.own, lock.own:  # its own thread may take it again
            pass

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    assert in_child(take)
    go.set()
    thread.join()
    take()
    """)


def test_a_child_calls_kernels_though_its_parent_held_the_locks() -> None:
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    run(
        """
    import threading, time
    import numpy as np
    import xpgrad
    from xpgrad.engine.compiled import cache
    from xpgrad.engine.process import blas
    from xpgrad.engine.process.remembered import Remembered
    rng = np.random.default_rng(0)
    X, W, R = (rng.normal(size=s).astype("float32") for s in [(3, 2, 4), (1, 20, 4), (1, 20, 5)])

    def call():
        out = xpgrad.lstm(X, W, R)
        saved = {name: getattr(out, name) for name in ("H_all", "C_all", "iofc")}
        xpgrad.lstm_grad(X, W, R, **saved, grad_H_all=out.H_all)

    call()
    held, go = threading.Event(), threading.Event()

    def hold():
        with cache._lock.own, blas._limits.own, Remembered._writing.own:
            held.set()
            go.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    X, W = X[:2], W.astype("float32") + 1  # a form that is new

    assert in_child(call)
    go.set()
    thread.join()
    call()
    """
    )


def test_a_handler_that_forks_in_the_middle() -> None:
    """The child gives back the lock that it had before."""
    run("""
    import os
    from xpgrad.engine.process.locks import LastingLock
    lock = LastingLock()

    def again():
        with lock.own:
            pass

    with lock.own:
        with lock.own:
            child = os.fork()
        if not child:
            again()
    if not child:
        again()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    """)
