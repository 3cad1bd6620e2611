"""xpgrad_jax in `check`: its functions inside ``jax.jit``, their gradients by ``jax.vjp``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from .._cases.case import Array, Case, KernelCases

__all__ = ["compiled", "numbers", "run"]


def numbers(dtype: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which JAX has numbers of this dtype."""
    import jax

    return jax.enable_x64(dtype == "float64")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function and its gradients inside ``jax.jit``.

    It takes arguments with a gradient, arguments without, and for each output a cotangent or None.
    """
    import jax

    @jax.jit
    def results(arguments: Any, others: Any, cotangents: tuple[Any, ...]) -> Any:
        outputs, pullback = jax.vjp(lambda given: function(**given, **others), arguments)
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = zip(values, cotangents, strict=True)
        given = tuple(jax.numpy.zeros_like(y) if d is None else d for y, d in pairs)
        return values, pullback(given if isinstance(outputs, tuple) else given[0])[0]

    return results


def run(kernel: KernelCases, case: Case) -> Mapping[str, Array] | None:
    """Outputs that have a cotangent, and gradients of all arguments; None if JAX's functions lack an option.

    They lack per-sample gradients, for which JAX has `jax.vmap`, and cell states at all times.
    """
    import xpgrad_jax

    function = getattr(xpgrad_jax, kernel.name, None)
    lacking = case.weights or set(case.gradient_attributes) - {"peephole"} or "C_all" in case.cotangents
    if function is None or lacking:
        return None
    bound = functools.partial(function, **case.integers, **case.attributes, **case.gradient_attributes)
    outputs, grads = compiled(bound)(dict(case.arguments), {}, tuple(case.cotangents.values()))
    named = dict(zip(case.cotangents, outputs, strict=True))
    return named | {f"gradient of {name}": grad for name, grad in grads.items()}
