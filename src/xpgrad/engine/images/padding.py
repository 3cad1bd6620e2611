"""Zeros around and between the elements of the last dimensions; nothing is written to an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

from array_api_compat import device

Index = tuple[EllipsisType | slice, ...]
"""An index of an array's last dimensions: an ellipsis, then a slice for each."""


def padded(xp: Any, array: Any, before: Sequence[int], behind: Sequence[int]) -> Any:
    """The array with zeros before and after its last dimensions; negative numbers crop."""
    first = array.ndim - len(before)
    for axis, (b, e) in enumerate(zip(before, behind, strict=True), first):
        size = array.shape[axis]
        if b < 0 or e < 0:
            keep = slice(max(-b, 0), size - max(-e, 0))
            array = array[(*(slice(None),) * axis, keep, ...)]
        parts = [_zeros(xp, array, axis, b)] if b > 0 else []
        parts.append(array)
        if e > 0:
            parts.append(_zeros(xp, array, axis, e))
        if len(parts) > 1:
            array = xp.concat(parts, axis=axis)
    return array


def interleaved(xp: Any, parts: Mapping[tuple[int, ...], Any], steps: Sequence[int]) -> Any:
    """Interleave parts into one array: in each last dimension element i of part r becomes i * step + r.

    Missing parts are zero.
    """
    return _interleaved(xp, parts, xp.zeros_like(next(iter(parts.values()))), steps, ())


def _interleaved(
    xp: Any, parts: Mapping[tuple[int, ...], Any], nothing: Any, steps: Sequence[int], phase: tuple[int, ...]
) -> Any:
    done = len(phase)
    if done == len(steps):
        return parts.get(phase, nothing)
    made = [_interleaved(xp, parts, nothing, steps, (*phase, r)) for r in range(steps[done])]
    if len(made) == 1:
        return made[0]
    axis = made[0].ndim - len(steps) + done
    shape = list(made[0].shape)
    shape[axis] *= len(made)
    return xp.reshape(xp.stack(made, axis=axis + 1), tuple(shape))


def _zeros(xp: Any, like: Any, axis: int, count: int) -> Any:
    shape = (*like.shape[:axis], count, *like.shape[axis + 1 :])
    return xp.zeros(shape, dtype=like.dtype, device=device(like))


def kept_and_places(
    sizes: Sequence[int], before: Sequence[int], behind: Sequence[int]
) -> tuple[Index, Index]:
    """The elements that stay if the last dimensions are padded, and their places in the padded array."""
    kept, places = [], []
    for size, b, e in zip(sizes, before, behind, strict=True):
        first, stop = max(-b, 0), size - max(-e, 0)
        kept.append(slice(first, stop))
        places.append(slice(max(b, 0), max(b, 0) + max(0, stop - first)))
    return (..., *kept), (..., *places)


def phase_places(
    phase: Sequence[int], sizes: Sequence[int], steps: Sequence[int], begin: Sequence[int],
    size: Sequence[int],
) -> tuple[Index, Index]:  # fmt: skip
    """The places of a phase in `size` elements of an interleaved array from `begin` on, and which part fits.

    The phase has these `sizes`.
    """
    places, kept = [], []
    for r, b, step, count, large in zip(phase, begin, steps, size, sizes, strict=True):
        first = max(0, -((r - b) // step))  # the phase's first element at `begin` or later
        place = first * step + r - b
        number = max(0, min(large - first, -((place - count) // step)))
        places.append(slice(place, place + number * step, step) if number else slice(0, 0))
        kept.append(slice(first, first + number))
    return (..., *places), (..., *kept)
