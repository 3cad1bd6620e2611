"""Somebody writes to what a recurrent layer or cell returned (``y += x``), or to lengths that it was given.

Gradients stay right.
"""

import contextlib
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import xpgrad
import xpgrad_torch
from own_cells import CELLS as OWN
from torch_cases import H, I, N, T, flat
from xpgrad_torch import functional

LENGTHS = [5, 3, 1]
LAYERS = {
    "LSTM": xpgrad_torch.LSTM,
    "GRU": xpgrad_torch.GRU,
    "RNN": xpgrad_torch.RNN,
    "LayerNormLSTM": xpgrad_torch.LayerNormLSTM,
    "LayerNormGRU": xpgrad_torch.LayerNormGRU,
    "CellLayer": lambda *sizes, **options: xpgrad_torch.CellLayer(OWN["peephole LSTM"], *sizes, **options),
}
CELLS = {name: getattr(xpgrad_torch, name) for name in ("LSTMCell", "GRUCell", "RNNCell")}
OPTIONS = {
    "plain": {},
    "both": {"bidirectional": True},
    "batch-first": {"batch_first": True},
    "states": {"save": "states"},
    "two": {"num_layers": 2},
    "projected": {"proj_size": 3},
    "all-cells": {"return_cell_states": True},
    "dropped": {"recurrent_dropout": 0.4},
    "some-steps": {"save": 2},
}
ALL = ("plain", "both", "batch-first", "states")
LAYER_CASES = [
    *[(name, options) for name in LAYERS for options in ALL],
    *[(name, "two") for name in ("LSTM", "GRU", "RNN")],
    *[("LSTM", options) for options in OPTIONS if options not in (*ALL, "two")],
]


def residual(y, x):
    y += x


def masked(y, x):
    y[x > 0] = 0


def dropped(y, x):
    torch.manual_seed(5)
    nn.functional.dropout(y, 0.5, inplace=True)


WRITERS = {
    "y += x": (residual, lambda y, x: y + x),
    "y[mask] = 0": (masked, lambda y, x: torch.where(x > 0, 0.0, y)),
    "relu": (lambda y, x: nn.functional.relu(y, inplace=True), lambda y, x: nn.functional.relu(y)),
    "dropout": (dropped, lambda y, x: (torch.manual_seed(5), nn.functional.dropout(y, 0.5))[1]),
    "y *= x": (lambda y, x: y.mul_(x), lambda y, x: y * x),
}


def step(module, call, which, how, writes):
    """Gradients of a training step that changes one output, in place or not."""
    torch.manual_seed(3)
    outputs = flat(call(module))
    for number in range(len(outputs)) if which is None else [which]:
        y, x = outputs[number], torch.randn_like(outputs[number])
        if writes:
            WRITERS[how][0](y, x)
        else:
            outputs[number] = WRITERS[how][1](y, x)
    weights = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape) for y in outputs]
    loss = sum((y.tanh() * w).sum() for y, w in zip(outputs, weights, strict=True))
    return torch.autograd.grad(loss, list(module.parameters()))


def assert_writing_changes_no_gradient(module, call, which=None, how="y *= x", place=contextlib.nullcontext):
    with place():
        expected = step(module, call, which, how, writes=False)
        for _ in range(3):  # the first one runs the kernel again, later ones have copied
            for a, b in zip(step(module, call, which, how, writes=True), expected, strict=True):
                assert torch.equal(a, b)


def layer_and_input(name, options):
    torch.manual_seed(0)
    module = LAYERS[name](I, H, **OPTIONS[options], dtype=torch.float64)
    X = torch.randn(T, N, I, dtype=torch.float64)
    if OPTIONS[options].get("batch_first"):
        X = X.transpose(0, 1).contiguous()
    return module, X


@pytest.mark.parametrize(("name", "options"), LAYER_CASES)
@pytest.mark.parametrize("given", ["full", "lengths", "single"])
def test_layers(name, options, given):
    module, X = layer_and_input(name, options)
    if given == "single":
        X = torch.randn(T, I, dtype=torch.float64)
    more = {"lengths": LENGTHS} if given == "lengths" else {}
    assert_writing_changes_no_gradient(module, lambda m: m(X, **more))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", ["plain", "both", "two", "states"])
def test_packed_sequences(name, options):
    torch.manual_seed(0)
    module = LAYERS[name](I, H, **OPTIONS[options], dtype=torch.float64)
    packed = pack_padded_sequence(torch.randn(T, N, I, dtype=torch.float64), LENGTHS)
    assert_writing_changes_no_gradient(module, lambda m: m(packed))


@pytest.mark.parametrize("name", CELLS)
def test_cells_in_a_loop(name):
    torch.manual_seed(0)
    module = CELLS[name](I, H, dtype=torch.float64)
    first, second = torch.randn(2, N, I, dtype=torch.float64)

    def call(module):
        return module(second, module(first))

    for single in (lambda module: module(first), lambda module: module(first[0]), call):
        assert_writing_changes_no_gradient(module, single)


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_ways_of_writing_in_float32_beside_pytorchs(name, how):
    torch.manual_seed(0)
    theirs = getattr(nn, name)(I, H)
    ours = xpgrad_torch.swap(theirs)
    X = torch.randn(T, N, I)
    assert_writing_changes_no_gradient(ours, lambda m: m(X), 0, how)
    expected = step(theirs, lambda m: m(X), 0, how, writes=False)  # torch.nn.LSTM lets nobody write
    for a, b in zip(step(ours, lambda m: m(X), 0, how, writes=True), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_functions(layout, lengths):
    torch.manual_seed(0)
    X = torch.randn(T, N, I, dtype=torch.float64)
    X = X.transpose(0, 1).contiguous() if layout else X
    module = nn.ParameterList(torch.randn(1, 4 * H, width, dtype=torch.float64) for width in (I, H))
    assert_writing_changes_no_gradient(
        module, lambda m: functional.lstm(X, *m, sequence_lens=lengths, layout=layout)
    )


def identity(x):
    return x


PLACES = {
    "standard engine": lambda: xpgrad.use_engine("standard"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "counting operations": lambda: FlopCounterMode(display=False),
    "saved elsewhere": torch.autograd.graph.save_on_cpu,
    "hooks that move nothing": lambda: torch.autograd.graph.saved_tensors_hooks(identity, identity),
}
every_module = pytest.mark.parametrize("name", [*LAYERS, *CELLS])


def example(name, dtype=torch.float32):
    torch.manual_seed(0)
    module = (LAYERS | CELLS)[name](I, H, dtype=dtype)
    return module, torch.randn(*(() if name in CELLS else (T,)), N, I, dtype=dtype)


@every_module
@pytest.mark.parametrize("place", PLACES)
def test_places(name, place):
    module, X = example(name)
    assert_writing_changes_no_gradient(module, lambda m: m(X), place=PLACES[place])


@every_module
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(name, dtype):
    module, X = example(name, dtype)
    assert_writing_changes_no_gradient(module, lambda m: m(X))


@every_module
def test_checkpoint(name):
    module, X = example(name)

    def call(module):
        return checkpoint(lambda x: [y.mul_(2) for y in flat(module(x))], X, use_reentrant=False)

    def plain(module):
        return [y * 2 for y in flat(module(X))]

    expected = step(module, plain, None, "y *= x", writes=False)
    for a, b in zip(step(module, call, None, "y *= x", writes=False), expected, strict=True):
        assert torch.equal(a, b)


@every_module
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(name, backend):
    module, X = example(name)
    torch._dynamo.reset()

    def call(module):
        return [y.mul_(2) for y in flat(module(X))]

    expected = step(module, lambda m: [y * 2 for y in flat(m(X))], None, "y *= x", writes=False)
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for a, b in zip(step(module, compiled, None, "y *= x", writes=False), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings(
    "ignore:Converting a tensor to a Python boolean", "ignore:.torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize("name", [name for name in [*LAYERS, *CELLS] if name != "CellLayer"])
def test_traced(name):
    module, X = example(name)
    expected = step(module, lambda m: m(X), None, "y *= x", writes=False)
    traced = torch.jit.trace(module, X)
    for a, b in zip(step(module, lambda _: traced(X), None, "y *= x", writes=True), expected, strict=True):
        torch.testing.assert_close(a, b)


@every_module
def test_transformations(name):
    module, X = example(name, torch.float64)

    def loss(writes, x):
        ys = flat(module(x))
        return sum((y.mul_(2) if writes else y * 2).square().sum() for y in ys)

    for transform, x in ((grad, X), (lambda f: vmap(grad(f)), torch.stack([X, -X]))):
        got, expected = (transform(lambda x, writes=writes: loss(writes, x))(x) for writes in (True, False))
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@every_module
def test_second_derivatives(name):
    module, X = example(name, torch.float64)

    def second(writes):
        x = X.clone().requires_grad_()
        loss = sum((y.mul_(2) if writes else y * 2).square().sum() for y in flat(module(x)))
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), [x, *module.parameters()])

    for a, b in zip(second(True), second(False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# --- lengths ------------------------------------------------------------------------------------------


def halved(lengths, numbers):
    """Halve lengths, by PyTorch or behind its back, as for the next layer of a pyramid."""
    if numbers is None:
        lengths //= 2
    else:
        numbers //= 2


@pytest.mark.parametrize(("name", "options"), LAYER_CASES)
@pytest.mark.parametrize("behind", [False, True])
def test_lengths_that_change(name, options, behind):
    module, X = layer_and_input(name, options)

    def call(module, changes):
        torch.manual_seed(1)
        numbers = np.array(LENGTHS)
        lengths = torch.from_numpy(numbers)
        outputs = flat(module(X, lengths=lengths))
        if changes:
            halved(lengths, numbers if behind else None)
        return torch.autograd.grad(sum(y.square().sum() for y in outputs), [*module.parameters()])

    for _ in range(3):
        for a, b in zip(call(module, True), call(module, False), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("save", ["all", "states", 2])
def test_lengths_of_functions_that_change(save):
    torch.manual_seed(0)
    X = torch.randn(T, N, I, dtype=torch.float64)
    W, R = (torch.randn(1, 4 * H, width, dtype=torch.float64, requires_grad=True) for width in (I, H))
    lengths = torch.tensor(LENGTHS)
    H_all, _, _ = functional.lstm(X, W, R, sequence_lens=lengths, save=save)
    expected = torch.autograd.grad(H_all.sum(), [W, R], retain_graph=True)
    lengths //= 2
    for a, b in zip(torch.autograd.grad(H_all.sum(), [W, R]), expected, strict=True):
        assert torch.equal(a, b)


def test_lengths_that_change_under_transformations():
    module, X = example("GRU", torch.float64)
    lengths = torch.tensor(LENGTHS)

    def loss(x):
        own = lengths.clone()
        output, _ = module(x, lengths=own)
        own //= 2
        return output.square().sum()

    expected = grad(lambda x: module(x, lengths=LENGTHS)[0].square().sum())(X)
    torch.testing.assert_close(grad(loss)(X), expected)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    leaf = X.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf), leaf)[0], expected)


# --- what it costs -------------------------------------------------------------------------------------


def node_of(output):
    """The kernel's node behind an output."""
    node = output.grad_fn
    while not hasattr(node, "saved_tensors"):
        ((node, _),) = node.next_functions
    return node


def saves_its_memory(output):
    return output.data_ptr() in [x.data_ptr() for x in node_of(output).saved_tensors if x is not None]


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_nothing_is_copied_until_somebody_writes(name):
    module = LAYERS[name](I, H, dtype=torch.float64)
    X = torch.randn(T + 1, N, I, dtype=torch.float64)  # a form of its own
    module.clip = 17.0  # options of its own
    for _ in range(3):
        output = module(X)[0]
        assert saves_its_memory(output)
        output.sum().backward()
    module(X)[0].mul_(2).sum().backward()
    output = module(X)[0]
    assert not saves_its_memory(output)
    output.sum().backward()


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_a_retained_graph(name):
    """Gradients are right before and after the output is written to, and it is free once the graph is."""
    module = LAYERS[name](I, H, dtype=torch.float64)
    module.clip = 18.0
    output = module(torch.randn(T, N, I, dtype=torch.float64))[0]
    loss, parameters = output.sum(), list(module.parameters())
    (kept,) = [
        x for x in node_of(output).saved_tensors if x is not None and x.data_ptr() == output.data_ptr()
    ]
    watched = weakref.ref(kept.watched[0])
    del kept
    expected = torch.autograd.grad(loss, parameters, retain_graph=True)
    output.detach().mul_(2)
    assert watched() is not None
    for a, b in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
        assert torch.equal(a, b)
    assert watched() is None


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_outputs_without_a_graph_are_no_views(name, batch_first):
    """PyTorch forbids writing to views from such a block: of a frozen encoder, a reentrant checkpoint."""
    layer = getattr(xpgrad_torch, name)(3, 4, batch_first=batch_first)
    X = torch.randn(5, 2, 3, requires_grad=True)
    with torch.no_grad():
        y = layer(X)[0]
    y.mul_(torch.ones(4, requires_grad=True))
    y = checkpoint(lambda X: layer(X)[0], X, use_reentrant=True)
    y.add_(1)
    with torch.no_grad():
        layer(X[0])[0].detach_()


@pytest.mark.parametrize(("name", "options"), [case for case in LAYER_CASES if case[1] != "states"])
@pytest.mark.parametrize("shape", [(T, N, I), (T, 1, I), (T, I)], ids=["batch", "batch of one", "single"])
def test_hooks_of_an_output_stay(name, options, shape):
    """A view would lose them: PyTorch gives a view a new node when somebody writes to it."""
    layer = LAYERS[name](I, H, **OPTIONS[options])
    X = torch.randn(shape, requires_grad=True)
    found = []
    for writes in (False, True):
        X.grad = None
        torch.manual_seed(0)
        y = layer(X)[0]
        y.register_hook(lambda g: 3 * g)
        y = y.add_(1) if writes else y + 1
        y.square().sum().backward()
        found.append(X.grad)
    torch.testing.assert_close(*found)


def test_hooks_of_a_cell_stay():
    for name, cell in CELLS.items():
        calls = []
        h = cell(I, H)(torch.randn(I, requires_grad=True))
        h = h if name != "LSTMCell" else h[0]
        h.register_hook(calls.append)
        h.add_(1).sum().backward()
        assert len(calls) == 1
