"""The engine for NumPy arrays: buffers written in place, formulas compiled or in cache-sized blocks."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from xpgrad.engine import array_loops, openmp
from xpgrad.engine.formula import Formula, Operand
from xpgrad.engine.row_formula import RowFormula
from xpgrad.engine.standard import StandardEngine

# Elements of one operand in a block: with about twenty operands and temporaries in float32 a block stays
# in a second-level cache of 1 MB.
_BLOCK = 8192
# Rows of a chunk of the backward loop: so many bytes of cotangents, but enough rows for a fast product.
_CHUNK_BYTES = 1 << 20
_CHUNK_ROWS = 512
# Below this many elements handing work to a thread costs more than the thread saves.
_PARALLEL = 1 << 17
_COMPUTED = (np.dtype(np.float32), np.dtype(np.float64))
_COMPILED_DTYPES = ("float32", "float64")


def jit_enabled() -> bool:
    """Whether formulas are compiled: numba is installed and ``XPGRAD_JIT`` is not 0."""
    return os.environ.get("XPGRAD_JIT", "1") != "0" and _numba_installed()


@functools.cache
def _numba_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def thread_count() -> int:
    """How many threads independent blocks may use: ``XPGRAD_NUM_THREADS``, else one a core."""
    chosen = os.environ.get("XPGRAD_NUM_THREADS")
    if chosen:
        return max(1, int(chosen))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="xpgrad")


if hasattr(os, "register_at_fork"):
    # a forked child has none of its parent's threads: it makes its own pool
    os.register_at_fork(after_in_child=_thread_pool.cache_clear)


class NumpyEngine(StandardEngine):
    """Row buffers are NumPy arrays (rows, width) here, and every step writes into them."""

    name = "numpy"
    array_types: tuple[type, ...] = (np.ndarray,)

    def __init__(self) -> None:
        super().__init__(np)

    def wrap(self, array: np.ndarray) -> np.ndarray:
        """The array itself, its rows made contiguous."""
        return np.ascontiguousarray(array)

    def rows(self, count: int, width: int, like: np.ndarray) -> np.ndarray:
        """Fresh memory, not cleared."""
        return np.empty((count, width), dtype=like.dtype)

    def product_rows(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The product, in memory of NumPy's: that asks the system for large pages."""
        rows = self.rows(a.shape[0], b.shape[1], like=a)
        self.write_product(a, b, rows, 0)
        return rows

    def carry(self, array: np.ndarray) -> np.ndarray:
        """A copy of the array, to be written to."""
        return np.array(array, order="C")

    def columns(self, rows: np.ndarray, start: int, stop: int) -> np.ndarray:
        """A view."""
        return rows[:, start:stop]

    def array(self, rows: np.ndarray) -> np.ndarray:
        """The buffer itself."""
        return rows

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """The matrix in row-major order: products take that faster than its transpose."""
        return np.ascontiguousarray(weight)

    def multiply_rows(
        self, source: np.ndarray, first: int, count: int, weight: np.ndarray, target: np.ndarray
    ) -> None:
        """One product, straight into the target's rows."""
        self.write_product(source[first : first + count], weight, target, 0)

    def write_product(self, a: np.ndarray, b: np.ndarray, target: np.ndarray, first: int) -> None:
        """Matrix product, straight into the target's rows."""
        np.matmul(a, b, out=target[first : first + a.shape[0]])

    def add_product(self, total: np.ndarray | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product, added to the total in place."""
        if total is None:
            return self.matmul(a, b)
        total += self.matmul(a, b)
        return total

    def chunk(self, width: int, like: np.ndarray) -> int:
        """As many rows as stay in a second-level cache between the loop and the products behind it."""
        return max(_CHUNK_ROWS, _CHUNK_BYTES // (max(1, width) * like.itemsize))

    def column_sums(self, array: np.ndarray) -> np.ndarray:
        """The sum over the rows, as a product: in one pass, by BLAS."""
        return np.matmul(np.ones(array.shape[0], dtype=array.dtype), array)

    def bind(
        self, formula: Formula, inputs: Sequence[Operand], outputs: Sequence[Operand]
    ) -> Callable[..., None]:
        """See StandardEngine.bind."""
        width = outputs[0].rows.shape[1] // outputs[0].blocks
        dtype = outputs[0].rows.dtype.name
        present = [operand for operand in (*inputs, *outputs) if operand.rows is not None]
        if jit_enabled() and dtype in _COMPILED_DTYPES:
            evaluate, present = _compiled(formula, inputs, outputs, dtype)
        else:
            evaluate = _blockwise(formula, inputs, outputs)
        arrays = [operand.rows for operand in present]

        def step(count: int, now: int = 0, before: int = 0, local: int = 0) -> None:
            if count * width < _PARALLEL:
                evaluate(count, width, now, before, local, 0, *arrays)
                return
            threads = thread_count()
            bounds = [count * number // threads for number in range(threads + 1)]

            def part(number: int) -> None:
                start, stop = bounds[number], bounds[number + 1]
                evaluate(stop - start, width, now + start, before + start, local + start, start, *arrays)

            self.map(part, range(threads))

        return step

    def deal(self, count: int, size: int, part: Callable[[int, int], None]) -> None:
        """``part(start, stop)`` over 0 .. count, in threads if they have enough elements, `size` in all."""
        threads = thread_count() if size >= _PARALLEL else 1
        if threads == 1:
            part(0, count)
            return
        bounds = [count * number // threads for number in range(threads + 1)]
        self.map(lambda number: part(bounds[number], bounds[number + 1]), range(threads))

    def target(self, out: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
        """A view of `out`, unless the shape asks for a copy."""
        lifted = self.lift(out)
        if lifted.shape == shape:
            return lifted
        return lifted.reshape(shape) if lifted.flags.c_contiguous else None

    def agrees(self, arrays: Sequence[Any]) -> bool:
        """See StandardEngine.agrees."""
        dtype, shape = arrays[0].dtype, arrays[0].shape
        if dtype not in _COMPUTED:
            return False
        for array in arrays:
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return False
        return True

    def quick_elementwise(self, formula: Formula, arrays: Sequence[Any], numbers: Sequence[float]) -> Any:
        """The result for arrays that agree."""
        if jit_enabled() and arrays[0].size < _PARALLEL:
            result = array_loops.quick_elementwise(formula, arrays, numbers)
            if result is not None:
                return result
        return self.elementwise(formula, arrays, numbers)

    def quick_rows(self, formula: RowFormula, arrays: Sequence[Any]) -> Any:
        """The one output along the last axis, for arrays that agree; None if that cannot be had so simply."""
        first = arrays[0]
        if not first.size or not first.ndim:
            return None
        if jit_enabled() and first.size < _PARALLEL:
            result = array_loops.quick_rows(formula, arrays)
            if result is not None:
                return result
        rows = (-1, first.shape[-1], 1)
        return self.over_rows(formula, [array.reshape(rows) for array in arrays])[0].reshape(first.shape)

    def elementwise(
        self,
        formula: Formula,
        inputs: Sequence[np.ndarray | None],
        numbers: Sequence[float] = (),
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """See StandardEngine.elementwise; in one pass, and without temporaries of the result's size."""
        return array_loops.elementwise(self.deal, formula, inputs, numbers, out, jit_enabled())

    def over_rows(
        self,
        formula: RowFormula,
        operands: Sequence[np.ndarray | None],
        numbers: Sequence[float] = (),
        out: np.ndarray | None = None,
    ) -> tuple:
        """See StandardEngine.over_rows; some rows at a time."""
        return array_loops.over_rows(self.deal, formula, operands, numbers, out, jit_enabled())

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The function of each item, in threads."""
        todo = list(items)
        if len(todo) < 2 or thread_count() < 2:
            return [function(item) for item in todo]
        team = openmp.team()
        if team is not None:
            return team.map(function, todo, thread_count())
        return list(_thread_pool(thread_count()).map(function, todo))


def _compiled(
    formula: Formula, inputs: Sequence[Operand], outputs: Sequence[Operand], dtype: str
) -> tuple[Callable[..., None], list[Operand]]:
    """The compiled loop, and the operands that it takes."""
    from xpgrad.engine.compiler import compiled, layouts

    places = layouts(inputs, outputs)
    operands = zip((*inputs, *outputs), (*places[0], *places[1]), strict=True)
    taken = [operand for operand, place in operands if not place.absent and place.same_as is None]
    return compiled(formula, *places, dtype), taken


def _blockwise(
    formula: Formula, inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> Callable[..., None]:
    """The same call as a compiled loop's, by NumPy on as many rows at a time as the cache holds."""

    def evaluate(
        count: int, width: int, now: int, before: int, local: int, first: int, *arrays: np.ndarray
    ) -> None:
        places = {"now": now, "before": before, "local": local, "first": first}
        rows_at_once = max(1, _BLOCK // max(1, width))
        for start in range(0, count, rows_at_once):
            stop = min(count, start + rows_at_once)
            rows = {at: slice(row + start, row + stop) for at, row in places.items()}
            rows["every"] = slice(0, 1)
            supply = iter(arrays)
            arguments = _views(inputs, supply, rows, width)
            targets = _views(outputs, supply, rows, width)
            for target, result in zip(targets, formula(np, *arguments), strict=True):
                if target is not None:
                    target[...] = result

    return evaluate


def _views(
    operands: Sequence[Operand], supply: Iterator[np.ndarray], rows: dict[str, slice], width: int
) -> list[np.ndarray | None]:
    """The blocks of the rows that each operand stands for, None for absent ones."""
    views: list[np.ndarray | None] = []
    for operand in operands:
        if operand.rows is None:
            views += [None] * operand.blocks
        else:
            part = next(supply)[rows[operand.at]]
            views += [part[:, b * width : (b + 1) * width] for b in range(operand.blocks)]
    return views
