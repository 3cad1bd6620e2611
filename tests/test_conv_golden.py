"""Convolutions against other people's data: ONNX Runtime's ConvGrad (data/README.md), ONNX's node tests."""

from __future__ import annotations

import importlib
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import Backend
from xpgrad.testing import assert_close

DATA = Path(__file__).parent / "data" / "ort_training.npz"
NAMES = ["conv2d", "conv2d-spd", "conv2d-dw", "conv2d-1x1s2"]


@cache
def golden() -> dict[str, Any]:
    """{case name: (attributes, inputs, outputs)} of ConvGrad."""
    cases = {}
    with np.load(DATA) as z:
        for case in json.loads(str(z["meta"])):
            if case["op"] == "ConvGrad":
                sides = [
                    {k.rsplit("/")[-1]: z[k] for k in z.files if k.startswith(f"{case['name']}/{side}/")}
                    for side in ("in", "out")
                ]
                cases[case["name"]] = (case["attrs"], *sides)
    return cases


def test_the_golden_cases_are_all_there() -> None:
    assert sorted(golden()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_gradient(name: str, backend: Backend) -> None:
    attributes, ins, outs = golden()[name]
    attributes = {key: value for key, value in attributes.items() if key != "kernel_shape"}
    arrays = backend.arrays(ins, "float32")
    grads = xpgrad.conv_grad(**arrays, **attributes)
    for field, expected in outs.items():
        assert_close(getattr(grads, field), expected, like=arrays["X"], rtol=1e-6, label=f"{name} {field}")


# --- the backend tests that the onnx package carries


ONNX_NAMES = [
    "test_basic_conv_with_padding",
    "test_basic_conv_without_padding",
    "test_conv_with_autopad_same",
    "test_conv_with_strides_and_asymmetric_padding",
    "test_conv_with_strides_no_padding",
    "test_conv_with_strides_padding",
    "test_convtranspose",
    "test_convtranspose_1d",
    "test_convtranspose_3d",
    "test_convtranspose_autopad_same",
    "test_convtranspose_dilations",
    "test_convtranspose_group_2",
    "test_convtranspose_group_2_image_3",
    "test_convtranspose_kernel_shape",
    "test_convtranspose_output_shape",
    "test_convtranspose_pad",
    "test_convtranspose_pads",
]
needs_onnx = pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason="onnx is not installed")


@cache
def node_tests() -> dict[str, Any]:
    """ONNX's tests of Conv and ConvTranspose by name: importing the modules collects them."""
    node = importlib.import_module("onnx.backend.test.case.node")
    for module in ("conv", "convtranspose"):
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    operators = ("Conv", "ConvTranspose")
    return {c.name: c for c in node._NodeTestCases if c.model.graph.node[0].op_type in operators}


@needs_onnx
def test_the_node_tests_are_all_there() -> None:
    assert set(ONNX_NAMES) <= set(node_tests())


@needs_onnx
@pytest.mark.parametrize("name", ONNX_NAMES)
def test_node(name: str, backend: Backend) -> None:
    import onnx

    case = node_tests()[name]
    [node] = case.model.graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    kernel_shape = attributes.pop("kernel_shape", None)
    if "auto_pad" in attributes:
        attributes["auto_pad"] = attributes["auto_pad"].decode()
    operator = {"Conv": xpgrad.conv, "ConvTranspose": xpgrad.conv_transpose}[node.op_type]
    for inputs, [expected] in case.data_sets:
        arrays = [backend.array(a, "float32") for a in inputs]
        assert kernel_shape is None or tuple(kernel_shape) == inputs[1].shape[2:]
        Y = operator(*arrays, **attributes)
        assert_close(Y, expected, like=arrays[0], rtol=1e-6, label=name)
