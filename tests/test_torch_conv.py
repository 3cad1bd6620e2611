"""xpgrad_torch's convolutions beside PyTorch's: functions, modules, what `swap` does with them."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import xpgrad
import xpgrad_torch
from xpgrad_torch import functional

TOLERANCE = 1e-10  # in float64, of the largest value
C, O = 4, 6  # channels: divisible by 2, and each its own number
SPATIAL = {1: (13,), 2: (8, 7), 3: (5, 6, 4)}
KERNEL = {1: (4,), 2: (3, 2), 3: (2, 3, 2)}
OPTIONS = {
    "plain": {},
    "stride": {"stride": 2},
    "padding": {"padding": 2},
    "dilation": {"dilation": 2, "padding": 1},
    "groups": {"groups": 2},
    "everything": {"stride": 3, "padding": 1, "dilation": 2, "groups": 2},
}
# What only the one or the other takes.
STRAIGHT = {"same": {"padding": "same", "dilation": 2}, "valid": {"padding": "valid", "stride": 2}}
TRANSPOSED = {"output_padding": {"stride": 3, "output_padding": 2, "padding": 1}}
CASES = [
    pytest.param(name, n, options, id=f"{name}{n}d-{case}")
    for name, own in (("conv", STRAIGHT), ("conv_transpose", TRANSPOSED))
    for n in (1, 2, 3)
    for case, options in {**OPTIONS, **own}.items()
]
FUNCTIONS = [(name, n) for name in ("conv", "conv_transpose") for n in (1, 2, 3)]
every_function = pytest.mark.parametrize(("name", "n"), FUNCTIONS)
# PyTorch says once in a process that it copies its input.
with_copies_by_pytorch = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel:UserWarning"
)
MODULES = [f"{name}{n}d" for name in ("Conv", "ConvTranspose") for n in (1, 2, 3)]
every_module = pytest.mark.parametrize("name", MODULES)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Let PyTorch use one thread: these products are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def operands(name, n, groups=1, *, seed=0, dtype=torch.float64, grad=True, spatial=None):
    """Random input, weight and bias."""
    g = torch.Generator().manual_seed(seed)
    sizes = (C, O // groups) if name == "conv_transpose" else (O, C // groups)
    shapes = ((2, C, *(spatial or SPATIAL[n])), (*sizes, *KERNEL[n]), (O,))
    return [torch.randn(shape, generator=g, dtype=dtype).requires_grad_(grad) for shape in shapes]


def ours(name, n):
    return getattr(functional, f"{name}{n}d")


def theirs(name, n):
    return getattr(nn.functional, f"{name}{n}d")


def assert_close(got, expected, tolerance=TOLERANCE):
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if expected.numel():
        assert (got - expected).abs().max() <= tolerance * max(1.0, expected.abs().max())


def assert_same(first, second, leaves, tolerance=TOLERANCE):
    """Both functions have the same value, and the same gradients for a random cotangent."""
    got, expected = first(), second()
    assert_close(got, expected, tolerance)
    cotangent = torch.randn_like(expected)
    pairs = zip(
        torch.autograd.grad(got, leaves, cotangent),
        torch.autograd.grad(expected, leaves, cotangent),
        strict=True,
    )
    for a, b in pairs:
        assert_close(a, b, tolerance)


# ----------------------------------------------------------------------------------------- as functions


@pytest.mark.parametrize(("name", "n", "options"), CASES)
@pytest.mark.parametrize("single", [False, True], ids=["batch", "single"])
def test_equals_torch(name, n, options, single):
    x, weight, bias = operands(name, n, options.get("groups", 1))
    if single:
        x = x.detach()[0].requires_grad_()
    assert_same(
        lambda: ours(name, n)(x, weight, bias, **options),
        lambda: theirs(name, n)(x, weight, bias, **options),
        [x, weight, bias],
    )


@every_function
def test_arguments_by_position_and_without_bias(name, n):
    x, weight, _ = operands(name, n, 2)
    stride, padding, dilation = (2,) * n, tuple(range(n)), [1, 2, 1][:n]
    more = (dilation, 2) if name == "conv" else ((1,) * n, 2, dilation)
    arguments = (x, weight, None, stride, padding, *more)
    assert_same(lambda: ours(name, n)(*arguments), lambda: theirs(name, n)(*arguments), [x, weight])


@every_function
def test_sequences_of_one_number_stand_for_all_dimensions(name, n):
    x, weight, bias = operands(name, n)
    options = {"stride": (2,), "padding": [1], "dilation": (1,)}
    if name == "conv_transpose":
        options["output_padding"] = (1,)
    assert_same(
        lambda: ours(name, n)(x, weight, bias, **options),
        lambda: theirs(name, n)(x, weight, bias, **options),
        [x, weight, bias],
    )


@with_copies_by_pytorch
@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_same_padding_of_even_kernels_is_larger_at_the_end(kernel, dilation):
    x = torch.randn(2, 3, 11, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, kernel, dtype=torch.float64, requires_grad=True)
    assert_same(
        lambda: functional.conv1d(x, weight, padding="same", dilation=dilation),
        lambda: nn.functional.conv1d(x, weight, padding="same", dilation=dilation),
        [x, weight],
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_padding_of_each_end(n):
    x, weight, bias = operands("conv", n)
    begins, ends = (1, 0, 2)[:n], (2, 3, 0)[:n]
    around = [amount for d in reversed(range(n)) for amount in (begins[d], ends[d])]
    assert_same(
        lambda: ours("conv", n)(x, weight, bias, padding=(*begins, *ends)),
        lambda: theirs("conv", n)(nn.functional.pad(x, around), weight, bias),
        [x, weight, bias],
    )


@pytest.mark.parametrize(("name", "n", "options"), CASES)
def test_gradcheck(name, n, options):
    leaves = operands(name, n, options.get("groups", 1), spatial=(5, 4, 4)[:n])
    assert gradcheck(lambda *args: ours(name, n)(*args, **options), leaves, fast_mode=True)


@pytest.mark.parametrize(("name", "n", "options"), [case for case in CASES if case.values[1] < 3])
def test_gradgradcheck(name, n, options):
    leaves = operands(name, n, options.get("groups", 1), spatial=(5, 4)[:n])
    assert gradgradcheck(lambda *args: ours(name, n)(*args, **options), leaves, fast_mode=True)


@every_function
def test_gradient_with_graph_equals_gradient_without(name, n):
    leaves = operands(name, n, 2)
    y = ours(name, n)(*leaves, stride=2, padding=1, groups=2)
    cotangent = torch.randn_like(y)
    plain = torch.autograd.grad(y, leaves, cotangent, retain_graph=True)
    with_graph = torch.autograd.grad(y, leaves, cotangent, create_graph=True)
    for a, b in zip(plain, with_graph, strict=True):
        assert not a.requires_grad
        assert b.requires_grad
        assert_close(a, b.detach())


@pytest.fixture
def asked(monkeypatch):
    """Record what each backward asks a kernel for."""
    calls = []

    def watch(kernel):
        def spy(*args, **kwargs):
            calls.append(set(kwargs["wrt"]))
            return kernel(*args, **kwargs)

        return spy

    for name in ("conv_grad", "conv_transpose_grad"):
        monkeypatch.setattr(xpgrad, name, watch(getattr(xpgrad, name)))
    return calls


@pytest.mark.parametrize("needed", ["X", "W", "B", "XW", "XB", "WB", "XWB"])
@every_function
def test_only_what_requires_a_gradient_is_computed(asked, name, n, needed):
    everything = operands(name, n)
    some = [x.detach().requires_grad_(k in needed) for k, x in zip("XWB", everything, strict=True)]
    y = ours(name, n)(*some)
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    assert asked == [set(needed)]
    theirs(name, n)(*everything).backward(cotangent)
    for k, got, expected in zip("XWB", some, everything, strict=True):
        if k in needed:
            assert_close(got.grad, expected.grad)
        else:
            assert got.grad is None


@every_function
def test_no_cotangent_costs_nothing(asked, name, n):
    """A function behind that has no gradient to give back."""

    class Silent(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    leaves = operands(name, n)
    y = ours(name, n)(*leaves)
    Silent.apply(y).sum().backward()
    assert asked == []
    assert all(x.grad is None or not x.grad.any() for x in leaves)


@every_function
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(name, n, mode):
    leaves = operands(name, n)
    with mode():
        got = ours(name, n)(*leaves)
    assert not got.requires_grad
    assert torch.equal(got, ours(name, n)(*leaves).detach())
    assert not ours(name, n)(*operands(name, n, grad=False)).requires_grad


@every_function
def test_non_contiguous_operands_and_cotangents(name, n):
    axes = (1, 0, *range(n + 1, 1, -1))
    leaves = operands(name, n)
    strided = [x.detach().permute(axes).contiguous().permute(axes) for x in leaves[:2]]
    strided = [x.requires_grad_() for x in (*strided, torch.stack([leaves[2].detach()] * 2, 1)[:, 0])]
    assert not any(x.is_contiguous() for x in strided)
    y, other = ours(name, n)(*leaves), ours(name, n)(*strided)
    cotangent = torch.randn_like(y).permute(axes).contiguous().permute(axes)
    assert_close(other, y)
    grads = torch.autograd.grad(y, leaves, cotangent.contiguous())
    for a, b in zip(torch.autograd.grad(other, strided, cotangent), grads, strict=True):
        assert_close(a, b)


def test_channels_last():
    x, weight, bias = operands("conv", 2)
    x = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    weight = weight.detach().to(memory_format=torch.channels_last).requires_grad_()
    assert_same(
        lambda: functional.conv2d(x, weight, bias, padding=1),
        lambda: nn.functional.conv2d(x, weight, bias, padding=1),
        [x, weight, bias],
    )


@every_function
def test_expanded_cotangent(name, n):
    leaves = operands(name, n)
    got = torch.autograd.grad(ours(name, n)(*leaves).sum(), leaves)
    for a, b in zip(got, torch.autograd.grad(theirs(name, n)(*leaves).sum(), leaves), strict=True):
        assert_close(a, b)


@every_function
def test_operands_and_cotangents_are_not_written_to(name, n):
    leaves = operands(name, n)
    y = ours(name, n)(*leaves)
    watched = [*leaves, y, torch.randn_like(y)]
    before = [x.detach().clone() for x in watched]
    y.backward(watched[-1])
    assert all(torch.equal(a, b) for a, b in zip(watched, before, strict=True))


@every_function
def test_memory_is_freed_without_the_garbage_collector(name, n):
    leaves = operands(name, n)
    gc.collect()
    gc.disable()
    try:
        y = ours(name, n)(*leaves)
        saved = [weakref.ref(x) for x in (y, y.grad_fn)]
        y.sum().backward()
        del y
        assert [ref() for ref in saved] == [None, None]
    finally:
        gc.enable()


@every_function
def test_saved_operand_changed_in_place_is_noticed(name, n):
    leaves = operands(name, n)
    y = ours(name, n)(*leaves)
    with torch.no_grad():
        leaves[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every_function
def test_empty_batch(name, n):
    x, weight, bias = operands(name, n)
    x = x.detach()[:0].requires_grad_()
    assert_same(
        lambda: ours(name, n)(x, weight, bias),
        lambda: theirs(name, n)(x, weight, bias),
        [x, weight, bias],
    )


@every_function
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
)
def test_lower_precision_against_float64(name, n, dtype, tolerance):
    low = operands(name, n, dtype=dtype)
    high = [x.detach().double().requires_grad_() for x in low]
    y, exact = ours(name, n)(*low, stride=2, padding=1), theirs(name, n)(*high, stride=2, padding=1)
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    exact.backward(cotangent.double())
    pairs = [(y, exact), *((a.grad, b.grad) for a, b in zip(low, high, strict=True))]
    for got, expected in pairs:
        assert got.dtype == dtype
        assert (got - expected).abs().max() <= tolerance * expected.abs().max()


@every_function
@pytest.mark.parametrize("engine", [None, "standard"])
def test_autocast_converts_operands_and_no_sum(name, n, engine):
    """Forward and gradient keep their sums in float32: the same bits as for operands of that dtype."""
    leaves = operands(name, n, dtype=torch.float32)
    low = [x.detach().bfloat16().requires_grad_() for x in leaves]
    with xpgrad.use_engine(engine):
        expected = ours(name, n)(*low)
        cotangent = torch.randn_like(expected)
        expected_grads = torch.autograd.grad(expected, low, cotangent)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = ours(name, n)(*leaves)
            inside = torch.autograd.grad(got, leaves, cotangent, retain_graph=True)
        outside = torch.autograd.grad(got, leaves, cotangent)
    assert torch.equal(got, expected)
    for found in (inside, outside):
        for a, b in zip(found, expected_grads, strict=True):
            assert torch.equal(a, b.float())


@every_function
def test_autocast(name, n):
    leaves = operands(name, n, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = ours(name, n)(*leaves), theirs(name, n)(*leaves)
        double = ours(name, n)(*operands(name, n))
    assert double.dtype == torch.float64
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=5e-2)
    cotangent = torch.randn_like(got)
    grads = zip(
        torch.autograd.grad(got, leaves, cotangent),
        torch.autograd.grad(expected, leaves, cotangent),
        strict=True,
    )
    for a, b in grads:
        assert a.dtype == torch.float32
        assert (a - b).abs().max() <= 2e-2 * b.abs().max()


@every_function
def test_tensors_without_data(name, n):
    """The meta device, on which shapes are found out."""
    leaves = [x.detach().to("meta") for x in operands(name, n)]
    y = ours(name, n)(*leaves, stride=2)
    assert y.device.type == "meta"
    assert y.shape == theirs(name, n)(*leaves, stride=2).shape


TRANSFORMS = {
    "grad": lambda f, x, w: torch.func.grad(lambda w: f(x, w).square().sum())(w),
    "vmap": lambda f, x, w: torch.func.vmap(f, (None, 0))(x, torch.stack((w, 2 * w, -w))),
    "per-sample gradients": lambda f, x, w: torch.func.vmap(
        torch.func.grad(lambda w, x: f(x[None], w).square().sum()), (None, 0)
    )(w, x),
    "jvp": lambda f, x, w: torch.func.jvp(f, (x, w), (x.cos(), w.sin()))[1],
    "hessian": lambda f, x, w: torch.func.hessian(lambda w: f(x, w).pow(3).sum())(w),
}


@every_function
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_function_transforms(name, n, transform):
    x, weight, bias = operands(name, n, 2, grad=False, spatial=(4, 3, 2)[:n])

    def of(module):
        function = getattr(module, f"{name}{n}d")
        return lambda x, w: function(x, w, bias, stride=2, padding=1, groups=2)

    got, expected = (transform(of(module), x, weight) for module in (functional, nn.functional))
    assert_close(got, expected)


@every_function
def test_forward_mode(name, n):
    x, weight, bias = operands(name, n, grad=False)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x.cos())
        results = [f(name, n)(dual, weight, bias) for f in (ours, theirs)]
        got, expected = (torch.autograd.forward_ad.unpack_dual(y).tangent for y in results)
    assert_close(got, expected)


@every_function
def test_method_by_name(name, n, monkeypatch):
    """The one that is named does all the work, in forward and backward."""
    used = []

    def watch(kernel):
        def spy(*args, **kwargs):
            used.append(kwargs["method"])
            return kernel(*args, **kwargs)

        return spy

    for kernel in (name, f"{name}_grad"):
        monkeypatch.setattr(xpgrad, kernel, watch(getattr(xpgrad, kernel)))
    leaves = operands(name, n)
    assert_same(
        lambda: ours(name, n)(*leaves, padding=1, method="shifted"),
        lambda: theirs(name, n)(*leaves, padding=1),
        leaves,
    )
    assert used == ["shifted", "shifted"]


@pytest.mark.parametrize(
    ("name", "change", "options", "error", "words"),
    [
        ("conv2d", {0: [[1.0]]}, {}, TypeError, ["input", "list", "torch.Tensor"]),
        ("conv2d", {1: None}, {}, TypeError, ["weight", "NoneType", "torch.Tensor"]),
        ("conv2d", {2: 1.0}, {}, TypeError, ["bias", "float", "torch.Tensor"]),
        ("conv2d", {0: torch.zeros(4, 5)}, {}, ValueError, ["input", "2 dimensions", "4", "3", "(4, 5)"]),
        ("conv2d", {0: torch.zeros(1, 4, 5, 5, 5)}, {}, ValueError, ["input", "5 dimensions"]),
        ("conv2d", {1: torch.zeros(6, 4, 3).double()}, {}, ValueError, ["weight", "(6, 4, 3)"]),
        ("conv2d", {0: torch.zeros(2, 5, 8, 7).double()}, {}, ValueError, ["5", "4"]),
        ("conv2d", {0: torch.zeros(2, 4, 8, 7)}, {}, TypeError, ["float32", "float64"]),
        ("conv2d", {}, {"padding": "full"}, ValueError, ["padding", "'full'", "'same'", "'valid'"]),
        ("conv2d", {}, {"padding": "same", "stride": (1, 2)}, ValueError, ["'same'", "(1, 2)", "stride 1"]),
        ("conv2d", {}, {"stride": 0}, ValueError, ["stride is 0"]),
        ("conv2d", {}, {"groups": 3}, ValueError, ["groups", "3", "4"]),
        ("conv2d", {}, {"padding": (1, 2, 3)}, ValueError, ["padding", "3"]),
        ("conv2d", {}, {"method": "magic"}, ValueError, ["method", "'magic'", "'auto'"]),
        ("conv2d", {}, {"dilation": 9}, ValueError, ["kernel", "19", "8"]),
        ("conv_transpose2d", {0: torch.zeros(4)}, {}, ValueError, ["input", "1 dimension", "4", "3"]),
        ("conv_transpose2d", {1: None}, {}, TypeError, ["weight", "NoneType", "torch.Tensor"]),
        ("conv_transpose2d", {}, {"padding": "same"}, TypeError, ["padding", "'same'", "whole numbers"]),
        ("conv_transpose2d", {}, {"output_padding": 1}, ValueError, ["output_padding", "1"]),
    ],
)
def test_bad_input(name, change, options, error, words):
    arguments = operands(name.removesuffix("2d"), 2)
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(error) as caught:
        getattr(functional, name)(*arguments, **options)
    assert str(caught.value).startswith(f"{name}: ")
    assert all(word in str(caught.value) for word in words), caught.value


# ------------------------------------------------------------------------------------------- as modules


def pair(name, *args, dtype=torch.float64, **kwargs):
    """Return PyTorch's module and ours with the same parameters."""
    torch.manual_seed(0)
    original = getattr(nn, name)(*args, **kwargs, dtype=dtype)
    module = getattr(xpgrad_torch, name)(*args, **kwargs, dtype=dtype)
    module.load_state_dict(original.state_dict())
    return original, module


def dimensions(name):
    return int(name[-2])


def batch(name, dtype=torch.float64):
    return torch.randn(2, C, *SPATIAL[dimensions(name)], dtype=dtype, requires_grad=True)


def assert_modules_agree(original, module, x, *args, **kwargs):
    """Value, gradient of the input and of every parameter."""
    results = []
    torch.manual_seed(1)
    for m in (module, original):
        y = m(x, *args, **kwargs)
        cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
        results.append([y, *torch.autograd.grad(y, [x, *m.parameters()], cotangent)])
    for got, expected in zip(*results, strict=True):
        assert_close(got, expected)


@every_module
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_modules_equal_torchs(name, options, bias):
    original, module = pair(name, C, O, 3, bias=bias, **options)
    x = torch.randn(2, C, *(9,) * dimensions(name), dtype=torch.float64, requires_grad=True)
    assert_modules_agree(original, module, x)
    assert_modules_agree(original, module, x.detach()[0].requires_grad_())


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular", "zeros"])
@pytest.mark.parametrize("padding", [1, 2, "same", "valid"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_padding_modes(n, padding, padding_mode):
    name = f"Conv{n}d"
    original, module = pair(name, C, O, KERNEL[n], padding=padding, padding_mode=padding_mode, dilation=2)
    assert_modules_agree(original, module, batch(name))


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("whole", [False, True])
def test_output_size(n, whole):
    name = f"ConvTranspose{n}d"
    original, module = pair(name, C, O, 3, stride=3, padding=1)
    x = batch(name)
    shape = [3 * size - 2 + k % 3 for k, size in enumerate(x.shape[2:])]
    size = [2, O, *shape] if whole else shape
    assert module(x, output_size=size).shape == (2, O, *shape)
    assert_modules_agree(original, module, x, output_size=size)
    assert_modules_agree(original, module, x, torch.Size(size))
    for module_ in (original, module):
        with pytest.raises(ValueError, match="requested an output size"):
            module_(x, output_size=[3 * s + 3 for s in shape])


@every_module
def test_same_seed_same_parameters(name):
    torch.manual_seed(7)
    original = getattr(nn, name)(C, O, 3, groups=2)
    after = torch.rand(3)
    torch.manual_seed(7)
    module = getattr(xpgrad_torch, name)(C, O, 3, groups=2)
    assert torch.equal(after, torch.rand(3))
    for key, value in original.named_parameters():
        assert torch.equal(value, module.get_parameter(key)), key


@every_module
@pytest.mark.parametrize("bias", [True, False])
def test_state_dicts_load_both_ways(name, bias):
    original, back = (getattr(nn, name)(C, O, 3, bias=bias) for _ in range(2))
    module = getattr(xpgrad_torch, name)(C, O, 3, bias=bias)
    assert list(module.state_dict()) == list(original.state_dict())
    module.load_state_dict(original.state_dict(), strict=True)
    back.load_state_dict(module.state_dict(), strict=True)
    for key, value in original.named_parameters():
        assert torch.equal(value, back.get_parameter(key)), key


@every_module
def test_repr(name):
    options = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, "bias": False}
    options |= {"output_padding": 1} if "Transpose" in name else {"padding_mode": "circular"}
    for kwargs in ({}, options):
        arguments = (C, O, 3)
        module = getattr(xpgrad_torch, name)(*arguments, **kwargs)
        assert repr(module) == repr(getattr(nn, name)(*arguments, **kwargs))


def round_trip(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)), "save": round_trip}


@every_module
@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies(name, duplicate):
    module = getattr(xpgrad_torch, name)(C, O, 3, padding=1, groups=2).double().eval()
    other = duplicate(module)
    assert type(other) is type(module)
    assert repr(other) == repr(module)
    assert not other.training
    x = batch(name)
    assert torch.equal(module(x), other(x))
    with torch.no_grad():
        other.weight.add_(1)
    assert not torch.equal(module(x), other(x))


@every_module
def test_frozen_parameters_are_not_asked_for(name, asked):
    module = getattr(xpgrad_torch, name)(C, O, 3)
    x = batch(name, torch.float32).detach()
    module(x).sum().backward()
    module.weight.requires_grad_(False)
    module(x).sum().backward()
    module(x.requires_grad_()).sum().backward()
    assert asked == [{"W", "B"}, {"B"}, {"X", "B"}]


@every_module
def test_frozen_parameters_cost_no_product(name, monkeypatch):
    """Matrix products of the standard engine: a bias has none, input and weight each their own."""
    import array_api_compat.torch as xp

    matmul, counted = xp.matmul, []
    monkeypatch.setattr(xp, "matmul", lambda a, b: counted.append(1) or matmul(a, b))

    def products(*wanted):
        module = getattr(xpgrad_torch, name)(C, O, 3)
        for parameter in ("weight", "bias"):
            getattr(module, parameter).requires_grad_(parameter in wanted)
        x = batch(name, torch.float32).detach().requires_grad_("input" in wanted)
        with xpgrad.use_engine("standard"):
            y = module(x)
            counted.clear()
            y.sum().backward()
        return len(counted)

    assert products("bias") == 0
    assert min(products("input"), products("weight")) > 0
    assert products("input", "weight", "bias") == products("input") + products("weight")


@every_module
def test_bad_construction(name):
    cls = getattr(xpgrad_torch, name)
    with pytest.raises(ValueError, match="in_channels must be divisible by groups"):
        cls(C, O, 3, groups=3)
    with pytest.raises(ValueError, match="padding"):
        cls(C, O, 3, padding_mode="wrap")
    if "Transpose" not in name:
        with pytest.raises(ValueError, match="padding='same' is not supported for strided"):
            cls(C, O, 3, padding="same", stride=2)


@every_module
def test_autocast_of_modules(name):
    original, module = pair(name, C, O, 3, dtype=torch.float32)
    x = batch(name, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = original(x), module(x)
    assert got.dtype == expected.dtype == torch.bfloat16
    got.sum().backward()
    assert module.weight.grad.dtype == torch.float32


@every_module
def test_parametrized_weights_are_read_anew(name):
    original, module = pair(name, C, O, 3)
    for m in (original, module):
        nn.utils.parametrizations.weight_norm(m)
    assert_modules_agree(original, module, batch(name))


# ------------------------------------------------------------------------------------------------- swap


class Network(nn.Module):
    """All six, one behind the other, on vectors, pictures and volumes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict(
            {
                name: getattr(nn, name)(C, C, 3, stride=2, padding=1, groups=2, bias="Transpose" in name)
                for name in MODULES
            }
        )

    def forward(self, *inputs):
        return [
            self.layers[f"ConvTranspose{x.dim() - 2}d"](self.layers[f"Conv{x.dim() - 2}d"](x)) for x in inputs
        ]


def test_swap_replaces_each_module():
    torch.manual_seed(0)
    model = Network().double()
    before, parameters = copy.deepcopy(model), dict(model.named_parameters())
    assert xpgrad_torch.swap(model) is model
    for name, layer in model.layers.items():
        assert type(layer) is getattr(xpgrad_torch, name)
    assert all(value is parameters[key] for key, value in model.named_parameters())
    assert repr(model) == repr(before)
    inputs = [torch.randn(2, C, *SPATIAL[n], dtype=torch.float64) for n in (1, 2, 3)]
    for got, expected in zip(model(*inputs), before(*inputs), strict=True):
        assert_close(got, expected)


@every_module
def test_swap_of_a_single_module_leaves_it_alone(name):
    original = getattr(nn, name)(C, O, 3, groups=2).double().eval()
    module = xpgrad_torch.swap(original)
    assert type(original) is getattr(nn, name)
    assert type(module) is getattr(xpgrad_torch, name)
    assert not module.training
    assert all(a is b for a, b in zip(module.parameters(), original.parameters(), strict=True))
    assert_modules_agree(original, module, batch(name))
    assert xpgrad_torch.swap(module) is module


def test_subclasses_and_parametrized_modules_stay():
    class Mine(nn.Conv2d):
        pass

    kept = {
        "mine": Mine(2, 3, 1),
        "lazy": nn.LazyConv2d(3, 1),
        "normed": nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 1)),
    }
    model = nn.ModuleDict(kept)
    xpgrad_torch.swap(model)
    assert all(model[name] is module for name, module in kept.items())


@every_module
def test_complex_modules_stay_and_the_user_is_told(name):
    original = getattr(nn, name)(C, O, 3, dtype=torch.complex64)
    with pytest.warns(UserWarning, match=rf"swap: a {name} with weights of torch\.complex64 stays") as caught:
        assert xpgrad_torch.swap(original) is original
    assert [warning.filename for warning in caught] == [__file__]


def test_training_continues_under_the_same_optimizer():
    torch.manual_seed(1)

    def network():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, stride=2),
            nn.Flatten(),
            nn.Linear(36, 3),
        )

    first = network()
    second = copy.deepcopy(first)
    x, labels = torch.randn(8, 1, 8, 8), torch.randint(3, (8,))
    losses = []
    for model in (first, second):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses.append([])
        for step in range(25):
            if step == 5 and model is second:
                xpgrad_torch.swap(model)
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1][-1] < 0.7 * losses[1][5]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4, atol=1e-4)


@every_module
def test_public_names(name):
    assert name in xpgrad_torch.__all__
    assert getattr(xpgrad_torch, name).__module__ == "xpgrad_torch.convolution"
