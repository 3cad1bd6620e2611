"""xpgrad_keras in `check`: its layers with their gradients, on the backend that Keras is set to."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import convert
from .._cases.case import Array, Case, KernelCases
from . import check_jax

__all__ = ["has", "installed", "numbers", "run"]

_LAYERS: Mapping[Any, str] = {"lstm": "LSTM", "gru": "GRU", "rnn": "SimpleRNN"}
_STATES = ("initial_h", "initial_c")
_WEIGHTS = ("kernel", "recurrent_kernel", "bias")
_ACTIVATIONS = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
"""Functions without parameters that Keras has."""


@functools.cache
def installed() -> bool:
    """Whether Keras runs here, on a backend with gradients and on a device with kernels."""
    try:
        import keras

        from xpgrad_keras._backends import backend
    except ImportError:
        return False
    if keras.backend.backend() not in _PULLBACKS:
        return False
    one = keras.ops.ones(1)
    return backend().takes(one, one, None)


def has(name: str) -> bool:
    """Whether Keras has a layer that is this kernel."""
    return name in _LAYERS


def numbers(dtype: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which the backend has numbers of this dtype."""
    import keras

    return check_jax.numbers(dtype) if keras.backend.backend() == "jax" else contextlib.nullcontext()


def run(kernel: KernelCases, case: Case) -> Mapping[str, Array] | None:
    """Outputs and the gradients of all arguments; None if Keras' layers lack an option."""
    name: Any = kernel.name
    if not (has(name) and _has_all_of(case)):
        return None
    layout, is_reverse = case.attributes.get("layout", 0), case.attributes.get("direction") == "reverse"
    X = case.arguments["X"] if layout else case.arguments["X"].swapaxes(0, 1)
    states = [case.arguments[name] for name in _STATES if name in case.arguments]
    after = {"linear_before_reset": case.attributes.get("linear_before_reset", 0)}
    layer = _layer(name, case, is_reverse, X.shape, after)
    all_steps, *ends = case.cotangents.values()
    grad_H_all = _turned(all_steps[:, :, 0] if layout else all_steps[:, 0].swapaxes(0, 1), is_reverse)
    (outputs, *ends_found), (dX, *grads) = _pulled_back(
        layer, [X, *map(_in_one_direction, states)], _mask(case, X.shape[1]),
        [grad_H_all, *map(_in_one_direction, ends)],
    )  # fmt: skip
    H_all = _turned(outputs, is_reverse)
    found = [
        H_all[:, :, None] if layout else H_all.swapaxes(0, 1)[:, None],
        *(y.reshape(c.shape) for y, c in zip(ends_found, ends, strict=True)),
    ]
    by_name = {"X": dX if layout else dX.swapaxes(0, 1)}
    by_name |= {name: grad.reshape(h.shape) for name, grad, h in zip(_STATES, grads, states, strict=False)}
    weights = {weight: grad[None] for weight, grad in zip(_WEIGHTS, grads[len(states) :], strict=False)}
    by_name |= convert(name, weights, "keras", "onnx", gradients=True, **after)
    named = dict(zip(case.cotangents, found, strict=True))
    return named | {f"gradient of {argument}": by_name[argument] for argument in case.arguments}


def _has_all_of(case: Case) -> bool:
    """Whether a layer has the arguments and attributes of a case."""
    known = {"direction", "layout", "activations", "linear_before_reset"}
    return (
        case.arguments.keys() <= {"X", "W", "R", "B", *_STATES}
        and case.integers.keys() <= {"sequence_lens"}
        and case.attributes.keys() <= known
        and case.attributes.get("direction") != "bidirectional"
        and {*case.attributes.get("activations", ())} <= {*_ACTIVATIONS}
        and len({*case.attributes.get("activations", ())[1:]}) < 2
        and not case.attributes.keys() & {"activation_alpha", "activation_beta"}
        and not (case.gradient_attributes or case.weights or "C_all" in case.cotangents)
    )


def _layer(name: Any, case: Case, is_reverse: bool, shape: Sequence[int], after: Mapping[str, Any]) -> Any:
    """The layer of a case, with its weights."""
    import xpgrad_keras

    options: dict[str, Any] = {
        "units": case.arguments["R"].shape[2],
        "use_bias": "B" in case.arguments,
        "return_sequences": True,
        "return_state": True,
        "go_backwards": is_reverse,
        "zero_output_for_mask": True,
        "dtype": str(case.arguments["X"].dtype),
    }
    functions = [name.lower() for name in case.attributes.get("activations", ())]
    if functions:
        options["activation"] = functions[-1]
    if len(functions) > 1:
        options["recurrent_activation"] = functions[0]
    if name == "gru":
        options["reset_after"] = bool(after["linear_before_reset"])
    layer = getattr(xpgrad_keras, _LAYERS[name])(**options)
    layer.build(tuple(shape))
    given = {name: case.arguments[name] for name in ("W", "R", "B") if name in case.arguments}
    weights = convert(name, given, "onnx", "keras", **after)
    layer.set_weights([weights[name][0] for name in _WEIGHTS if name in weights])
    return layer


def _mask(case: Case, T: int) -> np.ndarray | None:
    lengths = case.integers.get("sequence_lens")
    return None if lengths is None else np.arange(T) < lengths[:, None]


def _in_one_direction(state: Array) -> Array:
    """A state without its axis of directions: (N, H)."""
    return state.reshape(-1, state.shape[-1])


def _turned(x: Array, is_reverse: bool) -> Array:
    """Steps (N, T, H) from the order of time to a layer's order, or back."""
    return x[:, ::-1] if is_reverse else x


# --- each backend's gradients: of the arrays (X is the first), then of the weights


def _pulled_back(
    layer: Any, arrays: Sequence[Array], mask: Any, cotangents: Sequence[Array]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """A layer's outputs, and its gradients."""
    import keras

    def call(X: Any, *states: Any) -> list[Any]:
        options = {"initial_state": list(states)} if states else {}
        return list(layer(X, mask=mask, **options))

    outputs, grads = _PULLBACKS[keras.backend.backend()](layer, call, arrays, cotangents)
    return [_array(y) for y in outputs], [_array(g) for g in grads]


def _array(x: Any) -> np.ndarray:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(x))


def _torch(layer: Any, call: Callable[..., Any], arrays: Any, cotangents: Any) -> tuple[Any, Any]:
    import torch

    leaves = [torch.tensor(x.copy(), requires_grad=True) for x in arrays]
    outputs = call(*leaves)
    leaves += [variable.value for variable in layer.trainable_variables]
    return outputs, torch.autograd.grad(outputs, leaves, [torch.tensor(c.copy()) for c in cotangents])


def _jax(layer: Any, call: Callable[..., Any], arrays: Any, cotangents: Any) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp
    from keras import StatelessScope

    variables = layer.trainable_variables

    def function(weights: Any, *given: Any) -> Any:
        with StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            return call(*given)

    weights = [variable.value for variable in variables]
    outputs, pullback = jax.vjp(function, weights, *map(jnp.asarray, arrays))
    in_weights, *grads = jax.jit(pullback)([jnp.asarray(c) for c in cotangents])
    return outputs, [*grads, *in_weights]


def _tensorflow(layer: Any, call: Callable[..., Any], arrays: Any, cotangents: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    leaves = [tf.constant(x) for x in arrays]
    with tf.GradientTape() as tape:
        for leaf in leaves:
            tape.watch(leaf)
        outputs = call(*leaves)
    leaves += [variable.value for variable in layer.trainable_variables]
    return outputs, tape.gradient(outputs, leaves, output_gradients=list(map(tf.constant, cotangents)))


_PULLBACKS = {"torch": _torch, "jax": _jax, "tensorflow": _tensorflow}
