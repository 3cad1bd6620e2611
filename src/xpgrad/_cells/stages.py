"""From a graph of values to the stages of a time loop: the formula of each stage, and its stored values.

Products and row means end a stage, because they need their operand for the whole row. The level of a value is
the number of products and means in front of it. Each level is one formula, written as Python text that all
engines read.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xpgrad._cells.tape import StepValue
from xpgrad._cells.trace import in_order, number_of, reached
from xpgrad._recurrent.plan import Buffer, OperandBlocks, Stage
from xpgrad.engine import Formula

# Functions that are computed only once, not in each stage.
_EXPENSIVE = ("divide", "exp", "expm1", "log", "log1p", "sqrt", "tanh")
_OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=",
    "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=", "logical_and": "&",
    "logical_or": "|",
}  # fmt: skip
_TAKES_ARRAYS = ("maximum", "minimum", "where")  # their operands must be arrays


class BufferBlock(NamedTuple):
    """A block of a buffer."""

    buffer: Buffer
    block: int = 0


class Sum(NamedTuple):
    """A value that is the sum of several places; an optional place may be absent."""

    places: tuple[BufferBlock, ...]
    optional: tuple[BufferBlock, ...] = ()


def is_expensive(value: Any) -> bool:
    """Whether a value is stored, because a second computation takes longer."""
    return value.function in _EXPENSIVE or value.function.startswith("result ")


@dataclass
class Planner:
    """Distributes the wanted values of a graph over stages.

    Parameters
    ----------
    name : str
        The name of the formulas.
    leaves : mapping of value to BufferBlock or Sum
        The places of values when a step begins.
    later : mapping of value to BufferBlock
        The places of products and row means, once their operands are computed.
    full : BufferBlock
        A leaf with every row and column.
    outputs : list of (BufferBlock, value)
        The places to which values go; None stands for zeros.
    unread : sequence of Buffer, optional
        Buffers from which no stage reads: a call may leave them out, or want only their means over rows.
    """

    name: str
    leaves: Mapping[StepValue, BufferBlock | Sum]
    later: dict[StepValue, BufferBlock]
    full: BufferBlock
    outputs: list[tuple[BufferBlock, StepValue | None]]
    unread: Sequence[Buffer] = ()
    scratch: list[Buffer] = field(default_factory=list, init=False)
    """Buffers that only the step uses."""

    def __post_init__(self) -> None:
        self._levels: dict[StepValue, int] = {}
        self._places: dict[StepValue, BufferBlock] = {}
        self._outputs = list(self.outputs)
        for place, value in self._outputs:
            if value is not None and not place.buffer.of_row and place.buffer not in self.unread:
                self._places.setdefault(value, place)

    def level(self, value: Any) -> int:
        """The number of products and row means in front of a value."""
        if not isinstance(value, StepValue) or value in self.leaves:
            return 0
        if value not in self._levels:
            for one in in_order(value, self._without_level):
                ends_stage = one in self.later or one.function == "mean"
                self._levels[one] = ends_stage + max(map(self.level, one.uses), default=0)
        return self._levels[value]

    def _without_level(self, value: StepValue) -> list[StepValue]:
        """The arguments whose levels must be known first."""
        return [one for one in value.uses if one not in self.leaves and one not in self._levels]

    def stages(self) -> list[Stage]:
        """The stages, by level."""
        values = reached([value for _, value in self._outputs], self.leaves)
        for value in sorted((value for value in values if value.function == "mean"), key=number_of):
            place = self.later.setdefault(value, BufferBlock(Buffer(f"mean{value.number}", 1, "first", True)))
            if place.buffer.at == "first":
                self.scratch.append(place.buffer)
            self._outputs.append((place, value.arguments[0]))
        top = max((self.level(value) for _, value in self._outputs if value is not None), default=0)
        return [self._stage(level) for level in range(top, -1, -1)][::-1]

    def _stage(self, level: int) -> Stage:
        own = [(place, value) for place, value in self._outputs if self._level_of(value) == level]
        text = _Text(self, level)
        for place, value in own:
            text.write(place, value)
        return text.stage(f"{self.name}_{level}")

    def _level_of(self, value: Any) -> int:
        """The level of an output; zeros are written first: a product may read them before any other value."""
        return 0 if value is None else self.level(value)

    def found(self, value: Any, level: int) -> BufferBlock | Sum | None:
        """The place from which a stage reads a value; None if the stage computes it."""
        leaf = self.later.get(value) or self.leaves.get(value)
        if isinstance(leaf, BufferBlock) or self.level(value) == level:
            return leaf
        if value not in self._places and (leaf or (is_expensive(value) and value.axes == "each")):
            # the step changes a leaf before this stage, and an expensive value is not computed again
            place = BufferBlock(Buffer(f"kept{value.number}", 1, "first"))
            self.scratch.append(place.buffer)
            self._places[value] = place
            self._outputs.append((place, value))
        return self._places.get(value)


class _Text:
    """The text of one stage's formula."""

    def __init__(self, planner: Planner, level: int) -> None:
        self._planner, self._level = planner, level
        self._inputs: dict[Buffer, set[int]] = {}
        self._lines: list[str] = []
        self._names: dict[StepValue, str] = {}
        self._results: dict[BufferBlock, str] = {}

    def write(self, place: BufferBlock, value: Any) -> None:
        """Compute a value for a place."""
        self._results[place] = self._wide(value)

    def _wide(self, value: Any) -> str:
        """A value for every row and column."""
        if value is None:
            return f"xp.zeros_like({self._read(self._planner.full)})"
        name = self._made(value)
        if value.axes == "each":
            return name
        return f"xp.zeros_like({self._read(self._planner.full)}) + {name}"

    def _read(self, place: BufferBlock) -> str:
        self._inputs.setdefault(place.buffer, set()).add(place.block)
        return f"{place.buffer.name}_{place.block}"

    def _made(self, value: Any) -> str:
        """The name of a value, after the text that computes it."""
        if not isinstance(value, StepValue):
            return _number(value)
        if value not in self._names:
            places: dict[StepValue, BufferBlock | Sum | None] = {}

            def needed(one: StepValue) -> list[StepValue]:
                places[one] = self._planner.found(one, self._level)
                return [] if places[one] else [used for used in one.uses if used not in self._names]

            for one in in_order(value, needed):
                self._names[one] = self._named(one, places[one])
        return self._names[value]

    def _named(self, value: Any, place: BufferBlock | Sum | None) -> str:
        """The name of a value, which is read from its place or computed from its arguments."""
        if place is None:
            return self._computed(value)
        return self._read(place) if isinstance(place, BufferBlock) else self._added(value, place)

    def _added(self, value: Any, places: Sum) -> str:
        name = f"t{value.number}"
        self._lines.append(f"{name} = {' + '.join(self._read(place) for place in places.places)}")
        for place in places.optional:
            read = self._read(place)
            self._lines += [f"if {read} is not None:", f"    {name} = {name} + {read}"]
        return name

    def _computed(self, value: Any) -> str:
        function = value.function
        if function.startswith("result "):
            return self._made(value.arguments[0])
        arguments = [self._made(argument) for argument in value.arguments]
        if function in _TAKES_ARRAYS:
            arguments = self._as_arrays(value, arguments)
        name = f"t{value.number}"
        if function in _OPERATORS:
            text = f"{arguments[0]} {_OPERATORS[function]} {arguments[1]}"
        elif function == "negative":
            text = f"-{arguments[0]}"
        else:
            text = f"xp.{'abs' if function == 'absolute' else function}({', '.join(arguments)})"
        self._lines.append(f"{name} = {text}")
        return name

    def _as_arrays(self, value: Any, arguments: list[str]) -> list[str]:
        """The arguments, with numbers as arrays."""
        like = self._made(_value_under(value))
        return [
            text if isinstance(argument, StepValue) else f"xp.zeros_like({like}) + {text}"
            for argument, text in zip(value.arguments, arguments, strict=True)
        ]

    def stage(self, name: str) -> Stage:
        """The stage, after its last `write`."""
        inputs = {buffer: tuple(sorted(blocks)) for buffer, blocks in self._inputs.items()}
        written: dict[Buffer, set[int]] = {}
        for place in self._results:
            written.setdefault(place.buffer, set()).add(place.block)
        outputs = {buffer: tuple(sorted(blocks)) for buffer, blocks in written.items()}
        results = [
            self._results[BufferBlock(buffer, block)]
            for buffer, blocks in outputs.items()
            for block in blocks
        ]
        operands = [buffer.name for buffer in inputs]
        lines = [
            f"{', '.join(f'{buffer.name}_{block}' for block in blocks)} = {buffer.name}"
            for buffer, blocks in inputs.items()
        ]
        body = [*lines, *self._lines, f"return {', '.join(results)},"]
        text = "\n".join([f"def {name}({', '.join(['xp', *operands])}):", *(f"    {x}" for x in body)]) + "\n"
        return Stage(Formula(_function(name, text)), _named(inputs), _named(outputs), text)


def _named(parts: Mapping[Buffer, tuple[int, ...]]) -> tuple[OperandBlocks, ...]:
    """Blocks of buffers as a stage has them."""
    return tuple(
        OperandBlocks(buffer.name, None if len(blocks) == buffer.blocks else blocks)
        for buffer, blocks in parts.items()
    )


def _value_under(value: Any) -> Any:
    """A number among a value's arguments, or among its conditions' arguments."""
    todo = deque([value])
    while todo:
        used = todo.popleft().uses
        found = next((one for one in used if not one.is_flag), None)
        if found is not None:
            return found
        todo.extend(used)
    return None


def _number(number: float) -> str:
    if math.isnan(number):
        return "(xp.inf - xp.inf)"
    if math.isinf(number):
        return "xp.inf" if number > 0 else "(-xp.inf)"
    return f"({number!r})" if number < 0 else repr(number)


@functools.lru_cache(maxsize=512)
def _function(name: str, text: str) -> Callable[..., tuple]:
    """The function of a text."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, f"<xpgrad cell {name}>", "exec"), names)
    return names[name]
