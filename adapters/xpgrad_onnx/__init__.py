"""xpgrad for ONNX: training operators for onnx's reference evaluator, and training graphs.

`operators` makes graphs with ONNX Runtime Training's gradient operators run wherever NumPy does, with
xpgrad's kernels; ONNX's own recurrent operators, convolutions and activations run on them too.
"""

from xpgrad_onnx._operators import DOMAIN, operators

__all__ = ["DOMAIN", "operators"]
