"""Training graphs by ONNX Runtime Training's generator, with their gradients in ONNX Runtime.

Wants onnxruntime-training 1.19.2, torch (its package imports it) and NumPy below 2::

    python make_training_graphs.py

writes `training_graphs.npz` beside this file: each graph's model as bytes, its inputs, and all gradients.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.training import artifacts

HERE = Path(__file__).parent
FLOAT = TensorProto.FLOAT
rng = np.random.default_rng(7)


def node(op_type, inputs, outputs, **attributes):
    domain = "com.microsoft" if op_type in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu") else ""
    return helper.make_node(op_type, inputs.split(), outputs.split(), domain=domain, **attributes)


def values(*shape):
    return (0.5 * rng.normal(size=shape)).astype(np.float32)


def model(nodes, inputs, output, constants):
    def info(name, shape):
        return helper.make_tensor_value_info(name, FLOAT, shape)

    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", [info(*i) for i in inputs.items()], [info(*output)], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


DENSE = [
    node("MatMul", "x W1", "m"),
    node("BiasGelu", "m b1", "g"),
    node("MatMul", "g W2", "m2"),
    node("Add", "m2 b2", "a"),
    node("Tanh", "a", "t"),
    node("MatMul", "t W3", "logits"),
]
DENSE_WEIGHTS = {
    "W1": values(5, 7),
    "b1": values(7),
    "W2": values(7, 6),
    "b2": values(6),
    "W3": values(6, 3),
}
MODELS = {
    "dense": model(DENSE, {"x": [4, 5]}, ("logits", [4, 3]), DENSE_WEIGHTS),
    "sequence": model(
        [
            node("MatMul", "x W1", "m"),
            node("Add", "m b1", "a"),
            node("Transpose", "a", "t", perm=[1, 0, 2]),
            node("Reshape", "t shape", "r"),
            node("Softmax", "r", "s", axis=1),
            node("Mul", "s r", "p"),
            node("FastGelu", "p b2", "f"),
            node("QuickGelu", "f", "q"),
            node("Concat", "q r", "c", axis=1),
            node("Gemm", "c W2 b3", "logits"),
        ],
        {"x": [4, 3, 5]},
        ("logits", [3, 3]),
        {
            "W1": values(5, 7),
            "b1": values(7),
            "shape": np.asarray([3, 28]),
            "b2": values(28),
            "W2": values(56, 3),
            "b3": values(3),
        },
    ),
}
LOSSES = {
    "dense": ("CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss"),
    "sequence": ("CrossEntropyLoss",),
}


def training_graph(source, loss):
    parameters = [i.name for i in source.graph.initializer if i.data_type == FLOAT]
    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(
            source,
            requires_grad=parameters,
            frozen_params=[],
            loss=getattr(artifacts.LossType, loss),
            artifact_directory=folder,
        )
        graph = onnx.load(f"{folder}/training_model.onnx")
    gradients = [f"{name}_grad" for name in parameters]
    graph.graph.output.extend(helper.make_tensor_value_info(name, FLOAT, None) for name in gradients)
    return graph, gradients


def feeds(graph, source):
    weights = {i.name: numpy_helper.to_array(i) for i in source.graph.initializer}
    for value in graph.graph.input:
        shape = [d.dim_value or 4 for d in value.type.tensor_type.shape.dim]
        kind = value.type.tensor_type.elem_type
        if value.name in weights:
            yield value.name, weights[value.name]
        elif kind == TensorProto.BOOL:
            yield value.name, np.asarray([True])
        elif kind == TensorProto.INT64:
            rows = source.graph.output[0].type.tensor_type.shape.dim[0].dim_value
            yield value.name, rng.integers(0, 3, rows)
        else:
            array = values(*shape)
            yield value.name, 1 / (1 + np.exp(-array)) if value.name == "target" else array


arrays = {}
for name, source in MODELS.items():
    for loss in LOSSES[name]:
        graph, gradients = training_graph(source, loss)
        inputs = dict(feeds(graph, source))
        payload = graph.SerializeToString()
        session = onnxruntime.InferenceSession(payload, providers=["CPUExecutionProvider"])
        outputs = [o.name for o in session.get_outputs() if not o.name.endswith(".out")]
        results = session.run(outputs, inputs)
        case = f"{name}-{loss}"
        arrays[f"{case}/model"] = np.frombuffer(payload, dtype=np.uint8)
        arrays |= {f"{case}/in/{k.replace('/', '|')}": v for k, v in inputs.items()}
        arrays |= {f"{case}/out/{k.replace('/', '|')}": v for k, v in zip(outputs, results, strict=True)}
        print(case, outputs)

# the training graph of a convolutional classifier, conv2d_relu.onnx: its gradients
graph = onnx.load(HERE / "conv2d_relu.onnx")
with np.load(HERE / "conv2d_relu.npz") as z:
    inputs = {key[3:]: z[key] for key in z.files if key.startswith("in_")}
names = [i.removesuffix(".accumulation.buffer") for i in inputs if i.endswith(".accumulation.buffer")]
graph.graph.output.extend(helper.make_tensor_value_info(name, FLOAT, None) for name in names)
session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
arrays |= {f"conv2d_relu/out/{k}": v for k, v in zip(names, session.run(names, inputs), strict=True)}


def kernel(case, op_type, inputs, outputs, opset=17, **attributes):
    """One node of ONNX Runtime's own domain on these inputs."""

    def info(name, array):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, array.shape)

    one = helper.make_node(op_type, list(inputs), list(outputs), domain="com.microsoft", **attributes)
    inputs = {name: array for name, array in inputs.items() if array is not None}
    graph = helper.make_graph(
        [one],
        "kernel",
        [info(name, array) for name, array in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    payload = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(payload, providers=["CPUExecutionProvider"])
    results = session.run(None, {name: array.copy() for name, array in inputs.items()})
    arrays[f"{case}/model"] = np.frombuffer(payload, dtype=np.uint8)
    arrays.update({f"{case}/in/{k}": v for k, v in inputs.items()})
    arrays.update({f"{case}/out/{k}": v for k, v in zip(outputs, results, strict=True)})


probabilities = values(5, 4, 3) ** 2
log_prob = np.log(probabilities / probabilities.sum(axis=1, keepdims=True))
labels = rng.integers(0, 4, (5, 3))
for reduction in ("mean", "sum", "none"):
    cotangent = values(5, 3) if reduction == "none" else np.asarray(1.7, dtype=np.float32)
    base = {"dY": cotangent, "log_prob": log_prob, "labels": labels}
    op = "SoftmaxCrossEntropyLossGrad"
    kernel(f"loss-{reduction}", op, base, {"dX": FLOAT}, reduction=reduction)
    weighted = base | {"weights": np.abs(values(4))}
    kernel(f"loss-{reduction}-weights", op, weighted, {"dX": FLOAT}, reduction=reduction, ignore_index=2)
X, bias, other = values(6, 5), values(5), values(6, 5)
kernel("biasgelu", "BiasGelu", {"X": X, "bias": bias}, {"Y": FLOAT})
kernel("fastgelu", "FastGelu", {"X": X, "bias": bias}, {"Y": FLOAT})
kernel("biasgelu-grad", "BiasGeluGrad_dX", {"dY": other, "X": X, "bias": bias}, {"dX": FLOAT})
kernel("biasfastgelu-grad", "BiasFastGeluGrad_dX", {"dY": other, "X": X, "bias": bias}, {"dX": FLOAT})
kernel("gelu", "Gelu", {"X": X}, {"Y": FLOAT})
kernel("quickgelu", "QuickGelu", {"X": X}, {"Y": FLOAT}, alpha=0.9)
kernel("scale-up", "Scale", {"X": X, "scale": np.asarray(3.0, dtype=np.float32)}, {"Y": FLOAT}, scale_down=0)
kernel("scale-down", "Scale", {"X": X, "scale": np.asarray([3], dtype=np.int64)}, {"Y": FLOAT}, scale_down=1)
for flag in (True, False):
    operands = {"buffer": X, "value": other, "overwrite": np.asarray([flag])}
    outputs = {"updated": TensorProto.BOOL, "accumulated": FLOAT}
    kernel(f"accumulate-{flag}", "InPlaceAccumulatorV2", operands, outputs)
shapes = {"a_shape": np.asarray([4, 1, 3, 1]), "b_shape": np.asarray([2, 1, 5])}
axes = dict.fromkeys(("a_axes", "b_axes"), TensorProto.INT64)
kernel("broadcast", "BroadcastGradientArgs", shapes, axes)

np.savez_compressed(HERE / "training_graphs.npz", **arrays)
