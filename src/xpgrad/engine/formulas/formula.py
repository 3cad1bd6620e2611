"""Formulas and products: the stages of a time loop, written once for all engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, eq=False)
class Formula:
    """An elementwise function of arrays, with its constants fixed.

    ``function(xp, *operands, **constants)`` may use Python's operators, the array API's elementwise functions
    through ``xp``, ``if`` on constants and on ``operand is None``, and other such functions, called with
    ``xp`` as their first argument. So an engine can evaluate it on whole arrays, on blocks, or compiled on
    scalars, with scalar functions in ``xp``.

    Parameters
    ----------
    function : callable
        Takes ``xp``, its operands (each an array, None, or a tuple of these) by position, and its constants
        by keyword. Returns a tuple of such results; only their order counts.
    constants : dict
        Numbers, booleans, None, functions of the same kind, or named tuples of these (an activation with its
        parameters).
    parameters : tuple of str
        Names of numbers that each call passes by keyword: one compiled function serves all their values.
    """

    function: Callable[..., tuple]
    constants: dict[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()

    def __call__(self, xp: Any, *operands: Any, **numbers: Any) -> tuple:
        """Evaluate on arrays of the namespace ``xp``."""
        return self.function(xp, *operands, **self.constants, **numbers)

    @property
    def key(self) -> tuple:
        """The function, the constants and the parameters: hashable, and equal for equal formulas.

        Numbers become text, so NaN equals NaN, and 0.0 differs from -0.0.
        """
        constants = tuple((name, _key_of(value)) for name, value in sorted(self.constants.items()))
        return self.function, constants, self.parameters


_WORDS = {"None": None, "True": True, "False": False}


def _key_of(constant: Any) -> Any:
    """A number, flag or None becomes text; a function stays; a named tuple has the keys of its fields."""
    if callable(constant):
        return constant
    if isinstance(constant, tuple):
        return type(constant)(*map(_key_of, constant))
    return str(constant if isinstance(constant, bool) or constant is None else float(constant))


def constant_of(key: Any) -> Any:
    """The constant of a key."""
    if callable(key):
        return key
    if isinstance(key, tuple):
        return type(key)(*map(constant_of, key))
    return _WORDS[key] if key in _WORDS else float(key)


class Operand(NamedTuple):
    """Blocks of columns of a row buffer: an operand of a formula, or one of its results.

    The formula takes and returns one block as an array, several as a tuple of arrays.

    Parameters
    ----------
    rows : buffer or None
        A buffer from the engine's ``wrap``, ``rows`` or ``carry``, shape (rows, blocks * width). If it is
        None, the operand is absent, and the formula gets None for each block.
    blocks : int
        The number of equal blocks of columns.
    at : str
        Which rows a step uses. ``"now"``, ``"before"`` and ``"local"``: from the step's row of that name on.
        ``"first"``: from row 0 on. ``"every"``: the only row, for all rows of the step.
    order : tuple of int, optional
        The blocks that the formula takes; all in order by default. The stage neither reads nor writes others.
    of_row : bool
        Whether the buffer has one number for each row. As an input the number applies to every column; as an
        output it is the mean of the formula's result over the row.
    """

    rows: Any
    blocks: int = 1
    at: str = "now"
    order: tuple[int, ...] | None = None
    of_row: bool = False

    @property
    def places(self) -> Sequence[int]:
        """The blocks that the formula takes."""
        return range(self.blocks) if self.order is None else self.order


class Elementwise(NamedTuple):
    """A stage of a time loop: a formula on rows; an output may be an input."""

    formula: Formula
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]


def evaluate(function: Callable[..., tuple], operands: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """All blocks of a formula's results, from the blocks of each operand."""
    for result in function(*(blocks[0] if len(blocks) == 1 else tuple(blocks) for blocks in operands)):
        yield from result if isinstance(result, tuple) else (result,)


class Product(NamedTuple):
    """A stage of a time loop: rows times a weight.

    A weight of heads is a stack (blocks, heads, k, n): the columns of a head are multiplied by its own
    matrices. Either the source has one block of columns and the target has all blocks, or the source has all
    blocks and the target has the sum of their products. Columns are ordered by block, then by head.

    Parameters
    ----------
    source : Operand
        The rows.
    weight : matrix, or stack of matrices
        From the engine's ``loop_weight``.
    target : buffer
        Its first rows become the product.
    """

    source: Operand
    weight: Any
    target: Any


class Span(NamedTuple):
    """The rows of one step of a time loop: their number, and the first row for each kind of operand.

    An engine takes the steps as an array of integers, with a row for each step.
    """

    rows: int
    now: int = 0
    before: int = 0
    local: int = 0
