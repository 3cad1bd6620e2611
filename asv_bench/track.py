"""Draws the track record: asv's results at older commits, one line for each benchmark.

    bash asv_bench/history.sh COMMIT ...    # measure
    python asv_bench/track.py               # draw docs/track.png and write the table in docs/history.md

Times are on the left. Ratios to the peer, timed in turns in the same process, are on the right.
"""

import argparse
import itertools
import re
import subprocess
import textwrap
from pathlib import Path
from typing import NamedTuple

from asv.results import iter_results

from page import write_between

ROOT = Path(__file__).parents[1]
PICTURE, PAGE = ROOT / "docs" / "track.png", ROOT / "docs" / "history.md"
IMPLEMENTATION = "xpgrad-torch"
WIDTH = 70  # of a commit's date, name and subject


class Point(NamedTuple):
    """A value of a benchmark at a commit."""

    date: int
    commit: str
    value: float


def read(folder):
    """Times and ratios of ours on tensors, by benchmark and parameters, in order of commit dates."""
    found = {}
    for result in iter_results(str(folder)):
        for name in filter(re.compile(r"\.(time|track)_").search, result.get_all_result_keys()):
            params = result.get_result_params(name)
            values = result.get_result_value(name, params) or []
            for combination, value in zip(itertools.product(*params), values, strict=False):
                words = tuple(word.strip("'") for word in combination)
                if IMPLEMENTATION in words and value is not None and value == value:
                    key = (name, tuple(word for word in words if word != IMPLEMENTATION))
                    found.setdefault(key, []).append(Point(result.date, result.commit_hash, value))
    return {key: sorted(points) for key, points in sorted(found.items())}


def machines(folder):
    """The machines of the results, by their CPUs."""
    found = [result.params for result in iter_results(str(folder))]
    return sorted(
        {f"{params.get('cpu', 'an unknown CPU')}, {params.get('num_cpu')} cores" for params in found}
    )


def label(name, params):
    """The label of a benchmark: its suite if that adds information, and its parameters."""
    suite = name.split(".")[1].removesuffix("Ratio")
    return ", ".join(([suite.lower()] if suite == "Lengths" else []) + [*params])


def shown(name, point):
    """The value of a point: the speedup over the peer, or milliseconds."""
    return 1 / point.value if ".track_" in name else 1e3 * point.value


def subjects(commits):
    """Each commit's date, short name and subject."""
    format_ = ["git", "-C", str(ROOT), "log", "-1", "--format=%cs %h %s"]
    return {
        commit: subprocess.run([*format_, commit], capture_output=True, text=True, check=True).stdout.strip()
        for commit in commits
    }


def commits_of(tracks):
    """All commits, the oldest first."""
    points = {(point.date, point.commit) for track in tracks.values() for point in track}
    return [commit for _, commit in sorted(points)]


def draw(tracks, path):
    """Times and ratios over commits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    commits = commits_of(tracks)
    figure = Figure(figsize=(14, 6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    colors = {}
    for (name, params), points in tracks.items():
        axes = right if ".track_" in name else left
        text = label(name, params)
        color = colors.setdefault(text, f"C{len(colors)}")
        places = [commits.index(point.commit) for point in points]
        values = [shown(name, point) for point in points]
        axes.plot(places, values, "o-", ms=4, lw=1.2, color=color, label=text)
    left.set_ylabel("milliseconds")
    right.set_ylabel("speedup over the peer")
    right.axhline(1, color="black", lw=0.8)
    for axes in (left, right):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xticks(range(len(commits)), [commit[:7] for commit in commits], rotation=30)
        axes.grid(which="both", lw=0.3)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def table(tracks):
    """Ratios to the peer by commit, as Markdown."""
    ratios = {key: points for key, points in tracks.items() if ".track_" in key[0]}
    commits = commits_of(ratios)
    named = subjects(commits)
    lines = [
        "| commit | " + " | ".join(label(*key) for key in ratios) + " |",
        "| --- |" + " ---: |" * len(ratios),
    ]
    for commit in commits:
        found = [{p.commit: shown(name, p) for p in points} for (name, _), points in ratios.items()]
        values = [column.get(commit) for column in found]
        cells = ["-" if value is None else f"{value:.2f}" for value in values]
        said = textwrap.shorten(named[commit], WIDTH, placeholder=" ...")
        lines.append(f"| {said} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results", help="asv's (default: here)"
    )
    folder = parser.parse_args().results
    tracks = read(folder)
    draw(tracks, PICTURE)
    write_between(PAGE, "track", f"{table(tracks)}\n\nMeasured on {', '.join(machines(folder))}.")


if __name__ == "__main__":
    main()
