"""Rows that a time loop asks for ahead: which ones, and that each of their lines is asked for."""

import numpy as np
import pytest

from xpgrad import lstm, vjp

pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")

from compiled_calls import compiled
from xpgrad.engine.compiled import native, native_ahead, time_loops
from xpgrad.engine.compiled.records import Ahead, length, positions

LINE = 64

begin = compiled(native_ahead.begin, "void(int64, int64)")
advance = compiled(native_ahead.advance, "void(int64, int64)")
forget = compiled(native_ahead.forget, "void(int64)")


def _write_asked(ahead, found):
    place, step = native_ahead.asked(ahead)
    of = native.fields(found)
    of[0], of[1] = place, step


def _ask_rows(ahead, head, m, itemsize, first, count):
    native_ahead.ask_rows(ahead, native.fields(head), m, itemsize, first, count)


_asked, ask_rows = (
    compiled(_write_asked, "void(int64, int64)"),
    compiled(_ask_rows, f"void({'int64, ' * 5}int64)"),
)


def asked(address):
    """The place and the step."""
    found = np.zeros(2, np.int64)
    _asked(address, found.ctypes.data)
    return found.tolist()


def asked_for(ranges, passes, tile, products=1):
    """The lines of memory that tiles of so many passes ask for, one tile and one product after the other."""
    at, size = positions(Ahead), length(Ahead)
    numbers = np.zeros(size + 2 * len(ranges), np.int64)
    numbers[at.left], numbers[at.products] = len(ranges), products
    numbers[size:] = np.ravel(ranges)
    address = numbers.ctypes.data
    lines = []
    for _ in range(products):
        begin(address, passes // products)
        for _ in range(0, passes // products, tile):
            place, step = asked(address)
            lines += [(place + k * step) // LINE for k in range(tile)]
            advance(address, tile)
    return lines


@pytest.mark.parametrize(("tile", "products"), [(16, 1), (64, 1), (250, 1), (50, 4), (16, 20)])
def test_all_lines_are_asked_for(tile, products):
    ranges = [(1 << 20, 40 * LINE), (2 << 20, 600 * LINE), (3 << 20, 3 * LINE)]
    lines = asked_for(ranges, 8000, tile, products)
    for start, size in ranges:
        assert set(range(start // LINE, (start + size) // LINE)) <= set(lines)
    assert len(set(lines)) < 643 + 3 * tile  # and few others
    assert len(set(lines[: 8000 // products])) < 800 / products + 2  # at an even pace


def test_each_pass_asks_for_one_line_of_more_than_there_is_time_for():
    lines = asked_for([(1 << 20, 600 * LINE)], 100, 50)
    assert lines == [*range((1 << 20) // LINE, (1 << 20) // LINE + 100)]


def test_without_ranges_nothing_else_is_asked_for():
    at, size = positions(Ahead), length(Ahead)
    numbers = np.full(size, 99)
    address = numbers.ctypes.data
    forget(address)
    begin(address, 1000)
    for _ in range(3):
        place, step = asked(address)
        assert (place - address) // LINE == 0
        assert step == 0
        advance(address, 100)
    assert numbers[at.left] == 0


def test_rows_far_apart_are_not_asked_for():
    at, size = positions(Ahead), length(Ahead)
    numbers = np.zeros(size + 4, np.int64)
    head = np.asarray([1000, 9, 5, 5, 2000, 9, 5, 500])  # two matrices
    address = numbers.ctypes.data
    for m in (0, 4):
        ask_rows(address, head.ctypes.data, m, 4, 2, 3)
    ask_rows(address, head.ctypes.data, 0, 4, 2, 0)  # no rows
    assert numbers[at.left] == 1
    assert [*numbers[size : size + 2]] == [1000 + 2 * 5 * 4, 3 * 5 * 4]


@pytest.fixture
def loops(monkeypatch):
    """The rows that loops ask for, loop by loop: which, and whether they are the next step's."""
    seen = []

    def noting(*arguments):
        asked = find(*arguments)
        seen.append([(one.at, one.coming) for one, is_far in asked.items() if is_far])
        return asked

    find = time_loops._asked
    monkeypatch.setattr(time_loops, "_asked", noting)
    return seen


def test_an_lstm_asks_for_what_is_far(loops, monkeypatch):
    texts = set()

    def noting(*arguments):
        texts.add(arguments[4])
        return c_function(*arguments)

    c_function = time_loops.c_function
    monkeypatch.setattr(time_loops, "c_function", noting)
    rng = np.random.default_rng(0)
    X, W, R = (rng.normal(size=shape) for shape in [(5, 4, 7), (1, 24, 7), (1, 24, 6)])
    outputs, pullback = vjp(lstm, X, W, R)
    forward = loops[-1]
    pullback(outputs[0])
    # behind the product gates, cell state and state; before it the cotangent of the output, gates, the cell
    # state of the step before, the cotangents to write
    assert forward == [("now", False)] * 3
    assert sorted(loops[-2]) == [("before", True), ("local", True), ("now", True), ("now", True)]
    # a first step's loop, from the initial state, has the same code as the other steps' loop
    assert len(loops) == 4
    assert len(texts) == 2
