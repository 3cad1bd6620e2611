"""xpgrad for ONNX: training operators for onnx's reference evaluator, and training graphs.

With `operators`, ONNX Runtime Training's gradient operators run on xpgrad's kernels wherever NumPy does. So
do ONNX's own recurrent operators, convolutions and activations. `gradient_model` turns an ONNX model into a
graph that computes the gradients of its parameters; `training_model` turns it into a graph of one training
step. Both graphs run on these operators, or on any runtime.
"""

from xpgrad_onnx._gradient import gradient_model
from xpgrad_onnx._operators import DOMAIN as DOMAIN
from xpgrad_onnx._operators import operators
from xpgrad_onnx._training import constant_model, initial_values, training_model, with_parameters

__all__ = [
    "constant_model",
    "gradient_model",
    "initial_values",
    "operators",
    "training_model",
    "with_parameters",
]
