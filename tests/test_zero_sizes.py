"""Sizes of zero compute, and nothing complains: a BLAS prints its errors past Python."""

from __future__ import annotations

import numpy as np
import pytest

import xpgrad

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
SIZES = [(5, 3, 2, 0), (5, 0, 2, 4), (0, 3, 2, 4), (5, 3, 0, 4), (0, 0, 0, 0), (1, 1, 1, 0)]  # T, N, I, H
every_operator = pytest.mark.parametrize("operator", list(GATES))
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)


def recurrent_arrays(
    operator: str, sizes: tuple[int, ...], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    (T, N, I, H), gates = sizes, GATES[operator]
    shapes = {"X": (T, N, I), "W": (2, gates * H, I), "R": (2, gates * H, H), "B": (2, 2 * gates * H)}
    shapes |= {"initial_h": (2, N, H)} | ({"initial_c": (2, N, H)} if operator == "lstm" else {})
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def silent(capfd):
    """Fails a test that writes to the process's standard output or error."""
    yield
    written = capfd.readouterr()
    assert written.out == "", written.out
    assert written.err == "", written.err


@every_size
@every_operator
@pytest.mark.parametrize("lengths", [False, True])
def test_operators(operator, sizes, lengths, rng, silent):
    arrays = recurrent_arrays(operator, sizes, rng)
    T, N, _, H = sizes
    more = {"sequence_lens": np.full(N, T // 2)} if lengths else {}
    for _ in range(2):
        forward, pullback = xpgrad.vjp(getattr(xpgrad, operator), **arrays, **more, direction="bidirectional")
        grads = pullback(grad_H_all=np.ones_like(forward.H_all), grad_H_t=np.ones_like(forward.H_t))
        assert forward.H_all.shape == (T, 2, N, H)
        for name, gradient in zip(("dX", "dW", "dR", "dB"), "XWRB", strict=True):
            assert getattr(grads, name).shape == arrays[gradient].shape
            assert np.isfinite(getattr(grads, name)).all()


@every_size
@every_operator
def test_cells(operator, sizes, rng, silent):
    arrays = {name: a[0] for name, a in recurrent_arrays(operator, (1, *sizes[1:]), rng).items()}
    states = {"initial_h": "H", "initial_c": "C"}
    arrays = {states.get(name, name): a for name, a in arrays.items()}
    for _ in range(2):
        forward, pullback = xpgrad.vjp(getattr(xpgrad, f"{operator}_cell"), **arrays)
        grads = pullback(grad_H=np.ones_like(forward.H_next))
        assert forward.H_next.shape == (sizes[1], sizes[3])
        assert grads.dW.shape == arrays["W"].shape


@pytest.mark.parametrize("module", ["LSTM", "GRU", "RNN"])
@every_size
def test_modules(module, sizes, silent):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    xpgrad_torch = pytest.importorskip("xpgrad_torch")
    T, N, I, H = sizes
    X = torch.ones(T, N, I, requires_grad=True)
    if H:
        layer = getattr(xpgrad_torch, module)(I, H, num_layers=2, bidirectional=True) if I else None
        if layer is not None:
            for _ in range(2):
                layer(X)[0].sum().backward()
            assert X.grad.shape == X.shape
    cell = getattr(xpgrad_torch, f"{module}Cell")(I, H)
    for _ in range(2):
        end = cell(torch.ones(N, I))
        (end[0] if module == "LSTM" else end).sum().backward()
    assert cell.weight_hh.grad.shape == cell.weight_hh.shape
