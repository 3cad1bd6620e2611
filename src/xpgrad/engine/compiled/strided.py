"""Arrays with any distances in memory, as compiled loops take them: an address, and the distances."""

from __future__ import annotations

import numpy as np


def distances(array: np.ndarray) -> list[int]:
    """In elements, from one to the next along each axis."""
    return [stride // array.itemsize for stride in array.strides]


def forwards(array: np.ndarray) -> np.ndarray:
    """The array; a copy of it if an axis runs backwards in memory, as compiled loops only count forwards."""
    return array if min(array.strides, default=0) >= 0 else np.ascontiguousarray(array)
