"""Docstrings whose sections several functions or classes share."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from xpgrad._operators.recurrent_docs import Words, recurrent_docstring
from xpgrad._operators.units import Unit, declared_unit

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
            sections = model.__doc__.partition("\n")[2]
            named.__doc__ = f"{named.__doc__}\n{in_words(sections, model.__name__, named.__name__, words)}"
        return named

    return describe


def in_words(text: str | None, name: str, new: str, words: Mapping[str, str]) -> str:
    """Return a sibling's docstring with a new name and other words; an empty one without docstrings."""
    renamed = (text or "").replace(name, new)
    return re.sub(r"(?<!\w)\w+'?(?!\w)", lambda word: words.get(word[0], word[0]), renamed)


# --------------------------------------------------------------------------------- recurrent functions

_SAVE = """"all", "states" or int
    What is kept for the gradient. ``"all"``: NUMBERS numbers for each step and sequence.
    ``"states"``: only the operands, with the initial states; the gradient runs the kernel again and
    gets the same numbers, to the last bit. A number k: the states of every k-th step, from which the gradient
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
    """Return a decorator that gives a recurrent function the docstring that follows from its declaration.

    Parameters
    ----------
    arguments : str, optional
        The arguments of the example.
    *results : str
        The names of what it returns, by default the states.
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
    As `xpgrad.{unit.name}` has them, gates in the order {unit.gates}. They begin as those of `torch.nn.GRU`.

Raises
------
ValueError, TypeError
    From the constructor and from a call, where a size or an attribute breaks the operator's rules.
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


_CELL = """

What it computes is described in `{layer}`. Constructor, parameters, their names and random initialisation,
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
    """Give a module of a single step the docstring that follows from its signature, behind the first line."""
    named: Any = cell
    if named.__doc__ is not None:  # as in Python without docstrings
        parameters = inspect.signature(named).parameters.values()
        named.__doc__ += _CELL.format(
            name=named.__name__,
            layer=named.__name__.removesuffix("Cell"),
            theirs=", ".join(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY),
            ours=", ".join(p.name for p in parameters if p.kind is p.KEYWORD_ONLY),
            results="h, c" if len(named._STATES) > 1 else "h",
        )
    return cell


def layer_docstring(name: str, unit: Unit, text: str) -> str:
    """Return the docstring of an operator's layer; `text` is its first line, and parameters of its own."""
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
