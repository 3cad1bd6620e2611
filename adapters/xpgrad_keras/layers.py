"""Keras' LSTM, GRU and SimpleRNN with a kernel instead of the loop over time."""

import warnings
from typing import Any, ClassVar

import keras
from keras import ops

from xpgrad_keras._backends import backend
from xpgrad_keras._calls import KERNELS, call_of, why_not
from xpgrad_keras._masks import kept_steps
from xpgrad_keras._private import register_as_keras

__all__ = ["GRU", "LSTM", "SimpleRNN"]

_machine = backend()

_said: set[str] = set()
"""The reasons why Keras' own loop ran, each of which was reported once."""


class _KernelLayer:
    """A layer of Keras whose loop over time is a kernel's call.

    Everything else is Keras': weights, configuration, files, states, masks of dropout. Keras' own loop runs
    if no kernel computes the layer's call.
    """

    _KERNEL: ClassVar[str]

    @property
    def supports_jit(self) -> bool:
        """Whether Keras may compile a model with this layer by default."""
        if "supports_jit" not in self.__dict__:  # TensorFlow asks before Keras sets it
            raise AttributeError("supports_jit")
        return bool(self.__dict__["supports_jit"]) and _machine.supports_jit

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        self.__dict__["supports_jit"] = value

    def __repr__(self) -> str:
        layer: Any = self
        return f"<xpgrad_keras.{type(self).__name__} name={layer.name}, built={layer.built}>"

    def __reduce__(self) -> Any:
        """Pickle the class by its place here: for files it has Keras' name."""
        reduced: Any = super().__reduce__()
        make, arguments, *rest = reduced  # Keras' method of the class, which reads a file
        name = type(self).__name__
        if globals().get(name) is not type(self):
            return make, arguments, *rest
        return _remade, (name, make.__name__, *arguments), *rest

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> tuple[Any, Any, list[Any]]:
        """Return the last output, all outputs, and the last states, as Keras' `inner_loop` does."""
        layer: Any = self
        mask = mask[0] if isinstance(mask, list | tuple) else mask  # one mask for each of several inputs
        takes = _machine.takes(sequences, layer.cell.kernel.value, mask)
        reason = why_not(self._KERNEL, layer, mask, training) if takes else None
        if reason is not None and reason not in _said:
            _said.add(reason)
            kind = type(self).__name__
            warnings.warn(f"xpgrad_keras.{kind}: {reason}: Keras' own loop computes it", stacklevel=2)
        if reason is not None or not takes:
            return super().inner_loop(sequences, initial_state, mask=mask, training=training)  # type: ignore[misc]
        if training and layer.cell.dropout:
            dropped = layer.cell.get_dropout_mask(sequences[:, 0, :])
            sequences = sequences * dropped[:, None]
        return _computed(self._KERNEL, layer, sequences, initial_state, mask)


def _remade(name: str, method: str, *arguments: Any) -> Any:
    """Return a layer from a pickle: by a method of its class here."""
    return getattr(globals()[name], method)(*arguments)


def _computed(kernel: str, layer: Any, X: Any, initial_state: Any, mask: Any) -> tuple[Any, Any, list[Any]]:
    """Return the results of `inner_loop`, from the kernel."""
    dtype, cell = layer.cell.compute_dtype, layer.cell
    X = ops.cast(X, dtype)
    weights = {name: getattr(cell, name) for name in ("kernel", "recurrent_kernel", "bias")}
    weights = {n: ops.convert_to_tensor(x, dtype=dtype) for n, x in weights.items() if x is not None}
    states = list(initial_state) if isinstance(initial_state, list | tuple) else [initial_state]
    # a stateful layer overwrites its old states, which the gradient needs
    states = [ops.copy(h) if layer.stateful else h for h in states]
    states = [_broadcast(h, X, 1) for h in states]
    call = call_of(kernel, layer)
    if mask is None:
        H_all, ends = _machine.run(call, X, weights, states, None)
        outputs = ops.flip(H_all, axis=1) if call.all_steps and layer.go_backwards else H_all
        return ends[0], outputs if call.all_steps else ends[0][:, None], ends
    kept = kept_steps(_broadcast(mask, X, 2) if len(mask.shape) == 2 else mask, _machine)
    H_all, ends = _machine.run(call, kept.in_front(X), weights, states, kept.lengths)
    start = states[0] if _machine.starts_at_state else ops.zeros_like(states[0])
    last = _machine.where((kept.lengths > 0)[:, None], ends[0], start)
    zero = layer.zero_output_for_mask
    if not call.all_steps:
        is_kept = kept.mask[:, 0 if layer.go_backwards else -1][:, None]
        last = _machine.where(is_kept, last, ops.zeros_like(last)) if zero else last
        return last, last[:, None], ends
    outputs = kept.outputs(H_all, last, start, layer.go_backwards, zero)
    outputs = ops.flip(outputs, axis=1) if layer.go_backwards else outputs
    return outputs[:, -1], outputs, ends


def _broadcast(array: Any, X: Any, axes: int) -> Any:
    """Return a mask or a state with so many first axes of X, to which Keras broadcasts it."""
    known, expected = tuple(array.shape[:axes]), tuple(X.shape[:axes])
    if known == expected and None not in known:
        return array
    return ops.broadcast_to(array, (*ops.shape(X)[:axes], *array.shape[axes:]))


@register_as_keras
class LSTM(_KernelLayer, keras.layers.LSTM):
    """Keras' LSTM on xpgrad's kernel.

    Arguments, weights, configuration and saved files equal those of ``keras.layers.LSTM``. A file names
    Keras' class, so it loads without xpgrad too.

    Examples
    --------
    >>> import keras
    >>> import xpgrad_keras
    >>> layer = xpgrad_keras.LSTM(4, return_sequences=True)
    >>> tuple(layer(keras.ops.ones((2, 5, 3))).shape)
    (2, 5, 4)
    """

    _KERNEL = KERNELS[keras.layers.LSTM]


@register_as_keras
class GRU(_KernelLayer, keras.layers.GRU):
    """Keras' GRU on xpgrad's kernel.

    Arguments, weights, configuration and saved files equal those of ``keras.layers.GRU``. A file names
    Keras' class, so it loads without xpgrad too.

    Examples
    --------
    >>> import keras
    >>> import xpgrad_keras
    >>> layer = xpgrad_keras.GRU(4)
    >>> tuple(layer(keras.ops.ones((2, 5, 3))).shape)
    (2, 4)
    """

    _KERNEL = KERNELS[keras.layers.GRU]


@register_as_keras
class SimpleRNN(_KernelLayer, keras.layers.SimpleRNN):
    """Keras' SimpleRNN on xpgrad's kernel.

    Arguments, weights, configuration and saved files equal those of ``keras.layers.SimpleRNN``. A file names
    Keras' class, so it loads without xpgrad too.

    Examples
    --------
    >>> import keras
    >>> import xpgrad_keras
    >>> layer = xpgrad_keras.SimpleRNN(4, activation="relu")
    >>> tuple(layer(keras.ops.ones((2, 5, 3))).shape)
    (2, 4)
    """

    _KERNEL = KERNELS[keras.layers.SimpleRNN]
