"""The sizes at which compiled code changes its way: one table, from which random calls and tests draw.

A fault that only some sizes have shows only if sizes on both sides of every threshold are tried.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xpgrad.engine.compiled import machine
from xpgrad.engine.compiled.products import matrix
from xpgrad.engine.process import sharing
from xpgrad.engine.process.settings import jit_enabled


class Thresholds(NamedTuple):
    """Sizes, by what they count.

    Parameters
    ----------
    batch : tuple of int
        Sequences, or rows of one step: heights of tiles, several panels at once, rows that are packed.
    features : tuple of int
        Inputs, hidden units or classes: vectors, panels, narrow products.
    rows : tuple of int
        Rows over time and batch together: blocks of a sum, parts that have rows, chunks of the backward loop.
    elements : tuple of int
        Elements of an array: blocks, and from how many on threads share the work.
    channels, positions : tuple of int
        Of images: tiles instead of loops, blocks of positions, stretches.
    """

    batch: tuple[int, ...]
    features: tuple[int, ...]
    rows: tuple[int, ...]
    elements: tuple[int, ...]
    channels: tuple[int, ...]
    positions: tuple[int, ...]


def thresholds() -> Thresholds:
    """The table for this machine; without llvmlite for one with vectors of 32 bytes."""
    size, height, vectors, low, columns = 32, 4, 3, 2, 128
    if jit_enabled():
        from xpgrad.engine.compiled.register_tiles import tiles
        from xpgrad.engine.images.compiled_shifts import COLUMNS

        kinds, columns = tiles(), COLUMNS
        size, (height, vectors), low = kinds.bytes, kinds.tall, kinds.flat[0]
    lanes = size // 8, size // 4
    widths = tuple(vectors * lane for lane in lanes)
    block = matrix.largest_block(1 << 20)
    return Thresholds(
        batch=(1, 2, low, height, 2 * height, matrix.ROWS, matrix.PACKED_ROWS),
        features=(
            *lanes,
            *widths,
            *(lane + width for lane, width in zip(lanes, widths, strict=True)),
            32,
            128,
        ),
        rows=(matrix.ROWS, matrix.PACKED_ROWS, block, 2 * block, 3 * block, machine.CHUNK_ROWS),
        elements=(1024, sharing.TIME_LOOP, sharing.COPY, sharing.ARRAY),
        channels=(1, 2, low, height, *lanes),
        positions=(lanes[1], columns, 8 * columns),
    )


def near(rng: np.random.Generator, sizes: tuple[int, ...], most: int | None = None) -> int:
    """A size beside one of these, at most 2 away from it, and from 1 to `most`."""
    fitting = [size for size in sizes if most is None or size <= most] or [1]
    size = int(rng.choice(fitting)) + int(rng.integers(-2, 3))
    return max(1, size if most is None else min(size, most))
