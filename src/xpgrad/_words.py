"""Arguments that are one of few words, as types: for the adapters' signatures and the stubs of the core's."""

from typing import Literal, TypeAlias

Approximate: TypeAlias = Literal["none", "tanh"]
AutoPad: TypeAlias = Literal["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]
Direction: TypeAlias = Literal["forward", "reverse", "bidirectional"]
Layout: TypeAlias = Literal["onnx", "torch", "keras", "cudnn", "flax", "equinox"]
Method: TypeAlias = Literal["auto", "pointwise", "winograd", "patches", "shifted", "taps", "fft"]
Nonlinearity: TypeAlias = Literal["tanh", "relu"]
Operator: TypeAlias = Literal["lstm", "gru", "rnn"]
PerSample: TypeAlias = bool | Literal["norm"]
Peephole: TypeAlias = Literal["full", "truncated"]
Reduction: TypeAlias = Literal["mean", "sum", "none"]
Saved: TypeAlias = Literal["all", "states"]

BY_ARGUMENT = {
    "approximate": "Approximate",
    "auto_pad": "AutoPad",
    "direction": "Direction",
    "source": "Layout",
    "target": "Layout",
    "method": "Method",
    "operator": "Operator",
    "per_sample": "PerSample",
    "peephole": "Peephole",
    "reduction": "Reduction",
}
"""The type of each argument of that name in the core's public functions."""
