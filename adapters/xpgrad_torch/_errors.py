"""Kernels' errors with the caller's name and its names for the arguments."""

import re
from collections.abc import Mapping
from typing import NamedTuple


class CallerNames(NamedTuple):
    """The name of a function or a layer, and its names for the kernel's arguments."""

    arguments: Mapping[str, str]
    """Its arguments' names by the kernel's names."""
    caller: str | None = None
    """Its name; None for the kernel's name."""

    def put_into(self, error: Exception, kernel: str) -> None:
        """Let a kernel's error name the caller, its arguments and its help; other errors do not change."""
        operator, colon, text = str(error.args[0] if error.args else "").partition(": ")
        if not colon or operator != kernel:
            return
        caller = self.caller or operator
        names = "|".join(self.arguments)
        text = re.sub(rf"(?<![\w'])(?:{names})(?!\w)", lambda name: self.arguments[name[0]], text)
        error.args = (f"{caller}: {text}", *error.args[1:])
        shown = f"xpgrad_torch.{caller}" if caller[0].isupper() else f"xpgrad_torch.functional.{caller}"
        notes = getattr(error, "__notes__", [])
        notes[:] = [note.replace(f"help(xpgrad.{kernel})", f"help({shown})") for note in notes]


INPUT = CallerNames({"X": "input"})
"""For functions with the kernel's name and names, except `input`."""
