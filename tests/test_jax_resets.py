"""Resets in JAX: the core's results, in every transformation, with resets that are traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax not installed")

import jax
import jax.numpy as jnp

import xpgrad
import xpgrad_jax
from reset_cases import CELLS, LENGTHS, OPTIONS, RESETS, H, I, N, T, base, operands_of, piece_by_piece
from xpgrad._operators.axes import gradient_name

LENS = np.asarray(LENGTHS)


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def case(name: str, direction: str, lengths: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A function of operands, resets and lengths to a number; operands; and the number's gradients."""
    operands, cotangents, (_, grads) = piece_by_piece(name, direction, lengths)
    seeds = list(cotangents.values())

    def weigh(given: dict[str, Any], reset: Any, lens: Any = None) -> Any:
        outputs = getattr(xpgrad_jax, name)(
            **given, reset=reset, sequence_lens=lens, direction=direction, **OPTIONS.get(name, {})
        )
        return sum((y * seed).sum() for y, seed in zip(outputs, seeds, strict=False))

    if name == "lstm":  # whose C_all is no output in JAX
        cotangents = cotangents | {"grad_C_all": 0 * cotangents["grad_C_all"]}
        options = {} if lengths is None else {"sequence_lens": lengths}
        _, pullback = xpgrad.vjp(xpgrad.lstm, **operands, direction=direction, reset=RESETS, **options)
        found = pullback(**cotangents)
        grads = {key: getattr(found, gradient_name(key)) for key in operands}
    return weigh, {key: jnp.asarray(x) for key, x in operands.items()}, grads


def compare(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-11, err_msg=key)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize(
    ("direction", "lengths"), [("forward", None), ("reverse", LENS), ("bidirectional", LENS)]
)
def test_gradients(name: str, direction: str, lengths: Any) -> None:
    """Eagerly, and compiled with resets and lengths that nobody knows before it runs."""
    weigh, operands, grads = case(name, direction, lengths)
    compare(jax.grad(weigh)(operands, RESETS, lengths), grads)
    compare(jax.jit(jax.grad(weigh))(operands, jnp.asarray(RESETS), lengths), grads)


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize(("direction", "lengths"), [("forward", LENS), ("reverse", None)])
def test_forward_mode(name: str, direction: str, lengths: Any) -> None:
    """By JAX's own operations, in a loop over whole sequences."""
    weigh, operands, grads = case(name, direction, lengths)
    rng = np.random.default_rng(1)
    tangents = {key: jnp.asarray(rng.normal(size=x.shape)) for key, x in operands.items()}

    def along(given: dict[str, Any], reset: Any) -> Any:
        return jax.jvp(lambda x: weigh(x, reset, lengths), (given,), (tangents,))[1]

    wanted = sum((grads[key] * tangents[key]).sum() for key in operands)
    np.testing.assert_allclose(jax.jit(along)(operands, jnp.asarray(RESETS)), wanted, rtol=1e-11)


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_the_plain_way(name: str, direction: str) -> None:
    """Results and gradients by JAX's own operations, as a device without programs has them."""
    operands, cotangents, (outputs, grads) = piece_by_piece(name, direction, LENS)
    kernel = xpgrad_jax.functional._KERNELS[name]
    lens = np.concatenate([LENS[:, None], RESETS.T.astype(int)], axis=1)
    attributes = xpgrad_jax.functional.as_attributes(name, {"direction": direction, **OPTIONS.get(name, {})})
    own = {key: jnp.asarray(x) for key, x in operands.items()} | {"sequence_lens": jnp.asarray(lens)}
    seeds = {key: jnp.asarray(x) for key, x in cotangents.items()}
    made = jax.jit(lambda given: kernel.plain_forward(given, attributes))(own)
    compare(dict(zip(kernel.outputs, made, strict=True)), outputs)
    wrt = tuple(operands)
    run = jax.jit(lambda given: kernel.plain_gradient(given, wrt, attributes, False))
    compare(dict(zip(wrt, run(own | seeds), strict=True)), grads)


def test_maps_over_resets(rng: np.random.Generator) -> None:
    weigh, operands, _ = case("gru", "forward", LENS)
    several = jnp.asarray(rng.uniform(size=(2, T, N)) < 0.4)
    found = jax.vmap(jax.grad(weigh), in_axes=(None, 0, None))(operands, several, LENS)
    for number in range(2):
        one = jax.grad(weigh)(operands, several[number], LENS)
        compare({key: x[number] for key, x in found.items()}, one)


def recurrence_and_operands(name: str, rng: np.random.Generator) -> tuple[Any, Any, dict[str, Any]]:
    """The core's operator, JAX's (or the core's on JAX's arrays), and operands."""
    if name in CELLS:
        return CELLS[name], CELLS[name], operands_of(name, 1, rng)
    core, draw = getattr(xpgrad, name), rng.normal
    G = H * (4 if "lstm" in name else 3)
    others = {
        "augru": {"attention": draw(size=(T, N, 1))},
        "gru_d": {
            "mask": (draw(size=(T, N, I)) < 0.5) * 1.0, "delta": abs(draw(size=(T, N, I))),
            "decay_x": draw(size=(1, 2, I)), "decay_h": draw(size=(1, H, I + 1)),
        },
    }  # fmt: skip
    if name.startswith("layer_norm"):
        return core, core, operands_of(name, 1, rng)
    weights = {"W": draw(size=(1, G, I * (2 if name == "gru_d" else 1))), "R": draw(size=(1, G, H))}
    return core, getattr(xpgrad_jax, name), {"X": draw(size=(T, N, I))} | others.get(name, {}) | weights


@pytest.mark.parametrize("lengths", [None, LENS], ids=["full", "lengths"])
@pytest.mark.parametrize("name", ["slstm", "augru", "gru_d", "layer_norm_lstm", "layer_norm_gru", *CELLS])
def test_every_recurrence(name: str, lengths: Any, rng: np.random.Generator) -> None:
    """Results and gradients of the core, eagerly, compiled and mapped."""
    core, function, operands = recurrence_and_operands(name, rng)
    given = {} if lengths is None else {"sequence_lens": lengths}
    outputs, pullback = xpgrad.vjp(core, **operands, **given, reset=RESETS)
    seed = rng.normal(size=outputs[0].shape)
    found = pullback(grad_H_all=seed)
    wanted = {
        key: value for key in operands if (value := getattr(found, gradient_name(key), None)) is not None
    }

    def weigh(operands: dict[str, Any], reset: Any, lens: Any) -> Any:
        return (function(**operands, reset=reset, sequence_lens=lens)[0] * seed).sum()

    own, resets = {key: jnp.asarray(x) for key, x in operands.items()}, jnp.asarray(RESETS)
    compare({"H_all": function(**own, reset=RESETS, sequence_lens=lengths)[0]}, {"H_all": outputs[0]})
    compare(jax.grad(weigh)(own, RESETS, lengths), wanted)
    compare(jax.jit(jax.grad(weigh))(own, resets, lengths), wanted)
    several = jax.vmap(jax.grad(weigh), in_axes=(None, 0, None))(own, jnp.stack([~resets, resets]), lengths)
    compare({key: x[1] for key, x in several.items()}, wanted)


@pytest.mark.parametrize("name", ["lstm", "gru", "layer_norm_gru", *CELLS])
def test_the_core_with_traced_resets_and_lengths_alone(name: str, rng: np.random.Generator) -> None:
    """Inside `jax.jit`, where all else is known."""
    operands = {key: jnp.asarray(x) for key, x in operands_of(name, 1, rng).items()}

    def both(lengths: Any, reset: Any) -> Any:
        outputs, pullback = xpgrad.vjp(base(name), **operands, sequence_lens=lengths, reset=reset)
        return outputs[0], pullback(grad_H_all=jnp.ones_like(outputs[0]))

    for reset in (None, jnp.asarray(RESETS)):
        found, known = (f(jnp.asarray(LENS), reset) for f in (jax.jit(both), both))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(known), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_wrong_resets() -> None:
    weigh, operands, _ = case("gru", "forward", None)
    with pytest.raises(TypeError, match=r"^gru: reset has dtype float64, expected booleans"):
        weigh(operands, RESETS.astype(float))
    with pytest.raises(ValueError, match=r"^gru: reset has shape \(5, 7\), expected \(T, N\)"):
        jax.jit(weigh)(operands, jnp.asarray(RESETS.T))
