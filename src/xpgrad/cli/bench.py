"""Time every kernel and its peers: a tool of the checkout, in ``asv_bench/xpgrad_bench``."""

from __future__ import annotations

import argparse

from .checkout import tool

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    command = tool("xpgrad_bench.command", "bench")
    parser.description = command.__doc__
    command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if ours fails or nothing is selected, 2 if a file cannot be written or drawn."""
    return int(tool("xpgrad_bench.command", "bench").run(args))
