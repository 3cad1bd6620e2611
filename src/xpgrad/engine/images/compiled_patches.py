"""What the compiled `patches` and `add_patches` of `native_shifts` read: an image's rows in a matrix."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.records import Batch, PatchRows, Table
from xpgrad.engine.compiled.register_tiles import tiles
from xpgrad.engine.images.shift_tables import rows_in_grid
from xpgrad.engine.images.shifts import Embedding
from xpgrad.engine.process.memory import address_of


def patch_work(
    kind: str, dtype: np.dtype, images: Sequence[int], places: tuple[Embedding, ...], parts: int, begins: bool
) -> tuple[int, PatchRows, Any]:
    """The compiled function, its record without the arrays' addresses, and the memory of its tables."""
    count, channels, *size = images
    positions = prod(places[0].grid)
    rows = _rows_of_patches(places, tuple(size), count * positions)
    if kind == "patches":
        begins = int(rows[:, 2].sum()) < len(places) * positions
    record = PatchRows(
        parts=parts, images=Batch(0, channels * prod(size), prod(size)), count=count, channels=channels,
        size=prod(size), rows=Table(address_of(rows), len(rows)), taps=len(places), positions=positions,
        columns=count * positions, patches=0, bias=0, begins=int(begins),
    )  # fmt: skip
    function = c_function(
        f"{kind}_{dtype.name}", "images.native_shifts", "int64 data, int64 part", "made(fields(data), part)",
        f"{kind}({dtype.name!r}, {tiles().lanes(dtype)})",
    )  # fmt: skip
    return function, record, rows


@functools.lru_cache(maxsize=256)
def _rows_of_patches(places: tuple[Embedding, ...], size: tuple[int, ...], columns: int) -> np.ndarray:
    """The rows of an image in the rows of patches; each place begins `columns` after the previous place."""
    rows = rows_in_grid(places, size)
    rows[:, 1] += rows[:, 4] * columns
    return rows
