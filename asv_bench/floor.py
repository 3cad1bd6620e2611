"""Prints how near a GRU training step is to its matrix products alone, ours and PyTorch's, in one run.

The floor is the time of the step's products, each timed by itself at its own shape with ``torch.mm`` into
memory that is there: no activation, no addition, no allocation. No implementation that makes these products
with this BLAS can be faster. The gradient's contract, to work from the saved gates alone, costs one product
more than PyTorch's, which is counted.

    python asv_bench/floor.py
"""

import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from benchmarks.common import SHAPES, make
from table import machine


def median_time(function, repeats):
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def product(rows, inner, columns, repeats=25):
    """Seconds of one product (rows, inner) by (inner, columns)."""
    a, b, out = torch.rand(rows, inner), torch.rand(inner, columns), torch.empty(rows, columns)
    return median_time(lambda: torch.mm(a, b, out=out), repeats)


def products_of_step(T, N, I, H):
    """Seconds of all products of a forward and backward step with the reset after the product."""
    S, G = T * N, 3 * H
    forward = product(S, I, G) + T * product(N, H, G, 200)
    backward = product(S, G, I) + product(G, S, I) + product(G, S, H) + product(S, H, H)
    return forward + backward + (T - 1) * product(N, G, H, 200)


def main():
    print(machine(), end="\n\n")
    print("| T, N, I, H | floor, ms | nn.GRU / floor | xpgrad_torch.GRU / floor |")
    print("| --- | ---: | ---: | ---: |")
    for name, shape in SHAPES.items():
        runs = {impl: make(impl, "gru", shape) for impl in ("torch", "xpgrad-torch")}
        times = {impl: [] for impl in runs}
        for _ in range(15):
            for impl, run in runs.items():
                start = time.perf_counter()
                run.step()
                times[impl].append(time.perf_counter() - start)
        floor = products_of_step(*shape)
        peer, ours = (statistics.median(times[impl][2:]) / floor for impl in runs)
        print(f"| {name.replace('x', ', ')} | {floor * 1e3:.1f} | {peer:.2f} | {ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
