"""Docstrings with common sections of several functions or classes."""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from xpgrad._operators.recurrent_docs import Words, recurrent_docstring
from xpgrad._operators.units import Unit, declared_unit

Described = TypeVar("Described")


# --------------------------------------------------------------------------------- recurrent functions

_SAVE = """"all", "states" or int
    What is kept for the gradient. ``"all"``: NUMBERS numbers for each step and sequence.
    ``"states"``: only the operands, with the initial states; the gradient runs the kernel again, and its
    numbers are the same to the last bit. A number k: the states of every k-th step, from which the gradient
    rebuilds k steps at a time; sums over steps are then added in another order."""
_IMPORTS = """\
>>> import torch
>>> from xpgrad_torch.functional import {name}
"""
_SEQUENCE = """\
>>> X, W, R = torch.randn(7, 2, 3), torch.randn(1, {rows}, 3), torch.randn(1, {rows}, 5, requires_grad=True)
>>> {results} = {name}({arguments})
>>> H_t.sum().backward()
>>> R.grad.shape
torch.Size([1, {rows}, 5])
"""
_STEP = """\
>>> X, W, R = torch.randn(2, 3), torch.randn({rows}, 3, requires_grad=True), torch.randn({rows}, 5)
>>> {states} = torch.zeros(2, 5)
>>> {results} = {name}({arguments})
>>> H_next.sum().backward()
>>> W.grad.shape
torch.Size([{rows}, 3])
"""
_WORDS = Words(
    array="Tensor",
    lengths="Tensor or sequence of int",
    result="Tensor",
    gradient="""\
computed only for operands that require one. It is itself differentiable
(``create_graph=True``), then in PyTorch's own operators, which is slower.""",
    refused="an operand is not a tensor, or operands differ in dtype or device",
    constant=" It has no gradient.",
    notes={},
    options={},
    arrays="PyTorch tensors",
    sequence=_IMPORTS + _SEQUENCE,
    step=_IMPORTS + _STEP,
)


def described_recurrent(arguments: str | None = None, *results: str) -> Callable[[Described], Described]:
    """Return a decorator that gives a recurrent function the docstring from its declaration.

    `arguments` are the example's, and `results` the results' names, by default the states'.
    """

    def describe(function: Any) -> Any:
        if __doc__ is not None:  # as in Python without docstrings
            name = function.__name__
            unit = declared_unit(name)
            options = (
                {}
                if name != unit.name
                else {"save": _SAVE.replace("NUMBERS", unit.numbers_saved(products=True))}
            )
            words = _WORDS._replace(options=options)
            function.__doc__ = recurrent_docstring(name, function, words, arguments, results)
        return function

    return describe


_LAYER = """{first}

`xpgrad.{unit.name}` has the equations.{inputs}

Parameters
----------
input_size, hidden_size : int
    I and H.
bias : bool
    Whether there are biases B.
batch_first : bool
    Whether input and output are (N, T, ...).
bidirectional : bool
    Whether a second set of parameters runs from the sequences' ends.
device, dtype
    Of the parameters.
save : "all", "states" or int
    What is kept for the gradient; see `xpgrad_torch.functional.lstm`.
{own}
Attributes
----------
{parameters} : Parameter
    As `xpgrad.{unit.name}` has them, gates in the order {unit.gates}, drawn as in `torch.nn.GRU`.

Raises
------
ValueError, TypeError
    From the constructor and from a call, if a size or an attribute breaks the operator's rules.
"""
_LAYER_EXAMPLE = """
Examples
--------
>>> import torch
>>> from xpgrad_torch import {name}
>>> output, finals = {name}(3, 5)(torch.randn(7, 2, 3), lengths=[7, 4])
>>> output.shape
torch.Size([7, 2, 5])
"""


_LAYERS = """{}

Constructor, parameters, their names and random initialisation, inputs and outputs are those of
`torch.nn.{name}`: state_dicts load both ways. New are the keyword-only arguments, and `lengths` and `reset`
in the call.

Parameters
----------
{theirs}
    As in `torch.nn.{name}`.
{}

Raises
------
TypeError, ValueError
    From the constructor as in `torch.nn.{name}`, and if an attribute breaks ONNX's rules. From a call
    ValueError or RuntimeError, as in PyTorch, for inputs of a wrong size or dtype.

Notes
-----
{}

Examples
--------
>>> import torch
>>> import xpgrad_torch
>>> rnn = xpgrad_torch.{name}(10, 20, 2, batch_first=True, {option})
>>> output, {states} = rnn(torch.randn(3, 5, 10), lengths=[5, 2, 4])
>>> output.shape, h_n.shape
(torch.Size([3, 5, 20]), torch.Size([2, 3, 20]))
"""


def described_layers(option: str) -> Callable[[Described], Described]:
    """Return a decorator that completes the docstring of a class of layers: equations, own parameters, notes.

    `option` is an argument of the example.
    """

    def describe(named: Any) -> Any:
        if named.__doc__ is not None:  # as in Python without docstrings
            parts = re.split(r"\n\n(?:Parameters|Notes)\n-+\n", inspect.cleandoc(named.__doc__))
            named.__doc__ = _LAYERS.format(
                *parts, name=named.__name__, option=option, theirs=", ".join(_positional(named)),
                states="(h_n, c_n)" if len(named._STATES) > 1 else "h_n",
            )  # fmt: skip
        return named

    return describe


def _positional(named: Any) -> list[str]:
    """Return the names of a constructor's arguments that are not keyword-only."""
    parameters = inspect.signature(named).parameters.values()
    return [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]


_CELL = """

`{layer}` has the equations. Constructor, parameters, their names and random initialisation,
inputs and outputs are those of `torch.nn.{name}`: state_dicts load both ways. New are the keyword-only
arguments.

Parameters
----------
{theirs}
    As in `torch.nn.{name}`.
{ours}
    As in `{layer}`, for one direction; names of parameters have no suffix.

Raises
------
TypeError, ValueError
    From the constructor if an attribute breaks ONNX's rules. From a call ValueError or RuntimeError for
    inputs of a wrong size or dtype.

Notes
-----
Source: as of `{layer}`.

Examples
--------
>>> import torch
>>> import xpgrad_torch
>>> cell = xpgrad_torch.{name}(10, 20, clip=3.0)
>>> state = cell(torch.randn(3, 10))
>>> {results} = cell(torch.randn(3, 10), state)
>>> h.shape
torch.Size([3, 20])
"""


def described_cell(cell: Described) -> Described:
    """Add to the first line of a single step's docstring the sections that follow from its signature."""
    named: Any = cell
    if named.__doc__ is not None:  # as in Python without docstrings
        parameters = inspect.signature(named).parameters.values()
        named.__doc__ += _CELL.format(
            name=named.__name__,
            layer=named.__name__.removesuffix("Cell"),
            theirs=", ".join(_positional(named)),
            ours=", ".join(p.name for p in parameters if p.kind is p.KEYWORD_ONLY),
            results="h, c" if len(named._STATES) > 1 else "h",
        )
    return cell


def layer_docstring(name: str, unit: Unit, text: str) -> str:
    """Return the docstring of an operator's layer; `text` has its first line and its own parameters."""
    first, _, own = inspect.cleandoc(text).partition("\n\n")
    given = ", ".join(f"{one}={one}" for one in unit.inputs)
    called = f" It is called as ``layer(input, hx=None, lengths=None, reset=None, {given})``."
    return (_LAYER + ("" if unit.inputs else _LAYER_EXAMPLE)).format(
        name=name,
        unit=unit,
        first=first,
        own=f"{own}\n" if own else "",
        inputs=called if unit.inputs else "",
        parameters=", ".join(["W", "R", "B", *unit.parameters]),
    )


# --------------------------------------------------------------------------------------- convolutions

_DIMENSIONS = {  # names and sizes for one, two and three dimensions
    1: {
        "L": "L", "out": "L'", "kL": "kL", "k": "5", "size": "20", "half": "10", "twice": "40",
        "longer": "42",
    },
    2: {
        "L": "H, W", "out": "H', W'", "kL": "kH, kW", "k": "3, 3", "size": "9, 8", "half": "5, 4",
        "twice": "18, 16", "longer": "18, 16",
    },
    3: {
        "L": "D, H, W", "out": "D', H', W'", "kL": "kD, kH, kW", "k": "3, 3, 3", "size": "5, 6, 7",
        "half": "3, 3, 4", "twice": "10, 12, 14", "longer": "10, 12, 14",
    },
}  # fmt: skip
_CONV = {
    "kernel": "conv", "title": "Convolution", "operator": "Conv", "weight": "O, C/groups", "shape": "6, 3",
    "call": 'padding="same"', "result": "size", "option": ', padding_mode="reflect"', "argument": "",
    "layer_result": "half", "inputs": "inputs",
    "more": ' Padding may be\n``"same"`` or ``"valid"``, with every `padding_mode`.',
    "padding": """\
padding : int, sequence of int, "same" or "valid"
    One number for all ends, one for each dimension, or all begins and then all ends. With ``"same"``,
    which needs stride 1, the output is as large as the input; ``"valid"`` is no padding.""",
}  # fmt: skip
_CONV_TRANSPOSE = {
    "kernel": "conv_transpose", "title": "Transposed convolution", "operator": "ConvTranspose",
    "weight": "C, O/groups", "shape": "3, 6", "call": "stride=2, padding=1, output_padding=1",
    "result": "longer", "option": "", "argument": ", output_size=[{twice}]", "layer_result": "twice",
    "inputs": "inputs (`output_size` too)", "more": "",
    "padding": """\
padding : int or sequence of int
    The width that is cut off the output: one number for all ends, one for each dimension, or all begins and
    then all ends.
output_padding : int or sequence of int
    The width that is added at the output's ends.""",
}  # fmt: skip
_CONVOLUTION = """{title}: `torch.nn.functional.{name}` with xpgrad's kernels.

`xpgrad.{kernel}` has the equations. The gradient is `xpgrad.{kernel}_grad`, computed only for operands that
require one. It is itself differentiable (``create_graph=True``), then in PyTorch's own operators, which is
slower.

Parameters
----------
input : Tensor
    (N, C, {L}), or (C, {L}) without a batch.
weight : Tensor
    ({weight}, {kL}).
bias : Tensor, optional
    (O,).
stride, dilation : int or sequence of int
    One number for all dimensions, or one for each.
{padding}
groups : int
    The number of groups of channels; each output group sees one input group.
method : str
    The algorithm: see `xpgrad.{kernel}`.

Returns
-------
Tensor
    (N, O, {out}), without N if the input has none.

Raises
------
TypeError
    If an operand is not a tensor, or operands differ in dtype or device.
ValueError
    If shapes or attributes do not fit together.

Notes
-----
Source: the operator {operator} of the ONNX specification, version 11.

Examples
--------
>>> import torch
>>> from xpgrad_torch.functional import {name}
>>> x, weight = torch.randn(4, 3, {size}), torch.randn({shape}, {k}, requires_grad=True)
>>> y = {name}(x, weight, {call})
>>> y.shape
torch.Size([4, 6, {result}])
>>> y.sum().backward()
>>> weight.grad.shape
torch.Size([{shape}, {k}])
"""
_CONVOLUTION_LAYER = """

Constructor, parameters, their names and random initialisation, {inputs} and outputs are those of
`torch.nn.{name}`: state_dicts load both ways.{more}

Parameters
----------
{arguments}
    As in `torch.nn.{name}`.

Raises
------
TypeError, ValueError
    From the constructor as in `torch.nn.{name}`; from a call if the input does not fit.

Notes
-----
Source: the operator {operator} of the ONNX specification, version 11.

Examples
--------
>>> import torch
>>> import xpgrad_torch
>>> layer = xpgrad_torch.{name}(3, 6, 3, stride=2, padding=1{option})
>>> layer(torch.randn(4, 3, {size}){argument}).shape
torch.Size([4, 6, {result}])
"""


def convolution_docstring(name: str) -> str:
    """Return the docstring of a function or of a layer, after its first line, by its name."""
    own = _CONV_TRANSPOSE if "ranspose" in name else _CONV
    sizes = _DIMENSIONS[int(name[-2])]
    if name.islower():
        return _CONVOLUTION.format(name=name, **own | sizes | {"result": sizes[own["result"]]})
    arguments = ", ".join(list(inspect.signature(getattr(nn, name)).parameters))
    changed = {"argument": own["argument"].format(**sizes), "result": sizes[own["layer_result"]]}
    return _CONVOLUTION_LAYER.format(name=name, arguments=arguments, **own | sizes | changed)
