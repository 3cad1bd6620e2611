"""ONNX Runtime Training's gradient kernels, from the package onnxruntime-training."""

import os
from typing import Any

import numpy as np

from .. import convolutions, recurrent
from ..floor import schedulable_cores
from . import need

INPUTS = {
    "LSTMTraining": "X W R B lengths initial_h initial_c P",
    "LSTMGrad": "X W R lengths initial_h initial_c H_all C_all iofc grad_H_all grad_H_t grad_C_t",
    "GRUTraining": "X W R B lengths initial_h",
    "GRUGrad": "X W R B lengths initial_h H_all zrh grad_H_all grad_H_t",
    "ConvGrad": "dY X W",
}
OUTPUTS = {
    "LSTMTraining": "H_all H_t C_t C_all iofc",
    "LSTMGrad": "dX dW dR dB dH0 dC0",
    "GRUTraining": "H_all H_t zrh",
    "GRUGrad": "dX dW dR dB dH0",
    "ConvGrad": "dX dW dB",
}


class Kernel:
    """One kernel as a model of one node, with the given operands; others are left out."""

    def __init__(self, operator: str, operands: dict[str, Any], **attributes: Any) -> None:
        onnx, ort = need("onnx"), need("onnxruntime")
        self.outputs = OUTPUTS[operator].split()
        names = [name if name in operands else "" for name in INPUTS[operator].split()]
        while not names[-1]:
            names.pop()
        node = onnx.helper.make_node(operator, names, self.outputs, domain="com.microsoft", **attributes)

        def values(names: list[str]) -> list[Any]:
            float32 = onnx.TensorProto.FLOAT
            return [onnx.helper.make_tensor_value_info(name, float32, None) for name in names if name]

        graph = onnx.helper.make_graph([node], operator, values(names), values(self.outputs))
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
        options = ort.SessionOptions()
        options.intra_op_num_threads = _threads()
        # Idle threads of a session spin for tens of milliseconds and take a core from the next measurement.
        # This stops them at the end of a run, whose own time stays the same.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except ort.capi.onnxruntime_pybind11_state.Fail as error:
            raise NotImplementedError(f"this onnxruntime has no {operator}") from error
        self._operands = {name: operands[name] for name in names if name}

    def __call__(self) -> dict[str, Any]:
        """The outputs by name."""
        return dict(zip(self.outputs, self._session.run(None, self._operands), strict=True))


class BackwardRun:
    """Only a gradient kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def backward(self) -> dict[str, Any]:
        """All gradients."""
        return self._kernel()


def _recurrent(work: recurrent.Recurrent) -> BackwardRun:
    if work.operator not in ("lstm", "gru") or work.lengths is not None or work.dtype != "float32":
        raise NotImplementedError("ONNX Runtime's gradients are for float32, without lengths and options")
    operator = recurrent.OPERATORS[work.operator]
    parameters, arrays = recurrent.data(work)
    operands = parameters | arrays
    attributes = {"hidden_size": work.shape[3], **operator.attributes}
    saved = Kernel(f"{operator.module}Training", operands, **attributes)()
    # the kernels require these cotangents too
    zeros = dict.fromkeys(("grad_H_t", "grad_C_t"), np.zeros_like(operands["initial_h"]))
    return BackwardRun(Kernel(f"{operator.module}Grad", operands | saved | zeros, **attributes))


def _convolution(work: convolutions.Convolution) -> BackwardRun:
    if work.transposed:
        raise NotImplementedError("ONNX Runtime has no gradient of ConvTranspose")
    X, W, _ = convolutions.data(work)
    dimensions = len(work.size)
    operands = {"dY": convolutions.cotangent(work), "X": X, "W": W}
    attributes = {
        "group": work.group,
        "kernel_shape": W.shape[2:],
        "strides": [work.stride] * dimensions,
        "pads": [work.pad] * 2 * dimensions,
        "dilations": [work.dilation] * dimensions,
    }
    return BackwardRun(Kernel("ConvGrad", operands, **attributes))


RUNS: dict[str, Any] = {"Recurrent": _recurrent, "Convolution": _convolution}


def _threads() -> int:
    """The number that other libraries are set to; 0 means one per core."""
    return int(os.environ.get("OMP_NUM_THREADS", 0))


def describe() -> str:
    """The version and the path."""
    ort = need("onnxruntime")
    need("onnx")
    threads = _threads() or schedulable_cores()
    return f"ONNX Runtime {ort.__version__}, CPU kernels, {threads} threads within an operator"
