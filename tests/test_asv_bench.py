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

FOLDER = Path(__file__).parents[1] / "asv_bench"
sys.path.insert(0, str(FOLDER))
try:
    package = importlib.import_module("benchmarks")
    common = importlib.import_module("benchmarks.common")
    MODULES = [
        importlib.import_module(f"benchmarks.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
finally:
    sys.path.remove(str(FOLDER))

KINDS = ("time_", "peakmem_", "track_")
SMALL = {"small": (5, 3, 4, 6)}


def _cases():
    for module in MODULES:
        for name, suite in inspect.getmembers(module, inspect.isclass):
            if suite.__module__ != module.__name__:
                continue
            for method in (m for m in dir(suite) if m.startswith(KINDS)):
                for values in itertools.product(["small"], *suite.params[1:]):
                    yield pytest.param(suite, method, values, id=f"{name}.{method}-{values[-1]}")


@pytest.fixture
def small(monkeypatch):
    brief = functools.partial(common.ratio, seconds=0.0, least=1)
    for module in MODULES:
        if hasattr(module, "SHAPES"):
            monkeypatch.setattr(module, "SHAPES", SMALL)
        if hasattr(module, "ratio"):
            monkeypatch.setattr(module, "ratio", brief)


@pytest.mark.parametrize(("suite", "method", "values"), list(_cases()))
def test_benchmark_runs(suite, method, values, small):
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
    cases = [case.values for case in _cases()]
    assert {method.split("_")[0] + "_" for _, method, _ in cases} == set(KINDS)
    assert {values[-1] for _, _, values in cases} == set(common.IMPLEMENTATIONS)
    shapes = {(50, 1, 64, 64), (50, 32, 64, 64), (50, 32, 256, 256)}
    shapes |= {(100, 64, 128, 512), (35, 20, 650, 650), (200, 128, 64, 128)}
    assert set(common.SHAPES.values()) == shapes
    for suite, _, _ in cases:
        assert set(suite.params[0]) <= set(common.SHAPES)
        assert "50x32x64x64" in suite.params[0]  # smoke.sh runs every suite at this shape


@pytest.mark.parametrize("make", [common.make, common.make_lengths])
def test_implementations_compute_the_same(make):
    """A benchmark of unlike things would mislead: with one another's weights, all give one gradient."""
    torch = pytest.importorskip("torch")
    shape = SMALL["small"]
    found = {}
    for impl in ("xpgrad-torch", "torch"):
        run = make(impl, shape)
        with torch.no_grad():
            for k, p in enumerate(run._module.parameters()):
                p.copy_(torch.linspace(-0.3, 0.4 + k / 10, p.numel()).reshape(p.shape))
        found[impl] = run.step()
    assert len(found["torch"]) == len(found["xpgrad-torch"]) == 7
    for ours, peer in zip(found["xpgrad-torch"], found["torch"], strict=True):
        torch.testing.assert_close(ours, peer, rtol=1e-4, atol=1e-5)


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
        common.make("torch", SMALL["small"])
    common.make("xpgrad-numpy", SMALL["small"]).step()
