"""Train a small model on real data, in plain NumPy through xpgrad.

  text    a character LSTM learns to write like Python's manual. If JAX or torch is installed, xpgrad_jax
          or torch.nn.LSTM trains the same model, from the same weights on the same batches. The loss
          curves must agree.
  series  a GRU forecasts the yearly sunspot numbers, from sequences of uneven length between two minima of
          the sun's activity. torch.nn.GRU trains the same model, as above.
  digits  a convolutional network reads the handwritten digits that come with scikit-learn. torch.nn.Conv2d
          trains the same model, as above.

The exit status is 1 if the loss curves differ by 1e-4 or more.
"""

import argparse
import importlib
from pathlib import Path

from .arguments import at_least_one, not_negative, unwritable
from .console import message

__all__ = ["add_arguments", "run"]


DEMOS = {
    "text": {"steps": 600, "hidden": 128},
    "series": {"steps": 2000, "hidden": 32},
    "digits": {"steps": 400, "hidden": 16},
}
"""The modules of xpgrad.cli.demos, with the default sizes of each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the demos' options."""
    first, *_ = DEMOS

    def defaults(option: str) -> str:
        return ", ".join(f"{name} {sizes[option]}" for name, sizes in DEMOS.items())

    parser.add_argument(
        "name", nargs="?", choices=DEMOS, default=first, help=f"which demo (default: {first})"
    )
    parser.add_argument("--steps", type=at_least_one, help=f"training steps (default: {defaults('steps')})")
    parser.add_argument(
        "--hidden",
        type=at_least_one,
        help="size of the recurrent layer, or channels of the first convolution "
        f"(default: {defaults('hidden')})",
    )
    parser.add_argument(
        "--seed", type=not_negative, default=0, help="of weights, batches and samples (default: 0)"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="PATH",
        help="the plot's file (default: xpgrad-demo-NAME.png); without matplotlib it is drawn in the "
        "terminal instead",
    )
    parser.add_argument("--no-torch", action="store_true", help="don't train torch's module for comparison")
    parser.add_argument("--no-jax", action="store_true", help="don't train with JAX for comparison (text)")


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns its exit status."""
    for option, size in DEMOS[args.name].items():
        if getattr(args, option) is None:
            setattr(args, option, size)
    args.plot = Path(f"xpgrad-demo-{args.name}.png") if args.plot is None else args.plot
    problem = unwritable("--plot", args.plot)
    if problem:
        message(f"demo: {problem}")
        return 2
    return int(importlib.import_module(f".demos.{args.name}", __package__).run(args))
