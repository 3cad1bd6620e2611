"""Where the time of a recurrent training step goes: its programs, instruction by instruction.

    python asv_bench/instructions.py            # a table of some steps
    python asv_bench/instructions.py --write    # and put it into docs/machines

The step is `xpgrad_torch`'s, forward and backward for all gradients. Each instruction of a program runs
between two readings of the clock; the table has medians of many steps. Python and PyTorch take the time
outside of programs: the module's checks, autograd, views.

A share is a rate over the rate of the machine's best product, of any size, by PyTorch or by us, measured in
turns with the step. The table has the share of the whole step. It also has the share of the step's larger
products if the faster library computes each of them separately.
"""

import argparse
import ctypes
import math
import time
from collections import Counter, defaultdict
from functools import partial
from statistics import median

import numpy as np
import torch

import xpgrad_torch
from page import machine_page, write_between
from xpgrad import engine as engines
from xpgrad._calls import families
from xpgrad.cli.info import read_cpu
from xpgrad.engine.compiled import records
from xpgrad.engine.compiled.products import matrix as own_products
from xpgrad.engine.programs.program import Program
from xpgrad_bench.floor import PRODUCTS
from xpgrad_bench.timing import in_turns

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
KINDS = {"Multiply": "products", "Pack": "packing", "RunTimeLoop": "time loops"}
OTHERS = "arithmetic"
NAMES = (*dict.fromkeys(KINDS.values()), OTHERS)
records_of = []
"""Functions that get the kind, the seconds and a product's sizes of each instruction that runs."""
GATES = {"LSTM": 4, "GRU": 3}
TURNS = 7


def note(make):
    """`Program.__init__`, after which the program tells of its instructions."""
    m = records.positions(records.ProductRecord).m

    def noting(program, draft, *others):
        kinds = [(KINDS.get(one.what, OTHERS), one) for one in draft.instructions]
        places = [(kind, one.DATA + m if kind == "products" else None) for kind, one in kinds]
        make(program, draft, *others)
        program._link = watched(program, places)  # so have copies of the program

    return noting


def watched(program, kinds):
    """The program's entry: it calls each of `records_of` for each instruction."""
    link = program._link

    def run(address, begin, end, *links):
        if not records_of:
            link(address, begin, end, *links)
            return
        link(address, 0, 0, *links)
        code = np.ctypeslib.as_array((ctypes.c_int64 * max(end, 1)).from_address(address))
        for kind, place in kinds:
            size = int(code[begin])
            start = time.perf_counter()
            link(address, begin, begin + size, 0, 0, 0)
            taken = time.perf_counter() - start
            sizes = () if place is None else tuple(code[begin + place : begin + place + 3].tolist())
            for record in records_of:
                record(kind, taken, sizes if all(sizes) else ())
            begin += size

    return run


def training_step(kind, shape, options):
    """Forward and backward of a module, as a function."""
    steps, batch, width, hidden = shape
    module = getattr(xpgrad_torch, kind)(width, hidden, **options)
    X = torch.randn(steps, batch, width, requires_grad=True)
    cotangent = torch.randn(steps, batch, hidden)

    def step():
        module(X)[0].backward(cotangent)
        X.grad = None
        module.zero_grad()

    families.known.clear()
    for _ in range(3):
        step()
    return step


def instructions_of(step, seconds):
    """Seconds of each kind of instruction of a step, and the number of its products of each size."""
    parts, sums, sizes_of = defaultdict(list), Counter(), Counter()

    def record(kind, seconds, sizes):
        sums[kind] += seconds
        if sizes:
            sizes_of[sizes] += 1

    records_of.append(record)
    end = time.perf_counter() + seconds
    while not parts or time.perf_counter() < end:
        sums.clear()
        sizes_of.clear()
        step()
        for name in NAMES:
            parts[name].append(sums[name])
    records_of.remove(record)
    return {name: median(parts[name]) for name in NAMES}, sizes_of


def product_ways(m, n, k):
    """A matrix product by PyTorch, and by us in its threads."""
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    ours = partial(own_products.multiply, engines.of_type(c).team, a.numpy(), b.numpy(), c.numpy())
    return partial(torch.mm, a, b, out=c), ours


def middle(function, seconds):
    """The median of a function's times."""
    [taken] = in_turns({"": function}, seconds).values()
    return median(taken)


def measure(step, step_operations, turns, seconds):
    """Medians over turns of a step, of its instructions, and of products.

    Returns the seconds of the whole step and of its kinds of instructions; the shares of the step and of its
    separate products (see above); and the operations of its products.
    """
    best = [(2 * math.prod(sizes), way) for sizes in PRODUCTS for way in product_ways(*sizes)]
    _, sizes_of = instructions_of(step, 0.0)
    alone = [(count, product_ways(*sizes)) for sizes, count in sizes_of.items()]
    operations, found = sum(2 * math.prod(sizes) * count for sizes, count in sizes_of.items()), []
    for _ in range(turns):
        whole = middle(step, seconds)
        parts, _ = instructions_of(step, seconds)
        rate = max(count / middle(way, seconds / 10) for count, way in best)
        least = sum(count * min(middle(way, seconds / 10) for way in ways) for count, ways in alone)
        shares = step_operations / whole / rate, operations / least / rate
        found.append((whole, *(parts[name] for name in NAMES), *shares))
    whole, *times, share, alone_share = (median(values) for values in zip(*found, strict=True))
    return whole, dict(zip(NAMES, times, strict=True)), share, alone_share, operations


def table(seconds):
    """The lines of the table, of Markdown."""
    heads = ("whole", "its share", "products", "products, GFLOP/s", "products alone, share", "time loops",
             "copies, sums, packing", "outside")  # fmt: skip
    yield f"| step, ms | {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * len(heads)}"
    for kind, shape, options in STEPS:
        T, N, I, H = shape
        step = training_step(kind, shape, options)
        step_operations = 6 * T * N * GATES[kind] * H * (I + H)
        whole, parts, share, alone, operations = measure(step, step_operations, TURNS, seconds / TURNS)
        name = " ".join([kind, ", ".join(map(str, shape)), *(f"({option})" for option in options)])
        rate = operations / parts["products"] / 1e9
        rest = parts["time loops"], parts["arithmetic"] + parts["packing"], whole - sum(parts.values())
        times = [1e3 * seconds for seconds in (whole, parts["products"], *rest)]
        cells = [times[0], share, times[1], rate, alone, *times[2:]]
        yield f"| {name} | {' | '.join(f'{cell:.3g}' for cell in cells)} |"
    yield ""
    threads = torch.get_num_threads()
    yield f"Medians by `asv_bench/instructions.py` on {read_cpu().label}, {threads} threads."


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each step (default: 2)")
    parser.add_argument("--write", action="store_true", help="into the page in docs/machines")
    args = parser.parse_args()

    Program.__init__ = note(Program.__init__)
    lines = []
    for line in table(args.seconds):
        print(line, flush=True)
        lines.append(line)
    if args.write:
        write_between(machine_page(read_cpu().label), "instructions", "\n".join(lines))


if __name__ == "__main__":
    main()
