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
FORWARD = {"HAll": "H_all", "Ht": "H_t", "Ct": "C_t", "CAll": "C_all", "IOFC": "iofc"}
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


def names(file: str, operator: str) -> list[str]:
    return [name for name, case in load(file).items() if case["op"] == operator]


def test_the_golden_lstm_cases_are_all_there() -> None:
    counts = [
        len(names("ort_training.npz", "LSTMTraining")),
        len(names("ort_training.npz", "LSTMGrad")),
        len(names("ort_inference.npz", "LSTM")),
    ]
    assert counts[0] == counts[1] > 10
    assert counts[2] == 18


@pytest.mark.parametrize("name", names("ort_training.npz", "LSTMTraining"))
def test_training_forward(name: str, backend: Backend) -> None:
    case = load("ort_training.npz")[name]
    ins = backend.arrays(case["in"], "float32")
    outputs = xpgrad.lstm(
        ins["X"],
        ins["W"],
        ins["R"],
        ins.get("B"),
        initial_h=ins.get("H0"),
        initial_c=ins.get("C0"),
        P=ins.get("P"),
    )
    for operand, expected in case["out"].items():
        assert_close(
            getattr(outputs, FORWARD[operand]), expected, like=ins["X"], rtol=RTOL, label=f"{name} {operand}"
        )


@pytest.mark.parametrize("name", names("ort_training.npz", "LSTMGrad"))
def test_gradient(name: str, backend: Backend) -> None:
    case = load("ort_training.npz")[name]
    ins = backend.arrays(case["in"], "float32")
    peepholes = load("ort_training.npz")[name.removesuffix("-grad") + "-fwd"]["in"].get("P")
    grads = xpgrad.lstm_grad(
        ins["X"],
        ins["W"],
        ins["R"],
        H_all=ins["HAll"],
        C_all=ins["CAll"],
        iofc=ins["IOFC"],
        grad_H_all=ins.get("grad_HAll"),
        grad_H_t=ins.get("grad_Ht"),
        grad_C_t=ins.get("grad_Ct"),
        initial_h=ins.get("H0"),
        initial_c=ins.get("C0"),
        P=backend.array(peepholes, "float32"),
        peephole="truncated",
    )
    assert ("dP" in case["out"]) == (peepholes is not None)
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


@pytest.mark.parametrize("name", names("ort_inference.npz", "LSTM"))
def test_inference_with_every_attribute(name: str, backend: Backend) -> None:
    case = load("ort_inference.npz")[name]
    ins = backend.arrays(case["in"], "float32")
    attributes = {key: value for key, value in case["attrs"].items() if key != "hidden_size"}
    outputs = xpgrad.lstm(**ins, **attributes)
    finite_everywhere = True
    for operand, output in INFERENCE.items():
        expected, actual = case["out"][operand], getattr(outputs, output)
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
