"""Give equal unknown sizes one name.

onnx's inference names each unknown size. After a convolution that keeps the size it gives a new name, so a
sum of the convolution's input and output would seem to broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import helper

Shape = tuple[int | str | None, ...]

_MADE_UP = "unk__"  # how onnx's own names begin
_WINDOWS = frozenset(("Conv", "MaxPool", "AveragePool", "LpPool"))
_BROADCAST = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Sum", "Mean", "Max", "Min", "Where"))


def with_equal_sizes(nodes: Iterable[onnx.NodeProto], shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shapes, with one name for sizes that the nodes make equal. Nodes are in order."""
    names: dict[Any, Any] = {}

    def shape(name: str) -> Shape:
        return tuple(names.get(size, size) for size in shapes[name])

    for node in nodes:
        given = [name for name in node.input if name]
        if node.domain not in ("", "ai.onnx") or not shapes.keys() >= {*given, node.output[0]}:
            continue
        before = [shape(name) for name in given]
        if node.op_type in ("Conv", "ConvTranspose"):
            channels = _channels(node, before[1])
            if isinstance(channels, int) and isinstance(before[0][1], str):
                names[before[0][1]] = channels
                before[0] = shape(given[0])
        if node.op_type in _WINDOWS:
            sizes = _behind_windows(node, *before[:2])
        elif node.op_type in _BROADCAST:
            sizes = _broadcast(before)
        else:
            continue
        for size, made in zip(sizes, shape(node.output[0]), strict=True):
            if size is not None and isinstance(made, str) and made.startswith(_MADE_UP):
                names[made] = size
    return {name: shape(name) for name in shapes}


def _channels(node: onnx.NodeProto, W: Shape) -> int | str | None:
    """The input's channels, which the weights tell."""
    if node.op_type == "ConvTranspose":
        return W[0]
    group = next((a.i for a in node.attribute if a.name == "group"), 1)
    return group * W[1] if isinstance(W[1], int) else None


def _behind_windows(node: onnx.NodeProto, X: Shape, W: Shape = ()) -> list[int | str | None]:
    """The sizes that a window operator keeps; None for other sizes."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kernel, rank = attributes.get("kernel_shape", W[2:]), len(X) - 2
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads, auto_pad = attributes.get("pads", [0] * 2 * rank), attributes.get("auto_pad", b"NOTSET")
    kept: list[int | str | None] = [None, None]
    for k, (size, stride) in enumerate(zip(X[2:], strides, strict=True)):
        reach = (kernel[k] - 1) * dilations[k] if isinstance(kernel[k], int) else None
        padded = reach if auto_pad.startswith(b"SAME") else pads[k] + pads[k + rank]
        same = stride == 1 and reach is not None and (padded if auto_pad != b"VALID" else 0) == reach
        kept.append(size if same else None)
    return kept


def _broadcast(shapes: list[Shape]) -> list[int | str | None]:
    """The sizes of a result where all operands agree; None for other axes."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    columns = [{size for size in sizes if size != 1} for sizes in zip(*padded, strict=True)]
    return [column.pop() if len(column) == 1 else None for column in columns]
