"""Docstrings of adapters' recurrent functions: what each framework says of the same operands and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import Signature
from typing import NamedTuple

from xpgrad._operators.axes import AXES

__all__ = ["Words", "recurrent_sections"]


class Words(NamedTuple):
    """What the docstrings of one framework say in its own words."""

    array: str
    """The type of an operand."""
    lengths: str
    """The type of lengths."""
    result: str
    """The type of a result."""
    gradient: str
    """What follows on the gradient's name."""
    refused: str
    """Which operands raise TypeError."""
    notes: Mapping[str, str]
    """What is added to the meaning of operands and options."""
    options: Mapping[str, str]
    """Options that no other framework has."""
    sequence: str
    """The example of a sequence, with places for `name`, `rows`, `arguments` and `results`."""
    step: str
    """That of a step, with one more place, for `states`."""


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
_MEANINGS = {  # of operands and results, {} is the shape
    "X": "Input, {}.",
    "attention": "Attention of each step, (T, N, 1), or of its units, (T, N, H).",
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
    "initial_h": "Initial hidden state, {}; zero by default.",
    "initial_c": "Initial cell state, {}; zero by default.",
    "initial_n": "Initial normalizer, {}; zero by default.",
    "initial_m": "Initial stabilizer, {}; zero by default.",
    "recurrent_mask": "Multiplies the hidden state on its way into R, {}.",
    "zoneout_h": "Share of the old hidden state that stays at each step, {}.",
    "zoneout_c": "Share of the old cell state that stays at each step, {}.",
    "H_all": "Hidden states, {}.",
    "C_all": "Cell states, {}.",
    "H_t": "Hidden state at each sequence's end, {}.",
    "C_t": "Cell state at each sequence's end, {}.",
    "N_t": "Normalizer at each sequence's end, {}.",
    "M_t": "Stabilizer at each sequence's end, {}.",
    "H_next": "Hidden state after the step, {}.",
    "C_next": "Cell state after the step, {}.",
}
_OF_HEADS = {"R": "Recurrence weights, {}; E is H / heads.", "B": "Biases, {}."}  # of operators with heads
_GATES = {"lstm": "i o f c", "gru": "z r h", "rnn": "h", "slstm": "i f z o", "augru": "z r h"}
_ONNX = "the operator {} of the ONNX specification, version 14"
_LAYER_NORM = 'Ba, Kiros, Hinton, "Layer normalization" (2016)'
_SOURCES = {
    "slstm": 'Beck and others, "xLSTM: extended long short-term memory" (2024)',
    "augru": 'Zhou and others, "Deep interest evolution network for click-through rate prediction" (2019)',
}
_OPTIONS = {
    "linear_before_reset": """{0, 1}
    Where the reset gate multiplies: 1 behind the recurrent product, as in `torch.nn.GRU`; 0 in front of it,
    ONNX's default.""",
    "peephole": """{"full", "truncated"}
    ``"full"`` is the true gradient. ``"truncated"`` leaves out the path from the peepholes into the cell
    state, as ONNX Runtime's LSTMGrad does.""",
}


def recurrent_sections(name: str, signature: Signature, results: str, arguments: str, words: Words) -> str:
    """The sections behind the first line of a recurrent function's docstring.

    Parameters
    ----------
    name : str
        The function's name.
    signature : inspect.Signature
        Its signature.
    results : str
        The names of what it returns.
    arguments : str
        Those of the example.
    words : Words
        What the framework says.
    """
    axes, kind = AXES[name], name.removeprefix("layer_norm_").removesuffix("_cell")
    example = words.sequence if "sequence_lens" in axes else words.step
    return (_RECURRENT + example).format(
        name=name,
        words=words,
        parameters="\n".join(_parameters(name, signature, words)),
        returns="\n".join(f"{x} : {words.result}\n    {_meaning(x, axes)}" for x in results.split(", ")),
        source=_source(name, kind),
        results=results,
        arguments=arguments,
        states="H = C" if "C" in axes else "H",
        rows=5 * len(_GATES[kind].split()),
    )


def _source(name: str, kind: str) -> str:
    if name in _SOURCES:
        return _SOURCES[name]
    return _ONNX.format(kind.upper()) if kind in (name, name.removesuffix("_cell")) else _LAYER_NORM


def _parameters(name: str, signature: Signature, words: Words) -> Iterator[str]:
    """What a function's parameters are; the attributes of xpgrad's function stand together."""
    axes, options = AXES[name], {**_OPTIONS, **words.options}
    gates = _GATES[name.removeprefix("layer_norm_").removesuffix("_cell")]
    attributes = [x for x in signature.parameters if x not in axes and x not in options]
    for x, parameter in signature.parameters.items():
        note = words.notes.get(x, "")
        if x in axes:
            kind = words.lengths if x == "sequence_lens" else words.array
            kind += ", optional" if parameter.default is None else " or None" if x == "B" else ""
            order = f" The rows are in order {gates}." if x in ("W", "R") and " " in gates else ""
            yield f"{x} : {kind}\n    {_meaning(x, axes)}{order}{note}"
        elif x in options:
            yield f"{x} : {options[x]}{note}"
        elif x == attributes[0]:
            yield f"{', '.join(attributes)}\n    The attributes of `xpgrad.{name}`."


def _meaning(name: str, axes: Mapping[str, str]) -> str:
    shape = axes[name].split()
    if "E" in axes.get("R", "") and name in _OF_HEADS:
        return _OF_HEADS[name].format(f"({', '.join(shape)})")
    return _MEANINGS[name].format(f"({', '.join(shape)}{',' if len(shape) == 1 else ''})")
