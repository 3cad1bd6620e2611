"""Bad input of each kind: the message names operator, argument, rule and both values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lstm_cases import Case, make_case, run_forward, run_gradient

import xpgrad
from backends import BACKENDS

T, N, I, H = 5, 3, 2, 4


@pytest.fixture
def case() -> Case:
    return make_case(np.random.default_rng(0), peepholes=True, lengths=[5, 0, 3])


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

BAD: dict[str, tuple[Callable[[Case], Case], type[Exception], str]] = {
    "X rank": (
        other(X=np.zeros((T, I))),
        ValueError,
        "X has 2 dimensions with shape (5, 2), expected 3, (T, N, I)",
    ),
    "W rank": (
        other(W=np.zeros((16, 2))),
        ValueError,
        "W has 2 dimensions with shape (16, 2), expected 3, (D, 4H, I)",
    ),
    "R rank": (
        other(R=np.zeros(4)),
        ValueError,
        "R has 1 dimensions with shape (4,), expected 3, (D, 4H, H)",
    ),
    "W input size": (
        other(W=np.zeros((1, 16, 3))),
        ValueError,
        "W has shape (1, 16, 3), expected (D, 4H, I) = (1, 16, 2)",
    ),
    "W gates": (
        other(W=np.zeros((1, 12, 2))),
        ValueError,
        "W has shape (1, 12, 2), expected (D, 4H, I) = (1, 16, 2)",
    ),
    "R gates": (
        other(R=np.zeros((1, 12, 4))),
        ValueError,
        "R has shape (1, 12, 4), expected (D, 4H, H) = (1, 16, 4)",
    ),
    "R directions": (
        other(R=np.zeros((2, 16, 4))),
        ValueError,
        "R has shape (2, 16, 4), expected (D, 4H, H) = (1, 16, 4)",
    ),
    "B": (other(B=np.zeros((1, 16))), ValueError, "B has shape (1, 16), expected (D, 8H) = (1, 32)"),
    "P": (other(P=np.zeros((1, 16))), ValueError, "P has shape (1, 16), expected (D, 3H) = (1, 12)"),
    "initial_h": (
        other(initial_h=np.zeros((3, 4))),
        ValueError,
        "initial_h has shape (3, 4), expected (D, N, H) = (1, 3, 4)",
    ),
    "initial_c": (
        other(initial_c=np.zeros((1, 1, 4))),
        ValueError,
        "initial_c has shape (1, 1, 4), expected (D, N, H) = (1, 3, 4)",
    ),
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
    "lengths as a list": (
        lambda case: replace(case, integers={"sequence_lens": [1, 2, 3]}),
        TypeError,
        "sequence_lens is a list, expected an array",
    ),
    "list": (other(W=[[[1.0]]]), TypeError, "W is a list, expected an array"),
    "no X": (other(X=None), TypeError, "X is None, expected an array"),
    "no R": (other(R=None), TypeError, "R is None, expected an array"),
    "mixed dtypes": (
        other(R=np.zeros((1, 16, 4), dtype=np.float32)),
        TypeError,
        "R has dtype float32, expected float64, the dtype of X",
    ),
    "whole numbers": (
        other(X=np.zeros((T, N, I), dtype=np.int64)),
        TypeError,
        "W has dtype float64, expected int64, the dtype of X",
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
    "D for two directions": (
        attributes(direction="bidirectional"),
        ValueError,
        "W has shape (1, 16, 2), expected (D, 4H, I) = (2, 16, 2)",
    ),
    "layout": (attributes(layout=2), ValueError, "layout is 2, expected one of 0, 1"),
    "input_forget": (
        attributes(input_forget="no"),
        ValueError,
        "input_forget is 'no', expected one of False, True, 0, 1",
    ),
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
    "too few activations": (
        attributes(activations=["Sigmoid", "Tanh"]),
        ValueError,
        "activations has 2 names, expected 3 for each of 1 directions = 3",
    ),
    "too many activations": (
        attributes(activations=["Sigmoid", "Tanh", "Tanh"] * 2),
        ValueError,
        "activations has 6 names, expected 3 for each of 1 directions = 3",
    ),
    "unknown activation": (
        attributes(activations=["Sigmoid", "Gelu", "Tanh"]),
        ValueError,
        f"activations has 'Gelu', expected one of {', '.join(ACTIVATIONS.split())}",
    ),
    "activations as one string": (
        attributes(activations="Tanh"),
        TypeError,
        "activations is 'Tanh', expected a list of names",
    ),
    "too many alphas": (
        attributes(activations=["Sigmoid", "Elu", "Tanh"], activation_alpha=[1.0, 2.0]),
        ValueError,
        "activation_alpha has 2 values, expected at most 1, one for each activation that takes it",
    ),
    "a beta that nothing takes": (
        attributes(activations=["Sigmoid", "Elu", "Tanh"], activation_beta=[0.5]),
        ValueError,
        "activation_beta has 1 values, expected at most 0, one for each activation that takes it",
    ),
    "an alpha for the defaults": (
        attributes(activation_alpha=[0.5]),
        ValueError,
        "activation_alpha has 1 values, expected at most 0, one for each activation that takes it",
    ),
    "alpha's type": (
        attributes(activations=["Elu"] * 3, activation_alpha=[0.5, "1"]),
        TypeError,
        "activation_alpha is '1' of type str, expected a number",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_forward(kind: str, case: Case) -> None:
    change, error, message = BAD[kind]
    with pytest.raises(error, match="^" + re.escape(f"lstm: {message}") + "$"):
        run_forward(change(case))


@pytest.mark.parametrize("kind", BAD)
def test_gradient(kind: str, case: Case) -> None:
    outputs = run_forward(case)
    change, error, message = BAD[kind]
    with pytest.raises(error, match="^" + re.escape(f"lstm_grad: {message}") + "$"):
        run_gradient(change(case), outputs)


def test_layout_is_part_of_the_rule(case: Case) -> None:
    with pytest.raises(
        ValueError, match=r"^lstm: X has 1 dimensions with shape \(5,\), expected 3, \(N, T, I\)$"
    ):
        run_forward(replace(case, arguments={**case.arguments, "X": np.zeros(5)}, attributes={"layout": 1}))


GRADIENT_ONLY: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "saved H_all": (
        {"H_all": np.zeros((5, 3, 4))},
        ValueError,
        "H_all has shape (5, 3, 4), expected (T, D, N, H) = (5, 1, 3, 4)",
    ),
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
    "saved array's dtype": (
        {"C_all": np.zeros((5, 1, 3, 4), dtype=np.float32)},
        TypeError,
        "C_all has dtype float32, expected float64, the dtype of X",
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
    "cotangent of C_t": (
        {"grad_C_t": np.zeros((1, 4, 3))},
        ValueError,
        "grad_C_t has shape (1, 4, 3), expected (D, N, H) = (1, 3, 4)",
    ),
    "cotangent's type": ({"grad_C_t": 0.0}, TypeError, "grad_C_t is a float, expected an array"),
    "peephole": (
        {"peephole": "exact"},
        ValueError,
        "peephole is 'exact', expected one of 'full', 'truncated'",
    ),
    "per_sample": ({"per_sample": 2}, ValueError, "per_sample is 2, expected one of False, True"),
    "wrt": (
        {"wrt": ("X", "H0")},
        ValueError,
        "wrt has 'H0', expected names of 'X', 'W', 'R', 'B', 'initial_h', 'initial_c', 'P'",
    ),
}


@pytest.mark.parametrize("kind", GRADIENT_ONLY)
def test_what_only_the_gradient_takes(kind: str, case: Case) -> None:
    change, error, message = GRADIENT_ONLY[kind]
    outputs = run_forward(case)
    inputs = {**case.arguments, **case.integers}
    saved = {"H_all": outputs.H_all, "C_all": outputs.C_all, "iofc": outputs.iofc}
    with pytest.raises(error, match="^" + re.escape(f"lstm_grad: {message}") + "$"):
        xpgrad.lstm_grad(**{**inputs, **saved, **change})


def test_gradient_of_peepholes_that_are_not_there(rng: np.random.Generator) -> None:
    case = make_case(rng)
    with pytest.raises(ValueError, match=r"^lstm_grad: wrt has 'P', expected P to be given, it is None$"):
        run_gradient(case, run_forward(case), wrt=("P",))


def test_whole_numbers_throughout() -> None:
    integers = {
        "X": np.ones((2, 1, 1), dtype=np.int64),
        "W": np.ones((1, 4, 1), dtype=np.int64),
        "R": np.ones((1, 4, 1), dtype=np.int64),
    }
    message = r"^lstm: X has dtype int64, expected one of float16, float32, float64$"
    with pytest.raises(TypeError, match=message):
        xpgrad.lstm(**integers)


def test_mixed_namespaces(case: Case) -> None:
    strict = next(backend for backend in BACKENDS if backend.name == "array-api-strict")
    if reason := strict.missing():
        pytest.skip(reason)
    mixed = {**case.arguments, "R": strict.array(case.arguments["R"])}
    message = r"^lstm: R is an array of array_api_strict, expected numpy, the namespace of X$"
    with pytest.raises(TypeError, match=message):
        xpgrad.lstm(**mixed)


def test_mixed_devices(case: Case) -> None:
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    backend = next(backend for backend in BACKENDS if backend.name == "array-api-strict")
    arguments = backend.arrays(case.arguments)
    arguments["B"] = strict.asarray(arguments["B"], device=strict.Device("device1"), copy=True)
    with pytest.raises(TypeError, match=r"^lstm: B is on device .*device1.*, expected .*, the device of X$"):
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
        assert actual.device == device
        back = strict.asarray(actual, device=desired.device, copy=True)
        assert bool(strict.all(back == desired))


def test_errors_leave_nothing_behind(case: Case) -> None:
    """A call that was refused does not spoil the next one."""
    before = run_forward(case)
    with pytest.raises(ValueError, match="direction"):
        run_forward(replace(case, attributes={"direction": "sideways"}))
    assert np.array_equal(run_forward(case).H_all, before.H_all)
