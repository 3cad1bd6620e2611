"""onnx.reference: forwards alone, each as a model of one node."""

import numpy as np

from .case import Absent, Job
from .onnx_model import attributes_of, model

__all__ = ["onnx_reference"]

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
_SWISH = 24  # the opset that has it


def onnx_reference(job: Job) -> dict:
    """Compute a case's outputs."""
    from onnx.reference import ReferenceEvaluator

    if job.kernel not in _NAMES:
        raise Absent(job.kernel)
    name, a = _NAMES[job.kernel], attributes_of(job)
    inputs = {**job.arguments, **job.integers}
    outputs, opset = ["Y"], _SWISH if name == "Swish" else 20
    if job.kernel in _RECURRENT:
        known, outputs = (text.split() for text in _RECURRENT[job.kernel])
        if set(inputs) - set(known):
            raise Absent(", ".join(sorted(set(inputs) - set(known))))
        inputs = {k: inputs.get(k) for k in known}
        if inputs["sequence_lens"] is not None:
            inputs["sequence_lens"] = inputs["sequence_lens"].astype(np.int32)
    if name == "Softplus" and a:
        raise Absent("beta")
    if a.pop("flatten", False):
        opset = 12
    if job.kernel == "quick_gelu":
        a.setdefault("alpha", 1.702)
    if name == "Clip":
        bounds = a.pop("min_val", -1.0), a.pop("max_val", 1.0)
        inputs |= {k: np.asarray(v, dtype=np.float32) for k, v in zip(("min", "max"), bounds)}  # noqa: B905
    if name == "SoftmaxCrossEntropyLoss" and ("label_smoothing" in a or inputs["labels"].dtype.kind == "f"):
        raise Absent("smoothing or probabilities")
    made = model(name, inputs, dict.fromkeys(outputs, True), opset=opset, **a)
    feeds = {k: v for k, v in inputs.items() if v is not None}
    return dict(zip(outputs, ReferenceEvaluator(made).run(None, feeds)))  # noqa: B905
