"""Loop for onnx's evaluator, with the right shape of scanned results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference.ops.op_loop import Loop as OnnxLoop


class Loop(OnnxLoop):
    """ai.onnx's Loop: the results of the steps are stacked along a new axis.

    Onnx's own Loop concatenates rows of matrices, makes columns of numbers, mixes up results of one name,
    runs no step without a condition, and fails if there are scanned results of no step.
    """

    op_domain = ""

    def _run(
        self, M: Any, cond: Any, *states: Any, context: Any = None, attributes: Any = None, **options: Any
    ) -> tuple[Any, ...]:
        options.pop("body", None)
        own = vars(self)  # onnx sets these on each node
        count, condition, *names = own["body"].input_names
        scanned: list[list[Any]] = [[] for _ in range(self.K)]
        step, goes_on = 0, cond is None or bool(cond)
        while goes_on and (M is None or step < M):
            number = np.asarray(step, dtype=np.int64 if M is None else M.dtype)
            given = {**(context or {}), count: number, condition: np.asarray(True)}
            given |= dict(zip(names, states, strict=True))
            last, *results = own["_run_body"](given, attributes=attributes, **options)
            states, goes_on = tuple(results[: self.N]), bool(last)
            for rows, result in zip(scanned, results[self.N :], strict=True):
                rows.append(result)
            step += 1
        return (*states, *(np.stack(rows) if rows else self._of_no_step(k) for k, rows in enumerate(scanned)))

    def _of_no_step(self, number: int) -> np.ndarray:
        """A scanned result without rows; unknown sizes are 0."""
        body = next(a.g for a in self.onnx_node.attribute if a.name == "body")
        kind = body.output[1 + self.N + number].type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type or onnx.TensorProto.FLOAT)
        return np.zeros((0, *(d.dim_value for d in kind.shape.dim)), dtype)
