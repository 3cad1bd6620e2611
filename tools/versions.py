"""Test xpgrad with versions of Python, NumPy, llvmlite, JAX and PyTorch; write the table of docs/versions.md.

    python tools/versions.py --write               # all rows, one environment each
    python tools/versions.py --write --only 3.12   # only rows that have all of these words

For each row it makes an environment in a temporary folder, installs the wheel of this checkout with the row's
versions, and runs tests/test_core.py there with a separate cache of compiled code. It looks for interpreters
as python3.X and in pyenv's folder. A row whose interpreter is missing keeps its last result, if it has one. A
row says so if its packages cannot be installed together. Results are kept in docs/versions.json, so rows can
be measured one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xpgrad.cli.console import Progress, message, table
from xpgrad.cli.info import read_cpu

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "versions.md", ROOT / "docs" / "versions.json"
COLUMNS = ("python", "numpy", "llvmlite", "jax", "torch")

# JAX pins NumPy's upper bound.
ROWS: tuple[Mapping[str, str], ...] = (
    {"python": "3.11", "numpy": "2.0.2"},
    {"python": "3.11", "numpy": "2.1.3"},
    {"python": "3.11", "numpy": "2.2.6"},
    {"python": "3.11", "numpy": "2.3.5"},
    {"python": "3.11", "numpy": "2.4.6"},
    {"python": "3.12", "numpy": "2.0.2"},
    {"python": "3.12", "numpy": "2.4.6"},
    {"python": "3.13", "numpy": "2.1.3"},
    {"python": "3.13", "numpy": "2.4.6"},
    {"python": "3.12", "numpy": "2.5.5"},
    {"python": "3.14", "numpy": "2.5.5"},
    {"python": "3.15", "numpy": "2.5.5"},
    {"python": "3.11", "numpy": "2.1.3", "llvmlite": "0.44.0"},
    {"python": "3.12", "numpy": "2.2.6", "llvmlite": "0.44.0"},
    {"python": "3.13", "numpy": "2.3.5", "llvmlite": "0.46.0"},
    {"python": "3.12", "numpy": "2.4.6", "llvmlite": "0.47.0"},
    {"python": "3.13", "numpy": "2.4.6", "llvmlite": "0.50.0"},
    {"python": "3.14", "numpy": "2.5.5", "llvmlite": "0.50.0"},
    {"python": "3.15", "numpy": "2.5.5", "llvmlite": "0.50.0"},
    {"python": "3.11", "numpy": "2.4.6", "llvmlite": "0.50.0", "jax": "0.8.3"},
    {"python": "3.11", "numpy": "2.4.6", "llvmlite": "0.50.0", "jax": "0.9.2"},
    {"python": "3.12", "numpy": "2.4.6", "llvmlite": "0.50.0", "jax": "0.10.0"},
    {"python": "3.13", "numpy": "2.4.6", "llvmlite": "0.50.0", "jax": "0.10.2"},
    {"python": "3.13", "numpy": "2.5.5", "llvmlite": "0.50.0", "jax": "0.12.0.1"},
    {"python": "3.14", "numpy": "2.5.5", "llvmlite": "0.50.0", "jax": "0.12.0.1"},
    {"python": "3.12", "numpy": "2.4.6", "llvmlite": "0.50.0", "torch": "2.12.1"},
    {"python": "3.12", "numpy": "2.4.6", "llvmlite": "0.50.0", "torch": "2.13.0"},
    {"python": "3.12", "numpy": "2.4.6", "llvmlite": "0.50.0", "torch": "2.14.1"},
    {"python": "3.13", "numpy": "2.5.5", "llvmlite": "0.50.0", "torch": "2.14.1"},
)


def interpreter(version: str) -> str | None:
    """The path of a Python, or None."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(folder.glob(f"{version}.*/bin/python"))
    if found:
        return str(found[-1])
    return shutil.which(f"python{version}")


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True)
    return next(folder.glob("xpgrad-*.whl"))


def measure(row: Mapping[str, str], wheel: Path) -> dict[str, Any] | None:
    """Make the row's environment and run the tests in it; None without its interpreter."""
    python = interpreter(row["python"])
    if python is None:
        return None
    with tempfile.TemporaryDirectory(prefix="xpgrad-versions-") as name:
        folder = Path(name)
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
        here = str(folder / "env" / "bin" / "python")
        problem = _install(here, row, wheel)
        if problem:
            return {"result": f"cannot be installed: {problem}"}
        shutil.copy(ROOT / "tests" / "test_core.py", folder)
        began = time.monotonic()
        done = subprocess.run(
            [here, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_core.py"],
            cwd=folder,
            env=os.environ | {"XPGRAD_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        return {"result": _summary(done), "seconds": round(time.monotonic() - began)}


def _install(python: str, row: Mapping[str, str], wheel: Path) -> str | None:
    """Install into the environment of `python`; pip's reason if it cannot."""
    versions = [f"{name}=={version}" for name, version in row.items() if name != "python"]
    if "jax" in row:
        versions.append(f"jaxlib=={row['jax']}")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, str(wheel), "pytest", *versions], capture_output=True, text=True, check=False
    )
    reasons = re.findall(r"^ERROR: (.*)$", done.stderr, re.M)
    return (reasons or ["pip failed"])[0] if done.returncode else None


def _summary(done: subprocess.CompletedProcess[str]) -> str:
    """The table's text for a run."""
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    counts = re.findall(r"(\d+) (passed|failed|error)", last)
    if not counts:
        return f"tests did not run: {(done.stderr.strip().splitlines() or [last])[-1]}"
    return ", ".join(f"{count} {what}" for count, what in counts)


def _rows_as_table(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| Python | NumPy | llvmlite | JAX | PyTorch | result |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for entry in results:
        cells = [entry["row"].get(name, "") for name in COLUMNS]
        yield f"| {' | '.join(cells)} | {entry['result']} |"


def machine() -> str:
    """The CPU's name and how many cores there are."""
    cpu = read_cpu()
    return f"{cpu.name}, {cpu.cores} cores"


def keep(path: Path, mark: str, rows: Any, lines: Iterator[str], machines: Sequence[str] = ()) -> None:
    """Write the results, and their table between the page's marks of this name, with date and machines."""
    date, where = f"{datetime.now(UTC):%B %Y}", ", and on ".join(machines or [machine()])
    stored = {"machine": where, "date": date, "rows": rows}
    path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    text = "\n".join([begin, *lines, "", f"Measured on {where}, {date}.", end])
    PAGE.write_text(before + text + after, encoding="utf-8")
    message(f"wrote {PAGE.relative_to(ROOT)}")


def _is_chosen(row: Mapping[str, str], only: Sequence[str], without: Sequence[str]) -> bool:
    text = " ".join(f"{name} {version}" for name, version in row.items())
    return all(word in text for word in only) and not any(word in text for word in without)


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="rows with all of these words")
    parser.add_argument("--without", nargs="*", default=[], metavar="WORD", help="rows with none of these")
    parser.add_argument("--write", action="store_true", help="write docs/versions.md")
    args = parser.parse_args()
    chosen = [row for row in ROWS if _is_chosen(row, args.only, args.without)]
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"rows": []}
    known = {json.dumps(entry["row"]): entry for entry in stored["rows"]}
    with tempfile.TemporaryDirectory(prefix="xpgrad-wheel-") as folder:
        wheel = build_wheel(Path(folder))
        bar = Progress(chosen, "environments")
        for row in bar:
            bar.note(" ".join(f"{name} {version}" for name, version in row.items()))
            found = measure(row, wheel)
            if found is None:
                message(f"no Python {row['python']} here")
            else:
                known[json.dumps(row)] = {"row": dict(row), "machine": machine(), **found}
    results = [known[json.dumps(row)] for row in ROWS if json.dumps(row) in known]
    cells = [[*(e["row"].get(name, "-") for name in COLUMNS), e["result"]] for e in results]
    table("Versions", [*COLUMNS, "result"], cells)
    if args.write:
        machines = [*dict.fromkeys(entry["machine"] for entry in results)]
        keep(RESULTS, "versions", results, _rows_as_table(results), machines)
    return int(any("failed" in e["result"] or "error" in e["result"] for e in results))


if __name__ == "__main__":
    sys.exit(main())
