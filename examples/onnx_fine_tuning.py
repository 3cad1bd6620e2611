"""Fine-tune a model that is an ONNX file, in NumPy alone or in ONNX Runtime, with the same losses.

`training_model` writes one step of training with ONNX's own operators. Here a classifier of sunspot numbers
learned from the years before 1850; its last layer and its biases then learn from those until 1900. The
trained values go back into the file, in which nothing else changes.

    python examples/onnx_fine_tuning.py --runtime onnxruntime --save tuned.onnx
"""

import argparse
from collections.abc import Callable

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx_classifier import WINDOW, accuracy, classifier, sunspots, windows

from xpgrad_onnx import initial_values, training_model, with_parameters

SPLIT = 1850


def runner(model: onnx.ModelProto, runtime: str) -> Callable:
    """A function that runs the model: names of outputs or None, and a dict of inputs."""
    if runtime == "numpy":
        return ReferenceEvaluator(model).run
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    return onnxruntime.InferenceSession(model.SerializeToString()).run


def train(
    model: onnx.ModelProto,
    x: np.ndarray,
    labels: np.ndarray,
    steps: int,
    runtime: str,
    rate: float,
    **options,
) -> tuple[list[float], onnx.ModelProto]:
    """The losses, and the model with its new parameters."""
    step = training_model(model, "cross_entropy", **options)
    run, values = runner(step, runtime), initial_values(model, step)
    batch = {"x": x, "labels": labels, "learning_rate": np.asarray(rate, dtype=np.float32)}
    losses = []
    for _ in range(steps):
        loss, *new = run(None, batch | values)
        values = dict(zip(values, new, strict=True))
        losses.append(float(loss))
    parameters = {t.name for t in model.graph.initializer} & values.keys()
    return losses, with_parameters(model, {name: values[name] for name in parameters})


def halves() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Inputs and labels of the early years, and of the later ones."""
    years, numbers = sunspots()
    x, labels = windows(years, numbers)["train"]
    first = int(np.sum(years[WINDOW:] < SPLIT))  # each answer is about the year behind its window
    return (x[:, :first], labels[:first]), (x[:, first:], labels[first:])


def pretrained(steps: int = 40) -> onnx.ModelProto:
    """The classifier after some training on the early years: what one would get as a file."""
    (x, labels), _ = halves()
    return train(classifier(), x, labels, steps, "numpy", 0.02, optimizer="adamw")[1]


def fine_tune(
    model: onnx.ModelProto, steps: int = 60, runtime: str = "numpy"
) -> tuple[list[float], onnx.ModelProto]:
    """The losses on the later years, and the tuned model."""
    later = halves()[1]
    return train(model, *later, steps, runtime, 0.1, optimizer="momentum", wrt=["B", "V", "v"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runtime", choices=["numpy", "onnxruntime"], default="numpy")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save", metavar="FILE", help="where to write the tuned model")
    args = parser.parse_args()
    model = pretrained()
    losses, tuned = fine_tune(model, args.steps, args.runtime)
    for number in range(0, args.steps, max(args.steps // 6, 1)):
        print(f"step {number:3d}: loss {losses[number]:.6f}")
    before, after = (accuracy(m, *halves()[1]) for m in (model, tuned))
    print(f"right on the later years: {before:.0%} before, {after:.0%} after")
    if args.save:
        onnx.save(tuned, args.save)


if __name__ == "__main__":
    main()
