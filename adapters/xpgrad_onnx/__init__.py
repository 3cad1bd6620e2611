"""xpgrad for ONNX: training operators for onnx's reference evaluator, and training graphs.

With `operators`, graphs with ONNX Runtime Training's gradient operators run wherever NumPy does, on xpgrad's
kernels. ONNX's own recurrent operators, convolutions and activations run on them too. `gradient_model` turns
an ONNX model into a graph that computes the gradients of its parameters.
"""

from xpgrad_onnx._gradient import gradient_model
from xpgrad_onnx._operators import DOMAIN as DOMAIN
from xpgrad_onnx._operators import operators

__all__ = ["gradient_model", "operators"]
