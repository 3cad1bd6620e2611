"""Zeros around the spatial dimensions, and their removal, without writing to any array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from array_api_compat import device


def padded(xp: Any, array: Any, before: Sequence[int], behind: Sequence[int]) -> Any:
    """The array with zeros before and behind its last dimensions; negative numbers take elements away."""
    first = array.ndim - len(before)
    for axis, (b, e) in enumerate(zip(before, behind, strict=True), first):
        size = array.shape[axis]
        if b < 0 or e < 0:
            keep = slice(max(-b, 0), size - max(-e, 0))
            array = array[(slice(None),) * axis + (keep,)]
        parts = [_zeros(xp, array, axis, b)] if b > 0 else []
        parts.append(array)
        if e > 0:
            parts.append(_zeros(xp, array, axis, e))
        if len(parts) > 1:
            array = xp.concat(parts, axis=axis)
    return array


def _zeros(xp: Any, like: Any, axis: int, count: int) -> Any:
    shape = (*like.shape[:axis], count, *like.shape[axis + 1 :])
    return xp.zeros(shape, dtype=like.dtype, device=device(like))
