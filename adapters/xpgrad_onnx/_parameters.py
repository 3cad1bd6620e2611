"""Which of a model's constants are its parameters."""

from __future__ import annotations

import numpy as np

from xpgrad_onnx._folding import Simplified
from xpgrad_onnx._graph import Graph
from xpgrad_onnx._reverse import smooth_sources
from xpgrad_onnx._rules.table import fixed_inputs
from xpgrad_onnx._scopes import all_nodes

UNREACHED = "no output depends smoothly on it"
_WEIGHTS = {
    "BatchNormalization": (1, 2), "Conv": (1, 2), "ConvTranspose": (1, 2), "DeformConv": (1, 3),
    "Einsum": (0, 1, 2, 3), "GRU": (1, 2, 3), "Gather": (0,), "Gemm": (0, 1, 2),
    "GroupNormalization": (1, 2), "InstanceNormalization": (1, 2), "LSTM": (1, 2, 3, 7),
    "LayerNormalization": (1, 2), "MatMul": (0, 1), "PRelu": (1,), "RMSNormalization": (1,),
    "RNN": (1, 2, 3),
}  # fmt: skip
"""Inputs of operators that are weights, whatever their size."""
_SUMS = frozenset(["Add", "Div", "Mul", "Sub", "Sum"])
"""Operators whose operands may be weights, if they are more than one number."""
_MOVERS = frozenset(
    ["Identity", "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Slice", "Split", "Concat"]
)


def parameters(graph: Graph, found: Simplified, ends: set[str]) -> tuple[list[str], dict[str, str]]:
    """The parameters in the model's order, and why other floating-point constants are no parameters."""
    reached = smooth_sources(graph.nodes, ends, graph)
    fixed, weights, operands = _feeding_fixed(graph), _feeding(graph, _WEIGHTS), _feeding(graph, None)
    declared, buffers = (_declared(graph, kind) for kind in ("PARAMETER", "BUFFER"))
    names, others = [], {}
    for tensor in graph.proto.initializer:
        name = tensor.name
        if name not in found.initializers and name not in found.constants:
            continue
        count = int(np.prod(tensor.dims))
        number = count == 1 if name in found.constants else not tensor.dims
        if name not in reached:
            others[name] = UNREACHED
        elif name in fixed:
            others[name] = "bounds, an exponent, statistics or the like"
        elif name in buffers:
            others[name] = "a buffer, by the exporter's mark"
        elif name in declared or name in weights:
            names.append(name)
        elif number:
            others[name] = "a number in a formula"
        elif name in found.constants and name not in operands:
            others[name] = "a constant that no operator takes as weights"
        else:
            names.append(name)
    return names, others


def _feeding_fixed(graph: Graph) -> set[str]:
    """Constants that are bounds, ratios, statistics and so on, or that these are computed from.

    Such a constant may also be an operand elsewhere, because exporters keep equal numbers once.
    """
    known = {tensor.name for tensor in graph.proto.initializer}
    found: set[str] = set()
    nodes = list(all_nodes(graph.nodes))
    for node in nodes:
        if all(name in known for name in node.input if name):
            known.update(node.output)
        fixed = fixed_inputs(node)
        if fixed is not None:
            found.update(name for name in node.input[fixed.first :] if name in known and graph.is_float(name))
    for node in reversed(nodes):
        if not found.isdisjoint(node.output):
            found.update(name for name in node.input if name and graph.is_float(name))
    return found


def _feeding(graph: Graph, places: dict[str, tuple[int, ...]] | None) -> set[str]:
    """Tensors that are operands in these places, directly or moved; None means every place of weights."""
    found: set[str] = set()
    for node in reversed(list(all_nodes(graph.nodes))):
        if node.op_type in _MOVERS and not found.isdisjoint(node.output):
            found.update(node.input)
        wanted = _WEIGHTS.get(node.op_type, ())
        if places is None and node.op_type in _SUMS:
            wanted = tuple(range(len(node.input)))
        found.update(node.input[k] for k in wanted if k < len(node.input))
    return found - {""}


def _declared(graph: Graph, kind: str) -> set[str]:
    """The parameters, or the buffers, that PyTorch's exporter marks."""
    return {
        value.name
        for value in graph.proto.value_info
        if any(p.key.endswith("InputSpec.kind") and p.value == kind for p in value.metadata_props)
    }
