"""Activations, softmax and losses to measure: functions, shapes, data, and counts of bytes."""

import math
from typing import Any, NamedTuple

import numpy as np

SHAPES = {"1k": (1000,), "4M": (4096, 1024)}
ROWS = {"8x125": (8, 125), "4096x1024": (4096, 1024)}
IMAGES = {"2x5x10": (2, 5, 10, 10), "8x64x56": (8, 64, 56, 56), "8x21x128": (8, 21, 128, 128)}
LOGITS = ROWS | {"4096x32000": (4096, 32000)}


class Function(NamedTuple):
    """The residual of a kernel's gradient, its attributes, and PyTorch's module of the same function."""

    takes: str = "X"
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never written to
    module: str | None = None


POINTWISE = {
    "relu": Function(module="ReLU"),
    "leaky_relu": Function("Y", module="LeakyReLU"),
    "thresholded_relu": Function(),
    "elu": Function(module="ELU"),
    "selu": Function(module="SELU"),
    "celu": Function(module="CELU"),
    "softplus": Function(module="Softplus"),
    "gelu": Function(module="GELU"),
    "quick_gelu": Function(),
    "silu": Function(module="SiLU"),
    "mish": Function(module="Mish"),
    "sigmoid": Function("Y", module="Sigmoid"),
    "log_sigmoid": Function(module="LogSigmoid"),
    "hard_sigmoid": Function(attributes={"alpha": 1 / 6, "beta": 0.5}, module="Hardsigmoid"),
    "hard_swish": Function(module="Hardswish"),
    "tanh": Function("Y", module="Tanh"),
    "scaled_tanh": Function(),
    "hard_tanh": Function(module="Hardtanh"),
    "softsign": Function(module="Softsign"),
}
ALONG_AXIS = {"softmax": Function("Y", module="Softmax"), "log_softmax": Function("Y", module="LogSoftmax")}
FUNCTIONS = POINTWISE | ALONG_AXIS
LOSSES = {  # the kernels' names, and PyTorch's modules
    "cross_entropy": ("softmax_cross_entropy", "CrossEntropyLoss"),
    "binary_cross_entropy_with_logits": ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
}


class Elementwise(NamedTuple):
    """A function of an array, along an axis if it has one.

    The cotangent has an element for each result, or the same ones along the axes `repeated`, as a mean's.
    """

    function: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    axis: int = -1
    repeated: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Its function and shape, and what is unusual."""
        axis = "" if self.axis == -1 else f", axis {self.axis}"
        mean = f", mean over {', '.join(map(str, self.repeated))}" if self.repeated else ""
        return f"{self.function} {' x '.join(map(str, self.shape))}{axis}{mean}"

    def along(self, name: str) -> dict[str, int]:
        """The axis as an argument of this name; none for a function of elements."""
        return {name: self.axis} if self.function in ALONG_AXIS else {}

    def operations(self, what: str) -> int:
        """0: memory is the limit."""
        return 0

    def traffic(self, what: str) -> int:
        """The least number of bytes to move."""
        return self._arrays(what) * math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def _arrays(self, what: str) -> int:
        """Backward: dY, the saved array, dX; forward: X and Y."""
        return {"backward": 3, "step": 5}[what]


class Loss(Elementwise):
    """A loss of logits, (N, C, ...)."""

    def _arrays(self, what: str) -> int:
        """The logits in both directions, and their gradient; the targets of some losses are as large."""
        return {"backward": 2, "step": 3}[what] + (self.function != "cross_entropy")


def data(work: Elementwise, seed: int = 0) -> tuple[Any, Any]:
    """X and a cotangent."""
    rng = np.random.default_rng(seed)
    dtype, shape = np.dtype(work.dtype).type, work.shape
    few = [1 if axis in work.repeated else size for axis, size in enumerate(shape)]
    X, dY = rng.standard_normal(shape, dtype=dtype), rng.standard_normal(few, dtype=dtype)
    return X, np.broadcast_to(dY, shape) if work.repeated else dY


def targets(work: Loss, seed: int = 1) -> Any:
    """The targets of the logits: a class for each sample, or a probability for each number."""
    rng = np.random.default_rng(seed)
    if work.function == "cross_entropy":
        return rng.integers(0, work.shape[1], (work.shape[0], *work.shape[2:]))
    return rng.uniform(0, 1, work.shape).astype(work.dtype)
