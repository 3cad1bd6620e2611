"""Run tests, and count what they call: ``python tools/covered.py [--write] [pytest's arguments]``.

The table has the number of calls of each operator, forward or gradient, by place and by dtype, and the number
of its options that had another value than the default. A place is the core on arrays of a namespace, the core
on the standard engine, or an adapter. By default it runs the short suite. ``--write`` puts the table into
docs/coverage.md.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "XPGRAD_COVERED"
PAGE = ROOT / "docs" / "coverage.md"
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
PLACES = (
    "numpy", "standard", "strict", "torch", "jax",
    "xpgrad_torch", "xpgrad_jax", "xpgrad_onnx", "xpgrad_keras",
)  # fmt: skip
DTYPES = ("float16", "bfloat16", "float32", "float64")
NAMES = {
    "bcewithlogitsloss": "binary_cross_entropy_with_logits", "crossentropy": "softmax_cross_entropy",
    "crossentropyloss": "softmax_cross_entropy", "threshold": "thresholded_relu", "relu6": "hard_tanh",
}  # fmt: skip
"""Operators with another name in PyTorch, in lower case."""

_watched: dict[CodeType, tuple[str, str | None, dict[str, Any]]] = {}
"""A function's name, the adapter, and the defaults of its options, by its code."""
_calls: Counter[tuple[str, str, str]] = Counter()
_options: Counter[tuple[str, str]] = Counter()


# ------------------------------------------------------------------------------------------- within pytest


def pytest_configure() -> None:
    """Begin to count in this process."""
    import xpgrad
    import xpgrad_jax.functional
    import xpgrad_torch

    for module, adapter in (
        (xpgrad, None), (xpgrad_jax.functional, "xpgrad_jax"), (xpgrad_torch.functional, "xpgrad_torch"),
    ):  # fmt: skip
        for name in {*module.__all__} - {"vjp", "convert"}:
            _watch(getattr(module, name), name, adapter)
    for name in xpgrad_torch.__all__:
        _watch(getattr(getattr(xpgrad_torch, name), "forward", None), "self", "xpgrad_torch")
    threading.setprofile(_profile)


def pytest_runtest_setup() -> None:
    """Count again: an earlier test may have set another profile."""
    sys.setprofile(_profile)


def _watch(function: Any, name: str, adapter: str | None) -> None:
    """Watch a function, or with the name "self" a module's forward, which classes may share."""
    function = inspect.unwrap(function) if callable(function) else None
    if inspect.isfunction(function):
        parameters = inspect.signature(function).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        _watched[function.__code__] = name, adapter, defaults


@functools.cache
def _operator(name: str) -> str:
    """The operator of a function or module, by any spelling."""
    import xpgrad

    plain = name.removeprefix("Parametrized").removesuffix("_grad").replace("_", "").lower()
    plain = re.sub(r"[123]d$", "", plain)
    known = {known.replace("_", ""): known for known in xpgrad.__all__ if known.islower()}
    return NAMES.get(plain) or known.get(plain, name)


def _profile(frame: FrameType, event: str, argument: Any) -> None:
    if event == "call" and frame.f_code in _watched:
        name, adapter, defaults = _watched[frame.f_code]
        given = frame.f_locals
        operator = _operator(type(given["self"]).__name__ if name == "self" else name)
        arrays = [value for value in given.values() if _is_array(value)]
        for dtype in {str(array.dtype).rpartition(".")[2] for array in arrays} & {*DTYPES}:
            _calls[operator, _place(adapter, arrays), dtype] += 1
        for name, default in defaults.items():
            value = given.get(name, default)
            if value is not default and not (isinstance(value, type(default)) and value == default):
                _options[operator, name] += 1


def _is_array(value: Any) -> bool:
    if type(value).__module__.startswith("torch.fx"):
        return False  # a question to a Proxy becomes a node of its graph
    try:
        return hasattr(value, "dtype") and hasattr(value, "shape")
    except RuntimeError:  # a nested tensor has no shape
        return False


def _place(adapter: str | None, arrays: list[Any]) -> str:
    from xpgrad import engine

    # these adapters call other adapters; the test's name tells
    above = re.search(r"/test_(onnx|keras)", os.environ.get("PYTEST_CURRENT_TEST", ""))
    if above is not None:
        return f"xpgrad_{above[1]}"
    if adapter is not None:
        return adapter
    if engine._forced.get() == "standard":
        return "standard"
    kind = type(arrays[0]).__module__.partition(".")[0]
    return {"array_api_strict": "strict", "jaxlib": "jax"}.get(kind, kind)


def pytest_sessionfinish() -> None:
    """Write the counts of this process."""
    sys.setprofile(None)
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
    # an option that was never given counts zero
    _options.update(
        {(_operator(f), o): 0 for f, _, options in _watched.values() for o in options if f != "self"}
    )
    path.write_text(json.dumps([list(_calls.items()), list(_options.items())]), encoding="utf-8")


# ------------------------------------------------------------------------------------------------ the table


def _counted(arguments: list[str]) -> tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]:
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-m", "pytest", "-p", "covered", "-q", *arguments]
        subprocess.run(
            command, cwd=ROOT, env={**os.environ, FOLDER: folder, "PYTHONPATH": paths}, check=False
        )
        calls, options = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        for file in Path(folder).iterdir():
            for total, part in zip(
                (calls, options), json.loads(file.read_text(encoding="utf-8")), strict=True
            ):
                total.update({tuple(key): count for key, count in part})
    return calls, options


def _rows(calls: Counter[tuple[str, ...]], options: Counter[tuple[str, ...]]) -> Iterator[list[str]]:
    for operator in sorted({key[0] for key in calls}):
        mine = {key[1:]: count for key, count in calls.items() if key[0] == operator}
        places = [sum(count for (place, _), count in mine.items() if place == name) for name in PLACES]
        dtypes = [sum(count for (_, dtype), count in mine.items() if dtype == name) for name in DTYPES]
        given = [count > 0 for (name, _), count in options.items() if name == operator]
        numbers = (str(count or "-") for count in (*places, *dtypes))
        yield [operator, f"{sum(given)} of {len(given)}" if given else "-", *numbers]


def _page(rows: list[list[str]], options: Counter[tuple[str, ...]]) -> str:
    """Two tables, so that none is wider than a page."""
    cut = 2 + len(PLACES)
    lines = _markdown(["operator", "options", *PLACES], [row[:cut] for row in rows])
    lines += _markdown(["operator", *DTYPES], [[row[0], *row[cut:]] for row in rows])
    never = sorted(f"`{name}({option}=)`" for (name, option), count in options.items() if not count)
    lines += [f"Options that never had another value than the default: {', '.join(never) or 'none'}."]
    return "\n".join(lines)


def _markdown(names: Sequence[str], rows: list[list[str]]) -> list[str]:
    rule = ["---"] + ["---:"] * (len(names) - 1)
    return [f"| {' | '.join(row)} |" for row in (names, rule, *rows)] + [""]


def main() -> None:
    """Run the tests and print the table, or write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the table into docs/coverage.md")
    arguments, others = parser.parse_known_args()
    calls, options = _counted(others or ["-n", "2", "--dist", "loadfile"])
    rows = list(_rows(calls, options))
    if arguments.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        text = f"{before}{BEGIN}\n{_page(rows, options)}\n{END}{after}"
        PAGE.write_text(text, encoding="utf-8")
        return
    table = Table("operator", "options", *PLACES, *DTYPES, box=None)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
