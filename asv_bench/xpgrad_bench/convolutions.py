"""Convolutions to measure: shapes, data, and counts of operations and bytes."""

import math
from typing import Any, NamedTuple

import numpy as np


class Convolution(NamedTuple):
    """A convolution with C / group input channels in a group; kernel to dilation hold for each axis."""

    N: int
    C: int
    size: tuple[int, ...]
    O: int
    kernel: int
    stride: int = 1
    pad: int = 0
    group: int = 1
    transposed: bool = False
    dtype: str = "float32"
    dilation: int = 1

    @property
    def label(self) -> str:
        """Sizes in the order of the fields."""
        size, kernel = (" x ".join(map(str, k)) for k in (self.size, [self.kernel] * len(self.size)))
        notes = [f"stride {self.stride}"] * (self.stride > 1) + ["depthwise"] * (self.group > 1)
        notes += [f"dilation {self.dilation}"] * (self.dilation > 1) + ["transposed"] * self.transposed
        return ", ".join([f"{self.N}, {self.C}, {size}; {self.O}, {kernel}", *notes])

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The shapes of X, W and B."""
        ends = (self.C, self.O // self.group) if self.transposed else (self.O, self.C // self.group)
        return (self.N, self.C, *self.size), (*ends, *[self.kernel] * len(self.size)), (self.O,)

    def output(self) -> tuple[int, ...]:
        """The shape of Y."""
        span = self.dilation * (self.kernel - 1) + 1
        if self.transposed:
            size = ((s - 1) * self.stride - 2 * self.pad + span for s in self.size)
        else:
            size = ((s + 2 * self.pad - span) // self.stride + 1 for s in self.size)
        return (self.N, self.O, *size)

    def operations(self, what: str) -> int:
        """Operations of a direct sum. Winograd's and Fourier's methods need fewer."""
        X, W, _ = self.shapes()
        # every position of the smaller grid is multiplied by the whole kernel
        positions = X if self.transposed else (self.N, *self.output()[2:])
        channels = W[1] if self.transposed else W[0] * W[1]
        forward = 2 * math.prod(positions) * channels * self.kernel ** len(self.size)
        return {"backward": 2, "step": 3}[what] * forward

    def traffic(self, what: str) -> int:
        """Bytes that must be read or written at least once: operands and results."""
        X, W, Y = (math.prod(shape) for shape in (*self.shapes()[:2], self.output()))
        backward = 2 * X + 2 * W + Y
        forward = X + W + Y
        return np.dtype(self.dtype).itemsize * (backward + (forward if what == "step" else 0))


CONVOLUTIONS = {
    "8x64x56, 64 of 3": Convolution(8, 64, (56, 56), 64, 3, 1, 1),
    "8x64x56, 256 of 1": Convolution(8, 64, (56, 56), 256, 1),
    "8x128x28, 128 of 3": Convolution(8, 128, (28, 28), 128, 3, 1, 1),
    "8x256x14, 256 of 3": Convolution(8, 256, (14, 14), 256, 3, 1, 1),
    "8x3x224, 64 of 7, stride 2": Convolution(8, 3, (224, 224), 64, 7, 2, 3),
    "8x128x56, 128 of 3, stride 2": Convolution(8, 128, (56, 56), 128, 3, 2, 1),
    "8x96x28, depthwise 3": Convolution(8, 96, (28, 28), 96, 3, 1, 1, 96),
}
SMALL = {
    "1x16x8, 16 of 1": Convolution(1, 16, (8, 8), 16, 1),
    "1x3x28, 8 of 3": Convolution(1, 3, (28, 28), 8, 3, 1, 1),
    "4x8x50, 16 of 3": Convolution(4, 8, (50,), 16, 3, 1, 1),
    "4x8x14, 16 of 3": Convolution(4, 8, (14, 14), 16, 3, 1, 1),
    "8x1x28, 8 of 5": Convolution(8, 1, (28, 28), 8, 5, 1, 2),
    "16x16x12, 32 of 3": Convolution(16, 16, (12, 12), 32, 3, 1, 1),
}
LARGE_KERNELS = {
    "4x16x64, 16 of 31": Convolution(4, 16, (64, 64), 16, 31, 1, 15),
    "4x16x8192, 16 of 1025": Convolution(4, 16, (8192,), 16, 1025, 1, 512),
}
TRANSPOSED = {
    "8x128x28, 64 of 4, stride 2": Convolution(8, 128, (28, 28), 64, 4, 2, 1, transposed=True),
    "8x64x56, 64 of 3": Convolution(8, 64, (56, 56), 64, 3, 1, 1, transposed=True),
}


def data(work: Convolution, seed: int = 0) -> tuple[Any, Any, Any]:
    """Random X, W and B, with outputs of the size of the inputs."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(work.dtype).type
    X, W, B = (rng.standard_normal(size, dtype=dtype) for size in work.shapes())
    return X, W / dtype(np.sqrt(W[0].size)), B


def cotangent(work: Convolution, seed: int = 1) -> Any:
    """A random dY."""
    return np.random.default_rng(seed).standard_normal(work.output(), dtype=np.dtype(work.dtype).type)
