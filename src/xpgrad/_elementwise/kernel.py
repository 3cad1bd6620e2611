"""What elementwise kernels share: the checks of a call, the quick path without checks, `out`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from xpgrad import engine as engines
from xpgrad._calls.computation import Computation
from xpgrad._operators.arguments import (
    check_arrays,
    check_broadcast,
    check_given,
    check_out,
    check_shape,
    explained,
)
from xpgrad.engine import Formula

NumberCheck: TypeAlias = Callable[[str, str, Any], float]


class ElementwiseKernel:
    """A kernel with a result for each element of its arrays.

    Parameters
    ----------
    operator : str
        The kernel's public name, for messages.
    names : sequence of str
        The names of its arrays.
    formula : Formula
        The formula, with one operand for each array, and one result.
    leader : str, optional
        The array whose shape the result and all other arrays have; the last array by default.
    broadcast : sequence of str, optional
        Arrays that only need to broadcast to the leader's shape.
    optional : sequence of str, optional
        Arrays that may be None.
    checks : sequence of tuple, optional
        The public name and the check of each of the formula's parameters: ``check(operator, name, value)``
        returns the number. Without checks, callers pass checked numbers.
    """

    def __init__(
        self, operator: str, names: Sequence[str], formula: Formula, leader: str | None = None,
        broadcast: Sequence[str] = (), optional: Sequence[str] = (),
        checks: Sequence[tuple[str, NumberCheck]] = (),
    ) -> None:  # fmt: skip
        self._operator, self._names, self._formula = operator, tuple(names), formula
        self._leader, self._broadcast = leader or self._names[-1], tuple(broadcast)
        self._required = tuple(name for name in self._names if name not in optional)
        self._checks = tuple(checks)

    def __call__(self, arrays: Sequence[Any], numbers: Sequence[Any] = (), out: Any = None) -> Any:
        """The result, for numbers of the formula's parameters."""
        if self._checks:
            checked = []  # a loop is faster than a comprehension
            for (name, check), number in zip(self._checks, numbers, strict=True):
                checked.append(check(self._operator, name, number))
            numbers = checked
        engine = engines.agreed(arrays if out is None else [*arrays, out])
        if engine is not None:
            result = engine.quick_elementwise(self._formula, arrays, numbers, out)
            if result is not None:
                return result
        return self.run(self.check(arrays, out), arrays, numbers, out)

    def run(
        self, computation: Computation, arrays: Sequence[Any], numbers: Sequence[float] = (), out: Any = None
    ) -> Any:
        """The result for checked arrays and numbers."""
        lifted = [None if array is None else computation.lift(array) for array in arrays]
        return computation.deliver(
            self._operator,
            lambda target: computation.engine.elementwise(self._formula, lifted, numbers, target),
            out,
        )

    @explained
    def check(self, arrays: Sequence[Any], out: Any = None) -> Computation:
        """The computation of a call with checked arrays."""
        operator, named = self._operator, dict(zip(self._names, arrays, strict=True))
        check_given(operator, {name: named[name] for name in self._required})
        xp = check_arrays(operator, named | {"out": out})
        shape = tuple(named[self._leader].shape)
        for name, array in named.items():
            if name in self._broadcast:
                check_broadcast(operator, name, array, self._leader, shape)
            else:
                check_shape(operator, name, array, f"the shape of {self._leader}", shape)
        check_out(operator, out, shape)
        return Computation(operator, xp, [*arrays, out])


def pull(xp: Any, d: Any, residual: Any, *, pullback: Callable, alpha: Any, beta: Any) -> tuple:
    """A pullback by one residual: x, or y in its place."""
    return (pullback(xp, d, residual, residual, alpha, beta),)


def evaluate(xp: Any, x: Any, *, value: Callable, alpha: Any, beta: Any) -> tuple:
    """A value."""
    return (value(xp, x, alpha, beta),)
