"""LSTM problems for the tests: arguments, attributes and cotangents as NumPy arrays, and how to run them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import xpgrad
from xpgrad.testing import lstm_grad_reference, lstm_reference, to_numpy

OUTPUTS = ("H_all", "H_t", "C_t")
FIELDS = {"X": "dX", "W": "dW", "R": "dR", "B": "dB", "initial_h": "dH0", "initial_c": "dC0", "P": "dP"}
GRADIENT_ONLY = ("peephole", "per_sample", "wrt")
SAVED = ("H_all", "C_all", "iofc")


@dataclass(frozen=True)
class Case:
    """One LSTM problem in float64."""

    arguments: dict[str, Any]
    integers: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    cotangents: dict[str, Any] = field(default_factory=dict)
    gradient: dict[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> int:
        return self.attributes.get("layout", 0)

    @property
    def samples(self) -> int:
        return self.arguments["X"].shape[0 if self.layout else 1]

    def on(self, backend: Any, dtype: str = "float64") -> Case:
        """The same problem in arrays of a backend variant."""
        return replace(
            self,
            arguments=backend.arrays(self.arguments, dtype),
            integers=backend.arrays(self.integers),
            cotangents=backend.arrays(self.cotangents, dtype),
        )

    def rounded(self, dtype: str) -> Case:
        """In float64, with the values that a narrower dtype holds."""
        import torch

        def there_and_back(values: np.ndarray) -> np.ndarray:
            return torch.tensor(values).to(getattr(torch, dtype)).double().numpy()

        return replace(
            self,
            arguments={k: there_and_back(v) for k, v in self.arguments.items()},
            cotangents={k: there_and_back(v) for k, v in self.cotangents.items()},
        )

    def sample(self, n: int) -> Case:
        """The problem of one sequence of the batch alone."""

        def pick(name: str, array: Any) -> Any:
            if name in ("W", "R", "B", "P"):
                return array
            axis = 0 if self.layout or name == "sequence_lens" else {"H_all": 2}.get(name, 1)
            return np.take(array, [n], axis=axis)

        return replace(
            self,
            arguments={k: pick(k, v) for k, v in self.arguments.items()},
            integers={k: pick(k, v) for k, v in self.integers.items()},
            cotangents={k: pick(k, v) for k, v in self.cotangents.items()},
        )


def make_case(
    rng: np.random.Generator,
    *,
    T: int = 5,
    N: int = 3,
    I: int = 2,
    H: int = 4,
    peepholes: bool = False,
    bias: bool = True,
    states: bool = True,
    lengths: Any = None,
    peephole: str | None = None,
    per_sample: bool | None = None,
    scale: float = 0.7,
    **attributes: Any,
) -> Case:
    """A random problem; what lies behind a sequence's end, in X and in the cotangents, is NaN."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1

    def draw(*shape: int) -> np.ndarray:
        return scale * rng.standard_normal(shape)

    arguments = {"X": draw(T, N, I), "W": draw(D, 4 * H, I), "R": draw(D, 4 * H, H)}
    if bias:
        arguments["B"] = draw(D, 8 * H)
    if states:
        arguments |= {"initial_h": draw(D, N, H), "initial_c": draw(D, N, H)}
    if peepholes:
        arguments["P"] = draw(D, 3 * H)
    cotangents = {"H_all": draw(T, D, N, H), "H_t": draw(D, N, H), "C_t": draw(D, N, H)}
    integers = {}
    if lengths is not None:
        integers["sequence_lens"] = np.asarray(lengths, dtype=np.int64)
        for n, length in enumerate(lengths):
            arguments["X"][length:, n] = np.nan
            cotangents["H_all"][length:, :, n] = np.nan
    if attributes.get("layout"):
        for name in {"X", "initial_h", "initial_c"} & set(arguments):
            arguments[name] = np.moveaxis(arguments[name], 1, 0).copy()
        for name, array in cotangents.items():
            cotangents[name] = np.moveaxis(array, 2 if name == "H_all" else 1, 0).copy()
    gradient = {"peephole": peephole, "per_sample": per_sample}
    return Case(
        arguments, integers, attributes, cotangents, {k: v for k, v in gradient.items() if v is not None}
    )


def activation_options() -> dict[str, dict[str, Any]]:
    """Each of the eleven as f, g and h, with parameters away from their defaults."""
    alpha, beta = {"activation_alpha": [0.3, 0.8, 0.6]}, {"activation_beta": [0.4, 0.7, 0.2]}
    parameters: dict[str, dict[str, Any]] = {
        "Relu": {},
        "Tanh": {},
        "Sigmoid": {},
        "Affine": alpha | beta,
        "LeakyRelu": alpha,
        "ThresholdedRelu": alpha,
        "ScaledTanh": alpha | beta,
        "HardSigmoid": alpha | beta,
        "Elu": alpha,
        "Softsign": {},
        "Softplus": {},
    }
    return {name: {"activations": [name] * 3, **rest} for name, rest in parameters.items()}


_LENGTHS = [2, 0, 5]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "no states": {"states": False},
    "nothing optional": {"bias": False, "states": False},
    "reverse": {"direction": "reverse"},
    "bidirectional": {"direction": "bidirectional"},
    "lengths": {"lengths": _LENGTHS},
    "lengths reverse": {"lengths": _LENGTHS, "direction": "reverse"},
    "lengths bidirectional": {"lengths": _LENGTHS, "direction": "bidirectional"},
    "lengths without states": {"lengths": _LENGTHS, "states": False},
    "peepholes": {"peepholes": True},
    "peepholes truncated": {"peepholes": True, "peephole": "truncated"},
    "peepholes truncated, lengths reverse": {
        "peepholes": True,
        "peephole": "truncated",
        "lengths": _LENGTHS,
        "direction": "reverse",
    },
    "clip": {"clip": 0.6},
    "clip with peepholes": {"clip": 0.6, "peepholes": True},
    "clip with peepholes, lengths bidirectional": {
        "clip": 0.6,
        "peepholes": True,
        "lengths": _LENGTHS,
        "direction": "bidirectional",
    },
    "clip without bias and states": {"clip": 0.6, "bias": False, "states": False},
    "input_forget": {"input_forget": True},
    "input_forget with peepholes": {"input_forget": True, "peepholes": True},
    "input_forget truncated with clip": {
        "input_forget": True,
        "peepholes": True,
        "peephole": "truncated",
        "clip": 0.6,
    },
    "layout 1": {"layout": 1},
    "layout 1 with everything": {
        "layout": 1,
        "lengths": _LENGTHS,
        "direction": "bidirectional",
        "peepholes": True,
        "clip": 0.9,
        "input_forget": True,
        "activations": ["Sigmoid", "Softsign", "Tanh", "HardSigmoid", "Tanh", "Softplus"],
    },
    "two directions, six activations": {
        "direction": "bidirectional",
        "activations": ["Sigmoid", "Elu", "Affine", "hardsigmoid", "THRESHOLDEDRELU", "tanh"],
        "activation_alpha": [0.7, 0.9, 0.25, 0.1],
        "activation_beta": [-0.1],
        "peepholes": True,
    },
    "negative alpha": {
        "activations": ["Sigmoid", "LeakyRelu", "Elu"],
        "activation_alpha": [-0.3, -0.5],
        "peepholes": True,
    },
    "negative alpha in the gates": {
        "activations": ["Elu", "Elu", "LeakyRelu"],
        "activation_alpha": [-0.3, -0.5, -0.2],
        "lengths": _LENGTHS,
        "peepholes": True,
        "direction": "reverse",
    },
    "negative alpha with clip": {
        "activations": ["LeakyRelu", "Elu", "Tanh"],
        "activation_alpha": [-0.3, -0.5],
        "clip": 0.8,
    },
    "alpha zero": {"activations": ["ScaledTanh", "Tanh", "Tanh"], "activation_alpha": [0.0]},
    "relu, leaky_relu, scaled_tanh": {
        "activations": ["Relu", "LeakyRelu", "ScaledTanh"],
        "activation_alpha": [0.2, 0.8],
        "activation_beta": [0.6],
    },
}
# Each of the eleven in each place; for engines that compile nothing, since each would be compiled on its own.
ACTIVATIONS = activation_options()


def run_forward(case: Case) -> Any:
    """`xpgrad.lstm`."""
    return xpgrad.lstm(**case.arguments, **case.integers, **case.attributes)


def run_gradient(case: Case, outputs: Any, **more: Any) -> Any:
    """`xpgrad.lstm_grad` from given outputs."""
    saved = {name: getattr(outputs, name) for name in SAVED}
    cotangents = {f"grad_{name}": value for name, value in case.cotangents.items()}
    inputs = {**case.arguments, **case.integers, **case.attributes, **case.gradient, **more}
    return xpgrad.lstm_grad(**inputs, **saved, **cotangents)


def run(case: Case, **more: Any) -> tuple[Any, Any]:
    """The kernels' forward and gradient."""
    outputs = run_forward(case)
    return outputs, run_gradient(case, outputs, **more)


def run_reference(case: Case) -> tuple[Any, Any]:
    """The naive forward and backward, in NumPy."""
    outputs = lstm_reference(**case.arguments, **case.integers, **case.attributes)
    return outputs, gradient_reference(case, outputs)


def gradient_reference(case: Case, outputs: Any) -> Any:
    """The naive backward from given outputs."""
    saved = {name: getattr(outputs, name) for name in SAVED}
    cotangents = {f"grad_{name}": value for name, value in case.cotangents.items()}
    inputs = {**case.arguments, **case.integers, **case.attributes, **case.gradient}
    return lstm_grad_reference(**inputs, **saved, **cotangents)


def autograd(case: Case) -> tuple[Any, dict[str, np.ndarray]]:
    """The naive forward on tensors, and PyTorch's gradients of it, by argument."""
    import torch

    arguments = {name: torch.tensor(array, requires_grad=True) for name, array in case.arguments.items()}
    truncated = case.gradient.get("peephole") == "truncated"
    outputs = lstm_reference(
        **arguments, **case.integers, **case.attributes, detach=torch.Tensor.detach if truncated else None
    )
    used = [name for name in OUTPUTS if case.cotangents.get(name) is not None]
    if not used:
        return outputs, {name: np.zeros_like(array) for name, array in case.arguments.items()}
    found = torch.autograd.grad(
        [getattr(outputs, name) for name in used],
        list(arguments.values()),
        # NaN stands where nothing may look
        [torch.tensor(np.nan_to_num(case.cotangents[name])) for name in used],
        allow_unused=True,
    )
    gradients = {}
    for (name, array), gradient in zip(case.arguments.items(), found, strict=True):
        gradients[name] = np.zeros_like(array) if gradient is None else to_numpy(gradient)
    return outputs, gradients


def some_cotangents(case: Case) -> list[Case]:
    """The problem with every combination of given and left out cotangents."""
    combinations = itertools.product((True, False), repeat=len(OUTPUTS))
    return [
        replace(case, cotangents={n: case.cotangents[n] for n, g in zip(OUTPUTS, given, strict=True) if g})
        for given in combinations
    ]


def named_gradients(case: Case, grads: Any) -> Mapping[str, Any]:
    """The gradients of the arguments that were given, by argument name."""
    return {name: getattr(grads, FIELDS[name]) for name in case.arguments}
