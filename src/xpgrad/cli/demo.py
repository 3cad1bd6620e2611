"""Train a small model on real data, in plain NumPy through xpgrad.

  text    a character LSTM learns to write like Python's manual. Where torch is installed, torch.nn.LSTM
          is trained from the same weights on the same batches, and the two loss curves have to agree.

The exit status is 1 where the loss curves differ by 1e-4 or more.
"""

import argparse
import importlib
from pathlib import Path

__all__ = ["add_arguments", "run"]

DEMOS = ("text",)  # modules of xpgrad.cli.demos


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the demo's options."""
    parser.add_argument("name", nargs="?", choices=DEMOS, default=DEMOS[0], help="which demo (default: text)")
    parser.add_argument("--steps", type=_positive, default=600, help="training steps (default: 600)")
    parser.add_argument("--hidden", type=_positive, default=128, help="size of the LSTM (default: 128)")
    parser.add_argument("--seed", type=_natural, default=0, help="of the weights and the sample (default: 0)")
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path("xpgrad-demo.png"),
        metavar="PATH",
        help="where the loss curve goes (default: xpgrad-demo.png); without matplotlib it is drawn in the "
        "terminal instead",
    )
    parser.add_argument("--no-torch", action="store_true", help="don't train torch.nn.LSTM beside it")


def run(args: argparse.Namespace) -> int:
    """Run the demo that was asked for; its exit status."""
    return int(importlib.import_module(f".demos.{args.name}", __package__).run(args))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value
