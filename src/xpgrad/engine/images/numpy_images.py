"""The engine's part of convolutions for NumPy arrays: in place, image by image, in threads, compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.images.in_place import BLOCK_ELEMENTS, InPlaceImages, slices
from xpgrad.engine.images.methods import Images
from xpgrad.engine.images.padding import Index
from xpgrad.engine.images.shifts import Embedding, Shifts
from xpgrad.engine.images.windows import Transform, Windows, memory_order
from xpgrad.engine.process import sharing
from xpgrad.engine.process.memory import (
    address_of,
    keep_arena,
    line_of,
    new_array,
    result_array,
    take_arena,
)
from xpgrad.engine.process.settings import jit_enabled

# Of the blocks that are summed up, for each thread.
_SHARES = 2


class NumpyImages(Machine, InPlaceImages):
    """The part of the NumPy engine for batches of images."""

    def compiles(self) -> bool:
        """With llvmlite; the loops only get float32 or float64."""
        return jit_enabled()

    def blocks(self, count: int, size: int, most: int | None = None, least: int = 0) -> list[slice]:
        """Blocks of as many images as fit the cache, and enough blocks to keep all threads busy."""
        threads = max(1, min(self.team.size(), count * size // sharing.IMAGES))
        at_once = min(max(1, max(BLOCK_ELEMENTS, least) // max(1, size)), most or count)
        rounds = -(-count // (threads * at_once))
        return slices(count, -(-count // max(1, threads * rounds)))

    def accumulate(
        self, function: Callable[[slice, list[Any] | None], list[Any]], blocks: Sequence[slice], size: int = 0
    ) -> list[Any]:
        """Shares of the blocks in threads, and the sum of their totals: the result does not depend on timing.

        There are more shares than threads, so a thread that gets less of its core takes fewer.
        """
        count = _SHARES * self.team.size()
        shares = [blocks[share] for share in slices(len(blocks), -(-len(blocks) // count))]
        totals, *others = self.map(lambda share: Images.accumulate(self, function, share, size), shares)
        for other in others:
            for total, part in zip(totals, other, strict=True):
                total += part
        return totals

    def room(self, shape: Sequence[int], like: np.ndarray) -> np.ndarray:
        """Fresh memory, not cleared."""
        return result_array(tuple(shape), like.dtype)

    @contextlib.contextmanager
    def temporary(self, shape: Sequence[int], like: np.ndarray) -> Iterator[np.ndarray]:
        """Memory that this thread uses again: large new arrays would come from the system each time."""
        (count, *sizes), own = shape, prod(shape[1:])
        line = line_of(own, like.itemsize)
        size = count * line * like.itemsize
        arena = take_arena(size)
        memory, address = arena
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

    def last_axis_sums(self, array: np.ndarray) -> np.ndarray:
        """Compiled, or as a product with BLAS: in one pass."""
        rows = array.reshape(-1, array.shape[-1])
        if self.compiles():
            from xpgrad.engine.images.compiled_shifts import row_sums

            sums = row_sums(self, rows)
        else:
            sums = np.matmul(rows, np.ones(rows.shape[1], dtype=array.dtype))
        return sums.reshape(array.shape[:-1])

    def pack_taps(self, weights: np.ndarray, taps: Sequence[Sequence[int]]) -> Any:
        """For the compiled loops, or as arrays."""
        if not self.compiles():
            return super().pack_taps(weights, taps)
        from xpgrad.engine.images.compiled_shifts import pack_taps

        return pack_taps(self, weights, taps)

    def sum_of_shifts(
        self, images: np.ndarray, weights: Any, shifts: Shifts, B: np.ndarray | None = None
    ) -> np.ndarray:
        """Compiled, or by NumPy block by block."""
        if self.compiles():
            from xpgrad.engine.images.compiled_shifts import sum_of_shifts

            return sum_of_shifts(self, images, weights, shifts, B)
        plain, made = super().sum_of_shifts, prod(weights[0].shape[:2])
        return self.assemble(
            lambda block, _: plain(images[block], weights, shifts, B),
            self.blocks(len(images), prod(images.shape[1:]) + made * prod(shifts.size)),
            shape=(len(images), made, *shifts.size),
            like=images,
        )

    def products_of_shifts(
        self,
        a: np.ndarray,
        images: np.ndarray,
        places: Sequence[Embedding],
        taps: Sequence[tuple[int, int]],
        group: int,
    ) -> np.ndarray:
        """Compiled, or by NumPy block by block."""
        if self.compiles():
            from xpgrad.engine.images.compiled_shifts import products_of_shifts

            return products_of_shifts(self, a, images, tuple(places), tuple(taps), group)
        plain = super().products_of_shifts

        def add(block: slice, totals: list[np.ndarray] | None) -> list[np.ndarray]:
            products = plain(a[block], images[block], places, taps, group)
            return [products if totals is None else totals[0] + products]

        blocks = self.blocks(len(images), prod(images.shape[1:]) + prod(a.shape[1:]))
        return self.accumulate(add, blocks)[0]

    def patches(self, images: np.ndarray, places: Sequence[Embedding], group: int) -> np.ndarray:
        """Compiled, or by NumPy."""
        if not self.compiles():
            return super().patches(images, places, group)
        from xpgrad.engine.images.compiled_patches import patches

        n, channels, positions = *images.shape[:2], prod(places[0].grid)
        P = new_array((group, channels // group * len(places), n * positions), images.dtype)
        patches(self, np.ascontiguousarray(images), tuple(places), P)
        return P

    def add_patches(
        self,
        total: np.ndarray | None,
        P: np.ndarray,
        places: Sequence[Embedding],
        shape: Sequence[int],
        B: np.ndarray | None = None,
        target: np.ndarray | None = None,
    ) -> np.ndarray:
        """In the memory of the total or of the target, compiled or place by place."""
        n, channels, *size = shape
        images = total if total is not None else self.room(shape, P) if target is None else target
        if self.compiles() and images.flags.c_contiguous:
            from xpgrad.engine.images.compiled_patches import add_patches

            add_patches(self, images, tuple(places), np.ascontiguousarray(P), B, begins=total is None)
            return images
        if total is None:
            images[...] = 0 if B is None else B.reshape(-1, *[1] * len(size))
        each: Any = P.reshape(channels, len(places), n, *places[0].grid)
        whole: Any = images
        for k, place in enumerate(places):
            part = each[(slice(None), k, slice(None), *place.kept(size))].swapaxes(0, 1)
            view = whole[(..., *place.taken)]
            view[(..., *map(slice, part.shape[2:]))] += part
        return images

    def from_windows(
        self, X: np.ndarray, windows: Windows, transform: Transform, target: np.ndarray | None = None
    ) -> np.ndarray:
        """Compiled, or by NumPy on whole images."""
        if not self.compiles():
            return super().from_windows(X, windows, transform)
        from xpgrad.engine.images.compiled_windows import from_windows

        M = target
        if M is None:
            columns = max(1, windows.slices) * X.shape[0] * windows.rows * windows.columns
            M = new_array(transform.shape(X.shape[1], columns), X.dtype)
        from_windows(X, windows, transform, M)
        return M

    def to_windows(
        self,
        M: np.ndarray,
        windows: Windows,
        transform: Transform,
        B: np.ndarray | None,
        shape: Sequence[int],
        target: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compiled, or by NumPy on whole images."""
        if not self.compiles():
            return super().to_windows(M, windows, transform, B, shape)
        from xpgrad.engine.compiled.strided import distances
        from xpgrad.engine.images.compiled_windows import can_be_written, to_windows

        Y = target
        if Y is None or not can_be_written(Y.shape, distances(Y), windows):
            Y = result_array(memory_order(shape, windows), M.dtype)
            Y = Y if len(shape) == 4 or windows.slices else Y.swapaxes(2, 3)
        to_windows(M, windows, transform, B, Y)
        return Y
