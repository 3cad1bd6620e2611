"""Plans of an operator's loops: stages of formulas, operands by name, products, sums.

`forward.py` and `backward.py` run any plan. Operators such as `lstm` write their plans; `_cells/build.py`
makes the plans of cells. The loops have these operands; k is the number of a state, n of a group of products:

========================= ========================================================================
x                         the input's products W x; a step may replace them
before{k}, after{k}       a state before and after the step
taken                     the first state before the step, as R multiplies it
product{n}, source{n}     forward: a group's products, and the value that R multiplies if it is not a state
output                    the place of the step's output: the first state, or hidden-state options' input
given{k}                  backward: the cotangent of a state over time
carry{k}                  what the step after passed to a state without a product
back{n}                   the products with R's transpose
dy, dh, dp                of the first state: given0, and the step after's cotangent, in one or two parts
mask, kept_h, projected,  for the options between output and next state (`hidden_state.py`)
passed
none                      an absent operand
columns                   the cotangents that products and sums take
v                         the vectors of a cell
========================= ========================================================================

Kept results have the names of their buffers. An operator adds its own operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from xpgrad.engine import Formula, Operand

_NONE: Mapping[Any, Any] = MappingProxyType({})


class Buffer(NamedTuple):
    """Rows of a time loop, through which the stages of a step and the code around it exchange values."""

    name: str
    blocks: int
    """The number of values, side by side."""
    at: str
    """See `Operand`."""
    of_row: bool = False
    """Whether it holds the mean over each row."""


class OperandBlocks(NamedTuple):
    """An operand by name, and the blocks that a stage reads or writes; None for all, in their order."""

    name: str
    blocks: tuple[int, ...] | None = None


class Stage(NamedTuple):
    """One formula, and the operands that it reads and writes."""

    formula: Formula
    inputs: tuple[OperandBlocks, ...]
    outputs: tuple[OperandBlocks, ...]
    text: str = ""
    """The text of a generated formula, for readers."""


def stage(formula: Formula, inputs: str, outputs: str) -> Stage:
    """A stage on whole operands; spaces separate their names."""
    given, made = (tuple(map(OperandBlocks, names.split())) for names in (inputs, outputs))
    return Stage(formula, given, made)


class Group(NamedTuple):
    """The products of R with one value."""

    number: int
    blocks: tuple[int, ...]
    """Its blocks of R."""
    state: int | None = 0
    """The number of the state that is multiplied; None for another value."""
    level: int = 0
    """The number of stages of the forward step before the products."""

    @property
    def source(self) -> Buffer:
        """The multiplied value in the forward step, if it is not a state."""
        return Buffer(f"source{self.number}", 1, "first")

    @property
    def product(self) -> Buffer:
        """The products in the forward step."""
        return Buffer(f"product{self.number}", len(self.blocks), "first")

    @property
    def back(self) -> Buffer:
        """The products with R's transpose in the backward step."""
        return Buffer(f"back{self.number}", 1, "first")


class ForwardPlan(NamedTuple):
    """The forward step of one direction."""

    states: Sequence[str]
    """The states' names; the first one is the output."""
    stages: Sequence[Stage]
    """By level."""
    groups: Sequence[Group]
    """The products of R."""
    kept: Mapping[str, tuple[Buffer, ...]] = _NONE
    """The results besides states, and the buffers that become each result."""
    operands: Mapping[str, Operand] = _NONE
    """The operator's own operands."""
    is_in_place: bool = False
    """Whether the output takes the place of the input's product."""
    scratch: Sequence[Buffer] = ()
    """Buffers that only the step uses."""
    given: Sequence[Buffer] = ()
    """The inputs besides x."""
    averages: Sequence[tuple[int, int]] = ()
    """The numbers of means within heads, and the stage after which each can be computed."""
    read: Sequence[int] = ()
    """The states that a cell's step reads."""


class InputPart(NamedTuple):
    """Blocks of the cotangents, and the blocks of W's rows that made them; None for all rows."""

    columns: range
    rows: range | None = None


class BackwardPlan(NamedTuple):
    """The step's pullback, and the sums that follow; for other fields see ForwardPlan."""

    states: Sequence[str]
    groups: Sequence[Group]
    stages: Sequence[Stage]
    columns: Buffer
    """The cotangents that products and sums take."""
    products: Sequence[tuple[range, int]]
    """For each group the columns of its products' cotangents, and the stage after which all are known."""
    direct: Sequence[bool]
    """For each state whether a cotangent is carried besides the products'."""
    inputs: Sequence[InputPart]
    """The parts of W x; none if W is left out."""
    vectors: Sequence[int]
    """For each block of the biases or vectors the column that is summed."""
    vector: str = "B"
    """Their argument's name."""
    kept: Mapping[str, tuple[Buffer, ...]] = _NONE
    """The saved results that are operands."""
    order: tuple[int, ...] | None = None
    """The blocks of `columns` in the order in which the formulas have them."""
    cotangents: int = 0
    """The number of cotangents, which are the first columns; 0 if all columns are. Sources follow."""
    sources: Mapping[int, Any] = _NONE
    """For groups whose value is not a state, ``source(backward, chunk, columns)``: the value's rows."""
    shift: int = 0
    """The number of blocks by which W's rows are rolled to have the columns' order."""
    operands: Mapping[str, Operand] = _NONE
    local: Sequence[str] = ()
    """Own operands with rows for one chunk, made by a stage."""
    rebuild: Callable[..., Mapping[str, Operand]] | None = None
    """``rebuild(backward, chunk)``: own operands that are computed for all steps of a chunk at once."""
    others: Mapping[str, Callable[..., None]] = _NONE
    """For each other parameter ``add(backward, chunk, columns)``, which adds a chunk's part to its sum."""
    scratch: Sequence[Buffer] = ()
    inputs_beside: Sequence[Buffer] = ()
    """The forward plan's `given`."""
    given: Sequence[Buffer] = ()
    """The cotangents of the inputs besides x."""
    averages: Sequence[tuple[int, int]] = ()


def before(k: int) -> Buffer:
    """A state before the step."""
    return Buffer(f"before{k}", 1, "before")


def after(k: int) -> Buffer:
    """A state after the step."""
    return Buffer(f"after{k}", 1, "now")


def carry(k: int) -> Buffer:
    """The cotangent of a state from the step after, without a product."""
    return Buffer(f"carry{k}", 1, "first")


def given(k: int) -> Buffer:
    """The cotangent of a state over time."""
    return Buffer(f"given{k}", 1, "now")


def averaged(number: int) -> Buffer:
    """A value whose mean within each head is wanted."""
    return Buffer(f"averaged{number}", 1, "first")


def average(number: int) -> Buffer:
    """The mean of the column's head, for each column."""
    return Buffer(f"average{number}", 1, "first")


def capital(state: str) -> str:
    """A state's name in the names of arrays."""
    return state[:1].upper() + state[1:]
