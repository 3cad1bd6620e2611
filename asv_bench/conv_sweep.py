"""Measures the methods of convolution on both sides of every switch of the cost rule.

    python asv_bench/conv_sweep.py                       # print tables of milliseconds
    python asv_bench/conv_sweep.py --plot docs/conv.svg  # and draw them

A step is a forward and both gradients in float32, on tensors if torch is installed, else on NumPy arrays. A
star marks the choice of ``method="auto"`` for the forward. Its time should be the smallest of its row, or
close to it.
"""

import argparse
import statistics
from typing import NamedTuple

import array_api_compat
import numpy as np

import xpgrad
from xpgrad._conv.choice import METHODS, preferred
from xpgrad._conv.geometry import conv_geometry
from xpgrad.engine import choose
from xpgrad_bench.timing import in_turns


class Sweep(NamedTuple):
    """Convolutions (X's shape, W's shape, group), by one size that varies; all have the same strides.

    If it is `dilated`, the size is the dilation.
    """

    title: str
    varies: str
    methods: tuple[str, ...]
    cases: dict[int, tuple[tuple[int, ...], tuple[int, ...], int]]
    strides: int = 1
    dilated: bool = False


SWEEPS = (
    Sweep(
        "N, C, size, O = 4, 16, 64, 16",
        "kernel (square)",
        ("fft", "taps", "shifted", "patches"),
        {k: ((4, 16, 64, 64), (16, 16, k, k), 1) for k in (5, 7, 9, 11, 15, 31)},
    ),
    Sweep(
        "N, C, size, O = 8, 64, 28, 64",
        "kernel (square)",
        ("fft", "taps", "shifted", "patches"),
        {k: ((8, 64, 28, 28), (64, 64, k, k), 1) for k in (5, 7, 9, 11, 15)},
    ),
    Sweep(
        "1-D: N, C, size, O = 4, 16, 4096, 16",
        "kernel",
        ("fft", "winograd", "taps", "shifted", "patches"),
        {k: ((4, 16, 4096), (16, 16, k), 1) for k in (17, 33, 65, 129, 257, 1025)},
    ),
    Sweep(
        "depthwise: N, C, size = 8, 32, 64",
        "kernel (square)",
        ("fft", "taps"),
        {k: ((8, 32, 64, 64), (32, 1, k, k), 32) for k in (3, 7, 11, 15, 21, 31)},
    ),
    Sweep(
        "3 x 3: N, size = 8, 28; C = O",
        "channels",
        ("winograd", "taps", "shifted", "patches"),
        {c: ((8, c, 28, 28), (c, c, 3, 3), 1) for c in (4, 8, 12, 16, 24, 32, 64, 128)},
    ),
    Sweep(
        "3 x 3: N, C, O = 8, 64, 64",
        "size",
        ("winograd", "taps", "shifted", "patches", "clipped"),
        {s: ((8, 64, s, s), (64, 64, 3, 3), 1) for s in (2, 3, 4, 5, 6, 7, 10, 14, 28)},
    ),
    Sweep(
        "3 x 3: C, size, O = 256, 7, 256",
        "images",
        ("winograd", "taps", "shifted", "patches"),
        {n: ((n, 256, 7, 7), (256, 256, 3, 3), 1) for n in (1, 2, 4, 8, 16, 32)},
    ),
    Sweep(
        "5 x 5: N, size = 8, 14; C = O",
        "channels",
        ("winograd", "taps", "shifted", "patches"),
        {c: ((8, c, 14, 14), (c, c, 5, 5), 1) for c in (4, 8, 12, 16, 24, 32, 64, 128)},
    ),
    Sweep(
        "3 x 3: N, C, size, O = 4, 128, 33, 128",
        "dilation",
        ("winograd", "taps", "shifted", "patches", "clipped"),
        dict.fromkeys((1, 2, 4, 6, 12, 18, 24), ((4, 128, 33, 33), (128, 128, 3, 3), 1)),
        dilated=True,
    ),
    Sweep(
        "7 taps: N, size = 8, 128; C = O",
        "channels",
        ("winograd", "taps", "shifted", "patches"),
        {c: ((8, c, 128), (c, c, 7), 1) for c in (8, 16, 32, 64, 128, 256)},
    ),
    Sweep(
        "groups of 3 x 3: N, C, size = 8, 64, 28",
        "channels in a group",
        ("winograd", "taps", "shifted", "patches"),
        {c: ((8, 64, 28, 28), (64, c, 3, 3), 64 // c) for c in (1, 2, 4, 8, 16, 32)},
    ),
    Sweep(
        "1 x 1: N, C, O = 8, 128, 128",
        "size",
        ("pointwise", "patches", "taps"),
        {s: ((8, 128, s, s), (128, 128, 1, 1), 1) for s in (1, 4, 7, 8, 14, 28, 56)},
    ),
    Sweep(
        "3 x 3 at stride 2: N, size = 8, 28; O = 2 C",
        "channels",
        ("patches", "taps"),
        {c: ((8, c, 28, 28), (2 * c, c, 3, 3), 1) for c in (8, 16, 32, 64, 128)},
        2,
    ),
    Sweep(
        "5 x 5 at stride 2: N, C, O = 8, 64, 128",
        "size",
        ("winograd", "patches", "taps"),
        {s: ((8, 64, s, s), (128, 64, 5, 5), 1) for s in (7, 8, 14, 16, 28, 32, 56)},
        2,
    ),
    Sweep(
        "4 x 4 at stride 2: N, C, O = 8, 128, 256",
        "size",
        ("winograd", "patches", "taps"),
        {s: ((8, 128, s, s), (256, 128, 4, 4), 1) for s in (4, 8, 16, 32)},
        2,
    ),
    Sweep(
        "3 x 3 x 3: N, size = 2, 16; C = O",
        "channels",
        ("winograd", "patches", "taps"),
        {c: ((2, c, 16, 16, 16), (c, c, 3, 3, 3), 1) for c in (8, 16, 32, 64)},
    ),
)


def make(shape):
    """Random numbers, as a tensor if torch is installed."""
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    try:
        import torch
    except ImportError:
        return values
    return torch.from_numpy(values)


def measure(sweep, seconds):
    """{size: ({method: milliseconds}, the rule's choice)}."""
    rows = {}
    for size, (X, W, group) in sweep.cases.items():
        dilation = size if sweep.dilated else 1
        attributes = {
            "pads": [dilation * (k - 1) // 2 for k in W[2:]], "dilations": dilation,
            "strides": sweep.strides, "group": group,
        }  # fmt: skip
        geometry = conv_geometry("sweep", X, W, auto_pad="NOTSET", **attributes)
        x, w, dy = make(X), make(W), make(geometry.output_shape)

        def step(method, x=x, w=w, dy=dy, attributes=attributes):
            xpgrad.conv(x, w, method=method, **attributes)
            xpgrad.conv_grad(dy, x, w, method=method, wrt=("X", "W"), **attributes)

        engine = choose(array_api_compat.array_namespace(x), [x], "sweep")
        found = {}
        for name in sweep.methods:
            [times] = in_turns({name: lambda n=name: step(n)}, seconds, 3).values()
            found[name] = 1e3 * statistics.median(times)
        rows[size] = (found, preferred(engine, geometry))
    return rows


def show(sweep, rows):
    """Print a table."""
    print(f"\n{sweep.title}\n| {sweep.varies} | {' | '.join(sweep.methods)} |")
    print(f"| --- |{' ---: |' * len(sweep.methods)}")
    for size, (found, chosen) in rows.items():
        cells = [f"{found[name]:.2f}{' *' if name == chosen else ''}" for name in sweep.methods]
        print(f"| {size} | {' | '.join(cells)} |", flush=True)


def draw(results, path):
    """All sweeps in one picture: a curve for each method, a ring around the rule's choices."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = dict(zip(METHODS, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    figure, axes = plt.subplots(3, -(-len(results) // 3), figsize=(19, 10), layout="constrained")
    for axis in axes.flat[len(results) :]:
        axis.axis("off")
    for axis, (sweep, rows) in zip(axes.flat, results, strict=False):
        for name in sweep.methods:
            axis.plot(
                list(rows), [found[name] for found, _ in rows.values()], color=colours[name], label=name
            )
        taken = [(size, found[chosen]) for size, (found, chosen) in rows.items() if chosen in found]
        axis.plot(*zip(*taken, strict=True), "o", color="black", fillstyle="none", label="auto")
        axis.set_title(sweep.title, fontsize="medium")
        axis.set(xlabel=sweep.varies, ylabel="ms", xscale="log", yscale="log")
        axis.set_xticks(list(rows), [str(size) for size in rows])
        axis.minorticks_off()
        axis.legend()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", metavar="FILE", help="draw the results")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each method and size (default: 0.3)")
    args = parser.parse_args()
    results = []
    for sweep in SWEEPS:
        results.append((sweep, measure(sweep, args.seconds)))
        show(*results[-1])
    if args.plot:
        draw(results, args.plot)


if __name__ == "__main__":
    main()
