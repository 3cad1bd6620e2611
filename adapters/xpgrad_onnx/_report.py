"""The contents of a model: its operators, its parameters, and why others cannot be trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from xpgrad_onnx._bodies import BODIES, has_body
from xpgrad_onnx._gradient import gradient_model, outputs_of, prepared
from xpgrad_onnx._graph import Graph, operator_of
from xpgrad_onnx._opsets import opset_of
from xpgrad_onnx._parameters import parameters
from xpgrad_onnx._reverse import nodes_on, path
from xpgrad_onnx._rules.table import FLAT, REASONS, RULES
from xpgrad_onnx._scopes import all_nodes


class Operator(NamedTuple):
    """An operator of a file."""

    name: str
    nodes: int
    """Nodes in the file."""
    kept: int
    """Nodes after folding of shapes, constants and fixed inputs."""
    differentiated: int
    """Nodes between a parameter and an output."""
    gradient: str
    """The form of its gradient, or why it has none."""


class Parameter(NamedTuple):
    """A tensor that training changes."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Report(NamedTuple):
    """The result of `inspect`."""

    opset: int | None
    used: int | None
    """The opset after conversion; None if the model cannot be converted."""
    inputs: list[tuple[str, str]]
    outputs: list[tuple[str, str]]
    operators: list[Operator]
    parameters: list[Parameter]
    others: dict[str, list[str]]
    """Floating-point constants that are no parameters, by the reason."""
    trouble: str
    """Why there is no training graph; "" if there is one."""
    training_nodes: int
    """Nodes of the training graph."""


def inspect(model: onnx.ModelProto, inputs: Mapping[str, Any] | None = None) -> Report:
    """Describe a model's contents and its training graph."""
    graph = model.graph
    counts = Counter(map(operator_of, all_nodes(graph.node)))
    given = {tensor.name for tensor in graph.initializer}
    report = Report(
        opset_of(model),
        None,
        [(value.name, _type(value)) for value in graph.input if value.name not in given],
        [(value.name, _type(value)) for value in graph.output],
        [Operator(name, count, 0, 0, "") for name, count in sorted(counts.items()) if name != "Constant"],
        [], {}, "", 0,
    )  # fmt: skip
    try:
        found = prepared(model, inputs or {}, ())
    except (ValueError, TypeError) as error:
        return report._replace(trouble=str(error))
    whole = Graph(found.model)
    ends = set(outputs_of(whole))
    names, others = parameters(whole, found, ends)
    reasons: dict[str, list[str]] = {}
    for name, why in others.items():
        reasons.setdefault(why, []).append(name)
    kept = Counter(map(operator_of, all_nodes(whole.nodes)))
    on_way = Counter(map(operator_of, nodes_on(whole, path(whole, whole.nodes, ends, names))))
    report = report._replace(
        used=whole.opset,
        operators=[
            row._replace(
                kept=kept[row.name],
                differentiated=on_way[row.name],
                gradient=_gradient(row.name, whole.opset, kept[row.name], on_way[row.name]),
            )
            for row in report.operators
        ],
        parameters=[_parameter(tensor) for tensor in whole.proto.initializer if tensor.name in names],
        others=reasons,
    )
    try:
        training = gradient_model(model, inputs=inputs)
    except (ValueError, TypeError) as error:
        return report._replace(trouble=str(error))
    return report._replace(training_nodes=len(training.graph.node))


def _gradient(name: str, opset: int, kept: int, on_way: int) -> str:
    """The form of the gradients of an operator's nodes."""
    domain, _, op_type = name.rpartition(".")
    if not kept:
        return "folded, or in a branch that is not taken"
    if not on_way:
        if op_type in FLAT and op_type not in ("Shape", "Size"):
            return "none: its result stays, or jumps, when operands change a little"
        return REASONS.get(op_type, "not needed: on no way from a parameter to an output")
    if (domain, op_type) in RULES:
        return "a rule"
    if not domain and has_body(op_type, opset):
        return "through a body" + ("" if op_type in BODIES else " of ONNX's")
    return f"none: {REASONS.get(op_type, 'the operator is unknown here')}"


def _parameter(tensor: onnx.TensorProto) -> Parameter:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return Parameter(tensor.name, tuple(tensor.dims), np.dtype(dtype).name)


def _type(value: onnx.ValueInfoProto) -> str:
    """A tensor's type and sizes, as text."""
    tensor = value.type.tensor_type
    if not tensor.elem_type:
        return "no tensor"
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    if not tensor.HasField("shape"):
        return f"{kind}, of any shape"
    sizes = (str(d.dim_value) if d.dim_value > 0 else d.dim_param or "?" for d in tensor.shape.dim)
    return f"{kind} ({', '.join(sizes)})"
