"""Packed sequences, whose rows the kernels take as they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence  # noqa: E402

import xpgrad  # noqa: E402
import xpgrad_torch  # noqa: E402
from xpgrad._calls import families  # noqa: E402
from xpgrad._calls.adapter_calls import run_foreign  # noqa: E402
from xpgrad_torch import _autograd  # noqa: E402
from xpgrad_torch._packing import PackedRows  # noqa: E402

I, H = 4, 5
RNNS = ("LSTM", "GRU", "RNN")
STACKS = {
    "one": {},
    "both": {"bidirectional": True},
    "both-two": {"bidirectional": True, "num_layers": 2},
}
LENGTHS = {
    "ties": [7, 5, 5, 1],
    "unsorted": [1, 7, 3, 3],
    "equal": [6, 6, 6],
    "one": [5],
    "one-step": [1, 1],
    "steps": [4, 3, 2, 1],
}
every_stack = pytest.mark.parametrize(
    ("rnn", "options"),
    [
        pytest.param(rnn, options, id=f"{rnn}-{name}")
        for rnn, (name, options) in itertools.product(
            RNNS, {**STACKS, "projected": {"proj_size": 3, "bidirectional": True}}.items()
        )
        if "proj_size" not in options or rnn == "LSTM"
    ],
)


@pytest.fixture
def runs(monkeypatch):
    """The names of the ways on which gradients of rows were found."""
    found = []
    for name in ("_gradients", "_followed_rows"):
        way = getattr(_autograd, name)

        def noting(*args, name=name, way=way):
            if args[1] is not None:  # the packing
                found.append(name)
            return way(*args)

        monkeypatch.setattr(_autograd, name, noting)
    return found


def pair(rnn, dtype=torch.float64, **options):
    theirs = getattr(torch.nn, rnn)(I, H, dtype=dtype, **options)
    ours = getattr(xpgrad_torch, rnn)(I, H, dtype=dtype, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def packed_of(data, lengths):
    return pack_padded_sequence(data, torch.tensor(lengths), enforce_sorted=False)


def outputs_of(module, packed, states=None):
    """The rows, and the final states."""
    hx = states if states is None or len(states) > 1 else states[0]
    output, finals = module(packed, hx)
    return output.data, *(finals if isinstance(finals, tuple) else (finals,))


def states_for(module, N):
    layers = module.num_layers * (2 if module.bidirectional else 1)
    sizes = [module.proj_size or H, H][: 2 if module.mode == "LSTM" else 1]
    return [torch.randn(layers, N, size, dtype=torch.float64, requires_grad=True) for size in sizes]


@every_stack
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("seen", ["rows", "finals", "both"])
@pytest.mark.parametrize("with_states", [False, True])
def test_equals_torch(rnn, options, lengths, seen, with_states, runs):
    theirs, ours = pair(rnn, **options)
    X = torch.randn(max(lengths), len(lengths), I, dtype=torch.float64, requires_grad=True)
    states, results = states_for(theirs, len(lengths)) if with_states else None, []
    weights = None
    for module in (theirs, ours):
        outputs = outputs_of(module, packed_of(X, lengths), states)
        weights = [torch.randn_like(x) for x in outputs] if weights is None else weights
        terms = [(x * w).sum() for x, w in zip(outputs, weights, strict=True)]
        loss = sum({"rows": terms[:1], "finals": terms[1:], "both": terms}[seen])
        inputs = [X, *module.parameters(), *(states or ())]
        grads = torch.autograd.grad(loss, inputs, retain_graph=True)
        for a, b in zip(torch.autograd.grad(loss, inputs), grads, strict=True):
            assert torch.equal(a, b)
        results.append([*outputs, *grads])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert set(runs) == {"_gradients"}


@pytest.mark.parametrize("rnn", RNNS)
def test_float32(rnn, runs):
    theirs, ours = pair(rnn, torch.float32, bidirectional=True)
    data = torch.randn(13, I)
    found = []
    for module in (theirs, ours):
        rows = data.clone().requires_grad_()
        output = module(PackedSequence(rows, torch.tensor([5, 4, 3, 1])))[0].data
        found.append([output, *torch.autograd.grad(output.pow(2).sum(), [rows, *module.parameters()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert runs == ["_gradients"]


@pytest.mark.parametrize("rnn", RNNS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_frozen_parts(rnn, bidirectional, runs):
    """An input without a gradient, and parameters without one."""
    theirs, ours = pair(rnn, bidirectional=bidirectional)
    data = torch.randn(9, I, dtype=torch.float64)
    for frozen in ("weight_ih_l0", "bias_hh_l0", "weight_hh_l0"):
        grads = []
        for module in (theirs, ours):
            module.zero_grad()
            getattr(module, frozen).requires_grad_(False)
            module(PackedSequence(data, torch.tensor([4, 3, 2])))[0].data.pow(2).sum().backward()
            grads.append({name: p.grad for name, p in module.named_parameters() if p.grad is not None})
        assert grads[0].keys() == grads[1].keys()
        for name, grad in grads[0].items():
            torch.testing.assert_close(grads[1][name], grad, rtol=1e-9, atol=1e-11)
    assert set(runs) == {"_gradients"}


@pytest.mark.parametrize("rnn", RNNS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_batches_of_other_lengths_share_programs(rnn, bidirectional, monkeypatch):
    """Each gradient is that of its own batch, though other batches came in between."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no programs")
    monkeypatch.setattr(families, "known", families.CallCache())
    theirs, ours = pair(rnn, bidirectional=bidirectional)
    losses = []
    for lengths in ([6, 6, 4, 1], [6, 1, 1, 1], [6, 6, 6, 5], [6, 5, 3, 2]):
        X = torch.randn(6, 4, I, dtype=torch.float64)
        losses.append([outputs_of(m, packed_of(X, lengths))[0].pow(2).sum() for m in (theirs, ours)])
    for pair_of_losses in losses:
        grads = [
            torch.autograd.grad(loss, list(module.parameters()))
            for loss, module in zip(pair_of_losses, (theirs, ours), strict=True)
        ]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert sum(isinstance(known, tuple) for known in families.known.calls.values()) == 2


@pytest.mark.parametrize("rnn", RNNS)
def test_nothing_is_packed_or_unpacked(rnn, monkeypatch):
    """One direction has the rows' own order, the other one turns it."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no programs")
    from xpgrad.engine.programs.recorder import Recorder

    monkeypatch.setattr(families, "known", families.CallCache())
    moved, move = [], Recorder.move_rows

    def noting(recorder, kind, *args, **options):
        moved.append(kind)
        return move(recorder, kind, *args, **options)

    monkeypatch.setattr(Recorder, "move_rows", noting)
    for bidirectional in (False, True):
        ours = getattr(xpgrad_torch, rnn)(I, H + 2, bidirectional=bidirectional)
        data = torch.randn(8, I, requires_grad=True)
        ours(PackedSequence(data, torch.tensor([4, 3, 1])))[0].data.sum().backward()
        assert not {"pack", "unpack"} & set(moved)
        assert ("turn" in moved) == bidirectional


@pytest.mark.parametrize("rnn", RNNS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_followed_gradients(rnn, bidirectional, runs):
    """Second derivatives, and gradients of a batch of cotangents."""
    theirs, ours = pair(rnn, bidirectional=bidirectional)
    data, sizes = torch.randn(9, I, dtype=torch.float64), torch.tensor([4, 3, 1, 1])
    found = []
    for module in (theirs, ours):
        rows = data.clone().requires_grad_()
        inputs = [rows, *module.parameters()]
        output = module(PackedSequence(rows, sizes))[0].data
        grads = torch.autograd.grad(output.pow(2).sum(), inputs, create_graph=True)
        found.append([*grads, *torch.autograd.grad(sum(g.pow(2).sum() for g in grads), inputs)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    output, finals = outputs_of(ours, PackedSequence(rows, sizes))[:2]
    batch = [torch.randn(3, *x.shape, dtype=torch.float64) for x in (output, finals)]
    mapped = torch.autograd.grad((output, finals), inputs, batch, retain_graph=True, is_grads_batched=True)
    for number, one in enumerate(zip(*batch, strict=True)):
        expected = torch.autograd.grad((output, finals), inputs, one, retain_graph=True)
        for a, b in zip(mapped, expected, strict=True):
            torch.testing.assert_close(a[number], b, rtol=1e-9, atol=1e-11)
    assert "_followed_rows" in runs


def test_the_output_may_be_changed_in_place():
    """It is no view; and although the gradient needs it, it stays right."""
    ours = pair("LSTM", bidirectional=True)[1]
    packed = PackedSequence(torch.randn(9, I, dtype=torch.float64), torch.tensor([4, 3, 2]))
    output = ours(packed)[0].data
    expected = 2 * output.detach()
    expected_grads = torch.autograd.grad(2 * ours(packed)[0].data.sum(), [*ours.parameters()])
    torch.testing.assert_close(output.mul_(2), expected)
    for a, b in zip(torch.autograd.grad(output.sum(), [*ours.parameters()]), expected_grads, strict=True):
        torch.testing.assert_close(a, b)


def test_saved_tensors_that_somebody_moves(runs):
    ours = pair("GRU")[1]
    packed = PackedSequence(torch.randn(9, I, dtype=torch.float64), torch.tensor([4, 3, 2]))
    expected = torch.autograd.grad(ours(packed)[0].data.pow(2).sum(), list(ours.parameters()))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        output = ours(packed)[0].data
    got = torch.autograd.grad(output.pow(2).sum(), list(ours.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    checkpointed = torch.utils.checkpoint.checkpoint(
        lambda rows: ours(PackedSequence(rows, packed.batch_sizes))[0].data, packed.data, use_reentrant=False
    )
    got = torch.autograd.grad(checkpointed.pow(2).sum(), list(ours.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert set(runs) == {"_gradients"}


@pytest.mark.parametrize("rnn", RNNS)
def test_on_the_standard_engine(rnn, runs):
    """Without programs the rows are taken as well."""
    theirs, ours = pair(rnn, bidirectional=True)
    rows = torch.randn(9, I, dtype=torch.float64, requires_grad=True)
    found = []
    for module in (theirs, ours):
        with xpgrad.use_engine("standard"):
            output = module(PackedSequence(rows, torch.tensor([4, 3, 1, 1])))[0].data
            found.append([output, *torch.autograd.grad(output.pow(2).sum(), [rows, *module.parameters()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert runs == ["_gradients"]


def test_rows_in_memory_of_any_strides(runs):
    """Columns of a larger array, a cotangent that is one number, and one with its sign turned."""
    theirs, ours = pair("GRU")
    wide = torch.randn(8, 2 * I, dtype=torch.float64)
    for rows in (wide[:, ::2], wide[:, I:], wide[:1].expand(8, -1)[:, :I], wide.T.contiguous().T[:, :I]):
        found = []
        for module in (theirs, ours):
            x = rows.clone(memory_format=torch.preserve_format).requires_grad_()
            output = module(PackedSequence(x, torch.tensor([4, 3, 1])))[0].data
            inputs = [x, *module.parameters()]
            ends = (output.sum(), output.T.contiguous().T.pow(2).sum())
            found.append([g for end in ends for g in torch.autograd.grad(end, inputs, retain_graph=True)])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_rows_of_one_column():
    """An axis of size 1 may have any stride."""
    layer, sizes = xpgrad_torch.GRU(1, H, bidirectional=True), torch.tensor([4, 3, 1])
    rows = torch.randn(8, 1)
    odd = torch.as_strided(rows, (8, 1), (1, 5))
    assert torch.equal(*(layer(PackedSequence(x, sizes))[0].data for x in (rows, odd)))


@pytest.mark.parametrize(
    "options", [{"zoneout": 0.3}, {"recurrent_dropout": 0.3}, {"save": "states"}, {"save": 2}]
)
def test_options_over_time_and_batch(options, runs):
    ours = xpgrad_torch.GRU(I, H, **options)
    ours(PackedSequence(torch.randn(8, I), torch.tensor([4, 3, 1])))[0].data.sum().backward()
    assert not runs


def test_dropout_between_layers_draws_as_torch(runs):
    theirs, ours = pair("LSTM", num_layers=2, dropout=0.5)
    rows = torch.randn(9, I, dtype=torch.float64)
    found = []
    for module in (theirs, ours):
        torch.manual_seed(3)
        found.append(module(PackedSequence(rows, torch.tensor([4, 3, 2])))[0].data)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)
    found[1].sum().backward()
    assert runs == ["_gradients"] * 2


def test_results_have_no_rows_of_nobody():
    """What is behind the last row of a program's array can't be reached."""
    packed = PackedSequence(torch.randn(8, I, requires_grad=True), torch.tensor([4, 3, 1]))
    output = xpgrad_torch.LSTM(I, H)(packed)[0].data
    (grad,) = torch.autograd.grad(output.sum(), packed.data)
    assert output.shape == (8, H)
    assert grad.shape == (8, I)
    assert not output._is_view()


@pytest.mark.parametrize("engine", ["numpy", "standard"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_packed_rows_of_kernels(kind, direction, engine, rng):
    """To the last bit the numbers of the arrays over time and batch; what is behind them is not read.

    Those of a full batch are summed in another order, in parts that are not copied.
    """
    T, N, D, G = 5, 4, 1 + (direction == "bidirectional"), {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    weights = {"W": rng.normal(size=(D, G * H, I)), "R": rng.normal(size=(D, G * H, H))}
    for lengths in ([5, 4, 4, 1], [3, 1, 0, 0], [5, 5, 5, 5]):
        is_there = np.arange(T)[:, None] < np.asarray(lengths)
        tolerance = 1e-13 if is_there.all() else 0

        def rows(array, is_there=is_there):
            flat = np.full((T * N, array.shape[-1]), np.nan)
            found = array[is_there]
            flat[: len(found)] = found
            return flat.reshape(T, N, -1)

        X, dy = rng.normal(size=(T, N, I)), rng.normal(size=(T, D, N, H))
        given = {**weights, "direction": direction, "sequence_lens": lengths}
        forward, gradient = (getattr(xpgrad, kind + end) for end in ("", "_grad"))
        with xpgrad.use_engine(engine):
            out = run_foreign(forward, X=X, **given)._asdict()
            got = run_foreign(forward, X=rows(X), packed=True, **given)._asdict()
            saved = {name: x for name, x in got.items() if name in ("H_all", "C_all", "iofc", "zrh")}
            cotangent = rows(dy.swapaxes(1, 2).reshape(T, N, -1))
            more = run_foreign(
                gradient, X=rows(X), packed=True, grad_H_all=cotangent, **saved, **given
            )._asdict()
            saved = {name: out[name] for name in saved}
            out |= run_foreign(gradient, X=X, grad_H_all=dy, **saved, **given)._asdict()
        got |= more
        count = is_there.sum()
        for name, right in out.items():
            if name in ("H_all", "dX") and right is not None:
                right = right.swapaxes(1, 2).reshape(T, N, -1) if name == "H_all" else right
                got[name], right = got[name].reshape(T * N, -1)[:count], right[is_there]
            if right is not None:
                np.testing.assert_allclose(got[name], right, rtol=tolerance, atol=tolerance)


def test_packed_arrays_of_another_shape(rng):
    arrays = {
        "X": rng.normal(size=(5, 2, I)),
        "W": rng.normal(size=(2, H, I)),
        "R": rng.normal(size=(2, H, H)),
    }
    H_all = np.zeros((5, 2, 2, H))
    with pytest.raises(ValueError, match=r"T, N, D \* H"):
        run_foreign(xpgrad.rnn_grad, **arrays, H_all=H_all[0], direction="bidirectional", packed=True)


def test_lengths_of_a_packing():
    packing = PackedRows(PackedSequence(torch.zeros(12, 1), torch.tensor([5, 3, 3, 1])))
    assert packing.lengths.tolist() == [4, 3, 3, 1, 1]


def test_an_attribute_of_the_gradient_alone_is_refused_before_the_gradient():
    module = xpgrad_torch.LSTM(3, 4, peephole=True)
    module.peephole_gradient = "half"
    packed = pack_sequence([torch.ones(5, 3), torch.ones(2, 3)])
    with pytest.raises(ValueError, match="peephole is 'half', expected 'full' or 'truncated'"):
        module(packed)
