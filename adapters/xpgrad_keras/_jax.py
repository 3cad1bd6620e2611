"""The kernels of xpgrad_jax for Keras on JAX: inside `jit`, which `fit` uses, too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import xpgrad_jax
from xpgrad_keras._backends import Backend, computed
from xpgrad_keras._calls import Call

__all__ = ["BACKEND"]


class _JAX(Backend):
    starts_at_state = True
    where = staticmethod(jnp.where)

    def takes(self, X: Any, mask: Any) -> bool:
        return jax.default_backend() == "cpu"

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        if isinstance(condition, jax.core.Tracer):
            return jax.lax.cond(condition, yes, no)
        return super().choose(condition, yes, no)

    def run(self, call: Call, *arrays: Any) -> tuple[Any, list[Any]]:
        return computed(getattr(xpgrad_jax.functional, call.kernel), call, *arrays)


BACKEND = _JAX()
