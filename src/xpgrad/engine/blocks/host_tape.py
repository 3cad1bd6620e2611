"""A tape of a framework's functions: its threads then share each call, and none waits for the interpreter.

Such functions cost more than NumPy's for a few elements, and do more in one pass over memory: that is what a
block is spared here. True and false are 1 and 0 of the dtype, since comparisons that write bytes are slow.

A framework brings an object with NumPy's elementwise functions, by NumPy's names, with ``out=``, and besides

- ``add_scaled(x, y, alpha=k)``, x + k y; ``add_product(x, y, z, value=k)``, x + k y z, for integers too;
- ``clip(x, low, high)``, ``sigmoid(x)``, ``erfc(x)``; ``exp_of_any(x)``, no slower where it underflows;
- ``right_shift(x, y)`` for integers;
- ``sum(x)`` of each row, ``empty_rows`` and ``clear_rows`` as NumPy's tape has them, whose flags are bytes;
- ``wrap(array)``, ``integers(array)``, ``buffer(shape, dtype)``, ``split(array, size)``, ``threads()``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xpgrad.engine.formulas.tape import Call, Tape, Untraceable, Use, Value, same

_KNOWN = frozenset(
    {
        "absolute", "add", "add_product", "add_scaled", "clear_rows", "clip", "divide", "empty_rows", "equal",
        "erfc", "exp", "exp_of_any", "expm1", "greater", "greater_equal", "less", "less_equal", "log",
        "log1p", "maximum", "minimum", "multiply", "negative", "not_equal", "positive", "reciprocal",
        "right_shift", "sigmoid", "subtract", "sum", "tanh",
    }
)  # fmt: skip


class HostTape(Tape):
    """Records calls of a framework's functions.

    Parameters
    ----------
    functions : object
        See the module.
    dtype : dtype
        What is computed in.
    """

    def __init__(self, functions: Any, dtype: np.dtype) -> None:
        super().__init__(dtype)
        self.functions = functions
        self.dtypes["n"] = self.dtypes["i"]
        # a shift by so many bits makes an integer 1 of a number 1, and 0 of 0
        self._shift = {4: 29, 8: 61}[dtype.itemsize]

    def constant(self, value: Any, kind: str) -> Any:
        """A number as an array; as it is where a function takes numbers."""
        return value if kind == "number" else self.functions.wrap(super().constant(value, kind))

    def integers(self, array: Any) -> Any:
        """The bits."""
        return self.functions.integers(array)

    def store(self, value: Value) -> str:
        """As what it is kept: flags of elements as numbers."""
        return "f" if value.axes == "each" else super().store(value)

    def buffer(self, shape: tuple[int, ...], kind: str) -> tuple[Any, Any]:
        """A buffer, and its bytes read as integers."""
        if kind == "?":
            return super().buffer(shape, kind)
        buffer = self.functions.buffer(shape, self.dtype)
        return buffer, self.functions.integers(buffer)

    def normal_cdf(self, x: Value) -> Value:
        """The normal distribution's probability below x."""
        return self.apply("multiply", 0.5, self._apply("erfc", self.apply("multiply", -math.sqrt(0.5), x)))

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + exp(-x))."""
        return self._apply("sigmoid", x)

    def check(self, value: Value) -> None:
        """That there are words for a call that is needed."""
        function = _call_of(value).function
        if function not in _KNOWN or (value.axes != "each" and function not in ("sum", "empty_rows")):
            raise Untraceable(f"{function} for each {value.axes}")

    # --- selections

    def _by_factor(self, condition: Value, x: Any, y: Any) -> Value | None:
        found = super()._by_factor(condition, x, y)
        if found is not None or isinstance(x, Value):
            return found
        if isinstance(y, Value):
            # a multiple of what is 1 where the condition holds, of the order of x: little is lost
            factor, one = self._scaled(y)
            if self._is_one_beyond(condition, one) and 0 < abs(factor) <= 2 * abs(x):
                return self.apply("add", y, self.apply("multiply", x - factor, condition))
        elif same(y, 0.0):
            return self.apply("multiply", x, condition)
        elif self.dtype.type(y) + self.dtype.type(x - y) == self.dtype.type(x):  # where it is exact
            return self.apply("add", y, self.apply("multiply", x - y, condition))
        return None

    def _select(self, condition: Value, x: Any, y: Any) -> Value:
        """By integers, 1 or 0: y + (x - y) condition."""
        chosen = Use(self._call("right_shift", "i", Use(condition, "i"), Use(self._shift, "n")), "i")
        if same(y, 0.0):
            return self._call("multiply", "i", Use(x, "i"), chosen)
        if same(x, 0.0):
            return self._call("add_product", "i", Use(y, "i"), Use(y, "i"), chosen, number=("value", -1))
        difference = Use(self._call("subtract", "i", Use(x, "i"), Use(y, "i")), "i")
        return self._call("add_product", "i", Use(y, "i"), difference, chosen, number=("value", 1))

    # --- fewer passes

    def _apply(self, function: str, *arguments: Any) -> Value:
        if function in ("logical_and", "logical_or"):
            return super()._apply("multiply" if function == "logical_and" else "maximum", *arguments)
        if function in ("add", "subtract"):
            x, y = arguments
            return self._sum(x, y, 1.0 if function == "add" else -1.0)
        if function == "multiply":
            return self._product(*arguments)
        if function == "exp":
            return self._exp(*arguments)
        if function in ("maximum", "minimum"):
            return self._bounded(function, *arguments)
        return super()._apply(function, *arguments)

    def _sum(self, x: Any, y: Any, sign: float) -> Value:
        """X + sign y, with a product or a factor in the same pass."""
        (a, v), (b, w) = self._scaled(x), self._scaled(y)
        b *= sign
        both = isinstance(x, Value) and isinstance(y, Value) and not _is_product(v)
        if both and a not in (0.0, 1.0) and (b != 1.0 or _is_product(w)):
            # the factor of one as that of both, for a product to take
            return self._product(a, self._sum(v, self.apply("multiply", b / a, w), 1.0))
        if _is_product(w):
            return self._call("add_product", "f", Use(x, "f"), *_factors(w), number=("value", b))
        if sign > 0 and _is_product(v):
            return self._call("add_product", "f", Use(y, "f"), *_factors(v), number=("value", a))
        if isinstance(y, Value) and b not in (1.0, -1.0):
            return self._call("add_scaled", "f", Use(x, "f"), Use(w, "f"), number=("alpha", b))
        if isinstance(x, Value) and a != 1.0:
            if not isinstance(y, Value):
                y, sign = sign * y, 1.0
            if sign > 0:
                return self._call("add_scaled", "f", Use(y, "f"), Use(v, "f"), number=("alpha", a))
        return super()._apply("add" if sign > 0 else "subtract", x, y)

    def _product(self, x: Any, y: Any) -> Value:
        """X y, with a factor in the same pass."""
        (a, v), (b, w) = self._scaled(x), self._scaled(y)
        if not isinstance(x, Value) or not isinstance(y, Value):
            number, value = (x, y) if isinstance(y, Value) else (y, x)
            factor, value = self._scaled(value)
            if _is_product(value):
                return self._call(
                    "add_product", "f", Use(0.0, "f"), *_factors(value), number=("value", number * factor)
                )
            return super()._apply("multiply", number * factor, value)
        product = super()._apply("multiply", v, w)
        return product if a * b == 1.0 else self._product(a * b, product)

    def _scaled(self, x: Any) -> tuple[float, Any]:
        """A number, and a value with which it makes x."""
        call = _call_of(x)
        values = [use.value for use in call.uses]
        if call.function == "negative":
            return -1.0, values[0]
        if call.function == "multiply" and call.kind == "f" and not isinstance(values[0], Value):
            return values[0], values[1]
        if call.function == "divide" and not isinstance(values[1], Value) and values[1]:
            return 1 / values[1], values[0]
        if call.function == "add_product" and call.number is not None and same(values[0], 0.0):
            return call.number[1], super()._apply("multiply", *values[1:])
        return 1.0, x

    def _exp(self, x: Any) -> Value:
        """Such that it does not underflow, which may be slow: PyTorch's has to report it."""
        if _call_of(x).function == "minimum":
            x = self._apply("maximum", x, math.log(np.finfo(self.dtype).tiny))
        elif isinstance(x, Value) and x.call is None:
            return super()._apply("exp_of_any", x)  # masked logits are -inf, or so low that it is 0
        return super()._apply("exp", x)

    def _bounded(self, function: str, x: Any, bound: Any) -> Value:
        """Both bounds at once."""
        other = {"maximum": "minimum", "minimum": "maximum"}[function]
        if not isinstance(bound, Value) and _call_of(x).function == other:
            inner, limit = x.arguments
            low, high = (bound, limit) if function == "maximum" else (limit, bound)
            if not isinstance(limit, Value) and low <= high:
                return self._call("clip", "f", Use(inner, "f"), Use(low, "number"), Use(high, "number"))
        return super()._apply(function, x, bound)


def _call_of(x: Any) -> Call:
    return x.call if isinstance(x, Value) and x.call is not None else Call("", (), "")


def _is_product(x: Any) -> bool:
    call = _call_of(x)
    return call.function == "multiply" and call.kind == "f" and isinstance(call.uses[0].value, Value)


def _factors(x: Value) -> tuple[Use, Use]:
    first, second = _call_of(x).uses
    return first, second
