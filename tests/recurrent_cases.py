"""Problems of the recurrent operators for the tests: arguments, attributes and cotangents as NumPy arrays,
and how to run them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import xpgrad
from xpgrad.testing import (
    gru_grad_reference,
    gru_reference,
    lstm_grad_reference,
    lstm_reference,
    rnn_grad_reference,
    rnn_reference,
    to_numpy,
)


@dataclass(frozen=True, eq=False)
class Operator:
    """What tells one recurrent operator from another."""

    name: str
    gates: int
    activations: int
    states: tuple[str, ...]
    """The names of the initial states."""
    outputs: tuple[str, ...]
    """Those that have a cotangent."""
    saved: tuple[str, ...]
    fields: Mapping[str, str]
    """The gradients' names by argument."""
    forward_reference: Callable[..., Any]
    gradient_reference: Callable[..., Any]
    options: Mapping[str, Mapping[str, Any]]
    """What `make_case` takes, by the name of an option."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel."""
        return getattr(xpgrad, self.name)(*args, **kwargs)

    def gradient(self, *args: Any, **kwargs: Any) -> Any:
        """Its gradient."""
        return getattr(xpgrad, f"{self.name}_grad")(*args, **kwargs)

    def vjp(self, *args: Any, **kwargs: Any) -> Any:
        """Both."""
        return xpgrad.vjp(getattr(xpgrad, self.name), *args, **kwargs)


@dataclass(frozen=True)
class Case:
    """One problem in float64."""

    operator: Operator
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
    operator: Operator,
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
    G = operator.gates

    def draw(*shape: int) -> np.ndarray:
        return scale * rng.standard_normal(shape)

    arguments = {"X": draw(T, N, I), "W": draw(D, G * H, I), "R": draw(D, G * H, H)}
    if bias:
        arguments["B"] = draw(D, 2 * G * H)
    if states:
        arguments |= {name: draw(D, N, H) for name in operator.states}
    if peepholes:
        arguments["P"] = draw(D, 3 * H)
    cotangents = {name: draw(T, D, N, H) if name == "H_all" else draw(D, N, H) for name in operator.outputs}
    integers = {}
    if lengths is not None:
        integers["sequence_lens"] = np.asarray(lengths, dtype=np.int64)
        for n, length in enumerate(lengths):
            arguments["X"][length:, n] = np.nan
            cotangents["H_all"][length:, :, n] = np.nan
    if attributes.get("layout"):
        for name in {"X", *operator.states} & set(arguments):
            arguments[name] = np.moveaxis(arguments[name], 1, 0).copy()
        for name, array in cotangents.items():
            cotangents[name] = np.moveaxis(array, 2 if name == "H_all" else 1, 0).copy()
    gradient = {"peephole": peephole, "per_sample": per_sample}
    gradient = {k: v for k, v in gradient.items() if v is not None}
    return Case(operator, arguments, integers, attributes, cotangents, gradient)


_ALPHA, _BETA = {"activation_alpha": [0.3, 0.8, 0.6]}, {"activation_beta": [0.4, 0.7, 0.2]}
_PARAMETERS: dict[str, dict[str, list[float]]] = {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Affine": _ALPHA | _BETA,
    "LeakyRelu": _ALPHA,
    "ThresholdedRelu": _ALPHA,
    "ScaledTanh": _ALPHA | _BETA,
    "HardSigmoid": _ALPHA | _BETA,
    "Elu": _ALPHA,
    "Softsign": {},
    "Softplus": {},
}
"""Of each of the eleven, parameters away from their defaults, for three places."""


def activation_options(places: int) -> dict[str, dict[str, Any]]:
    """Each of the eleven in every place."""
    return {
        name: {"activations": [name] * places, **{k: values[:places] for k, values in parameters.items()}}
        for name, parameters in _PARAMETERS.items()
    }


_LENGTHS = [2, 0, 5]
_LSTM_OPTIONS: dict[str, dict[str, Any]] = {
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
_GRU_OPTIONS: dict[str, dict[str, Any]] = {
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
    "clip": {"clip": 0.6},
    "clip, lengths bidirectional": {"clip": 0.6, "lengths": _LENGTHS, "direction": "bidirectional"},
    "clip without bias and states": {"clip": 0.6, "bias": False, "states": False},
    "layout 1": {"layout": 1},
    "layout 1 with everything": {
        "layout": 1,
        "lengths": _LENGTHS,
        "direction": "bidirectional",
        "clip": 0.9,
        "activations": ["Sigmoid", "Softsign", "HardSigmoid", "Softplus"],
    },
    "two directions, four activations": {
        "direction": "bidirectional",
        "activations": ["Elu", "Affine", "hardsigmoid", "THRESHOLDEDRELU"],
        "activation_alpha": [0.7, 0.9, 0.25, 0.1],
        "activation_beta": [-0.1],
    },
    "negative alpha": {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [-0.3]},
    "negative alpha in the gates": {
        "activations": ["Elu", "ThresholdedRelu"],
        "activation_alpha": [-0.3, -0.5],
        "lengths": _LENGTHS,
        "direction": "reverse",
    },
    "negative alpha with clip": {
        "activations": ["LeakyRelu", "Elu"],
        "activation_alpha": [-0.3, -0.5],
        "clip": 0.8,
    },
    "alpha zero": {"activations": ["ScaledTanh", "Tanh"], "activation_alpha": [0.0]},
}
_RESETS = {"": {}, "reset after": {"linear_before_reset": 1}}  # 0 is the default
_CONVENTIONS: dict[str, dict[str, Any]] = {
    ", ".join(filter(None, [name, reset])): {**option, **more}
    for reset, more in _RESETS.items()
    for name, option in _GRU_OPTIONS.items()
}

_RNN_OPTIONS: dict[str, dict[str, Any]] = {
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
    "clip": {"clip": 0.6},
    "clip, lengths bidirectional": {"clip": 0.6, "lengths": _LENGTHS, "direction": "bidirectional"},
    "clip without bias and states": {"clip": 0.6, "bias": False, "states": False},
    "layout 1": {"layout": 1},
    "layout 1 with everything": {
        "layout": 1,
        "lengths": _LENGTHS,
        "direction": "bidirectional",
        "clip": 0.9,
        "activations": ["Softsign", "HardSigmoid"],
    },
    "two directions, two activations": {
        "direction": "bidirectional",
        "activations": ["Elu", "THRESHOLDEDRELU"],
        "activation_alpha": [0.7, 0.25],
    },
    "negative alpha": {"activations": ["LeakyRelu"], "activation_alpha": [-0.3]},
    "negative alpha, lengths reverse": {
        "activations": ["Elu"],
        "activation_alpha": [-0.3],
        "lengths": _LENGTHS,
        "direction": "reverse",
    },
    "negative alpha with clip": {"activations": ["LeakyRelu"], "activation_alpha": [-0.3], "clip": 0.8},
    "relu": {"activations": ["Relu"]},
}

LSTM = Operator(
    "lstm",
    4,
    3,
    ("initial_h", "initial_c"),
    ("H_all", "H_t", "C_t"),
    ("H_all", "C_all", "iofc"),
    {"X": "dX", "W": "dW", "R": "dR", "B": "dB", "initial_h": "dH0", "initial_c": "dC0", "P": "dP"},
    lstm_reference,
    lstm_grad_reference,
    _LSTM_OPTIONS,
)
GRU = Operator(
    "gru",
    3,
    2,
    ("initial_h",),
    ("H_all", "H_t"),
    ("H_all", "zrh"),
    {"X": "dX", "W": "dW", "R": "dR", "B": "dB", "initial_h": "dH0"},
    gru_reference,
    gru_grad_reference,
    _CONVENTIONS,
)
RNN = Operator(
    "rnn",
    1,
    1,
    ("initial_h",),
    ("H_all", "H_t"),
    ("H_all",),
    {"X": "dX", "W": "dW", "R": "dR", "B": "dB", "initial_h": "dH0"},
    rnn_reference,
    rnn_grad_reference,
    _RNN_OPTIONS,
)
OPERATORS = (LSTM, GRU, RNN)

# Each of the eleven in each place; for engines that compile nothing, since each would be compiled on its own.
_ACTIVATIONS: dict[str, dict[str, dict[str, Any]]] = {
    "lstm": activation_options(3),
    "gru": {
        ", ".join(filter(None, [name, reset])): {**option, **more}
        for reset, more in _RESETS.items()
        for name, option in activation_options(2).items()
    },
    "rnn": activation_options(1),
}


def each_operator() -> Any:
    """A test for every operator."""
    return pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)


def _each(names: Mapping[str, Iterable[str]]) -> Any:
    pairs = [(operator, name) for operator in OPERATORS for name in names.get(operator.name, ())]
    return pytest.mark.parametrize(
        ("operator", "name"), [pytest.param(o, name, id=f"{o.name}-{name}") for o, name in pairs]
    )


def each_option(choose: Callable[[str], bool] = lambda name: True, *, activations: bool = False) -> Any:
    """A test for every option of every operator; with `activations` for each of the eleven, too."""
    return _each(
        {
            operator.name: [
                *filter(choose, operator.options),
                *(_ACTIVATIONS[operator.name] if activations else ()),
            ]
            for operator in OPERATORS
        }
    )


def each_activation() -> Any:
    """A test for each of the eleven in every place of every operator."""
    return _each(_ACTIVATIONS)


def these_options(**names: Iterable[str]) -> Any:
    """A test for the options named by operator."""
    unknown = [n for o in OPERATORS for n in names.get(o.name, ()) if n not in o.options]
    if unknown:
        raise ValueError(f"no such options: {unknown}")
    return _each(names)


def option_case(operator: Operator, name: str, **more: Any) -> Case:
    """The problem of an option."""
    options = {**operator.options, **_ACTIVATIONS[operator.name]}
    rng = np.random.default_rng(list(options).index(name) + 100)
    return make_case(operator, rng, **{**options[name], **more})


def run_forward(case: Case) -> Any:
    """The kernel's outputs."""
    return case.operator.forward(**case.arguments, **case.integers, **case.attributes)


def _gradient_inputs(case: Case, outputs: Any) -> dict[str, Any]:
    saved = {name: getattr(outputs, name) for name in case.operator.saved}
    cotangents = {f"grad_{name}": value for name, value in case.cotangents.items()}
    return {**case.arguments, **case.integers, **case.attributes, **case.gradient, **saved, **cotangents}


def run_gradient(case: Case, outputs: Any, **more: Any) -> Any:
    """The gradient kernel from given outputs."""
    return case.operator.gradient(**{**_gradient_inputs(case, outputs), **more})


def run(case: Case, **more: Any) -> tuple[Any, Any]:
    """The kernels' forward and gradient."""
    outputs = run_forward(case)
    return outputs, run_gradient(case, outputs, **more)


def run_reference(case: Case) -> tuple[Any, Any]:
    """The naive forward and backward, in NumPy."""
    outputs = case.operator.forward_reference(**case.arguments, **case.integers, **case.attributes)
    return outputs, gradient_reference(case, outputs)


def gradient_reference(case: Case, outputs: Any) -> Any:
    """The naive backward from given outputs."""
    return case.operator.gradient_reference(**_gradient_inputs(case, outputs))


def autograd(case: Case) -> tuple[Any, dict[str, np.ndarray]]:
    """The naive forward on tensors, and PyTorch's gradients of it, by argument."""
    import torch

    arguments = {name: torch.tensor(array, requires_grad=True) for name, array in case.arguments.items()}
    truncated = case.gradient.get("peephole") == "truncated"
    detach = {"detach": torch.Tensor.detach} if truncated else {}
    outputs = case.operator.forward_reference(**arguments, **case.integers, **case.attributes, **detach)
    used = [name for name in case.operator.outputs if case.cotangents.get(name) is not None]
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
    outputs = case.operator.outputs
    combinations = itertools.product((True, False), repeat=len(outputs))
    return [
        replace(case, cotangents={n: case.cotangents[n] for n, g in zip(outputs, given, strict=True) if g})
        for given in combinations
    ]


def named_gradients(case: Case, grads: Any) -> Mapping[str, Any]:
    """The gradients of the arguments that were given, by argument name."""
    return {name: getattr(grads, case.operator.fields[name]) for name in case.arguments}
