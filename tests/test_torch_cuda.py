"""On a GPU, where there is one: the kernels go through the standard engine, as PyTorch operators."""

import copy

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap

import xpgrad_torch
from torch_operators import OPERATORS

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU that PyTorch can use"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]
every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)


def on_gpu(operands):
    """The same operands on the GPU; lengths too, as users have them."""
    return {name: x.detach().cuda() for name, x in operands.items()}


@every_operator
def test_same_as_on_the_cpu(operator):
    """Outputs, gradients for random cotangents, and gradients of these."""
    names = operator.differentiable
    results = []
    for operands in (operator.operands(), on_gpu(operator.operands())):
        leaves = [operands[name].requires_grad_() for name in names]
        outputs = operator.of(operands, names)(*leaves)
        g = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(y.shape, generator=g, dtype=y.dtype).to(y.device) for y in outputs]
        grads = torch.autograd.grad(outputs, leaves, cotangents, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in grads), leaves, allow_unused=True)
        results.append([*outputs, *grads, *(x for x in second if x is not None)])
    for a, b in zip(*results, strict=True):
        assert b.is_cuda
        torch.testing.assert_close(b.cpu(), a, rtol=1e-9, atol=1e-9)


@every_operator
def test_transformations(operator):
    operands = on_gpu(operator.operands())
    X = operands["X"]

    def loss(x):
        return sum(y.square().sum() for y in operator.of(operands, ["X"])(x))

    tangent = torch.randn_like(X)
    _, along = jvp(loss, (X,), (tangent,))
    torch.testing.assert_close(along, (grad(loss)(X) * tangent).sum())
    got = vmap(grad(loss))(torch.stack([X, 2 * X]))
    torch.testing.assert_close(got, torch.stack([grad(loss)(X), grad(loss)(2 * X)]))


@every_operator
def test_registered_operator(operator):
    operands = on_gpu(operator.operands())
    attributes = operator.attributes if operator.given is None else operator.given
    torch.library.opcheck(
        operator.kernel.operator,
        tuple(operands.values()),
        attributes,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.parametrize("rnn", ["LSTM", "GRU"])
@pytest.mark.parametrize("save", ["all", "states", 2])
def test_modules_beside_cudnn(rnn, save):
    torch.manual_seed(0)
    theirs = getattr(torch.nn, rnn)(3, 5, 2, bidirectional=True, device="cuda")
    ours = xpgrad_torch.swap(copy.deepcopy(theirs))
    ours.save = save
    X = torch.randn(6, 4, 3, device="cuda", requires_grad=True)
    cotangent = torch.randn(6, 4, 10, device="cuda")
    results = []
    for module in (theirs, ours):
        y = module(X)[0]
        results.append([y, *torch.autograd.grad(y, [X, *module.parameters()], cotangent)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)


def test_per_sample_gradients_of_a_module():
    torch.manual_seed(0)
    module = xpgrad_torch.GRU(3, 5, device="cuda")
    parameters = dict(module.named_parameters())
    X = torch.randn(6, 4, 3, device="cuda")

    def loss(parameters, x):
        return functional_call(module, parameters, (x,))[0].square().sum()

    each = vmap(grad(loss), in_dims=(None, 1))(parameters, X)
    for name, gradient in grad(loss)(parameters, X).items():
        torch.testing.assert_close(each[name].sum(0), gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(dtype):
    torch.manual_seed(0)
    module = xpgrad_torch.LSTM(3, 5, device="cuda")
    X = torch.randn(6, 4, 3, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        output, (h, _) = module(X)
    assert output.dtype == h.dtype == dtype
    output.float().square().sum().backward()
    exact = copy.deepcopy(module).double()
    exact.zero_grad()
    exact(X.double())[0].square().sum().backward()
    for got, expected in zip(module.parameters(), exact.parameters(), strict=True):
        assert got.grad.dtype == torch.float32
        assert (got.grad - expected.grad).abs().max() <= 5e-2 * expected.grad.abs().max()
