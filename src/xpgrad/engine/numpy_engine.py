"""The engine for NumPy arrays: buffers written in place, formulas compiled or evaluated by NumPy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from xpgrad.engine import array_loops
from xpgrad.engine.compiled.machine import LoopWeight, Machine, TimeLoop, loop_dtype
from xpgrad.engine.compiled.products import matrix as products
from xpgrad.engine.formulas.formula import Elementwise, Formula, Operand, Product, Span, evaluate
from xpgrad.engine.formulas.row_formula import RowFormula
from xpgrad.engine.images.numpy_images import NumpyImages
from xpgrad.engine.process.memory import COMPUTED, address_of, new_array, result_array
from xpgrad.engine.process.settings import jit_enabled
from xpgrad.engine.process.team import Host
from xpgrad.engine.programs.program import Form, Fresh, Look
from xpgrad.engine.standard import AdapterEngine, first_row, multiply

_ROWS_OF_A_SUM = 4096  # one sum of millions of rows would lose digits


class NumpyEngine(NumpyImages, AdapterEngine):
    """The engine for NumPy arrays. Row buffers are arrays (rows, width); every step writes into them.

    Parameters
    ----------
    find_host : callable
        Returns the engine of a framework whose threads this process uses, or None.
    """

    name = "numpy"
    array_types: tuple[type, ...] = (np.ndarray,)

    def __init__(self, find_host: Callable[[], Host | None] = lambda: None) -> None:
        Machine.__init__(self, find_host)
        AdapterEngine.__init__(self, np)

    def wrap(self, array: np.ndarray) -> np.ndarray:
        """The array itself, its rows made contiguous."""
        return np.ascontiguousarray(array)

    def rows(self, count: int, width: int, like: np.ndarray) -> np.ndarray:
        """Fresh memory, not cleared."""
        return new_array((count, width), like.dtype)

    def product_rows(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The product, in NumPy's memory: NumPy asks the system for large pages."""
        rows = self.rows(a.shape[0], b.shape[1], like=a)
        self.write_product(a, b, rows, 0)
        return rows

    def carry(self, array: np.ndarray) -> np.ndarray:
        """A copy of the array, for writing."""
        return np.array(array, order="C")

    def columns(self, rows: np.ndarray, start: int, stop: int) -> np.ndarray:
        """A view."""
        return rows[:, start:stop]

    def array(self, rows: np.ndarray) -> np.ndarray:
        """The buffer itself."""
        return rows

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """The array in row-major order: products with it are faster than with its transpose."""
        return np.ascontiguousarray(weight)

    def loop_weight(self, weight: np.ndarray, times: int) -> LoopWeight:
        """In panels for a compiled loop, else row-major for NumPy."""
        if weight.dtype in COMPUTED and jit_enabled():
            return LoopWeight(weight, products.packed(weight))
        return LoopWeight(np.ascontiguousarray(weight))

    def product(self, a: np.ndarray, b: np.ndarray, target: np.ndarray | None = None) -> np.ndarray:
        """Matrix product, also of stacks, directly into the target if given."""
        if target is None:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            target = result_array((*batch, a.shape[-2], b.shape[-1]), a.dtype)
        if self._takes_product(a, b, target):
            products.multiply(self.team, a, b, target)
        else:
            self._write_library_product(a, b, target)
        return target

    def _takes_product(self, a: np.ndarray, b: np.ndarray, target: np.ndarray) -> bool:
        return jit_enabled() and products.can_multiply(a, b, target)

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product."""
        return self.product(a, b)

    def write_product(self, a: np.ndarray, b: np.ndarray, target: np.ndarray, first: int) -> None:
        """Matrix product, directly into the target's rows."""
        self.product(a, b, target[first : first + a.shape[0]])

    def add_product(self, total: np.ndarray | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product, added to the total in place."""
        if total is None:
            return self.matmul(a, b)
        if self._takes_product(a, b, total):
            products.multiply(self.team, a, b, total, add=True)
        else:
            self._add_library_product(total, a, b)
        return total

    def _write_library_product(self, a: np.ndarray, b: np.ndarray, target: np.ndarray) -> None:
        np.matmul(a, b, out=target)

    def _add_library_product(self, total: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        total += np.matmul(a, b)

    def column_sums(self, array: np.ndarray) -> np.ndarray:
        """The sum over the rows, as matrix products in one pass."""
        ones = np.ones((1, min(len(array), _ROWS_OF_A_SUM)), dtype=array.dtype)
        return _in_pieces(lambda a: self.matmul(ones[:, : len(a)], a)[0], array)

    def column_dots(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The sum over the rows of a b, without storing the product."""
        return _in_pieces(lambda a, b: np.einsum("ij,ij->j", a, b), a, b)

    def scale(self, array: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """In place, in threads."""

        def part(start: int, stop: int) -> None:
            np.multiply(array[start:stop], factors[start:stop], out=array[start:stop])

        self.deal(len(array), array.size, part)
        return array

    # --- the time loop

    def scan(self, stages: Sequence[Elementwise | Product], steps: np.ndarray) -> None:
        """See `TimeLoops`; compiled, or step by step."""
        if not len(steps):
            return
        if loop_dtype(stages) and jit_enabled():
            loop = self.time_loop(stages, steps)
            self.run_loop(loop, loop_integers(loop))
            return
        with self.quiet():
            for span in map(Span._make, steps.tolist()):
                for stage in stages:
                    if isinstance(stage, Product):
                        self._multiply(stage, span)
                    else:
                        _evaluate(stage, span)

    def _multiply(self, stage: Product, span: Span) -> None:
        first, weight = first_row(stage.source, span), stage.weight.array
        rows = stage.source.rows[first : first + span.rows]
        if weight.ndim == 2:
            self.write_product(rows, weight, stage.target, 0)
        else:
            stage.target[: span.rows] = multiply(np, rows, weight)

    def target(self, out: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
        """A view of `out`; None if `out` is read-only or the shape needs a copy."""
        lifted = self.lift(out)
        if not lifted.flags.writeable:
            return None
        if lifted.shape == shape:
            return lifted
        return lifted.reshape(shape) if lifted.flags.c_contiguous else None

    def agrees(self, arrays: Sequence[Any]) -> bool:
        """See `Engine`."""
        dtype, shape = arrays[0].dtype, arrays[0].shape
        if dtype not in COMPUTED:
            return False
        for array in arrays:
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return False
        return True

    def look(self, arrays: Collection[Any]) -> Look | None:
        """See `Adapter`."""
        layouts, addresses, copies, dtype = [], [], [], None
        for array in arrays:
            if type(array) is not np.ndarray or array.dtype not in COMPUTED:
                return None
            dtype = array.dtype if dtype is None else dtype
            size = dtype.itemsize
            strides = tuple([stride // size for stride in array.strides])
            if array.dtype != dtype or not array.size or not array.flags.aligned:
                return None
            if any(stride < 0 for stride in strides):
                # reversed: the call without a program takes longer than a copy
                array = np.ascontiguousarray(array)
                copies.append(array)
                strides = tuple([stride // size for stride in array.strides])
            layouts.append((array.shape, strides))
            addresses.append(address_of(array))
        return self._seen(dtype, layouts, addresses, _fresh, copies)

    def _seen(
        self, dtype: Any, layouts: list[tuple], addresses: list[int], fresh: Fresh, copies: Sequence[Any] = ()
    ) -> Look | None:
        threads = self.program_threads()
        if threads is None:
            return None
        return Look(Form(dtype, tuple(layouts), self, threads), addresses, fresh, copies)

    def integers(self, array: Any) -> np.ndarray | None:
        """See `Adapter`."""
        if type(array) is not np.ndarray or array.dtype.kind not in "iu" or array.ndim not in (1, 2):
            return None
        return np.ascontiguousarray(array, dtype=np.int64)

    def quick_elementwise(
        self, formula: Formula, arrays: Sequence[Any], numbers: Sequence[float], out: Any = None
    ) -> Any:
        """See `Adapter`."""
        result = array_loops.quick_elementwise(self, formula, arrays, numbers, out)
        if result is None and out is None:
            return self.elementwise(formula, arrays, numbers)
        return result

    def quick_rows(self, formula: RowFormula, arrays: Sequence[Any], axis: int) -> Any:
        """See `Adapter`."""
        first = arrays[0]
        if not first.size:
            return None
        if jit_enabled():
            result = array_loops.quick_rows(self, formula, arrays, axis)
            if result is not None:
                return result
        rows = array_loops.rows_along(first.shape, axis)
        return self.over_rows(formula, [array.reshape(rows) for array in arrays])[0].reshape(first.shape)

    def elementwise(
        self, formula: Formula, inputs: Sequence[np.ndarray | None], numbers: Sequence[float] = (),
        out: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """See `Engine`; in one pass, without temporaries of the result's size."""
        return array_loops.elementwise(self, formula, inputs, numbers, out)

    def over_rows(
        self, formula: RowFormula, operands: Sequence[np.ndarray | None], numbers: Sequence[float] = (),
        out: np.ndarray | None = None,
    ) -> tuple:  # fmt: skip
        """See `Engine`; a block of rows at a time."""
        return array_loops.over_rows(self, formula, operands, numbers, out)


def _in_pieces(sum_rows: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """The sum over the rows of arrays, from the sums of pieces."""
    rows = len(arrays[0])
    if rows <= _ROWS_OF_A_SUM:
        return sum_rows(*arrays)
    starts = range(0, rows, _ROWS_OF_A_SUM)
    return np.sum([sum_rows(*(a[k : k + _ROWS_OF_A_SUM] for a in arrays)) for k in starts], axis=0)


def _fresh(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, int]:
    array = result_array(shape, dtype)
    return array, address_of(array)


def loop_integers(loop: TimeLoop) -> np.ndarray:
    """The integers that a compiled loop reads: its head, and a record of each matrix."""
    integers: list[Any] = [*loop.head]
    for matrix in loop.matrices:
        memory = matrix.memory
        integers += matrix.record(address_of(memory), memory.strides[0] // memory.itemsize)
    return np.asarray(integers, dtype=np.int64)


def _evaluate(stage: Elementwise, span: Span) -> None:
    """Evaluate a formula on the rows of a step with NumPy."""
    of_row = [operand.of_row for operand in stage.outputs for _ in operand.places]
    given = [_views(one, span) for one in stage.inputs]
    read = {id(view) for views in given for view in views}
    # a result may be an operand itself: copied, it is read before another result is written to its place
    results = [
        np.array(result) if id(result) in read else result
        for result in evaluate(functools.partial(stage.formula, array_loops.NUMPY), given)
    ]
    targets = itertools.chain.from_iterable(_views(one, span) for one in stage.outputs)
    for target, result, mean in zip(targets, results, of_row, strict=True):
        if target is not None:
            target[...] = np.mean(result, axis=1, keepdims=True) if mean else result


def _views(operand: Operand, span: Span) -> list[np.ndarray | None]:
    """The step's rows of each of an operand's blocks; None for absent ones."""
    if operand.rows is None:
        return [None] * len(operand.places)
    first = first_row(operand, span)
    rows = operand.rows[first : first + (1 if operand.at == "every" else span.rows)]
    width = rows.shape[1] // operand.blocks
    return [rows[:, b * width : (b + 1) * width] for b in operand.places]
