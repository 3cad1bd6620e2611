import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
for name in ("Softmax", "LogSoftmax"):
    node = helper.make_node(name, ["X"], ["Y"], axis=1)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3, 4]) for n in "XY"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    Y = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)])).run(
        None, {"X": X}
    )[0]
    shares = Y if name == "Softmax" else np.exp(Y)
    # opset 12: the input is made a matrix of 2 rows of 12 numbers, and each row has the sum 1
    print(f"{name}-11, axis=1, sums over all other axes:", shares.sum((1, 2)).round(4), "expected [1. 1.]")
