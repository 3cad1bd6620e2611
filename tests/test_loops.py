"""The helper for loops of one's own, on an Elman network and on a cell with two gates."""

import numpy as np
import pytest

import xpgrad
from xpgrad import gate_inputs, gate_inputs_grad


def arrays(T=6, N=2, I=3, H=5, seed=0):
    rng = np.random.default_rng(seed)
    X, W, R, b, h0 = (rng.normal(size=s) * 0.5 for s in [(T, N, I), (H, I), (H, H), (H,), (N, H)])
    return X, W, R, b, h0, rng.normal(size=(T, N, H))


def elman(X, W, R, b, h0):
    h, states = h0, []
    for z in gate_inputs(X, W, b):
        h = np.tanh(z + h @ R.T)
        states.append(h)
    return np.stack(states)


@pytest.mark.parametrize("engine", ["numpy", "standard"])
@pytest.mark.parametrize("with_state", [True, False])
def test_elman_against_differences(engine, with_state):
    X, W, R, b, h0, d = arrays()
    h0 = h0 if with_state else np.zeros_like(h0)
    with xpgrad.use_engine(engine):
        H_all = elman(X, W, R, b, h0)
        dZ, dh = np.empty_like(H_all), np.zeros_like(h0)
        for t in reversed(range(len(X))):
            dZ[t] = (d[t] + dh) * (1 - H_all[t] ** 2)
            dh = dZ[t] @ R
        grads = gate_inputs_grad(dZ, X, W, H_all, h0 if with_state else None)
    arguments = {"X": X, "W": W, "R": R, "B": b}
    for name, gradient in zip(("X", "W", "R", "B"), grads, strict=True):
        for index in np.ndindex(arguments[name].shape):

            def loss(step, name=name, index=index):
                changed = {key: array.copy() for key, array in arguments.items()}
                changed[name][index] += step
                return np.sum(elman(changed["X"], changed["W"], changed["R"], changed["B"], h0) * d)

            slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
            assert gradient[index] == pytest.approx(slope, rel=1e-6, abs=1e-8), (name, index)


def test_wrt_and_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X, W, _, b, _, d = arrays()
    full = gate_inputs_grad(d, X, W, d)
    some = gate_inputs_grad(d, X, W, d, wrt=["R", "B"])
    assert some.dX is None
    assert some.dW is None
    np.testing.assert_array_equal(some.dR, full.dR)
    tensors = [torch.from_numpy(a) for a in (d, X, W, d)]
    for ours, theirs in zip(full, gate_inputs_grad(*tensors), strict=True):
        np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-12)
    half = [torch.from_numpy(a).to(torch.bfloat16) for a in (X, W, b)]
    assert gate_inputs(*half).dtype == torch.bfloat16


def test_empty():
    X, W, _, b, _, _ = arrays(T=0)
    assert gate_inputs(X, W, b).shape == (0, 2, 5)
    grads = gate_inputs_grad(np.zeros((0, 2, 5)), X, W, np.zeros((0, 2, 4)))
    assert [g.shape for g in grads] == [(0, 2, 3), (5, 3), (5, 4), (5,)]
    assert not np.any(grads.dR)


def test_bad_input():
    X, W, _, b, _, d = arrays()
    with pytest.raises(ValueError, match=r"^gate_inputs: W has shape \(5, 2\), expected \(G, I\) = \(5, 3\)"):
        gate_inputs(X, W[:, :2], b)
    with pytest.raises(ValueError, match=r"^gate_inputs: B has shape \(4,\), expected \(G,\) = \(5,\)"):
        gate_inputs(X, W, b[:4])
    with pytest.raises(TypeError, match=r"^gate_inputs: W is None, expected an array"):
        gate_inputs(X, None)
    with pytest.raises(
        ValueError, match=r"^gate_inputs_grad: dZ has shape \(5, 2, 5\), expected \(T, N, G\) ="
    ):
        gate_inputs_grad(d[1:], X, W, d)
    with pytest.raises(
        ValueError, match=r"^gate_inputs_grad: wrt has 'h', expected names of 'X', 'W', 'R', 'B'"
    ):
        gate_inputs_grad(d, X, W, d, wrt=["h"])
