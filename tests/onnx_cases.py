"""Models of one node, other people's data as models, the worst difference: what tests of ONNX share."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: the extra onnx has it")

from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from xpgrad_onnx import operators  # noqa: E402

DATA = Path(__file__).parent / "data"
_OPERANDS = {
    "LSTM": ("X W R B sequence_lens initial_h initial_c P", "Y Y_h Y_c"),
    "GRU": ("X W R B sequence_lens initial_h", "Y Y_h"),
    "LSTMTraining": ("X W R B SL H0 C0 P", "HAll Ht Ct CAll IOFC"),
    "LSTMGrad": (
        "X W R SL H0 C0 HAll CAll IOFC grad_HAll grad_Ht grad_Ct P B",
        "dX dW dR dB dH0 dC0 dP",
    ),
    "GRUTraining": ("X W R B SL H0", "HAll Ht ZRH"),
    "GRUGrad": ("X W R B SL H0 HAll ZRH grad_HAll grad_Ht", "dX dW dR dB dH0"),
    "ConvGrad": ("dY X W", "dX dW dB"),
}
"""The operators' inputs and outputs in order, by the names that the golden data have for them."""


@cache
def golden(file: str) -> dict[str, dict[str, Any]]:
    """{case name: {"op", "attrs", "in": arrays, "out": arrays}} of ONNX Runtime's kernels."""
    with np.load(DATA / file) as z:
        cases = {case["name"]: {**case, "in": {}, "out": {}} for case in json.loads(str(z["meta"]))}
        for key in z.files:
            if key != "meta":
                name, side, operand = key.rsplit("/", 2)
                cases[name][side][operand] = z[key]
    return cases


def model_of(
    op_type: str, inputs: list[str], outputs: list[str], domain: str = "", opset: int = 14, **attributes: Any
) -> Any:
    """A model of one node; "" stands for what is left out."""
    node = helper.make_node(op_type, inputs, outputs, domain=domain, **attributes)
    values = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names if name]
        for names in (inputs, outputs)
    ]
    opsets = [helper.make_opsetid(*pair) for pair in (("", opset), ("com.microsoft", 1), ("xpgrad", 1))]
    return helper.make_model(helper.make_graph([node], op_type, *values), opset_imports=opsets)


def in_order(names: str, given: Any) -> list[str]:
    """The names, "" for those that are not given, without such ones at the end."""
    row = [name if name in given else "" for name in names.split()]
    while row and not row[-1]:
        row.pop()
    return row


def golden_model(case: dict[str, Any], domain: str, **more: Any) -> Any:
    """One node for a case of the golden data."""
    residual = "X" if "X" in case["in"] else "Y"
    inputs, outputs = _OPERANDS.get(case["op"], (f"dY {residual}", "dX"))
    assert set(case["in"]) <= set(inputs.split())
    return model_of(
        case["op"],
        in_order(inputs, case["in"]),
        in_order(outputs, case["out"]),
        domain,
        **{**case["attrs"], **more},
    )


def run(model: Any, inputs: dict[str, Any], exact: bool = False, names: Any = None) -> dict[str, Any]:
    """The outputs by name."""
    evaluator = ReferenceEvaluator(model, new_ops=operators(exact))
    wanted = list(evaluator.output_names) if names is None else names
    return dict(zip(wanted, evaluator.run(wanted, inputs), strict=True))


def worst(actual: Any, expected: Any) -> float:
    """The largest difference, relative to the largest value where that is above 1; inf and NaN aside."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    known = np.isfinite(expected)
    assert known.any() or not expected.size
    a, b = (array[known].astype(float) for array in (actual, expected))
    return float(np.max(np.abs(a - b), initial=0)) / max(1.0, float(np.max(np.abs(b), initial=0.0)))


def slope_along(way: Any, at: Any, cotangents: dict[str, Any], outputs_at: Any, step: float) -> float:
    """The slope of all outputs' products with their cotangents: a central difference along a way.

    The way leads from `at`. ``outputs_at(point)`` returns outputs by name; a cotangent is ``NAME_grad``.
    """

    def weighted(distance: float) -> float:
        outputs = outputs_at(at + distance * way)
        return sum(
            float(np.sum(outputs[name.removesuffix("_grad")] * seed)) for name, seed in cotangents.items()
        )

    return (weighted(step) - weighted(-step)) / (2 * step)
