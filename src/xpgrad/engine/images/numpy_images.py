"""The methods of `Images` for NumPy's arrays: in place, in threads, compiled or by NumPy."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.images.compiled_images import CompiledImages, Numbers
from xpgrad.engine.images.in_place import BLOCK_ELEMENTS
from xpgrad.engine.images.methods import Images
from xpgrad.engine.images.padding import Index
from xpgrad.engine.images.parts import Part, each_slice, images_at_once, in_parts
from xpgrad.engine.images.shifts import Embedding, Shifts
from xpgrad.engine.process import sharing
from xpgrad.engine.process.memory import (
    WorkMemory,
    address_of,
    keep_arena,
    line_of,
    result_array,
    take_arena,
)
from xpgrad.engine.process.settings import jit_enabled
from xpgrad.engine.process.team import integers

if TYPE_CHECKING:
    from xpgrad.engine.images.compiled_shifts import ShiftPlan

_LONG_SUM = 16384  # terms
_SHARES = 2  # of the blocks in a sum, for each thread


class NumpyImages(Machine, CompiledImages):
    """The NumPy engine's methods for batches of images."""

    def compiles(self) -> bool:
        """With llvmlite; arrays are float32 or float64."""
        return jit_enabled()

    def blocks(
        self, count: int, size: int, most: int | None = None, least: int = 0, fits: int = 0
    ) -> Sequence[Part]:
        """Blocks of as many images as fit the cache, and enough blocks to keep all threads busy."""
        threads = max(1, min(self.team.size(), count * size // sharing.IMAGES))
        at_once = images_at_once(count, size, max(BLOCK_ELEMENTS, least), most)
        rounds = -(-count // (threads * at_once))
        return in_parts(count, threads * rounds)

    def accumulate(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[Part], size: int = 0
    ) -> list[Any]:
        """Add up shares of the blocks in threads, then their totals: timing has no effect on the result.

        There are more shares than threads, so a slower thread takes fewer.
        """
        slices = each_slice(blocks)
        shares = in_parts(len(slices), _SHARES * self.team.size())
        return self._sum_of_shares(function, [slices[share] for share in shares])

    def room(self, shape: Sequence[int], like: np.ndarray) -> np.ndarray:
        """Fresh memory, not cleared."""
        return result_array(tuple(shape), like.dtype)

    @contextlib.contextmanager
    def temporary(self, shape: Sequence[int], like: np.ndarray) -> Iterator[np.ndarray]:
        """Memory that this thread keeps: the system would have to provide large new arrays each time."""
        (count, *sizes), own = shape, prod(shape[1:])
        line = line_of(own, like.itemsize)
        size = count * line * like.itemsize
        memory, address = arena = take_arena(size)
        begin = address - address_of(memory)
        lines = memory[begin : begin + size].view(like.dtype).reshape(count, line)
        yield lines[:, :own].reshape(count, *sizes)
        keep_arena(arena)  # not after an exception: a thread may still write to it

    def _zeros(self, shape: Sequence[int], like: np.ndarray) -> np.ndarray:
        return np.zeros(tuple(shape), dtype=like.dtype)

    def _clear(self, target: np.ndarray) -> None:
        target[...] = 0

    def _write(self, target: np.ndarray, places: Index, part: np.ndarray) -> None:
        target[places] = part

    def _is_in(self, part: np.ndarray, place: np.ndarray) -> bool:
        return np.may_share_memory(part, place)

    def _split_last(self, array: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        return array.reshape(*array.shape[:-1], *sizes)

    def add(self, a: np.ndarray, b: np.ndarray, target: np.ndarray | None = None) -> np.ndarray:
        """The sum, directly into the target if given."""
        return np.add(a, b, out=target)

    def contiguous(self, array: np.ndarray) -> np.ndarray:
        """The array, or a copy in row-major order."""
        return np.ascontiguousarray(array)

    def distances(self, array: np.ndarray) -> Sequence[int]:
        """The strides, in elements; -1 where elements lie at no multiple of their size, as in records."""
        size = array.itemsize
        return [-1 if stride % size else stride // size for stride in array.strides]

    def run_planned(
        self, function: int, parts: int, numbers: Numbers, arrays: Sequence[np.ndarray], kept: Any = None
    ) -> None:
        """Call it now, in threads."""
        data = integers(numbers([address_of(array) for array in arrays]))
        self.team.run(function, ctypes.addressof(data), parts)

    def run_plan(self, plan: ShiftPlan, arrays: Sequence[np.ndarray]) -> None:
        """Call it now, with memory that is used again."""
        with WorkMemory(plan.workspaces, "a sum over shifted images") as memory:
            data = integers(plan.numbers([address_of(array) for array in arrays], memory))
            self.team.run(plan.function, ctypes.addressof(data), plan.parts)

    # --- without llvmlite

    def last_axis_sums(self, array: np.ndarray) -> np.ndarray:
        """Compiled, or as a product with BLAS: in one pass."""
        if self.compiles():
            return super().last_axis_sums(array)
        rows = array.reshape(-1, array.shape[-1])
        if rows.shape[1] > _LONG_SUM:  # BLAS adds one after another
            return np.sum(rows, axis=1).reshape(array.shape[:-1])
        return np.matmul(rows, np.ones(rows.shape[1], dtype=array.dtype)).reshape(array.shape[:-1])

    def sum_of_shifts(
        self, images: np.ndarray, weights: Any, shifts: Shifts, B: np.ndarray | None = None
    ) -> np.ndarray:
        """Compiled, or by NumPy block by block."""
        if self.compiles():
            return super().sum_of_shifts(images, weights, shifts, B)
        made = prod(weights[0].shape[:2])
        return self.assemble(
            lambda block, _: Images.sum_of_shifts(self, images[block], weights, shifts, B),
            self.blocks(len(images), prod(images.shape[1:]) + made * prod(shifts.size)),
            shape=(len(images), made, *shifts.size),
            like=images,
        )

    def products_of_shifts(
        self, a: np.ndarray, images: np.ndarray, places: Sequence[Embedding], taps: Sequence[tuple[int, int]],
        group: int,
    ) -> np.ndarray:  # fmt: skip
        """Compiled, or by NumPy block by block."""
        if self.compiles():
            return super().products_of_shifts(a, images, places, taps, group)

        def add(block: slice, totals: list[np.ndarray] | None) -> list[np.ndarray]:
            products = Images.products_of_shifts(self, a[block], images[block], places, taps, group)
            return [products if totals is None else totals[0] + products]

        blocks = self.blocks(len(images), prod(images.shape[1:]) + prod(a.shape[1:]))
        return self.accumulate(add, blocks)[0]

    def add_patches(
        self, total: np.ndarray | None, P: np.ndarray, places: Sequence[Embedding], shape: Sequence[int],
        B: np.ndarray | None = None, target: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """In the memory of the total or of the target, compiled or place by place."""
        if self.compiles():
            return super().add_patches(total, P, places, shape, B, target)
        n, channels, *size = shape
        images = total if total is not None else self.room(shape, P) if target is None else target
        if total is None:
            images[...] = 0 if B is None else B.reshape(-1, *[1] * len(size))
        each: Any = P.reshape(channels, len(places), n, *places[0].grid)
        whole: Any = images
        for k, place in enumerate(places):
            part = each[(slice(None), k, slice(None), *place.kept(size))].swapaxes(0, 1)
            view = whole[(..., *place.taken)]
            view[(..., *map(slice, part.shape[2:]))] += part
        return images
