"""The core's kernels for Keras on TensorFlow: operations with their own gradients."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from xpgrad._operators.for_adapters import run_foreign
from xpgrad._operators.kernel_description import ORDERED, KernelDescription
from xpgrad_keras import _programs
from xpgrad_keras._backends import KerasBackend, computed
from xpgrad_keras._calls import LayerCall
from xpgrad_keras._private import wanted_together


class _TensorFlow(KerasBackend):
    supports_jit = False
    where = staticmethod(tf.where)

    def takes(self, X: Any, W: Any, mask: Any) -> bool:
        return not tf.config.list_logical_devices("GPU")

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        if tf.executing_eagerly():
            return super().choose(condition, yes, no)
        return tf.cond(condition, yes, no)

    def run(
        self, call: LayerCall, X: Any, weights: Mapping[str, Any], states: Sequence[Any], lengths: Any
    ) -> tuple[Any, list[Any]]:
        _refuse_xla()
        # no half precision here: the kernels keep sums of float16 in float32 anyway
        dtype = X.dtype
        wide = tf.float32 if dtype.size == 2 else dtype
        narrow = {name: tf.cast(x, wide) for name, x in weights.items()}
        arrays = tf.cast(X, wide), narrow, [tf.cast(h, wide) for h in states]
        run = functools.partial(_recurrence, all_steps=call.all_steps)
        H_all, ends = computed(run, _NAMESPACE, call, *arrays, lengths, layout=1)
        return H_all if H_all is None else tf.cast(H_all, dtype), [tf.cast(end, dtype) for end in ends]


_NAMESPACE = SimpleNamespace(reshape=tf.reshape, squeeze=tf.squeeze, stack=tf.stack, zeros_like=tf.zeros_like)


class _Kernel(KernelDescription):
    """A kernel and its gradient, on arrays of NumPy or of a recorder."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ordered=True)
        self.ways: list[Callable[..., Any]] = [
            functools.partial(run_foreign, self.function(0), keep_products=self.keeps_products),
            functools.partial(run_foreign, self.function(1)),
        ]
        """The kernel and its gradient."""


_KERNELS = {name: _Kernel(name) for name in ORDERED}


def _applied(
    which: int, kernel: _Kernel, tensors: Mapping[str, Any], options: Mapping[str, Any], made: int
) -> list[Any]:
    """Return the `made` results of the kernel (0) or its gradient (1)."""
    run, names, values = kernel.ways[which], tuple(tensors), list(tensors.values())
    dtype = values[0].dtype
    if _programs.why_not() is None:
        dtypes = [x.dtype.as_numpy_dtype for x in values]
        return _programs.run(_programs.call_of(run, names, dtypes, options, made), values)

    def compute(*arrays: np.ndarray) -> list[np.ndarray]:
        results = run(**dict(zip(names, arrays, strict=True)), **options)
        return [x for x in results if x is not None]

    found = tf.numpy_function(compute, values, [dtype] * made, stateful=False)
    return [*found] if isinstance(found, list | tuple) else [found]  # a single result is no list


def _recurrence(name: str, given: dict[str, Any], wanted: int, all_steps: bool) -> list[Any]:
    """Return a kernel's first outputs, `wanted` of them; None for H_all if nobody reads it."""
    kernel = _KERNELS[name]
    tensors = {name: x for name in kernel.operands if (x := given.pop(name, None)) is not None}
    fixed = {}
    if (lengths := tensors.pop("sequence_lens", None)) is not None:
        fixed["sequence_lens"] = _here(tf.cast(lengths, tf.int64))
    names = [*tensors]
    groups = [[names[number] for number in group] for group in wanted_together([*tensors.values()])]
    tensors = {name: _here(x) for name, x in tensors.items()}
    seen = kernel.outputs[:wanted] if all_steps else kernel.outputs[1:wanted]
    # only the gradient reads these outputs of the forward, so they may be rows
    options = given | {"rows_of": [n for n in kernel.saved if n not in seen]}

    @tf.custom_gradient
    def recurrence(*values: Any) -> Any:
        here = dict(zip(tensors, values, strict=True)) | fixed
        made = _applied(0, kernel, here, options, len(kernel.outputs))
        outputs = dict(zip(kernel.outputs, made, strict=True))
        N, T, H = values[0].shape[0], values[0].shape[1], tensors["R"].shape[1]
        for output, x in outputs.items():
            if output in seen:
                x.set_shape((N, T, 1, H) if output == "H_all" else (N, 1, H))

        def pulled_back(*cotangents: Any) -> list[Any]:
            known = {name: x for name, x in here.items() if name in kernel.taken}
            known |= {name: outputs[name] for name in kernel.saved}
            by_output = dict(zip(kernel.outputs, kernel.cotangents, strict=False))
            known |= {by_output[name]: x for name, x in zip(seen, cotangents, strict=True)}
            grads: dict[str, Any] = {}
            for wrt in groups:
                grads |= _gradient(kernel, known, options, wrt)
            return [grads.get(name) for name in tensors]

        return [outputs[name] for name in seen], pulled_back

    found = dict(zip(seen, recurrence(*tensors.values()), strict=True))
    return [found.get(name) for name in kernel.outputs[:wanted]]


def _here(x: Any) -> Any:
    """The tensor in the graph that is being built: a gradient in a branch of tf.cond may read no others."""
    return x if tf.executing_eagerly() else tf.identity(x)


def _gradient(
    kernel: _Kernel, known: Mapping[str, Any], options: Mapping[str, Any], wrt: Sequence[str]
) -> dict[str, Any]:
    """Return a kernel's gradients by operand."""
    ordered = [name for name in kernel.graded if name in wrt]

    @tf.custom_gradient
    def gradient(*values: Any) -> Any:
        arrays = dict(zip(known, values, strict=True))
        grads = _applied(1, kernel, arrays, {**options, "wrt": wrt}, len(wrt))
        for grad, name in zip(grads, ordered, strict=True):
            grad.set_shape(known[name].shape if name in known else (1, None))
        return grads, functools.partial(_refuse_second, values)

    return dict(zip(ordered, gradient(*known.values()), strict=True))


_NO_SECOND = (
    "xpgrad_keras: a second derivative or forward mode is asked for on TensorFlow, expected a first one: "
    "xpgrad_keras.unswap(model) has Keras' layers, which have more"
)


def _refuse_second(operands: Sequence[Any], *cotangents: Any) -> list[Any]:
    """Raise ValueError; in a graph, return gradients of the operands whose computation raises an error.

    Around a function with a loop, a persistent tape prepares second derivatives that nobody asks for.
    """
    if tf.executing_eagerly():
        raise ValueError(_NO_SECOND)
    with tf.control_dependencies([tf.debugging.Assert(False, [_NO_SECOND])]):
        return [tf.zeros([n or 1 for n in x.shape] if x.shape.rank else (), x.dtype) for x in operands]


def _refuse_xla() -> None:
    """Raise an error if XLA compiles, which cannot call a kernel."""
    from tensorflow.python.ops import control_flow_util

    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    ):
        raise ValueError(
            "xpgrad_keras: jit_compile is True on TensorFlow, expected False: XLA cannot call the kernels; "
            "xpgrad_keras.unswap(model) has Keras' layers, which it compiles"
        )


BACKEND = _TensorFlow()
