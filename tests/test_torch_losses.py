"""xpgrad_torch's losses: functions and modules beside PyTorch's own."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import xpgrad
import xpgrad_torch
from torch_activation_cases import LOSSES, draw
from xpgrad_torch import functional, losses

# Compiled formulas are held against the references by the kernels' own tests.
pytestmark = pytest.mark.usefixtures("interpreted")
REDUCTIONS = ("mean", "sum", "none")
SHAPES = {"one": (5,), "rows": (6, 5), "images": (3, 5, 2, 4), "empty": (0, 5)}
every_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)


def classes(shape, seed=0):
    """Random classes for logits of a shape, the first one of them ignored where there are several."""
    places = () if len(shape) == 1 else (shape[0], *shape[2:])
    g = torch.Generator().manual_seed(seed)
    target = torch.randint(shape[0] if len(shape) == 1 else shape[1], places, generator=g)
    if target.numel() > 1:
        target.view(-1)[0] = -100
    return target


def probabilities(shape):
    return torch.softmax(draw(*shape, seed=8), 0 if len(shape) == 1 else 1)


def assert_same(ours, theirs, *leaves, tolerance=1e-10):
    """Losses and gradients of the leaves are the same for one random cotangent."""
    results = []
    dY = None
    for call in (theirs, ours):
        tensors = [x.detach().clone().requires_grad_() for x in leaves]
        Y = call(*tensors)
        dY = draw(*Y.shape, seed=99, dtype=Y.dtype) if dY is None else dY
        results.append([Y.detach(), *torch.autograd.grad(Y, tensors, dY)])
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def both(name, **arguments):
    """Return ours and PyTorch's function of logits and target, with further arguments."""
    return (
        lambda x, target: getattr(functional, name)(x, target, **arguments),
        lambda x, target: getattr(nn.functional, name)(x, target, **arguments),
    )


# ---------------------------------------------------------------------------------------------- cross-entropy


@every_reduction
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_cross_entropy_equals_torch(kind, weighted, smoothing, shape, reduction):
    target = classes(shape) if kind == "classes" else probabilities(shape)
    weight = draw(5, seed=4).abs() + 0.1 if weighted else None
    ours, theirs = both("cross_entropy", weight=weight, reduction=reduction, label_smoothing=smoothing)
    assert_same(lambda x: ours(x, target), lambda x: theirs(x, target), draw(*shape))


def test_another_class_is_ignored():
    shape = (6, 5)
    target = classes(shape).clamp(min=0)
    ours, theirs = both("cross_entropy", ignore_index=int(target[2]))
    assert_same(lambda x: ours(x, target), lambda x: theirs(x, target), draw(*shape))


def test_all_ignored():
    target = torch.full((4,), -100)
    for reduction in REDUCTIONS:
        ours, theirs = both("cross_entropy", reduction=reduction)
        assert_same(lambda x, f=ours: f(x, target), lambda x, f=theirs: f(x, target), draw(4, 5))


def test_far_logits():
    x = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 0.0, 1e4], [3e38, -3e38, 0.0]], dtype=torch.float64)
    target = torch.tensor([1, 2, 0])
    ours, theirs = both("cross_entropy", reduction="none")
    assert_same(lambda x: ours(x, target), lambda x: theirs(x, target), x)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@every_reduction
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_cross_entropy_gradcheck(kind, reduction, smoothing):
    shape = (3, 4, 2)
    target = classes(shape) if kind == "classes" else probabilities(shape)
    weight = draw(4, seed=4).abs() + 0.1

    def call(x):
        return functional.cross_entropy(x, target, weight, reduction=reduction, label_smoothing=smoothing)

    x = draw(*shape).requires_grad_()
    assert gradcheck(call, x)
    assert gradgradcheck(call, x)


CERTAIN = torch.eye(5, dtype=torch.float64)[[3, 0, 0, 4]]  # probabilities of 0 and 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("target", [probabilities((4, 5)), CERTAIN], ids=["between", "certain"])
def test_probabilities_may_require_a_gradient(target, smoothing):
    ours, theirs = both("cross_entropy", label_smoothing=smoothing)
    assert_same(ours, theirs, draw(4, 5), target)


@every_reduction
@pytest.mark.parametrize("certain", [False, True], ids=["between", "certain"])
@pytest.mark.parametrize("kind", ["classes", "probabilities", "binary"])
def test_targets_and_weights_are_differentiable_twice(kind, certain, reduction):
    """Together with the logits, each on its own and mixed; `certain` targets and weights have zeros."""
    shape = (3, 4)
    x, weight = draw(*shape), draw(4, seed=4).abs() + 0.1
    target = classes(shape) if kind == "classes" else probabilities(shape)
    if certain:
        weight[1] = 0.0
        target = target if kind == "classes" else torch.eye(4, dtype=x.dtype)[[3, 0, 1]]
    x, weight = x.requires_grad_(), weight.requires_grad_()
    if kind != "classes":
        target = target.requires_grad_()
    if kind == "binary":
        leaves = (x, target, weight, (2 * weight).detach().requires_grad_())

        def call(x, target, weight, pos_weight):
            return functional.binary_cross_entropy_with_logits(
                x, target, weight, pos_weight=pos_weight, reduction=reduction
            )
    else:
        leaves = (x, target, weight)

        def call(x, target, weight):
            return functional.cross_entropy(x, target, weight, reduction=reduction, label_smoothing=0.1)

    assert gradcheck(call, leaves)
    assert gradgradcheck(call, leaves)


# ------------------------------------------------------------------------------------- binary cross-entropy


@every_reduction
@pytest.mark.parametrize("shape", [(), (6,), (3, 4), (2, 3, 4), (0, 3)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("positive", [False, True])
def test_binary_cross_entropy_equals_torch(positive, weighted, shape, reduction):
    target = torch.sigmoid(draw(*shape, seed=7))
    last = shape[-1:]
    arguments = {
        "weight": draw(*last, seed=5).abs() if weighted else None,
        "pos_weight": draw(*last, seed=6).abs() if positive else None,
        "reduction": reduction,
    }
    ours, theirs = both("binary_cross_entropy_with_logits", **arguments)
    assert_same(lambda x: ours(x, target), lambda x: theirs(x, target), draw(*shape))


def test_weights_are_broadcast_over_any_axis():
    target = torch.sigmoid(draw(3, 4, seed=7))
    arguments = {"weight": draw(3, 1, seed=5).abs(), "pos_weight": draw(1, 4, seed=6).abs()}
    ours, theirs = both("binary_cross_entropy_with_logits", **arguments)
    assert_same(lambda x: ours(x, target), lambda x: theirs(x, target), draw(3, 4))


def test_binary_far_logits():
    x = torch.tensor([-1e4, -800.0, 0.0, 800.0, 1e4], dtype=torch.float64)
    target = torch.tensor([1.0, 0.3, 0.5, 0.0, 1.0], dtype=torch.float64)
    ours, theirs = both("binary_cross_entropy_with_logits", reduction="none")
    assert_same(lambda x: ours(x, target), lambda x: theirs(x, target), x)


@every_reduction
def test_binary_gradcheck(reduction):
    target, weight = torch.sigmoid(draw(3, 4, seed=7)), draw(4, seed=5).abs()

    def call(x):
        return functional.binary_cross_entropy_with_logits(
            x, target, weight, reduction=reduction, pos_weight=2 * weight
        )

    x = draw(3, 4).requires_grad_()
    assert gradcheck(call, x)
    assert gradgradcheck(call, x)


@pytest.mark.parametrize("target", [torch.sigmoid(draw(4, 5, seed=7)), CERTAIN], ids=["between", "certain"])
def test_targets_may_require_a_gradient(target):
    ours, theirs = both("binary_cross_entropy_with_logits", pos_weight=draw(5, seed=5).abs())
    assert_same(ours, theirs, draw(4, 5), target)


# ------------------------------------------------------------------------------------------------- in common

CALLS = {
    "classes": lambda x: functional.cross_entropy(x, classes((6, 5))),
    "probabilities": lambda x: functional.cross_entropy(x, probabilities((6, 5)).to(x.dtype)),
    "binary": lambda x: functional.binary_cross_entropy_with_logits(
        x, torch.sigmoid(draw(6, 5, seed=7)).to(x.dtype)
    ),
}
THEIRS = {
    "classes": lambda x: nn.functional.cross_entropy(x, classes((6, 5))),
    "probabilities": lambda x: nn.functional.cross_entropy(x, probabilities((6, 5)).to(x.dtype)),
    "binary": lambda x: nn.functional.binary_cross_entropy_with_logits(
        x, torch.sigmoid(draw(6, 5, seed=7)).to(x.dtype)
    ),
}
every_call = pytest.mark.parametrize("kind", CALLS)


@every_call
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)]
)
def test_lower_precision_against_float64(kind, dtype, tolerance):
    x = draw(6, 5, dtype=dtype)
    leaves = [x.clone().requires_grad_(), x.double().requires_grad_()]
    got, exact = CALLS[kind](leaves[0]), THEIRS[kind](leaves[1])
    assert got.dtype == dtype
    (got + exact).backward()
    for a, b in ((got, exact), (leaves[0].grad, leaves[1].grad)):
        assert (a - b).abs().max() <= tolerance * b.abs().max()


@every_call
def test_non_contiguous_logits(kind):
    x = draw(6, 5)
    for other in (torch.stack((x, x), dim=-1)[..., 0], x.T.contiguous().T):
        assert not other.is_contiguous()
        assert_same(CALLS[kind], lambda _, y=other: THEIRS[kind](_), other)
        leaf = other.detach().requires_grad_()
        CALLS[kind](leaf).backward()
        expected = x.clone().requires_grad_()
        THEIRS[kind](expected).backward()
        torch.testing.assert_close(leaf.grad, expected.grad, rtol=1e-10, atol=1e-12)


@every_call
def test_transformations(kind):
    x = draw(6, 5)
    expected = torch.func.grad(THEIRS[kind])(x)
    torch.testing.assert_close(torch.func.grad(CALLS[kind])(x), expected, rtol=1e-10, atol=1e-12)
    v = draw(6, 5, seed=1)
    along = torch.func.jvp(THEIRS[kind], (x,), (v,))[1]
    torch.testing.assert_close(torch.func.jvp(CALLS[kind], (x,), (v,))[1], along, rtol=1e-10, atol=1e-12)


@every_call
def test_without_gradients(kind):
    x = draw(6, 5).requires_grad_()
    with torch.no_grad():
        assert torch.equal(CALLS[kind](x), CALLS[kind](x.detach()))
        assert not CALLS[kind](x).requires_grad
    with torch.inference_mode():
        CALLS[kind](x)


def test_target_changed_in_place_is_noticed():
    target = torch.rand(3, 4, dtype=torch.float64)
    Y = functional.binary_cross_entropy_with_logits(draw(3, 4).requires_grad_(), target)
    target.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Y.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_gives_pytorchs_dtypes(dtype):
    x = draw(4, 5, dtype=dtype)
    calls = {
        "cross_entropy": [(torch.tensor([1, 0, 4, 2]),), (probabilities((4, 5)).to(dtype),)],
        "binary_cross_entropy_with_logits": [(probabilities((4, 5)).float(), torch.ones(5))],
    }
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name, arguments in calls.items():
            for given in arguments:
                expected = getattr(nn.functional, name)(x, *given)
                got = getattr(functional, name)(x, *given)
                assert got.dtype == expected.dtype
                torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda f, x: f.cross_entropy([1.0], torch.tensor(0)), TypeError, ["cross_entropy", "input", "list"]),
        (lambda f, x: f.cross_entropy(x, [0]), TypeError, ["cross_entropy", "target", "list"]),
        (lambda f, x: f.cross_entropy(x, torch.tensor([0, 1])), ValueError, ["target", "(2,)"]),
        (lambda f, x: f.cross_entropy(x, torch.tensor([0, 1, 7])), ValueError, ["target", "7"]),
        (lambda f, x: f.cross_entropy(x, torch.tensor([0, 1, -1])), ValueError, ["target", "-1"]),
        (lambda f, x: f.cross_entropy(x, torch.rand(3, 4)), TypeError, ["target", "float32", "float64"]),
        (
            lambda f, x: f.cross_entropy(x, torch.tensor([0, 1, 2]), torch.ones(3).double()),
            ValueError,
            ["weight has"],
        ),
        (
            lambda f, x: f.cross_entropy(x, torch.tensor([0, 1, 2]), reduction="max"),
            ValueError,
            ["reduction", "'max'"],
        ),
        (
            lambda f, x: f.cross_entropy(x, torch.tensor([0, 1, 2]), label_smoothing=1.5),
            ValueError,
            ["label_smoothing", "1.5"],
        ),
        (lambda f, x: f.binary_cross_entropy_with_logits(x, 1.0), TypeError, ["target", "float"]),
        (
            lambda f, x: f.binary_cross_entropy_with_logits(x, x[:2]),
            ValueError,
            ["target has", "(2, 4)", "(3, 4)"],
        ),
        (lambda f, x: f.binary_cross_entropy_with_logits(x, x, x[0, :3]), ValueError, ["weight", "(3,)"]),
        (
            lambda f, x: f.binary_cross_entropy_with_logits(x, x, reduction="max"),
            ValueError,
            ["reduction", "'max'"],
        ),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call(functional, draw(3, 4))
    assert all(word in str(caught.value) for word in words), caught.value


# --------------------------------------------------------------------------------------------------- modules


def module_pairs():
    """Modules by what they are given, PyTorch's beside ours, with a target."""
    shape = (6, 5)
    weight = draw(5, seed=5).abs()
    constructors = {
        "CrossEntropyLoss": [
            ({}, classes(shape)),
            ({"weight": weight, "ignore_index": 2, "label_smoothing": 0.1}, classes(shape).clamp(min=0)),
            ({"reduction": "sum"}, probabilities(shape)),
        ],
        "BCEWithLogitsLoss": [
            ({}, probabilities(shape)),
            ({"weight": weight, "pos_weight": 2 * weight, "reduction": "none"}, probabilities(shape)),
        ],
    }
    for name, cases in constructors.items():
        for k, (arguments, target) in enumerate(cases):
            yield pytest.param(name, arguments, target, id=f"{name}-{k}")


@pytest.mark.parametrize(("name", "arguments", "target"), list(module_pairs()))
def test_module_equals_torch(name, arguments, target):
    theirs, ours = (getattr(family, name)(**arguments) for family in (nn, xpgrad_torch))
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for other in (ours, pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert type(other) is type(ours)
        assert_same(lambda x, m=other: m(x, target), lambda x: theirs(x, target), draw(6, 5))


def test_modules_run_our_kernels(monkeypatch):
    asked = []
    for name in ("softmax_cross_entropy_grad", "binary_cross_entropy_with_logits_grad"):
        kernel = getattr(xpgrad, name)
        monkeypatch.setattr(xpgrad, name, lambda *a, k=kernel, n=name, **kw: asked.append(n) or k(*a, **kw))
    x = draw(6, 5).requires_grad_()
    xpgrad_torch.CrossEntropyLoss()(x, classes((6, 5))).backward()
    xpgrad_torch.BCEWithLogitsLoss()(x, probabilities((6, 5))).backward()
    assert asked == ["softmax_cross_entropy_grad", "binary_cross_entropy_with_logits_grad"]


def test_old_arguments():
    with pytest.warns(UserWarning, match="size_average"):
        assert xpgrad_torch.CrossEntropyLoss(size_average=False).reduction == "sum"


def test_training_falls_alike():
    """A network with our activation, softmax loss and optimizer steps follows PyTorch's."""
    torch.manual_seed(0)
    x, target = torch.randn(64, 6), torch.randint(3, (64,))
    curves = []
    theirs = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 3))
    ours = xpgrad_torch.swap(copy.deepcopy(theirs), activations=True)
    for model, loss in ((theirs, nn.CrossEntropyLoss()), (ours, xpgrad_torch.CrossEntropyLoss())):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        curves.append([])
        for _ in range(20):
            optimizer.zero_grad()
            value = loss(model(x), target)
            value.backward()
            optimizer.step()
            curves[-1].append(value.item())
    assert curves[1][-1] < 0.9 * curves[1][0]
    torch.testing.assert_close(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=1e-4, atol=1e-5)


def test_every_loss_is_tested():
    assert {*LOSSES, "cross_entropy", "binary_cross_entropy_with_logits"} == set(losses.__all__)
