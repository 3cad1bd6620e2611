"""The engine for NumPy arrays: buffers written in place, formulas compiled or in cache-sized blocks."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from xpgrad.engine.formula import Formula, Operand
from xpgrad.engine.machine import jit_enabled, thread_count
from xpgrad.engine.numpy_images import NumpyImages
from xpgrad.engine.standard import StandardEngine

# Elements of one operand in a block: with about twenty operands and temporaries in float32 a block stays
# in a second-level cache of 1 MB.
_BLOCK = 8192
# Rows of a chunk of the backward loop: so many bytes of cotangents, but enough rows for a fast product.
_CHUNK_BYTES = 1 << 20
_CHUNK_ROWS = 512
# Below this many elements handing work to a thread costs more than the thread saves.
_PARALLEL = 1 << 17
_COMPILED_DTYPES = ("float32", "float64")


@functools.cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="xpgrad")


if hasattr(os, "register_at_fork"):
    # a forked child has none of its parent's threads: it makes its own pool
    os.register_at_fork(after_in_child=_thread_pool.cache_clear)


class NumpyEngine(NumpyImages, StandardEngine):
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

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The function of each item, in threads."""
        todo = list(items)
        threads = min(len(todo), thread_count())
        if threads < 2:
            return [function(item) for item in todo]
        results: list[Any] = [None] * len(todo)
        numbers = iter(range(len(todo)))  # next() on it is atomic

        def work() -> None:
            for number in numbers:
                results[number] = function(todo[number])

        # the caller is one of the threads: it is awake and has a core
        helpers = [_thread_pool(thread_count()).submit(work) for _ in range(threads - 1)]
        try:
            work()
        finally:
            wait(helpers)
        for helper in helpers:
            helper.result()
        return results


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
