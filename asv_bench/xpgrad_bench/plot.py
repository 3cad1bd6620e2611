"""Pictures of the results of ``python -m xpgrad bench``: ratios as bars, and the roofline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["draw"]

OURS, PEER, AIM = "#1f6fb4", "#d98c21", "#333333"
LONG = 40  # more bars than this fill a second column
DTYPE_LINES = {"float32": "-", "float64": "--"}


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw a report, the command's JSON, into a file; its suffix gives the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = _columns([group for group in report["groups"] if group["ratio"] is not None])
    height = max(6.0, 0.17 * max(map(_length, columns)) + 1)
    figure = Figure(figsize=(7 * (len(columns) + 1), height), layout="constrained")
    FigureCanvasAgg(figure)
    *bars, roofline = figure.subplots(1, len(columns) + 1)
    for axes, groups in zip(bars, columns, strict=True):
        _bars(axes, groups)
    _roofline(roofline, report)
    machine = report["machine"]
    about = f"xpgrad {report['xpgrad']} on {machine['cpu']}, {machine['threads']} threads"
    figure.suptitle(f"{about}, {report['measured']}")
    figure.savefig(path, dpi=110)


def _length(groups: Sequence[dict[str, Any]]) -> int:
    return sum(len(group["rows"]) + 2 for group in groups)


def _columns(groups: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The groups in one column of bars, or in two if there are many."""
    if _length(groups) <= LONG:
        return [list(groups)]
    ends = range(1, len(groups))
    end = min(ends, key=lambda k: max(_length(groups[:k]), _length(groups[k:])), default=len(groups))
    return [list(part) for part in (groups[:end], groups[end:]) if part]


def _bars(axes: Any, groups: Sequence[dict[str, Any]]) -> None:
    """A bar for each work, and a mark at each group's aim."""
    place, ticks, labels = 0, [], []
    for group in groups:
        axes.text(0.01, place, group["title"], fontsize=8, weight="bold", va="center",
                  transform=axes.get_yaxis_transform())  # fmt: skip
        start = place + 1
        for row in (row for row in group["rows"] if row["ratio"] is not None):
            place += 1
            color = OURS if row["ratio"] >= 1 else PEER
            axes.barh(place, np.log2(row["ratio"]), left=0, color=color, height=0.8)
            axes.text(np.log2(row["ratio"]), place, f" {row['ratio']:.2f} ", fontsize=6.5, va="center",
                      ha="left" if row["ratio"] >= 1 else "right")  # fmt: skip
            ticks.append(place)
            labels.append(row["work"])
        if group["aim"]:
            axes.plot([np.log2(group["aim"])] * 2, [start - 0.5, place + 0.5], color=AIM, lw=1, ls=":")
        place += 2
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(ticks, labels, fontsize=6.5)
    axes.set_ylim(place - 1, -1)
    low, high = axes.get_xlim()
    powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    axes.set_xticks([*powers], [f"{2.0**power:g}" for power in powers])
    axes.set_xlabel("speedup over the peer (memory: times less), above 1 ours is ahead; dotted: aim")


def _roofline(axes: Any, report: dict[str, Any]) -> None:
    """Rates over intensity, ours and the peers', and the machine's limits."""
    bandwidth = report["rates"]["bandwidth"]
    rows = [
        (group, row)
        for group in report["groups"]
        for row in group["rows"]
        if row.get("operations")  # neither memory nor elementwise
    ]
    intensities = [row["operations"] / row["traffic"] for _, row in rows] or [1.0]
    span = np.geomspace(min(intensities) / 2, max(intensities) * 2)
    for dtype, rate in report["rates"]["products"].items():
        roof = np.minimum(rate, bandwidth * span) / 1e9
        axes.plot(span, roof, color="black", ls=DTYPE_LINES[dtype], lw=1, label=f"roof, {dtype}")
    for side, color, marker in (("ours", OURS, "o"), ("peer", PEER, "x")):
        points = [
            (row["operations"] / row["traffic"], row["operations"] / row[side]["median"] / 1e9)
            for _, row in rows
            if row[side]
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), color=color, marker=marker, s=22, lw=1, label=side)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte that must move")
    axes.set_ylabel("GFLOP/s")
    axes.set_title("Roofline: operations of products over time", fontsize=10)
    axes.grid(which="both", lw=0.3)
    axes.legend(fontsize=8)
