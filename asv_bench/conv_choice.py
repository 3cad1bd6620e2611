"""How much longer the methods that the cost rule chooses take than the best ones, in random geometries.

    python asv_bench/conv_choice.py --seconds 300 --threads 2

For each geometry every compiled method computes the forward and both gradients, each by itself. The report
has the sum of the chosen methods' times over the sum of the best ones', and the choices that lose most. It
needs PyTorch. ``conv_sweep.py`` shows the methods along single sizes.
"""

import argparse
import math
import statistics
import time
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

import xpgrad
from xpgrad._conv import choice
from xpgrad._conv.geometry import conv_geometry
from xpgrad.cli.console import Progress
from xpgrad.engine import of_type
from xpgrad_bench.timing import in_turns

METHODS = ("taps", "patches", "winograd", "clipped", "pointwise")
CHANNELS = (16, 32, 48, 64, 96, 128, 192, 256, 512)
KERNELS = {1: (1, 3, 5, 7, 9, 15), 2: (1, 3, 3, 3, 4, 5, 7), 3: (1, 3, 3, 5)}
SIZES = {1: (50, 2000), 2: (7, 70), 3: (6, 24)}
OPERATIONS = (3e7, 3e9)  # of a sum: long enough to be measured, short enough to measure many
SHOWN = 10


class Case(NamedTuple):
    """A convolution with the same size, kernel, stride, dilation and padding along all axes."""

    X: tuple[int, ...]
    W: tuple[int, ...]
    strides: int
    dilations: int
    pads: tuple[int, ...]

    @property
    def attributes(self):
        """The attributes of `xpgrad.conv`."""
        return {"strides": self.strides, "dilations": self.dilations, "pads": list(self.pads)}


class Choice(NamedTuple):
    """The times of the chosen method and of the best one, in seconds."""

    case: Case
    sums: str
    chosen: str
    best: str
    taken: float
    least: float


def random_case(rng):
    """A convolution of any of the sizes above."""
    while True:
        axes = int(rng.choice([1, 2, 2, 2, 3]))
        kernel, stride = int(rng.choice(KERNELS[axes])), int(rng.integers(1, 3))
        dilation = int(rng.choice([1, 1, 1, 2])) if stride == 1 and kernel > 1 else 1
        size = int(rng.integers(*SIZES[axes]))
        channels, outputs = (int(one) for one in rng.choice(CHANNELS, 2))
        batch = int(rng.choice([1, 2, 4, 8, 16]))
        operations = 2 * batch * channels * outputs * kernel**axes * (size / stride) ** axes
        if OPERATIONS[0] < operations < OPERATIONS[1]:
            pads = (dilation * (kernel - 1) // 2,) * (2 * axes)
            X, W = (batch, channels, *[size] * axes), (outputs, channels, *[kernel] * axes)
            return Case(X, W, stride, dilation, pads)


def calls_of(case, methods):
    """A call of each method, by sum and method."""
    x, w = torch.randn(case.X), torch.randn(case.W)
    dy = torch.randn_like(xpgrad.conv(x, w, **case.attributes))

    def forward(method):
        return xpgrad.conv(x, w, method=method, **case.attributes)

    def gradient(name):
        return lambda method: xpgrad.conv_grad(dy, x, w, method=method, wrt=(name,), **case.attributes)

    calls = dict(zip(choice.SUMS, (forward, gradient("X"), gradient("W")), strict=True))
    return {sums: {name: partial(call, name) for name in methods} for sums, call in calls.items()}


def choices(case, rounds):
    """The rule's choice for each sum, beside the best method."""
    geometry = conv_geometry("choice", case.X, case.W, group=1, auto_pad="NOTSET", **case.attributes)
    engine = of_type(torch.empty(1))
    possible = [name for name in METHODS if choice.METHODS[name].why_not(geometry, False) is None]
    for sums, calls in calls_of(case, possible).items():
        chosen = choice.preferred(engine, geometry, sums)
        if chosen not in calls:  # Fourier's method
            continue
        times = {name: statistics.median(each) for name, each in in_turns(calls, least=rounds).items()}
        best = min(times, key=times.get)
        yield Choice(case, sums, chosen, best, times[chosen], times[best])


def report(found):
    """What the rule loses, as lines of text."""
    ratios = [one.taken / one.least for one in found]
    total = sum(one.taken for one in found) / sum(one.least for one in found)
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    above = sum(ratio > 1.2 for ratio in ratios) / len(ratios)
    yield f"{len(found)} sums: the chosen methods take {total:.3f} of the best ones' time,"
    yield f"in the geometric mean {mean:.3f}; {above:.1%} of them more than 1.2"
    yield "\n| X | W | stride, dilation | sum | chosen | best | ms | best's ms |"
    yield "| --- | --- | --- | --- | --- | --- | ---: | ---: |"
    for one in sorted(found, key=lambda one: one.least / one.taken)[:SHOWN]:
        X, W, stride, dilation, _ = one.case
        yield (
            f"| {X} | {W} | {stride}, {dilation} | {one.sums} | {one.chosen} | {one.best} | "
            f"{1e3 * one.taken:.2f} | {1e3 * one.least:.2f} |"
        )


def cases_for(seconds, rng):
    """Random cases for so many seconds, at least one."""
    end = time.perf_counter() + seconds
    while True:
        yield random_case(rng)
        if time.perf_counter() >= end:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="in all (default: 120)")
    parser.add_argument("--threads", type=int, help="PyTorch's threads (default: its own number)")
    parser.add_argument("--seed", type=int, default=0, help="of the geometries (default: 0)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    found = []
    for case in Progress(cases_for(args.seconds, np.random.default_rng(args.seed)), "geometries"):
        found += choices(case, rounds=5)
    print("\n".join(report(found)))


if __name__ == "__main__":
    main()
