"""The tools of a checkout, which no wheel has: packages in the folder ``asv_bench`` beside the sources."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["ToolMissingError", "tool"]

FOLDER = Path(__file__).parents[3] / "asv_bench"


class ToolMissingError(Exception):
    """The installation is no checkout; the message says where the tool is."""


def tool(module: str, command: str) -> Any:
    """Import a module of the checkout's tools.

    Parameters
    ----------
    module : str
        Its name, in a package of ``asv_bench``.
    command : str
        What the user asked for, for the message.

    Returns
    -------
    module
        The module.

    Raises
    ------
    ToolMissingError
        If xpgrad runs from a wheel.
    """
    if not (FOLDER / module.partition(".")[0]).is_dir():
        raise ToolMissingError(
            f"{command} is a tool of xpgrad's repository, in its folder asv_bench: "
            "run it in a checkout that was installed by 'pip install -e .'"
        )
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # the last one, so that no module there hides another
    return importlib.import_module(module)
