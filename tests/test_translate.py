"""The part of Python that becomes machine code: it computes what Python computes, or says what it cannot."""

import ctypes
import mmap

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")

from compiled_calls import compiled, written
from xpgrad.engine.compiled import native
from xpgrad.engine.compiled.native import elements, fields, inside, words
from xpgrad.engine.compiled.translate import TranslationError

INTEGERS = [-9, -7, -2, -1, 0, 1, 2, 3, 8, 1 << 40]
TWO = "int64(int64, int64)"


def agrees(function, signature, *cases):
    """Machine code returns what Python does."""
    made = compiled(function, signature)
    for case in cases:
        assert made(*case) == function(*case), case


PAIRS = [(a, b) for a in INTEGERS for b in INTEGERS]


def add(a, b):
    return a + b


def subtract(a, b):
    return a - b


def multiply(a, b):
    return a * b


def both(a, b):
    return a & b


def either(a, b):
    return a | b


def differing(a, b):
    return a ^ b


@pytest.mark.parametrize("function", [add, subtract, multiply, both, either, differing])
def test_arithmetic_of_integers(function):
    made = compiled(function, TWO)
    for a, b in PAIRS:
        assert made(a, b) == (function(a, b) + (1 << 63)) % (1 << 64) - (1 << 63)


def test_division_is_pythons():
    def quotient(a, b):
        return a // b

    def rest(a, b):
        return a % b

    def by_eight(a):
        return -(-a // 8) * 100 + a % 8

    pairs = [(a, b) for a, b in PAIRS if b]
    agrees(quotient, TWO, *pairs)
    agrees(rest, TWO, *pairs)
    agrees(by_eight, "int64(int64)", *((a,) for a in INTEGERS))


def test_comparisons_and_shifts():
    def order(a, b):
        return (a < b) + 2 * (a <= b) + 4 * (a > b) + 8 * (a >= b) + 16 * (a == b) + 32 * (a != b)

    def between(a, b):
        return 1 if -3 < a <= b else 0

    def shifted(a, b):
        return (a << 3) + (b >> 1)

    for function in (order, between, shifted):
        agrees(function, TWO, *PAIRS)


def test_least_greatest_and_absolute():
    def least(a, b):
        return min(a, b, 2) + 10 * max(a, b) + 100 * abs(a)

    agrees(least, TWO, *PAIRS)


def test_loops():
    def rows(a, b):
        total = 0
        for k in range(a):
            if k == 3 or k > b:
                continue
            total += k
        for k in range(b, -1, -2):
            total += 1000 * k
        for k in range(1, a, 2):
            total -= k
            k = 0
        count = 0
        while count < a and total > -50:
            total -= count
            count += 1
        return total * 100 + count

    agrees(rows, TWO, *((a, b) for a in range(8) for b in range(-1, 6)))


def test_returns_from_several_places():
    def found(a, b):
        for k in range(a):
            if k * k > b:
                return k, b
        if a > b:
            return a, 0
        return 0, 1

    def packed(a, b):
        first, second = found(a, b)
        return 100 * first + second

    agrees(packed, TWO, *((a, b) for a in range(6) for b in range(-1, 12)))


def test_what_is_known_is_computed_by_python():
    """A branch that is not taken need not even make sense."""
    kind, sizes = "plain", (3, 5)

    @inside()
    def picked(a, scale=2):
        if kind == "plain":
            return scale * a + sizes[1]
        return a.nothing

    def total(a, b):
        found = 0
        for size in sizes:
            found = found * 10 + size * a
        return found + picked(b)

    agrees(total, TWO, *PAIRS)


def test_names_change_their_values_by_branches():
    def swapped(a, b):
        low, high = a, b
        if low > high:
            low, high = high, low
        sign = 1
        if a < 0:
            sign = -1
        return (low * 3 + high) * sign

    agrees(swapped, TWO, *((a, b) for a, b in PAIRS if abs(a) < 100 and abs(b) < 100))


def test_nothing_is_read_that_a_condition_excludes():
    """The memory ends at a page that nobody may read."""
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = np.frombuffer(page, np.int64).ctypes.data
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    count = mmap.PAGESIZE // 8

    def sum_of_pairs(address, count):
        at, total = fields(address), 0
        for k in range(count):
            later = k + 1 < count and at[k + 1] == 0
            total += 1 if later else 0
            total += at[k + 1] if k + 1 < count else 5
        return total

    assert compiled(sum_of_pairs, TWO)(start, count) == count - 1 + 5
    protect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 3)


def test_memory():
    def moved(source, target):
        table, to = words(source, 3, 4), words(target, 12)
        to[:] = -1
        part = table[1:3]
        for row in range(len(part)):
            to[row] = part[row, 2]
        line = table[2]
        to[2:4] = 7
        to[4], to[5] = line[3], len(line)
        to[6] += 10
        swap = to[:2]
        swap[0], swap[1] = swap[1], swap[0]
        first, second = words(source, 2)
        to[7] = 100 * first + second

    source, target = np.arange(12) + 20, np.zeros(12, np.int64)
    compiled(moved, "void(int64, int64)")(source.ctypes.data, target.ctypes.data)
    assert target.tolist() == [30, 26, 7, 7, 31, 4, 9, 2021, -1, -1, -1, -1]


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64, np.float32, np.float64])
def test_elements_of_every_dtype(kind):
    def shifted(source, target, count):
        x, y = elements(source, 1, kind), elements(target, 0, kind)
        for k in range(count):
            y[k] = x[k]
        y[count] = 3

    x = (np.arange(6) * 40).astype(kind)
    y = np.zeros(6, kind)
    compiled(shifted, "void(int64, int64, int64)")(x.ctypes.data, y.ctypes.data, 5)
    np.testing.assert_array_equal(y, [*x[1:], 3])


def test_scratch_memory_and_the_stack():
    def filled(count):
        table, here = native.scratch(count, np.int64, 3), native.stack(2)
        here[0], here[1] = 5, 6
        for row in range(count):
            for column in range(3):
                table[row, column] = row * here[column % 2]
        total = 0
        for row in range(count):
            total += table[row, 0] * 1000 + table[row, 1] + table[row, 2]
        native.release(table)
        return total

    assert compiled(filled, "int64(int64)")(5) == sum(5000 * k + 6 * k + 5 * k for k in range(5))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_real_numbers(kind):
    real = np.dtype(kind).type
    bits = np.int32 if kind == "float32" else np.int64

    def computed(x, y):
        z = x * y - real(0.5) / y if x < y else -x + 3
        z = np.sqrt(z * z) if z != y else z
        return z + real(bits(7)) + real(bits(x)) * real(real(1.5).view(bits) != 0)

    made = compiled(computed, f"{kind}({kind}, {kind})")
    for x, y in [(1.5, 2.0), (2.0, 1.5), (-3.25, 0.5), (0.0, 4.0)]:
        assert made(x, y) == computed(real(x), real(y))


def out_of_its_block(address):
    at = fields(address)
    if at[0] > 0:
        part = at[1:]
    at[0] = part[0]


def truth_and_number(a):
    is_large = a > 5
    if a < 0:
        is_large = 2
    return is_large


def real_as_integer(address):
    fields(address)[0] = 1.5


def two_reals(address):
    return elements(address, 0, np.float32)[0] + elements(address, 0, np.float64)[0]


def a_call(a):
    return print(a)


def unpacked(a):
    x, y = a, a, a
    return x + y


def power(a):
    return a**2


SAID = {
    out_of_its_block: "'part'", truth_and_number: "a value of i64 where one of i1 is expected",
    real_as_integer: "a value of double where one of i64 is expected", two_reals: "real numbers of two types",
    a_call: "cannot be called by compiled code", unpacked: "a tuple of as many values is needed",
    power: "Pow",
}  # fmt: skip
"""What is said of functions that cannot be translated."""


@pytest.mark.parametrize("function", SAID)
def test_what_cannot_be_translated_is_said_with_its_line(function):
    with pytest.raises(TranslationError, match=rf"test_translate\.py:\d+: .*{SAID[function]}"):
        written(function, "int64(int64)")
