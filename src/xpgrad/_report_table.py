"""The table that adapters' reports of replaced modules print."""

from collections.abc import Sequence

__all__ = ["report_lines"]


def report_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: columns are as wide as their widest cell, the last one is open.

    Parameters
    ----------
    head : sequence of str
        The columns' names.
    rows : sequence of sequence of str
        The cells, row by row.
    """
    lines = [head, *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head) - 1)]
    return [
        "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    ]
