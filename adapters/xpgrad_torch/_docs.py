"""Docstrings whose sections several functions or classes share."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from xpgrad._operators.kernel_description import MASKS
from xpgrad._operators.recurrent_docs import Words, recurrent_sections

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

_SAVED = {
    "lstm": "6H",
    "gru": "5H",
    "rnn": "H",
    "layer_norm_lstm": "16H + 3",
    "layer_norm_gru": "10H + 2",
    "slstm": "11H",
    "augru": "5H",
}
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
    notes=dict.fromkeys(MASKS, " It has no gradient."),
    options={},
    sequence=_IMPORTS + _SEQUENCE,
    step=_IMPORTS + _STEP,
)


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
        if function.__doc__ is not None:  # as in Python without docstrings
            name, numbers = function.__name__, _SAVED.get(function.__name__)
            options = {} if numbers is None else {"save": _SAVE.replace("NUMBERS", numbers)}
            words = _WORDS._replace(options=options)
            signature = inspect.signature(function)
            function.__doc__ += recurrent_sections(name, signature, results, arguments, words)
        return function

    return describe
