"""What `warm` runs: operators at sizes that need different loops, on NumPy's arrays and PyTorch's tensors.

A work has a dtype, and a method for each kind of arrays. The method returns a function that runs the operator
and its gradient once; it raises NotImplementedError for what is not installed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import xpgrad
from xpgrad._operators.declaration import DECLARED

__all__ = ["WORKS", "step_of"]

_ROWS = (1, 32)  # a batch in one thread, with products of one row; and one that is split into parts
_SHARED = (3, 1, 32, 1024)  # one row and a large weight, whose columns threads share
_LARGE = (512, 1024)  # enough elements for threads, which have their own loops


class RecurrentOperator(NamedTuple):
    """A recurrent kernel with its attributes, and the PyTorch module that computes the same."""

    kernel: Any
    gates: int
    states: tuple[str, ...]
    module: str
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never written to
    options: dict[str, Any] = {}  # noqa: RUF012 - never written to


_LSTM = (xpgrad.lstm, 4, ("initial_h", "initial_c"), "LSTM")
_GRU = (xpgrad.gru, 3, ("initial_h",), "GRU")
RECURRENT = {
    "lstm": RecurrentOperator(*_LSTM),
    "lstm-peephole": RecurrentOperator(*_LSTM, options={"peephole": True}),
    "gru": RecurrentOperator(*_GRU, attributes={"linear_before_reset": 1}),
    "rnn": RecurrentOperator(xpgrad.rnn, 1, ("initial_h",), "RNN"),
    "gru-reset-before": RecurrentOperator(*_GRU, options={"reset_after": False}),
}
ACTIVATIONS = {  # the kernels' names, and the modules
    **{name: declaration.torch for name, declaration in DECLARED.items() if not declaration.operands},
    "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
}
LOSSES = {
    "softmax_cross_entropy": "CrossEntropyLoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
}


def _normal(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) / 8).astype(dtype)


def _needed(name: str) -> Any:
    """An optional module."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotImplementedError(f"{name} is not installed") from error


def _leaf(shape: tuple[int, ...], dtype: str) -> Any:
    """A tensor that gets a gradient."""
    return _needed("torch").from_numpy(_normal(shape, dtype)).requires_grad_()


def _differentiated(function: Callable[[], Any], leaves: list[Any]) -> Callable[[], Any]:
    """A function of tensors and its gradient, as autograd runs it."""
    torch = _needed("torch")

    def step() -> Any:
        Y = function()
        return torch.autograd.grad(Y, leaves, torch.ones_like(Y))

    return step


class RecurrentWork(NamedTuple):
    """An operator over sequences; `lengths` are the shortest and the longest of uneven ones."""

    operator: str
    shape: tuple[int, int, int, int]
    lengths: tuple[int, int] | None
    dtype: str

    def _sequence_lens(self) -> np.ndarray | None:
        if self.lengths is None:
            return None
        shortest, longest = self.lengths
        return np.linspace(longest, shortest, self.shape[1]).astype(np.int64)

    def numpy(self) -> Callable[[], Any]:
        """A step of the kernel."""
        T, N, I, H = self.shape
        operator = RECURRENT[self.operator]
        rows = operator.gates * H
        shapes = {"X": (T, N, I), "W": (1, rows, I), "R": (1, rows, H), "B": (1, 2 * rows)}
        if "peephole" in operator.options:
            shapes["P"] = (1, 3 * H)
        shapes |= dict.fromkeys(operator.states, (1, N, H))
        arrays: dict[str, Any] = {name: _normal(shape, self.dtype) for name, shape in shapes.items()}
        arrays |= {"sequence_lens": self._sequence_lens(), **operator.attributes}
        cotangent = _normal((T, 1, N, H), self.dtype)
        X, kernel = arrays.pop("X"), operator.kernel
        return lambda: xpgrad.vjp(kernel, X, **arrays)[1](cotangent)

    def torch(self) -> Callable[[], Any]:
        """A step of the module."""
        T, N, I, H = self.shape
        operator, torch = RECURRENT[self.operator], _needed("torch")
        kind = getattr(_needed("xpgrad_torch"), operator.module)
        module = kind(I, H, **operator.options).to(getattr(torch, self.dtype))
        X, *states = (_leaf(s, self.dtype) for s in ((T, N, I), *[(1, N, H)] * len(operator.states)))
        state = states[0] if len(states) == 1 else tuple(states)
        lengths = self._sequence_lens()
        call = {} if lengths is None else {"lengths": torch.from_numpy(lengths)}
        return _differentiated(lambda: module(X, state, **call)[0], [X, *states, *module.parameters()])


class ConvolutionWork(NamedTuple):
    """A convolution of N images; a kernel, stride and pad for all dimensions."""

    N: int
    C: int
    size: tuple[int, ...]
    O: int
    kernel: int
    stride: int = 1
    pad: int = 0
    group: int = 1
    transposed: bool = False
    dtype: str = "float32"

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of X, W and B."""
        ends = (self.C, self.O // self.group) if self.transposed else (self.O, self.C // self.group)
        return (self.N, self.C, *self.size), (*ends, *[self.kernel] * len(self.size)), (self.O,)

    def numpy(self) -> Callable[[], Any]:
        """A step of the kernel."""
        function: Any = xpgrad.conv_transpose if self.transposed else xpgrad.conv
        operands = [_normal(shape, self.dtype) for shape in self._shapes()]
        options = {"strides": self.stride, "pads": self.pad, "group": self.group}

        def step() -> Any:
            Y, pullback = xpgrad.vjp(function, *operands, **options)
            return pullback(Y)

        return step

    def torch(self) -> Callable[[], Any]:
        """A step of the function."""
        functions = _needed("xpgrad_torch").functional
        function = getattr(functions, f"conv{'_transpose' * self.transposed}{len(self.size)}d")
        leaves = [_leaf(shape, self.dtype) for shape in self._shapes()]
        options = {"stride": self.stride, "padding": self.pad, "groups": self.group}
        return _differentiated(lambda: function(*leaves, **options), leaves)


class ActivationWork(NamedTuple):
    """A function of an array; along the last axis if it has an axis."""

    function: str
    dtype: str

    def numpy(self) -> Callable[[], Any]:
        """A step of the kernel."""
        function, X = getattr(xpgrad, self.function), _normal(_LARGE, self.dtype)
        return lambda: xpgrad.vjp(function, X)[1](X)

    def torch(self) -> Callable[[], Any]:
        """A step of the module."""
        module = ACTIVATIONS[self.function]
        if module is None:
            raise NotImplementedError(f"there is no module for {self.function}")
        options = {"dim": -1} if self.function.endswith("softmax") else {}
        function, X = getattr(_needed("xpgrad_torch"), module)(**options), _leaf(_LARGE, self.dtype)
        return _differentiated(lambda: function(X), [X])


class LossWork(NamedTuple):
    """A loss of logits."""

    function: str
    dtype: str

    def _target(self) -> np.ndarray:
        """A class for each row, or a probability for each number."""
        if self.function == "softmax_cross_entropy":
            return np.arange(_LARGE[0]) % _LARGE[1]
        return np.random.default_rng(1).uniform(0, 1, _LARGE).astype(self.dtype)

    def numpy(self) -> Callable[[], Any]:
        """A step of the kernel."""
        function, X, target = getattr(xpgrad, self.function), _normal(_LARGE, self.dtype), self._target()

        def step() -> Any:
            loss, pullback = xpgrad.vjp(function, X, target)
            return pullback(loss)

        return step

    def torch(self) -> Callable[[], Any]:
        """A step of the module."""
        module, X = getattr(_needed("xpgrad_torch"), LOSSES[self.function])(), _leaf(_LARGE, self.dtype)
        target = _needed("torch").from_numpy(self._target())
        return _differentiated(lambda: module(X, target), [X])


_CONVOLUTIONS = (  # each method of the cost rule
    ConvolutionWork(8, 64, (56, 56), 64, 3, 1, 1),
    ConvolutionWork(8, 64, (56, 56), 256, 1),
    ConvolutionWork(8, 128, (28, 28), 128, 3, 1, 1),
    ConvolutionWork(8, 256, (14, 14), 256, 3, 1, 1),
    ConvolutionWork(8, 3, (224, 224), 64, 7, 2, 3),
    ConvolutionWork(8, 128, (56, 56), 128, 3, 2, 1),
    ConvolutionWork(8, 96, (28, 28), 96, 3, 1, 1, 96),
    ConvolutionWork(4, 16, (64, 64), 16, 31, 1, 15),
    ConvolutionWork(4, 16, (8192,), 16, 1025, 1, 512),
    ConvolutionWork(8, 128, (28, 28), 64, 4, 2, 1, transposed=True),
    ConvolutionWork(8, 64, (56, 56), 64, 3, 1, 1, transposed=True),
)


def _recurrent(operator: str, dtype: str) -> Iterator[Any]:
    for rows in _ROWS:
        yield RecurrentWork(operator, (8, rows, 32, 32), None, dtype)
    yield RecurrentWork(operator, (8, _ROWS[-1], 32, 32), (2, 8), dtype)
    yield RecurrentWork(operator, _SHARED, None, dtype)


WORKS: dict[str, Callable[[str], Iterator[Any]]] = {
    **{name: functools.partial(_recurrent, name) for name in RECURRENT},
    "conv": lambda dtype: (work._replace(dtype=dtype) for work in _CONVOLUTIONS),
    "activations": lambda dtype: (ActivationWork(name, dtype) for name in ACTIVATIONS),
    "losses": lambda dtype: (LossWork(name, dtype) for name in LOSSES),
}
"""The works of each operator that can be named, in a dtype."""


def step_of(work: Any, arrays: str) -> Callable[[], Any]:
    """Return a function that runs a work once, on arrays of this kind."""
    step: Callable[[], Any] = getattr(work, arrays)()
    return step
