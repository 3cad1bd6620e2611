"""Fixtures that all tests share."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # one core each: threads of several workers would wait for one another
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# XLA compiles in two thirds of the time; tests/test_jax_devices.py compiles as users do
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# the tests are about programs, which run on a CPU; `check --namespace jax` computes where JAX does
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Keras has one backend in a process; tests/test_keras_backends.py runs the others in processes of their own
os.environ.setdefault("KERAS_BACKEND", "torch")

import gc
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import xpgrad
from backends import BACKENDS, Backend, without_programs
from short_suite import is_long, mark_suites

sys.path.append(str(Path(__file__).parents[1] / "asv_bench"))  # the packages of benchmarks and of peers

try:
    import hypothesis
except ImportError:  # the tests that need it say so themselves
    pass
else:
    # reproducible, and without a time limit: the first example of a process may compile
    hypothesis.settings.register_profile(
        "xpgrad", deadline=None, derandomize=True, max_examples=40, database=None
    )
    hypothesis.settings.load_profile("xpgrad")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests of each file in random order")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file of which the short suite has nothing, unless it is named: reading it takes seconds."""
    is_short = config.getoption("markexpr") == "not long"
    named = any(Path(one.partition("::")[0]).suffix == ".py" for one in config.args)
    return True if is_short and not named and is_long(collection_path) else None


@pytest.fixture
def set_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | str], None]]:
    """A function that sets the number of threads, of our own pool and of PyTorch's team.

    Kernels run in PyTorch's team once any test of the process has loaded PyTorch. `in_threads` would put back
    the whole environment, also what monkeypatch has taken away by then.
    """
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0

    def use(count: int | str) -> None:
        monkeypatch.setenv("XPGRAD_NUM_THREADS", str(count))
        if torch:
            torch.set_num_threads(int(count))

    yield use
    if torch:
        torch.set_num_threads(before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_suites(items)
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    rng, files = random.Random(seed), dict[Path, list[pytest.Item]]()
    for item in items:
        files.setdefault(item.path, []).append(item)
    for tests in files.values():
        rng.shuffle(tests)
    items[:] = [item for tests in files.values() for item in tests]


def pytest_collection_finish() -> None:
    """The collector leaves out the 900,000 objects of files and libraries: tests take 0.94 of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each backend variant, with its engine and environment set."""
    reason = request.param.missing()
    if reason:
        pytest.skip(f"{request.param.name}: {reason}")
    with request.param.active():
        yield request.param


@pytest.fixture(autouse=True)
def automatic_engine() -> Iterator[None]:
    """A test that forces an engine does not reach the next one."""
    with xpgrad.use_engine(None):
        yield


@pytest.fixture
def unplanned() -> Iterator[None]:
    """No programs: for tests that watch what a kernel asks its engine for."""
    with without_programs():
        yield


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiling: for tests that go through many different formulas."""
    monkeypatch.setenv("XPGRAD_JIT", "0")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling is on, whatever the environment says: for tests of what is compiled."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    monkeypatch.setenv("XPGRAD_JIT", "1")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    return Path(__file__).parent / "data"


@pytest.fixture
def timeline_in_python(monkeypatch):
    """The compiled schedule's functions as Python's: compiled ones have no wrapper for Python."""
    native_timeline = pytest.importorskip("xpgrad.engine.programs.native_timeline")
    for name, function in [*vars(native_timeline).items()]:
        if name.startswith("_") and hasattr(function, "py_func"):
            monkeypatch.setattr(native_timeline, name, function.py_func)
    return native_timeline
