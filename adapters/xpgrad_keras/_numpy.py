"""The kernels of the core for Keras on NumPy, which has no gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import xpgrad
from xpgrad._operators.for_adapters import run_foreign
from xpgrad_keras._backends import KerasBackend, computed
from xpgrad_keras._calls import LayerCall


class _NumPy(KerasBackend):
    starts_at_state = True
    where = staticmethod(np.where)

    def takes(self, X: Any, W: Any, mask: Any) -> bool:
        return True

    def run(
        self, call: LayerCall, X: Any, weights: Mapping[str, Any], states: Sequence[Any], lengths: Any
    ) -> tuple[Any, list[Any]]:
        dtype = X.dtype
        if dtype.kind == "f":
            # Keras' variables of float64 may hold float32
            weights = {name: x.astype(dtype, copy=False) for name, x in weights.items()}
            states = [h.astype(dtype, copy=False) for h in states]
            return computed(_run, np, call, X, weights, states, lengths)
        # bfloat16, which NumPy lacks
        wide = {name: x.astype(np.float32) for name, x in weights.items()}
        narrow = X.astype(np.float32), wide, [h.astype(np.float32) for h in states]
        H_all, ends = computed(_run, np, call, *narrow, lengths)
        return H_all if H_all is None else H_all.astype(dtype), [end.astype(dtype) for end in ends]


def _run(kernel: str, given: Mapping[str, Any], wanted_outputs: int) -> Sequence[Any]:
    return run_foreign(getattr(xpgrad, kernel), **given)[:wanted_outputs]


BACKEND = _NumPy()
