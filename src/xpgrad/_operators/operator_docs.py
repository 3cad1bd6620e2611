"""Docstrings of the core's recurrent functions and of their results.

An operator's file writes what only this operator has: its equations, some arguments, notes, examples. What
follows from the declaration and the signature is added here; a description in the file takes precedence.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
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
    "initial state belongs to the piece with which the direction starts, the final state to the one with "
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
    "wrt": "iterable of str, optional",
}
_FORWARD_ONLY = ("per_sample", "sample_weight", "wrt")  # arguments that are described for each function


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
        self._is_gradient = function.__name__ != self._name
        self._is_step = self._name != unit.name
        self._axes = unit.step_axes if self._is_step else unit.axes
        self._result = function.__globals__[function.__annotations__["return"].partition("[")[0]]
        self._parameters = inspect.signature(function).parameters

    def write(self) -> None:
        unit, name = self._unit, self._name
        intro, sections = _sections(self._function.__doc__)
        described = self._of_gradient() if self._is_gradient else self._of_forward()
        sections["Parameters"] = _joined(sections.get("Parameters", ""), described, self._parameters)
        fields = ", ".join(self._result._fields) + ("," if len(self._result._fields) == 1 else "")
        saved = unit.step_saved if self._is_step else unit.saved
        if self._is_gradient:
            about, seen, wrong = (
                ", None for those not asked for.",
                f"{name} : The forward.",
                ", attribute or name",
            )
        else:
            numbers = "" if self._is_step else f": {unit.numbers_saved()} numbers per step and sequence"
            about = f". `{name}_grad` takes {_in_words(saved)}{numbers}."
            seen, wrong = f"{name}_grad : The gradient.", " or attribute"
        sections["Returns"] = f"{self._result.__name__}\n{indented(f'``({fields})``{about}')}"
        sections["Raises"] = _RAISES.format(wrong if self._is_step else f", length{wrong}")
        seen = f"{seen}\nvjp : Forward and gradient in one call."
        sections["See Also"] = f"{seen}\n{sections.get('See Also', '')}".rstrip()
        self._function.__doc__ = _text(intro, sections)
        intro, sections = _sections(self._result.__doc__)
        described = self._gradients() if self._is_gradient else self._results()
        own = sections.get("Parameters", "")
        self._result.__doc__ = _text(intro, {"Parameters": _joined(own, described, self._result._fields)})

    def _of_forward(self) -> Iterator[_Entry]:
        """The arguments of a forward."""
        for name in self._parameters:
            if name in self._axes:
                text = _TEXTS.get(name, "") if not self._is_step else ""
                yield self._array(name, text or self._about(name))
        if self._is_step:
            options = tuple(name for name in self._parameters if name not in self._axes)
            yield _Entry(options, "", f"As for one direction of `{self._unit.name}`, with its equations.")
            return
        for names, text in _TEXTS.items():
            if names not in self._axes and names not in _FORWARD_ONLY:
                yield _Entry(tuple(names.split(", ")), _KINDS[names], text)

    def _about(self, name: str) -> str:
        """The description of an array from its declaration."""
        unit, text = self._unit, self._unit.about(name).replace(", {}", "")
        if name in ("W", "R") and unit.rows > 1:
            text += f" The rows are in order {unit.gates}."
        if name == "W" and not self._is_step:
            text += ' D is 2 for ``direction="bidirectional"``, else 1.'
        return text + (" It has no gradient." if name in unit.constants else "")

    def _array(self, name: str, text: str, names: Iterable[str] = ()) -> _Entry:
        """One array with its shape; `names` are all arrays of a common description."""
        own = tuple(names) or (name,)
        shapes = [shape_text(self._axes[key]) for key in own]
        kind = _KINDS.get(name) or f"array, shape {shapes[0]}"
        if len({*shapes}) > 1:
            kind = f"array, shapes {', '.join(shapes)}"
        parameter = self._parameters.get(name)
        if not (name in _KINDS or self._is_gradient or parameter is None) and parameter.default is None:
            kind += ", optional"
        return _Entry(own, kind, text)

    def _of_gradient(self) -> Iterator[_Entry]:
        """The arguments of a gradient."""
        unit, theirs = self._unit, f"The arguments of `{self._name}`."
        saved = unit.step_saved if self._is_step else unit.saved
        shared = list(inspect.signature(unit.functions[self._name]).parameters)
        arrays = [name for name in shared if name in self._axes]
        yield _Entry(tuple(arrays), "", theirs)
        yield _Entry(tuple(name for name in shared if name not in arrays), "", theirs)
        yield self._array(
            next(iter(saved)), f"{'Results' if len(saved) > 1 else 'Result'} of `{self._name}`.", saved
        )
        for output, name in (unit.step_cotangents if self._is_step else unit.cotangents).items():
            end = " Ignored past a sequence's end." if output.endswith("_all") else ""
            shape = shape_text(self._axes[output])
            yield _Entry(
                (name,), f"array, shape {shape}, optional", f"Cotangent of {output}; zero by default.{end}"
            )
        graded = unit.step_arguments if self._is_step else unit.graded
        fields = {
            "one": "sample" if self._is_step else "sequence",
            "norms": "(N,)" if self._is_step else "(N, D)",
            "graded": ", ".join(f'"{name}"' for name in graded),
        }
        for name in _FORWARD_ONLY:
            kind = _KINDS.get(name, "array, shape (N,), optional")
            yield _Entry((name,), kind, _TEXTS[name].format(**fields))

    def _results(self) -> Iterator[_Entry]:
        """What a forward returns, except arrays that only the gradient needs."""
        for name in self._result._fields:
            if name not in self._unit.kept:
                yield self._array(name, self._unit.about(name).replace(", {}", ""))

    def _gradients(self) -> Iterator[_Entry]:
        """What a gradient returns."""
        unit = self._unit
        graded = unit.step_arguments if self._is_step else unit.graded
        parameters = [name for name in graded if "N" not in self._axes[name].split()]
        states = [name for name in graded if name not in parameters and name not in ("X", *unit.inputs)]
        note = 'they have a batch axis in front; with ``"norm"`` they are norms, (N,).'
        if not self._is_step:
            note = 'they have a batch axis in front, (N, D, ...); with ``"norm"`` they are norms, (N, D).'
        past = "." if self._is_step else "; 0 past a sequence's end."
        for names, text in (
            (["X"], f"Of the input{past}"),
            (states, "Of the states before the step." if self._is_step else "Of the initial states."),
            (parameters, f"Of the parameters. With ``per_sample=True`` {note}"),
            *(([name], f"Of the {name}{past}") for name in unit.inputs),
        ):
            if names:
                yield self._array(names[0], text, names)._replace(names=tuple(map(gradient_name, names)))


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """The beginning of a docstring, and its sections by title."""
    intro, *parts = re.split(r"^(\w[\w ]*)\n-+\n", inspect.cleandoc(text), flags=re.M)
    return intro.rstrip(), {title: body.rstrip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def _text(intro: str, sections: dict[str, str]) -> str:
    """A docstring of these sections, in numpydoc's order."""
    order = ("Parameters", "Returns", "Raises", "See Also", "Notes", "Examples")
    titled = [f"{title}\n{'-' * len(title)}\n{sections[title]}" for title in order if title in sections]
    return "\n\n".join([intro, *titled]) + "\n"


def _joined(own: str, added: Iterable[_Entry], names: Iterable[str]) -> str:
    """The descriptions that a file has, and those of the other names that need one, in the order of names."""
    place = {name: number for number, name in enumerate(names)}
    written = {
        re.split(r"[,\s]", entry, maxsplit=1)[0]: entry for entry in re.split(r"\n(?=\S)", own) if entry
    }
    known = {
        name
        for entry in written.values()
        for name in entry.partition("\n")[0].partition(" : ")[0].split(", ")
    }
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
