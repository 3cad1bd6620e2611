"""What is used of Keras and TensorFlow that their documentation does not promise: each name once."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import keras

__all__ = [
    "apply_operation",
    "first_of",
    "forget_compiled",
    "framework_library",
    "register_as_keras",
    "sublayers",
    "watched",
]

_Layer = TypeVar("_Layer", bound=type)


def register_as_keras(layer: _Layer) -> _Layer:
    """Let files name a subclass of a layer as Keras' own, and load it as the subclass where it is known.

    A file has the module and the class of Keras, where a process without xpgrad finds Keras' layer. The name
    under which the subclass is registered is the name of that class, which Keras accepts for its own layers.
    """
    layer.__module__ = "keras.layers"
    name = layer.__name__
    registered: Any = keras.saving.register_keras_serializable(package="xpgrad_keras")(layer)
    objects = keras.saving.get_custom_objects()
    objects[name] = objects.pop(f"xpgrad_keras>{name}")
    _registered_names()[layer] = name
    return registered


def _registered_names() -> dict[type, str]:
    """Return Keras' table of the names under which classes are registered."""
    from keras.src.saving import object_registration

    return object_registration.GLOBAL_CUSTOM_NAMES


def first_of(mask: Any) -> Any:
    """Return a mask that may stand in a list, as that of an input among several."""
    return mask[0] if isinstance(mask, list | tuple) else mask


def sublayers(layer: Any) -> Iterator[Any]:
    """Return the layers that a layer or a model holds, in its order."""
    return iter(layer._layers)


def forget_compiled(model: Any) -> None:
    """Let a model compile its steps anew: they were compiled with other layers."""
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
    if keras.backend.backend() == "tensorflow" and getattr(model, "_jit_compile", None) is not None:
        model._jit_compile = None  # Keras asks the layers again whether XLA takes them


def watched(tensors: Sequence[Any]) -> list[int]:
    """Return the numbers of those of TensorFlow's tensors that a tape watches; of all, where it watches none.

    Then there may be no tape: ``tf.gradients`` reads the graph.
    """
    from tensorflow.python.eager import record

    found = [k for k, tensor in enumerate(tensors) if record.should_record_backprop([tensor])]
    return found or list(range(len(tensors)))


def framework_library() -> ctypes.CDLL:
    """Return the library of TensorFlow's that has its functions in C."""
    import tensorflow as tf

    folder = Path(tf.sysconfig.get_lib())
    files = sorted(folder.glob("libtensorflow_framework*"))
    if not files:
        raise RuntimeError(f"there is no libtensorflow_framework in {folder}")
    return ctypes.CDLL(str(files[0]))


def apply_operation(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Return the results of an operation that has no function in Python; its inputs are one list.

    Attributes are integers, and `made`, the dtypes of the results. So do the functions that TensorFlow writes
    for a library with operations.
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
