"""ONNX's own operator for a case, as a model of one node.

The file needs only NumPy and onnx: ``asv_bench/xpgrad_peers`` runs it in interpreters without xpgrad.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["attributes_of", "model", "one_node"]

_RECURRENT = {
    "lstm": ("X W R B sequence_lens initial_h initial_c P", "H_all H_t C_t"),
    "gru": ("X W R B sequence_lens initial_h", "H_all H_t"),
    "rnn": ("X W R B sequence_lens initial_h", "H_all H_t"),
}
_NAMES = {
    "lstm": "LSTM", "gru": "GRU", "rnn": "RNN", "conv": "Conv", "conv_transpose": "ConvTranspose",
    "relu": "Relu", "leaky_relu": "LeakyRelu", "prelu": "PRelu", "thresholded_relu": "ThresholdedRelu",
    "elu": "Elu", "selu": "Selu", "celu": "Celu", "softplus": "Softplus", "gelu": "Gelu", "mish": "Mish",
    "sigmoid": "Sigmoid", "hard_sigmoid": "HardSigmoid", "hard_swish": "HardSwish", "tanh": "Tanh",
    "softsign": "Softsign", "softmax": "Softmax", "log_softmax": "LogSoftmax", "silu": "Swish",
    "quick_gelu": "Swish", "hard_tanh": "Clip", "softmax_cross_entropy": "SoftmaxCrossEntropyLoss",
}  # fmt: skip
_SWISH = 24  # the first opset with Swish


def one_node(
    kernel: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any], pads: Sequence[Sequence[int]] = ()
) -> tuple[Any, dict[str, Any], list[str]]:
    """A model of a kernel of xpgrad, its inputs, and the names of its outputs.

    `pads` are a convolution's, at the begins and at the ends. NotImplementedError means that ONNX lacks the
    operator, an operand or an attribute.
    """
    if kernel not in _NAMES:
        raise NotImplementedError(kernel)
    name, a = _NAMES[kernel], attributes_of(kernel, arrays, attributes, pads)
    inputs = dict(arrays)
    outputs, opset = ["Y"], _SWISH if name == "Swish" else 20
    if kernel in _RECURRENT:
        known, outputs = (text.split() for text in _RECURRENT[kernel])
        if set(inputs) - set(known):
            raise NotImplementedError(", ".join(sorted(set(inputs) - set(known))))
        inputs = {k: inputs.get(k) for k in known}
        if inputs["sequence_lens"] is not None:
            inputs["sequence_lens"] = inputs["sequence_lens"].astype(np.int32)
    if name == "Softplus" and a:
        raise NotImplementedError("beta")
    if a.pop("flatten", False):
        opset = 12
    if kernel == "quick_gelu":
        a.setdefault("alpha", 1.702)
    if name == "Clip":
        bounds, dtype = (a.pop("min_val", -1.0), a.pop("max_val", 1.0)), inputs["X"].dtype
        inputs |= {k: np.asarray(v, dtype=dtype) for k, v in zip(("min", "max"), bounds)}  # noqa: B905
    if name == "SoftmaxCrossEntropyLoss" and ("label_smoothing" in a or inputs["labels"].dtype.kind == "f"):
        raise NotImplementedError("smoothing or probabilities")
    made = model(name, inputs, dict.fromkeys(outputs, True), opset=opset, **a)
    return made, {k: v for k, v in inputs.items() if v is not None}, outputs


def model(
    op_type: str, inputs: dict, outputs: dict, domain: str = "", opset: int = 20, **attributes: Any
) -> Any:
    """A model of one node.

    `inputs` are arrays by the names of the operands, in their order, None if omitted. `outputs` says for each
    name whether the result is wanted.
    """
    import onnx
    from onnx import helper

    rows: list = []
    for given in (inputs, outputs):
        row = [name if value is not None and value is not False else "" for name, value in given.items()]
        while row and not row[-1]:
            row.pop()
        rows.append(row)
    node = helper.make_node(op_type, rows[0], rows[1], domain=domain, **attributes)
    kinds = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in inputs.items() if v is not None}
    kind = kinds.get("X", onnx.TensorProto.FLOAT)  # the results' type
    ends = [[helper.make_tensor_value_info(n, kinds.get(n, kind), None) for n in row if n] for row in rows]
    graph = helper.make_graph([node], "g", ends[0], ends[1])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset <= 20 else 11)


def attributes_of(
    kernel: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any], pads: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """The attributes in ONNX's form."""
    a = dict(attributes)
    if "input_forget" in a:
        a["input_forget"] = int(a["input_forget"])
    if kernel in ("lstm", "gru", "rnn"):
        a["hidden_size"] = arrays["R"].shape[2]
    if kernel in ("conv", "conv_transpose"):
        rank = arrays["X"].ndim - 2
        for name in ("strides", "dilations", "output_padding"):
            if name in a:
                a[name] = [a[name]] * rank if isinstance(a[name], int) else list(a[name])
        if "pads" in a:
            a["pads"] = [n for end in pads for n in end]
    return a
