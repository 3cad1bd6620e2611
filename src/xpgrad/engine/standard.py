"""The standard engine: pure array API, for any namespace, without writing to any array."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import device, is_cupy_namespace

from xpgrad.engine.formulas.formula import Elementwise, Operand, Product, Span, evaluate
from xpgrad.engine.protocol import Adapter, Engine


class StandardEngine(Engine):
    """Computes everything with functions of the array API only.

    It is the oracle for the other engines. Differentiable tensors, other devices and compilers use it: every
    step makes new arrays and writes to no array. Most of its methods are the protocol's; the row buffers and
    the loops over them are here.
    """

    name = "standard"

    def __init__(self, xp: Any, launches: bool | None = None) -> None:
        self.xp = xp
        self._launches = is_cupy_namespace(xp) if launches is None else launches

    def launches(self) -> bool:
        """See `Images`."""
        return self._launches

    def wrap(self, array: Any) -> Any:
        """See `TimeLoops`."""
        return _RowPieces(self.xp, array.shape[1], array, array)

    def rows(self, count: int, width: int, like: Any) -> Any:
        """See `TimeLoops`."""
        return _RowPieces(self.xp, width, like)

    def carry(self, array: Any) -> Any:
        """See `TimeLoops`."""
        return _Carry(self.xp, array.shape[1], array, array)

    def columns(self, rows: Any, start: int, stop: int) -> Any:
        """See `TimeLoops`."""
        return _Columns(rows, start, stop)

    def array(self, rows: Any) -> Any:
        """See `TimeLoops`."""
        return rows.array()

    def scan(self, stages: Sequence[Elementwise | Product], steps: np.ndarray) -> None:
        """See `TimeLoops`."""
        for span in map(Span._make, steps.tolist()):
            self.run_step(stages, span)

    def run_step(self, stages: Sequence[Elementwise | Product], span: Span) -> None:
        """All stages on the rows of one step."""
        begun: set[tuple[int, int]] = set()  # rows of which the step has written some columns
        for stage in stages:
            if isinstance(stage, Product):
                stage.target.write(0, multiply(self.xp, _read(stage.source, span), stage.weight))
            else:
                self._evaluate(stage, span, begun)

    def _evaluate(self, stage: Elementwise, span: Span, begun: set[tuple[int, int]]) -> None:
        formula = functools.partial(stage.formula, self.xp)
        results = [*evaluate(formula, [_blocks(operand, span) for operand in stage.inputs])]
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.xp, '__name__', self.xp)})"


def multiply(xp: Any, rows: Any, weight: Any) -> Any:
    """Rows times a weight, perhaps of heads; see `Product`."""
    if weight.ndim == 2:
        return xp.matmul(rows, weight)
    _, heads, k, _ = weight.shape
    parted = xp.reshape(rows, (rows.shape[0], rows.shape[1] // (heads * k), heads, k))
    products = xp.matmul(xp.permute_dims(parted, (1, 2, 0, 3)), weight)
    if parted.shape[1] > 1:
        products = xp.sum(products, axis=0, keepdims=True)
    blocks, _, count, n = products.shape
    return xp.reshape(xp.permute_dims(products, (2, 0, 1, 3)), (count, blocks * heads * n))


def first_row(operand: Operand, span: Span) -> int:
    """The first row of an operand at a step."""
    return 0 if operand.at in ("first", "every") else getattr(span, operand.at)


def _read(operand: Operand, span: Span) -> Any:
    return operand.rows.read(first_row(operand, span), 1 if operand.at == "every" else span.rows)


def _blocks(operand: Operand, span: Span) -> list[Any]:
    """The step's rows of the blocks that a formula takes; None for absent ones."""
    if operand.rows is None:
        return [None] * len(operand.places)
    blocks = _split(_read(operand, span), operand.blocks)
    return [blocks[place] for place in operand.places]


def _split(array: Any, blocks: int) -> list[Any]:
    width = array.shape[1] // blocks
    return [array[:, block * width : (block + 1) * width] for block in range(blocks)]


class _RowPieces:
    """Rows of an array, or of none; the rows that a step wrote are kept as a piece."""

    def __init__(self, xp: Any, width: int, like: Any, array: Any = None) -> None:
        self._xp, self._width, self._like, self._array = xp, width, like, array
        self._pieces: dict[int, Any] = {}

    def write(self, first: int, piece: Any) -> None:
        self._pieces[first] = piece

    def read(self, first: int, count: int) -> Any:
        if first in self._pieces:  # a step reads from the first row of another step's piece
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


class _Carry(_RowPieces):
    """Rows of which each step replaces the first."""

    def write(self, first: int, piece: Any) -> None:
        rest = self._array[first + piece.shape[0] :, :]
        self._array = self._xp.concat([piece, rest], axis=0) if rest.shape[0] else piece


class _Columns:
    """Some columns of other rows, for reading."""

    def __init__(self, rows: Any, start: int, stop: int) -> None:
        self.rows, self._start, self._stop = rows, start, stop

    def read(self, first: int, count: int) -> Any:
        return self.rows.read(first, count)[:, self._start : self._stop]


class AdapterEngine(StandardEngine, Adapter):
    """The minimal `Adapter`: the standard engine for one namespace, without quick ways.

    A framework's engine is a subclass, and replaces the methods that the framework does better. An engine on
    NumPy views of the framework's arrays is a subclass of `NumpyEngine` with its own `takes`, `lift` and
    `lower`.
    """


class ShapesEngine(StandardEngine):
    """The standard engine for compilers, which ask only for shapes: a convolution is empty memory.

    A compiler's symbolic sizes make every operation slow.
    """

    def whole(
        self, compute: Callable[..., Any], arrays: Sequence[Any], shape: Sequence[int], key: tuple[Any, ...]
    ) -> Any:
        """See `Images`; nothing is computed."""
        return self.xp.empty(tuple(shape), dtype=arrays[0].dtype, device=device(arrays[0]))
