"""Write the files of the page: a small GRU, one step of its training, and the values of the first step.

    python examples/browser/make_models.py

The GRU gets the past of a wave and says how it goes on. The step has ONNX's own operators only, so
onnxruntime-web trains it in a browser without anything of ours.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from xpgrad_onnx import constant_model, initial_values, training_model


def forecaster(hidden: int = 16, seed: int = 0) -> onnx.ModelProto:
    """A GRU over x (T, N, 1), and a layer on its last state."""
    rng = np.random.default_rng(seed)
    shapes = {"W": (1, 3 * hidden, 1), "R": (1, 3 * hidden, hidden), "B": (1, 6 * hidden), "V": (hidden, 1)}
    weights = {name: rng.uniform(-1, 1, shape) / np.sqrt(hidden) for name, shape in shapes.items()}
    weights["v"] = np.zeros(1)
    tensors = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()]
    nodes = [
        helper.make_node(
            "GRU", ["x", "W", "R", "B"], ["", "state"], hidden_size=hidden, linear_before_reset=1
        ),
        helper.make_node("Squeeze", ["state", "axis"], ["features"]),
        helper.make_node("Gemm", ["features", "V", "v"], ["next"]),
    ]
    graph = helper.make_graph(
        nodes,
        "forecaster",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["time", "batch", 1])],
        [helper.make_tensor_value_info("next", onnx.TensorProto.FLOAT, ["batch", 1])],
        [*tensors, numpy_helper.from_array(np.asarray([0]), "axis")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def models() -> dict[str, onnx.ModelProto]:
    """The files by name."""
    model = forecaster()
    step = training_model(model, "mse", optimizer="adamw")
    values = constant_model(initial_values(model, step))
    return {"forecaster.onnx": model, "step.onnx": step, "values.onnx": values}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where the files go")
    folder = parser.parse_args().folder
    for name, made in models().items():
        onnx.save(made, folder / name)
        print(folder / name)
