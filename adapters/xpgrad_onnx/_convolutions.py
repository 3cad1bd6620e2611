"""The three sums of a convolution as Conv and ConvTranspose."""

from __future__ import annotations

from typing import Any

from xpgrad._operators.for_adapters import ConvGeometry
from xpgrad_onnx._arrays import GraphArray
from xpgrad_onnx._sizes import Quotient, Size


def forward(geometry: ConvGeometry, X: GraphArray, W: GraphArray, B: GraphArray | None) -> GraphArray:
    """Y, (N, O, *output_size)."""
    g = geometry
    return _emit(
        "Conv", [X, W, B], g.output_shape,
        strides=g.strides, dilations=g.dilations, pads=[*g.begin, *_pads_behind(g)], group=g.group,
    )  # fmt: skip


def input_gradient(geometry: ConvGeometry, dY: GraphArray, W: GraphArray, B: GraphArray | None) -> GraphArray:
    """dX, (N, C, *size); it is 0, or B, at the last elements if no output reads them."""
    g = geometry
    behind = _pads_behind(g)
    # the number of elements after the last one that an output reads, or its upper bound
    added = [
        max(-end, 0) if isinstance(end, int) else stride - 1
        for end, stride in zip(g.end, g.strides, strict=True)
    ]
    cut = [0 if more else pad for pad, more in zip(behind, added, strict=True)]
    made = tuple(
        extent + more - begin - pad
        for extent, more, begin, pad in zip(g.extent, added, g.begin, cut, strict=True)
    )
    dX = _emit(
        "ConvTranspose", [dY, W, B], (*g.input_shape[:2], *made),
        strides=g.strides, dilations=g.dilations, pads=[*g.begin, *cut], group=g.group, output_padding=added,
    )  # fmt: skip
    return dX[(..., *(slice(0, size) for size in g.size))]


def weight_gradient(geometry: ConvGeometry, dY: GraphArray, X: GraphArray) -> GraphArray:
    """dW, (O, C / group, *kernel): a convolution of X with the weights dY; samples become channels.

    Strides and dilations are exchanged.
    """
    g = geometry
    channels, axes = g.channels // g.group, range(3, 3 + g.rank)
    images = X.reshaped((g.batch, g.group, channels, *g.size)).transposed((2, 1, 0, *axes))
    images = images.reshaped((channels, g.group * g.batch, *g.size))
    weights = dY.transposed((1, 0, *range(2, 2 + g.rank)))
    end = [e if isinstance(e, int) else pad for e, pad in zip(g.end, _pads_behind(g), strict=True)]
    sizes = zip(g.size, g.begin, end, g.output_size, g.strides, g.dilations, strict=True)
    # if no output reads the last elements of X, the result has additional taps after the kernel's
    made = tuple((s + b + max(e, 0) - (o - 1) * step - 1) // d + 1 for s, b, e, o, step, d in sizes)
    dW = _emit(
        "Conv", [images, weights, None], (channels, g.outputs, *made),
        strides=g.dilations, dilations=g.strides, pads=[*g.begin, *(max(e, 0) for e in end)], group=g.group,
    )  # fmt: skip
    dW = dW[(..., *(slice(0, k) for k in g.kernel))]
    return dW.transposed((1, 0, *range(2, 2 + g.rank)))


def _emit(op_type: str, inputs: Any, shape: Any, **attributes: Any) -> GraphArray:
    while inputs[-1] is None:
        inputs = inputs[:-1]
    numbers = {name: [*n] if isinstance(n, tuple) else n for name, n in attributes.items()}
    for name, values in numbers.items():
        if any(not isinstance(n, int) for n in (values if isinstance(values, list) else [values])):
            raise ValueError(f"{op_type}: {name} depends on unknown sizes, expected numbers")
    return inputs[0].scope.emit(op_type, inputs, inputs[0].dtype, shape, **numbers)[0]


def _pads_behind(g: ConvGeometry) -> list[int]:
    """Padding after the last element, as numbers; elements that no output reads need none."""
    return [max(_behind(g, axis), 0) for axis in range(g.rank)]


def _behind(g: ConvGeometry, axis: int) -> Any:
    """The caller's padding if the size is unknown, read from the quotient that contains it."""
    end: Any = g.end[axis]
    if isinstance(end, int):
        return end
    steps: Any = g.output_size[axis] - 1
    for product in steps.terms if isinstance(steps, Size) else ():
        for atom in product:
            if isinstance(atom, Quotient):
                whole = steps - Size.of(atom)
                padded = atom.size + whole * atom.divisor
                return padded - g.size[axis] - g.begin[axis] + (g.kernel[axis] - 1) * g.dilations[axis] + 1
    return end
