"""torch.func and forward mode: vmap, grad, per-sample gradients, jvp, hessian, for every operator."""

import itertools

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import xpgrad
import xpgrad_torch
from torch_operators import EVERY_KERNEL, OPERATORS
from xpgrad_torch import functional

every_operator = pytest.mark.parametrize("operator", EVERY_KERNEL.values(), ids=EVERY_KERNEL)


def those_with(what):
    """The operators that have parameters, or weights."""
    named = {name: operator for name, operator in OPERATORS.items() if getattr(operator, what)}
    return pytest.mark.parametrize("operator", named.values(), ids=named)


MAPPED = 3


def weighted(outputs):
    """A number in which every output has another weight."""
    return sum((y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view_as(y)).sum() for y in outputs)


def tangents_of(tensors):
    return tuple(torch.randn_like(x) for x in tensors)


def assert_equal(got, expected, tolerance=1e-10):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def mapped_operands(operator, names):
    """Operands of which those in `names` have one more axis in front, of different values."""
    operands = operator.operands()
    others = [operator.operands(seed=seed) for seed in range(MAPPED)]
    for name in names:
        operands[name] = torch.stack([other[name] for other in others])
    if "sequence_lens" in names:
        lengths = operands["sequence_lens"]
        operands["sequence_lens"] = (lengths + torch.arange(MAPPED)[:, None]) % (int(lengths.max()) + 1)
    return operands


def slices(operands, names):
    return [{n: x[k] if n in names else x for n, x in operands.items()} for k in range(MAPPED)]


def data_of(operator):
    return [name for name in operator.shapes if operator.batch_axis(name) is not None]


@pytest.fixture
def kernel_calls(monkeypatch):
    """Count how often each kernel runs, and with which attributes."""
    calls = []

    def watch(name, kernel):
        def spy(*args, **kwargs):
            calls.append((name, kwargs))
            return kernel(*args, **kwargs)

        return spy

    for name in {operator.kernel.name for operator in EVERY_KERNEL.values()}:
        for each in (name, f"{name}_grad"):
            monkeypatch.setattr(xpgrad, each, watch(each, getattr(xpgrad, each)))
    return calls


# --- vmap ------------------------------------------------------------------------------------------------


def subsets_of_data():
    """All data of each operator, its input alone, all but its input; each only once."""
    for name, operator in EVERY_KERNEL.items():
        data = tuple(data_of(operator))
        for names in dict.fromkeys((data, ("X",), data[1:])):
            if names:
                yield pytest.param(operator, names, id=f"{name}-{'-'.join(names)}")


@pytest.mark.parametrize(("operator", "names"), [*subsets_of_data()])
def test_vmap_joins_the_batch(operator, names, kernel_calls):
    operands = mapped_operands(operator, names)
    expected = [operator.run(each) for each in slices(operands, names)]
    kernel_calls.clear()
    got = vmap(operator.of(operands, names))(*(operands[name] for name in names))
    assert len(kernel_calls) == 1
    assert_equal(got, [torch.stack(parts) for parts in zip(*expected, strict=True)])


@every_operator
def test_vmap_over_another_axis_and_out(operator):
    X = operator.operands()["X"]
    last = torch.stack([X, 2 * X, -X], dim=-1)
    out = min(1, min(y.dim() for y in operator.run(operator.operands())))
    got = vmap(operator.of(operator.operands(), ["X"]), in_dims=-1, out_dims=out)(last)
    for k, factor in enumerate((1, 2, -1)):
        assert_equal([y.select(out, k) for y in got], operator.run(operator.operands() | {"X": factor * X}))


@every_operator
def test_vmap_of_the_registered_operator(operator):
    """For which PyTorch asks the rule by itself; a loss's number for each batch comes one by one."""
    operands = mapped_operands(operator, ["X"])
    names, attributes = list(operands), operator.kernel_attributes

    def run(*arrays):
        given = dict(zip(names, arrays, strict=True))
        result = operator.kernel.operator(*map(given.get, operator.kernel.operands), **attributes)
        return result if isinstance(result, tuple) else (result,)

    got = vmap(run, in_dims=tuple(0 if name == "X" else None for name in names))(*operands.values())
    expected = [run(*each.values()) for each in slices(operands, ["X"])]
    assert_equal(got, [torch.stack(parts) for parts in zip(*expected, strict=True)])


@those_with("parameters")
def test_vmap_over_parameters(operator):
    """An ensemble: another weight for each, on the same data."""
    names = operator.parameters
    operands = mapped_operands(operator, names)
    expected = [operator.run(each) for each in slices(operands, names)]
    got = vmap(operator.of(operands, names))(*(operands[name] for name in names))
    assert_equal(got, [torch.stack(parts) for parts in zip(*expected, strict=True)])


@every_operator
def test_nested_vmap(operator):
    X = operator.operands()["X"]
    twice = torch.stack([torch.stack([X, 2 * X]), torch.stack([-X, 0.5 * X]), torch.stack([0 * X, 3 * X])])
    got = vmap(vmap(operator.of(operator.operands(), ["X"])))(twice)
    for i, j in itertools.product(range(3), range(2)):
        assert_equal([y[i, j] for y in got], operator.run(operator.operands() | {"X": twice[i, j]}))


def test_vmap_of_losses_of_single_samples():
    """Without an axis for the batch there is one, by the function and by the operator."""
    X, labels = torch.randn(6, 5, dtype=torch.float64), torch.arange(6) % 5
    expected = torch.nn.functional.cross_entropy(X, labels, reduction="none")
    for reduction in ("none", "mean", "sum"):
        for loss in (
            xpgrad_torch.CrossEntropyLoss(reduction=reduction),
            lambda x, label, r=reduction: torch.ops.xpgrad.softmax_cross_entropy(x, label, None, reduction=r),
        ):
            assert_equal([vmap(loss)(X, labels)], [expected])
    each = vmap(grad(xpgrad_torch.CrossEntropyLoss()))(X, labels)
    leaf = X.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(leaf, labels, reduction="sum")
    assert_equal([each], torch.autograd.grad(expected, leaf))


def test_a_mapped_label_that_is_no_class():
    X, labels = torch.randn(3, 2, 5), torch.tensor([[0, 1], [4, 5], [0, 0]])
    with pytest.raises(ValueError, match="cross_entropy: target has 5, expected classes 0 to 4"):
        vmap(grad(xpgrad_torch.CrossEntropyLoss()))(X, labels)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("target", ["classes", "probabilities", "binary"])
def test_mapped_losses_equal_pytorchs(target, reduction, weighted):
    """Targets mapped too, some classes ignored, by every order of modes."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(3, 4, 5, generator=g, dtype=torch.float64)
    targets = torch.randint(5, (3, 4), generator=g)
    targets[1, 2] = -100
    if target != "classes":
        targets = torch.rand(X.shape, generator=g, dtype=torch.float64)
    weight = torch.rand(5, generator=g, dtype=torch.float64) if weighted else None
    name = "BCEWithLogitsLoss" if target == "binary" else "CrossEntropyLoss"
    losses = [getattr(family, name)(weight, reduction=reduction) for family in (xpgrad_torch, nn)]
    transforms = {
        "vmap": vmap,
        "per sample": lambda f: vmap(grad(lambda x, t: f(x, t).sum())),
        "reverse": lambda f: vmap(jacrev(f)),
        "forward": lambda f: vmap(jacfwd(f)),
        "hessian": lambda f: vmap(hessian(lambda x, t: f(x, t).sum())),
    }
    for transform in transforms.values():
        got, expected = (transform(loss)(X, targets) for loss in losses)
        assert_equal([got], [expected])


# --- gradients -------------------------------------------------------------------------------------------


def reference_gradients(operator, operands, names):
    leaves = [operands[name].detach().requires_grad_() for name in names]
    with xpgrad.use_engine("standard"):
        return torch.autograd.grad(weighted(operator.of(operands, names)(*leaves)), leaves)


@every_operator
def test_grad(operator, kernel_calls):
    names = operator.differentiable
    operands = operator.operands()
    everything = tuple(range(len(names)))
    function = operator.of(operands, names)
    got = grad(lambda *x: weighted(function(*x)), argnums=everything)(*(operands[n] for n in names))
    # the fast kernel, once forward and once backward
    assert [name for name, _ in kernel_calls] == [operator.kernel.name, f"{operator.kernel.name}_grad"]
    assert_equal(got, reference_gradients(operator, operands, names))


@every_operator
def test_vjp_outside_of_its_call(operator):
    names = operator.differentiable
    operands = operator.operands()
    outputs, pullback = vjp(operator.of(operands, names), *(operands[n] for n in names))
    cotangents = tangents_of(outputs)
    leaves = [operands[n].requires_grad_() for n in names]
    expected = torch.autograd.grad(operator.of(operands, names)(*leaves), leaves, cotangents)
    assert_equal(pullback(cotangents), expected)


@every_operator
@pytest.mark.parametrize("size", [1, 2])
def test_per_sample_gradients_take_the_kernel_of_that_name(operator, size, kernel_calls):
    """vmap(grad), with one or more sequences in each sample: one call for all of them, no loop."""
    names, data = operator.differentiable, data_of(operator)
    samples = [operator.operands(seed=seed, N=size) for seed in range(MAPPED)]
    operands = samples[0] | {name: torch.stack([s[name] for s in samples]) for name in data}
    dims = tuple(0 if name in data else None for name in operands)
    everything = tuple(k for k, name in enumerate(operands) if name in names)

    def loss(*tensors):
        return weighted(operator.of(operands, list(operands))(*tensors))

    got = vmap(grad(loss, argnums=everything), in_dims=dims)(*operands.values())
    names_run = [name for name, _ in kernel_calls]
    assert names_run == [operator.kernel.name, f"{operator.kernel.name}_grad"]
    assert kernel_calls[1][1].get("per_sample", False) is operator.kernel.has_per_sample
    expected = [reference_gradients(operator, each, names) for each in slices(operands, data)]
    assert_equal(got, [torch.stack(parts) for parts in zip(*expected, strict=True)])


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy-probabilities", "binary_cross_entropy"])
def test_per_sample_gradients_of_targets_and_weights(name):
    """Which losses have by PyTorch's operators, for every batch that is mapped."""
    operator = OPERATORS[name]
    operands = mapped_operands(operator, ["X"])
    names = [n for n, x in operands.items() if x.is_floating_point()]
    dims = tuple(0 if n == "X" else None for n in names)
    everything = tuple(range(len(names)))
    loss = grad(lambda *x: weighted(operator.of(operands, names)(*x)), argnums=everything)
    got = vmap(loss, in_dims=dims)(*(operands[n] for n in names))
    expected = [reference_gradients(operator, each, names) for each in slices(operands, ["X"])]
    assert_equal(got, [torch.stack(parts) for parts in zip(*expected, strict=True)])


@those_with("weights")
def test_per_sample_gradients_within_a_map(operator):
    """vmap(vmap(grad)): groups of samples."""
    weight = operator.weights[0]
    X = operator.operands(N=1)["X"]
    operands = operator.operands(N=1)
    groups = torch.stack([torch.stack([X, 2 * X]), torch.stack([-X, 0.5 * X])])

    def loss(W, x):
        return weighted(operator.of(operands, ["X", weight])(x, W))

    got = vmap(vmap(grad(loss), in_dims=(None, 0)), in_dims=(None, 0))(operands[weight], groups)
    for i, j in itertools.product(range(2), range(2)):
        (expected,) = reference_gradients(operator, operands | {"X": groups[i, j]}, [weight])
        torch.testing.assert_close(got[i, j], expected, rtol=1e-10, atol=1e-10)


@every_operator
def test_many_cotangents_at_once(operator):
    names = operator.differentiable
    operands = operator.operands()
    leaves = [operands[name].requires_grad_() for name in names]
    y = operator.of(operands, names)(*leaves)[0]
    cotangents = torch.randn(MAPPED, *y.shape, dtype=y.dtype)
    got = torch.autograd.grad(
        y, leaves, cotangents, is_grads_batched=True, retain_graph=True, allow_unused=True
    )
    for k in range(MAPPED):
        expected = torch.autograd.grad(y, leaves, cotangents[k], retain_graph=True, allow_unused=True)
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a[k], b, rtol=1e-10, atol=1e-10)


# --- forward mode, and both modes together ---------------------------------------------------------------


@every_operator
def test_jvp_against_differences(operator):
    names = operator.differentiable
    operands = operator.operands()
    primals = tuple(operands[name] for name in names)
    tangents = tangents_of(primals)
    function = operator.of(operands, names)
    outputs, derivative = jvp(function, primals, tangents)
    step = 1e-6
    ahead, behind = (
        function(*(x + sign * step * t for x, t in zip(primals, tangents, strict=True))) for sign in (1, -1)
    )
    assert_equal(outputs, function(*primals))
    for d, a, b in zip(derivative, ahead, behind, strict=True):
        torch.testing.assert_close(d, (a - b) / (2 * step), rtol=1e-7, atol=1e-8)


@every_operator
def test_gradcheck_in_forward_mode(operator):
    names = operator.differentiable
    operands = operator.operands(N=1)
    leaves = [operands[name].requires_grad_() for name in names]
    assert gradcheck(
        operator.of(operands, names),
        leaves,
        check_forward_ad=True,
        check_backward_ad=False,
        check_batched_forward_grad=True,
        fast_mode=True,
    )


@every_operator
def test_dual_numbers(operator):
    operands = operator.operands()
    X, tangent = operands["X"], torch.randn_like(operands["X"])
    with forward_ad.dual_level():
        outputs = operator.run(operands | {"X": forward_ad.make_dual(X, tangent)})
        got = [forward_ad.unpack_dual(y).tangent for y in outputs]
    _, expected = jvp(operator.of(operands, ["X"]), (X,), (tangent,))
    assert_equal(got, expected)


@every_operator
def test_second_derivatives_in_every_order_of_modes(operator):
    operands = operator.operands(N=1)
    X = operands["X"]

    def loss(x):
        return weighted(operator.of(operands, ["X"])(x))

    leaf = X.detach().requires_grad_()
    with xpgrad.use_engine("standard"):
        (first,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    expected = (
        torch.stack([torch.autograd.grad(part, leaf, retain_graph=True)[0] for part in first.flatten()]).view(
            *X.shape, *X.shape
        )
        if first.requires_grad
        else torch.zeros(*X.shape, *X.shape).double()
    )
    for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
        torch.testing.assert_close(outer(inner(loss))(X), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(hessian(loss)(X), expected, rtol=1e-10, atol=1e-10)


class Watching(TorchDispatchMode):
    """A mode that changes nothing, as of a counter of operations or a logger."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@every_operator
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
def test_derivatives_while_a_mode_or_a_recorder_watches(operator):
    """Registered operators have no rules for `torch.func`: a tangent was lost without an error."""
    operands = operator.operands(N=1)
    X = operands["X"]
    (tangent,) = tangents_of((X,))
    function = operator.of(operands, ["X"])

    def along(x, d):
        loss = lambda x: weighted(y.sin() for y in function(x))  # noqa: E731
        return *jvp(function, (x,), (d,))[1], grad(loss)(x), jvp(grad(loss), (x,), (d,))[1]

    expected = along(X, tangent)
    with Watching():
        assert_equal(along(X, tangent), expected)
    assert_equal(make_fx(along)(X, tangent)(X, tangent), expected)
    assert_equal(linearize(function, X)[1](tangent), expected[: len(function(X))])


@every_operator
def test_functionalize(operator):
    """PyTorch has no rule for a function of ours, but for registered operators."""
    operands = operator.operands(N=1)
    X, function = operands["X"], operator.of(operands, ["X"])

    def along(x):
        loss = lambda x: weighted(y.sin() for y in function(x))  # noqa: E731
        return *function(x), grad(loss)(x), vmap(grad(loss))(x[None]), *jvp(function, (x,), (x,))[1]

    expected = along(X)
    assert_equal(functionalize(along)(X), expected)
    assert_equal(make_fx(functionalize(along))(X)(X), expected)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call:UserWarning")
@pytest.mark.parametrize("name", ["lstm", "conv1d", "gelu"])
def test_a_compiled_forward_mode(name):
    operator = EVERY_KERNEL[name]
    operands = operator.operands()
    function = operator.of(operands, ["X"])
    given = operands["X"], *tangents_of((operands["X"],))
    along = lambda x, d: jvp(function, (x,), (d,))[1]  # noqa: E731
    assert_equal(torch.compile(along, backend="aot_eager")(*given), along(*given))


@every_operator
def test_second_derivatives_while_saved_tensors_have_hooks(operator):
    """As a penalty on gradients under `save_on_cpu`: `torch.func` refuses such hooks."""
    names, operands = operator.differentiable, operator.operands()
    leaves = [operands[n].requires_grad_() for n in names]

    def second():
        grads = torch.autograd.grad(
            weighted(operator.of(operands, names)(*leaves)), leaves, create_graph=True
        )
        return torch.autograd.grad(weighted([*(g.sin() for g in grads), *leaves]), leaves)

    expected = second()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        found = second()
    assert packed
    for a, b in zip(found, expected, strict=True):
        assert a.equal(b)


@every_operator
def test_the_gradient_is_linear_in_a_cotangent_of_zero_too(operator):
    names, operands = operator.differentiable, operator.operands()
    leaves = [operands[n].requires_grad_() for n in names]
    outputs = operator.of(operands, names)(*leaves)

    def slopes(cotangents):
        given = [d.requires_grad_() for d in cotangents]
        grads = torch.autograd.grad(outputs, leaves, given, create_graph=True, retain_graph=True)
        return torch.autograd.grad(weighted(grads), given, retain_graph=True)

    assert_equal(slopes([torch.zeros_like(y) for y in outputs]), slopes(tangents_of(outputs)))


KINKS = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, -3.0, 6.0, 1000.0, -1000.0, 1e5, -1e5]
PIECES = (
    "celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "hard_sigmoid", "leaky_relu", "logsigmoid",
    "mish", "quick_gelu", "relu", "relu6", "selu", "silu", "softplus", "softsign", "thresholded_relu",
)  # fmt: skip


@pytest.mark.parametrize("name", [*PIECES, "gelu, tanh"])
def test_both_modes_have_the_same_slope_at_kinks(name):
    """The forward mode differentiates the formula, the reverse mode is a formula of its own."""
    name, *approximate = name.split(", ")
    options = {"approximate": approximate[0]} if approximate else {}
    x = torch.tensor(KINKS, dtype=torch.float64)
    slopes = grad(lambda x: getattr(functional, name)(x, **options).sum())
    tangents = jvp(lambda x: getattr(functional, name)(x, **options), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangents, slopes(x))
    torch.testing.assert_close(jvp(lambda x: x * slopes(x), (x,), (x,))[0], x * slopes(x))


def test_derivatives_where_an_absolute_value_has_a_kink():
    """The third one of tanh, and sLSTM's forget gate: their formulas are smooth."""
    zero = torch.zeros((), dtype=torch.float64)
    third = grad(grad(grad(lambda x: functional.scaled_tanh(x, alpha=1.5, beta=0.5))))(zero)
    assert float(third) == pytest.approx(-2 * 1.5 * 0.5**3)
    X, W, R = torch.zeros(3, 1, 1), torch.zeros(1, 4, 1), torch.zeros(1, 4, 1)
    leaves = [x.double().requires_grad_() for x in (X, W, R, torch.zeros(1, 4))]
    call = lambda *given: functional.slstm(*given)[0]  # noqa: E731
    assert gradcheck(call, leaves, check_forward_ad=True)
    assert gradgradcheck(call, leaves)


def test_a_masked_row_has_no_derivatives():
    x = torch.tensor([[-torch.inf] * 3, [1.0, -torch.inf, 2.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for function in (functional.softmax, functional.log_softmax):
        loss = lambda x, f=function: (f(x, -1).exp() * weight).sum()  # noqa: E731
        for second in (hessian(loss)(x), jacrev(jacrev(loss))(x)):
            assert not second[0].any()
            assert not second[1, :, 0].any()
            assert second[1, 0, 1].abs().min() < 1
        tangent = jvp(lambda x, f=function: f(x, -1), (x,), (torch.ones_like(x),))[1]
        assert not tangent[0].any()


@those_with("weights")
def test_mixed_second_derivatives_of_parameters(operator):
    """The product of the Hessian in W and X with a vector, forward over reverse and reverse over reverse."""
    operands, weight = operator.operands(), operator.weights[0]
    point = (operands["X"], operands[weight])
    vector = tangents_of(point)

    def loss(x, w):
        return weighted(y.tanh() for y in operator.of(operands, ["X", weight])(x, w))

    gradient = grad(loss, argnums=(0, 1))
    _, got = jvp(gradient, point, vector)

    def along(x, w):
        return sum((g * v).sum() for g, v in zip(gradient(x, w), vector, strict=True))

    expected = grad(along, argnums=(0, 1))(*point)
    assert_equal(got, expected)
    assert expected[1].abs().max() > 1e-3


def test_truncated_peepholes_have_no_forward_mode():
    operator = OPERATORS["lstm"]
    operands = operator.operands()
    with pytest.raises(ValueError, match="lstm: peephole is 'truncated', expected 'full' in forward mode"):
        jvp(
            lambda X: xpgrad_torch.functional.lstm(**operands | {"X": X}, peephole="truncated"),
            (operands["X"],),
            (operands["X"],),
        )


# --- modules ---------------------------------------------------------------------------------------------

MODULES = {
    "LSTM": (lambda: xpgrad_torch.LSTM(2, 3, 2, bidirectional=True, dtype=torch.float64), (4, 5, 2), 1),
    "LSTM-first": (lambda: xpgrad_torch.LSTM(2, 3, batch_first=True, dtype=torch.float64), (5, 4, 2), 0),
    "GRU": (lambda: xpgrad_torch.GRU(2, 3, 2, dtype=torch.float64), (4, 5, 2), 1),
    "RNN": (lambda: xpgrad_torch.RNN(2, 3, nonlinearity="relu", dtype=torch.float64), (4, 5, 2), 1),
    "LSTMCell": (lambda: xpgrad_torch.LSTMCell(2, 3, dtype=torch.float64), (5, 2), 0),
    "GRUCell": (lambda: xpgrad_torch.GRUCell(2, 3, dtype=torch.float64), (5, 2), 0),
    "Conv2d": (lambda: xpgrad_torch.Conv2d(2, 4, 3, dtype=torch.float64), (5, 2, 6, 5), 0),
    "ConvTranspose1d": (lambda: xpgrad_torch.ConvTranspose1d(2, 4, 3, dtype=torch.float64), (5, 2, 6), 0),
}
every_module = pytest.mark.parametrize(("build", "shape", "axis"), MODULES.values(), ids=MODULES)


def first_output(result):
    return result if isinstance(result, torch.Tensor) else first_output(result[0])


@every_module
def test_modules_per_sample(build, shape, axis):
    """Each sample alone, without an axis for the batch, as Opacus and influence functions write it."""
    torch.manual_seed(0)
    module = build()
    X = torch.randn(shape, dtype=torch.float64)
    parameters = dict(module.named_parameters())

    def loss(parameters, x):
        return first_output(functional_call(module, parameters, (x,))).tanh().square().sum()

    got = vmap(grad(loss), in_dims=(None, axis))(parameters, X)
    for k, x in enumerate(X.unbind(axis)):
        expected = torch.autograd.grad(loss(parameters, x), list(parameters.values()))
        assert_equal([got[name][k] for name in parameters], expected)


@every_module
def test_modules_as_an_ensemble(build, shape, axis):
    torch.manual_seed(0)
    modules = [build() for _ in range(MAPPED)]
    X = torch.randn(shape, dtype=torch.float64)
    parameters, buffers = torch.func.stack_module_state(modules)
    got = vmap(lambda p, b: first_output(functional_call(modules[0], (p, b), (X,))))(parameters, buffers)
    assert_equal(got, [first_output(module(X)) for module in modules])


def test_training_by_torch_func():
    """A step of SGD on a model with everything in it, written in the functional way."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = xpgrad_torch.Conv1d(2, 4, 3, padding=1)
            self.rnn = xpgrad_torch.GRU(4, 3, batch_first=True)
            self.head = nn.Linear(3, 1)

        def forward(self, x):
            return self.head(self.rnn(self.conv(x).transpose(1, 2))[0][:, -1])

    model = Model().double()
    X = torch.randn(5, 2, 6, dtype=torch.float64)

    def loss(parameters, x):
        return functional_call(model, parameters, (x,)).square().mean()

    parameters = dict(model.named_parameters())
    mean = grad(loss)(parameters, X)
    each = vmap(grad(loss), in_dims=(None, 0))(parameters, X.unsqueeze(1))
    for name in parameters:
        torch.testing.assert_close(each[name].mean(0), mean[name])


# --- kernels on constants, within a transformation of something else

CONSTANT = torch.linspace(-2, 2, 20, dtype=torch.float64).reshape(4, 5)
KERNELS_ON_CONSTANTS = {
    "gelu": lambda: xpgrad.gelu(CONSTANT),
    "gelu, strided": lambda: xpgrad.gelu(CONSTANT.mT),
    "gelu, out": lambda: xpgrad.gelu(CONSTANT, out=torch.empty_like(CONSTANT)),
    "softmax": lambda: xpgrad.softmax(CONSTANT),
    "softmax, axis 0": lambda: xpgrad.softmax(CONSTANT, axis=0),
    "prelu": lambda: xpgrad.prelu(CONSTANT, CONSTANT[0]),
    "conv": lambda: xpgrad.conv(CONSTANT[None, None], CONSTANT[None, None, :2, :3]),
    "rnn": lambda: xpgrad.rnn(CONSTANT[None], CONSTANT[None, :3], CONSTANT[None, :3, :3])[0],
}


@pytest.mark.parametrize("kernel", KERNELS_ON_CONSTANTS.values(), ids=KERNELS_ON_CONSTANTS)
def test_kernels_on_constants_within_a_transformation(kernel):
    """A transformation wraps new tensors, which have no memory then: such a call raised a RuntimeError."""
    expected, x = kernel().square().sum(), torch.ones((), dtype=torch.float64)

    def scaled(x):
        return x * kernel().square().sum()

    found = [
        grad(scaled)(x),
        jvp(scaled, (x,), (x,))[1],
        jacrev(scaled)(x),
        grad(grad(lambda x: scaled(x) * x))(x) / 2,
    ]
    found += [*vmap(grad(scaled))(x.expand(2)), *vmap(scaled)(x.expand(2))]
    for one in found:
        torch.testing.assert_close(one, expected)
