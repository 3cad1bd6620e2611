"""Bodies of operators that read between an image's elements, or in moving windows.

An axis has taps: the elements that are read, and their weights. The taps of several axes are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import onnx

from xpgrad_onnx._bodies import body
from xpgrad_onnx._graph import Graph, attributes_of
from xpgrad_onnx._rules.table import refuse
from xpgrad_onnx._terms import Term


class _Tap(NamedTuple):
    """Elements along an axis, numbered as floats, and their weights."""

    place: Term
    weight: Term


class _Axis(NamedTuple):
    """An axis' size, as an integer and as a floating-point number, and its taps."""

    size: Term
    length: Term
    taps: list[_Tap]


def _size(X: Term, axis: int) -> tuple[Term, Term]:
    size = X.of("Shape").of("Gather", X.graph.constant(axis))
    return size, size.of("Cast", to=X.graph.kind)


def _products(rows: Term, axes: Sequence[_Axis]) -> list[Term]:
    """For each combination of taps the weighted elements (B, C, P) of rows (B, C, S)."""
    graph = rows.graph
    channels = rows.of("Shape").of("Gather", graph.constant([1]))
    results = []
    for taps in product(*(axis.taps for axis in axes)):
        place, weight = taps[0].place.of("Cast", to=onnx.TensorProto.INT64), taps[0].weight
        for axis, tap in zip(axes[1:], taps[1:], strict=True):
            place = place * axis.size + tap.place.of("Cast", to=onnx.TensorProto.INT64)
            weight = weight * tap.weight
        over = graph.constant([1])
        one = graph.constant([1])
        shape = graph.op("Concat", one, channels.name, one, axis=0)
        places = place.of("Unsqueeze", over).of("Expand", shape)
        results.append(rows.of("GatherElements", places, axis=2) * weight.of("Unsqueeze", over))
    return results


def _nearest(x: Term) -> list[_Tap]:
    return [_Tap(x, x * 0.0 + 1.0)]


def _linear(x: Term) -> list[_Tap]:
    low = x.of("Floor")
    share = x - low
    return [_Tap(low, 1.0 - share), _Tap(low + 1.0, share)]


def _cubic(x: Term, a: float = -0.75) -> list[_Tap]:
    low = x.of("Floor")
    taps = []
    for k in (-1.0, 0.0, 1.0, 2.0):
        d = (x - low - k).of("Abs")
        if k in (0.0, 1.0):
            weight = ((a + 2) * d - (a + 3)) * d * d + 1.0
        else:
            weight = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        taps.append(_Tap(low + k, weight))
    return taps


def _within(tap: _Tap, length: Term) -> _Tap:
    """Elements outside of the image are zeros."""
    place = _clipped(tap.place, length)
    return _Tap(place, tap.weight.where(tap.place.of("Equal", place)))


def _clipped(x: Term, length: Term) -> Term:
    return x.of("Max", 0.0).of("Min", length - 1.0)


def _reflected(x: Term, low: Term, high: Term) -> Term:
    """Mirrored at both ends, as often as needed."""
    span = high - low
    far = (x - low).of("Abs").of("Mod", span + span, fmod=1)
    return low + span - (far - span).of("Abs")


@body("GridSample")
def _grid_sample(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    attributes = attributes_of(node)
    X, grid = (Term(graph, name) for name in node.input)
    rank = graph.rank(X.name, node) - 2
    points = grid.of("Cast", to=graph.kind).of("Reshape", graph.constant([0, -1, rank]))
    axes = [
        _grid_axis(points.of("Gather", graph.constant(rank - 1 - k), axis=2), *_size(X, 2 + k), attributes)
        for k in range(rank)
    ]
    rows = X.of("Reshape", graph.constant([0, 0, -1]))
    parts = _products(rows, axes)
    shape = _part(X.of("Shape"), 0, 2).of("Concat", _part(grid.of("Shape"), 1, -1), axis=0)
    return [parts[0].of("Sum", *parts[1:]).of("Reshape", shape)]


def _part(sizes: Term, first: int, last: int) -> Term:
    return sizes.of("Slice", sizes.graph.constant([first]), sizes.graph.constant([last]))


def _grid_axis(x: Term, size: Term, length: Term, attributes: dict[str, Any]) -> _Axis:
    """Coordinates from -1 to 1 along an axis."""
    padding = attributes.get("padding_mode", "zeros")
    if attributes.get("align_corners", 0):
        x, low, high = (x + 1.0) * ((length - 1.0) * 0.5), length * 0.0, length - 1.0
    else:
        x, low, high = ((x + 1.0) * length - 1.0) * 0.5, length * 0.0 - 0.5, length - 0.5
    mode = attributes.get("mode", "linear").removeprefix("bi")
    x = x.of("Round") if mode == "nearest" else x
    outside = x.of("Less", low).of("Or", x.of("Greater", high))
    if padding == "border":
        x = _clipped(x, length).where(outside, x)
    if padding == "reflection":
        x = _reflected(x, low, high)
    taps = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[mode](x)
    if padding == "zeros":
        taps = [_within(tap, length) for tap in taps]
    elif padding == "border":
        taps = [_Tap(_clipped(tap.place, length), tap.weight) for tap in taps]
    else:  # a mirrored half is rounded towards zero
        taps = [_Tap(_clipped(_reflected(t.place, low, high).of("Floor"), length), t.weight) for t in taps]
    return _Axis(size, length, taps)


@body("RoiAlign")
def _roi_align(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """A grid of samples in each cell of each region; their mean, or the largest weighted element."""
    attributes = attributes_of(node)
    X, rois, batch = (Term(graph, name) for name in node.input)
    count = attributes.get("sampling_ratio", 0)
    if not count:
        raise refuse(node, "sampling_ratio 0", "a number of samples that does not depend on the regions")
    cells = [attributes.get(f"output_{name}", 1) for name in ("height", "width")]
    half = attributes.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    axes = []
    for k in (0, 1):
        first, last = (
            rois.of("Gather", graph.constant([place]), axis=1) * attributes.get("spatial_scale", 1.0)
            for place in (1 - k, 3 - k)
        )
        span = last - first if half else (last - first).of("Max", 1.0)
        steps = (np.arange(cells[k] * count) + 0.5) / (cells[k] * count)
        x = first + span * Term(graph, graph.constant(steps, graph.dtype)) - (0.5 if half else 0.0)
        size, length = _size(X, 2 + k)
        outside = x.of("Less", -1.0).of("Or", x.of("Greater", length))
        taps = [_Tap(_clipped(t.place, length), t.weight) for t in _linear(_clipped(x, length))]
        taps = [_Tap(t.place, (t.weight * 0.0).where(outside, t.weight)) for t in taps]
        axes.append(_Axis(size, length, [_spread(tap, k, cells, count) for tap in taps]))
    rows = X.of("Reshape", graph.constant([0, 0, -1])).of("Gather", batch, axis=0)
    parts = _products(rows, axes)
    largest = attributes.get("mode", "avg") == "max"
    samples = parts[0].of("Max" if largest else "Sum", *parts[1:])
    samples = samples.of("Reshape", graph.constant([0, 0, cells[0], count, cells[1], count]))
    if largest:
        return [samples.reduced("ReduceMax", [3, 5], keepdims=0)]
    return [samples.sum(graph.constant([3, 5]), keepdims=0) / count**2]


@body("MaxRoiPool")
def _max_roi_pool(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """The maximum over the rows of each cell, then over its columns; equal maxima share a cotangent."""
    attributes = attributes_of(node)
    X, rois = (Term(graph, name) for name in node.input)
    numbers = rois.of("Gather", graph.constant(0), axis=1).of("Cast", to=onnx.TensorProto.INT64)
    Y, nothing = X.of("Gather", numbers, axis=0), float(np.finfo(graph.dtype).min)
    for k, cells in enumerate(attributes["pooled_shape"]):
        inside = _cells(X, rois, k, cells, attributes.get("spatial_scale", 1.0))
        inside = inside.of("Unsqueeze", graph.constant([1, 4] if k == 0 else [1, 2]))
        Y = Y.of("Unsqueeze", graph.constant([2 + k])).where(inside, nothing)
        Y = Y.reduced("ReduceMax", [3 + k], keepdims=0)
    return [Y.where(Y.of("Greater", nothing))]  # an empty cell is zero


def _cells(X: Term, rois: Term, axis: int, count: int, scale: float) -> Term:
    """The places of the regions' cells along an axis: (R, cells, size)."""
    graph = X.graph
    ends = [rois.of("Gather", graph.constant([place - axis]), axis=1) * scale for place in (2, 4)]
    first, last = (x.of("Sign") * (x.of("Abs") + 0.5).of("Floor") for x in ends)  # halves away from zero
    cell = (last - first + 1.0).of("Max", 1.0) / count
    size, length = _size(X, 2 + axis)
    steps = (Term(graph, graph.constant(np.arange(count) + k, graph.dtype)) for k in (0, 1))
    low, high = (cell * step for step in steps)
    over, zero, one = graph.constant([2]), graph.constant(0), graph.constant(1)
    low, high = ((x + first).of("Max", 0.0).of("Min", length) for x in (low.of("Floor"), high.of("Ceil")))
    places = Term(graph, graph.op("Range", zero, size.name, one))
    places = places.of("Cast", to=graph.kind)
    before = places.of("Less", low.of("Unsqueeze", over))
    return before.of("Not").of("And", places.of("Less", high.of("Unsqueeze", over)))


def _optional(graph: Graph, node: onnx.NodeProto, first: int) -> list[Term | None]:
    """Two optional operands from number `first` on; None for absent operands."""
    names = [*node.input[first : first + 2], "", ""][:2]
    return [Term(graph, name) if name else None for name in names]


def _spread(tap: _Tap, axis: int, cells: Sequence[int], count: int) -> _Tap:
    """Taps of one axis (R, L) for all samples of both (R, L L')."""
    graph = tap.place.graph
    shape = graph.constant([1, *(n * count for n in cells)])
    rows = graph.constant([2 - axis])
    flat = graph.constant([0, -1])
    place, weight = (term.of("Unsqueeze", rows).of("Expand", shape).of("Reshape", flat) for term in tap)
    return _Tap(place, weight)


@body("DeformConv")
def _deformed_convolution(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """Sample all places of the kernel, then convolve these samples with a kernel of their size."""
    attributes = attributes_of(node)
    X, W, offset = (Term(graph, name) for name in node.input[:3])
    B, mask = _optional(graph, node, 3)
    shapes = [graph.shapes.get(term.name) for term in (W, offset)]
    sizes = [n for shape in shapes for n in (shape or ())[-2:] if isinstance(n, int)]
    if graph.rank(X.name, node) != 4 or len(sizes) != 4:
        raise refuse(node, "unknown sizes, or no images", "images, with known sizes of W and the offsets")
    kernel, (rows, columns) = sizes[:2], sizes[2:]
    groups = attributes.get("offset_group", 1)
    strides, dilations = (attributes.get(name, [1, 1]) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 4)
    places = int(np.prod(kernel))
    moved = offset.of("Reshape", graph.constant([-1, places, 2, rows, columns]))
    axes = []
    for k, count in enumerate((rows, columns)):
        taps = np.arange(places) // kernel[1] if k == 0 else np.arange(places) % kernel[1]
        start = np.add.outer(taps * dilations[k], np.arange(count) * strides[k] - pads[k])
        grid = start[:, :, None] if k == 0 else start[:, None, :]
        x = moved.of("Gather", graph.constant(k), axis=2) + Term(graph, graph.constant(grid, graph.dtype))
        size, length = _size(X, 2 + k)
        flat = x.of("Reshape", graph.constant([0, -1]))
        axes.append(_Axis(size, length, [_within(tap, length) for tap in _linear(flat)]))
    channels = X.of("Shape").of("Gather", graph.constant([1])).of("Div", graph.constant([groups]))
    images = moved.of("Shape").of("Gather", graph.constant([0]))  # for each group of offsets
    shape = graph.op("Concat", images.name, channels.name, graph.constant([-1]), axis=0)
    parts = _products(X.of("Reshape", shape), axes)
    samples = parts[0].of("Sum", *parts[1:])
    if mask is not None:
        samples = samples * mask.of("Reshape", graph.constant([-1, 1, places * rows * columns]))
    # (N, C, places, outputs) as an image of height `places`: one kernel of that height reads it
    whole = _part(X.of("Shape"), 0, 2).of("Concat", graph.constant([places, rows * columns]), axis=0)
    tall = W.of("Reshape", graph.constant([0, 0, places, 1]))
    operands = [tall] if B is None else [tall, B]
    Y = samples.of("Reshape", whole).of("Conv", *operands, group=attributes.get("group", 1))
    return [Y.of("Reshape", graph.constant([0, 0, rows, columns]))]


@body("STFT")
def _short_time_fourier(graph: Graph, node: onnx.NodeProto) -> Sequence[Term | None]:
    """The frames of the signal, times the window."""
    signal, step = (Term(graph, name) for name in node.input[:2])
    window, length = _optional(graph, node, 2)
    if length is None:
        if window is None:
            raise refuse(node, "neither a window nor frame_length", "one of them")
        length = window.of("Shape").of("Squeeze", graph.constant([0]))
    kind, zero, one = onnx.TensorProto.INT64, graph.constant(0), graph.constant(1)
    length, step = length.of("Cast", to=kind), step.of("Cast", to=kind)
    total = signal.of("Shape").of("Gather", one)
    frames = (total - length).of("Div", step).of("Add", one)
    starts = Term(graph, graph.op("Range", zero, frames.name, one)) * step
    within = Term(graph, graph.op("Range", zero, length.name, one))
    picked = signal.of("Gather", starts.of("Unsqueeze", one) + within, axis=1)
    if window is not None:
        picked = picked * window.of("Unsqueeze", one)
    onesided = attributes_of(node).get("onesided", 1)
    if graph.opset >= 20:
        return [picked.of("DFT", "", graph.constant(2), onesided=onesided)]
    return [picked.of("DFT", axis=2, onesided=onesided)]
