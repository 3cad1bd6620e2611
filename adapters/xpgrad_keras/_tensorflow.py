"""The kernels of the core for Keras on TensorFlow: functions of NumPy with a gradient of their own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import xpgrad
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.for_adapters import run_foreign
from xpgrad_keras._backends import KerasBackend, operands
from xpgrad_keras._calls import LayerCall
from xpgrad_keras._private import watched

__all__ = ["BACKEND"]

_OPERANDS = {"kernel": "W", "recurrent_kernel": "R", "bias": "B"}
# What a kernel keeps for its gradient, beside H_all.
_SAVED = {"lstm": ("C_all", "iofc"), "gru": ("zrh", "products"), "rnn": ()}


class _TensorFlow(KerasBackend):
    supports_jit = False
    where = staticmethod(tf.where)

    def takes(self, X: Any, mask: Any) -> bool:
        return not tf.config.list_logical_devices("GPU")

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        if tf.executing_eagerly():
            return super().choose(condition, yes, no)
        return tf.cond(condition, yes, no)

    def run(
        self, call: LayerCall, X: Any, weights: Mapping[str, Any], states: Sequence[Any], lengths: Any
    ) -> tuple[Any, list[Any]]:
        _refuse_xla()
        # NumPy has no bfloat16 of its own, and sums of float16 are kept in float32
        dtype = X.dtype
        wide = tf.float32 if dtype.size == 2 else dtype
        arrays = [tf.cast(x, wide) for x in (X, *weights.values(), *states)]
        H_all, *ends = _Recurrence(call, tuple(weights), len(states), lengths).apply(arrays)
        return tf.cast(H_all, dtype), [tf.cast(end, dtype) for end in ends]


class _Recurrence:
    """A kernel and its gradient as functions of tensors: X, weights by their names, states."""

    def __init__(self, call: LayerCall, names: Sequence[str], states: int, lengths: Any) -> None:
        self.call, self.names, self.states = call, names, states
        self.lengths = [] if lengths is None else [lengths]
        self.wanted: Sequence[int] = ()
        """Which of the tensors need a gradient, by number."""

    def apply(self, arrays: Sequence[Any]) -> Any:
        """Return H_all, or H_t in its place where nobody reads all steps, and the last states."""

        @tf.custom_gradient
        def recurrence(*arrays: Any) -> Any:
            H_all, *found = self._forward(arrays)
            ends, saved = found[: self.states], found[self.states :]
            N, T, H = arrays[0].shape[0], arrays[0].shape[1], arrays[2].shape[0]
            for end in ends:
                end.set_shape((N, H))
            if self.call.all_steps:
                H_all.set_shape((N, T, H))
            first = H_all if self.call.all_steps else ends[0]
            return [first, *ends], lambda *cotangents: self._gradient(arrays, [H_all, *saved], cotangents)

        self.wanted = watched(arrays)
        return recurrence(*arrays)

    def _operands(self, arrays: Sequence[Any]) -> dict[str, Any]:
        X, *rest = arrays
        weights, rest = rest[: len(self.names)], rest[len(self.names) :]
        states, lengths = rest[: self.states], rest[self.states :]
        by_name = dict(zip(self.names, weights, strict=True))
        return operands(np, X, by_name, states, lengths[0] if lengths else None)

    def _options(self) -> dict[str, Any]:
        """Return the options of forward and gradient; nobody else reads what one keeps for the other."""
        seen = ("H_all",) if self.call.all_steps else ()
        rows = [n for n in ("H_all", *_SAVED[self.call.kernel]) if n not in seen] if self.lengths else []
        return {**self.call.attributes, "rows_of": rows}

    def _forward(self, arrays: Sequence[Any]) -> list[Any]:
        """Return H_all (N, T, H) or as the kernel keeps it, last states, and what else the gradient takes."""
        kernel, (X, *_) = self.call.kernel, arrays

        def compute(*arrays: np.ndarray) -> list[np.ndarray]:
            options = self._options() | ({"keep_products": True} if kernel == "gru" else {})
            H_all, *more = run_foreign(getattr(xpgrad, kernel), **self._operands(arrays), **options)
            ends, kept = more[: self.states], more[self.states :]
            if self.call.all_steps:
                H_all = H_all[:, 0].swapaxes(0, 1)
            return [H_all, *(x[0] for x in ends), *kept]

        count = 1 + self.states + len(_SAVED[kernel])
        return tf.numpy_function(compute, [*arrays, *self.lengths], [X.dtype] * count, stateful=False)

    def _gradient(self, arrays: Sequence[Any], saved: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        count = len(arrays)

        @tf.custom_gradient
        def gradient(*tensors: Any) -> Any:
            grads = tf.numpy_function(
                lambda *given: self._pulled_back(given, count, len(saved)),
                [*tensors, *self.lengths],
                [arrays[k].dtype for k in self.wanted],
                stateful=False,
            )
            # of one result it makes no list
            grads = grads if isinstance(grads, list | tuple) else [grads]
            for grad, k in zip(grads, self.wanted, strict=True):
                grad.set_shape(arrays[k].shape)
            return grads, _refuse_second

        by_number = dict(zip(self.wanted, gradient(*arrays, *saved, *cotangents), strict=True))
        return [by_number.get(k) for k in range(count)]

    def _pulled_back(self, given: Sequence[np.ndarray], count: int, saved: int) -> list[np.ndarray]:
        kernel, bias = self.call.kernel, given[: 1 + len(self.names)][-1]
        kept, rest = given[count : count + saved], given[count + saved :]
        first, *ends = rest[: 1 + self.states]
        by_name: dict[str, Any] = dict(zip(("H_all", *_SAVED[kernel]), kept, strict=True))
        if self.call.all_steps:
            by_name["H_all"], by_name["grad_H_all"] = (x.swapaxes(0, 1)[:, None] for x in (kept[0], first))
        else:
            ends[0] = ends[0] + first
        by_name |= {f"grad_{n}_t": x[None] for n, x in zip("HC", ends, strict=False)}
        found = self._operands([*given[:count], *rest[1 + self.states :]])
        graded = ["X", *(_OPERANDS[name] for name in self.names), "initial_h", "initial_c"]
        wrt = [graded[k] for k in self.wanted]
        gradient = getattr(xpgrad, f"{kernel}_grad")
        grads = run_foreign(gradient, **found, **by_name, **self._options(), wrt=wrt)
        return [self._as_keras(name, getattr(grads, gradient_name(name)), bias) for name in wrt]

    def _as_keras(self, name: str, grad: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Return a kernel's gradient in the form of Keras' tensor."""
        if name == "B":  # the input's alone, where Keras has one
            return grad[0, : bias.size].reshape(bias.shape)
        return grad.swapaxes(0, 1) if name == "X" else grad[0]


def _refuse_second(*cotangents: Any) -> Any:
    raise ValueError(
        "xpgrad_keras: a second derivative is asked for on TensorFlow, expected a first one: "
        "xpgrad_keras.unswap(model) has Keras' layers, which have more"
    )


def _refuse_xla() -> None:
    """Raise where XLA compiles, which cannot call a kernel."""
    from tensorflow.python.ops import control_flow_util

    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    ):
        raise ValueError(
            "xpgrad_keras: jit_compile is True on TensorFlow, expected False: XLA cannot call the kernels; "
            "xpgrad_keras.unswap(model) has Keras' layers, which it compiles"
        )


BACKEND = _TensorFlow()
