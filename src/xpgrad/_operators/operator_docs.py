"""Docstrings of the core's functions and of their results: a file's own text, completed by shared text.

An operator's file writes what only this operator has: its equations, some arguments, notes, examples. The
other descriptions follow from the declaration and the signature, or from a text that several functions share.
A description in the file takes precedence.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from xpgrad._operators.axes import gradient_name
from xpgrad._operators.types import result_type

if TYPE_CHECKING:
    from xpgrad._operators.units import Unit

__all__ = ["described", "document", "indented", "shape_text"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_RAISES = """ValueError
    For {}.
TypeError
    For arguments that are not arrays, or arrays that do not share namespace, dtype and device."""
_SHARED = """
X : array, shape (T, N, I)
    Input: time, batch, features. float32 or float64; float16 and bfloat16 if the namespace has them, with
    states and sums in float32. All arrays share namespace, dtype and device.
sequence_lens : sequence of int or integer array, shape (N,), optional
    The length of each sequence, 0 to T; an array may be of any namespace. Past its end the outputs are 0,
    and the input has no effect, not even NaN. A reverse direction starts at each sequence's own end.
direction : {"forward", "reverse", "bidirectional"}
    The direction of time.
activation_alpha, activation_beta : list of float, optional
    Parameters of the activations that take them, in order; missing ones have ONNX's defaults.
clip : float, optional
    Bounds every pre-activation to -clip .. clip.
layout : {0, 1}
    1: the batch axis comes first, X (N, T, I), states (N, D, H), sequences (N, T, D, ...).
reset : array of booleans, shape (T, N), optional
    Where a new piece begins: the state starts at zero before these steps, in both directions. The initial
    state belongs to the piece with which the direction starts, the final state to the piece with which it
    ends. In layout 1 it is (N, T).
per_sample : bool or "norm"
    True gives the gradients of parameters for each SAMPLE separately, with a batch axis in front. ``"norm"``
    gives only their Euclidean norms, NORMS; its memory does not grow with N times the parameters.
sample_weight : array, shape (N,), optional
    A factor for each SAMPLE's gradients of the parameters, applied before these are summed, returned
    separately or normed. It has no effect on the other gradients.
wrt : iterable of str, optional
    Arguments whose gradients to compute, among GRADED; all by default. The work for the others is skipped.
"""


class _Entry(NamedTuple):
    """The description of arguments or results that belong together."""

    names: tuple[str, ...]
    kind: str
    text: str

    def __str__(self) -> str:
        head = ", ".join(self.names) + (f" : {self.kind}" if self.kind else "")
        return f"{head}\n{indented(self.text)}"


def _entries(section: str) -> Iterator[_Entry]:
    """The entries of a section of parameters."""
    for entry in filter(None, re.split(r"\n(?=\S)", section.strip())):
        head, _, text = entry.partition("\n")
        names, _, kind = head.partition(" : ")
        yield _Entry(tuple(names.split(", ")), kind, " ".join(text.split()))


def described(wrong: str, arguments: str = "") -> Callable[[_Function], _Function]:
    """A decorator that completes docstrings: values that raise ValueError, and shared arguments."""

    def complete(function: _Function) -> _Function:
        sections = {"Raises": _RAISES.format(wrong)}
        _complete(function, inspect.signature(function).parameters, _entries(arguments + _SHARED), sections)
        return function

    return complete


def _complete(
    documented: Any, names: Iterable[str], added: Iterable[_Entry], more: Mapping[str, str]
) -> None:
    """Add to a docstring the descriptions of names that it lacks, and sections."""
    if documented.__doc__ is None:  # as in Python without docstrings
        return
    intro, *parts = re.split(r"^(\w[\w ]*)\n-+\n", inspect.cleandoc(documented.__doc__), flags=re.M)
    sections = {title: body.rstrip() for title, body in zip(parts[::2], parts[1::2], strict=True)}
    sections["Parameters"] = _joined(sections.get("Parameters", ""), added, list(names))
    for title, text in more.items():
        sections[title] = f"{text}\n{sections[title]}" if title in sections else text
    order = ("Parameters", "Returns", "Raises", "See Also", "Notes", "References", "Examples")
    titled = [f"{title}\n{'-' * len(title)}\n{sections[title]}" for title in order if title in sections]
    documented.__doc__ = "\n\n".join([intro.rstrip(), *titled]) + "\n"


def _joined(own: str, added: Iterable[_Entry], names: Sequence[str]) -> str:
    """The file's own descriptions, and the added descriptions of other names, in the order of names."""
    written = {re.split(r"[,\s]", part)[0]: part for part in re.split(r"\n(?=\S)", own) if part}
    known = {name for entry in _entries(own) for name in entry.names}
    for entry in added:
        lacking = tuple(name for name in entry.names if name in names and name not in known)
        known.update(lacking)
        if lacking:
            written[lacking[0]] = str(entry._replace(names=lacking))
    return "\n".join(written[name] for name in sorted(written, key=names.index))


def document(unit: Unit, function: Callable[..., Any]) -> None:
    """Complete the docstrings of one of the operator's functions and of the named tuple that it returns."""
    _Writer(unit, function).write()


class _Writer:
    def __init__(self, unit: Unit, function: Any) -> None:
        self._unit, self._function = unit, function
        self._name = function.__name__.removesuffix("_grad")
        self._is_gradient, self._is_step = function.__name__ != self._name, self._name != unit.name
        self._result = result_type(function)
        self._parameters = inspect.signature(function).parameters
        self._axes, self._saved, self._graded = unit.axes, tuple(unit.saved), unit.graded
        if self._is_step:
            self._axes, self._saved, self._graded = (
                unit.step_axes,
                tuple(unit.step_saved),
                unit.step_arguments,
            )

    def write(self) -> None:
        fields = ", ".join(self._result._fields) + ("," if len(self._result._fields) == 1 else "")
        wrong = "an invalid shape" if self._is_step else "an invalid shape, length"
        if self._is_gradient:
            about, wrong = ", None for those not asked for.", f"{wrong}, attribute or name"
            arguments, results, other = self._of_gradient(), self._gradients(), f"{self._name} : The forward."
        else:
            numbers = "" if self._is_step else f": {self._unit.numbers_saved()} numbers per step and sequence"
            about, wrong = (
                f". `{self._name}_grad` takes {_in_words(self._saved)}{numbers}.",
                f"{wrong} or attribute",
            )
            arguments, results = self._of_forward(), self._results()
            other = f"{self._name}_grad : The gradient."
        sections = {
            "Returns": f"{self._result.__name__}\n{indented(f'``({fields})``{about}')}",
            "Raises": _RAISES.format(wrong),
            "See Also": f"{other}\nvjp : Forward and gradient in one call.",
        }
        _complete(self._function, self._parameters, arguments, sections)
        _complete(self._result, self._result._fields, results, {})

    def _shared(self) -> Iterator[_Entry]:
        """The descriptions that all operators share."""
        sample, norms = ("sample", "(N,)") if self._is_step else ("sequence", "(N, D)")
        graded = ", ".join(f'"{name}"' for name in self._graded)
        return _entries(_SHARED.replace("SAMPLE", sample).replace("NORMS", norms).replace("GRADED", graded))

    def _of_forward(self) -> Iterator[_Entry]:
        """The arguments of a forward."""
        for name in self._parameters:
            if name in self._axes and (self._is_step or name not in ("X", "sequence_lens")):
                yield self._array([name], self._about(name))
        if self._is_step:
            options = tuple(name for name in self._parameters if name not in self._axes)
            yield _Entry(options, "", f"As for one direction of `{self._unit.name}`, with its equations.")
        yield from self._shared()

    def _about(self, name: str) -> str:
        """The description of an array from its declaration."""
        unit, text = self._unit, self._unit.about(name).replace(", {}", "")
        if name in ("W", "R") and unit.rows > 1:
            text += f" The rows are in order {unit.gates}."
        if name == "W" and not self._is_step:
            text += ' D is 2 for ``direction="bidirectional"``, else 1.'
        return text + (" It has no gradient." if name in unit.constants else "")

    def _array(self, names: Sequence[str], text: str) -> _Entry:
        """Arrays with their shapes and a common description."""
        shapes = [shape_text(self._axes[name]) for name in names]
        kind = f"array, shape {shapes[0]}" if len({*shapes}) == 1 else f"array, shapes {', '.join(shapes)}"
        parameter = None if self._is_gradient else self._parameters.get(names[0])
        if parameter is not None and parameter.default is None:
            kind += ", optional"
        return _Entry(tuple(names), kind, text)

    def _of_gradient(self) -> Iterator[_Entry]:
        """The arguments of a gradient."""
        theirs = f"The arguments of `{self._name}`."
        shared = inspect.signature(self._unit.functions[self._name]).parameters
        yield _Entry(tuple(name for name in shared if name in self._axes), "", theirs)
        yield _Entry(tuple(name for name in shared if name not in self._axes), "", theirs)
        yield self._array(self._saved, f"Result{'s' * (len(self._saved) > 1)} of `{self._name}`.")
        cotangents = self._unit.step_cotangents if self._is_step else self._unit.cotangents
        for output, name in cotangents.items():
            end = " Ignored past a sequence's end." if output.endswith("_all") else ""
            kind = f"array, shape {shape_text(self._axes[output])}, optional"
            yield _Entry((name,), kind, f"Cotangent of {output}; zero by default.{end}")
        yield from self._shared()

    def _results(self) -> Iterator[_Entry]:
        """The results of a forward, except arrays that only the gradient needs."""
        for name in self._result._fields:
            if name not in self._unit.kept:
                yield self._array([name], self._unit.about(name).replace(", {}", ""))

    def _gradients(self) -> Iterator[_Entry]:
        """The results of a gradient."""
        inputs = self._unit.inputs
        parameters = [name for name in self._graded if "N" not in self._axes[name].split()]
        states = [name for name in self._graded if name not in (*parameters, "X", *inputs)]
        norms, past = (
            'front, (N, D, ...); with ``"norm"`` they are norms, (N, D).',
            "; 0 past a sequence's end.",
        )
        if self._is_step:
            norms, past = 'front; with ``"norm"`` they are norms, (N,).', "."
        for names, text in (
            (["X"], f"Of the input{past}"),
            (states, f"Of the {'states before the step' if self._is_step else 'initial states'}."),
            (parameters, f"Of the parameters. With ``per_sample=True`` they have a batch axis in {norms}"),
            *(([name], f"Of the {name}{past}") for name in inputs),
        ):
            if names:
                yield self._array(names, text)._replace(names=tuple(map(gradient_name, names)))


def shape_text(axes: str) -> str:
    """A shape in docstrings, with the names of axes that error messages have."""
    own = [{"J": "proj", "E": "H / heads", "?": "..."}.get(axis, axis) for axis in axes.split()]
    return f"({', '.join(own)}{',' if len(own) == 1 else ''})"


def _in_words(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def indented(text: str) -> str:
    """A description, in lines."""
    return textwrap.fill(
        text, 106, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
