"""Records a formula as calls: a tape replaces ``xp``, and its values replace the arrays.

Each value knows along which axes it varies: for "each" element, each "row" or each "column".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_INTEGERS = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}
_FLAGS = (
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "equal",
    "not_equal",
    "isnan",
    "isinf",
    "isfinite",
)


class Use(NamedTuple):
    """An argument of a call: a value or a constant, and the dtype to read it as (a key of `Tape.dtypes`)."""

    value: Any
    kind: str


class Call(NamedTuple):
    """A function of some values, and the dtype to write its result as."""

    function: str
    uses: tuple[Use, ...]
    kind: str


class Value:
    """The stand-in for an array in a formula: an operand, or the result of a call."""

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
        """Whether it is a boolean, stored in a byte."""
        return self.call is not None and self.call.kind in "?b"

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


class _NumpyFunctions:
    """Functions that a program calls by name besides NumPy's own."""

    def __getattr__(self, name: str) -> Callable:
        return getattr(np, name)

    @staticmethod
    def sum(x: np.ndarray, out: np.ndarray) -> None:
        """Of each row."""
        np.add.reduce(x, axis=1, keepdims=True, out=out)

    @staticmethod
    def max(x: np.ndarray, out: np.ndarray) -> None:
        """Of each row."""
        np.maximum.reduce(x, axis=1, keepdims=True, out=out)

    @staticmethod
    def widen(x: np.ndarray, out: np.ndarray) -> None:
        """Cast to another dtype."""
        np.copyto(out, x)

    @staticmethod
    def clear_rows(flags: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """`x`, but 0 in flagged rows. Flagged rows are few, so the others are not read again."""
        if x is not out:
            np.copyto(out, x)
        if flags.any():
            out[flags[:, 0]] = 0

    @staticmethod
    def empty_rows(logits: np.ndarray, out: np.ndarray) -> None:
        """Whether a row is only -inf: for most rows the first logit shows that it is not."""
        np.equal(logits[:, :1], -np.inf, out=out)
        if out.any():
            out &= logits.max(axis=1, keepdims=True) == -np.inf


NUMPY_FUNCTIONS = _NumpyFunctions()
"""The functions that calls name; all take ``out``."""


class Tape:
    """Records calls of NumPy's functions, each only once. It replaces ``xp``.

    Parameters
    ----------
    dtype : dtype
        The dtype of the computation.
    """

    float32, float64, inf = np.float32, np.float64, float("inf")
    value = Value

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.dtypes: dict[str, Any] = {
            "f": dtype,
            "i": _INTEGERS[dtype],
            "?": np.dtype(bool),
            "b": np.dtype(np.int8),
        }
        self.calls: dict[tuple, Value] = {}
        self._exponents: dict[int, Any] = {}
        self._selected: dict[int, tuple[Value, Any, Any]] = {}

    def constant(self, value: Any, kind: str) -> Any:
        """A number as an array."""
        if kind == "i":
            return np.asarray(value, dtype=self.dtypes["f"]).view(self.dtypes["i"])
        return np.asarray(value, dtype=self.dtypes[kind])

    def buffer(self, shape: tuple[int, ...], kind: str) -> tuple[Any, Any]:
        """A buffer, and its bytes viewed as integers."""
        buffer = np.empty(shape, self.dtypes[kind])
        return buffer, buffer.view(self.dtypes["i" if kind == "f" else "b"])

    # --- what a formula calls

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if not isinstance(getattr(np, name, None), np.ufunc):
            raise AttributeError(f"a formula may not use {name}: it is no elementwise function")
        return lambda *arguments: self.apply(name, *arguments)

    def operand(self, axes: str = "each") -> Value:
        """The stand-in for an operand of the formula."""
        return Value(self, None, axes)

    def made(self, result: Any) -> Value:
        """The result as the value of a call: an operand or a number must be copied."""
        if not isinstance(result, Value) or result.call is None:
            return self.apply("positive", result)
        return result

    def abs(self, x: Value) -> Value:
        """Absolute value."""
        return self.apply("absolute", x)

    def zeros_like(self, x: Value) -> float:
        """A number; functions broadcast it."""
        return 0.0

    def sum(self, x: Any, axis: int, keepdims: bool) -> Value:
        """Of each row."""
        return self._reduce("sum", x)

    def max(self, x: Any, axis: int, keepdims: bool) -> Value:
        """Of each row."""
        return self._reduce("max", x)

    def _reduce(self, function: str, x: Any) -> Value:
        if not isinstance(x, Value) or x.axes != "each":
            raise TypeError(f"a row formula reduces by {function} what has no element for each column")
        value = self._call(function, "f", Use(x, "f"))
        value.axes = "row"
        return value

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """`x` where the condition holds, else `y`; NumPy's own branches on every element."""
        if condition is False:
            return y
        for rule in (self._by_rows, self._by_order, self._by_factor):
            found = rule(condition, x, y)
            if found is not None:
                return found
        selected = self._select(condition, x, y)
        self._selected[id(selected)] = condition, x, y
        return selected

    def _by_rows(self, condition: Value, x: Any, y: Any) -> Value | None:
        """Whole rows of zeros."""
        if condition.axes != "row" or not same(x, 0.0) or not isinstance(y, Value) or y.axes != "each":
            return None
        if condition.called("equal") and same(condition.arguments[1], -self.inf):
            peak = condition.arguments[0]
            if peak.called("max"):
                condition = self._call("empty_rows", "?", Use(peak.arguments[0], "f"))
                condition.axes = "row"
        return self._call("clear_rows", "f", Use(condition, "?"), Use(y, "f"))

    def _by_order(self, condition: Value, x: Any, y: Any) -> Value | None:
        """A selection that is a maximum, a minimum or an absolute value, also for NaN."""
        if condition.call is None or len(condition.call.uses) < 2:
            return None
        function, (left, right) = condition.call.function, condition.arguments
        if isinstance(right, Value):
            return None
        if y is left and same(x, right) and function in ("less", "less_equal", "greater", "greater_equal"):
            return self.apply("maximum" if function.startswith("less") else "minimum", y, x)
        if function == "less" and same(right, 0.0):
            if x is left and y is self.apply("negative", x):
                return -self.abs(x)
            if y is left and x is self.apply("negative", y):
                return self.abs(y)
        return None

    def _by_factor(self, condition: Value, x: Any, y: Any) -> Value | None:
        """``where(c, a, b * a)`` as ``a * where(c, 1, b)``: choosing between two numbers is cheaper."""
        for whole, part in ((x, y), (y, x)):
            factors = part.arguments if isinstance(part, Value) and part.called("multiply") else []
            if isinstance(whole, Value) and any(factor is whole for factor in factors):
                other = factors[0] if factors[1] is whole else factors[1]
                chosen = self.where(condition, *((1.0, other) if whole is x else (other, 1.0)))
                return self.apply("multiply", whole, chosen)
        if same(x, 1.0) and self._is_one_beyond(condition, y):
            return y
        return None

    def _is_one_beyond(self, condition: Value, y: Any) -> bool:
        """Whether it is exp(minimum(z, 0)), or that with a factor, and the condition is z > 0."""
        exponent = self._exponents.get(id(y))
        if exponent is None or not condition.called("greater"):
            return False
        z, bound = condition.arguments
        while isinstance(exponent, Value) and exponent.called("divide", "multiply"):
            exponent = exponent.arguments[0]
        return same(bound, 0.0) and exponent is self.apply("minimum", z, 0.0)

    def _select(self, condition: Value, x: Any, y: Any) -> Value:
        """By integers: with a bit mask of all ones or all zeros."""
        if same(x, 0.0):
            return self._masked(self._call("subtract", "b", Use(condition, "b"), Use(1, "b")), y)
        mask = self._call("negative", "b", Use(condition, "b"))
        if same(y, 0.0):
            return self._masked(mask, x)
        if isinstance(x, Value) or isinstance(y, Value):
            difference: Any = self._call("bitwise_xor", "i", Use(x, "i"), Use(y, "i"))
        else:
            difference = (self.constant(x, "i") ^ self.constant(y, "i")).view(self.dtypes["f"])
        return self._call("bitwise_xor", "i", Use(self._masked(mask, difference), "i"), Use(y, "i"))

    def _masked(self, mask: Value, x: Any) -> Value:
        wide = self._call("widen", "i", Use(mask, "b"))
        return self._call("bitwise_and", "i", Use(wide, "i"), Use(x, "i"))

    def apply(self, function: str, *arguments: Any) -> Any:
        """A call of a function with values and numbers; no call if it would change nothing."""
        if function in ("multiply", "divide") and same(arguments[1], 1.0):
            return arguments[0]
        if function == "multiply" and same(arguments[0], 1.0):
            return arguments[1]
        if function == "greater" and same(arguments[1], self.inf):
            return False
        if function == "divide" and (x := self._sigmoid_argument(*arguments)) is not None:
            return self.sigmoid(x)
        value = self._apply(function, *arguments)
        if function == "exp":
            self._exponents[id(value)] = arguments[0]
        return value

    def _sigmoid_argument(self, above: Any, below: Any) -> Value | None:
        """The x of e / (1 + e), e = exp(x); of ``where(x < 0, e, 1) / (1 + e)``, e = exp(-abs(x)), too."""
        if id(above) in self._exponents and below is self.apply("add", 1, above):
            return self._exponents[id(above)]
        condition, e, one = self._selected.get(id(above), (None, None, None))
        if condition is None or not same(one, 1.0) or not condition.called("less"):
            return None
        x, bound = condition.arguments
        found = e is self.apply("exp", -self.abs(x)) and below is self.apply("add", 1, e)
        return x if found and same(bound, 0.0) else None

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + exp(-x)). An overflow of exp is harmless here."""
        return self._apply(
            "reciprocal", self._apply("add", self._apply("exp", self._apply("negative", x)), 1.0)
        )

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
    """Whether it is one value, or one number, with one sign."""
    return a is b or (
        not isinstance(a, Value) and not isinstance(b, Value) and repr(float(a)) == repr(float(b))
    )
