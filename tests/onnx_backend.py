"""ONNX's own tests of single nodes, as tests of gradients: their inputs, beside central differences."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
from onnx.backend.test.case.node import collect_testcases

from onnx_cases import onnx, run, slope_along  # isort: skip
from onnx import helper, numpy_helper  # isort: skip

from xpgrad_onnx import gradient_model
from xpgrad_onnx._double import in_double
from xpgrad_onnx._opsets import converted
from xpgrad_onnx._rules.table import FIXED, FLAT
from xpgrad_onnx._scopes import reads

STEP, NEAR = 1e-6, 1e-5  # and what a central difference of such a step tells
SINGLE = {
    "AffineGrid",
    "DFT",
    "DeformConv",
    "STFT",
    "CausalConvWithState",
    "GridSample",
    "GroupNormalization",
    "LinearAttention",
}
"""Operators that onnx's evaluator computes in float32, whatever the input: a step 1000 times as long."""
CONSTANT = {"Col2Im", "DFT"}
"""Operators whose other inputs have to be known."""
NOT_IN_DOUBLE = {"MeanVarianceNormalization"}
"""Operators that onnx's evaluator computes in float32 only: the training graph computes the results too."""


@cache
def cases() -> dict[str, list[Any]]:
    """ONNX's test cases of one node of ai.onnx, by operator; without those that are a body written out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    rows: dict[str, list[Any]] = {}
    for case in found:
        node = case.model.graph.node[0] if len(case.model.graph.node) == 1 else None
        if case.kind == "node" and node is not None and not node.domain and "_expanded" not in case.name:
            rows.setdefault(node.op_type, []).append(case)
    return rows


def check(case: Any) -> str:
    """Compare all gradients of a case; returns "" if they are right, else why there is nothing to compare."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    arrays = case.data_sets[0][0]
    feeds = {v.name: widened(a, v) for v, a in zip(model.graph.input, arrays, strict=True)}
    if any(value is None for value in feeds.values()):
        return "inputs that are no tensors"
    fixed = FIXED.get(node.op_type)
    free = [name for name in reads(node) if name][: fixed.first if fixed else None]
    wanted = [name for name in free if name in feeds and feeds[name].dtype == np.float64 and feeds[name].size]
    if not wanted or node.op_type in FLAT:
        return "no input to differentiate"
    model = converted(in_double(model))
    rng = np.random.default_rng(0)
    shift = 0.03 if node.op_type in SINGLE else 0.0
    for name in wanted:  # not where slopes jump
        finite = np.where(np.isfinite(feeds[name]), feeds[name], 0.5)
        feeds[name] = finite + shift + 0.01 * rng.random(finite.shape)
    if not any(v.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for v in model.graph.output):
        return "no output to differentiate"
    known = {name: value for name, value in feeds.items() if node.op_type in CONSTANT and name not in wanted}
    if not differentiable(model, wanted, known):
        wanted = [name for name in wanted if differentiable(model, [name], known)]
    if not wanted:
        return "no output depends smoothly on an input"
    training = gradient_model(model, wanted, inputs=known)
    seeds = [v.name for v in training.graph.input if v.name.endswith("_grad") and v.name not in feeds]
    outputs = [name.removesuffix("_grad") for name in seeds]
    if node.op_type in NOT_IN_DOUBLE:
        model = training
        feeds |= dict.fromkeys(seeds, np.zeros(1))
    values = run(model, feeds, names=outputs)
    if not all(np.isfinite(value).all() for value in values.values()):
        return "results that are not finite"
    cotangents = {
        f"{name}_grad": rng.normal(size=value.shape).astype(value.dtype) for name, value in values.items()
    }
    found = run(training, feeds | cotangents, names=[f"{name}_grad" for name in wanted])
    for name in wanted:
        longer = 1e3 if node.op_type in SINGLE or "precision" in case.name else 1.0
        compare(model, feeds, cotangents, outputs, name, found[f"{name}_grad"], rng, longer)
    return ""


def differentiable(model: Any, names: list[str], known: Any) -> bool:
    """Whether an output depends smoothly on each input; other errors are errors."""
    try:
        gradient_model(model, names, inputs=known)
    except ValueError as error:
        if "expected floating-point tensors that the loss depends on" in str(error):
            return False
        raise
    return True


def compare(
    model: Any,
    feeds: Any,
    cotangents: Any,
    outputs: list[str],
    name: str,
    grad: np.ndarray,
    rng: Any,
    longer: float,
) -> None:
    """Beside central differences along two directions, of which one has few elements."""
    assert grad.shape == feeds[name].shape
    assert grad.dtype == feeds[name].dtype
    for share in (1.0, 0.3):
        way = rng.normal(size=grad.shape) * (rng.random(grad.shape) < share)
        expected = slope_along(
            way,
            feeds[name],
            cotangents,
            lambda x: run(model, feeds | {name: x}, names=outputs),
            longer * STEP,
        )
        slope = float(np.sum(grad * way))
        size = float(np.sum(np.abs(grad * way))) + 1e-3
        assert abs(slope - expected) < longer * NEAR * size, (name, slope, expected)


def widened(array: Any, value: Any) -> Any:
    """An input in float64 where it is floating-point; None if it is no tensor."""
    array = numpy_helper.to_array(array) if isinstance(array, onnx.TensorProto) else array
    if not value.type.HasField("tensor_type") or not isinstance(array, np.ndarray | np.generic):
        return None
    kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    array = np.asarray(array)
    wide = kind.kind == "f" or kind.name == "bfloat16"
    return array.astype(np.float64) if wide else array.astype(kind, copy=False)
