import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

rng = np.random.default_rng(0)
X, W, R = (rng.normal(size=s).astype(np.float32) for s in [(5, 2, 3), (1, 16, 3), (1, 16, 4)])
lengths = np.asarray([5, 2], dtype=np.int32)


def lstm(names, feeds, **attributes):
    node = helper.make_node("LSTM", names, ["Y", "Y_h", "Y_c"], hidden_size=4, **attributes)
    return ReferenceEvaluator(node).run(None, feeds)


feeds = {"X": X, "W": W, "R": R, "lengths": lengths}
Y, Y_h, _ = lstm(["X", "W", "R", "", "lengths"], feeds)
print("outputs past the end of the second sequence are 0:", not Y[2:, 0, 1].any())
print("its Y_h is its state after two steps:", np.array_equal(Y_h[0, 1], Y[1, 0, 1]))
plain = lstm(["X", "W", "R"], feeds)[0]
for attributes in ({"clip": 0.1}, {"input_forget": 1}, {"activations": ["Sigmoid", "Relu", "Relu"]}):
    changed = lstm(["X", "W", "R"], feeds, **attributes)[0]
    print(attributes, "changes the outputs:", not np.array_equal(changed, plain))
