"""What the first step with a new shape costs, beside PyTorch: ``python asv_bench/new_shapes.py``.

Each step brings another T, another longest sequence of a packed batch, or another size of images. Then the
same inputs come again. The table shows both medians, in ms of the processor (forward and backward, one
thread): the difference is what a new shape costs. ``--steps 10000`` shows that memory holds.
"""

import argparse
import resource
import sys
import time
from statistics import median

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import xpgrad_torch
from xpgrad.cli.info import read_cpu


def sequences(number):
    """T from 20 on, of four sequences."""
    return torch.randn(20 + number % 600, 4, 64)


def packed(number):
    """The longest of eight sequences takes each T from 20 on."""
    longest = 20 + number % 600
    return pack_sequence([torch.randn(max(1, longest - 2 * k), 64) for k in range(8)])


def images(number):
    """Heights and widths from 20 on."""
    return torch.randn(2, 32, 20 + number % 24, 20 + number // 24 % 24)


WORKS = {
    "LSTM(64, 64), 4 sequences": (lambda library: library.LSTM(64, 64), sequences),
    "GRU(64, 64), both directions": (lambda library: library.GRU(64, 64, bidirectional=True), sequences),
    "LSTM(64, 64), packed": (lambda library: library.LSTM(64, 64), packed),
    "Conv2d(32, 32, 3)": (lambda library: library.Conv2d(32, 32, 3, padding=1), images),
}


def step(module, given):
    """One step, forward and backward, and the milliseconds of the processor that it took."""
    start = time.process_time()
    output = module(given)
    while isinstance(output, tuple):  # a recurrent module's, and a packed sequence
        output = output[0]
    output.sum().backward()
    return 1e3 * (time.process_time() - start)


def main():
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="steps with new shapes (default: 100)")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    print(f"{read_cpu()}, PyTorch {torch.__version__}")
    print(f"{'':30}{'xpgrad: new':>12}{'again':>9}{'torch: new':>12}{'again':>9}")
    for name, (build, draw) in WORKS.items():
        row = f"{name:30}"
        for library in (xpgrad_torch, nn):
            module = build(library)
            for number in range(3):  # compiles, and finds cold caches
                step(module, draw(number))
            given = [draw(number) for number in range(3, 103)]
            new = [step(module, one) for one in given]
            again = [step(module, one) for one in given]
            row += f"{median(new):12.2f}{median(again):9.2f}"
        print(row, flush=True)
    if steps > 100 and sys.platform != "win32":
        module = xpgrad_torch.LSTM(64, 64)
        for number in range(steps):
            step(module, sequences(number))
            if number + 1 in (1000, steps):
                size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(f"largest memory after {number + 1} steps: {size:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
