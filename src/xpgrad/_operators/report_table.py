"""Rows and tables of adapters' reports of replaced modules or layers."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ReportRow", "report_text"]


class ReportRow(NamedTuple):
    """One module or layer: its names in the model, its type, its replacement, and why it has none.

    Parameters
    ----------
    names : tuple of str
        Its places in the model; ``""`` is the model itself.
    type : str
        Its type's name.
    now : str
        The replacement's type, or ``"unchanged"``.
    why : str
        Why it stays, or when the framework still computes it; empty otherwise.
    warns : bool
        Whether `swap` warns about it: xpgrad has such a module, but does not replace this one.
    """

    names: tuple[str, ...]
    type: str
    now: str
    why: str
    warns: bool


def report_text(rows: Sequence[ReportRow], kind: str, counted: str) -> str:
    """Lay rows out as a table; `kind` is the head of the column of names, the last line counts `counted`."""
    cells = [(", ".join(n or "(model)" for n in row.names), row.type, row.now, row.why) for row in rows]
    table = [(kind, "type", "now", "why"), *cells]
    widths = [max(len(line[k]) for line in table) for k in range(3)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in table
    ]
    count = sum(row.now != "unchanged" for row in rows)
    return "\n".join([*lines, f"{count} of {len(rows)} {counted} replaced"])
