"""Every benchmark runs, at its smallest parameters."""

import functools
import importlib
import inspect
import itertools
import pkgutil
import sys
from pathlib import Path

import numpy as np
import pytest

import xpgrad

FOLDER = Path(__file__).parents[1] / "asv_bench"
sys.path.insert(0, str(FOLDER))
try:
    package = importlib.import_module("benchmarks")
    common = importlib.import_module("benchmarks.common")
    convolution_runs = importlib.import_module("benchmarks.convolution_runs")
    MODULES = [
        importlib.import_module(f"benchmarks.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    memory = importlib.import_module("benchmarks.memory")
    recurrent = importlib.import_module("benchmarks.recurrent")
    activations = importlib.import_module("benchmarks.activations")
finally:
    sys.path.remove(str(FOLDER))

KINDS = ("time_", "peakmem_", "track_")
SMALL = {"small": (5, 3, 4, 6)}
SMOKED = {"50x32x64x64", "1k", "8x125", "depthwise 3", "64 of 4"}  # parts of names: what smoke.sh runs
SMALL_CONVOLUTION = convolution_runs.Convolution(2, 4, (6, 5), 6, 3, 2, 1, 2)


def _cases(modules=MODULES):
    for module in modules:
        for name, suite in inspect.getmembers(module, inspect.isclass):
            if suite.__module__ != module.__name__:
                continue
            for method in (m for m in dir(suite) if m.startswith(KINDS)):
                for values in itertools.product(["small"], *suite.params[1:]):
                    yield pytest.param(suite, method, values, id="-".join([f"{name}.{method}", *values[1:]]))


@pytest.fixture
def small(monkeypatch):
    brief = functools.partial(common.ratio, seconds=0.0, least=1)
    for module in (recurrent, memory):
        monkeypatch.setattr(module, "SHAPES", SMALL)
    for suite in {case.values[0] for case in _cases([activations])}:
        monkeypatch.setattr(suite, "shapes", {"small": (4, 3)})
    for module in MODULES:
        if hasattr(module, "ratio"):
            monkeypatch.setattr(module, "ratio", brief)
    for table in (convolution_runs.CONVOLUTIONS, convolution_runs.TRANSPOSED):
        monkeypatch.setitem(table, "small", SMALL_CONVOLUTION)


@pytest.mark.parametrize(("suite", "method", "values"), list(_cases()))
def test_benchmark_runs(suite, method, values, small, monkeypatch):
    if suite.__module__ == activations.__name__:
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
    cases = [case.values for case in _cases([recurrent])]
    assert {method.split("_")[0] + "_" for _, method, _ in cases} == set(KINDS)
    assert {values[-1] for _, _, values in cases} == set(common.IMPLEMENTATIONS)
    assert {values[1] for _, _, values in cases} == set(common.CASES)
    shapes = {(50, 1, 64, 64), (50, 32, 64, 64), (50, 32, 256, 256)}
    shapes |= {(100, 64, 128, 512), (35, 20, 650, 650), (200, 128, 64, 128)}
    assert set(common.SHAPES.values()) == shapes
    for suite, _, _ in cases:
        assert set(suite.params[0]) <= set(common.SHAPES)


def test_smoke_runs_every_suite_at_one_shape():
    command = (FOLDER / "smoke.sh").read_text(encoding="utf-8")
    assert all(shape in command for shape in SMOKED)
    for suite in {case.values[0] for case in _cases()}:
        assert sum(any(part in name for part in SMOKED) for name in suite.params[0]) == 1


def test_the_suites_of_activations_cover_every_function_and_implementation():
    cases = [case.values for case in _cases([activations])]
    assert {method.split("_")[0] + "_" for _, method, _ in cases} == set(KINDS)
    assert {values[-1] for _, _, values in cases} == set(common.IMPLEMENTATIONS)
    pairs = {name for name in xpgrad.__all__ if f"{name}_grad" in xpgrad.__all__}
    pairs -= {"lstm", "gru", "lstm_cell", "gru_cell", "gate_inputs", "conv", "conv_transpose", "prelu"}
    kernels = {"cross_entropy": "softmax_cross_entropy"}
    timed = {kernels.get(values[1], values[1]) for _, _, values in cases}
    assert timed == pairs


@pytest.mark.parametrize("name", activations.FUNCTIONS)
def test_implementations_of_a_gradient_compute_the_same(name, interpreted):
    torch = pytest.importorskip("torch")
    expected, *found = (
        torch.as_tensor(activations.backward(impl, name, (4, 5))())
        for impl in ("torch", "xpgrad-numpy", "xpgrad-torch")
    )
    for gradient in found:
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["cross_entropy", "binary_cross_entropy_with_logits"])
def test_implementations_of_a_loss_compute_the_same(name, interpreted):
    torch = pytest.importorskip("torch")
    expected, *found = (
        torch.as_tensor(activations.loss(impl, name, (4, 5))())
        for impl in ("torch", "xpgrad-numpy", "xpgrad-torch")
    )
    for gradient in found:
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def _numpy_gradients(grads, case):
    """By torch's names, in the order of torch's modules' parameters."""
    torch = pytest.importorskip("torch")
    onnx = {name: getattr(grads, f"d{name}", None) for name in ("W", "R", "B", "P")}
    onnx = {name: a[0] for name, a in onnx.items() if a is not None}
    after = case.attributes.get("linear_before_reset", 0)
    gates = xpgrad.convert(
        case.operator.name, onnx, "onnx", "torch", linear_before_reset=after, gradients=True
    )
    states = [getattr(grads, name) for name in ("dH0", "dC0")[: len(case.operator.states)]]
    return {
        "X": torch.from_numpy(grads.dX),
        **{f"state{k}": torch.from_numpy(a) for k, a in enumerate(states)},
        **{f"{name}_l0": torch.from_numpy(a) for name, a in gates.items()},
    }


def _torch_gradients(run, case):
    names = ["X", *(f"state{k}" for k in range(len(case.operator.states)))]
    return dict(zip([*names, *(n for n, _ in run._module.named_parameters())], run.step(), strict=True))


@pytest.mark.parametrize(
    ("name", "uneven"),
    [
        *itertools.product(["lstm", "gru"], [False, True]),
        ("lstm-peephole", False),
        ("gru-reset-before", False),
    ],
)
def test_implementations_compute_the_same(name, uneven):
    """A benchmark of unlike things would mislead: the same weights, every gradient equal."""
    torch = pytest.importorskip("torch")
    case, shape = common.CASES[name], SMALL["small"]
    found = {
        impl: _torch_gradients(common.make(impl, name, shape, uneven=uneven), case)
        for impl in ("xpgrad-torch", "torch")
    }
    found["xpgrad-numpy"] = _numpy_gradients(
        common.make("xpgrad-numpy", name, shape, uneven=uneven).step(), case
    )
    expected = found.pop("torch")
    assert len(expected) == {"lstm": 7, "gru": 6, "lstm-peephole": 8, "gru-reset-before": 6}[name]
    for impl, gradients in found.items():
        assert set(gradients) == set(expected), impl
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(
                gradient, expected[parameter], rtol=1e-4, atol=1e-5, msg=lambda m, p=parameter: f"{p}: {m}"
            )


def test_the_suites_cover_every_convolution():
    cases = [case.values for case in _cases() if case.values[0].__module__ == "benchmarks.convolution"]
    assert {method.split("_")[0] + "_" for _, method, _ in cases} == set(KINDS)
    assert {values[-1] for _, _, values in cases} == set(convolution_runs.BACKWARDS)
    geometries = {(c.N, c.C, c.size[0], c.O, c.kernel, c.stride, c.pad) for c in _convolutions()}
    geometries -= {(4, 16, 8192, 16, 1025, 1, 512)}
    assert geometries == {
        (8, 64, 56, 64, 3, 1, 1), (8, 64, 56, 256, 1, 1, 0), (8, 128, 28, 128, 3, 1, 1),
        (8, 256, 14, 256, 3, 1, 1), (8, 3, 224, 64, 7, 2, 3), (8, 128, 56, 128, 3, 2, 1),
        (8, 96, 28, 96, 3, 1, 1), (4, 16, 64, 16, 31, 1, 15),
    }  # fmt: skip
    assert [c.group for c in _convolutions() if c.C == 96] == [96]


def _convolutions():
    return [shape for name, shape in convolution_runs.CONVOLUTIONS.items() if name != "small"]


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_compute_the_same(transposed, small):
    torch = pytest.importorskip("torch")
    impls = convolution_runs.STEPS if transposed else convolution_runs.BACKWARDS
    expected = convolution_runs.make("torch", "small", transposed=transposed).backward()
    for impl in impls:
        try:
            run = convolution_runs.make(impl, "small", transposed=transposed)
        except NotImplementedError:
            assert impl == "ort"
            continue
        for got, gradient in zip(run.backward(), expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(got), gradient, rtol=1e-4, atol=1e-5)


def test_ratio_is_ours_over_the_peers(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(common.time, "perf_counter", lambda: clock[0])

    def takes(seconds):
        def run():
            clock[0] += seconds

        return run

    assert common.ratio(takes(1.0), takes(4.0), seconds=0.0) == pytest.approx(0.25)


def test_missing_implementations_are_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotImplementedError, match="torch is not installed"):
        common.make("torch", "gru", SMALL["small"])
    common.make("xpgrad-numpy", "gru", SMALL["small"]).step()
