"""Types and checks of options that several commands share: numbers, and files to write."""

import argparse
import math
import os
from pathlib import Path

__all__ = ["at_least_one", "not_negative", "seconds", "unwritable", "whole_number"]


def whole_number(text: str) -> int:
    """A number without a fraction; for argparse's ``type``."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def at_least_one(text: str) -> int:
    """A count; for argparse's ``type``."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def not_negative(text: str) -> int:
    """A whole number from 0 on, such as a seed; for argparse's ``type``."""
    value = whole_number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def seconds(text: str) -> float:
    """A time; for argparse's ``type``."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value >= 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def unwritable(option: str, path: Path) -> str | None:
    """Why a file cannot be written, for an early message; None if it seems writable."""
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"{option} is {path}, expected a path in a folder that exists"
    if path.is_dir():
        return f"{option} is {path}, expected a file: it is a folder"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return f"{option} is {path}, expected a file that can be written"
    return None
