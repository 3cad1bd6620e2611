"""Resets within sequences: checked once, then a part of the lengths that operators get.

Lengths and resets are one array (N, 1 + T) of integers: each sequence's length, and a 1 for each step with a
reset before it. So any code that passes lengths to a kernel, to its program or to a framework's operator also
passes resets. `_recurrent.timeline` applies them to the rows of a recurrence.
"""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np

from xpgrad import engine as engines
from xpgrad._operators.arguments import check_array, check_lengths, check_lengths_within, check_shape

__all__ = ["are_booleans", "check_reset", "check_with_resets", "has_resets", "joined", "with_resets"]


def has_resets(lengths: Any) -> bool:
    """Whether these are lengths with resets."""
    return getattr(lengths, "ndim", 1) == 2


def check_reset(operator: str, reset: Any, is_bool: bool, T: int, N: int, layout: int) -> None:
    """Raise TypeError unless these are booleans, ValueError unless they are (T, N), in layout 1 (N, T)."""
    if not is_bool:
        raise TypeError(
            f"{operator}: reset has dtype {reset.dtype}, expected booleans: reset != 0 gives them"
        )
    check_shape(operator, "reset", reset, *(("N, T", (N, T)) if layout else ("T, N", (T, N))))


def are_booleans(operator: str, reset: Any) -> bool:
    """Whether the array has booleans; TypeError for a non-array."""
    if not array_api_compat.is_array_api_obj(reset):
        raise TypeError(f"{operator}: reset is a {type(reset).__name__}, expected an array of booleans")
    check_array(operator, "reset", reset)
    return bool(array_api_compat.array_namespace(reset).isdtype(reset.dtype, "bool"))


def with_resets(operator: str, X: Any, lengths: Any, reset: Any, layout: Any) -> Any:
    """The lengths with resets (T, N), in layout 1 (N, T); unchanged if `reset` is None."""
    if reset is None or getattr(X, "ndim", 0) != 3 or type(layout) is not int or layout not in (0, 1):
        return lengths  # errors that are found later
    T, N = (X.shape[1], X.shape[0]) if layout else X.shape[:2]
    check_reset(operator, reset, are_booleans(operator, reset), T, N, layout)
    if engines.is_traced(reset) or (lengths is not None and engines.is_traced(lengths)):
        tracer = engines.traced_by((reset, lengths))
        if tracer is not None and not tracer.traces_resets:
            lazy = "reset" if tracer.is_traced(reset) else "sequence_lens beside reset"
            raise TypeError(
                f"{operator}: {lazy} is a lazy array of {tracer.name}, expected known values: "
                "the steps depend on them"
            )
        xp = array_api_compat.array_namespace(reset if engines.is_traced(reset) else lengths)
        marks = xp.asarray(reset) if layout else xp.asarray(reset).T
        # T, computed from the marks, is on the marks' devices, also on several
        own = 0 * xp.sum(marks, axis=1) + T if lengths is None else xp.asarray(lengths)
        return joined(xp, own, marks)
    marks = _in_numpy(reset)
    if not marks.any():
        return lengths
    own = [T] * N if lengths is None else check_lengths(operator, lengths, N, T)
    return joined(np, np.asarray(own, dtype=np.int64), marks if layout else marks.T)


def joined(xp: Any, lengths: Any, reset: Any) -> Any:
    """Lengths (N,) and resets (N, T) as one array."""
    marks = reset.astype(lengths.dtype) if hasattr(reset, "astype") else reset.to(lengths.dtype)
    return xp.concatenate([lengths[:, None], marks], 1)


def check_with_resets(operator: str, lengths: Any, N: int, T: int) -> Any:
    """Lengths (N, 1 + T) with resets as a NumPy array; unchanged if they are traced."""
    if tuple(lengths.shape) != (N, 1 + T):  # only adapters join lengths and resets
        check_shape(operator, "sequence_lens", lengths, "N,", (N,))
    if engines.is_traced(lengths):
        return lengths
    numbers = _in_numpy(lengths)
    check_lengths_within(operator, "sequence_lens", numbers[:, 0].tolist(), T)
    return numbers


def _in_numpy(array: Any) -> np.ndarray:
    """An array of booleans or integers in NumPy."""
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "tolist"):
        return np.asarray(array.tolist()).reshape(tuple(array.shape))
    rows = range(array.shape[0])
    numbers = [[int(array[row, column]) for column in range(array.shape[1])] for row in rows]
    return np.asarray(numbers).reshape(tuple(array.shape))
