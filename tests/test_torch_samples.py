"""PyTorch's own sample inputs, through `swap`; what all modules share as modules; autocast beside PyTorch."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import xpgrad_torch
from xpgrad_torch import functional
from xpgrad_torch.swap import _REPLACEMENTS

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")

# PyTorch's convolution says that it copies its input.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
THEIRS = sorted(_REPLACEMENTS, key=lambda kind: kind.__name__)
every_module = pytest.mark.parametrize("kind", THEIRS, ids=lambda kind: kind.__name__)


def tensors_in(value):
    return [x for x in _pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def run(function, args, kwargs, leaves):
    """Outputs, and gradients of all leaves for random cotangents, which are the same at each call."""
    outputs = [y for y in tensors_in(function(*args, **kwargs)) if y.requires_grad]
    g = torch.Generator().manual_seed(3)
    cotangents = [torch.randn(y.shape, generator=g, dtype=torch.float64).to(y.dtype) for y in outputs]
    return outputs, torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)


def assert_agree(got, expected, tolerance=1e-9):
    for part, other in zip(got, expected, strict=True):
        for a, b in zip(part, other, strict=True):
            assert (a is None) == (b is None)
            if b is None:
                continue
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            if b.numel():
                assert (a - b).abs().max() <= tolerance * max(1.0, float(b.detach().abs().max()))


def module_samples(kind):
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if info.module_cls is kind:
            for training in (True, False):
                yield from info.module_inputs_func(
                    info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
                )


@every_module
@pytest.mark.filterwarnings("ignore:swap. an LSTM with proj_size:UserWarning")
def test_module_samples(kind):
    count = 0
    for sample in module_samples(kind):
        torch.manual_seed(0)
        built, call = sample.constructor_input, sample.forward_input
        theirs = kind(*built.args, **{k: v for k, v in built.kwargs.items() if k != "dtype"}).double()
        ours = xpgrad_torch.swap(copy.deepcopy(theirs))
        assert type(ours) is _REPLACEMENTS[kind].module or theirs.proj_size
        inputs = [x for x in tensors_in((call.args, call.kwargs)) if x.requires_grad]
        expected = run(theirs, call.args, call.kwargs, [*inputs, *theirs.parameters()])
        assert_agree(run(ours, call.args, call.kwargs, [*inputs, *ours.parameters()]), expected)
        count += 1
    assert count >= 4


def function_samples(name):
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = [op for op in op_db if op.name == f"nn.functional.{name}" and not op.variant_test_name]
    return [*info.sample_inputs("cpu", torch.float64, requires_grad=True)]


@pytest.mark.parametrize("name", [name for name in functional.__all__ if name.startswith("conv")])
def test_function_samples(name):
    from torch.testing._internal.common_methods_invocations import op_db

    if f"nn.functional.{name}" not in [op.name for op in op_db]:
        pytest.skip(f"PyTorch has no samples of {name}")
    samples = function_samples(name)
    assert len(samples) >= 3
    for sample in samples:
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        leaves = [x for x in tensors_in((args, kwargs)) if x.requires_grad]
        expected = run(getattr(nn.functional, name), args, kwargs, leaves)
        assert_agree(run(getattr(functional, name), args, kwargs, leaves), expected)


# --- as modules ------------------------------------------------------------------------------------------


def arguments(kind):
    """Arguments that build the module, and the shape of an input."""
    if issubclass(kind, nn.RNNBase):
        return (4, 6), (5, 3, 4)
    if issubclass(kind, nn.RNNCellBase):
        return (4, 6), (3, 4)
    return (4, 6, 3), (3, 4, *[5] * int(kind.__name__[-2]))


def built(kind, **kwargs):
    args, shape = arguments(kind)
    return _REPLACEMENTS[kind].module(*args, **kwargs), shape


@every_module
def test_device_and_dtype(kind):
    module, shape = built(kind, device="meta", dtype=torch.float64)
    assert {(p.device.type, p.dtype) for p in module.parameters()} == {("meta", torch.float64)}
    outputs = tensors_in(module(torch.empty(shape, device="meta", dtype=torch.float64)))
    assert {(y.device.type, y.dtype) for y in outputs} == {("meta", torch.float64)}
    real = module.to_empty(device="cpu").to(torch.float32)
    assert {y.dtype for y in tensors_in(real(torch.zeros(shape)))} == {torch.float32}


@every_module
def test_pickle_deepcopy_and_state_dicts(kind):
    module, shape = built(kind)
    X = torch.randn(shape)
    expected = tensors_in(module(X))
    args, _ = arguments(kind)
    loaded = _REPLACEMENTS[kind].module(*args)
    loaded.load_state_dict(kind(*args).state_dict(), strict=True)
    loaded.load_state_dict(module.state_dict(), strict=True)
    kind(*args).load_state_dict(module.state_dict(), strict=True)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert repr(other) == repr(module) == repr(kind(*args))
        assert all(torch.equal(a, b) for a, b in zip(tensors_in(other(X)), expected, strict=True))


@every_module
def test_hooks(kind):
    module, shape = built(kind)
    seen = []
    module.register_forward_pre_hook(lambda m, args: seen.append("before"))
    module.register_forward_hook(lambda m, args, out: seen.append("after"))
    module.register_full_backward_pre_hook(lambda m, grad_out: seen.append("backward begins"))
    module.register_full_backward_hook(lambda m, grad_in, grad_out: seen.append("backward ends"))
    outputs = tensors_in(module(torch.randn(shape, requires_grad=True)))
    sum(y.square().sum() for y in outputs).backward()
    assert seen == ["before", "after", "backward begins", "backward ends"]


@every_module
def test_weight_norm(kind):
    theirs = kind(*arguments(kind)[0]).double()
    ours = xpgrad_torch.swap(copy.deepcopy(theirs))
    name = next(name for name, _ in theirs.named_parameters() if "weight" in name)
    for module in (theirs, ours):
        nn.utils.parametrizations.weight_norm(module, name)
    X = torch.randn(arguments(kind)[1], dtype=torch.float64, requires_grad=True)
    expected = run(theirs, (X,), {}, [X, *theirs.parameters()])
    assert_agree(run(ours, (X,), {}, [X, *ours.parameters()]), expected)


# --- autocast --------------------------------------------------------------------------------------------


def autocast_errors(module, exact, X, dtype):
    """The largest error of each output and gradient under autocast, relative to the exact result."""
    leaf = X.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        outputs = tensors_in(module(leaf))
    g = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(y.shape, generator=g) for y in outputs]
    leaves = [leaf, *module.parameters()]
    lowered = [c.to(y.dtype) for c, y in zip(cotangents, outputs, strict=True)]
    grads = torch.autograd.grad(outputs, leaves, lowered)
    assert [(x.dtype, x.shape) for x in grads] == [(x.dtype, x.shape) for x in leaves]
    exact_leaf = X.double().requires_grad_()
    exact_outputs = tensors_in(exact(exact_leaf))
    expected = torch.autograd.grad(
        exact_outputs, [exact_leaf, *exact.parameters()], [c.double() for c in cotangents]
    )
    pairs = zip([*outputs, *grads], [*exact_outputs, *expected], strict=True)
    # a cell without states has no gradient in its recurrent weights
    return [
        float((a.double() - b).detach().abs().max() / b.detach().abs().max().clamp(min=1e-30))
        for a, b in pairs
    ]


def skip_what_pytorch_cannot(kind, dtype):
    if kind is nn.LSTM and dtype == torch.float16:
        pytest.skip("torch.nn.LSTM raises under float16 autocast on CPU: oneDNN has no such primitive")


@every_module
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_is_as_exact_as_pytorch(kind, dtype):
    """No error larger than twice PyTorch's, but for a thousandth where that computes in float32."""
    skip_what_pytorch_cannot(kind, dtype)
    torch.manual_seed(0)
    args, shape = arguments(kind)
    theirs = kind(*args)
    ours = xpgrad_torch.swap(copy.deepcopy(theirs))
    exact = copy.deepcopy(theirs).double()
    X = torch.randn(shape)
    their_errors = autocast_errors(theirs, exact, X, dtype)
    for got, reference in zip(autocast_errors(ours, exact, X, dtype), their_errors, strict=True):
        assert got <= 2 * reference + 1e-3
    assert max(their_errors) < 0.1


@every_module
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_pytorchs_dtypes(kind, dtype):
    skip_what_pytorch_cannot(kind, dtype)
    theirs = kind(*arguments(kind)[0])
    ours = xpgrad_torch.swap(copy.deepcopy(theirs))
    X = torch.randn(arguments(kind)[1])
    with torch.autocast("cpu", dtype=dtype):
        expected, got = tensors_in(theirs(X)), tensors_in(ours(X))
    assert [y.dtype for y in got] == [y.dtype for y in expected]


def test_autocast_where_pytorch_has_none():
    torch.manual_seed(0)
    module = xpgrad_torch.LSTM(4, 6)
    exact = copy.deepcopy(module).double()
    assert max(autocast_errors(module, exact, torch.randn(5, 3, 4), torch.float16)) < 3e-3
