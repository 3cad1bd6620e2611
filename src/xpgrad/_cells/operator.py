"""Operators of xpgrad that are one cell: a public signature in front, named results behind.

The cell is chosen by the operator's options. The bias B is the cell's v.
"""

from __future__ import annotations

import functools
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
    """A declared operator and its gradient, made of a cell.

    Parameters
    ----------
    unit, result, gradients
        As of UnitOperator.
    cell : callable
        ``cell(biased, **options)``: its cell, with vectors or without.
    options : sequence of str, optional
        The names of those of its attributes on which the cell depends.
    """

    def __init__(
        self,
        unit: Unit,
        cell: Callable[..., Cell],
        result: Any,
        gradients: Any,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(unit, result, gradients, ("B",))
        self._cell, self._options = cell, options

    def _chosen(self, asked: Asked, options: dict[str, Any]) -> tuple[Cell, Asked]:
        """The cell for the call's options, which are taken out, and the call as the cell has it."""
        own = {name: options.pop(name) for name in self._options}
        arrays = dict(asked.arrays)
        bias = arrays.pop("B")
        cell = self._cell(bias is not None, **own)
        if bias is not None:
            arrays["v"] = bias
        return cell, asked._replace(arrays=arrays)

    def _compute_forward(self, asked: Asked, *, cell_names: Mapping[str, str] = _OWN, **options: Any) -> Any:
        """Check and compute, or record."""
        cell, asked = self._chosen(asked, options)
        found = cell.run_forward(asked, {**_NAMES, **cell_names}, **options)
        return self._result(**found)

    def _compute_backward(
        self,
        asked: Asked,
        *,
        wanted: frozenset[str],
        cell_names: Mapping[str, str] = _OWN,
        **options: Any,
    ) -> Any:
        """Check and compute, or record."""
        cell, asked = self._chosen(asked, options)
        inner = frozenset("v" if name == "B" else name for name in wanted)
        found = cell.run_backward(asked, {**_NAMES, **cell_names}, wanted=inner, **options)
        named = {"v" if name == "B" else name: name for name in self.unit.graded}
        return self._gradients(*(found.get(own) for own in named))


def cached(make: Callable[..., Cell]) -> Callable[..., Cell]:
    """A cell for each set of options, made once."""
    return functools.lru_cache(maxsize=64)(make)
