"""Convolutions with random arrays for the tests, and the strategies that draw their geometry."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import xpgrad
from xpgrad.testing import conv_grad_reference, conv_reference


@dataclass(frozen=True)
class Case:
    """Shapes and attributes of a convolution, spelled out."""

    X: tuple[int, ...]
    W: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def group(self) -> int:
        return self.attributes.get("group", 1)

    def arrays(self) -> dict[str, np.ndarray]:
        """X, W, B, and a cotangent dY."""
        rng = np.random.default_rng(self.seed)
        arrays = {name: rng.standard_normal(getattr(self, name)) for name in ("X", "W")}
        arrays["B"] = rng.standard_normal(self.W[0])
        shape = xpgrad.conv(arrays["X"], arrays["W"], **self.attributes).shape
        return arrays | {"dY": rng.standard_normal(shape)}

    def expected(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Y, dX, dW and dB by the direct sums, which many tests of a case share: read-only."""
        operands = tuple((arrays[name].tobytes(), arrays[name].shape) for name in ("X", "W", "B", "dY"))
        attributes = tuple((key, _frozen(value)) for key, value in self.attributes.items())
        return dict(_direct_sums(operands, attributes))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=64)
def _direct_sums(operands: tuple, attributes: tuple) -> dict[str, np.ndarray]:
    X, W, B, dY = (np.frombuffer(data).reshape(shape) for data, shape in operands)
    options = dict(attributes)
    results = {
        "Y": conv_reference(X, W, B, **options),
        **conv_grad_reference(dY, X, W, **options)._asdict(),
    }
    for result in results.values():
        result.flags.writeable = False
    return results


# One case or more for each code path of each method, no size equal to another where that is possible.
CASES = {
    "pointwise": Case((3, 5, 7, 6), (4, 5, 1, 1)),
    "pointwise-groups": Case((2, 6, 5), (4, 3, 1), {"group": 2}),
    "pointwise-strides": Case((2, 5, 7, 6), (4, 5, 1, 1), {"strides": [2, 3]}),
    "covering": Case((3, 5, 4, 2), (6, 5, 4, 2)),
    "covering-1d": Case((4, 3, 7), (2, 3, 7), {"strides": 3}),
    "covering-one-element": Case((5, 4, 1, 1), (3, 4, 1, 1), {"strides": [2, 1], "dilations": [1, 3]}),
    "covering-groups": Case((3, 6, 2, 3), (4, 3, 2, 3), {"group": 2}),
    "covering-with-a-gap": Case((2, 3, 3), (4, 3, 3), {"pads": [0, 2], "dilations": 2}),
    "3x3": Case((2, 3, 9, 11), (5, 3, 3, 3), {"pads": 1}),
    "3x3-asymmetric": Case((5, 4, 6, 5), (2, 4, 3, 3), {"pads": [0, 2, 1, 0]}),
    "3x3-much-padding": Case((1, 2, 4, 5), (3, 2, 3, 3), {"pads": [3, 4, 2, 5]}),
    "3x3-wide": Case((2, 2, 7, 275), (3, 2, 3, 3), {"pads": [1, 0, 1, 2]}),
    "3x3-one-tile": Case((2, 3, 3, 3), (2, 3, 3, 3)),
    "3x3-volume": Case((2, 3, 4, 6, 9), (5, 3, 2, 3, 3), {"pads": [1, 1, 0, 1, 1, 2]}),
    "3x3-flat-volume": Case((3, 2, 1, 7, 5), (3, 2, 3, 3, 3), {"pads": [2, 1, 1, 1, 1, 1]}),
    "4x4": Case((2, 3, 9, 14), (5, 3, 4, 4), {"strides": 2, "pads": 1}),
    "4x4-asymmetric": Case((3, 2, 20, 11), (4, 2, 4, 4), {"strides": 2, "pads": [3, 1, 0, 2]}),
    "4x4-wide": Case((1, 2, 6, 150), (3, 2, 4, 4), {"strides": 2, "pads": 1}),
    "4x4-filled-up": Case((2, 3, 11, 14), (4, 3, 3, 2), {"strides": 2, "pads": [1, 0, 1, 2]}),
    "3x3-dilated": Case((2, 3, 13, 16), (5, 3, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 1, 4]}),
    "3x3-far-apart": Case((1, 2, 5, 4), (3, 2, 3, 3), {"dilations": [4, 5], "pads": [4, 6, 5, 5]}),
    "5x5": Case((2, 3, 9, 14), (6, 3, 5, 5), {"pads": 2}),
    "5x5-asymmetric": Case((3, 2, 11, 6), (4, 2, 5, 5), {"pads": [0, 3, 4, 1]}),
    "5x5-filled-up": Case((2, 3, 10, 7), (4, 3, 2, 4), {"pads": [1, 2, 2, 0]}),
    "5x5-dilated": Case((3, 2, 15, 12), (4, 2, 4, 5), {"dilations": [3, 2], "pads": [5, 3, 2, 4]}),
    "5x5-volume": Case((2, 2, 4, 7, 6), (3, 2, 2, 5, 4), {"pads": [1, 2, 0, 1, 2, 3]}),
    "6x6": Case((2, 3, 13, 18), (4, 3, 6, 6), {"strides": 2, "pads": [1, 3, 2, 1]}),
    "6x6-filled-up": Case((2, 3, 14, 15), (5, 3, 5, 5), {"strides": 2, "pads": 2}),
    "3x3-groups": Case((3, 6, 9, 7), (9, 2, 3, 3), {"group": 3, "pads": 1}),
    "5x5-groups": Case((2, 4, 11, 8), (6, 2, 5, 5), {"group": 2, "pads": [2, 1, 0, 2], "strides": 2}),
    "row-groups": Case((3, 4, 29), (6, 2, 5), {"group": 2, "dilations": 2, "pads": [3, 5]}),
    "row-of-3": Case((2, 3, 23), (5, 3, 3), {"pads": [1, 2]}),
    "row-of-4": Case((3, 2, 17), (4, 2, 4), {"pads": [0, 2]}),
    "row-of-pieces": Case((3, 4, 70), (5, 4, 11), {"pads": [7, 4]}),
    "row-of-8": Case((2, 3, 9), (4, 3, 8), {"pads": [3, 5]}),
    "row-wide": Case((2, 2, 258), (3, 2, 5), {"pads": [2, 1]}),
    "row-dilated": Case((3, 2, 40), (4, 2, 6), {"dilations": 3, "pads": [4, 9]}),
    "row-much-padding": Case((1, 2, 5), (3, 2, 5), {"dilations": 2, "pads": [11, 14]}),
    "row-of-images": Case((2, 3, 4, 21), (5, 3, 1, 7), {"pads": [1, 3, 0, 2]}),
    "strides": Case((3, 4, 9, 8), (6, 2, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1], "group": 2}),
    "unread-end": Case((2, 3, 10, 11), (2, 3, 2, 3), {"strides": [3, 4]}),
    "dilations": Case((2, 4, 9, 10), (6, 4, 3, 3), {"strides": [2, 1], "dilations": [3, 2], "pads": 2}),
    "padding-alone": Case((2, 3, 1, 5), (4, 3, 1, 2), {"strides": [4, 1], "pads": [3, 0, 1, 0]}),
    "stride-over-kernel": Case((2, 3, 11, 9), (4, 3, 2, 1), {"strides": [4, 3]}),
    "1d": Case((4, 6, 13), (4, 3, 4), {"strides": 2, "dilations": 2, "pads": [3, 1], "group": 2}),
    "3d": Case((2, 4, 5, 6, 4), (6, 2, 2, 3, 2), {"strides": [2, 1, 2], "pads": [1, 0, 1], "group": 2}),
    "4d": Case((2, 2, 3, 4, 3, 4), (3, 2, 2, 2, 1, 3), {"pads": [0, 1, 0, 1, 1, 0, 0, 0]}),
    "depthwise": Case((3, 5, 8, 7), (5, 1, 3, 3), {"pads": 1, "group": 5}),
    "depthwise-multiplier": Case((2, 4, 8, 7), (12, 1, 3, 2), {"strides": [2, 1], "pads": 1, "group": 4}),
    "depthwise-dilations": Case((2, 4, 9, 8), (4, 1, 3, 3), {"strides": 2, "dilations": [1, 2], "group": 4}),
    "few-channels": Case((2, 6, 7, 9), (6, 2, 3, 3), {"pads": [0, 1, 2, 1], "group": 3}),
    "large": Case((2, 3, 19, 24), (4, 3, 9, 12), {"pads": [4, 5, 3, 6]}),
    "large-groups": Case((2, 4, 40), (6, 2, 21), {"pads": 10, "group": 2}),
}


@st.composite
def squares(draw: st.DrawFn) -> Case:
    """Winograd's filtering along two axes: kernels of 2 to 6 taps, dilations, strides of 2, volumes."""
    stride, is_volume = draw(st.sampled_from([1, 1, 2])), draw(st.booleans())
    n = 2 + is_volume
    first = draw(st.integers(1, 3)) if is_volume else 1

    def sizes(least: int, most: int) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=2, max_size=2))

    begin, end, beyond = sizes(0, 5), sizes(0, 5), sizes(0, 12)
    kernel = sizes(2, 5 if stride == 1 or any(b % 2 == 0 for b in begin) else 6)
    dilations = sizes(1, 4) if stride == n - 1 == 1 else [1, 1]
    size = [
        max(1, (k - 1) * d + 1 - b - e) + more
        for k, d, b, e, more in zip(kernel, dilations, begin, end, beyond, strict=True)
    ]
    attributes = {"strides": [stride] * 2, "pads": [*begin, *end], "dilations": dilations}
    if is_volume:
        pad = draw(st.integers(0, first - 1))
        size, kernel = [draw(st.integers(first, 5)), *size], [first, *kernel]
        pads = [pad, *begin, pad, *end]
        attributes = {"strides": [1, stride, stride], "pads": pads, "dilations": [1, *dilations]}
    N, C, O, group = (draw(st.integers(1, most)) for most in (3, 4, 4, 2))
    attributes["group"] = group
    return Case((N, group * C, *size), (group * O, C, *kernel), attributes, seed=draw(st.integers(0, 10**6)))


@st.composite
def geometries(draw: st.DrawFn) -> Case:
    """Any geometry of up to three dimensions, small."""
    n = draw(st.integers(1, 3))

    def sizes(least: int, most: int) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=n, max_size=n))

    group, seen, made = (draw(st.integers(1, 3)) for _ in range(3))
    kernel, strides, dilations = sizes(1, 4), sizes(1, 3), sizes(1, 3)
    begin, end, beyond = sizes(0, 3), sizes(0, 3), sizes(0, 4)
    size = [
        max(1, (k - 1) * d + 1 - b - e) + more
        for k, d, b, e, more in zip(kernel, dilations, begin, end, beyond, strict=True)
    ]
    return Case(
        (draw(st.integers(1, 4)), group * seen, *size),
        (group * made, seen, *kernel),
        {"strides": strides, "pads": begin + end, "dilations": dilations, "group": group},
        seed=draw(st.integers(0, 10**6)),
    )
