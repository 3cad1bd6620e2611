import numpy as np
import onnxruntime
from onnx import TensorProto, helper

rng = np.random.default_rng(0)
T, N, I, H = 3, 2, 4, 5
shapes = {"X": (T, N, I), "W": (1, 4 * H, I), "R": (1, 4 * H, H), "B": (1, 8 * H), "P": (1, 3 * H)}
shapes |= {"h": (1, N, H), "c": (1, N, H)}
a = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
weights = rng.normal(size=(T, 1, N, H))  # the loss is the sum of weights times outputs


def run(op, inputs, outputs, feeds):
    info = helper.make_tensor_value_info
    node = helper.make_node(op, inputs, outputs, domain="com.microsoft", hidden_size=H)
    values = [[info(n, TensorProto.FLOAT, None) for n in names if n] for names in (inputs, outputs)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], op, *values), opset_imports=opsets, ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(outputs, session.run(outputs, {n: feeds[n] for n in inputs if n})))


names = ["X", "W", "R", "B", "", "h", "c", "P"]
saved = ["Y", "Yh", "Yc", "C", "iofc"]
forward = lambda given: run("LSTMTraining", names, saved, given)
feeds = a | forward(a) | {"dY": weights.astype(np.float32), "dh": 0 * a["h"], "dc": 0 * a["c"]}
inputs = ["X", "W", "R", "", "h", "c", "Y", "C", "iofc", "dY", "dh", "dc"]
grads = run("LSTMGrad", inputs, ["dX", "dW", "dR", "dB", "dh0", "dc0", "dP"], feeds)

for name, gradient in (("X", "dX"), ("W", "dW"), ("R", "dR"), ("P", "dP"), ("h", "dh0"), ("c", "dc0")):
    differences = np.zeros(a[name].shape)
    for index in np.ndindex(a[name].shape):
        moved = [a[name].copy(), a[name].copy()]
        moved[0][index] += 0.01
        moved[1][index] -= 0.01
        ahead, behind = (np.sum(weights * forward(a | {name: m})["Y"]) for m in moved)
        differences[index] = (ahead - behind) / 0.02
    error = np.abs(grads[gradient] - differences).max() / np.abs(differences).max()
    print(f"{gradient}: off by {error:.1%} of its largest value")
