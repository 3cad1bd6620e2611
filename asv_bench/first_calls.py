"""The cost of imports and first calls: ``python asv_bench/first_calls.py``.

Each number is from a new process, in seconds of the processor. The first table has the import of a library
after its base's. The second table has the first training step of a module with an empty and a full cache,
and the second step. Medians of the runs, lowest and highest in brackets.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from statistics import median

from xpgrad.cli.console import Progress
from xpgrad.cli.info import read_cpu

IMPORTS = {"xpgrad": "numpy", "xpgrad_torch": "torch", "xpgrad_jax": "jax"}

_ARRAYS = """
import numpy as np, xpgrad
def made(*shape): return np.random.default_rng(0).normal(size=shape).astype("float32")
"""
_MODULES = """
import torch, xpgrad_torch
"""
# with a cotangent as argument, PyTorch would import sympy
_RUN = "\ndef step():\n    run().sum().backward()\n"
STEPS = {
    "lstm, NumPy": _ARRAYS + """
given = made(50, 32, 64), made(1, 256, 64), made(1, 256, 64)
def step():
    outputs, pullback = xpgrad.vjp(xpgrad.lstm, *given)
    pullback(grad_H_t=np.ones_like(outputs.H_t))
""",
    "conv, NumPy": _ARRAYS + """
given = made(8, 16, 28, 28), made(32, 16, 3, 3)
def step():
    Y, pullback = xpgrad.vjp(xpgrad.conv, *given)
    pullback(np.ones_like(Y))
""",
    "gelu, NumPy": _ARRAYS + """
x = made(1000)
def step():
    xpgrad.gelu(x), xpgrad.gelu_grad(x, x)
""",
    "LSTM, PyTorch": _MODULES + """
layer, x = xpgrad_torch.LSTM(64, 64), torch.randn(50, 32, 64)
run = lambda: layer(x)[0]
""" + _RUN,
    "LSTM with lengths, PyTorch": _MODULES + """
layer, x = xpgrad_torch.LSTM(64, 64), torch.randn(50, 32, 64)
run = lambda: layer(x, lengths=torch.arange(19, 51))[0]
""" + _RUN,
    "GRU in two directions, PyTorch": _MODULES + """
layer, x = xpgrad_torch.GRU(64, 64, bidirectional=True), torch.randn(50, 32, 64)
run = lambda: layer(x)[0]
""" + _RUN,
    "Conv2d, PyTorch": _MODULES + """
layer, x = xpgrad_torch.Conv2d(16, 32, 3, padding=1), torch.randn(8, 16, 28, 28)
run = lambda: layer(x)
""" + _RUN,
}  # fmt: skip
"""Texts that define ``step()``, by what they do."""
_TIMED = """
import time
for _ in range(2):
    begin = time.process_time()
    step()
    print(time.process_time() - begin)
"""


def seconds(code: str, folder: str) -> list[float]:
    """The numbers that a new process prints; its cache of compiled code is in the folder."""
    environment = os.environ | {"XPGRAD_CACHE_DIR": folder, "XPGRAD_NOTICE": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def importing(name: str, base: str, folder: str) -> float:
    """Seconds of an import after another one, in the same process: the other's own time varies more."""
    text = (
        f"import time, {base}\nbegin = time.process_time()\nimport {name}\nprint(time.process_time() - begin)"
    )
    return seconds(text, folder)[0]


def line(name: str, *columns: list[float]) -> str:
    """A row of a table."""
    texts = [f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})" for found in columns]
    return f"| {name} | {' | '.join(texts)} |"


def table(runs: int, steps: list[str]) -> Iterator[str]:
    """The lines of both tables."""
    yield "| import | s of CPU beyond |"
    yield "| --- | ---: |"
    with tempfile.TemporaryDirectory() as folder:
        for name, base in IMPORTS.items():
            beyond = [importing(name, base, folder) for _ in range(runs)]
            yield line(f"{name} beyond {base}", beyond)
    yield "\n| first step | empty cache | full cache | second step |"
    yield "| --- | ---: | ---: | ---: |"
    bar = Progress(steps, "first steps")
    for name in bar:
        bar.note(name)
        empty, full, second = [], [], []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                empty.append(seconds(STEPS[name] + _TIMED, folder)[0])
                first, again = seconds(STEPS[name] + _TIMED, folder)
                full.append(first)
                second.append(again)
        yield line(name, empty, full, second)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind (default: 5)")
    parser.add_argument("--only", nargs="*", choices=STEPS, default=[*STEPS], help="first steps to measure")
    options = parser.parse_args()
    print(f"{read_cpu().label}, seconds of CPU, {options.runs} runs\n")
    for text in table(options.runs, options.only):
        print(text, flush=True)


if __name__ == "__main__":
    main()
