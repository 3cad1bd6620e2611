"""xpgrad_torch.LSTMCell, GRUCell and RNNCell beside PyTorch's, and what both have on top."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.parametrize import register_parametrization

import xpgrad_torch
from torch_cases import (
    OURS,
    THEIRS,
    H,
    I,
    N,
    T,
    as_function,
    as_hx,
    assert_same,
    flat,
    gradients,
    pair,
    random_states,
)

every_cell = pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
OPTIONS = [
    ("LSTMCell", {}),
    ("LSTMCell", {"peephole": True, "clip": 0.45}),
    ("LSTMCell", {"input_forget": True, "bias": False}),
    ("LSTMCell", {"activations": ["HardSigmoid", "Softsign", "Elu"], "activation_alpha": [0.3, 0.8]}),
    ("GRUCell", {}),
    ("GRUCell", {"reset_after": False}),
    ("GRUCell", {"clip": 0.45, "bias": False}),
    ("GRUCell", {"activations": ["HardSigmoid", "Elu"], "activation_alpha": [0.3, 0.8]}),
    ("RNNCell", {}),
    ("RNNCell", {"nonlinearity": "relu"}),
    ("RNNCell", {"clip": 0.45, "bias": False}),
    ("RNNCell", {"activations": ["Elu"], "activation_alpha": [0.8]}),
]


@every_cell
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("with_states", [False, True])
def test_equals_torch(name, bias, single, with_states):
    theirs, ours = pair(name, I, H, bias)
    batch = () if single else (N,)
    X = torch.randn(*batch, I, dtype=torch.float64, requires_grad=True)
    states = random_states(theirs, batch) if with_states else ()
    hx = as_hx(states) if states else None
    assert_same(theirs, ours, [X, *states], lambda m: m(X, hx))


@every_cell
def test_loop_over_time_equals_torch(name):
    theirs, ours = pair(name, I, H)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    states = random_states(theirs)

    def call(module):
        hx, outputs = as_hx(states), []
        for x in X:
            hx = module(x, hx)
            outputs.append(flat(hx)[0])
        return torch.stack(outputs), *flat(hx)

    assert_same(theirs, ours, [X, *states], call)


@every_cell
def test_float32_and_half_against_float64(name):
    _, exact = pair(name, 20, 40)
    X = torch.randn(8, 20)
    states = random_states(exact, (8,), torch.float32)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)):
        low = copy.deepcopy(exact).to(dtype)
        rounded = copy.deepcopy(low).double()
        x, hx = X.to(dtype), [s.detach().to(dtype) for s in states]
        got, grads, cotangents = gradients(low, [], lambda m, x=x, hx=hx: m(x, as_hx(hx)))
        expected, expected_grads, _ = gradients(
            rounded,
            [],
            lambda m, x=x, hx=hx: m(x.double(), as_hx([s.double() for s in hx])),
            [c.double() for c in cotangents],
        )
        for a, b in zip([*got, *grads], [*expected, *expected_grads], strict=True):
            assert a.dtype == dtype
            assert (a - b).abs().max() <= tolerance * b.abs().max()


@every_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_states", [False, True])
def test_autocast(name, dtype, with_states):
    theirs, ours = pair(name, I, H, dtype=torch.float32)
    X = torch.randn(N, I).to(dtype)
    hx = as_hx(random_states(ours, dtype=torch.float32)) if with_states else None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = flat(theirs(X, hx)), flat(ours(X, hx))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=3e-2, atol=2e-2)
    torch.autograd.backward(got, [torch.randn_like(y) for y in got])
    assert ours.weight_hh.grad.dtype == torch.float32


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_gradcheck(name, options):
    torch.manual_seed(3)
    module = OURS[name](I, 3, dtype=torch.float64, **options)
    inputs = [torch.randn(2, I, dtype=torch.float64, requires_grad=True), *random_states(module, (2,))]
    assert gradcheck(as_function(module), [*inputs, *module.parameters()], fast_mode=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [("LSTMCell", {"peephole": True}), ("GRUCell", {}), ("GRUCell", {"reset_after": False}), ("RNNCell", {})],
)
def test_gradgradcheck(name, options):
    torch.manual_seed(3)
    module = OURS[name](1, 2, dtype=torch.float64, **options)
    inputs = [torch.randn(2, 1, dtype=torch.float64, requires_grad=True), *random_states(module, (2,))]
    assert gradgradcheck(as_function(module), [*inputs, *module.parameters()], fast_mode=True)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_steps_make_the_layer(name, options):
    """Options mean in the cell what they mean over sequences."""
    torch.manual_seed(4)
    layer = OURS[name.removesuffix("Cell")](I, H, dtype=torch.float64, **options)
    cell = OURS[name](I, H, dtype=torch.float64, **options)
    cell.load_state_dict({key.removesuffix("_l0"): value for key, value in layer.state_dict().items()})
    X = torch.randn(T, N, I, dtype=torch.float64)
    hx, outputs = None, []
    for x in X:
        hx = cell(x, hx)
        outputs.append(flat(hx)[0])
    torch.testing.assert_close(torch.stack(outputs), layer(X)[0], rtol=1e-11, atol=1e-12)


@every_cell
def test_same_seed_same_parameters_and_state_dicts_both_ways(name):
    torch.manual_seed(7)
    theirs = THEIRS[name](I, H)
    after = torch.rand(3)
    torch.manual_seed(7)
    ours = OURS[name](I, H)
    assert torch.equal(after, torch.rand(3))
    back = THEIRS[name](I, H)
    back.load_state_dict(ours.state_dict(), strict=True)
    for key, value in theirs.named_parameters():
        assert torch.equal(value, ours.get_parameter(key)), key
        assert torch.equal(value, back.get_parameter(key)), key


class Drawn(nn.Module):
    """A parametrization whose values differ at each reading, as of DropConnect."""

    def forward(self, weight):
        return nn.functional.dropout(weight, 0.5)


@pytest.mark.parametrize("with_states", [True, False])
@every_cell
def test_a_parametrization_runs_once_in_a_call(name, with_states):
    theirs, ours = pair(name, I, H)
    hx = as_hx(random_states(theirs)) if with_states else None
    for module in (theirs, ours):
        register_parametrization(module, "weight_hh", Drawn())
        register_parametrization(module, "bias_ih", Drawn())
    for seed in (0, 1):
        results = []
        for module in (theirs, ours):
            torch.manual_seed(seed)
            results.append(flat(module(torch.randn(N, I, dtype=torch.float64), hx)))
        torch.testing.assert_close(*results)


def test_peephole_parameter():
    torch.manual_seed(7)
    theirs = nn.LSTMCell(I, H)
    torch.manual_seed(7)
    ours = xpgrad_torch.LSTMCell(I, H, peephole=True)
    for key, value in theirs.named_parameters():
        assert torch.equal(value, ours.get_parameter(key)), key
    assert [key for key, _ in ours.named_parameters() if "peephole" in key] == ["weight_peephole"]
    assert ours.weight_peephole.shape == (3 * H,)
    assert len(ours.weight_peephole.unique()) == 3 * H
    assert repr(ours) == "LSTMCell(2, 4, peephole=True)"


@every_cell
def test_repr(name):
    assert repr(OURS[name](3, 4, bias=False)) == repr(THEIRS[name](3, 4, bias=False))
    extras = {"clip": 2.0, "activation_alpha": [0.4]}
    extras["activations"] = ["HardSigmoid", "Tanh", "Tanh"][
        : {"LSTMCell": 3, "GRUCell": 2, "RNNCell": 1}[name]
    ]
    ours = OURS[name](3, 4, **extras)
    assert repr(eval(repr(ours), {name: OURS[name]})) == repr(ours)
    assert "clip=2.0" in repr(ours)


STATE = torch.zeros(N, H)


@pytest.mark.parametrize(
    ("name", "args", "error", "words"),
    [
        *(
            (name, *case)
            for name in ("LSTMCell", "GRUCell", "RNNCell")
            for case in [
                (["a step"], TypeError, ["input", "str", "torch.Tensor"]),
                ([torch.zeros(T, N, I)], ValueError, ["input", "3", "1", "2"]),
                ([torch.zeros(N, 7)], RuntimeError, ["input.size(-1)", "7", "input_size = 2"]),
                ([torch.zeros(N, I).double()], ValueError, ["input", "torch.float64", "torch.float32"]),
            ]
        ),
        ("LSTMCell", [torch.zeros(N, I), STATE], TypeError, ["hx is Tensor", "(h_0, c_0)"]),
        ("LSTMCell", [torch.zeros(N, I), (STATE, STATE[:1])], RuntimeError, ["c_0", "(1, 4)", "(3, 4)"]),
        ("GRUCell", [torch.zeros(N, I), (STATE, STATE)], TypeError, ["hx is tuple of 2", "torch.Tensor"]),
        ("GRUCell", [torch.zeros(I), STATE], RuntimeError, ["hx", "(3, 4)", "(4,)"]),
    ],
)
def test_bad_input(name, args, error, words):
    with pytest.raises(error) as caught:
        OURS[name](I, H)(*args)
    assert str(caught.value).startswith(f"{name}: ")
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("LSTMCell", {"clip": -1.0}, ValueError, ["clip", "-1"]),
        ("LSTMCell", {"peephole_gradient": "half"}, ValueError, ["LSTMCell", "peephole_gradient", "'half'"]),
        ("LSTMCell", {"activations": ["Tanh"] * 6}, ValueError, ["activations", "6", "3"]),
        ("GRUCell", {"activations": ["Tanh"] * 3}, ValueError, ["activations", "3", "2"]),
        ("RNNCell", {"activations": ["Tanh"] * 2}, ValueError, ["activations", "2", "1"]),
        ("RNNCell", {"nonlinearity": "gelu"}, ValueError, ["RNNCell", "nonlinearity", "'gelu'"]),
        ("GRUCell", {"reset_after": "no"}, TypeError, ["GRUCell", "reset_after", "'no'"]),
    ],
)
def test_bad_construction(name, options, error, words):
    with pytest.raises(error) as caught:
        OURS[name](I, H, **options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_truncated_peephole_gradient():
    torch.manual_seed(4)
    module = xpgrad_torch.LSTMCell(I, H, peephole=True, dtype=torch.float64)
    cut = xpgrad_torch.LSTMCell(I, H, peephole=True, peephole_gradient="truncated", dtype=torch.float64)
    cut.load_state_dict(module.state_dict())
    X = torch.randn(N, I, dtype=torch.float64, requires_grad=True)
    hx = random_states(module)
    _, exact, cotangents = gradients(module, [X, *hx], lambda m: m(X, hx))
    _, truncated, _ = gradients(cut, [X, *hx], lambda m: m(X, hx), cotangents)
    for a, b in zip(truncated, exact, strict=True):
        assert not torch.allclose(a, b, rtol=1e-4)


@every_cell
def test_empty_batch(name):
    assert all(y.shape == (0, H) for y in flat(OURS[name](I, H)(torch.zeros(0, I))))
