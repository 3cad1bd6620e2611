"""The sLSTM's weights in the layouts of `xlstm` and of FlashRNN, which have axes for heads.

Our layout, called ONNX's, has R (4H, H / k) and B (4H,), rows by gate i f z o, then by head. FlashRNN has the
same numbers in R (4, k, H / k, H / k) and b (4, k, H / k). A cell of `xlstm` with the plain backend has
``_recurrent_kernel_`` (k, 4H/k, H/k), rows by gate, and our ``_bias_`` (4H,); with its CUDA backend the
kernel is transposed, (k, H/k, 4H/k), and the bias is sorted by head, then by gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xpgrad._operators.arguments import check_arrays, check_choice, check_rank, check_shape
from xpgrad._recurrent.cell_layouts import check_names

__all__ = ["LAYOUTS", "convert_slstm"]

_NAMES = {
    "onnx": ("W", "R", "B"),
    "flashrnn": (None, "R", "b"),
    "xlstm": (None, "_recurrent_kernel_", "_bias_"),
}
LAYOUTS = tuple(_NAMES)
_GATES = 4


def convert_slstm(parameters: Mapping[str, Any], source: str, target: str) -> dict[str, Any]:
    """The parameters of an sLSTM, or their gradients, in another layout; see `convert`."""
    check_choice("convert", "source", source, LAYOUTS)
    check_choice("convert", "target", target, LAYOUTS)
    given = {name: array for name, array in parameters.items() if array is not None}
    check_names(given, [name for name in _NAMES[source] if name], source)
    if not given:
        return {}
    xp = check_arrays("convert", given)
    if "W" in given and target != "onnx":
        raise ValueError(f"convert: parameters has 'W', expected none for the target {target!r}: it has no W")
    _, weight, bias = _NAMES[source]
    R, heads = _read_weight(xp, given.get(weight or ""), weight, source)
    B = _read_bias(xp, given.get(bias or ""), bias, source, R, given)
    if target == "flashrnn" and not heads and B is not None:
        raise ValueError(f"convert: parameters has only {bias}, expected {weight} too, which tells the heads")
    _, weight, bias = _NAMES[target]
    found = {weight: _write_weight(xp, R, target), bias: B}
    if target == "flashrnn" and B is not None:
        found[bias] = xp.reshape(B, (_GATES, heads, B.shape[0] // (_GATES * heads)))
    result = {"W": given["W"]} if "W" in given else {}
    return result | {name: array for name, array in found.items() if name and array is not None}


def _read_weight(xp: Any, R: Any, name: Any, source: str) -> tuple[Any, int]:
    """R (4, k, H / k, H / k) by gate, head, row and column, and k; None and 0 for None."""
    if R is None:
        return None, 0
    if source == "onnx":
        check_rank("convert", name, R, "4H, H/k")
        rows, width = R.shape
        heads = rows // (_GATES * width) if width else 0
        check_shape("convert", name, R, "4H, H/k", (_GATES * heads * width, width))
        return xp.reshape(R, (_GATES, heads, width, width)), heads
    if source == "flashrnn":
        check_rank("convert", name, R, "4, k, H/k, H/k")
        check_shape("convert", name, R, "4, k, H/k, H/k", (_GATES, R.shape[1], R.shape[2], R.shape[2]))
        return R, R.shape[1]
    check_rank("convert", name, R, "k, 4H/k, H/k")
    heads, rows, columns = R.shape
    if rows * _GATES == columns:  # the layout of the CUDA backend
        parted = xp.reshape(R, (heads, rows, _GATES, rows))
        return xp.permute_dims(parted, (2, 0, 3, 1)), heads
    check_shape("convert", name, R, "k, 4H/k, H/k", (heads, _GATES * columns, columns))
    return xp.permute_dims(xp.reshape(R, (heads, _GATES, columns, columns)), (1, 0, 2, 3)), heads


def _read_bias(xp: Any, B: Any, name: Any, source: str, R: Any, given: Mapping[str, Any]) -> Any:
    """B (4H,), by gate and then by head; None for None."""
    if B is None:
        return None
    if source == "flashrnn":
        check_rank("convert", name, B, "4, k, H/k")
        shape = (_GATES, B.shape[1], B.shape[2]) if R is None else (_GATES, R.shape[1], R.shape[2])
        check_shape("convert", name, B, "4, k, H/k", shape)
        return xp.reshape(B, (B.shape[0] * B.shape[1] * B.shape[2],))
    check_rank("convert", name, B, "4H")
    if R is not None:
        check_shape("convert", name, B, "4H", (_GATES * R.shape[1] * R.shape[2],))
    if source == "onnx":
        return B
    weight = given.get("_recurrent_kernel_")
    if weight is not None and weight.shape[1] * _GATES == weight.shape[2]:
        heads, width = R.shape[1], R.shape[2]
        return xp.reshape(xp.permute_dims(xp.reshape(B, (heads, _GATES, width)), (1, 0, 2)), (B.shape[0],))
    return B


def _write_weight(xp: Any, R: Any, target: str) -> Any:
    if R is None or target == "flashrnn":
        return R
    _, heads, width, _ = R.shape
    if target == "onnx":
        return xp.reshape(R, (_GATES * heads * width, width))
    return xp.reshape(xp.permute_dims(R, (1, 0, 2, 3)), (heads, _GATES * width, width))
