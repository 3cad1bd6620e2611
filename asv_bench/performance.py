"""Writes the figures of docs/performance.md and of the README from runs of ``python -m xpgrad bench``.

    python -m xpgrad bench --json bench.json
    python asv_bench/performance.py bench.json

Several files are taken as one run: peers may be measured in parts, on one machine. The pictures are
drawn too. The prose around the marks is written by hand.
"""

import argparse
import json
from pathlib import Path

import gains
from page import write_between
from xpgrad.cli import bench_plot
from xpgrad.cli.bench import group_lines, machine_rows, notes, summary_rows
from xpgrad.cli.benches import measure

ROOT = Path(__file__).parents[1]
README, PAGE, PICTURE = (
    ROOT / "README.md",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "performance.png",
)


def markdown(columns, rows):
    """A table; the first column is text, the others are numbers."""
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def summary(report):
    """One line for each group."""
    columns = ["beside", "geometric mean", "aim", "lowest", "highest", "ours / floor", "peer / floor"]
    return markdown(columns, summary_rows(report["groups"]))


def machine(report):
    """What was measured on, as a list."""
    return "\n".join(f"- {name}: {text}" for name, text in machine_rows(report))


def details(report):
    """A table for each group, and what the peer calls."""
    parts = []
    for group in report["groups"]:
        columns, lines = group_lines(group)
        parts += [f"### {group['title']}", markdown(columns, lines), *notes(group)]
    return "\n\n".join(parts)


def behind(report):
    """Where a peer is ahead."""
    rows = [
        [row["work"], group["title"], f"{1 / row['ratio']:.2f}"]
        for group in report["groups"]
        for row in measure.counted(group["rows"])
        if row["ratio"] and row["ratio"] < 1
    ]
    rows.sort(key=lambda row: -float(row[-1]))
    return markdown(["work", "group", "ours / peer"], rows) if rows else "Nowhere in this run."


def short(report):
    """The README's table."""
    groups = [group for group in report["groups"] if group["ratio"]]
    rows = [
        [group["title"], f"{group['ratio']:.2f}", f"{group['lowest']:.2f} to {group['highest']:.2f}"]
        for group in groups
    ]
    cpu, threads = report["machine"]["cpu"], report["machine"]["threads"]
    table = markdown(["beside", "times as fast", "from case to case"], rows)
    return f"{table}\n\nGeometric means of medians on {cpu}, {threads} threads."


def main():
    """Write them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="what bench --json has written")
    files = parser.parse_args().runs
    report = measure.merge([json.loads(file.read_text(encoding="utf-8")) for file in files])
    bench_plot.draw(report, PICTURE)
    for name, text in (
        ("machine", machine(report)),
        ("summary", summary(report)),
        ("behind", behind(report)),
        ("details", details(report)),
    ):
        write_between(PAGE, name, text)
    write_between(README, "performance", short(report))
    gains.write()


if __name__ == "__main__":
    main()
