"""Everything that xpgrad_keras uses of Keras and TensorFlow beyond their documented interfaces."""

import ctypes
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import keras

_Layer = TypeVar("_Layer", bound=type)


def register_as_keras(layer: _Layer) -> _Layer:
    """Let files name a subclass of a layer as Keras' own layer; with xpgrad_keras they load as the subclass.

    A file has Keras' module and class name, so a process without xpgrad loads Keras' layer. The subclass is
    registered under this class name, which Keras accepts for its own layers.
    """
    from keras.src.saving import object_registration

    layer.__module__ = "keras.layers"
    name = layer.__name__
    registered: Any = keras.saving.register_keras_serializable(package="xpgrad_keras")(layer)
    objects = keras.saving.get_custom_objects()
    objects[name] = objects.pop(f"xpgrad_keras>{name}")
    object_registration.GLOBAL_CUSTOM_NAMES[layer] = name
    return registered


def sublayers(layer: Any) -> Iterator[Any]:
    """Return the layers that a layer or a model contains, in its order."""
    return iter(layer._layers)


def forget_compiled(model: Any) -> None:
    """Let a model compile its steps again: they were compiled with other layers."""
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
    if keras.backend.backend() == "tensorflow" and getattr(model, "_jit_compile", False):
        _with_xla.add(model)
        model._jit_compile = None  # Keras asks the layers again whether XLA may compile them
    elif model in _with_xla:
        _with_xla.discard(model)
        model._jit_compile = True


_with_xla = weakref.WeakSet[Any]()
"""Models that XLA compiled before a swap."""


def wanted_together(tensors: Sequence[Any]) -> list[list[int]]:
    """Return the tensors, by their numbers, of each operation that computes gradients.

    Outside of graphs these are the tensors that a tape of TensorFlow's watches, all if it watches none. In a
    graph, a tape around its call may watch the graph's own inputs, which the graph does not tell. So a second
    operation computes the gradients of all other tensors; TensorFlow leaves it out if nobody reads it. In the
    body of a loop the carried state is such an input, and usually read: there one operation computes all.
    """
    import tensorflow as tf
    from tensorflow.python.eager import record
    from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

    everything = list(range(len(tensors)))
    found = [k for k in everything if record.should_record_backprop([tensors[k]])]
    if tf.executing_eagerly():
        return [found or everything]
    if isinstance(tf.compat.v1.get_default_graph(), WhileBodyFuncGraph):
        return [everything]
    return [group for group in (found, [k for k in everything if k not in found]) if group]


def framework_library() -> ctypes.CDLL:
    """Return TensorFlow's library with its C functions."""
    import tensorflow as tf

    folder = Path(tf.sysconfig.get_lib())
    files = sorted(folder.glob("libtensorflow_framework*"))
    if not files:
        raise RuntimeError(f"there is no libtensorflow_framework in {folder}")
    return ctypes.CDLL(str(files[0]))


def registered(operation: str) -> tuple[bool, bool]:
    """Return whether TensorFlow knows an operation, and a kernel for it."""
    from tensorflow.python.framework import kernels, op_def_registry

    has_kernel = bool(kernels.get_registered_kernels_for_op(operation).kernel)
    return op_def_registry.get(operation) is not None, has_kernel


def apply_operation(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Return the results of an operation without a Python function; its inputs are one list.

    Attributes are integers, and `made`, the dtypes of the results. TensorFlow's generated functions for
    operations do the same.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context, execute
    from tensorflow.python.framework import op_def_library

    if not tf.executing_eagerly():
        return list(op_def_library.apply_op(name, inputs=inputs, **attributes))
    given = {"given": [x.dtype.as_datatype_enum for x in inputs]}
    made = {"made": [dtype.as_datatype_enum for dtype in attributes["made"]]}
    pairs = tuple(part for pair in {**attributes, **given, **made}.items() for part in pair)
    return execute.execute(name.encode(), len(made["made"]), list(inputs), pairs, context.context())
