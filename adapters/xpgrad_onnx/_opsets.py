"""Older models, brought to an opset that the rules know."""

from __future__ import annotations

import onnx
from onnx import helper, version_converter

from xpgrad_onnx._scopes import all_nodes

_OLDEST = 7  # the oldest opset that onnx's converter and the rules know
_NEEDED = 13  # the first version with the axes of ReduceSum, Squeeze and Unsqueeze as an input
_WANTED = 16  # the first version of ScatterElements with addition
_NEW_SCAN = 9  # the first version of Scan without a batch axis
_NEW_RESIZE = 11  # the first version of Resize with a choice of positions
_TARGET = 18  # the first version with the axes of every reduction as an input


def opset_of(model: onnx.ModelProto) -> int | None:
    """The version of ai.onnx that a model imports."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)


def converted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in a version that the rules know, by onnx's converter.

    A version in which only some gradients are missing stays if the converter fails.
    """
    version = opset_of(model)
    if version is None or version < _OLDEST:
        raise ValueError(
            f"gradient_model: the model's opset is {version or 'none'}, expected {_OLDEST} or later: "
            "export the model again"
        )
    _forget_no_sizes(model)
    if version >= _WANTED:
        return model
    if version < _NEW_SCAN and any(node.op_type == "Scan" for node in all_nodes(model.graph.node)):
        raise ValueError(
            f"gradient_model: the model has Scan and the opset {version}, expected opset {_NEW_SCAN} or "
            "later: before, Scan had a batch axis, which onnx's converter drops"
        )
    try:
        newer = version_converter.convert_version(model, _TARGET)
    except Exception as error:  # onnx's converter raises several kinds
        if version >= _NEEDED:
            return model
        reason = " ".join(str(error).split())
        raise ValueError(
            f"gradient_model: the model's opset is {version}, expected {_NEEDED} or later, and onnx's "
            f"converter stops: {reason}"
        ) from error
    if version < _NEW_RESIZE:
        _keep_positions(newer)
    return newer


def _keep_positions(model: onnx.ModelProto) -> None:
    """Give the nodes of Resize the meaning of older versions, which the converter drops."""
    for node in all_nodes(model.graph.node):
        if node.op_type == "Resize" and node.domain in ("", "ai.onnx"):
            known = {attribute.name for attribute in node.attribute}
            older = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            node.attribute.extend(helper.make_attribute(k, v) for k, v in older.items() if k not in known)


def _forget_no_sizes(model: onnx.ModelProto) -> None:
    """Remove -1 and "?", which some exporters write for unknown sizes; onnx would take them for one size."""
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_value < 0 or size.dim_param == "?":
                size.Clear()
