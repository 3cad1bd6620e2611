"""xpgrad_torch.LSTM, GRU and RNN beside PyTorch's, and what both have on top."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import xpgrad
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
    under_autocast,
)
from xpgrad_torch._packing import PackedRows

LENGTHS = {"sorted": [5, 3, 1], "unsorted": [3, 5, 1]}
STACKS = {
    "one": {},
    "two": {"num_layers": 2},
    "both": {"bidirectional": True},
    "both-two": {"bidirectional": True, "num_layers": 2},
    "no-bias": {"bias": False, "num_layers": 2},
    "batch-first": {"batch_first": True, "bidirectional": True},
}
PROJECTED = {
    "projected": {"proj_size": 3},
    "projected-both-two": {"proj_size": 3, "bidirectional": True, "num_layers": 2},
}
RELU = {
    "relu": {"nonlinearity": "relu"},
    "relu-both-two": {"nonlinearity": "relu", "bidirectional": True, "num_layers": 2},
}
every_rnn = pytest.mark.parametrize("rnn", ["LSTM", "GRU", "RNN"])
every_stack = pytest.mark.parametrize(
    ("rnn", "stack"),
    [
        pytest.param(rnn, stack, id=f"{rnn}-{name}")
        for rnn, stacks in {"LSTM": {**STACKS, **PROJECTED}, "GRU": STACKS, "RNN": {**STACKS, **RELU}}.items()
        for name, stack in stacks.items()
    ],
)


@pytest.mark.parametrize("with_states", [False, True])
@every_stack
@pytest.mark.parametrize("kind", ["padded", "single", *LENGTHS])
def test_equals_torch(rnn, stack, kind, with_states):
    theirs, ours = pair(rnn, I, H, **stack)
    X = torch.randn(T, N, I, dtype=torch.float64)
    if stack.get("batch_first"):
        X = X.transpose(0, 1).contiguous()
    batch = (N,)
    if kind == "single":
        X, batch = torch.randn(T, I, dtype=torch.float64), ()
    leaves = [X.requires_grad_()]
    hx = None
    if with_states:
        states = random_states(theirs, batch)
        leaves += states
        hx = as_hx(states)

    def call(module):
        if kind not in LENGTHS:
            return module(X, hx)
        lengths = torch.tensor(LENGTHS[kind])
        packed = pack_padded_sequence(
            X, lengths, batch_first=module.batch_first, enforce_sorted=kind == "sorted"
        )
        return module(packed, hx)

    assert_same(theirs, ours, leaves, call)


@every_rnn
def test_packed_output_is_packed_alike(rnn):
    theirs, ours = pair(rnn, I, H, bidirectional=True)
    packed = pack_sequence([torch.randn(n, I).double() for n in (2, 5, 4)], enforce_sorted=False)
    expected, got = theirs(packed)[0], ours(packed)[0]
    assert isinstance(got, PackedSequence)
    for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(got, name), getattr(expected, name))


@every_rnn
def test_packed_sequences_of_one_length(rnn):
    theirs, ours = pair(rnn, I, H)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, [X], lambda m: m(pack_padded_sequence(X, [T] * N)))


@every_stack
def test_lengths_equal_packing(rnn, stack):
    theirs, ours = pair(rnn, I, H, **{**stack, "batch_first": True})
    X = torch.randn(N, T, I, dtype=torch.float64, requires_grad=True)
    states = random_states(theirs)
    lengths = LENGTHS["unsorted"]

    def call(module):
        if module is ours:
            return module(X, as_hx(states), lengths=lengths)
        packed = pack_padded_sequence(X, lengths, batch_first=True, enforce_sorted=False)
        output, finals = module(packed, as_hx(states))
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=T)[0], finals

    assert_same(theirs, ours, [X, *states], call)


@pytest.mark.parametrize(
    ("rnn", "stack"), [("LSTM", {}), ("LSTM", {"proj_size": 3}), ("GRU", {}), ("RNN", {})]
)
def test_length_zero_passes_the_initial_state_through(rnn, stack):
    _, ours = pair(rnn, I, H, bidirectional=True, **stack)
    X = torch.randn(T, N, I, dtype=torch.float64)
    states = random_states(ours)
    output, *finals = flat(ours(X, as_hx(states), lengths=torch.tensor([2, 0, 5])))
    assert not output[:, 1].any()
    for final, initial in zip(finals, states, strict=True):
        assert torch.equal(final[:, 1], initial[:, 1])


@pytest.mark.parametrize(
    ("rnn", "stack"),
    [
        ("LSTM", {}),
        ("LSTM", {"bidirectional": True, "num_layers": 2}),
        ("LSTM", {"proj_size": 3}),
        ("GRU", {}),
        ("GRU", {"bidirectional": True, "num_layers": 2}),
        ("RNN", {"bidirectional": True, "num_layers": 2, "nonlinearity": "relu"}),
    ],
)
def test_padding_does_not_leak(rnn, stack):
    _, ours = pair(rnn, I, H, **stack)
    lengths = LENGTHS["unsorted"]
    clean = torch.randn(T, N, I, dtype=torch.float64)
    past = torch.arange(T)[:, None] >= torch.tensor(lengths)
    dirty = torch.where(past[..., None], torch.nan, clean).requires_grad_()
    clean.requires_grad_()
    states = random_states(ours)

    def run(X, cotangents=None):
        outputs, grads, cotangents = gradients(
            ours, [X, *states], lambda m: m(X, as_hx(states), lengths=lengths), cotangents
        )
        return [*outputs, *grads], cotangents

    expected, cotangents = run(clean)
    got, _ = run(dirty, cotangents)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every_rnn
@pytest.mark.parametrize("sizes", [(3, 4, 2, 3), (20, 8, 24, 40)])
def test_float32_against_float64(rnn, sizes):
    steps, batch, inputs, hidden = sizes
    theirs, ours = pair(rnn, inputs, hidden, 2, bidirectional=True)
    single = copy.deepcopy(ours).float()
    X = torch.randn(steps, batch, inputs, requires_grad=True)
    states = random_states(ours, (batch,), torch.float32)
    expected, expected_grads, cotangents = gradients(
        theirs, [X, *states], lambda m: m(X.double(), as_hx(tuple(s.double() for s in states)))
    )
    cotangents = [c.float() for c in cotangents]
    got, got_grads, _ = gradients(single, [X, *states], lambda m: m(X, as_hx(states)), cotangents)
    for a, b in zip([*got, *got_grads], [*expected, *expected_grads], strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


@every_rnn
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 4e-2)])
def test_half_precision(rnn, dtype, tolerance):
    """As close to float64 as a stated tolerance, relative to the largest value."""
    _, ours = pair(rnn, I, H, 2, bidirectional=True)
    half = copy.deepcopy(ours).to(dtype)
    exact = copy.deepcopy(half).double()
    X = torch.randn(T, N, I).to(dtype).requires_grad_()
    got, got_grads, cotangents = gradients(half, [X], lambda m: m(X))
    expected, grads, _ = gradients(exact, [X], lambda m: m(X.double()), [c.double() for c in cotangents])
    for a, b in zip([*got, *got_grads], [*expected, *grads], strict=True):
        assert a.dtype == dtype
        assert (a - b).abs().max() <= tolerance * b.abs().max()


@every_rnn
def test_autocast(rnn):
    theirs, ours = pair(rnn, I, H, dtype=torch.float32)
    X = torch.randn(T, N, I)
    expected = under_autocast(theirs, (X,), torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = flat(ours(X))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)
    torch.autograd.backward(got, [torch.randn_like(y) for y in got])
    assert ours.weight_hh_l0.grad.dtype == torch.float32


@every_rnn
@pytest.mark.parametrize("engine", [None, "standard"])
def test_a_backward_inside_of_autocast(rnn, engine):
    """It is that of the forward, which had no autocast: no product of the standard engine is in bfloat16."""
    _, ours = pair(rnn, I, H, dtype=torch.float32)
    X = torch.randn(T, N, I, requires_grad=True)
    with xpgrad.use_engine(engine):
        output = ours(X)[0]
        leaves, cotangent = [X, *ours.parameters()], torch.randn_like(output)
        expected = torch.autograd.grad(output, leaves, cotangent, retain_graph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = torch.autograd.grad(output, leaves, cotangent)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


@every_rnn
def test_engines_agree_under_autocast(rnn):
    """Operands are converted; sums and states between steps stay in float32, on the standard engine too."""
    _, ours = pair(rnn, I, H, dtype=torch.float32)
    X = torch.randn(T, N, I)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = ours(X)[0]
        with xpgrad.use_engine("standard"):
            got = ours(X)[0]
    assert got.dtype == expected.dtype
    assert ((got - expected).abs() > 1e-5).float().mean() < 0.03  # but for a few that bfloat16 rounds apart


# --- construction -----------------------------------------------------------------------------------


@every_stack
def test_same_seed_same_parameters(rnn, stack):
    torch.manual_seed(7)
    theirs = THEIRS[rnn](I, H, **stack)
    after = torch.rand(3)
    torch.manual_seed(7)
    ours = OURS[rnn](I, H, **stack)
    assert torch.equal(after, torch.rand(3))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.named_parameters():
        assert torch.equal(value, ours.get_parameter(name)), name


@every_stack
def test_state_dicts_load_both_ways(rnn, stack):
    theirs, ours = THEIRS[rnn](I, H, **stack), OURS[rnn](I, H, **stack)
    back = THEIRS[rnn](I, H, **stack)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    back.load_state_dict(ours.state_dict(), strict=True)
    for name, value in theirs.named_parameters():
        assert torch.equal(value, back.get_parameter(name)), name


SHARED_ERRORS = [
    ({"hidden_size": 0}, ValueError, ["hidden_size"]),
    ({"input_size": 2.5}, TypeError, ["input_size"]),
    ({"dropout": 1.5}, ValueError, ["dropout"]),
    ({"clip": -1.0}, ValueError, ["clip", "-1"]),
    ({"activations": ["Cosine"] * 3}, ValueError, ["activations"]),
    ({"activation_alpha": [0.5]}, ValueError, ["activation_alpha"]),
    ({"activations": "Relu"}, TypeError, ["activations is 'Relu', expected a list of names"]),
    ({"activation_alpha": 0.5}, TypeError, ["activation_alpha is 0.5, expected a list of numbers"]),
]


@pytest.mark.parametrize(
    ("rnn", "kwargs", "error", "words"),
    [
        *(("LSTM", *case) for case in SHARED_ERRORS),
        *(("GRU", *case) for case in SHARED_ERRORS),
        *(("RNN", *case) for case in SHARED_ERRORS),
        ("RNN", {"nonlinearity": "gelu"}, ValueError, ["RNN", "nonlinearity", "'gelu'", "'tanh'", "'relu'"]),
        ("RNN", {"nonlinearity": "relu", "activations": ["Elu"]}, ValueError, ["'relu'", "'Elu'"]),
        ("RNN", {"proj_size": 2}, ValueError, ["RNN", "proj_size", "2"]),
        ("LSTM", {"proj_size": 9}, ValueError, ["proj_size"]),
        (
            "LSTM",
            {"peephole_gradient": "half"},
            ValueError,
            ["LSTM", "peephole_gradient", "'half'", "'full'", "'truncated'"],
        ),
        ("LSTM", {"activations": ["Tanh", "Tanh"]}, ValueError, ["activations", "2", "3"]),
        ("LSTM", {"activations": ["Tanh", "Tanh", "Cosine"]}, ValueError, ["activations", "Cosine"]),
        ("LSTM", {"activations": ["Tanh"] * 3, "bidirectional": True}, ValueError, ["activations", "3", "6"]),
        ("GRU", {"activations": ["Tanh", "Cosine"]}, ValueError, ["activations", "Cosine"]),
        ("GRU", {"activations": ["Tanh"] * 2, "bidirectional": True}, ValueError, ["activations", "2", "4"]),
        ("GRU", {"reset_after": "no"}, TypeError, ["GRU", "reset_after", "'no'", "True", "False"]),
        ("GRU", {"reset_after": 0}, TypeError, ["GRU", "reset_after", "0", "True", "False"]),
    ],
)
def test_bad_construction(rnn, kwargs, error, words):
    with pytest.raises(error) as caught:
        OURS[rnn](**{"input_size": I, "hidden_size": H, **kwargs})
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("kind", [xpgrad_torch.LSTM, xpgrad_torch.LSTMCell])
def test_peepholes_are_drawn_from_the_range_of_the_other_parameters(kind):
    module = kind(2, 400, peephole=True, dtype=torch.float64)
    found = [p for name, p in module.named_parameters() if "peephole" in name]
    assert [(tuple(p.shape), p.dtype) for p in found] == [((1200,), torch.float64)]
    assert 0.95 / 20 < found[0].abs().max() <= 1 / 20
    assert found[0].mean().abs() < 0.1 / 20


EXTRAS = {
    "LSTM": {
        "peephole": True,
        "peephole_gradient": "truncated",
        "clip": 2.5,
        "input_forget": True,
        "activations": ["HardSigmoid", "Tanh", "Elu"],
        "activation_alpha": [0.3],
        "activation_beta": [0.4],
    },
    "GRU": {
        "reset_after": False,
        "clip": 2.5,
        "activations": ["HardSigmoid", "Elu"],
        "activation_alpha": [0.3],
        "activation_beta": [0.4],
    },
    "RNN": {"clip": 2.5, "activations": ["HardSigmoid"], "activation_alpha": [0.3], "activation_beta": [0.4]},
}


@every_rnn
def test_repr(rnn):
    assert repr(OURS[rnn](3, 4)) == f"{rnn}(3, 4)"
    arguments = {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.5, "bidirectional": True}
    for kwargs in (arguments, {"proj_size": 2} if rnn == "LSTM" else {}):
        assert repr(OURS[rnn](3, 4, **kwargs)) == repr(THEIRS[rnn](3, 4, **kwargs))
    ours = OURS[rnn](3, 4, num_layers=2, **EXTRAS[rnn])
    extras = ", ".join(f"{name}={value!r}" for name, value in EXTRAS[rnn].items())
    assert repr(ours) == f"{rnn}(3, 4, num_layers=2, {extras})"
    again = eval(repr(ours), {rnn: OURS[rnn]})
    assert repr(again) == repr(ours)


# --- the call ---------------------------------------------------------------------------------------


ZEROS = torch.zeros(T, N, I)
STATE = torch.zeros(1, N, H)
BOTH_REFUSE = [
    (["3 steps"], {}, TypeError, ["input", "str", "torch.Tensor"]),
    ([torch.zeros(5)], {}, ValueError, ["input", "1", "2", "3"]),
    ([torch.zeros(T, N, 7)], {}, RuntimeError, ["input.size(-1)", "7", "input_size = 2"]),
    ([ZEROS.double()], {}, ValueError, ["input", "torch.float64", "torch.float32"]),
    ([ZEROS.long()], {}, ValueError, ["input has dtype torch.int64", "; convert input.to(torch.float32)"]),
    ([ZEROS], {"lengths": [1, 2]}, ValueError, ["lengths", "(2,)", "(3,)"]),
    ([ZEROS], {"lengths": [1, 2, 6]}, ValueError, ["6", "5"]),
    ([ZEROS], {"lengths": [1, -2, 5]}, ValueError, ["-2"]),
    ([ZEROS], {"lengths": [1.0, 2.0, 5.0]}, TypeError, ["lengths[0] is 1.0", "float"]),
    ([pack_sequence([torch.zeros(2, I)])], {"lengths": [2]}, ValueError, ["lengths", "PackedSequence"]),
    ([pack_sequence([torch.zeros(2, 7)])], {}, RuntimeError, ["input.size(-1)", "7", "input_size = 2"]),
]


@pytest.mark.parametrize(
    ("rnn", "args", "kwargs", "error", "words"),
    [
        *(("LSTM", *case) for case in BOTH_REFUSE),
        *(("GRU", *case) for case in BOTH_REFUSE),
        *(("RNN", *case) for case in BOTH_REFUSE),
        ("RNN", [ZEROS, (STATE, STATE)], {}, TypeError, ["hx is tuple of 2", "torch.Tensor"]),
        ("LSTM", [ZEROS, STATE], {}, TypeError, ["hx is Tensor", "(h_0, c_0)"]),
        ("LSTM", [ZEROS, (STATE,)], {}, TypeError, ["hx is tuple of 1", "(h_0, c_0)"]),
        ("LSTM", [ZEROS, (STATE, 0)], {}, TypeError, ["c_0 is int", "torch.Tensor"]),
        ("LSTM", [ZEROS, (STATE, torch.zeros(1, N, 9))], {}, RuntimeError, ["c_0", "(1, 3, 9)", "(1, 3, 4)"]),
        ("LSTM", [ZEROS[:, 0], (STATE, STATE)], {}, RuntimeError, ["h_0", "(1, 3, 4)", "(1, 4)"]),
        (
            "LSTM",
            [ZEROS, (STATE.double(), STATE.double())],
            {},
            RuntimeError,
            ["h_0", "torch.float64", "torch.float32"],
        ),
        ("GRU", [ZEROS, (STATE, STATE)], {}, TypeError, ["hx is tuple of 2", "torch.Tensor"]),
        ("GRU", [ZEROS, torch.zeros(1, N, 9)], {}, RuntimeError, ["hx", "(1, 3, 9)", "(1, 3, 4)"]),
        ("GRU", [ZEROS[:, 0], STATE], {}, RuntimeError, ["hx", "(1, 3, 4)", "(1, 4)"]),
        ("GRU", [ZEROS, STATE.double()], {}, RuntimeError, ["hx", "torch.float64", "torch.float32"]),
    ],
)
def test_bad_input(rnn, args, kwargs, error, words):
    with pytest.raises(error) as caught:
        OURS[rnn](I, H)(*args, **kwargs)
    assert rnn.lower() in str(caught.value).lower()
    assert all(word in str(caught.value) for word in words), caught.value


@every_rnn
def test_tensors_without_data(rnn):
    """The meta device, on which shapes are found out."""
    ours = OURS[rnn](I, H, 2, bidirectional=True, device="meta")
    output, *finals = flat(ours(torch.empty(T, N, I, device="meta")))
    assert output.device.type == "meta"
    assert output.shape == (T, N, 2 * H)
    assert all(final.shape == (4, N, H) for final in finals)
    resets = torch.zeros(T, N, dtype=torch.bool, device="meta")
    for given in ({"lengths": [T] * N}, {"reset": resets}):
        with pytest.raises(ValueError, match="is given with an input on the meta device, expected None"):
            ours(torch.empty(T, N, I, device="meta"), **given)


@every_rnn
def test_empty_batch_and_no_steps(rnn):
    ours = OURS[rnn](I, H, 2, bidirectional=True)
    assert ours(torch.zeros(T, 0, I))[0].shape == (T, 0, 2 * H)
    states = random_states(ours, dtype=torch.float32)
    output, *finals = flat(ours(torch.zeros(0, N, I), as_hx(states)))
    assert output.shape == (0, N, 2 * H)
    for final, initial in zip(finals, states, strict=True):
        assert torch.equal(final, initial)


@every_rnn
@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_dropout_draws_what_torch_draws(rnn, kind):
    theirs, ours = pair(rnn, I, H, 3, dropout=0.4, bidirectional=True)
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


@pytest.mark.parametrize(
    ("rnn", "used"), [("LSTM", 0), ("LSTM", 1), ("LSTM", 2), ("GRU", 0), ("GRU", 1), ("RNN", 0), ("RNN", 1)]
)
def test_one_output_used(rnn, used):
    theirs, ours = pair(rnn, I, H, 2)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    grads = []
    for module in (theirs, ours):
        y = flat(module(X))[used]
        cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
        leaves = [X, *module.parameters()]
        grads.append(torch.autograd.grad(y, leaves, cotangent))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@every_rnn
def test_frozen_weights_are_not_asked_for(rnn, monkeypatch):
    asked = []
    gradient = f"{rnn.lower()}_grad"
    kernel = getattr(xpgrad, gradient)

    def spy(*args, **kwargs):
        asked.append(set(kwargs["wrt"]))
        return kernel(*args, **kwargs)

    monkeypatch.setattr(xpgrad, gradient, spy)
    ours = OURS[rnn](I, H, 2)
    X = torch.randn(T, N, I)
    ours(X)[0].sum().backward()
    assert asked == [{"X", "W", "R", "B"}, {"W", "R", "B"}]
    asked.clear()
    for name, parameter in ours.named_parameters():
        parameter.requires_grad_(name == "weight_hh_l1")
    ours(X)[0].sum().backward()
    assert asked == [{"R"}]


@every_rnn
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(rnn, mode):
    _, ours = pair(rnn, I, H, 2)
    X = torch.randn(T, N, I, dtype=torch.float64)
    with mode():
        got = flat(ours(X))
    for a, b in zip(got, flat(ours(X)), strict=True):
        assert not a.requires_grad
        assert torch.equal(a, b)


@every_rnn
def test_non_contiguous_input(rnn):
    theirs, ours = pair(rnn, I, H, batch_first=True)
    X = torch.randn(I, T, 2 * N, dtype=torch.float64, requires_grad=True)
    states = tuple(s.detach().permute(1, 2, 0).contiguous().permute(2, 0, 1) for s in random_states(ours))
    assert_same(theirs, ours, [X], lambda m: m(X.permute(2, 1, 0)[::2], as_hx(states)))


@pytest.mark.parametrize(("rnn", "stack"), [("LSTM", {"proj_size": 2}), ("GRU", {})])
def test_inputs_are_not_written_to(rnn, stack):
    _, ours = pair(rnn, I, H, 2, **stack)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    states = random_states(ours)
    lengths = torch.tensor([2, 5, 0])
    watched = [X, *states, lengths, *ours.parameters()]
    before = [x.detach().clone() for x in watched]
    for y in flat(ours(X, as_hx(states), lengths=lengths)):
        y.sum().backward(retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(watched, before, strict=True))


# --- gradients, also of what PyTorch does not have ---------------------------------------------------


SHARED_OPTIONS = {
    "one": {},
    "two": {"num_layers": 2},
    "both": {"bidirectional": True},
    "both-two": {"bidirectional": True, "num_layers": 2},
}
CHECKED = {
    "LSTM": {
        **SHARED_OPTIONS,
        "peephole": {"peephole": True, "bidirectional": True},
        "clip": {"clip": 0.45, "peephole": True},
        "input_forget": {"input_forget": True, "num_layers": 2},
        "activations": {"activations": ["HardSigmoid", "Softsign", "Elu"], "activation_alpha": [0.3, 0.8]},
        "projected": {"proj_size": 1, "peephole": True, "bidirectional": True},
    },
    "GRU": {
        **SHARED_OPTIONS,
        **{f"before-{name}": {**options, "reset_after": False} for name, options in SHARED_OPTIONS.items()},
        "clip": {"clip": 0.45},
        "before-clip": {"clip": 0.45, "reset_after": False},
        "activations": {"activations": ["HardSigmoid", "Elu"], "activation_alpha": [0.3, 0.8]},
    },
    "RNN": {
        **SHARED_OPTIONS,
        "relu": {"nonlinearity": "relu", "bidirectional": True},
        "clip": {"clip": 0.45},
        "activations": {"activations": ["Elu"], "activation_alpha": [0.8]},
    },
}


@pytest.mark.parametrize("lengths", [None, [2, 3]], ids=["full", "lengths"])
@pytest.mark.parametrize(
    ("rnn", "options"),
    [
        pytest.param(rnn, options, id=f"{rnn}-{name}")
        for rnn, checked in CHECKED.items()
        for name, options in checked.items()
    ],
)
def test_gradcheck(rnn, options, lengths):
    torch.manual_seed(2)
    module = OURS[rnn](1, 2, dtype=torch.float64, **options)
    X = torch.randn(3, 2, 1, dtype=torch.float64, requires_grad=True)
    inputs = [X, *random_states(module, (2,)), *module.parameters()]
    assert gradcheck(as_function(module, lengths), inputs, fast_mode=True)


@pytest.mark.parametrize(
    ("rnn", "options"),
    [
        ("LSTM", {"peephole": True}),
        ("LSTM", {"bidirectional": True}),
        ("LSTM", {"num_layers": 2}),
        ("GRU", {"bidirectional": True}),
        ("GRU", {"num_layers": 2}),
        ("GRU", {"reset_after": False}),
        ("RNN", {"bidirectional": True}),
    ],
)
def test_gradgradcheck(rnn, options):
    torch.manual_seed(2)
    module = OURS[rnn](1, 1, dtype=torch.float64, **options)
    X = torch.randn(2, 2, 1, dtype=torch.float64, requires_grad=True)
    inputs = [X, *random_states(module, (2,)), *module.parameters()]
    assert gradgradcheck(as_function(module, [2, 1]), inputs, fast_mode=True)


# --- life as a module --------------------------------------------------------------------------------


def round_trip(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)), "save": round_trip}


@every_rnn
@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies(rnn, duplicate):
    module = OURS[rnn](I, H, 2, **EXTRAS[rnn]).eval()
    other = duplicate(module)
    X = torch.randn(T, N, I)
    assert repr(other) == repr(module)
    assert not other.training
    assert torch.equal(module(X)[0], other(X)[0])
    with torch.no_grad():
        other.weight_hh_l1.add_(1)
    assert not torch.equal(module(X)[0], other(X)[0])


@every_rnn
def test_conversion_and_assignment_take_effect(rnn):
    theirs, ours = pair(rnn, I, H, dtype=torch.float32)
    X = torch.randn(T, N, I)
    ours.double()
    assert ours(X.double())[0].dtype == torch.float64
    ours.float()
    new = torch.randn_like(ours.weight_hh_l0)
    for module in (theirs, ours):
        module.weight_hh_l0 = nn.Parameter(new.clone())
    torch.testing.assert_close(ours(X)[0], theirs(X)[0])
    ours.flatten_parameters()
    torch.testing.assert_close(ours(X)[0], theirs(X)[0])


@every_rnn
def test_hooks(rnn):
    module = OURS[rnn](I, H)
    seen = []
    module.register_forward_pre_hook(lambda m, args: seen.append("before"))
    module.register_forward_hook(lambda m, args, out: seen.append("after"))
    module.register_full_backward_hook(lambda m, grad_in, grad_out: seen.append("backward"))
    X = torch.randn(T, N, I, requires_grad=True)
    module(X)[0].sum().backward()
    assert seen == ["before", "after", "backward"]


@every_rnn
def test_inside_sequential(rnn):
    class First(nn.Module):
        def forward(self, result):
            return result[0]

    torch.manual_seed(0)
    theirs = nn.Sequential(
        nn.Linear(3, I), THEIRS[rnn](I, H, bidirectional=True), First(), nn.Linear(2 * H, 1)
    )
    torch.manual_seed(0)
    ours = OURS[rnn](I, H, bidirectional=True)
    ours = nn.Sequential(copy.deepcopy(theirs[0]), ours, First(), copy.deepcopy(theirs[3]))
    ours.load_state_dict(theirs.state_dict())
    X = torch.randn(T, N, 3)
    torch.testing.assert_close(ours(X), theirs(X), rtol=1e-5, atol=1e-6)


@every_rnn
def test_checkpoint(rnn):
    from torch.utils.checkpoint import checkpoint

    _, ours = pair(rnn, I, H, 2)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    outputs, expected, cotangents = gradients(ours, [X], lambda m: m(X))
    got, grads, _ = gradients(ours, [X], lambda m: checkpoint(m, X, use_reentrant=False), cotangents)
    for a, b in zip([*got, *grads], [*outputs, *expected], strict=True):
        assert torch.equal(a, b)


@every_rnn
def test_weight_normalization_and_masking_by_hooks(rnn):
    """Parametrized weights are read anew at each call."""
    theirs, ours = pair(rnn, I, H)
    for module in (theirs, ours):
        nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, [X], lambda m: m(X))


@every_rnn
def test_a_class_that_is_pytorchs_too(rnn):
    """For code that asks isinstance(module, torch.nn.LSTM); a setting lets torch.compile take it."""
    kind = type(rnn, (OURS[rnn], THEIRS[rnn]), {})
    modules = []
    for build in (kind, OURS[rnn]):
        torch.manual_seed(0)
        modules.append(build(I, H, 2, batch_first=True, clip=2.0))
    assert isinstance(modules[0], THEIRS[rnn])
    assert repr(modules[0]) == repr(modules[1])
    X = torch.randn(N, T, I)
    expected = modules[1](X, lengths=[5, 2, 0])[0]
    assert torch.equal(modules[0](X, lengths=[5, 2, 0])[0], expected)
    lengths = torch.tensor([5, 2, 0])
    with torch._dynamo.config.patch(allow_rnn=True):
        step = torch.compile(modules[0], fullgraph=True, backend="aot_eager")
        assert torch.equal(step(X, lengths=lengths)[0], expected)


@pytest.mark.parametrize("name", ["LSTM", "GRUCell", "LayerNormLSTM"])
def test_a_list_that_changes_later_does_not_change_the_module(name):
    activations = ["Sigmoid", "Tanh"] if name == "GRUCell" else ["Sigmoid", "Tanh", "Tanh"]
    module = getattr(xpgrad_torch, name)(2, 3, activations=activations)
    shown = repr(module)
    activations[0] = "Relu"
    assert repr(module) == shown


# ------------------------------------------------------------------------------ rows of packed sequences


@pytest.mark.parametrize("sizes", [[4, 4, 2, 1], [3], [1, 1, 1], [2, 2]])
def test_rows_move_as_by_pytorchs_functions(sizes):
    data = torch.randn(sum(sizes), 3, dtype=torch.float64, requires_grad=True)
    packed = PackedSequence(data, torch.tensor(sizes))
    packing = PackedRows(packed)
    theirs, lengths = pad_packed_sequence(packed)
    ours = packing.padded(data)
    assert packing.lengths.tolist() == lengths.tolist()
    assert torch.equal(ours, theirs)
    weights = torch.randn_like(theirs)
    assert torch.equal(
        *(torch.autograd.grad((x * weights).sum(), data, retain_graph=True)[0] for x in (ours, theirs))
    )
    X = torch.randn_like(theirs).transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    rows = packing.rows(X), pack_padded_sequence(X, lengths).data
    assert torch.equal(*rows)
    weights = torch.randn_like(rows[0])
    assert torch.equal(*(torch.autograd.grad((x * weights).sum(), X)[0] for x in rows))


def test_numbers_that_are_no_packing_are_pytorchs_errors():
    layer = xpgrad_torch.LSTM(3, 4)
    for sizes in ([1, 2], [2, 2, 2], []):
        packed = PackedSequence(torch.randn(3, 3), torch.tensor(sizes, dtype=torch.int64))
        with pytest.raises((RuntimeError, IndexError)):
            layer(packed)
