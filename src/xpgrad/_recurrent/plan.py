"""What the loops of an operator consist of: stages of formulas, operands by name, products, sums.

`forward.py` and `backward.py` run any such plan. Operators such as `lstm` write theirs; those of cells are
made (`_cells/build.py`). These operands are the loops' own; k is the number of a state, n of a group of
products:

========================= ========================================================================
x                         the input's products W x; a step may replace them
before{k}, after{k}       a state before and after the step
taken                     the first state before the step, as R multiplies it
product{n}, source{n}     forward: a group's products, and the value that R multiplies if it is no state
output                    the first state's place, or where hidden-state options take the step's output
given{k}                  backward: the cotangent of a state over time
carry{k}                  what the step after passed to a state without a product
back{n}                   the products with R's transpose
dy, dh, dp                of the first state: given0, and what the step after passed, in one or two parts
mask, kept_h, projected,  of the options between output and next state (`hidden_state.py`)
passed
none                      an absent operand
columns                   the cotangents that products and sums take
v                         the vectors of a cell
========================= ========================================================================

Kept results have the names of their buffers. All other operands are the operator's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from xpgrad.engine import Formula, Operand

_NONE: Mapping[Any, Any] = MappingProxyType({})


class Buffer(NamedTuple):
    """Rows of a time loop, through which the stages of a step and the code around it exchange values.

    Parameters
    ----------
    name : str
        Its name.
    blocks : int
        How many values it holds, side by side.
    at : str
        As an `Operand` has it.
    of_row : bool
        Whether it holds the mean over each row.
    """

    name: str
    blocks: int
    at: str
    of_row: bool = False


class OperandBlocks(NamedTuple):
    """An operand by name, and the blocks of it that a stage reads or writes; None for all, in its order."""

    name: str
    blocks: tuple[int, ...] | None = None


class Stage(NamedTuple):
    """One formula, and the operands that it reads and writes."""

    formula: Formula
    inputs: tuple[OperandBlocks, ...]
    outputs: tuple[OperandBlocks, ...]
    text: str = ""
    """The formula's, to be read, if it was generated."""


def stage(formula: Formula, inputs: str, outputs: str) -> Stage:
    """A stage on whole operands; spaces separate their names."""
    given, made = (tuple(map(OperandBlocks, names.split())) for names in (inputs, outputs))
    return Stage(formula, given, made)


class Group(NamedTuple):
    """The products of R with one value.

    Parameters
    ----------
    number : int
        The group's number.
    blocks : tuple of int
        Its blocks of R.
    state : int or None
        The state before the step that is multiplied; None if it is another value.
    level : int
        The number of stages of the forward step in front of it.
    """

    number: int
    blocks: tuple[int, ...]
    state: int | None = 0
    level: int = 0

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
    """The results beside states, and the buffers that become each of them."""
    operands: Mapping[str, Operand] = _NONE
    """The operator's own."""
    is_in_place: bool = False
    """Whether the output takes the place of the input's product."""
    scratch: Sequence[Buffer] = ()
    """Buffers that only the step uses."""
    given: Sequence[Buffer] = ()
    """The inputs beside x."""
    averages: Sequence[tuple[int, int]] = ()
    """The numbers of means within heads, and the stage after which each can be computed."""
    read: Sequence[int] = ()
    """Of a cell the states that the step reads."""


class InputPart(NamedTuple):
    """Blocks of the cotangents, and the blocks of W's rows that made them; None for all rows."""

    columns: range
    rows: range | None = None


class BackwardPlan(NamedTuple):
    """The step's pullback, and the sums that follow; what has a forward plan's name is as there."""

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
    """The number of cotangents, which are the first columns; 0 for all. Sources follow."""
    sources: Mapping[int, Any] = _NONE
    """By number of a group whose value is no state, ``source(backward, chunk, columns)``: its rows."""
    shift: int = 0
    """By how many blocks W's rows are rolled to have the columns' order."""
    operands: Mapping[str, Operand] = _NONE
    local: Sequence[str] = ()
    """Own operands with a row for each of a chunk, made by a stage."""
    rebuild: Callable[..., Mapping[str, Operand]] | None = None
    """``rebuild(backward, chunk)``: own operands that are computed for all steps of a chunk at once."""
    others: Mapping[str, Callable[..., None]] = _NONE
    """By name of another parameter, ``add(backward, chunk, columns)``: adds a chunk's part to its sum."""
    scratch: Sequence[Buffer] = ()
    inputs_beside: Sequence[Buffer] = ()
    """The forward plan's `given`."""
    given: Sequence[Buffer] = ()
    """Their cotangents."""
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
    """The mean, for each column."""
    return Buffer(f"average{number}", 1, "first")


def capital(state: str) -> str:
    """A state's name as arrays have it."""
    return state[:1].upper() + state[1:]
