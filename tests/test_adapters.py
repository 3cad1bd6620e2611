"""An engine for somebody else's framework: the class that docs/architecture.md shows is all that it takes."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xpgrad import engine as engines
from xpgrad.engine import AdapterEngine, Formula, NumpyEngine
from xpgrad.engine.protocol import Adapter

ROOT = Path(__file__).parents[1]

STRANGER = """
import numpy as np
import toy_arrays
import xpgrad
from xpgrad import engine

T, N, I, H = 4, 3, 2, 3
rng = np.random.default_rng(0)
arrays = [rng.normal(size=shape) for shape in ((T, N, I), (1, 4 * H, I), (1, 4 * H, H), (1, 8 * H))]


def gradients(X, W, R, B):
    out = xpgrad.lstm(X, W, R, B, [4, 2, 0])
    saved = {"H_all": out.H_all, "C_all": out.C_all, "iofc": out.iofc}
    grads = xpgrad.lstm_grad(X, W, R, B=B, sequence_lens=[4, 2, 0], **saved, grad_H_all=out.H_all)
    return [*out, *grads[:6], xpgrad.relu_grad(X, xpgrad.relu(X)), xpgrad.softmax(X)]


right = gradients(*arrays)


def compare():
    for ours, expected in zip(gradients(*theirs), right, strict=True):
        assert type(ours) is toy_arrays.ndarray
        np.testing.assert_allclose(np.asarray(ours.data), expected, rtol=1e-12, atol=1e-14)


theirs = [toy_arrays.asarray(array.tolist(), dtype=toy_arrays.float64) for array in arrays]
chosen = engine.choose(toy_arrays, theirs, "lstm")
assert type(chosen).__name__ == "ToyEngine" and engine.of_type(theirs[0]) is chosen
assert engine.describe_engines()["toy_arrays"] == "toy_arrays arrays: ToyEngine"

asked = []
for name in ("scan", "elementwise", "over_rows"):
    def watched(*given, _own=getattr(chosen, name), _name=name):
        asked.append(_name)
        return _own(*given)
    setattr(chosen, name, watched)
compare()
assert set(asked) == {"scan", "elementwise", "over_rows"}, asked
with xpgrad.use_engine("toy_arrays"):
    compare()
with xpgrad.use_engine("standard"):
    asked.clear()
    compare()
    assert not asked

# the first quick way: arrays that agree need no checks
checked = []
chosen.agrees = lambda arrays: checked.append(len(arrays)) or True
compare()
assert checked == [1, 2, 1]
"""


def test_the_engine_of_the_documentation_runs(tmp_path: Path) -> None:
    """A package of its own, found through its entry point, in a process that knows nothing else of it."""
    pytest.importorskip("array_api_strict", reason="array-api-strict not installed")
    page = (ROOT / "docs" / "architecture.md").read_text()
    (shown,) = re.findall(r"(?ms)^```python\n(import array_api_compat\.cupy.*?)^```", page)
    code = shown.replace("array_api_compat.cupy", "toy_arrays").replace('"cupy"', '"toy_arrays"')
    (tmp_path / "xpgrad_toy.py").write_text(code.replace("CupyEngine", "ToyEngine"))
    about = tmp_path / "xpgrad_toy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: xpgrad-toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[xpgrad.engines]\ntoy_arrays = xpgrad_toy:ToyEngine\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, "-c", STRANGER], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_defaults_of_an_adapter() -> None:
    engine: Adapter = AdapterEngine(np)  # for the type checker too
    assert engine.takes(np, [np.ones(2)])
    assert not engine.takes(object(), [])
    assert engine.host is None
    assert engine.standard(np) is engine.look([np.ones(2)]) is engine.integers(np.ones(2, int)) is None
    assert engine.traced_call("lstm", {}, {}) is None
    assert not engine.is_traced(np.ones(2))
    assert not engine.agrees([np.ones(2)])


def test_an_engine_on_views_of_another_framework_lifts_and_lowers_in_the_quick_way() -> None:
    class Reversed(AdapterEngine):
        def lift(self, array: np.ndarray) -> np.ndarray:
            return array[::-1]

        def lower(self, array: np.ndarray) -> list[float]:
            return array.tolist()

    twice = Formula(lambda xp, x, y: (x + 10 * y,))
    found = Reversed(np).quick_elementwise(twice, [np.arange(3.0), np.ones(3)], ())
    assert found == [12.0, 11.0, 10.0]


def test_engines_have_all_that_the_protocol_names() -> None:
    members = ((*vars(kind), *vars(kind).get("__annotations__", ())) for kind in Adapter.__mro__)
    named = set(itertools.chain(*members))
    for engine in (NumpyEngine(), AdapterEngine(np)):
        assert not [name for name in named if name[0] != "_" and not hasattr(engine, name)]


def test_numpy_arrays_use_the_threads_of_a_host() -> None:
    pytest.importorskip("torch", reason="torch not installed")
    host = engines._adapter("torch")
    assert host is not None
    assert host.host is host
    assert engines._numpy_engine.team is host.team
