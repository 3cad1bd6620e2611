"""Training steps of PyTorch's modules and of xpgrad_torch's on a GPU and on the CPU; convolutions by method.

    python asv_bench/gpu.py

Each figure is the median of interleaved steps, forward and backward, until the GPU is idle.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import xpgrad
import xpgrad_torch
from xpgrad.cli.console import table
from xpgrad.cli.info import read_cpu

_MODULES: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    ("LSTM", (64, 64), (50, 1, 64)),
    ("LSTM", (64, 64), (50, 32, 64)),
    ("LSTM", (256, 256), (50, 32, 256)),
    ("LSTM", (16, 16), (400, 32, 16)),
    ("GRU", (64, 64), (50, 1, 64)),
    ("GRU", (256, 256), (50, 32, 256)),
    ("RNN", (256, 256), (50, 32, 256)),
    ("Conv2d", (64, 64, 3), (8, 64, 56, 56)),
    ("Conv2d", (256, 256, 3), (8, 256, 14, 14)),
    ("Conv1d", (64, 64, 3), (8, 64, 560)),
    ("Softmax", (-1,), (4096, 1024)),
    ("GELU", (), (4096, 1024)),
]
_METHODS = ("auto", "patches", "shifted", "winograd", "fft")
_IMAGES = [
    ((8, 64, 56, 56), (64, 64, 3, 3)),
    ((8, 256, 14, 14), (256, 256, 3, 3)),
    ((8, 3, 64, 64), (8, 3, 3, 3)),
]


def _wait() -> None:
    """Wait until the GPU is idle, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def medians(works: list[Callable[[], Any]], turns: int = 9) -> list[float]:
    """The milliseconds of each work; the first two turns count for nothing."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(turns + 2):
        for work, own in zip(works, times, strict=True):
            _wait()
            start = time.perf_counter()
            work()
            _wait()
            if turn > 1:
                own.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(own) for own in times]


def step(module: nn.Module, X: torch.Tensor) -> Callable[[], Any]:
    """A function that runs a module forward and backward, for all gradients."""
    leaves = [X, *module.parameters()]

    def run() -> Any:
        outputs = module(X)
        Y = outputs[0] if isinstance(outputs, tuple) else outputs
        return torch.autograd.grad(Y.sum(), leaves)

    return run


def convolution(X: torch.Tensor, W: torch.Tensor, method: Any) -> Callable[[], Any]:
    """A function that runs a convolution and its gradients, "same" padding."""
    pads = W.shape[-1] // 2

    def run() -> Any:
        Y = xpgrad.conv(X, W, pads=pads, method=method)
        return xpgrad.conv_grad(Y, X, W, pads=pads, method=method)

    return run


def main() -> None:
    """Print both tables."""
    if not torch.cuda.is_available():
        sys.exit("gpu.py: PyTorch finds no GPU here, expected one")
    lines = []
    for name, arguments, shape in _MODULES:
        times = []
        for device in ("cuda", "cpu"):
            X = torch.randn(shape, device=device, requires_grad=True)
            modules = [getattr(family, name)(*arguments).to(device) for family in (nn, xpgrad_torch)]
            times += medians([step(module, X) for module in modules])
        sizes = " x ".join(map(str, shape))
        lines.append([f"{name}{arguments}", sizes, *(f"{took:.2f}" for took in times)])
    gpu, threads = torch.cuda.get_device_name(), torch.get_num_threads()
    places = f"{gpu} and on {read_cpu().label}, {threads} threads"
    heading = f"Training steps on {places}; ms, PyTorch {torch.__version__}"
    sides = [f"{side}, {device}" for device in ("GPU", "CPU") for side in ("PyTorch", "xpgrad")]
    table(heading, ["module", "input", *sides], lines)
    lines = []
    for images, kernel in _IMAGES:
        X, W = torch.randn(images, device="cuda"), torch.randn(kernel, device="cuda")
        times = medians([convolution(X, W, method) for method in _METHODS])
        lines.append([f"{images}, {kernel}", *(f"{took:.2f}" for took in times)])
    table("Forward and gradients of a convolution by method, ms", ["images, kernel", *_METHODS], lines)


if __name__ == "__main__":
    main()
