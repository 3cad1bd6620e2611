"""Time xpgrad and its peers in turns, and show how close both are to the machine's limit.

Each implementation runs in its own process, because the thread pools of NumPy, PyTorch and JAX would slow
each other down. The processes take turns, so drift affects them equally. The report gives medians, the spread
between quartiles, and our speedup over the peer (above 1 ours is faster). No implementation can beat the
floor: the operations of the matrix products over the best rate measured here, or the bytes over the
bandwidth, whichever takes longer. "of floor" is the floor over the time: 100 % is the limit. A convolution
counts as its direct sum, so Winograd's and Fourier's methods can exceed 100 %.

If other processes take more than a twentieth of the machine, a case is measured again. The report names cases
that stay disturbed, and peers that are not installed. --python PEER=INTERPRETER measures a peer in another
environment.
"""

import argparse
import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xpgrad import __version__
from xpgrad.cli.arguments import seconds, unwritable, whole_number
from xpgrad.cli.console import Progress, message, table
from xpgrad.cli.info import VARIABLES, read_cpu

from . import measure
from .groups import FAMILIES, GROUPS, Group
from .implementations import MODULES, OURS
from .load import DISTURBED
from .processes import Workers

__all__ = ["add_arguments", "group_lines", "machine_rows", "notes", "run", "summary_rows"]

PEERS = [name for name in MODULES if name not in OURS]
SHARES = ("ours, of floor", "peer, of floor")
"""Columns: the floor over the time, 100 % is the limit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--only", nargs="+", choices=FAMILIES, metavar="FAMILY",
        help=f"which of {', '.join(FAMILIES)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--peer", nargs="+", choices=PEERS, help="only these peers (default: all that are installed)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one case of each group, once: does it run?",
    )
    parser.add_argument("--seconds", type=seconds, help=f"for each case (default: {measure.USUAL.seconds:g})")
    parser.add_argument("--threads", type=_threads, help="threads of each implementation (default: its own)")
    parser.add_argument(
        "--python", action="append", default=[], type=_interpreter, metavar="PEER=INTERPRETER",
        help="measure a peer by the interpreter of another environment (repeatable)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the ratios and the roofline (needs matplotlib)"
    )


def _threads(text: str) -> int:
    value, cores = whole_number(text), os.cpu_count() or 1
    if not 1 <= value <= cores:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to the {cores} cores of this machine")
    return value


def _interpreter(text: str) -> tuple[str, str]:
    peer, _, path = text.partition("=")
    if peer not in PEERS:
        raise argparse.ArgumentTypeError(f"{peer!r} is none of {', '.join(PEERS)}")
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{path!r} is no file")
    return peer, path


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if ours fails or nothing is selected, 2 if a file cannot be written or drawn."""
    problem = _problem(args)
    if problem:
        message(f"bench: {problem}")
        return 2
    groups = [
        group
        for group in GROUPS
        if (not args.only or group.family in args.only) and (not args.peer or group.peer in args.peer)
    ]
    if not groups:
        message("bench: no group of these families has such a peer")
        return 1
    try:
        report = _measure(groups, args)
    except RuntimeError as error:
        message(f"bench: {error}")
        return 1
    _print(
        report,
        "Each work ran once: all of it runs, but the ratios are no measurement." if args.quick else None,
    )
    try:
        _write(report, args)
    except OSError as error:
        message(f"bench: cannot write {error.filename}: {error.strerror}")
        return 2
    return 0


def _write(report: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        from .plot import draw

        draw(report, args.plot)


def _problem(args: argparse.Namespace) -> str | None:
    """Why a file cannot be written, found before the measurements."""
    for option in ("json", "plot"):
        path = getattr(args, option)
        problem = None if path is None else unwritable(f"--{option}", path)
        if problem:
            return problem
    return _undrawable(args.plot) if args.plot else None


def _undrawable(path: Path) -> str | None:
    try:
        import matplotlib  # noqa: F401  # its parts may be loaded while a test hides it
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        return "--plot needs matplotlib: pip install matplotlib"
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        return f"--plot is {path}, expected a file that ends with one of {', '.join(sorted(kinds))}"
    return None


def _measure(groups: Sequence[Group], args: argparse.Namespace) -> dict[str, Any]:
    effort = measure.QUICK if args.quick else measure.USUAL
    if args.seconds is not None:
        effort = effort._replace(seconds=args.seconds)
    with Workers(dict(args.python), args.threads) as workers:
        groups = _installed(groups, workers)
        jobs = [(group, work) for group in groups for work in measure.works_of(group, args.quick)]
        dtypes = dict.fromkeys(work.dtype for _, work in jobs)
        names = dict.fromkeys(["xpgrad-numpy", *(group.peer for group in groups)])
        before = measure.rates(workers, names, dtypes, effort)
        rows: dict[Group, list[dict[str, Any]]] = {group: [] for group in groups}
        bar = Progress(jobs, "measuring")
        for group, work in bar:
            bar.note(work.label)
            rows[group].append(measure.measure(group, work, workers, effort))
        # before and after: a busy machine would give too low a rate
        machine = measure.best(before, measure.rates(workers, names, dtypes, effort))
        outcomes = [measure.outcome(g, measure.ours_of(g, workers).name, rows[g]) for g in groups]
        return {
            "xpgrad": __version__,
            "measured": datetime.date.today().isoformat(),
            "machine": _machine(args.threads),
            "rates": machine._asdict(),
            "implementations": workers.described,
            "missing": workers.missing,
            "groups": [measure.with_floors(group, machine) for group in outcomes],
        }


def _installed(groups: Sequence[Group], workers: Workers) -> Sequence[Group]:
    """The groups with an installed implementation of ours; all groups if none has one, for the message."""
    for group in groups:
        any(map(workers.get, group.ours))
    return [group for group in groups if not workers.absent.issuperset(group.ours)] or groups


def _machine(threads: int | None) -> dict[str, Any]:
    cpu = read_cpu()
    return {
        "cpu": cpu.label,
        "cores": cpu.cores,
        "threads": threads or cpu.cores,
        "system": platform.system(),
        "python": platform.python_version(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


# ------------------------------------------------------------------------------------------------ printing


def _print(report: dict[str, Any], remark: str | None) -> None:
    table("", ("", ""), machine_rows(report))
    print()
    for group in report["groups"]:
        columns, lines = group_lines(group)
        title = f"{group['title']}: {group['ours']} beside {group['peer']}"
        table(title, columns, lines, footer="\n".join(notes(group)) or None)
        print()
    columns = ["", "speedup", "aim", "lowest", "highest", *SHARES]
    title = "Speedup over the peer (memory: how many times less), geometric means; above 1 ours is ahead"
    table(title, columns, summary_rows(report["groups"]), footer=remark)


def machine_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The machine and its libraries: names and texts."""
    machine, rates = report["machine"], report["rates"]
    products = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {dtype}" for dtype, rate in rates["products"].items())
    return [
        ("xpgrad", report["xpgrad"]),
        ("measured", report["measured"]),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"),
        ("best matrix product", products),
        ("bandwidth of a copy", f"{rates['bandwidth'] / 1e9:.1f} GB/s"),
        *report["implementations"].items(),
        *((name, f"left out: {_brief(reason)}") for name, reason in report["missing"].items()),
        *machine["variables"].items(),
    ]


def group_lines(group: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The columns and the lines of a group's table."""
    if group["what"] == "memory":
        sides = [[_megabytes(row[side]) for side in ("ours", "peer")] for row in group["rows"]]
        columns = ["", "ours (MB)", "peer (MB)", "peer / ours"]
        return columns, [
            [row["work"], *peaks, _cell(row["ratio"])]
            for row, peaks in zip(group["rows"], sides, strict=True)
        ]
    columns = ["", "ours (ms)", "spread", "peer (ms)", "spread", "speedup", "floor (ms)", "set by", *SHARES]
    return columns, [_line(row) for row in group["rows"]]


def _line(row: dict[str, Any]) -> list[str]:
    sides = [row[side] for side in ("ours", "peer")]
    cells = [row["work"]]
    for times in sides:
        cells += [f"{times['median'] * 1e3:.3g}", _spread(times)] if times else ["-", "-"]
    least = row["floor"]
    cells += [_cell(row["ratio"]), f"{least * 1e3:.3g}", row["bound"]]
    return cells + [_share(times and times["median"] / least) for times in sides]


def _spread(times: dict[str, Any]) -> str:
    return f"{(times['high'] - times['low']) / times['median']:.0%}"


def _megabytes(peak: dict[str, Any] | None) -> str:
    return "-" if peak is None else f"{peak['median'] / 1e6:.1f}"


def _cell(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _share(to_floor: float | None) -> str:
    """The share of the possible speed, from the time as a multiple of the floor."""
    return "-" if to_floor is None else f"{1 / to_floor:.{0 if to_floor < 100 else 1}%}"


def _brief(reason: str) -> str:
    return reason.strip().splitlines()[-1] if reason.strip() else "no reason given"


def notes(group: dict[str, Any]) -> list[str]:
    """The functions that the peer really calls, why it is missing, and the disturbed cases."""
    paths = dict.fromkeys(row["path"] for row in group["rows"] if row["path"])
    reasons = dict.fromkeys(_brief(row["missing"]) for row in group["rows"] if row["missing"])
    said = [f"The peer's path, by the time it takes: {'; '.join(paths)}."] if paths else []
    said += [f"No peer: {reason}." for reason in reasons]
    disturbed = [
        f"{row['work']} ({row['others']:.0%})" for row in group["rows"] if (row["others"] or 0) > DISTURBED
    ]
    if disturbed:
        said.append(f"Other processes had a part of the cores, so no mean counts: {'; '.join(disturbed)}.")
    distances = [row["distance"] for row in group["rows"] if row.get("distance")]
    if distances:
        said.append(f"From core to core a word took {min(distances):.0f} to {max(distances):.0f} ns.")
    return said


def summary_rows(groups: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each group: title, speedup, aim, lowest and highest speedup, shares of the floor's speed."""
    rows = []
    for group in groups:
        aims = [f"{group['aim']:g}"] if group["aim"] else ["-"]
        aims += [f"least {group['least']:g}"] if group["least"] else []
        ratios = [_cell(group[name]) for name in ("lowest", "highest")]
        shares = [_share(group[name]) for name in ("ours_to_floor", "peer_to_floor")]
        rows.append([group["title"], _cell(group["ratio"]), ", ".join(aims), *ratios, *shares])
    return rows
