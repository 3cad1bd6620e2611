"""Replace the layers of a Keras model by xpgrad's."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import keras

from xpgrad._operators.report_table import ReportRow, report_text
from xpgrad_keras._calls import why_not
from xpgrad_keras._private import forget_compiled, sublayers
from xpgrad_keras.layers import GRU, LSTM, SimpleRNN

_Layer = TypeVar("_Layer", bound=keras.layers.Layer)
_REPLACEMENTS: Mapping[type, type] = {
    keras.layers.LSTM: LSTM,
    keras.layers.GRU: GRU,
    keras.layers.SimpleRNN: SimpleRNN,
}
_OURS = {ours: theirs for theirs, ours in _REPLACEMENTS.items()}


class SwapReport(NamedTuple):
    """The layers that `swap` replaces and leaves.

    Parameters
    ----------
    rows : tuple of ReportRow
        A row for each recurrent layer, and each other layer with its own weights, in the model's order.
        `str()` returns a table.
    """

    rows: tuple[ReportRow, ...]

    def __str__(self) -> str:
        return report_text(self.rows, "layer", "layers with weights")


def swap(model: _Layer, *, verbose: bool = False) -> _Layer:
    """Let xpgrad's kernels compute the recurrent layers of a model.

    It replaces layers whose type is exactly Keras' LSTM, GRU or SimpleRNN, anywhere in the model: in
    Sequential, functional and subclassed models, in Bidirectional and other wrappers. Each remains the same
    object, with its weights, name, states and place in the graph; only its class changes. So optimizers,
    losses, metrics and callbacks continue. The model's compiled functions are compiled again. Subclasses are
    not replaced, because they may compute something else.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        The model or a single layer, which is changed.
    verbose : bool
        Print the table of `swap_report`.

    Returns
    -------
    keras.Model or keras.layers.Layer
        The same object.

    Raises
    ------
    TypeError
        If `model` is no layer of Keras.

    See Also
    --------
    unswap : Puts Keras' layers back.
    swap_report : The layers that would be replaced.

    Examples
    --------
    >>> import keras
    >>> import xpgrad_keras
    >>> model = keras.Sequential([keras.layers.Input((5, 3)), keras.layers.LSTM(4, name="memory")])
    >>> xpgrad_keras.swap(model) is model
    True
    >>> model.layers[0]
    <xpgrad_keras.LSTM name=memory, built=True>
    """
    _check("swap", model)
    found = swap_report(model)
    for why in dict.fromkeys(row.why for row in found.rows if row.warns):
        warnings.warn(f"swap: {why}", stacklevel=2)
    _change(model, _REPLACEMENTS)
    if verbose:
        print(found)
    return model


def unswap(model: _Layer) -> _Layer:
    """Replace xpgrad's layers by Keras' layers.

    Each remains the same object, with its weights.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        The model or a single layer, which is changed.

    Returns
    -------
    keras.Model or keras.layers.Layer
        The same object.

    Raises
    ------
    TypeError
        If `model` is no layer of Keras.

    Examples
    --------
    >>> import keras
    >>> import xpgrad_keras
    >>> layer = xpgrad_keras.unswap(xpgrad_keras.GRU(4))
    >>> type(layer) is keras.layers.GRU
    True
    """
    _check("unswap", model)
    _change(model, _OURS)
    return model


def swap_report(model: keras.layers.Layer) -> SwapReport:
    """Report which layers of a model `swap` would replace, and why not the others, without a change.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        The model.

    Returns
    -------
    SwapReport
        A row for each recurrent layer, and each other layer with its own weights; printed, a table.

    Raises
    ------
    TypeError
        If `model` is no layer of Keras.

    Examples
    --------
    >>> import keras
    >>> import xpgrad_keras
    >>> from keras import layers
    >>> stack = [layers.Input((5, 3)), layers.GRU(4, name="gru"), layers.Dense(1, name="out")]
    >>> print(xpgrad_keras.swap_report(keras.Sequential(stack)))
    layer  type   now               why
    gru    GRU    xpgrad_keras.GRU
    out    Dense  unchanged         xpgrad has no Dense
    1 of 2 layers with weights replaced
    """
    _check("swap_report", model)
    names: dict[int, list[str]] = {}
    layers: dict[int, keras.layers.Layer] = {}
    for name, layer in _named(model, "", ()):
        layers[id(layer)] = layer
        names.setdefault(id(layer), []).append(name)
    rows = [_row(tuple(dict.fromkeys(names[key])), layer) for key, layer in layers.items()]
    return SwapReport(tuple(row for row in rows if row is not None))


def _check(function: str, model: Any) -> None:
    if not isinstance(model, keras.layers.Layer):
        found = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"{function}: model is {found}, expected a model or a layer of Keras")


def _change(model: keras.layers.Layer, kinds: Mapping[type, type]) -> None:
    """Change the classes of layers; models forget their compiled functions."""
    layers = list({id(layer): layer for _, layer in _named(model, "", ())}.values())
    changed = [layer for layer in layers if type(layer) in kinds and _why_never(layer) is None]
    for layer in changed:
        layer.__class__ = kinds[type(layer)]
    if changed:
        for layer in layers:
            forget_compiled(layer)


def _why_never(layer: keras.layers.Layer) -> str | None:
    """Return why no kernel computes a recurrent layer of Keras, even without dropout; None if one does."""
    ours = _REPLACEMENTS.get(type(layer))
    return None if ours is None else why_not(ours._KERNEL, layer, None, False)  # type: ignore[attr-defined]


def _named(
    layer: keras.layers.Layer, name: str, above: tuple[int, ...]
) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Return a layer and all layers in it, with their names, but no cells of recurrent layers."""
    yield name, layer
    if isinstance(layer, keras.layers.RNN):
        return
    for part in sublayers(layer):
        if id(part) not in above:
            yield from _named(part, f"{name}/{part.name}".lstrip("/"), (*above, id(layer)))


def _row(names: tuple[str, ...], layer: keras.layers.Layer) -> ReportRow | None:
    """Return a layer's row; None if it has no weights of its own and is not recurrent."""
    kind = type(layer)
    ours = _REPLACEMENTS.get(kind)
    if ours is not None:
        if (why := _why_never(layer)) is not None:
            return ReportRow(names, kind.__name__, "unchanged", why, True)
        why = why_not(ours._KERNEL, layer, None, True)  # type: ignore[attr-defined]
        note = f"in training Keras' own loop computes it: {why}" if why else ""
        return ReportRow(names, kind.__name__, f"xpgrad_keras.{ours.__name__}", note, False)
    below = {id(v) for part in sublayers(layer) for v in part.weights}
    if not isinstance(layer, keras.layers.RNN) and all(id(v) in below for v in layer.weights):
        return None
    if kind in _OURS:
        why = "it is xpgrad's already"
    else:
        bases = [base.__name__ for base in kind.__mro__[1:] if base in _REPLACEMENTS]
        why = f"xpgrad has no {kind.__name__}"
        if bases:
            why = f"it is a subclass of {bases[0]}, which may compute something else"
    return ReportRow(names, kind.__name__, "unchanged", why, False)
