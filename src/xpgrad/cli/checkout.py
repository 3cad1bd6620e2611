"""The tools of a checkout, packages in the folder ``asv_bench``. A wheel has none."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["ToolMissingError", "tool"]

FOLDER = Path(__file__).parents[3] / "asv_bench"


class ToolMissingError(Exception):
    """The installation is no checkout. The message says where the tool is."""


def tool(module: str, command: str) -> Any:
    """Import a module of the checkout's tools; ToolMissingError, with the user's command, in a wheel."""
    if not (FOLDER / module.partition(".")[0]).is_dir():
        raise ToolMissingError(
            f"{command} is a tool of xpgrad's repository, in its folder asv_bench: "
            "run it in a checkout that was installed by 'pip install -e .'"
        )
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # at the end: its modules hide no others
    return importlib.import_module(module)
