"""The namespace of graph arrays: functions of the array API standard that kernels use, as nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from xpgrad_onnx._arrays import Dimension, GraphArray, as_array, cast, current, elementwise, matmul
from xpgrad_onnx._sizes import same_shape

__array_api_version__ = "2024.12"

float16, float32, float64 = (np.dtype(kind) for kind in ("float16", "float32", "float64"))
int8, int16, int32, int64 = (np.dtype(kind) for kind in ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = (np.dtype(kind) for kind in ("uint8", "uint16", "uint32", "uint64"))
bool = np.dtype("bool")  # noqa: A001 - the standard's name
inf, nan, pi, newaxis = np.inf, np.nan, np.pi, None

_KINDS = {"bool": "b", "integral": "iu", "signed integer": "i", "unsigned integer": "u", "real floating": "f",
          "numeric": "iuf"}  # fmt: skip

__all__ = ["matmul"]


def isdtype(dtype: Any, kind: Any) -> Any:
    """Whether it is a dtype of a kind, or of one of several."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(np.dtype(dtype).kind in _KINDS[k] if isinstance(k, str) else dtype == k for k in kinds)


def finfo(dtype: Any) -> Any:
    """Limits of a floating-point dtype."""
    return np.finfo(dtype)


def iinfo(dtype: Any) -> Any:
    """Limits of an integer dtype."""
    return np.iinfo(dtype)


# --- new arrays


def asarray(values: Any, dtype: Any = None, device: Any = None, copy: Any = None) -> GraphArray:
    """The array itself, or numbers as a constant."""
    if isinstance(values, GraphArray):
        return values if dtype is None else cast(values, dtype)
    return current().constant(np.asarray(values, dtype=dtype), np.asarray(values, dtype=dtype).dtype)


def full(shape: Any, value: Any, dtype: Any = None, device: Any = None) -> GraphArray:
    """An array of one number."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    return GraphArray(current(), np.dtype(dtype or np.float64), sizes, fill=value)


def zeros(shape: Any, dtype: Any = None, device: Any = None) -> GraphArray:
    """Zeros."""
    return full(shape, 0, dtype)


empty = zeros


def ones(shape: Any, dtype: Any = None, device: Any = None) -> GraphArray:
    """Ones."""
    return full(shape, 1, dtype)


def zeros_like(x: GraphArray, dtype: Any = None, device: Any = None) -> GraphArray:
    """Zeros of an array's shape."""
    return GraphArray(current(), np.dtype(dtype or x.dtype), x.shape, fill=0)


def arange(stop: Dimension, dtype: Any = None, device: Any = None) -> GraphArray:
    """The numbers from 0 on."""
    scope, kind = current(), np.dtype(dtype or np.int64)
    zero, one = (scope.constant(number, np.int64) for number in (0, 1))
    (numbers,) = scope.emit("Range", [zero, scope.size(stop).reshaped(()), one], np.int64, (stop,))
    return cast(numbers, kind)


def astype(x: GraphArray, dtype: Any, copy: Any = True) -> GraphArray:
    """The array in another dtype."""
    return cast(x, dtype)


# --- elementwise


def _elementwise(op_type: str) -> Callable[..., GraphArray]:
    """A function that is one operator on elements."""
    return lambda *operands: elementwise(op_type, operands)


exp, log, sqrt, tanh = map(_elementwise, ("Exp", "Log", "Sqrt", "Tanh"))
abs, pow = map(_elementwise, ("Abs", "Pow"))  # noqa: A001
maximum, minimum = map(_elementwise, ("Max", "Min"))
logistic = _elementwise("Sigmoid")  # not of the standard: 1 / (1 + exp(-x))


def where(condition: GraphArray, a: Any, b: Any) -> GraphArray:
    """The elements of a where the condition holds, else of b."""
    like = a if isinstance(a, GraphArray) else b
    return elementwise("Where", [condition, as_array(a, like), as_array(b, like)], like.dtype)


def log1p(x: GraphArray) -> GraphArray:
    """log(1 + x), exact for small x: the rounding of 1 + x cancels between its logarithm and (1 + x) - 1."""
    u = 1 + x
    tiny = u == 1
    ratio = where(x > 1, 1.0, x / where(tiny, 1.0, u - 1))
    return where(tiny, x, log(u) * ratio)


def expm1(x: GraphArray) -> GraphArray:
    """exp(x) - 1, exact for small x: the rounding of exp(x) cancels between it and its logarithm."""
    u = exp(x)
    less = u - 1
    tiny, beyond = u == 1, (less == -1) | (x > 1)
    ratio = where(beyond, 1.0, x / log(where(tiny | beyond, 2.0, u)))
    return where(tiny, x, less * ratio)


def clip(x: GraphArray, low: Any = None, high: Any = None) -> GraphArray:
    """The element, or the nearer bound if it lies outside."""
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


# --- shapes


def reshape(x: GraphArray, shape: Any, copy: Any = None) -> GraphArray:
    """The array in another shape."""
    return x.reshaped(tuple(shape) if isinstance(shape, Sequence) else (shape,))


def expand_dims(x: GraphArray, axis: int = 0) -> GraphArray:
    """The array with one more axis of one element."""
    place = axis if axis >= 0 else axis + x.ndim + 1
    shape = (*x.shape[:place], 1, *x.shape[place:])
    if x.fill is not None:
        return x.reshaped(shape)
    return x.scope.emit("Unsqueeze", [x, x.scope.constant([place], np.int64)], x.dtype, shape)[0]


def permute_dims(x: GraphArray, axes: Sequence[int]) -> GraphArray:
    """The array with its axes in another order."""
    return x.transposed(axes)


def matrix_transpose(x: GraphArray) -> GraphArray:
    """The array with its last two axes exchanged."""
    return x.transposed([*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def concat(arrays: Sequence[GraphArray], axis: int = 0) -> GraphArray:
    """The arrays concatenated along an axis."""
    if len(arrays) == 1:
        return arrays[0]
    first = arrays[0]
    place = axis if axis >= 0 else axis + first.ndim
    total: Any = 0
    for array in arrays:
        total = total + array.shape[place]
    shape = (*first.shape[:place], total, *first.shape[place + 1 :])
    return first.scope.emit("Concat", arrays, first.dtype, shape, axis=place)[0]


def stack(arrays: Sequence[GraphArray], axis: int = 0) -> GraphArray:
    """The arrays along a new axis."""
    place = axis if axis >= 0 else axis + arrays[0].ndim + 1
    return concat([expand_dims(array, place) for array in arrays], place)


def broadcast_to(x: GraphArray, shape: Sequence[Dimension]) -> GraphArray:
    """The array in a larger shape."""
    if same_shape(shape, x.shape):
        return x
    if x.fill is not None:
        return GraphArray(x.scope, x.dtype, tuple(shape), fill=x.fill)
    return x.scope.emit("Expand", [x, x.scope.shape(tuple(shape))], x.dtype, shape)[0]


def flip(x: GraphArray, axis: int) -> GraphArray:
    """The array with an axis in the opposite order."""
    place = axis if axis >= 0 else axis + x.ndim
    return x[(*[slice(None)] * place, slice(None, None, -1))]


def roll(x: GraphArray, shift: int, axis: int) -> GraphArray:
    """The array with the elements shifted along an axis, the last elements to the front."""
    place = axis if axis >= 0 else axis + x.ndim
    before = (slice(None),) * place
    return concat([x[(*before, slice(-shift, None))], x[(*before, slice(None, -shift))]], place)


def take(x: GraphArray, indices: GraphArray, axis: int) -> GraphArray:
    """The slices at these places of an axis."""
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return x.scope.emit("Gather", [x, indices], x.dtype, shape, axis=axis)[0]


def take_along_axis(x: GraphArray, indices: GraphArray, axis: int = -1) -> GraphArray:
    """The elements at these places of an axis; other axes are broadcast."""
    place = axis if axis >= 0 else axis + x.ndim
    sizes = [n if k == place else x.shape[k] for k, n in enumerate(indices.shape)]
    whole = broadcast_to(indices, sizes)
    return x.scope.emit("GatherElements", [x, whole], x.dtype, sizes, axis=place)[0]


# --- reductions


def sum(  # noqa: A001
    x: GraphArray, axis: Any = None, keepdims: Any = False, dtype: Any = None
) -> GraphArray:
    """The sum over axes."""
    axes, shape = _reduced(x, axis, keepdims)
    if not axes:
        return x
    scope = x.scope
    rows = scope.constant(axes, np.int64)
    return scope.emit("ReduceSum", [x, rows], x.dtype, shape, keepdims=int(keepdims))[0]


def mean(x: GraphArray, axis: Any = None, keepdims: Any = False) -> GraphArray:
    """The mean over axes."""
    axes, _ = _reduced(x, axis, keepdims)
    count: Any = 1
    for place in axes:
        count = count * x.shape[place]
    return sum(x, axis, keepdims) / count


def _extreme(op_type: str, x: GraphArray, axis: Any = None, keepdims: Any = False) -> GraphArray:
    """The largest or smallest element over axes."""
    axes, shape = _reduced(x, axis, keepdims)
    scope, keep = x.scope, int(keepdims)
    if scope.opset < 18:
        return scope.emit(op_type, [x], x.dtype, shape, axes=axes, keepdims=keep)[0]
    return scope.emit(op_type, [x, scope.constant(axes, np.int64)], x.dtype, shape, keepdims=keep)[0]


max, min = partial(_extreme, "ReduceMax"), partial(_extreme, "ReduceMin")  # noqa: A001


def _reduced(x: GraphArray, axis: Any, keepdims: Any) -> tuple[list[int], list[Dimension]]:
    """The axes as a list, and the shape of the result."""
    given = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = [place % x.ndim for place in given]
    kept = [(k, 1 if k in axes else size) for k, size in enumerate(x.shape)]
    return axes, [size for k, size in kept if keepdims or k not in axes]
