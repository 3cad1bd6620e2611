"""A step as a graph: what its formula does, found by running it once on values that stand for arrays.

A value's axes tell along which it differs: "each" row and column of a step, each "row", or each "column".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from xpgrad._arguments import check_number
from xpgrad.engine.arrays.tape import Call, Tape, Use, Value, same

_WEIGHTS = {"W": "the input x", "R": "a value of the step", "v": ""}
# What a formula may call, by the names of NumPy's functions.
_FUNCTIONS = (
    "abs", "absolute", "add", "divide", "equal", "exp", "expm1", "greater", "greater_equal", "less",
    "less_equal", "log", "log1p", "logical_and", "logical_or", "maximum", "mean", "minimum", "multiply",
    "negative", "not_equal", "positive", "sqrt", "square", "subtract", "tanh", "where", "zeros_like",
)  # fmt: skip


class StepValue(Value):
    """What a step's formula sees in the place of an array.

    Attributes
    ----------
    number : int
        Larger for later values.
    index : int
        Of a leaf, which one of its kind.
    """

    def __init__(self, tape: Any, call: Call | None, axes: str = "each", index: int = 0) -> None:
        super().__init__(tape, call, axes)
        self.number, self.index = tape.count(), index

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self.tape.operator}: step decides by a value, expected xp.where(condition, x, y): one formula "
            "serves all rows"
        )

    def __abs__(self) -> Value:
        return self.tape.apply("absolute", self)

    def __pos__(self) -> Value:
        return self

    def __pow__(self, exponent: Any) -> Value:
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


class Rule(NamedTuple):
    """A pullback that its author wrote: ``pullback(xp, *cotangents, *operands, *results)``."""

    function: Callable
    pullback: Callable
    operands: tuple[Any, ...]
    results: list[Any]


class StepTape(Tape):
    """Stands in the place of ``xp`` while a step is written down.

    Parameters
    ----------
    operator : str
        For messages.
    """

    value = StepValue

    def __init__(self, operator: str) -> None:
        super().__init__(np.dtype(np.float64))
        self.operator = operator
        self.rules: list[Rule] = []
        self._leaves: dict[tuple, StepValue] = {}
        self._count = 0

    def count(self) -> int:
        """The next number of a value."""
        self._count += 1
        return self._count

    def leaf(self, kind: str, number: int, *uses: Any, axes: str = "each") -> Any:
        """A value that no elementwise function makes: an operand, or a product with the values used."""
        key = (kind, number, *(id(use) if isinstance(use, Value) else repr(use) for use in uses))
        if key not in self._leaves:
            call = Call(kind, tuple(Use(use, "f") for use in uses), "f")
            self._leaves[key] = StepValue(self, call, axes, number)
        return self._leaves[key]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name not in _FUNCTIONS:
            raise AttributeError(
                f"{self.operator}: step uses xp.{name}, expected one of {', '.join(sorted(_FUNCTIONS))}"
            )
        return lambda *arguments: self.apply(name, *arguments)

    def apply(self, function: str, *arguments: Any) -> Any:
        """A function of values and numbers; a number where all are numbers."""
        given = [a if isinstance(a, Value) else self._number(a) for a in arguments]
        for value in given:
            if isinstance(value, Value) and value.tape is not self:
                raise TypeError(f"{self.operator}: step uses a value of another step, expected its own")
        if not any(isinstance(value, Value) for value in given):
            return getattr(np, function)(*given).item()
        if function == "square":
            return self.apply("multiply", given[0], given[0])
        if function == "positive" or (function in ("multiply", "divide") and same(given[1], 1.0)):
            return given[0]
        if function == "multiply" and same(given[0], 1.0):
            return given[1]
        return self._apply(function, *given)

    def _number(self, argument: Any) -> Any:
        if isinstance(argument, bool | np.bool_):
            return bool(argument)
        return check_number(self.operator, "an operand of step", argument)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """`x` where the condition holds, else `y`."""
        if not isinstance(condition, Value):
            return x if condition else y
        if not condition.is_flag:
            raise TypeError(f"{self.operator}: step has where by a number, expected a comparison")
        if x is y:
            return x
        pair = [a if isinstance(a, Value) else self._number(a) for a in (x, y)]
        return self._call("where", "f", Use(condition, "?"), *(Use(a, "f") for a in pair))

    def mean(self, x: Any, axis: int = -1, keepdims: bool = True) -> Any:
        """Over the row."""
        if not isinstance(x, Value) or x.axes == "row":
            return x
        return self.leaf("mean", 0, x, axes="row")

    def ruled(self, function: Callable, pullback: Callable, operands: Sequence[Any]) -> Any:
        """The results of a function whose pullback is known."""
        made = function(self, *operands)
        several = isinstance(made, tuple)
        number = len(self.rules)
        results: list[Any] = list(made) if several else [made]
        for k, result in enumerate(results):
            if isinstance(result, Value):
                results[k] = self.leaf(f"result {k}", number, result, axes=result.axes)
        self.rules.append(Rule(function, pullback, tuple(operands), results))
        return tuple(results) if several else results[0]


class _Named:
    """What stands for W, R or v in a step: its blocks by name."""

    def __init__(self, operator: str, kind: str, blocks: Mapping[str, Any]) -> None:
        self._operator, self._kind, self._blocks = operator, kind, blocks

    def __getattr__(self, name: str) -> Any:
        if name not in self._blocks:
            raise AttributeError(
                f"{self._operator}: step uses {self._kind}.{name}, expected one of "
                f"{', '.join(self._blocks) or 'no blocks'}, the blocks of {self._kind}"
            )
        return self._blocks[name]


class Input:
    """What stands for the step's input, which only W takes."""


class Step(NamedTuple):
    """A step as a graph of values.

    Parameters
    ----------
    tape : StepTape
        All values.
    inputs, products, vectors : list of value
        The blocks of W x, R times something, and v.
    before, after : list of value
        The states.
    read : tuple of int
        Which states the step reads; the others are outputs only.
    """

    tape: StepTape
    inputs: list[Any]
    products: list[Any]
    vectors: list[Any]
    before: list[Any]
    after: list[Any]
    read: tuple[int, ...]


def states_of(operator: str, function: Callable) -> tuple[str, ...]:
    """The names of a step's states: its parameters besides xp, x, W, R and v.

    Raises
    ------
    TypeError
        For a signature of another form.
    """
    parameters = list(inspect.signature(function).parameters.values())
    names = [p.name for p in parameters]
    if names[:2] != ["xp", "x"] or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise TypeError(
            f"{operator}: step has parameters ({', '.join(map(str, parameters))}), expected xp, x, the "
            "states, and those of W, R and v that it uses"
        )
    states = tuple(name for name in names[2:] if name not in _WEIGHTS)
    if not states:
        raise TypeError(f"{operator}: step has no state among ({', '.join(names)}), expected one or more")
    return states


def trace(operator: str, function: Callable, blocks: Mapping[str, Sequence[str]]) -> Step:
    """Run a step's formula once, and check what it did.

    Parameters
    ----------
    operator : str
        For messages.
    function : callable
        The step.
    blocks : mapping of str to sequence of str
        The names of the blocks of W, R and v.

    Raises
    ------
    TypeError, ValueError, AttributeError
        For a formula that is no step.
    """
    tape = StepTape(operator)
    names = states_of(operator, function)
    before = [tape.leaf("before", k) for k in range(len(names))]
    vectors = [tape.leaf("v", k, axes="column") for k in range(len(blocks["v"]))]
    x, inputs, products = Input(), dict[str, Any](), dict[str, Any]()

    def input_block(name: str, number: int) -> Callable:
        def multiply(operand: Any) -> Any:
            if operand is not x:
                raise TypeError(f"{operator}: step has W.{name} of what is not x, expected W.{name}(x)")
            return inputs.setdefault(name, tape.leaf("x", number))

        return multiply

    def product_block(name: str, number: int) -> Callable:
        def multiply(operand: Any) -> Any:
            if not isinstance(operand, StepValue) or operand.axes != "each" or operand.is_flag:
                raise TypeError(
                    f"{operator}: step has R.{name} of {type(operand).__name__}, expected a value that each "
                    "row and column has its own of"
                )
            value = tape.leaf("r", number, operand)
            if products.setdefault(name, value) is not value:
                raise ValueError(f"{operator}: step has R.{name} of two values, expected one product a block")
            return value

        return multiply

    weights = {
        "W": {name: input_block(name, k) for k, name in enumerate(blocks["W"])},
        "R": {name: product_block(name, k) for k, name in enumerate(blocks["R"])},
        "v": dict(zip(blocks["v"], vectors, strict=True)),
    }
    stands = {"x": x, **dict(zip(names, before, strict=True))}
    stands |= {kind: _Named(operator, kind, own) for kind, own in weights.items()}
    parameters = list(inspect.signature(function).parameters)
    for kind in _WEIGHTS:
        if blocks[kind] and kind not in parameters:
            raise TypeError(f"{operator}: {kind} has blocks, expected step to have a parameter {kind}")
    returned = function(tape, *(stands[name] for name in parameters[1:]))
    after = list(returned) if isinstance(returned, tuple | list) else [returned]
    if len(after) != len(names):
        raise ValueError(
            f"{operator}: step returned {len(after)} values, expected {len(names)}: {', '.join(names)}"
        )
    for name, value in zip(names, after, strict=True):
        if not isinstance(value, StepValue) or value.is_flag:
            raise TypeError(
                f"{operator}: step returned {type(value).__name__} for {name}, expected a value of the step"
            )
    reached = _reached(after)
    used = {
        "W": [inputs.get(name) for name in blocks["W"]],
        "R": [products.get(name) for name in blocks["R"]],
        "v": vectors,
    }
    for kind, own in used.items():
        for name, value in zip(blocks[kind], own, strict=True):
            if value is None or value not in reached:
                raise ValueError(f"{operator}: step makes no use of {kind}.{name}, expected all blocks in it")
    read = tuple(k for k, value in enumerate(before) if value in reached)
    if not read:
        raise ValueError(
            f"{operator}: step reads none of its states {', '.join(names)}, expected one or more"
        )
    return Step(tape, used["W"], used["R"], vectors, before, after, read)


def _reached(values: Sequence[Any]) -> set[Any]:
    found: set[Any] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if value not in found:
            found.add(value)
            todo += value.uses
    return found
