"""Loop for onnx's evaluator, with the right shape of scanned results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference.ops.op_loop import Loop as OnnxLoop


class Loop(OnnxLoop):
    """ai.onnx's Loop: the results of the steps are stacked along a new axis.

    Onnx's own Loop concatenates rows of matrices, and makes columns of numbers.
    """

    op_domain = ""

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        self._step: Any = vars(self)["_run_body"]  # onnx sets it on each node
        self._run_body = self._with_a_new_axis
        self._numbers: list[int] = []

    def _with_a_new_axis(self, *args: Any, **options: Any) -> list[Any]:
        results = list(self._step(*args, **options))
        first = len(results) - self.K
        self._numbers = [k for k in range(self.K) if np.ndim(results[first + k]) == 0]
        return [*results[:first], *(np.asarray(result)[None] for result in results[first:])]

    def _run(self, *args: Any, **options: Any) -> tuple[Any, ...]:
        results = list(super()._run(*args, **options))
        for k in self._numbers:
            results[self.N + k] = np.reshape(results[self.N + k], (-1,))
        return tuple(results)
