"""Sizes that stay symbols while a program is recorded, so that it serves calls of other sizes too.

A `SizeSymbol` computes with its value in the recorded call, and writes each operation down. Where the
recording decides by a value, in a comparison, a loop or an index, the decision becomes a condition. For other
sizes that fulfil all conditions the recording would take the same way; `Trace.function` computes its numbers.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any


class SizeSymbol:
    """What depends on sizes: its `value` in the recorded call, and the operation that made it.

    `sign` is an operator's or a function; some of its `operands` are symbols. A size itself has none.
    Whatever needs an integer, as an index does, makes a condition of the value.
    """

    __slots__ = ("number", "operands", "sign", "trace", "value")

    def __init__(self, trace: Trace, number: int, value: Any, sign: Any, operands: Sequence[Any]) -> None:
        self.trace, self.number, self.value = trace, number, value
        self.sign, self.operands = sign, operands

    def __repr__(self) -> str:
        return f"SizeSymbol({self.value!r})"

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        value = operator.index(self.value)
        self.trace.decide("==", self, int(value))
        return value

    def __neg__(self) -> SizeSymbol:
        return self.trace.operation("-", 0, self)

    __int__ = __index__
    # no cache keeps what was computed of symbols, and NumPy does not compute with them
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None


def _operation(sign: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: SizeSymbol, other: Any) -> Any:
        return self.trace.operation(sign, self, other)

    def backward(self: SizeSymbol, other: Any) -> Any:
        return self.trace.operation(sign, other, self)

    return forward, backward


def _comparison(sign: str) -> Callable[..., Any]:
    def compare(self: SizeSymbol, other: Any) -> Any:
        return self.trace.decide(sign, self, other)

    return compare


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "/": operator.truediv,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
for _sign, _function in _OPERATIONS.items():
    _forward, _backward = _operation(_sign)
    _name = _function.__name__.strip("_")
    setattr(SizeSymbol, f"__{_name}__", _forward)
    setattr(SizeSymbol, f"__r{_name}__", _backward)
for _sign, _function in _COMPARISONS.items():
    setattr(SizeSymbol, f"__{_function.__name__.strip('_')}__", _comparison(_sign))
_NUMBERS = {int, float, bool, SizeSymbol}


def of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: a function that gets the values of symbols, also of symbols in tuples.

    It makes no condition. Its result is then a symbol too, for a number or any other object.
    """

    @functools.wraps(function)
    def call(*operands: Any) -> Any:
        some = _symbols(operands)
        return some[0].trace.call(function, operands) if some else function(*operands)

    return call


smaller, larger = of_numbers(min), of_numbers(max)
"""The smaller and the larger one of some numbers, without a condition."""


@of_numbers
def rounded_up(number: int, unit: int) -> int:
    """The least multiple of the unit that is not smaller than the number."""
    return -(-number // unit) * unit


def is_symbol(operand: Any) -> bool:
    """Whether the operand has other values for other sizes."""
    return operand.__class__ is SizeSymbol


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether numbers are equal, symbols for all sizes; it makes no condition."""
    return len(some) == len(others) and all(
        one is other if is_symbol(one) or is_symbol(other) else one == other
        for one, other in zip(some, others, strict=True)
    )


def value_of(operand: Any) -> Any:
    """The operand in the recorded call, without a condition."""
    if operand.__class__ is SizeSymbol:
        return operand.value
    return _made(operand, map(value_of, operand)) if isinstance(operand, tuple) else operand


def _simplified(sign: str, left: Any, right: Any) -> Any:
    """An operand that is the result of an operation on integers for all sizes; None if neither is."""
    if right.__class__ is int:
        if right == (0 if sign in ("+", "-") else 1) and value_of(left).__class__ is int:
            return None if sign in ("/", "%") else left
    elif left.__class__ is int:
        if (sign == "+" and left == 0) or (sign == "*" and left == 1):
            return right
    elif sign == "-" and is_symbol(left) and left.sign == "+" and left.value.__class__ is int:
        some, other = left.operands
        return other if some is right else some if other is right else None
    return None


def _made(like: tuple, values: Iterable[Any]) -> tuple:
    return _maker(like)(*values)


def _maker(like: tuple) -> Callable[..., tuple]:
    """The function that makes a tuple of this class of its elements."""
    return like.__class__ if hasattr(like, "_fields") else _tuple_of


def _tuple_of(*values: Any) -> tuple:
    return values


def _symbols(operands: Iterable[Any]) -> list[SizeSymbol]:
    """The symbols among operands, also in tuples."""
    found: list[SizeSymbol] = []
    for one in operands:
        if one.__class__ is SizeSymbol:
            found.append(one)
        elif isinstance(one, tuple):
            found += _symbols(one)
    return found


def _key(operand: Any) -> Any:
    """What tells an operand from others: the number of a symbol, else a tuple."""
    if operand.__class__ is SizeSymbol:
        return operand.number
    if isinstance(operand, tuple):
        return operand.__class__, *map(_key, operand)
    return operand.__class__, operand


class Trace:
    """The operations on the sizes of a call that is recorded, and the conditions."""

    def __init__(self) -> None:
        self._sizes: list[SizeSymbol] = []
        self._known: dict[Any, SizeSymbol] = {}
        self._conditions: dict[Any, tuple[str, Any, Any, bool]] = {}
        self._numbers = itertools.count()

    def size(self, value: int) -> SizeSymbol:
        """The next of the sizes."""
        self._sizes.append(self._symbol(value, None, ()))
        return self._sizes[-1]

    def _symbol(self, value: Any, sign: Any, operands: Sequence[Any]) -> SizeSymbol:
        return SizeSymbol(self, next(self._numbers), value, sign, operands)

    def operation(self, sign: str, left: Any, right: Any) -> Any:
        """The result of an operation on numbers, the same symbol for the same operands."""
        if left.__class__ not in _NUMBERS or right.__class__ not in _NUMBERS:
            return NotImplemented
        simple = _simplified(sign, left, right)
        if simple is not None:
            return simple
        key = sign, _key(left), _key(right)
        found = self._known.get(key)
        if found is None:
            value = _OPERATIONS[sign](value_of(left), value_of(right))
            found = self._known[key] = self._symbol(value, sign, (left, right))
        return found

    def call(self, function: Callable[..., Any], operands: tuple) -> SizeSymbol:
        """The result of a function, the same symbol for the same operands."""
        key = function, *map(_key, operands)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._symbol(function(*value_of(operands)), function, operands)
        return found

    def decide(self, sign: str, left: SizeSymbol, right: Any) -> Any:
        """The truth of a comparison, which becomes a condition."""
        if right.__class__ not in _NUMBERS:
            return NotImplemented
        if left is right:
            return sign in ("<=", ">=", "==")
        key = sign, left.number, _key(right)
        found = self._conditions.get(key)
        if found is None:
            truth = _COMPARISONS[sign](left.value, value_of(right))
            found = self._conditions[key] = sign, left, right, truth
        return found[3]

    def pins(self, sizes: Collection[SizeSymbol]) -> bool:
        """Whether a condition lets one of these sizes have this value only."""
        own = {size.number for size in sizes}
        return any(
            sign == "==" and truth and left.number in own and right.__class__ is not SizeSymbol
            for sign, left, right, truth in self._conditions.values()
        )

    def clear(self) -> None:
        """Forget all: symbols refer to their trace, and only Python's collector frees such cycles."""
        vars(self).clear()

    def function(self, results: Sequence[Any]) -> Callable[..., tuple | None]:
        """A function from the sizes to these results; to None where a condition does not hold."""
        operations = _Operations(self._sizes)
        for condition in self._conditions.values():
            operations.check(*condition)
        places = operations.places(results)
        return functools.partial(_replayed, operations.values, operations.checks, operations.rest, places)


_Operation = tuple[int, Callable[..., Any], Any, int | None]
"""The place of a result, the function, and the places of two operands; else all places, and None."""

_Check = tuple[list[_Operation], Callable[[Any, Any], bool], int, int, bool]
"""Operations, then a comparison of the numbers in two places, and its truth."""


class _Operations:
    """The operations and conditions of a trace as lists, for `_replayed`.

    Each operand has a place among the `values`, which hold the constants; the sizes come first. The
    operations stand in `checks`, with the first condition that needs them, or in the `rest`.
    """

    def __init__(self, sizes: Sequence[SizeSymbol]) -> None:
        self.values: list[Any] = [None] * len(sizes)
        self.checks: list[_Check] = []
        self.rest: list[_Operation] = []
        self._places: dict[int, int] = {size.number: place for place, size in enumerate(sizes)}
        self._constants: dict[int, int] = {}  # by id; the values keep them alive

    def check(self, sign: str, left: Any, right: Any, truth: bool) -> None:
        """Add a condition: the comparison has this truth."""
        one, other = self.places((left, right))
        self.checks.append((self.rest, _COMPARISONS[sign], one, other, truth))
        self.rest = []

    def places(self, operands: Sequence[Any]) -> list[int]:
        """The places of the operands, after their operations were added."""
        todo, needed = _symbols(operands), dict[int, SizeSymbol]()
        while todo:
            one = todo.pop()
            if one.number not in self._places and one.number not in needed:
                needed[one.number] = one
                todo += _symbols(one.operands)
        for number in sorted(needed):  # operands were made before their results
            symbol = needed[number]
            function = _OPERATIONS[symbol.sign] if isinstance(symbol.sign, str) else symbol.sign
            self._places[number] = self._result(function, symbol.operands)
        return [*map(self._place, operands)]

    def _result(self, function: Any, operands: Sequence[Any]) -> int:
        """The place of a function's result."""
        places, place = [*map(self._place, operands)], self._new_place(None)
        pair = places if len(places) == 2 else (places, None)
        self.rest.append((place, function, *pair))
        return place

    def _place(self, operand: Any) -> int:
        if operand.__class__ is SizeSymbol:
            return self._places[operand.number]
        if isinstance(operand, tuple) and _symbols(operand):
            return self._result(_maker(operand), operand)
        if id(operand) not in self._constants:
            self._constants[id(operand)] = self._new_place(operand)
        return self._constants[id(operand)]

    def _new_place(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1


def _replayed(
    values: Sequence[Any], checks: Sequence[_Check], rest: Sequence[_Operation], results: Sequence[int],
    *sizes: int,
) -> tuple | None:  # fmt: skip
    """The values in the places of the results for other sizes; None where a condition does not hold.

    Python would run the text of a function in half the time, but compiling it takes as long as some thousand
    runs.
    """
    values = [*sizes, *values[len(sizes) :]]
    for operations, compare, left, right, truth in checks:
        if operations:
            _compute(operations, values)
        if compare(values[left], values[right]) != truth:
            return None
    _compute(rest, values)
    return tuple([values[place] for place in results])


def _compute(operations: Sequence[_Operation], values: list[Any]) -> None:
    for place, function, left, right in operations:
        if right is None:
            values[place] = function(*[values[k] for k in left])
        else:
            values[place] = function(values[left], values[right])
