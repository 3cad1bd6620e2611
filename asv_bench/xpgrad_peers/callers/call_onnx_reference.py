"""onnx.reference: only forwards, each as a model of one node."""

from .case import Job
from .onnx_model import one_node

__all__ = ["onnx_reference"]


def onnx_reference(job: Job) -> dict:
    """Compute a case's outputs."""
    from onnx.reference import ReferenceEvaluator

    made, feeds, outputs = one_node(job)
    return dict(zip(outputs, ReferenceEvaluator(made).run(None, feeds)))  # noqa: B905
