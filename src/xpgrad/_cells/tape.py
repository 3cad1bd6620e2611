"""Records a step's formula as calls: a tape replaces ``xp``, and its values replace the arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from xpgrad._cells.misuse import Refusing, StandIn
from xpgrad._operators.arguments import check_number

# The functions that a formula may call, by NumPy's names.
_FUNCTIONS = (
    "abs", "absolute", "add", "divide", "equal", "exp", "expm1", "greater", "greater_equal", "less",
    "less_equal", "log", "log1p", "logical_and", "logical_or", "maximum", "mean", "minimum", "multiply",
    "negative", "not_equal", "positive", "sqrt", "square", "subtract", "tanh", "where", "zeros_like",
)  # fmt: skip
_OF_FLAGS = ("logical_and", "logical_or")
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
# The functions of Python's operators with one of NumPy's numbers on the left.
_OF_OPERATORS = (
    "add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "multiply", "not_equal",
    "subtract",
)  # fmt: skip
# What to write instead of an operation that values lack.
_INSTEAD = {
    "@": "R.name(value), the product of a block of R with a value, or W.name(x)",
    "**": "a power of a value by a number",
    "~": "the opposite comparison",
    "a loop": "a block of its own for each part",
    "an index": "a block of its own for each part",
    "an assignment to an index": "a new value, by xp.where(condition, a, b)",
    "a call": "a product or sum: only W.name and R.name are called",
}


class StepValue(Refusing):
    """The stand-in for an array in a step's formula: the result of a function.

    Parameters
    ----------
    tape : StepTape
        The tape of the step.
    function : str
        The function, or the kind of a leaf.
    arguments : sequence
        Its arguments, values and numbers.
    axes : {"each", "row", "column"}
        Where the value differs: in each element, each row or each column.
    is_flag : bool
        Whether it is a truth value.
    index : int
        The number of a leaf among its kind.

    Attributes
    ----------
    number : int
        Larger for later values.
    """

    dtype = np.dtype(np.float64)

    def __init__(
        self, tape: StepTape, function: str, arguments: Sequence[Any], axes: str, is_flag: bool = False,
        index: int = 0,
    ) -> None:  # fmt: skip
        self.tape, self.function, self.arguments, self.axes = tape, function, arguments, axes
        self.number, self.is_flag, self.index = tape.count(), is_flag, index

    @property
    def uses(self) -> list[StepValue]:
        """The values among its arguments."""
        return [argument for argument in self.arguments if isinstance(argument, StepValue)]

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self.tape.operator}: step decides by a value, expected xp.where(condition, x, y), xp.maximum "
            "or xp.minimum: one formula serves all rows"
        )

    def refused(self, what: str) -> Exception:
        """The error for an operator or function that a step applied to it."""
        instead = _INSTEAD.get(what, "the functions of xp, and + - * / **")
        function = what.rpartition(".")[2]
        if function != what and function in _FUNCTIONS:
            instead = f"xp.{function}"
        return TypeError(f"{self.tape.operator}: step applies {what} to a value, expected {instead}")

    def __repr__(self) -> str:
        return f"<a value of the step {self.tape.operator}, for the functions of its xp>"

    def __call__(self, *operands: Any) -> NoReturn:
        raise self.refused("a call")

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        """NumPy's numbers call their operators with a value on the right."""
        if ufunc.__name__ in _OF_OPERATORS and method == "__call__" and not options:
            return self.tape.apply(ufunc.__name__, *operands)
        raise self.refused(f"numpy.{ufunc.__name__}")

    def __neg__(self) -> Any:
        return self.tape.apply("negative", self)

    def __abs__(self) -> Any:
        return self.tape.apply("absolute", self)

    def __pos__(self) -> StepValue:
        return self

    def __pow__(self, exponent: Any) -> StepValue:
        if isinstance(exponent, Refusing):
            raise self.refused("**")
        if exponent == 0.5:
            return self.tape.apply("sqrt", self)
        if not isinstance(exponent, int) or exponent < 1:
            raise TypeError(
                f"{self.tape.operator}: step has a power of {exponent!r}, expected a whole number from 1 on, "
                "or 0.5"
            )
        result: Any = self
        for _ in range(exponent - 1):
            result = result * self
        return result


def _operator(function: str, turned: bool) -> Callable[[StepValue, Any], Any]:
    def operate(self: StepValue, other: Any) -> Any:
        return self.tape.apply(function, *((other, self) if turned else (self, other)))

    return operate


for _name, _ufunc in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "and": "logical_and",
    "or": "logical_or",
}.items():  # fmt: skip
    setattr(StepValue, f"__{_name}__", _operator(_ufunc, turned=False))
    setattr(StepValue, f"__r{_name}__", _operator(_ufunc, turned=True))
for _name, _ufunc in zip(("lt", "le", "gt", "ge", "eq", "ne"), _COMPARISONS, strict=False):
    setattr(StepValue, f"__{_name}__", _operator(_ufunc, turned=False))
StepValue.__hash__ = object.__hash__  # type: ignore[method-assign]


class Rule(NamedTuple):
    """A pullback that its author wrote: ``pullback(xp, *cotangents, *operands, *results)``."""

    function: Callable
    pullback: Callable
    operands: tuple[Any, ...]
    results: list[Any]


class StepTape:
    """The stand-in for ``xp`` while a step is recorded.

    If a row has several heads, means are within a head: each column has the mean of its head, which is a
    product with a constant matrix.
    """

    float32, float64, inf = np.float32, np.float64, float("inf")

    def __init__(self, operator: str, heads: int = 1) -> None:
        self.operator, self._heads = operator, heads
        self.rules: list[Rule] = []
        self._values: dict[tuple, StepValue] = {}
        self._count = 0
        self.strict = False
        """Whether the step's own formula runs, not a function with a rule."""

    def count(self) -> int:
        """The next number of a value."""
        self._count += 1
        return self._count

    def leaf(self, kind: str, number: int, *uses: Any, axes: str = "each") -> Any:
        """An operand, or a product of the values used, which no elementwise function makes."""
        key = (kind, number, *map(_identity, uses))
        if key not in self._values:
            self._values[key] = StepValue(self, kind, uses, axes, index=number)
        return self._values[key]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name not in _FUNCTIONS:
            raise AttributeError(
                f"{self.operator}: step uses xp.{name}, expected one of {', '.join(sorted(_FUNCTIONS))}"
            )
        return functools.partial(self._called, name)

    def _called(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A function of xp, as a step calls it."""
        count = getattr(np, name).nin
        if len(arguments) != count or options:
            given = ", ".join([*(["..."] * len(arguments)), *(f"{option}=..." for option in options)])
            raise TypeError(
                f"{self.operator}: step has xp.{name}({given}), expected {count} "
                f"operand{'s' * (count > 1)} and nothing else"
            )
        return self.apply(name, *arguments)

    def apply(self, function: str, *arguments: Any) -> Any:
        """A function of values and numbers; a number if all are numbers."""
        given = [a if isinstance(a, StepValue) else self._number(a) for a in arguments]
        for value in given:
            if isinstance(value, StepValue) and value.tape is not self:
                raise TypeError(f"{self.operator}: step uses a value of another step, expected its own")
        if not any(isinstance(value, StepValue) for value in given):
            return getattr(np, function)(*given).item()
        self._check_flags(function, given)
        if function == "square":
            return self.apply("multiply", given[0], given[0])
        if function == "positive" or (function in ("multiply", "divide") and _is_one(given[1])):
            return given[0]
        if function == "multiply" and _is_one(given[0]):
            return given[1]
        return self._call(function, *given, is_flag=function in (*_COMPARISONS, *_OF_FLAGS))

    def _check_flags(self, function: str, values: Sequence[Any]) -> None:
        """Raise TypeError for a comparison that is used as a number, or a number as a comparison."""
        are_flags = [x.is_flag if isinstance(x, StepValue) else isinstance(x, bool) for x in values]
        problem = ""
        if function in _OF_FLAGS:
            problem = "" if all(are_flags) else "a number, expected comparisons"
        elif function in ("equal", "not_equal"):
            problem = "" if len({*are_flags}) == 1 else "a comparison and a number, expected one kind"
        elif any(are_flags):
            problem = "a comparison, expected numbers: xp.where(comparison, 1, 0) makes one"
        if problem:
            raise TypeError(f"{self.operator}: step has {function} of {problem}")

    def _call(self, function: str, *arguments: Any, is_flag: bool = False) -> StepValue:
        key = (function, *map(_identity, arguments))
        if key not in self._values:
            axes = {value.axes for value in arguments if isinstance(value, StepValue)}
            one = axes.pop() if len(axes) == 1 else "each"
            self._values[key] = StepValue(self, function, arguments, one, is_flag)
        return self._values[key]

    def _number(self, argument: Any) -> Any:
        if isinstance(argument, StandIn):
            raise argument.refused("a function or operator")
        if isinstance(argument, bool | np.bool_):
            return bool(argument)
        return check_number(self.operator, "an operand of step", argument)

    def _refused(self, name: str, instead: str) -> NoReturn:
        raise AttributeError(f"{self.operator}: step uses xp.{name}, expected {instead}")

    def abs(self, x: Any) -> Any:
        """Absolute value."""
        return self.apply("absolute", x)

    def zeros_like(self, x: Any) -> float:
        """A number; functions broadcast it."""
        return 0.0

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + exp(-x)), only for functions with a rule: its calls have no pullback."""
        if self.strict:
            self._refused("sigmoid", "xpgrad.cells.sigmoid(xp, value): the standard has none")
        exponential = self.apply("exp", self.apply("negative", x))  # infinity is harmless here
        return self.apply("reciprocal", self.apply("add", exponential, 1.0))

    def sum(self, *operands: Any, **options: Any) -> Any:
        """Refused: a row has one number by its mean."""
        self._refused("sum", "xp.mean(value), over a row, or values with + between them")

    def max(self, *operands: Any, **options: Any) -> Any:
        """Refused, as `sum`."""
        self._refused("max", "xp.maximum(a, b), of two values")

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """`x` where the condition holds, else `y`."""
        if isinstance(condition, StandIn):
            raise condition.refused("xp.where")
        if not isinstance(condition, StepValue):
            return x if condition else y
        if not condition.is_flag:
            raise TypeError(f"{self.operator}: step has where by a number, expected a comparison")
        if x is y:
            return x
        pair = [a if isinstance(a, StepValue) else self._number(a) for a in (x, y)]
        self._check_flags("where", pair)
        return self._call("where", condition, *pair)

    def mean(self, x: Any, axis: int = -1, keepdims: bool = True) -> Any:
        """Over the row, or over the head's part of it."""
        if axis not in (-1, 1) or not keepdims:
            raise ValueError(
                f"{self.operator}: step has a mean with axis={axis!r}, keepdims={keepdims!r}, expected -1 "
                "and True: it is over the row"
            )
        if isinstance(x, StandIn):
            raise x.refused("xp.mean")
        if not isinstance(x, StepValue) or x.axes == "row":
            return x
        if self._heads == 1:
            return self.leaf("mean", 0, x, axes="row")
        return self.leaf("average", 0, x)

    def ruled(self, function: Callable, pullback: Callable, operands: Sequence[Any]) -> Any:
        """The results of a function with a pullback of its own."""
        strict, self.strict = self.strict, False
        made = function(self, *operands)
        self.strict = strict
        several = isinstance(made, tuple)
        number = len(self.rules)
        results: list[Any] = list(made) if several else [made]
        for k, result in enumerate(results):
            if isinstance(result, StepValue):
                results[k] = self.leaf(f"result {k}", number, result, axes=result.axes)
        self.rules.append(Rule(function, pullback, tuple(operands), results))
        return tuple(results) if several else results[0]


def _identity(value: Any) -> Any:
    """Equal for the same value, and for the same number with the same sign."""
    return id(value) if isinstance(value, StepValue) else repr(value)


def _is_one(value: Any) -> bool:
    return not isinstance(value, StepValue) and value == 1
