"""Training graphs of ONNX's own operators: kernels write the nodes of all other operators.

The kernels run on arrays that stand for the graph's tensors (`_arrays`), with their own engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import xpgrad
from xpgrad_onnx import _namespace as xp
from xpgrad_onnx._arrays import GraphArray, Scope, current, used
from xpgrad_onnx._call import MICROSOFT, Definition, NodeCall
from xpgrad_onnx._folding import simplified
from xpgrad_onnx._graph import Graph, attributes_of, describe
from xpgrad_onnx._operators import DEFINITIONS
from xpgrad_onnx._scopes import all_nodes, name_results, reads, set_nodes, subgraphs
from xpgrad_onnx._sizes import Size, symbol

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_RECURRENT = ("GRU", "LSTM", "RNN")  # not every runtime has their lengths, directions and activations


def standardize(graph: Graph) -> None:
    """Replace the nodes of other domains in a graph by nodes of ONNX's.

    Raises
    ------
    ValueError
        For operators of another domain that no kernel computes; the message names all of them.
    """
    outputs = [value.name for value in graph.proto.output]
    graph.nodes = used(graph.nodes, outputs)
    unknown = [describe(node) for node in all_nodes(graph.nodes) if _definition(node) is _UNKNOWN]
    if unknown:
        raise ValueError(
            f"gradient_model: the model has {', '.join(dict.fromkeys(unknown))}, expected operators of ONNX, "
            "or of those that xpgrad_onnx.operators has, for a standard graph"
        )
    scope = Scope(graph.opset, graph.fresh, graph.proto.initializer.append)
    with xpgrad.use_engine(None):
        _Translation(graph, scope).run()
    graph.nodes = used(scope.nodes, outputs)
    _drop_domains(graph.model)


_UNKNOWN = object()


def _definition(node: onnx.NodeProto) -> Any:
    """The function of a node of another domain; None for ONNX's own."""
    domain = "" if node.domain in _STANDARD else node.domain
    if domain == "" and node.op_type not in _RECURRENT:
        return None
    key = domain, node.op_type
    if key in _SPECIAL:
        return _SPECIAL[key]
    return next((d for d in DEFINITIONS if (d.domain, d.name) == key), _UNKNOWN)


def _drop_domains(model: onnx.ModelProto) -> None:
    kept = [opset for opset in model.opset_import if opset.domain in _STANDARD]
    del model.opset_import[:]
    model.opset_import.extend(kept)


class _Translation:
    """Puts the nodes of a graph or a subgraph into a scope, in order."""

    def __init__(self, graph: Graph, scope: Scope) -> None:
        self._graph, self._scope = graph, scope
        self._made: dict[str, GraphArray] = {}
        self._places: dict[str, Scope] = {}  # of tensors in branches and bodies
        for value in graph.proto.input:  # symbols are best read from their axes
            if value.name in graph.shapes:
                self._array(value.name)

    def run(self) -> None:
        """Translate all nodes."""
        self._nodes(self._graph.nodes, self._scope)

    def _nodes(self, nodes: Sequence[onnx.NodeProto], scope: Scope) -> None:
        for node in nodes:
            definition = _definition(node)
            if definition is not None:
                with scope.active():
                    self._translate(node, definition, scope)
                continue
            self._subgraphs(node, scope)
            scope.nodes.append(node)
            self._places.update(dict.fromkeys(node.output, scope))

    def _subgraphs(self, node: onnx.NodeProto, scope: Scope) -> None:
        for graph in subgraphs(node):
            if any(_definition(inner) is not None for inner in all_nodes(graph.node)):
                body = scope.inner()
                self._places.update((value.name, body) for value in graph.input)
                self._nodes(list(graph.node), body)
                set_nodes(graph, used(body.nodes, [value.name for value in graph.output]))

    def _array(self, name: str) -> GraphArray:
        """The array of a tensor by name."""
        if name not in self._made:
            kind, shape = self._known(name)
            dtype = helper.tensor_dtype_to_np_dtype(kind) if kind else self._graph.dtype
            place = self._places.get(name, self._scope)
            self._made[name] = place.tensor(name, dtype, self._sizes(name, shape))
        return self._made[name]

    def _known(self, name: str) -> tuple[int | None, Sequence[Any]]:
        """The type and the shape of a tensor of the graph."""
        graph = self._graph
        if name in graph.shapes:
            return graph.types.get(name), graph.shapes[name]
        for tensor in graph.proto.initializer:
            if tensor.name == name:
                return tensor.data_type, tuple(tensor.dims)
        if name in graph.cotangents:
            like = self._array(graph.cotangents[name])
            return helper.np_dtype_to_tensor_dtype(like.dtype), like.shape
        shape = self._inferred(name)
        if shape is None:
            raise ValueError(
                f"gradient_model: the rank of {name!r} is unknown, expected one for a standard graph: "
                "give the model's inputs shapes"
            )
        return graph.types.get(name), shape

    def _inferred(self, name: str) -> Sequence[Any] | None:
        """The shape that onnx infers for a tensor that a rule made before an operator."""
        around: Scope | None = self._places.get(name, self._scope)
        known_nodes: list[onnx.NodeProto] = []
        while around is not None:
            known_nodes[:0] = [n for n in around.nodes if not set(n.output) <= self._made.keys()]
            around = around.parent
        nodes = used(known_nodes, [name])
        needed = {operand for node in nodes for operand in reads(node)}
        here = {made for node in nodes for made in node.output}
        given = {value.name: value for value in self._graph.proto.input}
        for known in needed & self._made.keys() - here - given.keys():
            array = self._made[known]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            sizes = [size if isinstance(size, int) else None for size in array.shape]
            given[known] = helper.make_tensor_value_info(known, kind, sizes)
        part = helper.make_graph(
            nodes,
            "part",
            [value for known, value in given.items() if known in needed],
            [helper.make_empty_tensor_value_info(name)],
            [tensor for tensor in self._graph.proto.initializer if tensor.name in needed],
        )
        model = helper.make_model(part, opset_imports=self._graph.model.opset_import)
        model = simplified(model, {}, [name]).model
        found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output[0].type.tensor_type
        if not found.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else None for d in found.shape.dim]

    def _sizes(self, name: str, shape: Iterable[Any]) -> list[int | Size]:
        """Sizes as kernels take them; a size without a name gets the name of the tensor's axis.

        Only different names of inputs' sizes mean different sizes: outputs may give one size several names.
        """
        sizes: list[int | Size] = []
        for axis, given in enumerate(shape):
            if isinstance(given, int | Size):
                sizes.append(given)
            else:
                sizes.append(symbol(given or f"{name}.{axis}", inferred=given not in self._graph.named_sizes))
        return sizes

    def _translate(self, node: onnx.NodeProto, definition: Any, scope: Scope) -> None:
        """Let a kernel write the nodes of a node of another domain."""
        before = len(scope.nodes)
        arrays = zip(self._outputs(node, definition), node.output, strict=False)
        outputs = [(array, name) for array, name in arrays if name]
        results = [(array.name, name) for array, name in outputs]
        scope.nodes += name_results(scope.nodes[before:], results)
        for array, name in outputs:
            self._made[name] = scope.tensor(name, array.dtype, array.shape)

    def _outputs(self, node: onnx.NodeProto, definition: Any) -> Sequence[Any]:
        if not isinstance(definition, Definition):
            return definition(node)
        names = [name.removesuffix("?") for name in definition.inputs]
        given = {o: self._array(name) for o, name in zip(names, node.input, strict=False) if name}
        wanted = frozenset(o for o, name in zip(definition.outputs, node.output, strict=False) if name)
        attributes = attributes_of(node)
        given |= _of_batch(given, attributes.get("layout", 0))
        call = NodeCall(definition.name, given, attributes, wanted, self._graph.opset, True)
        return definition.compute(call)


def _of_batch(given: dict[str, GraphArray], layout: int) -> dict[str, GraphArray]:
    """A recurrent operator's lengths and initial states, with the batch of X: their own names may differ."""
    places = {"sequence_lens": 0, "initial_h": 1 - layout, "initial_c": 1 - layout}
    found = {}
    for name in places.keys() & given.keys():
        array, axis, size = given[name], places[name], given["X"].shape[1 - layout]
        if isinstance(size, Size) or isinstance(array.shape[axis], Size):
            shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
            found[name] = GraphArray(array.scope, array.dtype, shape, array.name)
    return found


# --- operators without a kernel on arrays of numbers --------------------------------------------------------


def _broadcast_axes(node: onnx.NodeProto) -> list[GraphArray]:
    """The axes along which a tensor of the first shape was broadcast to the second, of unknown ranks."""
    scope = current()
    mine, theirs = (GraphArray(scope, np.dtype(np.int64), (symbol(n, True),), n) for n in node.input)
    ranks = [scope.emit("Shape", [shape], np.int64, (1,))[0] for shape in (mine, theirs)]
    rank = xp.maximum(*ranks)
    one, like = scope.constant([1], np.int64), (symbol(f"{node.name}.rank", True),)
    padded = []
    for shape, own in zip((mine, theirs), ranks, strict=True):
        lead = scope.emit("Expand", [one, rank - own], np.int64, like)[0]
        padded.append(scope.emit("Concat", [lead, shape], np.int64, like, axis=0)[0])
    a, b = padded

    def places(narrow: GraphArray, wide: GraphArray) -> GraphArray:
        (found,) = scope.emit("NonZero", [(narrow == 1) & (wide != 1)], np.int64, (1, *like))
        return scope.emit("Reshape", [found, scope.constant([-1], np.int64)], np.int64, like)[0]

    return [places(a, b), places(b, a)]


_SPECIAL = {(MICROSOFT, "BroadcastGradientArgs"): _broadcast_axes}
