"""The kernels of the core for Keras on TensorFlow: functions of NumPy with a gradient of their own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import xpgrad
from xpgrad import convert
from xpgrad_keras._backends import Backend, operands
from xpgrad_keras._calls import Call

__all__ = ["BACKEND"]

_WEIGHTS = ("kernel", "recurrent_kernel", "bias")
# What a kernel keeps for its gradient.
_SAVED = {"lstm": ("H_all", "C_all", "iofc"), "gru": ("H_all", "zrh"), "rnn": ("H_all",)}


class _TensorFlow(Backend):
    supports_jit = False
    where = staticmethod(tf.where)

    def takes(self, X: Any, mask: Any) -> bool:
        return not tf.config.list_logical_devices("GPU")

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        if tf.executing_eagerly():
            return super().choose(condition, yes, no)
        return tf.cond(condition, yes, no)

    def run(
        self, call: Call, X: Any, weights: Mapping[str, Any], states: Sequence[Any], lengths: Any
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

    def __init__(self, call: Call, names: Sequence[str], states: int, lengths: Any) -> None:
        self.call, self.names, self.states = call, names, states
        self.lengths = [] if lengths is None else [lengths]

    def apply(self, arrays: Sequence[Any]) -> Any:
        """Return H_all, or H_t in its place where nobody reads all steps, and the last states."""

        @tf.custom_gradient
        def recurrence(*arrays: Any) -> Any:
            H_all, *found = self._forward(arrays)
            ends, saved = found[: self.states], found[self.states :]
            first = H_all if self.call.all_steps else ends[0]
            return [first, *ends], lambda *cotangents: self._gradient(arrays, [H_all, *saved], cotangents)

        return recurrence(*arrays)

    def _operands(self, arrays: Sequence[Any]) -> dict[str, Any]:
        X, *rest = arrays
        weights, rest = rest[: len(self.names)], rest[len(self.names) :]
        states, lengths = rest[: self.states], rest[self.states :]
        by_name = dict(zip(self.names, weights, strict=True))
        return operands(self.call, X, by_name, states, lengths[0] if lengths else None)

    def _forward(self, arrays: Sequence[Any]) -> list[Any]:
        kernel, (X, *_) = self.call.kernel, arrays
        saved = _SAVED[kernel][1:]

        def compute(*arrays: np.ndarray) -> list[np.ndarray]:
            made = getattr(xpgrad, kernel)(**self._operands(arrays), **self.call.attributes)
            ends = [made.H_t, made.C_t] if kernel == "lstm" else [made.H_t]
            return [made.H_all[:, :, 0], *(x[:, 0] for x in ends), *(getattr(made, n) for n in saved)]

        count = 1 + self.states + len(saved)
        found = tf.numpy_function(compute, [*arrays, *self.lengths], [X.dtype] * count, stateful=False)
        found = list(found) if count > 1 else [found]
        N, T, H = X.shape[0], X.shape[1], arrays[2].shape[0]
        for tensor, shape in zip(found, [(N, T, H), *[(N, H)] * self.states], strict=False):
            tensor.set_shape(shape)
        return found

    def _gradient(self, arrays: Sequence[Any], saved: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        count = len(arrays)

        @tf.custom_gradient
        def gradient(*tensors: Any) -> Any:
            grads = tf.numpy_function(
                lambda *given: self._pulled_back(given, count, len(saved)),
                [*tensors, *self.lengths],
                [array.dtype for array in arrays],
                stateful=False,
            )
            for grad, array in zip(grads, arrays, strict=True):
                grad.set_shape(array.shape)
            return grads, _refuse_second

        return gradient(*arrays, *saved, *cotangents)

    def _pulled_back(self, given: Sequence[np.ndarray], count: int, saved: int) -> list[np.ndarray]:
        kernel = self.call.kernel
        kept, rest = given[count : count + saved], given[count + saved :]
        first, *ends = rest[: 1 + self.states]
        H_all, *more = kept
        by_name = dict(zip(_SAVED[kernel], (H_all[:, :, None], *more), strict=True))
        if self.call.all_steps:
            by_name["grad_H_all"] = first[:, :, None]
        else:
            ends[0] = ends[0] + first
        by_name |= {f"grad_{n}_t": x[:, None] for n, x in zip("HC", ends, strict=False)}
        found = self._operands([*given[:count], *rest[1 + self.states :]])
        grads = getattr(xpgrad, f"{kernel}_grad")(**found, **by_name, **self.call.attributes)
        onnx = {"W": grads.dW[0], "R": grads.dR[0]} | ({"B": grads.dB[0]} if "bias" in self.names else {})
        keras = convert(
            kernel,  # type: ignore[arg-type]
            onnx,
            "onnx",
            "keras",
            linear_before_reset=self.call.reset_after,
            gradients=True,
        )
        states = [grads.dH0, grads.dC0] if kernel == "lstm" else [grads.dH0]
        return [grads.dX, *(keras[name] for name in self.names), *(x[:, 0] for x in states)]


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
