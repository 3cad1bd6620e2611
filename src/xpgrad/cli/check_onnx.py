"""xpgrad_onnx in `check`: a model of one node, its training graph, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._cases.case import Case
from .onnx_node import one_node

__all__ = ["results"]

_OLDEST = 13  # the first version of ONNX that `gradient_model` accepts
_TRUNCATED = "com.microsoft"  # the domain with the truncated gradient of peepholes


def results(kernel: str, case: Case) -> Mapping[str, Any] | None:
    """Outputs and gradients by name, from onnx's reference evaluator; None if ONNX lacks the operator.

    `gradient_model` makes the gradients, so its rules are checked too.
    """
    from onnx.reference import ReferenceEvaluator

    from xpgrad_onnx import gradient_model, operators

    if case.gradient_attributes.get("per_sample") or case.weights or "method" in case.attributes:
        return None
    ends = ("begins", "ends") if case.numbers is not None else ()
    pads = [[int(n) for n in getattr(case.numbers, end)] for end in ends]
    try:
        model, feeds, outputs = one_node(kernel, {**case.arguments, **case.integers}, case.attributes, pads)
    except NotImplementedError:
        return None
    if set(case.cotangents) - set(outputs) or model.opset_import[0].version < _OLDEST:
        return None
    training = gradient_model(model, wrt=list(case.arguments))
    if case.gradient_attributes.get("peephole") == "truncated":
        _truncate(training)
    feeds |= {f"{name}_grad": cotangent for name, cotangent in case.cotangents.items()}
    names = [*outputs, *(f"{name}_grad" for name in case.arguments)]
    found = ReferenceEvaluator(training, new_ops=operators()).run(names, feeds)
    labels = [*outputs, *(f"gradient of {name}" for name in case.arguments)]
    return {label: np.asarray(array) for label, array in zip(labels, found, strict=True)}


def _truncate(training: Any) -> None:
    """Let ONNX Runtime's operator compute the LSTM's gradient."""
    for node in training.graph.node:
        if node.op_type == "LSTMGrad":
            node.domain = _TRUNCATED
    if _TRUNCATED not in {opset.domain for opset in training.opset_import}:
        training.opset_import.add(domain=_TRUNCATED, version=1)
