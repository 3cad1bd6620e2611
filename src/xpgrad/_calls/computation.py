"""The engine of a call, and the dtype that it computes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xpgrad import engine as engines


class Computation:
    """The engine for the arrays of one call, and the conversion of arrays for it.

    Parameters
    ----------
    operator : str
        The operator's name for messages.
    xp : namespace
        The caller's namespace.
    arrays : sequence of array or None
        The call's arrays of one floating-point dtype; None for omitted arrays.

    Attributes
    ----------
    engine, xp
        The engine and its namespace.
    """

    def __init__(self, operator: str, xp: Any, arrays: Sequence[Any]) -> None:
        given = [array for array in arrays if array is not None]
        self._caller_xp, self._dtype = xp, given[0].dtype
        half = self._dtype not in (xp.float32, xp.float64)
        self._compute_dtype = xp.float32 if half else self._dtype
        self.engine = engines.choose(xp, given, operator)
        self.xp = self.engine.xp

    @classmethod
    def of_agreed(cls, engine: engines.Engine, array: Any) -> Computation:
        """The computation of a call for whose arrays this engine was agreed on; `array` is one of them."""
        own = cls.__new__(cls)
        own.engine, own.xp = engine, engine.xp
        own._dtype = own._compute_dtype = array.dtype  # neither half precision
        return own

    def lift(self, array: Any) -> Any:
        """The array in the engine's namespace, half precision as float32."""
        if array.dtype != self._compute_dtype:
            array = self._caller_xp.astype(array, self._compute_dtype)
        return self.engine.lift(array)

    def lower(self, array: Any) -> Any:
        """A result in the caller's namespace and dtype."""
        array = self.engine.lower(array)
        if array.dtype != self._dtype:
            with self.engine.quiet():  # values too large or small for half precision become inf or 0
                array = self._caller_xp.astype(array, self._dtype)
        return array

    def reshape(self, array: Any, shape: Sequence[int]) -> Any:
        """A lifted array in another shape, as a view if possible."""
        shape = tuple(shape)
        # sizes of a graph that are not known before it runs may be equal to any number
        if array.shape == shape and all(type(size) is int for size in array.shape):
            return array
        return self.xp.reshape(array, shape)

    def deliver(
        self, operator: str, compute: Callable[[Any], Any], out: Any, shape: Sequence[int] | None = None
    ) -> Any:
        """The result of ``compute(target)``, in the caller's namespace and dtype, in `out` if given.

        `target` is memory for the result in the engine's namespace, or None; it has the `shape`, by default
        the shape of `out`.
        """
        if out is not None and out.dtype == self._compute_dtype:
            target = self.engine.target(out, tuple(out.shape) if shape is None else tuple(shape))
            if target is not None:
                compute(target)
                return out
        return self.put(operator, compute(None), out)

    def put(self, operator: str, result: Any, out: Any) -> Any:
        """A result in the caller's namespace and dtype, written to `out` if given."""
        if out is None:
            return self.lower(result)
        result = self.lower(self.reshape(result, tuple(out.shape)))
        try:
            out[...] = result
        except (TypeError, RuntimeError) as error:
            raise TypeError(
                f"{operator}: out is a {type(out).__name__} that cannot be written to ({error}), expected an "
                "array that can"
            ) from error
        return out
