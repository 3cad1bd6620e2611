"""The sizes at which compiled code switches its method: one table for random calls and tests.

Some faults appear only at some sizes. Tests find them only with sizes on both sides of every threshold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xpgrad.engine.compiled import machine
from xpgrad.engine.compiled.products import matrix
from xpgrad.engine.process import sharing
from xpgrad.engine.process.settings import jit_enabled


class Thresholds(NamedTuple):
    """Sizes of each kind."""

    batch: tuple[int, ...]
    """Sequences, or rows of one step: heights of tiles, several panels at once, packed rows."""
    features: tuple[int, ...]
    """Inputs, hidden units or classes: vectors, panels, narrow products."""
    rows: tuple[int, ...]
    """Rows over time and batch: blocks of a sum, parts that have rows, chunks of the backward loop."""
    elements: tuple[int, ...]
    """Elements of an array: blocks, and the least number that threads share."""
    channels: tuple[int, ...]
    """Channels of images: tiles instead of loops, vectors of sums."""
    positions: tuple[int, ...]
    """Positions in images: tiles, blocks, stretches."""


def thresholds() -> Thresholds:
    """The table for this machine; without llvmlite, for a machine with vectors of 32 bytes."""
    size, height, vectors, low, columns = 32, 4, 3, 2, 128
    turned: tuple[int, ...] = 8, 6, 4
    if jit_enabled():
        from xpgrad.engine.compiled.register_tiles import tiles
        from xpgrad.engine.images.compiled_shifts import COLUMNS

        kinds, columns = tiles(), COLUMNS
        size, (height, vectors), low, turned = kinds.bytes, kinds.tall, kinds.flat[0], kinds.turned
    lanes = size // 8, size // 4
    block = matrix.largest_block(1 << 20)
    return Thresholds(
        batch=(1, 2, low, height, 2 * height, matrix.ROWS, matrix.PACKED_ROWS),
        features=(*(k * lane for k in (1, vectors, vectors + 1) for lane in lanes), 32, 128),
        rows=(matrix.ROWS, matrix.PACKED_ROWS, block, 2 * block, 3 * block, machine.CHUNK_ROWS),
        elements=(1024, sharing.TIME_LOOP, sharing.COPY, sharing.ARRAY),
        channels=(1, 2, low, height, *(k * lane for k in range(1, len(turned) + 1) for lane in lanes)),
        positions=(lanes[1], *turned, columns, 8 * columns),
    )


def near(rng: np.random.Generator, sizes: tuple[int, ...], most: int | None = None) -> int:
    """A random size from 1 to `most`, at most 2 away from a random size of the table's."""
    fitting = [size for size in sizes if most is None or size <= most] or [1]
    size = int(rng.choice(fitting)) + int(rng.integers(-2, 3))
    return max(1, size if most is None else min(size, most))
