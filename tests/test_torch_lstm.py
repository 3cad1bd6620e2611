"""What xpgrad_torch.LSTM has on top of torch.nn.LSTM."""

import pytest
import torch
from torch import nn

import xpgrad_torch
from torch_cases import H, I, N, T, flat, gradients, random_states
from xpgrad._calls import families


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_an_input_made_in_inference_mode(kind):
    """Features of a frozen encoder, batch first: PyTorch's modules take them too."""
    module = getattr(xpgrad_torch, kind)(3, 4, batch_first=True)
    with torch.inference_mode():
        x = torch.randn(2, 5, 3)
    module(x)[0].sum().backward()
    got = module.weight_ih_l0.grad
    (expected,) = torch.autograd.grad(module(x.clone())[0].sum(), module.weight_ih_l0)
    assert got.equal(expected)


def test_same_seed_same_parameters_beside_peepholes():
    torch.manual_seed(7)
    theirs = nn.LSTM(I, H, 2, bidirectional=True)
    torch.manual_seed(7)
    ours = xpgrad_torch.LSTM(I, H, 2, bidirectional=True, peephole=True)
    for name, value in theirs.named_parameters():
        assert torch.equal(value, ours.get_parameter(name)), name
    extra = [name for name, _ in ours.named_parameters() if "peephole" in name]
    assert extra == [f"weight_peephole_l{k}{end}" for k in (0, 1) for end in ("", "_reverse")]
    for name in extra:
        weight = ours.get_parameter(name).detach()
        assert weight.shape == (3 * H,)
        assert 0 < weight.abs().max() <= H**-0.5
        assert len(weight.unique()) == 3 * H


def test_peepholes_are_missed_by_strict_loading():
    ours = xpgrad_torch.LSTM(I, H, peephole=True)
    with pytest.raises(RuntimeError, match="weight_peephole_l0"):
        ours.load_state_dict(nn.LSTM(I, H).state_dict())


def naive(module, X, h, c):
    """One layer, one direction, step by step, in the words of the module's docstring."""
    W, R = module.weight_ih_l0, module.weight_hh_l0
    p_i, p_o, p_f = module.weight_peephole_l0.chunk(3)
    bound = float("inf") if module.clip is None else module.clip
    outputs = []
    for x in X:
        z = x @ W.T + module.bias_ih_l0 + h @ R.T + module.bias_hh_l0
        z_i, z_f, z_g, z_o = z.chunk(4, dim=-1)
        i = (z_i + p_i * c).clamp(-bound, bound).sigmoid()
        f = 1 - i if module.input_forget else (z_f + p_f * c).clamp(-bound, bound).sigmoid()
        g = z_g.clamp(-bound, bound).tanh()
        c = f * c + i * g
        o = (z_o + p_o * c).clamp(-bound, bound).sigmoid()
        h = o * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), (h[None], c[None])


@pytest.mark.parametrize("options", [{}, {"clip": 0.4}, {"input_forget": True}])
def test_options_against_plain_loop(options):
    torch.manual_seed(4)
    module = xpgrad_torch.LSTM(I, H, peephole=True, dtype=torch.float64, **options)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    states = random_states(module)
    leaves = [X, *states, *module.parameters()]
    got, expected = flat(module(X, states)), flat(naive(module, X, states[0][0], states[1][0]))
    cotangents = [torch.randn_like(y) for y in got]
    # Coupled gates do not use the forget gate's peephole at all.
    results = [
        torch.autograd.grad(y, leaves, cotangents, allow_unused=True, materialize_grads=True)
        for y in (got, expected)
    ]
    for a, b in zip([*got, *results[0]], [*expected, *results[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_activations_against_module():
    """HardSigmoid with the alpha and beta that PyTorch's own has."""
    torch.manual_seed(4)
    kwargs = {
        "activations": ["HardSigmoid", "Tanh", "Relu"] * 2,
        "activation_alpha": [1 / 6] * 2,
        "activation_beta": [0.5] * 2,
    }
    module = xpgrad_torch.LSTM(I, H, bidirectional=True, dtype=torch.float64, **kwargs)
    X = 3 * torch.randn(T, N, I, dtype=torch.float64)
    output, _ = module(X)
    for d, suffix in enumerate(("l0", "l0_reverse")):
        W, R = module.get_parameter(f"weight_ih_{suffix}"), module.get_parameter(f"weight_hh_{suffix}")
        b = module.get_parameter(f"bias_ih_{suffix}") + module.get_parameter(f"bias_hh_{suffix}")
        h = c = torch.zeros(N, H, dtype=torch.float64)
        for t in range(T)[:: -1 if d else 1]:
            i, f, g, o = (X[t] @ W.T + h @ R.T + b).chunk(4, dim=-1)
            i, f, o = (nn.functional.hardsigmoid(x) for x in (i, f, o))
            c = f * c + i * g.tanh()
            h = o * c.relu()
            torch.testing.assert_close(output[t, :, d * H : (d + 1) * H], h, rtol=1e-11, atol=1e-12)


def test_truncated_peephole_gradient():
    torch.manual_seed(4)
    module = xpgrad_torch.LSTM(I, H, peephole=True, dtype=torch.float64)
    cut = xpgrad_torch.LSTM(I, H, peephole=True, peephole_gradient="truncated", dtype=torch.float64)
    cut.load_state_dict(module.state_dict())
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    expected, exact, cotangents = gradients(module, [X], lambda m: m(X))
    got, truncated, _ = gradients(cut, [X], lambda m: m(X), cotangents)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(truncated, exact, strict=True):
        assert not torch.allclose(a, b, rtol=1e-4)
        assert torch.allclose(a, b, rtol=1, atol=b.abs().max())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_large_products_without_compiled_code(kind, threads, set_threads, monkeypatch):
    """They are PyTorch's, also with a sum to add to: the gradient of the weights has several chunks."""
    monkeypatch.setenv("XPGRAD_JIT", "0")
    monkeypatch.setattr(families, "known", families.CallCache())
    set_threads(threads)
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(16, 64)
    ours = getattr(xpgrad_torch, kind)(16, 64)
    ours.load_state_dict(theirs.state_dict())
    X, found = torch.randn(60, 120, 16), []
    for module in (theirs, ours):
        leaf = X.clone().requires_grad_()
        output, _ = module(leaf)
        loss = (output * torch.linspace(-1, 1, 64)).sum()
        found.append([output, *torch.autograd.grad(loss, [leaf, *module.parameters()])])
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() < 2e-5 * one.abs().max()
