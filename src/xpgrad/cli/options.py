"""The gain of a machine's options: two small calls, timed with each option.

Each option runs in its own process, because libraries read their settings when they start.
``python -m xpgrad info --measure`` measures them and keeps the times in the folder of compiled code; `info`
shows them later. Before a measurement it shows the times of another machine, from this folder's options.json.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xpgrad.engine.compiled.folder import cache_folder, make, write

from .console import Progress, message

__all__ = ["Times", "kept", "measure", "stated"]

STATED = files(__package__) / "options.json"  # in a zip file it has no path
_ROUNDS = 12


class Option(NamedTuple):
    """A setting, its environment variables, and the packages that it needs."""

    name: str
    variables: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()
    arrays: str = "numpy"


_ONE = dict.fromkeys(("XPGRAD_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
OPTIONS = (
    Option("as it is"),
    Option("without llvmlite", {"XPGRAD_JIT": "0"}, ("llvmlite",)),
    Option("in one thread", _ONE),
    Option("PyTorch's tensors, in its threads", {}, ("torch",), "torch"),
)


class Times(NamedTuple):
    """Milliseconds of each call by option, and the machine."""

    machine: str
    rows: dict[str, dict[str, float]]

    def lines(self) -> list[list[str]]:
        """A line for each option: times, and the speedup over the first option."""
        base = next(iter(self.rows.values()))
        return [
            [option, *(f"{ms:.3g} ms, {base[work] / ms:.2f}x" for work, ms in times.items())]
            for option, times in self.rows.items()
        ]


def _file() -> Path:
    return cache_folder() / "options.json"


def stated() -> Times:
    """The result of another machine."""
    return Times(**json.loads(STATED.read_text(encoding="utf-8")))


def kept(machine: str) -> Times | None:
    """The earlier result of this machine, or None."""
    try:
        times = Times(**json.loads(_file().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # missing or damaged
        return None
    return times if times.machine == machine else None


def measure(machine: str) -> Times:
    """Time every option whose packages are installed, in a few seconds, and keep the times."""
    rows = {}
    here = [option for option in OPTIONS if all(find_spec(name) is not None for name in option.needs)]
    bar = Progress(here, "measuring")
    for option in bar:
        bar.note(option.name)
        command = [sys.executable, "-m", "xpgrad.cli.options", option.arrays]
        done = subprocess.run(
            command, env=os.environ | option.variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no error's text"])[-1]
            message(f"{option.name} cannot be measured: {reason}")
        else:
            rows[option.name] = json.loads(done.stdout)
    times = Times(machine, rows)
    with contextlib.suppress(OSError):  # the folder is not writable
        make(_file().parent)
        write(_file(), json.dumps(times._asdict(), indent=1).encode())
    return times


def _works(arrays: str) -> dict[str, Callable[[], Any]]:
    """The timed calls, by name."""
    import xpgrad

    rng = np.random.default_rng(0)
    shapes = {"X": (50, 32, 64), "W": (1, 256, 64), "R": (1, 256, 64), "dH": (50, 1, 32, 64), "x": (1 << 20,)}
    given: dict[str, Any] = {
        name: rng.normal(size=shape).astype(np.float32) / 8 for name, shape in shapes.items()
    }
    if arrays == "torch":
        import torch

        given = {name: torch.from_numpy(values) for name, values in given.items()}
    X, W, R, dH, x = given.values()
    return {
        "LSTM step, 50x32x64x64": lambda: xpgrad.vjp(xpgrad.lstm, X, W, R)[1](dH),
        "gelu and gradient of 1M": lambda: xpgrad.gelu_grad(xpgrad.gelu(x), x),
    }


def _milliseconds(work: Callable[[], Any]) -> float:
    """The fastest of some rounds: other programs can only add time."""
    work()
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return round(1e3 * min(times), 4)


if __name__ == "__main__":
    print(json.dumps({name: _milliseconds(work) for name, work in _works(sys.argv[1]).items()}))
