"""Every operator of ai.onnx: it has a gradient, right on ONNX's own test inputs, or a reason."""

from __future__ import annotations

from typing import Any

import pytest

import xpgrad
from onnx_backend import cases, check
from xpgrad_onnx._coverage import coverage, newest

OPERATORS = {row.operator: row for row in coverage(newest())}
NOTHING_TO_COMPARE = {"GlobalLpPool", "If", "MaxRoiPool", "Trilu"}
"""Operators with a gradient of which ONNX has no test, or none with a floating-point input."""
MOST = 3
REFUSED = {
    "test_scan_sum": "expected opset 9 or later",
    "test_resize_": "keep_aspect_ratio_policy",
}
"""Tests of uses without a gradient, and a part of the message."""


@pytest.fixture(autouse=True)
def nothing_to_compile() -> Any:
    """What is tested here is the graph; the kernels are the same on every engine."""
    with xpgrad.use_engine("standard"):
        yield


def test_every_operator_has_a_gradient_or_a_reason() -> None:
    assert not [row.operator for row in OPERATORS.values() if not row.how]
    with_gradient = [row.operator for row in OPERATORS.values() if row.gradient]
    assert len(with_gradient) > 125


@pytest.mark.long
@pytest.mark.parametrize("operator", sorted(name for name, row in OPERATORS.items() if row.gradient))
def test_gradients_on_the_inputs_of_onnx_tests(operator: str) -> None:
    """A few of an operator's tests; `tools/onnx_operators.py` takes all."""
    found = cases().get(operator, [])
    outcomes = []
    for case in found[:: max(1, len(found) // MOST)]:
        try:
            outcomes.append(check(case))
        except ValueError as error:
            if not any(case.name.startswith(name) and text in str(error) for name, text in REFUSED.items()):
                raise
    assert ("" in outcomes) != (operator in NOTHING_TO_COMPARE), outcomes
