"""Descriptions for adapters: arguments and results of a kernel and its gradient, read from signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xpgrad
from xpgrad._operators.axes import AXES, ELEMENTWISE, gradient_name, in_layout
from xpgrad._operators.types import array_arguments, result_type
from xpgrad._operators.units import unit_of
from xpgrad._operators.vjp import rule_of
from xpgrad.cells import Cell

__all__ = ["OPEN", "ORDERED", "KernelDescription"]

OPEN = ("...", "?")
"""Axes of any number."""

ORDERED = ("lstm", "gru", "rnn")
"""Operators whose weights have another order of gates, or inputs first, in some frameworks."""

_WEIGHTS = ("W", "R")  # a framework may have swapped their last two axes
_LAYOUT_OF_WEIGHTS = {  # arguments of `run_foreign`; a single step has no such axes
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    for name, default, kind in (("gate_order", None, "Sequence[int] | None"), ("input_major", False, "bool"))
}
_OF_GRADIENTS = ("per_sample", "sample_weight", "wrt", "out")  # adapters' kernels do not take them
_NO_OPERANDS = ("out", "reset")  # chosen memory; a part of the lengths


class KernelDescription:
    """A kernel and its gradient; adapters' subclasses run them on arrays of their frameworks.

    Its operands are the kernel's array arguments. Outputs of the kernel that the gradient takes are saved.

    Parameters
    ----------
    name : str
        The kernel's name; the gradient's name ends with ``_grad``.
    shapes : mapping of str to str, optional
        The axes of operands and outputs by name, by default from `axes`. If X is only ``"..."``, the kernel
        works elementwise or along one axis: every axis could be the batch.
    replaced : mapping of str to str, optional
        For each operand that an output can replace in the gradient, this output. Only the output is saved.
    ordered : bool
        Whether further attributes describe the layout of weights; see `run_foreign`.
    cell : Cell, optional
        The user's cell, if the kernel is not one of xpgrad's.
    """

    def __init__(
        self,
        name: str,
        *,
        shapes: Mapping[str, str] | None = None,
        replaced: Mapping[str, str] | None = None,
        ordered: bool = False,
        cell: Cell | None = None,
    ) -> None:
        self.name, self.gradient_name = name, f"{name}_grad"
        self._cell, self._unit = cell, None if cell is not None else unit_of(name)
        # Whether the kernel can keep its products for the gradient, as one more output.
        self.keeps_products = self._unit is not None and name == self._unit.name and self._unit.keeps_products
        forward, gradient = (inspect.signature(self.function(which)) for which in (0, 1))
        # The named tuples of their results, if they have names; a cell has its own.
        self.result, self.gradient_result = (result_type(self.function(which)) for which in (0, 1))
        self._read_forward(forward.parameters)
        if ordered:
            self.attributes |= _LAYOUT_OF_WEIGHTS
        self._read_results()
        self._read_gradient(gradient.parameters, dict(replaced or {}))
        self.shapes = dict(shapes or AXES.get(name, ELEMENTWISE))
        if self.keeps_products:
            self.shapes["products"] = self.shapes["H_all"]
        self.shapes |= {c: self.shapes[y] for c, y in zip(self.cotangents, self.outputs, strict=False)}
        self.elementwise = self.shapes["X"] == "..."

    def _read_forward(self, parameters: Mapping[str, inspect.Parameter]) -> None:
        """Find the operands and attributes among the kernel's parameters."""
        self.operands = tuple(n for n in array_arguments(self.function(0)) if n not in _NO_OPERANDS)
        needed = {name for name in self.operands if parameters[name].default is inspect.Parameter.empty}
        self.required = needed - {"B"}  # None means no biases
        self.attributes = {
            name: p
            for name, p in parameters.items()
            if p.kind is p.KEYWORD_ONLY and name not in (*self.operands, *_NO_OPERANDS)
        }
        constants = () if self._unit is None else self._unit.constants
        self.masks = [name for name in self.operands if name in constants]
        self.differentiable = tuple(
            name for name in self.operands if name not in (*constants, "sequence_lens")
        )

    def _read_results(self) -> None:
        """Find the kernel's outputs: first the outputs with a cotangent."""
        if self._cell is not None:
            outputs = self._cell.outputs
        else:
            outputs = ("Y",) if self.result is None else self.result._fields
        self.outputs = (*outputs, "products") if self.keeps_products else outputs
        self.cotangents = tuple(rule_of(self.function(0)).cotangents.values())

    def _read_gradient(
        self, parameters: Mapping[str, inspect.Parameter], replaced: Mapping[str, str]
    ) -> None:
        """Find the gradient's operands, its own attributes, and its results."""
        # The operands that the gradient depends on: a bias that was only added is not among them.
        self.taken = tuple(name for name in self.operands if name in parameters and name not in replaced)
        kept = {*parameters, *replaced.values(), *(("products",) if self.keeps_products else ())}
        self.saved = tuple(name for name in self.outputs if name in kept)
        # The arrays that the gradient takes, and its own names for them.
        self.gradient_arrays = (*self.taken, *self.saved, *self.cotangents)
        self._argument = {output: operand for operand, output in replaced.items()}
        self.arguments = self.arguments_of(self.gradient_arrays)
        known = {*self.arguments, *self.attributes, *_OF_GRADIENTS, *_NO_OPERANDS}
        self.gradient_attributes = {name: p for name, p in parameters.items() if name not in known}
        # The operands whose gradients it returns, in its order: all that have one, or only the first.
        self.selects, self.has_per_sample = "wrt" in parameters, "per_sample" in parameters
        self.graded = self.differentiable if self.selects else self.operands[:1]
        result = self.gradient_result if self._cell is None else self._cell.results[1]
        if result is not None:
            order = result._fields
            self.graded = tuple(sorted(self.graded, key=lambda name: order.index(gradient_name(name))))

    def function(self, which: int) -> Callable[..., Any]:
        """The kernel (0) or its gradient (1); xpgrad's are looked up each time, as they may be replaced."""
        if self._cell is not None:
            return (self._cell, self._cell.grad)[which]
        return getattr(xpgrad, (self.name, self.gradient_name)[which])

    def arguments_of(self, arrays: Sequence[str]) -> tuple[str, ...]:
        """The gradient's own names for its arrays."""
        return tuple(self._argument.get(name, name) for name in arrays)

    def saved_of(self, outputs: Sequence[Any]) -> list[Any]:
        """The kernel's outputs that the gradient takes."""
        by_name = dict(zip(self.outputs, outputs, strict=True))
        return [by_name[name] for name in self.saved]

    def own(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes without those of only the gradient."""
        return {name: value for name, value in attributes.items() if name in self.attributes}

    def gradient_options(
        self, wrt: Sequence[str], attributes: Mapping[str, Any], per_sample: bool | str
    ) -> dict[str, Any]:
        """The gradient's arguments besides arrays."""
        selected = {"wrt": tuple(wrt)} if self.selects else {}
        return {**attributes, **selected, **({"per_sample": per_sample} if per_sample else {})}

    def by_operand(self, results: Any) -> dict[str, Any]:
        """The results of the gradient by operand."""
        return dict(zip(self.graded, results if self.selects else (results,), strict=True))

    def axes(self, name: str, attributes: Mapping[str, Any]) -> list[str]:
        """The axes of an operand or output for these attributes."""
        if self.reduces(attributes) and name in (*self.outputs, *self.cotangents):
            return []
        axes = in_layout(self.shapes[name], attributes.get("layout")).split()
        if attributes.get("input_major") and name in _WEIGHTS:
            axes[-2:] = reversed(axes[-2:])
        return axes

    def batch_axis(self, name: str, attributes: Mapping[str, Any]) -> int | None:
        """The batch axis of an operand or output; None for a parameter."""
        axes = self.axes(name, attributes)
        return axes.index("N") if "N" in axes else None

    def lacks_batch(self, name: str, rank: int, attributes: Mapping[str, Any]) -> bool:
        """Whether an array with this number of axes is a single sample, without a batch axis."""
        return rank < len([axis for axis in self.axes(name, attributes) if axis not in OPEN])

    def reduces(self, attributes: Mapping[str, Any]) -> bool:
        """Whether the output is one number for the whole batch, as of a loss."""
        return attributes.get("reduction", "none") != "none"
