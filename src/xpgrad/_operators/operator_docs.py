"""Docstrings of the core's recurrent functions and of their results.

An operator's file writes what only this operator has: its equations, some arguments, notes, examples. What
follows from the declaration and the signature is added here; a description in the file takes precedence.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xpgrad._operators.axes import gradient_name

if TYPE_CHECKING:
    from xpgrad._operators.units import Unit

__all__ = ["document", "indented", "shape_text"]

_RAISES = """ValueError
    For an invalid shape{}.
TypeError
    For arguments that are not arrays, or arrays that do not share namespace, dtype and device."""
_TEXTS = {
    "X": "Input: time, batch, features. float32 or float64; float16 and bfloat16 if the namespace has them, "
    "with states and sums in float32. All arrays share namespace, dtype and device.",
    "sequence_lens": "The length of each sequence, 0 to T; an array may be of any namespace. Past its end "
    "the outputs are 0, and the input has no effect, not even NaN. A reverse direction starts at each "
    "sequence's own end.",
    "direction": "The direction of time.",
    "activation_alpha, activation_beta": "Parameters of the activations that take them, in order; missing "
    "ones have ONNX's defaults.",
    "clip": "Bounds every pre-activation to -clip .. clip.",
    "layout": "1: the batch axis comes first, X (N, T, I), states (N, D, H), sequences (N, T, D, ...).",
    "reset": "Where a new piece begins: the state starts at zero before these steps, in both directions. The "
    "initial state belongs to the piece with which the direction starts, the final state to the piece with "
    "which it ends. In layout 1 it is (N, T).",
    "per_sample": "True gives the gradients of parameters for each {one} separately, with a batch axis in "
    'front. ``"norm"`` gives only their Euclidean norms, {norms}; its memory does not grow with N times the '
    "parameters.",
    "sample_weight": "A factor for each {one}'s gradients of the parameters, applied before these are "
    "summed, returned separately or normed. It has no effect on the other gradients.",
    "wrt": "Arguments whose gradients to compute, among {graded}; all by default. The work for the others is "
    "skipped.",
}
_KINDS = {
    "sequence_lens": "sequence of int or integer array, shape (N,), optional",
    "direction": '{"forward", "reverse", "bidirectional"}',
    "activation_alpha, activation_beta": "list of float, optional",
    "clip": "float, optional",
    "layout": "{0, 1}",
    "reset": "array of booleans, shape (T, N), optional",
    "per_sample": 'bool or "norm"',
    "sample_weight": "array, shape (N,), optional",
    "wrt": "iterable of str, optional",
}
_GRADIENT_ONLY = ("per_sample", "sample_weight", "wrt")


class _Entry(NamedTuple):
    """The description of arguments or results that belong together."""

    names: tuple[str, ...]
    kind: str
    text: str

    def __str__(self) -> str:
        head = ", ".join(self.names) + (f" : {self.kind}" if self.kind else "")
        return f"{head}\n{indented(self.text)}"


def document(unit: Unit, function: Callable[..., Any]) -> None:
    """Complete the docstrings of one of the operator's functions and of the named tuple that it returns."""
    if function.__doc__ is not None:  # as in Python without docstrings
        _Writer(unit, function).write()


class _Writer:
    def __init__(self, unit: Unit, function: Any) -> None:
        self._unit, self._function = unit, function
        self._name = function.__name__.removesuffix("_grad")
        self._is_gradient, self._is_step = function.__name__ != self._name, self._name != unit.name
        self._result = function.__globals__[function.__annotations__["return"].partition("[")[0]]
        self._parameters = inspect.signature(function).parameters
        self._axes, self._saved, self._graded = unit.axes, tuple(unit.saved), unit.graded
        if self._is_step:
            self._axes, self._saved, self._graded = (
                unit.step_axes,
                tuple(unit.step_saved),
                unit.step_arguments,
            )

    def write(self) -> None:
        intro, sections = _sections(self._function.__doc__)
        described = self._of_gradient() if self._is_gradient else self._of_forward()
        sections["Parameters"] = _joined(sections.get("Parameters", ""), described, self._parameters)
        fields = ", ".join(self._result._fields) + ("," if len(self._result._fields) == 1 else "")
        if self._is_gradient:
            about, wrong = ", None for those not asked for.", ", attribute or name"
            other = f"{self._name} : The forward."
        else:
            numbers = "" if self._is_step else f": {self._unit.numbers_saved()} numbers per step and sequence"
            about, wrong = f". `{self._name}_grad` takes {_in_words(self._saved)}{numbers}.", " or attribute"
            other = f"{self._name}_grad : The gradient."
        sections["Returns"] = f"{self._result.__name__}\n{indented(f'``({fields})``{about}')}"
        sections["Raises"] = _RAISES.format(wrong if self._is_step else f", length{wrong}")
        also = [other, "vjp : Forward and gradient in one call.", sections.get("See Also", "")]
        sections["See Also"] = "\n".join(filter(None, also))
        self._function.__doc__ = _text(intro, sections)
        intro, sections = _sections(self._result.__doc__)
        described = self._gradients() if self._is_gradient else self._results()
        own = sections.get("Parameters", "")
        self._result.__doc__ = _text(intro, {"Parameters": _joined(own, described, self._result._fields)})

    def _of_forward(self) -> Iterator[_Entry]:
        """The arguments of a forward."""
        for name in self._parameters:
            if name in self._axes:
                text = "" if self._is_step else _TEXTS.get(name, "")
                yield self._array([name], text or self._about(name))
        if self._is_step:
            options = tuple(name for name in self._parameters if name not in self._axes)
            yield _Entry(options, "", f"As for one direction of `{self._unit.name}`, with its equations.")
            return
        for names, text in _TEXTS.items():
            if names not in self._axes and names not in _GRADIENT_ONLY:
                yield _Entry(tuple(names.split(", ")), _KINDS[names], text)

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
        return _Entry(tuple(names), _KINDS.get(names[0], kind), text)

    def _of_gradient(self) -> Iterator[_Entry]:
        """The arguments of a gradient."""
        theirs, one = f"The arguments of `{self._name}`.", "sample" if self._is_step else "sequence"
        shared = inspect.signature(self._unit.functions[self._name]).parameters
        yield _Entry(tuple(name for name in shared if name in self._axes), "", theirs)
        yield _Entry(tuple(name for name in shared if name not in self._axes), "", theirs)
        yield self._array(self._saved, f"Result{'s' * (len(self._saved) > 1)} of `{self._name}`.")
        cotangents = self._unit.step_cotangents if self._is_step else self._unit.cotangents
        for output, name in cotangents.items():
            end = " Ignored past a sequence's end." if output.endswith("_all") else ""
            kind = f"array, shape {shape_text(self._axes[output])}, optional"
            yield _Entry((name,), kind, f"Cotangent of {output}; zero by default.{end}")
        norms, graded = "(N,)" if self._is_step else "(N, D)", ", ".join(f'"{x}"' for x in self._graded)
        for name in _GRADIENT_ONLY:
            yield _Entry((name,), _KINDS[name], _TEXTS[name].format(one=one, norms=norms, graded=graded))

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
            yield self._array(names, text)._replace(names=tuple(map(gradient_name, names)))


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """The beginning of a docstring, and its sections by title."""
    intro, *parts = re.split(r"^(\w[\w ]*)\n-+\n", inspect.cleandoc(text), flags=re.M)
    return intro.rstrip(), {title: body.rstrip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def _text(intro: str, sections: dict[str, str]) -> str:
    """A docstring of these sections, in numpydoc's order."""
    order = ("Parameters", "Returns", "Raises", "See Also", "Notes", "References", "Examples")
    titled = [f"{title}\n{'-' * len(title)}\n{sections[title]}" for title in order if title in sections]
    return "\n\n".join([intro, *titled]) + "\n"


def _joined(own: str, added: Iterable[_Entry], names: Iterable[str]) -> str:
    """The file's own descriptions, and the added descriptions of other names, in the order of names."""
    place = {name: number for number, name in enumerate(names)}
    entries = [entry for entry in re.split(r"\n(?=\S)", own) if entry]
    heads = [re.split(" : |\n", entry)[0].split(", ") for entry in entries]
    written = {head[0]: entry for head, entry in zip(heads, entries, strict=True)}
    known = {name for head in heads for name in head}
    for entry in added:
        lacking = tuple(name for name in entry.names if name in place and name not in known)
        if lacking:
            written[lacking[0]] = str(entry._replace(names=lacking))
    return "\n".join(written[name] for name in sorted(written, key=place.__getitem__))


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
