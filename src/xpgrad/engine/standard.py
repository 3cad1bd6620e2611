"""The standard engine: pure array API, for any namespace, without writing to any array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import device

from xpgrad.engine.formulas.formula import Elementwise, Formula, Operand, Product, Span
from xpgrad.engine.formulas.row_formula import RowFormula
from xpgrad.engine.images.methods import Images
from xpgrad.engine.protocol import Adapter


class StandardEngine(Images):
    """Computes everything with functions of the array API only.

    It is the oracle for the other engines. Differentiable tensors, other devices and compilers use it: every
    step makes new arrays and writes to none.

    ``wrap``, ``rows`` and ``carry`` return *row buffers*. Kernels read these only through operands of
    formulas and products, and through ``array``.
    """

    name = "standard"

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def quiet(self) -> Any:
        """Context in which inf and NaN propagate without warnings (NumPy's, if NumPy computes)."""
        return np.errstate(all="ignore")

    def lift(self, array: Any) -> Any:
        """The array in this engine's namespace."""
        return array

    def lower(self, array: Any) -> Any:
        """The inverse of ``lift``."""
        return array

    def target(self, out: Any, shape: tuple[int, ...]) -> Any:
        """The caller's `out`, lifted and in this shape, if results can go there directly; else None."""
        return None

    # --- row buffers

    def wrap(self, array: Any) -> Any:
        """The rows of an array (rows, width), for reading."""
        return _Rows(self.xp, array.shape[1], array, array)

    def rows(self, count: int, width: int, like: Any) -> Any:
        """Rows that are written once each, step by step, before they are read."""
        return _Rows(self.xp, width, like)

    def scratch(self, count: int, width: int, like: Any) -> Any:
        """Like `rows`, for rows that are not part of a result."""
        return self.rows(count, width, like)

    def product_rows(self, a: Any, b: Any) -> Any:
        """The rows of a matrix product; steps read and replace them."""
        return self.wrap(self.xp.matmul(a, b))

    def carry(self, array: Any) -> Any:
        """Rows that start as those of the array; every step may read and replace the first ones."""
        return _Carry(self.xp, array.shape[1], array, array)

    def columns(self, rows: Any, start: int, stop: int) -> Any:
        """Some columns of a row buffer, as a source of products."""
        return _Columns(rows, start, stop)

    def array(self, rows: Any) -> Any:
        """All rows of a buffer, as one array in the order of their numbers."""
        return rows.array()

    # --- what is computed

    def pack(self, weight: Any) -> Any:
        """An array in the fastest form for several products."""
        return weight

    def loop_weight(self, weight: Any, times: int) -> Any:
        """A matrix in the fastest form for this many products of a time loop."""
        return weight

    def matmul(self, a: Any, b: Any) -> Any:
        """Matrix product."""
        return self.xp.matmul(a, b)

    def write_product(self, a: Any, b: Any, target: Any, first: int) -> None:
        """Matrix product, into `target`'s rows from `first` on."""
        target.write(first, self.xp.matmul(a, b))

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        """Matrix product, added to a total; None stands for none yet."""
        product = self.xp.matmul(a, b)
        return product if total is None else total + product

    def chunk(self, width: int, like: Any) -> int | None:
        """How many rows of this width a backward loop should finish at a time; None for all."""
        return None

    def column_sums(self, array: Any) -> Any:
        """The sum over the rows."""
        return self.xp.sum(array, axis=0)

    def column_dots(self, a: Any, b: Any) -> Any:
        """The sum over the rows of a b."""
        return self.xp.sum(a * b, axis=0)

    def scale(self, array: Any, factors: Any) -> Any:
        """The rows of an array that is no longer needed, each times its factor; the factors are (rows, 1)."""
        return array * factors

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The array broadcast to a larger shape, for reading."""
        return self.xp.broadcast_to(array, shape)

    def roots(self, squares: Any) -> Any:
        """Square roots of sums of squares; those below 0 by rounding give 0."""
        return self.xp.sqrt(self.xp.where(squares < 0, squares - squares, squares))

    def scan(self, stages: Sequence[Elementwise | Product], steps: np.ndarray) -> None:
        """Run a time loop: for each step (a Span as a row of integers) all stages in order on its rows."""
        for span in map(Span._make, steps.tolist()):
            begun: set[tuple[int, int]] = set()  # rows of which the step has written some columns
            for stage in stages:
                if isinstance(stage, Product):
                    stage.target.write(0, self.xp.matmul(_read(stage.source, span), stage.weight))
                else:
                    self._evaluate(stage, span, begun)

    def _evaluate(self, stage: Elementwise, span: Span, begun: set[tuple[int, int]]) -> None:
        arguments: list[Any] = []
        for operand in stage.inputs:
            if operand.rows is None:
                arguments += [None] * len(operand.places)
            else:
                blocks = _split(_read(operand, span), operand.blocks)
                arguments += [blocks[place] for place in operand.places]
        results = list(stage.formula(self.xp, *arguments))
        for operand in stage.outputs:
            count = len(operand.places)
            blocks, results = results[:count], results[count:]
            if operand.of_row:
                blocks = [self.xp.mean(blocks[0], axis=1, keepdims=True)]
            if operand.rows is not None:
                first = first_row(operand, span)
                made = dict(zip(operand.places, blocks, strict=True))
                if count < operand.blocks:
                    known = (id(operand.rows), first) in begun
                    old = _split(_read(operand, span), operand.blocks) if known else None
                    for k in range(operand.blocks):
                        made.setdefault(k, self.xp.zeros_like(blocks[0]) if old is None else old[k])
                in_place = [made[k] for k in range(operand.blocks)]
                whole = in_place[0] if operand.blocks == 1 else self.xp.concat(in_place, axis=1)
                operand.rows.write(first, whole)
                begun.add((id(operand.rows), first))

    def agrees(self, arrays: Sequence[Any]) -> bool:
        """Whether the arrays clearly are this engine's, of one shape and one dtype that it computes in."""
        return False

    def elementwise(
        self,
        formula: Formula,
        inputs: Sequence[Any],
        numbers: Sequence[float] = (),
        out: Any = None,
    ) -> Any:
        """The single result of a formula, of the broadcast shape of its inputs.

        Parameters
        ----------
        formula : Formula
            What to evaluate.
        inputs : sequence of array or None
            Its operands.
        numbers : sequence of float
            Values of the formula's parameters.
        out : array, optional
            Array for the result; it may be an input.
        """
        with self.quiet():
            named = dict(zip(formula.parameters, numbers, strict=True))
            (result,) = formula(self.xp, *inputs, **named)
            if not hasattr(result, "__setitem__"):  # NumPy's operators return scalars for arrays without axes
                result = self.xp.asarray(result)
            return written(result, out)

    def over_rows(
        self,
        formula: RowFormula,
        operands: Sequence[Any],
        numbers: Sequence[float] = (),
        out: Any = None,
    ) -> tuple:
        """The outputs of a row formula.

        Parameters
        ----------
        formula : RowFormula
            What to evaluate. A row runs along the middle one of three axes.
        operands : sequence of array or None
            Its operands, in the order of ``formula.operands``: shape (A, n, B) for one element per row and
            column, (A, 1, B) for one number per row, (1, n, 1) for one per column. n is at least 1.
        numbers : sequence of float
            Values of the formula's parameters.
        out : array, shape (A, n, B), optional
            Array for the output of this shape; it may be an operand.
        """
        with self.quiet():
            results = formula.evaluate(self.xp, operands, numbers)
            if formula.each_output is not None:
                number = formula.outputs.index(formula.each_output)
                results[number] = written(results[number], out)
        return tuple(results)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.xp, '__name__', self.xp)})"


def first_row(operand: Operand, span: Span) -> int:
    """The first row of an operand at a step."""
    return 0 if operand.at in ("first", "every") else getattr(span, operand.at)


def _read(operand: Operand, span: Span) -> Any:
    return operand.rows.read(first_row(operand, span), 1 if operand.at == "every" else span.rows)


def _split(array: Any, blocks: int) -> list[Any]:
    width = array.shape[1] // blocks
    return [array[:, block * width : (block + 1) * width] for block in range(blocks)]


def written(result: Any, out: Any) -> Any:
    """The result, in `out` if given."""
    if out is None:
        return result
    out[...] = result
    return out


class _Rows:
    """Rows of an array, if there is one, until steps replace them: what a step wrote is kept as a piece."""

    def __init__(self, xp: Any, width: int, like: Any, array: Any = None) -> None:
        self._xp, self._width, self._like, self._array = xp, width, like, array
        self._pieces: dict[int, Any] = {}

    def write(self, first: int, piece: Any) -> None:
        self._pieces[first] = piece

    def read(self, first: int, count: int) -> Any:
        if first in self._pieces:  # a step reads from a row where another step's piece begins
            first, rows = 0, self._pieces[first]
        else:
            rows = self._array
        return rows if first == 0 and count == rows.shape[0] else rows[first : first + count, :]

    def array(self) -> Any:
        if self._pieces:
            return self._xp.concat([self._pieces[first] for first in sorted(self._pieces)], axis=0)
        if self._array is None:
            return self._xp.zeros((0, self._width), dtype=self._like.dtype, device=device(self._like))
        return self._array


class _Carry(_Rows):
    """Rows; each step replaces the first ones."""

    def write(self, first: int, piece: Any) -> None:
        rest = self._array[first + piece.shape[0] :, :]
        self._array = self._xp.concat([piece, rest], axis=0) if rest.shape[0] else piece


class _Columns:
    """Some columns of other rows, for reading."""

    def __init__(self, rows: Any, start: int, stop: int) -> None:
        self._rows, self._start, self._stop = rows, start, stop

    def read(self, first: int, count: int) -> Any:
        return self._rows.read(first, count)[:, self._start : self._stop]


class AdapterEngine(StandardEngine, Adapter):
    """The least that an `Adapter` is: the standard engine for one namespace, without quick ways.

    The engine of a framework is a subclass, and replaces what the framework does better. One that computes
    on NumPy views of the framework's arrays is a subclass of `NumpyEngine`, and has its own `takes`, `lift`
    and `lower`.
    """


class ShapesEngine(StandardEngine):
    """The standard engine without what only values need: a convolution is memory of the result's shape.

    For compilers, which ask for shapes alone, and whose symbolic sizes make every operation slow.
    """

    def whole(
        self, compute: Callable[..., Any], arrays: Sequence[Any], shape: Sequence[int], key: tuple[Any, ...]
    ) -> Any:
        """See `Images`; nothing is computed."""
        return self.xp.empty(tuple(shape), dtype=arrays[0].dtype, device=device(arrays[0]))
