"""Examples that train on ONNX Runtime: in Python, under Node.js and in a browser, beside NumPy's losses."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed: the extra onnx has it")

import onnx
from onnx.reference import ReferenceEvaluator

FOLDER = Path(__file__).parents[1] / "examples"
BROWSER = FOLDER / "browser"
FILES = ("train.mjs", "node.mjs", "index.html", "package.json")


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fine_tuning_has_the_same_losses_on_both_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    example = load(FOLDER / "onnx_fine_tuning.py")
    model = example.pretrained(20)
    losses, tuned = example.fine_tune(model, 15)
    assert losses[-1] < 0.9 * losses[0]
    pairs = zip(model.graph.initializer, tuned.graph.initializer, strict=True)
    assert [old.name for old, new in pairs if old != new] == ["B", "V", "v"]
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra long has it")
    np.testing.assert_allclose(example.fine_tune(model, 15, "onnxruntime")[0], losses, rtol=1e-4)


# --- in JavaScript ------------------------------------------------------------------------------------------


def generator(seed: int) -> Iterator[float]:
    """The page's random numbers, mulberry32."""

    def multiplied(a: int, b: int) -> int:
        return (a * b) & 0xFFFFFFFF

    while True:
        seed = (seed + 0x6D2B79F5) & 0xFFFFFFFF
        t = multiplied(seed ^ (seed >> 15), 1 | seed)
        t ^= (t + multiplied(t ^ (t >> 7), 61 | t)) & 0xFFFFFFFF
        yield (t ^ (t >> 14)) / 4294967296


def batches(T: int = 20, N: int = 16) -> Iterator[dict[str, np.ndarray]]:
    """The page's batches."""
    random = generator(1)
    while True:
        x, target = np.zeros((T, N, 1), np.float32), np.zeros((N, 1), np.float32)
        for n in range(N):
            step, phase = 0.2 + 0.4 * next(random), 6.28 * next(random)
            x[:, n, 0] = [math.sin(phase + t * step) for t in range(T)]
            target[n] = math.sin(phase + T * step)
        yield {"x": x, "target": target, "learning_rate": np.asarray(0.01, np.float32)}


def numpys(models: dict[str, Any], steps: int) -> list[float]:
    """The losses of onnx's evaluator."""
    step, first = (ReferenceEvaluator(models[name]) for name in ("step.onnx", "values.onnx"))
    values = dict(zip(first.output_names, first.run(None, {}), strict=True))
    losses = []
    for _, batch in zip(range(steps), batches(), strict=False):
        loss, *new = step.run(None, batch | values)
        values = dict(zip(values, new, strict=True))
        losses.append(float(loss))
    return losses


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    made: dict[str, Any] = load(BROWSER / "make_models.py").models()
    return made


@pytest.fixture
def site(tmp_path: Path, models: dict[str, Any]) -> Path:
    """The page's folder, with its models and with what npm installed."""
    packages = BROWSER / "node_modules"
    if not packages.exists():
        pytest.skip("onnxruntime-web is not installed: npm install in examples/browser installs it")
    for name in FILES:
        shutil.copy(BROWSER / name, tmp_path)
    for name, model in models.items():
        onnx.save(model, tmp_path / name)
    (tmp_path / "node_modules").symlink_to(packages.resolve())
    return tmp_path


def test_the_pages_model_learns(models: dict[str, Any]) -> None:
    losses = numpys(models, 40)
    assert np.mean(losses[-5:]) < 0.2 * np.mean(losses[:5])


@pytest.mark.parametrize("package", ["onnxruntime-web", "onnxruntime-node"])
def test_node_has_numpys_losses(package: str, site: Path, models: dict[str, Any]) -> None:
    node = shutil.which("node")
    if node is None or not (site / "node_modules" / package).exists():
        pytest.skip(f"Node.js or {package} is not installed")
    done = subprocess.run(
        [node, "node.mjs", package, "200"], cwd=site, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), numpys(models, 200), rtol=2e-2, atol=1e-5)


def test_a_browser_draws_the_curve(site: Path, models: dict[str, Any]) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if browser is None:
        pytest.skip("there is no Chromium")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=300000",
            "--dump-dom",
        ]
        profile = f"--user-data-dir={site / 'profile'}"
        page = f"http://127.0.0.1:{server.server_port}/index.html"
        done = subprocess.run(
            [browser, *options, profile, page], capture_output=True, text=True, timeout=300, check=False
        )
        server.shutdown()
    assert "200 steps: loss" in done.stdout, done.stdout
    points = re.search(r'points="([^"]*)"', done.stdout)
    assert points is not None
    heights = [float(pair.split(",")[1]) for pair in points[1].split()]
    expected = [20 + 260 * min(max(-math.log10(loss), 0), 4) / 4 for loss in numpys(models, 200)]
    np.testing.assert_allclose(heights, expected, atol=2)
