"""Options and oracles of operators that are cells: sLSTM, the attentional GRU, GRU-D."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._testing import augru_reference, gru_d_reference, slstm_reference, to_numpy
from .case import Array, Arrays, Case, Kernel, draw, oracles_of, run_vjp, seeded, sum_or_stack

__all__ = ["CELL_OPERATORS"]

_T, _N, _I, _H = 5, 3, 2, 4


class _Operator(NamedTuple):
    """The differences between the operators: the shapes of arguments, with D, and what has no gradient."""

    name: str
    reference: Callable[..., tuple[Array, ...]]
    outputs: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]]
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


def _states(D: int, names: str) -> dict[str, tuple[int, ...]]:
    return {f"initial_{name}": (D, _N, _H) for name in names}


def _slstm(D: int, heads: int) -> dict[str, tuple[int, ...]]:
    weights = {"W": (D, 4 * _H, _I), "R": (D, 4 * _H, _H // heads), "B": (D, 4 * _H)}
    return {"X": (_T, _N, _I), **weights, **_states(D, "hcnm")}


def _augru(D: int, heads: int) -> dict[str, tuple[int, ...]]:
    weights = {"W": (D, 3 * _H, _I), "R": (D, 3 * _H, _H), "B": (D, 6 * _H)}
    return {"X": (_T, _N, _I), "attention": (_T, _N, 1), **weights, **_states(D, "h")}


def _gru_d(D: int, heads: int) -> dict[str, tuple[int, ...]]:
    series = dict.fromkeys(("X", "mask", "delta"), (_T, _N, _I))
    weights = {"W": (D, 3 * _H, 2 * _I), "R": (D, 3 * _H, _H), "decay_x": (D, 2, _I)}
    vectors = {"decay_h": (D, _H, _I + 1), "B": (D, 3 * _H), "mean": (D, _I)}
    return {**series, **weights, **vectors, **_states(D, "h")}


_OPERATORS = (
    _Operator(
        "slstm", slstm_reference, ("H_all", "H_t", "C_t", "N_t", "M_t", "C_all", "N_all", "M_all"),
        {**_SHARED, **_NORM, "heads": {"heads": 2}, "exponential forget gate": {"forget": "exp"}}, _slstm,
    ),
    _Operator(
        "augru", augru_reference, ("H_all", "H_t"),
        {**_SHARED, **_NORM, "reset after": {"linear_before_reset": 1}}, _augru,
    ),
    _Operator("gru_d", gru_d_reference, ("H_all", "H_t"), _SHARED, _gru_d, ("mask",)),
)  # fmt: skip


def _is_at_a_kink(arguments: Arrays) -> bool:
    """Whether a decay of GRU-D begins where a gap is: no difference quotient is right there."""
    delta, scales, states = (arguments[name] for name in ("delta", "decay_x", "decay_h"))
    of_input = delta[:, None] * scales[:, 0, None] + scales[:, 1, None]
    of_state = np.einsum("tni,dhi->tdnh", delta, states[:, :, :_I]) + states[:, None, :, _I]
    return bool(min(np.abs(of_input).min(), np.abs(of_state).min()) < 1e-3)


def _case(
    op: _Operator,
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
    arguments = {name: draw(rng, *shape) for name, shape in op.shapes(D, attributes.get("heads", 1)).items()}
    if "initial_n" in arguments:  # a weighted mean has weights above 0
        arguments["initial_n"] = 1 + np.abs(arguments["initial_n"])
    if "mask" in arguments:
        arguments["mask"] = (arguments["mask"] > 0) * 1.0
        while _is_at_a_kink(arguments):
            arguments["delta"] = draw(rng, _T, _N, _I)
    cotangents = {
        name: draw(rng, *((_T, D) if name.endswith("_all") else (D,)), _N, _H) for name in op.outputs
    }
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
    axes = {name: _batch_axis(name) for name in ("X", *cotangents)}
    if attributes.get("layout"):
        arguments, cotangents, integers = (_moved(np, part) for part in (arguments, cotangents, integers))
        axes = dict.fromkeys(axes, 0)
    own = {"sample_weight": draw(rng, _N)} if weights else {}
    return Case(arguments, integers, attributes, cotangents, gradient or {}, axes, weights=own)


def _batch_axis(name: str) -> int:
    return 2 if name.endswith("_all") else 1


def _moved(xp: Any, arrays: Arrays, back: bool = False) -> dict[str, Array]:
    """Arrays with the batch in front, or back where layout 0 has it; parameters as they are."""
    own = ("X", "attention", "mask", "delta")
    return {
        name: xp.moveaxis(x, *((0, _batch_axis(name)) if back else (_batch_axis(name), 0)))
        if name in own or name.startswith("initial_") or name.endswith(("_all", "_t"))
        else x
        for name, x in arrays.items()
    }


def _by_reference(op: _Operator, xp: Any, arguments: Arrays, case: Case) -> dict[str, Array]:
    """The outputs of the reference, which has layout 0, in the case's layout."""
    attributes = dict(case.attributes)
    layout = attributes.pop("layout", 0)
    arguments = _moved(xp, arguments, back=True) if layout else arguments
    outputs = dict(zip(op.outputs, op.reference(**arguments, **attributes), strict=True))
    return _moved(xp, outputs) if layout else outputs


def _from_reference(op: _Operator, case: Case) -> Arrays:
    return _by_reference(op, np, {**case.arguments, **case.integers}, case)


def _from_autograd(op: _Operator, case: Case) -> Arrays:
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


def _kernel(op: _Operator) -> Kernel:
    return Kernel(
        op.name,
        seeded(_case, op, op.options),
        functools.partial(run_vjp, op.name),
        oracles_of(op.name, op, _from_reference, _from_autograd),
    )


CELL_OPERATORS = tuple(map(_kernel, _OPERATORS))
