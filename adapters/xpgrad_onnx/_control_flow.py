"""Gradients of operators with subgraphs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from xpgrad_onnx._graph import Graph
from xpgrad_onnx._reverse import Parts, accumulate, path, total
from xpgrad_onnx._rules.table import Backward, Grads, rule
from xpgrad_onnx._scopes import reads, rename_inputs, subgraphs


@rule("If")
def _if(call: Backward) -> Grads:
    """The branch that was taken runs again, and its gradients behind it."""
    graph, node = call.graph, call.node
    names = reads(node)
    wanted = [name for name, want in zip(names, call.wanted, strict=True) if want]
    branches = {
        attribute.name: _branch(graph, attribute.g, call.cotangents, wanted) for attribute in node.attribute
    }
    outputs = [graph.fresh("grad/If") for _ in wanted]
    graph.put(helper.make_node("If", [node.input[0]], outputs, **branches))
    grads = dict(zip(wanted, outputs, strict=True))
    return [grads.get(name) for name in names]


def _branch(
    graph: Graph, branch: onnx.GraphProto, cotangents: Sequence[str | None], wanted: Sequence[str]
) -> onnx.GraphProto:
    """A branch of the gradient: an output for each wanted tensor."""
    inner = graph.inner()
    names = run_again(inner, branch)
    ends = [names.get(value.name, value.name) for value in branch.output]
    parts: Parts = {}
    for end, cotangent in zip(ends, cotangents, strict=True):
        if cotangent:
            parts.setdefault(end, []).append(cotangent)
    accumulate(inner, path(inner, list(inner.nodes), parts, wanted), parts)
    return _returning(inner, branch.name, [(name, total(inner, parts, name)) for name in wanted])


def run_again(inner: Graph, body: onnx.GraphProto) -> dict[str, str]:
    """Append a copy of a body's nodes; returns the new names of what they compute."""
    nodes = []
    names: dict[str, str] = {}
    for node in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        nodes.append(copy)
        _rename(inner, copy, names)
    rename_inputs(nodes, names)
    inner.nodes.extend(nodes)
    return names


def _rename(inner: Graph, node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Give results new names, at every depth."""
    for graph in subgraphs(node):
        for value in graph.input:
            value.name = _renamed(inner, value.name, names)
        for deeper in graph.node:
            _rename(inner, deeper, names)
        del graph.value_info[:]
    node.output[:] = [_renamed(inner, name, names) for name in node.output]


def _renamed(inner: Graph, name: str, names: dict[str, str]) -> str:
    if not name:
        return ""
    new = names[name] = inner.fresh(f"grad/{name}")
    if name in inner.types:
        inner.types[new] = inner.types[name]
    if name in inner.shapes:
        inner.shapes[new] = inner.shapes[name]
    return new


def _returning(inner: Graph, name: str, results: Sequence[tuple[str, str | None]]) -> onnx.GraphProto:
    """The graph of a branch; each result is the gradient of a tensor, zeros if there is none."""
    outputs = []
    for source, grad in results:
        kind = inner.types.get(source, onnx.TensorProto.FLOAT)
        inner.dtype = helper.tensor_dtype_to_np_dtype(kind)
        grad = grad or inner.zeros(inner.op("Shape", source))
        result = inner.op("Identity", grad)
        outputs.append(helper.make_tensor_value_info(result, kind, inner.shapes.get(source)))
    return helper.make_graph(inner.nodes, f"{name}_grad", [], outputs)
