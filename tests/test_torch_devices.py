"""Off the fast path: on a GPU where there is one, on the standard engine, and on tensors without values.

What runs on a GPU runs without one too, as the same PyTorch operators on the CPU.
"""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.utils import _pytree

import xpgrad
import xpgrad_torch
from torch_activation_cases import LOSSES, MODULES, module
from torch_cases import under_autocast
from torch_operators import EVERY_KERNEL

every_operator = pytest.mark.parametrize("operator", EVERY_KERNEL.values(), ids=EVERY_KERNEL)


@pytest.fixture(params=["cuda", "standard engine"])
def place(request):
    """The device for tensors off the fast path; for the reference there is `use_engine(None)` on the CPU.

    cuDNN rounds products to TF32, and autocast gives its recurrent layers float16 whatever is asked.
    """
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("this machine has no GPU that PyTorch can use")
        with torch.backends.cudnn.flags(enabled=False):
            yield torch.device("cuda")
    else:
        with xpgrad.use_engine("standard"):
            yield torch.device("cpu")


def moved(operands, device):
    """The same operands there; lengths and labels too, as users have them."""
    return {name: x.detach().to(device) for name, x in operands.items()}


def results(operator, operands):
    """Outputs, gradients for random cotangents, and gradients of these."""
    leaves = [operands[name].requires_grad_() for name in operator.differentiable]
    outputs = operator.of(operands, operator.differentiable)(*leaves)
    g = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(y.shape, generator=g, dtype=y.dtype).to(y.device) for y in outputs]
    leaves += [c.requires_grad_() for c in cotangents]
    grads = torch.autograd.grad(outputs, leaves[: -len(cotangents)], cotangents, create_graph=True)
    second = torch.autograd.grad(
        sum(x.square().sum() for x in grads), leaves, allow_unused=True, materialize_grads=True
    )
    return [*outputs, *grads, *second]


@every_operator
def test_same_as_on_the_fast_path(operator, place):
    with xpgrad.use_engine(None):
        expected = results(operator, operator.operands())
    for a, b in zip(results(operator, moved(operator.operands(), place)), expected, strict=True):
        assert a.device.type == place.type
        torch.testing.assert_close(a.cpu(), b, rtol=1e-9, atol=1e-9)


@every_operator
def test_transformations(operator, place):
    operands = moved(operator.operands(), place)
    X = operands["X"]

    def loss(x):
        return sum(y.square().sum() for y in operator.of(operands, ["X"])(x))

    tangent = torch.randn_like(X)
    _, along = jvp(loss, (X,), (tangent,))
    torch.testing.assert_close(along, (grad(loss)(X) * tangent).sum())
    got = vmap(grad(loss))(torch.stack([X, 2 * X]))
    torch.testing.assert_close(got, torch.stack([grad(loss)(X), grad(loss)(2 * X)]))


@every_operator
def test_registered_operator(operator, place):
    operands = moved(operator.operands(), place)
    torch.library.opcheck(
        operator.kernel.operator,
        tuple(map(operands.get, operator.kernel.operands)),
        operator.kernel_attributes,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


def test_swap_leaves_a_model_on_a_gpu_to_pytorch():
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that PyTorch can use")
    model = nn.Sequential(nn.LSTM(3, 5), nn.Conv1d(3, 4, 2)).cuda()
    xpgrad_torch.swap(model)
    assert [type(layer) for layer in model] == [nn.LSTM, nn.Conv1d]


# --- modules ---------------------------------------------------------------------------------------------

X3, X2 = (6, 4, 3), (4, 3)
LAYERS = {
    "LSTM": ((3, 5, 2), {"bidirectional": True}, X3),
    "GRU": ((3, 5, 2), {"batch_first": True}, X3),
    "RNN": ((3, 5), {"nonlinearity": "relu"}, X3),
    "LSTMCell": ((3, 5), {}, X2),
    "RNNCell": ((3, 5), {}, X2),
    "GRUCell": ((3, 5), {}, X2),
    **{f"Conv{n}d": ((3, 4, 2), {"padding": 1}, (4, 3, 5, 6, 4)[: n + 2]) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": ((3, 4, 2), {"stride": 2}, (4, 3, 5, 6, 4)[: n + 2]) for n in (1, 2, 3)},
}
BUILDERS = {
    name: (
        lambda family, name=name: getattr(family, name)(*LAYERS[name][0], **LAYERS[name][1]),
        LAYERS[name][2],
    )
    for name in LAYERS
} | {
    **{name: (lambda family, name=name: module(family, name), (4, 4)) for name in MODULES},
    **{name: (lambda family, name=name: getattr(family, name)(), (4, 4)) for name in LOSSES},
}
every_module = pytest.mark.parametrize("name", BUILDERS)


def example(name, family, device="cpu", dtype=torch.float32):
    """A module, and what to call it with."""
    build, shape = BUILDERS[name]
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    inputs = [torch.randn(shape, generator=g).to(device, dtype)]
    if name == "CrossEntropyLoss":
        inputs.append(torch.tensor([0, 3, 1, -100]).to(device))
    if name == "BCEWithLogitsLoss":
        inputs.append(torch.rand(shape, generator=g).to(device))
    return build(family).to(device), inputs


def tensors_in(value):
    return [x for x in _pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def outputs_and_gradients(module, inputs):
    leaves = [inputs[0].requires_grad_(), *module.parameters()]
    outputs = tensors_in(module(*inputs))
    return [*outputs, *torch.autograd.grad(outputs, leaves, [torch.ones_like(y) for y in outputs])]


@every_module
def test_modules_beside_pytorchs(name, place):
    expected = outputs_and_gradients(*example(name, nn, place))
    ours, inputs = example(name, xpgrad_torch, place)
    for a, b in zip(outputs_and_gradients(ours, inputs), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rnn", ["LSTM", "GRU"])
@pytest.mark.parametrize("save", ["all", "states", 2])
def test_less_memory(rnn, save, place):
    theirs, inputs = example(rnn, nn, place)
    ours = xpgrad_torch.swap(copy.deepcopy(theirs))
    ours.save = save
    expected = outputs_and_gradients(theirs, inputs)
    for a, b in zip(outputs_and_gradients(ours, inputs), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_per_sample_gradients_of_a_module(name, place):
    ours, (X,) = example(name, xpgrad_torch, place)
    parameters = dict(ours.named_parameters())
    axis = 1 if name in ("LSTM", "RNN") else 0

    def loss(parameters, x):
        return tensors_in(functional_call(ours, parameters, (x,)))[0].square().sum()

    each = vmap(grad(loss), in_dims=(None, axis))(parameters, X)
    for key, gradient in grad(loss)(parameters, X).items():
        torch.testing.assert_close(each[key].sum(0), gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_autocast(name, dtype, place):
    ours, (X,) = example(name, xpgrad_torch, place)
    with torch.autocast(place.type, dtype=dtype):
        outputs = tensors_in(ours(X))
    sum(y.float().square().sum() for y in outputs).backward()
    exact = copy.deepcopy(ours).double()
    exact.zero_grad()
    sum(y.square().sum() for y in tensors_in(exact(X.double()))).backward()
    for got, expected in zip(ours.parameters(), exact.parameters(), strict=True):
        assert got.grad.dtype == torch.float32
        assert (got.grad - expected.grad).abs().max() <= 5e-2 * expected.grad.abs().max().clamp(min=1e-3)


@every_module
@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_autocast_gives_pytorchs_dtypes(name, given, place):
    if name.startswith(("LSTM", "GRU", "RNN")) and given != torch.float32:
        pytest.skip("autocast of recurrent modules takes float32, as their weights are")
    theirs, inputs = example(name, nn, place, given)
    expected = under_autocast(theirs, inputs, torch.bfloat16, place.type)
    ours, inputs = example(name, xpgrad_torch, place, given)
    with torch.autocast(place.type, dtype=torch.bfloat16):
        got = tensors_in(ours(*inputs))
    assert [y.dtype for y in got] == [y.dtype for y in expected]


# --- tensors without values --------------------------------------------------------------------------------


@every_module
def test_modules_on_the_meta_device(name):
    expected = outputs_and_gradients(*example(name, nn))
    ours, inputs = example(name, xpgrad_torch, "meta")
    got = outputs_and_gradients(ours, inputs)
    assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in expected]
    assert {x.device.type for x in got} == {"meta"}
