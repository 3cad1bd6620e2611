"""What a time loop does, written once and run by every engine in its own way: formulas and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Formula:
    """An elementwise function of arrays, with its constants fixed.

    ``function(xp, *operands, **constants)`` may use the operators of Python, the elementwise functions of
    the array API through ``xp``, ``if`` on constants and on ``operand is None``, and other such functions,
    called with ``xp`` as their first argument. That is all that an engine needs to evaluate it on whole
    arrays, block by block, or compiled on scalars: a compiling engine puts a module of scalar functions in
    the place of ``xp``.

    Parameters
    ----------
    function : callable
        Takes ``xp``, one positional operand (an array or None) each, and its constants by keyword.
        Returns a tuple of arrays.
    constants : dict
        Numbers, booleans, None, or functions of the same kind (an activation).
    parameters : tuple of str
        Names of numbers that come with each call, by keyword: compiled once for all their values.
    """

    function: Callable[..., tuple]
    constants: dict[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()

    def __call__(self, xp: Any, *operands: Any, **numbers: Any) -> tuple:
        """Evaluate on arrays of the namespace ``xp``."""
        return self.function(xp, *operands, **self.constants, **numbers)

    @property
    def key(self) -> tuple:
        """What tells this formula from others: hashable, equal for equal formulas.

        Numbers are in it as text, which is equal for NaN and NaN and is not for 0.0 and -0.0.
        """
        constants = sorted(self.constants.items(), key=lambda item: item[0])
        return (self.function, tuple((name, as_text(value)) for name, value in constants))


class Text(str):
    """A constant as Python reads it back."""

    __slots__ = ()


def as_text(constant: Any) -> Any:
    """A number, flag or None as text; a function, and what is text already, as it is."""
    if callable(constant) or isinstance(constant, Text):
        return constant
    if isinstance(constant, bool) or constant is None:
        return Text(constant)
    number = float(constant)
    return Text(number) if math.isfinite(number) else Text(f"float('{number}')")


class Operand(NamedTuple):
    """Consecutive blocks of columns of a row buffer: ``blocks`` operands of a formula.

    Parameters
    ----------
    rows : buffer or None
        What the engine's ``wrap``, ``rows`` or ``carry`` gave, shape (rows, blocks * width). None stands
        for absent operands: the formula gets None for each block.
    blocks : int
        Into how many equal blocks the columns fall, each an operand of the formula.
    at : str
        Which of the rows a step touches: ``"now"``, ``"before"`` and ``"local"``, from the row given under
        that name; ``"first"``, from row 0; ``"every"``, the only row, for all rows of the step.
    order : tuple of int, optional
        Which block of columns each of the formula's operands is; one after the other by default.
    of_row : bool
        Whether the buffer has one column, a number for each row. As an input the number stands for every
        column; as an output it is the mean, over the row, of the formula's result.
    """

    rows: Any
    blocks: int = 1
    at: str = "now"
    order: tuple[int, ...] | None = None
    of_row: bool = False

    @property
    def places(self) -> Sequence[int]:
        """Of each of the formula's operands, its block of columns."""
        return range(self.blocks) if self.order is None else self.order


class Elementwise(NamedTuple):
    """A stage of a time loop: a formula on rows.

    Parameters
    ----------
    formula : Formula
        What to evaluate.
    inputs, outputs : sequence of Operand
        Where its operands are, and where its results go; an output may be an input.
    """

    formula: Formula
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]


class Product(NamedTuple):
    """A stage of a time loop: rows times a weight.

    Parameters
    ----------
    source : Operand
        The rows.
    weight : matrix
        What the engine's ``loop_weight`` gave.
    target : buffer
        Whose first rows become the product.
    """

    source: Operand
    weight: Any
    target: Any


class Span(NamedTuple):
    """The rows of one step of a time loop: how many, and the first of those that each kind of operand means.

    An engine takes the steps as an integer array, a row each.
    """

    rows: int
    now: int = 0
    before: int = 0
    local: int = 0
