"""Models in float64, to compare their gradients with central differences."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from xpgrad_onnx._scopes import all_graphs, all_nodes, set_nodes

FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
_NARROW = (FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 instead of float32 and float16."""
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            _widen(tensor)
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in _NARROW:
                value.type.tensor_type.elem_type = DOUBLE
        del graph.value_info[:]
    for node in all_nodes(model.graph.node):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _NARROW:
                attribute.i = DOUBLE
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                tensor = numpy_helper.from_array(np.asarray(helper.get_attribute_value(attribute), float))
                attribute.CopyFrom(helper.make_attribute("value", tensor))
    _narrow_scales(model)
    return model


def _narrow_scales(model: onnx.ModelProto) -> None:
    """Scales of Resize have to stay float32."""
    for graph in all_graphs(model.graph):
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if node.op_type in ("Resize", "Upsample"):
                for k, name in enumerate(node.input):
                    if name and (k == 2 or (node.op_type == "Upsample" and k == 1)):
                        narrow = f"{name}/float32/{len(nodes)}"
                        nodes.append(helper.make_node("Cast", [name], [narrow], to=FLOAT))
                        node.input[k] = narrow
            nodes.append(node)
        set_nodes(graph, nodes)


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(float), tensor.name))
