"""Cases and oracles of recurrent operators, over sequences and as single steps, from their declarations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import xpgrad
from xpgrad._operators.axes import in_layout, shape_of
from xpgrad._operators.units import UNITS

from .._testing.comparing import to_numpy
from .case import (
    Array,
    Arrays,
    Case,
    KernelCases,
    draw,
    kernel_cases,
    named_results,
    resets_of,
    seeded,
    sum_or_stack,
)
from .torch_modules import from_module

__all__ = ["SequenceCases", "batch_first", "of_unit", "sequence_kernel", "step_kernel"]

_SIZES = {"N": 3, "I": 2, "H": 4, "I+1": 3, "?": 1}
_STEPS, _PROJECTED, _LENGTHS = 5, 3, (3, 0, 5)
_SCALES = dict.fromkeys(("R", "gamma", "beta", "gamma_c"), 0.5)
"""Factors that make the numbers of these arrays smaller."""


class SequenceCases(NamedTuple):
    """A recurrent operator: its arrays, its options and its references."""

    name: str
    axes: Mapping[str, str]
    """The axes of operands and outputs."""
    operands: tuple[str, ...]
    """The floating-point operands, in their order."""
    outputs: tuple[str, ...]
    """The outputs with a cotangent."""
    reference: Callable[..., Any]
    """Takes operands and attributes by name; returns a named tuple, or the values of `outputs`."""
    options: Mapping[str, Mapping[str, Any]]
    constants: tuple[str, ...] = ()
    """The operands without a gradient."""
    optional: tuple[str, ...] = ()
    """Operands and outputs that only an option with their name in `more` has."""
    gradient_reference: Callable[..., Any] | None = None
    native: Mapping[str, Any] | None = None
    """The attributes with which the operator is PyTorch's module; None if PyTorch has no such module."""


def of_unit(
    name: str,
    reference: Callable[..., Any],
    options: Mapping[str, Mapping[str, Any]],
    optional: Sequence[str] = (),
    **more: Any,
) -> SequenceCases:
    """A declared operator. Its parameters with a default are optional, and so are the names in `optional`."""
    unit, signature = UNITS[name], inspect.signature(getattr(xpgrad, name)).parameters
    operands = tuple(operand for operand in unit.operands if operand != "sequence_lens")
    optional = (*optional, *(p for p in unit.parameters if signature[p].default is None))
    return SequenceCases(
        name,
        unit.axes,
        operands,
        tuple(unit.cotangents),
        reference,
        options,
        unit.constants,
        optional,
        **more,
    )


# ------------------------------------------------------------------------------------------- their cases


def _case(
    op: SequenceCases,
    *,
    seed: Any,
    steps: int = _STEPS,
    more: Sequence[str] = (),
    without: Sequence[str] = (),
    lengths: bool = False,
    resets: bool = False,
    weights: bool = False,
    gradient: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> Case:
    """A small problem in which no two sizes are equal.

    It has the optional operands and outputs in `more`, and not the operands in `without`.
    """
    rng = np.random.default_rng(seed)
    sizes = _SIZES | {"T": steps, "D": 2 if attributes.get("direction") == "bidirectional" else 1}
    sizes |= {"J": _PROJECTED if "S" in more else sizes["H"], "E": sizes["H"] // attributes.get("heads", 1)}

    def drawn(names: Sequence[str]) -> dict[str, Any]:
        left_out = ({*op.optional} - {*more}) | {*without}
        return {
            name: _SCALES.get(name, 1) * draw(rng, *shape_of(op.axes[name], sizes))
            for name in names
            if name not in left_out
        }

    arguments, cotangents = drawn(op.operands), drawn(op.outputs)
    _make_meaningful(rng, arguments)
    integers = {name: arguments.pop(name) for name in op.constants if name in arguments}
    if lengths:
        integers["sequence_lens"] = np.asarray(_LENGTHS, dtype=np.int64)
        over_time = [arguments["X"][:, None], *(a for name, a in cotangents.items() if name.endswith("_all"))]
        for n, length in enumerate(_LENGTHS):
            for array in over_time:
                array[length:, :, n] = np.nan
    if resets:
        integers["reset"] = resets_of(rng, steps, sizes["N"])
    own = {"sample_weight": draw(rng, sizes["N"])} if weights else {}
    axes, layout = {**op.axes, "reset": "T N"}, attributes.get("layout", 0)
    if layout:
        arguments, cotangents, integers = (
            batch_first(np, axes, part) for part in (arguments, cotangents, integers)
        )
    sample_axes = _sample_axes(op, [*arguments, *cotangents], layout)
    return Case(arguments, integers, attributes, cotangents, gradient or {}, sample_axes, weights=own)


def _sample_axes(op: SequenceCases, names: Sequence[str], layout: int = 0) -> dict[str, int]:
    axes = {name: in_layout(op.axes[name], layout).split() for name in names}
    return {name: own.index("N") for name, own in axes.items() if "N" in own}


def _make_meaningful(rng: np.random.Generator, arguments: dict[str, Any]) -> None:
    """Change numbers that an operand must not have."""
    for name in {"recurrent_mask", "zoneout_h", "zoneout_c"} & set(arguments):
        arguments[name] = np.abs(arguments[name]) / 4
    if "initial_n" in arguments:  # the weights of a mean are positive
        arguments["initial_n"] = 1 + np.abs(arguments["initial_n"])
    if "mask" in arguments:
        arguments["mask"] = (arguments["mask"] > 0) * 1.0
        while _is_at_a_kink(arguments):
            arguments["delta"] = draw(rng, *arguments["delta"].shape)


def _is_at_a_kink(arguments: Arrays) -> bool:
    """Whether a decay of GRU-D is near its kink, where central differences are wrong."""
    delta, scales, states = (arguments[name] for name in ("delta", "decay_x", "decay_h"))
    of_input = delta[:, None] * scales[:, 0, None] + scales[:, 1, None]
    of_state = np.einsum("tni,dhi->tdnh", delta, states[:, :, :-1]) + states[:, None, :, -1]
    return bool(min(np.abs(of_input).min(), np.abs(of_state).min()) < 1e-3)


def batch_first(xp: Any, axes: Mapping[str, str], arrays: Arrays, back: bool = False) -> dict[str, Array]:
    """Arrays of layout 0 in layout 1, with the batch as the first axis; with `back` the reverse."""

    def moved(name: str, array: Array) -> Array:
        own = axes.get(name, "").split()
        if "N" not in own[1:]:
            return array
        ends = own.index("N"), 0
        return xp.moveaxis(array, *(ends[::-1] if back else ends))

    return {name: moved(name, array) for name, array in arrays.items()}


# ----------------------------------------------------------------------------------------- their oracles


def _outputs(op: SequenceCases, outputs: Any) -> dict[str, Array]:
    """A reference's results by name."""
    if hasattr(outputs, "_asdict"):
        return dict(outputs._asdict())
    return dict(zip(op.outputs, outputs, strict=True))


def _from_reference(op: SequenceCases, case: Case) -> Arrays:
    inputs = {**case.arguments, **case.integers, **case.attributes}
    forward = op.reference(**inputs)
    if op.gradient_reference is None:
        return _outputs(op, forward)
    saved = {name: getattr(forward, name) for name in UNITS[op.name].saved}
    cotangents = {f"grad_{name}": value for name, value in case.cotangents.items()}
    more = {**case.gradient_attributes, **case.weights}
    return named_results(case, forward, op.gradient_reference(**inputs, **more, **saved, **cotangents))


def _from_autograd(op: SequenceCases, case: Case) -> Arrays:
    """PyTorch's autograd of the reference."""
    import torch

    arguments: dict[str, Any] = {
        name: torch.tensor(a, requires_grad=True) for name, a in case.arguments.items()
    }
    truncated = case.gradient_attributes.get("peephole") == "truncated"
    detach = {"detach": torch.Tensor.detach} if truncated else {}
    fixed = {name: torch.tensor(a) if a.dtype.kind == "f" else a for name, a in case.integers.items()}
    outputs = _outputs(op, op.reference(**arguments, **fixed, **case.attributes, **detach))

    def pullback(cotangents: Arrays) -> dict[str, np.ndarray]:
        found = torch.autograd.grad(
            [outputs[name] for name in cotangents],
            list(arguments.values()),
            [torch.tensor(cotangent) for cotangent in cotangents.values()],
            retain_graph=True,
        )
        return {name: to_numpy(gradient) for name, gradient in zip(arguments, found, strict=True)}

    return sum_or_stack(case, pullback)


def sequence_kernel(op: SequenceCases) -> KernelCases:
    """The operator over sequences."""
    return kernel_cases(op.name, seeded(functools.partial(_case, op), op.options), **_oracles(op))


def _oracles(op: SequenceCases, **of_module: Any) -> dict[str, Callable[[Case], Arrays | None]]:
    """The operator's oracles except differences."""
    oracles: dict[str, Callable[[Case], Arrays | None]] = {
        "reference": functools.partial(_from_reference, op),
        "autograd": functools.partial(_from_autograd, op),
    }
    if op.native is not None:
        oracles["module"] = functools.partial(from_module, UNITS[op.name], op.native, **of_module)
    return oracles


# ------------------------------------------------- single steps: sequences of one step, without its axes


class _StepCases:
    """An operator's single step; its oracles are the sequence's, for sequences of one step."""

    def __init__(self, op: SequenceCases) -> None:
        self.op, self.unit = op, UNITS[op.name]
        states = [state.upper() for state in self.unit.states]
        # the step's names, by the sequence's names
        self.names = dict(zip(self.unit.initial, states, strict=True))
        self.names |= dict(zip(self.unit.ends, self.unit.step_cotangents, strict=True))

    def case(self, **option: Any) -> Case:
        """The first step of a sequence."""
        whole = _case(self.op, steps=1, **option)
        return whole._replace(
            arguments={self.names.get(name, name): array[0] for name, array in whole.arguments.items()},
            cotangents={self.names[n]: a[0] for n, a in whole.cotangents.items() if n in self.names},
            sample_axes=dict.fromkeys(["X", *self.names.values()], 0),
        )

    def _as_sequence(self, case: Case) -> Case:
        names = {step: sequence for sequence, step in self.names.items()}
        arguments = {names.get(name, name): array[None] for name, array in case.arguments.items()}
        cotangents = {names[name]: array[None] for name, array in case.cotangents.items()}
        cotangents["H_all"] = np.zeros((1, *cotangents["H_t"].shape))
        sample_axes = _sample_axes(self.op, [*arguments, *cotangents])
        return case._replace(arguments=arguments, cotangents=cotangents, sample_axes=sample_axes)

    def _of_sequence(self, case: Case, name: str, array: Array) -> tuple[str, Array] | None:
        """The step's name and array for a sequence's; None if the step has none."""
        if name in self.unit.over_time:
            return None
        _, prefix, bare = name.rpartition("gradient of ")
        if name in self.unit.kept:  # over time
            array = array[0, ...]
        elif case.gradient_attributes.get("per_sample") and prefix and "N" not in self.op.axes[bare].split():
            return name, array[:, 0, ...]
        return prefix + self.names.get(bare, bare), array[0, ...]

    def through(self, oracle: Callable[[Case], Arrays | None]) -> Callable[[Case], Arrays | None]:
        """A sequence's oracle for steps."""

        def results(case: Case) -> Arrays | None:
            found = oracle(self._as_sequence(case))
            if found is None:
                return None
            named = (self._of_sequence(case, name, array) for name, array in found.items())
            return dict(filter(None, named))

        return results


def step_kernel(op: SequenceCases, options: Mapping[str, Mapping[str, Any]]) -> KernelCases:
    """The operator's single step."""
    step = _StepCases(op)
    oracles = {label: step.through(oracle) for label, oracle in _oracles(op, cell=True).items()}
    return kernel_cases(UNITS[op.name].step_name, seeded(step.case, options), **oracles)
