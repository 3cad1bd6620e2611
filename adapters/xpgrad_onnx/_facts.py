"""The types and shapes of a model's tensors, by onnx's inference, and where it needs help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from xpgrad_onnx._call import MICROSOFT
from xpgrad_onnx._equal_sizes import Shape, with_equal_sizes
from xpgrad_onnx._scopes import all_graphs, all_nodes


def facts_of(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, Shape]]:
    """The types and shapes of tensors, of subgraphs too, as far as onnx infers them."""
    model = _inferable(model)
    while True:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        types: dict[str, int] = {}
        shapes: dict[str, Shape] = {}
        for graph in all_graphs(model.graph):
            for value in (*graph.input, *graph.value_info, *graph.output):
                _learn(value, types, shapes)
            for tensor in graph.initializer:
                types[tensor.name] = tensor.data_type
                shapes[tensor.name] = tuple(tensor.dims)
        if not _give_states_ranks(model.graph, shapes):
            return types, with_equal_sizes(all_nodes(model.graph.node), shapes)


def _give_states_ranks(graph: onnx.GraphProto, shapes: Mapping[str, Shape]) -> bool:
    """Give each state of a Loop's body its initial value's rank, if it has none; tell if one was given."""
    given = False
    for node in all_nodes(graph.node):
        if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
            continue
        body = next(a.g for a in node.attribute if a.name == "body")
        for initial, state in zip(node.input[2:], body.input[2:], strict=True):
            kind = state.type
            if (
                initial not in shapes
                or not kind.HasField("tensor_type")
                or kind.tensor_type.HasField("shape")
            ):
                continue
            unknown = [onnx.TensorShapeProto.Dimension() for _ in shapes[initial]]
            kind.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=unknown))
            given = True
    return given


_KEEP_SHAPES = ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")
"""Operators of com.microsoft whose result is like their first input."""


def _inferable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy that onnx's inference understands better."""
    contrib = [n for n in all_nodes(model.graph.node) if n.domain == MICROSOFT and n.op_type in _KEEP_SHAPES]
    if not contrib and not any(_ambiguous(model.graph)):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in all_nodes(changed.graph.node):
        if node.domain == MICROSOFT and node.op_type in _KEEP_SHAPES:
            node.op_type, node.domain = "Identity", ""
            del node.input[1:], node.attribute[:]
    for size in _ambiguous(changed.graph):
        size.Clear()
    return changed


def _ambiguous(graph: onnx.GraphProto) -> Iterator[Any]:
    """Sizes with a name that a shape has twice, and that no input has.

    PyTorch's exporter gives outputs such names, also to two axes of different sizes.
    """
    known = {size.dim_param for value in graph.input for size in value.type.tensor_type.shape.dim}
    for value in (*graph.value_info, *graph.output):
        names = [size.dim_param for size in value.type.tensor_type.shape.dim]
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param and size.dim_param not in known and names.count(size.dim_param) > 1:
                yield size


def _learn(value: onnx.ValueInfoProto, types: dict[str, int], shapes: dict[str, Shape]) -> None:
    tensor = value.type.tensor_type
    if tensor.elem_type:
        types[value.name] = tensor.elem_type
    if tensor.HasField("shape"):
        shapes[value.name] = tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
        )
