"""The engine for ndonnx's arrays: kernels on their values, or as a part of the graph of lazy ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ndonnx
import numpy as np
import spox
from onnx import helper

import xpgrad
from xpgrad.engine import NumpyEngine
from xpgrad_onnx._arrays import GraphArray, Scope, used
from xpgrad_onnx._sizes import Size, symbol

_OPSET, _IR = 21, 10
_numbers = itertools.count()


class _Result(NamedTuple):
    """What a kernel of one result returns to its public function."""

    Y: Any


class NdonnxEngine(NumpyEngine):
    """Arrays with values are computed by NumPy's kernels; a call on lazy arrays becomes nodes.

    The kernel of a recurrent operator or a convolution writes them on graph arrays, so that a loop over time
    is one Scan and sizes may be unknown. Elementwise functions and losses are ndonnx's own operations.
    """

    name = "ndonnx"
    array_types: tuple[type, ...] = ()

    def takes(self, xp: Any, arrays: Sequence[Any]) -> bool:
        """See `Adapter`."""
        return xp is ndonnx and not any(map(self.is_traced, arrays))

    def is_traced(self, array: Any) -> bool:
        """See `Adapter`: whether it is lazy."""
        if not isinstance(array, ndonnx.Array):
            return False
        try:
            array.unwrap_numpy()
        except ValueError:
            return True
        return False

    def traced_call(self, operator: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """See `Adapter`: the kernel writes a model, which becomes a part of the arrays' graph."""
        kernel, lengths = getattr(xpgrad, operator, None), arrays.get("sequence_lens")
        given = {name: array for name, array in arrays.items() if array is not None}
        if kernel is None or getattr(lengths, "ndim", 1) != 1 or {"gate_order", "packed"} & options.keys():
            return None
        if lengths is not None and not isinstance(lengths, ndonnx.Array):
            given["sequence_lens"] = ndonnx.asarray(np.asarray(lengths, dtype=np.int32))
        call = dict(options)
        if "wanted" in call:
            call["wrt"] = call.pop("wanted")
        return _inlined(kernel, {name: array.unwrap_spox() for name, array in given.items()}, call)

    def lift(self, array: Any) -> np.ndarray:
        """The array's values."""
        return np.asarray(array.unwrap_numpy())

    def lower(self, array: np.ndarray) -> Any:
        """An array with these values."""
        return ndonnx.asarray(np.asarray(array))

    def describe(self) -> str:
        """See `Adapter`."""
        return f"ndonnx {ndonnx.__version__} arrays: the numpy engine on values; lazy ones become nodes"


def _inlined(kernel: Any, variables: Mapping[str, spox.Var], options: Mapping[str, Any]) -> Any:
    """What a kernel returns for variables of a graph, as ndonnx's arrays."""
    tensors: list[Any] = []
    scope = Scope(_OPSET, lambda hint: f"{hint}_{next(_numbers)}", tensors.append)
    with scope.active():
        result = kernel(**{name: _array(scope, name, var) for name, var in variables.items()}, **options)
    is_single = isinstance(result, GraphArray)
    fields = {"Y": result} if is_single else result._asdict()
    outputs = {name: array for name, array in fields.items() if array is not None}
    nodes = [
        helper.make_node("Identity", [array.name], [f"result/{name}"]) for name, array in outputs.items()
    ]
    graph = helper.make_graph(
        used([*scope.nodes, *nodes], [node.output[0] for node in nodes]),
        kernel.__name__,
        [_info(name, _array(scope, name, var)) for name, var in variables.items()],
        [_info(f"result/{name}", array) for name, array in outputs.items()],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    found = spox.inline(model)(**variables)
    made = {name: ndonnx.asarray(found[f"result/{name}"]) for name in outputs}
    if is_single:
        return _Result(made["Y"])
    return type(result)(*(made.get(name) for name in fields))


def _array(scope: Scope, name: str, variable: spox.Var) -> GraphArray:
    kind = variable.unwrap_tensor()
    sizes: list[int | Size] = []
    for axis, size in enumerate(kind.shape or ()):
        if isinstance(size, int):
            sizes.append(size)
        else:
            sizes.append(symbol(size or f"{name}.{axis}", inferred=not size))
    return scope.tensor(name, kind.dtype, sizes)


def _info(name: str, array: GraphArray) -> Any:
    sizes = [size if isinstance(size, int) else None for size in array.shape]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes)
