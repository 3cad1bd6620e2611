"""Where results lie in memory: as those of PyTorch's operators do, in eager code and for compilers."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import xpgrad_torch
from torch_activation_cases import ELEMENTWISE
from torch_networks import residual_network
from torch_operators import ACTIVATIONS, OPERATORS

every_elementwise = pytest.mark.parametrize("case", ELEMENTWISE.values(), ids=ELEMENTWISE)
LAYOUTS = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "part": lambda x: x.to(memory_format=torch.channels_last)[:, :, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1, -1),
}


class Watching(TorchDispatchMode):
    """A mode that changes nothing: kernels then run as registered operators, as for a compiler."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def steps(x):
    """The strides of axes with more than one element: no other has any meaning."""
    return tuple(step for step, n in zip(x.stride(), x.shape, strict=True) if n > 1)


def results(function, leaves, cotangent_as_output=False):
    y = function(leaves[0])
    c = torch.randn(y.shape, generator=torch.Generator().manual_seed(5), dtype=y.dtype)
    if cotangent_as_output:
        c = torch.empty_like(y).copy_(c)
    return y, *torch.autograd.grad(y, leaves, c)


# --- elementwise kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@every_elementwise
def test_elementwise_kernels_keep_strides(case, layout, interpreted):
    assert_strides_are_kept(case, layout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_compiled_elementwise_kernels_keep_strides(name, layout):
    assert_strides_are_kept(ELEMENTWISE[name], layout)


def assert_strides_are_kept(case, layout):
    """The values of contiguous arrays, in the place that PyTorch has for a result like the input."""
    x = layout(draw(2, 3, 4, 5).double()).requires_grad_()
    plain = x.detach().contiguous().requires_grad_()
    found = results(case.ours, [x], cotangent_as_output=True)
    for a, b in zip(found, results(case.ours, [plain]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert steps(a) == steps(torch.empty_like(x)) == steps(torch.relu(x))
    mixed = results(case.ours, [x])
    torch.testing.assert_close(mixed, found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtypes_keep_strides(dtype):
    x = draw(2, 3, 4, 5).to(dtype).to(memory_format=torch.channels_last)
    for function in (xpgrad_torch.GELU(), xpgrad_torch.ReLU(inplace=True)):
        assert function(x).is_contiguous(memory_format=torch.channels_last)


def test_losses_without_a_reduction_keep_strides():
    x = draw(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for family in (nn, xpgrad_torch):
        loss = family.BCEWithLogitsLoss(reduction="none")(x, x.sigmoid())
        assert loss.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("operator", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_compilers_are_told_the_strides_of_activations(operator, layout):
    """Of the registered operator and of its gradient, with a cotangent of either layout."""
    x, kernel = layout(draw(2, 3, 4, 5)), operator.kernel
    attributes = operator.kernel_attributes
    tests = ("test_faketensor",)
    torch.library.opcheck(kernel.operator, (x,), attributes, test_utils=tests)
    y = kernel.operator(x, **attributes)
    for c in (torch.randn_like(y), torch.randn(y.shape)):
        saved = y if kernel.saved else x
        options = {**attributes, "wrt": ["X"]}
        torch.library.opcheck(kernel.gradient_operator, (saved, c), options, test_utils=tests)


# --- convolutions ------------------------------------------------------------------------------------------

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
IMAGES = {
    "2d": ("Conv2d", (2, 3, 6, 5), 3),
    "2d-pointwise": ("Conv2d", (2, 3, 6, 5), 1),
    "2d-one-channel": ("Conv2d", (2, 1, 6, 5), 3),
    "2d-one-pixel": ("Conv2d", (2, 3, 1, 1), 1),
    "2d-transposed": ("ConvTranspose2d", (2, 3, 6, 5), 3),
    "3d": ("Conv3d", (2, 3, 4, 6, 5), 3),
    "3d-transposed": ("ConvTranspose3d", (2, 3, 4, 6, 5), 1),
}


@pytest.mark.parametrize(("last_x", "last_w"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("name", "shape", "kernel"), IMAGES.values(), ids=IMAGES)
def test_convolutions_give_channels_last_where_they_are_given_it(name, shape, kernel, last_x, last_w):
    """Output, and gradients of input, weight and bias, in eager code and as registered operators."""
    torch.manual_seed(0)
    theirs = getattr(nn, name)(shape[1], 4, kernel)
    x = draw(*shape)
    if last_w:
        theirs = theirs.to(memory_format=FORMATS[len(shape)])
    if last_x:
        x = x.to(memory_format=FORMATS[len(shape)])
    x.requires_grad_()
    ours = xpgrad_torch.swap(copy.deepcopy(theirs))
    expected = results(theirs, [x, *theirs.parameters()])
    eager = results(ours, [x, *ours.parameters()])
    with Watching():
        registered = results(ours, [x, *ours.parameters()])
    for parts in (eager, registered):
        for a, b in zip(parts, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            if name != "ConvTranspose3d":  # PyTorch's strides depend on which of its kernels it takes
                assert steps(a) == steps(b)


def test_single_images_and_autocast_keep_channels_last():
    layer = xpgrad_torch.Conv2d(3, 4, 3)
    x = draw(2, 3, 6, 5).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).is_contiguous(memory_format=torch.channels_last)
    assert layer(x[0]).shape == (4, 4, 3)


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_compilers_are_told_the_strides_of_convolutions(name):
    operator = OPERATORS[name]
    operands = [
        x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in operator.operands().values()
    ]
    attributes, kernel = operator.kernel_attributes, operator.kernel
    tests = ("test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(kernel.operator, tuple(operands), attributes, test_utils=tests)
    y = kernel.operator(*operands, **attributes)
    assert y.is_contiguous(memory_format=torch.channels_last)
    for per_sample in (False, True):
        options = {**attributes, "wrt": ["X", "W", "B"], "per_sample": per_sample}
        arrays = (*operands[:2], torch.randn_like(y))
        torch.library.opcheck(kernel.gradient_operator, arrays, options, test_utils=tests[:1])


def test_channels_last_under_transformations():
    """`vmap` and second derivatives know what lays channels last."""
    torch.manual_seed(0)
    layer = xpgrad_torch.Conv2d(2, 2, 2).double().to(memory_format=torch.channels_last)
    x = draw(3, 2, 2, 4, 3).double()
    run = torch.func.vmap(lambda x: layer(x.to(memory_format=torch.contiguous_format)))
    torch.testing.assert_close(run(x), torch.stack([layer(one) for one in x]))
    leaf = x[0].to(memory_format=torch.channels_last).requires_grad_()
    assert torch.autograd.gradgradcheck(layer, leaf, fast_mode=True)
    (jvp,) = torch.func.jvp(layer, (leaf.detach(),), (leaf.detach(),))[1:]
    torch.testing.assert_close(jvp, layer(leaf) - layer.bias[:, None, None])


def test_a_network_stays_channels_last_under_compile():
    theirs = residual_network().eval().to(memory_format=torch.channels_last)
    ours = xpgrad_torch.swap(copy.deepcopy(theirs), activations=True)
    x = draw(2, 3, 32, 32).to(memory_format=torch.channels_last)
    features = ours[:-3]
    torch._dynamo.reset()
    for run in (features, torch.compile(features, fullgraph=True, backend="aot_eager")):
        y = run(x)
        assert y.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(y, theirs[:-3](x), rtol=1e-4, atol=1e-4)
