"""Sizes that stay symbols while a program is recorded, so that it serves calls of other sizes too.

A `SizeSymbol` computes with its value in the recorded call, and writes each operation down. Where the
recording decides by a value, in a comparison, a loop or an index, the decision becomes a condition. For other
sizes that fulfil all conditions the recording would take the same way; `Trace.function` computes its numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

_LINE = 60  # characters of an operation that stands within another


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
        some = next(_symbols(operands), None)
        return function(*operands) if some is None else some.trace.call(function, operands)

    return call


smaller, larger = of_numbers(min), of_numbers(max)
"""The smaller and the larger one of some numbers, without a condition."""


def value_of(operand: Any) -> Any:
    """The operand in the recorded call, without a condition."""
    if operand.__class__ is SizeSymbol:
        return operand.value
    return _made(operand, map(value_of, operand)) if isinstance(operand, tuple) else operand


def _made(like: tuple, values: Any) -> tuple:
    return like.__class__(*values) if hasattr(like, "_fields") else tuple(values)


def _symbols(operand: Any) -> Iterator[SizeSymbol]:
    """The symbols in an operand."""
    if operand.__class__ is SizeSymbol:
        yield operand
    elif isinstance(operand, tuple):
        for one in operand:
            yield from _symbols(one)


def _key(operand: Any) -> Any:
    """What tells an operand from others."""
    if operand.__class__ is SizeSymbol:
        return SizeSymbol, operand.number
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
        return _FunctionText(self._sizes).function([*self._conditions.values()], results)


class _FunctionText:
    """The text of a function. What is used once stands where it is used."""

    def __init__(self, sizes: Sequence[SizeSymbol]) -> None:
        self._sizes = [f"s{number}" for number in range(len(sizes))]
        self._names = {size.number: name for size, name in zip(sizes, self._sizes, strict=True)}
        self._lines: list[str] = []
        self._uses: dict[int, int] = {}
        self._objects: dict[str, Any] = {"__builtins__": {}}

    def function(
        self, conditions: Sequence[tuple[str, Any, Any, bool]], results: Sequence[Any]
    ) -> Callable[..., tuple | None]:
        """See `Trace.function`."""
        for _, left, right, _ in conditions:
            self._count((left, right))
        self._count(tuple(results))
        for sign, left, right, truth in conditions:
            test = f"{self._text(left)} {sign} {self._text(right)}"
            self._lines.append(f"if {f'not {test}' if truth else test}: return None")
        found = "".join([f"{self._text(result)}, " for result in results])
        self._lines.append(f"return ({found})")
        made: dict[str, Any] = {}
        exec(f"def results({', '.join(self._sizes)}):\n " + "\n ".join(self._lines), self._objects, made)
        return made["results"]

    def _count(self, operand: Any) -> None:
        todo = [*_symbols(operand)]
        while todo:
            number, operands = (one := todo.pop()).number, one.operands
            self._uses[number] = self._uses.get(number, 0) + 1
            if self._uses[number] == 1:
                todo += _symbols(tuple(operands))

    def _text(self, operand: Any) -> str:
        if operand.__class__ in (int, float) and math.isfinite(operand):
            return repr(operand)
        if operand.__class__ is not SizeSymbol:
            return self._object(operand)
        name = self._names.get(operand.number)
        if name is not None:
            return name
        texts = [*map(self._text, operand.operands)]
        if isinstance(operand.sign, str):
            text = f"({texts[0]} {operand.sign} {texts[1]})"
        else:
            text = f"{self._named(operand.sign)}({', '.join(texts)})"
        if self._uses[operand.number] > 1 or len(text) > _LINE:
            name = self._names[operand.number] = f"v{operand.number}"
            self._lines.append(f"{name} = {text}")
            return name
        return text

    def _object(self, operand: Any) -> str:
        """The text of what is no number: a name, or a tuple with symbols in it."""
        if next(_symbols(operand), None) is None:
            return self._named(operand)
        texts = ", ".join(map(self._text, operand))
        return f"{self._named(operand.__class__)}({texts})" if hasattr(operand, "_fields") else f"({texts},)"

    def _named(self, what: Any) -> str:
        """The name of an object that the function takes from outside."""
        for name, known in self._objects.items():
            if known is what:
                return name
        name = f"o{len(self._objects)}"
        self._objects[name] = what
        return name
