"""The engines: each evaluates a formula alike, compiled scalars keep their accuracy, choices are obeyed."""

import functools
import importlib
import itertools
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import xpgrad
from compiled_calls import compiled
from xpgrad import engine
from xpgrad._elementwise import activation_formulas as activations
from xpgrad._elementwise.row_formulas import SOFTMAX_GRAD
from xpgrad.engine import (
    Elementwise,
    Formula,
    NumpyEngine,
    Operand,
    RowFormula,
    Span,
    StandardEngine,
    Step,
    array_loops,
)
from xpgrad.engine.process import compile_message, sharing, team

ENGINES = ["standard", "blocks", "compiled"]


@pytest.fixture
def make_engine(monkeypatch):
    """Give an engine for NumPy arrays by the way in which it evaluates formulas."""

    def make(how):
        if how == "standard":
            return StandardEngine(np)
        if how == "compiled":
            pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
        monkeypatch.setenv("XPGRAD_JIT", "1" if how == "compiled" else "0")
        return NumpyEngine()

    return make


def halve(xp, x, factor):
    return x * factor


def mixed(xp, a, b, row, absent, state, *, scale, twice, bend):
    """Constants of every kind, a helper, a function as a constant, an absent operand."""
    if absent is not None:
        a = a + absent
    total = halve(xp, a + row, 0.5) * scale
    if twice:
        total = total + total
    return (bend(xp, total, 0, 0), state - b), total * state


def mixed_expected(a, b, row, state, scale, twice):
    total = (a + row) * 0.5 * scale * (2 if twice else 1)
    return np.tanh(total), state - b, total * state


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize(("scale", "twice"), [(3, False), (0.25, True)])
def test_formula_over_rows(how, dtype, scale, twice, make_engine):
    evaluator = make_engine(how)
    rng = np.random.default_rng(7)
    a, b, row, state = (rng.normal(size=s).astype(dtype) for s in [(9, 12), (9, 4), (1, 4), (5, 4)])
    a_before, b_before = a.copy(), b.copy()
    formula = Formula(mixed, {"scale": scale, "twice": twice, "bend": activations.tanh})
    first = evaluator.wrap(np.ascontiguousarray(a[:, 4:8]))
    carry = evaluator.carry(state)
    out = evaluator.rows(9, 8, like=a)
    stage = Elementwise(
        formula,
        [
            Operand(first),
            Operand(evaluator.wrap(b), 1, "before"),
            Operand(evaluator.wrap(row), 1, "every"),
            Operand(None),
            Operand(carry, 1, "first"),
        ],
        [Operand(out, 2), Operand(carry, 1, "first")],
    )
    # rows 0 .. 5 of a and out, 3 .. 8 of b, all of the carry
    evaluator.scan([stage], np.asarray([Span(5, 0, 3)]))
    one = mixed_expected(a[:5, 4:8], b[3:8], row, state, scale, twice)
    # rows 5 .. 9 of a and out, 1 .. 5 of b, the first four of the carry
    evaluator.scan([stage], np.asarray([Span(4, 5, 1)]))
    two = mixed_expected(a[5:, 4:8], b[1:5], row, one[2][:4], scale, twice)
    tolerance = {"rtol": 2e-6, "atol": 1e-7} if dtype == "float32" else {"rtol": 1e-14}
    result = evaluator.array(out)
    np.testing.assert_allclose(result[:5], np.concatenate(one[:2], axis=1), **tolerance)
    np.testing.assert_allclose(result[5:], np.concatenate(two[:2], axis=1), **tolerance)
    np.testing.assert_allclose(evaluator.array(carry), np.concatenate([two[2], one[2][4:]]), **tolerance)
    np.testing.assert_array_equal(a, a_before)
    np.testing.assert_array_equal(b, b_before)


@pytest.mark.parametrize("how", ["blocks", "compiled"])
def test_many_rows_are_dealt_to_threads(how, make_engine, monkeypatch):
    evaluator = make_engine(how)
    monkeypatch.setenv("XPGRAD_NUM_THREADS", "3")
    rng = np.random.default_rng(8)
    x = rng.normal(size=(1 + sharing.ARRAY // 40, 41)).astype(np.float32)
    out = evaluator.rows(*x.shape, like=x)
    formula = Formula(_double_plus, {})
    bias = rng.normal(size=(1, 41)).astype(np.float32)
    operands = [Operand(evaluator.wrap(x)), Operand(evaluator.wrap(bias), 1, "every")]
    evaluator.scan([Elementwise(formula, operands, [Operand(out)])], np.asarray([Span(x.shape[0])]))
    np.testing.assert_allclose(out, 2 * x + bias, rtol=1e-6, atol=1e-6)


def _double_plus(xp, x, b):
    return (2 * x + b,)


def _abs(xp, x):
    return (xp.abs(x),)


@pytest.mark.parametrize("name", sorted(activations.ONNX_ACTIVATIONS))
@pytest.mark.parametrize("how", ENGINES)
def test_activation_pullback_is_the_derivative(name, how, make_engine):
    """Central differences of the value, away from kinks, on every engine."""
    evaluator = make_engine(how)
    activation = activations.ONNX_ACTIVATIONS[name]
    alpha, beta = activation.alpha or 0.0, activation.beta or 0.0
    for a, b in {(alpha, beta), (0.7 if activation.alpha else 0.0, -0.2 if activation.beta else 0.0)}:
        rng = np.random.default_rng(3)
        x = rng.normal(size=(3, 50)) * 3
        kinks = np.asarray([0.0, a, -b / a if a else 0.0, (1 - b) / a if a else 0.0])
        x = np.where(np.min(np.abs(x[..., None] - kinks), axis=-1) < 1e-3, 1.5, x)
        d = rng.normal(size=x.shape)
        h = 1e-6
        slope = (activation.value(np, x + h, a, b) - activation.value(np, x - h, a, b)) / (2 * h)
        y = activation.value(np, x, a, b)
        out = evaluator.rows(*x.shape, like=x)
        formula = Formula(_pull, {"pullback": activation.pullback, "alpha": a, "beta": b})
        # by the output alone, as recurrent kernels have it
        operands = [Operand(evaluator.wrap(v)) for v in (d, y, y)]
        evaluator.scan([Elementwise(formula, operands, [Operand(out)])], np.asarray([Span(x.shape[0])]))
        np.testing.assert_allclose(evaluator.array(out), d * slope, rtol=1e-5, atol=1e-8)


def _pull(xp, d, x, y, *, pullback, alpha, beta):
    return (pullback(xp, d, x, y, alpha, beta),)


def test_slopes_at_kinks():
    """The table of the docs: PyTorch's choices."""
    zero, one = np.zeros(1), np.ones(1)

    def slope(name, x, alpha=0.0, beta=0.0):
        activation = activations.ONNX_ACTIVATIONS[name]
        y = activation.value(np, x, alpha, beta)
        return float(activation.pullback(np, one, x, y, alpha, beta)[0])

    assert slope("relu", zero) == 0
    assert slope("leakyrelu", zero, 0.3) == 0.3
    assert slope("elu", zero, 0.3) == 0.3
    assert slope("thresholdedrelu", one, 1.0) == 0
    assert slope("hardsigmoid", -2.5 * one, 0.2, 0.5) == 0
    assert slope("hardsigmoid", 2.5 * one, 0.2, 0.5) == 0
    assert slope("softsign", zero) == 1


def blend(xp, a, b, c, *, share, offset):
    if c is not None:
        a = a + c
    return (share * a + (1 - share) * b + offset,)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementwise(how, dtype, make_engine):
    """Numbers that come with the call, absent operands, one element for all, in place."""
    evaluator = make_engine(how)
    formula = Formula(blend, {"offset": 0.5}, ("share",))
    rng = np.random.default_rng(9)
    a, b = (rng.normal(size=(70, 90)).astype(dtype) for _ in range(2))
    one = np.asarray([[2.0]], dtype=dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == "float32" else {"rtol": 1e-13, "atol": 1e-15}
    for share in (0.25, 0.75):
        expected = share * a + (1 - share) * b + 0.5
        np.testing.assert_allclose(
            evaluator.elementwise(formula, (a, b, None), (share,)), expected, **tolerance
        )
        np.testing.assert_allclose(
            evaluator.elementwise(formula, (a, b, one), (share,)), expected + share * 2, **tolerance
        )
        np.testing.assert_allclose(
            evaluator.elementwise(formula, (a, b, a[:1]), (share,)), expected + share * a[:1], **tolerance
        )
        out = b.copy()
        assert evaluator.elementwise(formula, (a, out, one), (share,), out) is out
        np.testing.assert_allclose(out, expected + share * 2, **tolerance)


def around(values, offset):
    """The values in memory that begins at an offset from a cache line, and the memory on both sides."""
    memory = np.full(values.size + 64, 7, dtype=values.dtype)
    start = offset + -(memory.ctypes.data // memory.itemsize) % 16
    view = memory[start : start + values.size].reshape(values.shape)
    view[...] = values
    return view, (memory[:start], memory[start + values.size :])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_loops_wherever_arrays_begin(dtype, threads, make_engine, monkeypatch, set_threads):
    """Blocks, cache lines and threads may cut at any place: every element is written, and nothing else."""
    evaluator = make_engine("compiled")
    set_threads(threads)
    monkeypatch.setattr(sharing, "ARRAY", 100)
    formula = Formula(blend, {"offset": 0.5, "share": 0.25})
    rng = np.random.default_rng(12)
    sizes = [*range(200), 255, 256, 257, 271, 272, 273, 512, 700, 2049]
    for number, size in enumerate(sizes):
        a, b = (rng.integers(-8, 8, size).astype(dtype) for _ in range(2))  # small numbers: sums are exact
        expected = 0.25 * a + 0.75 * b + 0.5
        for offset in range(17) if size > 199 or number % 10 == 0 else (number % 17,):
            x, _ = around(a, (5 * offset) % 16)
            y, _ = around(b, (3 * offset) % 16)
            new = around(np.full(size, 99, dtype), offset)
            for out, margins in (new, around(b, offset)):  # the second is an operand as well
                evaluator.elementwise(formula, (x, y if out is new[0] else out, None), (), out)
                np.testing.assert_array_equal(out, expected)
                assert all(np.all(margin == 7) for margin in margins)
            np.testing.assert_array_equal(evaluator.elementwise(formula, (x, y, None)), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 3, 16, 17, 255, 256, 257, 530, 1100])
def test_compiled_rows_wherever_they_begin(dtype, width, make_engine, monkeypatch, set_threads):
    """The same for rows: the largest and the sum are of all elements, wherever blocks are cut."""
    evaluator = make_engine("compiled")
    set_threads(2)
    monkeypatch.setattr(sharing, "ARRAY", 100)
    rng = np.random.default_rng(13)
    x = rng.integers(-9, 10, (5, width, 1)).astype(dtype)
    row, w, number = np.zeros((5, 1, 1), dtype), np.ones((1, width, 1), dtype), np.zeros(width, np.int32)
    for offset in (0, 1, 7, 15):
        place = rng.integers(0, width, 5)
        x[range(5), place] = 20 + offset
        given, margins = around(x, offset)
        total = np.sum((x - 20 - offset) ** 2, axis=1, keepdims=True)
        out, peak, spread = evaluator.over_rows(ROWS, (given, row, w, number), (1.0,), given)
        assert out is given
        np.testing.assert_array_equal(peak, np.full((5, 1, 1), 20 + offset, dtype))
        np.testing.assert_array_equal(spread, total)
        with np.errstate(invalid="ignore", divide="ignore"):
            np.testing.assert_allclose(out, (x - peak) / total, rtol=1e-6)
        assert all(np.all(margin == 7) for margin in margins)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_order_of_numbers(dtype):
    """Integers in the order of numbers, and back."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    scalar = importlib.import_module(f"xpgrad.engine.compiled.scalar_{dtype}")
    values = np.asarray([-np.inf, -1e30, -2.5, -1.0, -1e-30, 0.0, 1e-30, 1.0, 1.5, 2.5, 1e30, np.inf], dtype)
    values = np.unique([values, np.nextafter(values, values.dtype.type(0))])
    integer = "int32" if dtype == "float32" else "int64"
    to_ordered = compiled(scalar.to_ordered, f"{integer}({dtype})")
    from_ordered = compiled(scalar.from_ordered, f"{dtype}({integer})")
    integers = [to_ordered(value) for value in values]
    assert all(a < b for a, b in itertools.pairwise([scalar.LOWEST, *integers]))
    assert [from_ordered(integer) for integer in integers] == [*values]


def centered(xp, x, peak):
    return x - peak, (x - peak) * (x - peak)


def peak_of(xp, x, w):
    return (x * w,)


def spread_of(xp, total, *, scale):
    return (scale * total,)


def scaled(xp, d, spread, row, number):
    return (xp.where(number == 2, d, d / spread + row),)


ROWS = RowFormula(
    each=("x",),
    rows=("row",),
    columns=("w", "number"),
    parameters=("scale",),
    steps=(
        Step(peak_of, {"peak": "max"}),
        Step(centered, {"d": "each", "total": "sum"}),
        Step(spread_of, {"spread": "row"}),
        Step(scaled, {"y": "each"}),
    ),
    outputs=("y", "peak", "spread"),
)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(7, 301, 1), (3, 5, 40), (2, 1, 3), (1, 40_000, 1), (0, 3, 2)], ids=str)
def test_row_formula(how, dtype, shape, make_engine):
    """Every kind of step, operand and output, along a middle axis, in place where that is asked for."""
    evaluator = make_engine(how)
    rng = np.random.default_rng(10)
    A, n, B = shape
    x = rng.normal(size=shape).astype(dtype)
    row, w = rng.normal(size=(A, 1, B)).astype(dtype), rng.uniform(1, 2, (1, n, 1)).astype(dtype)
    number = np.arange(n, dtype=np.int32).reshape(1, n, 1)
    peak = np.max(x * w, axis=1, keepdims=True, initial=-np.inf)
    d = x.astype(np.float64) - peak
    spread = 3 * np.sum(d * d, axis=1, keepdims=True)
    expected = np.where(number == 2, d, d / spread + row), peak, spread
    rtol = 1e-5 if dtype == "float32" else 1e-12
    for out in (None, x.copy(), np.empty_like(x), np.empty_like(x.T).T):
        operands = (x if out is None else out if np.array_equal(out, x) else x, row, w, number)
        results = evaluator.over_rows(ROWS, operands, (3.0,), out)
        assert out is None or results[0] is out
        for result, desired in zip(results, expected, strict=True):
            assert result.dtype == dtype
            np.testing.assert_allclose(result, desired, rtol=rtol, atol=1e-6 if dtype == "float32" else 0)


LAYOUTS = {
    "slices": lambda whole: whole[1:-1, 2:-1, 3:-2],
    "turned": lambda whole: whole[::-1, ::-2, 5:9],
    "every other": lambda whole: whole[:, :, ::2],
    "repeated by neighbours": lambda whole: np.broadcast_to(whole[:, :, 1:2], whole.shape),
    "repeated by rows": lambda whole: np.broadcast_to(whole[:, 1:2], whole.shape),
    "repeated by items": lambda whole: np.broadcast_to(whole[1:2], whole.shape),
    "one number": lambda whole: np.broadcast_to(whole[:1, :1, :1], whole.shape),
    "a column, repeated": lambda whole: np.broadcast_to(whole[:1, :, :1], whole.shape),
}


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("neighbours", [11, 3000])
def test_row_formula_of_rows_anywhere(how, dtype, layout, neighbours, make_engine):
    """Neither slices nor repeated elements change the numbers, whichever of two operands they are."""
    evaluator = make_engine(how)
    rng = np.random.default_rng(11)
    d = LAYOUTS[layout](rng.normal(size=(5, 6, neighbours)).astype(dtype))
    y = rng.uniform(size=d.shape).astype(dtype)
    rtol, atol = (1e-5, 1e-6) if dtype == "float32" else (1e-12, 1e-14)
    for operands in ((d, y), (y, d)):
        before = [operand.copy() for operand in operands]
        (result,) = evaluator.over_rows(SOFTMAX_GRAD, operands)
        products = [operand.astype(np.float64) for operand in operands]
        total = (products[0] * products[1]).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(result, products[1] * (products[0] - total), rtol=rtol, atol=atol)
        for operand, same in zip(operands, before, strict=True):
            np.testing.assert_array_equal(operand, same)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("layout", ["slices", "turned", "repeated by neighbours", "one number"])
def test_rows_side_by_side_need_no_copies(layout, monkeypatch):
    def fails(*arguments):
        raise AssertionError("rows were copied")

    monkeypatch.setattr(array_loops, "_row_blocks", fails)
    d = LAYOUTS[layout](np.random.default_rng(11).normal(size=(5, 6, 11)))
    xpgrad.softmax_grad(d, np.ones_like(d), axis=1)


def test_what_a_row_formula_keeps_in_place():
    """The logits may be replaced by what they were for, not what a later step reads."""
    assert ROWS.replaceable == {"x"}
    assert ROWS.each_output == "y"


@pytest.mark.usefixtures("compiled")
def test_small_calls_take_the_short_way(monkeypatch):
    """Checked by what they pass: nothing of the general way."""
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    images = x.reshape(8, 5, 25)
    expected = [xpgrad.silu_grad(x, x), *(xpgrad.softmax_grad(images, images, axis=axis) for axis in (1, -1))]
    for name in ("elementwise", "over_rows"):
        monkeypatch.setattr(array_loops, name, None)
    np.testing.assert_array_equal(xpgrad.silu_grad(x, x), expected[0])
    for axis, right in zip((1, -1), expected[1:], strict=True):
        np.testing.assert_array_equal(xpgrad.softmax_grad(images, images, axis=axis), right)


@pytest.mark.usefixtures("compiled")
def test_a_leaf_without_a_graph_takes_the_short_way(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.linspace(-1, 1, 1000).reshape(8, 5, 25).requires_grad_()
    assert xpgrad.softmax(x, axis=1).requires_grad
    monkeypatch.setattr(array_loops, "elementwise", None)
    monkeypatch.setattr(array_loops, "over_rows", None)
    with torch.no_grad():
        torch.testing.assert_close(xpgrad.relu(x), x.relu())
        torch.testing.assert_close(xpgrad.softmax(x, axis=1), x.softmax(1))


@pytest.mark.usefixtures("compiled")
def test_numbers_do_not_compile_again(tmp_path):
    """One file serves every alpha, and read-only arrays as well."""
    output = _run(
        """
        import numpy as np, xpgrad, pathlib, os
        x = np.ones(5)
        frozen = x.copy()
        frozen.flags.writeable = False
        for alpha in (0.1, 0.2, 0.3):
            for array in (x, frozen, x[::-1]):
                assert np.allclose(xpgrad.elu_grad(array, array, alpha=alpha), 1)
        print(len(list(pathlib.Path(os.environ["XPGRAD_CACHE_DIR"]).rglob("elu*.o"))))
        """,
        XPGRAD_CACHE_DIR=str(tmp_path),
    )
    assert output == "1"


SELECTIONS = ("masks", "bounds", "signs", "zeros", "operand", "number", "products")


def selections(xp, x, y, z, *, number, bound):
    """Selections of many forms, and products."""
    zero, kind = xp.zeros_like(x), SELECTIONS[int(number)]
    if kind == "masks":
        return (
            xp.where(x <= y, zero, z) + xp.where(x > y, z, zero) + xp.where((x < y) | (y == 1), y, z)
            + xp.where((x < bound) & (x >= y), xp.zeros_like(x) + 1, y)
        ,)  # fmt: skip
    if kind == "bounds":
        low = xp.where(x < bound, zero + bound, x)
        low = low + xp.where(x <= bound, zero + bound, x)
        return (low * y + xp.where(x > bound, zero + bound, x) + xp.where(x >= bound, zero + bound, x),)
    if kind == "signs":
        return (xp.where(x < 0, x, -x) + 2 * xp.where(x < 0, -x, x) - xp.where(y < 0, x, -x),)
    if kind == "zeros":
        return (xp.where(x <= y, -zero, z),)
    if kind == "operand":
        return (y,)
    if kind == "number":
        return (zero + bound,)
    return (xp.abs(xp.tanh(x) * (y - bound)) / (1 + x * x) - (bound - y) * (x * x) - x / z,)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", SELECTIONS)
@pytest.mark.parametrize("how", ["blocks", "compiled"])
def test_selections_in_blocks(how, kind, dtype, make_engine, monkeypatch):
    """As the formula itself on whole arrays: NaN of both signs, infinities, zeros; any size, in place."""
    evaluator = make_engine(how)
    for name in ("_NUMPY_BLOCK", "_LEAST_COPIED", "_MOST_COPIED", "_ROWS_ELEMENTS"):
        monkeypatch.setattr(array_loops, name, 300)
    values = np.asarray([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, -np.nan, 0.5, 3.0], dtype)
    x, y, z = (axis.ravel() for axis in np.meshgrid(values, values, values))
    one = np.asarray([-2.0], dtype)
    tolerance = {"rtol": 2e-6, "atol": 2e-6} if dtype == "float32" else {"rtol": 1e-14, "atol": 1e-14}
    for bound in (0.0, 0.5, -1.5):
        formula = Formula(selections, {"number": SELECTIONS.index(kind)}, ("bound",))
        for size, last, position in itertools.product((1000, 10, 1, 0), (z, one), (None, 0, 1)):
            last = last[:size] if last is z else last
            with np.errstate(all="ignore"):
                (expected,) = formula(np, x[:size], y[:size], last, bound=bound)
            every_other = np.repeat(x[:size], 2)[::2]
            operands = [x[:size].copy() if position == 0 else every_other, y[:size].copy(), last]
            out = None if position is None else operands[position]
            result = evaluator.elementwise(formula, operands, (bound,), out)
            np.testing.assert_allclose(result, np.broadcast_to(expected, (size,)), **tolerance)
            if kind == "zeros":
                np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


class TestChoice:
    """use_engine, and what is chosen without it."""

    X = np.ones((2, 1, 3))

    def chosen(self, array=None):
        array = self.X if array is None else array
        import array_api_compat

        return engine.choose(array_api_compat.array_namespace(array), [array], "test").name

    def test_automatic(self):
        assert self.chosen() == "numpy"

    def test_forced_within_a_block(self):
        with xpgrad.use_engine("standard"):
            assert self.chosen() == "standard"
            with xpgrad.use_engine(None):
                assert self.chosen() == "numpy"
            assert self.chosen() == "standard"
        assert self.chosen() == "numpy"

    def test_forced_from_now_on(self):
        xpgrad.use_engine("standard")
        try:
            assert self.chosen() == "standard"
        finally:
            xpgrad.use_engine(None)
        assert self.chosen() == "numpy"

    def test_unknown_name(self):
        with pytest.raises(
            ValueError, match=r"use_engine: name is 'fast', expected None or one of \[.*'numpy'"
        ):
            xpgrad.use_engine("fast")

    def test_torch(self):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        tensor = torch.ones(2, 1, 3)
        assert self.chosen(tensor) == "torch"
        assert self.chosen(tensor.requires_grad_()) == "standard"
        with torch.no_grad():
            assert self.chosen(tensor) == "torch"
        with (
            xpgrad.use_engine("numpy"),
            pytest.raises(TypeError, match="test: the engine 'numpy' is forced by use_engine, and does not"),
        ):
            self.chosen(tensor)

    def test_other_namespaces_go_through_the_standard(self):
        strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
        assert self.chosen(strict.ones((2, 1, 3))) == "standard"

    def test_described(self):
        described = engine.describe_engines()
        assert {"standard", "numpy"} <= set(described)
        assert all("\n" not in line for line in described.values())


def _run(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=os.environ | environment, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


def test_core_imports_no_framework():
    """The library itself comes with array-api-compat and NumPy alone, and imports nothing else."""
    output = _run(
        """
        import sys
        import xpgrad, numpy as np
        rng = np.random.default_rng(0)
        X, W, R = (rng.normal(size=s) for s in [(3, 2, 3), (1, 16, 3), (1, 16, 4)])
        out, pullback = xpgrad.vjp(xpgrad.lstm, X, W, R)
        pullback(out.H_all)
        print(sorted({"torch", "jax", "llvmlite", "matplotlib", "rich", "scipy"} & set(sys.modules)))
        """,
        XPGRAD_JIT="0",
    )
    assert output == "[]"


@pytest.mark.usefixtures("compiled")
def test_compiled_formulas_are_kept(tmp_path):
    """A second process finds what the first one compiled, and two formulas do not share a file."""
    code = """
        import numpy as np, xpgrad
        X = np.random.default_rng(0).normal(size=9)
        print(repr(xpgrad.gelu(X, approximate={approximate!r}).sum()))
        """
    results = {}
    for approximate, attempt in itertools.product(("none", "tanh"), range(2)):
        text = code.format(approximate=approximate)
        results[approximate, attempt] = _run(text, XPGRAD_CACHE_DIR=str(tmp_path))
    assert results["none", 0] == results["none", 1]
    assert results["tanh", 0] == results["tanh", 1]
    assert results["none", 0] != results["tanh", 0]
    assert len(list(tmp_path.rglob("*gelu*_float64_*.o"))) == 2


def test_unwritable_cache_folder(tmp_path):
    """Where nothing can be kept, formulas are compiled for the process alone, and a warning says so once."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    output = _run(
        """
        import numpy as np, warnings, xpgrad
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            print(xpgrad.relu(-np.ones((1, 2))).shape, xpgrad.elu(-np.ones((1, 2))).shape)
        print(*(one.message for one in said), sep="\\n")
        """,
        XPGRAD_CACHE_DIR=str(blocked / "cache"),
        XPGRAD_JIT="1",
    )
    shapes, said = output.splitlines()
    assert shapes == "(1, 2) (1, 2)"
    assert f"cannot be kept in {blocked / 'cache'} (FileExistsError: File exists)" in said


@pytest.mark.parametrize("jit", ["1", "0"])
@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((1, 32), (32,)), ((1, 31), (31,)), ((2, 64), (64,)), ((1, 1, 8, 8), (8, 8)),
        ((1, 140000), (140000,)),
        ((0, 64), (64,)), ((3, 0), (0,)), ((3, 1, 40), (1, 40)), ((1, 40), (1, 1)), ((1, 1), (1,)),
        ((4, 40), ()),
    ],
)  # fmt: skip
def test_operands_that_broadcast_around_axes_of_size_1(shape, other, jit, monkeypatch, set_threads):
    """Such an array is still contiguous: a loop over elements was called like one over rows."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    set_threads(2)
    rng = np.random.default_rng(0)
    X, t, dY = (rng.uniform(size=shape) - 0.5 for _ in range(3))
    weight = rng.uniform(size=other)
    loss = functools.partial(xpgrad.binary_cross_entropy_with_logits_grad, dY, X, t, reduction="none")
    calls = [
        lambda: [xpgrad.prelu(X, weight), *xpgrad.prelu_grad(dY, X, weight)],
        lambda: [xpgrad.binary_cross_entropy_with_logits(X, t, weight=weight, pos_weight=weight)],
        lambda: [loss(pos_weight=weight), loss(weight=weight)],
    ]
    for call in calls:
        with xpgrad.use_engine("standard"):
            expected = call()
        for a, b in zip(call(), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("jit", "shape", "step"),
    [("0", (3, 63, 975), 1), ("0", (91, 41, 48), 1), ("1", (7, 1000, 400), 2), ("1", (3, 500, 250), 2)],
)
def test_rows_whose_first_block_is_small(jit, shape, step, monkeypatch, set_threads):
    """A thread's share may begin with the rest of an axis, and go on with a whole block."""
    monkeypatch.setenv("XPGRAD_JIT", jit)
    set_threads(2)
    X = np.random.default_rng(0).normal(size=shape)[:, :, ::step]
    for function in (xpgrad.softmax, xpgrad.log_softmax):
        with xpgrad.use_engine("standard"):
            expected = function(X, axis=1)
        np.testing.assert_allclose(function(X, axis=1), expected, rtol=1e-12, atol=1e-12)


def test_threads_that_the_system_does_not_start(monkeypatch):
    """As under a limit on processes: the caller and the threads that started do the work; none is lost."""
    monkeypatch.setenv("XPGRAD_NUM_THREADS", "5")
    monkeypatch.setattr(team, "_workers", team._Workers())
    real, started, limits = team._thread.start_new_thread, [], []

    def limited(*arguments):
        if len(started) == limits[-1]:
            raise RuntimeError("can't start new thread")
        started.append(real(*arguments))

    monkeypatch.setattr(team._thread, "start_new_thread", limited)
    for limit, expected in ((0, 0), (2, 2), (2, 2), (9, 4)):
        limits.append(limit)
        assert team.PoolTeam().map(lambda number: number + 1, range(9)) == [*range(1, 10)]
        assert len(started) == expected
    assert team._workers._todo.qsize() <= 4 * 3


def test_the_message_about_compiling_needs_no_thread(monkeypatch):
    def refused(timer):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(compile_message, "_someone_is_looking", lambda: True)
    monkeypatch.setattr(threading.Timer, "start", refused)
    with compile_message._CompileMessage()():
        pass


def test_threads_that_are_busy_hold_nothing_up(monkeypatch):
    """The caller does what no thread of the pool has begun."""
    monkeypatch.setenv("XPGRAD_NUM_THREADS", "2")
    free = threading.Event()
    ended = []
    team._workers.put(lambda: ended.append(free.wait(60)), len(team._workers._started) or 1)
    try:
        assert team.PoolTeam().map(lambda number: number + 1, range(5)) == [1, 2, 3, 4, 5]
        assert not ended
    finally:
        free.set()
