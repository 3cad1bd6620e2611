"""Tensors of other classes, and objects and modes that replace functions, as PyTorch's modules take them."""

import copy

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import xpgrad
import xpgrad_torch
from xpgrad_torch import _programs, functional


class Named(torch.Tensor):
    """Tensors that pass an attribute on, as those of fastai and MONAI do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        results = super().__torch_function__(function, types, args, kwargs or {})
        given = args[0] if isinstance(args[0], list | tuple) else args  # torch.cat takes a list
        tags = [x.tag for x in given if isinstance(x, Named) and hasattr(x, "tag")]
        for x in tensors_of(results):
            if tags and isinstance(x, Named):
                x.tag = tags[0]
        return results


class OwnParameter(nn.Parameter):
    """A parameter of another class."""


class Wrapper:
    """No tensor, but it replaces functions of tensors."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        bare = [x.value if isinstance(x, Wrapper) else x for x in args]
        return Wrapper(function(*bare, **(kwargs or {})))


CASES = {
    "LSTM": (nn.LSTM(3, 4), (5, 2, 3)),
    "GRU": (nn.GRU(3, 4, bidirectional=True, batch_first=True), (2, 5, 3)),
    "RNN": (nn.RNN(3, 4, num_layers=2), (5, 2, 3)),
    "LSTMCell": (nn.LSTMCell(3, 4), (2, 3)),
    "Conv2d": (nn.Conv2d(3, 8, 3), (2, 3, 6, 7)),
    "ConvTranspose1d": (nn.ConvTranspose1d(3, 2, 3), (2, 3, 6)),
    "GELU": (nn.GELU(), (2, 3)),
    "Softmax": (nn.Softmax(-1), (2, 3)),
}
every_case = pytest.mark.parametrize(("module", "shape"), CASES.values(), ids=CASES)


def ours(module):
    model = nn.Sequential(copy.deepcopy(module))
    return xpgrad_torch.swap(model, activations=True, cells=True, convolutions=True)[0]


def tensors_of(result):
    return [x for y in result for x in tensors_of(y)] if isinstance(result, tuple) else [result]


@pytest.fixture
def seen(monkeypatch):
    """Whether each call of a kernel had tensors whose memory compiled code takes."""
    calls = []

    def looked(tensors, look=_programs.look_at):
        found = look(tensors)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(_programs, "look_at", looked)
    for name in ("gelu", "softmax"):
        monkeypatch.setattr(xpgrad, name, _watched(getattr(xpgrad, name), calls))
    return calls


def _watched(function, calls):
    def call(X, *args, **options):
        calls.append(type(X) is torch.Tensor)
        return function(X, *args, **options)

    return call


@every_case
def test_a_subclass_stays_and_its_kernels_are_the_fast_ones(module, shape, seen):
    module, plain = ours(module), torch.randn(shape)
    expected = tensors_of(module(plain.requires_grad_()))
    cotangents = [torch.randn_like(y) for y in expected]
    grads = torch.autograd.grad(expected, [plain, *module.parameters()], cotangents)
    x = plain.detach().as_subclass(Named).requires_grad_()
    x.tag = "left"
    seen.clear()
    found = tensors_of(module(x))
    assert seen[-1]
    for y, z in zip(found, expected, strict=True):
        assert type(y) is Named
        assert y.tag == "left"
        assert y.equal(z)
    for a, b in zip(torch.autograd.grad(found, [x, *module.parameters()], cotangents), grads, strict=True):
        assert a.equal(b)
    with torch.no_grad():
        assert {type(y) for y in tensors_of(module(x))} == {Named}


@every_case
def test_parameters_of_another_class(module, shape, seen):
    x, plain, module = torch.randn(shape), ours(module), ours(module)
    for name, parameter in list(module.named_parameters()):
        setattr(module, name, OwnParameter(parameter.detach()))
    results = [module(x), plain(x)]
    assert seen == [] or seen[-1]
    for a, b in zip(*map(tensors_of, results), strict=True):
        assert type(a) is torch.Tensor
        assert a.equal(b)
        if a.requires_grad:
            a.sum().backward(retain_graph=True)
            b.sum().backward(retain_graph=True)
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        assert p.grad.equal(q.grad)


def test_losses_of_a_subclass():
    x, target = torch.randn(4, 3), torch.randint(3, (4,))
    for logits, labels in ((x.as_subclass(Named), target), (x, target.as_subclass(Named))):
        loss = functional.cross_entropy(logits, labels)
        assert type(loss) is Named
        torch.testing.assert_close(loss.as_subclass(torch.Tensor), nn.functional.cross_entropy(x, target))
    loss = functional.binary_cross_entropy_with_logits(x.as_subclass(Named), torch.sigmoid(x))
    assert type(loss) is Named


def test_functions_of_a_subclass_with_states():
    X, W, R = torch.randn(3, 2, 2), torch.randn(1, 16, 2), torch.randn(1, 16, 4)
    h = torch.randn(1, 2, 4)
    expected = functional.lstm(X, W, R, initial_h=h, save="states")
    found = functional.lstm(X, W, R, initial_h=h.as_subclass(Named), save="states")
    for y, z in zip(found, expected, strict=True):
        assert type(y) is Named
        assert y.equal(z)


def test_over_the_values_of_a_subclass():
    X = torch.tensor([-1.0, 2.0]).as_subclass(Named)
    assert functional.relu(X, inplace=True) is X
    assert X.tolist() == [0.0, 2.0]
    leaf = torch.tensor([-1.0]).as_subclass(Named).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        functional.relu(leaf, inplace=True)
    Y = leaf * 2
    assert functional.relu(Y, inplace=True) is Y
    Y.sum().backward()
    assert leaf.grad.tolist() == [0.0]


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose1d", "GELU", "Softmax"])
def test_a_wrapper_replaces_functions(name):
    module, shape = CASES[name]
    x, module = torch.randn(shape), ours(module)
    assert module(Wrapper(x)).value.equal(module(x))


def test_a_mode_sees_functions_by_name():
    names = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    conv, lstm = (ours(CASES[name][0]) for name in ("Conv2d", "LSTM"))
    with Mode():
        conv(torch.randn(2, 3, 6, 7))
        functional.relu6(torch.ones(2))
        lstm(torch.randn(7, 3, 3))
    assert {"conv2d", "relu6", "lstm"} <= set(names)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", ["conv2d", "conv2d in channels last", "gru", "gelu", "cross_entropy"])
def test_the_profiler_shows_kernels(name, grad):
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    W, R, weight = torch.randn(1, 12, 5), torch.randn(1, 12, 4), torch.randn(3, 3, 2, 2)
    kernel, call = {
        "conv2d": ("conv", lambda: functional.conv2d(x, weight)),
        "conv2d in channels last": (
            "conv",
            lambda: functional.conv2d(x.to(memory_format=torch.channels_last), weight),
        ),
        "gru": ("gru", lambda: functional.gru(x[0], W, R)[0]),
        "gelu": ("gelu", lambda: functional.gelu(x)),
        "cross_entropy": (
            "softmax_cross_entropy",
            lambda: functional.cross_entropy(x, torch.ones(2, 5, 5, dtype=torch.int64)),
        ),
    }[name]
    expected = {f"xpgrad::{kernel}", f"xpgrad::{kernel}_grad"} if grad else {f"xpgrad::{kernel}"}
    for _ in range(2):  # a new call and a known one
        with torch.set_grad_enabled(grad), torch.autograd.profiler.profile() as profile:
            y = call()
            if grad:
                y.sum().backward()
        shown = [event.name for event in profile.function_events if event.name.startswith("xpgrad::")]
        assert sorted(shown) == sorted(expected)


def test_errors_name_the_function():
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64).as_subclass(Named)
    with pytest.raises(TypeError, match=r"^conv2d: "):
        ours(CASES["Conv2d"][0])(x)


@pytest.mark.parametrize("name", ["GRU", "LSTM", "GRUCell"])
def test_states_of_another_class_give_it_to_results_in_each_call(name):
    class Marked(torch.Tensor):
        pass

    layer = getattr(xpgrad_torch, name)(3, 4)
    lead = () if name == "GRUCell" else (1,)
    X, h = torch.randn(*(() if name == "GRUCell" else (5,)), 2, 3), torch.zeros(*lead, 2, 4)

    def kind(h):
        result = layer(X, (h, h) if name == "LSTM" else h)
        return type(result[0] if isinstance(result, tuple) else result)

    found = [kind(h.as_subclass(Marked)), kind(h), kind(h), kind(h.as_subclass(Marked))]
    assert found == [Marked, torch.Tensor, torch.Tensor, Marked]
