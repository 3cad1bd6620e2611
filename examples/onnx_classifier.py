"""An LSTM classifier in ONNX, trained with only NumPy and onnx.

From 33 years of sunspot numbers it predicts whether the next year will have more spots or fewer. The model is
an ONNX model; `gradient_model` writes its training graph, and onnx's reference evaluator runs that with
xpgrad's operators. The trained weights go back into the model's initializers, so any ONNX runtime can run it.

    python examples/onnx_classifier.py --steps 300 --save sunspots.onnx
"""

import argparse
from importlib import resources

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from xpgrad_onnx import gradient_model, operators

WINDOW = 33  # three cycles of the sun
SPLIT = 1900  # train before, test from here on


def sunspots() -> tuple[np.ndarray, np.ndarray]:
    """Years and their numbers: the file that comes with xpgrad."""
    text = resources.files("xpgrad").joinpath("data", "sunspots.csv").read_text(encoding="utf-8")
    rows = [line.split(",") for line in text.splitlines() if line[:1].isdigit()]
    return np.asarray([int(y) for y, _ in rows]), np.asarray([float(n) for _, n in rows])


def windows(years: np.ndarray, numbers: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Inputs (T, N, 1) and labels (N,) of the years to train on and of those to test on."""
    scaled = (np.sqrt(numbers) / 7 - 1).astype(np.float32)
    last = np.arange(WINDOW - 1, len(years) - 1)
    x = np.stack([scaled[k - WINDOW + 1 : k + 1] for k in last], axis=1)[:, :, None]
    labels = (numbers[last + 1] > numbers[last]).astype(np.int64)
    before = years[last + 1] < SPLIT
    return {"train": (x[:, before], labels[before]), "test": (x[:, ~before], labels[~before])}


def classifier(hidden: int = 16, seed: int = 0) -> onnx.ModelProto:
    """An LSTM, and a layer on its last state."""
    rng = np.random.default_rng(seed)
    shapes = {"W": (1, 4 * hidden, 1), "R": (1, 4 * hidden, hidden), "B": (1, 8 * hidden), "V": (hidden, 2)}
    weights = {name: rng.uniform(-1, 1, shape) / np.sqrt(hidden) for name, shape in shapes.items()}
    weights["v"] = np.zeros(2)
    weights["B"][:, 2 * hidden : 3 * hidden] += 1  # remember, at first
    tensors = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()]
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R", "B"], ["", "state"], hidden_size=hidden),
        helper.make_node("Squeeze", ["state", "axis"], ["features"]),
        helper.make_node("Gemm", ["features", "V", "v"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sunspots",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["T", "N", 1])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["N", 2])],
        [*tensors, numpy_helper.from_array(np.asarray([0]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return model


def accuracy(model: onnx.ModelProto, x: np.ndarray, labels: np.ndarray) -> float:
    """The share of right answers."""
    [scores] = ReferenceEvaluator(model, new_ops=operators()).run(None, {"x": x})
    return float(np.mean(scores.argmax(axis=1) == labels))


def train(
    model: onnx.ModelProto, x: np.ndarray, labels: np.ndarray, steps: int, rate: float = 0.01
) -> list[float]:
    """Adam on all of the data at once; the weights go back into the model. Returns the losses."""
    training = gradient_model(model, loss="cross_entropy")
    evaluator = ReferenceEvaluator(training, new_ops=operators())
    names = [
        output.name.removesuffix("_grad") for output in training.graph.output if output.name.endswith("_grad")
    ]
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    weights = {name: numpy_helper.to_array(tensors[name]).copy() for name in names}
    first, second = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    losses = []
    for step in range(1, steps + 1):
        feeds = {"x": x, "labels": labels, **weights}
        loss, *gradients = evaluator.run(["loss", *(f"{name}_grad" for name in names)], feeds)
        losses.append(float(loss))
        for name, gradient in zip(names, gradients, strict=True):
            first[name] += 0.1 * (gradient - first[name])
            second[name] += 0.001 * (gradient**2 - second[name])
            mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
            weights[name] -= rate * mean / (np.sqrt(square) + 1e-8)
    for name, weight in weights.items():
        tensors[name].CopyFrom(numpy_helper.from_array(weight, name))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save", metavar="FILE", help="where to write the trained model")
    args = parser.parse_args()
    data = windows(*sunspots())
    model = classifier()
    losses = train(model, *data["train"], args.steps)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {args.steps} steps")
    for name, (x, labels) in data.items():
        usual = max(labels.mean(), 1 - labels.mean())
        right = accuracy(model, x, labels)
        print(f"{name}: {right:.0%} right of {len(labels)} years; always the same: {usual:.0%}")
    if args.save:
        onnx.save(model, args.save)


if __name__ == "__main__":
    main()
