import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

rng = np.random.default_rng(0)
lengths = np.asarray([5, 2], dtype=np.int32)


def run(operator, names, feeds, **attributes):
    node = helper.make_node(operator, names, ["Y", "Y_h"], hidden_size=4, **attributes)
    return ReferenceEvaluator(node).run(None, feeds)


others = {"GRU": [{"clip": 0.1}, {"activations": ["Sigmoid", "Relu"]}], "RNN": [{"clip": 0.1}]}
for operator, rows in (("GRU", 12), ("RNN", 4)):
    X, W, R = (rng.normal(size=s).astype(np.float32) for s in [(5, 2, 3), (1, rows, 3), (1, rows, 4)])
    feeds = {"X": X, "W": W, "R": R, "lengths": lengths}
    Y, Y_h = run(operator, ["X", "W", "R", "", "lengths"], feeds)
    print(operator, "outputs past the end of the second sequence are 0:", not Y[2:, 0, 1].any())
    print(operator, "its Y_h is its state after two steps:", np.array_equal(Y_h[0, 1], Y[1, 0, 1]))
    plain = run(operator, ["X", "W", "R"], feeds)[0]
    for attributes in others[operator]:
        changed = run(operator, ["X", "W", "R"], feeds, **attributes)[0]
        print(operator, attributes, "changes the outputs:", not np.array_equal(changed, plain))
