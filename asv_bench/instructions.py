"""Where the time of a recurrent training step goes: its programs, instruction by instruction.

    python asv_bench/instructions.py            # a table of some steps
    python asv_bench/instructions.py --write    # and put it into docs/machines

The step is `xpgrad_torch`'s, forward and backward for all gradients. Each instruction of a program runs
between two readings of the clock; the table has medians of many steps. Time outside of programs belongs to
Python and PyTorch: the module's checks, autograd, views.
"""

import argparse
import ctypes
import math
import time
from collections import defaultdict
from statistics import median

import numpy as np
import torch

import xpgrad_torch
from page import machine_page, write_between
from xpgrad import _plans
from xpgrad.cli.info import read_cpu
from xpgrad.engine.programs.instructions import BlasMultiply, BlasPack, Loop, Multiply, Pack
from xpgrad.engine.programs.program import Program, _executor

STEPS = (
    ("LSTM", (50, 1, 64, 64), {}),
    ("LSTM", (50, 32, 256, 256), {}),
    ("LSTM", (50, 32, 256, 256), {"peephole": True}),
    ("LSTM", (100, 64, 128, 512), {}),
    ("LSTM", (35, 20, 650, 650), {}),
    ("LSTM", (200, 128, 64, 128), {}),
    ("GRU", (50, 1, 64, 64), {}),
    ("GRU", (50, 32, 256, 256), {}),
)
KINDS = {
    BlasMultiply: "products",
    Multiply: "products",
    BlasPack: "packing",
    Pack: "packing",
    Loop: "time loops",
}
OTHERS = "arithmetic"
NAMES = {*KINDS.values(), OTHERS}
noted = {}
"""Of each program the kinds of its instructions, and their operations."""


def note(make):
    """`Program.__init__`, which does not keep the instructions; they are noted before."""

    def noting(program, draft, *others):
        kinds = [(KINDS.get(type(one), OTHERS), one) for one in draft.instructions]
        noted[program] = [
            (kind, 2 * math.prod(one.sizes) if kind == "products" else 0) for kind, one in kinds
        ]
        make(program, draft, *others)

    return noting


def watch(program, record):
    """Let a program call ``record(kind, seconds, operations)`` for each instruction."""
    link, execute = program._link, _executor(program.name)

    def run(address, begin, end, *links):
        link(address, 0, 0, *links)
        code = np.ctypeslib.as_array((ctypes.c_int64 * max(end, 1)).from_address(address))
        for kind, operations in noted[program]:
            size = int(code[begin])
            start = time.perf_counter()
            execute(address, begin, begin + size)
            record(kind, time.perf_counter() - start, operations)
            begin += size

    program._link = run
    return link


def measure(kind, shape, options, seconds):
    """Milliseconds of a whole step, of each kind of instruction, and operations of the products."""
    steps, batch, width, hidden = shape
    module = getattr(xpgrad_torch, kind)(width, hidden, **options)
    X = torch.randn(steps, batch, width, requires_grad=True)
    cotangent = torch.randn(steps, batch, hidden)

    def step():
        start = time.perf_counter()
        module(X)[0].backward(cotangent)
        taken = time.perf_counter() - start
        X.grad = None
        module.zero_grad()
        return taken

    _plans._known.clear()
    noted.clear()
    for _ in range(3):
        step()
    whole, parts, operations = [], defaultdict(list), 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        whole.append(step())
    programs = [known[0] for known in _plans._known.values() if isinstance(known, tuple)]
    sums = defaultdict(float)

    def record(kind, seconds, count):
        sums[kind] += seconds
        sums["operations"] += count

    links = [watch(program, record) for program in programs]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sums.clear()
        step()
        operations = sums["operations"]
        for name in NAMES:
            parts[name].append(sums[name])
    for program, link in zip(programs, links, strict=True):
        program._link = link
    return 1e3 * median(whole), {name: 1e3 * median(parts[name]) for name in NAMES}, operations


def table(seconds):
    """The lines of the table, of Markdown."""
    heads = ("whole", "products", "products, GFLOP/s", "time loops", "copies, sums, packing", "outside")
    yield f"| step, ms | {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * len(heads)}"
    for kind, sizes, options in STEPS:
        whole, parts, operations = measure(kind, sizes, options, seconds)
        name = " ".join([kind, ", ".join(map(str, sizes)), *(f"({option})" for option in options)])
        moved = parts["arithmetic"] + parts["packing"]
        cells = [whole, parts["products"], operations / parts["products"] / 1e6, parts["time loops"], moved]
        cells.append(whole - sum(parts.values()))
        yield f"| {name} | {' | '.join(f'{cell:.3g}' for cell in cells)} |"
    yield ""
    threads = torch.get_num_threads()
    yield f"Medians by `asv_bench/instructions.py` on {read_cpu().name}, {threads} threads."


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each step, twice (default: 1)")
    parser.add_argument("--write", action="store_true", help="into the page in docs/machines")
    args = parser.parse_args()

    Program.__init__ = note(Program.__init__)
    lines = "\n".join(table(args.seconds))
    print(lines)
    if args.write:
        write_between(machine_page(read_cpu().name), "instructions", lines)


if __name__ == "__main__":
    main()
