"""`xpgrad_jax`'s activations, softmax, losses, convolutions and cells beside the core and JAX's autodiff."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax not installed")

import jax
import jax.numpy as jnp

import xpgrad
import xpgrad_jax
from activation_cases import WITH_OPERANDS
from xpgrad._operators.types import array_arguments

ROWS = ["softmax", "log_softmax"]
ACTIVATIONS = [
    name
    for name in xpgrad_jax.__all__
    if hasattr(xpgrad, f"{name}_grad")
    and next(iter(inspect.signature(getattr(xpgrad, f"{name}_grad")).parameters)) == "dY"
    and "W" not in inspect.signature(getattr(xpgrad, name)).parameters
    and name not in ("softmax_cross_entropy", "binary_cross_entropy_with_logits", *WITH_OPERANDS)
]


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def plain(name: str) -> Any:
    """The core's function on JAX's own operations."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with xpgrad.use_engine("standard"):
            return getattr(xpgrad, name)(*args, **kwargs)

    return run


def assert_same(name: str, arrays: list[Any], **options: Any) -> None:
    """Values, gradients by each array, and these under vmap, are those of JAX's own autodiff."""
    ours, theirs = getattr(xpgrad_jax, name), plain(name)
    numbers = [k for k, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.floating)]

    def results(f: Any) -> Any:
        value = f(*arrays, **options)
        weight = jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape)
        loss = lambda *given: (f(*given, **options) * weight).sum()  # noqa: E731
        gradient = jax.grad(loss, argnums=tuple(numbers))
        twice = [jnp.stack([x, x[::-1]]) for x in arrays]
        return value, gradient(*arrays), jax.vmap(gradient)(*twice)

    given, expected = jax.jit(lambda: (results(ours), results(theirs)))()
    for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-10, atol=1e-10)


def test_every_operator_with_a_gradient_is_there() -> None:
    gradients = {name.removesuffix("_grad") for name in xpgrad.__all__ if name.endswith("_grad")}
    assert gradients - set(xpgrad_jax.__all__) <= {"gate_inputs", "layer_norm_lstm", "layer_norm_gru"}
    assert len(ACTIVATIONS) >= 20


def test_kinks_where_xla_rounds_a_product_and_a_sum_together() -> None:
    """XLA makes one instruction of alpha x + beta, which is then not 0 at -3."""
    x = jnp.asarray([-3.0, 3.0] * 8)
    plain_gradient = jax.jit(lambda d, x: plain("hard_sigmoid_grad")(d, x, alpha=1 / 6))
    for dtype in (jnp.float32, jnp.float64):
        given = x.astype(dtype)
        y, pullback = jax.vjp(lambda x: xpgrad_jax.hard_sigmoid(x, alpha=1 / 6), given)
        np.testing.assert_allclose(y, [0, 1] * 8, atol=jnp.finfo(dtype).eps)
        np.testing.assert_array_equal(jax.jit(pullback)(jnp.ones_like(y))[0], 0)
        np.testing.assert_array_equal(plain_gradient(jnp.ones_like(given), given), 0)


def test_logits_of_a_run_that_diverged() -> None:
    """NaN where there is no distribution, of the loss too; a masked class counts nothing."""
    inf = jnp.inf
    x = jnp.asarray(
        [[inf, 1.0, 2.0], [-inf, -inf, -inf], [jnp.nan, 0.0, 1.0], [0.5, -inf, 0.5], [1.0, inf, 0.0]]
    )
    labels = jnp.zeros(5, jnp.int32)
    for function in (xpgrad_jax.softmax_cross_entropy, plain("softmax_cross_entropy")):
        value, pullback = jax.vjp(lambda x, f=function: f(x, labels, reduction="none"), x)
        (dx,) = jax.jit(pullback)(jnp.ones(5))
        np.testing.assert_allclose(value, [jnp.nan] * 3 + [np.log(2), jnp.nan])
        np.testing.assert_allclose(dx[3], [-0.5, 0, 0.5])
        if function is xpgrad_jax.softmax_cross_entropy:  # the kernel's own gradient
            assert jnp.isnan(dx[jnp.asarray([0, 1, 2, 4])]).all()
    y = jax.jit(xpgrad_jax.softmax)(x)
    np.testing.assert_allclose(y, [[jnp.nan] * 3, [0, 0, 0], [jnp.nan] * 3, [0.5, 0, 0.5], [jnp.nan] * 3])


def test_activations(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.normal(size=(3, 4)) * 3)

    def results(functions: Any) -> Any:
        gradients = [jax.grad(lambda x, f=f: (f(x) * jnp.cos(x)).sum()) for f in functions]
        return [f(x) for f in functions], [g(x) for g in gradients], [jax.vmap(g)(x) for g in gradients]

    ours = jax.jit(lambda: results([getattr(xpgrad_jax, name) for name in ACTIVATIONS]))()
    theirs = jax.jit(lambda: results([plain(name) for name in ACTIVATIONS]))()
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ROWS)
def test_rows_along_an_axis_counted_from_the_front(name: str, rng: np.random.Generator) -> None:
    assert_same(name, [jnp.asarray(rng.normal(size=(3, 4)))], axis=0)


@pytest.mark.parametrize("name", WITH_OPERANDS)
def test_an_operand(name: str, rng: np.random.Generator) -> None:
    assert_same(name, [jnp.asarray(rng.normal(size=s)) for s in [(3, 4), (1, 4)]])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction: str, rng: np.random.Generator) -> None:
    X = jnp.asarray(rng.normal(size=(4, 3)))
    labels, shares = jnp.asarray([0, 2, 1, 1]), jnp.asarray(rng.dirichlet(np.ones(3), 4))
    assert_same("softmax_cross_entropy", [X, labels], reduction=reduction)
    assert_same("softmax_cross_entropy", [X, shares], reduction=reduction, label_smoothing=0.1)
    assert_same("binary_cross_entropy_with_logits", [X, shares], reduction=reduction)


@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_convolutions(name: str, rng: np.random.Generator) -> None:
    arrays = [jnp.asarray(rng.normal(size=s)) for s in [(2, 2, 5, 4), (2, 2, 3, 2), (2,)]]
    assert_same(name, arrays, pads=1, strides=2)


CALLS: dict[str, tuple[Any, list[tuple[int, ...]], list[int]]] = {
    "tanh": (xpgrad_jax.tanh, [(3, 4)], [1, 1]),
    "leaky_relu": (lambda X: xpgrad_jax.leaky_relu(X, alpha=0.1), [(3, 4)], [1, 1]),
    "prelu": (xpgrad_jax.prelu, [(3, 4), (1, 4)], [1, 2]),
    "softmax": (lambda X: xpgrad_jax.softmax(X, axis=0), [(3, 4)], [1, 1]),
    "cross-entropy": (lambda X: xpgrad_jax.softmax_cross_entropy(X, jnp.asarray([1, 0])), [(2, 4)], [1, 1]),
    "binary": (lambda X: xpgrad_jax.binary_cross_entropy_with_logits(X, jnp.zeros((3, 4))), [(3, 4)], [1, 1]),
    "conv": (lambda X, W: xpgrad_jax.conv(X, W, pads=1, strides=2), [(2, 2, 5, 4), (2, 2, 3, 3)], [1, 2]),
    "conv_transpose": (xpgrad_jax.conv_transpose, [(2, 2, 5), (2, 2, 3)], [1, 2]),
}
"""A function, its operands' shapes, and how many programs its forward and all of its gradients are."""


@pytest.mark.skipif(xpgrad_jax.why_plain() is not None, reason="no programs here")
@pytest.mark.parametrize("name", CALLS)
def test_forward_and_each_gradient_are_one_call(name: str) -> None:
    function, shapes, expected = CALLS[name]
    given = [jnp.ones(shape) for shape in shapes]
    Y = jax.eval_shape(function, *given)

    def gradient(dY: Any, *arrays: Any) -> Any:
        return jax.vjp(function, *arrays)[1](dY)

    text = str(jax.make_jaxpr(gradient)(jnp.ones(Y.shape), *given))
    assert "ffi_call[" in text
    assert "callback" not in text
    calls = [
        jax.jit(run).lower(*values).as_text().count("stablehlo.custom_call @xpgrad_program")
        for run, values in ((function, given), (gradient, [jnp.ones(Y.shape), *given]))
    ]
    assert calls[0] == expected[0]
    assert calls[1] in (expected[1], expected[0] + expected[1])


@pytest.mark.parametrize("name", [*CALLS, "lstm"])
def test_without_jit(name: str, rng: np.random.Generator) -> None:
    """`jax.disable_jit` is for debugging; primitives are compiled under it too."""
    lstm = (lambda X, W, R: xpgrad_jax.lstm(X, W, R)[0], [(3, 2, 4), (1, 20, 4), (1, 20, 5)], [])
    function, shapes, _ = (CALLS | {"lstm": lstm})[name]
    given = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
    loss = lambda *arrays: jnp.sin(function(*arrays)).sum()  # noqa: E731

    def results() -> Any:
        mapped = jax.vmap(jax.grad(loss))(*[jnp.stack([x, x[::-1]]) for x in given])
        return loss(*given), mapped, jax.jvp(loss, tuple(given), tuple(given))

    expected = results()
    with jax.disable_jit():
        found = results()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def _derivatives(function: Any, given: list[Any]) -> list[Any]:
    loss = lambda *arrays: jnp.sin(function(*arrays)).sum()  # noqa: E731
    gradient = jax.grad(loss, tuple(range(len(given))))
    return jax.tree.leaves([loss(*given), gradient(*given), jax.jvp(gradient, tuple(given), tuple(given))])


@pytest.mark.parametrize("name", ["conv", "conv_transpose", "lstm", "gru", "rnn"])
def test_strict_ranks(name: str, rng: np.random.Generator) -> None:
    """JAX can refuse operands of different ranks; lengths and biases have fewer axes than arrays."""
    gates = {"lstm": 4, "gru": 3, "rnn": 1}.get(name, 0)
    shapes: list[tuple[int, ...]] = [(2, 2, 5, 4), (2, 2, 3, 2), (2,)]
    options: dict[str, Any] = {}
    if gates:
        shapes = [(3, 3, 2), (2, gates * 2, 2), (2, gates * 2, 2), (2, gates * 4)]
        options = {"sequence_lens": jnp.asarray([3, 0, 2]), "direction": "bidirectional"}
    given = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]

    def first(*arrays: Any) -> Any:
        return jax.tree.leaves(getattr(xpgrad_jax, name)(*arrays, **options))[0]

    expected = _derivatives(first, given)
    with jax.numpy_rank_promotion("raise"):
        found = _derivatives(first, given)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_numpy_arrays_within_a_jitted_function(rng: np.random.Generator) -> None:
    """JAX hands them to rules as arrays of a type of its own."""
    X, W, R = rng.normal(size=(3, 2, 2)), rng.normal(size=(1, 6, 2)), rng.normal(size=(1, 6, 2))
    slope, labels = rng.normal(size=2), rng.integers(2, size=(3, 2))
    functions = {
        "gru": lambda to, x: xpgrad_jax.gru(x, to(W), to(R), sequence_lens=to(np.asarray([3, 1])))[0],
        "prelu": lambda to, x: xpgrad_jax.prelu(x, to(slope)),
        "loss": lambda to, x: xpgrad_jax.softmax_cross_entropy(x.reshape(6, 2), to(labels.reshape(6))),
    }
    for function in functions.values():
        jitted = jax.jit(functools.partial(function, lambda x: x))
        plain = functools.partial(function, jnp.asarray)
        for transform in (
            jax.jacfwd,
            lambda f: jax.hessian(lambda x: (f(x) ** 2).sum()),
            lambda f: lambda x: jax.vmap(lambda d: jax.jvp(f, (x,), (d,))[1])(jnp.stack([x, 2 * x])),
        ):
            np.testing.assert_allclose(transform(jitted)(jnp.asarray(X)), transform(plain)(jnp.asarray(X)))


def test_strict_ranks_of_operands_that_are_broadcast(rng: np.random.Generator) -> None:
    X, each = jnp.asarray(rng.normal(size=(2, 4, 3))), jnp.asarray(rng.uniform(size=(4, 1)))

    def loss(X: Any, each: Any) -> Any:
        return xpgrad_jax.binary_cross_entropy_with_logits(
            X, jnp.full(X.shape, 0.5), weight=each, pos_weight=each
        )

    for function in (xpgrad_jax.prelu, loss):
        expected = _derivatives(function, [X, each])
        with jax.numpy_rank_promotion("raise"):
            found = _derivatives(function, [X, each])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_classes_that_no_ignored_one_equals() -> None:
    """-1 is no uint8; JAX compares with 255."""
    X = jnp.zeros((1, 256)).at[0, 3].set(5.0)

    def loss(X: Any, labels: Any) -> Any:
        return xpgrad_jax.softmax_cross_entropy(X, labels, ignore_index=-1, reduction="sum")

    found = [jax.value_and_grad(loss)(X, jnp.asarray([255], dtype)) for dtype in (jnp.uint8, jnp.int32)]
    assert found[0][0] == found[1][0] > 5
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_known_classes_within_a_traced_function() -> None:
    """Their shape is the kernel's already, so nothing makes a tracer of them before their extremes."""
    X, labels = jnp.ones((2, 4, 1, 2)), jnp.ones((2, 1, 2), int)
    loss = lambda X, weights: xpgrad_jax.softmax_cross_entropy(X, labels, weights)  # noqa: E731
    expected = jax.grad(loss, argnums=(0, 1))(X, jnp.ones(4))
    for a, b in zip(jax.jit(jax.grad(loss, argnums=(0, 1)))(X, jnp.ones(4)), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert jax.jit(jax.hessian(loss))(X, jnp.ones(4)).shape == X.shape * 2
    np.testing.assert_allclose(jax.jit(lambda X: xpgrad.softmax_cross_entropy(X, labels))(X), np.log(4))


def test_no_mapped_call_has_the_shape_of_one() -> None:
    W = jnp.ones((1, 20, 3))
    calls = [
        (lambda x: xpgrad_jax.conv(x, jnp.ones((6, 3, 2))), (2, 3, 7)),
        (lambda x: xpgrad_jax.lstm(x, W, jnp.ones((1, 20, 5)))[0], (4, 3, 3)),
        (lambda x: xpgrad_jax.softmax_cross_entropy(x, jnp.ones(2, int), reduction="none"), (2, 4)),
    ]
    for call, shape in calls:
        X = jnp.ones((0, *shape))
        assert jax.vmap(call)(X).shape == (0, *call(jnp.ones(shape)).shape)
        assert jax.vmap(jax.grad(lambda x, call=call: call(x).sum()))(X).shape == X.shape


def test_weights_of_classes_without_x64(rng: np.random.Generator) -> None:
    """No warning that int64 is not available."""
    with jax.enable_x64(False):
        x, weights = jnp.asarray(rng.normal(size=(4, 3))), jnp.asarray([1.0, 2.0, 0.5])
        call = lambda x: xpgrad_jax.softmax_cross_entropy(x, jnp.asarray([0, 2, 1, 1]), weights)  # noqa: E731
        _derivatives(call, [x])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_cross_entropies_of_mapped_samples(kind: str, reduction: str, rng: np.random.Generator) -> None:
    X = jnp.asarray(rng.normal(size=(3, 4)))
    shares = jnp.asarray(rng.dirichlet(np.ones(4), size=3))
    targets = jnp.asarray([2, 0, 3]) if kind == "classes" else shares

    def loss(x: Any, target: Any) -> Any:
        return xpgrad_jax.softmax_cross_entropy(x, target, reduction=reduction)

    for function in (loss, jax.grad(loss)):
        expected = [function(x, target) for x, target in zip(X, targets, strict=True)]
        np.testing.assert_allclose(jax.vmap(function)(X, targets), expected, rtol=1e-10, atol=1e-12)
        same = jax.vmap(function, (0, None))(X, targets[1])
        np.testing.assert_allclose(same, [function(x, targets[1]) for x in X], rtol=1e-10, atol=1e-12)
        same = jax.vmap(function, (None, 0))(X[1], targets)
        np.testing.assert_allclose(same, [function(X[1], t) for t in targets], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_convolutions_written_down(group: int, rng: np.random.Generator) -> None:
    shapes = [(3, 4, 7, 6), (8, 4 // group, 3, 2), (8,)]
    arrays = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
    assert_same("conv", arrays, group=group, dilations=(1, 2), pads=(1, 0, 2, 1), strides=(2, 1))
    transposed = [arrays[0], jnp.asarray(rng.normal(size=(4, 8 // group, 3, 2))), arrays[2]]
    assert_same("conv_transpose", transposed, group=group, strides=(2, 3), output_padding=1)
    assert_same("conv", [arrays[0], jnp.asarray(rng.normal(size=(8, 4 // group, 1, 1)))], group=group)


def test_large_arrays_are_cut_among_threads(rng: np.random.Generator) -> None:
    X = rng.normal(size=(700, 301))
    for name in ("tanh", "softmax"):
        Y, pullback = jax.vjp(getattr(xpgrad_jax, name), jnp.asarray(X))
        expected, core_pullback = xpgrad.vjp(getattr(xpgrad, name), X)
        np.testing.assert_allclose(Y, expected, rtol=1e-13)
        np.testing.assert_allclose(pullback(jnp.asarray(X))[0], core_pullback(X), rtol=1e-10, atol=1e-13)
    X, W = rng.normal(size=(3, 16, 30, 31)), rng.normal(size=(40, 16, 3, 3))
    Y, grads = jax.vjp(lambda X, W: xpgrad_jax.conv(X, W, pads=1), jnp.asarray(X), jnp.asarray(W))
    expected, core_pullback = xpgrad.vjp(xpgrad.conv, X, W, pads=1)
    np.testing.assert_allclose(Y, expected, rtol=1e-10, atol=1e-11)
    for ours, theirs in zip(grads(Y), core_pullback(expected), strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_per_sample_gradients_of_a_convolution(rng: np.random.Generator) -> None:
    X, W = (jnp.asarray(rng.normal(size=s)) for s in [(3, 2, 5), (4, 2, 3)])
    gradient = jax.vmap(jax.grad(lambda W, x: (xpgrad_jax.conv(x[None], W) ** 2).sum()), in_axes=(None, 0))
    expected = jax.vmap(jax.grad(lambda W, x: (plain("conv")(x[None], W) ** 2).sum()), in_axes=(None, 0))
    np.testing.assert_allclose(gradient(W, X), expected(W, X), rtol=1e-10)


@pytest.mark.parametrize("name", ["lstm_cell", "gru_cell", "rnn_cell"])
def test_cells_step_by_step_are_the_sequence(name: str, rng: np.random.Generator) -> None:
    gates, H = {"lstm_cell": 4, "gru_cell": 3, "rnn_cell": 1}[name], 2
    sizes = [(3, 5), (3, H), (gates * H, 5), (gates * H, H), (2 * gates * H,)]
    X, state, W, R, B = (jnp.asarray(rng.normal(size=s)) for s in sizes)
    states = (state, -state) if gates == 4 else (state,)
    cell, sequence = getattr(xpgrad_jax, name), getattr(xpgrad_jax, name.removesuffix("_cell"))

    def by_steps(W: Any, R: Any) -> Any:
        carry = states
        for _ in range(3):
            carry = cell(X, *carry, W, R, B)
            carry = carry if isinstance(carry, tuple) else (carry,)
        return sum((s**2).sum() for s in carry)

    def whole(W: Any, R: Any) -> Any:
        out = sequence(jnp.stack([X] * 3), W[None], R[None], B[None], None, *(s[None] for s in states))
        return sum((s**2).sum() for s in out[1:])

    for ours, theirs in zip(jax.grad(by_steps, (0, 1))(W, R), jax.grad(whole, (0, 1))(W, R), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_arguments_are_those_of_the_core_without_out() -> None:
    for name in xpgrad_jax.__all__:
        if name == "why_plain":
            continue
        core, gradient, own = (
            inspect.signature(function).parameters
            for function in (
                getattr(xpgrad, name),
                getattr(xpgrad, f"{name}_grad"),
                getattr(xpgrad_jax, name),
            )
        )
        more = ["peephole"] if name.startswith("lstm") else []
        assert list(own) == [p for p in core if p != "out"] + more
        for argument, parameter in own.items():
            of_core = core.get(argument) or gradient[argument]
            assert (parameter.kind, parameter.default) == (of_core.kind, of_core.default), argument
            if argument not in array_arguments(getattr(xpgrad, name)):
                assert parameter.annotation == of_core.annotation, argument
    with pytest.raises(TypeError, match="relu: got an unexpected keyword argument 'out'"):
        xpgrad_jax.relu(jnp.ones(2), out=jnp.ones(2))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (2, {}, "missing a required argument: 'R'"),
        (0, {"X": 1, "R": 1}, "missing a required argument: 'W'"),
        (3, {"X": 1}, "multiple values for argument 'X'"),
        (3, {"out": 1}, "got an unexpected keyword argument 'out'"),
        (9, {}, "too many positional arguments"),
    ],
)
def test_wrong_calls(args: int, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^lstm: {message}$"):
        xpgrad_jax.lstm(*[jnp.ones(1)] * args, **kwargs)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell"])
def test_docstrings_describe_each_parameter_and_result_once(name: str) -> None:
    function = getattr(xpgrad_jax, name)
    sections = (inspect.getdoc(function) or "").split("\n\n")
    titled = {part.split("\n")[0]: part.split("\n")[2:] for part in sections}

    def described(title: str) -> list[str]:
        heads = [line.split(" : ")[0] for line in titled[title] if line[0] != " "]
        return [one for head in heads for one in head.split(", ")]

    assert sorted(described("Parameters")) == sorted(inspect.signature(function).parameters)
    signature = inspect.signature(function)
    assert len(described("Returns")) == signature.return_annotation.count("jax.Array")


def test_options_are_the_numbers_that_they_are_now() -> None:
    X, held = -jnp.ones(3), np.asarray(0.5)
    for number in (0.5, 0.1, -0.0, 0.0, 0.9):
        held[...] = number
        expected = np.asarray(xpgrad.leaky_relu(np.asarray(X), alpha=number))
        for option in (held, jnp.asarray(number), np.float64(number), number):
            for found in (
                xpgrad_jax.leaky_relu(X, alpha=option),
                jax.jit(lambda X, option=option: xpgrad_jax.leaky_relu(X, alpha=option))(X),
            ):
                np.testing.assert_array_equal(found, expected)
                np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_equal_options_of_another_type_are_still_wrong() -> None:
    X = jnp.ones((2, 3))
    for _ in range(2):
        xpgrad_jax.softmax(X, axis=1)
        with pytest.raises(TypeError, match="softmax: axis is True of type bool, expected an integer"):
            xpgrad_jax.softmax(X, axis=True)


def test_what_is_no_option() -> None:
    X = jnp.ones((2, 3))
    traced = (
        "elu: alpha is traced, expected a number that is known while JAX traces: options have no gradient"
    )
    with pytest.raises(TypeError, match=traced):
        jax.jit(lambda alpha: xpgrad_jax.elu(X, alpha=alpha))(0.5)
    with pytest.raises(TypeError, match=traced):
        jax.grad(lambda alpha: xpgrad_jax.elu(X, alpha=alpha).sum())(0.5)
    with pytest.raises(
        TypeError, match=r"elu: alpha is an array of shape \(1,\), expected a number, or numbers"
    ):
        xpgrad_jax.elu(X, alpha=np.ones(1))
    with pytest.raises(TypeError, match="elu: alpha is a dict, expected a number or a word"):
        xpgrad_jax.elu(X, alpha={})


def _by_vjp(function: Any, operands: list[jax.Array], cotangent: Any) -> Any:
    return jax.vjp(function, *operands)[1](cotangent)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
@pytest.mark.parametrize("linear", ["X", "W", "XB", "WB"])
def test_a_convolution_is_linear_in_either_factor(name: str, linear: str, rng: np.random.Generator) -> None:
    """So it has a transpose, which is the gradient of JAX's own operations."""
    shapes = {"X": (2, 3, 6, 5), "W": (3, 3, 3, 2), "B": (3,)}
    arrays = {k: jnp.asarray(rng.normal(size=shapes[k])) for k in ("X", "W", *linear[1:])}

    def function(run: Any) -> Any:
        return lambda *values: run(**{**arrays, **dict(zip(linear, values, strict=True))}, pads=1, strides=2)

    given = [arrays[k] for k in linear]
    y = function(plain(name))(*given)
    cotangent = jnp.asarray(rng.normal(size=y.shape))
    expected = _by_vjp(function(plain(name)), given, cotangent)
    ours = jax.linear_transpose(function(getattr(xpgrad_jax, name)), *given)
    several = jnp.stack([cotangent, 2 * cotangent])
    for made in (ours(cotangent), jax.jit(ours)(cotangent), [x[0] for x in jax.vmap(ours)(several)]):
        for a, b in zip(made, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.exhaustive
@pytest.mark.parametrize("solver", ["gmres", "bicgstab"])
def test_solvers_of_linear_equations_take_a_convolution(solver: str, rng: np.random.Generator) -> None:
    W = jnp.asarray(0.05 * rng.normal(size=(3, 3, 3, 3))).at[:, :, 1, 1].add(jnp.eye(3))
    X = jnp.asarray(rng.normal(size=(2, 3, 5, 5)))
    blurred = lambda x: xpgrad_jax.conv(x, W, pads=1)  # noqa: E731
    solve = getattr(jax.scipy.sparse.linalg, solver)
    np.testing.assert_allclose(solve(blurred, blurred(X), tol=1e-12)[0], X, rtol=1e-7, atol=1e-7)
    # the solution's own gradient: a transposed equation
    weight = jnp.asarray(rng.normal(size=X.shape))
    slope = jax.grad(lambda b: (solve(blurred, b, tol=1e-12)[0] * weight).sum())(blurred(X))
    (back,) = jax.linear_transpose(blurred, X)(slope)
    np.testing.assert_allclose(back, weight, rtol=1e-7, atol=1e-7)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "conv", "gelu", "softmax", "softmax_cross_entropy"])
def test_a_gradient_is_linear_in_its_cotangents(name: str, rng: np.random.Generator) -> None:
    """Its transpose is the tangent: solvers of Gauss-Newton's equations ask for it."""
    gates = {"lstm": 4, "gru": 3, "rnn": 1}.get(name)
    X = jnp.asarray(rng.normal(size=(2, 3, 4)))
    others = []
    if gates:
        others = [jnp.asarray(rng.normal(size=(1, gates * 5, k))) for k in (4, 5)]
    elif name == "conv":
        others = [jnp.asarray(rng.normal(size=(5, 3, 2)))]
    elif name == "softmax_cross_entropy":
        others = [jnp.asarray(rng.integers(3, size=(2, 4)))]
    function = lambda x: getattr(xpgrad_jax, name)(x, *others)  # noqa: E731
    y, pullback = jax.vjp(function, X)
    tangent = jnp.asarray(rng.normal(size=X.shape))
    (made,) = jax.linear_transpose(lambda given: pullback(given)[0], y)(tangent)
    expected = jax.jvp(function, (X,), (tangent,))[1]
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


_IMAGE, _KERNEL, _BIAS = (jnp.ones(s) for s in [(1, 2, 4), (2, 2, 3), (2,)])
_STEPS, _WEIGHT = jnp.ones((3, 1, 2)), jnp.ones((1, 8, 2))
_EITHER = "expected by X and B or W and B: in these it is linear"
_NONE = "a linear function, and it is none; jax.vjp gives its gradient"


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (lambda x: xpgrad_jax.conv(x, _KERNEL, _BIAS), [_IMAGE], f"by X is asked for, {_EITHER}"),
        (lambda b: xpgrad_jax.conv(_IMAGE, _KERNEL, b), [_BIAS], f"by B is asked for, {_EITHER}"),
        (xpgrad_jax.conv, [_IMAGE, _KERNEL], "by X, W is asked for, expected by X or W: in these"),
        (xpgrad_jax.relu, [_IMAGE], _NONE),
        (lambda x: xpgrad_jax.lstm(x, *[_WEIGHT] * 2)[1], [_STEPS], _NONE),
        (
            lambda x: jax.vjp(xpgrad_jax.gelu, x)[1](_IMAGE)[0],
            [_IMAGE],
            "^gelu_grad: its transpose by X is asked for, expected by dY",
        ),
        (
            lambda x: jax.jvp(xpgrad_jax.gelu, (x,), (_IMAGE,))[1],
            [_IMAGE],
            "^gelu: the transpose of its derivative by X is asked for, expected by the tangents",
        ),
    ],
)  # fmt: skip
def test_what_is_not_linear_has_no_transpose(function: Any, given: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jax.linear_transpose(jax.jit(function), *given)(function(*given))
