"""Every benchmark runs, at its smallest parameters."""

import ast
import importlib
import inspect
import itertools
import pkgutil
import sys
from pathlib import Path

import numpy as np
import pytest

import xpgrad
from activation_cases import WITH_OPERANDS
from xpgrad._operators.units import UNITS

FOLDER = Path(__file__).parents[1] / "asv_bench"
before = [*sys.path]
sys.path.insert(0, str(FOLDER))
try:
    package = importlib.import_module("benchmarks")
    MODULES = {
        module.name: importlib.import_module(f"benchmarks.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    }
    # the package under the name that asv knows it by
    timing, convolutions, elementwise, recurrent = (
        importlib.import_module(f"xpgrad_bench.{name}")
        for name in ("timing", "convolutions", "elementwise", "recurrent")
    )
finally:
    sys.path[:] = before

KINDS = {"time", "peakmem", "track"}
SMALL = {"small": (5, 3, 4, 6)}
# parts of names: what smoke.sh runs
SMOKED = {"50x32x64x64", "1k", "8x125", "2x5x10", "depthwise 3", "64 of 4"}
SMALL_CONVOLUTION = convolutions.Convolution(2, 4, (6, 5), 6, 3, 2, 1, 2)


def _cases(names=MODULES):
    for module in map(MODULES.get, names):
        for name, suite in inspect.getmembers(module, inspect.isclass):
            if suite.__module__ != module.__name__:
                continue
            for method in (m for m in dir(suite) if m.split("_")[0] in KINDS):
                for values in itertools.product(["small"], *suite.params[1:]):
                    yield pytest.param(suite, method, values, id="-".join([f"{name}.{method}", *values[1:]]))


def _of(name):
    return [case.values for case in _cases([name])]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(package, "SMOKE", True)
    monkeypatch.setattr(package, "PATIENCE", 0.0)
    for name in ("recurrent", "memory"):
        monkeypatch.setattr(MODULES[name], "SHAPES", SMALL)
    for suite in {suite for suite, _, _ in _of("activations")}:
        monkeypatch.setattr(suite, "shapes", {"small": (4, 3)})
    monkeypatch.setitem(MODULES["convolution"].WORKS, "small", SMALL_CONVOLUTION)
    monkeypatch.setitem(convolutions.TRANSPOSED, "small", SMALL_CONVOLUTION._replace(transposed=True))


@pytest.mark.parametrize(("suite", "method", "values"), list(_cases()))
def test_benchmark_runs(suite, method, values, small, monkeypatch):
    if suite.__module__ == "benchmarks.activations":
        monkeypatch.setenv("XPGRAD_JIT", "0")  # many formulas, which their kernels' tests compile
    instance = suite()
    try:
        instance.setup(*values)
    except NotImplementedError as missing:
        pytest.skip(str(missing))
    result = getattr(instance, method)(*values)
    if method.startswith("track_"):
        assert np.isfinite(result)
        assert result > 0


def test_the_suites_cover_every_shape_kind_and_implementation():
    cases = _of("recurrent")
    assert {method.split("_")[0] for _, method, _ in cases} == KINDS
    assert {values[-1] for _, _, values in cases} == {*package.IMPLEMENTATIONS, "ort", "xpgrad-jax", "jax"}
    assert {values[1] for _, _, values in cases} == set(recurrent.OPERATORS)
    for suite, _, _ in cases:
        assert set(suite.params[0]) <= set(recurrent.SHAPES)


def test_smoke_runs_every_suite_at_one_shape():
    command = (FOLDER / "smoke.sh").read_text(encoding="utf-8")
    assert all(shape in command for shape in SMOKED)
    for suite in {case.values[0] for case in _cases()}:
        assert sum(any(part in name for part in SMOKED) for name in suite.params[0]) == 1


def test_the_suites_of_activations_cover_every_function_and_implementation():
    cases = _of("activations")
    assert {method.split("_")[0] for _, method, _ in cases} == KINDS
    assert {values[-1] for _, _, values in cases} == set(package.IMPLEMENTATIONS)
    pairs = {name for name in xpgrad.__all__ if f"{name}_grad" in xpgrad.__all__}
    pairs -= {"gru_d", *(name for unit in UNITS.values() for name in unit.kernels)}  # see recurrences.py
    pairs -= {"gate_inputs", "conv", "conv_transpose", *WITH_OPERANDS}
    kernels = {name: kernel for name, (kernel, _) in elementwise.LOSSES.items()}
    assert {kernels.get(values[1], values[1]) for _, _, values in cases} == pairs


def test_the_suites_cover_every_convolution():
    cases = _of("convolution")
    assert {method.split("_")[0] for _, method, _ in cases} == KINDS
    assert {values[-1] for _, _, values in cases} == {*package.IMPLEMENTATIONS, "ort"}
    offered = {name for suite, _, _ in cases for name in suite.params[0]}
    assert offered == {*convolutions.CONVOLUTIONS, *convolutions.LARGE_KERNELS, *convolutions.TRANSPOSED}


def test_definitions_stand_alone():
    """They time older versions of xpgrad, and peers in interpreters that have none."""
    folder = Path(timing.__file__).parent
    for file in folder.rglob("*.py"):
        dots = "..." if file.parent.name == "implementations" else ".."
        text = file.read_text(encoding="utf-8")
        assert f"from {dots}" not in text, file
        imports = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
        names += [
            node.module or "" for node in imports if isinstance(node, ast.ImportFrom) and not node.level
        ]
        needs = any(name.split(".")[0] == "xpgrad" for name in names)
        assert needs == (file.name == "command.py"), file
