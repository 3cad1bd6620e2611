"""Single steps in a user's loop: xpgrad_torch's cells and PyTorch's.

    python asv_bench/cells.py             # ratios, above 1 ours is faster
    python asv_bench/cells.py --profile   # and the functions that take the time of the small cells

A run is 8 steps forward and backward for all gradients. Both take turns in one process.
"""

import argparse
import cProfile
import pstats
from statistics import geometric_mean, median

import torch

import xpgrad_torch
from xpgrad.cli.info import read_cpu
from xpgrad_bench.timing import in_turns

STEPS = 8
SIZES = ((1, 64), (32, 256))
CELLS = ("LSTMCell", "GRUCell", "RNNCell")


def runner(library, kind, batch, hidden):
    """A function that runs `STEPS` steps, forward and backward."""
    torch.manual_seed(0)
    cell = getattr(library, kind)(hidden, hidden)
    X = torch.randn(STEPS, batch, hidden, requires_grad=True)
    cotangent = torch.randn(batch, hidden)
    has_cell_state = kind == "LSTMCell"

    def run():
        state = None
        for x in X.unbind(0):
            state = cell(x, state)
        (state[0] if has_cell_state else state).backward(cotangent)
        X.grad = None
        cell.zero_grad()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each pair (default: 2)")
    parser.add_argument("--profile", action="store_true", help="also profile the small cells")
    args = parser.parse_args()

    print("| cell, N, H | ours, us | torch.nn, us | torch.nn / ours |\n| --- | ---: | ---: | ---: |")
    ratios = []
    for kind in CELLS:
        for batch, hidden in SIZES:
            ways = {library: runner(library, kind, batch, hidden) for library in (xpgrad_torch, torch.nn)}
            times = in_turns(ways, args.seconds, warm=True).values()
            ours, theirs = (1e6 * median(taken) for taken in times)
            ratios.append(theirs / ours)
            print(f"| {kind} {batch}, {hidden} | {ours:.0f} | {theirs:.0f} | {ratios[-1]:.2f} |")
    print(f"| geometric mean | | | {geometric_mean(ratios):.2f} |")
    print(f"\n{STEPS} steps, {read_cpu().label}, {torch.get_num_threads()} threads.")
    if args.profile:
        run = runner(xpgrad_torch, "LSTMCell", *SIZES[0])
        run()
        with cProfile.Profile() as profile:
            for _ in range(200):
                run()
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
