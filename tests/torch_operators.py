"""One row for each function of `xpgrad_torch.functional`: what the tests of transforms go through."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from xpgrad_torch import activations, convolution, functional, losses
from xpgrad_torch._kernel import TorchKernel
from xpgrad_torch._recurrent import KERNELS

T, N, I, H = 3, 2, 2, 3
SIZES = {"T": T, "N": N, "I": I, "H": H, "D": 1, "C": 4, "O": 6, "L": 7, "K": 3}


@dataclass(frozen=True)
class Operator:
    """A function, its kernel, and the shapes of what it takes, by the kernel's names in its order.

    Shapes are axes; `attributes` are the function's, `given` the same as the kernel has them.
    """

    function: Callable[..., Any]
    kernel: Any
    shapes: dict[str, str]
    attributes: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    constants: tuple[str, ...] = ("sequence_lens",)  # operands of which no test takes a gradient

    def operands(self, seed: int = 0, dtype: torch.dtype = torch.float64, **sizes: int) -> dict[str, Any]:
        """Random operands by name."""
        g = torch.Generator().manual_seed(seed)
        known = SIZES | self.sizes | sizes
        drawn = {}
        for name, axes in self.shapes.items():
            shape = [
                int(a) if a.isdigit() else int(a.rstrip(a[-1]) or 1) * known[a[-1]] for a in axes.split()
            ]
            drawn[name] = torch.randn(shape, generator=g, dtype=dtype) * 0.6
        if "sequence_lens" in drawn:
            drawn["sequence_lens"] = 1 + torch.arange(known["N"]) % known["T"]
        if "labels" in drawn and self.shapes["labels"] != self.shapes["X"]:
            drawn["labels"] = torch.randint(known["C"], drawn["labels"].shape, generator=g)
        return drawn

    @property
    def optional(self) -> list[str]:
        """The operands that may be None."""
        return [name for name in self.shapes if name not in self.kernel.required]

    def subsets(self) -> Iterator[tuple[str, ...]]:
        """Every set of optional operands that may be left out, the empty one first."""
        for count in range(len(self.optional) + 1):
            yield from itertools.combinations(self.optional, count)

    def run(self, operands: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Outputs, as a tuple."""
        outputs = self.function(*operands.values(), **self.attributes)
        return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)

    def of(self, operands: dict[str, Any], names: list[str]) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function of some operands, by position; the others as they are."""
        return lambda *tensors: self.run(operands | dict(zip(names, tensors, strict=True)))

    @property
    def differentiable(self) -> list[str]:
        """The operands that have a gradient."""
        return [name for name in self.shapes if name not in self.constants]

    @property
    def parameters(self) -> list[str]:
        """The operands that are the same for the whole batch."""
        return [name for name in self.shapes if self.batch_axis(name) is None]

    @property
    def weights(self) -> list[str]:
        """The parameters that have a gradient."""
        return [name for name in self.parameters if name not in self.constants]

    @property
    def kernel_attributes(self) -> dict[str, Any]:
        """The attributes as the kernel has them."""
        return self.attributes if self.given is None else self.given

    def batch_axis(self, name: str) -> int | None:
        """Where the batch is in an operand; None in a parameter."""
        axes = self.shapes[name].split()
        return axes.index("N") if "N" in axes else None


_LSTM = {
    "X": "T N I", "W": "D 4H I", "R": "D 4H H", "B": "D 8H", "sequence_lens": "N", "initial_h": "D N H",
    "initial_c": "D N H", "P": "D 3H",
}  # fmt: skip
_LSTM_FIRST = _LSTM | {"X": "N T I", "initial_h": "N D H", "initial_c": "N D H"}
_GRU = {
    "X": "T N I", "W": "D 3H I", "R": "D 3H H", "B": "D 6H", "sequence_lens": "N", "initial_h": "D N H",
}  # fmt: skip
_LSTM_CELL = {"X": "N I", "H": "N H", "C": "N H", "W": "4H I", "R": "4H H", "B": "8H", "P": "3H"}
_GRU_CELL = {"X": "N I", "H": "N H", "W": "3H I", "R": "3H H", "B": "6H"}
_RNN = {"X": "T N I", "W": "D H I", "R": "D H H", "B": "D 2H", "sequence_lens": "N", "initial_h": "D N H"}
_RNN_CELL = {"X": "N I", "H": "N H", "W": "H I", "R": "H H", "B": "2H"}
_LAYER_NORM_LSTM = {
    "X": "T N I", "W": "D 4H I", "R": "D 4H H", "B": "D 8H", "gamma": "D 2 4H", "beta": "D 2 4H",
    "gamma_c": "D H", "beta_c": "D H", "sequence_lens": "N", "initial_h": "D N H", "initial_c": "D N H",
}  # fmt: skip
_LAYER_NORM_GRU = {
    "X": "T N I", "W": "D 3H I", "R": "D 3H H", "B": "D 6H", "gamma": "D 2 3H", "beta": "D 2 3H",
    "sequence_lens": "N", "initial_h": "D N H",
}  # fmt: skip
_SLSTM = {  # random normalizers would be near 0
    "X": "T N I", "W": "D 4H I", "R": "D 4H H", "B": "D 4H", "sequence_lens": "N", "initial_h": "D N H",
}  # fmt: skip
_BOTH = {"direction": "bidirectional"}

OPERATORS = {
    "lstm": Operator(functional.lstm, KERNELS["lstm"], _LSTM, {"clip": 1.5}),
    "lstm-both": Operator(
        functional.lstm, KERNELS["lstm"], _LSTM_FIRST, _BOTH | {"layout": 1}, sizes={"D": 2}
    ),
    "gru": Operator(functional.gru, KERNELS["gru"], _GRU),
    "gru-both": Operator(
        functional.gru, KERNELS["gru"], _GRU, _BOTH | {"linear_before_reset": 1}, sizes={"D": 2}
    ),
    "rnn": Operator(functional.rnn, KERNELS["rnn"], _RNN, {"clip": 1.5}),
    "rnn-both": Operator(
        functional.rnn, KERNELS["rnn"], _RNN, _BOTH | {"activations": ["Softplus", "Elu"]}, sizes={"D": 2}
    ),
    "layer_norm_lstm": Operator(functional.layer_norm_lstm, KERNELS["layer_norm_lstm"], _LAYER_NORM_LSTM),
    "layer_norm_gru": Operator(
        functional.layer_norm_gru, KERNELS["layer_norm_gru"], _LAYER_NORM_GRU, _BOTH, sizes={"D": 2}
    ),
    "slstm": Operator(functional.slstm, KERNELS["slstm"], _SLSTM),
    "lstm_cell": Operator(
        functional.lstm_cell, KERNELS["lstm_cell"], _LSTM_CELL, {"activations": ["Sigmoid", "Tanh", "Elu"]}
    ),
    "gru_cell": Operator(functional.gru_cell, KERNELS["gru_cell"], _GRU_CELL),
    "rnn_cell": Operator(functional.rnn_cell, KERNELS["rnn_cell"], _RNN_CELL),
    "conv1d": Operator(
        functional.conv1d,
        convolution._CONV,
        {"X": "N C L", "W": "O C K", "B": "O"},
        {"stride": 2, "padding": [1, 0]},
        {"strides": 2, "pads": [1, 0]},
    ),
    "conv2d": Operator(
        functional.conv2d,
        convolution._CONV,
        {"X": "N C L L", "W": "O H K K", "B": "O"},
        {"padding": "same", "groups": 2},
        {"auto_pad": "SAME_UPPER", "group": 2},
        {"H": 2},
    ),
    "conv_transpose2d": Operator(
        functional.conv_transpose2d,
        convolution._CONV_TRANSPOSE,
        {"X": "N C I T", "W": "C O K K", "B": "O"},
        {"stride": 2, "output_padding": 1},
        {"strides": 2, "output_padding": 1},
    ),
}


def _declared(kernel: TorchKernel) -> Operator:
    """A recurrent operator by its declaration; a width that may be several is 1."""
    shapes = {name: kernel.shapes[name].replace("?", "1") for name in kernel.operands}
    both = "sequence_lens" in shapes
    return Operator(
        getattr(functional, kernel.name), kernel, shapes, _BOTH if both else {}, sizes={"D": 1 + both}
    )


OPERATORS |= {name: _declared(kernel) for name, kernel in KERNELS.items() if name not in OPERATORS}


def _binary(x: Any, target: Any, weight: Any, pos_weight: Any, **attributes: Any) -> Any:
    return functional.binary_cross_entropy_with_logits(x, target, weight, pos_weight=pos_weight, **attributes)


_IGNORED = {"ignore_index": 1, "label_smoothing": 0.1}
OPERATORS |= {
    **{
        kernel.name: Operator(getattr(functional, kernel.name), kernel, {"X": "N C", kernel.operands[1]: "C"})
        for kernel in vars(activations).values()
        if isinstance(kernel, TorchKernel) and len(kernel.operands) == 2
    },
    "cross_entropy": Operator(
        functional.cross_entropy,
        losses._CROSS_ENTROPY,
        {"X": "N C I", "labels": "N I", "weights": "C"},
        _IGNORED | {"reduction": "mean"},
        constants=("labels", "weights"),
    ),
    "cross_entropy-probabilities": Operator(
        functional.cross_entropy,
        losses._CROSS_ENTROPY,
        {"X": "N C", "labels": "N C", "weights": "C"},
        {"reduction": "none"},
        constants=("labels", "weights"),
    ),
    "binary_cross_entropy": Operator(
        _binary,
        losses._BINARY_CROSS_ENTROPY,
        {"X": "N C", "targets": "N C", "weight": "C", "pos_weight": "C"},
        {"reduction": "sum"},
        constants=("targets", "weight", "pos_weight"),
    ),
}


_GIVEN = {"softmax": {"axis": 1}, "log_softmax": {"axis": 0}, "thresholded_relu": {"alpha": 0.1}}


def _activation(kernel: TorchKernel) -> Operator:
    given = _GIVEN.get(kernel.name, {})
    return Operator(lambda X: activations.run(kernel, X, given), kernel, {"X": "N C"}, {}, given)


# A row for each kernel of one operand.
ACTIVATIONS = {
    kernel.name: _activation(kernel)
    for kernel in vars(activations).values()
    if isinstance(kernel, TorchKernel) and kernel.operands == ("X",)
}
EVERY_KERNEL = OPERATORS | ACTIVATIONS
