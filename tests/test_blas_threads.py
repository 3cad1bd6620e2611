"""Threads of a BLAS that has its own are held back while parts run, and given back."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from xpgrad.engine.compiled import machine
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

    def limited(self) -> contextlib.AbstractContextManager[None]:
        return blas._limited((self._get, self._put))

    def __enter__(self) -> Pool:
        self._get, self._put = self.get, self.put  # bound once: the functions of a library stay the same
        return self

    def __exit__(self, *raised: object) -> None:
        blas._limit_depth.pop(id(self._put), None)


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


def test_two_libraries_do_not_share_a_number() -> None:
    with Pool(4) as one, Pool(8) as other, one.limited():
        with other.limited():
            assert (one.threads, other.threads) == (1, 1)
        assert (one.threads, other.threads) == (1, 8)


def test_numpys_own() -> None:
    """The library that NumPy is linked with, where it is an OpenBLAS."""
    found = blas.find_blas(np._core._multiarray_umath.__file__)
    if found is None or not found.has_pool:
        pytest.skip("NumPy's BLAS has no threads that could be held back")
    get, put = found.in_one_thread.args[0]
    before = get()
    put(2)
    try:
        with found.in_one_thread():
            assert get() == 1
            with found.in_one_thread():
                pass
            assert get() == 1
        assert get() == 2
    finally:
        put(before)


def test_without_numpys_own_library_products_go_through_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(np.linalg, "_umath_linalg")
    assert machine._numpy_blas.__wrapped__() is None
