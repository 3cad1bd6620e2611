"""The calls of `warm`: operators at sizes that need different loops, on NumPy's arrays and PyTorch's tensors.

Each work has a dtype, and a method for each kind of arrays. The method returns a function that runs the
operator and its gradient once; it raises NotImplementedError if a package is missing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

import xpgrad
from xpgrad._operators.axes import shape_of
from xpgrad._operators.declaration import DECLARED
from xpgrad._operators.units import UNITS

__all__ = ["WORKS"]

_ROWS = (1, 32)  # a batch of one row, in one thread; and a batch that is split into parts
_SHARED = (3, 1, 32, 1024)  # one row and a large weight, whose columns threads share
_LARGE = (512, 1024)  # enough elements for the loops of threads


class RecurrentOperator(NamedTuple):
    """A recurrent kernel with its attributes, and the options of its module in `xpgrad_torch`."""

    name: str
    attributes: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}


RECURRENT = {
    "lstm": RecurrentOperator("lstm"),
    "lstm-peephole": RecurrentOperator("lstm", options={"peephole": True}),
    "gru": RecurrentOperator("gru", attributes={"linear_before_reset": 1}),
    "rnn": RecurrentOperator("rnn"),
    "gru-reset-before": RecurrentOperator("gru", options={"reset_after": False}),
}


def _normal(shape: Sequence[int], dtype: str) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) / 8).astype(dtype)


def _needed(name: str) -> Any:
    """An optional module."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise NotImplementedError(f"{name} is not installed") from error


def _leaf(shape: Sequence[int], dtype: str) -> Any:
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
    """An operator over sequences; `lengths` are the shortest and the longest length, if they differ."""

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
        own = RECURRENT[self.operator]
        unit, sizes = UNITS[own.name], dict(zip("TNIH", self.shape, strict=True))
        sizes |= {"D": 1, "J": sizes["H"]}
        names = ["X", "W", "R", "B", *unit.initial] + ["P"] * ("peephole" in own.options)
        arrays: dict[str, Any] = {
            name: _normal(shape_of(unit.axes[name], sizes), self.dtype) for name in names
        }
        arrays |= {"sequence_lens": self._sequence_lens(), **own.attributes}
        cotangent = _normal(shape_of(unit.axes["H_all"], sizes), self.dtype)
        return lambda: xpgrad.vjp(getattr(xpgrad, own.name), **arrays)[1](cotangent)

    def torch(self) -> Callable[[], Any]:
        """A step of the module."""
        T, N, I, H = self.shape
        own, torch = RECURRENT[self.operator], _needed("torch")
        unit = UNITS[own.name]
        module = getattr(_needed("xpgrad_torch"), unit.module)(I, H, **own.options)
        module = module.to(getattr(torch, self.dtype))
        X, *states = (_leaf(s, self.dtype) for s in ((T, N, I), *[(1, N, H)] * len(unit.states)))
        state = states[0] if len(states) == 1 else tuple(states)
        lengths = self._sequence_lens()
        call = {} if lengths is None else {"lengths": torch.from_numpy(lengths)}
        return _differentiated(lambda: module(X, state, **call)[0], [X, *states, *module.parameters()])


class FunctionWork(NamedTuple):
    """A function of arrays, in the core and in `xpgrad_torch`."""

    name: str
    in_torch: str | None
    """A function of `xpgrad_torch`, or a module's class; None if it has neither."""
    shapes: Sequence[Sequence[int]]
    """The shapes of the arrays with a gradient."""
    options: Mapping[str, Any] = {}
    torch_options: Mapping[str, Any] = {}
    target: Callable[[str], np.ndarray] | None = None
    """Makes the last array, in a dtype."""
    dtype: str = "float32"

    @property
    def _targets(self) -> list[np.ndarray]:
        return [] if self.target is None else [self.target(self.dtype)]

    def numpy(self) -> Callable[[], Any]:
        """A step of the kernel."""
        function = getattr(xpgrad, self.name)
        arrays = [*(_normal(shape, self.dtype) for shape in self.shapes), *self._targets]

        def step() -> Any:
            Y, pullback = xpgrad.vjp(function, *arrays, **self.options)
            return pullback(Y)

        return step

    def torch(self) -> Callable[[], Any]:
        """A step of the function or the module."""
        if self.in_torch is None:
            raise NotImplementedError(f"xpgrad_torch has no module for {self.name}")
        function = attrgetter(self.in_torch)(_needed("xpgrad_torch"))
        made = functools.partial(function, **self.torch_options)
        leaves = [_leaf(shape, self.dtype) for shape in self.shapes]
        targets = map(_needed("torch").from_numpy, self._targets)
        call = functools.partial(made() if inspect.isclass(function) else made, *leaves, *targets)
        return _differentiated(call, leaves)


def _convolution(
    N: int,
    C: int,
    size: Sequence[int],
    O: int,
    kernel: int,
    stride: int = 1,
    pad: int = 0,
    group: int = 1,
    transposed: bool = False,
) -> FunctionWork:
    """A convolution of N images; a kernel, stride and pad for all dimensions."""
    ends = (C, O // group) if transposed else (O, C // group)
    name = f"conv{'_transpose' * transposed}"
    return FunctionWork(
        name,
        f"functional.{name}{len(size)}d",
        ((N, C, *size), (*ends, *[kernel] * len(size)), (O,)),
        {"strides": stride, "pads": pad, "group": group},
        {"stride": stride, "padding": pad, "groups": group},
    )


_CONVOLUTIONS = (  # the cost rule chooses each method for one of them
    _convolution(8, 64, (56, 56), 64, 3, 1, 1),
    _convolution(8, 64, (56, 56), 256, 1),
    _convolution(8, 128, (28, 28), 128, 3, 1, 1),
    _convolution(8, 256, (14, 14), 256, 3, 1, 1),
    _convolution(8, 3, (224, 224), 64, 7, 2, 3),
    _convolution(8, 128, (56, 56), 128, 3, 2, 1),
    _convolution(8, 96, (28, 28), 96, 3, 1, 1, 96),
    _convolution(4, 16, (64, 64), 16, 31, 1, 15),
    _convolution(4, 16, (8192,), 16, 1025, 1, 512),
    _convolution(8, 128, (28, 28), 64, 4, 2, 1, transposed=True),
    _convolution(8, 64, (56, 56), 64, 3, 1, 1, transposed=True),
)
_ACTIVATIONS = (
    *(FunctionWork(name, own.torch, (_LARGE,)) for name, own in DECLARED.items() if not own.operands),
    FunctionWork("softmax", "Softmax", (_LARGE,), torch_options={"dim": -1}),
    FunctionWork("log_softmax", "LogSoftmax", (_LARGE,), torch_options={"dim": -1}),
)


_LOSSES = (
    FunctionWork(
        "softmax_cross_entropy", "CrossEntropyLoss", (_LARGE,),
        target=lambda dtype: np.arange(_LARGE[0]) % _LARGE[1],
    ),
    FunctionWork(
        "binary_cross_entropy_with_logits", "BCEWithLogitsLoss", (_LARGE,),
        target=lambda dtype: np.random.default_rng(1).uniform(0, 1, _LARGE).astype(dtype),
    ),
)  # fmt: skip


def _recurrent(operator: str, dtype: str) -> Iterator[Any]:
    for rows in _ROWS:
        yield RecurrentWork(operator, (8, rows, 32, 32), None, dtype)
    yield RecurrentWork(operator, (8, _ROWS[-1], 32, 32), (2, 8), dtype)
    yield RecurrentWork(operator, _SHARED, None, dtype)


def _functions(works: Sequence[FunctionWork], dtype: str) -> Iterator[Any]:
    return (work._replace(dtype=dtype) for work in works)


WORKS: dict[str, Callable[[str], Iterator[Any]]] = {
    **{name: functools.partial(_recurrent, name) for name in RECURRENT},
    "conv": functools.partial(_functions, _CONVOLUTIONS),
    "activations": functools.partial(_functions, _ACTIVATIONS),
    "losses": functools.partial(_functions, _LOSSES),
}
"""Functions from a dtype to the works, by the operator's name."""
