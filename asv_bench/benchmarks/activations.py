"""Activations, softmax and losses: ours on NumPy and torch beside PyTorch's own kernels."""

import importlib
from typing import Any, NamedTuple

import numpy as np

from .common import IMPLEMENTATIONS, need, ratio

OURS = [name for name in IMPLEMENTATIONS if name != "torch"]
SHAPES = {"1k": (1000,), "4M": (4096, 1024)}
ROWS = {"8x125": (8, 125), "4096x1024": (4096, 1024)}
LOGITS = {"8x125": (8, 125), "4096x1024": (4096, 1024), "4096x32000": (4096, 32000)}


class Function(NamedTuple):
    """A kernel, its attributes, what its gradient takes, and PyTorch's backward kernel for it.

    `peer` is that kernel's name and a function of (dY, X, Y) that returns its arguments; where PyTorch has
    none, a function of X whose gradient autograd composes.
    """

    peer: Any
    takes: str = "X"
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never written to
    module: str | None = None
    """PyTorch's module, and ours."""


def _elu(alpha=1.0, scale=1.0, input_scale=1.0):
    return "elu_backward", lambda dY, X, Y: (dY, alpha, scale, input_scale, False, X)


POINTWISE = {
    "relu": Function(("threshold_backward", lambda dY, X, Y: (dY, X, 0)), module="ReLU"),
    "leaky_relu": Function(
        ("leaky_relu_backward", lambda dY, X, Y: (dY, X, 0.01, False)), "Y", module="LeakyReLU"
    ),
    "thresholded_relu": Function(("threshold_backward", lambda dY, X, Y: (dY, X, 1.0))),
    "elu": Function(_elu(), module="ELU"),
    "selu": Function(_elu(1.6732632423543772, 1.0507009873554805), module="SELU"),
    "celu": Function(_elu(), module="CELU"),
    "softplus": Function(("softplus_backward", lambda dY, X, Y: (dY, X, 1.0, 20.0)), module="Softplus"),
    "gelu": Function(("gelu_backward", lambda dY, X, Y: (dY, X)), module="GELU"),
    "quick_gelu": Function(lambda X: X * (1.702 * X).sigmoid()),
    "silu": Function(("silu_backward", lambda dY, X, Y: (dY, X)), module="SiLU"),
    "mish": Function(("mish_backward", lambda dY, X, Y: (dY, X)), module="Mish"),
    "sigmoid": Function(("sigmoid_backward", lambda dY, X, Y: (dY, Y)), "Y", module="Sigmoid"),
    "log_sigmoid": Function(
        ("log_sigmoid_backward", lambda dY, X, Y: (dY, X, (-X.abs()).exp())), module="LogSigmoid"
    ),
    "hard_sigmoid": Function(
        ("hardsigmoid_backward", lambda dY, X, Y: (dY, X)),
        attributes={"alpha": 1 / 6, "beta": 0.5},
        module="Hardsigmoid",
    ),
    "hard_swish": Function(("hardswish_backward", lambda dY, X, Y: (dY, X)), module="Hardswish"),
    "tanh": Function(("tanh_backward", lambda dY, X, Y: (dY, Y)), "Y", module="Tanh"),
    "scaled_tanh": Function(lambda X: X.tanh()),
    "hard_tanh": Function(("hardtanh_backward", lambda dY, X, Y: (dY, X, -1.0, 1.0)), module="Hardtanh"),
    "softsign": Function(lambda X: X / (1 + X.abs()), module="Softsign"),
}
ALONG_AXIS = {
    "softmax": Function(
        ("_softmax_backward_data", lambda dY, X, Y: (dY, Y, -1, Y.dtype)), "Y", module="Softmax"
    ),
    "log_softmax": Function(
        ("_log_softmax_backward_data", lambda dY, X, Y: (dY, Y, -1, Y.dtype)), "Y", module="LogSoftmax"
    ),
}
FUNCTIONS = POINTWISE | ALONG_AXIS
SAVE_OUTPUT = ("sigmoid", "tanh", "softmax", "log_softmax")  # with PyTorch


def data(shape, seed=0):
    """X and a cotangent, float32."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))


def backward(impl, name, shape):
    """A function without arguments: the gradient alone, from saved arrays."""
    function = FUNCTIONS[name]
    X, dY = data(shape)
    if impl != "torch":
        xpgrad = importlib.import_module("xpgrad")
    if impl != "xpgrad-numpy":
        torch = need("torch")
        X, dY = torch.from_numpy(X), torch.from_numpy(dY)
    if impl == "torch":
        return _peer(torch, name, X, dY)
    saved = getattr(xpgrad, name)(X, **function.attributes) if function.takes == "Y" else X
    gradient = getattr(xpgrad, f"{name}_grad")
    return lambda: gradient(dY, saved, **function.attributes)


def _peer(torch, name, X, dY):
    """PyTorch's own gradient."""
    peer = FUNCTIONS[name].peer
    if callable(peer):
        leaf = X.requires_grad_()
        Y = peer(leaf)
        return lambda: torch.autograd.grad(Y, leaf, dY, retain_graph=True)[0]
    along = (-1,) if name in ALONG_AXIS else ()
    Y = getattr(X, name)(*along) if name in SAVE_OUTPUT else None
    kernel, arguments = peer
    given = arguments(dY, X, Y)
    run = getattr(torch.ops.aten, kernel)
    return lambda: run(*given)


def step(impl, name, shape):
    """A function without arguments: a module's forward and its backward."""
    torch = need("torch")
    modules = torch.nn if impl == "torch" else need("xpgrad_torch")
    module = getattr(modules, FUNCTIONS[name].module)(**({"dim": -1} if name in ALONG_AXIS else {}))
    X, dY = map(torch.from_numpy, data(shape))
    leaf = X.requires_grad_()
    return lambda: torch.autograd.grad(module(leaf), leaf, dY)[0]


def loss(impl, name, shape):
    """A function without arguments: a loss and the gradient of the logits."""
    X, other = data(shape)
    rng = np.random.default_rng(1)
    if name == "cross_entropy":
        kernel, module = "softmax_cross_entropy", "CrossEntropyLoss"
        target = rng.integers(0, shape[1], shape[0])
    else:
        kernel, module = name, "BCEWithLogitsLoss"
        target = np.abs(np.tanh(other))
    if impl == "xpgrad-numpy":
        xpgrad = importlib.import_module("xpgrad")
        forward, gradient = getattr(xpgrad, kernel), getattr(xpgrad, f"{kernel}_grad")
        dY = np.ones((), np.float32)
        return lambda: (forward(X, target), gradient(dY, X, target))[1]
    torch = need("torch")
    module = getattr(torch.nn if impl == "torch" else need("xpgrad_torch"), module)()
    leaf, target = torch.from_numpy(X).requires_grad_(), torch.from_numpy(target)
    return lambda: torch.autograd.grad(module(leaf, target), leaf)[0]


# ------------------------------------------------------------------------------------------- the suites


class PointwiseBackward:
    """The gradient alone, from saved arrays; the peer is PyTorch's backward kernel."""

    params = ([*SHAPES], [*POINTWISE], [*IMPLEMENTATIONS])
    param_names = ("elements", "function", "impl")
    shapes = SHAPES
    make = staticmethod(backward)

    def setup(self, shape, function, impl):
        self.run = self.make(impl, function, self.shapes[shape])
        self.run()  # compiles

    def time_backward(self, shape, function, impl):
        self.run()

    def peakmem_backward(self, shape, function, impl):
        self.run()


class SoftmaxBackward(PointwiseBackward):
    """The same along the last axis."""

    params = ([*ROWS], [*ALONG_AXIS], [*IMPLEMENTATIONS])
    param_names = ("rows x classes", "function", "impl")
    shapes = ROWS


class ActivationStep:
    """A module's forward and backward under autograd."""

    params = ([*SHAPES], [name for name, f in POINTWISE.items() if f.module], ["xpgrad-torch", "torch"])
    param_names = PointwiseBackward.param_names
    shapes = SHAPES
    make = staticmethod(step)

    def setup(self, shape, function, impl):
        self.run = self.make(impl, function, self.shapes[shape])
        self.run()

    def time_step(self, shape, function, impl):
        self.run()


class LossStep(ActivationStep):
    """A loss and the gradient of its logits."""

    params = ([*LOGITS], ["cross_entropy", "binary_cross_entropy_with_logits"], [*IMPLEMENTATIONS])
    param_names = ("samples x classes", "loss", "impl")
    shapes = LOGITS
    make = staticmethod(loss)

    def peakmem_step(self, shape, function, impl):
        self.run()


class BackwardRatio:
    """Median time of ours over the peer's, both timed in turns in one process: below 1 is faster."""

    params = ([*SHAPES], [*POINTWISE], OURS)
    param_names = PointwiseBackward.param_names
    unit = "ours / peer"
    shapes = SHAPES
    make = staticmethod(backward)

    def setup(self, shape, function, impl):
        self.peer = self.make("torch", function, self.shapes[shape])
        self.ours = self.make(impl, function, self.shapes[shape])

    def track_backward(self, shape, function, impl):
        return ratio(self.ours, self.peer)


class SoftmaxBackwardRatio(BackwardRatio):
    """The same along the last axis."""

    params = ([*ROWS], [*ALONG_AXIS], OURS)
    param_names = SoftmaxBackward.param_names
    shapes = ROWS


class LossRatio(BackwardRatio):
    """The same for a loss and the gradient of its logits."""

    params = ([*LOGITS], ["cross_entropy", "binary_cross_entropy_with_logits"], OURS)
    param_names = LossStep.param_names
    shapes = LOGITS
    make = staticmethod(loss)
