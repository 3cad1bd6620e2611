"""The short way from a recurrent module to its program, and weights that are joined on it."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no programs")

import xpgrad  # noqa: E402
import xpgrad_torch  # noqa: E402
from xpgrad.engine.programs.recorder import Recorder  # noqa: E402
from xpgrad_torch import _lengths, functional  # noqa: E402
from xpgrad_torch._autograd import template_of  # noqa: E402
from xpgrad_torch._recurrent import KERNELS  # noqa: E402

N, I, H = 3, 4, 5
CELLS = {name: getattr(torch.nn, name) for name in ("LSTMCell", "GRUCell", "RNNCell")}
LAYERS = {name: getattr(torch.nn, name) for name in ("LSTM", "GRU", "RNN")}


def pair(name, **options):
    theirs = (CELLS | LAYERS)[name](I, H, dtype=torch.float64, **options)
    ours = getattr(xpgrad_torch, name)(I, H, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def results(module, x):
    """The output and all gradients; four calls of a module see what the first one left behind."""
    out = module(x)
    out = out[0] if isinstance(out, tuple) else out
    grads = torch.autograd.grad(out.pow(2).sum(), [x, *module.parameters()])
    return out, *grads


@pytest.mark.parametrize("name", [*CELLS, *LAYERS])
@pytest.mark.parametrize("bias", [False, True])
def test_four_calls_with_new_numbers(name, bias):
    ours, theirs = pair(name, bias=bias)
    shape = (N, I) if name in CELLS else (6, N, I)
    for _ in range(4):
        with torch.no_grad():
            for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
                a.copy_(torch.randn_like(a))
                b.copy_(a)
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for a, b in zip(results(ours, x), results(theirs, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [*CELLS, *LAYERS])
def test_some_parameters_are_frozen(name):
    """One bias of two has a gradient, the other none; of weights too."""
    ours, theirs = pair(name)
    x = torch.randn((N, I) if name in CELLS else (6, N, I), dtype=torch.float64)
    for module in (ours, theirs):
        for number, parameter in enumerate(module.parameters()):
            parameter.requires_grad_(number in (1, 3))
    for _ in range(2):
        for module in (ours, theirs):
            out = module(x)
            (out[0] if isinstance(out, tuple) else out).sum().backward()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [*CELLS, *LAYERS])
def test_gradients_of_gradients_reach_joined_weights(name):
    ours, theirs = pair(name)
    x = torch.randn((N, I) if name in CELLS else (3, N, I), dtype=torch.float64, requires_grad=True)

    def second(module):
        out = module(x)
        out = out[0] if isinstance(out, tuple) else out
        grads = torch.autograd.grad(out.pow(2).sum(), [x, *module.parameters()], create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in grads), [*module.parameters()])

    for _ in range(2):
        for a, b in zip(second(ours), second(theirs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_lengths_that_change(name, bidirectional):
    """One module, the lengths in another order each time, equal ones and wrong ones between."""
    ours, theirs = pair(name, bidirectional=bidirectional)
    T = 6
    for lengths in ([6, 2, 4], [1, 6, 6], [6, 6, 6], [3, 6, 0], [6, 2, 4]):
        x = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
        output, states = ours(x, lengths=torch.tensor(lengths))
        state = states[0] if name == "LSTM" else states
        grads = torch.autograd.grad((output.pow(2).sum() + state.sin().sum()), [x, *ours.parameters()])
        outputs, ends, expected = [], [], [torch.zeros_like(g) for g in grads[1:]]
        for n, length in enumerate(lengths):  # each sequence on its own
            if not length:
                assert not output[:, n].any()
                assert not grads[0][:, n].any()
                continue
            one, final = theirs(x[:length, n : n + 1])
            final = final[0] if name == "LSTM" else final
            own = torch.autograd.grad(one.pow(2).sum() + final.sin().sum(), [x, *theirs.parameters()])
            expected = [a + b for a, b in zip(expected, own[1:], strict=True)]
            torch.testing.assert_close(grads[0][:, n], own[0][:, n], rtol=1e-9, atol=1e-11)
            outputs.append((output[:length, n], one[:, 0]))
            ends.append((state[:, n], final[:, 0]))
        for a, b in [*outputs, *ends, *zip(grads[1:], expected, strict=True)]:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
        with pytest.raises(ValueError, match=rf"^{name}: lengths\[1\] is 7, expected 0 to T = 6"):
            ours(x, lengths=torch.tensor([6, 7, 1]))


def test_an_option_that_changes_has_an_effect():
    cell = xpgrad_torch.LSTMCell(I, H)
    x, weights = torch.randn(N, I), dict(cell.named_parameters())
    plain = [cell(x)[0] for _ in range(2)][-1]
    cell.clip = 0.01
    clipped = [cell(x)[0] for _ in range(2)][-1]
    assert not torch.allclose(plain, clipped)
    cell.clip = None
    torch.testing.assert_close(cell(x)[0], plain, rtol=0, atol=0)
    assert weights


OPTIONS = {
    "number": lambda x: {"clip": x},
    "list": lambda x: {"activations": ("Sigmoid", "LeakyRelu", "Tanh"), "activation_alpha": [x]},
    "tuple": lambda x: {"activations": ("Sigmoid", "LeakyRelu", "Tanh"), "activation_alpha": (x,)},
}


@pytest.mark.parametrize("make", [torch.tensor, np.asarray], ids=["tensor", "array"])
@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_the_number_in_an_option_changes(option, make):
    """Written to from call to call, it is what it is now."""
    x = torch.randn(3, N, I, requires_grad=True)
    W, R = torch.randn(1, 4 * H, I), torch.randn(1, 4 * H, H)

    def step(value):
        y = functional.lstm(x, W, R, **option(value))[0]
        return y, *torch.autograd.grad(y.sum(), x)

    held = make(0.5)
    for number in (0.5, 0.125, 0.75):  # which single precision has, too
        held[...] = number
        assert all(map(torch.equal, step(held), step(number)))


def test_zeros_of_two_signs_are_two_options():
    """The cell state is below 0, where the function is 0 or -0."""
    X, W, R = -torch.ones(1, 1, 1), torch.ones(1, 4, 1), torch.zeros(1, 4, 1)
    for alpha in (0.0, -0.0, 0.0):
        options = {"activations": ("Sigmoid", "Tanh", "LeakyRelu"), "activation_alpha": (alpha,)}
        H_all, *_ = functional.lstm(X, W, R, **options)
        assert torch.signbit(H_all).all() == (math.copysign(1, alpha) > 0)


def test_equal_options_of_another_type_are_still_wrong():
    x, W, R = torch.randn(3, N, I), torch.randn(1, 3 * H, I), torch.randn(1, 3 * H, H)
    for _ in range(2):
        functional.gru(x, W, R, linear_before_reset=1)
        with pytest.raises(ValueError, match="layout"):
            functional.gru(x, W, R, linear_before_reset=1, layout=False)
        with pytest.raises(ValueError, match="layout"):
            functional.gru(x, W, R, linear_before_reset=1, layout=0.0)


def test_a_function_in_the_place_of_ours_is_called(monkeypatch):
    cell = xpgrad_torch.GRUCell(I, H)
    x = torch.randn(N, I)
    for _ in range(2):
        cell(x)
    calls, gru_cell = [], xpgrad.gru_cell
    monkeypatch.setattr(xpgrad, "gru_cell", lambda *args, **kw: calls.append(kw) or gru_cell(*args, **kw))
    for _ in range(3):
        cell(x)
    assert len(calls) == 3


def test_a_forced_engine_is_taken(monkeypatch):
    cell = xpgrad_torch.GRUCell(I, H)
    x = torch.randn(N, I)
    for _ in range(2):
        cell(x)
    seen = []
    monkeypatch.setattr(
        xpgrad.engine.StandardEngine, "scan", lambda self, *args: seen.append(args) or scan(self, *args)
    )
    with xpgrad.use_engine("standard"):
        cell(x)
    assert seen


scan = xpgrad.engine.StandardEngine.scan


def test_calls_with_other_options_or_operands_in_other_pieces_have_other_programs():
    kernel = KERNELS["gru"]

    def head(options, *layout):
        return template_of(kernel, layout, options, {}, False, 2).head

    known = head({"clip": 1}, (1, -1))
    assert head({"clip": 1}, (1, -1)) is known  # also of calls of other shapes
    others = [
        ({"clip": 1.0}, (1, -1)),
        ({"clip": True}, (1, -1)),
        ({"layout": 1}, (1, -1)),
        ({"clip": 1}, (1, 1)),
    ]
    assert known not in [head(*other) for other in others]
    assert head({"clip": torch.ones(())}, (1, -1)) is None
    assert head({"activations": ["Relu"]}, (1, -1)) is None
    assert head({"activation_alpha": (0.5,)}, (1, -1)) is None  # 0 and -0 are equal


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_nothing_is_unpacked_that_nobody_sees(name, monkeypatch):
    """With lengths the arrays between forward and backward stay rows; only the output and dX are unpacked."""
    ours, _ = pair(name)
    moved = []
    move = Recorder.move_rows

    def noting(recorder, kind, *args, **options):
        moved.append(kind)
        return move(recorder, kind, *args, **options)

    monkeypatch.setattr(Recorder, "move_rows", noting)
    x = torch.randn(7, N, I, dtype=torch.float64, requires_grad=True)
    ours(x, lengths=[7, 1, 3])[0].sum().backward()
    assert moved.count("unpack") == 2


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_second_derivatives_with_lengths(name):
    """The gradient of a gradient does not know rows: the forward runs again for it."""
    ours, theirs = pair(name)
    x = torch.randn(6, N, I, dtype=torch.float64, requires_grad=True)
    lengths = [4, 6, 1]

    def padded(n, length):
        return torch.nn.functional.pad(theirs(x[:length, n])[0], (0, 0, 0, 6 - length))

    outputs = ours(x, lengths=lengths)[0], torch.stack([padded(*item) for item in enumerate(lengths)], 1)
    found = []
    for module, output in zip((ours, theirs), outputs, strict=True):
        inputs = [x, *module.parameters()]
        grads = torch.autograd.grad(output.pow(2).sum(), inputs, create_graph=True)
        found.append([*grads, *torch.autograd.grad(sum(g.pow(2).sum() for g in grads), inputs)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_cell_states_that_are_seen():
    """With lengths they are what they are without, and zero behind the end."""
    options = {"dtype": torch.float64, "return_cell_states": True}
    ours = xpgrad_torch.LSTM(I, H, **options)
    x = torch.randn(6, N, I, dtype=torch.float64, requires_grad=True)
    for lengths in ([6, 2, 4], [1, 6, 3]):
        *_, cells = ours(x, lengths=lengths)
        (grad,) = torch.autograd.grad(cells.pow(2).sum(), x)
        for n, length in enumerate(lengths):
            *_, alone = ours(x[:length, n])
            torch.testing.assert_close(cells[:length, n], alone, rtol=1e-9, atol=1e-11)
            assert not cells[length:, n].any()
            (part,) = torch.autograd.grad(alone.pow(2).sum(), x)
            torch.testing.assert_close(grad[:, n], part[:, n], rtol=1e-9, atol=1e-11)


LENGTHS = [4, 0, 6, 1, 6]
AS_GIVEN = {
    "list": LENGTHS,
    "tuple": tuple(LENGTHS),
    "range": range(1, 6),
    "NumPy's integers": [np.int32(length) for length in LENGTHS],
    "array": np.asarray(LENGTHS, dtype=np.uint8),
    "tensor": torch.tensor(LENGTHS),
    "int32": torch.tensor(LENGTHS, dtype=torch.int32),
    "strided": torch.tensor([[length, 9] for length in LENGTHS])[:, 0],
}


@pytest.mark.parametrize("few", [0, 256])
@pytest.mark.parametrize("given", AS_GIVEN.values(), ids=AS_GIVEN)
def test_lengths_of_any_kind(given, few, monkeypatch):
    """As each sequence alone; the same kernel twice, whose gradient takes what the forward found."""
    monkeypatch.setattr(_lengths, "_FEW", few)
    ours, theirs = pair("GRU")
    x = torch.randn(6, len(LENGTHS), I, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        output, _ = ours(x, lengths=given)
        (grad,) = torch.autograd.grad(output.pow(2).sum(), x)
        for n, length in enumerate(int(number) for number in given):
            assert not output[length:, n].any()
            assert not grad[length:, n].any()
            if length:
                alone = theirs(x[:length, n])[0]
                torch.testing.assert_close(output[:length, n], alone, rtol=1e-9, atol=1e-11)
                (part,) = torch.autograd.grad(alone.pow(2).sum(), x)
                torch.testing.assert_close(grad[:, n], part[:, n], rtol=1e-9, atol=1e-11)


def test_lengths_that_were_checked_do_not_change():
    lengths, X = torch.tensor([6, 2, 6]), torch.zeros(6, 3, 2)
    found = _lengths.lengths_in_memory(X, lengths, {})
    assert list(found.held) == [6, 2, 6]
    assert found.address != lengths.data_ptr()
    assert _lengths.lengths_in_memory(X[:5], lengths, {}) is None
    lengths[1] = 6
    assert list(found.held) == [6, 2, 6]
    assert _lengths.lengths_in_memory(X, lengths, {}) is _lengths.FULL
    assert _lengths.lengths_in_memory(X, lengths, {"packed": True}).kind == 1


@pytest.mark.parametrize("given", ["same", "inference", "other"])
def test_a_gradient_has_the_lengths_of_its_own_forward(given):
    """Whatever is written to them, or called, before the backward; for derivatives of it too."""
    ours, _ = pair("GRU")
    x = torch.randn(6, N, I, dtype=torch.float64, requires_grad=True)

    def gradients(change):
        with torch.inference_mode(given == "inference"):
            lengths = torch.tensor([6, 2, 4])
        loss = ours(x, lengths=lengths)[0].pow(2).sum()
        if change:
            with torch.inference_mode(given == "inference"):
                lengths[:] = torch.tensor([1, 7, 6])
            if given == "other":
                ours(x, lengths=torch.tensor([3, 3, 1]))[0].sum().backward()
        (first,) = torch.autograd.grad(loss, x, create_graph=given != "other")
        return first if given == "other" else torch.autograd.grad(first.pow(2).sum(), x)[0]

    for _ in range(3):
        assert torch.equal(gradients(change=True), gradients(change=False))


@pytest.mark.parametrize("wrong", [[6, 7, 1], [6, -1, 1], [6, 1], [1 << 70, 1, 1], [True, 1, 1], [1.0, 1, 1]])
def test_wrong_lengths_after_right_ones(wrong):
    ours, _ = pair("GRU")
    x = torch.randn(6, N, I, dtype=torch.float64)
    ours(x, lengths=[6, 1, 1])
    with pytest.raises((ValueError, TypeError), match=r"lengths|sequence_lens"):
        ours(x, lengths=wrong)
