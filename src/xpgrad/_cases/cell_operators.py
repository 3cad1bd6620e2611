"""Options and oracles of operators that are cells: sLSTM, the attentional GRU, GRU-D."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from xpgrad._operators.units import UNITS

from .._testing import augru_step, gru_d_reference, slstm_step, to_numpy, unit_reference
from .case import Array, Arrays, Case, KernelCases, draw, oracles_of, run_vjp, seeded, sum_or_stack

__all__ = ["CELL_OPERATORS", "CELL_UNITS"]

_T, _N, _I, _H = 5, 3, 2, 4


class _CellOperatorCases(NamedTuple):
    """The differences between the operators: the axes of arguments and outputs, and what has no gradient."""

    name: str
    reference: Callable[..., tuple[Array, ...]]
    options: Mapping[str, Mapping[str, Any]]
    arguments: Mapping[str, str]
    outputs: Mapping[str, str]
    constants: tuple[str, ...] = ()


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


def _unit(name: str, step: Callable[..., Any], **options: Mapping[str, Any]) -> _CellOperatorCases:
    """A declared operator, by the definition of its step for `unit_reference`.

    Its options come beside those that all have, with _ for a space.
    """
    unit = UNITS[name]
    arguments = {key: unit.axes[key] for key in unit.graded}
    outputs = {key: unit.axes[key] for key in unit.cotangents}
    more = {key.replace("_", " "): own for key, own in options.items()}
    reference = unit_reference(unit, step)
    return _CellOperatorCases(
        name, reference, {**_SHARED, **_NORM, **more}, arguments, outputs, unit.constants
    )


def _step(op: _CellOperatorCases) -> _CellOperatorCases:
    """The operator's single step: a sequence of length 1."""
    unit = UNITS[op.name]

    def reference(**arrays: Array) -> tuple[Array, ...]:
        named = {f"initial_{state}": state.upper() for state in unit.states}
        whole = {name: arrays[named.get(name, name)][None, ...] for name in op.arguments}
        by_name = dict(zip(op.outputs, op.reference(**whole), strict=True))
        return tuple(by_name[end][0, ...] for end in unit.ends)

    axes = unit.step_axes
    arguments = {name: axes[name] for name in unit.step_arguments}
    outputs = {name: axes[name] for name in unit.step_cotangents}
    return _CellOperatorCases(unit.step_name, reference, _OF_STEPS, arguments, outputs)


_UNITS = (
    _unit("slstm", slstm_step, heads={"heads": 2}, exponential_forget_gate={"forget": "exp"}),
    _unit("augru", augru_step, reset_after={"linear_before_reset": 1}),
)
_OPERATORS = (
    *_UNITS,
    *(_step(op) for op in _UNITS if UNITS[op.name].step is not None),
    _CellOperatorCases(
        "gru_d", gru_d_reference, _SHARED, _GRU_D, {"H_all": "T D N H", "H_t": "D N H"}, ("mask",)
    ),
)


def _shape(axes: str, D: int, heads: int) -> tuple[int, ...]:
    """The shape of an array with these axes; a width that may be several is 1."""
    sizes = {"T": _T, "N": _N, "I": _I, "H": _H, "E": _H // heads, "D": D, "I+1": _I + 1}

    def size(axis: str) -> int:
        if axis in sizes:
            return sizes[axis]
        return int(axis[:-1] or 1) * sizes.get(axis[-1], 1) if not axis.isdigit() else int(axis)

    return tuple(map(size, axes.split()))


def _is_at_a_kink(arguments: Arrays) -> bool:
    """Whether a decay of GRU-D begins where a gap is: no difference quotient is right there."""
    delta, scales, states = (arguments[name] for name in ("delta", "decay_x", "decay_h"))
    of_input = delta[:, None] * scales[:, 0, None] + scales[:, 1, None]
    of_state = np.einsum("tni,dhi->tdnh", delta, states[:, :, :_I]) + states[:, None, :, _I]
    return bool(min(np.abs(of_input).min(), np.abs(of_state).min()) < 1e-3)


def _case(
    op: _CellOperatorCases,
    *,
    seed: int,
    lengths: bool = False,
    weights: bool = False,
    gradient: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> Case:
    """A small problem in which no two sizes are equal."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    rng = np.random.default_rng(seed)
    heads = attributes.get("heads", 1)
    arguments = {name: draw(rng, *_shape(axes, D, heads)) for name, axes in op.arguments.items()}
    if "initial_n" in arguments:  # a weighted mean has weights above 0
        arguments["initial_n"] = 1 + np.abs(arguments["initial_n"])
    if "mask" in arguments:
        arguments["mask"] = (arguments["mask"] > 0) * 1.0
        while _is_at_a_kink(arguments):
            arguments["delta"] = draw(rng, _T, _N, _I)
    cotangents = {name: draw(rng, *_shape(axes, D, heads)) for name, axes in op.outputs.items()}
    for name in cotangents:
        if (
            name[0] not in "H"
        ):  # of the stabilizer's scale: half precision cannot tell the larger of two gates
            cotangents[name] *= 0
    integers: dict[str, Any] = {name: arguments.pop(name) for name in op.constants}
    if lengths:
        integers["sequence_lens"] = np.asarray([3, 0, 5], dtype=np.int64)
        for n, length in enumerate(integers["sequence_lens"]):
            arguments["X"][length:, n] = np.nan
            for name in cotangents:
                if name.endswith("_all"):
                    cotangents[name][length:, :, n] = np.nan
    axes = {name: own.split().index("N") for name, own in {"X": op.arguments["X"], **op.outputs}.items()}
    if attributes.get("layout"):
        arguments, cotangents, integers = (_moved(np, part) for part in (arguments, cotangents, integers))
        axes = dict.fromkeys(axes, 0)
    own = {"sample_weight": draw(rng, _N)} if weights else {}
    return Case(arguments, integers, attributes, cotangents, gradient or {}, axes, weights=own)


def _batch_axis(name: str) -> int:
    return 2 if name.endswith("_all") else 1


def _moved(xp: Any, arrays: Arrays, back: bool = False) -> dict[str, Array]:
    """Arrays with the batch in front, or back where layout 0 has it; parameters as they are."""
    own = {"X", "mask", "delta", *(name for unit in UNITS.values() for name in unit.inputs)}
    return {
        name: xp.moveaxis(x, *((0, _batch_axis(name)) if back else (_batch_axis(name), 0)))
        if name in own or name.startswith("initial_") or name.endswith(("_all", "_t"))
        else x
        for name, x in arrays.items()
    }


def _by_reference(op: _CellOperatorCases, xp: Any, arguments: Arrays, case: Case) -> dict[str, Array]:
    """The outputs of the reference, which has layout 0, in the case's layout."""
    attributes = dict(case.attributes)
    layout = attributes.pop("layout", 0)
    arguments = _moved(xp, arguments, back=True) if layout else arguments
    outputs = dict(zip(op.outputs, op.reference(**arguments, **attributes), strict=True))
    return _moved(xp, outputs) if layout else outputs


def _from_reference(op: _CellOperatorCases, case: Case) -> Arrays:
    return _by_reference(op, np, {**case.arguments, **case.integers}, case)


def _from_autograd(op: _CellOperatorCases, case: Case) -> Arrays:
    import torch

    tensors: dict[str, Any] = {
        name: torch.tensor(a, requires_grad=True) for name, a in case.arguments.items()
    }
    constants = {name: torch.tensor(a) for name, a in case.integers.items()}
    outputs = _by_reference(op, torch, {**tensors, **constants}, case)

    def pullback(cotangents: Arrays) -> dict[str, np.ndarray]:
        given = [torch.tensor(cotangents[name]) for name in op.outputs]
        found = torch.autograd.grad(list(outputs.values()), list(tensors.values()), given, retain_graph=True)
        return {name: to_numpy(gradient) for name, gradient in zip(tensors, found, strict=True)}

    return sum_or_stack(case, pullback)


def _kernel(op: _CellOperatorCases) -> KernelCases:
    return KernelCases(
        op.name,
        seeded(_case, op, op.options),
        functools.partial(run_vjp, op.name),
        oracles_of(op.name, op, _from_reference, _from_autograd),
    )


CELL_UNITS = {op.name: op.reference for op in _UNITS}
"""The declared operators that are one cell, and their definitions."""
CELL_OPERATORS = tuple(map(_kernel, _OPERATORS))
