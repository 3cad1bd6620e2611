"""Models of one node for ONNX Runtime and onnx's reference evaluator.

They are made by a file of xpgrad that needs no xpgrad; `matrix` puts its folder on the path.
"""

from typing import Any

import onnx_node
from onnx_node import model

from .case import Absent, Job

__all__ = ["attributes_of", "model", "one_node"]


def one_node(job: Job) -> tuple[Any, dict, list]:
    """ONNX's own operator for a case: a model of it, its inputs, and the names of its outputs."""
    try:
        return onnx_node.one_node(job.kernel, {**job.arguments, **job.integers}, job.attributes, job.pads)
    except NotImplementedError as reason:
        raise Absent(str(reason)) from reason


def attributes_of(job: Job) -> dict:
    """The attributes in ONNX's form."""
    return onnx_node.attributes_of(job.kernel, job.arguments, job.attributes, job.pads)
