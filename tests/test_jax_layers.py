"""`convert` to and from the cells of Flax and Equinox, which compute what ours do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpgrad import convert

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
T, N, I, H = 5, 3, 4, 2


def torch_weights(operator: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    rows = GATES[operator] * H
    shapes = {"weight_ih": (rows, I), "weight_hh": (rows, H), "bias_ih": (rows,), "bias_hh": (rows,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def onnx_weights(operator: str, parameters: Any, layout: str) -> dict[str, Any]:
    arrays = convert(operator, parameters, layout, "onnx", linear_before_reset=1)
    return {name: np.asarray(array)[None] for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("operator", "layout"),
    [("lstm", "flax"), ("gru", "flax"), ("rnn", "flax"), ("lstm", "equinox"), ("gru", "equinox")],
)
def test_there_and_back(operator: str, layout: str, rng: np.random.Generator) -> None:
    torch = torch_weights(operator, rng)
    cell = convert(operator, torch, "torch", layout, linear_before_reset=1)
    again = convert(operator, cell, layout, "torch", linear_before_reset=1)
    for name in ("weight_ih", "weight_hh"):
        np.testing.assert_array_equal(again[name], torch[name])
    np.testing.assert_array_equal(
        again["bias_ih"][: 2 * H] + again["bias_hh"][: 2 * H], (torch["bias_ih"] + torch["bias_hh"])[: 2 * H]
    )
    twice = convert(operator, again, "torch", layout, linear_before_reset=1)
    flat = [np.asarray(x) for tree in (cell, twice) for x in _leaves(tree)]
    for a, b in zip(flat[: len(flat) // 2], flat[len(flat) // 2 :], strict=True):
        np.testing.assert_array_equal(a, b)


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for name in sorted(tree) for leaf in _leaves(tree[name])]
    return [tree]


def test_bad_input_is_named(rng: np.random.Generator) -> None:
    torch = torch_weights("gru", rng)
    with pytest.raises(
        ValueError, match="convert: linear_before_reset is 0, expected 1 for the layout 'flax'"
    ):
        convert("gru", torch, "torch", "flax")
    parts = convert("gru", torch, "torch", "flax", linear_before_reset=1)
    del parts["hn"]
    with pytest.raises(ValueError, match="convert: parameters has no or an unknown 'hn'"):
        convert("gru", parts, "flax", "torch", linear_before_reset=1)
    with pytest.raises(ValueError, match="convert: parameters holds peepholes, expected none"):
        convert("lstm", {"weight_peephole": np.ones(3 * H)}, "torch", "equinox")
    gradients = torch_weights("lstm", rng)
    with pytest.raises(ValueError, match="convert: the gradients of input and recurrence biases differ"):
        convert("lstm", gradients, "torch", "flax", gradients=True)


@pytest.mark.parametrize("operator", GATES)
def test_flax_cells(operator: str, rng: np.random.Generator) -> None:
    linen = pytest.importorskip("flax.linen", reason="flax not installed")
    import jax
    import jax.numpy as jnp

    import xpgrad_jax

    cell = {"lstm": linen.OptimizedLSTMCell, "gru": linen.GRUCell, "rnn": linen.SimpleCell}[operator](H)
    x = jnp.asarray(rng.normal(size=(T, N, I)), dtype="float32")
    carry = cell.initialize_carry(jax.random.key(0), (N, I))
    variables = cell.init(jax.random.key(1), carry, x[0])
    parts = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), variables["params"])
    outputs = []
    for step in x:
        carry, y = cell.apply({"params": parts}, carry, step)
        outputs.append(y)
    options = {"linear_before_reset": 1} if operator == "gru" else {}
    ours = getattr(xpgrad_jax, operator)(x, **onnx_weights(operator, parts, "flax"), **options)[0]
    np.testing.assert_allclose(ours[:, 0], jnp.stack(outputs), rtol=1e-5, atol=1e-6)
    back = convert(
        operator, convert(operator, parts, "flax", "onnx", linear_before_reset=1), "onnx", "flax",
        linear_before_reset=1,
    )  # fmt: skip
    assert jax.tree.structure(dict(back)) == jax.tree.structure(dict(parts))


@pytest.mark.parametrize("operator", ["lstm", "gru"])
def test_equinox_cells(operator: str, rng: np.random.Generator) -> None:
    equinox = pytest.importorskip("equinox", reason="equinox not installed")
    import jax
    import jax.numpy as jnp

    import xpgrad_jax

    kind = equinox.nn.LSTMCell if operator == "lstm" else equinox.nn.GRUCell
    cell = kind(I, H, key=jax.random.key(2))
    x = jnp.asarray(rng.normal(size=(T, I)), dtype="float32")
    state = (jnp.zeros(H), jnp.zeros(H)) if operator == "lstm" else jnp.zeros(H)
    for step in x:
        state = cell(step, state)
    last = state[0] if operator == "lstm" else state
    names = ["weight_ih", "weight_hh", "bias", *(["bias_n"] if operator == "gru" else [])]
    weights = onnx_weights(operator, {name: getattr(cell, name) for name in names}, "equinox")
    options = {} if operator == "lstm" else {"linear_before_reset": 1}
    ours = getattr(xpgrad_jax, operator)(x[:, None], **weights, **options)[1]
    np.testing.assert_allclose(ours[0, 0], last, rtol=1e-5, atol=1e-6)
