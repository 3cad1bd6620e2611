"""Per-sample gradients by other libraries: PyTorch's ExpandedWeights, and Opacus' private training."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.utils import _pytree
from torch.utils.data import DataLoader, TensorDataset

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
    """The module with its first output as the only one: Opacus' hooks know of no others."""
    return type(f"First{kind.__name__}", (kind,), {"forward": lambda self, x: kind.forward(self, x)[0]})


HOOKED = {
    "LSTM": (lambda: first_output(xpgrad_torch.LSTM)(3, 4, batch_first=True, clip=1.0), SEQUENCES),
    "GRU": (lambda: first_output(xpgrad_torch.GRU)(3, 4, batch_first=True), SEQUENCES),
    "LSTMCell": (lambda: first_output(xpgrad_torch.LSTMCell)(3, 4, peephole=True), STEPS),
    "GRUCell": (
        lambda: xpgrad_torch.GRUCell(3, 4, activations=["HardSigmoid", "Tanh"], activation_alpha=[0.3]),
        STEPS,
    ),
    "Conv1d": (lambda: xpgrad_torch.Conv1d(3, 4, 3), (N, 3, 7)),
    "Conv2d": (lambda: xpgrad_torch.Conv2d(3, 4, 3, bias=False), (N, 3, 5, 4)),
    "ConvTranspose2d": (lambda: xpgrad_torch.ConvTranspose2d(3, 4, 3), (N, 3, 5, 4)),
}


@pytest.mark.filterwarnings("ignore:::opacus", "ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("force", [False, True], ids=["hooks", "functorch"])
@pytest.mark.parametrize(("build", "shape"), HOOKED.values(), ids=HOOKED)
def test_opacus_grad_sample_module(opacus, build, shape, force):
    """Twice in a row, for other inputs: hooks keep what they find in attributes of the module."""
    torch.manual_seed(0)
    module = build().double()
    alone = copy.deepcopy(module)
    hooked = opacus.GradSampleModule(module, force_functorch=force)
    for _ in range(2):
        X = torch.randn(shape, dtype=torch.float64)
        y = hooked(X)
        c = torch.randn_like(y)
        (y * c).flatten(1).sum(1).mean().backward()
        expected = gradients(alone, X, [(c, 0)])[1]
        for p, grad in zip(module.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad_sample, grad, rtol=1e-9, atol=1e-9)
            p.grad_sample = None


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.filterwarnings("ignore:::opacus", "ignore:Secure RNG turned off:UserWarning")
@pytest.mark.parametrize("mode", ["ew", "hooks"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "LSTMCell", "GRUCell", "Conv1d", "Conv2d"])
def test_opacus_privacy_engine(opacus, name, mode):
    """A step of private training without noise is the mean of clipped gradients.

    The recurrent modules' several outputs need PyTorch's own way, ``grad_sample_mode="ew"``.
    """
    torch.manual_seed(0)
    build, shape = HOOKED[name] if mode == "hooks" else MODULES[name]
    model = Classifier(build() if mode == "hooks" else build(dtype=torch.float32))
    before = copy.deepcopy(model)
    X, labels = torch.randn(shape), torch.tensor([0, 1, 1, 0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private, optimizer, _ = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(X, labels), batch_size=N),
        noise_multiplier=0.0,
        max_grad_norm=0.1,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    loss = nn.CrossEntropyLoss()
    optimizer.zero_grad()
    loss(private(X), labels).backward()
    optimizer.step()
    clipped = [torch.zeros_like(p) for p in before.parameters()]
    for k in range(N):
        one = loss(before(X[k : k + 1]), labels[k : k + 1])
        grads = torch.autograd.grad(one, list(before.parameters()))
        norm = torch.stack([g.norm() for g in grads]).norm()
        for total, g in zip(clipped, grads, strict=True):
            total += g * (0.1 / (norm + 1e-6)).clamp(max=1.0) / N
    for p, old, step in zip(model.parameters(), before.parameters(), clipped, strict=True):
        torch.testing.assert_close(p, old - step, rtol=1e-4, atol=1e-6)
