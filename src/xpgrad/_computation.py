"""Where a call is computed: its engine, and the dtype in which sums are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xpgrad import engine as engines


class Computation:
    """The engine for the arrays of one call, and the way of arrays there and back.

    Parameters
    ----------
    operator : str
        For messages.
    xp : namespace
        The caller's.
    arrays : sequence of array or None
        The call's arrays of one floating-point dtype; None for those left out.

    Attributes
    ----------
    engine
        The engine.
    xp : namespace
        The namespace in which it works.
    """

    def __init__(self, operator: str, xp: Any, arrays: Sequence[Any]) -> None:
        given = [array for array in arrays if array is not None]
        self._caller_xp, self._dtype = xp, given[0].dtype
        half = self._dtype not in (xp.float32, xp.float64)
        self._compute_dtype = xp.float32 if half else self._dtype
        self.engine = engines.choose(xp, given, operator)
        self.xp = self.engine.xp

    def lift(self, array: Any) -> Any:
        """The array where it is computed: half precision as float32, in the engine's namespace."""
        if array.dtype != self._compute_dtype:
            array = self._caller_xp.astype(array, self._compute_dtype)
        return self.engine.lift(array)

    def lower(self, array: Any) -> Any:
        """A result in the caller's namespace and dtype."""
        array = self.engine.lower(array)
        if array.dtype != self._dtype:
            array = self._caller_xp.astype(array, self._dtype)
        return array
