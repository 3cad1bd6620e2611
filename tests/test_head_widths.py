"""Heads of every width: each head's columns meet their own blocks of R alone, however a loop runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import xpgrad
from xpgrad import Cell, engine
from xpgrad._calls import families
from xpgrad._operators.axes import gradient_name
from xpgrad.cells import mean, sigmoid
from xpgrad.engine.compiled import machine, time_loops
from xpgrad.engine.process import sharing
from xpgrad.engine.programs.recorder import Recorder
from xpgrad.testing import cell_reference, to_numpy

I = 2


def mixed(xp: Any, x: Any, h: Any, c: Any, W: Any, R: Any) -> Any:
    """Blocks of R apart with one state, and one with another value; a mean within each head."""
    a = xp.tanh(W.a(x) + R.a(h))
    c = sigmoid(xp, c + R.c(h)) * c + xp.tanh(R.b(a * h)) - mean(xp, a * c)
    return a * xp.tanh(c), c


CELLS = {heads: Cell(mixed, W="a", R="a b c", heads=heads) for heads in (1, 2, 3, 4)}


def operands_of(
    heads: int, width: int, T: int, N: int, D: int = 1, dtype: str = "float64"
) -> dict[str, np.ndarray]:
    rng, H = np.random.default_rng(width), heads * width
    shapes = {"X": (T, N, I), "W": (D, H, I), "R": (D, 3 * H, width)}
    shapes |= dict.fromkeys(("initial_h", "initial_c"), (D, N, H))
    scale = {"R": width**-0.5}
    return {
        name: (rng.normal(size=shape) * scale.get(name, 1.0)).astype(dtype) for name, shape in shapes.items()
    }


def by_autograd(heads: int, operands: dict[str, np.ndarray], lengths: Any, direction: str) -> Any:
    """Outputs of the plain loop, random cotangents of them, and its gradients."""
    tensors = {name: torch.from_numpy(x).requires_grad_() for name, x in operands.items()}
    cell, initial = CELLS[heads], {state: tensors[f"initial_{state}"] for state in "hc"}
    weights = [tensors[kind] for kind in "XWR"]
    plain = cell_reference(cell, *weights, None, lengths, initial, direction=direction)
    rng = np.random.default_rng(1)
    seeds = [rng.normal(size=tuple(y.shape)).astype(operands["X"].dtype) for y in plain]
    grads = torch.autograd.grad(plain, list(tensors.values()), list(map(torch.from_numpy, seeds)))
    named = dict(zip(cell.cotangents.values(), seeds, strict=True))
    outputs = dict(zip(cell.cotangents, [y.detach().numpy() for y in plain], strict=True))
    wanted = {gradient_name(key): grad.numpy() for key, grad in zip(tensors, grads, strict=True)}
    return outputs, named, wanted


def check(
    heads: int, operands: dict[str, np.ndarray], lengths: Any, direction: str, asarray: Any = np.asarray,
    tolerance: float = 1e-11,
) -> None:  # fmt: skip
    """A call is the plain loop, and so is the next one, which runs from its program."""
    outputs, seeds, wanted = by_autograd(heads, operands, lengths, direction)
    given, cotangents = ({key: asarray(x) for key, x in part.items()} for part in (operands, seeds))
    for _ in range(2):
        found, pullback = xpgrad.vjp(CELLS[heads], **given, sequence_lens=lengths, direction=direction)
        grads = pullback(**cotangents)
        for results, expected in ((found, outputs), (grads, wanted)):
            for key, value in expected.items():
                own = to_numpy(getattr(results, key))
                np.testing.assert_allclose(own, value, rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.parametrize(
    ("heads", "width", "direction", "lengths"),
    [
        (2, 5, "bidirectional", [5, 0, 3, 1]),
        (3, 12, "reverse", [2, 5, 5, 4]),
        (2, 33, "forward", [5, 0, 3, 1]),
        (4, 20, "forward", None),
        (4, 1, "bidirectional", None),
        pytest.param(2, 300, "bidirectional", [3, 5], marks=pytest.mark.long),  # more than a block of a sum
    ],
)
def test_every_width(heads: int, width: int, direction: str, lengths: Any) -> None:
    D = 2 if direction == "bidirectional" else 1
    check(heads, operands_of(heads, width, 5, len(lengths or range(4)), D), lengths, direction)


@pytest.mark.parametrize(("heads", "width", "N"), [(2, 5, 3), (4, 12, 1)])
def test_a_single_step(heads: int, width: int, N: int) -> None:
    check(heads, operands_of(heads, width, 1, N), None, "forward")


@pytest.mark.parametrize("heads", [2, 4])
def test_single_precision(heads: int) -> None:
    operands = operands_of(heads, 20, 4, 17, dtype="float32")
    check(heads, operands, None, "forward", tolerance=2e-4)


@pytest.mark.parametrize(
    "lengths", [None, pytest.param([5, 0, 3], marks=pytest.mark.long)], ids=["full", "lengths"]
)
@pytest.mark.parametrize(("heads", "width"), [(2, 57), (4, 12)], ids=["a head of two", "several heads each"])
def test_threads_share_columns(
    heads: int, width: int, lengths: Any, compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = engine._adapter("torch")
    if host is None or host.team.addresses is None:
        pytest.skip("no OpenMP team: only compiled code that starts the threads divides columns")
    shared = []
    loop = time_loops.compiled_loop

    def noting(stages: Any, dtype: str, by_stages: bool = False, resets: Any = None) -> Any:
        shared.append(by_stages)
        return loop(stages, dtype, by_stages, resets)

    monkeypatch.setattr(time_loops, "compiled_loop", noting)
    monkeypatch.setattr(families, "known", families.CallCache())
    monkeypatch.setattr(machine, "_SAVED", -(1 << 60))
    monkeypatch.setattr(machine, "_TILE_ROWS", 2)
    for name in ("TIME_LOOP", "PRODUCT", "COPY"):
        monkeypatch.setattr(sharing, name, 0)
    monkeypatch.setattr(host.team, "is_quick", lambda: True)
    monkeypatch.setattr(host.team, "size", lambda: 3)
    check(heads, operands_of(heads, width, 5, 3), lengths, "forward", torch.from_numpy)
    assert any(shared)


@pytest.mark.parametrize("heads", [2, 4])
def test_resets(heads: int) -> None:
    operands = operands_of(heads, 5, 6, 4)
    reset = np.random.default_rng(3).uniform(size=(6, 4)) < 0.4
    results = []
    for name in ("standard", None):
        with xpgrad.use_engine(name):
            found, pullback = xpgrad.vjp(CELLS[heads], **operands, reset=reset, sequence_lens=[6, 4, 0, 5])
            results.append([*found, *pullback(np.cos(found.H_all), np.sin(found.C_all))])
    for expected, own in zip(*results, strict=True):
        if expected is not None:
            np.testing.assert_allclose(own, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("unplanned")
@pytest.mark.parametrize("compiling", ["1", "0"])
def test_without_programs(compiling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPGRAD_JIT", compiling)
    check(2, operands_of(2, 5, 5, 4, 2), [5, 0, 3, 1], "bidirectional")


def test_no_loop_multiplies_zeros_between_heads(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    weighed = Recorder.loop_weight

    def noting(self: Any, weight: Any, times: int) -> Any:
        sizes.append(weight.size)
        return weighed(self, weight, times)

    monkeypatch.setattr(Recorder, "loop_weight", noting)
    monkeypatch.setattr(families, "known", families.CallCache())
    rng = np.random.default_rng(0)
    X, W, R = (rng.normal(size=shape) for shape in [(3, 2, I), (1, 32, I), (1, 32, 2)])
    found, pullback = xpgrad.vjp(xpgrad.slstm, X, W, R, heads=4)
    pullback(found.H_all)
    assert sizes == [R.size] * 2
