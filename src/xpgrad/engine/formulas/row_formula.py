"""Row formulas: elementwise parts and reductions over a row, written once for all engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, signature
from typing import Any


@dataclass(frozen=True)
class Step:
    """One pass over a row.

    Parameters
    ----------
    function : callable
        As in `Formula`: ``function(xp, *operands, **constants)`` returns a tuple of results. Its positional
        parameters are named after operands of the row formula and results of earlier steps.
    results : mapping of str to str
        The name and use of each result. ``"max"`` and ``"sum"`` reduce it over the row (a max ignores NaN, a
        sum does not). ``"each"`` keeps it for every element of the row. ``"row"`` is already one number per
        row, computed only from such numbers.
    """

    function: Callable[..., tuple]
    results: Mapping[str, str]

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of the function's operands, without ``xp``."""
        return self._parameters(Parameter.POSITIONAL_OR_KEYWORD)[1:]

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """The names of the constants that the function takes."""
        return self._parameters(Parameter.KEYWORD_ONLY)

    def _parameters(self, kind: Any) -> tuple[str, ...]:
        return tuple(p.name for p in signature(self.function).parameters.values() if p.kind is kind)


@dataclass(frozen=True, eq=False)
class RowFormula:
    """A sequence of steps over a row; rows are independent.

    Parameters
    ----------
    steps : tuple of Step
        The steps, in order.
    outputs : tuple of str
        The wanted results: at most one ``"each"``, from the last step that has one, and numbers per row.
    each, rows, columns : tuple of str
        The operands by kind: one element per row and column, one number per row, one number per column.
    parameters : tuple of str
        Names of numbers that each call passes.
    constants : dict
        As in `Formula`.
    """

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    each: tuple[str, ...]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of all operands, in the engines' order."""
        return (*self.each, *self.rows, *self.columns)

    @cached_property
    def each_output(self) -> str | None:
        """The output with one element per row and column."""
        kept = {name for step in self.steps for name, kind in step.results.items() if kind == "each"}
        return next((name for name in self.outputs if name in kept), None)

    @cached_property
    def replaceable(self) -> frozenset[str]:
        """The operands that an ``"each"`` result may overwrite, because no later step reads them."""
        kept = [number for number, step in enumerate(self.steps) if "each" in step.results.values()]
        later = self.steps[kept[0] + 1 :] if kept else ()
        return frozenset(self.each) - {name for step in later for name in step.operands}

    def evaluate(self, xp: Any, operands: Sequence[Any], numbers: Sequence[float]) -> list[Any]:
        """The outputs, for arrays with rows along axis 1."""
        values = dict(zip(self.operands, operands, strict=True))
        known = self.constants | dict(zip(self.parameters, numbers, strict=True))
        for step in self.steps:
            settings = {name: known[name] for name in step.constants}
            results = step.function(xp, *(values[name] for name in step.operands), **settings)
            for (name, kind), result in zip(step.results.items(), results, strict=True):
                if kind in ("max", "sum"):
                    result = getattr(xp, kind)(result, axis=1, keepdims=True)
                values[name] = result
        return [values[name] for name in self.outputs]
