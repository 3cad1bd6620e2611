"""The cost of the first step with a new shape, ours and PyTorch's: ``python asv_bench/new_shapes.py``.

Each step has another T, another longest sequence of a packed batch, another number of sequences, or another
size or number of images. Then the same inputs are used again. The table shows both medians (forward and
backward) in ms: of the processor with one thread, of the clock with ``--threads 2``. Their difference is the
cost of a new shape. Steps that record a program raise the mean only. ``--steps 10000`` measures memory
instead: for each module and library a process trains with ever new shapes. The table shows
its resident memory after 1,000 steps and at the end.
"""

import argparse
import multiprocessing
import resource
import time
from pathlib import Path
from statistics import fmean, median

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import xpgrad
import xpgrad_torch
from xpgrad.cli.info import read_cpu


def sequences(number):
    """T from 20 on, of four sequences."""
    return torch.randn(20 + number % 600, 4, 64)


def packed(number):
    """The longest of eight sequences takes each T from 20 on."""
    longest = 20 + number % 600
    return pack_sequence([torch.randn(max(1, longest - 2 * k), 64) for k in range(8)])


def many_sequences(number):
    """Numbers of sequences from 4 on, of 40 steps."""
    return torch.randn(40, 4 + number % 600, 64)


def many_packed(number):
    """The same, packed; the longest has 40 steps."""
    return pack_sequence(
        [torch.randn(40 - k % 30, 64) for k in range(4 + number % 600)], enforce_sorted=False
    )


def nodes(number):
    """Numbers of rows from 300 on, as of the nodes of graphs."""
    return torch.randn(300 + number % 600, 64)


def images(number):
    """Heights and widths from 20 on."""
    return torch.randn(2, 32, 20 + number % 24, 20 + number // 24 % 24)


def batches(number):
    """Numbers of images from 32 on."""
    return torch.randn(32 + number % 600, 32, 26, 26)


def with_resets(number):
    """Numbers of sequences from 4 on, of 40 steps; one step in twenty begins an episode."""
    X = many_sequences(number)
    return X, torch.rand(X.shape[:2]) < 0.05


class LSTMWithResets(xpgrad_torch.LSTM):
    """A layer whose resets come with its input."""

    def forward(self, given):
        """The outputs."""
        X, reset = given
        return super().forward(X, reset=reset)


class PerSample(nn.Module):
    """An LSTM, and its weights' gradients for each sequence."""

    def __init__(self):
        super().__init__()
        self.weights = [torch.randn(1, 256, 64) / 8 for _ in range(2)]

    def forward(self, X):
        """The gradients of W, in a tensor that takes a cotangent."""
        W, R = self.weights
        outputs, pullback = xpgrad.vjp(xpgrad.lstm, X=X, W=W, R=R, per_sample=True)
        return pullback(grad_H_all=torch.ones_like(outputs.H_all)).dW.requires_grad_()


def ours(library, module):
    """The module for our library; PyTorch has none like it."""
    return module if library is xpgrad_torch else None


WORKS = {
    "LSTM(64, 64), 4 sequences": (lambda library: library.LSTM(64, 64), sequences),
    "GRU(64, 64), both directions": (lambda library: library.GRU(64, 64, bidirectional=True), sequences),
    "LSTM(64, 64), packed": (lambda library: library.LSTM(64, 64), packed),
    "LSTM(64, 64), batches": (lambda library: library.LSTM(64, 64), many_sequences),
    "LSTM(64, 64), packed batches": (lambda library: library.LSTM(64, 64), many_packed),
    "LSTM(64, 64), resets, batches": (lambda library: ours(library, LSTMWithResets(64, 64)), with_resets),
    "LSTM(64, 64), per sample": (lambda library: ours(library, PerSample()), many_sequences),
    "GRUCell(64, 64), batches": (lambda library: library.GRUCell(64, 64), nodes),
    "Conv2d(32, 32, 3)": (lambda library: library.Conv2d(32, 32, 3, padding=1), images),
    "Conv2d(32, 64, 3), batches": (lambda library: library.Conv2d(32, 64, 3), batches),
}


def step(module, given):
    """The milliseconds of one step, forward and backward."""
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = now()
    output = module(given)
    while isinstance(output, tuple):  # of a recurrent module, or a packed sequence
        output = output[0]
    output.sum().backward()
    return 1e3 * (now() - start)


def measure_times():
    """Print the cost of a new shape."""
    print(f"{'':30}{'xpgrad: new':>12}{'mean':>9}{'again':>9}{'torch: new':>12}{'mean':>9}{'again':>9}")
    for name, (build, draw) in WORKS.items():
        row = f"{name:30}"
        for library in (xpgrad_torch, nn):
            module = build(library)
            if module is None:
                row += f"{'-':>12}{'-':>9}{'-':>9}"
                continue
            for number in range(3):  # compiles, and finds cold caches
                step(module, draw(number))
            given = [draw(number) for number in range(3, 103)]
            new = [step(module, one) for one in given]
            again = [step(module, one) for one in given]
            row += f"{median(new):12.2f}{fmean(new):9.2f}{median(again):9.2f}"
        print(row, flush=True)


def resident_after(name, is_ours, steps, threads):
    """The resident memory of this process after 1,000 steps and after all, in MiB."""
    torch.set_num_threads(threads)
    build, draw = WORKS[name]
    module = build(xpgrad_torch if is_ours else nn)
    sizes = []
    for number in range(steps):
        step(module, draw(number))
        if number + 1 in (1000, steps):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            sizes.append(pages * resource.getpagesize() / 2**20)
    return sizes


def measure_memory(steps):
    """Print the memory's growth, with a process for each row and library."""
    print(f"{'':30}{'xpgrad: 1000':>13}{steps:>8}{'growth':>8}{'torch: 1000':>13}{steps:>8}{'growth':>8}")
    for name in WORKS:
        row = f"{name:30}"
        for is_ours in (True, False):
            if WORKS[name][0](xpgrad_torch if is_ours else nn) is None:
                row += f"{'-':>13}{'-':>8}{'-':>8}"
                continue
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                first, last = pool.apply(resident_after, (name, is_ours, steps, torch.get_num_threads()))
            row += f"{first:13.0f}{last:8.0f}{last / first - 1:8.1%}"
        print(row, flush=True)


def main():
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, metavar="N", help="measure memory over so many steps, at least 1001"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of PyTorch (default: 1)")
    options = parser.parse_args()
    steps = options.steps
    torch.set_num_threads(options.threads)
    print(f"{read_cpu().label}, threads: {options.threads}, PyTorch {torch.__version__}")
    if steps is None:
        measure_times()
    else:
        if steps < 1001:
            parser.error(f"--steps is {steps}, expected at least 1001")
        measure_memory(steps)


if __name__ == "__main__":
    main()
