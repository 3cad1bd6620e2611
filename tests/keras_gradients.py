"""Outputs and gradients of a layer of Keras, on the backend of this process, as arrays of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

__all__ = ["BACKEND", "flat", "pulled_back"]

BACKEND = keras.backend.backend()


def flat(results: Any) -> list[Any]:
    """A layer's results as a list."""
    return list(results) if isinstance(results, list | tuple) else [results]


def pulled_back(
    layer: Any, x: np.ndarray, states: Sequence[np.ndarray] | None, compiled: bool = False, **options: Any
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return a layer's outputs, and gradients by x, by the initial states, by weights.

    The cotangents are random numbers, the same at each call. `compiled` runs the step as `fit` does.
    """
    if states is not None:
        states = list(states)
    function = {"torch": _torch, "jax": _jax, "tensorflow": _tensorflow, "numpy": _numpy}[BACKEND]
    outputs, grads = function(layer, x, states, compiled, options)
    return [_array(y) for y in outputs], [_array(g) for g in grads]


def _array(x: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(x))


def _cotangents(outputs: Sequence[Any]) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=y.shape) for y in outputs]


def _given(states: Any) -> dict[str, Any]:
    return {} if states is None else {"initial_state": states}


def _numpy(layer: Any, x: Any, states: Any, compiled: bool, options: dict) -> tuple:
    return flat(layer(x, **_given(states), **options)), []


def _torch(layer: Any, x: Any, states: Any, compiled: bool, options: dict) -> tuple:
    import torch

    x = torch.tensor(x, requires_grad=True)
    states = None if states is None else [torch.tensor(h, requires_grad=True) for h in states]
    call = torch.compile(layer, backend="aot_eager") if compiled else layer
    outputs = flat(call(x, **_given(states), **options))
    leaves = [x, *(states or []), *(v.value for v in layer.trainable_variables)]
    cotangents = [torch.tensor(c).to(y.dtype) for c, y in zip(_cotangents(outputs), outputs, strict=True)]
    grads = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
    return outputs, [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, grads, strict=True)]


def _jax(layer: Any, x: Any, states: Any, compiled: bool, options: dict) -> tuple:
    import jax
    import jax.numpy as jnp

    fixed = [v.value for v in layer.non_trainable_variables]
    states = None if states is None else [jnp.asarray(h) for h in states]

    def loss(x: Any, states: Any, weights: Any) -> Any:
        results, new = layer.stateless_call(weights, fixed, x, **_given(states), **options)
        outputs = flat(results)
        total = sum(jnp.sum(y * jnp.asarray(c)) for y, c in zip(outputs, _cotangents(outputs), strict=True))
        return total, (outputs, new)

    gradient = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
    arrays = jnp.asarray(x), states, [v.value for v in layer.trainable_variables]
    (dx, dstates, dweights), (outputs, new) = (jax.jit(gradient) if compiled else gradient)(*arrays)
    for variable, value in zip(layer.non_trainable_variables, new, strict=True):
        variable.assign(value)
    return outputs, [dx, *(dstates or []), *dweights]


def _tensorflow(layer: Any, x: Any, states: Any, compiled: bool, options: dict) -> tuple:
    import tensorflow as tf

    x = tf.constant(x)
    states = None if states is None else [tf.constant(h) for h in states]
    weights = [v.value for v in layer.trainable_variables]

    def step(x: Any, states: Any) -> Any:
        with tf.GradientTape() as tape:
            leaves = [x, *(states or [])]
            for leaf in leaves:
                tape.watch(leaf)
            outputs = flat(layer(x, **_given(states), **options))
            cotangents = [tf.constant(c, y.dtype) for c, y in zip(_cotangents(outputs), outputs, strict=True)]
        leaves += weights
        grads = tape.gradient(outputs, leaves, output_gradients=cotangents)
        return outputs, [tf.zeros_like(p) if g is None else g for p, g in zip(leaves, grads, strict=True)]

    outputs, grads = (tf.function(step) if compiled else step)(x, states)
    return outputs, grads
