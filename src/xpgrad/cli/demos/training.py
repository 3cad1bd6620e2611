"""Code that the demos share: Adam in NumPy and in torch, the training loop, the comparison, reports."""

import argparse
import importlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ... import convert
from ..._operators.words import Operator
from ..console import Progress, message, table

__all__ = [
    "TOLERANCE",
    "Adam",
    "AdamSettings",
    "Parameters",
    "TorchAdam",
    "Training",
    "compare",
    "load_torch_weights",
    "plot_differences",
    "plot_losses",
    "save_plot",
    "show_training",
    "train",
    "train_all",
    "train_by_adam",
]

BETA1, BETA2 = 0.9, 0.999  # Adam
TOLERANCE = 1e-4  # between the two loss curves, at any step

Batch = TypeVar("Batch")
Parameters = dict[str, np.ndarray]


# ------------------------------------------------------------------------------------------- training


class AdamSettings(NamedTuple):
    """The settings of Adam."""

    rate: float
    max_norm: float
    """Gradients whose common norm is larger are scaled down to it."""
    epsilon: float = 1e-3
    """Adam divides by the gradients' usual size plus epsilon. With a small epsilon, gradients that are mostly
    rounding errors would give steps of full length, and two correct programs would soon diverge."""


class Adam:
    """Adam on a dict of arrays, after clipping the norm of all gradients together."""

    def __init__(self, parameters: Parameters, settings: AdamSettings) -> None:
        self.parameters, self.settings = parameters, settings
        self.mean = {name: np.zeros_like(p) for name, p in parameters.items()}
        self.square = {name: np.zeros_like(p) for name, p in parameters.items()}
        self.steps = 0

    def step(self, grads: Parameters) -> None:
        """Move every parameter, in place."""
        self.steps += 1
        norm = np.sqrt(sum(float(np.vdot(g, g)) for g in grads.values()))
        # Python's own numbers, so that they take the arrays' dtype.
        scale = float(min(1.0, self.settings.max_norm / (norm + 1e-6)))
        rate = self.settings.rate / (1 - BETA1**self.steps)
        correction = float(np.sqrt(1 - BETA2**self.steps))
        for name, p in self.parameters.items():
            g, m, v = grads[name] * scale, self.mean[name], self.square[name]
            m += (g - m) * (1 - BETA1)
            v *= BETA2
            v += (1 - BETA2) * g * g
            p -= rate * m / (np.sqrt(v) / correction + self.settings.epsilon)


class TorchAdam:
    """The same by torch, with its own gradients, clipping and optimizer."""

    def __init__(self, model: Any, settings: AdamSettings) -> None:
        import torch

        self._torch, self._model, self._max_norm = torch, model, settings.max_norm
        self._optimizer = torch.optim.Adam(
            model.parameters(), settings.rate, (BETA1, BETA2), settings.epsilon
        )

    def step(self, loss: Any) -> None:
        """Differentiate the loss and move every parameter."""
        self._optimizer.zero_grad()
        loss.backward()
        self._torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._max_norm)
        self._optimizer.step()


class Training(NamedTuple):
    """The run of one implementation: the loss of every step, and the seconds."""

    name: str
    losses: list[float]
    seconds: list[float]


def train(name: str, batches: Iterable[Batch], steps: int, step: Callable[[Batch], float]) -> Training:
    """Take a step on every batch, with a progress bar; `step` returns the loss."""
    losses: list[float] = []
    seconds: list[float] = []
    bar = Progress(batches, name, steps)
    for batch in bar:
        start = time.perf_counter()
        losses.append(step(batch))
        seconds.append(time.perf_counter() - start)
        bar.note(f"loss {losses[-1]:.3f}")
    return Training(name, losses, seconds)


def train_by_adam(
    parameters: Parameters,
    settings: AdamSettings,
    loss_and_gradients: Callable[[Parameters, Batch], tuple[float, Parameters]],
    batches: Iterable[Batch],
    steps: int,
) -> Training:
    """Train the parameters in place, with Adam in NumPy."""
    adam = Adam(parameters, settings)

    def step(batch: Batch) -> float:
        loss, grads = loss_and_gradients(parameters, batch)
        adam.step(grads)
        return loss

    return train("xpgrad (NumPy)", batches, steps, step)


# ------------------------------------------------------------------------------------ torch, and JAX


def train_all(
    args: argparse.Namespace,
    parameters: Parameters,
    data: Callable[[], Any],
    with_numpy: Callable[..., Training],
    with_torch: Callable[..., Training],
    with_jax: Callable[..., Training] | None = None,
) -> list[Training]:
    """Train the parameters with NumPy, and copies of them with JAX and torch if installed and wanted."""

    def copies(parameters: Parameters) -> Parameters:
        return {name: value.copy() for name, value in parameters.items()}

    start = copies(parameters)
    runs = [with_numpy(parameters, data(), args.steps)]
    if with_jax is not None and not args.no_jax and jax_imports():
        runs.append(with_jax(copies(start), data(), args.steps))
    # Last: torch's threads must not exist while NumPy's are timed.
    if not args.no_torch and torch_imports():
        runs.append(with_torch(start, data(), args.steps))
    return runs


def jax_imports() -> bool:
    """Whether xpgrad_jax can be imported."""
    try:
        importlib.import_module("xpgrad_jax")
    except ImportError:
        return False
    return True


def torch_imports() -> bool:
    """Whether torch can be imported; prints why not."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:  # OSError: installed, but one of its libraries is missing
        if not (isinstance(error, ModuleNotFoundError) and error.name == "torch"):
            message(f"demo: torch is installed but does not import ({error})")
        else:
            message("demo: torch is not installed, so there is nothing to compare with: pip install torch")
        return False
    return True


def load_torch_weights(module: Any, operator: Operator, p: Parameters) -> None:
    """Copy W, R and B of an operator with one direction into torch's module of one layer."""
    import torch

    onnx = {name: p[name][0] for name in ("W", "R", "B")}
    converted = convert(operator, onnx, "onnx", "torch", linear_before_reset=int(operator == "gru"))
    module.load_state_dict({f"{name}_l0": torch.tensor(value) for name, value in converted.items()})


def _differences(runs: list[Training]) -> np.ndarray:
    """The largest difference of a loss curve from the first curve at each step; NaN if one of them is NaN."""
    return np.max([np.abs(np.subtract(runs[0].losses, run.losses)) for run in runs[1:]], axis=0)


def compare(runs: list[Training]) -> int:
    """Print the difference of loss curves; 1 if it is too large."""
    if len(runs) < 2:
        return 0
    differences = _differences(runs)
    step = int(np.argmax(differences))  # the first NaN if any: it disagrees with everything
    worst = float(differences[step])
    curves = "the two loss curves" if len(runs) == 2 else f"the {len(runs)} loss curves"
    found = f"Largest difference between {curves}: {worst:.1e}, at step {step + 1}"
    if worst < TOLERANCE:
        print(f"{found}; allowed: below {TOLERANCE:.0e}.")
        return 0
    print(f"{found}; allowed: below {TOLERANCE:.0e}. The implementations DISAGREE.")
    names = ", ".join(run.name for run in runs)
    message(
        f"demo: the loss curves of {names} differ. Where they part slowly, late in a long run, that "
        "is rounding that training amplifies; 'python -m xpgrad check' tests the gradients"
    )
    return 1


# ------------------------------------------------------------------------------------------ the report


def show_training(runs: list[Training], footer: str) -> None:
    """Print losses and times as a table."""
    rows = [
        (
            run.name,
            f"{run.losses[0]:.4f}",
            f"{run.losses[-1]:.4f}",
            f"{1e3 * float(np.median(run.seconds)):.1f} ms",
            f"{run.seconds[0]:.1f} s",
            f"{sum(run.seconds):.1f} s",
        )
        for run in runs
    ]
    columns = ["", "first loss", "last loss", "median step", "first step", "all steps"]
    note = "The first step compiles, or loads what an earlier run has compiled."
    table("Training", columns, rows, footer=f"{note}\n{footer}")


def save_plot(path: Path, what: str, draw: Callable[[Any], None], as_text: Callable[[], str]) -> None:
    """Draw a figure into a file, or in the terminal if matplotlib is missing or the file fails."""
    try:
        # Figure, unlike pyplot, needs no display.
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{as_text()}\n(A PNG file instead: pip install matplotlib.)\n")
        return
    figure = Figure(layout="constrained")
    draw(figure)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:  # a folder without write permission, an unknown file type
        message(f"demo: cannot write the plot to {path} ({error}); here it is as text")
        print(f"{as_text()}\n")
    else:
        print(f"{what}: {path.resolve()}\n")


def plot_losses(axes: Any, runs: list[Training]) -> None:
    """Draw loss curves that remain visible where they lie on top of each other."""
    styles: tuple[dict[str, Any], ...] = (
        {"lw": 2.5, "color": "C0", "alpha": 0.5},
        {"lw": 0.9, "color": "k", "ls": ":"},
        {"lw": 0.9, "color": "C1", "ls": "--"},
    )
    for run, style in zip(runs, styles[: len(runs)], strict=True):
        axes.plot(np.arange(1, len(run.losses) + 1), run.losses, label=run.name, **style)


def plot_differences(axes: Any, runs: list[Training]) -> None:
    """Draw the difference of loss curves, and its limit."""
    differences = _differences(runs)
    axes.semilogy(np.arange(1, len(differences) + 1), np.maximum(differences, 1e-9), color="C3", lw=0.8)
    axes.axhline(TOLERANCE, color="0.4", ls="--", lw=1)
    axes.set(ylabel="difference")
    axes.annotate("allowed", (0.99, TOLERANCE), xycoords=("axes fraction", "data"), ha="right", va="top")
