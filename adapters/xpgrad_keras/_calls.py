"""From a layer of Keras to a kernel's call: its attributes, or why no kernel computes the layer."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

KERNELS = {keras.layers.LSTM: "lstm", keras.layers.GRU: "gru", keras.layers.SimpleRNN: "rnn"}
"""The kernel that computes a layer, or a layer of a subclass with the same cell."""
_CELLS = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell, "rnn": keras.layers.SimpleRNNCell}
_GATE_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (0, 1, 2), "rnn": (0,)}
"""For each of ONNX's gates, the number of its block in Keras' weights."""
_DTYPES = ("float16", "bfloat16", "float32", "float64")


class _NamedActivation(NamedTuple):
    """ONNX's function for one of Keras' functions, with its parameters."""

    name: str
    alpha: tuple[float, ...] = ()
    beta: tuple[float, ...] = ()


def _activations() -> dict[Callable[..., Any], _NamedActivation]:
    """Return ONNX's functions by Keras' functions, from `keras.activations` and from `keras.ops`."""
    by_name = {
        "elu": _NamedActivation("Elu", (1.0,)),
        "hard_sigmoid": _NamedActivation("HardSigmoid", (1 / 6,), (0.5,)),
        "leaky_relu": _NamedActivation("LeakyRelu", (0.2,)),
        "linear": _NamedActivation("Affine", (1.0,), (0.0,)),
        "relu": _NamedActivation("Relu"),
        "sigmoid": _NamedActivation("Sigmoid"),
        "softplus": _NamedActivation("Softplus"),
        "softsign": _NamedActivation("Softsign"),
        "sparse_sigmoid": _NamedActivation("HardSigmoid", (0.5,), (0.5,)),
        "tanh": _NamedActivation("Tanh"),
    }
    return {
        getattr(module, name): onnx
        for module in (keras.ops, keras.activations)
        for name, onnx in by_name.items()
        if hasattr(module, name)
    }


_ONNX = _activations()


class LayerCall(NamedTuple):
    """A call without its arrays: the kernel's name and attributes.

    `all_steps` says whether the caller reads the outputs of all steps.
    """

    kernel: str
    attributes: dict[str, Any]
    all_steps: bool


def _functions(kernel: str, cell: Any) -> Sequence[Any]:
    """Return the cell's activations in the kernel's order."""
    if kernel == "lstm":
        return cell.recurrent_activation, cell.activation, cell.activation
    if kernel == "gru":
        return cell.recurrent_activation, cell.activation
    return (cell.activation,)


def _known(function: Any) -> _NamedActivation | None:
    try:
        return _ONNX.get(function)
    except TypeError:  # a callable without a hash
        return None


def why_not(kernel: str, layer: Any, mask: Any, training: Any) -> str | None:
    """Return why the layer's kernel does not compute a call with this mask; None if it does."""
    cell = layer.cell
    if type(cell) is not _CELLS[kernel]:
        return f"its cell is a {type(cell).__name__}, expected Keras' {_CELLS[kernel].__name__}"
    if cell.compute_dtype not in _DTYPES:
        return f"it computes in {cell.compute_dtype}, expected one of {', '.join(_DTYPES)}"
    if getattr(layer, "use_cudnn", None) is True:
        return "use_cudnn is True, which asks for cuDNN"
    for function in _functions(kernel, cell):
        if _known(function) is None:
            name = getattr(function, "__name__", type(function).__name__)
            return f"its activation {name} is none of ONNX's recurrent operators"
    if training and cell.recurrent_dropout:
        return "recurrent_dropout is no option of the kernels"
    if training and cell.dropout and (cell.dropout >= 1 or getattr(cell, "dropout_mask_count", None)):
        return "dropout of 1, or with implementation=1, is no option of the kernels"
    if mask is not None and (layer.unroll or len(mask.shape) != 2):
        return (
            f"unroll is {layer.unroll} with a mask of shape {tuple(mask.shape)}, expected False and two axes"
        )
    return None


def call_of(kernel: str, layer: Any) -> LayerCall:
    """Return the kernel's call for a layer."""
    found = [_ONNX[function] for function in _functions(kernel, layer.cell)]
    attributes: dict[str, Any] = {
        # no lists, which may change: PyTorch's fast way to a program takes none
        "activations": tuple(function.name for function in found),
        "activation_alpha": tuple(number for function in found for number in function.alpha) or None,
        "activation_beta": tuple(number for function in found for number in function.beta) or None,
        "direction": "reverse" if layer.go_backwards else "forward",
        "gate_order": _GATE_ORDERS[kernel],
        "input_major": True,
    }
    if kernel == "gru":
        attributes["linear_before_reset"] = int(layer.cell.reset_after)
    return LayerCall(kernel, attributes, bool(layer.return_sequences))
