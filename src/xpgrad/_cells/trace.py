"""A step as a graph: its formula runs once, on values that stand for arrays."""

from __future__ import annotations

import functools
import inspect
import operator as operators
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from xpgrad._cells.misuse import StandIn
from xpgrad._cells.tape import StepTape, StepValue

_WEIGHTS = ("W", "R", "v")
_NOTHING: Mapping[str, Sequence[str]] = MappingProxyType({})


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
            "states, and as far as it uses them W, R and v"
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
    for name in states:
        if name.startswith("_"):
            raise ValueError(f"{operator}: step has the state {name!r}, expected a name without _ in front")
    return states


def trace(
    operator: str,
    function: Callable,
    blocks: Mapping[str, Sequence[str]],
    inputs: Mapping[str, Sequence[str]] = _NOTHING,
    heads: int = 1,
) -> StepGraph:
    """Run a step's formula once, and raise for anything but a step.

    `blocks` has the names of the blocks of W, R and v, `inputs` the names of each other input's blocks.
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
                    "xp's functions, + - * / **, and xpgrad.cells' functions, which take xp in front"
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
            raise TypeError(
                f"{self._operator}: step has W.{name} of another value than x, expected W.{name}(x)"
            )
        return self._inputs.setdefault(name, self._tape.leaf("x", number))

    def _product_block(self, name: str, number: int, operand: Any) -> Any:
        if not isinstance(operand, StepValue) or operand.axes != "each" or operand.is_flag:
            raise TypeError(
                f"{self._operator}: step has R.{name} of {_shown(operand)}, expected a value with a "
                "number for each row and column"
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
