"""Variants of recurrent layers compared with the alternatives: speedup and memory.

    python asv_bench/variants.py layer_norm cells projection private

- layer_norm: `LayerNormLSTM` and `LayerNormGRU`, and a loop over PyTorch's `layer_norm` with autograd.
- cells: the cells of examples/cells, and a loop.
- projection: `LSTM(proj_size=...)`, and torch.nn's.
- private: a step that clips the samples' gradients by their norms, and a plain step; the times, and the
  memory of both in separate processes.

Both sides of a ratio run in turns, forward and backward; the medians count.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import layer_norm, linear

import xpgrad_torch
from xpgrad.engine.process.settings import jit_enabled
from xpgrad_bench.timing import in_turns

SHAPES = ((50, 32, 64, 64), (50, 32, 256, 256))
PRIVATE = (50, 256, 128, 256)
PROJECTED = ((50, 32, 256, 256, 128), (50, 32, 64, 64, 32))


def medians(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float = 4.0) -> tuple[float, float]:
    """Both times in ms, measured in turns."""
    own, other = in_turns({"ours": ours, "theirs": theirs}, seconds, 5).values()
    return 1e3 * median(own), 1e3 * median(other)


def report(name: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    """Print a ratio."""
    own, other = medians(ours, theirs)
    print(f"{name}: {own:.2f} ms, the other {other:.2f} ms: {other / own:.2f} times as fast", flush=True)


def _lstm_loop(X: Any, W: Any, R: Any, B: Any, gamma: Any, beta: Any, gamma_c: Any, beta_c: Any) -> Any:
    H = R.shape[1]
    Z = layer_norm(linear(X, W), (4 * H,), gamma[0], beta[0]) + B[: 4 * H] + B[4 * H :]
    h, c, outputs = X.new_zeros(X.shape[1], H), X.new_zeros(X.shape[1], H), []
    for z in Z:
        i, o, f, g = (z + layer_norm(linear(h, R), (4 * H,), gamma[1], beta[1])).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(layer_norm(c, (H,), gamma_c, beta_c))
        outputs.append(h)
    return torch.stack(outputs)


def _gru_loop(X: Any, W: Any, R: Any, B: Any, gamma: Any, beta: Any) -> Any:
    H = R.shape[1]
    A = layer_norm(linear(X, W), (3 * H,), gamma[0], beta[0]) + B[: 3 * H]
    h, outputs = X.new_zeros(X.shape[1], H), []
    for a in A:
        p = layer_norm(linear(h, R), (3 * H,), gamma[1], beta[1]) + B[3 * H :]
        (a_z, a_r, a_n), (p_z, p_r, p_n) = a.chunk(3, 1), p.chunk(3, 1)
        z, r = torch.sigmoid(a_z + p_z), torch.sigmoid(a_r + p_r)
        n = torch.tanh(a_n + r * p_n)
        h = n + z * (h - n)
        outputs.append(h)
    return torch.stack(outputs)


def measure_layer_norm() -> None:
    """The loops also compute the input's product and its normalization before the first step."""
    for T, N, I, H in SHAPES:
        for kind, loop in ((xpgrad_torch.LayerNormLSTM, _lstm_loop), (xpgrad_torch.LayerNormGRU, _gru_loop)):
            module, X, d = kind(I, H), torch.randn(T, N, I), torch.randn(T, N, H)
            parameters = list(module.parameters())
            report(
                f"{kind.__name__} {T}·{N}·{I}·{H}",
                lambda m=module, X=X, p=parameters, d=d: torch.autograd.grad(m(X)[0], p, d),
                lambda X=X, p=parameters, d=d, loop=loop: torch.autograd.grad(
                    loop(X, *(q[0] for q in p)), p, d
                ),
            )


def measure_cells() -> None:
    """The cells of the examples, at the first shape."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "cells"))
    T, N, I, H = SHAPES[0]
    X, d = torch.randn(T, N, I), torch.randn(T, N, H)
    for name in ("minimal_gated_unit", "simple_recurrent_unit", "peephole_gru", "layer_norm_lstm"):
        example = __import__(name)
        layer = xpgrad_torch.CellLayer(example.cell, I, H)
        parameters = list(layer.parameters())
        report(
            f"{name} {T}·{N}·{I}·{H}",
            lambda m=layer, p=parameters: torch.autograd.grad(m(X)[0], p, d),
            lambda e=example, p=parameters: torch.autograd.grad(e.loop(X, *(q[0] for q in p)), p, d),
        )


def measure_projection() -> None:
    """Ours and torch.nn.LSTM with the same parameters."""
    for T, N, I, H, proj in PROJECTED:
        theirs, ours = (kind(I, H, proj_size=proj) for kind in (torch.nn.LSTM, xpgrad_torch.LSTM))
        X, d = torch.randn(T, N, I), torch.randn(T, N, proj)
        report(
            f"LSTM(proj_size={proj}) {T}·{N}·{I}·{H}",
            lambda m=ours, X=X, d=d: torch.autograd.grad(m(X)[0], list(m.parameters()), d),
            lambda m=theirs, X=X, d=d: torch.autograd.grad(m(X)[0], list(m.parameters()), d),
        )


def _steps() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A plain step of an LSTM, and its step with Opacus' ghost clipping."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    T, N, I, H = PRIVATE
    X, d = torch.randn(T, N, I), torch.randn(T, N, H)
    plain = xpgrad_torch.LSTM(I, H)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        (plain(X)[0] * d).sum((0, 2)).mean().backward()
        optimizer.step()

    private = GradSampleModuleFastGradientClipping(
        xpgrad_torch.LSTM(I, H), batch_first=False, max_grad_norm=1.0
    )
    clipping = DPOptimizerFastGradientClipping(
        torch.optim.SGD(private.parameters(), lr=1e-6), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=N,
    )  # fmt: skip

    def private_step() -> None:
        clipping.zero_grad()
        losses = (private(X)[0] * d).sum((0, 2))
        DPTensorFastGradientClipping(private, clipping, losses).backward()
        clipping.step()

    return step, private_step


def measure_private() -> None:
    """Time in turns; memory beyond the process's earlier memory, in a process for each."""
    plain, private = _steps()
    own, other = medians(plain, private, 12.0)
    print(
        f"private step {'·'.join(map(str, PRIVATE))}: {other:.0f} ms, plain {own:.0f} ms: "
        f"{other / own:.2f} times"
    )
    held = []
    for which in ("0", "1"):
        command = [sys.executable, __file__, "--memory", which]
        held.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    print(f"memory: {held[1]:.0f} MB, plain {held[0]:.0f} MB: {held[1] / held[0]:.2f} times")


def _memory(which: int) -> None:
    step = _steps()[which]
    small = torch.randn(2, 2, PRIVATE[2])
    xpgrad_torch.LSTM(*PRIVATE[2:])(small)[0].sum().backward()  # allocations that happen only once
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far, of the imports
    for _ in range(3):
        step()
    print(_status("VmHWM") - before)


def _status(name: str) -> float:
    """A number of MB that Linux keeps of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


MEASURES = {
    "layer_norm": measure_layer_norm,
    "cells": measure_cells,
    "projection": measure_projection,
    "private": measure_private,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*MEASURES, []], help="default: all")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.memory is not None:
        _memory(options.memory)
        return
    compiled = "compiled" if jit_enabled() else "not compiled"
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {compiled}")
    for name in options.what or MEASURES:
        MEASURES[name]()


if __name__ == "__main__":
    main()
