"""`patches` and `add_patches` compiled: rows of images that are rows of a matrix, see `native_shifts`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from xpgrad.engine.compiled.formula_code import c_function
from xpgrad.engine.compiled.machine import Machine
from xpgrad.engine.compiled.records import Batch, PatchRows, Table, flat
from xpgrad.engine.compiled.register_tiles import tiles
from xpgrad.engine.images.shift_tables import rows_in_grid
from xpgrad.engine.images.shifts import Embedding
from xpgrad.engine.process.memory import address_of
from xpgrad.engine.process.team import integers


def patches(machine: Machine, images: np.ndarray, places: tuple[Embedding, ...], P: np.ndarray) -> None:
    """The patches of contiguous images into P (C * places, n * positions)."""
    _run(machine, "patches", images, places, P, None, True)


def add_patches(
    machine: Machine, images: np.ndarray, places: tuple[Embedding, ...], P: np.ndarray, B: np.ndarray | None,
    begins: bool,
) -> None:  # fmt: skip
    """The sums of patches P added to contiguous images, which begin with B."""
    _run(machine, "add_patches", images, places, P, B, begins)


def _run(
    machine: Machine, kind: str, images: np.ndarray, places: tuple[Embedding, ...], P: np.ndarray,
    B: np.ndarray | None, begins: bool,
) -> None:  # fmt: skip
    parts = machine.parts(P.size)
    function, record, _kept = patch_work(kind, images.dtype, images.shape, places, parts, begins)
    bias = np.zeros(images.shape[1], dtype=images.dtype) if B is None else np.ascontiguousarray(B)
    data = integers(flat(with_addresses(record, *map(address_of, (images, P, bias)))))
    machine.team.run(function, ctypes.addressof(data), parts)


def patch_work(
    kind: str, dtype: np.dtype, images: Sequence[int], places: tuple[Embedding, ...], parts: int, begins: bool
) -> tuple[int, PatchRows, Any]:
    """The compiled function, what it reads but the addresses of arrays, and what that points into."""
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
    return _loop(kind, dtype, tiles().lanes(dtype)), record, rows


def with_addresses(record: PatchRows, images: Any, patches: Any, bias: Any) -> PatchRows:
    """The record with those of its arrays."""
    return record._replace(images=record.images._replace(address=images), patches=patches, bias=bias)


@functools.lru_cache(maxsize=256)
def _rows_of_patches(places: tuple[Embedding, ...], size: tuple[int, ...], columns: int) -> np.ndarray:
    """The rows of an image in those of patches; a place's begin `columns` after the one before."""
    rows = rows_in_grid(places, size)
    rows[:, 1] += rows[:, 4] * columns
    return rows


@functools.cache
def _loop(kind: str, dtype: np.dtype, lanes: int) -> int:
    """The address of a compiled ``(data, part)``."""
    made = f"{kind}({dtype.name!r}, {lanes})"
    call = "made(fields(data), part)"
    return c_function(f"{kind}_{dtype.name}", "images.native_shifts", "int64 data, int64 part", call, made)
