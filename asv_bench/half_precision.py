"""Training steps of PyTorch's layers and of xpgrad_torch's in half precision, on the CPU.

    python asv_bench/half_precision.py

Each figure is the median of interleaved steps: forward, and backward for all gradients.
"""

from typing import Any

import torch
from torch import nn

import xpgrad_torch
from gpu import medians, step
from xpgrad.cli.console import Progress, table
from xpgrad.cli.info import read_cpu

_LAYERS: list[tuple[str, tuple[int, ...], dict[str, Any], tuple[int, ...]]] = [
    ("LSTM", (64, 64), {}, (50, 32, 64)),
    ("GRU", (64, 64), {}, (50, 32, 64)),
    ("Conv2d", (64, 64, 3), {"padding": 1}, (8, 64, 28, 28)),
    ("Conv2d", (256, 256, 3), {"padding": 1}, (8, 256, 14, 14)),
    ("Conv2d", (96, 96, 3), {"padding": 1, "groups": 96}, (8, 96, 28, 28)),
    ("Conv1d", (64, 64, 7), {"padding": 3}, (8, 64, 500)),
]


def main() -> None:
    """Print a line for each layer and dtype."""
    lines = []
    works = [(dtype, layer) for dtype in (torch.bfloat16, torch.float16) for layer in _LAYERS]
    for dtype, (name, arguments, options, shape) in Progress(works, "layers"):
        X = torch.randn(shape, dtype=dtype, requires_grad=True)
        layers = [getattr(family, name)(*arguments, **options, dtype=dtype) for family in (nn, xpgrad_torch)]
        label = [f"{name}{arguments}", " x ".join(map(str, shape)), str(dtype).removeprefix("torch.")]
        try:
            theirs, ours = medians([step(layer, X) for layer in layers])
        except RuntimeError:  # oneDNN has no LSTM in float16 for most CPUs
            lines.append([*label, "-", f"{medians([step(layers[1], X)])[0]:.2f}", "-"])
            continue
        lines.append([*label, f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.2f}"])
    heading = f"Training steps on {read_cpu().label}, {torch.get_num_threads()} threads, ms"
    table(heading, ["layer", "input", "dtype", "PyTorch", "xpgrad", "speedup"], lines)


if __name__ == "__main__":
    main()
