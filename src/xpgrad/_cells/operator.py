"""Operators of xpgrad that are one cell: a public signature in front, named results behind.

The cell is chosen by the operator's options. The bias B is the cell's v.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from xpgrad._calls.operation import Operation
from xpgrad._calls.plans import Asked
from xpgrad.cells import Cell

_NAMES = {"v": "B"}


class CellOperator:
    """An operator and its gradient, made of a cell.

    Parameters
    ----------
    name : str
        The operator's.
    cell : callable
        ``cell(biased, **options)``: its cell, with vectors or without.
    options : sequence of str
        The names of those of its attributes on which the cell depends.
    states : sequence of str
        The names of the states.
    saved : sequence of str
        What the forward makes for the gradient alone: "saved", and "means" where a cell has row means.
    result, gradients : type
        The named tuples of results.
    inputs : sequence of str
        The inputs beside X.
    """

    def __init__(
        self,
        name: str,
        cell: Callable[..., Cell],
        options: Sequence[str],
        states: Sequence[str],
        result: Any,
        gradients: Any,
        inputs: Sequence[str] = (),
    ) -> None:
        self._cell, self._options, self._result, self._gradients = cell, options, result, gradients
        initial = tuple(f"initial_{state}" for state in states)
        over_time = tuple(f"{state.upper()}_all" for state in states)
        ends = tuple(f"{state.upper()}_t" for state in states)
        weights = ("X", *inputs, "W", "R", "B")
        operands = (*weights, "sequence_lens", *initial)
        self._graded = (*weights, *initial)
        self.saved = (*over_time, "saved")
        self.cotangents = {name: f"grad_{name}" for name in (*over_time[:1], *ends, *over_time[1:])}
        arrays = (*operands, *self.saved, *self.cotangents.values(), "sample_weight")
        self.forward = Operation(name, self._compute_forward, operands)
        self.backward = Operation(f"{name}_grad", self._compute_backward, arrays, self._graded, ("B",))

    def _chosen(self, asked: Asked, options: dict[str, Any]) -> tuple[Cell, Asked]:
        """The cell for the call's options, which are taken out, and the call as the cell has it."""
        own = {name: options.pop(name) for name in self._options}
        arrays = dict(asked.arrays)
        bias = arrays.pop("B")
        cell = self._cell(bias is not None, **own)
        if bias is not None:
            arrays["v"] = bias
        return cell, asked._replace(arrays=arrays)

    def _compute_forward(self, asked: Asked, **options: Any) -> Any:
        """Check and compute, or record."""
        cell, asked = self._chosen(asked, options)
        found = cell.run_forward(asked, _NAMES, **options)
        return self._result(**found)

    def _compute_backward(self, asked: Asked, *, wanted: frozenset[str], **options: Any) -> Any:
        """Check and compute, or record."""
        cell, asked = self._chosen(asked, options)
        inner = frozenset("v" if name == "B" else name for name in wanted)
        found = cell.run_backward(asked, _NAMES, wanted=inner, **options)
        named = {"v" if name == "B" else name: name for name in self._graded}
        return self._gradients(*(found.get(own) for own in named))


def cached(make: Callable[..., Cell]) -> Callable[..., Cell]:
    """A cell for each set of options, made once."""
    return functools.lru_cache(maxsize=64)(make)
