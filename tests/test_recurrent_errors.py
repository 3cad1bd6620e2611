"""Bad input of each kind: the message names operator, argument, rule and both values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import BACKENDS
from recurrent_cases import (
    GRU,
    LSTM,
    OPERATORS,
    RNN,
    Case,
    Operator,
    each_operator,
    make_case,
    run_forward,
    run_gradient,
)

T, N, I, H = 5, 3, 2, 4


def case_of(operator: Operator) -> Case:
    more = {"peepholes": True} if operator is LSTM else {}
    return make_case(operator, np.random.default_rng(0), lengths=[5, 0, 3], **more)


@pytest.fixture
def case() -> Case:
    return case_of(LSTM)


def other(**arguments: Any) -> Callable[[Case], Case]:
    """The problem with other arguments."""
    return lambda case: replace(case, arguments={**case.arguments, **arguments})


def lengths(*values: Any, dtype: str = "int64") -> Callable[[Case], Case]:
    return lambda case: replace(case, integers={"sequence_lens": np.asarray(values, dtype=dtype)})


def attributes(**values: Any) -> Callable[[Case], Case]:
    return lambda case: replace(case, attributes=values)


ACTIVATIONS = (
    "Affine Elu HardSigmoid LeakyRelu Relu ScaledTanh Sigmoid Softplus Softsign Tanh ThresholdedRelu"
)

Bad = dict[str, tuple[Callable[[Case], Case], type[Exception], str]]


def bad_shapes(gates: int) -> Bad:
    G, wrong = "H" if gates == 1 else f"{gates}H", (gates - 1) * H
    rows = gates * H
    return {
        "X rank": (
            other(X=np.zeros((T, I))),
            ValueError,
            "X has 2 dimensions with shape (5, 2), expected 3, (T, N, I)",
        ),
        "W rank": (
            other(W=np.zeros((rows, 2))),
            ValueError,
            f"W has 2 dimensions with shape ({rows}, 2), expected 3, (D, {G}, I)",
        ),
        "R rank": (
            other(R=np.zeros(4)),
            ValueError,
            f"R has 1 dimensions with shape (4,), expected 3, (D, {G}, H)",
        ),
        "W input size": (
            other(W=np.zeros((1, rows, 3))),
            ValueError,
            f"W has shape (1, {rows}, 3), expected (D, {G}, I) = (1, {rows}, 2)",
        ),
        "W gates": (
            other(W=np.zeros((1, wrong, 2))),
            ValueError,
            f"W has shape (1, {wrong}, 2), expected (D, {G}, I) = (1, {rows}, 2)",
        ),
        "R gates": (
            other(R=np.zeros((1, wrong, 4))),
            ValueError,
            f"R has shape (1, {wrong}, 4), expected (D, {G}, H) = (1, {rows}, 4)",
        ),
        "R directions": (
            other(R=np.zeros((2, rows, 4))),
            ValueError,
            f"R has shape (2, {rows}, 4), expected (D, {G}, H) = (1, {rows}, 4)",
        ),
        "B": (
            other(B=np.zeros((1, rows))),
            ValueError,
            f"B has shape (1, {rows}), expected (D, {2 * gates}H) = (1, {2 * rows})",
        ),
        "initial_h": (
            other(initial_h=np.zeros((3, 4))),
            ValueError,
            "initial_h has shape (3, 4), expected (D, N, H) = (1, 3, 4)",
        ),
        "D for two directions": (
            attributes(direction="bidirectional"),
            ValueError,
            f"W has shape (1, {rows}, 2), expected (D, {G}, I) = (2, {rows}, 2)",
        ),
        "mixed dtypes": (
            other(R=np.zeros((1, rows, 4), dtype=np.float32)),
            TypeError,
            "R has dtype float32, expected float64, the dtype of X",
        ),
    }


BAD: Bad = {
    "number of lengths": (
        lengths(1, 2),
        ValueError,
        "sequence_lens has shape (2,), expected (N) = (3,)",
    ),
    "negative length": (lengths(1, -1, 2), ValueError, "sequence_lens[1] is -1, expected 0 to T = 5"),
    "long length": (lengths(1, 2, 6), ValueError, "sequence_lens[2] is 6, expected 0 to T = 5"),
    "lengths of floats": (
        lengths(1, 2, 3, dtype="float64"),
        TypeError,
        "sequence_lens has dtype float64, expected an integer dtype",
    ),
    "lengths of truth values": (
        lambda case: replace(case, integers={"sequence_lens": [1, True, 3]}),
        TypeError,
        "sequence_lens[1] is True of type bool, expected an integer",
    ),
    "a list of floats as lengths": (
        lambda case: replace(case, integers={"sequence_lens": [1, 2.0, 3]}),
        TypeError,
        "sequence_lens[1] is 2.0 of type float, expected an integer",
    ),
    "number of lengths in a list": (
        lambda case: replace(case, integers={"sequence_lens": [1, 2]}),
        ValueError,
        "sequence_lens has length 2, expected N = 3",
    ),
    "lengths as one number": (
        lambda case: replace(case, integers={"sequence_lens": 3}),
        TypeError,
        "sequence_lens is a int, expected integers in a sequence or an array",
    ),
    "lengths in a masked array": (
        lambda case: replace(case, integers={"sequence_lens": np.ma.array([1, 2, 3])}),
        TypeError,
        "sequence_lens is a MaskedArray, whose mask would have no effect, expected a plain array: "
        "sequence_lens.filled(...) gives one",
    ),
    "numbers of an activation as text": (
        attributes(activation_alpha="text"),
        TypeError,
        "activation_alpha is 'text', expected a list of numbers",
    ),
    "numbers of an activation as bytes": (
        attributes(activation_beta=b"ab"),
        TypeError,
        "activation_beta is b'ab', expected a list of numbers",
    ),
    "list": (other(W=[[[1.0]]]), TypeError, "W is a list, expected an array"),
    "no X": (other(X=None), TypeError, "X is None, expected an array"),
    "no R": (other(R=None), TypeError, "R is None, expected an array"),
    "whole numbers": (
        other(X=np.zeros((T, N, I), dtype=np.int64)),
        TypeError,
        "X has dtype int64, expected one of float16, float32, float64",
    ),
    "direction": (
        attributes(direction="backward"),
        ValueError,
        "direction is 'backward', expected one of 'forward', 'reverse', 'bidirectional'",
    ),
    "direction's case": (
        attributes(direction="Forward"),
        ValueError,
        "direction is 'Forward', expected one of 'forward', 'reverse', 'bidirectional'",
    ),
    "layout": (attributes(layout=2), ValueError, "layout is 2, expected one of 0, 1"),
    "clip of zero": (attributes(clip=0.0), ValueError, "clip is 0.0, expected None or a number > 0"),
    "negative clip": (attributes(clip=-1), ValueError, "clip is -1.0, expected None or a number > 0"),
    "clip of NaN": (
        attributes(clip=float("nan")),
        ValueError,
        "clip is nan, expected None or a number > 0",
    ),
    "clip's type": (
        attributes(clip="1"),
        TypeError,
        "clip is '1' of type str, expected a number",
    ),
    "activations as one string": (
        attributes(activations="Tanh"),
        TypeError,
        "activations is 'Tanh', expected a list of names",
    ),
    "an alpha for the defaults": (
        attributes(activation_alpha=[0.5]),
        ValueError,
        "activation_alpha has 1 values, expected at most 0, one for each activation that takes it",
    ),
}


def bad_activations(places: int) -> Bad:
    few, elu = ["Sigmoid", "Tanh", "Tanh"][: places - 1], ["Elu", "Sigmoid", "Tanh"][:places]
    return {
        "too few activations": (
            attributes(activations=few),
            ValueError,
            f"activations has {places - 1} names, expected {places} for each of 1 directions = {places}",
        ),
        "too many activations": (
            attributes(activations=["Sigmoid"] * 2 * places),
            ValueError,
            f"activations has {2 * places} names, expected {places} for each of 1 directions = {places}",
        ),
        "unknown activation": (
            attributes(activations=["Gelu", "Sigmoid", "Tanh"][:places]),
            ValueError,
            f"activations has 'Gelu', expected one of {', '.join(ACTIVATIONS.split())}",
        ),
        "too many alphas": (
            attributes(activations=elu, activation_alpha=[1.0, 2.0]),
            ValueError,
            "activation_alpha has 2 values, expected at most 1, one for each activation that takes it",
        ),
        "a beta that nothing takes": (
            attributes(activations=elu, activation_beta=[0.5]),
            ValueError,
            "activation_beta has 1 values, expected at most 0, one for each activation that takes it",
        ),
        "alpha's type": (
            attributes(activations=["Elu"] * places, activation_alpha=[0.5, "1"]),
            TypeError,
            "activation_alpha is '1' of type str, expected a number",
        ),
    }


ONLY: dict[Operator, Bad] = {
    LSTM: {
        "P": (other(P=np.zeros((1, 16))), ValueError, "P has shape (1, 16), expected (D, 3H) = (1, 12)"),
        "initial_c": (
            other(initial_c=np.zeros((1, 1, 4))),
            ValueError,
            "initial_c has shape (1, 1, 4), expected (D, N, H) = (1, 3, 4)",
        ),
        "input_forget": (
            attributes(input_forget="no"),
            ValueError,
            "input_forget is 'no', expected one of False, True, 0, 1",
        ),
    },
    GRU: {
        "linear_before_reset": (
            attributes(linear_before_reset=2),
            ValueError,
            "linear_before_reset is 2, expected one of 0, 1, False, True",
        ),
        "linear_before_reset's type": (
            attributes(linear_before_reset="after"),
            ValueError,
            "linear_before_reset is 'after', expected one of 0, 1, False, True",
        ),
    },
    RNN: {},
}


def each_kind() -> Any:
    """A test for each kind of bad input to every operator."""
    return pytest.mark.parametrize(
        ("operator", "bad"),
        [
            pytest.param(operator, bad, id=f"{operator.name}-{kind}")
            for operator in OPERATORS
            for kind, bad in {
                **bad_shapes(operator.gates),
                **BAD,
                **bad_activations(operator.activations),
                **ONLY[operator],
            }.items()
        ],
    )


@each_kind()
def test_forward(operator: Operator, bad: Any) -> None:
    change, error, message = bad
    with pytest.raises(error, match="^" + re.escape(f"{operator.name}: {message}") + "(?m:$)"):
        run_forward(change(case_of(operator)))


@each_kind()
def test_gradient(operator: Operator, bad: Any) -> None:
    case = case_of(operator)
    outputs = run_forward(case)
    change, error, message = bad
    with pytest.raises(error, match="^" + re.escape(f"{operator.name}_grad: {message}") + "(?m:$)"):
        run_gradient(change(case), outputs)


def test_layout_is_part_of_the_rule(case: Case) -> None:
    with pytest.raises(
        ValueError, match=r"^lstm: X has 1 dimensions with shape \(5,\), expected 3, \(N, T, I\)(?m:$)"
    ):
        run_forward(replace(case, arguments={**case.arguments, "X": np.zeros(5)}, attributes={"layout": 1}))


BadGradient = dict[str, tuple[dict[str, Any], type[Exception], str]]

GRADIENT_ONLY: BadGradient = {
    "saved H_all": (
        {"H_all": np.zeros((5, 3, 4))},
        ValueError,
        "H_all has shape (5, 3, 4), expected (T, D, N, H) = (5, 1, 3, 4)",
    ),
    "cotangent of H_all": (
        {"grad_H_all": np.zeros((5, 1, 3, 5))},
        ValueError,
        "grad_H_all has shape (5, 1, 3, 5), expected (T, D, N, H) = (5, 1, 3, 4)",
    ),
    "cotangent of H_t": (
        {"grad_H_t": np.zeros((3, 4))},
        ValueError,
        "grad_H_t has shape (3, 4), expected (D, N, H) = (1, 3, 4)",
    ),
    "cotangent's type": ({"grad_H_t": 0.0}, TypeError, "grad_H_t is a float, expected an array"),
    "saved array's dtype": (
        {"H_all": np.zeros((5, 1, 3, 4), dtype=np.float32)},
        TypeError,
        "H_all has dtype float32, expected float64, the dtype of X",
    ),
    "no H_all": ({"H_all": None}, TypeError, "H_all is None, expected an array"),
    "per_sample": ({"per_sample": 2}, ValueError, "per_sample is 2, expected one of False, True, 'norm'"),
}


GRADIENT_OF_ONE: dict[Operator, BadGradient] = {
    LSTM: {
        "saved C_all": (
            {"C_all": np.zeros((4, 1, 3, 4))},
            ValueError,
            "C_all has shape (4, 1, 3, 4), expected (T, D, N, H) = (5, 1, 3, 4)",
        ),
        "saved iofc": (
            {"iofc": np.zeros((5, 1, 3, 4))},
            ValueError,
            "iofc has shape (5, 1, 3, 4), expected (T, D, N, 4H) = (5, 1, 3, 16)",
        ),
        "no iofc": ({"iofc": None}, TypeError, "iofc is None, expected an array"),
        "cotangent of C_t": (
            {"grad_C_t": np.zeros((1, 4, 3))},
            ValueError,
            "grad_C_t has shape (1, 4, 3), expected (D, N, H) = (1, 3, 4)",
        ),
        "peephole": (
            {"peephole": "exact"},
            ValueError,
            "peephole is 'exact', expected one of 'full', 'truncated'",
        ),
        "wrt": (
            {"wrt": ("X", "H0")},
            ValueError,
            "wrt has 'H0', expected names of 'X', 'W', 'R', 'B', 'initial_h', 'initial_c', 'P', 'S'",
        ),
    },
    GRU: {
        "saved zrh": (
            {"zrh": np.zeros((5, 1, 3, 16))},
            ValueError,
            "zrh has shape (5, 1, 3, 16), expected (T, D, N, 3H) = (5, 1, 3, 12)",
        ),
        "no zrh": ({"zrh": None}, TypeError, "zrh is None, expected an array"),
        "wrt": (
            {"wrt": ("X", "P")},
            ValueError,
            "wrt has 'P', expected names of 'X', 'W', 'R', 'B', 'initial_h'",
        ),
    },
    RNN: {
        "wrt": (
            {"wrt": ("X", "initial_c")},
            ValueError,
            "wrt has 'initial_c', expected names of 'X', 'W', 'R', 'B', 'initial_h'",
        ),
    },
}


@pytest.mark.parametrize(
    ("operator", "bad"),
    [
        pytest.param(operator, bad, id=f"{operator.name}-{kind}")
        for operator in OPERATORS
        for kind, bad in {**GRADIENT_ONLY, **GRADIENT_OF_ONE[operator]}.items()
    ],
)
def test_what_only_the_gradient_takes(operator: Operator, bad: Any) -> None:
    change, error, message = bad
    case = case_of(operator)
    outputs = run_forward(case)
    inputs = {**case.arguments, **case.integers}
    saved = {name: getattr(outputs, name) for name in operator.saved}
    saved["grad_H_all"] = outputs.H_all
    with pytest.raises(error, match="^" + re.escape(f"{operator.name}_grad: {message}") + "(?m:$)"):
        operator.gradient(**{**inputs, **saved, **change})


def test_gradient_of_peepholes_that_are_not_there(rng: np.random.Generator) -> None:
    case = make_case(LSTM, rng)
    with pytest.raises(
        ValueError, match=r"^lstm_grad: wrt has 'P', expected P to be given, it is None(?m:$)"
    ):
        run_gradient(case, run_forward(case), wrt=("P",))


@each_operator()
def test_whole_numbers_throughout(operator: Operator) -> None:
    integers = {
        "X": np.ones((2, 1, 1), dtype=np.int64),
        "W": np.ones((1, operator.gates, 1), dtype=np.int64),
        "R": np.ones((1, operator.gates, 1), dtype=np.int64),
    }
    message = rf"^{operator.name}: X has dtype int64, expected one of float16, float32, float64(?m:$)"
    with pytest.raises(TypeError, match=message):
        operator.forward(**integers)


def test_mixed_namespaces(case: Case) -> None:
    strict = next(backend for backend in BACKENDS if backend.name == "array-api-strict")
    if reason := strict.missing():
        pytest.skip(reason)
    mixed = {**case.arguments, "R": strict.array(case.arguments["R"])}
    message = r"^lstm: R is an array of array_api_strict, expected numpy, the namespace of X(?m:$)"
    with pytest.raises(TypeError, match=message):
        xpgrad.lstm(**mixed)


def test_mixed_devices(case: Case) -> None:
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    backend = next(backend for backend in BACKENDS if backend.name == "array-api-strict")
    arguments = backend.arrays(case.arguments)
    arguments["B"] = strict.asarray(arguments["B"], device=strict.Device("device1"), copy=True)
    with pytest.raises(
        TypeError, match=r"^lstm: B is on device .*device1.*, expected .*, the device of X(?m:$)"
    ):
        xpgrad.lstm(**arguments)


def test_another_device_throughout(case: Case) -> None:
    """A device on which NumPy cannot look at the values."""
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    backend = next(backend for backend in BACKENDS if backend.name == "array-api-strict")
    device = strict.Device("device1")

    def move(arrays: dict[str, Any]) -> dict[str, Any]:
        return {k: strict.asarray(v, device=device, copy=True) for k, v in arrays.items()}

    here = case.on(backend)
    there = replace(
        here,
        arguments=move(here.arguments),
        cotangents=move(here.cotangents),
        integers=move(here.integers),
    )
    outputs, expected = run_forward(there), run_forward(here)
    grads, expected_grads = run_gradient(there, outputs), run_gradient(here, expected)
    pairs = [*zip(outputs, expected, strict=True), *zip(grads, expected_grads, strict=True)]
    for actual, desired in pairs:
        if desired is None:  # dS, without S
            assert actual is None
            continue
        assert actual.device == device
        back = strict.asarray(actual, device=desired.device, copy=True)
        assert bool(strict.all(back == desired))


def test_errors_leave_nothing_behind(case: Case) -> None:
    """A call that was refused does not spoil the next one."""
    before = run_forward(case)
    with pytest.raises(ValueError, match="direction"):
        run_forward(replace(case, attributes={"direction": "sideways"}))
    assert np.array_equal(run_forward(case).H_all, before.H_all)
