"""The engine for MLX's arrays: kernels run on their memory, which NumPy can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from xpgrad.engine import NumpyEngine


class MlxEngine(NumpyEngine):
    """Kernels run on the CPU. Pending computations of an array run first; results are new arrays.

    The standard engine would fail: MLX's arrays have no device. MLX's transformations cannot trace kernels,
    like other functions on NumPy arrays.
    """

    name = "mlx"
    array_types: tuple[type, ...] = ()

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """See `Adapter`."""
        return xp is mx

    def lift(self, array: Any) -> np.ndarray:
        """The array's memory."""
        return np.asarray(array)

    def lower(self, array: np.ndarray) -> Any:
        """An array of the same dtype: MLX would convert float64 to float32."""
        values = np.asarray(array)
        return mx.array(values, dtype=getattr(mx, values.dtype.name))

    def describe(self) -> str:
        """See `Adapter`."""
        return "MLX arrays: the numpy engine on their memory"
