"""Tables of bounded size, which threads share."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pytest

from free_locks import is_free
from xpgrad.engine.process.remembered import Remembered


class _Three(Remembered[int]):
    MOST = 3


class _Forty(Remembered[int]):
    MOST = 40


class _Key:
    """A key that other threads meet only while its own thread holds the tables' lock."""

    def __hash__(self) -> int:
        assert not is_free(Remembered._writing), "a step with the table while other threads may change it"
        return 1


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_oldest_entry_goes_first() -> None:
    table = _Three()
    for key in range(3):
        table[key] = 10 * key
    assert table.renewed(0, None) == 0
    assert table.renewed(7, None) is None
    table[3] = 30
    assert [*table] == [2, 0, 3]
    assert table.again(2, lambda: 99) == 20
    assert table.again(5, lambda: 50) == 50
    assert [*table] == [3, 2, 5]


def test_each_step_holds_the_lock() -> None:
    table, key = _Three(), _Key()
    assert table.again(key, lambda: 1) == 1
    assert table.renewed(key, None) == 1
    assert table.again(key, lambda: 2) == 1
    table[key] = 3


def test_threads_share_a_table(hurried_threads: None) -> None:
    """Each finds what it asks for, however the others renew and replace entries meanwhile."""
    table = _Forty()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(10_000):
                key = draw.randrange(60)
                assert table.again(key, lambda key=key: -key) == -key
                assert table.renewed(key + 1, None) in (None, -key - 1)
                table[key] = -key
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(table) == _Forty.MOST
