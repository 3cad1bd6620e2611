"""Formulas as instructions: each operator on numbers, NaN among them, against NumPy's."""

import numpy as np
import pytest

from xpgrad.engine import Elementwise, Formula, NumpyEngine, Operand, Span
from xpgrad.engine.compiled import time_loops

pytestmark = pytest.mark.usefixtures("compiled")


def _arithmetic(xp, x, y):
    return (
        x + y, 2 + x, x + 2, x - y, 2 - x, x - 2, x * y, 3 * x, x * 3, x / y, 2 / y, y / 2, -x, +x,
    )  # fmt: skip


def _comparisons(xp, x, y):
    one, zero = xp.zeros_like(x) + 1, xp.zeros_like(x)
    conditions = (
        x < y, x <= y, x > y, x >= y, x == y, x != y, x > 0, x != 0,
        (x < y) & (y > 0), (x < y) | (y > 0), (x < y) ^ (y > 0), ~(x < y),
    )  # fmt: skip
    return tuple(xp.where(condition, one, zero) for condition in conditions)


def _constants(xp, x, y, *, scale, flag, function):
    shift = 1 / scale - 2 * scale  # of constants alone
    if flag:
        x = x * scale
    chosen = xp.where(y > 0, shift, x)
    first = function(xp, chosen) if function is not None else chosen
    return first, xp.where(y > 0, 1.5, -0.5), chosen + xp.tanh(y)


def _halved(xp, x):
    return 0.5 * x


def _branches(xp, x):
    return (x if x > 0 else -x,)


def _swapped(xp, both):
    a, b = both
    return (b, a), a + b


def _same_operand_twice(xp, x, y):
    return (x * y + y,)


def evaluate(function, constants, operands, count, dtype):
    """The results of a formula on rows, by a compiled time loop of one step."""
    engine = NumpyEngine()
    rows, columns = operands[0].shape
    results = [engine.rows(rows, columns, like=operands[0]) for _ in range(count)]
    stage = Elementwise(
        Formula(function, constants), [Operand(x) for x in operands], [Operand(result) for result in results]
    )
    engine.scan([stage], np.asarray([Span(rows)]))
    return results


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("function", "constants", "count"),
    [
        (_arithmetic, {}, 14),
        (_comparisons, {}, 12),
        (_constants, {"scale": 0.3, "flag": True, "function": _halved}, 3),
        (_constants, {"scale": -0.7, "flag": False, "function": None}, 3),
        (_same_operand_twice, {}, 1),
    ],
    ids=["arithmetic", "comparisons", "constants", "constants of another kind", "one operand"],
)
def test_operators_are_numpys(function, constants, count, dtype):
    rng = np.random.default_rng(3)
    special = np.asarray([0.0, -0.0, 1.0, -2.0, np.nan, np.inf, -np.inf, 1e-30])
    x, y = (grid.ravel() for grid in np.meshgrid(special, special))
    x, y = (np.stack([a, rng.standard_normal(a.size), a]).astype(dtype) for a in (x, y))
    with np.errstate(all="ignore"):
        expected = function(np, x, y, **constants)
    found = evaluate(function, constants, [x, y], count, dtype)
    # a product and a sum may be one instruction, with one rounding instead of two
    rtol = 4 * np.finfo(dtype).eps if function in (_same_operand_twice, _constants) else 0
    for number, (actual, desired) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(actual, desired, rtol=rtol, atol=rtol, err_msg=f"result {number}")
        if function is _arithmetic:
            assert (np.signbit(actual) == np.signbit(desired))[~np.isnan(desired)].all(), number


def test_a_formula_that_branches_on_an_operand_says_so():
    with pytest.raises(TypeError, match=r"cannot branch on its operands: use xp\.where"):
        evaluate(_branches, {}, [np.ones((1, 4))], 1, "float64")


def test_results_over_their_operands_and_results_that_are_left_out():
    engine = NumpyEngine()
    x = np.arange(12.0).reshape(2, 6)
    both = engine.rows(2, 6, like=x)
    both[...] = x

    stage = Elementwise(
        Formula(_swapped, {}),
        [Operand(both, 2)],
        [Operand(both, 2), Operand(None)],
    )
    engine.scan([stage], np.asarray([Span(2)]))
    np.testing.assert_array_equal(both, x[:, [3, 4, 5, 0, 1, 2]])


def _weighted(xp, x, y):
    return x * y, x + y


def _centred(xp, x, mean):
    return (x - mean,)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_over_rows_and_operands_of_one_number_a_row(dtype):
    engine, rng = NumpyEngine(), np.random.default_rng(5)
    x, y = (rng.standard_normal((3, 37)).astype(dtype) for _ in range(2))
    means, sums, centred = (engine.rows(3, columns, like=x) for columns in (1, 37, 37))
    stages = [
        Elementwise(
            Formula(_weighted, {}),
            [Operand(x), Operand(y)],
            [Operand(means, of_row=True), Operand(sums)],
        ),
        Elementwise(Formula(_centred, {}), [Operand(x), Operand(means, of_row=True)], [Operand(centred)]),
    ]
    engine.scan(stages, np.asarray([Span(3)]))
    expected = (x * y).mean(axis=1, keepdims=True)
    tolerance = 1e-5 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(means, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(centred, x - expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(sums, x + y)


def test_a_result_in_an_operands_place_is_the_same_vector():
    """As two vectors, said to share no memory, they would be computed wrong, or one element at a time."""
    x, y = (np.ones((2, 6), np.float32) for _ in range(2))
    inputs = [Operand(x, 3, order=(2, 0)), Operand(x, 3, order=(1,)), Operand(x, at="before"), Operand(None)]
    stage = Elementwise(Formula(_swapped), inputs, [Operand(x, 3, order=(0,)), Operand(y), Operand(None)])
    matrices = []
    (made,) = time_loops._made([stage], None, matrices)
    inputs, outputs = made.inputs, made.outputs
    assert [id(matrix) for matrix in matrices] == [id(x), id(x), id(y)]
    assert [[vector and vector.block for vector in blocks] for blocks in inputs] == [
        [2, 0],
        [1],
        [0],
        [None],
    ]
    assert outputs[0] == inputs[0][1] != inputs[2][0]
    assert len({vector.matrix for blocks in inputs[:2] for vector in blocks}) == 1
    assert outputs[2] is None
