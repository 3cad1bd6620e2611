"""Gradients of operators that move elements, or put elements in places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from xpgrad_onnx._graph import Graph
from xpgrad_onnx._rules.table import Backward, Grads, refuse, rule
from xpgrad_onnx._terms import Term


@rule("OptionalGetElement")
def _optional(call: Backward) -> Grads:
    """The gradient of a tensor; optionals are no tensors, and have no gradient."""
    return [call.dY]


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
    # an unwanted part needs a name, because Split needs as many parts as sizes
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


@rule("Slice")
def _slice(call: Backward) -> Grads:
    """If neighbours are read, the gradient stands among zeros."""
    graph, node = call.graph, call.node
    starts, axes, steps = (graph.value(call.input(k)) if call.input(k) else None for k in (1, 3, 4))
    computed = any(call.input(k) and value is None for k, value in ((1, starts), (3, axes), (4, steps)))
    shape = graph.shapes.get(node.input[0])
    if computed or starts is None or shape is None or (steps is not None and (steps != 1).any()):
        return _selection(call)
    places = range(starts.size) if axes is None else axes.reshape(-1)
    pairs = zip(places, starts.reshape(-1), strict=True)
    after = graph.shapes.get(node.output[0], (None,) * len(shape))
    return [_among_zeros(call, call.dY, {int(k) % len(shape): int(start) for k, start in pairs}, after)]


@rule("Gather")
def _gather(call: Backward) -> Grads:
    """One place, or neighbours, as a slice."""
    graph, places, shape = call.graph, call.graph.value(call.input(1)), call.graph.shapes.get(call.input(0))
    if shape is None or places is None or places.ndim > 1 or not places.size:
        return _selection(call)
    row = places.reshape(-1)
    if (np.diff(row) != 1).any() or row[0] < 0 <= row[-1]:
        return _selection(call)
    axis = call.attributes.get("axis", 0) % len(shape)
    dY = call.dY if places.ndim else graph.op("Unsqueeze", call.dY, graph.constant([axis]))
    return [_among_zeros(call, dY, {axis: int(row[0])}, (row.size,) * len(shape))]


def _among_zeros(call: Backward, dY: str, starts: Mapping[int, int], counts: Sequence[Any]) -> str:
    """The cotangent among zeros, in the first input's shape, from its start along some axes.

    Negative starts are from the end.
    """
    graph, X = call.graph, call.node.input[0]
    shape = graph.shapes[X]
    first = np.asarray([starts.get(k, 0) for k in range(len(shape))])
    if all(isinstance(n, int) for k in starts for n in (shape[k], counts[k])):
        pads = np.zeros((2, len(shape)), dtype=np.int64)
        for k in starts:
            zeros = shape[k] - counts[k]
            pads[0, k] = np.clip(first[k] + (shape[k] if first[k] < 0 else 0), 0, zeros)
            pads[1, k] = zeros - pads[0, k]
        return graph.op("Pad", dY, graph.constant(pads.reshape(-1))) if pads.any() else dY
    sizes = call.term(graph.op("Shape", X))
    before = sizes.of("Mul", graph.constant(first < 0)).of("Add", graph.constant(first))
    zeros = sizes.of("Sub", graph.op("Shape", dY))
    before = before.of("Max", graph.constant(0)).of("Min", zeros)
    return graph.op("Pad", dY, graph.op("Concat", before.name, zeros.of("Sub", before).name, axis=0))


@rule("DepthToSpace")
def _depth_to_space(call: Backward) -> Grads:
    """The inverse; in mode CRD the channels of a block are not in front but behind."""
    graph, block = call.graph, call.attributes["blocksize"]
    moved = graph.op("SpaceToDepth", call.dY, blocksize=block)
    if call.attributes.get("mode", "DCR") == "CRD":
        spatial = graph.op("Slice", graph.op("Shape", moved), graph.constant([2]), graph.constant([4]))
        apart = graph.op("Concat", graph.constant([0, block * block, -1]), spatial, axis=0)
        moved = graph.op("Transpose", graph.op("Reshape", moved, apart), perm=[0, 2, 1, 3, 4])
    return [graph.like(moved, call.node.input[0])]


@rule("SpaceToDepth")
def _space_to_depth(call: Backward) -> Grads:
    return [call.graph.op("DepthToSpace", call.dY, **call.attributes)]


@rule("GatherElements", "GatherND", "Tile", "Compress")
def _selection(call: Backward) -> Grads:
    """Operators that only pick elements: applied to the elements' numbers, they return each one's origin."""
    return _back_to_places(call, call.node, [0])


def _back_to_places(call: Backward, node: onnx.NodeProto, data: Sequence[int]) -> Grads:
    """`data` are the inputs whose elements are picked; these get consecutive numbers."""
    graph = call.graph
    zero, one = (graph.constant(number) for number in (0, 1))
    picked = onnx.NodeProto()
    picked.CopyFrom(node)
    ends = [zero]
    for k in data:
        ends.append(graph.op("Add", ends[-1], graph.op("Size", node.input[k])))
        picked.input[k] = graph.like(graph.op("Range", *ends[-2:], one), node.input[k])
    picked.output[:] = [graph.fresh("grad/places")]
    picked.name = ""
    graph.put(picked)
    total = added(call, ends[-1], picked.output[0], call.dY)
    grads: list[str | None] = [None] * len(node.input)
    rows = graph.constant([-1])
    for k, *bounds in zip(data, ends, ends[1:], strict=False):
        part = (
            total
            if len(data) == 1
            else graph.op("Slice", total, *(graph.op("Reshape", n, rows) for n in bounds))
        )
        grads[k] = graph.like(part, node.input[k])
    return grads


def added(call: Backward, size: str, places: str, dY: str) -> str:
    """Add the cotangent's elements to a row of zeros, at their places."""
    graph = call.graph
    if graph.opset < 16:
        what = f"a gradient that adds at places, and the model opset {graph.opset}"
        raise refuse(call.node, what, "16 at least")
    rows = graph.constant([-1])
    zeros = graph.zeros(graph.op("Reshape", size, rows))
    flat = (graph.op("Reshape", name, rows) for name in (places, dY))
    return graph.op("ScatterElements", zeros, *flat, axis=0, reduction="add")


def scattered(call: Backward, places: str) -> str:
    """Add the cotangent's elements at their places in the first input."""
    graph, X = call.graph, call.node.input[0]
    return graph.like(added(call, graph.op("Size", X), places, call.dY), X)


@rule("Unique")
def _unique(call: Backward) -> Grads:
    """The forward picks the first of equal elements."""
    graph, axis = call.graph, call.attributes.get("axis")
    places = graph.output(call.node, 1, "indices")
    if axis is None:
        return [scattered(call, places)]
    gather = onnx.helper.make_node("Gather", [call.node.input[0], places], [""], axis=axis)
    return _back_to_places(call, gather, [0])


@rule("Pad")
def _pad(call: Backward) -> Grads:
    """Crop padded constants; add padded copies of elements to their origins."""
    if call.attributes.get("mode", "constant") != "constant":
        return _back_to_places(call, call.node, [0])
    graph, pads = call.graph, call.node.input[1]
    grad = cropped(call.graph, call.dY, pads, call.input(3))
    known = graph.value(pads)
    if known is not None and known.min(initial=0) >= 0:
        return [grad]
    zero = graph.constant(0)  # the elements that negative pads cropped
    back = graph.op("Max", graph.op("Neg", pads), zero)
    return [graph.op("Pad", grad, back, *(["", call.input(3)] if call.input(3) else []))]


def cropped(graph: Graph, name: str, pads: str, axes: str = "") -> str:
    """A tensor without the positive pads at the ends of its axes."""
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


@rule("ScatterElements", "ScatterND", "TensorScatter")
def _scatter(call: Backward) -> Grads:
    """Written elements pass their cotangent to the updates; overwritten elements have no gradient."""
    node, reduction = call.node, call.attributes.get("reduction", "none")
    if reduction == "none":
        return _back_to_places(call, node, [0, 1 if node.op_type == "TensorScatter" else 2])
    where = {"axis": call.attributes.get("axis", 0)} if node.op_type == "ScatterElements" else {}
    gather = "GatherElements" if where else "GatherND"
    dY, X, Y = call.terms()
    indices, U = (call.term(name) for name in node.input[1:])

    def gathered(term: Term) -> Term:
        return term.of(gather, indices, **where)

    if reduction == "add":
        return [dY.name, None, gathered(dY).name]
    if reduction == "mul":  # no factor may be zero
        return [(dY * Y / X).name, None, (gathered(dY * Y) / U).name]
    old, new = (a.of("Equal", b).of("Cast", to=call.graph.kind) for a, b in ((X, Y), (U, gathered(Y))))
    share = dY / old.of(node.op_type, indices, new, reduction="add", **where)  # equal extremes share
    return [(share * old).name, None, (gathered(share) * new).name]
