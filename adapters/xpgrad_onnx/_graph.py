"""A graph under construction: known facts about its tensors, and appended nodes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from xpgrad_onnx._call import MICROSOFT
from xpgrad_onnx._equal_sizes import Shape
from xpgrad_onnx._facts import facts_of
from xpgrad_onnx._opsets import opset_of
from xpgrad_onnx._scopes import all_nodes, fresh, nested_names, set_nodes


class Graph:
    """A model's graph that grows. The model, without functions of its own, is changed."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.proto = model.graph
        self.opset = opset_of(model) or 0
        self.nodes = list(self.proto.node)
        self.used = nested_names(self.proto)
        self.types, self.shapes = facts_of(model)
        dims = [d for value in self.proto.input for d in value.type.tensor_type.shape.dim]
        self.named_sizes = {d.dim_param for d in dims if d.dim_param}
        """The names of sizes of the model's own inputs."""
        self._constants: dict[Any, str] = {}
        self.cotangents: dict[str, str] = {}
        """The tensor of each cotangent."""
        self.dtype: Any = np.dtype(np.float32)
        """The dtype of cotangents."""

    @property
    def kind(self) -> int:
        """The element type of cotangents."""
        return helper.np_dtype_to_tensor_dtype(self.dtype)

    def learn(self, name: str, like: str) -> None:
        """Note that a tensor has the type and the shape of another."""
        if like in self.types:
            self.types[name] = self.types[like]
        if like in self.shapes:
            self.shapes[name] = self.shapes[like]

    def inner(self) -> Graph:
        """A branch or body under construction: it sees this graph's tensors, and has its own nodes."""
        scope = copy.copy(self)
        scope.nodes = []
        return scope

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

    def value(self, name: str) -> np.ndarray | None:
        """A constant's value; None for inputs and results."""
        if any(value.name == name for value in self.proto.input):
            return None
        tensor = next((t for t in self.proto.initializer if t.name == name), None)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def fresh(self, hint: str) -> str:
        """An unused name."""
        return fresh(hint, self.used)

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """The initializer of known values; equal values share one."""
        array = np.asarray(values, dtype=dtype)
        key = array.dtype, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.fresh("grad/constant")
            self.proto.initializer.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

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
        """A gradient, reshaped like another tensor with as many elements."""
        allow: dict[str, Any] = {"allowzero": 1} if self.opset >= 14 else {}
        return self.op("Reshape", grad, self.op("Shape", other), **allow)

    def zeros(self, shape: str) -> str:
        """Zeros; a tensor holds their shape."""
        return self.filled(shape, 0)

    def filled(self, shape: str, number: float, kind: int | None = None) -> str:
        """A tensor of equal numbers, of cotangents' type by default; a tensor holds its shape."""
        dtype = self.dtype if kind is None else helper.tensor_dtype_to_np_dtype(kind)
        value = numpy_helper.from_array(np.full(1, number, dtype=dtype))
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
        # in version 3 each initializer must be an input too
        self.model.ir_version = max(self.model.ir_version, 4)
        set_nodes(self.proto, self.nodes)
        for domain in sorted({node.domain for node in all_nodes(self.nodes)}):
            if not any(o.domain == domain for o in self.model.opset_import):
                self.model.opset_import.append(helper.make_opsetid(domain, 1))
        return self.model


def operator_of(node: onnx.NodeProto) -> str:
    """An operator's name, with its domain if that is not ONNX's."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def describe(node: onnx.NodeProto) -> str:
    """An operator and its node, for a message."""
    return f"{operator_of(node)} (node {node.name!r})" if node.name else operator_of(node)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes by name, text as str."""
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


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
