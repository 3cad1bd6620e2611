"""LSTMs, GRUs and RNNs to measure: operators, shapes, data, and counts of operations and bytes."""

import math
from typing import Any, NamedTuple

import numpy as np

# (T, N, I, H): time, batch, input, hidden
SHAPES = {
    "50x1x64x64": (50, 1, 64, 64),
    "50x32x64x64": (50, 32, 64, 64),
    "50x32x256x256": (50, 32, 256, 256),
    "100x64x128x512": (100, 64, 128, 512),
    "35x20x650x650": (35, 20, 650, 650),
    "200x128x64x128": (200, 128, 64, 128),
}


class Operator(NamedTuple):
    """A recurrent operator: its kernel's name, arrays and attributes, and its torch module's name."""

    kernel: str
    module: str
    gates: int
    states: tuple[str, ...]
    saved: tuple[str, ...]
    attributes: dict[str, Any]
    """The kernel's attributes."""
    options: dict[str, Any]
    """The options of xpgrad_torch's module."""

    @property
    def is_cell(self) -> bool:
        """Whether the module is a single step, run in a loop."""
        return self.module.endswith("Cell")


def _lstm(module: str = "LSTM", **options: Any) -> Operator:
    return Operator("lstm", module, 4, ("initial_h", "initial_c"), ("H_all", "C_all", "iofc"), {}, options)


def _gru(linear_before_reset: int, module: str = "GRU", **options: Any) -> Operator:
    attributes = {"linear_before_reset": linear_before_reset}
    return Operator("gru", module, 3, ("initial_h",), ("H_all", "zrh"), attributes, options)


OPERATORS = {
    "lstm": _lstm(),
    "gru": _gru(1),
    "rnn": Operator("rnn", "RNN", 1, ("initial_h",), ("H_all",), {}, {}),
    "lstm-peephole": _lstm(peephole=True),
    "gru-reset-before": _gru(0, reset_after=False),
    "lstm-cell": _lstm("LSTMCell"),
    "gru-cell": _gru(1, "GRUCell"),
}


class Recurrent(NamedTuple):
    """An operator over a batch of sequences."""

    operator: str
    shape: tuple[int, int, int, int]
    lengths: tuple[int, int] | None = None
    """The shortest and the longest sequence; None if all have length T."""
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """Its operator and shape."""
        T, *sizes = self.shape
        time = str(T) if self.lengths is None else "{}-{}".format(*self.lengths)
        return f"{self.operator} {time}, {', '.join(map(str, sizes))}"

    def brief(self) -> "Recurrent":
        """The same with few steps: a profiler needs gigabytes for the operators of a thousand."""
        T, N, I, H = self.shape
        lengths = self.lengths and (min(self.lengths[0], 10), min(self.lengths[1], 50))
        return self._replace(shape=(min(T, 50), N, I, H), lengths=lengths)

    def sequence_lens(self, seed: int = 0) -> Any:
        """The length of each sequence, the longest first; None if all have length T."""
        if self.lengths is None:
            return None
        shortest, longest = self.lengths
        values = np.random.default_rng(seed).integers(shortest, longest + 1, self.shape[1])
        values[0] = longest
        return values

    def steps(self) -> int:
        """Time steps of all sequences."""
        lengths = self.sequence_lens()
        return math.prod(self.shape[:2]) if lengths is None else int(lengths.sum())

    def operations(self, what: str) -> int:
        """Operations of the matrix products: one forward and two backward, with W and with R."""
        _, _, I, H = self.shape
        forward = 2 * self.steps() * OPERATORS[self.operator].gates * H * (I + H)
        return {"backward": 2, "step": 3}[what] * forward

    def traffic(self, what: str) -> int:
        """Bytes that must be read or written at least once: operands, saved arrays and results."""
        _, _, I, H = self.shape
        operator = OPERATORS[self.operator]
        gates = operator.gates if len(operator.saved) > len(operator.states) else 0  # an RNN saves only H
        saved = (gates + len(operator.states)) * H
        parameters = operator.gates * H * (I + H + 2)
        backward = self.steps() * (2 * I + H + saved) + 2 * parameters  # X, dX, the cotangent
        forward = self.steps() * (I + saved) + parameters
        return np.dtype(self.dtype).itemsize * (backward + (forward if what == "step" else 0))


def data(work: Recurrent, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random arrays in ONNX's layouts: the parameters, and X, states and a cotangent of H_all."""
    T, N, I, H = work.shape
    operator = OPERATORS[work.operator]
    dtype = np.dtype(work.dtype)
    rng = np.random.default_rng(seed)

    def uniform(*size: int) -> Any:
        return (rng.uniform(-1, 1, size) / np.sqrt(H)).astype(dtype)

    def normal(*size: int) -> Any:
        return rng.standard_normal(size, dtype=dtype.type)

    gates = operator.gates * H
    parameters = {"W": uniform(1, gates, I), "R": uniform(1, gates, H), "B": uniform(1, 2 * gates)}
    if "peephole" in operator.options:
        parameters["P"] = uniform(1, 3 * H)
    arrays = {"X": normal(T, N, I), "grad_H_all": normal(T, 1, N, H)}
    arrays |= {name: normal(1, N, H) / 2 for name in operator.states}
    return parameters, arrays
