"""PyTorch's own sample inputs, through `swap`; what all modules share as modules; autocast beside PyTorch."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

import xpgrad_torch
from torch_activation_cases import MODULES as ACTIVATIONS
from torch_cases import under_autocast
from xpgrad_torch import functional
from xpgrad_torch.swap import _ALL, _CELLS, _REPLACEMENTS

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")

# PyTorch's convolution says that it copies its input.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
THEIRS = sorted(_REPLACEMENTS | _CELLS, key=lambda kind: kind.__name__)
every_module = pytest.mark.parametrize("kind", THEIRS, ids=lambda kind: kind.__name__)
ALL = sorted(_ALL, key=lambda kind: kind.__name__)
all_modules = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
with_parameters = pytest.mark.parametrize("kind", [*THEIRS, nn.PReLU], ids=lambda kind: kind.__name__)


# PyTorch's own kernels of these compute with constants that are rounded to float32.
ROUNDED = {"celu": 1e-6, "hardsigmoid": 1e-6}


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
            assert torch.equal(a.isnan(), b.isnan())
            if b.numel():
                a, b = a.detach().nan_to_num(), b.detach().nan_to_num()
                assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


def module_samples(kind):
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if info.module_cls is kind:
            for training in (True, False):
                yield from info.module_inputs_func(
                    info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
                )


@all_modules
@pytest.mark.filterwarnings("ignore:swap. an LSTM with proj_size:UserWarning")
@pytest.mark.filterwarnings("ignore:.*Implicit dimension choice:UserWarning")
@pytest.mark.filterwarnings("ignore:.*dim is left out:UserWarning")
def test_module_samples(kind):
    """Outputs and gradients of each of PyTorch's own samples."""
    count, tolerance = 0, ROUNDED.get(kind.__name__.lower(), 1e-9)
    for sample in module_samples(kind):
        torch.manual_seed(0)
        built, call = sample.constructor_input, sample.forward_input
        theirs = kind(*built.args, **{k: v for k, v in built.kwargs.items() if k != "dtype"}).double()
        ours = xpgrad_torch.swap(copy.deepcopy(theirs), activations=True, cells=True)
        assert type(ours) is _ALL[kind] or theirs.proj_size
        inputs = [x for x in tensors_in((call.args, call.kwargs)) if x.requires_grad]
        results = []
        for module in (theirs, ours):
            # what is overwritten is no leaf
            given = [x * 1.0 for x in call.args] if getattr(module, "inplace", False) else call.args
            results.append(run(module, given, call.kwargs, [*inputs, *module.parameters()]))
        assert_agree(*reversed(results), tolerance=tolerance)
        count += 1
    # the one module of which PyTorch has no samples
    assert count >= 2 or kind is nn.Hardsigmoid


# PyTorch has no functions, and so no samples, of these.
OURS_ALONE = {name for name in functional.__all__ if not hasattr(nn.functional, name)}


def function_samples(name):
    """Samples of real numbers, of each variant that PyTorch has of a function."""
    from torch.testing._internal.common_methods_invocations import op_db

    infos = [op for op in op_db if op.name in (name, f"nn.functional.{name}")]
    for info in infos:
        if info.variant_test_name != "complex":
            yield from info.sample_inputs("cpu", torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", sorted({*functional.__all__} - OURS_ALONE))
def test_function_samples(name):
    count = 0
    for sample in function_samples(name):
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        leaves = [x for x in tensors_in((args, kwargs)) if x.requires_grad]
        results = []
        for family in (functional, nn.functional):
            # what is overwritten is no leaf
            given = (args[0] * 1.0, *args[1:]) if kwargs.get("inplace") else args
            results.append(run(getattr(family, name), given, kwargs, leaves))
        assert_agree(*results, tolerance=ROUNDED.get(name, 1e-9))
        count += 1
    assert count >= 1


# --- as modules ------------------------------------------------------------------------------------------


def arguments(kind):
    """Arguments that build the module, and inputs to call it with."""
    name = kind.__name__
    if issubclass(kind, nn.RNNBase):
        return (4, 6), (torch.randn(5, 3, 4),)
    if issubclass(kind, nn.RNNCellBase):
        return (4, 6), (torch.randn(3, 4),)
    if "Conv" in name:
        return (4, 6, 3), (torch.randn(3, 4, *[5] * int(name[-2])),)
    if name == "CrossEntropyLoss":
        return (torch.rand(4),), (torch.randn(3, 4), torch.tensor([0, 3, 1]))
    if name == "BCEWithLogitsLoss":
        return (torch.rand(4),), (torch.randn(3, 4), torch.rand(3, 4))
    return tuple(ACTIVATIONS[name].values()), (torch.randn(3, 4),)


def built(kind, **kwargs):
    args, inputs = arguments(kind)
    return _ALL[kind](*args, **kwargs), inputs


@with_parameters
def test_device_and_dtype(kind):
    module, (X, *_) = built(kind, device="meta", dtype=torch.float64)
    assert {(p.device.type, p.dtype) for p in module.parameters()} == {("meta", torch.float64)}
    outputs = tensors_in(module(torch.empty(X.shape, device="meta", dtype=torch.float64)))
    assert {(y.device.type, y.dtype) for y in outputs} == {("meta", torch.float64)}
    real = module.to_empty(device="cpu").to(torch.float32)
    assert {y.dtype for y in tensors_in(real(torch.zeros(X.shape)))} == {torch.float32}


@all_modules
def test_pickle_deepcopy_and_state_dicts(kind):
    torch.manual_seed(0)
    args, inputs = arguments(kind)
    module = _ALL[kind](*args)
    expected = tensors_in(module(*inputs))
    loaded = _ALL[kind](*args)
    loaded.load_state_dict(kind(*args).state_dict(), strict=True)
    loaded.load_state_dict(module.state_dict(), strict=True)
    kind(*args).load_state_dict(module.state_dict(), strict=True)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert repr(other) == repr(module) == repr(kind(*args))
        assert all(torch.equal(a, b) for a, b in zip(tensors_in(other(*inputs)), expected, strict=True))


@all_modules
def test_hooks(kind):
    module, (X, *more) = built(kind)
    seen = []
    module.register_forward_pre_hook(lambda m, args: seen.append("before"))
    module.register_forward_hook(lambda m, args, out: seen.append("after"))
    module.register_full_backward_pre_hook(lambda m, grad_out: seen.append("backward begins"))
    module.register_full_backward_hook(lambda m, grad_in, grad_out: seen.append("backward ends"))
    outputs = tensors_in(module(X.requires_grad_(), *more))
    sum(y.square().sum() for y in outputs).backward()
    assert seen == ["before", "after", "backward begins", "backward ends"]


@with_parameters
def test_weight_norm(kind):
    theirs = kind(*arguments(kind)[0]).double()
    ours = xpgrad_torch.swap(copy.deepcopy(theirs), activations=True, cells=True)
    name = next(name for name, _ in theirs.named_parameters() if "weight" in name)
    for module in (theirs, ours):
        nn.utils.parametrizations.weight_norm(module, name)
    X = arguments(kind)[1][0].double().requires_grad_()
    expected = run(theirs, (X,), {}, [X, *theirs.parameters()])
    assert_agree(run(ours, (X,), {}, [X, *ours.parameters()]), expected)


@all_modules
def test_checkpoint(kind):
    module, (X, *more) = built(kind)
    leaves = [X.requires_grad_(), *module.parameters()]
    expected = run(module, (X, *more), {}, leaves)
    again = functools.partial(checkpoint, module, use_reentrant=False)
    assert_agree(run(again, (X, *more), {}, leaves), expected, tolerance=0)


# --- autocast --------------------------------------------------------------------------------------------


def autocast_errors(module, exact, X, dtype):
    """The largest error of each output and gradient under autocast, relative to the exact result."""
    leaf = X.clone().requires_grad_()
    outputs = under_autocast(module, (leaf,), dtype)
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


@every_module
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_is_as_exact_as_pytorch(kind, dtype):
    """No error larger than twice PyTorch's, but for a thousandth where that computes in float32."""
    torch.manual_seed(0)
    args, (X, *_) = arguments(kind)
    theirs = kind(*args)
    ours = xpgrad_torch.swap(copy.deepcopy(theirs), cells=True)
    exact = copy.deepcopy(theirs).double()
    their_errors = autocast_errors(theirs, exact, X, dtype)
    for got, reference in zip(autocast_errors(ours, exact, X, dtype), their_errors, strict=True):
        assert got <= 2 * reference + 1e-3
    assert max(their_errors) < 0.1


@every_module
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_pytorchs_dtypes(kind, dtype):
    theirs = kind(*arguments(kind)[0])
    ours = xpgrad_torch.swap(copy.deepcopy(theirs), cells=True)
    (X,) = arguments(kind)[1]
    with torch.autocast("cpu", dtype=dtype):
        got = tensors_in(ours(X))
    assert [y.dtype for y in got] == [y.dtype for y in under_autocast(theirs, (X,), dtype)]


def test_autocast_where_pytorch_has_none():
    torch.manual_seed(0)
    module = xpgrad_torch.LSTM(4, 6)
    exact = copy.deepcopy(module).double()
    assert max(autocast_errors(module, exact, torch.randn(5, 3, 4), torch.float16)) < 3e-3


# On the CPU PyTorch converts only PReLU to autocast's dtype, and losses to float32.
BESIDE_AUTOCAST = [name for name in sorted({*functional.__all__} - OURS_ALONE) if "conv" not in name]


@pytest.mark.parametrize("name", BESIDE_AUTOCAST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_autocast_of_functions(name, dtype, given):
    """PyTorch's dtypes, for inputs of each, and an error no larger than twice PyTorch's."""
    more = {
        "cross_entropy": (torch.tensor([0, 3, 1]),),
        "binary_cross_entropy_with_logits": (torch.linspace(0, 1, 15).view(3, 5),),
        "prelu": (torch.tensor([0.3], dtype=given),),
        "softmax": (1,),
        "log_softmax": (1,),
        "threshold": (0.1, 0.4),
    }.get(name, ())
    X = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(given)
    results = {}
    for owner, family in (("ours", functional), ("theirs", nn.functional)):
        leaf = X.clone().requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            y = getattr(family, name)(leaf, *more)
        cotangent = torch.cos(torch.arange(y.numel())).view_as(y).to(y.dtype)
        results[owner] = y, *torch.autograd.grad(y, leaf, cotangent)
    leaf = X.double().requires_grad_()
    exact = [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in more]
    y = getattr(nn.functional, name)(leaf, *exact)
    cotangent = torch.cos(torch.arange(y.numel())).view_as(y).to(y.dtype)
    expected = y, *torch.autograd.grad(y, leaf, cotangent)
    for got, reference, truth in zip(results["ours"], results["theirs"], expected, strict=True):
        assert got.dtype == reference.dtype
        scale = float(truth.detach().abs().max())
        error, allowed = ((x.double() - truth).detach().abs().max() / scale for x in (got, reference))
        assert error <= 2 * allowed + torch.finfo(got.dtype).eps
