"""Applications that carry xpgrad without a Python installation, or without its source files."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xpgrad

_APPLICATION = """
import numpy as np
import xpgrad
from xpgrad.engine.process.settings import jit_enabled

rng = np.random.default_rng(0)
X, W, R = (rng.normal(size=shape).astype("float32") for shape in [(5, 3, 4), (1, 24, 4), (1, 24, 6)])
out = xpgrad.lstm(X, W, R)
saved = {name: getattr(out, name) for name in ("H_all", "C_all", "iofc")}
gradients = xpgrad.lstm_grad(X, W, R, **saved, grad_H_all=np.ones_like(out.H_all))
images = xpgrad.conv(X.reshape(1, 5, 3, 4), np.ones((2, 5, 2, 2), "float32"))
numbers = [float(np.sum(x)) for x in (*gradients, images, xpgrad.gelu(X)) if x is not None]
print(jit_enabled(), *numbers)
"""


def _said(command: list[str], **variables: str) -> str:
    """What a command prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout


def _run(command: list[str], **variables: str) -> tuple[str, list[float]]:
    """Whether the application compiled, and its numbers."""
    compiled, *numbers = _said(command, **variables).split()
    return compiled, [float(number) for number in numbers]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with xpgrad's own files."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(str(xpgrad.__file__)).parent, tmp_path / "packed" / "xpgrad", ignore=ignored)
    return tmp_path / "packed"


def test_without_source_files(folder: Path) -> None:
    """Nothing is compiled, and the numbers are right."""
    compileall.compile_dir(folder, quiet=1, legacy=True)
    for source in folder.rglob("*.py"):
        source.unlink()
    compiled, numbers = _run([sys.executable, "-c", _APPLICATION], PYTHONPATH=str(folder))
    assert compiled == "False"
    assert numbers == pytest.approx(_run([sys.executable, "-c", _APPLICATION])[1], rel=1e-4, abs=1e-4)


def test_in_a_zip_file(folder: Path) -> None:
    """Nothing is compiled, and `info` says so."""
    archive = shutil.make_archive(str(folder), "zip", folder)
    compiled, numbers = _run([sys.executable, "-c", _APPLICATION], PYTHONPATH=archive)
    assert compiled == "False"
    assert numbers == pytest.approx(_run([sys.executable, "-c", _APPLICATION])[1], rel=1e-4, abs=1e-4)
    assert "source files are missing" in _said([sys.executable, "-m", "xpgrad", "info"], PYTHONPATH=archive)


def test_pyinstaller(tmp_path: Path) -> None:
    """Our hook brings what kernels import later, and the source files: formulas are compiled."""
    pytest.importorskip("PyInstaller", reason="PyInstaller is not installed")
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    (tmp_path / "application.py").write_text(_APPLICATION, encoding="utf-8")
    without = [f"--exclude-module={name}" for name in ("torch", "jax", "tensorflow", "keras", "onnx")]
    options = ["--noconfirm", "--log-level=ERROR", *without]
    command = [sys.executable, "-m", "PyInstaller", *options, "application.py"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    compiled, numbers = _run([str(tmp_path / "dist" / "application" / "application")])
    assert compiled == "True"
    assert numbers == pytest.approx(_run([sys.executable, "-c", _APPLICATION])[1], rel=1e-4, abs=1e-4)
