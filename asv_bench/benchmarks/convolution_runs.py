"""Convolutions for the suites: shapes, data, and one training step per implementation."""

import importlib
from typing import NamedTuple

import numpy as np

from .common import need


class Convolution(NamedTuple):
    """A convolution with as many input channels in a group as C / group, all sizes of a kind alike."""

    N: int
    C: int
    size: tuple[int, ...]
    O: int
    kernel: int
    stride: int = 1
    pad: int = 0
    group: int = 1

    def shapes(self, transposed=False):
        """Of X, W and B."""
        ends = (self.C, self.O // self.group) if transposed else (self.O, self.C // self.group)
        return (self.N, self.C, *self.size), (*ends, *[self.kernel] * len(self.size)), (self.O,)


CONVOLUTIONS = {
    "8x64x56, 64 of 3": Convolution(8, 64, (56, 56), 64, 3, 1, 1),
    "8x64x56, 256 of 1": Convolution(8, 64, (56, 56), 256, 1),
    "8x128x28, 128 of 3": Convolution(8, 128, (28, 28), 128, 3, 1, 1),
    "8x256x14, 256 of 3": Convolution(8, 256, (14, 14), 256, 3, 1, 1),
    "8x3x224, 64 of 7, stride 2": Convolution(8, 3, (224, 224), 64, 7, 2, 3),
    "8x128x56, 128 of 3, stride 2": Convolution(8, 128, (56, 56), 128, 3, 2, 1),
    "8x96x28, depthwise 3": Convolution(8, 96, (28, 28), 96, 3, 1, 1, 96),
    "4x16x64, 16 of 31": Convolution(4, 16, (64, 64), 16, 31, 1, 15),
    "4x16x8192, 16 of 1025": Convolution(4, 16, (8192,), 16, 1025, 1, 512),
}
TRANSPOSED = {
    "8x128x28, 64 of 4, stride 2": Convolution(8, 128, (28, 28), 64, 4, 2, 1),
    "8x64x56, 64 of 3": CONVOLUTIONS["8x64x56, 64 of 3"],
}
STEPS = ("xpgrad-numpy", "xpgrad-torch", "torch")
BACKWARDS = (*STEPS, "ort")


def data(shape, transposed, seed=0):
    """Random float32 X, W and B, with outputs of the size of the inputs."""
    rng = np.random.default_rng(seed)
    X, W, B = (rng.standard_normal(size, dtype=np.float32) for size in shape.shapes(transposed))
    return X, W / np.float32(np.sqrt(W[0].size)), B


class NumpyRun:
    """xpgrad's kernels on NumPy arrays."""

    def __init__(self, shape, transposed=False):
        xpgrad = importlib.import_module("xpgrad")
        name = "conv_transpose" if transposed else "conv"
        self._forward, self._gradient = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")
        self._operands = data(shape, transposed)
        self._attributes = {"strides": shape.stride, "pads": shape.pad, "group": shape.group}
        Y = self.forward()
        self._cotangent = np.random.default_rng(1).standard_normal(Y.shape, dtype=np.float32)

    def forward(self):
        return self._forward(*self._operands, **self._attributes)

    def backward(self):
        return self._gradient(self._cotangent, *self._operands[:2], **self._attributes)

    def step(self):
        self.forward()
        return self.backward()


class TorchRun:
    """A function of torch's or of xpgrad_torch's, with gradients of the input and both parameters."""

    def __init__(self, shape, transposed, functions):
        self._torch = torch = need("torch")
        name = f"conv{'_transpose' * transposed}{len(shape.size)}d"
        self._function = getattr(functions, name)
        self._leaves = [torch.from_numpy(a).requires_grad_() for a in data(shape, transposed)]
        self._options = {"stride": shape.stride, "padding": shape.pad, "groups": shape.group}
        self.forward()
        cotangent = np.random.default_rng(1).standard_normal(tuple(self._Y.shape), dtype=np.float32)
        self._cotangent = torch.from_numpy(cotangent)

    def forward(self):
        self._Y = self._function(*self._leaves, **self._options)

    def backward(self):
        # The graph is kept, so that the backward alone can be timed more than once.
        return self._torch.autograd.grad(self._Y, self._leaves, self._cotangent, retain_graph=True)

    def step(self):
        self.forward()
        return self._torch.autograd.grad(self._Y, self._leaves, self._cotangent)


class OrtRun:
    """ONNX Runtime's ConvGrad, which the package onnxruntime-training has."""

    def __init__(self, shape):
        onnx, ort = need("onnx"), need("onnxruntime")
        X, W, _ = data(shape, False)
        dimensions = len(shape.size)
        node = onnx.helper.make_node(
            "ConvGrad", ["dY", "X", "W"], ["dX", "dW", "dB"],
            domain="com.microsoft", group=shape.group, kernel_shape=W.shape[2:],
            strides=[shape.stride] * dimensions, pads=[shape.pad] * 2 * dimensions,
            dilations=[1] * dimensions,
        )  # fmt: skip

        def values(names):
            float32 = onnx.TensorProto.FLOAT
            return [onnx.helper.make_tensor_value_info(name, float32, None) for name in names]

        graph = onnx.helper.make_graph([node], "backward", values(node.input), values(node.output))
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
        # Idle threads of a session look for work for tens of milliseconds, and so take a core from whatever
        # is measured next. They are to stop at the end of a run; its own time stays the same.
        options = ort.SessionOptions()
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except ort.capi.onnxruntime_pybind11_state.Fail as error:
            raise NotImplementedError("this onnxruntime has no ConvGrad") from error
        output = [(s + 2 * shape.pad - shape.kernel) // shape.stride + 1 for s in shape.size]
        dY = np.random.default_rng(1).standard_normal((shape.N, shape.O, *output), dtype=np.float32)
        self._inputs = {"dY": dY, "X": X, "W": W}

    def backward(self):
        return self._session.run(None, self._inputs)


def make(impl, name, *, transposed=False):
    """One implementation of a convolution, by its name."""
    shape = (TRANSPOSED if transposed else CONVOLUTIONS)[name]
    if impl == "xpgrad-numpy":
        return NumpyRun(shape, transposed)
    if impl == "ort":
        return OrtRun(shape)
    functions = need("xpgrad_torch").functional if impl == "xpgrad-torch" else need("torch").nn.functional
    return TorchRun(shape, transposed, functions)
