"""Per-sample gradients by other libraries: PyTorch's ExpandedWeights, and Opacus' private training."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.utils import _pytree
from torch.utils.data import DataLoader, TensorDataset

import xpgrad
import xpgrad_torch
from xpgrad_torch import functional

N = 4
SEQUENCES, STEPS = (N, 5, 3), (N, 3)
MODULES = {
    "LSTM": (lambda **k: xpgrad_torch.LSTM(3, 4, 2, batch_first=True, bidirectional=True, **k), SEQUENCES),
    "LSTM-options": (
        lambda **k: xpgrad_torch.LSTM(3, 4, batch_first=True, peephole=True, clip=1.0, bias=False, **k),
        SEQUENCES,
    ),
    "LSTM-projected": (lambda **k: xpgrad_torch.LSTM(3, 4, batch_first=True, proj_size=2, **k), SEQUENCES),
    "GRU": (lambda **k: xpgrad_torch.GRU(3, 4, 2, batch_first=True, **k), SEQUENCES),
    "GRU-save": (lambda **k: xpgrad_torch.GRU(3, 4, batch_first=True, save=2, **k), SEQUENCES),
    "RNN": (lambda **k: xpgrad_torch.RNN(3, 4, batch_first=True, nonlinearity="relu", **k), SEQUENCES),
    "RNNCell": (lambda **k: xpgrad_torch.RNNCell(3, 4, **k), STEPS),
    "LSTMCell": (lambda **k: xpgrad_torch.LSTMCell(3, 4, peephole=True, **k), STEPS),
    "GRUCell": (lambda **k: xpgrad_torch.GRUCell(3, 4, reset_after=False, **k), STEPS),
    "Conv1d": (lambda **k: xpgrad_torch.Conv1d(3, 4, 3, padding="same", **k), (N, 3, 7)),
    "Conv2d": (lambda **k: xpgrad_torch.Conv2d(4, 6, 3, stride=2, groups=2, bias=False, **k), (N, 4, 7, 6)),
    "Conv3d": (lambda **k: xpgrad_torch.Conv3d(3, 4, 2, padding_mode="circular", **k), (N, 3, 3, 4, 3)),
    "ConvTranspose1d": (lambda **k: xpgrad_torch.ConvTranspose1d(3, 4, 3, stride=2, **k), (N, 3, 7)),
    "ConvTranspose2d": (lambda **k: xpgrad_torch.ConvTranspose2d(3, 4, 3, bias=False, **k), (N, 3, 5, 4)),
}
every_module = pytest.mark.parametrize(("build", "shape"), MODULES.values(), ids=MODULES)


def built(build, shape, dtype=torch.float64):
    torch.manual_seed(0)
    return build(dtype=dtype), torch.randn(shape, dtype=dtype)


def gradients(module, X, cotangents, batch_axis=0, **keywords):
    """The gradients of X and of each parameter, for one sample after the other."""
    samples = []
    for k in range(X.shape[batch_axis]):
        sample = X.narrow(batch_axis, k, 1).detach().requires_grad_()
        own = {name: x.narrow(0, k, 1) for name, x in keywords.items()}
        outputs = _pytree.tree_leaves(module(sample, **own))
        here = [c.narrow(axis, k, 1) for c, axis in cotangents]
        samples.append(torch.autograd.grad(outputs, [sample, *module.parameters()], here))
    dX, *parameters = zip(*samples, strict=True)
    return torch.cat(dX, batch_axis), [torch.stack(grads) for grads in parameters]


def assert_per_sample(module, X, batch_axis=0, state_axis=0, **keywords):
    """`grad_sample` of each parameter, and the gradient of the input, are those of samples on their own."""
    leaf = X.clone().requires_grad_()
    run = call_for_per_sample_grads(module, batch_size=X.shape[batch_axis], batch_first=batch_axis == 0)
    outputs = _pytree.tree_leaves(run(leaf, **keywords))
    axes = [batch_axis, *(state_axis for _ in outputs[1:])]
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    pairs = list(zip(cotangents, axes, strict=True))
    dX, expected = gradients(module, X, pairs, batch_axis, **keywords)
    torch.testing.assert_close(leaf.grad, dX, rtol=1e-9, atol=1e-9)
    for p, grad in zip(module.parameters(), expected, strict=True):
        assert p.grad is None
        torch.testing.assert_close(p.grad_sample, grad, rtol=1e-9, atol=1e-9)


def state_axis_of(module):
    return 1 if isinstance(module, nn.RNNBase) else 0


# --- ExpandedWeights ---------------------------------------------------------------------------------------


@every_module
def test_expanded_weights(build, shape):
    module, X = built(build, shape)
    assert_per_sample(module, X, state_axis=state_axis_of(module))


@pytest.mark.parametrize("kind", [xpgrad_torch.LSTM, xpgrad_torch.GRU])
def test_expanded_weights_of_batches_behind_time_with_lengths(kind):
    torch.manual_seed(0)
    module, X = kind(3, 4, dtype=torch.float64), torch.randn(5, N, 3, dtype=torch.float64)
    assert_per_sample(module, X, batch_axis=1, state_axis=1, lengths=torch.tensor([5, 2, 0, 3]))


def test_expanded_weights_with_initial_states_and_without_a_gradient_of_the_input():
    torch.manual_seed(0)
    module = xpgrad_torch.GRU(3, 4, batch_first=True, dtype=torch.float64)
    X, h = torch.randn(SEQUENCES, dtype=torch.float64), torch.randn(1, N, 4, dtype=torch.float64)
    output, _ = call_for_per_sample_grads(module, batch_size=N)(X, h)
    c = torch.randn_like(output)
    output.backward(c)
    for k in range(N):
        own, _ = module(X[k : k + 1], h[:, k : k + 1])
        grads = torch.autograd.grad(own, list(module.parameters()), c[k : k + 1])
        for p, grad in zip(module.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad_sample[k], grad, rtol=1e-9, atol=1e-9)


def test_expanded_weights_in_functions_of_a_module_of_ones_own():
    """A module that calls `functional.conv2d` with its weight, twice; the means of losses count samples."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3, 3, 3, dtype=torch.float64))

        def forward(self, x):
            y = functional.conv2d(x, self.weight, padding=1)
            return functional.conv2d(y.tanh(), self.weight)

    torch.manual_seed(0)
    module, X = Twice(), torch.randn(N, 3, 5, 4, dtype=torch.float64)
    y = call_for_per_sample_grads(module, loss_reduction="mean")(X)
    c = torch.randn_like(y)
    (y * c).sum((1, 2, 3)).mean().backward()
    for k in range(N):
        (grad,) = torch.autograd.grad(module(X[k : k + 1]), [module.weight], c[k : k + 1])
        torch.testing.assert_close(module.weight.grad_sample[k], grad, rtol=1e-9, atol=1e-9)


def test_expanded_weights_that_do_not_fit():
    module, X = xpgrad_torch.GRU(3, 4), torch.randn(5, N, 3)
    with pytest.raises(RuntimeError, match="GRU: a weight is expanded for 5 samples and the input has 4"):
        call_for_per_sample_grads(module)(X)
    weights = nn.Parameter(torch.randn(2, 3, 3)), nn.Parameter(torch.randn(2))
    layer = xpgrad_torch.Conv1d(3, 2, 3)
    run = call_for_per_sample_grads(layer)

    def mixed(x):
        with pytest.raises(RuntimeError, match=r"conv: a weight of shape \(2,\) .* is not expanded"):
            functional.conv1d(x, layer.weight, weights[1])
        return x

    layer.forward = mixed
    run(torch.randn(2, 3, 5))


def test_frozen_weights_stay_as_they_are():
    module = xpgrad_torch.LSTMCell(3, 4, dtype=torch.float64)
    module.weight_hh.requires_grad_(False)
    X = torch.randn(STEPS, dtype=torch.float64)
    h, _ = call_for_per_sample_grads(module)(X)
    h.sum().backward()
    assert not hasattr(module.weight_hh, "grad_sample")
    expected = torch.autograd.grad(module(X)[0].sum(), module.weight_ih)[0]
    torch.testing.assert_close(module.weight_ih.grad_sample.sum(0), expected)


# --- Opacus ------------------------------------------------------------------------------------------------


@pytest.fixture
def opacus():
    return pytest.importorskip("opacus", reason="Opacus is not installed")


class Classifier(nn.Module):
    """A module, from whose first output two numbers for each sample come."""

    def __init__(self, module):
        super().__init__()
        self.module, self.head = module, nn.Linear(4, 2)

    def forward(self, x):
        outputs = _pytree.tree_leaves(self.module(x))
        y = outputs[0]
        if isinstance(self.module, nn.RNNBase):
            y = outputs[-1][-1] if len(outputs) > 1 else y[:, -1]
        return self.head(y.reshape(len(x), -1)[:, -4:].tanh())


def first_output(kind):
    """A class with the first output as the only one, as an own module of somebody."""
    return type(f"First{kind.__name__}", (kind,), {"forward": lambda self, x: kind.forward(self, x)[0]})


def own_cell():
    def step(xp, x, h, W, R, v):
        return xp.tanh(W.z(x) + R.z(h) + v.z)

    return xpgrad_torch.CellLayer(xpgrad.Cell(step, W="z", R="z", v="z"), 3, 4, batch_first=True)


HOOKED = {
    "LSTM": (
        lambda: xpgrad_torch.LSTM(3, 4, 2, batch_first=True, bidirectional=True, clip=1.0, proj_size=2),
        SEQUENCES,
    ),
    "LSTM-peepholes": (lambda: xpgrad_torch.LSTM(3, 4, batch_first=True, peephole=True), SEQUENCES),
    "LSTM-first-output": (lambda: first_output(xpgrad_torch.LSTM)(3, 4, batch_first=True), SEQUENCES),
    "GRU": (lambda: xpgrad_torch.GRU(3, 4, batch_first=True, bidirectional=True), SEQUENCES),
    "RNN": (lambda: xpgrad_torch.RNN(3, 4, batch_first=True, save="states"), SEQUENCES),
    "LayerNormGRU": (lambda: xpgrad_torch.LayerNormGRU(3, 4, batch_first=True), SEQUENCES),
    "own cell": (own_cell, SEQUENCES),
    "LSTMCell": (lambda: xpgrad_torch.LSTMCell(3, 4, peephole=True), STEPS),
    "GRUCell": (
        lambda: xpgrad_torch.GRUCell(3, 4, activations=["HardSigmoid", "Tanh"], activation_alpha=[0.3]),
        STEPS,
    ),
    "RNNCell": (lambda: xpgrad_torch.RNNCell(3, 4), STEPS),
    "Conv1d": (lambda: xpgrad_torch.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), (N, 3, 7)),
    "Conv2d": (lambda: xpgrad_torch.Conv2d(3, 4, 3, bias=False), (N, 3, 5, 4)),
    "ConvTranspose2d": (lambda: xpgrad_torch.ConvTranspose2d(3, 4, 3), (N, 3, 5, 4)),
}
QUIET = pytest.mark.filterwarnings(
    "ignore:::opacus", "ignore:Full backward hook is firing:UserWarning", "ignore:Secure RNG turned off"
)
KINDS = ["hooks", "functorch", "norms"]


def wrapped(opacus, module, kind, **options):
    """The module as Opacus wraps it: for gradients of samples, by its own way, for their norms."""
    if kind == "norms":
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        return GradSampleModuleFastGradientClipping(module, max_grad_norm=1.0, **options)
    return opacus.GradSampleModule(module, force_functorch=kind == "functorch", **options)


def of_samples(module, call, X, cotangents):
    """The gradients of each sample, one at a time, of the sum over outputs and cotangents."""
    found = []
    for n in range(N):
        outputs = _pytree.tree_leaves(call(module, X, n))
        picked = [c.narrow(axis, n, 1) for c, axis in cotangents]
        total = sum((y * c).sum() for y, c in zip(outputs, picked, strict=False))
        found.append(torch.autograd.grad(total, list(module.parameters())))
    return [torch.stack(each) for each in zip(*found, strict=True)]


def assert_found(parameters, expected, kind):
    """What hangs at the parameters: gradients of samples, or norms whose joint one is that of all."""
    if kind != "norms":
        for p, grad in zip(parameters, expected, strict=True):
            torch.testing.assert_close(p.grad_sample, grad, rtol=1e-9, atol=1e-9)
            p.grad_sample = None
        return
    ours = torch.stack([p._norm_sample for p in parameters]).norm(dim=0)
    theirs = torch.stack([grad.flatten(1).norm(dim=1) for grad in expected]).norm(dim=0)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@QUIET
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("build", "shape"), HOOKED.values(), ids=HOOKED)
def test_opacus_finds_samples_of_every_module(opacus, build, shape, kind):
    """Twice in a row, for other inputs, of the first output: Opacus' own way knows of no others."""
    torch.manual_seed(0)
    module = build().double()
    alone = copy.deepcopy(module)
    hooked = wrapped(opacus, module, kind)
    for _ in range(2):
        X = torch.randn(shape, dtype=torch.float64)
        y = _pytree.tree_leaves(hooked(X))[0]
        c = torch.randn_like(y)
        (y * c).flatten(1).sum(1).mean().backward()
        expected = of_samples(alone, lambda m, X, n: m(X[n : n + 1]), X, [(c, 0)])
        assert_found(list(module.parameters()), expected, kind)


RECURRENT = {
    "LSTM": lambda: xpgrad_torch.LSTM(3, 4, 2, batch_first=True, bidirectional=True),
    "GRU": lambda: xpgrad_torch.GRU(3, 4, batch_first=True),
    "LayerNormLSTM": lambda: xpgrad_torch.LayerNormLSTM(3, 4, batch_first=True, bidirectional=True),
}


@QUIET
@pytest.mark.parametrize("kind", ["hooks", "norms"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("build", RECURRENT.values(), ids=RECURRENT)
def test_opacus_sees_all_outputs_states_and_lengths(opacus, build, kind, reduction):
    """Also where only the final states are used, of which Opacus' hooks would see nothing."""
    torch.manual_seed(0)
    module = build().double()
    alone = copy.deepcopy(module)
    hooked = wrapped(opacus, module, kind, loss_reduction=reduction)
    X = torch.randn(SEQUENCES, dtype=torch.float64)
    lengths = [1 + n % X.shape[1] for n in range(N)]
    for first in (0, 1):  # all outputs, and all but the first
        outputs = _pytree.tree_leaves(hooked(X, lengths=lengths))
        cotangents = [(torch.randn_like(y), min(k, 1)) for k, y in enumerate(outputs)]
        cotangents = [(c * (k >= first), axis) for k, (c, axis) in enumerate(cotangents)]
        terms = [
            (y * c).movedim(axis, 0).flatten(1).sum(1)
            for y, (c, axis) in zip(outputs[first:], cotangents[first:], strict=True)
        ]
        getattr(sum(terms), reduction)().backward()
        expected = of_samples(
            alone, lambda m, X, n: m(X[n : n + 1], lengths=lengths[n : n + 1]), X, cotangents
        )
        assert_found(list(module.parameters()), expected, kind)


@QUIET
@pytest.mark.parametrize("kind", ["hooks", "norms"])
def test_opacus_keeps_the_order_of_packed_samples(opacus, kind):
    torch.manual_seed(0)
    module = xpgrad_torch.LSTM(3, 4, batch_first=True).double()
    alone = copy.deepcopy(module)
    hooked = wrapped(opacus, module, kind)
    X, lengths = torch.randn(SEQUENCES, dtype=torch.float64), [2, 4, 1, 3]
    packed = nn.utils.rnn.pack_padded_sequence(X, lengths, batch_first=True, enforce_sorted=False)
    _, (h, _) = hooked(packed)
    c = torch.randn_like(h)
    (h * c).sum((0, 2)).mean().backward()
    expected = of_samples(
        alone, lambda m, X, n: m(X[n : n + 1], lengths=lengths[n : n + 1])[1][0], X, [(c, 1)]
    )
    assert_found(list(module.parameters()), expected, kind)


@QUIET
@pytest.mark.parametrize("kind", ["hooks", "norms"])
def test_opacus_adds_up_the_steps_of_a_loop(opacus, kind):
    """A cell's parameters meet a sample at every step: the gradients are added before their norm is taken."""
    torch.manual_seed(0)
    module = xpgrad_torch.LSTMCell(3, 4).double()
    alone = copy.deepcopy(module)

    def loop(cell, X):
        states = None
        for x in X.unbind(1):
            states = cell(x, states) if states is not None else cell(x)
        return states

    X = torch.randn(SEQUENCES, dtype=torch.float64)
    outputs = loop(wrapped(opacus, module, kind), X)
    cotangents = [(torch.randn_like(y), 0) for y in outputs]
    sum((y * c).sum(1) for y, (c, _) in zip(outputs, cotangents, strict=True)).mean().backward()
    assert_found(
        list(module.parameters()),
        of_samples(alone, lambda m, X, n: loop(m, X[n : n + 1]), X, cotangents),
        kind,
    )


@QUIET
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: xpgrad_torch.GRU(3, 4, 2, batch_first=True, bidirectional=True), SEQUENCES),
        (lambda: xpgrad_torch.GRUCell(3, 4), (N, 3)),
        (lambda: xpgrad_torch.LSTM(3, 4, batch_first=True, bidirectional=True), SEQUENCES),
    ],
    ids=["GRU", "GRUCell", "LSTM"],
)
def test_opacus_norms_if_some_parameters_are_frozen(opacus, build, shape):
    """Each parameter alone, and all but each: the two biases of a GRU have different gradients."""
    torch.manual_seed(0)
    names = [name for name, _ in build().named_parameters()]
    for trained in [*([name] for name in names), *([n for n in names if n != name] for name in names)]:
        module = build().double()
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trained)
        alone = copy.deepcopy(module).requires_grad_()
        X = torch.randn(shape, dtype=torch.float64)
        y = _pytree.tree_leaves(wrapped(opacus, module, "norms")(X))[0]
        c = torch.randn_like(y)
        (y * c).flatten(1).sum(1).mean().backward()
        expected = of_samples(alone, lambda m, X, n: m(X[n : n + 1]), X, [(c, 0)])
        named = dict(zip(names, expected, strict=True))
        found = [p for p in module.parameters() if p.requires_grad]
        assert_found(found, [named[name] for name in trained], "norms")


@QUIET
def test_opacus_takes_frozen_weights_evaluation_and_other_parameters(opacus):
    torch.manual_seed(0)
    module = xpgrad_torch.LSTM(3, 4, batch_first=True)
    module.weight_hh_l0.requires_grad_(False)
    hooked = wrapped(opacus, module, "hooks")
    X = torch.randn(SEQUENCES)
    hooked(X)[0].sum().backward()
    assert not hasattr(module.weight_hh_l0, "grad_sample")
    assert module.weight_ih_l0.grad_sample.shape == (N, 16, 3)
    torch.testing.assert_close(module.weight_ih_l0.grad_sample.sum(0) / N, module.weight_ih_l0.grad)
    module.weight_ih_l0.grad_sample = None
    hooked.eval()
    hooked(X)[0].sum().backward()
    assert module.weight_ih_l0.grad_sample is None
    hooked.remove_hooks()
    hooked.train()
    hooked(X)[0].sum().backward()
    assert module.weight_ih_l0.grad_sample is None
    with_more = xpgrad_torch.GRUCell(3, 4)
    with_more.scale = nn.Parameter(torch.ones(4))  # whoever adds it uses it: the hooks stay Opacus'
    assert wrapped(opacus, with_more, "hooks")._module._forward_hooks
    assert not with_more._forward_pre_hooks


@QUIET
def test_opacus_runs_a_module_in_two_threads_at_once(opacus):
    module = xpgrad_torch.LSTM(3, 4, batch_first=True)
    hooked, X, both = wrapped(opacus, module, "hooks").eval(), torch.randn(SEQUENCES), threading.Barrier(2)
    expected = hooked(X)[0]

    def meet(module, inputs):
        both.wait(60)

    module.register_forward_pre_hook(meet)  # after Opacus' hooks and ours have begun
    with ThreadPoolExecutor(2) as pool:
        for output in pool.map(lambda x: hooked(x)[0], [X, X]):
            torch.testing.assert_close(output, expected, rtol=0, atol=0)


@QUIET
def test_opacus_is_told_what_has_no_samples(opacus):
    hooked = wrapped(opacus, xpgrad_torch.LSTM(3, 4, save=2), "hooks")
    with pytest.raises(RuntimeError, match=r"LSTM: 4 of 4 parameters, the first of shape .* save=k"):
        hooked(torch.randn(5, N, 3))
    hooked = wrapped(opacus, xpgrad_torch.Conv1d(3, 4, 3), "hooks")
    with pytest.raises(RuntimeError, match="Conv1d: 2 of 2 parameters"), torch.autocast("cpu"):
        hooked(torch.randn(N, 3, 5))


@QUIET
@pytest.mark.parametrize("mode", ["ew", "hooks", "ghost"])
@pytest.mark.parametrize(
    "name", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "Conv1d", "Conv2d", "LayerNormGRU", "own cell"]
)
def test_opacus_privacy_engine(opacus, name, mode):
    """A step of private training without noise is the mean of clipped gradients."""
    torch.manual_seed(0)
    if mode == "ew" and name not in MODULES:
        pytest.skip("PyTorch's ExpandedWeights are taken by the modules in PyTorch's place")
    build, shape = MODULES[name] if mode == "ew" else HOOKED[name]
    model = Classifier(build(dtype=torch.float32) if mode == "ew" else build())
    before = copy.deepcopy(model)
    X, labels = torch.randn(shape), torch.tensor([0, 1, 1, 0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private, optimizer, *more = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(X, labels), batch_size=N),
        noise_multiplier=0.0,
        max_grad_norm=0.1,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    plain = nn.CrossEntropyLoss()
    loss = more[0] if mode == "ghost" else plain
    optimizer.zero_grad()
    loss(private(X), labels).backward()
    optimizer.step()
    clipped = [torch.zeros_like(p) for p in before.parameters()]
    for k in range(N):
        one = plain(before(X[k : k + 1]), labels[k : k + 1])
        grads = torch.autograd.grad(one, list(before.parameters()))
        norm = torch.stack([g.norm() for g in grads]).norm()
        for total, g in zip(clipped, grads, strict=True):
            total += g * (0.1 / (norm + 1e-6)).clamp(max=1.0) / N
    for p, old, step in zip(model.parameters(), before.parameters(), clipped, strict=True):
        torch.testing.assert_close(p, old - step, rtol=1e-4, atol=1e-6)
