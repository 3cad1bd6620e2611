"""xpgrad_torch.LSTM beside torch.nn.LSTM, and what it has on top."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

import xpgrad
import xpgrad_torch

T, N, I, H = 5, 3, 2, 4
LENGTHS = {"sorted": [5, 3, 1], "unsorted": [3, 5, 1]}


def pair(*args, seed=0, dtype=torch.float64, **kwargs):
    """Return nn.LSTM and our LSTM with the same parameters."""
    torch.manual_seed(seed)
    theirs = nn.LSTM(*args, **kwargs, dtype=dtype)
    ours = xpgrad_torch.LSTM(*args, **kwargs, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def random_states(module, batch=(N,), dtype=torch.float64):
    layers = module.num_layers * (2 if module.bidirectional else 1)
    sizes = (module.proj_size or module.hidden_size, module.hidden_size)
    return tuple(torch.randn(layers, *batch, size, dtype=dtype).requires_grad_() for size in sizes)


def flat(result):
    output, states = result
    return [output.data if isinstance(output, PackedSequence) else output, *states]


def gradients(module, leaves, call, cotangents=None):
    """Return outputs, and gradients of all leaves and parameters for random cotangents."""
    outputs = flat(call(module))
    if cotangents is None:
        cotangents = [torch.randn_like(y) for y in outputs]
    leaves = [*leaves, *module.parameters()]
    return outputs, torch.autograd.grad(outputs, leaves, cotangents), cotangents


def assert_same(theirs, ours, leaves, call, tolerance=1e-10):
    expected, expected_grads, cotangents = gradients(theirs, leaves, call)
    got, got_grads, _ = gradients(ours, leaves, call, cotangents)
    for a, b in zip([*got, *got_grads], [*expected, *expected_grads], strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max())


STACKS = {
    "one": {},
    "two": {"num_layers": 2},
    "both": {"bidirectional": True},
    "both-two": {"bidirectional": True, "num_layers": 2},
    "no-bias": {"bias": False, "num_layers": 2},
    "batch-first": {"batch_first": True, "bidirectional": True},
    "projected": {"proj_size": 3},
    "projected-both-two": {"proj_size": 3, "bidirectional": True, "num_layers": 2},
}


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("kind", ["padded", "single", *LENGTHS])
def test_equals_torch(stack, kind, with_states):
    theirs, ours = pair(I, H, **stack)
    X = torch.randn(T, N, I, dtype=torch.float64)
    if stack.get("batch_first"):
        X = X.transpose(0, 1).contiguous()
    batch = (N,)
    if kind == "single":
        X, batch = torch.randn(T, I, dtype=torch.float64), ()
    leaves = [X.requires_grad_()]
    states = None
    if with_states:
        states = random_states(theirs, batch)
        leaves += states

    def call(module):
        if kind not in LENGTHS:
            return module(X, states)
        lengths = torch.tensor(LENGTHS[kind])
        packed = pack_padded_sequence(
            X, lengths, batch_first=module.batch_first, enforce_sorted=kind == "sorted"
        )
        return module(packed, states)

    assert_same(theirs, ours, leaves, call)


def test_packed_output_is_packed_alike():
    theirs, ours = pair(I, H, bidirectional=True)
    packed = pack_sequence([torch.randn(n, I).double() for n in (2, 5, 4)], enforce_sorted=False)
    expected, got = theirs(packed)[0], ours(packed)[0]
    assert isinstance(got, PackedSequence)
    for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(got, name), getattr(expected, name))


def test_packed_sequences_of_one_length():
    theirs, ours = pair(I, H)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, [X], lambda m: m(pack_padded_sequence(X, [T] * N)))


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_lengths_equal_packing(stack):
    theirs, ours = pair(I, H, **{**stack, "batch_first": True})
    X = torch.randn(N, T, I, dtype=torch.float64, requires_grad=True)
    states = random_states(theirs)
    lengths = LENGTHS["unsorted"]

    def call(module):
        if module is ours:
            return module(X, states, lengths=lengths)
        packed = pack_padded_sequence(X, lengths, batch_first=True, enforce_sorted=False)
        output, finals = module(packed, states)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=T)[0], finals

    assert_same(theirs, ours, [X, *states], call)


@pytest.mark.parametrize("proj_size", [0, 3])
def test_length_zero_passes_the_initial_state_through(proj_size):
    _, ours = pair(I, H, bidirectional=True, proj_size=proj_size)
    X = torch.randn(T, N, I, dtype=torch.float64)
    h_0, c_0 = random_states(ours)
    output, (h_n, c_n) = ours(X, (h_0, c_0), lengths=torch.tensor([2, 0, 5]))
    assert not output[:, 1].any()
    assert torch.equal(h_n[:, 1], h_0[:, 1])
    assert torch.equal(c_n[:, 1], c_0[:, 1])


@pytest.mark.parametrize("stack", [{}, {"bidirectional": True, "num_layers": 2}, {"proj_size": 3}])
def test_padding_does_not_leak(stack):
    _, ours = pair(I, H, **stack)
    lengths = LENGTHS["unsorted"]
    clean = torch.randn(T, N, I, dtype=torch.float64)
    past = torch.arange(T)[:, None] >= torch.tensor(lengths)
    dirty = torch.where(past[..., None], torch.nan, clean).requires_grad_()
    clean.requires_grad_()
    states = random_states(ours)

    def run(X, cotangents=None):
        outputs, grads, cotangents = gradients(
            ours, [X, *states], lambda m: m(X, states, lengths=lengths), cotangents
        )
        return [*outputs, *grads], cotangents

    expected, cotangents = run(clean)
    got, _ = run(dirty, cotangents)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [(3, 4, 2, 3), (20, 8, 24, 40)])
def test_float32_against_float64(sizes):
    steps, batch, inputs, hidden = sizes
    theirs, ours = pair(inputs, hidden, 2, bidirectional=True)
    single = copy.deepcopy(ours).float()
    X = torch.randn(steps, batch, inputs, requires_grad=True)
    states = random_states(ours, (batch,), torch.float32)
    expected, expected_grads, cotangents = gradients(
        theirs, [X, *states], lambda m: m(X.double(), tuple(s.double() for s in states))
    )
    cotangents = [c.float() for c in cotangents]
    got, got_grads, _ = gradients(single, [X, *states], lambda m: m(X, states), cotangents)
    for a, b in zip([*got, *got_grads], [*expected, *expected_grads], strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 4e-2)])
def test_half_precision(dtype, tolerance):
    """As close to float64 as a stated tolerance, relative to the largest value."""
    _, ours = pair(I, H, 2, bidirectional=True)
    half = copy.deepcopy(ours).to(dtype)
    exact = copy.deepcopy(half).double()
    X = torch.randn(T, N, I).to(dtype).requires_grad_()
    got, got_grads, cotangents = gradients(half, [X], lambda m: m(X))
    expected, grads, _ = gradients(exact, [X], lambda m: m(X.double()), [c.double() for c in cotangents])
    for a, b in zip([*got, *got_grads], [*expected, *grads], strict=True):
        assert a.dtype == dtype
        assert (a - b).abs().max() <= tolerance * b.abs().max()


def test_autocast():
    theirs, ours = pair(I, H, dtype=torch.float32)
    X = torch.randn(T, N, I)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = flat(theirs(X)), flat(ours(X))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype == torch.bfloat16
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)
    torch.autograd.backward(got, [torch.randn_like(y) for y in got])
    assert ours.weight_hh_l0.grad.dtype == torch.float32


# --- construction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_same_seed_same_parameters(stack):
    torch.manual_seed(7)
    theirs = nn.LSTM(I, H, **stack)
    after = torch.rand(3)
    torch.manual_seed(7)
    ours = xpgrad_torch.LSTM(I, H, **stack)
    assert torch.equal(after, torch.rand(3))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.named_parameters():
        assert torch.equal(value, ours.get_parameter(name)), name


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


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_state_dicts_load_both_ways(stack):
    theirs, ours = nn.LSTM(I, H, **stack), xpgrad_torch.LSTM(I, H, **stack)
    back = nn.LSTM(I, H, **stack)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    back.load_state_dict(ours.state_dict(), strict=True)
    for name, value in theirs.named_parameters():
        assert torch.equal(value, back.get_parameter(name)), name


def test_peepholes_are_missed_by_strict_loading():
    ours = xpgrad_torch.LSTM(I, H, peephole=True)
    with pytest.raises(RuntimeError, match="weight_peephole_l0"):
        ours.load_state_dict(nn.LSTM(I, H).state_dict())


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"hidden_size": 0}, ValueError, ["hidden_size"]),
        ({"input_size": 2.5}, TypeError, ["input_size"]),
        ({"dropout": 1.5}, ValueError, ["dropout"]),
        ({"proj_size": 9}, ValueError, ["proj_size"]),
        ({"peephole_gradient": "half"}, ValueError, ["peephole_gradient", "'half'", "'full'", "'truncated'"]),
        ({"clip": -1.0}, ValueError, ["clip", "-1"]),
        ({"activations": ["Tanh", "Tanh"]}, ValueError, ["activations", "2", "3"]),
        ({"activations": ["Tanh", "Tanh", "Cosine"]}, ValueError, ["activations", "Cosine"]),
        ({"activations": ["Tanh"] * 3, "bidirectional": True}, ValueError, ["activations", "3", "6"]),
        ({"activation_alpha": [0.5]}, ValueError, ["activation_alpha"]),
    ],
)
def test_bad_construction(kwargs, error, words):
    with pytest.raises(error) as caught:
        xpgrad_torch.LSTM(**{"input_size": I, "hidden_size": H, **kwargs})
    assert all(word in str(caught.value) for word in words), caught.value


def test_repr():
    assert repr(xpgrad_torch.LSTM(3, 4)) == "LSTM(3, 4)"
    arguments = {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.5, "bidirectional": True}
    for kwargs in (arguments, {"proj_size": 2}):
        assert repr(xpgrad_torch.LSTM(3, 4, **kwargs)) == repr(nn.LSTM(3, 4, **kwargs))
    extras = {
        "peephole": True,
        "peephole_gradient": "truncated",
        "clip": 2.5,
        "input_forget": True,
        "activations": ["HardSigmoid", "Tanh", "Elu"],
        "activation_alpha": [0.3],
        "activation_beta": [0.4],
    }
    ours = xpgrad_torch.LSTM(3, 4, num_layers=2, **extras)
    assert repr(ours) == (
        "LSTM(3, 4, num_layers=2, peephole=True, peephole_gradient='truncated', clip=2.5, input_forget=True, "
        "activations=['HardSigmoid', 'Tanh', 'Elu'], activation_alpha=[0.3], activation_beta=[0.4])"
    )
    again = eval(repr(ours), {"LSTM": xpgrad_torch.LSTM})
    assert repr(again) == repr(ours)


# --- the call ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        (["3 steps"], {}, TypeError, ["input", "str", "torch.Tensor"]),
        ([torch.zeros(5)], {}, ValueError, ["input", "1", "2", "3"]),
        ([torch.zeros(T, N, 7)], {}, RuntimeError, ["input.size(-1)", "7", "input_size = 2"]),
        ([torch.zeros(T, N, I).double()], {}, ValueError, ["input", "torch.float64", "torch.float32"]),
        ([torch.zeros(T, N, I), torch.zeros(1, N, H)], {}, TypeError, ["hx", "(h_0, c_0)"]),
        (
            [torch.zeros(T, N, I), (torch.zeros(1, N, H), torch.zeros(1, N, 9))],
            {},
            RuntimeError,
            ["c_0", "(1, 3, 9)", "(1, 3, 4)"],
        ),
        (
            [torch.zeros(T, I), (torch.zeros(1, N, H), torch.zeros(1, N, H))],
            {},
            RuntimeError,
            ["h_0", "(1, 3, 4)", "(1, 4)"],
        ),
        (
            [torch.zeros(T, N, I), (torch.zeros(1, N, H).double(), torch.zeros(1, N, H).double())],
            {},
            RuntimeError,
            ["h_0", "torch.float64", "torch.float32"],
        ),
        ([torch.zeros(T, N, I)], {"lengths": [1, 2]}, ValueError, ["lengths", "(2,)", "(3,)"]),
        ([torch.zeros(T, N, I)], {"lengths": [1, 2, 6]}, ValueError, ["6", "5"]),
        ([torch.zeros(T, N, I)], {"lengths": [1, -2, 5]}, ValueError, ["-2"]),
        ([torch.zeros(T, N, I)], {"lengths": [1.0, 2.0, 5.0]}, TypeError, ["lengths", "torch.float32"]),
        (
            [pack_sequence([torch.zeros(2, I)])],
            {"lengths": [2]},
            ValueError,
            ["lengths", "PackedSequence"],
        ),
        ([pack_sequence([torch.zeros(2, 7)])], {}, RuntimeError, ["input.size(-1)", "7", "input_size = 2"]),
    ],
)
def test_bad_input(args, kwargs, error, words):
    with pytest.raises(error) as caught:
        xpgrad_torch.LSTM(I, H)(*args, **kwargs)
    assert all(word in str(caught.value) for word in words), caught.value


def test_tensors_without_data():
    """The meta device, on which shapes are found out."""
    ours = xpgrad_torch.LSTM(I, H, 2, bidirectional=True, device="meta")
    output, (h_n, c_n) = ours(torch.empty(T, N, I, device="meta"))
    assert output.device.type == "meta"
    assert output.shape == (T, N, 2 * H)
    assert h_n.shape == c_n.shape == (4, N, H)


def test_empty_batch_and_no_steps():
    ours = xpgrad_torch.LSTM(I, H, 2, bidirectional=True)
    assert ours(torch.zeros(T, 0, I))[0].shape == (T, 0, 2 * H)
    states = random_states(ours, dtype=torch.float32)
    output, (h_n, c_n) = ours(torch.zeros(0, N, I), states)
    assert output.shape == (0, N, 2 * H)
    assert torch.equal(h_n, states[0])
    assert torch.equal(c_n, states[1])


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_dropout_draws_what_torch_draws(kind):
    theirs, ours = pair(I, H, 3, dropout=0.4, bidirectional=True)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)

    def call(module):
        torch.manual_seed(11)
        if kind == "padded":
            return module(X)
        return module(pack_padded_sequence(X, LENGTHS["unsorted"], enforce_sorted=False))

    assert_same(theirs, ours, [X], call)
    trained = flat(call(ours))[0]
    ours.eval()
    assert not torch.allclose(trained, flat(call(ours))[0])
    theirs.eval()
    assert_same(theirs, ours, [X], call)


@pytest.mark.parametrize("used", [(0,), (1,), (2,)])
def test_one_output_used(used):
    theirs, ours = pair(I, H, 2)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    grads = []
    for module in (theirs, ours):
        y = flat(module(X))[used[0]]
        cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
        leaves = [X, *module.parameters()]
        grads.append(torch.autograd.grad(y, leaves, cotangent))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_frozen_weights_are_not_asked_for(monkeypatch):
    asked = []
    kernel = xpgrad.lstm_grad

    def spy(*args, **kwargs):
        asked.append(set(kwargs["wrt"]))
        return kernel(*args, **kwargs)

    monkeypatch.setattr(xpgrad, "lstm_grad", spy)
    ours = xpgrad_torch.LSTM(I, H, 2)
    X = torch.randn(T, N, I)
    ours(X)[0].sum().backward()
    assert asked == [{"X", "W", "R", "B"}, {"W", "R", "B"}]
    asked.clear()
    for name, parameter in ours.named_parameters():
        parameter.requires_grad_(name == "weight_hh_l1")
    ours(X)[0].sum().backward()
    assert asked == [{"R"}]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    _, ours = pair(I, H, 2)
    X = torch.randn(T, N, I, dtype=torch.float64)
    with mode():
        got = flat(ours(X))
    for a, b in zip(got, flat(ours(X)), strict=True):
        assert not a.requires_grad
        assert torch.equal(a, b)


def test_non_contiguous_input():
    theirs, ours = pair(I, H, batch_first=True)
    X = torch.randn(I, T, 2 * N, dtype=torch.float64, requires_grad=True)
    states = tuple(torch.randn(N, H, 1, dtype=torch.float64).permute(2, 0, 1) for _ in range(2))
    assert_same(theirs, ours, [X], lambda m: m(X.permute(2, 1, 0)[::2], states))


def test_inputs_are_not_written_to():
    _, ours = pair(I, H, 2, proj_size=2)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    states = random_states(ours)
    lengths = torch.tensor([2, 5, 0])
    watched = [X, *states, lengths, *ours.parameters()]
    before = [x.detach().clone() for x in watched]
    for y in flat(ours(X, states, lengths=lengths)):
        y.sum().backward(retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(watched, before, strict=True))


# --- gradients, also of what torch.nn.LSTM does not have ---------------------------------------------

CHECKED = {
    "one": {},
    "two": {"num_layers": 2},
    "both": {"bidirectional": True},
    "both-two": {"bidirectional": True, "num_layers": 2},
    "peephole": {"peephole": True, "bidirectional": True},
    "clip": {"clip": 0.45, "peephole": True},
    "input_forget": {"input_forget": True, "num_layers": 2},
    "activations": {"activations": ["HardSigmoid", "Softsign", "Elu"], "activation_alpha": [0.3, 0.8]},
    "projected": {"proj_size": 1, "peephole": True, "bidirectional": True},
}


def as_function(module, lengths=None):
    names = [name for name, _ in module.named_parameters()]

    def call(X, h_0, c_0, *parameters):
        values = dict(zip(names, parameters, strict=True))
        kwargs = {"lengths": lengths}
        output, states = torch.func.functional_call(module, values, (X, (h_0, c_0)), kwargs)
        return output, *states

    return call


@pytest.mark.parametrize("lengths", [None, [2, 3]], ids=["full", "lengths"])
@pytest.mark.parametrize("options", CHECKED.values(), ids=CHECKED)
def test_gradcheck(options, lengths):
    torch.manual_seed(2)
    module = xpgrad_torch.LSTM(1, 2, dtype=torch.float64, **options)
    X = torch.randn(3, 2, 1, dtype=torch.float64, requires_grad=True)
    inputs = [X, *random_states(module, (2,)), *module.parameters()]
    assert gradcheck(as_function(module, lengths), inputs)


@pytest.mark.parametrize("options", [{"peephole": True}, {"bidirectional": True}, {"num_layers": 2}])
def test_gradgradcheck(options):
    torch.manual_seed(2)
    module = xpgrad_torch.LSTM(1, 1, dtype=torch.float64, **options)
    X = torch.randn(2, 2, 1, dtype=torch.float64, requires_grad=True)
    inputs = [X, *random_states(module, (2,)), *module.parameters()]
    assert gradgradcheck(as_function(module, [2, 1]), inputs)


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


# --- life as a module --------------------------------------------------------------------------------


def round_trip(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)), "save": round_trip}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies(duplicate):
    module = xpgrad_torch.LSTM(I, H, 2, peephole=True, clip=2.0).eval()
    other = duplicate(module)
    X = torch.randn(T, N, I)
    assert repr(other) == repr(module)
    assert not other.training
    assert torch.equal(module(X)[0], other(X)[0])
    with torch.no_grad():
        other.weight_peephole_l1.add_(1)
    assert not torch.equal(module(X)[0], other(X)[0])


def test_conversion_and_assignment_take_effect():
    theirs, ours = pair(I, H, dtype=torch.float32)
    X = torch.randn(T, N, I)
    ours.double()
    assert ours(X.double())[0].dtype == torch.float64
    ours.float()
    new = torch.randn(4 * H, H)
    for module in (theirs, ours):
        module.weight_hh_l0 = nn.Parameter(new.clone())
    torch.testing.assert_close(ours(X)[0], theirs(X)[0])
    ours.flatten_parameters()
    torch.testing.assert_close(ours(X)[0], theirs(X)[0])


def test_hooks():
    module = xpgrad_torch.LSTM(I, H)
    seen = []
    module.register_forward_pre_hook(lambda m, args: seen.append("before"))
    module.register_forward_hook(lambda m, args, out: seen.append("after"))
    module.register_full_backward_hook(lambda m, grad_in, grad_out: seen.append("backward"))
    X = torch.randn(T, N, I, requires_grad=True)
    module(X)[0].sum().backward()
    assert seen == ["before", "after", "backward"]


def test_inside_sequential():
    class First(nn.Module):
        def forward(self, result):
            return result[0]

    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(3, I), nn.LSTM(I, H, bidirectional=True), First(), nn.Linear(2 * H, 1))
    torch.manual_seed(0)
    lstm = xpgrad_torch.LSTM(I, H, bidirectional=True)
    ours = nn.Sequential(copy.deepcopy(theirs[0]), lstm, First(), copy.deepcopy(theirs[3]))
    ours.load_state_dict(theirs.state_dict())
    X = torch.randn(T, N, 3)
    torch.testing.assert_close(ours(X), theirs(X), rtol=1e-5, atol=1e-6)


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint

    _, ours = pair(I, H, 2)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    outputs, expected, cotangents = gradients(ours, [X], lambda m: m(X))
    got, grads, _ = gradients(ours, [X], lambda m: checkpoint(m, X, use_reentrant=False), cotangents)
    for a, b in zip([*got, *grads], [*outputs, *expected], strict=True):
        assert torch.equal(a, b)


def test_weight_normalization_and_masking_by_hooks():
    """Parametrized weights are read anew at each call."""
    theirs, ours = pair(I, H)
    for module in (theirs, ours):
        nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, [X], lambda m: m(X))


def pytorch_samples():
    """Return PyTorch's own test inputs for nn.LSTM."""
    from torch.testing._internal.common_modules import module_db

    (info,) = [m for m in module_db if m.module_cls is nn.LSTM]
    samples = []
    for training in (True, False):
        samples += info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
        )
    return samples


def test_samples_of_pytorch():
    pytest.importorskip("expecttest")
    samples = pytorch_samples()
    assert len(samples) > 10
    for sample in samples:
        built = sample.constructor_input
        theirs, ours = pair(*built.args, **{k: v for k, v in built.kwargs.items() if k != "dtype"})
        call = sample.forward_input
        expected, got = flat(theirs(*call.args, **call.kwargs)), flat(ours(*call.args, **call.kwargs))
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)
