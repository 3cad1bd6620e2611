"""ONNX Runtime Training's kernels, each as a model of one node."""

from typing import Any

import numpy as np

from .case import Absent, Job
from .onnx_model import attributes_of, model

__all__ = ["onnx_runtime"]

_MICROSOFT = "com.microsoft"
# Operands by the training operators' order.
_FORWARD = {
    "lstm": ("X W R B sequence_lens initial_h initial_c P", "H_all H_t C_t C_all iofc"),
    "gru": ("X W R B sequence_lens initial_h", "H_all H_t zrh"),
}
_GRADIENT = {
    "lstm": (
        "X W R sequence_lens initial_h initial_c H_all C_all iofc grad_H_all grad_H_t grad_C_t",
        "dX dW dR dB dinitial_h dinitial_c dP",
    ),
    "gru": ("X W R B sequence_lens initial_h H_all zrh grad_H_all grad_H_t", "dX dW dR dB dinitial_h"),
}
# Gradients that read the output, and gradients that read the input.
_BY_OUTPUT = {"sigmoid": "Sigmoid", "tanh": "Tanh", "leaky_relu": "LeakyRelu", "relu": "Relu"}
_BY_INPUT = {"gelu": "Gelu", "quick_gelu": "QuickGelu"}
_CONVOLUTIONS = {"conv": "Conv", "conv_transpose": "ConvTranspose"}
_ALONG = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


def onnx_runtime(job: Job) -> dict:
    """Compute a case: a forward that saves its gradient's operands, and the gradient."""
    # An undocumented option is absent; "full" peepholes are the true gradient.
    if job.kernel in _FORWARD:
        return _recurrent(job)
    if job.gradient_attributes:
        raise Absent("peephole")
    if job.kernel in _CONVOLUTIONS:
        return _convolution(job)
    if job.kernel == "softmax_cross_entropy":
        return _cross_entropy(job)
    return _activation(job)


def _run(op: str, inputs: dict, outputs: Any, domain: str = _MICROSOFT, **attributes: Any) -> dict:
    """The wanted outputs of one node."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = outputs if isinstance(outputs, dict) else dict.fromkeys(outputs, True)
    session = onnxruntime.InferenceSession(
        model(op, inputs, wanted, domain, **attributes).SerializeToString(),
        options, providers=["CPUExecutionProvider"],
    )  # fmt: skip
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {k: v for k, v in inputs.items() if v is not None})))  # noqa: B905


def _recurrent(job: Job) -> dict:
    name, a = job.kernel.upper(), attributes_of(job)
    if a.pop("layout", 0):
        raise Absent("layout")
    known, saved = (text.split() for text in _FORWARD[job.kernel])
    lengths = {k: v.astype(np.int32) for k, v in job.integers.items()}
    arrays = job.arguments | lengths
    if set(arrays) - set(known):
        raise Absent(", ".join(sorted(set(arrays) - set(known))))
    forward = _run(f"{name}Training", {k: arrays.get(k) for k in known}, saved, **a)
    zeros = np.zeros_like(forward["H_t"])
    cotangents = {f"grad_{k}": v for k, v in job.cotangents.items()}
    arrays = {"initial_h": zeros, "initial_c": zeros} | arrays | forward | cotangents
    known, found = (text.split() for text in _GRADIENT[job.kernel])
    wanted = {k: k[1:] in job.arguments for k in found}
    grads = _run(f"{name}Grad", {k: arrays.get(k) for k in known}, wanted, **a)
    values = {k: v for k, v in forward.items() if k in ("H_all", "H_t", "C_t")}
    return values | {f"gradient of {k}": grads[f"d{k}"] for k in job.arguments}


def _convolution(job: Job) -> dict:
    name, a, arguments = _CONVOLUTIONS[job.kernel], attributes_of(job), job.arguments
    Y = _run(name, {k: arguments.get(k) for k in "XWB"}, ["Y"], "", **a)
    a["kernel_shape"] = arguments["W"].shape[2:]
    inputs = {"dY": job.cotangents["Y"]} | {k: arguments[k] for k in "XW"}
    grads = _run(f"{name}Grad", inputs, {f"d{k}": k in arguments for k in "XWB"}, **a)
    return Y | {f"gradient of {k}": grads[f"d{k}"] for k in arguments}


def _activation(job: Job) -> dict:
    if job.kernel not in {**_BY_OUTPUT, **_BY_INPUT, **_ALONG}:
        raise Absent(job.kernel)
    X, dY, a = {"X": job.arguments["X"]}, {"dY": job.cotangents["Y"]}, dict(job.attributes)
    if job.kernel in _BY_OUTPUT:
        name = _BY_OUTPUT[job.kernel]
        Y = _run(name, X, ["Y"], "", **a)
        return Y | {"gradient of X": _run(f"{name}Grad", dY | Y, ["dX"], **a)["dX"]}
    if job.kernel in _ALONG:
        name = _ALONG[job.kernel]
        if a.pop("flatten", False):
            Y = _run(name, X, ["Y"], "", opset=12, **a)
            return Y | {"gradient of X": _run(f"{name}Grad", dY | Y, ["dX"], **a)["dX"]}
        a.setdefault("axis", -1)
        Y = _run(name, X, ["Y"], "", **a)
        return Y | {"gradient of X": _run(f"{name}Grad_13", dY | Y, ["dX"], **a)["dX"]}
    fast = a.pop("approximate", "none") == "tanh"
    name = "FastGelu" if fast else _BY_INPUT[job.kernel]
    Y = _run(name, X, ["Y"], **a)
    return Y | {"gradient of X": _run(f"{name}Grad", dY | X, ["dX"], **a)["dX"]}


def _cross_entropy(job: Job) -> dict:
    """SoftmaxCrossEntropyLoss for class numbers, SoftmaxCrossEntropy for probabilities."""
    a, X, others = dict(job.attributes), job.arguments["X"], job.integers
    if "label_smoothing" in a:
        raise Absent("label_smoothing")
    dY = {"dY": job.cotangents["Y"]}
    if others["labels"].dtype.kind == "f":
        if "weights" in others or a.get("reduction", "mean") == "none":
            raise Absent("weights or single losses for probabilities")
        a.setdefault("reduction", "mean")
        last = {"X": np.moveaxis(X, 1, -1).copy(), "labels": np.moveaxis(others["labels"], 1, -1).copy()}
        found = _run("SoftmaxCrossEntropy", last, ["Y", "log_prob"], **a)
        inputs = dY | {"log_prob": found["log_prob"], "labels": last["labels"]}
        dX = np.moveaxis(_run("SoftmaxCrossEntropyGrad", inputs, ["dX"], **a)["dX"], -1, 1)
        return {"Y": found["Y"], "gradient of X": dX}
    labels = {"labels": others["labels"].astype(np.int64), "weights": others.get("weights")}
    found = _run("SoftmaxCrossEntropyLoss", {"X": X, **labels}, ["Y", "log_prob"], "", **a)
    inputs = dY | {"log_prob": found["log_prob"]} | labels
    dX = _run("SoftmaxCrossEntropyLossGrad", inputs, ["dX"], **a)["dX"]
    return {"Y": found["Y"], "gradient of X": dX}
