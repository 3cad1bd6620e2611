"""Sharded steps of training in JAX: ``python sharded_jax.py NAME``, in a process of two devices."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import xpgrad
import xpgrad_jax
from own_cells import minimal_gated_unit
from xpgrad._operators.units import UNITS

T, N, I, H = 5, 4, 3, 2
MESH = jax.make_mesh((2,), ("b",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,))
rng = np.random.default_rng(0)
Arrays = Mapping[str, Any]
MOVES = ("all-gather", "all-to-all", "collective-permute")
"""What XLA puts where an array is needed elsewhere than it is."""


def random(*shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape))


def weigh(results: Any) -> jax.Array:
    """One number that depends on all of several results."""
    return sum((y * jnp.cos(y)).sum() for y in jax.tree.leaves(results))


def recurrent(rows: int, directions: int = 1, **more: Any) -> dict[str, Any]:
    """Operands of a recurrent operator."""
    arrays = {"X": random(T, N, I), "W": random(directions, rows, I), "R": random(directions, rows, H)}
    return {**arrays, "B": random(directions, 2 * rows), **more}


class Case:
    """A function of arrays, the axis of each that is the batch, and how the step looks.

    Parameters
    ----------
    run : callable
        Takes the arrays by name.
    arrays : mapping of str to array
        What it takes.
    axes : mapping of str to int
        The batch axis of those that have one.
    fixed : collection of str
        Those whose gradient is not asked for.
    """

    def __init__(
        self, run: Callable[..., Any], arrays: Arrays, axes: Mapping[str, int], fixed: Collection[str] = ()
    ) -> None:
        self.arrays, self.axes = arrays, axes
        floating = {name for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        self.graded = floating - {*fixed}
        self.step = jax.jit(jax.value_and_grad(lambda given, fixed: weigh(run(**given, **fixed))))

    def parted(self, arrays: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """What has a gradient, and the rest."""
        return (
            {name: x for name, x in arrays.items() if name in self.graded},
            {name: x for name, x in arrays.items() if name not in self.graded},
        )

    def sharding(self, name: str, mesh: Any = MESH, by: Any = "b") -> NamedSharding:
        axis = self.axes.get(name)
        return NamedSharding(mesh, P() if axis is None else P(*[None] * axis, by))

    def check(self, mesh: Any = MESH, by: Any = "b") -> None:
        """The sharded step computes what one device does, on parts, and gradients are placed as operands."""
        expected = self.step(*self.parted(self.arrays))
        placed = {name: jax.device_put(x, self.sharding(name, mesh, by)) for name, x in self.arrays.items()}
        compiled = self.step.lower(*self.parted(placed)).compile()
        text = compiled.as_text()
        moved = [line for line in text.splitlines() if any(f" {word}" in line for word in MOVES)]
        assert not moved, moved
        assert ("xpgrad_program" in text) == (xpgrad_jax.why_plain() is None)
        value, grads = compiled(*self.parted(placed))
        for name in self.axes.keys() & self.graded:
            assert grads[name].sharding.is_equivalent_to(self.sharding(name, mesh, by), grads[name].ndim), (
                name
            )
        close((value, grads), expected)


def close(actual: Any, desired: Any) -> None:
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-10, atol=1e-10)


# --- what is split, by name

LENGTHS = jnp.asarray([3, T, 0, 2])
OVER_TIME = dict.fromkeys(["X", "initial_h", "initial_c", "mask", "delta"], 1)
OVER_TIME["sequence_lens"] = 0


def lstm(**options: Any) -> Case:
    more = {"sequence_lens": LENGTHS, "P": random(2, 3 * H)}
    more |= {f"initial_{state}": random(2, N, H) for state in "hc"}
    run = lambda **given: xpgrad_jax.lstm(**given, direction="bidirectional", **options)  # noqa: E731
    return Case(run, recurrent(4 * H, 2, **more), OVER_TIME)


def gru() -> Case:
    """The batch in front, and resets."""
    arrays = recurrent(3 * H, X=random(N, T, I), reset=jnp.asarray(rng.random((N, T)) < 0.3))
    run = lambda **given: xpgrad_jax.gru(**given, layout=1, linear_before_reset=1)  # noqa: E731
    return Case(run, arrays, {"X": 0, "reset": 0})


def own_cell() -> Case:
    cell = xpgrad.Cell(minimal_gated_unit, W="f n", R="f n", v="f n")
    arrays = recurrent(2 * H, sequence_lens=LENGTHS, initial_h=random(1, N, H))
    arrays["v"] = arrays.pop("B")[:, : 2 * H]
    return Case(lambda **given: cell(**given)[:2], arrays, OVER_TIME)


def layer_norm_lstm() -> Case:
    scales = {name: random(1, 2, 4 * H) for name in ("gamma", "beta")}
    scales |= {name: random(1, H) for name in ("gamma_c", "beta_c")}
    arrays = recurrent(4 * H, **scales, sequence_lens=LENGTHS)
    return Case(lambda **given: xpgrad.layer_norm_lstm(**given)[:3], arrays, OVER_TIME)


def gru_d() -> Case:
    arrays = {
        "X": random(T, N, I), "mask": jnp.asarray(rng.random((T, N, I)) < 0.5).astype(float),
        "delta": jnp.abs(random(T, N, I)), "W": random(1, 3 * H, 2 * I), "R": random(1, 3 * H, H),
        "decay_x": random(1, 2, I), "decay_h": random(1, H, I + 1), "B": random(1, 3 * H),
    }  # fmt: skip
    return Case(xpgrad_jax.gru_d, arrays, OVER_TIME)


def declared(name: str) -> Case:
    """A recurrent operator by its declaration, with lengths."""
    unit = UNITS[name]
    sizes = {"T": T, "N": N, "I": I, "H": H, "E": H, "D": 1}
    axes = {key: unit.axes[key].split() for key in (*unit.graded, "sequence_lens")}
    shapes = {key: [int(a[:-1] or 1) * sizes.get(a[-1], 1) for a in own] for key, own in axes.items()}
    arrays = {key: random(*shape) for key, shape in shapes.items()} | {"sequence_lens": LENGTHS}
    split = {key: own.index("N") for key, own in axes.items() if "N" in own}
    return Case(getattr(xpgrad_jax, name), arrays, split)


def step_by_step() -> Case:
    """A cell in a loop of the user's, computed again for the gradient."""

    def run(X: Any, W: Any, R: Any, B: Any) -> Any:
        @jax.checkpoint
        def step(h: Any, x: Any) -> Any:
            return xpgrad_jax.rnn_cell(x, h, W[0], R[0], B[0]), None

        return jax.lax.scan(step, jnp.zeros_like(X[0, :, :H]), X)[0]

    return Case(run, recurrent(H), OVER_TIME)


def conv(rank: int = 2, **options: Any) -> Case:
    arrays = {"X": random(N, 4, *(5, 4, 3)[:rank]), "W": random(6, 2, *(3, 2, 2)[:rank]), "B": random(6)}
    return Case(lambda **given: xpgrad_jax.conv(**given, group=2, pads=1, **options), arrays, {"X": 0})


def conv_transpose() -> Case:
    arrays = {"X": random(N, 4, 5), "W": random(4, 3, 2), "B": random(3)}
    return Case(xpgrad_jax.conv_transpose, arrays, {"X": 0})


def output_channels(transposed: bool = False) -> Case:
    """Each device has all images, and the weights of its own channels."""
    arrays = {"X": random(N, 3, 5, 4), "W": random(*(3, 6) if transposed else (6, 3), 3, 2), "B": random(6)}
    run = xpgrad_jax.conv_transpose if transposed else xpgrad_jax.conv
    return Case(run, arrays, {"W": int(transposed), "B": 0})


def both() -> None:
    """Two axes of a mesh: one for the batch, one for the output channels."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    specs = {"X": P("a"), "W": P("b"), "B": P("b")}
    case = output_channels()
    placed = {name: jax.device_put(x, NamedSharding(mesh, specs[name])) for name, x in case.arrays.items()}
    compiled = case.step.lower(*case.parted(placed)).compile()
    assert not any(f" {word}" in compiled.as_text() for word in MOVES)
    close(compiled(*case.parted(placed)), case.step(*case.parted(case.arrays)))


def samples_of_channels() -> Case:
    """Gradients of samples, of the weights of its own channels on each device."""

    def run(X: Any, W: Any, B: Any) -> Any:
        one = lambda W, x: (xpgrad_jax.conv(x[None], W, B) ** 2).sum()  # noqa: E731
        return jax.vmap(jax.grad(one), in_axes=(None, 0))(W, X)

    case = output_channels()
    return Case(run, case.arrays, case.axes, fixed=case.arrays)


def classifier() -> Case:
    """Elements and rows; the classes of the softmax and the weights of the loss are whole."""

    def run(X: Any, slope: Any, labels: Any, weights: Any, targets: Any) -> Any:
        Y = xpgrad_jax.prelu(xpgrad_jax.relu(xpgrad_jax.gelu(X)) - 0.1, slope)
        probabilities = xpgrad_jax.softmax(Y), xpgrad_jax.log_softmax(jnp.stack([Y, X]), axis=2)
        losses = [xpgrad_jax.softmax_cross_entropy(Y, labels, weights, reduction=r) for r in ("mean", "none")]
        targeted = [
            xpgrad_jax.binary_cross_entropy_with_logits(Y, targets, pos_weight=weights, reduction=r)
            for r in ("mean", "none")
        ]
        return probabilities, losses, targeted

    arrays = {
        "X": random(N, I), "slope": random(I), "labels": jnp.asarray([0, 2, 1, 2]),
        "weights": jnp.asarray([1.0, 2.0, 0.5]), "targets": jnp.asarray(rng.random((N, I))),
    }  # fmt: skip
    return Case(run, arrays, {"X": 0, "labels": 0, "targets": 0}, fixed=("weights", "targets"))


def mapped() -> Case:
    """Gradients of samples."""

    def run(X: Any, W: Any, R: Any, B: Any) -> Any:
        one = lambda W, x: (xpgrad_jax.gru(x[:, None], W, R, B)[1] ** 2).sum()  # noqa: E731
        return jax.vmap(jax.grad(one), in_axes=(None, 1))(W, X)

    arrays = recurrent(3 * H)
    return Case(run, arrays, OVER_TIME, fixed=arrays)


def tangents() -> Case:
    """Forward mode runs JAX's own operations, each device on its part."""

    def run(X: Any, W: Any, R: Any, B: Any) -> Any:
        return jax.jvp(lambda X: xpgrad_jax.rnn(X, W, R, B)[0], (X,), (jnp.sin(X),))

    arrays = recurrent(H)
    return Case(run, arrays, OVER_TIME, fixed=arrays)


# --- other meshes, and what stays whole


def other_meshes() -> None:
    """Four devices in two axes of a mesh: the batch along one of them, or along both."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    for entry in ("a", ("a", "b")):
        lstm().check(mesh, entry)


def meshes_in_types() -> None:
    """Meshes whose shardings are parts of the types of arrays."""
    mesh = jax.make_mesh((2,), ("b",), axis_types=(AxisType.Explicit,))
    lstm().check(mesh)
    with jax.set_mesh(mesh):
        for make in SHORT:
            make().check(mesh)


def whole() -> None:
    """Features, states, weights, another order of devices, time, and a batch that they do not divide."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))  # noqa: E731
    case = lstm()
    expected = case.step(*case.parted(case.arrays))
    for specs in (
        {"W": P(None, "a"), "R": P(None, "b", "a")},
        {"initial_h": P(None, None, "b")},
        {"X": P(None, ("b", "a"))},
    ):
        placed = {name: put(x, specs.get(name, P())) for name, x in case.arrays.items()}
        close(case.step(*case.parted(placed)), expected)
    X, W, R = random(4, N, I + 1), random(1, 3 * H, I + 1), random(1, 3 * H, H)
    three = jax.jit(
        jax.value_and_grad(lambda X, W: weigh(xpgrad_jax.gru(X[:, :3] + 1, W, R)), argnums=(0, 1))
    )
    for spec in (P("b"), P(None, "b"), P(None, ("a", "b"))):
        close(three(put(X, spec), W), three(X, W))
    rows = jax.jit(jax.value_and_grad(lambda X: weigh([xpgrad_jax.softmax(X), xpgrad_jax.prelu(X, W[0, 0])])))
    close(rows(put(X, P(None, None, "b"))), rows(X))


def texts() -> None:
    """Two kernels of the same shapes are apart in what JAX's cache looks at: pointers may be left out."""

    def text(case: Case) -> str:
        placed = {name: jax.device_put(x, case.sharding(name)) for name, x in case.arrays.items()}
        lowered = case.step.lower(*case.parted(placed)).as_text()
        assert "CustomSPMDPartitioning" in lowered
        return re.sub(r'backend_config = "\d+"', "", lowered)

    assert text(lstm()) == text(lstm())
    assert text(lstm()) != text(lstm(input_forget=True))


def exported() -> None:
    """An export for two devices has no rules in it: these are functions of this process."""
    case = gru()
    placed = case.parted({name: jax.device_put(x, case.sharding(name)) for name, x in case.arrays.items()})
    allowed = [export.DisabledSafetyCheck.custom_call("xpgrad_program")]
    made = export.export(case.step, disabled_checks=allowed)(*placed)
    assert "CustomSPMDPartitioning" not in made.mlir_module()
    close(made.call(*placed), case.step(*case.parted(case.arrays)))
    case.step.trace(*placed).lower(lowering_platforms=("tpu",))


OF_THEIR_OWN = {"lstm", "gru", "rnn", "layer_norm_lstm", "layer_norm_gru"}
DECLARED = [functools.partial(declared, name) for name in UNITS if name not in OF_THEIR_OWN]
SHORT = [gru, conv, classifier]
LONG = [
    lstm, own_cell, layer_norm_lstm, gru_d, *DECLARED, step_by_step, lambda: conv(1), lambda: conv(3),
    conv_transpose, output_channels, lambda: output_channels(transposed=True), samples_of_channels,
    mapped, tangents, meshes_in_types, texts, exported,
]  # fmt: skip

if __name__ == "__main__":
    (name,) = sys.argv[1:]
    for make in {"short": SHORT, "long": LONG}.get(name) or [globals()[name]]:
        if (case := make()) is not None:
            case.check()
    print("right")
