"""NumPy's functions for row formulas in blocks, in place of ``xp``, with a `where` that does not branch.

NumPy's own `where` branches on every element. If the processor cannot predict the condition, it costs much
more than an addition. All other functions are NumPy's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_INTEGERS: dict[np.dtype, np.dtype] = {
    np.dtype(np.float32): np.dtype(np.int32),
    np.dtype(np.float64): np.dtype(np.int64),
}


def __getattr__(name: str) -> Any:
    return getattr(np, name)


def zeros_like(x: Any) -> Any:
    """A zero of x's dtype that broadcasts to x's shape."""
    return x.dtype.type(0)


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, else `y`: by a bit mask of all ones or all zeros."""
    integer = _INTEGERS.get(x.dtype)
    if integer is None or x.dtype != y.dtype or not isinstance(condition, np.ndarray):
        return np.where(condition, x, y)
    mask = np.negative(condition.view(np.int8)).astype(integer)
    if _is_zero(y):
        bits = mask & x.view(integer)
    elif _is_zero(x):
        bits = ~mask & y.view(integer)
    else:
        bits = (mask & (x.view(integer) ^ y.view(integer))) ^ y.view(integer)
    return bits.view(x.dtype)


def _is_zero(x: Any) -> bool:
    """Whether it is the zero from `zeros_like`."""
    return not isinstance(x, np.ndarray) and x == 0 and not np.signbit(x)
