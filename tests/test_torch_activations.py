"""xpgrad_torch's activations and softmax: functions and modules beside PyTorch's own."""

import copy
import gc
import inspect
import io
import pickle
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import xpgrad
import xpgrad_torch
from torch_activation_cases import (
    ALONG_AXIS,
    CASES,
    ELEMENTWISE,
    IN_PLACE,
    LACKING,
    MODULES,
    WITH_OPERANDS,
    away_from_kinks,
    draw,
    module,
)
from xpgrad._cases.activations import DEFINITIONS
from xpgrad._operators.declaration import DECLARED
from xpgrad_torch import activations, functional

# Compiled formulas are held against the references by the kernels' own tests.
pytestmark = pytest.mark.usefixtures("interpreted")
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_elementwise = pytest.mark.parametrize("case", ELEMENTWISE.values(), ids=ELEMENTWISE)
every_module = pytest.mark.parametrize("name", MODULES)
WRITING = {name: case for name, case in ELEMENTWISE.items() if case.inplace}
every_writing = pytest.mark.parametrize("case", WRITING.values(), ids=WRITING)
ONE_EACH = {case.name: case for case in CASES.values()}
one_of_each = pytest.mark.parametrize("case", ONE_EACH.values(), ids=ONE_EACH)


def both(call, *tensors, dY=None):
    """Output, and gradients of the tensors for a random cotangent."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    Y = call(*leaves)
    if dY is None:
        dY = draw(*Y.shape, seed=99, dtype=Y.dtype)
    return Y.detach(), torch.autograd.grad(Y, leaves, dY), dY


def assert_equal(case, x, tolerance=1e-10):
    expected, [expected_grad], dY = both(case.theirs, x)
    got, [got_grad], _ = both(case.ours, x, dY=dY)
    for a, b in ((got, expected), (got_grad, expected_grad)):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------ values, gradients


@every_case
@pytest.mark.parametrize("shape", [(5, 7), (3, 2, 4), (2, 3, 1, 2)], ids=str)
def test_equals_torch(case, shape):
    assert_equal(case, draw(*shape))


@every_elementwise
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)], ids=str)
def test_equals_torch_without_and_with_few_elements(case, shape):
    assert_equal(case, draw(*shape))


@every_elementwise
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_slope_at_the_kinks_is_pytorchs(case, dtype):
    points = torch.tensor([*case.kinks, 0.0, -0.0], dtype=dtype)
    value, [expected], _ = both(case.theirs, points, dY=torch.ones_like(points))
    Y, [got], _ = both(case.ours, points, dY=torch.ones_like(points))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(Y, value, rtol=1e-6, atol=1e-7)


@every_elementwise
def test_far_from_zero(case):
    assert_equal(
        case, torch.tensor([-1e4, -700.0, -90.0, -30.0, 30.0, 90.0, 700.0, 1e4], dtype=torch.float64)
    )


@one_of_each
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)]
)
def test_lower_precision_against_float64(case, dtype, tolerance):
    """Errors relative to the largest value."""
    x = away_from_kinks(draw(64, 9, dtype=dtype), case.kinks)
    Y, [dX], dY = both(case.ours, x)
    exact, [exact_grad], _ = both(case.theirs, x.double(), dY=dY.double())
    for got, expected in ((Y, exact), (dX, exact_grad)):
        assert got.dtype == dtype
        assert (got - expected).abs().max() <= tolerance * expected.abs().max()


@every_case
def test_gradcheck(case):
    x = away_from_kinks(draw(3, 5, seed=2), case.kinks).requires_grad_()
    assert gradcheck(case.ours, x)
    assert gradgradcheck(case.ours, x)


@one_of_each
def test_gradient_with_graph_equals_gradient_without(case):
    x = draw(4, 3).requires_grad_()
    Y = case.ours(x)
    dY = draw(4, 3, seed=1)
    [plain] = torch.autograd.grad(Y, x, dY, retain_graph=True)
    [graph] = torch.autograd.grad(Y, x, dY.requires_grad_(), create_graph=True)
    assert not plain.requires_grad
    assert graph.requires_grad
    torch.testing.assert_close(plain, graph.detach(), rtol=1e-12, atol=1e-14)


@one_of_each
def test_layouts_of_memory(case):
    x = draw(4, 6)
    Y, [dX], dY = both(case.ours, x)
    spread = torch.stack((x, x), dim=-1)[..., 0]
    turned = x.T.contiguous().T
    for other in (spread, turned):
        assert not other.is_contiguous()
        leaf = other.detach().requires_grad_()
        got = case.ours(leaf)
        [grad] = torch.autograd.grad(got, leaf, torch.stack((dY, dY), dim=-1)[..., 1], retain_graph=True)
        torch.testing.assert_close(got, Y, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(grad, dX, rtol=1e-12, atol=1e-14)
        [of_sum] = torch.autograd.grad(got.sum(), leaf)  # an expanded cotangent
        _, [expected], _ = both(case.ours, x, dY=torch.ones_like(x))
        torch.testing.assert_close(of_sum, expected, rtol=1e-12, atol=1e-14)


@one_of_each
def test_nothing_is_written_to(case):
    x = draw(3, 4).requires_grad_()
    before = x.detach().clone()
    Y = case.ours(x)
    dY = draw(3, 4, seed=1)
    kept = Y.detach().clone(), dY.clone()
    Y.backward(dY)
    assert torch.equal(x, before)
    assert torch.equal(Y, kept[0])
    assert torch.equal(dY, kept[1])


@one_of_each
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(case, mode):
    x = draw(3, 4).requires_grad_()
    with mode():
        got = case.ours(x)
    assert not got.requires_grad
    assert torch.equal(got, case.ours(x).detach())
    assert not case.ours(x.detach()).requires_grad


@one_of_each
def test_memory_is_freed_without_the_garbage_collector(case):
    x = draw(3, 4).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        Y = case.ours(x)
        kept = [weakref.ref(Y), weakref.ref(Y.grad_fn)]
        Y.sum().backward()
        del Y
        assert [ref() for ref in kept] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "sigmoid", "tanh", "hardtanh", "softmax-1"])
def test_only_the_output_is_kept_where_it_tells_the_slope(name):
    """So that a layer whose output nobody else needs is freed, as with PyTorch's."""
    x = draw(3, 4).requires_grad_()
    between = 2 * x
    kept = weakref.ref(between)
    Y = CASES[name].ours(between)
    del between
    assert kept() is None
    Y.sum().backward()


@one_of_each
def test_saved_tensor_changed_in_place_is_noticed(case):
    x = draw(3, 4).requires_grad_()
    between = 2 * x
    Y = case.ours(between)
    with torch.no_grad():
        between.mul_(2)
        Y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Y.sum().backward()


@one_of_each
def test_transformations_and_forward_mode(case):
    x = away_from_kinks(draw(4, 3), case.kinks)
    v = draw(4, 3, seed=1)
    _, [expected], _ = both(case.theirs, x, dY=v)
    got = torch.func.grad(lambda x: (case.ours(x) * v).sum())(x)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    each = torch.func.vmap(torch.func.grad(lambda x, v: (case.ours(x[None]) * v).sum()))
    if case.arguments.get("dim") != 0:
        torch.testing.assert_close(each(x, v), expected, rtol=1e-10, atol=1e-12)
    along = torch.func.jvp(case.theirs, (x,), (v,))[1]
    torch.testing.assert_close(torch.func.jvp(case.ours, (x,), (v,))[1], along, rtol=1e-10, atol=1e-12)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(case.ours(forward_ad.make_dual(x, v)))
        torch.testing.assert_close(dual.tangent, along, rtol=1e-10, atol=1e-12)


@one_of_each
def test_checkpoint(case):
    from torch.utils.checkpoint import checkpoint

    x = draw(3, 4).requires_grad_()
    dY = draw(3, 4, seed=1)
    expected = torch.autograd.grad(case.ours(x), x, dY)
    got = torch.autograd.grad(checkpoint(case.ours, x, use_reentrant=False), x, dY)
    assert torch.equal(got[0], expected[0])


# ---------------------------------------------------------------------------------------------------- errors


@one_of_each
def test_bad_input(case):
    for bad, words in (
        ([1.0], "list"),
        (torch.arange(3), "int64"),
        (torch.ones(2, dtype=torch.cfloat), "complex64"),
    ):
        with pytest.raises(TypeError) as caught:
            case.ours(bad)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: functional.gelu(x, "erf"), ["approximate", "'erf'", "'none'", "'tanh'"]),
        (lambda x: functional.softmax(x, 2), ["softmax", "2"]),
        (lambda x: functional.log_softmax(x, -3), ["log_softmax", "-3"]),
        (lambda x: functional.prelu(x, torch.ones(2).double()), ["prelu", "(2,)", "(4, 3)"]),
        (lambda x: functional.prelu(x, torch.ones(1, 3).double()), ["prelu", "(1, 3)"]),
        (lambda x: functional.prelu(x[0], torch.ones(3).double()), ["prelu", "(3,)"]),
    ],
)
def test_bad_attribute(call, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        call(draw(4, 3))
    assert all(word in str(caught.value) for word in words), caught.value


def test_dim_left_out_is_guessed_with_a_warning():
    for shape in ((3,), (3, 4), (2, 3, 4), (2, 2, 3, 4)):
        x = draw(*shape)
        for name in ("softmax", "log_softmax"):
            for call in (
                getattr(functional, name),
                xpgrad_torch.Softmax() if name == "softmax" else xpgrad_torch.LogSoftmax(),
            ):
                with pytest.warns(UserWarning, match="dim is left out"):
                    got = call(x)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = getattr(nn.functional, name)(x)
                torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, -1])
def test_softmax_of_a_number(name, dim):
    x = torch.tensor(1.5, requires_grad=True)
    got, expected = (getattr(f, name)(x, dim) for f in (functional, nn.functional))
    assert torch.equal(got, expected)
    got.backward()
    assert x.grad == 0


def test_softmax_converts_beforehand():
    x = draw(3, 4, dtype=torch.float16)
    for name in ("softmax", "log_softmax"):
        got = getattr(functional, name)(x, 1, dtype=torch.float32)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, getattr(nn.functional, name)(x, 1, dtype=torch.float32))


def test_masked_slices_give_zero_and_not_nan():
    x = draw(3, 4).index_fill_(0, torch.tensor([1]), -torch.inf).requires_grad_()
    Y = functional.softmax(x, 1)
    Y.backward(draw(3, 4, seed=1))
    assert not Y[1].any()
    assert not x.grad[1].any()
    assert torch.isfinite(x.grad).all()


# -------------------------------------------------------------------------------------------------- in place


@every_writing
def test_in_place_equals_torch(case):
    x = draw(4, 5)
    x[0, 0] = case.kinks[0] if case.kinks else 0.0
    dY = draw(4, 5, seed=1)
    results = []
    for call in (case.theirs, case.ours):
        leaf = x.clone().requires_grad_()
        between = leaf * 1.5
        Y = call(between, inplace=True)
        assert Y is between
        assert Y._version > 0
        results.append([Y.detach().clone(), *torch.autograd.grad(3 * Y, leaf, dY)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_in_place_on_expanded_tensors():
    """With a gradient, the backward would write to one place several times."""
    x = draw(1, 4)
    expanded = x.clone().expand(3, 4)
    assert torch.equal(xpgrad_torch.ReLU(inplace=True)(expanded), x.relu().expand(3, 4))
    leaf = x.clone().requires_grad_()
    between = (leaf * 1.5).expand(3, 4)
    with pytest.raises(ValueError, match=r"relu: input is expanded \(shape \(3, 4\), strides \(0, 1\)\)"):
        xpgrad_torch.ReLU(inplace=True)(between)
    assert torch.equal(between, (leaf * 1.5).expand(3, 4))


@every_writing
def test_in_place_is_differentiable_twice(case):
    def call(x):
        return case.ours(x * 1.5, inplace=True)

    kinks = [kink / 1.5 for kink in case.kinks]
    x = away_from_kinks(draw(3, 4, seed=5), kinks).requires_grad_()
    assert gradcheck(call, x)
    assert gradgradcheck(call, x)


class Watching(TorchDispatchMode):
    """A mode that changes nothing: kernels then run as registered operators, as for a compiler."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@every_writing
def test_in_place_under_transformations(case):
    """The gradient takes the values from before, whichever way the kernel runs."""

    def total(x):
        between = x * 1.5
        y = case.ours(between, inplace=True)
        return (y * y + between).sum()

    x = draw(4, 5)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(total(leaf), leaf)
    with Watching():
        (watched,) = torch.autograd.grad(total(leaf), leaf)
    for dX in (watched, torch.func.grad(total)(x), torch.func.vmap(torch.func.grad(total))(x)):
        torch.testing.assert_close(dX, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["SiLU", "ReLU", "Threshold"])
def test_in_place_modules_compile(name):
    """Behind a convolution, as in many networks."""
    arguments = {"threshold": 0.1, "value": 0.0} if name == "Threshold" else {}
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 3, 3), getattr(xpgrad_torch, name)(**arguments, inplace=True), nn.Conv1d(3, 2, 3)
    ).double()
    X = draw(2, 2, 9)
    torch._dynamo.reset()
    results = []
    for run in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        y = run(X)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every_writing
def test_in_place_is_true_or_false(case):
    for wrong in ("abc", 1, None):
        with pytest.raises(TypeError, match=f"inplace is {wrong!r}, expected True or False"):
            case.ours(draw(3), inplace=wrong)


@every_writing
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_in_place_without_graph(case, dtype):
    for x in (draw(4, 6, dtype=dtype), draw(4, 6, dtype=dtype)[:, ::2], draw(4, 6, dtype=dtype).T):
        expected = case.ours(x)
        version = x._version
        assert case.ours(x, inplace=True) is x
        assert x._version > version
        assert torch.equal(x, expected)
    with torch.inference_mode():
        x = draw(4, 6, dtype=dtype)
        expected = case.ours(x)
        assert torch.equal(case.ours(x, inplace=True), expected)
    before = x.clone()
    with pytest.raises(RuntimeError, match="outside"):
        case.ours(x, inplace=True)
    assert torch.equal(x, before)


@every_writing
def test_in_place_through_a_view(case):
    x, dY = away_from_kinks(draw(4, 6), case.kinks), draw(4, 6, seed=1)
    results = []
    for call in (case.theirs, case.ours):
        leaf = x.clone().requires_grad_()
        base = leaf * 1.0
        call(base[:, 1:4], inplace=True)
        results.append([base.detach().clone(), *torch.autograd.grad(base, leaf, dY)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@every_writing
def test_in_place_on_a_leaf_is_refused_before_it_happens(case):
    x = draw(3).requires_grad_()
    before = x.detach().clone()
    for target in (x, x[:2]):
        with pytest.raises(RuntimeError, match=r"a leaf (Variable )?that requires grad"):
            case.ours(target, inplace=True)
    assert torch.equal(x, before)


def test_what_is_overwritten_and_needed_is_noticed():
    x = draw(3).requires_grad_()
    between = x * 1.0
    squared = between**2
    functional.silu(between, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


# ------------------------------------------------------------------------------------------- with an operand

every_operand = pytest.mark.parametrize("name", WITH_OPERANDS)


def theirs_with(name):
    """PyTorch's function, or the definition."""

    def defined(x, weight):
        return DEFINITIONS[name](
            torch, x, weight.reshape(-1, *(1,) * (x.dim() - 2)) if x.dim() > 1 else weight
        )

    return getattr(nn.functional, name, defined)


@every_operand
@pytest.mark.parametrize(
    ("shape", "weights"),
    [((4, 3), 3), ((4, 3), 1), ((2, 3, 4), 3), ((2, 3, 2, 2), 3), ((5,), 1), ((), 1), ((0, 3), 3)],
)
def test_operands_equal_torch(name, shape, weights):
    ours, theirs = getattr(functional, name), theirs_with(name)
    x, weight = draw(*shape), draw(weights, seed=3)
    if x.numel() > 1:
        x.view(-1)[0] = 0.0
    expected, expected_grads, dY = both(lambda x, w: theirs(x, w).reshape(x.shape), x, weight)
    got, got_grads, _ = both(ours, x, weight, dY=dY)
    for a, b in zip((got, *got_grads), (expected, *expected_grads), strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    if x.numel():
        leaves = [away_from_kinks(x, (0.0,)).requires_grad_(), weight.requires_grad_()]
        assert gradcheck(ours, leaves)
        assert gradgradcheck(ours, leaves)


@every_operand
@pytest.mark.parametrize("needed", [(0,), (1,), (0, 1)], ids=str)
def test_only_what_requires_a_gradient_is_computed(name, needed, monkeypatch):
    asked = []
    kernel = getattr(xpgrad, f"{name}_grad")
    monkeypatch.setattr(
        xpgrad, f"{name}_grad", lambda *a, wrt, **k: asked.append(wrt) or kernel(*a, wrt=wrt, **k)
    )
    tensors = [draw(4, 3), draw(3)]
    for number in needed:
        tensors[number].requires_grad_()
    getattr(functional, name)(*tensors).sum().backward()
    names = ["X", *DECLARED[name].operands]
    assert asked == [tuple(names[number] for number in needed)]
    assert [number for number, x in enumerate(tensors) if x.grad is not None] == list(needed)


@every_operand
def test_operands_under_transformations(name):
    x, weight, v = draw(4, 3), draw(3, seed=1), draw(4, 3, seed=2)
    _, expected, _ = both(theirs_with(name), x, weight, dY=v)
    ours = getattr(functional, name)
    got = torch.func.grad(lambda x, w: (ours(x, w) * v).sum(), argnums=(0, 1))(x, weight)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@every_operand
@pytest.mark.parametrize("position", [0, 1])
def test_operands_are_tensors(name, position):
    function = getattr(functional, name)
    word = [*inspect.signature(function).parameters][position]
    given = [torch.ones(3), torch.ones(1)]
    given[position] = 1.0
    with pytest.raises(TypeError, match=f"{name}: {word} is float, expected torch.Tensor"):
        function(*given)


# --------------------------------------------------------------------------------------------------- modules

ROUNDED = ("CELU", "Hardsigmoid")  # PyTorch's own kernels compute with constants that are rounded to float32


@every_module
def test_module_equals_torch(name):
    theirs, ours = (module(family, name, dtype=torch.float64) for family in (nn, xpgrad_torch))
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = draw(3, 4, 5)
    dY = draw(3, 4, 5, seed=1)
    results = []
    for m in (theirs, ours):
        leaf = x.clone().requires_grad_()
        Y = m(leaf)
        results.append([Y, *torch.autograd.grad(Y, [leaf, *m.parameters()], dY)])
    tolerance = 1e-7 if name in ROUNDED else 1e-10
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@every_module
def test_module_runs_our_kernel(name, monkeypatch):
    """And not the forward that it inherits."""
    calls = []
    for kernel in vars(nn.functional):
        if callable(getattr(nn.functional, kernel)) and not kernel.startswith("_"):
            monkeypatch.setattr(nn.functional, kernel, lambda *a, k=kernel, **kw: calls.append(k))
    assert module(xpgrad_torch, name)(torch.ones(2, 4)).shape == (2, 4)
    assert calls == []


@pytest.mark.parametrize("name", IN_PLACE)
def test_module_in_place(name):
    theirs, ours = (module(family, name, inplace=True) for family in (nn, xpgrad_torch))
    assert repr(ours) == repr(theirs)
    x = draw(3, 4)
    expected = theirs(x.clone())
    assert ours(x) is x
    torch.testing.assert_close(x, expected, rtol=1e-10, atol=1e-12)


@every_module
@pytest.mark.parametrize("how", ["pickle", "deepcopy", "save"])
def test_modules_can_be_copied(name, how):
    ours = module(xpgrad_torch, name)
    if how == "pickle":
        other = pickle.loads(pickle.dumps(ours))
    elif how == "deepcopy":
        other = copy.deepcopy(ours)
    else:
        buffer = io.BytesIO()
        torch.save(ours, buffer)
        buffer.seek(0)
        other = torch.load(buffer, weights_only=False)
    assert type(other) is type(ours)
    assert repr(other) == repr(ours)
    x = torch.randn(3, 4)
    assert torch.equal(other(x), ours(x))


@pytest.mark.parametrize("name", LACKING)
def test_module_that_pytorch_lacks(name):
    """It equals the definition, is copied and written as others are, and tells how it was built."""
    ours = getattr(xpgrad_torch, name)().double()
    x = draw(4, 3, seed=6)
    expected, expected_grads, dY = both(
        lambda x, *p: DEFINITIONS[LACKING[name]](torch, x, *p), x, *ours.parameters()
    )
    for m in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        leaf = x.clone().requires_grad_()
        Y = m(leaf)
        torch.testing.assert_close(Y, expected, rtol=1e-10, atol=1e-12)
        for a, b in zip(torch.autograd.grad(Y, [leaf, *m.parameters()], dY), expected_grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    again = eval(repr(ours), {name: getattr(xpgrad_torch, name)})
    assert repr(again) == repr(ours)


def test_quick_gelu():
    ours = xpgrad_torch.QuickGELU(0.9, inplace=True)
    assert repr(ours) == "QuickGELU(alpha=0.9, inplace=True)"
    assert repr(pickle.loads(pickle.dumps(xpgrad_torch.QuickGELU()))) == "QuickGELU(alpha=1.702)"
    x = draw(3, 4)
    expected = x * torch.sigmoid(0.9 * x)
    assert ours(x) is x
    torch.testing.assert_close(x, expected)


def test_hardtanhs_old_names():
    with pytest.warns(FutureWarning, match="min_value. is deprecated"):
        assert xpgrad_torch.Hardtanh(min_value=-2.0).min_val == -2.0


@every_module
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_gives_pytorchs_dtypes(name, dtype):
    theirs, ours = (module(family, name) for family in (nn, xpgrad_torch))
    x = torch.randn(3, 4, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = theirs(x), ours(x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_every_function_and_module_is_tested():
    lower = {name for name in activations.__all__ if name.islower()}
    assert lower == {case.name for case in CASES.values()} | {*WITH_OPERANDS}
    assert set(activations.__all__) - lower == {*MODULES, *LACKING}
    assert lower <= set(functional.__all__)
    assert set(activations.__all__) - lower <= set(xpgrad_torch.__all__)
    assert ALONG_AXIS.keys() <= CASES.keys()
