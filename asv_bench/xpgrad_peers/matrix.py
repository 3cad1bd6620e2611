"""Compares our kernels and the installed peers' kernels with the references."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import xpgrad
from xpgrad._cases.activations import DEFINITIONS
from xpgrad._cases.case import Arrays, Case, KernelCases
from xpgrad.cli import onnx_node
from xpgrad.cli.console import Progress
from xpgrad.testing import relative_error

from . import references

__all__ = ["OURS", "PEERS", "WRONG", "Entry", "Measured", "Peer", "interpreter", "measure"]

WRONG = 1e-4
"""The error above which an entry is wrong: rounding of float32 stays below a tenth of it."""

# The package of callers and the file that makes models for ONNX are last on the path: their folders' modules
# hide no others.
_CALLERS = (
    "import runpy, sys; sys.path += [sys.argv.pop(1), sys.argv.pop(1)]; "
    "runpy.run_module('callers', run_name='__main__', alter_sys=True)"
)
_ONNX_NODE = str(Path(onnx_node.__file__).parent)
_PATIENCE = 1800  # seconds for all cases of a peer


class Peer(NamedTuple):
    """A library with kernels to measure."""

    key: str
    title: str
    module: str
    outputs: tuple[str, ...] | None = None
    """The outputs that take a cotangent; None: all."""


PEERS = (
    Peer("pytorch", "PyTorch", "torch"),
    Peer("pytorch_native", "PyTorch without oneDNN", "torch"),
    Peer("onnx_runtime", "ONNX Runtime Training", "onnxruntime"),
    Peer("onnx_reference", "onnx.reference", "onnx"),
    Peer("jax", "JAX", "jax"),
    Peer("keras", "Keras on TensorFlow", "tensorflow"),
    Peer("thinc", "thinc", "thinc", ("H_all", "Y")),
)
OURS = (Peer("float64", "xpgrad, float64", "xpgrad"), Peer("float32", "xpgrad, float32", "xpgrad"))


class Entry(NamedTuple):
    """The result of one library for one case.

    `status` is "right", "wrong", "refused" or "absent" (it has no such operator or option). `errors` are by
    output and gradient, `message` is the refusal.
    """

    kernel: str
    option: str
    peer: str
    status: str
    errors: Mapping[str, float] = {}
    message: str = ""

    @property
    def error(self) -> float:
        """The largest of the errors."""
        return max(self.errors.values(), default=math.nan)


class Measured(NamedTuple):
    """All entries, and the versions of each library."""

    entries: list[Entry]
    versions: dict[str, list[str]]


class _Job(NamedTuple):
    kernel: KernelCases
    option: str
    case: Case


# --- the cases ----------------------------------------------------------------------------------------------


def jobs(kernels: Sequence[KernelCases], only: Sequence[str] | None = None) -> list[_Job]:
    """The cases of all kernels that have a reference."""
    found = [
        _Job(kernel, option, case)
        for kernel in kernels
        if _forward_of(kernel.name, None) is not None
        for name in kernel.options
        for option, case in _variants(name, kernel.options[name]())
    ]
    if only is None:
        return found
    return [job for job in found if any(text in f"{job.kernel.name}, {job.option}" for text in only)]


def _variants(option: str, case: Case) -> Iterator[tuple[str, Case]]:
    """A case in the form for libraries: gradients of each sample, lengths and padding are separate."""
    case = _uneven(case)
    if not option.startswith("per_sample"):
        case = case._replace(gradient_attributes=_without(case.gradient_attributes, "per_sample"))
    if case.gradient_attributes.get("peephole") == "full":
        case = case._replace(gradient_attributes={})
    option = option.removesuffix(", full")
    if "sequence_lens" not in case.integers:
        yield option, case
        return
    plain = option.replace(", NaN padding", "")
    usual = [2 if length == 0 else int(length) for length in case.integers["sequence_lens"]]
    yield plain, _padded(case, usual, 2.5)
    if plain != option:
        yield option, _padded(case, usual, np.nan)
        yield option.replace("NaN padding", "one of 0"), _padded(case, case.integers["sequence_lens"], 2.5)


def _without(attributes: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in attributes.items() if k != name}


def _uneven(case: Case) -> Case:
    """The case with full float32 numbers: `check`'s numbers have few digits, so their sums are exact."""

    def filled(arrays: Arrays) -> dict[str, np.ndarray]:
        return {k: (a * 0.97531).astype(np.float32).astype(np.float64) for k, a in arrays.items()}

    integers = dict(case.integers)
    labels = integers.get("labels")
    if labels is not None and labels.dtype.kind == "f":  # probabilities; several peers require the sum 1
        integers["labels"] = (labels / labels.sum(1, keepdims=True)).astype(np.float32).astype(np.float64)
    return case._replace(
        arguments=filled(case.arguments), integers=integers, cotangents=filled(case.cotangents)
    )


def _padded(case: Case, lengths: Sequence[int], padding: float) -> Case:
    """The case with these lengths, and this number as padding in X and in cotangents over time."""

    def filled(name: str, array: np.ndarray) -> np.ndarray:
        array = np.where(np.isnan(array), 2.5, array)
        by_sample = np.moveaxis(array, case.sample_axes[name], 0)  # then time is the first axis
        for n, length in enumerate(lengths):
            by_sample[n, length:] = padding
        return array

    over_time = {k: filled(k, a) for k, a in case.cotangents.items() if k in ("H_all", "C_all")}
    return case._replace(
        arguments={**case.arguments, "X": filled("X", case.arguments["X"])},
        cotangents={**case.cotangents, **over_time},
        integers={**case.integers, "sequence_lens": np.asarray(lengths)},
    )


# --- the references -----------------------------------------------------------------------------------------


def _forward_of(kernel: str, case: Case | None) -> Callable[..., dict[str, np.ndarray]] | None:
    """The definition as a function, or None; without a case only to see whether it exists."""
    if kernel in ("conv", "conv_transpose"):
        return getattr(references, kernel)(None if case is None else case.numbers)
    attributes, integers = ({}, {}) if case is None else (dict(case.attributes), case.integers)
    if kernel in DEFINITIONS:
        function = references.POINTWISE.get(kernel) or functools.partial(DEFINITIONS[kernel], np)
        return lambda X, **others: {"Y": function(X, **others, **attributes)}
    if kernel not in references.__all__:
        return None
    truncated = case is not None and case.gradient_attributes.get("peephole") == "truncated"
    more = {"truncated": True} if truncated else {}
    return functools.partial(getattr(references, kernel), **attributes, **integers, **more)


def _expected(job: _Job, outputs: Sequence[str] | None) -> dict[str, np.ndarray]:
    forward = _forward_of(job.kernel.name, job.case)
    if forward is None:
        raise KeyError(job.kernel.name)
    cotangents = {
        name: array for name, array in job.case.cotangents.items() if outputs is None or name in outputs
    }
    each = job.case.gradient_attributes.get("per_sample") or job.case.weights
    samples = job.case.sample_axes if each else None
    with np.errstate(all="ignore"):
        values, found = references.gradients(forward, _where_used(job.case), cotangents, samples)
    if job.case.gradient_attributes.get("per_sample") == "norm":
        sequences = ("lstm", "gru", "rnn", "layer_norm_lstm", "layer_norm_gru")
        leading = 2 if job.kernel.name in sequences else 1  # samples, and directions
        for name in set(found) - set(job.case.sample_axes):
            found[name] = np.linalg.norm(found[name].reshape(*found[name].shape[:leading], -1), axis=-1)
    elif job.case.weights:
        for name in set(found) - set(job.case.sample_axes):
            found[name] = np.tensordot(job.case.weights["sample_weight"], found[name], axes=1)
    return values | {f"gradient of {name}": array for name, array in found.items()}


def _where_used(case: Case) -> dict[str, np.ndarray]:
    """NaN in place of padding: it tells the references that nothing depends on it."""
    arguments = dict(case.arguments)
    lengths = case.integers.get("sequence_lens")
    if lengths is not None:
        X = arguments["X"].copy()
        by_time = X.swapaxes(0, 1) if case.attributes.get("layout") else X
        for n, length in enumerate(lengths):
            by_time[length:, n] = np.nan
        arguments["X"] = X
    return arguments


# --- measuring ----------------------------------------------------------------------------------------------


def interpreter(peer: Peer, given: Mapping[str, str]) -> str | None:
    """The Python with a peer: from the option or environment variable, else this one if it has the peer."""
    named = given.get(peer.key) or os.environ.get(f"XPGRAD_PEER_{peer.key.upper()}")
    if named:
        return named
    return sys.executable if importlib.util.find_spec(peer.module) else None


def measure(
    kernels: Sequence[KernelCases], given: Mapping[str, str], only: Sequence[str] | None = None
) -> Measured:
    """Run all cases everywhere, and compare."""
    chosen = jobs(kernels, only)
    expected: dict[tuple[int, Any], dict[str, np.ndarray]] = {}
    for index, job in enumerate(Progress(chosen, "references")):
        for outputs in {None, *(peer.outputs for peer in PEERS)}:
            expected[index, outputs] = _expected(job, outputs)
    entries = [
        _ours(job, peer, expected[index, None])
        for peer in OURS
        for index, job in enumerate(Progress(chosen, peer.title))
    ]
    versions = {"xpgrad": [f"xpgrad {xpgrad.__version__}", f"NumPy {np.__version__}"]}
    for peer in Progress(PEERS, "peers"):
        python = interpreter(peer, given)
        if python is None:
            continue
        report, results = _in_child(python, peer, chosen)
        versions[peer.key] = report["versions"]
        for entry in report["jobs"]:
            job = chosen[entry["id"]]
            if entry["status"] == "done":
                arrays = {name: results[f"{entry['id']}/{name}"] for name in entry["names"]}
                entries.append(_compared(job, peer, arrays, expected[entry["id"], peer.outputs]))
            else:
                entries.append(
                    Entry(job.kernel.name, job.option, peer.key, entry["status"], {}, entry["message"])
                )
    return Measured(entries, versions)


def _ours(job: _Job, peer: Peer, expected: Arrays) -> Entry:
    def cast(arrays: Arrays) -> dict[str, Any]:
        return {k: a.astype(peer.key) if a.dtype.kind == "f" else a for k, a in arrays.items()}

    case = job.case._replace(
        arguments=cast(job.case.arguments),
        integers=cast(job.case.integers),
        cotangents=cast(job.case.cotangents),
        weights=cast(job.case.weights),
    )
    return _compared(job, peer, job.kernel.run(case), expected)


def _compared(job: _Job, peer: Peer, found: Mapping[str, Any], expected: Arrays) -> Entry:
    errors = {name: _error(found[name], array) for name, array in expected.items() if name in found}
    wrong = not errors or max(errors.values()) > WRONG
    return Entry(job.kernel.name, job.option, peer.key, "wrong" if wrong else "right", errors)


def _error(actual: Any, expected: np.ndarray) -> float:
    actual = np.asarray(actual)
    return relative_error(actual, expected) if actual.shape == expected.shape else math.inf


def _in_child(python: str, peer: Peer, chosen: Sequence[_Job]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A peer's results for all cases, from an interpreter that needs only the peer and NumPy."""
    arrays: dict[str, Any] = {}
    about = []
    for index, job in enumerate(chosen):
        kinds = ("arguments", "integers", "cotangents")
        numbers = job.case.numbers
        pads = [] if numbers is None else [[int(n) for n in ends] for ends in (numbers.begins, numbers.ends)]
        about.append(
            {"id": index, "kernel": job.kernel.name, "pads": pads}
            | {"attributes": dict(job.case.attributes)}
            # samples' weights only by name: no peer has them
            | {
                "gradient_attributes": {
                    **job.case.gradient_attributes,
                    **dict.fromkeys(job.case.weights, True),
                }
            }
            | {kind: list(getattr(job.case, kind)) for kind in kinds}
        )
        for kind in kinds:
            arrays |= {f"{index}/{kind}/{k}": a for k, a in getattr(job.case, kind).items()}
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("jobs.npz", "results.npz")]
        np.savez(paths[0], jobs=json.dumps(about), **arrays)
        done = subprocess.run(
            [python, "-c", _CALLERS, str(Path(__file__).parent), _ONNX_NODE, peer.key, *paths],
            cwd=folder, capture_output=True, text=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise RuntimeError(f"check --peers: {peer.title} in {python} failed: {last}")
        with np.load(paths[1]) as archive:
            results = {name: archive[name] for name in archive.files}
    return json.loads(str(results.pop("report"))), results
