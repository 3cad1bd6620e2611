"""Check every kernel's results on everything that is installed here.

Runs each kernel in each array namespace, dtype and option. If ONNX has the operator, it also runs through
xpgrad_onnx as an operator and as a training graph. Compares with independent oracles: naive references,
central differences in float64, PyTorch's autograd and modules. Prints one line for each operator; with --all,
--option or --namespace one line for each combination, with its worst relative error. The exit status is 1 if
an error exceeds its tolerance.

Compiled code is checked in float32 and half precision, so only half as much must be compiled with a cold
cache; --all, --json, --option or --namespace check float64 too.

--peers also measures the kernels of other libraries, against float64 references that share no code with any
of them. A library that needs another NumPy runs in its own interpreter.
"""

import argparse
import contextlib
import functools
import importlib.util
import json
import math
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

import xpgrad
from xpgrad.engine.process.machine import jit_enabled

from ..testing import (
    dtype_name,
    gru_grad_reference,
    gru_reference,
    lstm_grad_reference,
    lstm_reference,
    relative_error,
    rnn_grad_reference,
    rnn_reference,
    to_numpy,
)
from . import check_jax
from .check_activations import ACTIVATIONS
from .check_cases import Array, Arrays, Case, Kernel, Oracle, draw, from_differences, sum_or_stack
from .check_convolution import CONVOLUTIONS
from .check_layer_norm import LAYER_NORM
from .check_random import run_random
from .console import progress, table

__all__ = ["add_arguments", "run"]

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Allowed error by dtype, relative to the largest value of each array."""


# ---------------------------------------------------------------------------------------- what is there


def _by_kernel(kernel: Kernel, case: Case) -> Mapping[str, Array]:
    return kernel.run(case)


def _by_onnx(kernel: Kernel, case: Case) -> Mapping[str, Array] | None:
    from .check_onnx import results  # it imports onnx

    return results(kernel.name, case)


class Backend(NamedTuple):
    """An array namespace, the engine that is forced on it (None: the default), and its dtypes."""

    namespace: str
    module: str
    array_module: str
    engine: str | None
    dtypes: tuple[str, ...]
    run: Callable[[Kernel, Case], Mapping[str, Array] | None] = _by_kernel
    """The results of a case in this namespace; None where an adapter has no such operator or option."""
    numbers: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """Within it the namespace has numbers of a dtype."""

    @property
    def name(self) -> str:
        return self.namespace if self.engine is None else f"{self.namespace}, {self.engine} engine"

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def array(self, values: np.ndarray, dtype: str) -> Array:
        """Values as an array of the namespace; whole numbers keep their dtype."""
        xp = importlib.import_module(self.array_module)
        if values.dtype.kind != "f":
            return xp.asarray(values)
        return xp.asarray(values, dtype=getattr(xp, dtype))


_HALF, _FULL = ("float16", "bfloat16"), ("float64", "float32")
BACKENDS = (
    Backend("numpy", "numpy", "numpy", None, (*_FULL, "float16")),
    Backend("numpy", "numpy", "numpy", "standard", (*_FULL, "float16")),
    Backend("array-api-strict", "array_api_strict", "array_api_strict", None, _FULL),
    Backend("torch", "torch", "array_api_compat.torch", None, (*_FULL, *_HALF)),
    Backend("torch", "torch", "array_api_compat.torch", "standard", (*_FULL, *_HALF)),
    # its attributes are float32, so float64 would differ by their rounding
    Backend("onnx", "onnx", "numpy", None, ("float32", "float16"), _by_onnx),
)
JAX = Backend("jax", "jax", "jax.numpy", None, _FULL, check_jax.run, check_jax.numbers)
"""The functions of xpgrad_jax. XLA compiles each case, so that by default there is one of each operator."""


# ------------------------------------------------------------------------------------------- what to check

# The recurrent operators -----------------------------------------------------------------------------------


class Recurrence(NamedTuple):
    """The differences between the recurrent operators."""

    name: str
    gates: int
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    """Those that have a cotangent."""
    saved: tuple[str, ...]
    gradients: Mapping[str, str]
    """The names of the gradients by argument."""
    reference: Callable[..., Any]
    gradient_reference: Callable[..., Any]
    module: str
    """The one of torch.nn; its cell is that name and Cell."""
    places: tuple[int, ...]
    """For each of the module's gates the place among ours."""
    native: Mapping[str, Any]
    """The attributes with which the operator is the module's."""


_LSTM = Recurrence(
    name="lstm",
    gates=4,
    states=("initial_h", "initial_c"),
    outputs=("H_all", "H_t", "C_t"),
    saved=("H_all", "C_all", "iofc"),
    gradients={
        "X": "dX",
        "W": "dW",
        "R": "dR",
        "B": "dB",
        "initial_h": "dH0",
        "initial_c": "dC0",
        "P": "dP",
        "S": "dS",
    },
    reference=lstm_reference,
    gradient_reference=lstm_grad_reference,
    module="LSTM",
    places=(0, 2, 3, 1),  # i f g o among i o f c
    native={},
)
_GRU = Recurrence(
    name="gru",
    gates=3,
    states=("initial_h",),
    outputs=("H_all", "H_t"),
    saved=("H_all", "zrh"),
    gradients={"X": "dX", "W": "dW", "R": "dR", "B": "dB", "initial_h": "dH0"},
    reference=gru_reference,
    gradient_reference=gru_grad_reference,
    module="GRU",
    places=(1, 0, 2),  # r z n among z r h
    native={"linear_before_reset": 1},
)
_RNN = Recurrence(
    name="rnn",
    gates=1,
    states=("initial_h",),
    outputs=("H_all", "H_t"),
    saved=("H_all",),
    gradients={"X": "dX", "W": "dW", "R": "dR", "B": "dB", "initial_h": "dH0"},
    reference=rnn_reference,
    gradient_reference=rnn_grad_reference,
    module="RNN",
    places=(0,),
    native={},
)

_PEEPHOLES = {"peepholes": True}


def _sample_axis(name: str, layout: int) -> int:
    return 0 if layout else 2 if name in ("H_all", "C_all") else 1


def _sequence_case(
    op: Recurrence,
    *,
    seed: int,
    steps: int = 5,
    peepholes: bool = False,
    bias: bool = True,
    states: bool = True,
    lengths: bool = False,
    masks: Sequence[str] = (),
    projection: int | None = None,
    cell_states: bool = False,
    gradient: Mapping[str, Any] | None = None,
    weights: bool = False,
    **attributes: Any,
) -> Case:
    """A small problem in which no two sizes are equal."""
    T, N, I, H, G = steps, 3, 2, 4, op.gates
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    rng = np.random.default_rng(seed)
    width = projection or H
    arguments: dict[str, Any] = {
        "X": draw(rng, T, N, I),
        "W": draw(rng, D, G * H, I),
        "R": draw(rng, D, G * H, width) / 2,
    }
    if bias:
        arguments["B"] = draw(rng, D, 2 * G * H)
    if states:
        arguments |= {name: draw(rng, D, N, width if name == "initial_h" else H) for name in op.states}
    if peepholes:
        arguments["P"] = draw(rng, D, 3 * H)
    if projection is not None:
        arguments["S"] = draw(rng, D, projection, H)
    cotangents = {
        name: draw(rng, *((T, D) if name == "H_all" else (D,)), N, H if name == "C_t" else width)
        for name in op.outputs
    }
    if cell_states:
        cotangents["C_all"] = draw(rng, T, D, N, H)
    integers: dict[str, Any] = {
        name: np.abs(
            draw(rng, *((D,) if name == "recurrent_mask" else (T, D)), N, H if name == "zoneout_c" else width)
        )
        / 4
        for name in masks
    }
    if lengths:
        integers["sequence_lens"] = np.asarray([3, 0, 5], dtype=np.int64)
        for n, length in enumerate(integers["sequence_lens"]):
            arguments["X"][length:, n] = np.nan
            for name in {"H_all", "C_all"} & set(cotangents):
                cotangents[name][length:, :, n] = np.nan
    if attributes.get("layout") == 1:
        for name in {"X", *op.states} & set(arguments):
            arguments[name] = arguments[name].swapaxes(0, 1)
        cotangents = {k: np.moveaxis(v, _sample_axis(k, 0), 0) for k, v in cotangents.items()}
    sample_axes = {
        name: _sample_axis(name, attributes.get("layout", 0)) for name in ("X", *op.states, *cotangents)
    }
    own = {"sample_weight": draw(rng, N)} if weights else {}
    return Case(arguments, integers, attributes, cotangents, gradient or {}, sample_axes, weights=own)


_ANY_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "no initial state": {"states": False},
    "no initial state, bidirectional": {"states": False, "direction": "bidirectional"},
    "no initial state, lengths, NaN padding": {"states": False, "lengths": True},
    "reverse": {"direction": "reverse"},
    "bidirectional": {"direction": "bidirectional"},
    "lengths, NaN padding": {"lengths": True},
    "lengths, bidirectional": {"lengths": True, "direction": "bidirectional"},
    "layout 1": {"layout": 1},
}
_LSTM_OPTIONS: dict[str, dict[str, Any]] = {
    **_ANY_OPTIONS,
    "peepholes, full": {**_PEEPHOLES, "gradient": {"peephole": "full"}},
    "peepholes, truncated": {**_PEEPHOLES, "gradient": {"peephole": "truncated"}},
    "clip": {**_PEEPHOLES, "clip": 0.7013},
    "projection": {"lengths": True, "projection": 3},
    "projection, masks": {
        **_PEEPHOLES,
        "lengths": True,
        "direction": "bidirectional",
        "projection": 3,
        "masks": ("recurrent_mask", "zoneout_h", "zoneout_c"),
        "gradient": {"per_sample": True},
    },
    "input_forget": {**_PEEPHOLES, "input_forget": True},
    "activations": {
        "direction": "bidirectional",
        "activations": ["HardSigmoid", "Relu", "LeakyRelu", "Softplus", "Softsign", "ScaledTanh"],
        "activation_alpha": [0.3, 0.1, 0.8],
        "activation_beta": [0.45, 0.6],
    },
    "activations, alpha < 0": {
        "activations": ["Sigmoid", "Elu", "LeakyRelu"],
        "activation_alpha": [-0.5, -0.2],
    },
    "per_sample": {**_PEEPHOLES, "gradient": {"per_sample": True}},
    "per_sample, norm": {**_PEEPHOLES, "lengths": True, "gradient": {"per_sample": "norm"}},
    "sample_weight": {**_PEEPHOLES, "lengths": True, "weights": True},
    "everything": {
        **_PEEPHOLES,
        "lengths": True,
        "direction": "bidirectional",
        "clip": 1.3007,
        "input_forget": True,
        "layout": 1,
        "activations": ["Sigmoid", "Elu", "Affine", "HardSigmoid", "ThresholdedRelu", "Tanh"],
        "activation_alpha": [0.7, 0.9, 0.25, 0.1],
        "activation_beta": [-0.1, 0.55],
        "gradient": {"per_sample": True},
    },
    "cell states": {**_PEEPHOLES, "lengths": True, "direction": "bidirectional", "cell_states": True},
}
_GRU_CHOICES: dict[str, dict[str, Any]] = {
    "clip": {"clip": 0.8013},
    "masks": {"lengths": True, "masks": ("recurrent_mask", "zoneout_h")},
    "activations": {
        "direction": "bidirectional",
        "activations": ["HardSigmoid", "LeakyRelu", "Softsign", "ScaledTanh"],
        "activation_alpha": [0.3, 0.1, 0.8],
        "activation_beta": [0.45, 0.6],
    },
    "activations, alpha < 0": {
        "activations": ["Sigmoid", "LeakyRelu"],
        "activation_alpha": [-0.2],
    },
    "per_sample": {"gradient": {"per_sample": True}},
    "per_sample, norm": {"lengths": True, "gradient": {"per_sample": "norm"}},
    "sample_weight": {"lengths": True, "weights": True},
    "everything": {
        "lengths": True,
        "direction": "bidirectional",
        "clip": 1.3007,
        "layout": 1,
        "activations": ["Sigmoid", "Elu", "HardSigmoid", "Affine"],
        "activation_alpha": [0.7, 0.25, 0.8],
        "activation_beta": [0.55, -0.1],
        "gradient": {"per_sample": True},
    },
}


def _both_resets(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    resets = {"reset before": {"linear_before_reset": 0}, "reset after": {"linear_before_reset": 1}}
    return {
        f"{name}, {r}": {**option, **reset} for name, option in options.items() for r, reset in resets.items()
    }


_GRU_OPTIONS = _both_resets({**_ANY_OPTIONS, **_GRU_CHOICES})
_RNN_OPTIONS: dict[str, dict[str, Any]] = {
    **_ANY_OPTIONS,
    "relu": {"activations": ["Relu"]},
    "clip": {"clip": 0.8013},
    "activations": {
        "direction": "bidirectional",
        "activations": ["LeakyRelu", "ScaledTanh"],
        "activation_alpha": [0.3, 0.8],
        "activation_beta": [0.6],
    },
    "activations, alpha < 0": {"activations": ["LeakyRelu"], "activation_alpha": [-0.2]},
    "per_sample": {"gradient": {"per_sample": True}},
    "per_sample, norm": {"lengths": True, "gradient": {"per_sample": "norm"}},
    "sample_weight": {"lengths": True, "weights": True},
    "everything": {
        "lengths": True,
        "direction": "bidirectional",
        "clip": 1.3007,
        "layout": 1,
        "activations": ["Elu", "Affine"],
        "activation_alpha": [0.7, 0.8],
        "activation_beta": [-0.1],
        "gradient": {"per_sample": True},
    },
}


def _run_sequence(op: Recurrence, case: Case) -> dict[str, Array]:
    """Forward and gradient of a sequence kernel, with every cotangent."""
    forward, pullback = xpgrad.vjp(
        getattr(xpgrad, op.name),
        **case.arguments,
        **case.integers,
        **case.attributes,
        **case.gradient_attributes,
        **case.weights,
    )
    grads = pullback(**{f"grad_{name}": cotangent for name, cotangent in case.cotangents.items()})
    return {**forward._asdict(), **_named(op, case, grads)}


def _named(op: Recurrence, case: Case, grads: Any) -> dict[str, Array]:
    return {f"gradient of {name}": getattr(grads, op.gradients[name]) for name in case.arguments}


def _from_reference(op: Recurrence, case: Case) -> Arrays:
    forward = op.reference(**case.arguments, **case.integers, **case.attributes)
    saved = {name: getattr(forward, name) for name in op.saved}
    cotangents = {f"grad_{name}": value for name, value in case.cotangents.items()}
    inputs = {**case.arguments, **case.integers, **case.attributes, **case.gradient_attributes}
    inputs |= case.weights
    grads = op.gradient_reference(**inputs, **saved, **cotangents)
    return {**forward._asdict(), **_named(op, case, grads)}


def _from_autograd(op: Recurrence, case: Case) -> Arrays:
    import torch

    arguments: dict[str, Any] = {
        name: torch.tensor(a, requires_grad=True) for name, a in case.arguments.items()
    }
    truncated = case.gradient_attributes.get("peephole") == "truncated"
    detach = {"detach": torch.Tensor.detach} if truncated else {}
    fixed = {name: torch.tensor(a) if a.dtype.kind == "f" else a for name, a in case.integers.items()}
    forward = op.reference(**arguments, **fixed, **case.attributes, **detach)

    def pullback(cotangents: Arrays) -> dict[str, np.ndarray]:
        found = torch.autograd.grad(
            [getattr(forward, name) for name in cotangents],
            list(arguments.values()),
            [torch.tensor(cotangent) for cotangent in cotangents.values()],
            retain_graph=True,
        )
        return {name: to_numpy(gradient) for name, gradient in zip(arguments, found, strict=True)}

    return sum_or_stack(case, pullback)


def _from_torch_nn(op: Recurrence, case: Case, *, cell: bool = False) -> Arrays | None:
    """PyTorch's module or cell in float64, for the options that it has."""
    attributes = {k: v for k, v in case.attributes.items() if k not in ("direction", "layout")}
    if set(case.arguments) != {"X", "W", "R", "B", *op.states} or attributes != op.native:
        return None
    if case.integers or case.attributes.get("direction") == "reverse":
        return None
    if case.gradient_attributes or case.weights:
        return None
    if set(case.cotangents) != set(op.outputs):
        return None
    import torch

    W, R = case.arguments["W"], case.arguments["R"]
    D, H, I, G = W.shape[0], R.shape[2], W.shape[2], op.gates
    batch_first = case.attributes.get("layout", 0) == 1
    options = {} if cell else {"bidirectional": D == 2, "batch_first": batch_first}
    module = getattr(torch.nn, op.module + "Cell" * cell)(I, H, dtype=torch.float64, **options)
    parts: dict[str, tuple[str, int, slice]] = {}
    for d in range(D):
        suffix = "" if cell else "_l0" + "_reverse" * d
        parts[f"weight_ih{suffix}"] = "W", d, slice(None)
        parts[f"weight_hh{suffix}"] = "R", d, slice(None)
        parts[f"bias_ih{suffix}"] = "B", d, slice(0, G * H)
        parts[f"bias_hh{suffix}"] = "B", d, slice(G * H, 2 * G * H)

    def reorder(rows: np.ndarray, gates: Any) -> np.ndarray:
        return rows.reshape(G, H, *rows.shape[1:])[list(gates)].reshape(rows.shape)

    with torch.no_grad():
        for name, (source, d, rows) in parts.items():
            getattr(module, name).copy_(torch.tensor(reorder(case.arguments[source][d, rows], op.places)))
    x, *states = (torch.tensor(case.arguments[name], requires_grad=True) for name in ("X", *op.states))
    # the module's states are (D, N, H) in either layout, the cell's (N, H) and its input (N, I)
    given = [s[0] if cell else s.swapaxes(0, 1) if batch_first else s for s in states]
    results = module(x[0] if cell else x, tuple(given) if len(given) > 1 else given[0])
    ends = results if cell else results[1]
    ends = list(ends) if len(given) > 1 else [ends]
    if cell:
        found = [ends[0][None, None], *(end[None] for end in ends)]
    else:
        y = results[0].unflatten(-1, (D, H))  # (T, N, D, H), or (N, T, D, H)
        found = [y, *(end.swapaxes(0, 1) for end in ends)] if batch_first else [y.swapaxes(1, 2), *ends]
    torch.autograd.backward(found, [torch.tensor(case.cotangents[name]) for name in op.outputs])

    grads = {name: np.zeros_like(case.arguments[name]) for name in ("W", "R", "B")}
    for name, (source, d, rows) in parts.items():
        grads[source][d, rows] = reorder(to_numpy(getattr(module, name).grad), np.argsort(op.places))
    grads |= {name: to_numpy(a.grad) for name, a in zip(("X", *op.states), (x, *states), strict=True)}
    outputs = {name: to_numpy(a) for name, a in zip(op.outputs, found, strict=True)}
    return outputs | {f"gradient of {name}": gradient for name, gradient in grads.items()}


def _sequence_kernel(op: Recurrence, options: Mapping[str, Mapping[str, Any]]) -> Kernel:
    return Kernel(
        op.name,
        {
            name: functools.partial(_sequence_case, op, seed=seed, **option)
            for seed, (name, option) in enumerate(options.items())
        },
        functools.partial(_run_sequence, op),
        (
            Oracle("reference", functools.partial(_from_reference, op)),
            Oracle("differences", functools.partial(from_differences, op.name), floor=1e-7),
            Oracle("autograd", functools.partial(_from_autograd, op), module="torch"),
            Oracle("torch.nn", functools.partial(_from_torch_nn, op), module="torch"),
        ),
    )


# The single-step cells: a sequence of one step, without the axes of time and direction ----------------------

_LSTM_CELL_OPTIONS: dict[str, dict[str, Any]] = {
    name: {k: v for k, v in _LSTM_OPTIONS[name].items() if k != "direction"}
    for name in (
        "plain",
        "no bias",
        "peepholes, full",
        "peepholes, truncated",
        "clip",
        "input_forget",
        "activations, alpha < 0",
        "per_sample",
    )
}
_GRU_CELL_OPTIONS: dict[str, dict[str, Any]] = {
    f"{name}, {reset}": _GRU_OPTIONS[f"{name}, {reset}"]
    for name in ("plain", "no bias", "clip", "activations, alpha < 0", "per_sample")
    for reset in ("reset before", "reset after")
}
_RNN_CELL_OPTIONS = {
    name: _RNN_OPTIONS[name]
    for name in ("plain", "no bias", "relu", "clip", "activations, alpha < 0", "per_sample")
}
_CELL_NAMES = {"initial_h": "H", "initial_c": "C", "H_t": "H_next", "C_t": "C_next"}


def _to_cell(op: Recurrence, case: Case, name: str, array: Array) -> tuple[str, Array] | None:
    """The cell's name and array for a sequence's; None if the cell has none."""
    if name in ("H_all", "C_all"):
        return None
    _, prefix, bare = name.rpartition("gradient of ")
    if name == op.saved[-1]:  # over time
        array = array[0, ...]
    elif case.gradient_attributes.get("per_sample") and prefix and bare in ("W", "R", "B", "P"):
        return name, array[:, 0, ...]
    return prefix + _CELL_NAMES.get(bare, bare), array[0, ...]


def _cell_results(op: Recurrence, case: Case, results: Arrays | None) -> Arrays | None:
    if results is None:
        return None
    return dict(filter(None, (_to_cell(op, case, name, array) for name, array in results.items())))


def _cell_case(op: Recurrence, **options: Any) -> Case:
    """The first step of a sequence."""
    case = _sequence_case(op, steps=1, **options)
    return case._replace(
        arguments={_CELL_NAMES.get(name, name): array[0] for name, array in case.arguments.items()},
        cotangents={_CELL_NAMES[name]: a[0] for name, a in case.cotangents.items() if name != "H_all"},
        sample_axes=dict.fromkeys(["X", *_CELL_NAMES.values()], 0),
    )


def _as_sequence(op: Recurrence, case: Case) -> Case:
    """A cell's problem as a sequence of one step."""
    names = {cell: sequence for sequence, cell in _CELL_NAMES.items()}
    cotangents = {names[name]: array[None] for name, array in case.cotangents.items()}
    cotangents["H_all"] = np.zeros((1, *cotangents["H_t"].shape))
    arguments = {names.get(name, name): array[None] for name, array in case.arguments.items()}
    sample_axes = {name: _sample_axis(name, 0) for name in ("X", *cotangents)}
    return case._replace(arguments=arguments, cotangents=cotangents, sample_axes=sample_axes)


def _run_cell(op: Recurrence, case: Case) -> dict[str, Array]:
    forward, pullback = xpgrad.vjp(
        getattr(xpgrad, f"{op.name}_cell"), **case.arguments, **case.attributes, **case.gradient_attributes
    )
    grads = pullback(*case.cotangents.values())
    gradients = {f"gradient of {name}": getattr(grads, f"d{name}") for name in case.arguments}
    return {**forward._asdict(), **gradients}


def _cell_kernel(op: Recurrence, options: Mapping[str, Mapping[str, Any]]) -> Kernel:
    def through(oracle: Callable[..., Arrays | None], **more: Any) -> Callable[[Case], Arrays | None]:
        return lambda case: _cell_results(op, case, oracle(op, _as_sequence(op, case), **more))

    name = f"{op.name}_cell"
    return Kernel(
        name,
        {
            option: functools.partial(_cell_case, op, seed=seed, **options[option])
            for seed, option in enumerate(options)
        },
        functools.partial(_run_cell, op),
        (
            Oracle("reference", through(_from_reference)),
            Oracle("differences", functools.partial(from_differences, name), floor=1e-7),
            Oracle("autograd", through(_from_autograd), module="torch"),
            Oracle("torch.nn", through(_from_torch_nn, cell=True), module="torch"),
        ),
    )


# A new kernel only needs an entry here.
KERNELS: tuple[Kernel, ...] = (
    _sequence_kernel(_LSTM, _LSTM_OPTIONS),
    _sequence_kernel(_GRU, _GRU_OPTIONS),
    _sequence_kernel(_RNN, _RNN_OPTIONS),
    _cell_kernel(_LSTM, _LSTM_CELL_OPTIONS),
    _cell_kernel(_GRU, _GRU_CELL_OPTIONS),
    _cell_kernel(_RNN, _RNN_CELL_OPTIONS),
    *LAYER_NORM,
    *ACTIVATIONS,
    *CONVOLUTIONS,
)


# ------------------------------------------------------------------------------------------------ checking


class Row(NamedTuple):
    """The outcome of one kernel with one option in one namespace and dtype."""

    kernel: str
    option: str
    namespace: str
    dtype: str
    errors: Mapping[str, float]
    """Worst relative error by oracle."""
    tolerances: Mapping[str, float]
    problem: str | None = None
    """What is wrong, in words."""

    @property
    def ok(self) -> bool:
        return self.problem is None


def _missing(modules: Sequence[str]) -> list[str]:
    return [module for module in dict.fromkeys(modules) if importlib.util.find_spec(module) is None]


def _rows(kernel: Kernel, option: str, backends: Sequence[Backend]) -> Iterator[Row]:
    """Check one option of one kernel on every backend; each oracle is asked once."""
    problem: str | None
    case = kernel.options[option]()
    oracles = [oracle for oracle in kernel.oracles if oracle.module is None or not _missing([oracle.module])]
    known: dict[Oracle, Arrays] = {}
    for oracle in oracles:
        try:
            expected = oracle.compute(case)
        except Exception as error:  # for example the kernel's own forward fails under the differences
            problem = f"{oracle.label} failed: {type(error).__name__}: {error}"
            yield Row(kernel.name, option, "numpy", "float64", {}, {}, problem)
            continue
        if expected is not None:
            known[oracle] = expected
    for backend in backends:
        for dtype in backend.dtypes:
            tolerances = {oracle.label: max(TOLERANCE[dtype], oracle.floor) for oracle in known}
            row = Row(kernel.name, option, backend.name, dtype, {}, tolerances)
            with backend.numbers(dtype):
                found = _checked(row, kernel, case, backend, known)
            if found is not None:
                yield found


def _checked(
    row: Row, kernel: Kernel, case: Case, backend: Backend, known: Mapping[Oracle, Arrays]
) -> Row | None:
    """The row with what was found; None where an adapter has no such operator or option."""
    try:
        results = _run_in(kernel, case, backend, row.dtype)
    except Exception as error:  # every exception of a kernel is a finding; the others go on
        return row._replace(problem=f"{type(error).__name__}: {error}")
    if results is None:
        return None
    problem = _wrong_kind(results, backend, row.dtype)
    if problem is None:
        row, problem = _compare(row, results, _seen_by(backend, results, known))
    return row._replace(problem=problem)


def _run_in(kernel: Kernel, case: Case, backend: Backend, dtype: str) -> Mapping[str, Array] | None:
    def convert(arrays: Arrays) -> Arrays:
        return {name: backend.array(array, dtype) for name, array in arrays.items()}

    here = case._replace(
        arguments=convert(case.arguments),
        integers=convert(case.integers),
        cotangents=convert(case.cotangents),
        weights=convert(case.weights),
    )
    engine = contextlib.nullcontext() if backend.engine is None else xpgrad.use_engine(backend.engine)
    with engine:
        return backend.run(kernel, here)


def _seen_by(
    backend: Backend, results: Mapping[str, Array], known: Mapping[Oracle, Arrays]
) -> dict[Oracle, Arrays]:
    """The results of a backend that the oracles know; an adapter's operators need not return saved arrays."""
    if backend.run is _by_kernel:
        return dict(known)
    return {oracle: {k: a for k, a in arrays.items() if k in results} for oracle, arrays in known.items()}


def _wrong_kind(results: Mapping[str, Array], backend: Backend, dtype: str) -> str | None:
    expected = array_namespace(backend.array(np.zeros(1), dtype)).__name__
    for name, array in results.items():
        if array is None:
            return f"{name} is None"
        got = array_namespace(array).__name__
        if got != expected:
            return f"{name} belongs to {got}, expected {expected}"
        if dtype_name(array.dtype) != dtype:
            return f"{name} has dtype {dtype_name(array.dtype)}, expected {dtype}"
    return None


def _compare(
    row: Row, results: Mapping[str, Array], known: Mapping[Oracle, Arrays]
) -> tuple[Row, str | None]:
    errors, problems = {}, []
    for oracle, expected in known.items():
        found = {name: _error(results[name], array) for name, array in expected.items()}
        worst = max(found, key=lambda name: found[name])
        errors[oracle.label] = found[worst]
        allowed = row.tolerances[oracle.label]
        if not found[worst] <= allowed:
            problems.append(
                f"{worst} is off by {found[worst]:.2g} from {oracle.label}, allowed {allowed:.0e}"
            )
    return row._replace(errors=errors), "; ".join(problems) or None


def _error(actual: Array, expected: np.ndarray) -> float:
    if tuple(actual.shape) != expected.shape:
        return math.inf
    return relative_error(actual, expected)


# ------------------------------------------------------------------------------------------------- command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        The parser of the subcommand.
    """
    parser.add_argument(
        "--all", action="store_true", help="check compiled code in float64 too; print every row"
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON instead of a table")
    parser.add_argument(
        "--namespace",
        action="append",
        choices=sorted({backend.namespace for backend in (*BACKENDS, JAX)}),
        help="check only this array namespace, or onnx: xpgrad_onnx's operators and training graphs, or jax: "
        "xpgrad_jax's functions (repeatable; default: all that are installed)",
    )
    parser.add_argument(
        "--option",
        action="append",
        metavar="TEXT",
        help="check only the options whose name contains TEXT (repeatable; default: all)",
    )
    peers = parser.add_argument_group("other libraries")
    peers.add_argument("--peers", action="store_true", help="measure their kernels beside ours")
    peers.add_argument(
        "--interpreter",
        action="append",
        metavar="PEER=PYTHON",
        help="the Python that has a peer, such as onnx_runtime=/venv/bin/python (repeatable; default: the "
        "environment variable XPGRAD_PEER_ONNX_RUNTIME and its like, else this Python)",
    )
    peers.add_argument("--write", metavar="FILE", help="write what was measured as a page")
    parser.add_argument(
        "--random",
        type=int,
        metavar="COUNT",
        help="make so many random calls instead, each three times, and compare with the standard engine",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the number of the first random call (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Check the kernels and print the findings.

    Parameters
    ----------
    args : argparse.Namespace
        The parsed arguments.

    Returns
    -------
    int
        0 if every error is within its tolerance; 1 if not, or if the arguments select nothing.
    """
    if args.peers or args.write or args.interpreter:
        from .peers.command import run_peers  # large, and rarely needed

        return run_peers(KERNELS, args)
    if args.random is not None:
        return run_random(args.random, args.seed)
    wanted = [b for b in BACKENDS if args.namespace is None or b.namespace in args.namespace]
    every = args.all or args.json or bool(args.option) or bool(args.namespace)
    backends = [b if every else _compiling_less(b) for b in wanted if b.installed]
    if "jax" in (args.namespace or ()) and JAX.installed:
        backends.append(JAX)
    first_only = [] if every or not JAX.installed else [JAX._replace(dtypes=("float32",))]
    modules = [b.module for b in wanted] + [o.module for k in KERNELS for o in k.oracles if o.module]
    missing = _missing(modules)
    jobs = [
        (kernel, option)
        for kernel in KERNELS
        for option in kernel.options
        if args.option is None or any(text in option for text in args.option)
    ]
    rows: list[Row] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bar = progress(jobs, "checking")
        for kernel, option in bar:
            bar.note(f"{kernel.name}, {option}")
            more = first_only if option == next(iter(kernel.options)) else []
            rows.extend(_rows(kernel, option, [*backends, *more]))
    if args.json:
        _print_json(rows, missing)
    elif every:
        _print_table(rows, missing)
    else:
        _print_summary(rows, missing, [*backends, *first_only])
    return 0 if rows and all(row.ok for row in rows) else 1


def _compiling_less(backend: Backend) -> Backend:
    """The backend without float64 if its engine compiles a loop for each formula and dtype."""
    if backend.engine is not None or backend.namespace == "array-api-strict" or not jit_enabled():
        return backend
    return backend._replace(dtypes=tuple(dtype for dtype in backend.dtypes if dtype != "float64"))


def _print_summary(rows: Sequence[Row], missing: Sequence[str], backends: Sequence[Backend]) -> None:
    """A line for each operator: what was checked where, and which error came closest to its tolerance."""
    names = [backend.name for backend in backends]
    lines = []
    for kernel in dict.fromkeys(row.kernel for row in rows):
        own = [row for row in rows if row.kernel == kernel]
        wrong = [row for row in own if not row.ok]
        counts = [[row.ok for row in own if row.namespace == name] for name in names]
        cells = [f"{sum(oks)} of {len(oks)}" if oks else "-" for oks in counts]
        lines.append([kernel, *cells, _nearest(own), f"{len(wrong)} WRONG" if wrong else "ok"])
    notes = [*_findings(rows, missing)]
    if any(_compiling_less(backend) != backend for backend in BACKENDS if backend.installed):
        notes.insert(
            0, "Compiled code was checked in float32 and less; --all takes float64, and prints every row."
        )
    table(
        "Rows within their tolerances: each option in each dtype, against every oracle",
        ["operator", *names, "nearest to its tolerance", ""],
        lines,
        footer="\n".join(notes),
    )


def _nearest(rows: Sequence[Row]) -> str:
    """The largest error of an operator as a share of its tolerance."""
    shares = [
        (error / row.tolerances[label], row, label) for row in rows for label, error in row.errors.items()
    ]
    if not shares:
        return "-"
    share, row, label = max(shares, key=lambda entry: entry[0])
    return f"{share:.0%} ({row.option}, {row.namespace}, {row.dtype}, {label})"


def _findings(rows: Sequence[Row], missing: Sequence[str]) -> Iterator[str]:
    """The errors, the unchecked combinations, and the number of correct rows."""
    failures = [row for row in rows if not row.ok]
    for row in failures:
        yield f"WRONG: {row.kernel}, {row.option}, {row.namespace}, {row.dtype}: {row.problem}"
    if missing:
        yield f"Not installed, so not checked: {', '.join(missing)}."
    right = f"{len(rows) - len(failures)} of {len(rows)} within their tolerances."
    yield right if rows else "Nothing to check."


def _print_json(rows: Sequence[Row], missing: Sequence[str]) -> None:
    def finite(errors: Mapping[str, float]) -> dict[str, float | None]:
        return {label: error if math.isfinite(error) else None for label, error in errors.items()}

    report = {
        "xpgrad": xpgrad.__version__,
        "python": platform.python_version(),
        "ok": bool(rows) and all(row.ok for row in rows),
        "not_installed": list(missing),
        "rows": [{**row._asdict(), "errors": finite(row.errors), "ok": row.ok} for row in rows],
    }
    json.dump(report, sys.stdout, indent=1)
    print()


def _print_table(rows: Sequence[Row], missing: Sequence[str]) -> None:
    oracles = list(dict.fromkeys(o.label for kernel in KERNELS for o in kernel.oracles))
    floors = {o.label: o.floor for kernel in KERNELS for o in kernel.oracles if o.floor}
    lines = [
        [
            row.kernel,
            row.option,
            row.namespace,
            row.dtype,
            *(f"{row.errors[label]:.1e}" if label in row.errors else "-" for label in oracles),
            f"{TOLERANCE[row.dtype]:.0e}",
            "ok" if row.ok else "WRONG",
        ]
        for row in rows
    ]
    for backend in (b for b in BACKENDS if b.module in missing):
        lines.append(["", "", backend.name, "", *("-" for _ in oracles), "-", "not installed"])
    *notes, count = _findings(rows, missing)
    for module in missing:
        without = dict.fromkeys(o.label for kernel in KERNELS for o in kernel.oracles if o.module == module)
        if without:
            notes.append(f"No column without {module}: {', '.join(without)}.")
    notes.extend(f"Allowed under {label}: at least {floor:.0e}." for label, floor in floors.items())
    notes.append(count)
    table(
        "Worst error of outputs and gradients, relative to the largest value of each array",
        ["kernel", "option", "namespace", "dtype", *oracles, "allowed", ""],
        lines,
        footer="\n".join(notes),
    )
