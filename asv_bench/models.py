"""Whole networks before and after ``swap``: ``python asv_bench/models.py``.

Training steps (forward, backward, without an optimizer) of PyTorch's modules and of the same network after
``xpgrad_torch.swap(network, verify=example)``, which keeps PyTorch's convolutions where ours are slower.
Steps take turns. Each number is PyTorch's median time divided by ours: above 1 ours is faster. "New shapes"
has another length, size or batch in every step, and "known shapes" has the same inputs once more: the
difference is the cost of a new shape. "Memory" is the most that a step adds to a process that has
run a small LSTM. "Error" is the largest difference of a gradient from float64's, relative to the largest
number of all gradients. Of two numbers in a cell, PyTorch's is first.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import time
from collections.abc import Iterator
from statistics import geometric_mean, median
from typing import Any

import torch
from torch import Tensor, nn

import xpgrad_torch
from xpgrad.cli.console import Progress
from xpgrad.cli.info import read_cpu
from xpgrad_bench.memory import peak
from xpgrad_bench.models import WORKS, Words

RATIOS = ["same shape", "new shapes", "known shapes"]
HEAD = ["network", "replaced", *RATIOS, "first step, ms", "memory, MB", "error"]


def step(model: nn.Module, given: tuple[Any, ...]) -> float:
    """The seconds of one step."""
    model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    output = model(*given)
    output.square().mean().backward()
    return time.perf_counter() - begin


def ratio(models: list[nn.Module], inputs: list[tuple[Any, ...]]) -> float:
    """The first model's median time over the second one's, in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for number, given in enumerate(inputs):
        order = (0, 1) if number % 2 else (1, 0)
        for which in order:
            times[which].append(step(models[which], given))
    return median(times[0]) / median(times[1])


def gradients(model: nn.Module, given: tuple[Any, ...]) -> list[Tensor]:
    """The gradients of all parameters, in float64."""
    step(model, given)
    return [p.grad.double() for p in model.parameters() if p.grad is not None]


def error(model: nn.Module, exact: list[Tensor], given: tuple[Any, ...]) -> float:
    """The largest difference from the exact gradients, relative to their largest number."""
    largest = max(float(g.abs().max()) for g in exact)
    pairs = zip(gradients(model, given), exact, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs) / largest


def memory(name: str, replaced: list[str]) -> int:
    """The peak bytes of a network's step in a new process, with these modules replaced."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory, (name, replaced))


def _memory(name: str, replaced: list[str]) -> int:
    model, given = WORKS[name].make(), WORKS[name].given(0)
    for path in replaced:
        owner, _, last = path.rpartition(".")
        setattr(model.get_submodule(owner), last, xpgrad_torch.swap(model.get_submodule(path)))
    small: nn.Module = Words(nn.LSTM, 8, 1, 8)
    if replaced:
        small = xpgrad_torch.swap(small)
    return peak(lambda: step(small, (torch.zeros(2, 1, dtype=torch.int64),)), lambda: step(model, given))


def measure(name: str, steps: int) -> list[str]:
    """The cells of a network's row."""
    torch.manual_seed(0)
    work = WORKS[name]
    theirs = work.make()
    ours = copy.deepcopy(theirs)
    usual = work.given(0)
    exact = gradients(copy.deepcopy(theirs).double(), tuple(_doubled(x) for x in usual))
    floats = all(x.is_floating_point() for x in usual)
    ours = xpgrad_torch.swap(ours, verify=usual if floats else None, tolerance=1.0 if floats else None)
    replaced = [path for path, m in ours.named_modules() if type(m).__module__.startswith("xpgrad")]
    models = [theirs, ours]
    first = [1e3 * step(model, usual) for model in models]
    errors = [error(model, exact, usual) for model in models]
    same, several = ([work.given(k) for k in which] for which in ([0] * steps, range(1, steps + 1)))
    ratios = [ratio(models, inputs) for inputs in (same, several, several)]
    grown = [memory(name, paths) for paths in ([], replaced)]
    return [
        str(len(replaced)), *(f"{one:.2f}" for one in ratios), " / ".join(f"{ms:.0f}" for ms in first),
        " / ".join(f"{size / 1e6:.0f}" for size in grown), " / ".join(f"{one:.0e}" for one in errors),
    ]  # fmt: skip


def _doubled(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def table(steps: int, names: list[str]) -> Iterator[str]:
    """The lines of the table, then the means."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"| --- {'| ---: ' * (len(HEAD) - 1)}|"
    rows, bar = [], Progress(names, "networks")
    for name in bar:
        bar.note(name)
        rows.append(measure(name, steps))
        yield f"| {name} | {' | '.join(rows[-1])} |"
    means = (geometric_mean([float(row[1 + k]) for row in rows]) for k in range(len(RATIOS)))
    yield f"| geometric mean |  | {' | '.join(f'{mean:.2f}' for mean in means)} |  |  |  |"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind (default: 20)")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="networks with any of these words"
    )
    options = parser.parse_args()
    words = [word.lower() for word in options.only or [""]]
    names = [name for name in WORKS if any(word in name.lower() for word in words)]
    if not names:
        parser.error(f"no network has any of the words {options.only}; there are {', '.join(WORKS)}")
    print(f"{read_cpu().label}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}\n")
    for line in table(options.steps, names):
        print(line, flush=True)


if __name__ == "__main__":
    main()
