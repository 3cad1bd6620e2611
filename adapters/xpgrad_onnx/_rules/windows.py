"""Gradients of convolutions, pooling and resizing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from xpgrad_onnx._call import MICROSOFT
from xpgrad_onnx._graph import Graph
from xpgrad_onnx._operators import DOMAIN
from xpgrad_onnx._rules.moves import added, cropped, scattered
from xpgrad_onnx._rules.reductions import spread_mean
from xpgrad_onnx._rules.table import Backward, Grads, refuse, rule
from xpgrad_onnx._terms import Term


def _is_same(attributes: dict[str, Any]) -> bool:
    """ONNX Runtime's gradient ignores this padding."""
    return str(attributes.get("auto_pad", "NOTSET")).startswith("SAME")


@rule("Conv", "ConvTranspose")
def _convolution(call: Backward) -> Grads:
    attributes = call.attributes
    ours = _is_same(attributes) or "output_shape" in attributes
    return call.graph.ops(
        f"{call.node.op_type}Grad", call.dY, *call.node.input[:2],
        wanted=list(call.wanted), domain=DOMAIN if ours else MICROSOFT, **attributes,
    )  # fmt: skip


@rule("AveragePool")
def _average_pool(call: Backward) -> Grads:
    """A depthwise convolution with equal weights; each channel of a sample is treated as a sample."""
    graph, attributes = call.graph, call.attributes
    kernel = attributes["kernel_shape"]
    weights = graph.constant(np.ones((1, 1, *kernel)), graph.dtype)
    X, dY = (_single_channels(graph, name) for name in (call.node.input[0], call.dY))
    with_padding = attributes.pop("count_include_pad", 0)
    if attributes.pop("ceil_mode", 0):
        return [_average_pool_of_whole_windows(call, X, dY, weights, with_padding)]
    ones = graph.filled(graph.op("Shape", X), 1)
    counts = graph.op("Conv", ones, weights, **attributes)
    share = graph.op("Div", dY, graph.number(float(np.prod(kernel))) if with_padding else counts)
    domain = DOMAIN if _is_same(attributes) else MICROSOFT
    dX = graph.op("ConvGrad", share, X, weights, domain=domain, **attributes)
    return [graph.like(dX, call.node.input[0])]


def _average_pool_of_whole_windows(call: Backward, X: str, dY: str, weights: str, with_padding: int) -> str:
    """Pad the input to the end of the last window, which may lie after the padding."""
    graph, attributes = call.graph, call.attributes
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise refuse(call.node, f"ceil_mode 1 and auto_pad {attributes['auto_pad']!r}", "pads")
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    windows = call.term(_spatial(graph, dY)).of("Sub", graph.constant([1] * rank))
    whole = windows.of("Mul", graph.constant(strides)).of("Add", graph.constant(reach))
    sizes = call.term(_spatial(graph, X)).of("Add", graph.constant(pads[:rank]))
    zeros, begins = graph.constant([0, 0]), graph.constant(pads[:rank])
    behind = whole.of("Sub", sizes).of("Max", graph.constant(0))
    ones = graph.filled(graph.op("Shape", X), 1)
    if with_padding:  # it counts as data, but places after it do not
        ends = behind.of("Min", graph.constant(pads[rank:]))
        around = graph.op("Concat", zeros, begins, zeros, ends.name, axis=0)
        ones = graph.op("Pad", ones, around, graph.number(1))
        rest = behind.of("Sub", ends).name
        ones = graph.op(
            "Pad", ones, graph.op("Concat", zeros, graph.constant([0] * rank), zeros, rest, axis=0)
        )
    around = graph.op("Concat", zeros, begins, zeros, behind.name, axis=0)
    if not with_padding:
        ones = graph.op("Pad", ones, around)
    steps = {"strides": strides, "dilations": dilations}
    share = graph.op("Div", dY, graph.op("Conv", ones, weights, **steps))
    dX = graph.op("ConvGrad", share, ones, weights, domain=MICROSOFT, **steps)
    return graph.like(cropped(graph, dX, around), call.node.input[0])


def _spatial(graph: Graph, name: str) -> str:
    """The sizes of spatial axes."""
    last = graph.constant([np.iinfo(np.int64).max])
    return graph.op("Slice", graph.op("Shape", name), graph.constant([2]), last)


def _single_channels(graph: Graph, name: str) -> str:
    """(N, C, ...) as (N C, 1, ...)."""
    sizes = graph.op("Concat", graph.constant([-1, 1]), _spatial(graph, name), axis=0)
    return graph.op("Reshape", name, sizes)


@rule("MaxPool")
def _max_pool(call: Backward) -> Grads:
    graph, node, attributes = call.graph, call.node, call.attributes
    if attributes.pop("storage_order", 0):  # only without storage_order the indices are places in memory
        places = graph.ops("MaxPool", node.input[0], wanted=[True, True], **attributes)[1]
    else:
        places = graph.output(node, 1, "indices")
    return [scattered(call, str(places))]


@rule("MaxUnpool")
def _max_unpool(call: Backward) -> Grads:
    """Unpool the elements' numbers, from 1 on, to find the place of each; 0 is an empty place.

    Not all runtimes unpool other types than float32, which has all numbers below 2 ** 24: they go in parts.
    """
    graph, X = call.graph, call.term(call.node.input[0])
    one = graph.constant(1)
    count = X.of("Size").of("Add", one).name
    numbers = graph.like(graph.op("Range", one, count, one), X.name)
    radix = graph.constant(1 << 20)

    def unpooled(part: str) -> Any:
        found = call.term(numbers).of(part, radix).of("Cast", to=onnx.TensorProto.FLOAT)
        found = found.of("MaxUnpool", *call.node.input[1:], **call.attributes)
        return found.of("Cast", to=onnx.TensorProto.INT64)

    put = unpooled("Div").of("Mul", radix).of("Add", unpooled("Mod").name)
    total = added(call, count, put.name, call.dY)
    first, last = graph.constant([1]), graph.constant([np.iinfo(np.int64).max])
    return [graph.like(graph.op("Slice", total, first, last), X.name)]


@rule("GlobalAveragePool")
def _global_average_pool(call: Backward) -> Grads:
    return [spread_mean(call, call.term(call.dY))]


@rule("GlobalMaxPool")
def _global_max_pool(call: Backward) -> Grads:
    """The whole cotangent goes to the first of equal maxima, as with MaxPool."""
    graph, X = call.graph, call.node.input[0]
    rows = graph.op("Reshape", X, graph.constant([0, 0, -1]))
    first = graph.op("ArgMax", rows, axis=2, keepdims=1)
    length = graph.op("Gather", graph.op("Shape", rows), graph.constant(2))
    places = graph.op("Range", graph.constant(0), length, graph.constant(1))
    share = graph.op("Reshape", call.dY, graph.constant([0, 0, 1]))
    dX = graph.op("Where", graph.op("Equal", places, first), share, graph.number(0))
    return [graph.like(dX, X)]


@rule("Col2Im")
def _columns_to_image(call: Backward) -> Grads:
    """Its blocks are the windows of a convolution with one weight for each place of a block."""
    graph, X = call.graph, call.node.input[0]
    block = graph.value(call.node.input[2])
    if block is None:
        raise refuse(call.node, "a block_shape that is computed", "a constant")
    count = int(np.prod(block))
    weights = graph.constant(np.eye(count).reshape(count, 1, *(int(n) for n in block)), graph.dtype)
    columns = graph.op("Conv", _single_channels(graph, call.dY), weights, **call.attributes)
    return [graph.like(columns, X)]


@rule("Resize")
def _resize(call: Backward) -> Grads:
    """One axis after the other: the resized unit matrix holds the weights of an axis."""
    graph, node, attributes = call.graph, call.node, call.attributes
    policy = attributes.pop("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise refuse(node, f"keep_aspect_ratio_policy {policy!r}", "'stretch'")
    X, rank = node.input[0], graph.rank(node.input[0], node)
    axes = [k % rank for k in attributes.pop("axes", range(rank))]
    before, after = graph.shapes[X], graph.shapes.get(node.output[0], (None,) * rank)
    attributes["extrapolation_value"] = 0.0
    dX = call.term(call.dY)
    scales = graph.value(call.input(2)) if call.input(2) else None
    if call.input(3):
        scales = np.ones(len(axes))  # they may be an empty tensor
    for place, axis in enumerate(axes):
        is_scaled = scales is None or scales[place] != 1  # to the same size too, as by 1.3
        if isinstance(before[axis], int) and before[axis] == after[axis] and not (call.input(1) or is_scaled):
            continue
        last = [*(k for k in range(rank) if k != axis), axis]
        weights = _axis_weights(call, place, axis, len(axes), attributes)
        dX = dX.of("Transpose", perm=last).of("MatMul", weights)
        dX = dX.of("Transpose", perm=[int(k) for k in np.argsort(last)])
    return [dX.name]


def _axis_weights(call: Backward, place: int, axis: int, count: int, attributes: dict[str, Any]) -> Term:
    """The matrix (size after, size before) of one axis."""
    graph = call.graph
    index, one = graph.constant([place]), graph.constant([1])
    size = graph.op("Gather", graph.op("Shape", call.node.input[0]), graph.constant([axis]))
    eye = graph.op("EyeLike", graph.zeros(graph.op("Concat", size, size, axis=0)))
    _, roi, scales, sizes = [*call.node.input, "", "", ""][:4]
    operands = ["", "", ""]
    if roi and attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        kind = call.graph.types.get(roi, onnx.TensorProto.FLOAT)
        first, last = (graph.op("Gather", roi, graph.constant([k])) for k in (place, count + place))
        low, high = (graph.op("Cast", graph.constant([k]), to=kind) for k in (0, 1))
        operands[0] = graph.op("Concat", first, low, last, high, axis=0)
    if sizes:
        after = graph.op("Gather", sizes, index)
        operands[2] = graph.op("Concat", after, size, axis=0)
    else:
        scale = graph.op("Gather", scales, index)
        operands[1] = graph.op("Concat", scale, graph.op("Cast", one, to=onnx.TensorProto.FLOAT), axis=0)
    return call.term(graph.op("Resize", eye, *operands, **attributes))
