"""Recurrent weights, and gradients, between the layouts of ONNX, PyTorch, Keras, cuDNN, Flax and Equinox.

Data describes each layout: the order of its gates, the names of its arrays, whether weights are transposed,
and how biases are stored. `convert` goes through ONNX's order and moves blocks of rows. Cells of Flax and
Equinox are converted through PyTorch's layout (`_recurrent.cell_layouts`).

References
----------
ONNX operators LSTM, GRU and RNN; the documentation of ``torch.nn.LSTM``, ``torch.nn.GRU`` and
``torch.nn.RNN``; Keras' LSTM, GRU and SimpleRNN layers; cuDNN's ``cudnnGetRNNWeightParams`` for the numbers
of its matrices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from xpgrad._operators.arguments import check_arrays, check_choice, check_shape
from xpgrad._operators.types import A, Array
from xpgrad._operators.words import Layout, Operator
from xpgrad._recurrent import cell_layouts as _cell_layouts
from xpgrad._recurrent import head_layouts as _head_layouts

_CONVERT = "convert"


class _WeightLayout(NamedTuple):
    """How one framework stores the parameters of one recurrent operator."""

    input: str
    recurrent: str
    biases: tuple[str, ...]
    """One name for all biases, or two for input and recurrence biases."""
    transposed: bool = False
    """Whether weights are (in, gates) instead of (gates, in)."""
    stacked: bool = False
    """Whether two biases under one name are rows of a matrix instead of one vector."""
    peephole: str | None = None
    """The name of the peepholes, in the order i o f; None if the framework has none."""
    gates: str = ""
    """The order of gates, in ONNX's letters."""


_ARRAYS = {
    "onnx": _WeightLayout("W", "R", ("B",), peephole="P"),
    "torch": _WeightLayout("weight_ih", "weight_hh", ("bias_ih", "bias_hh"), peephole="weight_peephole"),
    "keras": _WeightLayout("kernel", "recurrent_kernel", ("bias",), transposed=True, stacked=True),
    "cudnn": _WeightLayout("W", "R", ("bW", "bR")),
}
_GATES = {  # in the order of these layouts
    "lstm": ("iofc", "ifco", "ifco", "ifco"),
    "gru": ("zrh", "rzh", "zrh", "rzh"),
    "rnn": ("h", "h", "h", "h"),
}
_LAYOUTS = {
    operator: {
        name: arrays._replace(gates=gates, peephole=arrays.peephole if operator == "lstm" else None)
        for (name, arrays), gates in zip(_ARRAYS.items(), orders, strict=True)
    }
    for operator, orders in _GATES.items()
}


def convert(
    operator: Operator,
    parameters: Mapping[str, Array[A]],
    source: Layout,
    target: Layout,
    *,
    linear_before_reset: int = 0,
    biases: int | None = None,
    gradients: bool = False,
) -> dict[str, A]:
    """Convert the parameters of a recurrent operator, or their gradients, between frameworks' layouts.

    =======  ==========  =================================================================================
    layout   gates       arrays, for G = 4 (LSTM), 3 (GRU) or 1 (RNN) gates
    =======  ==========  =================================================================================
    onnx     iofc, zrh   W (GH, I), R (GH, H), B (2GH,), P (3H,)
    torch    ifgo, rzn   weight_ih (GH, I), weight_hh (GH, H), bias_ih (GH,), bias_hh (GH,),
                         weight_peephole (3H,) of `xpgrad_torch.LSTM`
    keras    ifco, zrh   kernel (I, GH), recurrent_kernel (H, GH), bias (GH,) or (2, GH)
    cudnn    ifgo, rzn   W (GH, I), R (GH, H), bW (GH,), bR (GH,): matrices 0 to G - 1, then G to 2G - 1
    flax     ifgo, rzn   linen's: for each gate, such as i, "ii": {"kernel": (I, H)} and
                         "hi": {"kernel": (H, H), "bias": (H,)}; the GRU's biases are in "ir", "iz", "in",
                         "hn"; the RNN has {"i": {"kernel", "bias"}, "h": {"kernel"}}
    equinox  ifgo, rzn   weight_ih (GH, I), weight_hh (GH, H), bias (GH,), the GRU's bias_n (H,)
    =======  ==========  =================================================================================

    Parameters
    ----------
    operator : {"lstm", "gru", "rnn", "slstm"}
        The operator.
    parameters : mapping of str to array
        Arrays by the source layout's names. Any may be missing. Leading axes, such as D, are kept. PyTorch's
        names may end with one layer, as in a module's ``state_dict()``: weight_ih_l0, bias_hh_l1_reverse.
    source, target : {"onnx", "torch", "keras", "cudnn", "flax", "equinox"}
        Layouts. Flax and Equinox have only the reset after the product, ``linear_before_reset=1``, and one
        bias for the sum of two. Equinox has no RNN. The sLSTM, of one direction, has the layouts "onnx" (W, R
        and B of `slstm`), "xlstm" (a cell's ``_recurrent_kernel_`` and ``_bias_`` of either backend; as a
        target, of the plain backend) and "flashrnn" (R and b).
    linear_before_reset : {0, 1}
        The GRU's reset convention; no conversion changes it. 1 is PyTorch's, cuDNN's and Keras'
        ``reset_after=True``. With 1 the reset gate multiplies the candidate's recurrence bias, so this bias
        cannot be added to the input bias.
    biases : {1, 2}, optional
        The number of bias vectors in Keras' layout. The default is 2 for the GRU with reset after, 1 for the
        LSTM, the RNN and the GRU with reset before. The other layouts have 2.
    gradients : bool
        Whether the arrays are gradients. If two biases act as their sum, the gradient of each is the sum's
        gradient. As weights, two biases become their sum, and one bias b becomes (b, 0).

    Returns
    -------
    dict of str to array
        Arrays by the target layout's names. Blocks are only moved, so a conversion and its inverse give the
        same bits. The exception is two biases that become one: they are added, and come back as (sum, 0).

    Raises
    ------
    ValueError
        If a name, a shape or an option breaks its rule; for peepholes, if the target has none; for a
        candidate's recurrence bias other than 0 that the target would add; for different gradients of two
        biases that the target joins.
    TypeError
        If an argument is not an array, or arrays differ in namespace, dtype or device.

    Examples
    --------
    >>> import numpy as np
    >>> from xpgrad import convert
    >>> onnx = {"W": np.arange(12.0).reshape(4, 3), "R": np.arange(4.0).reshape(4, 1)}  # H = 1, rows i o f c
    >>> torch = convert("lstm", onnx, "onnx", "torch")
    >>> torch["weight_hh"][:, 0]
    array([0., 2., 3., 1.])
    >>> np.array_equal(convert("lstm", torch, "torch", "onnx")["W"], onnx["W"])
    True
    """
    check_choice(_CONVERT, "operator", operator, (*_LAYOUTS, "slstm"))
    if not isinstance(parameters, Mapping):
        raise TypeError(
            f"convert: parameters is a {type(parameters).__name__}, expected a mapping of names to arrays"
        )
    check_choice(_CONVERT, "linear_before_reset", linear_before_reset, (0, 1, False, True))
    check_choice(_CONVERT, "gradients", gradients, (False, True))
    if operator == "slstm":
        if biases is not None:
            raise ValueError(f"convert: biases is {biases} with operator 'slstm', expected None: it has one")
        return _head_layouts.convert_slstm(parameters, source, target)
    layouts = _LAYOUTS[operator]
    cells = _cell_layouts.CELLS[operator]
    check_choice(_CONVERT, "source", source, (*layouts, *cells))
    check_choice(_CONVERT, "target", target, (*layouts, *cells))
    if biases is not None:
        check_choice(_CONVERT, "biases", biases, (1, 2))
        if target != "keras":
            raise ValueError(f"convert: biases is {biases} with target {target!r}, expected target 'keras'")
    if source == "torch":
        parameters = _without_layer(parameters)
    if source in _cell_layouts.READERS or target in _cell_layouts.WRITERS:
        return _convert_cell(operator, parameters, source, target, linear_before_reset, biases, gradients)
    given = {name: array for name, array in parameters.items() if array is not None}
    if not given:
        return {}
    old, new = layouts[source], layouts[target]
    names = [old.input, old.recurrent, *old.biases, *([old.peephole] if old.peephole else [])]
    _cell_layouts.check_names(given, names, source)
    xp = check_arrays(_CONVERT, given)
    after = operator == "gru" and bool(linear_before_reset)
    if biases is None and target == "keras":
        biases = 2 if after else 1
    result = {}
    for old_name, new_name in ((old.input, new.input), (old.recurrent, new.recurrent)):
        if old_name in given:
            result[new_name] = _convert_weight(xp, given[old_name], old_name, old, new)
    halves = _read_biases(xp, given, old, gradients, after)
    _check_hidden_sizes(given, old, halves)
    if halves is not None:
        ordered = [_reorder(xp, half, old.gates, new.gates, -1) for half in halves]
        if biases == 1:
            result[new.biases[0]] = _merge(xp, ordered, new.gates, gradients, after)
        else:
            result |= _write_biases(xp, ordered, new)
    if old.peephole in given:
        if new.peephole is None:
            raise ValueError(
                f"convert: {old.peephole} holds peepholes, expected none for the target {target!r}, "
                "which has no place for them"
            )
        result[new.peephole] = given[old.peephole]
    return result


def _check_hidden_sizes(given: Mapping[str, Any], layout: _WeightLayout, halves: list[Any] | None) -> None:
    """Raise ValueError for arrays of different hidden sizes H or leading axes."""
    gates, rows = len(layout.gates), -1 if layout.transposed else -2
    weights = [name for name in (layout.input, layout.recurrent) if name in given]
    sizes = {name: (*given[name].shape[:-2], given[name].shape[rows] // gates) for name in weights}
    if halves is not None:
        sizes[layout.biases[0]] = (*halves[0].shape[:-1], halves[0].shape[-1] // gates)
    if layout.peephole is not None and layout.peephole in given:
        shape = given[layout.peephole].shape
        _check_multiple(layout.peephole, given[layout.peephole], -1, 3)
        sizes[layout.peephole] = (*shape[:-1], shape[-1] // 3)
    first = next(iter(sizes))
    for name, size in sizes.items():
        if size != sizes[first]:
            raise ValueError(
                f"convert: {name} has shape {tuple(given[name].shape)}, so (..., H) = {size}, expected "
                f"{sizes[first]}, as {first} with shape {tuple(given[first].shape)}"
            )


def _without_layer(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """PyTorch's names without the layer at their ends, as in weight_ih_l0_reverse."""
    parts = {name: re.fullmatch(r"(.+?)(_l\d+(?:_reverse)?)?", str(name)) for name in parameters}
    layers = dict.fromkeys(part[2] for part in parts.values() if part)
    if len(layers) > 1:
        found = ", ".join(str(layer or "none").removeprefix("_") for layer in layers)
        raise ValueError(
            f"convert: parameters has the layers {found}, expected one layer in one direction: convert each "
            "on its own"
        )
    return {part[1] if part else name: parameters[name] for name, part in parts.items()}


def _convert_cell(
    operator: str,
    parameters: Mapping[str, Array[A]],
    source: str,
    target: str,
    linear_before_reset: int,
    biases: int | None,
    gradients: bool,
) -> dict[str, Any]:
    """Convert from or to the layout of a framework's cell, through PyTorch's."""
    if operator == "gru" and not linear_before_reset:
        cell = source if source in _cell_layouts.READERS else target
        raise ValueError(
            f"convert: linear_before_reset is {linear_before_reset}, expected 1 for the layout {cell!r}, "
            "whose reset gate multiplies the product"
        )
    options: dict[str, Any] = {"linear_before_reset": linear_before_reset, "gradients": gradients}
    if source in _cell_layouts.READERS:
        arrays = _cell_layouts.flattened(operator, source, parameters)
        if not arrays:
            return {}
        xp = check_arrays(_CONVERT, arrays)
        parameters = _cell_layouts.READERS[source](xp, operator, parameters, gradients)
        source = "torch"
    between: Any = convert  # the layouts' names were checked
    if target not in _cell_layouts.WRITERS:
        return between(operator, parameters, source, target, biases=biases, **options)
    arrays = between(operator, parameters, source, "torch", **options)
    if not arrays:
        return {}
    if "weight_peephole" in arrays:
        raise ValueError(
            f"convert: parameters holds peepholes, expected none for the target {target!r}, which has no "
            "place for them"
        )
    return _cell_layouts.WRITERS[target](check_arrays(_CONVERT, arrays), operator, arrays, gradients)


def _convert_weight(xp: Any, weight: Any, name: str, old: _WeightLayout, new: _WeightLayout) -> Any:
    if weight.ndim < 2:
        raise ValueError(
            f"convert: {name} has {weight.ndim} dimensions with shape {tuple(weight.shape)}, "
            f"expected at least 2"
        )
    if old.transposed:
        weight = xp.matrix_transpose(weight)
    weight = _reorder(xp, weight, old.gates, new.gates, -2, name)
    return xp.matrix_transpose(weight) if new.transposed else weight


def _check_multiple(name: str, array: Any, axis: int, count: int) -> None:
    """Raise ValueError unless the array has a block of rows for each of `count` gates."""
    if array.ndim == 0 or array.shape[axis] % count:
        raise ValueError(
            f"convert: {name} has shape {tuple(array.shape)}, expected a multiple of {count} along axis "
            f"{axis}, for the gates"
        )


def _reorder(xp: Any, array: Any, old: str, new: str, axis: int, name: str = "bias") -> Any:
    """Move the gates' blocks along an axis from one order to another."""
    _check_multiple(name, array, axis, len(old))
    if old == new:
        return array
    blocks = _cell_layouts.blocks(array, len(old), axis)
    return xp.concat([blocks[old.index(gate)] for gate in new], axis=axis)


def _read_biases(
    xp: Any, given: Mapping[str, Any], layout: _WeightLayout, gradients: bool, after: bool
) -> list[Any] | None:
    """Input and recurrence biases, in the layout's order of gates; None if none are given."""
    names = [name for name in layout.biases if name in given]
    if not names:
        return None
    if len(layout.biases) == 2:
        if len(names) == 1:
            missing = next(name for name in layout.biases if name not in names)
            raise ValueError(f"convert: parameters has only {names[0]}, expected {missing} too")
        first, second = (given[name] for name in names)
        check_shape(_CONVERT, names[1], second, f"as {names[0]}", first.shape)
        return [first, second]
    bias = given[names[0]]
    count = len(layout.gates) * (1 if layout.stacked else 2)
    _check_multiple(names[0], bias, -1, count)
    if not layout.stacked:
        return _cell_layouts.blocks(bias, 2, -1)
    weight = given.get(layout.input, given.get(layout.recurrent))
    if weight is None:
        raise ValueError(
            f"convert: parameters has {names[0]} without {layout.input} and {layout.recurrent}, "
            "expected one of them to tell one bias vector from two"
        )
    axes_in_front = weight.ndim - 2
    if bias.ndim not in (axes_in_front + 1, axes_in_front + 2):
        raise ValueError(
            f"convert: {names[0]} has shape {tuple(bias.shape)}, expected {axes_in_front + 1} axes, or one "
            "more for two vectors"
        )
    if bias.ndim == axes_in_front + 2:
        check_shape(_CONVERT, names[0], bias, "2, rows", (*bias.shape[:-2], 2, bias.shape[-1]))
        return [bias[..., 0, :], bias[..., 1, :]]
    if after and gradients:
        raise ValueError(
            "convert: bias holds the gradient of one vector, expected two with linear_before_reset=1, "
            "where the candidate's recurrence bias has a gradient of its own"
        )
    return [bias, bias] if gradients else [bias, xp.zeros_like(bias)]


def _write_biases(xp: Any, halves: list[Any], layout: _WeightLayout) -> dict[str, Any]:
    """Two biases under the layout's names."""
    if len(layout.biases) == 2:
        return dict(zip(layout.biases, halves, strict=True))
    if layout.stacked:
        return {layout.biases[0]: xp.stack(halves, axis=-2)}
    return {layout.biases[0]: xp.concat(halves, axis=-1)}


def _merge(xp: Any, halves: list[Any], gates: str, gradients: bool, after: bool) -> Any:
    """One bias with the effect of both, or its gradient."""
    first, second = halves
    if gradients:
        return _cell_layouts.one_gradient(xp, first, second)
    if after:
        candidate = _cell_layouts.blocks(second, len(gates), -1)[gates.index("h")]
        if bool(xp.any(candidate != 0)):
            raise ValueError(
                "convert: the candidate's recurrence bias is other than 0 (largest magnitude "
                f"{float(xp.max(xp.abs(candidate)))}), expected 0 for a single bias with "
                "linear_before_reset=1, where the reset gate multiplies it"
            )
    return first + second
