"""What xpgrad_torch.GRU has on top of torch.nn.GRU."""

import pytest
import torch

import xpgrad_torch
from torch_cases import H, I, N, T, flat, random_states


def naive(module, X, h):
    """One layer, one direction, step by step, in the words of the module's docstring."""
    bound = float("inf") if module.clip is None else module.clip
    W_r, W_z, W_n = module.weight_ih_l0.chunk(3)
    R_r, R_z, R_n = module.weight_hh_l0.chunk(3)
    b_r, b_z, b_n = module.bias_ih_l0.chunk(3)
    v_r, v_z, v_n = module.bias_hh_l0.chunk(3)
    outputs = []
    for x in X:
        r = (x @ W_r.T + b_r + h @ R_r.T + v_r).clamp(-bound, bound).sigmoid()
        z = (x @ W_z.T + b_z + h @ R_z.T + v_z).clamp(-bound, bound).sigmoid()
        recurrent = r * (h @ R_n.T + v_n) if module.reset_after else (r * h) @ R_n.T + v_n
        n = (x @ W_n.T + b_n + recurrent).clamp(-bound, bound).tanh()
        h = (1 - z) * n + z * h
        outputs.append(h)
    return torch.stack(outputs), h[None]


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("clip", [None, 0.4])
def test_options_against_plain_loop(reset_after, clip):
    torch.manual_seed(4)
    module = xpgrad_torch.GRU(I, H, reset_after=reset_after, clip=clip, dtype=torch.float64)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    (state,) = random_states(module)
    leaves = [X, state, *module.parameters()]
    got, expected = flat(module(X, state)), flat(naive(module, X, state[0]))
    cotangents = [torch.randn_like(y) for y in got]
    results = [torch.autograd.grad(y, leaves, cotangents) for y in (got, expected)]
    for a, b in zip([*got, *results[0]], [*expected, *results[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_reset_conventions_differ():
    torch.manual_seed(4)
    after = xpgrad_torch.GRU(I, H, dtype=torch.float64)
    before = xpgrad_torch.GRU(I, H, reset_after=False, dtype=torch.float64)
    before.load_state_dict(after.state_dict())
    X = torch.randn(T, N, I, dtype=torch.float64)
    assert not torch.allclose(after(X)[0], before(X)[0], rtol=1e-3)


def test_activations_of_both_directions():
    torch.manual_seed(4)
    module = xpgrad_torch.GRU(
        I,
        H,
        bidirectional=True,
        dtype=torch.float64,
        activations=["HardSigmoid", "Tanh", "Sigmoid", "Relu"],
        activation_alpha=[1 / 6],
        activation_beta=[0.5],
    )
    X = 3 * torch.randn(T, N, I, dtype=torch.float64)
    output, _ = module(X)
    choices = [(torch.nn.functional.hardsigmoid, torch.tanh), (torch.sigmoid, torch.relu)]
    for d, (suffix, (f, g)) in enumerate(zip(("l0", "l0_reverse"), choices, strict=True)):
        W, R, b, v = (
            module.get_parameter(f"{name}_{suffix}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h = torch.zeros(N, H, dtype=torch.float64)
        for t in range(T)[:: -1 if d else 1]:
            x_r, x_z, x_n = (X[t] @ W.T + b).chunk(3, dim=-1)
            h_r, h_z, h_n = (h @ R.T + v).chunk(3, dim=-1)
            z = f(x_z + h_z)
            h = (1 - z) * g(x_n + f(x_r + h_r) * h_n) + z * h
            torch.testing.assert_close(output[t, :, d * H : (d + 1) * H], h, rtol=1e-11, atol=1e-12)
