"""The core's functions given JAX arrays: views of them; under a trace programs, or one ``lax.scan``."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax not installed")

import jax
import jax.numpy as jnp

import xpgrad
from xpgrad.engine import is_traced
from xpgrad_jax import why_plain

T, N, I, H = 5, 3, 2, 2
GATES = {"lstm": 4, "gru": 3}


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def call(operator: str, rng: np.random.Generator) -> dict[str, Any]:
    gates = GATES[operator]
    shapes = {"X": (T, N, I), "W": (1, gates * H, I), "R": (1, gates * H, H), "B": (1, 2 * gates * H)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def results(operator: str, arrays: dict[str, Any], lengths: Any, **options: Any) -> tuple:
    """The forward's outputs and all gradients, for cotangents of all outputs."""
    out = getattr(xpgrad, operator)(**arrays, sequence_lens=lengths, **options)
    saved = {name: getattr(out, name) for name in ("H_all", "C_all", "iofc", "zrh") if hasattr(out, name)}
    cotangents = {"grad_H_all": out.H_all * 0 + 1, "grad_H_t": out.H_t + 1}
    gradient = getattr(xpgrad, f"{operator}_grad")
    return out, gradient(**arrays, **saved, **cotangents, sequence_lens=lengths, **options)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("lstm", {}),
    ("lstm", {"direction": "reverse", "clip": 0.7}),
    ("gru", {}),
    ("gru", {"linear_before_reset": 1, "direction": "reverse"}),
]


@pytest.mark.parametrize("lengths", [None, [5, 2, 0]], ids=["dense", "lengths"])
@pytest.mark.parametrize(("operator", "options"), OPTIONS)
def test_eager_and_traced_are_as_with_numpy(
    operator: str, options: dict[str, Any], lengths: Any, rng: np.random.Generator
) -> None:
    arrays = call(operator, rng)
    exact = None if lengths is None else np.asarray(lengths)
    expected = jax.tree.leaves(results(operator, arrays, exact, **options))
    given = {name: jnp.asarray(x) for name, x in arrays.items()}
    traced_lengths = None if lengths is None else jnp.asarray(lengths)
    traced = jax.jit(lambda a, k: results(operator, a, k, **options))
    for ours in (results(operator, given, traced_lengths, **options), traced(given, traced_lengths)):
        leaves = jax.tree.leaves(ours)
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)
        for a, b in zip(leaves, expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(why_plain() is not None, reason="no programs here")
def test_under_a_trace_they_are_programs(rng: np.random.Generator) -> None:
    arrays = {name: jnp.asarray(x) for name, x in call("lstm", rng).items()}

    def loss(W: Any) -> Any:
        return sum((y**2).sum() for y in xpgrad.lstm(**{**arrays, "W": W})[:4])

    text = jax.jit(jax.grad(loss)).lower(arrays["W"]).as_text()
    assert text.count("stablehlo.custom_call @xpgrad_program") == 2
    with xpgrad.use_engine("standard"):
        expected = jax.grad(loss)(arrays["W"])
    np.testing.assert_allclose(jax.grad(loss)(arrays["W"]), expected, rtol=1e-10)


@pytest.mark.skipif(why_plain() is not None, reason="no programs here")
@pytest.mark.parametrize("layout", [0, 1])
def test_own_cells_are_programs_under_a_trace(layout: int, rng: np.random.Generator) -> None:
    """With inputs and lengths; gradients, gradients of samples, and a map over samples."""

    def decaying(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any, gap: Any) -> Any:
        return xp.tanh(W.n(x) + R.n(h * xp.exp(-v.d * gap)))

    cell = xpgrad.Cell(decaying, W="n", R="n", v="d", inputs="gap")
    lead = (N, T) if layout else (T, N)
    shapes = {"X": (*lead, I), "W": (1, H, I), "R": (1, H, H), "v": (1, H), "gap": (*lead, 1)}
    arrays = {name: rng.uniform(size=shape) for name, shape in shapes.items()}
    here = {name: jnp.asarray(x) for name, x in arrays.items()}
    lengths, options = np.asarray([5, 2, 0]), {"layout": layout}

    def loss(given: Any, lengths: Any) -> Any:
        return (cell(**given, sequence_lens=lengths, **options).H_all ** 2).sum()

    out, pullback = xpgrad.vjp(cell, **arrays, sequence_lens=lengths, **options)
    expected = pullback(grad_H_all=2 * out.H_all)
    step = jax.jit(jax.grad(loss))
    assert step.lower(here, lengths).as_text().count("stablehlo.custom_call @xpgrad_program") == 2
    for name, slope in step(here, jnp.asarray(lengths)).items():
        np.testing.assert_allclose(slope, getattr(expected, f"d{name}"), rtol=1e-10, atol=1e-12)
    axes = {name: 1 - layout if name in ("X", "gap") else None for name in arrays}
    one = lambda given: cell(  # noqa: E731
        **given | {name: jnp.expand_dims(given[name], 1 - layout) for name in ("X", "gap")}, **options
    ).H_t.sum()
    each = jax.jit(jax.vmap(jax.grad(one), in_axes=(axes,)))(here)
    own = xpgrad.vjp(cell, **arrays, **options, per_sample=True)[1](grad_H_t=np.ones(out.H_t.shape))
    np.testing.assert_allclose(each["R"], own.dR, rtol=1e-10, atol=1e-12)


def test_equal_cells_share_a_kernel(rng: np.random.Generator) -> None:
    def cell() -> xpgrad.Cell:
        return xpgrad.Cell(lambda xp, x, h, W, R: xp.tanh(W.n(x) + R.n(h)), W="n", R="n", name="equal")

    first, second = cell(), cell()
    arrays = [jnp.asarray(rng.normal(size=shape)) for shape in ((T, N, I), (1, H, I), (1, H, H))]
    traced = [jax.make_jaxpr(one)(*arrays) for one in (first, second)]
    assert str(traced[0]) == str(traced[1])
    watched = weakref.ref(second)
    del second
    jax.clear_caches()
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("per_sample", [False, True, "norm"])
def test_a_traced_gradient_is_one_of_the_saved_arrays_it_is_given(
    per_sample: Any, rng: np.random.Generator
) -> None:
    arrays = call("gru", rng)
    saved = {"H_all": rng.normal(size=(T, 1, N, H)), "zrh": rng.uniform(size=(T, 1, N, 3 * H))}
    given = arrays | saved | {"grad_H_t": rng.normal(size=(1, N, H))}
    here = {name: jnp.asarray(x) for name, x in given.items()}
    run = lambda a: xpgrad.gru_grad(**a, wrt=("R", "X"), per_sample=per_sample)  # noqa: E731
    expected, ours = run(given), jax.jit(run)(here)
    assert ours.dW is None
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    step = 1e-6

    def weighed(H_all: Any) -> Any:
        return (run({**here, "H_all": H_all}).dR ** 2).sum()

    along = rng.normal(size=saved["H_all"].shape)
    slope = (jax.jit(jax.grad(weighed))(here["H_all"]) * along).sum()
    ends = [weighed(here["H_all"] + sign * step * along) for sign in (1, -1)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-5)


def test_graph_does_not_grow_with_the_number_of_steps(rng: np.random.Generator) -> None:
    lines = []
    for steps in (6, 60):
        arrays = {**call("lstm", rng), "X": rng.normal(size=(steps, N, I))}
        lines.append(str(jax.make_jaxpr(lambda a: results("lstm", a, None))(arrays)).count("\n"))
    assert lines[0] == lines[1]


def test_differentiable_through_every_output(rng: np.random.Generator) -> None:
    arrays = call("lstm", rng)
    X, R, B = (jnp.asarray(arrays[name]) for name in ("X", "R", "B"))

    def loss(W: Any) -> Any:
        return sum((y**2).sum() for y in xpgrad.lstm(X, W, R, B))

    W, step = jnp.asarray(arrays["W"]), 1e-6
    slope = jax.grad(loss)(W)
    tangent = jnp.asarray(rng.normal(size=W.shape))
    difference = (loss(W + step * tangent) - loss(W - step * tangent)) / (2 * step)
    np.testing.assert_allclose((slope * tangent).sum(), difference, rtol=1e-7)


def test_gradient_by_one_array_with_the_others_closed_over(rng: np.random.Generator) -> None:
    arrays = {name: jnp.asarray(x) for name, x in call("lstm", rng).items()}
    slope = jax.grad(lambda X: xpgrad.lstm(**{**arrays, "X": X}).H_t.sum())(arrays["X"])
    assert slope.shape == (T, N, I)


def test_what_is_traced() -> None:
    assert not is_traced(jnp.ones(2))
    assert not is_traced(np.ones(2))
    seen = []
    jax.jit(lambda x: seen.append(is_traced(x)) or x)(jnp.ones(2))
    assert seen == [True]


@pytest.mark.parametrize("layout", [0, 1])
def test_known_lengths_under_a_trace(layout):
    """As many as the batch has, which is the second axis or the first."""
    T, N, I, H = 4, 2, 3, 2
    rng = np.random.default_rng(0)
    shape = (N, T, I) if layout else (T, N, I)
    X, W, R = (rng.normal(size=s).astype("float32") for s in [shape, (1, 3 * H, I), (1, 3 * H, H)])

    def traced(lengths):
        weights = jnp.asarray(W), jnp.asarray(R)
        return jax.jit(lambda X: xpgrad.gru(X, *weights, sequence_lens=lengths, layout=layout).H_all)(X)

    lengths = np.asarray([3, 4])
    expected = xpgrad.gru(X, W, R, sequence_lens=lengths, layout=layout).H_all
    np.testing.assert_allclose(traced(lengths), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"gru: sequence_lens\[1\] is 5, expected 0 to T = 4"):
        traced([3, 5])
