"""A row formula: elementwise parts and reductions over a row, written once for every engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Step:
    """One pass over a row.

    Parameters
    ----------
    function : callable
        A function like a `Formula`'s: ``function(xp, *operands, **constants)`` gives a tuple of results. Its
        positional parameters name what it takes: operands of the row formula, and results of steps before.
    results : mapping of str to str
        Each result's name, and what becomes of it: ``"max"`` and ``"sum"`` reduce it over the row (a max
        passes over NaN, a sum does not), ``"each"`` keeps it for every element of the row, ``"row"`` is a
        number of the row already, made of such numbers alone.
    """

    function: Callable[..., tuple]
    results: Mapping[str, str]

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of what the function takes, without ``xp``."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)[1:]

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """The names of the constants that the function takes."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


@dataclass(frozen=True, eq=False)
class RowFormula:
    """Steps over rows, none of which asks for another row.

    Parameters
    ----------
    steps : tuple of Step
        In order.
    outputs : tuple of str
        Which results are wanted: one ``"each"`` at most, made by the last step that has one, and numbers of
        rows.
    each, rows, columns : tuple of str
        The operands by what they are: an element of every row and column, a number for each row, a number for
        each column.
    parameters : tuple of str
        Names of numbers that come with each call.
    constants : dict
        As a `Formula`'s.
    """

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    each: tuple[str, ...]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of all operands, in the order in which engines take them."""
        return (*self.each, *self.rows, *self.columns)

    @cached_property
    def each_output(self) -> str | None:
        """The output that has an element for every row and column."""
        kept = {name for step in self.steps for name, kind in step.results.items() if kind == "each"}
        return next((name for name in self.outputs if name in kept), None)

    @cached_property
    def replaceable(self) -> frozenset[str]:
        """The operands that no step reads after one has kept a result for each element in their place."""
        kept = [number for number, step in enumerate(self.steps) if "each" in step.results.values()]
        later = self.steps[kept[0] + 1 :] if kept else ()
        return frozenset(self.each) - {name for step in later for name in step.operands}

    def evaluate(self, xp: Any, operands: Sequence[Any], numbers: Sequence[float]) -> list[Any]:
        """The outputs, for arrays whose axis 1 runs along the rows."""
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
