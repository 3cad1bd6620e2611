"""`xpgrad.testing`: above all that the checker catches wrong rules."""

from __future__ import annotations

import doctest
import functools
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xpgrad
import xpgrad.testing
from backends import Backend
from recurrent_cases import (
    LSTM,
    Case,
    Operator,
    each_operator,
    gradient_reference,
    make_case,
    named_gradients,
    run_reference,
)
from xpgrad.testing import (
    assert_close,
    check_vjp,
    dtype_name,
    gru_reference,
    lstm_reference,
    numerical_jacobian,
    relative_error,
    to_numpy,
)

OUTPUTS = LSTM.outputs

# --- check_vjp on an LSTM gradient with one thing wrong --------------------------------------------------


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case(LSTM, np.random.default_rng(6), T=3, N=2, I=3, H=2, peepholes=True)


def forward_of(case: Case) -> Callable[..., tuple[Any, ...]]:
    def forward(**arguments: Any) -> tuple[Any, ...]:
        outputs = lstm_reference(**arguments, **case.attributes)
        return tuple(getattr(outputs, name) for name in OUTPUTS)

    return forward


def right_rule(case: Case, *cotangents: Any, **arguments: Any) -> dict[str, Any]:
    """The naive backward."""
    given = {n: c for n, c in zip(OUTPUTS, cotangents, strict=True) if c is not None}
    here = Case(LSTM, arguments, case.integers, case.attributes, given)
    outputs = lstm_reference(**arguments, **case.attributes)
    return dict(named_gradients(here, gradient_reference(here, outputs)))


def check(case: Case, change: Callable[[dict[str, Any]], Any] = lambda grads: grads) -> None:
    def rule(*cotangents: Any, **arguments: Any) -> Any:
        return change(right_rule(case, *cotangents, **arguments))

    check_vjp(forward_of(case), rule, case.arguments, operator="lstm", outputs=OUTPUTS)


def changed(name: str, function: Callable[[np.ndarray], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda grads: {**grads, name: function(grads[name])}


def in_place(index: Any, factor: float) -> Callable[[np.ndarray], np.ndarray]:
    def scale(array: np.ndarray) -> np.ndarray:
        result = array.copy()
        result[index] *= factor
        return result

    return scale


def test_the_right_rule_passes(case: Case) -> None:
    check(case)


WRONG = {
    "by 0.1 %": (changed("R", lambda g: 1.001 * g), "R"),
    "at t = 0 only": (changed("X", in_place(0, 0.5)), "X"),
    "zero at t = 0": (changed("X", in_place(0, 0.0)), "X"),
    "in one gate": (changed("W", in_place((0, slice(4, 6)), 1.01)), "W"),
    "in one element": (changed("P", in_place((0, 3), 1.01)), "P"),
    "zero": (changed("initial_c", np.zeros_like), "initial_c"),
    "transposed": (changed("X", lambda g: np.transpose(g, (0, 2, 1)).reshape(g.shape)), "X"),
    "gates swapped": (changed("B", lambda g: np.roll(g, 2, axis=1)), "B"),
    "of the wrong sign": (changed("initial_h", np.negative), "initial_h"),
    "NaN": (changed("R", in_place((0, 0, 0), np.nan)), "R"),
    "two swapped": (lambda g: {**g, "initial_h": g["initial_c"], "initial_c": g["initial_h"]}, "initial_h"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_values_that_are_wrong(wrong: str, case: Case) -> None:
    change, name = WRONG[wrong]
    message = (
        rf"^lstm: the gradient of {name} is wrong at index \([\d, ]+\): \S+ by the rule, "
        r"\S+ by central differences \(difference \S+, allowed \S+; cotangents for H_all, H_t, C_t\)$"
    )
    with pytest.raises(AssertionError, match=message):
        check(case, change)


def test_the_worst_element_is_named(case: Case) -> None:
    def wrong(gradient: np.ndarray) -> np.ndarray:
        gradient = gradient.copy()
        gradient[0, 3, 1] += 0.01
        gradient[0, 5, 0] -= 0.3
        return gradient

    with pytest.raises(AssertionError, match=re.escape("the gradient of R is wrong at index (0, 5, 0): ")):
        check(case, changed("R", wrong))


KIND = {
    "transposed shape": (lambda g: np.swapaxes(g, 1, 2), "has shape (1, 3, 8), expected (1, 8, 3)"),
    "summed": (lambda g: g.sum(axis=0), "has shape (8, 3), expected (1, 8, 3)"),
    "dtype": (lambda g: g.astype(np.float32), "has dtype float32, expected float64"),
    "None": (lambda g: None, "is None, expected an array of shape (1, 8, 3)"),
    "list": (lambda g: g.tolist(), "is a list, expected an array of shape (1, 8, 3)"),
    "scalar": (lambda g: 0.0, "is a float, expected an array of shape (1, 8, 3)"),
}


@pytest.mark.parametrize("wrong", KIND)
def test_results_of_the_wrong_kind(wrong: str, case: Case) -> None:
    change, message = KIND[wrong]
    with pytest.raises(AssertionError, match="^" + re.escape(f"lstm: the gradient of W {message}") + "$"):
        check(case, changed("W", change))


def test_results_of_another_namespace(case: Case) -> None:
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    with pytest.raises(
        AssertionError, match=r"the gradient of W belongs to array_api_strict, expected .*numpy"
    ):
        check(case, changed("W", strict.asarray))


def test_results_on_another_device() -> None:
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    away = strict.Device("device1")

    def rule(dY: Any, X: Any) -> Any:
        return strict.asarray(2 * dY, device=away, copy=True)

    with pytest.raises(
        AssertionError, match=r"^double: the gradient of X is on device .*device1.*, expected"
    ):
        check_vjp(lambda X: 2 * X, rule, {"X": strict.asarray([1.0, 2.0])}, operator="double")


def test_a_missing_gradient(case: Case) -> None:
    def without_bias(grads: dict[str, Any]) -> dict[str, Any]:
        return {name: gradient for name, gradient in grads.items() if name != "B"}

    with pytest.raises(AssertionError, match=r"^lstm: the rule returned no gradient of B$"):
        check(case, without_bias)


def test_the_wrong_number_of_gradients(case: Case) -> None:
    message = r"^lstm: the rule returned 2 gradients, expected 7: X, W, R, B, initial_h, initial_c, P$"
    with pytest.raises(AssertionError, match=message):
        check(case, lambda grads: (grads["X"], grads["W"]))


def test_a_missing_cotangent_taken_for_ones(case: Case) -> None:
    """Right where all cotangents are given."""

    def rule(*cotangents: Any, **arguments: Any) -> Any:
        shapes = [y.shape for y in forward_of(case)(**arguments)]
        filled = [np.ones(s) if c is None else c for c, s in zip(cotangents, shapes, strict=True)]
        return right_rule(case, *filled, **arguments)

    with pytest.raises(AssertionError, match=r"the gradient of X is wrong .*; cotangents for H_all, H_t\)$"):
        check_vjp(forward_of(case), rule, case.arguments, operator="lstm", outputs=OUTPUTS)


def test_a_missing_cotangent_that_drops_others(case: Case) -> None:
    """None for H_all must not silence those of the final states."""

    def rule(*cotangents: Any, **arguments: Any) -> Any:
        if cotangents[0] is None:
            cotangents = (None, None, None)
        return right_rule(case, *cotangents, **arguments)

    with pytest.raises(AssertionError, match=r"; cotangents for H_t, C_t\)$"):
        check_vjp(forward_of(case), rule, case.arguments, operator="lstm", outputs=OUTPUTS)


def test_none_where_a_cotangent_is_left_out(case: Case) -> None:
    """Gradients are arrays; a rule is never asked for any without a cotangent."""

    def rule(*cotangents: Any, **arguments: Any) -> Any:
        assert any(c is not None for c in cotangents)
        grads = right_rule(case, *cotangents, **arguments)
        return dict.fromkeys(grads) if cotangents[0] is None else grads

    with pytest.raises(AssertionError, match=r"^lstm: the gradient of X is None, expected an array"):
        check_vjp(forward_of(case), rule, case.arguments, operator="lstm", outputs=OUTPUTS)


@pytest.mark.parametrize("target", ["an argument", "a cotangent"])
def test_rules_that_write_to_their_input(target: str) -> None:
    def rule(dY: np.ndarray, X: np.ndarray) -> np.ndarray:
        result = 2 * dY
        (X if target == "an argument" else dY)[...] = 0
        return result

    name = "X" if target == "an argument" else "the cotangent of output 0"
    with pytest.raises(AssertionError, match=f"^double: wrote to its input {name} "):
        check_vjp(lambda X: 2 * X, rule, {"X": np.asarray([1.0, 2.0])}, operator="double")


# --- check_vjp on other operators ------------------------------------------------------------------------


def softmax(X: Any) -> Any:
    e = np.exp(X - np.max(X, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def softmax_grad(dY: Any, Y: Any) -> Any:
    return Y * (dY - np.sum(dY * Y, axis=-1, keepdims=True))


def test_an_operator_whose_rule_takes_its_output(rng: np.random.Generator) -> None:
    check_vjp(softmax, lambda dY, X: softmax_grad(dY, softmax(X)), {"X": rng.standard_normal((3, 5))})
    with pytest.raises(AssertionError, match=r"^softmax: the gradient of X is wrong"):
        check_vjp(softmax, lambda dY, X: dY * softmax(X), {"X": rng.standard_normal((3, 5))})


def test_a_gradient_that_is_zero_everywhere() -> None:
    """Differences are never exactly zero: their rounding is within atol."""
    check_vjp(softmax, lambda dY, X: np.zeros_like(dY), {"X": np.linspace(-1, 1, 4).reshape(4, 1)})


def test_operators_are_named_by_their_function() -> None:
    def shifted(X: Any, by: float) -> Any:
        return X + by

    with pytest.raises(AssertionError, match=r"^shifted: "):
        check_vjp(functools.partial(shifted, by=2.0), lambda dY, X: 2 * dY, {"X": np.ones((2, 3))})


def test_the_number_of_outputs() -> None:
    with pytest.raises(AssertionError, match=r"^op: returned 2 outputs, expected 1: \['Y'\]$"):
        check_vjp(lambda X: (X, X), lambda a, b, X: a + b, {"X": np.ones(2)}, operator="op", outputs=["Y"])


def test_cotangents_are_never_ones_and_differ_by_seed() -> None:
    """A rule that ignores its cotangent and returns the column sums passes with ones only."""
    matrix = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])

    def rule(dY: np.ndarray, X: np.ndarray) -> np.ndarray:
        return matrix.sum(axis=0)

    seen = []
    for seed in (0, 1):
        with pytest.raises(AssertionError, match=r"wrong at index"):
            check_vjp(lambda X: matrix @ X, rule, {"X": np.ones(2)}, seed=seed)
        check_vjp(
            lambda X: matrix @ X,
            lambda dY, X: (seen.append(dY), matrix.T @ dY)[1],
            {"X": np.ones(2)},
            seed=seed,
        )
    assert not np.array_equal(seen[0], seen[1])


@each_operator()
def test_on_every_backend(operator: Operator, backend: Backend, rng: np.random.Generator) -> None:
    case = make_case(operator, rng, T=2, N=2, I=1, H=2)
    for dtype in backend.dtypes:
        here = case.on(backend, dtype)

        def forward(**arguments: Any) -> tuple[Any, ...]:
            outputs = operator.forward(**arguments)
            return tuple(getattr(outputs, name) for name in operator.outputs)

        def gradient(*cotangents: Any, here: Case = here, **arguments: Any) -> Any:
            _, pullback = operator.vjp(**arguments)
            return named_gradients(here, pullback(*cotangents))

        check_vjp(forward, gradient, here.arguments, operator=operator.name, outputs=operator.outputs)


def test_empty_arguments() -> None:
    check_vjp(lambda X: np.tanh(X), lambda dY, X: dY, {"X": np.zeros((0, 3))})
    [jacobian] = numerical_jacobian(lambda X: X[:, :2], {"X": np.zeros((0, 3))}, "X")
    assert jacobian.shape == (0, 2, 0, 3)


# --- comparisons -----------------------------------------------------------------------------------------


def test_assert_close_compares_kinds_before_numbers() -> None:
    ones = np.ones((2, 3))
    with pytest.raises(AssertionError, match=r"^y has dtype float32, expected float64$"):
        assert_close(ones.astype(np.float32), ones, label="y")
    with pytest.raises(AssertionError, match=r"^y has shape \(2, 3\), expected \(3, 2\)$"):
        assert_close(ones, ones.T, label="y")
    with pytest.raises(AssertionError, match=r"^y is None, expected an array of shape \(2, 3\)$"):
        assert_close(None, ones, label="y")
    with pytest.raises(AssertionError, match=r"^y has shape \(3,\), expected \(1, 3\)$"):
        assert_close(np.ones(3), np.ones((1, 3)), label="y")
    assert_close(ones.astype(np.float32), ones, like=ones.astype(np.float32))


def test_assert_close_is_relative_to_the_largest_value() -> None:
    desired = np.asarray([1e-3, 100.0])
    assert_close(np.asarray([1e-3 + 0.9e-8, 100.0]), desired)
    with pytest.raises(AssertionError, match=r"^y differs at index \(0,\): .*, expected .* \(difference 2"):
        assert_close(np.asarray([1e-3 + 2e-8, 100.0]), desired, label="y")
    with pytest.raises(AssertionError, match=r"differs at index \(1,\): nan, expected 100\.0"):
        assert_close(np.asarray([1e-3, np.nan]), desired)
    with pytest.raises(AssertionError, match="differs"):
        assert_close(np.asarray([1e-30]), np.zeros(1))
    assert_close(np.asarray([1e-30]), np.zeros(1), atol=1e-29)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_must_coincide(special: float) -> None:
    with_special = np.asarray([1.0, special])
    assert_close(with_special, with_special.copy())
    assert relative_error(with_special, with_special) == 0
    assert relative_error(with_special, np.asarray([1.0, 2.0])) == np.inf
    assert relative_error(np.asarray([1.0, 2.0]), with_special) == np.inf
    assert relative_error(np.asarray([np.inf]), np.asarray([-np.inf])) == np.inf


def test_relative_error() -> None:
    assert relative_error(np.asarray([2.0, 7.0]), np.asarray([2.0, 8.0])) == 0.125
    assert relative_error(np.asarray([0.5]), np.zeros(1)) == 0.5
    assert relative_error(np.zeros((0, 2)), np.zeros((0, 2))) == 0
    assert relative_error(np.asarray([1, 2]), np.asarray([1, 4])) == 0.5
    with pytest.raises(AssertionError, match=r"shape \(2,\), expected \(1, 2\)"):
        relative_error(np.zeros(2), np.zeros((1, 2)))


def test_to_numpy_copies(backend: Backend) -> None:
    for dtype in backend.dtypes:
        array = backend.array(np.asarray([[0.5, -2.0]]), dtype)
        values = to_numpy(array)
        assert values.dtype == np.float64
        assert values.tolist() == [[0.5, -2.0]]
        values[...] = 0
        assert float(array[0, 1]) == -2.0
        assert dtype_name(array.dtype) == dtype
    assert to_numpy(backend.array(np.asarray([1, 2]))).tolist() == [1, 2]


def test_to_numpy_keeps_what_jax_would_cut() -> None:
    """Outside of `enable_x64` JAX makes float32 of what is converted to float64."""
    jax = pytest.importorskip("jax", reason="jax not installed")
    with jax.enable_x64(True):
        array = jax.numpy.asarray([1 / 3])
    assert to_numpy(array).tolist() == [1 / 3]
    half = to_numpy(jax.numpy.asarray([1.5], dtype="bfloat16"))
    assert (half.dtype, half.tolist()) == (np.float64, [1.5])


# --- the references --------------------------------------------------------------------------------------


def test_lstm_reference_by_hand() -> None:
    """Two steps of width 1 with numbers that can be followed on paper: every activation is the identity."""
    one = {"X": np.asarray([[[2.0]], [[3.0]]]), "W": np.asarray([[[1.0], [2.0], [0.5], [-1.0]]])}
    R = np.asarray([[[0.5], [0.0], [1.0], [0.0]]])
    P = np.asarray([[0.1, 0.01, 1.0]])
    y = lstm_reference(**one, R=R, P=P, activations=["Affine"] * 3, initial_c=np.asarray([[[10.0]]]))
    # t = 0: i = 2 + 0.1 * 10 = 3, f = 1 + 1 * 10 = 11, g = -2, c = 11 * 10 - 6 = 104, o = 4 + 0.01 * 104
    assert y.C_all[0, 0, 0, 0] == 104.0
    assert y.iofc[0, 0, 0].tolist() == [3.0, 4 + 1.04, 11.0, -2.0]
    h = 5.04 * 104
    assert y.H_all[0, 0, 0, 0] == pytest.approx(h)
    i, f, g = 3 + 0.5 * h + 10.4, 1.5 + h + 104, -3.0
    c = f * 104 + i * g
    assert y.C_t[0, 0, 0] == pytest.approx(c)
    assert y.H_t[0, 0, 0] == pytest.approx((6 + 0.01 * c) * c)


def test_gru_reference_by_hand() -> None:
    """Two steps of width 1 with numbers that can be followed on paper: every activation is the identity."""
    X, W = np.asarray([[[2.0]], [[3.0]]]), np.asarray([[[1.0], [2.0], [-1.0]]])
    R, B = np.asarray([[[0.5], [0.25], [4.0]]]), np.asarray([[0.0, 0.0, 1.0, 0.5, 1.0, 3.0]])
    more = {"activations": ["Affine"] * 2, "initial_h": np.asarray([[[8.0]]])}
    # t = 0: z = 2 + 4 + 0.5, r = 4 + 2 + 1
    after, before = (gru_reference(X, W, R, B, linear_before_reset=k, **more) for k in (1, 0))
    n = -2 + 1 + 7 * (4 * 8 + 3)
    assert after.zrh[0, 0, 0].tolist() == [6.5, 7.0, n]
    assert after.H_all[0, 0, 0, 0] == -5.5 * n + 6.5 * 8
    n = -2 + 1 + 4 * (7 * 8) + 3
    assert before.zrh[0, 0, 0].tolist() == [6.5, 7.0, n]
    h = -5.5 * n + 6.5 * 8
    assert before.H_all[0, 0, 0, 0] == h
    z, r = 3 + 0.5 * h + 0.5, 6 + 0.25 * h + 1
    assert before.H_t[0, 0, 0] == (1 - z) * (-3 + 1 + 4 * r * h + 3) + z * h


@each_operator()
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_references_keep_the_dtype(operator: Operator, dtype: str, backend: Backend) -> None:
    if dtype not in backend.dtypes:
        return
    case = make_case(operator, np.random.default_rng(0), lengths=[1, 0, 3]).on(backend, dtype)
    for output in operator.forward_reference(**case.arguments, **case.integers):
        assert dtype_name(output.dtype) == dtype


@each_operator()
def test_references_write_to_nothing(operator: Operator, rng: np.random.Generator) -> None:
    case = make_case(operator, rng, lengths=[1, 0, 3], layout=1)
    arrays = [*case.arguments.values(), *case.cotangents.values(), *case.integers.values()]
    before = [array.tobytes() for array in arrays]
    run_reference(case)
    assert [array.tobytes() for array in arrays] == before


@each_operator()
def test_references_refuse_unknown_activations(operator: Operator) -> None:
    names = ["Gelu", "Sigmoid", "Tanh"][: operator.activations]
    case = make_case(operator, np.random.default_rng(0))
    saying = "activation 'gelu' is none of ONNX's eleven(?m:$)"
    with pytest.raises(ValueError, match=f"^{operator.name}_reference: {saying}"):
        operator.forward_reference(**case.arguments, activations=names)
    outputs = operator.forward_reference(**case.arguments)
    saved = {name: getattr(outputs, name) for name in operator.saved}
    with pytest.raises(ValueError, match=f"^{operator.name}_grad_reference: {saying}"):
        operator.gradient_reference(**case.arguments, **saved, activations=names)


@each_operator()
def test_reference_signatures_follow_the_kernels(operator: Operator) -> None:
    """All but resets: what has them is compared with calls of its pieces."""
    from inspect import signature

    kernel, reference = (
        [name for name in signature(f).parameters if name != "reset"]
        for f in (getattr(xpgrad, operator.name), operator.forward_reference)
    )
    assert reference == [*kernel, *(["detach"] if operator is LSTM else [])]
    kernel, reference = (
        [name for name in signature(f).parameters if name != "reset"]
        for f in (getattr(xpgrad, f"{operator.name}_grad"), operator.gradient_reference)
    )
    assert [*reference, "wrt"] == kernel


def test_public_names_are_sorted_and_described() -> None:
    names = xpgrad.testing.__all__
    assert names == sorted(names)
    for name in names:
        text = getattr(xpgrad.testing, name).__doc__
        for part in ("Parameters\n", "Examples\n"):
            assert part in text, f"{name}: no {part.strip()}"


def test_examples_run() -> None:
    modules = [sys.modules[getattr(xpgrad.testing, name).__module__] for name in xpgrad.testing.__all__]
    results = [doctest.testmod(module, optionflags=doctest.ELLIPSIS) for module in dict.fromkeys(modules)]
    assert sum(result.attempted for result in results) > 50
    assert not any(result.failed for result in results)


def test_check_vjp_refuses_what_silently_becomes_float32():
    jnp = pytest.importorskip("jax.numpy", reason="jax not installed")
    x = {"X": jnp.ones((2, 3), dtype="float32")}
    wrong = pytest.raises(TypeError, match="tanh: X became float32 where float64 was asked for")
    with wrong, pytest.warns(UserWarning, match="truncated to dtype float32"):
        check_vjp(jnp.tanh, lambda dY, X: dY * (1 - jnp.tanh(X) ** 2), x, operator="tanh")


def test_check_vjp_refuses_to_check_nothing():
    def nothing(**arguments):
        return ()

    with pytest.raises(ValueError, match="tanh: arguments is empty, expected one or more arrays"):
        check_vjp(np.tanh, nothing, {})
    with pytest.raises(ValueError, match="nothing: returned no outputs, expected one or more"):
        check_vjp(nothing, nothing, {"X": np.ones(2)})
    with pytest.raises(TypeError, match="nothing: lens has dtype int64, expected float64, float32"):
        check_vjp(nothing, nothing, {"X": np.ones(2), "lens": np.ones(2, np.int64)})


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, bool])
def test_differences_of_integers_do_not_wrap_around(dtype):
    low, high = np.zeros(1, dtype), np.asarray([-128 if dtype is np.int8 else 1], dtype)
    assert relative_error(low, high) == relative_error(high, high + low) + 1.0
    with pytest.raises(AssertionError):
        assert_close(low, high, atol=0.5)
