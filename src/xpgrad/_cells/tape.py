"""Records a formula as calls: a tape replaces ``xp``, and its values replace the arrays.

Each value knows along which axes it varies: for "each" element, each "row" or each "column".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_FLAGS = (
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "isnan", "isinf", "isfinite",
)  # fmt: skip


class Use(NamedTuple):
    """An argument of a call: a value or a number, and whether it is a number ("f") or a flag ("?")."""

    value: Any
    kind: str


class Call(NamedTuple):
    """A function of some values, and whether its result is a number ("f") or a flag ("?")."""

    function: str
    uses: tuple[Use, ...]
    kind: str


class Value:
    """The stand-in for an array in a formula: the result of a call."""

    def __init__(self, tape: Tape, call: Call | None, axes: str = "each") -> None:
        self.tape, self.call, self.axes, self.dtype = tape, call, axes, tape.dtype

    @property
    def uses(self) -> list[Value]:
        """The values that its call reads."""
        return [argument for argument in self.arguments if isinstance(argument, Value)]

    @property
    def arguments(self) -> list[Any]:
        """The arguments of its call, values and numbers, in order."""
        return [use.value for use in self.call.uses] if self.call else []

    @property
    def is_flag(self) -> bool:
        """Whether it is a truth value."""
        return self.call is not None and self.call.kind == "?"

    def called(self, *functions: str) -> bool:
        """Whether it is the result of one of these functions."""
        return self.call is not None and self.call.function in functions

    def __neg__(self) -> Value:
        return self.tape.apply("negative", self)


def _operator(function: str, turned: bool) -> Callable[[Value, Any], Value]:
    def operate(self: Value, other: Any) -> Value:
        return self.tape.apply(function, *((other, self) if turned else (self, other)))

    return operate


for _name, _ufunc in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "and": "logical_and",
    "or": "logical_or",
}.items():  # fmt: skip
    setattr(Value, f"__{_name}__", _operator(_ufunc, turned=False))
    setattr(Value, f"__r{_name}__", _operator(_ufunc, turned=True))
for _name, _ufunc in zip(("lt", "le", "gt", "ge", "eq", "ne"), _FLAGS, strict=False):
    setattr(Value, f"__{_name}__", _operator(_ufunc, turned=False))
Value.__hash__ = object.__hash__  # type: ignore[method-assign]


class Tape:
    """Records calls of NumPy's functions, each only once. It replaces ``xp``."""

    float32, float64, inf = np.float32, np.float64, float("inf")
    value = Value
    operator: str
    """For messages."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.calls: dict[tuple, Value] = {}

    def abs(self, x: Value) -> Value:
        """Absolute value."""
        return self.apply("absolute", x)

    def zeros_like(self, x: Value) -> float:
        """A number; functions broadcast it."""
        return 0.0

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + exp(-x)). An overflow of exp is harmless here."""
        exponential = self._apply("exp", self._apply("negative", x))
        return self._apply("reciprocal", self._apply("add", exponential, 1.0))

    def apply(self, function: str, *arguments: Any) -> Any:
        """A call of a function with values and numbers."""
        return self._apply(function, *arguments)

    def _apply(self, function: str, *arguments: Any) -> Value:
        uses = [Use(a, "?" if isinstance(a, Value) and a.is_flag else "f") for a in arguments]
        return self._call(function, "?" if function in _FLAGS or uses[0].kind == "?" else "f", *uses)

    def _call(self, function: str, kind: str, *uses: Use) -> Value:
        key = (function, *((id(value) if isinstance(value, Value) else repr(value), k) for value, k in uses))
        if key not in self.calls:
            axes = {use.value.axes for use in uses if isinstance(use.value, Value)}
            self.calls[key] = self.value(
                self, Call(function, uses, kind), axes.pop() if len(axes) == 1 else "each"
            )
        return self.calls[key]


def same(a: Any, b: Any) -> bool:
    """Whether both are the same value, or the same number with the same sign."""
    return a is b or (
        not isinstance(a, Value) and not isinstance(b, Value) and repr(float(a)) == repr(float(b))
    )
