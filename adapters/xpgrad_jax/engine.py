"""The engine for JAX's arrays: kernels on NumPy views; under a trace, programs or one ``lax.scan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import array_api_compat
import jax
import jax.numpy as jnp
import numpy as np

import xpgrad
from xpgrad.engine import NumpyEngine, StandardEngine
from xpgrad_jax._ffi import why_not
from xpgrad_jax._scan import ScanEngine, inlined


class JaxEngine(NumpyEngine):
    """Kernels run on NumPy views of the arrays; under a trace, and on other devices, on the `ScanEngine`.

    Under a trace, recurrent kernels are the programs of `xpgrad_jax`, if these run.
    """

    name = "jax"
    array_types: tuple[type, ...] = ()

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """See `Adapter`: whether the arrays have values, on a CPU."""
        return array_api_compat.is_jax_namespace(xp) and all(_is_here(array) for array in arrays)

    def is_traced(self, array: Any) -> bool:
        """See `Adapter`."""
        return isinstance(array, jax.core.Tracer)

    def traced_kernel(
        self, operator: str, arrays: Mapping[str, Any], options: Mapping[str, Any], kernel: Any
    ) -> Any:
        """See `Adapter`: as in `xpgrad_jax`, if programs run."""
        if why_not() is not None:
            return None
        from xpgrad_jax.functional import traced_call

        cell = kernel.owner if isinstance(kernel.owner, xpgrad.Cell) else None
        return traced_call(operator, arrays, options, cell)

    def standard(self, xp: Any) -> StandardEngine | None:
        """See `Adapter`."""
        if not array_api_compat.is_jax_namespace(xp):
            return None
        return (inlined.get() or ScanEngine)()

    def lift(self, array: Any) -> np.ndarray:
        """A view of the array's memory."""
        return np.asarray(array)

    def lower(self, array: np.ndarray) -> Any:
        """An array over the memory, if XLA accepts it."""
        return jnp.asarray(array)

    def describe(self) -> str:
        """See `Adapter`."""
        reason = why_not()
        inside = "programs in XLA" if reason is None else f"no programs in XLA: {reason}"
        ways = "the numpy engine on views; under a trace, programs, elsewhere one lax.scan"
        return f"JAX {jax.__version__} CPU arrays: {ways}; xpgrad_jax: {inside}"


def _is_here(array: Any) -> bool:
    if isinstance(array, jax.core.Tracer):
        return False
    devices = array.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"
