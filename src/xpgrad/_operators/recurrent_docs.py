"""Docstrings of adapters' recurrent functions: the same operands and results in each framework's words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Signature
from typing import Any, NamedTuple

from xpgrad._operators.axes import AXES
from xpgrad._operators.operator_docs import indented, shape_text
from xpgrad._operators.units import declared_unit

__all__ = ["Words", "recurrent_docstring"]


class Words(NamedTuple):
    """The words of one framework's docstrings."""

    array: str
    """The type of an operand."""
    lengths: str
    """The type of lengths."""
    result: str
    """The type of a result."""
    gradient: str
    """The text after the gradient's name."""
    refused: str
    """The operands that raise TypeError."""
    constant: str
    """The text after the meaning of an operand without a gradient."""
    notes: Mapping[str, str]
    """The text after the meaning of operands and options."""
    options: Mapping[str, str]
    """Options that only this framework has."""
    arrays: str
    """The name of its arrays: "PyTorch tensors"."""
    sequence: str
    """The example of a sequence, with fields for `name`, `rows`, `arguments` and `results`."""
    step: str
    """The example of a step, with one more field, for `states`."""


_RECURRENT = """

`xpgrad.{name}` has the equations and describes every attribute. The gradient is
`xpgrad.{name}_grad`, {words.gradient}

Parameters
----------
{parameters}

Returns
-------
{returns}

Raises
------
TypeError
    If {words.refused}.
ValueError
    If a shape or an attribute breaks the operator's rules.

Notes
-----
Source: {source}.

Examples
--------
"""
_OPTIONS = {
    "linear_before_reset": """{0, 1}
    Where the reset gate multiplies: 1 after the recurrent product, as in `torch.nn.GRU`; 0 before it, ONNX's
    default.""",
    "peephole": """{"full", "truncated"}
    ``"full"`` is the true gradient. ``"truncated"`` leaves out the path from the peepholes into the cell
    state, as ONNX Runtime's LSTMGrad does.""",
}


def recurrent_docstring(
    name: str,
    function: Callable[..., Any],
    words: Words,
    arguments: str | None = None,
    results: Sequence[str] = (),
) -> str:
    """The docstring of an adapter's function with this name, for its signature.

    `arguments` are the arguments of the example, `results` the names of its results, by default the states.
    """
    unit = declared_unit(name)
    about, example = f"One step of `{unit.name}`, for a loop that you write.", words.step
    if name == unit.name:
        about = f"{unit.title} as a differentiable function of {words.arrays}."
        example = words.sequence
    shown = tuple(results or unit.shown(name))
    return about + (_RECURRENT + example).format(
        name=name,
        words=words,
        parameters="\n".join(_parameters(name, inspect.signature(function), words)),
        returns="\n".join(f"{x} : {words.result}\n{indented(_meaning(x, name))}" for x in shown),
        source=unit.source,
        results=", ".join(shown),
        arguments=arguments or unit.example(name),
        states=" = ".join(state.upper() for state in unit.states),
        rows=5 * unit.rows,
    )


def _parameters(name: str, signature: Signature, words: Words) -> Iterator[str]:
    """The section of a function's parameters; the attributes of xpgrad's function are one entry."""
    axes, options = AXES[name], {**_OPTIONS, **words.options}
    unit = declared_unit(name)
    attributes = [x for x in signature.parameters if x not in axes and x not in options]
    for x, parameter in signature.parameters.items():
        note = words.constant if x in unit.constants else words.notes.get(x, "")
        if x in axes:
            kind = words.lengths if x == "sequence_lens" else words.array
            kind += ", optional" if parameter.default is None else " or None" if x == "B" else ""
            order = f" The rows are in order {unit.gates}." if x in ("W", "R") and unit.rows > 1 else ""
            yield f"{x} : {kind}\n{indented(f'{_meaning(x, name)}{order}{note}')}"
        elif x in options:
            yield f"{x} : {options[x]}{note}"
        elif x == attributes[0]:
            yield f"{', '.join(attributes)}\n    The attributes of `xpgrad.{name}`."


def _meaning(x: str, name: str) -> str:
    return declared_unit(name).about(x).format(shape_text(AXES[name][x]))
