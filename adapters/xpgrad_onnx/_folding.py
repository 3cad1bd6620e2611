"""Fold results that follow from known shapes, constants and fixed inputs, and remove decided conditions.

Floating-point tensors that are computed from a model's own numbers stay: these numbers may be parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from xpgrad_onnx._call import by_onnx
from xpgrad_onnx._facts import facts_of
from xpgrad_onnx._opsets import opset_of
from xpgrad_onnx._scopes import RANDOM, make_unique, reads, rename_inputs, set_nodes, subgraphs

_MOVING = frozenset((
    "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Identity", "Cast", "Transpose",
    "Split", "Expand", "Tile",
))  # fmt: skip
"""Operators that only move elements of their inputs: a result may be known in part."""
_NEVER = RANDOM | {"Loop", "Scan", "If", "SequenceMap", "Optional"}
_NUMBERS = 4096  # the most elements of a folded tensor; shapes and conditions are smaller
_ROUNDS = 20  # rounds, since folding reveals further shapes; nested conditions need a few


class Simplified(NamedTuple):
    """A folded model, and the model's own floating-point numbers."""

    model: onnx.ModelProto
    initializers: frozenset[str]
    constants: frozenset[str]
    """Numbers that were nodes, or initializers of branches."""


class Known(NamedTuple):
    """A tensor's value, and which of its elements are known."""

    value: np.ndarray
    mask: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether all elements are known."""
        return bool(np.all(self.mask))


def simplified(model: onnx.ModelProto, inputs: Mapping[str, Any], keep: Iterable[str]) -> Simplified:
    """The model without fixed inputs, nodes of constants, shape arithmetic and decided conditions.

    The model is changed. Nodes that compute a name in `keep`, or an output, stay.
    """
    for name, value in inputs.items():
        _fix(model.graph, name, value)
    make_unique(model)
    _correct_outputs(model)
    kept = {value.name for value in model.graph.output} | set(keep)
    given = {tensor.name for tensor in model.graph.initializer}
    _hoist_constants(model.graph)
    floats = {t.name for t in model.graph.initializer if _is_float(t.data_type)} - set(inputs)
    for _ in range(_ROUNDS):
        if not _Folding(model, kept, floats).changed:
            break
    _prune(model.graph, kept, given)
    return Simplified(model, frozenset(floats & given), frozenset(floats - given))


def _fix(graph: onnx.GraphProto, name: str, value: Any) -> None:
    """Make an input a constant."""
    info = next((i for i in graph.input if i.name == name), None)
    if info is None:
        known = ", ".join(i.name for i in graph.input)
        raise ValueError(f"gradient_model: inputs has {name!r}, expected inputs of the model: {known}")
    if info.type.WhichOneof("value") != "tensor_type":
        raise ValueError(f"gradient_model: inputs has {name!r}, which is no tensor, expected tensors")
    tensor = info.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    array = np.asarray(value)
    if array.dtype != dtype and not (
        np.can_cast(array.dtype, dtype, "same_kind") or (array.dtype.kind in "iu" and dtype.kind in "iuf")
    ):
        raise TypeError(f"gradient_model: inputs[{name!r}] has the dtype {array.dtype}, expected {dtype}")
    sizes = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    if tensor.HasField("shape") and (
        len(sizes) != array.ndim or any(s not in (None, n) for s, n in zip(sizes, array.shape, strict=True))
    ):
        raise ValueError(f"gradient_model: inputs[{name!r}] has the shape {array.shape}, expected {sizes}")
    graph.input.remove(info)
    for old in [t for t in graph.initializer if t.name == name]:
        graph.initializer.remove(old)
    with np.errstate(all="ignore"):
        taken = array.astype(dtype)
    if np.any(taken != array) if dtype.kind in "iu" else np.any(np.isfinite(array) & ~np.isfinite(taken)):
        raise ValueError(f"gradient_model: inputs[{name!r}] has values that {dtype} lacks, expected others")
    graph.initializer.append(numpy_helper.from_array(taken, name))


def _correct_outputs(model: onnx.ModelProto) -> None:
    """Correct outputs' ranks, which some files state wrongly, to the nodes' ranks."""
    tensors = [value.type.tensor_type for value in model.graph.output]
    said = [onnx.TensorShapeProto.FromString(tensor.shape.SerializeToString()) for tensor in tensors]
    known = [tensor.HasField("shape") for tensor in tensors]
    for tensor in tensors:
        tensor.ClearField("shape")
    shapes = facts_of(model)[1]
    for value, shape, was_known in zip(model.graph.output, said, known, strict=True):
        found = shapes.get(value.name)
        if was_known and (found is None or len(found) == len(shape.dim)):
            value.type.tensor_type.shape.CopyFrom(shape)


def _hoist_constants(graph: onnx.GraphProto) -> None:
    """Make every Constant, and initializers of subgraphs, an initializer of the model."""

    def take(inner: onnx.GraphProto, outer: bool) -> None:
        if not outer:
            graph.initializer.extend(inner.initializer)
            del inner.initializer[:]
        rest = []
        for node in inner.node:
            tensor = constant_of(node)
            if tensor is not None and not _is_output(inner, node.output[0]):
                graph.initializer.append(tensor)
            else:
                rest.append(node)
            for branch in subgraphs(node):
                take(branch, False)
        set_nodes(inner, rest)

    take(graph, True)


def _is_output(graph: onnx.GraphProto, name: str) -> bool:
    return any(value.name == name for value in graph.output)


def constant_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor of a Constant node; None for another node, text, or a sparse tensor."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = node.output[0]
        return tensor
    if attribute.name in ("value_float", "value_floats", "value_int", "value_ints"):
        dtype = np.float32 if "float" in attribute.name else np.int64
        value = np.asarray(helper.get_attribute_value(attribute), dtype=dtype)
        return numpy_helper.from_array(value, node.output[0])
    return None


class _Folding:
    """One round: from the beginning to the end, with the shapes that onnx infers."""

    def __init__(self, model: onnx.ModelProto, kept: set[str], floats: set[str]) -> None:
        self.graph, self.kept = model.graph, kept
        self.opset = opset_of(model) or 0
        self.types, self.shapes = facts_of(model)
        self.known: dict[str, Known] = {}
        self.own = set(floats)
        """Floating-point numbers of the model, and tensors that are computed from them."""
        # since version 4 an initializer that is an input too is a default, which a caller may replace
        defaults = {value.name for value in self.graph.input} if model.ir_version >= 4 else set()
        for tensor in self.graph.initializer:
            if tensor.name in defaults:
                continue
            if np.prod(tensor.dims) <= _NUMBERS and tensor.data_type != onnx.TensorProto.STRING:
                self.know(tensor.name, numpy_helper.to_array(tensor))
        self.changed = False
        self.block(self.graph)

    def know(self, name: str, value: np.ndarray) -> None:
        self.known[name] = Known(value, np.ones(value.shape, dtype=np.int64))

    def block(self, graph: onnx.GraphProto) -> None:
        """Fold a graph's nodes; a decided condition becomes its branch."""
        waiting = list(graph.node)
        done: list[onnx.NodeProto] = []
        while waiting:
            node = waiting.pop(0)
            condition = self.known.get(node.input[0]) if node.op_type == "If" else None
            if condition is not None and condition.whole:
                waiting[:0] = _branch(node, bool(condition.value.all()))
                self.changed = True
                continue
            for inner in subgraphs(node):
                self.block(inner)
            self.evaluate(node)
            if not self.replaced(graph, node):
                done.append(node)
        set_nodes(graph, done)

    def evaluate(self, node: onnx.NodeProto) -> None:
        """Note the known elements of a node's results."""
        names = [name for name in reads(node) if name]
        if not self.own.isdisjoint(names):
            self.own.update(name for name in node.output if _is_float(self.types.get(name)))
        if node.domain not in ("", "ai.onnx") or node.op_type in _NEVER or len(node.output) == 0:
            return
        if node.op_type == "Shape":
            self.shape(node)
            return
        if node.op_type == "Size":
            sizes = self.shapes.get(node.input[0])
            known = [n for n in sizes or () if isinstance(n, int)]
            if sizes is not None and len(known) == len(sizes):
                self.know(node.output[0], np.asarray(np.prod(known), dtype=np.int64))
            return
        if not all(name in self.known for name in names) or any(subgraphs(node)):
            return
        if all(self.known[name].whole for name in names):
            for name, value in zip(node.output, self.run(node, "value"), strict=False):
                if isinstance(value, np.ndarray | np.generic) and value.size <= _NUMBERS:
                    self.know(name, np.asarray(value))
        elif node.op_type in _MOVING:
            self.moved(node)

    def shape(self, node: onnx.NodeProto) -> None:
        sizes = self.shapes.get(node.input[0])
        if sizes is None:
            return
        attributes = {a.name: a.i for a in node.attribute}
        part = sizes[attributes.get("start", 0) : attributes.get("end", len(sizes))]
        value = np.asarray([n if isinstance(n, int) else 0 for n in part], dtype=np.int64)
        mask = np.asarray([int(isinstance(n, int)) for n in part], dtype=np.int64)
        self.known[node.output[0]] = Known(value, mask)

    def moved(self, node: onnx.NodeProto) -> None:
        """Move the elements and their known marks by the same operator."""
        data = set(node.input) if node.op_type == "Concat" else {node.input[0]}
        if not all(self.known[name].whole for name in node.input if name and name not in data):
            return
        results = zip(self.run(node, "value"), self.run(node, "mask", data), strict=True)
        for name, (value, mask) in zip(node.output, results, strict=False):
            self.known[name] = Known(np.asarray(value), np.asarray(mask))

    def run(self, node: onnx.NodeProto, part: str, data: set[str] | None = None) -> Sequence[Any]:
        """The node's results; none if onnx's evaluator cannot compute them."""
        feeds = {}
        for name in node.input:
            if name:
                masked = data is not None and name in data
                feeds[name] = getattr(self.known[name], part if masked else "value")
        try:
            return by_onnx(node, feeds, self.opset)
        except Exception:  # it raises any exception for a missing operator
            return ()

    def replaced(self, graph: onnx.GraphProto, node: onnx.NodeProto) -> bool:
        """Replace a node by its known results; floats computed from the model's own numbers stay."""
        names = [name for name in node.output if name]
        if not names or not all(name in self.known and self.known[name].whole for name in names):
            return False
        if any(name in self.kept or name in self.own or _is_output(graph, name) for name in names):
            return False
        for name in names:
            self.graph.initializer.append(numpy_helper.from_array(self.known[name].value, name))
        self.changed = True
        return True


def _is_float(kind: int | None) -> bool:
    return kind is None or helper.tensor_dtype_to_np_dtype(kind).kind not in "biuOSU"


def _branch(node: onnx.NodeProto, condition: bool) -> list[onnx.NodeProto]:
    """The nodes of the branch that a condition takes, with the results' names of the `If`."""
    wanted = "then_branch" if condition else "else_branch"
    graph = next(a.g for a in node.attribute if a.name == wanted)
    nodes = list(graph.node)
    inside = {name for inner in nodes for name in inner.output}
    names: dict[str, str] = {}
    copies = []
    for value, result in zip(graph.output, node.output, strict=True):
        if not result:
            continue
        if value.name in inside and value.name not in names:
            names[value.name] = result
        else:
            copies.append(helper.make_node("Identity", [names.get(value.name, value.name)], [result]))
    for inner in nodes:
        inner.output[:] = [names.get(name, name) for name in inner.output]
    rename_inputs(nodes, names)
    return [*nodes, *copies]


def _prune(graph: onnx.GraphProto, kept: set[str], given: set[str]) -> None:
    """Remove nodes that are no longer needed, and new constants that nothing reads."""
    needed = set(kept)
    nodes = []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(reads(node))
            nodes.append(node)
    set_nodes(graph, reversed(nodes))
    tensors = [t for t in graph.initializer if t.name in needed or t.name in given]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
