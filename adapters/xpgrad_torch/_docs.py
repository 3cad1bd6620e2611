"""Docstrings whose sections several functions or classes share."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

from xpgrad._axes import AXES

Described = TypeVar("Described")


def described_as(model: Any, words: Mapping[str, str]) -> Callable[[Described], Described]:
    """Return a decorator that puts the sections of a sibling's docstring behind the first line of one.

    Parameters
    ----------
    model : function or class
        The sibling.
    words : mapping of str to str
        What takes the place of its words. The new name takes the place of its name anyway.
    """

    def describe(named: Any) -> Any:
        if named.__doc__ is not None:  # as in Python without docstrings
            sections = model.__doc__.partition("\n")[2].replace(model.__name__, named.__name__)
            sections = re.sub(r"(?<!\w)\w+'?(?!\w)", lambda word: words.get(word[0], word[0]), sections)
            named.__doc__ = f"{named.__doc__}\n{sections}"
        return named

    return describe


# --------------------------------------------------------------------------------- recurrent functions

_RECURRENT = """

What it computes, and what each attribute does, is described in `xpgrad.{name}`; the gradient is
`xpgrad.{name}_grad`, which is asked only for the operands that require one. The gradient is itself
differentiable (``create_graph=True``), then through PyTorch's own operators, which is slower.

Parameters
----------
{parameters}

Returns
-------
{returns}

Raises
------
TypeError
    Where an operand is no tensor, or the operands differ in dtype or device.
ValueError
    Where a shape or an attribute breaks the operator's rules.

Notes
-----
Source: {source}.

Examples
--------
>>> import torch
>>> from xpgrad_torch.functional import {name}
"""
_SEQUENCE_EXAMPLE = """\
>>> X, W, R = torch.randn(7, 2, 3), torch.randn(1, {rows}, 3), torch.randn(1, {rows}, 5, requires_grad=True)
>>> {results} = {name}({arguments})
>>> H_t.sum().backward()
>>> R.grad.shape
torch.Size([1, {rows}, 5])
"""
_STEP_EXAMPLE = """\
>>> X, W, R = torch.randn(2, 3), torch.randn({rows}, 3, requires_grad=True), torch.randn({rows}, 5)
>>> {states} = torch.zeros(2, 5)
>>> {results} = {name}({arguments})
>>> H_next.sum().backward()
>>> W.grad.shape
torch.Size([{rows}, 3])
"""
_MEANINGS = {  # of operands and results, {} is the shape
    "X": "Input, {}.",
    "H": "Hidden state before the step, {}.",
    "C": "Cell state before the step, {}.",
    "W": "Input weights, {}.",
    "R": "Recurrence weights, {}.",
    "B": "Biases, {}: the input's, then the recurrence's.",
    "P": "Peephole weights, {}, in order i o f.",
    "S": "Projection of the hidden states, {}. Without it J is H.",
    "gamma": "Scales of the input's and of the recurrent product, {}.",
    "beta": "Shifts of the input's and of the recurrent product, {}.",
    "gamma_c": "Scale of the cell state, {}.",
    "beta_c": "Shift of the cell state, {}.",
    "sequence_lens": "Length of each sequence, {}, from 0 to T; integers.",
    "initial_h": "Initial hidden state, {}; zero where left out.",
    "initial_c": "Initial cell state, {}; zero where left out.",
    "recurrent_mask": "Multiplies the hidden state on its way into R, {}. It has no gradient.",
    "zoneout_h": "Share of the old hidden state that stays at each step, {}. It has no gradient.",
    "zoneout_c": "Share of the old cell state that stays at each step, {}. It has no gradient.",
    "H_all": "Hidden states, {}.",
    "C_all": "Cell states, {}.",
    "H_t": "Hidden state at each sequence's end, {}.",
    "C_t": "Cell state at each sequence's end, {}.",
    "H_next": "Hidden state after the step, {}.",
    "C_next": "Cell state after the step, {}.",
}
_GATES = {"lstm": "i o f c", "gru": "z r h", "rnn": "h"}
_SAVED = {"lstm": "6H", "gru": "5H", "rnn": "H", "layer_norm_lstm": "16H + 3", "layer_norm_gru": "10H + 2"}
_ONNX = "the operator {} of the ONNX specification, version 14"
_LAYER_NORM = 'Ba, Kiros, Hinton, "Layer normalization" (2016)'
_OPTIONS = {
    "linear_before_reset": """{0, 1}
    Where the reset gate multiplies: 1 behind the recurrent product, as in `torch.nn.GRU`; 0 in front of it,
    ONNX's default.""",
    "peephole": """{"full", "truncated"}
    ``"full"`` is the true gradient. ``"truncated"`` leaves out the path from the peepholes into the cell
    state, as ONNX Runtime's LSTMGrad does.""",
    "save": """"all", "states" or int
    What is kept for the gradient. ``"all"``: what it takes of every step, NUMBERS numbers for each sequence.
    ``"states"``: the operands alone, among them the initial states; the gradient runs the kernel again and
    gets the same numbers, to the last bit. A number k: the states of every k-th step, from which the gradient
    rebuilds k steps at a time; sums over steps are then added in another order.""",
}


def described_recurrent(results: str, arguments: str) -> Callable[[Described], Described]:
    """Return a decorator that puts sections behind the first line of a recurrent function's docstring.

    Parameters
    ----------
    results : str
        The names of what it returns.
    arguments : str
        Those of the example.
    """

    def describe(function: Any) -> Any:
        if function.__doc__ is None:  # as in Python without docstrings
            return function
        name, axes = function.__name__, AXES[function.__name__]
        kind = name.removeprefix("layer_norm_").removesuffix("_cell")
        example = _SEQUENCE_EXAMPLE if "sequence_lens" in axes else _STEP_EXAMPLE
        sections = (_RECURRENT + example).format(
            name=name,
            parameters="\n".join(_parameters(function, axes, _GATES[kind])),
            returns="\n".join(f"{x} : Tensor\n    {_meaning(x, axes)}" for x in results.split(", ")),
            source=_ONNX.format(kind.upper()) if kind in (name, name.removesuffix("_cell")) else _LAYER_NORM,
            results=results,
            arguments=arguments,
            states="H = C" if "C" in axes else "H",
            rows=5 * len(_GATES[kind].split()),
        )
        function.__doc__ += sections
        return function

    return describe


def _parameters(function: Any, axes: Mapping[str, str], gates: str) -> Iterator[str]:
    """Yield what a function's parameters are; the attributes of xpgrad's function stand together."""
    parameters = inspect.signature(function).parameters.values()
    attributes = [p.name for p in parameters if p.name not in axes and p.name not in _OPTIONS]
    for p in parameters:
        if p.name in axes:
            kind = "Tensor or sequence of int" if p.name == "sequence_lens" else "Tensor"
            if p.annotation != Tensor:
                kind += ", optional" if p.default is None else " or None"
            order = f" The rows are in order {gates}." if p.name in ("W", "R") and " " in gates else ""
            yield f"{p.name} : {kind}\n    {_meaning(p.name, axes)}{order}"
        elif p.name in _OPTIONS:
            numbers = _SAVED.get(function.__name__, "")
            yield f"{p.name} : {_OPTIONS[p.name].replace('NUMBERS', numbers)}"
        elif p.name == attributes[0]:
            yield f"{', '.join(attributes)}\n    The attributes of `xpgrad.{function.__name__}`."


def _meaning(name: str, axes: Mapping[str, str]) -> str:
    shape = axes[name].split()
    return _MEANINGS[name].format(f"({', '.join(shape)}{',' if len(shape) == 1 else ''})")
