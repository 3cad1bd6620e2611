"""Check every kernel's results on everything that is installed here.

Runs each kernel in each array namespace, dtype and option and prints the worst relative error against
independent oracles: naive references, central differences in float64, PyTorch's autograd, torch.nn.LSTM.
The exit status is 1 where an error is over its tolerance.
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

from ..testing import (
    dtype_name,
    lstm_grad_reference,
    lstm_reference,
    numerical_jacobian,
    relative_error,
    to_numpy,
)
from .console import progress, table

__all__ = ["add_arguments", "run"]

Array = Any
Arrays = Mapping[str, Any]
"""Arrays by name."""

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Allowed error by dtype, relative to the largest value of each array."""


# ---------------------------------------------------------------------------------------- what is there


class Backend(NamedTuple):
    """An array namespace, the engine that is forced on it (None: the default), and its dtypes."""

    namespace: str
    module: str
    array_module: str
    engine: str | None
    dtypes: tuple[str, ...]

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
)


# ------------------------------------------------------------------------------------------- what to check


class Case(NamedTuple):
    """One option of a kernel, as float64 NumPy arrays."""

    arguments: Arrays
    """Floating-point arguments: those that have a gradient."""
    integers: Arrays
    attributes: Mapping[str, Any]
    cotangents: Arrays
    """One for each differentiable output, by the output's name."""
    gradient_attributes: Mapping[str, Any] = {}
    """Attributes that only the gradient takes."""


class Oracle(NamedTuple):
    """An independent source of a kernel's results.

    `compute` takes a case and returns what it knows of the kernel's results, by name, or None where it has
    nothing to say about such a case. `floor` is the accuracy of the oracle itself.
    """

    label: str
    compute: Callable[[Case], Arrays | None]
    floor: float = 0.0
    module: str | None = None


class Kernel(NamedTuple):
    """A kernel with its options and oracles; an entry of `KERNELS` is all that a new kernel needs."""

    name: str
    options: Mapping[str, Callable[[], Case]]
    run: Callable[[Case], Mapping[str, Array]]
    """The results of the kernel under test, outputs and gradients by name, for a case in any namespace."""
    oracles: Sequence[Oracle]


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random values that every dtype down to bfloat16 holds exactly: multiples of 1/32 below 4."""
    return np.clip(np.round(24 * rng.standard_normal(shape)), -127, 127) / 32


# The LSTM --------------------------------------------------------------------------------------------------

_LSTM_GRADIENTS = {
    "X": "dX",
    "W": "dW",
    "R": "dR",
    "B": "dB",
    "initial_h": "dH0",
    "initial_c": "dC0",
    "P": "dP",
}
_LSTM_OUTPUTS = ("H_all", "H_t", "C_t")
_LSTM_SAMPLE_AXIS = {0: {"H_all": 2, "H_t": 1, "C_t": 1}, 1: {"H_all": 0, "H_t": 0, "C_t": 0}}
_PEEPHOLES = {"peepholes": True}


def _lstm_case(
    *,
    seed: int,
    peepholes: bool = False,
    bias: bool = True,
    states: bool = True,
    lengths: bool = False,
    gradient: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> Case:
    """A small LSTM in which no two sizes are equal."""
    T, N, I, H = 5, 3, 2, 4
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    rng = np.random.default_rng(seed)
    arguments: dict[str, Any] = {
        "X": _draw(rng, T, N, I),
        "W": _draw(rng, D, 4 * H, I),
        "R": _draw(rng, D, 4 * H, H) / 2,
    }
    if bias:
        arguments["B"] = _draw(rng, D, 8 * H)
    if states:
        arguments |= {"initial_h": _draw(rng, D, N, H), "initial_c": _draw(rng, D, N, H)}
    if peepholes:
        arguments["P"] = _draw(rng, D, 3 * H)
    cotangents = {
        "H_all": _draw(rng, T, D, N, H),
        "H_t": _draw(rng, D, N, H),
        "C_t": _draw(rng, D, N, H),
    }
    integers = {}
    if lengths:
        integers["sequence_lens"] = np.asarray([3, 0, 5], dtype=np.int64)
        for n, length in enumerate(integers["sequence_lens"]):
            arguments["X"][length:, n] = np.nan
            cotangents["H_all"][length:, :, n] = np.nan
    if attributes.get("layout") == 1:
        for name in {"X", "initial_h", "initial_c"} & set(arguments):
            arguments[name] = arguments[name].swapaxes(0, 1)
        cotangents = {k: np.moveaxis(v, _LSTM_SAMPLE_AXIS[0][k], 0) for k, v in cotangents.items()}
    return Case(arguments, integers, attributes, cotangents, gradient or {})


_LSTM_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "no initial state": {"states": False},
    "reverse": {"direction": "reverse"},
    "bidirectional": {"direction": "bidirectional"},
    "lengths, NaN padding": {"lengths": True},
    "lengths, bidirectional": {"lengths": True, "direction": "bidirectional"},
    "peepholes, full": {**_PEEPHOLES, "gradient": {"peephole": "full"}},
    "peepholes, truncated": {**_PEEPHOLES, "gradient": {"peephole": "truncated"}},
    "clip": {**_PEEPHOLES, "clip": 0.7013},
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
    "layout 1": {"layout": 1},
    "per_sample": {**_PEEPHOLES, "gradient": {"per_sample": True}},
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
}


def _lstm_run(case: Case) -> dict[str, Array]:
    """Forward and gradient of `xpgrad.lstm`, with every cotangent."""
    forward, pullback = xpgrad.vjp(
        xpgrad.lstm, **case.arguments, **case.integers, **case.attributes, **case.gradient_attributes
    )
    grads = pullback(**{f"grad_{name}": cotangent for name, cotangent in case.cotangents.items()})
    return {**forward._asdict(), **_lstm_gradients(case, grads)}


def _lstm_gradients(case: Case, grads: Any) -> dict[str, Array]:
    return {f"gradient of {name}": getattr(grads, _LSTM_GRADIENTS[name]) for name in case.arguments}


def _lstm_from_reference(case: Case) -> Arrays:
    forward = lstm_reference(**case.arguments, **case.integers, **case.attributes)
    saved = {"H_all": forward.H_all, "C_all": forward.C_all, "iofc": forward.iofc}
    cotangents = {f"grad_{name}": value for name, value in case.cotangents.items()}
    inputs = {**case.arguments, **case.integers, **case.attributes, **case.gradient_attributes}
    grads = lstm_grad_reference(**inputs, **saved, **cotangents)
    return {**forward._asdict(), **_lstm_gradients(case, grads)}


def _lstm_from_differences(case: Case) -> Arrays | None:
    if case.gradient_attributes.get("peephole") == "truncated":
        return None  # no function has this gradient

    def outputs(**arguments: Any) -> tuple[np.ndarray, ...]:
        forward = xpgrad.lstm(**arguments, **case.integers, **case.attributes)
        return tuple(getattr(forward, name) for name in _LSTM_OUTPUTS)

    jacobians = {name: numerical_jacobian(outputs, case.arguments, name) for name in case.arguments}

    def pullback(cotangents: Arrays) -> dict[str, np.ndarray]:
        return {
            name: sum(
                (
                    np.tensordot(cotangents[output], jacobian, axes=cotangents[output].ndim)
                    for output, jacobian in zip(_LSTM_OUTPUTS, jacobians[name], strict=True)
                ),
                start=np.zeros(case.arguments[name].shape),
            )
            for name in case.arguments
        }

    return _lstm_sum_or_stack(case, pullback)


def _lstm_from_autograd(case: Case) -> Arrays:
    import torch

    arguments: dict[str, Any] = {
        name: torch.tensor(a, requires_grad=True) for name, a in case.arguments.items()
    }
    truncated = case.gradient_attributes.get("peephole") == "truncated"
    forward = lstm_reference(
        **arguments, **case.integers, **case.attributes, detach=torch.Tensor.detach if truncated else None
    )

    def pullback(cotangents: Arrays) -> dict[str, np.ndarray]:
        found = torch.autograd.grad(
            [getattr(forward, name) for name in _LSTM_OUTPUTS],
            list(arguments.values()),
            [torch.tensor(cotangents[name]) for name in _LSTM_OUTPUTS],
            retain_graph=True,
        )
        return {name: to_numpy(gradient) for name, gradient in zip(arguments, found, strict=True)}

    return _lstm_sum_or_stack(case, pullback)


def _lstm_sum_or_stack(case: Case, pullback: Callable[[Arrays], Arrays]) -> dict[str, np.ndarray]:
    """Gradients of the batch or, for per_sample, those of the parameters one sample at a time."""
    layout = case.attributes.get("layout", 0)
    cotangents = {name: np.nan_to_num(c) for name, c in case.cotangents.items()}  # NaN stands in padding only
    grads = dict(pullback(cotangents))
    if case.gradient_attributes.get("per_sample"):
        samples = []
        for n in range(case.arguments["X"].shape[0 if layout else 1]):
            alone = {}
            for name, cotangent in cotangents.items():
                axis = _LSTM_SAMPLE_AXIS[layout][name]
                others = np.arange(cotangent.shape[axis]) != n
                alone[name] = cotangent.copy()
                np.moveaxis(alone[name], axis, 0)[others] = 0
            samples.append(pullback(alone))
        for name in ("W", "R", "B", "P"):
            if name in grads:
                grads[name] = np.stack([sample[name] for sample in samples])
    return {f"gradient of {name}": gradient for name, gradient in grads.items()}


def _lstm_from_torch_nn(case: Case) -> Arrays | None:
    """`torch.nn.LSTM` in float64, for the options that it has."""
    has = {"X", "W", "R", "B", "initial_h", "initial_c"}
    direction = case.attributes.get("direction", "forward")
    if set(case.arguments) != has or case.integers or direction == "reverse" or case.gradient_attributes:
        return None
    if set(case.attributes) - {"direction", "layout"}:
        return None
    import torch

    W, R = case.arguments["W"], case.arguments["R"]
    D, H, I = W.shape[0], R.shape[2], W.shape[2]
    batch_first = case.attributes.get("layout", 0) == 1
    module = torch.nn.LSTM(I, H, bidirectional=D == 2, batch_first=batch_first, dtype=torch.float64)
    order = [0, 2, 3, 1]  # from ONNX's gates i o f c to PyTorch's i f g o
    parts: dict[str, tuple[str, int, slice]] = {}
    for d, suffix in enumerate(["", "_reverse"][:D]):
        parts[f"weight_ih_l0{suffix}"] = "W", d, slice(None)
        parts[f"weight_hh_l0{suffix}"] = "R", d, slice(None)
        parts[f"bias_ih_l0{suffix}"] = "B", d, slice(0, 4 * H)
        parts[f"bias_hh_l0{suffix}"] = "B", d, slice(4 * H, 8 * H)

    def reorder(rows: np.ndarray, gates: Any) -> np.ndarray:
        return rows.reshape(4, H, *rows.shape[1:])[list(gates)].reshape(rows.shape)

    with torch.no_grad():
        for name, (source, d, rows) in parts.items():
            getattr(module, name).copy_(torch.tensor(reorder(case.arguments[source][d, rows], order)))
    states = [case.arguments[name] for name in ("initial_h", "initial_c")]
    if batch_first:
        states = [state.swapaxes(0, 1) for state in states]
    x, h0, c0 = (torch.tensor(a, requires_grad=True) for a in (case.arguments["X"], *states))
    y, (h, c) = module(x, (h0, c0))

    y = y.unflatten(-1, (D, H))  # (T, N, D, H), or (N, T, D, H)
    if batch_first:
        h, c = h.swapaxes(0, 1), c.swapaxes(0, 1)
    else:
        y = y.swapaxes(1, 2)
    cotangents = [torch.tensor(case.cotangents[name]) for name in _LSTM_OUTPUTS]
    torch.autograd.backward([y, h, c], cotangents)

    grads = {name: np.zeros_like(case.arguments[name]) for name in ("W", "R", "B")}
    for name, (source, d, rows) in parts.items():
        grads[source][d, rows] = reorder(to_numpy(getattr(module, name).grad), np.argsort(order))
    dh0, dc0 = (to_numpy(s.grad).swapaxes(0, 1) if batch_first else to_numpy(s.grad) for s in (h0, c0))
    grads |= {"X": to_numpy(x.grad), "initial_h": dh0, "initial_c": dc0}
    outputs = {"H_all": to_numpy(y), "H_t": to_numpy(h), "C_t": to_numpy(c)}
    return outputs | {f"gradient of {name}": gradient for name, gradient in grads.items()}


KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "lstm",
        {
            name: functools.partial(_lstm_case, seed=seed, **option)
            for seed, (name, option) in enumerate(_LSTM_OPTIONS.items())
        },
        _lstm_run,
        (
            Oracle("reference", _lstm_from_reference),
            Oracle("differences", _lstm_from_differences, floor=1e-7),
            Oracle("autograd", _lstm_from_autograd, module="torch"),
            Oracle("torch.nn", _lstm_from_torch_nn, module="torch"),
        ),
    ),
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
        except Exception as error:  # such as the kernel's own forward failing under the differences
            problem = f"{oracle.label} failed: {type(error).__name__}: {error}"
            yield Row(kernel.name, option, "numpy", "float64", {}, {}, problem)
            continue
        if expected is not None:
            known[oracle] = expected
    for backend in backends:
        for dtype in backend.dtypes:
            tolerances = {oracle.label: max(TOLERANCE[dtype], oracle.floor) for oracle in known}
            row = Row(kernel.name, option, backend.name, dtype, {}, tolerances)
            try:
                results = _run_in(kernel, case, backend, dtype)
            except Exception as error:  # whatever a kernel raises is a finding, and the others go on
                yield row._replace(problem=f"{type(error).__name__}: {error}")
                continue
            problem = _wrong_kind(results, backend, dtype)
            if problem is None:
                row, problem = _compare(row, results, known)
            yield row._replace(problem=problem)


def _run_in(kernel: Kernel, case: Case, backend: Backend, dtype: str) -> Mapping[str, Array]:
    def convert(arrays: Arrays) -> Arrays:
        return {name: backend.array(array, dtype) for name, array in arrays.items()}

    here = case._replace(
        arguments=convert(case.arguments),
        integers=convert(case.integers),
        cotangents=convert(case.cotangents),
    )
    engine = contextlib.nullcontext() if backend.engine is None else xpgrad.use_engine(backend.engine)
    with engine:
        return kernel.run(here)


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
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument(
        "--namespace",
        action="append",
        choices=sorted({backend.namespace for backend in BACKENDS}),
        help="check only this array namespace (repeatable; default: all that are installed)",
    )
    parser.add_argument(
        "--option",
        action="append",
        metavar="TEXT",
        help="check only the options whose name contains TEXT (repeatable; default: all)",
    )


def run(args: argparse.Namespace) -> int:
    """Check the kernels and print what was found.

    Parameters
    ----------
    args : argparse.Namespace
        The parsed arguments.

    Returns
    -------
    int
        0 if every error is within its tolerance, 1 if not or if the arguments select nothing.
    """
    wanted = [b for b in BACKENDS if args.namespace is None or b.namespace in args.namespace]
    backends = [b for b in wanted if b.installed]
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
        for kernel, option in progress(jobs, "checking"):
            rows.extend(_rows(kernel, option, backends))
    if args.json:
        _print_json(rows, missing)
    else:
        _print_table(rows, missing)
    return 0 if rows and all(row.ok for row in rows) else 1


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
    failures = [row for row in rows if not row.ok]
    notes = [
        f"WRONG: {row.kernel}, {row.option}, {row.namespace}, {row.dtype}: {row.problem}" for row in failures
    ]
    if missing:
        notes.append(f"Not installed, so not checked: {', '.join(missing)}.")
    for module in missing:
        without = dict.fromkeys(o.label for kernel in KERNELS for o in kernel.oracles if o.module == module)
        if without:
            notes.append(f"No column without {module}: {', '.join(without)}.")
    notes.extend(f"Allowed under {label}: at least {floor:.0e}." for label, floor in floors.items())
    right = f"{len(rows) - len(failures)} of {len(rows)} within their tolerances."
    notes.append(right if rows else "Nothing to check.")
    table(
        "Worst error of outputs and gradients, relative to the largest value of each array",
        ["kernel", "option", "namespace", "dtype", *oracles, "allowed", ""],
        lines,
        footer="\n".join(notes),
    )
