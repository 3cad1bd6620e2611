"""The kernels of xpgrad_jax for Keras on JAX: inside `jit`, which `fit` uses, too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xpgrad_jax import functional
from xpgrad_keras._backends import KerasBackend, computed
from xpgrad_keras._calls import LayerCall


class _JAX(KerasBackend):
    starts_at_state = True
    where = staticmethod(jnp.where)

    def takes(self, X: Any, W: Any, mask: Any) -> bool:
        return jax.default_backend() == "cpu"

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        if isinstance(condition, jax.core.Tracer):
            return jax.lax.cond(condition, yes, no)
        return super().choose(condition, yes, no)

    def run(self, call: LayerCall, *arrays: Any) -> tuple[Any, list[Any]]:
        return computed(functional.run_recurrent, jnp, call, *arrays)


BACKEND = _JAX()
