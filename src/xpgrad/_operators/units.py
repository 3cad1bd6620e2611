"""A recurrent operator, declared once in the file of its formulas: its arrays and their descriptions.

A declaration determines the kernels' operands, the axes of their arrays, their docstrings, `vjp`, a single
step, and the use of the operator in adapters, `check`, random calls, and the reference's pages. The
signatures of its functions have the defaults and the types, for type checkers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from xpgrad._operators.axes import AXES
from xpgrad._operators.gradient_rules import RULES, GradientRule
from xpgrad._operators.operator_docs import document

__all__ = ["UNITS", "Unit", "UnitArray", "declared_unit", "unit_of"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_COMMON = {
    "X": "Input, {}.",
    "W": "Input weights, {}.",
    "R": "Recurrence weights, {}.",
    "B": "Biases, {}: the input's, then the recurrence's.",
    "sequence_lens": "Length of each sequence, {}, from 0 to T; integers.",
}


class UnitArray(NamedTuple):
    """An array besides X, W, R, B, the lengths and the states."""

    axes: str
    """Its axes, as in `AXES`."""
    about: str
    """Its description for docstrings, with a field for its shape."""
    has_gradient: bool = True


@dataclass(eq=False)
class Unit:
    """A recurrent operator over sequences, its gradient, and its single step, if it has one."""

    name: str
    """The forward's public name. The gradient's name ends with ``_grad``, the step's with ``_cell``."""
    title: str
    """Its title in adapters' docstrings: "The ONNX LSTM"."""
    gates: str
    """The names of its gates, in the order of the rows of W and R."""
    source: str
    """The source of its equations."""
    states: Mapping[str, str] = field(default_factory=lambda: {"h": "hidden state"})
    """Each state's letter and description; the first state is the output."""
    inputs: Mapping[str, UnitArray] = field(default_factory=dict)
    """The arrays over time besides X."""
    parameters: Mapping[str, UnitArray] = field(default_factory=dict)
    """The other arrays, in their order."""
    kept: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    """The arrays that the forward makes only for the gradient, with their widths: k for k * H columns, -k for
    k. An option may choose one of several widths."""
    biases: int = 2
    """The number of biases of a gate."""
    hidden: str = "H"
    """The axis of the first state."""
    columns: str = "H"
    """The columns of R."""
    step: str | None = None
    """For an operator with a single step: the letters of the new states that the step's gradient takes."""
    keeps_products: bool = False
    """Whether it can return the candidate's recurrent products (T, D, N, H) for the gradient, as one more
    output."""
    torch: str = ""
    """The name of its module in `xpgrad_torch`; by default the operator's name in capitals."""

    def __post_init__(self) -> None:
        """Find its arrays by name, and enter the operator and its step into the tables."""
        if self.step is not None and (self.inputs or not {*self.step} <= {*self.states}):
            raise ValueError(
                f"{self.name}: step is {self.step!r} with inputs {', '.join(self.inputs) or 'none'}, "
                f"expected letters of {', '.join(self.states)}, and no inputs"
            )
        self.functions: dict[str, Callable[..., Any]] = {}
        self.rows = len(self.gates.split())
        """The number of gates."""
        self.initial = tuple(f"initial_{state}" for state in self.states)
        """The initial states."""
        self.over_time = tuple(f"{state.upper()}_all" for state in self.states)
        """The outputs that hold a state at all steps."""
        self.ends = tuple(f"{state.upper()}_t" for state in self.states)
        """The outputs that hold a state at the sequences' ends."""
        self.operands = ("X", *self.inputs, "W", "R", "B", "sequence_lens", *self.initial, *self.parameters)
        """The forward's arrays."""
        more = {**self.inputs, **self.parameters}
        self.constants = tuple(name for name, array in more.items() if not array.has_gradient)
        """The operands without a gradient, except the lengths."""
        without = {*self.constants, "sequence_lens"}
        self.graded = tuple(name for name in self.operands if name not in without)
        """The operands with a gradient, in the order of the gradient's results."""
        kept = {name: width if isinstance(width, int) else width[0] for name, width in self.kept.items()}
        self.saved: dict[str, int] = dict.fromkeys(self.over_time, 1) | kept
        """The outputs that the gradient takes, and their widths; the first width if there are several."""
        outputs = (*self.over_time[:1], *self.ends, *self.over_time[1:])
        self.cotangents = {name: f"grad_{name}" for name in outputs}
        """The gradient's name for the cotangent of each output that has one."""
        self.end_cotangents = tuple(self.cotangents[name] for name in self.ends)
        """The names of the final states' cotangents."""
        self.gradient_arrays = (*self.operands, *self.saved, *self.cotangents.values(), "sample_weight")
        """The gradient's arrays."""
        self.axes = self._axes(more)
        """The axes of operands and outputs."""
        self.module = self.torch or self.name.upper()
        """The name of its module in `xpgrad_torch`."""
        UNITS[self.name], AXES[self.name] = self, self.axes
        self._set_step()

    def _axes(self, more: Mapping[str, UnitArray]) -> dict[str, str]:
        rows, widths = _times(self.rows), dict.fromkeys(self.states, "H")
        widths[next(iter(widths))] = self.hidden
        axes = {"X": "T N I", "W": f"D {rows} I", "R": f"D {rows} {self.columns}"}
        axes |= {"B": f"D {_times(self.biases * self.rows)}", "sequence_lens": "N"}
        axes |= {name: array.axes for name, array in more.items()}
        for state, width in widths.items():
            upper = state.upper()
            axes |= {f"initial_{state}": f"D N {width}", f"{upper}_t": f"D N {width}"}
            axes[f"{upper}_all"] = f"T D N {width}"
        return axes | {
            name: f"T D N {_times(width) if isinstance(width, int) else '?'}"
            for name, width in self.kept.items()
        }

    def _set_step(self) -> None:
        """Find the single step's arrays by name: a sequence's without time, direction and projection."""
        upper = [state.upper() for state in self.states]
        self.step_name = f"{self.name}_cell"
        """The public name of a single step."""
        self.kernels = (self.name,) if self.step is None else (self.name, self.step_name)
        """The names of its forwards: over sequences, and of the step if it has one."""
        more = {name: array.axes.split() for name, array in self.parameters.items()}
        self.vectors = {"B": _times(self.biases * self.rows)}
        """The vectors among a step's arguments, and their lengths: B, and arrays of axes (D, kH)."""
        self.vectors |= {name: axes[1] for name, axes in more.items() if len(axes) == 2 and axes[0] == "D"}
        self.step_arguments = ("X", *upper, "W", "R", *self.vectors)
        """A step's arrays, which all have a gradient, in the order of the gradient's results."""
        self.step_saved = {f"{state.upper()}_next": f"{state.upper()}_all" for state in self.step or ""}
        """The results of a step that its gradient takes, and the sequence's names for them."""
        self.step_saved |= dict(zip(self.kept, self.kept, strict=True))
        self.step_cotangents = {f"{state}_next": f"grad_{state}" for state in upper}
        """The name of the cotangent of each new state of a step."""
        one = {name: axes.removeprefix("T ").removeprefix("D ") for name, axes in self.axes.items()}
        self.step_axes = {name: one[name] for name in ("X", "W", *self.vectors, *self.kept)}
        """The axes of a step's arrays and results."""
        self.step_axes |= {"R": f"{_times(self.rows)} H"} | dict.fromkeys(
            (*upper, *self.step_cotangents), "N H"
        )
        if self.step is not None:
            AXES[self.step_name] = self.step_axes

    def function(self, function: _Function) -> _Function:
        """Declare and document one of its functions; a forward and its gradient are a rule of `vjp`."""
        self.functions[function.__name__] = function
        document(self, function)
        for name, saved, cotangents in (
            (self.name, [*self.saved], self.cotangents),
            (self.step_name, self.step_saved, self.step_cotangents),
        ):
            forward, gradient = (self.functions.get(key) for key in (name, f"{name}_grad"))
            if function in (forward, gradient) and forward is not None and gradient is not None:
                RULES[forward] = GradientRule(gradient, tuple(saved), cotangents)
        return function

    # --- for docstrings

    def shown(self, name: str) -> tuple[str, ...]:
        """The results of one of its forwards in adapters' functions."""
        return tuple(self.step_cotangents) if name == self.step_name else (self.over_time[0], *self.ends)

    def example(self, name: str) -> str:
        """The arguments of an example: the required ones."""
        states = [state.upper() for state in self.states] if name == self.step_name else []
        return ", ".join(["X", *states, "W", "R"])

    def about(self, name: str) -> str:
        """The description of an operand or a result, with a field for its shape."""
        own = {**self.inputs, **self.parameters}
        if name in own:
            return own[name].about
        if name == "B" and self.biases == 1:
            return "Biases, {}."
        if name in _COMMON:
            return _COMMON[name]
        state = name.removeprefix("initial_")[0].lower()
        what, upper = self.states[state], state.upper()
        return {
            f"initial_{state}": f"Initial {what}, {{}}; zero by default.",
            f"{upper}_all": f"{what.capitalize()}s, {{}}.",
            f"{upper}_t": f"{what.capitalize()} at each sequence's end, {{}}.",
            upper: f"{what.capitalize()} before the step, {{}}.",
            f"{upper}_next": f"{what.capitalize()} after the step, {{}}.",
        }[name]

    def numbers_saved(self, products: bool = False) -> str:
        """The count of numbers that the gradient needs of each step and sequence: "16H + 3".

        With `products` the GRU keeps the candidate's recurrent products too.
        """
        states = [1] * (len(self.states) + (products and self.keeps_products))
        kept = (width if isinstance(width, tuple) else (width,) for width in self.kept.values())
        return " or ".join(_total([*states, *widths]) for widths in itertools.product(*kept))


def unit_of(name: str) -> Unit | None:
    """The recurrent operator with this name, or with a single step of this name; None for other operators."""
    return UNITS.get(name.removesuffix("_cell"))


def declared_unit(name: str) -> Unit:
    """The recurrent operator of this name; an error for other operators."""
    unit = unit_of(name)
    if unit is None:
        raise ValueError(f"{name!r} is no declared recurrent operator, expected one of {', '.join(UNITS)}")
    return unit


def _times(count: int) -> str:
    """The text of a width: k times H, or k for a negative number."""
    return "H" if count == 1 else f"{count}H" if count > 0 else str(-count)


def _total(widths: Sequence[int]) -> str:
    """The sum of widths."""
    numbers = -sum(width for width in widths if width < 0)
    total = _times(sum(width for width in widths if width > 0))
    return f"{total} + {numbers}" if numbers else total


UNITS: dict[str, Unit] = {}
"""The recurrent operators by name, in the order of their modules."""
