"""Gradients of operators that move elements, or put elements in places."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from xpgrad_onnx._graph import Graph
from xpgrad_onnx._rules.table import Backward, Grads, refuse, rule


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(call: Backward) -> Grads:
    return [call.graph.like(call.dY, call.node.input[0])]


@rule("Transpose")
def _transpose(call: Backward) -> Grads:
    perm = call.attributes.get("perm")
    back: dict[str, Any] = {} if perm is None else {"perm": [int(k) for k in np.argsort(perm)]}
    return [call.graph.op("Transpose", call.dY, **back)]


@rule("Concat")
def _concat(call: Backward) -> Grads:
    graph, node, axis = call.graph, call.node, call.attributes["axis"]
    place = graph.constant([axis])

    def size(name: str) -> str:
        shape = graph.op("Shape", name)
        index = place if axis >= 0 else graph.op("Add", place, graph.op("Shape", shape))
        return graph.op("Gather", shape, index)

    sizes = graph.op("Concat", *map(size, node.input), axis=0)
    # an unwanted part needs a name, so that there are as many parts as sizes
    parts = graph.ops("Split", call.dY, sizes, wanted=[True] * len(node.input), axis=axis)
    return [part if want else None for part, want in zip(parts, call.wanted, strict=True)]


@rule("Split")
def _split(call: Backward) -> Grads:
    graph = call.graph
    parts = [
        cotangent or graph.zeros(graph.op("Shape", graph.output(call.node, k, f"part_{k}")))
        for k, cotangent in enumerate(call.cotangents)
    ]
    return [graph.op("Concat", *parts, axis=call.attributes.get("axis", 0))]


@rule("Expand")
def _expand(call: Backward) -> Grads:
    shape = call.graph.shapes.get(call.node.output[0])
    return [call.graph.summed_to(call.dY, shape, call.node.input[0])]


@rule("ReverseSequence")
def _reverse_sequence(call: Backward) -> Grads:
    return [call.graph.op("ReverseSequence", call.dY, call.node.input[1], **call.attributes)]


@rule("Trilu")
def _trilu(call: Backward) -> Grads:
    return [call.graph.op("Trilu", call.dY, *call.node.input[1:], **call.attributes)]


@rule("Slice", "Gather", "GatherElements", "GatherND", "Tile", "DepthToSpace", "SpaceToDepth", "Compress")
def _selection(call: Backward) -> Grads:
    """Operators that only pick elements: applied to the elements' places, they show the origin of each."""
    return [_back_to_places(call, call.node)]


def _back_to_places(call: Backward, node: onnx.NodeProto) -> str:
    graph, X = call.graph, node.input[0]
    zero, one = (graph.constant(number) for number in (0, 1))
    numbers = graph.op("Range", zero, graph.op("Size", X), one)
    picked = onnx.NodeProto()
    picked.CopyFrom(node)
    picked.input[0] = graph.like(numbers, X)
    picked.output[:] = [graph.fresh("grad/places")]
    picked.name = ""
    graph.put(picked)
    return scattered(call, picked.output[0], call.dY)


def scattered(call: Backward, places: str, dY: str) -> str:
    """Add the cotangent's elements at their places in the first input."""
    graph, X = call.graph, call.node.input[0]
    if graph.opset < 16:
        what = f"a gradient that adds at places, and the model opset {graph.opset}"
        raise refuse(call.node, what, "16 at least")
    rows = graph.constant([-1])
    zeros = graph.zeros(graph.op("Reshape", graph.op("Size", X), rows))
    flat = (graph.op("Reshape", name, rows) for name in (places, dY))
    return graph.like(graph.op("ScatterElements", zeros, *flat, axis=0, reduction="add"), X)


@rule("Unique")
def _unique(call: Backward) -> Grads:
    """The first of equal elements is the one that was picked."""
    graph, axis = call.graph, call.attributes.get("axis")
    places = graph.output(call.node, 1, "indices")
    if axis is None:
        return [scattered(call, places, call.dY)]
    gather = onnx.helper.make_node("Gather", [call.node.input[0], places], [""], axis=axis)
    return [_back_to_places(call, gather)]


@rule("Pad")
def _pad(call: Backward) -> Grads:
    """Constants are cropped; copies of elements are added where they come from."""
    if call.attributes.get("mode", "constant") != "constant":
        return [_back_to_places(call, call.node)]
    graph, pads = call.graph, call.node.input[1]
    grad = cropped(call.graph, call.dY, pads, call.input(3))
    known = graph.value(pads)
    if known is not None and known.min(initial=0) >= 0:
        return [grad]
    zero = graph.constant(0)  # what negative pads cropped
    back = graph.op("Max", graph.op("Neg", pads), zero)
    return [graph.op("Pad", grad, back, *(["", call.input(3)] if call.input(3) else []))]


def cropped(graph: Graph, name: str, pads: str, axes: str = "") -> str:
    """A tensor without positive pads at its axes' begins and ends."""
    rows = graph.op("Reshape", graph.op("Max", pads, graph.constant(0)), graph.constant([2, -1]))
    begins, ends = (graph.op("Gather", rows, graph.constant(k)) for k in (0, 1))
    sizes = graph.op("Shape", name)
    if axes:
        sizes = graph.op("Gather", sizes, axes)
    return graph.op("Slice", name, begins, graph.op("Sub", sizes, ends), axes)


@rule("TopK")
def _top_k(call: Backward) -> Grads:
    graph, X = call.graph, call.node.input[0]
    indices = graph.output(call.node, 1, "indices")
    zeros = graph.zeros(graph.op("Shape", X))
    axis = call.attributes.get("axis", -1)
    return [graph.op("ScatterElements", zeros, indices, call.dY, axis=axis)]


@rule("ScatterElements", "ScatterND")
def _scatter(call: Backward) -> Grads:
    """What was written is gathered; what was overwritten has no gradient."""
    graph, node, attributes = call.graph, call.node, call.attributes
    reduction = attributes.get("reduction", "none")
    if reduction not in ("none", "add"):
        raise refuse(node, f"reduction {reduction!r}", "'none' or 'add'")
    _, indices, updates = node.input
    where = {"axis": attributes.get("axis", 0)} if node.op_type == "ScatterElements" else {}
    dX: str | None = call.dY
    if call.wants(0) and reduction == "none":
        zeros = graph.zeros(graph.op("Shape", updates))
        dX = graph.op(node.op_type, call.dY, indices, zeros, **where)
    gather = "GatherElements" if where else "GatherND"
    taken = graph.op(gather, call.dY, indices, **where) if call.wants(2) else None
    return [dX, None, taken]
