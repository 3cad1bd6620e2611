"""Threads of NumPy's BLAS, where it has its own, are held back while parts run, and given back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from xpgrad.engine import NumpyEngine
from xpgrad.engine.process import blas


class Pool:
    """One number for the process, as OpenBLAS has it."""

    def __init__(self, threads: int) -> None:
        self.threads, self.set = threads, list[int]()

    def get(self) -> int:
        return self.threads

    def put(self, threads: int) -> None:
        self.threads = threads
        self.set.append(threads)

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        limit = blas._Limit(self.get, self.put)
        limit.begin()
        try:
            yield
        finally:
            limit.end()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *raised: object) -> None:
        assert not blas._open


def test_the_last_one_out_gives_the_threads_back() -> None:
    with Pool(4) as pool:
        with pool.limited():
            assert pool.threads == 1
            with pool.limited():
                assert pool.threads == 1
            assert pool.threads == 1, "given back while another one computes"
        assert pool.threads == 4
        assert pool.set == [1, 4]
        pool.threads = 3
        with pool.limited():
            assert pool.threads == 1
        assert pool.threads == 3, "the number of an earlier time"


def test_the_first_one_in_may_be_the_first_one_out() -> None:
    with Pool(4) as pool:
        first, second = contextlib.ExitStack(), contextlib.ExitStack()
        first.enter_context(pool.limited())
        second.enter_context(pool.limited())
        first.close()
        assert pool.threads == 1
        second.close()
        assert pool.threads == 4


def test_an_exception_gives_the_threads_back() -> None:
    with Pool(2) as pool:
        with pytest.raises(KeyError), pool.limited(), pool.limited():
            raise KeyError
        assert pool.threads == 2
        with pool.limited():
            assert pool.threads == 1
        assert pool.threads == 2


@pytest.fixture
def numpys() -> Iterator[Callable[[], int]]:
    """The number of threads of NumPy's OpenBLAS, two of them."""
    found = blas._numpy_threads()
    if found is None:
        pytest.skip("NumPy's BLAS has no threads that could be held back")
    get, put = found
    before = get()
    put(2)
    yield get
    put(before)


def test_numpys_own(numpys: Callable[[], int]) -> None:
    def work() -> list[int]:
        return [numpys(), blas.in_one_thread(numpys), numpys()]

    assert blas.in_one_thread(work) == [1, 1, 1]
    assert numpys() == 2


def test_an_engines_parts_hold_them_back(numpys: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts do, one alone does not: it may have all threads."""
    engine = NumpyEngine()
    monkeypatch.setattr(engine.team, "size", lambda: 2)
    assert engine.map(lambda _: numpys(), range(2)) == [1, 1]
    assert engine.map(lambda _: numpys(), range(1)) == [2]
    assert numpys() == 2


def test_without_numpys_own_library_nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.linalg._umath_linalg, "__file__", "no such file")
    assert blas._numpy_threads.__wrapped__() is None
    monkeypatch.delattr(np.linalg, "_umath_linalg")
    assert blas._numpy_threads.__wrapped__() is None
    monkeypatch.setattr(blas, "_numpy_threads", lambda: None)
    assert blas.in_one_thread(max, 1, 2) == 2
