"""Arrays with any distances in memory, as compiled loops take them: flat, and the distances beside."""

from __future__ import annotations

import numpy as np


def distances(array: np.ndarray) -> list[int]:
    """In elements, from one to the next along each axis."""
    return [stride // array.itemsize for stride in array.strides]


def forwards(array: np.ndarray) -> np.ndarray:
    """The array; a copy of it if an axis runs backwards in memory, as compiled loops only count forwards."""
    return array if min(array.strides, default=0) >= 0 else np.ascontiguousarray(array)


def flat(array: np.ndarray, writeable: bool) -> np.ndarray:
    """The memory from an array's first element to its last one; what is compiled depends on `writeable`.

    No axis runs backwards: see `forwards`.
    """
    span = 1 + sum(d * (s - 1) for d, s in zip(distances(array), array.shape, strict=True))
    return np.lib.stride_tricks.as_strided(array, (span,), (array.itemsize,), writeable=writeable)
