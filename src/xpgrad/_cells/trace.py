"""A step as a graph: its formula runs once, on values that stand for arrays."""

from __future__ import annotations

import functools
import inspect
import operator as operators
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from xpgrad._cells.misuse import Refusing, StandIn
from xpgrad._cells.tape import Call, Tape, Use, Value, same
from xpgrad._operators.arguments import check_number

_WEIGHTS = ("W", "R", "v")
_NOTHING: Mapping[str, Sequence[str]] = MappingProxyType({})
# The functions that a formula may call, by NumPy's names.
_FUNCTIONS = (
    "abs", "absolute", "add", "divide", "equal", "exp", "expm1", "greater", "greater_equal", "less",
    "less_equal", "log", "log1p", "logical_and", "logical_or", "maximum", "mean", "minimum", "multiply",
    "negative", "not_equal", "positive", "sqrt", "square", "subtract", "tanh", "where", "zeros_like",
)  # fmt: skip
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


class StepValue(Refusing, Value):
    """The stand-in for an array in a step's formula.

    Attributes
    ----------
    number : int
        Larger for later values.
    index : int
        The number of a leaf among its kind.
    """

    def __init__(self, tape: Any, call: Call | None, axes: str = "each", index: int = 0) -> None:
        super().__init__(tape, call, axes)
        self.number, self.index = tape.count(), index

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

    def __abs__(self) -> Value:
        return self.tape.apply("absolute", self)

    def __pos__(self) -> Value:
        return self

    def __pow__(self, exponent: Any) -> Value:
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


class Rule(NamedTuple):
    """A pullback that its author wrote: ``pullback(xp, *cotangents, *operands, *results)``."""

    function: Callable
    pullback: Callable
    operands: tuple[Any, ...]
    results: list[Any]


class StepTape(Tape):
    """The stand-in for ``xp`` while a step is recorded.

    If a row has several heads, means are within a head: each column has the mean of its head, which is a
    product with a constant matrix.
    """

    value = StepValue

    def __init__(self, operator: str, heads: int = 1) -> None:
        super().__init__(np.dtype(np.float64))
        self.operator, self._heads = operator, heads
        self.rules: list[Rule] = []
        self._leaves: dict[tuple, StepValue] = {}
        self._count = 0
        self.strict = False
        """Whether the step's own formula runs, not a function with a rule."""

    def count(self) -> int:
        """The next number of a value."""
        self._count += 1
        return self._count

    def leaf(self, kind: str, number: int, *uses: Any, axes: str = "each") -> Any:
        """An operand, or a product of the values used, which no elementwise function makes."""
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
        if isinstance(argument, StandIn):
            raise argument.refused("a function or operator")
        if isinstance(argument, bool | np.bool_):
            return bool(argument)
        return check_number(self.operator, "an operand of step", argument)

    def _refused(self, name: str, instead: str) -> NoReturn:
        raise AttributeError(f"{self.operator}: step uses xp.{name}, expected {instead}")

    def sigmoid(self, x: Any) -> Any:
        """For functions with a pullback alone: it is made of several, which have none."""
        if self.strict:
            self._refused("sigmoid", "xpgrad.cells.sigmoid(xp, value): the standard has none")
        return super().sigmoid(x)

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
        if not isinstance(condition, Value):
            return x if condition else y
        if not condition.is_flag:
            raise TypeError(f"{self.operator}: step has where by a number, expected a comparison")
        if x is y:
            return x
        pair = [a if isinstance(a, Value) else self._number(a) for a in (x, y)]
        return self._call("where", "f", Use(condition, "?"), *(Use(a, "f") for a in pair))

    def mean(self, x: Any, axis: int = -1, keepdims: bool = True) -> Any:
        """Over the row, or over the head's part of it."""
        if axis not in (-1, 1) or not keepdims:
            raise ValueError(
                f"{self.operator}: step has a mean with axis={axis!r}, keepdims={keepdims!r}, expected -1 "
                "and True: it is over the row"
            )
        if isinstance(x, StandIn):
            raise x.refused("xp.mean")
        if not isinstance(x, Value) or x.axes == "row":
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
            if isinstance(result, Value):
                results[k] = self.leaf(f"result {k}", number, result, axes=result.axes)
        self.rules.append(Rule(function, pullback, tuple(operands), results))
        return tuple(results) if several else results[0]


class _Named(StandIn):
    """The stand-in for W, R, v or an input of several blocks: it has the blocks by name."""

    def __init__(self, operator: str, kind: str, blocks: Mapping[str, Any]) -> None:
        called = {"W": "(x)", "R": "(value)"}.get(kind, "")
        shown = ", ".join(f"{kind}.{name}{called}" for name in blocks) or "none of it: it has no blocks"
        super().__init__(operator, f"{kind} as a whole", f"its blocks by their names, {shown}")
        self._kind, self._blocks = kind, blocks

    def __getattr__(self, name: str) -> Any:
        if name not in self._blocks:
            raise AttributeError(
                f"{self._operator}: step uses {self._kind}.{name}, expected one of "
                f"{', '.join(self._blocks) or 'no blocks'}, the blocks of {self._kind}"
            )
        return self._blocks[name]


class _WeightBlock(StandIn):
    """The stand-in for a block of W or R: a step calls it with the value that it multiplies."""

    def __init__(self, operator: str, shown: str, operand: str, product: Callable[[Any], Any]) -> None:
        super().__init__(operator, f"{shown} without its operand", f"{shown}({operand})")
        self._product = product

    def __call__(self, *operands: Any, **options: Any) -> Any:
        if len(operands) != 1 or options:
            raise TypeError(
                f"{self._operator}: step calls a block with {len(operands) + len(options)} operands, "
                f"expected {self.instead}"
            )
        return self._product(operands[0])


class Input(StandIn):
    """The stand-in for the step's input, which only W takes."""

    def __init__(self, operator: str) -> None:
        super().__init__(operator, "the input x itself", "W.name(x): only W takes x")

    def refused(self, what: str) -> Exception:
        """The error for an operator or function that a step applied to it."""
        error = super().refused(what)
        if what in ("an if", "<", "<=", ">", ">=", "==", "!="):
            return TypeError(f"{error}, and xp.where(condition, a, b) decides by values")
        return error


class StepGraph(NamedTuple):
    """A step as a graph of values."""

    tape: StepTape
    inputs: list[Any]
    """The blocks of W x."""
    products: list[Any]
    """The products with the blocks of R."""
    vectors: list[Any]
    given: list[Any]
    """The blocks of the inputs besides x."""
    before: list[Any]
    after: list[Any]
    """The states after the step."""
    read: tuple[int, ...]
    """The numbers of the states that the step reads; the others are only outputs."""


def states_of(operator: str, function: Callable, inputs: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of a step's states: its parameters without xp, x, W, R, v and the inputs."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a function of C
        raise TypeError(f"{operator}: step has no signature, expected a function by def") from None
    names = [p.name for p in parameters]
    if names[:2] != ["xp", "x"] or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise TypeError(
            f"{operator}: step has parameters ({', '.join(map(str, parameters))}), expected xp, x, the "
            "states, and those of W, R and v that it uses"
        )
    for name in inputs:
        if name not in names[2:]:
            raise TypeError(
                f"{operator}: inputs has {name!r}, expected the name of a parameter of step, which has "
                f"({', '.join(names)})"
            )
    states = tuple(name for name in names[2:] if name not in (*_WEIGHTS, *inputs))
    if not states:
        raise TypeError(f"{operator}: step has no state among ({', '.join(names)}), expected one or more")
    return states


def trace(
    operator: str,
    function: Callable,
    blocks: Mapping[str, Sequence[str]],
    inputs: Mapping[str, Sequence[str]] = _NOTHING,
    heads: int = 1,
) -> StepGraph:
    """Run a step's formula once, and raise for anything but a step.

    `blocks` has the names of the blocks of W, R and v, `inputs` those of each input besides x.
    """
    return _Tracer(operator, function, blocks, inputs, heads).step()


class _Tracer:
    """One run of a step's formula."""

    def __init__(
        self, operator: str, function: Callable, blocks: Mapping[str, Sequence[str]],
        inputs: Mapping[str, Sequence[str]], heads: int,
    ) -> None:  # fmt: skip
        self._operator, self._function, self._blocks, self._given = operator, function, blocks, inputs
        self._tape, self._states = StepTape(operator, heads), states_of(operator, function, inputs)
        self._given_values: dict[tuple[str, str], Any] = {
            (name, block): self._tape.leaf(f"given {name}", number)
            for name, own in inputs.items()
            for number, block in enumerate(own or ("",))
        }
        self._before = [self._tape.leaf("before", k) for k in range(len(self._states))]
        self._vectors = [self._tape.leaf("v", k, axes="column") for k in range(len(blocks["v"]))]
        self._x = Input(operator)
        self._inputs: dict[str, Any] = {}
        self._products: dict[str, Any] = {}

    def step(self) -> StepGraph:
        """Run the formula and return its graph."""
        after = self._run()
        found = reached(after)
        used = {
            "W": [self._inputs.get(name) for name in self._blocks["W"]],
            "R": [self._products.get(name) for name in self._blocks["R"]],
            "v": self._vectors,
        }
        for kind, own in used.items():
            for name, value in zip(self._blocks[kind], own, strict=True):
                if value is None or value not in found:
                    raise ValueError(
                        f"{self._operator}: step makes no use of {kind}.{name}, expected all blocks in it"
                    )
        for (name, block), value in self._given_values.items():
            if value not in found:
                shown = f"{name}.{block}" if block else name
                raise ValueError(f"{self._operator}: step makes no use of {shown}, expected all inputs in it")
        read = tuple(k for k, value in enumerate(self._before) if value in found)
        if not read:
            raise ValueError(
                f"{self._operator}: step reads none of its states {', '.join(self._states)}, expected one or "
                "more"
            )
        given = list(self._given_values.values())
        return StepGraph(self._tape, used["W"], used["R"], self._vectors, given, self._before, after, read)

    def _run(self) -> list[Any]:
        """The states that the formula returns."""
        operator = self._operator
        parameters = list(inspect.signature(self._function).parameters)
        for kind in _WEIGHTS:
            if self._blocks[kind] and kind not in parameters:
                raise TypeError(f"{operator}: {kind} has blocks, expected step to have a parameter {kind}")
        stands = self._stand_ins()
        returned = self._called_step([stands[name] for name in parameters[1:]])
        after = list(returned) if isinstance(returned, tuple | list) else [returned]
        if len(after) != len(self._states):
            raise ValueError(
                f"{operator}: step returned {len(after)} values, expected {len(self._states)}: "
                f"{', '.join(self._states)}"
            )
        for name, value in zip(self._states, after, strict=True):
            if isinstance(value, StandIn):
                raise TypeError(
                    f"{operator}: step returned {value.what} for {name}, expected {value.instead}"
                )
            if not isinstance(value, StepValue) or value.is_flag:
                shown = "a comparison" if isinstance(value, StepValue) else type(value).__name__
                raise TypeError(f"{operator}: step returned {shown} for {name}, expected a value of the step")
        return after

    def _called_step(self, stands: Sequence[Any]) -> Any:
        """The step's results; a note on foreign errors says that the step ran on stand-ins."""
        self._tape.strict = True
        try:
            return self._function(self._tape, *stands)
        except Exception as error:
            if not str(error).startswith(f"{self._operator}: "):
                error.add_note(
                    f"{self._operator}: the step ran on values that stand for arrays, expected a formula of "
                    "xp's functions, + - * / **, and those of xpgrad.cells, which take xp in front"
                )
            raise
        finally:
            self._tape.strict = False

    def _stand_ins(self) -> dict[str, Any]:
        """The stand-ins for all parameters except xp, by name."""
        blocks = self._blocks
        weights: dict[str, dict[str, Any]] = {"v": dict(zip(blocks["v"], self._vectors, strict=True))}
        for kind, operand, product in (("W", "x", self._input_block), ("R", "value", self._product_block)):
            weights[kind] = {
                name: _WeightBlock(
                    self._operator, f"{kind}.{name}", operand, functools.partial(product, name, k)
                )
                for k, name in enumerate(blocks[kind])
            }
        named = {kind: _Named(self._operator, kind, own) for kind, own in weights.items()}
        given = {
            name: _Named(self._operator, name, {block: self._given_values[name, block] for block in own})
            if own
            else self._given_values[name, ""]
            for name, own in self._given.items()
        }
        return {"x": self._x, **dict(zip(self._states, self._before, strict=True)), **named, **given}

    def _input_block(self, name: str, number: int, operand: Any) -> Any:
        if operand is not self._x:
            raise TypeError(f"{self._operator}: step has W.{name} of what is not x, expected W.{name}(x)")
        return self._inputs.setdefault(name, self._tape.leaf("x", number))

    def _product_block(self, name: str, number: int, operand: Any) -> Any:
        if not isinstance(operand, StepValue) or operand.axes != "each" or operand.is_flag:
            raise TypeError(
                f"{self._operator}: step has R.{name} of {_shown(operand)}, expected a value that each row "
                "and column has its own of"
            )
        value = self._tape.leaf("r", number, operand)
        if self._products.setdefault(name, value) is not value:
            raise ValueError(
                f"{self._operator}: step has R.{name} of two values, expected one product a block"
            )
        return value


def _shown(operand: Any) -> str:
    """An operand, for messages."""
    if isinstance(operand, StandIn):
        return operand.what
    if isinstance(operand, StepValue):
        return "a comparison" if operand.is_flag else "a value that a row or a column has in common"
    return type(operand).__name__


def in_order(value: Any, under: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """All values on which a value depends, then the value itself, each once and without recursion.

    `under` returns the values on which one depends; it is called when that value is first met.
    """
    met, path = {value}, [(value, iter(under(value)))]
    while path:
        last, rest = path[-1]
        following = next((one for one in rest if one not in met), None)
        if following is None:
            path.pop()
            yield last
        else:
            met.add(following)
            path.append((following, iter(under(following))))


def reached(values: Iterable[Any], leaves: Collection[Any] = ()) -> set[Any]:
    """The values, and all on which they depend, without leaves; None among the values stands for zero."""
    found: set[Any] = set()
    todo = [value for value in values if value is not None]
    while todo:
        value = todo.pop()
        if value not in found and value not in leaves:
            found.add(value)
            todo += value.uses
    return found


number_of = operators.attrgetter("number")
"""The number of a value: the order in which values were made."""
