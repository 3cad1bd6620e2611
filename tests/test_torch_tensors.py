"""Tensors of every kind: without memory, on the meta device, and those that no kernel takes."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import xpgrad_torch
from xpgrad_torch import functional

MODULES = {
    "ReLU": (xpgrad_torch.ReLU, (3, 4)),
    "GELU": (xpgrad_torch.GELU, (3, 4)),
    "Softmax": (lambda: xpgrad_torch.Softmax(1), (3, 4)),
    "PReLU": (xpgrad_torch.PReLU, (3, 4)),
    "LSTM": (lambda: xpgrad_torch.LSTM(4, 5), (3, 2, 4)),
    "GRU": (lambda: xpgrad_torch.GRU(4, 5, save="states"), (3, 2, 4)),
    "RNN": (lambda: xpgrad_torch.RNN(4, 5), (3, 2, 4)),
    "LSTMCell": (lambda: xpgrad_torch.LSTMCell(4, 5), (3, 4)),
    "GRUCell": (lambda: xpgrad_torch.GRUCell(4, 5), (3, 4)),
    "Conv1d": (lambda: xpgrad_torch.Conv1d(4, 5, 2), (3, 4, 6)),
    "ConvTranspose2d": (lambda: xpgrad_torch.ConvTranspose2d(4, 5, 2), (3, 4, 3, 2)),
}
every_module = pytest.mark.parametrize(("build", "shape"), MODULES.values(), ids=MODULES)


def outputs_of(module, *inputs):
    return _pytree.tree_leaves(module(*inputs))


@every_module
def test_zero_tensors(build, shape):
    """As input and as cotangent, again and again: PyTorch makes them where a gradient is zero."""
    torch.manual_seed(0)
    module, x = build(), torch.randn(shape, requires_grad=True)
    expected = outputs_of(module, torch.zeros(shape))
    for _ in range(3):
        for a, b in zip(outputs_of(module, torch._efficientzerotensor(shape)), expected, strict=True):
            torch.testing.assert_close(a, b)
        outputs = outputs_of(module, x)
        zeros = [torch._efficientzerotensor(tuple(y.shape)) for y in outputs]
        for grad in torch.autograd.grad(outputs, [x, *module.parameters()], zeros):
            assert not grad.any()


def test_zero_cotangents_of_losses():
    x = torch.randn(3, 4, requires_grad=True)
    losses = (
        functional.cross_entropy(x, torch.tensor([0, 1, 2])),
        functional.binary_cross_entropy_with_logits(x, torch.rand(3, 4)),
    )
    for loss in losses:
        assert not torch.autograd.grad(loss, x, torch._efficientzerotensor(()))[0].any()


@every_module
def test_functional_tensors(build, shape):
    """PyTorch's functionalization wraps tensors that look like any others."""
    module, x = build(), torch.randn(shape)
    expected = outputs_of(module, x)
    for _ in range(3):
        found = outputs_of(module, torch._to_functional_tensor(x))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(torch._from_functional_tensor(a), b)


@every_module
def test_a_storage_that_was_given_back_is_an_error(build, shape):
    """As FSDP gives memory back; PyTorch's own operators read there. Afterwards the module works on."""
    pytest.importorskip("torch.distributed.fsdp")  # once it is imported, memory stays resizable
    module, x = build(), torch.randn(shape)
    expected = outputs_of(module, x.clone())
    # biases go through torch.cat, which looks at no storage
    for tensor in (x, *(p for p in module.parameters() if p.dim() > 1)):
        values, size = tensor.detach().clone(), tensor.untyped_storage().size()
        tensor.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=r"storage of (size )?0"):
            module(x)
        tensor.untyped_storage().resize_(size)
        tensor.detach().copy_(values)
        for a, b in zip(outputs_of(module, x.clone()), expected, strict=True):
            torch.testing.assert_close(a, b)


@every_module
def test_meta_tensors_tell_shapes(build, shape):
    module, x = build(), torch.randn(shape)
    expected = outputs_of(module, x)
    found = outputs_of(module.to("meta"), x.to("meta"))
    assert [(y.shape, y.dtype, y.device.type) for y in found] == [
        (y.shape, y.dtype, "meta") for y in expected
    ]


KINDS = {
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
}
BINARY = functional.binary_cross_entropy_with_logits
FUNCTIONS = {
    "relu": functional.relu,
    "relu-in-place": lambda x: functional.relu(x, inplace=True),
    "softmax": lambda x: functional.softmax(x, 1),
    "prelu": xpgrad_torch.PReLU(),
    "GRUCell": xpgrad_torch.GRUCell(4, 5),
    "LSTM": xpgrad_torch.LSTM(4, 5),
    "LayerNormGRU": xpgrad_torch.LayerNormGRU(4, 5),
    "conv1d": xpgrad_torch.Conv1d(3, 5, 2),
    "cross_entropy": lambda x: functional.cross_entropy(x, torch.tensor([0, 1, 2])),
    "binary_cross_entropy_with_logits": lambda x: BINARY(x, x),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_that_are_not_dense_are_refused(name, kind):
    with pytest.raises(TypeError, match=r"input is a (nested tensor|tensor of layout \S+), expected a"):
        FUNCTIONS[name](KINDS[kind](torch.randn(3, 4)))


def test_other_operands_that_are_not_dense_are_refused():
    x = torch.randn(3, 4)
    with pytest.raises(TypeError, match=r"target is a tensor of layout torch\.sparse_coo"):
        BINARY(x, x.to_sparse())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, t: BINARY(x, t, 2.0), "weight is float"),
        (
            lambda x, t: BINARY(x, t, pos_weight=[1]),
            "pos_weight is list",
        ),
        (lambda x, t: functional.cross_entropy(x, t, [1.0] * 4), "weight is list"),
        (lambda x, t: functional.conv1d(x, t, padding=b"\1"), r"conv1d: padding is b'\\x01'"),
        (lambda x, t: functional.conv1d(x, t, stride=b"\1"), r"conv1d: stride is b'\\x01'"),
        (
            lambda x, t: functional.conv_transpose1d(x, t, output_padding=bytearray(1)),
            "conv_transpose1d: output_padding is bytearray",
        ),
        (
            lambda x, t: xpgrad_torch.ConvTranspose1d(3, 3, 2, 2)(x, output_size=b"\x08"),
            "ConvTranspose1d: output_size is b'",
        ),
    ],
)
def test_arguments_of_a_wrong_type_are_named(call, words):
    with pytest.raises(TypeError, match=words):
        call(torch.randn(3, 4), torch.rand(3, 4))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(3, 0), (0, 0), (0,)])
def test_cross_entropy_without_classes_is_pytorchs(shape, reduction):
    x = torch.randn(shape, requires_grad=True)
    ignored = torch.full(shape[:1] if len(shape) > 1 else (), -100)
    for target in (torch.randn(shape), ignored):
        expected, found = (
            family.CrossEntropyLoss(reduction=reduction)(x, target) for family in (nn, xpgrad_torch)
        )
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_kinds_of_errors_are_pytorchs():
    for family in (nn, xpgrad_torch):
        with pytest.raises(ValueError, match="proj_size"):
            family.GRU(4, 5, proj_size=2)
        with pytest.raises(IndexError):
            family.CrossEntropyLoss()(torch.randn(3, 0), torch.zeros(3, dtype=torch.int64))
