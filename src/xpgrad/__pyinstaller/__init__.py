"""What packs xpgrad and its adapters into an application of PyInstaller: `hook-xpgrad.py`."""

import os


def get_hook_dirs() -> list[str]:
    """The folder of the hook; PyInstaller finds this function by an entry point."""
    return [os.path.dirname(__file__)]
