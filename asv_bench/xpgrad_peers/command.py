"""``python -m xpgrad check --peers``."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from xpgrad._cases.case import KernelCases
from xpgrad.cli.console import message, table

from .matrix import OURS, PEERS, Entry, Measured, measure
from .page import page, without_reproducer

__all__ = ["run_peers"]


def run_peers(kernels: Sequence[KernelCases], args: argparse.Namespace) -> int:
    """Measure the kernels of `check`, print, and write the page on request.

    Returns 0; 1 if ours is wrong, nothing was measured, or no program shows a wrong entry; 2 if the page
    cannot be written.
    """
    given = dict(text.partition("=")[::2] for text in args.interpreter or ())
    unknown = set(given) - {peer.key for peer in PEERS}
    if unknown or not all(given.values()):
        named = ", ".join(sorted(unknown)) or "one without a path"
        message(f"--interpreter has {named}, expected {', '.join(peer.key for peer in PEERS)} and '=PYTHON'")
        return 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            measured = measure(kernels, given, args.option)
        except RuntimeError as error:
            message(str(error))
            return 1
    if args.json:
        entries = [entry._asdict() for entry in measured.entries]
        json.dump({"versions": measured.versions, "entries": entries}, sys.stdout, indent=1)
        print()
    else:
        _print(measured)
    if args.write:
        try:
            Path(args.write).write_text(page(measured, given).rstrip() + "\n", encoding="utf-8")
        except OSError as error:
            message(f"check: cannot write {args.write}: {error.strerror}")
            return 2
    ours = {peer.key for peer in OURS}
    bad = [entry for entry in measured.entries if entry.peer in ours and entry.status != "right"]
    unshown = without_reproducer(measured.entries)
    for entry in (*bad, *unshown):
        what = "is wrong" if entry in bad else "is wrong, and no program shows it"
        message(f"{entry.peer}, {entry.kernel}, {entry.option} {what}: {entry.error:.1g}")
    return 1 if bad or unshown or not measured.entries else 0


def _print(measured: Measured) -> None:
    peers = [p for p in (*OURS, *PEERS) if any(e.peer == p.key for e in measured.entries)]
    rows: dict[tuple[str, str], dict[str, Entry]] = {}
    for entry in measured.entries:
        rows.setdefault((entry.kernel, entry.option), {})[entry.peer] = entry

    def cell(entry: Entry | None) -> str:
        if entry is None or entry.status == "absent":
            return "-"
        wrong = " WRONG" * (entry.status == "wrong")
        return "refuses" if entry.status == "refused" else f"{entry.error:.0e}{wrong}"

    missing = [peer.title for peer in PEERS if peer.key not in measured.versions]
    table(
        "Worst error of outputs and gradients against float64 references",
        ["kernel", "option", *(peer.title for peer in peers)],
        [[*key, *(cell(row.get(peer.key)) for peer in peers)] for key, row in rows.items()],
        footer=f"Not installed, so not measured: {', '.join(missing)}." if missing else None,
    )
