"""xpgrad_jax in `check`: its functions inside ``jax.jit``, their gradients by ``jax.vjp``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from .._cases.case import Array, Case, KernelCases

__all__ = ["numbers", "run"]


def numbers(dtype: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which JAX has numbers of this dtype."""
    import jax

    return jax.enable_x64(dtype == "float64")


def run(kernel: KernelCases, case: Case) -> Mapping[str, Array] | None:
    """Outputs that have a cotangent, and gradients of all arguments; None if JAX's functions lack an option.

    They lack per-sample gradients, for which JAX has `jax.vmap`, and cell states at all times.
    """
    import jax

    import xpgrad_jax

    function = getattr(xpgrad_jax, kernel.name, None)
    lacking = case.weights or set(case.gradient_attributes) - {"peephole"} or "C_all" in case.cotangents
    if function is None or lacking:
        return None
    options = {**case.attributes, **case.gradient_attributes}

    @jax.jit
    def results(arguments: Any, cotangents: Any) -> Any:
        outputs, pullback = jax.vjp(lambda given: function(**given, **case.integers, **options), arguments)
        given = cotangents if isinstance(outputs, tuple) else cotangents[0]
        return outputs if isinstance(outputs, tuple) else (outputs,), pullback(given)[0]

    outputs, grads = results(dict(case.arguments), tuple(case.cotangents.values()))
    named = dict(zip(case.cotangents, outputs, strict=True))
    return named | {f"gradient of {name}": grad for name, grad in grads.items()}
