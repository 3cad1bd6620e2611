"""Programs are registered with a host once, whoever asks first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from xpgrad.engine.programs.foreign import why_no_host

pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")


def test_threads_wait_for_the_first_call() -> None:
    begun, go, calls = threading.Event(), threading.Event(), list[int]()

    def register() -> None:
        calls.append(threading.get_ident())
        begun.set()
        go.wait(60)

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(why_no_host, register)
        assert begun.wait(60)
        others = [pool.submit(why_no_host, register) for _ in range(2)]
        with pytest.raises(TimeoutError):
            others[0].result(timeout=0.2)
        go.set()
        assert [one.result() for one in (first, *others)] == [None] * 3
    assert len(calls) == 1


def test_a_failure_is_told_each_time_and_an_interrupt_is_not_remembered() -> None:
    errors = [KeyboardInterrupt(), OSError("no such library")]

    def register() -> None:
        raise errors.pop(0)

    with pytest.raises(KeyboardInterrupt):
        why_no_host(register)
    assert why_no_host(register) == why_no_host(register) == "OSError: no such library"
    assert not errors
