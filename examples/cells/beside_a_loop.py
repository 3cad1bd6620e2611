"""Compares a cell with a PyTorch loop under autograd: whether they agree, and the time of a training step."""

import time

import torch

from xpgrad_torch import CellLayer

SHAPE = (50, 32, 64, 64)  # T, N, I, H


def _times(run, repeats):
    for _ in range(3):
        run()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return sorted(found)[repeats // 2]


def compare(cell, loop, shape=SHAPE, repeats=20, dtype=torch.float32):
    """The largest relative difference of gradients; the loop's and our time of forward and backward."""
    torch.manual_seed(0)
    T, N, I, H = shape
    layer, X = CellLayer(cell, I, H, dtype=dtype), torch.randn(T, N, I, dtype=dtype)
    parameters = list(layer.parameters())
    cotangent = torch.randn(T, N, H, dtype=dtype)

    def ours():
        return torch.autograd.grad(layer(X)[0], parameters, cotangent)

    def theirs():
        return torch.autograd.grad(loop(X, *(p[0] for p in parameters)), parameters, cotangent)

    pairs = zip(ours(), theirs(), strict=True)
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    return error, _times(theirs, repeats), _times(ours, repeats)


def report(cell, loop):
    """Print it."""
    error, loop_time, own_time = compare(cell, loop)
    T, N, I, H = SHAPE
    print(f"{cell.__name__}, T={T} N={N} I={I} H={H}, float32: gradients differ by {error:.0e}")
    print(f"loop {1e3 * loop_time:.1f} ms, cell {1e3 * own_time:.1f} ms: {loop_time / own_time:.1f} times")
