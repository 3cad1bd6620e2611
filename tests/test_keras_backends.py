"""xpgrad_keras on every backend: a backend is one for a process, so each has a child process.

A child runs `test_keras` as the long suite has it. What takes minutes needs ``pytest -m ""``: all of it on
JAX and TensorFlow, and Keras' own tests of its recurrent layers, on ours, if the installed package has them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
THEIRS = ("lstm", "gru", "simple_rnn", "bidirectional", "time_distributed")


def _need(*packages):
    for package in ("keras", *packages):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def _run(backend, *arguments):
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "JAX_ENABLE_X64": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=FOLDER.parent)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["numpy", "jax", "tensorflow"])
def test_layers_on(backend):
    _need(backend)
    others = "not test_a_file_loads"  # in a process of its own, whatever the backend is here
    _run(backend, "-m", "not exhaustive", "-k", others, str(FOLDER / "test_keras.py"))


@pytest.mark.parametrize("backend", [pytest.param("jax", marks=pytest.mark.exhaustive), "tensorflow"])
def test_masks_and_training_on(backend):
    _need(backend)
    few = "test_fit or (test_masks and suffix)"
    _run(backend, "-m", "not exhaustive", "-k", few, str(FOLDER / "test_keras.py"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_keras_own_tests_on(backend):
    """Keras' tests of its recurrent layers and wrappers pass with ours."""
    _need(backend)
    folder = Path(importlib.util.find_spec("keras").origin).parent / "src" / "layers" / "rnn"
    files = [folder / f"{name}_test.py" for name in THEIRS]
    if not all(file.exists() for file in files):
        pytest.skip("the installed package of Keras has no tests")
    options = ("-p", "keras_own_tests", "-c", os.devnull, "--rootdir", str(folder))
    _run(backend, *options, *map(str, files))
