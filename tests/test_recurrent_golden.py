"""The kernels against inputs and outputs of ONNX Runtime's (see data/README.md)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import Backend
from xpgrad.testing import assert_close, relative_error, to_numpy

DATA = Path(__file__).parent / "data"
RTOL = 1e-5
FORWARD = {"HAll": "H_all", "Ht": "H_t", "Ct": "C_t", "CAll": "C_all", "IOFC": "iofc", "ZRH": "zrh"}
INPUTS = {"X": "X", "W": "W", "R": "R", "B": "B", "H0": "initial_h", "C0": "initial_c", "P": "P"}
COTANGENTS = {"grad_HAll": "grad_H_all", "grad_Ht": "grad_H_t", "grad_Ct": "grad_C_t"}
INFERENCE = {"Y": "H_all", "Y_h": "H_t", "Y_c": "C_t"}
OVERFLOWED = {"LSTM-reverse-20", "LSTM-bidirectional-32"}  # there ONNX Runtime's Softplus gave inf


@cache
def load(file: str) -> dict[str, dict[str, Any]]:
    """{case name: {"op", "attrs", "in": arrays, "out": arrays}}."""
    with np.load(DATA / file) as z:
        cases = {case["name"]: {**case, "in": {}, "out": {}} for case in json.loads(str(z["meta"]))}
        for key in z.files:
            if key != "meta":
                name, side, operand = key.rsplit("/", 2)
                cases[name][side][operand] = z[key]
    return cases


def names(file: str, *operators: str) -> list[str]:
    return [name for name, case in load(file).items() if case["op"] in operators]


def kernel_of(case: dict[str, Any]) -> str:
    """The name of our kernel."""
    return "lstm" if case["op"].startswith("LSTM") else "gru"


def attributes_of(case: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in case["attrs"].items() if key != "hidden_size"}


def given(operands: dict[str, Any], renamed: dict[str, str]) -> dict[str, Any]:
    """Those of the operands that are renamed, under our names."""
    return {name: operands[operand] for operand, name in renamed.items() if operand in operands}


@pytest.mark.parametrize(("operator", "inference"), [("LSTM", 18), ("GRU", 12)])
def test_the_golden_cases_are_all_there(operator: str, inference: int) -> None:
    counts = [
        len(names("ort_training.npz", f"{operator}Training")),
        len(names("ort_training.npz", f"{operator}Grad")),
        len(names("ort_inference.npz", operator)),
    ]
    assert counts[0] == counts[1] > 10
    assert counts[2] == inference


def test_the_golden_gru_cases_have_both_conventions() -> None:
    cases = load("ort_training.npz")
    found = {cases[name]["attrs"]["linear_before_reset"] for name in names("ort_training.npz", "GRUGrad")}
    assert found == {0, 1}


@pytest.mark.parametrize("name", names("ort_training.npz", "LSTMTraining", "GRUTraining"))
def test_training_forward(name: str, backend: Backend) -> None:
    case = load("ort_training.npz")[name]
    ins = backend.arrays(case["in"], "float32")
    outputs = getattr(xpgrad, kernel_of(case))(**given(ins, INPUTS), **attributes_of(case))
    for operand, expected in case["out"].items():
        actual = getattr(outputs, FORWARD[operand])
        assert_close(actual, expected, like=ins["X"], rtol=RTOL, label=f"{name} {operand}")


@pytest.mark.parametrize("name", names("ort_training.npz", "LSTMGrad", "GRUGrad"))
def test_gradient(name: str, backend: Backend) -> None:
    case = load("ort_training.npz")[name]
    ins = backend.arrays(case["in"], "float32")
    more = attributes_of(case)
    if kernel_of(case) == "lstm":
        peepholes = load("ort_training.npz")[name.removesuffix("-grad") + "-fwd"]["in"].get("P")
        assert ("dP" in case["out"]) == (peepholes is not None)
        more |= {"P": backend.array(peepholes, "float32"), "peephole": "truncated"}
    saved = given(ins, {operand: FORWARD[operand] for operand in ("HAll", "CAll", "IOFC", "ZRH")})
    gradient = getattr(xpgrad, f"{kernel_of(case)}_grad")
    grads = gradient(**given(ins, INPUTS), **saved, **given(ins, COTANGENTS), **more)
    for operand, expected in case["out"].items():
        assert_close(getattr(grads, operand), expected, like=ins["X"], rtol=RTOL, label=f"{name} {operand}")


def test_the_true_peephole_gradient_is_another() -> None:
    """ONNX Runtime's gradient is truncated, and the full one differs from it by far more than rounding."""
    case = load("ort_training.npz")["lstm1-peep-grad"]
    ins = case["in"]
    saved = {"H_all": ins["HAll"], "C_all": ins["CAll"], "iofc": ins["IOFC"]}
    cotangents = {"grad_H_all": ins["grad_HAll"], "grad_H_t": ins["grad_Ht"], "grad_C_t": ins["grad_Ct"]}
    P = load("ort_training.npz")["lstm1-peep-fwd"]["in"]["P"]
    grads = xpgrad.lstm_grad(
        ins["X"], ins["W"], ins["R"], **saved, **cotangents, initial_h=ins["H0"], initial_c=ins["C0"], P=P
    )
    assert relative_error(grads.dW, case["out"]["dW"]) > 0.01


@pytest.mark.parametrize("name", names("ort_inference.npz", "LSTM", "GRU"))
def test_inference_with_every_attribute(name: str, backend: Backend) -> None:
    case = load("ort_inference.npz")[name]
    ins = backend.arrays(case["in"], "float32")
    outputs = getattr(xpgrad, kernel_of(case))(**ins, **attributes_of(case))
    finite_everywhere = True
    for operand, expected in case["out"].items():
        actual = getattr(outputs, INFERENCE[operand])
        assert np.isfinite(to_numpy(actual)).all()
        known = np.isfinite(expected)
        finite_everywhere &= bool(known.all())
        assert_close(
            backend.array(np.where(known, to_numpy(actual), 0), "float32"),
            np.where(known, expected, 0),
            like=actual,
            rtol=RTOL,
            label=f"{name} {operand}",
        )
    assert finite_everywhere == (name not in OVERFLOWED)
