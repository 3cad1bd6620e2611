"""Writes docs/machines, and the tables of all machines, from runs of ``python -m xpgrad bench``.

    python -m xpgrad bench --json bench.json
    python asv_bench/performance.py bench.json

Several files count as one run: peers may be measured in parts, on one machine. Of a group in several files
the last one counts. Each machine has its own page and a file of its ratios. From these files come the tables
in docs/performance.md and the README. The prose around the marks is written by hand.
"""

import argparse
import json
import statistics
from pathlib import Path

import gains
from page import machine_page, write_between
from xpgrad_bench import measure, plot
from xpgrad_bench.command import SHARES, group_lines, machine_rows, notes, summary_rows

NETWORKS = "Convolutions of "  # how titles of groups with a network's layers begin
ROOT = Path(__file__).parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "performance.md"


def markdown(columns, rows):
    """A table; the first column is text, the others are numbers."""
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def summary(report):
    """One line for each group."""
    columns = ["compared with", "speedup", "aim", "lowest", "highest", *SHARES]
    return markdown(columns, summary_rows(report["groups"]))


def machine(report):
    """The machine and its libraries, as a list."""
    return "\n".join(f"- {name}: {text}" for name, text in machine_rows(report))


def details(report):
    """A table for each group, and the functions that the peer calls."""
    parts = []
    for group in report["groups"]:
        columns, lines = group_lines(group)
        parts += [f"### {group['title']}", markdown(columns, lines), *notes(group)]
    return "\n\n".join(parts)


def behind(report):
    """The cases in which a peer is ahead."""
    rows = [
        [row["work"], group["title"], f"{row['ratio']:.2f}"]
        for group in report["groups"]
        for row in measure.counted(group["rows"])
        if row["ratio"] and round(row["ratio"], 2) < 1
    ]
    rows.sort(key=lambda row: float(row[-1]))
    return markdown(["work", "group", "speedup"], rows) if rows else "Nowhere in this run."


def ratios(report):
    """The part of a run for the tables of all machines."""
    machine = report["machine"]
    return {
        "machine": f"{machine['cpu']}, {machine['threads']} threads",
        "measured": report["measured"],
        "groups": {
            group["title"]: [round(group[name], 2) for name in ("ratio", "lowest", "highest")]
            for group in report["groups"]
            if group["ratio"]
        },
    }


def all_machines(runs):
    """A table of all machines: geometric means of speedups, with the lowest and the highest."""
    titles = dict.fromkeys(title for run in runs for title in run["groups"])
    rows = [
        [title, *("{:.2f} ({:.2f} to {:.2f})".format(*run["groups"][title]) if title in run["groups"] else "-"
                  for run in runs)]
        for title in titles
    ]  # fmt: skip
    dates = "; ".join(f"{run['machine'].split(',')[0]} on {run['measured']}" for run in runs)
    table = markdown(["compared with", *(run["machine"] for run in runs)], rows)
    return f"{table}\n\nMeasured: {dates}. A dash: newer than the measurement, or not installed."


def condensed(run):
    """A run with one group for the convolutions of all networks, for the README."""
    networks = [values for title, values in run["groups"].items() if title.startswith(NETWORKS)]
    groups = {title: values for title, values in run["groups"].items() if not title.startswith(NETWORKS)}
    if networks:
        means, lowest, highest = zip(*networks, strict=True)
        one = [statistics.geometric_mean(means), min(lowest), max(highest)]
        groups[f"{NETWORKS}{len(networks)} networks, torch.nn.functional"] = one
    return run | {"groups": groups}


def main():
    """Write them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="what bench --json has written")
    files = parser.parse_args().runs
    report = measure.merge([json.loads(file.read_text(encoding="utf-8")) for file in files])
    page = machine_page(report["machine"]["cpu"])
    plot.draw(report, page.with_suffix(".png"))
    for name, text in (
        ("machine", machine(report)),
        ("summary", summary(report)),
        ("behind", behind(report)),
        ("details", details(report)),
    ):
        write_between(page, name, text)
    page.with_suffix(".json").write_text(json.dumps(ratios(report), indent=1) + "\n", encoding="utf-8")
    runs = gains.read()
    write_between(PAGE, "machines", all_machines(runs))
    write_between(README, "performance", all_machines([condensed(run) for run in runs]))
    gains.write(runs)


if __name__ == "__main__":
    main()
