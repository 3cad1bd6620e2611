"""From a declaration to an operation and its gradient: checks, loops, results by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from xpgrad._calls.plans import Asked, Operation
from xpgrad._operators.arguments import check_choice
from xpgrad._operators.units import Unit
from xpgrad._recurrent.backward import gradient_results
from xpgrad._recurrent.call import RecurrentCall
from xpgrad._recurrent.forward import forward_results
from xpgrad._recurrent.one_step import OneStep
from xpgrad._recurrent.plan import BackwardPlan, ForwardPlan

_NO_CHOICES: Mapping[str, tuple] = MappingProxyType({})


class UnitOperator(ABC):
    """A declared operator and its gradient, with the named tuples of their results.

    The arguments in `optional` have a gradient only if they are given.
    """

    def __init__(self, unit: Unit, result: Any, gradients: Any, optional: tuple[str, ...] = ()) -> None:
        self.unit, self._result, self._gradients = unit, result, gradients
        self.forward = Operation(unit.name, self._compute_forward, unit.operands)
        self.backward = Operation(
            f"{unit.name}_grad", self._compute_backward, unit.gradient_arrays, unit.graded, optional
        )

    @abstractmethod
    def _compute_forward(self, *asked: Any, **attributes: Any) -> Any:
        """Check and compute, or record."""

    @abstractmethod
    def _compute_backward(self, *asked: Any, **attributes: Any) -> Any:
        """Check and compute, or record."""

    def step(self, result: type, gradients: type) -> tuple[Operation, Operation]:
        """The operator's single step and its gradient, with the named tuples of their results."""
        return OneStep(self.unit, self.forward, self.backward, result, gradients).operations()


class LoopOperator(UnitOperator):
    """An operator with hand-written plans; see also UnitOperator.

    ``forward(call, direction, **options)`` returns the plan of one direction, and ``backward(call, direction,
    wanted, **options)`` the plan of its gradient. `defaults` are one direction's activations. `options` and
    `gradient_options` have the values of the operator's own attributes, and of the gradient's additional
    attributes. `kept_result` is the named tuple of results with the products that the unit can keep.
    """

    def __init__(
        self,
        unit: Unit,
        result: Any,
        gradients: Any,
        forward: Callable[..., ForwardPlan],
        backward: Callable[..., BackwardPlan],
        defaults: Sequence[str],
        *,
        options: Mapping[str, tuple] = _NO_CHOICES,
        gradient_options: Mapping[str, tuple] = _NO_CHOICES,
        optional: tuple[str, ...] = (),
        kept_result: Any = None,
    ) -> None:
        super().__init__(unit, result, gradients, optional)
        self._forward_plan, self._backward_plan, self._defaults = forward, backward, defaults
        self._options, self._gradient_options = options, {**options, **gradient_options}
        self._kept_result = kept_result

    def _compute_forward(self, asked: Asked, *, keep_products: bool = False, **attributes: Any) -> Any:
        own = _taken(asked, attributes, self._options) | ({"keep_products": True} if keep_products else {})
        call = self._call(asked, attributes)
        found = forward_results(call, lambda call, d: self._forward_plan(call, d, **own))
        return (self._kept_result if keep_products else self._result)(**found)

    def _compute_backward(
        self, asked: Asked, *, wanted: frozenset[str], per_sample: bool | str, **attributes: Any
    ) -> Any:
        unit, own = self.unit, _taken(asked, attributes, self._gradient_options)
        products = {"products": 1} if unit.keeps_products and "products" in asked.arrays else {}
        call = self._call(asked, attributes, saved=unit.saved | products, cotangents=unit.end_cotangents)
        found = gradient_results(
            call, lambda call, d: self._backward_plan(call, d, wanted, **own), unit.graded, wanted, per_sample
        )
        return self._gradients(*found.values())

    def _call(self, asked: Asked, attributes: Mapping[str, Any], **arrays: Any) -> RecurrentCall:
        """The checked call."""
        unit, defaults = self.unit, self._defaults
        return RecurrentCall(asked, unit.rows, states=unit.initial, defaults=defaults, **arrays, **attributes)


def _taken(asked: Asked, attributes: dict[str, Any], choices: Mapping[str, tuple]) -> dict[str, Any]:
    """The operator's own attributes, checked and removed from `attributes`."""
    own = {name: attributes.pop(name) for name in choices}
    for name, value in own.items():
        check_choice(asked.operator, name, value, choices[name])
    return own
