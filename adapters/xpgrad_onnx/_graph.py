"""A graph under construction: known facts about its tensors, and appended nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from xpgrad_onnx._call import MICROSOFT

Shape = tuple[int | str | None, ...]


class Graph:
    """A copy of a model's graph that grows.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; the copy has its local functions inlined.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = _without_functions(model)
        self.proto = self.model.graph
        self.opset = next(o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx"))
        self.nodes = [_copy(node) for node in self.proto.node]
        self.used = _names(self.proto)
        self.types: dict[str, int] = {}
        self.shapes: dict[str, Shape] = {}
        inferred = onnx.shape_inference.infer_shapes(self.model, data_prop=True).graph
        for value in (*inferred.input, *inferred.value_info, *inferred.output):
            self._learn(value)
        for tensor in self.proto.initializer:
            self.types[tensor.name] = tensor.data_type
            self.shapes[tensor.name] = tuple(tensor.dims)
        self.dtype: Any = np.dtype(np.float32)
        """The dtype of what is differentiated."""

    def _learn(self, value: onnx.ValueInfoProto) -> None:
        tensor = value.type.tensor_type
        if tensor.elem_type:
            self.types[value.name] = tensor.elem_type
        if tensor.HasField("shape"):
            self.shapes[value.name] = tuple(
                d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
            )

    def is_float(self, name: str) -> bool:
        """Whether a tensor is known to hold floating-point numbers."""
        kind = self.types.get(name)
        return kind is None or helper.tensor_dtype_to_np_dtype(kind) in (np.float16, np.float32, np.float64)

    def rank(self, name: str, asked_by: onnx.NodeProto) -> int:
        """The number of axes of a tensor."""
        shape = self.shapes.get(name)
        if shape is None:
            raise ValueError(
                f"gradient_model: the rank of {name!r} is unknown, expected one that "
                f"{describe(asked_by)} can be differentiated with: give the model's inputs shapes"
            )
        return len(shape)

    def fresh(self, hint: str) -> str:
        """An unused name."""
        name, count = hint, 1
        while name in self.used:
            count += 1
            name = f"{hint}_{count}"
        self.used.add(name)
        return name

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """A new initializer's name."""
        name = self.fresh("grad/constant")
        self.proto.initializer.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def number(self, value: float) -> str:
        """A scalar of the parameters' dtype."""
        return self.constant(value, self.dtype)

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Append a node with one output; returns the output's name."""
        return str(self.ops(op_type, *inputs, domain=domain, wanted=[True], **attributes)[0])

    def ops(
        self, op_type: str, *inputs: str, wanted: list[bool], domain: str = "", **attributes: Any
    ) -> list[str | None]:
        """Append a node; returns the names of its wanted outputs."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        names = [self.fresh(f"grad/{op_type}") if want else "" for want in wanted]
        while names and not names[-1]:
            names.pop()
        self.put(helper.make_node(op_type, list(inputs), names, domain=domain, **attributes))
        return [name or None for name in [*names, *[""] * (len(wanted) - len(names))]]

    def put(self, node: onnx.NodeProto) -> None:
        """Append a node to the graph."""
        node.name = node.name or self.fresh(f"grad/{node.op_type}_node")
        self.nodes.append(node)

    def output(self, node: onnx.NodeProto, index: int, hint: str) -> str:
        """The name of a node's output; an unnamed output gets a name here."""
        while len(node.output) <= index:
            node.output.append("")
        if not node.output[index]:
            node.output[index] = self.fresh(f"{node.output[0] or node.name or node.op_type}/{hint}")
        return node.output[index]

    def like(self, grad: str, other: str) -> str:
        """A gradient in the shape of another tensor with as many elements."""
        allow: dict[str, Any] = {"allowzero": 1} if self.opset >= 14 else {}
        return self.op("Reshape", grad, self.op("Shape", other), **allow)

    def zeros(self, shape: str) -> str:
        """Zeros; a tensor holds their shape."""
        value = numpy_helper.from_array(np.zeros(1, dtype=self.dtype))
        return self.op("ConstantOfShape", shape, value=value)

    def summed_to(self, grad: str, shape: Shape | None, operand: str) -> str:
        """A gradient of this shape, summed over the axes along which an operand was broadcast."""
        target = self.shapes.get(operand)
        axes = None if target is None or shape is None else _broadcast_axes(target, shape)
        if axes is None or target is None or shape is None:
            args = self.ops(
                "BroadcastGradientArgs", self.op("Shape", operand), self.op("Shape", grad),
                domain=MICROSOFT, wanted=[True, True],
            )  # fmt: skip
            total = self.op("ReduceSum", grad, str(args[0]), keepdims=1, noop_with_empty_axes=1)
            return self.like(total, operand)
        if axes:
            grad = self.op("ReduceSum", grad, self.constant(axes), keepdims=1)
        added = len(shape) - len(target)
        return self.op("Squeeze", grad, self.constant(range(added))) if added else grad

    def finished(self) -> onnx.ModelProto:
        """The model with all nodes."""
        del self.proto.node[:]
        self.proto.node.extend(self.nodes)
        for domain in sorted({node.domain for node in self.nodes}):
            if not any(o.domain == domain for o in self.model.opset_import):
                self.model.opset_import.append(helper.make_opsetid(domain, 1))
        return self.model


def describe(node: onnx.NodeProto) -> str:
    """An operator and its node, for a message."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{operator} (node {node.name!r})" if node.name else operator


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes by name, text as str."""
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {name: _text(value) for name, value in values.items()}


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    if model.functions:
        return inliner.inline_local_functions(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _names(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    names |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    return names | {node.name for node in graph.node}


def _broadcast_axes(target: Shape, shape: Shape) -> list[int] | None:
    """The axes of `shape` along which `target` was broadcast; None if the sizes are unknown."""
    added = len(shape) - len(target)
    axes = list(range(added))
    for k, (size, whole) in enumerate(zip(target, shape[added:], strict=True), start=added):
        if size == 1 and whole != 1:
            axes.append(k)
        elif not isinstance(size, int) and (size is None or size != whole):
            return None
    return axes
