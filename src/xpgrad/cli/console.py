"""Tables, progress bars and curves on the terminal, by rich if it is installed, else in plain text.

Pipes and log files always get plain text, in full width and without control codes.
"""

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TextIO, TypeVar

import numpy as np

__all__ = ["Progress", "curve", "message", "paragraph", "table"]

T = TypeVar("T")

_NUMBER = re.compile(r"-|\d+/\d+|[+-]?\d+(\.\d+)?(e[+-]?\d+)?( ?[^\W\d]+| ?%)?")
_BAR = 24  # characters of the plain bar
_REFRESH = 0.1  # seconds between two redraws on a terminal
_READABLE = 14  # characters that a column of text needs
_LOG_LINES = 10  # lines in a log that cannot be redrawn


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody watches the stream; None is a closed one."""
    return stream is not None and stream.isatty()


def _rich_console(stream: TextIO) -> Any:
    """A console of rich, if the stream is a terminal and rich is installed."""
    if not _is_terminal(stream):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False)


def message(text: str) -> None:
    """Print a warning or an error to the standard error stream."""
    print(f"xpgrad: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------- tables


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    footer: str | None = None,
) -> None:
    """Print a table; on a terminal that is too narrow for it, a paragraph for each row.

    A header of empty strings is left out.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    right = [bool(texts) and all(_NUMBER.fullmatch(row[k]) for row in texts) for k in range(len(columns))]
    console = _rich_console(sys.stdout)
    # rich folds columns of text
    least = (w if r or console is None else min(w, _READABLE) for w, r in zip(widths, right, strict=True))
    if _is_terminal(sys.stdout) and sum(least) + 3 * len(widths) + 1 > shutil.get_terminal_size().columns:
        print("\n".join(_paragraphs(title, columns, texts, right, footer)), flush=True)
        return
    if console is None:
        print("\n".join(_plain_table(title, columns, texts, widths, right, footer)), flush=True)
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=Text(title) if title else None, title_justify="left", show_header=any(columns))
    for name, r in zip(columns, right, strict=True):
        grid.add_column(Text(name), justify="right" if r else "left", overflow="fold", no_wrap=r)
    for row in texts:
        grid.add_row(*map(Text, row))  # Text: square brackets in a cell are no markup
    console.print(grid)
    if footer:
        console.print(Text(footer))


def _plain_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Sequence[bool],
    footer: str | None,
) -> list[str]:
    """The lines of a table; columns of numbers are right-aligned."""

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    header = [line(columns), "  ".join("-" * width for width in widths)] if any(columns) else []
    return [*([title] if title else []), *header, *map(line, rows), *([footer] if footer else [])]


def _paragraphs(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    footer: str | None,
) -> list[str]:
    """Each row as text, in which a number follows its column's name."""
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(title, width)
    for row in rows:
        cells = [
            f"{name} {cell}" if r and name else cell
            for name, cell, r in zip(columns, row, right, strict=True)
            if cell and not (r and cell == "-")
        ]
        lines += textwrap.wrap(", ".join(cells), width, subsequent_indent="    ")
    return [*lines, *(line for text in (footer or "").splitlines() for line in textwrap.wrap(text, width))]


def paragraph(text: str, indent: str = "") -> None:
    """Print text. A terminal gets wrapped lines; the second and later ones begin with `indent`."""
    if _is_terminal(sys.stdout):
        width = shutil.get_terminal_size().columns
        text = "\n".join(
            textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)
            for line in text.splitlines()
        )
    print(text, flush=True)


# -------------------------------------------------------------------------------------------- progress


class Progress(Generic[T]):
    """Iterates with a progress bar on the standard error stream.

    `total` is the number of items, by default the iterable's length if it has one.
    """

    def __init__(self, iterable: Iterable[T], description: str, total: int | None = None) -> None:
        self._iterable, self._description, self._note = iterable, description, ""
        self._total = len(iterable) if total is None and isinstance(iterable, Sized) else total

    def note(self, text: str) -> None:
        """Show a short text, such as the current loss, after the bar."""
        self._note = text

    def __iter__(self) -> Iterator[T]:
        console = _rich_console(sys.stderr)
        return self._plain(sys.stderr) if console is None else self._rich(console)

    def _rich(self, console: Any) -> Iterator[T]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        texts = (
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[note]}", markup=False),
        )
        columns = (texts[0], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), texts[1])
        with RichProgress(*columns, console=console) as bar:
            task = bar.add_task(self._description, total=self._total, note="")
            for item in self._iterable:
                yield item
                bar.update(task, advance=1, note=self._note)

    def _plain(self, stream: TextIO) -> Iterator[T]:
        live = _is_terminal(stream)
        drawn, done, due = 0.0, 0, 1.0
        for done, item in enumerate(self._iterable, start=1):
            yield item
            now = time.monotonic()
            if live and now - drawn >= _REFRESH:
                self._draw(stream, done, "\r")
                drawn = now
            elif not live and self._total and done < self._total and done >= due * self._total / _LOG_LINES:
                self._draw(stream, done, "")
                due += 1
        self._draw(stream, done, "\r" if live else "")
        if live:
            print(file=stream, flush=True)

    def _draw(self, stream: TextIO, done: int, start: str) -> None:
        if self._total:
            filled = min(_BAR, _BAR * done // self._total)
            count = f"[{'#' * filled}{'.' * (_BAR - filled)}] {done}/{self._total}"
        else:
            count = str(done)
        text = f"{self._description} {count}  {self._note}".rstrip()
        if start:  # redrawn in place: keep to one line and cover the old text
            width = shutil.get_terminal_size().columns - 1
            print(start + text[:width].ljust(width), end="", file=stream, flush=True)
        else:
            print(text, file=stream, flush=True)


# ---------------------------------------------------------------------------------------------- curves


def curve(
    values: Sequence[float], *, label: str, reference: float | None = None, width: int = 64, height: int = 14
) -> str:
    """One curve over 1, 2, ... in `height` lines of characters, below the label.

    Each of the `width` columns shows the mean of its values. A dashed line marks the level `reference`.
    """
    parts = np.array_split(np.asarray(values, dtype=float), min(width, len(values)))
    means = np.array([part.mean() for part in parts])
    levels = [v for v in (*means, reference) if v is not None and np.isfinite(v)]
    if not levels:
        return f"{label}: no finite value to draw"
    low, high = min(levels), max(levels)
    span = (high - low) or 1.0
    rows = [[" "] * len(means) for _ in range(height)]

    def row(value: float) -> int:
        return round((high - value) / span * (height - 1))

    if reference is not None and np.isfinite(reference):
        rows[row(reference)] = ["-"] * len(means)
    for column, value in enumerate(means):
        if np.isfinite(value):
            rows[row(value)][column] = "*"
    lines = [label]
    for k, cells in enumerate(rows):
        axis = f"{high - span * k / (height - 1):8.3f}" if k in (0, height // 2, height - 1) else " " * 8
        lines.append(f"{axis} |{''.join(cells)}".rstrip())
    lines.append(" " * 9 + "+" + "-" * len(means))
    lines.append(" " * 10 + "1" + str(len(values)).rjust(len(means) - 1))
    return "\n".join(lines)
