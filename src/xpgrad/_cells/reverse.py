"""Reverse mode over a step's graph: the pullbacks of elementwise functions, of row means and of products.

The cotangent of a value that is one number for a row is kept divided by the row's length. Then the pullback
of a mean is a copy, the pullback of a copy to the whole row is the mean, and no formula needs the row's
length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xpgrad._cells.tape import Rule, StepValue
from xpgrad._cells.trace import StepGraph, number_of


def _half_at_ties(xp: Any, d: Any, x: Any, y: Any) -> tuple:
    """The cotangents of x and y, of which the larger takes d; at ties each takes half."""
    taken = xp.where(x > y, d, xp.where(x < y, 0.0, 0.5 * d))
    return taken, d - taken


# ``pullback(xp, d, y, *arguments)`` gives a cotangent for each argument, None for none.
_PULLBACKS: dict[str, Callable[..., tuple]] = {
    "add": lambda xp, d, y, a, b: (d, d),
    "subtract": lambda xp, d, y, a, b: (d, -d),
    "multiply": lambda xp, d, y, a, b: (d * b, d * a),
    "divide": lambda xp, d, y, a, b: (d / b, -(d * y) / b),
    "negative": lambda xp, d, y, a: (-d,),
    "absolute": lambda xp, d, y, a: (xp.where(a > 0, d, xp.where(a < 0, -d, 0.0)),),
    "exp": lambda xp, d, y, a: (d * y,),
    "expm1": lambda xp, d, y, a: (d * (y + 1),),
    "log": lambda xp, d, y, a: (d / a,),
    "log1p": lambda xp, d, y, a: (d / (1 + a),),
    "sqrt": lambda xp, d, y, a: (0.5 * d / y,),
    "tanh": lambda xp, d, y, a: (d * ((1 - y) * (1 + y)),),
    "maximum": lambda xp, d, y, a, b: _half_at_ties(xp, d, a, b),
    "minimum": lambda xp, d, y, a, b: _half_at_ties(xp, d, b, a),
    "where": lambda xp, d, y, c, a, b: (None, xp.where(c, d, 0.0), xp.where(c, 0.0, d)),
    "mean": lambda xp, d, y, a: (d,),
    "average": lambda xp, d, y, a: (xp.mean(d),),
}


def pull_back(
    step: StepGraph, groups: Sequence[Sequence[StepValue]], seeds: Sequence[StepValue]
) -> dict[StepValue, StepValue]:
    """The cotangents of all values on which the states after a step depend, as values of the step's tape.

    `groups` has the products of R with one value, group by group: R's transpose takes their cotangents back.
    If the value is a state, the loop adds this product; else it is a value "back" of the tape. `seeds` are
    the cotangents of the states after the step.
    """
    return _Reverse(step, groups).run(seeds)


class _Reverse:
    def __init__(self, step: StepGraph, groups: Sequence[Sequence[StepValue]]) -> None:
        self._step, self._tape = step, step.tape
        self._found: dict[StepValue, Any] = {}
        self._todo: set[StepValue] = set()
        self._group_of = {value: number for number, group in enumerate(groups) for value in group}
        self._groups = groups
        self._heads = [min(group, key=number_of) for group in self._groups]

    def run(self, seeds: Sequence[StepValue]) -> dict[StepValue, StepValue]:
        """Cotangents by value, from the last value to the first: all uses of a value come before it."""
        for value, seed in zip(self._step.after, seeds, strict=True):
            self._add(value, seed)
        while self._todo:
            value = max(self._todo, key=number_of)
            self._todo.remove(value)
            self._visit(value)
        return {value: d for value, d in self._found.items() if d is not None}

    def _add(self, value: Any, d: Any) -> None:
        """Add to a value's cotangent; None stands for zero."""
        if not isinstance(value, StepValue):
            return
        self._todo.add(value)
        if d is None:
            self._found.setdefault(value, None)
            return
        if not isinstance(d, StepValue):
            if d != 0:
                raise TypeError(
                    f"{self._tape.operator}: a pullback returned the number {d}, expected a value or 0"
                )
            self._add(value, None)
            return
        if value.axes == "row" and d.axes != "row":
            d = self._tape.mean(d)
        known = self._found.get(value)
        self._found[value] = d if known is None else known + d

    def _visit(self, value: Any) -> None:
        d = self._found.get(value)
        if value.is_flag:
            return
        if value in self._group_of:
            self._visit_product(value)
        elif value.function.startswith("result "):
            self._visit_result(self._tape.rules[value.index], value)
        elif value.function in _PULLBACKS and d is not None:
            grads = _PULLBACKS[value.function](self._tape, d, value, *value.arguments)
            for argument, grad in zip(value.arguments, grads, strict=True):
                if grad is not None:
                    self._add(argument, grad)
        elif d is not None and value.uses:
            raise TypeError(
                f"{self._tape.operator}: step applies {value.function}, which has no pullback here, expected "
                "the functions of xp, or xpgrad.cells.with_pullback"
            )

    def _visit_product(self, value: StepValue) -> None:
        """Visit a group of products at its first product: then the cotangents of all are known."""
        number = self._group_of[value]
        head = self._heads[number]
        if value is not head:
            self._add(head, None)
            return
        (source,) = value.arguments
        if not any(source is state for state in self._step.before):
            zero = [self._found.get(one) for one in self._groups[number]]
            self._add(source, self._tape.leaf("back", number, *(0.0 if d is None else d for d in zero)))

    def _visit_result(self, rule: Rule, value: Any) -> None:
        """Visit a function with a rule at its first result."""
        values = [result for result in rule.results if isinstance(result, StepValue)]
        head = min(values, key=number_of)
        if value is not head:
            self._add(head, None)
            return
        ds = [self._found.get(r) if isinstance(r, StepValue) else None for r in rule.results]
        if all(d is None for d in ds):
            return
        given = [0.0 if d is None else d for d in ds]
        grads = rule.pullback(self._tape, *given, *rule.operands, *rule.results)
        grads = grads if isinstance(grads, tuple | list) else (grads,)
        if len(grads) != len(rule.operands):
            raise ValueError(
                f"{self._tape.operator}: the pullback of {rule.function.__name__} returned {len(grads)} "
                f"cotangents, expected {len(rule.operands)}, one for each operand"
            )
        for operand, grad in zip(rule.operands, grads, strict=True):
            self._add(operand, grad)
