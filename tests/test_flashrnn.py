"""FlashRNN's plain functions and ours: the same outputs and gradients, in float64."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import xpgrad
from xpgrad.cells import sigmoid
from xpgrad_torch import functional, run_cell

T, N, H = 5, 3, 4
COUNTS = {"elman": (1, 1, 1, 1), "lstm": (4, 4, 4, 2), "gru": (3, 3, 4, 1), "slstm": (4, 4, 4, 4)}
"""Gates of the input, of R, of the bias, and states."""


@pytest.fixture(scope="module")
def vanilla() -> ModuleType:
    """Their folder of functions alone: the package around it asks for a compiler of CUDA."""
    found = importlib.util.find_spec("flashrnn")
    if found is None or not found.submodule_search_locations:
        pytest.skip("flashrnn is not installed")
    path = Path(found.submodule_search_locations[0], "flashrnn", "vanilla", "__init__.py")
    spec = importlib.util.spec_from_file_location("flashrnn_vanilla", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flashrnn_vanilla"] = module
    spec.loader.exec_module(module)
    return module


def operands(function: str, heads: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    of_input, of_state, of_bias, states = COUNTS[function]
    shapes = {
        "Wx": (T, N, of_input, heads, H // heads),
        "R": (heads, H // heads, of_state, H // heads),
        "b": (of_bias, heads, H // heads),
        "states": (1, N, states, heads, H // heads),
    }
    found = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    if function == "slstm":
        found["states"] = torch.zeros_like(found["states"])  # they start a sequence where n is 0
    return {name: x.requires_grad_() for name, x in found.items()}


def blocks(R: Tensor, order: list[int]) -> Tensor:
    """Their R as ours with zeros between the heads, (1, gates H, H)."""
    return torch.cat([torch.block_diag(*R[:, :, gate].transpose(1, 2)) for gate in order])[None]


def flat(x: Tensor, order: list[int]) -> Tensor:
    """Gates (..., gates, heads, D) in another order, as one axis."""
    return torch.cat([x[..., gate, :, :].flatten(-2) for gate in order], dim=-1)


def of_operator(function: str, heads: int, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Our operator on their pre-activations: the output (T, N, H) and the final states."""
    Wx, R, b, states = given.values()
    order = {"elman": [0], "lstm": [0, 3, 1, 2], "gru": [1, 0, 2], "slstm": [0, 1, 2, 3]}[function]
    x = flat(Wx, order)
    W = torch.eye(x.shape[-1], dtype=torch.float64)[None]
    initial = [states[:, :, k].flatten(-2) for k in range(states.shape[2])]
    if function == "gru":  # b of their candidate's product stands first
        inner = torch.cat([torch.zeros(2 * H, dtype=torch.float64), flat(b, [0])])
        B = torch.cat([flat(b, [2, 1, 3]), inner])[None]
        results = functional.gru(x, W, blocks(R, [2, 1, 0]), B, initial_h=initial[0], linear_before_reset=1)
    elif function == "slstm":
        R_heads = torch.cat([R[:, :, gate].transpose(1, 2).flatten(0, 1) for gate in order])[None]
        results = functional.slstm(x, W, R_heads, flat(b, order)[None], heads=heads)
    else:
        B = torch.cat([flat(b, order), torch.zeros(len(order) * H, dtype=torch.float64)])[None]
        names = dict(zip(("initial_h", "initial_c"), initial, strict=False))
        operator = functional.rnn if function == "elman" else functional.lstm
        results = operator(x, W, blocks(R, order), B, **names)
    output, *finals = results
    return output[:, 0], *finals


def assert_equal(vanilla: Any, function: str, given: dict[str, Tensor], ours: tuple[Tensor, ...]) -> None:
    """Output, final states, and all gradients."""
    pointwise = vanilla.flashrnn_pointwise_function_registry[function]
    sequence, last = vanilla.flashrnn_forward(
        *(given[name] for name in ("Wx", "states", "R", "b")), pointwise
    )
    theirs = [sequence[:, :, 0].flatten(-2), *last.flatten(-2).unbind(2)]
    seeds = [torch.randn_like(y) for y in theirs]
    used = [x for name, x in given.items() if name != "states" or function != "slstm"]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    found = [torch.autograd.grad(results, used, seeds) for results in (ours, theirs)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("function", COUNTS)
def test_operators(vanilla: ModuleType, function: str, heads: int) -> None:
    given = operands(function, heads)
    assert_equal(vanilla, function, given, of_operator(function, heads, given))


def test_an_own_cell_with_heads_on_pre_activations(vanilla: ModuleType) -> None:
    """FlashRNN's interface: the caller has W x, the cell has R and the bias."""

    def step(xp: Any, x: Any, h: Any, c: Any, R: Any, v: Any, gates: Any) -> tuple[Any, Any]:
        i, f, z, o = (getattr(gates, n) + getattr(R, n)(h) + getattr(v, n) for n in "ifzo")
        c = sigmoid(xp, f) * c + sigmoid(xp, i) * xp.tanh(z)
        return sigmoid(xp, o) * xp.tanh(c), c

    cell = xpgrad.Cell(step, R="i f z o", v="i f z o", inputs={"gates": "i f z o"}, heads=2)
    given = operands("lstm", 2)
    order = list(range(4))
    R = torch.cat([given["R"][:, :, gate].transpose(1, 2).flatten(0, 1) for gate in order])[None]
    x = flat(given["Wx"], order)
    initial = [given["states"][:, :, k].flatten(-2) for k in range(2)]
    H_all, _, *finals = run_cell(cell, x, None, R, flat(given["b"], order)[None], None, initial, gates=x)
    assert_equal(vanilla, "lstm", given, (H_all[:, 0], *finals))


def test_weights_by_convert(vanilla: ModuleType) -> None:
    """`convert` reads what the function's caller holds."""
    given = {name: x.detach().numpy() for name, x in operands("slstm", 2).items()}
    R, b = given["R"], given["b"]
    onnx = xpgrad.convert("slstm", {"R": R.transpose(2, 0, 3, 1), "b": b}, "flashrnn", "onnx")
    wanted = np.concatenate([R[:, :, gate].transpose(0, 2, 1).reshape(H, H // 2) for gate in range(4)])
    np.testing.assert_array_equal(onnx["R"], wanted)
