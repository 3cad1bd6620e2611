"""Operators of xpgrad that consist of one cell. Options choose the cell; the bias B is the cell's v."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from xpgrad._calls.plans import Asked
from xpgrad._operators.units import Unit
from xpgrad._recurrent.operator import UnitOperator
from xpgrad.cells import Cell

_NAMES = {"v": "B"}
_OWN: Mapping[str, str] = MappingProxyType({})


class CellOperator(UnitOperator):
    """A declared operator and its gradient, made of a cell; see UnitOperator.

    ``cell(biased, **options)`` returns the cell, with vectors or without. `options` are the names of the
    attributes on which it depends.
    """

    def __init__(
        self, unit: Unit, cell: Callable[..., Cell], result: Any, gradients: Any, options: Sequence[str] = ()
    ) -> None:
        super().__init__(unit, result, gradients, ("B",))
        self._cell, self._options = cell, options

    def _chosen(self, asked: Asked, options: dict[str, Any]) -> tuple[Cell, Asked]:
        """The cell for the call's options, which are removed from `options`, and the cell's own call."""
        own = {name: options.pop(name) for name in self._options}
        arrays = dict(asked.arrays)
        bias = arrays.pop("B")
        if bias is not None:
            arrays["v"] = bias
        return self._cell(bias is not None, **own), asked._replace(arrays=arrays)

    def _compute_forward(self, asked: Asked, *, cell_names: Mapping[str, str] = _OWN, **options: Any) -> Any:
        cell, asked = self._chosen(asked, options)
        return self._result(**cell.run_forward(asked, {**_NAMES, **cell_names}, **options))

    def _compute_backward(
        self, asked: Asked, *, wanted: frozenset[str], cell_names: Mapping[str, str] = _OWN, **options: Any
    ) -> Any:
        cell, asked = self._chosen(asked, options)
        own = {name: "v" if name == "B" else name for name in self.unit.graded}
        inner = frozenset(own[name] for name in wanted)
        found = cell.run_backward(asked, {**_NAMES, **cell_names}, wanted=inner, **options)
        return self._gradients(*map(found.get, own.values()))
