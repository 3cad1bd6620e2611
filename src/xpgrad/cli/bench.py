"""Time every kernel beside its peers: a tool of the checkout, in ``asv_bench/xpgrad_bench``."""

from __future__ import annotations

import argparse
from typing import Any

from .checkout import tool

__all__ = ["add_arguments", "run"]


def _command() -> Any:
    return tool("xpgrad_bench.command", "bench")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    command = _command()
    parser.description = command.__doc__
    command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if ours fails or nothing is selected, 2 if a file cannot be written or drawn."""
    return int(_command().run(args))
