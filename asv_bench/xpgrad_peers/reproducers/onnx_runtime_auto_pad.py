import numpy as np
import onnxruntime
from onnx import TensorProto, helper

rng = np.random.default_rng(0)
X, W, dY = (rng.normal(size=s).astype(np.float32) for s in [(1, 2, 6, 5), (3, 2, 3, 3), (1, 3, 6, 5)])


def gradients(**padding):
    info = helper.make_tensor_value_info
    node = helper.make_node(
        "ConvGrad", ["dY", "X", "W"], ["dX", "dW"], domain="com.microsoft", kernel_shape=[3, 3], **padding
    )
    values = [[info(n, TensorProto.FLOAT, None) for n in names] for names in (node.input, node.output)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", *values), opset_imports=opsets, ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"dY": dY, "X": X, "W": W})


same = gradients(auto_pad="SAME_UPPER")
spelled_out = gradients(pads=[1, 1, 1, 1])  # the same padding, in numbers
for name, a, b in zip(("dX", "dW"), same, spelled_out):
    print(f"{name}: off by {np.abs(a - b).max() / np.abs(b).max():.0%} of its largest value")
