import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

rng = np.random.default_rng(0)
X = rng.normal(size=(1, 3, 4)).astype(np.float32)  # three channels
W = rng.normal(size=(3, 1, 2)).astype(np.float32)  # one kernel for each channel
B = np.asarray([1, 20, 300], dtype=np.float32)
node = helper.make_node("ConvTranspose", ["X", "W", "B"], ["Y"], group=3)
Y = ReferenceEvaluator(node).run(None, {"X": X, "W": W, "B": B})[0]
for c in range(3):
    bias = Y[0, c] - np.convolve(X[0, c], W[c, 0])
    print(f"channel {c}: bias {bias.mean():.1f}, given {B[c]:.1f}")
