"""A convolutional network reads handwritten digits: in plain NumPy, and for comparison in torch.

The pictures are the 1797 digits of 8 x 8 pixels that come with scikit-learn. The network has three
convolutions: 3 x 3; 3 x 3 with stride 2, which halves the picture like pooling; and 4 x 4, which covers the
rest and has an output for each digit. Relu is between them, the softmax cross-entropy at the end. On the
NumPy side xpgrad computes the forward and backward of each. The torch side is `torch.nn.Conv2d` with torch's
own autograd and optimizer.
"""

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import conv, conv_grad, relu, relu_grad, softmax_cross_entropy, softmax_cross_entropy_grad
from ..console import curve, message
from .training import (
    AdamSettings,
    Parameters,
    TorchAdam,
    Training,
    compare,
    plot_losses,
    save_plot,
    show_training,
    train,
    train_all,
    train_by_adam,
)

__all__ = ["Answers", "Digits", "answer", "read_digits", "run", "train_numpy", "train_torch"]

CLASSES = 10
WHITE = 16.0  # the largest value of a pixel
HELD_OUT = 360  # digits that training never sees: a fifth
BATCH = 64  # digits in a training step
ADAM = AdamSettings(rate=3e-3, max_norm=1.0)
LAYERS: tuple[dict[str, Any], ...] = ({"pads": 1}, {"pads": 1, "strides": 2}, {})  # of the three convolutions
ROWS, COLUMNS = 5, 7  # digits in the plot; the last row is for the network's mistakes
SHADES = " .:-=+*#%@"
DRAWN = 7  # digits side by side in the plot of characters


# ------------------------------------------------------------------------------------------------ data


class Digits(NamedTuple):
    """Pictures (N, 1, 8, 8) from 0 to 1, and the digits that they show, (N,)."""

    pictures: np.ndarray
    labels: np.ndarray


def read_digits(seed: int) -> tuple[Digits, Digits]:
    """The digits for training and the held-out digits, drawn at random; ImportError without scikit-learn."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    pictures, labels = data.images[order, None] / WHITE, data.target[order]
    return (
        Digits(pictures[:-HELD_OUT], labels[:-HELD_OUT]),
        Digits(pictures[-HELD_OUT:], labels[-HELD_OUT:]),
    )


def batches(digits: Digits, steps: int, seed: int) -> Iterator[Digits]:
    """Yield batches. Every digit is used once before a digit is used again."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(0)
    for _ in range(steps):
        if len(order) < BATCH:
            order = rng.permutation(len(digits.labels))
        chosen, order = order[:BATCH], order[BATCH:]
        yield Digits(digits.pictures[chosen], digits.labels[chosen])


# --------------------------------------------------------------------------------------- the NumPy side


def initial_parameters(channels: int, seed: int) -> Parameters:
    """Uniform weights with the variance that keeps the scale of relu's outputs; biases zero; float64."""
    rng = np.random.default_rng(seed)
    shapes = ((channels, 1, 3, 3), (2 * channels, channels, 3, 3), (CLASSES, 2 * channels, 4, 4))
    p: Parameters = {}
    for layer, shape in enumerate(shapes):
        bound = np.sqrt(6 / np.prod(shape[1:]))
        p[f"W{layer}"] = rng.uniform(-bound, bound, shape)
        p[f"B{layer}"] = np.zeros(shape[0])
    return p


def _forward(p: Parameters, pictures: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The inputs of the three convolutions, and their outputs."""
    inputs, outputs = [pictures], []
    for layer, attributes in enumerate(LAYERS):
        outputs.append(conv(inputs[-1], p[f"W{layer}"], p[f"B{layer}"], **attributes))
        inputs.append(relu(outputs[-1]))
    return inputs[:-1], outputs


def loss_and_gradients(p: Parameters, batch: Digits) -> tuple[float, Parameters]:
    """The mean loss of a batch, and its gradient for every parameter."""
    inputs, outputs = _forward(p, batch.pictures)
    logits = outputs[-1][:, :, 0, 0]
    loss = softmax_cross_entropy(logits, batch.labels)

    # Backward, in the opposite order.
    d = softmax_cross_entropy_grad(np.ones_like(loss), logits, batch.labels)[:, :, None, None]
    grads: Parameters = {}
    for layer in (2, 1, 0):
        wanted = ("X", "W", "B") if layer else ("W", "B")  # the gradient of a picture is not needed
        g = conv_grad(d, inputs[layer], p[f"W{layer}"], **LAYERS[layer], wrt=wanted)
        grads |= {f"W{layer}": g.dW, f"B{layer}": g.dB}
        if layer:
            d = relu_grad(g.dX, outputs[layer - 1])
    return float(loss), grads


def train_numpy(p: Parameters, stream: Iterator[Digits], steps: int) -> Training:
    """Train p in place."""
    return train_by_adam(p, ADAM, loss_and_gradients, stream, steps)


# --------------------------------------------------------------------------------------- the torch side


def torch_model(p: Parameters) -> Any:
    """The same network in torch, from the same parameters."""
    import torch

    layers: list[Any] = []
    for layer, attributes in enumerate(LAYERS):
        O, C, *kernel = p[f"W{layer}"].shape
        stride, padding = attributes.get("strides", 1), attributes.get("pads", 0)
        module = torch.nn.Conv2d(C, O, tuple(kernel), stride, padding, dtype=torch.float64)
        module.load_state_dict({"weight": torch.tensor(p[f"W{layer}"]), "bias": torch.tensor(p[f"B{layer}"])})
        layers += [module, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1], torch.nn.Flatten())


def train_torch(p: Parameters, stream: Iterator[Digits], steps: int) -> Training:
    """Train torch's own convolutions from p, which stays unchanged."""
    import torch

    model = torch_model(p)
    adam = TorchAdam(model, ADAM)

    def step(batch: Digits) -> float:
        logits = model(torch.from_numpy(batch.pictures))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels))
        adam.step(loss)
        return loss.item()

    return train("torch.nn.Conv2d", stream, steps, step)


# ---------------------------------------------------------------------------------------- the answers


class Answers(NamedTuple):
    """The network's answer for each picture, (N,), and whether it is right, (N,)."""

    guesses: np.ndarray
    right: np.ndarray

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return float(self.right.mean())


def answer(p: Parameters, digits: Digits) -> Answers:
    """Let the network read."""
    guesses = _forward(p, digits.pictures)[1][-1][:, :, 0, 0].argmax(axis=1)
    return Answers(guesses, guesses == digits.labels)


# ------------------------------------------------------------------------------------------- the report


def run(args: argparse.Namespace) -> int:
    """Train, read the held-out digits, plot, compare; 1 if the two implementations disagree."""
    try:
        training, held_out = read_digits(args.seed)
    except ImportError:
        message(
            "demo: scikit-learn, whose digits this demo reads, is not installed: pip install scikit-learn"
        )
        return 1
    print(
        f"Data: scikit-learn's handwritten digits, 8 x 8 pixels; {len(training.labels)} to train on, "
        f"{len(held_out.labels)} held out.\n"
        f"Model: convolutions 3 x 3 to {args.hidden} channels, 3 x 3 with stride 2 to {2 * args.hidden}, "
        f"4 x 4 to {CLASSES}, with relu between;\nfloat64, {BATCH} digits a step.",
        flush=True,
    )

    parameters = initial_parameters(args.hidden, args.seed)
    runs = train_all(
        args, parameters, lambda: batches(training, args.steps, args.seed), train_numpy, train_torch
    )

    answers = answer(parameters, held_out)
    print()
    save_plot(
        args.plot,
        "Loss curves and answers",
        lambda figure: _plot(figure, runs, held_out, answers),
        lambda: f"{curve(runs[0].losses, label='Loss per step')}\n\n{_draw(held_out, answers)}",
    )
    show_training(
        runs,
        f"Loss: softmax cross-entropy. Digits it has not seen: {100 * answers.accuracy:.1f} % right "
        f"({answers.right.sum()} of {len(answers.right)}).",
    )
    return compare(runs)


def _draw(digits: Digits, answers: Answers) -> str:
    """Some digits in characters, with the network's answers below."""
    shades = np.array(list(SHADES))[np.rint(digits.pictures[:DRAWN, 0] * (len(SHADES) - 1)).astype(int)]
    lines = ["Digits it has not seen, and what it takes them for:"]
    for y in range(shades.shape[1]):
        lines.append("   ".join("".join(row) for row in shades[:, y]).rstrip())
    said = [_caption(digits, answers, k).center(shades.shape[2]) for k in range(len(shades))]
    return "\n".join([*lines, "   ".join(said).rstrip()])


def _caption(digits: Digits, answers: Answers, k: int) -> str:
    return str(answers.guesses[k]) if answers.right[k] else f"{answers.guesses[k]} (a {digits.labels[k]})"


def _shown(answers: Answers) -> list[int | None]:
    """The digits in the plot, row by row: the first ones that are right, then a row of mistakes."""
    right = np.flatnonzero(answers.right)[: (ROWS - 1) * COLUMNS].tolist()
    wrong = np.flatnonzero(~answers.right)[:COLUMNS].tolist()
    missing = (ROWS - 1) * COLUMNS - len(right)
    return [*right, *[None] * missing, *wrong, *[None] * (COLUMNS - len(wrong))]


def _plot(figure: Any, runs: list[Training], digits: Digits, answers: Answers) -> None:
    figure.set_size_inches(11, 5)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.1))
    axes = left.subplots()
    plot_losses(axes, runs)
    axes.set_yscale("log")
    axes.set(xlabel="training step", ylabel="loss", title="Two networks from the same weights")
    axes.legend()

    right.suptitle(
        f"Digits that training never saw: {100 * answers.accuracy:.1f} % right; in red, mistakes",
        fontsize="large",
    )
    grid = right.subplots(ROWS, COLUMNS)
    for place, k in zip(grid.flat, _shown(answers), strict=True):
        place.set_axis_off()
        if k is not None:
            place.imshow(digits.pictures[k, 0], cmap="gray_r", vmin=0, vmax=1)
            color = "k" if answers.right[k] else "C3"
            place.set_title(_caption(digits, answers, k), color=color, fontsize="medium", pad=2)
