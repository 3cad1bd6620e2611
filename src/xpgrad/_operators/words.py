"""Types of arguments that take one of a few words, for public signatures."""

from typing import Literal, TypeAlias

Approximate: TypeAlias = Literal["none", "tanh"]
AutoPad: TypeAlias = Literal["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]
TimeDirection: TypeAlias = Literal["forward", "reverse", "bidirectional"]
Layout: TypeAlias = Literal["onnx", "torch", "keras", "cudnn", "flax", "equinox", "flashrnn", "xlstm"]
ConvMethod: TypeAlias = Literal[
    "auto", "pointwise", "winograd", "patches", "clipped", "shifted", "taps", "fft"
]
Nonlinearity: TypeAlias = Literal["tanh", "relu"]
Operator: TypeAlias = Literal["lstm", "gru", "rnn", "slstm"]
PerSample: TypeAlias = bool | Literal["norm"]
Peephole: TypeAlias = Literal["full", "truncated"]
Reduction: TypeAlias = Literal["mean", "sum", "none"]
Saved: TypeAlias = Literal["all", "states"]
