"""Resets in PyTorch: modules and functions beside a loop of single steps that clears the state."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import xpgrad_torch
from reset_cases import CELLS, LENGTHS, OPTIONS, RESETS, H, I, N, T, piece_by_piece
from torch_cases import as_hx
from xpgrad_torch import CellLayer, functional, run_cell

RESET = torch.from_numpy(RESETS)
MODULES = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}
both_lengths = pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])


def one_step(name, gates_x, states, weight, bias):
    """One step of PyTorch's module from W x + b: the states after it."""
    h = states[0]
    p = h @ weight.T + bias
    if name == "LSTM":
        i, f, g, o = (gates_x + p).chunk(4, dim=-1)
        c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if name == "GRU":
        (ar, az, an), (pr, pz, pn) = gates_x.chunk(3, dim=-1), p.chunk(3, dim=-1)
        r, z = (ar + pr).sigmoid(), (az + pz).sigmoid()
        n = (an + r * pn).tanh()
        return (n + z * (h - n),)
    return ((gates_x + p).tanh(),)


def plain_layer(name, X, weights, states, lengths, reset, backwards):
    """One layer in one direction, step by step: its output (T, N, H) and its final states."""
    W, R, b, c = weights
    outputs = [None] * len(X)
    for t in reversed(range(len(X))) if backwards else range(len(X)):
        valid = (lengths > t)[:, None]
        cut = t + 1 if backwards else t  # of two steps the later one has the mark
        if cut < len(X):
            cleared = (reset[cut] & (cut < lengths))[:, None]
            states = [torch.where(cleared, 0.0, state) for state in states]
        new = one_step(name, X[t] @ W.T + b, states, R, c)
        states = [torch.where(valid, after, before) for after, before in zip(new, states, strict=True)]
        outputs[t] = torch.where(valid, states[0], 0.0)
    return torch.stack(outputs), states


def plain(name, module, X, states, lengths, reset):
    """All layers and directions: the output and the final states."""
    D, finals = (2 if module.bidirectional else 1), []
    for layer in range(module.num_layers):
        parts = []
        for d in range(D):
            end = f"_l{layer}" + "_reverse" * d
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weights = [getattr(module, part + end) for part in names]
            own = [state[layer * D + d] for state in states]
            parts.append(plain_layer(name, X, weights, own, lengths, reset, bool(d)))
        X = torch.cat([output for output, _ in parts], dim=-1)
        finals += [final for _, final in parts]
    return X, *(torch.stack(each) for each in zip(*finals, strict=True))


def modules_and_operands(name, **options):
    torch.manual_seed(0)
    module = getattr(xpgrad_torch, name)(I, H, dtype=torch.float64, **options)
    D = module.num_layers * (2 if module.bidirectional else 1)
    X = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    count = 2 if name == "LSTM" else 1
    states = [torch.randn(D, N, H, dtype=torch.float64, requires_grad=True) for _ in range(count)]
    return module, X, states


def flat(result):
    output, finals = result
    return output, *(finals if isinstance(finals, tuple) else (finals,))


def gradients(results, tensors):
    torch.manual_seed(1)
    loss = sum((y * torch.randn_like(y)).sum() for y in results)
    return torch.autograd.grad(loss, tensors)


def assert_close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    ("bidirectional", "save", "lengths"),
    [(True, "all", None), (False, "all", LENGTHS), (True, 3, LENGTHS), (False, "states", None)],
)
def test_modules_beside_a_loop(name, bidirectional, save, lengths):
    module, X, states = modules_and_operands(name, num_layers=2, bidirectional=bidirectional, save=save)
    lens = torch.tensor(lengths or [T] * N)
    tensors = [X, *states, *module.parameters()]
    wanted = plain(name, module, X, states, lens, RESET)
    expected = gradients(wanted, tensors)
    for _ in range(3):  # later calls run without checks
        results = flat(module(X, as_hx(states), lengths, RESET))
        assert_close(results, wanted)
        assert_close(gradients(results, tensors), expected)
    unlike = flat(module(X, as_hx(states), lengths))  # the same tensors without resets, and again with them
    assert_close(unlike, plain(name, module, X, states, lens, torch.zeros_like(RESET)))
    assert_close(flat(module(X, as_hx(states), lengths, RESET)), wanted)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_the_batch_in_front_and_single_sequences(name):
    module, X, states = modules_and_operands(name, bidirectional=True)
    wanted = flat(module(X, as_hx(states), None, RESET))
    front = getattr(xpgrad_torch, name)(I, H, bidirectional=True, batch_first=True, dtype=torch.float64)
    front.load_state_dict(module.state_dict())
    output, *finals = flat(front(X.transpose(0, 1), as_hx(states), None, RESET.T))
    assert_close((output.transpose(0, 1), *finals), wanted)
    for n in range(N):
        own = flat(module(X[:, n], as_hx([state[:, n] for state in states]), None, RESET[:, n]))
        assert_close(own, (wanted[0][:, n], *(final[:, n] for final in wanted[1:])))


@pytest.mark.parametrize("name", MODULES)
def test_packed_sequences(name):
    """Unsorted ones of two layers and directions: the rows and gradients of the padded input."""
    module, X, states = modules_and_operands(name, num_layers=2, bidirectional=True)
    lens = [5, 1, T, 4, 4]
    tensors, hx = [X, *states, *module.parameters()], as_hx(states)
    output, *finals = flat(module(X, hx, lens, RESET))
    wanted = pack_padded_sequence(output, lens, enforce_sorted=False).data, *finals
    expected = gradients(wanted, tensors)
    for _ in range(2):
        packed, reset = (pack_padded_sequence(x, lens, enforce_sorted=False) for x in (X, RESET))
        rows, *ends = flat(module(packed, hx, reset=reset))
        assert_close((rows.data, *ends), wanted)
        assert_close(gradients((rows.data, *ends), tensors), expected)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "layer_norm_lstm", "layer_norm_gru"])
@pytest.mark.parametrize(
    ("direction", "save", "lengths"), [("forward", "all", LENGTHS), ("reverse", 2, None)]
)
def test_functions(name, direction, save, lengths):
    operands, cotangents, (outputs, grads) = piece_by_piece(name, direction, lengths)
    tensors = {key: torch.from_numpy(x).requires_grad_() for key, x in operands.items()}
    options = {"direction": direction, "save": save, **OPTIONS.get(name, {})}
    found = getattr(functional, name)(**tensors, sequence_lens=lengths, reset=RESET, **options)
    assert_close(found, [torch.from_numpy(x) for x in list(outputs.values())[: len(found)]])
    if name != "lstm":  # whose C_all is no output in PyTorch
        loss = sum((y * torch.from_numpy(c)).sum() for y, c in zip(found, cotangents.values(), strict=True))
        made = torch.autograd.grad(loss, list(tensors.values()))
        assert_close(made, [torch.from_numpy(grads[key]) for key in tensors])


@pytest.mark.parametrize("name", CELLS)
@both_lengths
def test_cells(name, lengths):
    cell = CELLS[name]
    operands, cotangents, (_, grads) = piece_by_piece(name, "bidirectional", lengths)
    tensors = {key: torch.from_numpy(x).requires_grad_() for key, x in operands.items()}
    initial = [tensors[f"initial_{state}"] for state in cell.carried]
    weights = [tensors.get(kind) for kind in ("X", "W", "R", "v")]
    found = run_cell(cell, *weights, lengths, initial, direction="bidirectional", reset=RESET)
    loss = sum((y * torch.from_numpy(c)).sum() for y, c in zip(found, cotangents.values(), strict=True))
    assert_close(
        torch.autograd.grad(loss, list(tensors.values())), [torch.from_numpy(grads[key]) for key in tensors]
    )
    layer = CellLayer(cell, I, H, bidirectional=True, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for kind, parameter in layer.named_parameters():
            parameter.copy_(tensors[kind])
    output, _ = layer(tensors["X"].transpose(0, 1), initial, lengths, RESET.T)
    assert_close([output.transpose(0, 1)], [found[0].transpose(1, 2).flatten(2)])


@pytest.mark.long
def test_compilers_and_second_derivatives():
    module, X, _ = modules_and_operands("GRU")
    wanted, _ = module(X, None, None, RESET)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert_close([compiled(X, None, None, RESET)[0]], [wanted])
    small = X[:4, :2].detach().requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda x: module(x, None, None, RESET[:4, :2])[0], (small,), fast_mode=True
    )


def test_maps_over_resets():
    module, X, _ = modules_and_operands("GRU")
    several = torch.rand(4, T, N) < 0.3
    weights = {name: p.detach() for name, p in module.named_parameters()}

    def loss(weights, reset):
        return torch.func.functional_call(module, weights, (X.detach(), None, None, reset))[0].square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, several)
    for k in range(4):
        for key, value in torch.func.grad(loss)(weights, several[k]).items():
            torch.testing.assert_close(each[key][k], value)


def test_wrong_resets():
    module, X, _ = modules_and_operands("LSTM")
    with pytest.raises(TypeError, match=r"^LSTM: reset has dtype torch.float32, expected booleans"):
        module(X, None, None, RESET.float())
    with pytest.raises(ValueError, match=r"^LSTM: reset has shape \(5, 7\), expected \(T, N\) = \(7, 5\)"):
        module(X, None, None, RESET.T)
    with pytest.raises(ValueError, match=r"^CellLayer: reset has shape \(5, 7\)"):
        CellLayer(CELLS["centered"], I, H, dtype=torch.float64)(X, None, None, RESET.T)
    packed = pack_padded_sequence(X, [T] * N)
    with pytest.raises(TypeError, match=r"^LSTM: reset is Tensor, expected a PackedSequence"):
        module(packed, reset=RESET)
    for lens, text in [
        ([T - 1] * N, r"batch_sizes \[5, 5, 5, 5, 5, 5\], expected those of input, \[5, 5, 5, 5, 5, 5, 5\]"),
        (None, r"sorted_indices \[.*\], expected those of input, None"),
    ]:
        reset = pack_padded_sequence(RESET, lens or [T] * N, enforce_sorted=bool(lens))
        with pytest.raises(ValueError, match=f"^LSTM: reset has {text}"):
            module(packed, reset=reset)
    with pytest.raises(TypeError, match=r"^LSTM: reset has dtype torch.float32, expected booleans"):
        module(packed, reset=pack_padded_sequence(RESET.float(), [T] * N))
    with pytest.raises(ValueError, match=r"^LSTM: reset.data has shape \(35, 1\), expected a boolean"):
        module(packed, reset=pack_padded_sequence(RESET[..., None], [T] * N))
