"""Test xpgrad as other processors and settings run it; write the table of platforms in docs/versions.md.

    python tools/platforms.py --write              # all that can be emulated here
    python tools/platforms.py --write --only v2    # only rows whose command has all of these words

Each row with a command runs a script of .ci/ and counts its tests. The other rows state facts that need no
run. Results are kept in docs/platforms.json, so rows can be measured one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from versions import ROOT, keep

from xpgrad.cli.console import Progress, table

RESULTS = ROOT / "docs" / "platforms.json"
BY_READING = "by reading only"


class Row(NamedTuple):
    """A platform, how it was tried, the command that tries it, else known facts; and what was not tried."""

    platform: str
    how: str
    command: str = ""
    known: str = ""
    untried: str = ""


ROWS = (
    Row("Linux, x86-64 with AVX-512", "tried", known="the whole test suite (`.ci/run`)"),
    Row("Linux, x86-64 with AVX2", "emulated by settings of compilers and libraries", "other_machines older"),
    Row("Linux, x86-64-v2: no FMA, no AVX", "emulated by the same", "other_machines v2", untried="speed"),
    Row("without compiling", "tried", "other_machines uncompiled"),
    Row("one thread of every library", "tried", "other_machines one-thread"),
    Row("other hash seeds, decimal commas", "tried", "other_machines hash-seed-and-locale"),
    Row(
        "Linux, 64-bit ARM", "emulated by qemu", "aarch64", untried="speed, PyTorch, JAX, float64"
    ),
    Row(
        "Windows, x86-64", BY_READING, untried="everything",
        known="`tests/test_machines.py` takes away functions that it lacks",
    ),
    Row(
        "macOS, Apple silicon", BY_READING, untried="everything",
        known="the same; tests read LLVM's code for `apple-m1`",
    ),
    Row("macOS, Intel", BY_READING, untried="everything", known="llvmlite's last wheels are for 0.45"),
    Row("Linux with musl (Alpine)", BY_READING, untried="everything", known="llvmlite has no wheels"),
    Row("free-threaded Python", BY_READING, untried="everything", known="NumPy, llvmlite: wheels for 3.14t"),
    Row(
        "GPU, NVIDIA H100 (CUDA 13): PyTorch 2.11, CuPy 14, JAX 0.11", "tried", untried="other GPUs",
        known="1972 cases right (`check`), 212 tests passed (`tests/test_torch_devices.py`)",
    ),
)  # fmt: skip


def measure(command: str) -> dict[str, Any]:
    """Run a script of .ci/ with its own cache of compiled code, and count its tests."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="xpgrad-platforms-") as folder:
        done = subprocess.run(
            ["bash", *f".ci/{command}".split()], cwd=ROOT, capture_output=True, text=True, check=False,
            env=os.environ | {"XPGRAD_CACHE_DIR": folder},
        )  # fmt: skip
    return {"result": summary(done.returncode, done.stdout), "seconds": round(time.monotonic() - began)}


def summary(status: int, output: str) -> str:
    """The table's text for a script's output: the tests of all its runs of pytest."""
    counts = dict[str, int]()
    for line in re.findall(r"^\d+ (?:passed|failed).* in [\d.]+s.*$", output, re.MULTILINE):
        for count, what in re.findall(r"(\d+) (passed|failed|skipped|error)", line):
            counts[what] = counts.get(what, 0) + int(count)
    text = ", ".join(f"{count} {what}" for what, count in counts.items()) or "no test ran"
    return text if status == 0 else f"{text}, status {status}"


def rows_as_table(measured: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the table."""
    yield "| platform | how | result | not tried |"
    yield "| --- | --- | --- | --- |"
    for row in ROWS:
        result = row.known
        if row.command:
            result = f"{measured.get(row.command, {}).get('result', 'not measured')} (`.ci/{row.command}`)"
        yield f"| {row.platform} | {row.how} | {result} | {row.untried} |"


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="rows with all of these words")
    parser.add_argument("--write", action="store_true", help="write docs/versions.md")
    args = parser.parse_args()
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"rows": {}}
    measured = dict(stored["rows"])
    chosen = [row.command for row in ROWS if row.command and all(word in row.command for word in args.only)]
    bar = Progress(chosen, "platforms")
    for command in bar:
        bar.note(command)
        measured[command] = measure(command)
    table("Platforms", ["command", "result"], [[name, entry["result"]] for name, entry in measured.items()])
    if args.write:
        known = {row.command: measured[row.command] for row in ROWS if row.command in measured}
        keep(RESULTS, "platforms", known, rows_as_table(known))
    return int(any("status" in measured[command]["result"] for command in chosen))


if __name__ == "__main__":
    sys.exit(main())
