"""Check every kernel's results on everything that is installed here.

Compares kernels with independent oracles: naive references, central differences in float64, PyTorch's
autograd and modules. ONNX's operators also run through xpgrad_onnx, as operators and as training graphs. The
exit status is 1 if an error exceeds its tolerance.

By default, an operator's first option runs in every namespace and dtype, each other option in some of them,
and one line is printed for each operator. --all runs each option in each namespace and dtype, and prints a
line for each combination, with its worst relative error. --option and --namespace do so for a selection.

By default and with --namespace it also checks the functions of xpgrad_jax (jax), the layers of xpgrad_keras
on the backend that Keras is set to (keras), and on a GPU the kernels on PyTorch's tensors (cuda) and on
CuPy's arrays (cupy).

--peers, in a checkout, also measures the kernels of other libraries, against float64 references that share no
code with any library. A library that needs another NumPy runs in its own interpreter.
"""

import argparse
import contextlib
import difflib
import importlib.util
import json
import math
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

import xpgrad
from xpgrad.engine.process import guard
from xpgrad.engine.process.settings import jit_enabled, thread_count

from .._cases.case import Array, Arrays, Case, KernelCases, Oracle
from .._cases.kernels import KERNELS
from .._testing.comparing import dtype_name, relative_error
from . import check_jax, check_keras
from .arguments import at_least_one, not_negative, unwritable
from .check_random import run_random
from .checkout import tool
from .console import Progress, message, table

__all__ = ["add_arguments", "run"]

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Allowed error by dtype, relative to the largest value of each array."""


# ---------------------------------------------------------------------------------------- the namespaces


def _by_kernel(kernel: KernelCases, case: Case) -> Mapping[str, Array]:
    return kernel.run(case)


def _by_onnx(kernel: KernelCases, case: Case) -> Mapping[str, Array] | None:
    from .check_onnx import results  # it imports onnx

    return results(kernel.name, case)


def _pytorch_has_a_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _cupy_has_a_gpu() -> bool:
    return bool(importlib.import_module("cupy").is_available())


class Backend(NamedTuple):
    """An array namespace, the engine that computes in it (None: the default engine), and its dtypes."""

    namespace: str
    module: str
    array_module: str
    engine: str | None
    dtypes: tuple[str, ...]
    run: Callable[[KernelCases, Case], Mapping[str, Array] | None] = _by_kernel
    """The results of a case in this namespace; None if an adapter lacks the operator or the option."""
    numbers: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """A context in which the namespace has numbers of the given dtype."""
    runs: Callable[[], bool] = lambda: True
    """Whether the installed module runs here."""
    has: Callable[[str], bool] = lambda name: True
    """Whether it has a kernel of that name."""
    device: str | None = None
    """Where the arrays are; None: where the namespace puts them."""

    @property
    def name(self) -> str:
        return self.namespace if self.engine is None else f"{self.namespace}, {self.engine} engine"

    @property
    def heading(self) -> str:
        """A short name, for a column."""
        name = self.namespace.removeprefix("array-api-")
        return name if self.engine is None else f"{name} {self.engine[:3]}."

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None and self.runs()

    def array(self, values: np.ndarray, dtype: str) -> Array:
        """Values as an array of the namespace; whole numbers keep their dtype."""
        xp = importlib.import_module(self.array_module)
        kept = values.dtype.kind != "f"
        return xp.asarray(values, dtype=None if kept else getattr(xp, dtype), device=self.device)


_HALF, _FULL = ("float16", "bfloat16"), ("float64", "float32")
BACKENDS = (
    Backend("numpy", "numpy", "numpy", None, (*_FULL, "float16")),
    Backend("numpy", "numpy", "numpy", "standard", (*_FULL, "float16")),
    Backend("array-api-strict", "array_api_strict", "array_api_strict", None, _FULL),
    Backend("torch", "torch", "array_api_compat.torch", None, (*_FULL, *_HALF)),
    Backend("torch", "torch", "array_api_compat.torch", "standard", (*_FULL, *_HALF)),
    # ONNX's attributes are float32; in float64 their rounding would count as an error
    Backend("onnx", "onnx", "numpy", None, ("float32", "float16"), _by_onnx),
)
JAX = Backend("jax", "jax", "jax.numpy", None, _FULL, check_jax.run, check_jax.numbers)
"""The functions of xpgrad_jax."""
KERAS = Backend(
    "keras", "keras", "numpy", None, _FULL, check_keras.run, check_keras.numbers, check_keras.installed,
    check_keras.has,
)  # fmt: skip
"""The layers of xpgrad_keras."""
GPUS = (
    Backend(
        "cuda", "torch", "array_api_compat.torch", None, (*_FULL, *_HALF), runs=_pytorch_has_a_gpu,
        device="cuda",
    ),
    Backend("cupy", "cupy", "array_api_compat.cupy", None, (*_FULL, "float16"), runs=_cupy_has_a_gpu),
)  # fmt: skip
"""PyTorch's tensors and CuPy's arrays on a GPU."""
ELSEWHERE = (JAX, KERAS, *GPUS)
"""Adapters with a part of the kernels and options, and GPUs. They run by default and on request."""
_EACH = 5
"""By default an option is checked in each fifth combination of namespace and dtype."""


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
    """The error in words."""

    @property
    def ok(self) -> bool:
        return self.problem is None


def _missing(modules: Sequence[str]) -> list[str]:
    return [module for module in dict.fromkeys(modules) if importlib.util.find_spec(module) is None]


def _rows(kernel: KernelCases, option: str, backends: Sequence[Backend]) -> Iterator[Row]:
    """Check one option of one kernel on every backend; each oracle is asked once."""
    if not backends:
        return
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
    row: Row, kernel: KernelCases, case: Case, backend: Backend, known: Mapping[Oracle, Arrays]
) -> Row | None:
    """The row with its errors; None if an adapter lacks the operator or the option."""
    try:
        results = _run_in(kernel, case, backend, row.dtype)
    except Exception as error:  # an exception is a finding; the other kernels go on
        return row._replace(problem=f"{type(error).__name__}: {error}")
    if results is None:
        return None
    problem = _wrong_kind(results, backend, row.dtype)
    if problem is None:
        if backend.run is not _by_kernel:  # an adapter need not return saved arrays
            known = {oracle: {k: a for k, a in own.items() if k in results} for oracle, own in known.items()}
        row, problem = _compare(row, results, known)
    return row._replace(problem=problem)


def _run_in(kernel: KernelCases, case: Case, backend: Backend, dtype: str) -> Mapping[str, Array] | None:
    parts = {
        part: {name: backend.array(array, dtype) for name, array in getattr(case, part).items()}
        for part in ("arguments", "integers", "cotangents", "weights")
    }
    engine = contextlib.nullcontext() if backend.engine is None else xpgrad.use_engine(backend.engine)
    with engine:
        return backend.run(kernel, case._replace(**parts))


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
        found = {
            name: relative_error(results[name], array) if results[name].shape == array.shape else math.inf
            for name, array in expected.items()
        }
        worst = max(found, key=lambda name: found[name])
        errors[oracle.label] = found[worst]
        allowed = row.tolerances[oracle.label]
        if not found[worst] <= allowed:
            problems.append(
                f"{worst} is off by {found[worst]:.2g} from {oracle.label}, allowed {allowed:.0e}"
            )
    return row._replace(errors=errors), "; ".join(problems) or None


# ------------------------------------------------------------------------------------------------- command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--all",
        action="store_true",
        help="check each option in every namespace and dtype (jax, keras, cuda and cupy only with "
        "--namespace), and print every row; by default an operator's first option is checked in all of them, "
        "each other option in some",
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON instead of a table")
    parser.add_argument(
        "--namespace",
        action="append",
        choices=sorted({backend.namespace for backend in (*BACKENDS, *ELSEWHERE)}),
        help="check only this array namespace, or onnx (xpgrad_onnx's operators and training graphs), jax "
        "(xpgrad_jax's functions), keras (xpgrad_keras' layers), cuda (PyTorch's tensors on a GPU) or cupy; "
        "repeatable, default: all that run here",
    )
    parser.add_argument(
        "--option",
        action="append",
        type=_option,
        metavar="TEXT",
        help="check only options with TEXT in the names of operator and option, as in 'lstm, plain' "
        "(repeatable; default: all)",
    )
    peers = parser.add_argument_group("other libraries")
    peers.add_argument("--peers", action="store_true", help="measure their kernels and ours")
    peers.add_argument(
        "--interpreter",
        action="append",
        metavar="PEER=PYTHON",
        help="the Python of a peer, such as onnx_runtime=/venv/bin/python (repeatable; default: the "
        "peer's environment variable, such as XPGRAD_PEER_ONNX_RUNTIME, else this Python)",
    )
    peers.add_argument("--write", metavar="FILE", help="write the measurements as a page")
    parser.add_argument(
        "--random",
        type=at_least_one,
        metavar="COUNT",
        help="make this many random calls instead, each three times, and compare with the standard engine",
    )
    parser.add_argument(
        "--lengths", action="store_true", help="with --random: only recurrent operators, on uneven lengths"
    )
    parser.add_argument(
        "--guard",
        action="store_true",
        help="put memory between red zones, and check them after each instruction (much slower)",
    )
    parser.add_argument("--seed", type=not_negative, help="the number of the first random call (default: 0)")


def _option(text: str) -> str:
    """A part of the names of an operator and its option; for argparse's ``type``."""
    known = dict.fromkeys(option for kernel in KERNELS for option in kernel.options)
    named = [f"{kernel.name}, {option}" for kernel in KERNELS for option in kernel.options]
    # other libraries have a case with a length of 0 for each case with NaN in its padding
    named += [name.replace("NaN padding", "one of 0") for name in named]
    if not any(text in name for name in named):
        near = difflib.get_close_matches(text, named, 3)
        nearest = f"; near it are {'; '.join(near)}" if near else ""
        raise argparse.ArgumentTypeError(
            f"{text!r} is in no option's name{nearest}; these are {'; '.join(known)}"
        )
    return text


def _problem(args: argparse.Namespace) -> str | None:
    """Why the arguments cannot be used together, or None."""
    given = [name for name, value in vars(args).items() if value and name not in ("command", "seed")]
    companions = {"random": ("guard", "lengths"), "peers": ("interpreter", "write", "option", "json")}
    for main, others in companions.items():
        beyond = [name for name in given if name not in (main, *others)]
        if main in given and beyond:
            return f"--{main} goes without --{beyond[0]}"
    needed = {"seed": "random", "lengths": "random", "interpreter": "peers", "write": "peers"}
    for name, main in needed.items():
        if getattr(args, name) not in (None, False) and getattr(args, main) in (None, False):
            return f"--{name} goes with --{main}"
    return unwritable("--write", Path(args.write)) if args.write else None


def run(args: argparse.Namespace) -> int:
    """Check the kernels and print the findings.

    Returns 0 if every error is within its tolerance; 1 if not, or if the arguments select nothing; 2 if they
    do not go together, or if a file cannot be written.
    """
    problem = _problem(args)
    if problem:
        message(f"check: {problem}")
        return 2
    for setting in (jit_enabled, thread_count):  # a wrong environment variable is no fault of a kernel
        setting()
    if args.guard:
        guard.on = True
    if args.peers:
        return int(tool("xpgrad_peers.command", "check --peers").run_peers(KERNELS, args))
    if args.random is not None:
        return run_random(args.random, args.seed or 0, args.lengths)
    wanted = [b for b in BACKENDS if args.namespace is None or b.namespace in args.namespace]
    every = args.all or args.json or bool(args.option) or bool(args.namespace)
    backends = [b for b in wanted if b.installed]
    asked = [b for b in ELSEWHERE if b.namespace in (args.namespace or ()) or not every]
    backends += [b for b in asked if b.installed]
    modules = [b.module for b in wanted] + [o.module for k in KERNELS for o in k.oracles if o.module]
    missing = _missing(modules)
    if args.namespace:
        missing += [b.namespace for b in asked if not b.installed]
    jobs = [
        (kernel, option)
        for kernel in KERNELS
        for option in kernel.options
        if args.option is None or any(text in f"{kernel.name}, {option}" for text in args.option)
    ]
    rows: list[Row] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bar = Progress(jobs, "checking")
        for kernel, option in bar:
            bar.note(f"{kernel.name}, {option}")
            number, own = [*kernel.options].index(option), [b for b in backends if b.has(kernel.name)]
            rows.extend(_rows(kernel, option, own if every or not number else _some(own, number)))
    if args.json:
        _print_json(rows, missing)
    elif every:
        _print_table(rows, missing)
    else:
        _print_summary(rows, missing, backends)
    return 0 if rows and all(row.ok for row in rows) else 1


def _some(backends: Sequence[Backend], number: int) -> list[Backend]:
    """Each fifth combination of namespace and dtype, from this option's number on."""
    pairs = [(backend, dtype) for backend in backends for dtype in backend.dtypes]
    chosen = {pair for place, pair in enumerate(pairs) if place % _EACH == number % _EACH}
    some = [b._replace(dtypes=tuple(d for d in b.dtypes if (b, d) in chosen)) for b in backends]
    return [backend for backend in some if backend.dtypes]


def _print_summary(rows: Sequence[Row], missing: Sequence[str], backends: Sequence[Backend]) -> None:
    """A line for each operator: the number of checks in each namespace, and the largest error."""
    lines = []
    for kernel in dict.fromkeys(row.kernel for row in rows):
        own = [row for row in rows if row.kernel == kernel]
        wrong = sum(not row.ok for row in own)
        cells = [_count([row.ok for row in own if row.namespace == b.name]) for b in backends]
        shares = [error / row.tolerances[label] for row in own for label, error in row.errors.items()]
        largest = f"{max(shares):.0%}" if shares else "-"
        lines.append([kernel, *cells, largest, f"{wrong} WRONG" if wrong else "ok"])
    notes = [
        "error: the largest one, as a share of its tolerance. An operator's first",
        "option is checked in every namespace and dtype, each other one in some.",
        "--all checks each option in all of them, and prints every row.",
        *_findings(rows, missing),
    ]
    table(
        "Options times dtypes within their tolerances, against every oracle",
        ["operator", *(backend.heading for backend in backends), "error", ""],
        lines,
        footer="\n".join(notes),
    )


def _count(oks: Sequence[bool]) -> str:
    """The number of right rows; with the number of all rows if some are wrong."""
    return "-" if not oks else f"{len(oks)}" if all(oks) else f"{sum(oks)}/{len(oks)}"


def _findings(rows: Sequence[Row], missing: Sequence[str]) -> Iterator[str]:
    """The errors, the unchecked combinations, and the number of correct rows."""
    failures = [row for row in rows if not row.ok]
    for row in failures:
        yield f"WRONG: {row.kernel}, {row.option}, {row.namespace}, {row.dtype}: {row.problem}"
    if missing:
        yield f"Not installed, or without its device, so not checked: {', '.join(missing)}."
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
