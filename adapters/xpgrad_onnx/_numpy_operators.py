"""ONNX's own operators, computed by NumPy.

They replace operators that onnx's evaluator lacks, gets wrong, or computes with copies or loops in Python.
For integers, half precision and older forms they return `NotImplemented`, so onnx's own implementation runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import erf, prod
from typing import Any

import numpy as np

from xpgrad import engine as engines
from xpgrad.engine.formulas.special import tail_ratio
from xpgrad.engine.process.memory import COMPUTED, result_array
from xpgrad.engine.process.sharing import PRODUCT
from xpgrad_onnx._call import NodeCall, define


def _is_plain(*arrays: np.ndarray) -> bool:
    """Whether all are float32, or all float64: NumPy then rounds as onnx's evaluator does."""
    return arrays[0].dtype in COMPUTED and all(array.dtype == arrays[0].dtype for array in arrays)


# --- products and sums --------------------------------------------------------------------------------------


@define("", "Gemm", "A B C?", "Y", "alpha beta transA transB broadcast")
def _gemm(call: NodeCall) -> Any:
    """Onnx's own copies the product twice: for a factor, which is nearly always 1, and for its own type."""
    arrays, (alpha, beta) = call.inputs, (call.attributes[name] for name in ("alpha", "beta"))
    if call.opset < 7 or not _is_plain(*arrays.values()):
        return NotImplemented
    A, B = (arrays[name].T if call.attributes[f"trans{name}"] else arrays[name] for name in "AB")
    Y = _product(call.operator, A, B)
    if alpha != 1:
        Y *= alpha
    if "C" in arrays and beta != 0:
        Y += arrays["C"] if beta == 1 else beta * arrays["C"]
    return (Y,)


@define("", "MatMul", "A B", "Y")
def _matmul(call: NodeCall) -> Any:
    A, B = call.inputs["A"], call.inputs["B"]
    return (_product(call.operator, A, B),) if _is_plain(A, B) else NotImplemented


def _product(operator: str, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Multiply with the kernels' products into reused memory; small products with NumPy, which starts faster.

    NumPy's threads would wait for the next large product in a busy loop, and block the kernels' threads.
    """
    if min(A.ndim, B.ndim) < 2:
        return np.asarray(np.matmul(A, B))
    if A.shape[-1] != B.shape[-2]:
        raise ValueError(
            f"{operator}: A has {A.shape[-1]} columns, expected as many as B has rows, {B.shape[-2]}"
        )
    if B.ndim == 2 and A.ndim > 2:  # one product for the whole batch
        Y = _product(operator, np.reshape(A, (prod(A.shape[:-1]), A.shape[-1])), B)
        return np.reshape(Y, (*A.shape[:-1], B.shape[1]))
    if max(A.size * B.shape[-1], B.size * A.shape[-2]) < PRODUCT:
        return np.matmul(A, B)
    return engines.choose(np, [A, B], operator).matmul(A, B)


@define("", "Sum", "arrays*", "Y")
def _sum(call: NodeCall) -> Any:
    """Onnx's own starts from zero, and copies the result."""
    first, *others = call.inputs["arrays"]
    if not _is_plain(first, *others):
        return NotImplemented
    return (reduce(_add, others, first) if others else first.copy(),)


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.add(a, b, out=result_array(np.broadcast_shapes(a.shape, b.shape), a.dtype))


# --- elements -----------------------------------------------------------------------------------------------


@define("", "Pow", "X exponent", "Y")
def _power(call: NodeCall) -> Any:
    """Onnx's own computes the power of each element even for squares."""
    X, exponent = call.inputs["X"], call.inputs["exponent"]
    if not _is_plain(X) or exponent.size != 1 or exponent.ndim > X.ndim:
        return NotImplemented
    return (X ** exponent.item(),)


@define("", "Erf", "X", "Y")
def _erf(call: NodeCall) -> tuple:
    """Onnx's own loops in Python, and rounds float64 to float32. This formula is exact for float32 only."""
    X = call.inputs["X"]
    if X.dtype != np.float32:
        return (np.vectorize(erf, otypes=[np.float64])(X).astype(X.dtype),)
    row, Y = np.reshape(X, -1), np.empty(X.size, dtype=X.dtype)
    for first in range(0, X.size, _BLOCK):
        x = row[first : first + _BLOCK].astype(np.float64)
        z = np.minimum(np.abs(x) * 2**0.5, 40)
        y = np.copysign(1 - 2 * np.exp(-z * z / 2) * tail_ratio(np, z), x)
        Y[first : first + _BLOCK] = np.where(z < 1e-6, 2 / np.pi**0.5 * x, y)
    return (np.reshape(Y, X.shape),)


_BLOCK = 1 << 13  # so many elements that intermediate results stay in a near cache


# --- pooling ------------------------------------------------------------------------------------------------

_POOL = "auto_pad ceil_mode dilations kernel_shape pads strides"


@define("", "MaxPool", "X", "Y indices", f"{_POOL} storage_order")
def _max_pool(call: NodeCall) -> tuple:
    """Onnx's own loops in Python, returns wrong indices for strides of 1, and fails for volumes."""
    X, reads = call.inputs["X"], _reads(call)
    lowest = np.iinfo(X.dtype).min if X.dtype.kind in "iu" else -np.inf
    if "indices" not in call.wanted:
        return (_pooled(X, reads, lowest, np.maximum),)
    windows, places = X, np.zeros((), dtype=np.int64)
    rank, inside = len(reads), np.ones((), dtype=bool)
    columns = bool(call.attributes.get("storage_order"))
    for k, read in enumerate(reads):  # each axis becomes two: windows, and the places within one
        size = X.shape[2 + k]
        memory = int(np.prod(X.shape[2 : k + 2] if columns else X.shape[k + 3 :]))
        windows = np.take(windows, np.clip(read, 0, size - 1), axis=2 + 2 * k)
        inside = inside[..., None, None] & ((read >= 0) & (read < size))
        places = places[..., None, None] + read * memory
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    inside, places = np.transpose(inside, order), np.transpose(places, order)
    windows = np.transpose(windows, [0, 1, *(k + 2 for k in order)])
    windows = np.where(inside, windows, np.asarray(lowest, dtype=X.dtype))
    flat = (*windows.shape[: 2 + rank], prod(windows.shape[2 + rank :]))
    first = np.argmax(np.reshape(windows, flat), axis=-1)[..., None]
    # padding is as low as the lowest number: where that is the largest, the first place inside counts
    real = np.reshape(np.broadcast_to(inside, windows.shape), flat)
    first = np.where(np.take_along_axis(real, first, -1), first, np.argmax(real, axis=-1)[..., None])
    Y = np.take_along_axis(np.reshape(windows, flat), first, -1)[..., 0]
    places = np.broadcast_to(places, windows.shape)
    indices = np.take_along_axis(np.reshape(places, flat), first, -1)[..., 0]
    planes = np.reshape(np.arange(X.shape[0] * X.shape[1]), (*X.shape[:2], *[1] * rank))
    return Y, indices + planes * int(np.prod(X.shape[2:]))


@define("", "AveragePool", "X", "Y", f"{_POOL} count_include_pad")
def _average_pool(call: NodeCall) -> Any:
    """Onnx's own loops in Python, and moves the windows if ceil_mode adds more than one place."""
    X, reads = call.inputs["X"], _reads(call)
    if not _is_plain(X):
        return NotImplemented
    count = np.ones((), dtype=X.dtype)
    for k, read in enumerate(reads):
        count = np.multiply.outer(count, np.sum(_counts(call, k, read), axis=1, dtype=X.dtype))
    return (_pooled(X, reads, 0, np.add) / count,)


def _counts(call: NodeCall, axis: int, read: np.ndarray) -> np.ndarray:
    """The places that an average counts along an axis."""
    size = call.inputs["X"].shape[2 + axis]
    if not call.attributes.get("count_include_pad"):
        return (read >= 0) & (read < size)
    if call.attributes.get("auto_pad", "NOTSET").startswith("SAME"):
        return np.ones(read.shape, dtype=bool)
    pads = call.attributes.get("pads", [0] * 2 * (axis + 1))
    return read < size + pads[len(pads) // 2 + axis]  # not the places that ceil_mode adds


@define("", "LpPool", "X", "Y", f"{_POOL} p")
def _lp_pool(call: NodeCall) -> Any:
    """Onnx's own loops in Python."""
    X, p = call.inputs["X"], call.attributes["p"]
    if not _is_plain(X):
        return NotImplemented
    return (_pooled(np.abs(X) ** p, _reads(call), 0, np.add) ** (1 / p),)


@define("", "GlobalLpPool", "X", "Y", "p")
def _global_lp_pool(call: NodeCall) -> tuple:
    """Onnx's evaluator has no GlobalLpPool."""
    X, p = call.inputs["X"], call.attributes["p"]
    total = np.sum(np.abs(X) ** p, axis=tuple(range(2, X.ndim)), keepdims=True)
    return ((total ** (1 / p)).astype(X.dtype, copy=False),)


@define("", "GlobalMaxPool", "X", "Y")
def _global_max_pool(call: NodeCall) -> tuple:
    """Onnx's own always takes the maximum over two axes."""
    X = call.inputs["X"]
    return (np.max(X, axis=tuple(range(2, X.ndim)), keepdims=True),)


def _pooled(
    X: np.ndarray, reads: Sequence[np.ndarray], outside: float, combine: Callable[..., np.ndarray]
) -> np.ndarray:
    """Combine the elements of each window, one axis after the other."""
    for k, read in enumerate(reads):
        axis = 2 + k
        before = max(0, -int(np.min(read, initial=0)))
        after = max(0, int(np.max(read, initial=0)) + 1 - X.shape[axis])
        if before or after:
            around = [(before, after) if k == axis else (0, 0) for k in range(X.ndim)]
            X = np.pad(X, around, constant_values=np.asarray(outside, dtype=X.dtype))
        step = int(read[1, 0] - read[0, 0]) if len(read) > 1 else 1
        starts = [int(first) + before for first in (read[0] if len(read) else [])]
        length = (len(read) - 1) * step + 1
        parts = [X[(slice(None),) * axis + (slice(start, start + length, step),)] for start in starts]
        X = reduce(combine, parts)
    return X if X.base is None else X.copy()  # windows of one place are a view of the input


def _reads(call: NodeCall) -> list[np.ndarray]:
    """The places that windows read along each spatial axis: a row for each window, a column for a place."""
    X = call.inputs["X"]
    return [_read_places(call, k, X.ndim - 2, X.shape[2 + k]) for k in range(X.ndim - 2)]


def _read_places(call: NodeCall, axis: int, rank: int, size: int) -> np.ndarray:
    """The same for one axis of a size."""
    attributes = call.attributes
    stride, dilation = (attributes.get(name, [1] * rank)[axis] for name in ("strides", "dilations"))
    kernel, pads = attributes["kernel_shape"][axis], attributes.get("pads", [0] * 2 * rank)
    reach, auto_pad = (kernel - 1) * dilation + 1, attributes.get("auto_pad", "NOTSET")
    if auto_pad.startswith("SAME"):
        count = -(-size // stride)
        whole = max((count - 1) * stride + reach - size, 0)
        before = whole // 2 if auto_pad == "SAME_UPPER" else whole - whole // 2
    else:
        before, after = (pads[axis], pads[axis + rank]) if auto_pad == "NOTSET" else (0, 0)
        rest = size + before + after - reach
        up = bool(attributes.get("ceil_mode"))
        count = (-(-rest // stride) if up else rest // stride) + 1
        if up and (count - 1) * stride >= size + before:  # it would begin in the padding
            count -= 1
    return np.add.outer(np.arange(count) * stride - before, np.arange(kernel) * dilation)


# --- places -------------------------------------------------------------------------------------------------


@define("", "GatherElements", "data indices", "Y", "axis")
def _gather_elements(call: NodeCall) -> tuple:
    """Onnx's own reads from axes of at most 64 elements."""
    X, indices, axis = call.inputs["data"], call.inputs["indices"], call.attributes.get("axis", 0)
    axis %= X.ndim
    part = tuple(slice(None) if k == axis else slice(0, n) for k, n in enumerate(indices.shape))
    return (np.take_along_axis(X[part], indices, axis),)


_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@define("", "ScatterElements", "data indices updates", "Y", "axis reduction")
def _scatter_elements(call: NodeCall) -> tuple:
    """Onnx's own loops in Python."""
    indices, axis = call.inputs["indices"], call.attributes["axis"] % call.inputs["data"].ndim
    places = list(np.ogrid[tuple(map(slice, indices.shape))])
    places[axis] = indices
    return (_scattered(call, tuple(places)),)


@define("", "ScatterND", "data indices updates", "Y", "reduction")
def _scatter_nd(call: NodeCall) -> tuple:
    """Onnx's own loops in Python."""
    return (_scattered(call, tuple(np.moveaxis(call.inputs["indices"], -1, 0))),)


def _scattered(call: NodeCall, places: tuple[np.ndarray, ...]) -> np.ndarray:
    Y, reduction = call.inputs["data"].copy(), call.attributes.get("reduction", "none")
    if reduction == "none":
        Y[places] = call.inputs["updates"]
    else:
        _REDUCTIONS[reduction].at(Y, places, call.inputs["updates"])
    return Y
