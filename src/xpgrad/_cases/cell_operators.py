"""Operators that are cells: sLSTM, the attentional GRU, GRU-D."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from array_api_compat import array_namespace

from xpgrad._operators.units import UNITS

from .._testing.augru import augru_step
from .._testing.cells import unit_reference
from .._testing.gru_d import gru_d_reference
from .._testing.slstm import slstm_step
from .case import Array
from .sequences import SequenceCases, batch_first, of_unit, sequence_kernel, step_kernel

__all__ = ["CELL_OPERATORS", "CELL_UNITS"]

_SHARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "reverse": {"direction": "reverse"},
    "layout 1": {"layout": 1},
    "lengths, NaN padding": {"lengths": True, "direction": "bidirectional"},
    "per_sample": {"lengths": True, "gradient": {"per_sample": True}},
    "sample_weight": {"lengths": True, "weights": True},
}
_NORM: dict[str, dict[str, Any]] = {"per_sample, norm": {"gradient": {"per_sample": "norm"}}}
_OF_STEPS = {name: {"gradient": _SHARED[name].get("gradient", {})} for name in ("plain", "per_sample")}
_GRU_D = {
    **dict.fromkeys(("X", "mask", "delta"), "T N I"), "W": "D 3H 2I", "R": "D 3H H", "decay_x": "D 2 I",
    "decay_h": "D H I+1", "B": "D 3H", "mean": "D I", "initial_h": "D N H",
}  # fmt: skip
_GRU_D_OUTPUTS = {"H_all": "T D N H", "H_t": "D N H"}


def _in_both_layouts(
    reference: Callable[..., tuple[Array, ...]], axes: Mapping[str, str], outputs: tuple[str, ...]
) -> Callable[..., tuple[Array, ...]]:
    """A reference for both layouts, from a reference for layout 0."""

    def run(*, layout: int = 0, **arguments: Any) -> tuple[Array, ...]:
        if not layout:
            return reference(**arguments)
        xp = array_namespace(arguments["X"])
        made = reference(**batch_first(xp, axes, arguments, back=True))
        return tuple(batch_first(xp, axes, dict(zip(outputs, made, strict=True))).values())

    return run


def _unit(name: str, step: Callable[..., Any], **options: Mapping[str, Any]) -> SequenceCases:
    """A declared operator, from the definition of its step for `unit_reference`.

    `options` are its own, in addition to the shared options; their names have _ for a space.
    """
    unit = UNITS[name]
    reference = _in_both_layouts(unit_reference(unit, step), unit.axes, tuple(unit.cotangents))
    more = {key.replace("_", " "): own for key, own in options.items()}
    return of_unit(name, reference, {**_SHARED, **_NORM, **more})


_UNITS = (
    _unit("slstm", slstm_step, heads={"heads": 2}, exponential_forget_gate={"forget": "exp"}),
    _unit("augru", augru_step, reset_after={"linear_before_reset": 1}),
)
_GRU_D_CASES = SequenceCases(
    "gru_d",
    {**_GRU_D, **_GRU_D_OUTPUTS},
    tuple(_GRU_D),
    tuple(_GRU_D_OUTPUTS),
    _in_both_layouts(gru_d_reference, {**_GRU_D, **_GRU_D_OUTPUTS}, tuple(_GRU_D_OUTPUTS)),
    {**_SHARED, **_NORM},
    constants=("mask",),
)

CELL_UNITS = {op.name: op.reference for op in _UNITS}
"""The declared operators that are one cell, and their definitions."""
CELL_OPERATORS = (
    *map(sequence_kernel, _UNITS),
    *(step_kernel(op, _OF_STEPS) for op in _UNITS if UNITS[op.name].step is not None),
    sequence_kernel(_GRU_D_CASES),
)
"""The declared operators that are one cell, their single steps, and GRU-D."""
