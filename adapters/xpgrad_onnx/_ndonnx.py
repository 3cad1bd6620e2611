"""The engine for ndonnx's arrays: kernels run on values, or become nodes in a lazy array's graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ndonnx
import numpy as np
import spox
from onnx import helper

from xpgrad.engine import NumpyEngine
from xpgrad_onnx._arrays import GraphArray, Scope, tensor_info, used
from xpgrad_onnx._sizes import Size, symbol

_OPSET, _IR = 21, 10
_numbers = itertools.count()


class NdonnxEngine(NumpyEngine):
    """Compute arrays with values by NumPy's kernels; turn a call on lazy arrays into nodes.

    The kernel of a recurrent operator or a convolution writes these nodes on graph arrays, so a loop over
    time is one Scan and sizes may be unknown. Elementwise functions and losses are ndonnx's own operations.
    """

    name = "ndonnx"
    traces_resets = False
    array_types: tuple[type, ...] = ()

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """See `Adapter`."""
        return xp is ndonnx and not any(map(self.is_traced, arrays))

    def is_traced(self, array: Any) -> bool:
        """See `Adapter`: whether the array is lazy."""
        if not isinstance(array, ndonnx.Array):
            return False
        try:
            array.unwrap_numpy()
        except ValueError:
            return True
        return False

    def traced_kernel(
        self,
        operator: str,
        arrays: Mapping[str, Any],
        options: Mapping[str, Any],
        kernel: Callable[[Mapping[str, Any]], Any],
    ) -> Any:
        """See `Adapter`: the kernel writes a model, which becomes a part of the arrays' graph."""
        given, lengths = dict(arrays), arrays.get("sequence_lens")
        if getattr(lengths, "ndim", 1) != 1:
            return None  # resets need counted steps
        if lengths is not None and not isinstance(lengths, ndonnx.Array):
            given["sequence_lens"] = ndonnx.asarray(np.asarray(lengths, dtype=np.int32))
        return _inlined(
            operator, kernel, {name: x.unwrap_spox() for name, x in given.items() if x is not None}, given
        )

    def lift(self, array: Any) -> np.ndarray:
        """The array's values."""
        return np.asarray(array.unwrap_numpy())

    def lower(self, array: np.ndarray) -> Any:
        """An array with these values."""
        return ndonnx.asarray(np.asarray(array))

    def describe(self) -> str:
        """See `Adapter`."""
        return f"ndonnx {ndonnx.__version__} arrays: the numpy engine on values; lazy ones become nodes"


def _inlined(
    operator: str,
    kernel: Callable[[Mapping[str, Any]], Any],
    variables: Mapping[str, spox.Var],
    names: Iterable[str],
) -> Any:
    """A kernel's results for variables of a graph, as ndonnx's arrays."""
    tensors: list[Any] = []
    scope = Scope(_OPSET, lambda hint: f"{hint}_{next(_numbers)}", tensors.append)
    with scope.active():
        known = {name: _array(scope, name, variable) for name, variable in variables.items()}
        result = kernel({name: known.get(name) for name in names})
    outputs = {name: array for name, array in result._asdict().items() if array is not None}
    nodes = [
        helper.make_node("Identity", [array.name], [f"result/{name}"]) for name, array in outputs.items()
    ]
    graph = helper.make_graph(
        used([*scope.nodes, *nodes], [node.output[0] for node in nodes]),
        operator,
        [tensor_info(_array(scope, name, var), name) for name, var in variables.items()],
        [tensor_info(array, f"result/{name}") for name, array in outputs.items()],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    found = spox.inline(model)(**variables)
    made = {name: ndonnx.asarray(found[f"result/{name}"]) for name in outputs}
    return type(result)(*(made.get(name) for name in result._fields))


def _array(scope: Scope, name: str, variable: spox.Var) -> GraphArray:
    kind = variable.unwrap_tensor()
    sizes: list[int | Size] = []
    for axis, size in enumerate(kind.shape or ()):
        if isinstance(size, int):
            sizes.append(size)
        else:
            sizes.append(symbol(size or f"{name}.{axis}", inferred=not size))
    return scope.tensor(name, kind.dtype, sizes)
