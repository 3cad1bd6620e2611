"""Prints PyTorch's time over ours for the gradient of every activation, and the time of a small call.

    python asv_bench/elementwise.py                     # all
    python asv_bench/elementwise.py relu gelu softmax   # these
    python asv_bench/elementwise.py --seconds 0.3 --columns numpy torch
    python asv_bench/elementwise.py --write             # and put the table into docs/activations.md

The peer is PyTorch's own backward kernel (torch.ops.aten.*_backward), or else, in brackets, its autograd's
gradient of the formula. 4096 x 1024 float32 numbers; medians of interleaved calls; above 1 ours is faster.
Each column runs in its own process. The last columns are microseconds of one of our calls with 1000 numbers.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from page import write_between
from xpgrad.cli.info import read_cpu
from xpgrad_bench.implementations.pytorch import BACKWARDS
from xpgrad_bench.implementations.tensors import threads

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "activations.md"
MARK = "speed"
COLUMNS = {
    "numpy": ("xpgrad-numpy", "1"),
    "torch": ("xpgrad-torch", "1"),
    "numpy, no llvmlite": ("xpgrad-numpy", "0"),
    "torch, no llvmlite": ("xpgrad-torch", "0"),
}
_MEASURE = """
import sys, timeit
sys.path.insert(0, {here!r})
from benchmarks import make
from xpgrad_bench.timing import ratio
from xpgrad_bench.elementwise import ALONG_AXIS, Elementwise
for name in {names!r}:
    ours, peer = (make(impl, Elementwise(name, (4096, 1024))).backward for impl in ({impl!r}, "torch"))
    for _ in range(3):
        ours(), peer()
    speed = 1 / ratio(ours, peer, seconds={seconds})
    small = make({impl!r}, Elementwise(name, (8, 125) if name in ALONG_AXIS else (1000,))).backward
    small()
    cost = min(timeit.repeat(small, number=200, repeat=5)) / 200 * 1e6
    print(name, speed, cost, flush=True)
"""


def measure(names, column, seconds):
    """By function: PyTorch's time over ours, and the microseconds of a small call."""
    impl, jit = COLUMNS[column]
    code = _MEASURE.format(here=str(HERE), names=names, impl=impl, seconds=seconds)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"XPGRAD_JIT": jit},
    )  # fmt: skip
    lines = (line.split() for line in result.stdout.splitlines())
    return {name: (float(speed), float(cost)) for name, speed, cost in lines}


def table(names, columns, seconds):
    """The lines of the table, of Markdown."""
    found = {column: measure(names, column, seconds) for column in columns}
    costs = [f"{column}, us" for column in columns]
    yield f"| gradient of | {' | '.join([*columns, *costs])} |"
    yield f"| --- |{' ---: |' * 2 * len(columns)}"
    for name in names:
        label = f"({name})" if callable(BACKWARDS[name]) else name
        cells = [f"{found[column][name][0]:.2f}" for column in columns]
        cells += [f"{found[column][name][1]:.1f}" for column in columns]
        yield f"| {label} | {' | '.join(cells)} |"
    yield ""
    yield f"Medians of interleaved runs by `asv_bench/elementwise.py` on {read_cpu().label}; {threads()}."


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="functions (default: all)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each pair (default: 1)")
    parser.add_argument("--columns", nargs="+", default=[*COLUMNS], choices=[*COLUMNS])
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    args = parser.parse_args()

    lines = "\n".join(table(args.names or [*BACKWARDS], args.columns, args.seconds))
    print(lines)
    if args.write:
        write_between(PAGE, MARK, lines)


if __name__ == "__main__":
    main()
