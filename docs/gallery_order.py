"""The order of the tutorials: by the number in their names, so that 10 comes behind 9. Part of `conf.py`."""


def by_number(filename: str) -> int:
    """Return the number in ``plot_<number>_<name>.py``."""
    return int(filename.split("_")[1])
