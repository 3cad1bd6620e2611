"""Compile kernels ahead of time into the cache folder, for an image or before a job.

Each operator runs with its gradient on sizes that need different loops: few rows and many, lengths, each
method of a convolution. For other options (a clip, another activation) a later process compiles its own code.

In a Dockerfile:

    ENV XPGRAD_CACHE_DIR=/opt/xpgrad-cache
    RUN python -m xpgrad warm lstm --arrays torch

Other users of the image need no write permission in that folder.
Build the image on the kind of CPU that it will run on: machine code for another kind is not loaded.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from .console import Progress, message, table
from .warm_works import WORKS

__all__ = ["add_arguments", "run"]

_TIMES = 3  # the first call records the program; later calls run it in shorter ways


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "operators", nargs="*", metavar="OPERATOR", help=f"of {', '.join(WORKS)}; all of them by default"
    )
    parser.add_argument(
        "--dtype", nargs="+", choices=("float32", "float64"), default=["float32"],
        help="the arrays' dtypes (default: float32, which serves float16 and bfloat16 too)",
    )  # fmt: skip
    parser.add_argument(
        "--arrays", nargs="+", choices=("numpy", "torch"), default=None,
        help="the arrays' library (default: NumPy, and PyTorch if it is installed)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Compile, and print time and space; 1 if nothing can be compiled or kept, 2 for an unknown name."""
    unknown = [name for name in args.operators if name not in WORKS]
    if unknown:
        message(f"warm: no operator is called {unknown[0]!r}, expected names of {', '.join(WORKS)}")
        return 2
    problem = _problem()
    if problem:
        message(f"warm: {problem}")
        return 1
    from xpgrad.engine.compiled.folder import cache_folder

    folder = cache_folder()
    os.environ["XPGRAD_NOTICE"] = "0"  # a progress bar is shown instead
    before = _kept(folder)
    seconds, missing = _compile(args)
    for line in missing:
        message(f"warm: {line}")
    if not seconds:
        return 1
    now = _kept(folder)
    if not now:
        message(f"warm: nothing was kept in {folder}, expected a folder that can be written")
        return 1
    size = sum(path.stat().st_size for path in now) / 1e6
    table(
        "Compiled", ["operator", "dtype", "arrays", "seconds"],
        [[*part, f"{taken:.1f}"] for part, taken in seconds.items()],
        footer=f"{len(now - before)} new files, {size:.1f} MB in {folder}",
    )  # fmt: skip
    return 0


def _problem() -> str | None:
    """Why nothing can be compiled, or None."""
    from xpgrad.engine.process.settings import has_sources, jit_enabled, wants_jit

    if jit_enabled():
        from xpgrad.engine.compiled.folder import cache_folder, place

        _, problem, mend = place()
        return problem and f"nothing can be kept in {cache_folder()} ({problem}). {mend}"
    word = os.environ.get("XPGRAD_JIT", "")
    if not wants_jit(word):
        return f"XPGRAD_JIT={word} turns compiling off"
    if not has_sources():
        return "xpgrad's source files are missing, so nothing is compiled"
    return "llvmlite is not installed, so nothing is compiled; the extra 'fast' brings it"


def _kept(folder: Path) -> set[Path]:
    """The cache's files of code."""
    return {path for path in folder.rglob("*.o") if path.is_file()} if folder.is_dir() else set()


def _compile(args: argparse.Namespace) -> tuple[dict[tuple[str, str, str], float], list[str]]:
    """The seconds of each operator, dtype and kind of arrays, and why some could not run."""
    arrays = args.arrays or ["numpy", "torch"]
    works = [
        ((operator, dtype, kind), work)
        for operator in dict.fromkeys(args.operators or WORKS)
        for dtype in dict.fromkeys(args.dtype)
        for kind in dict.fromkeys(arrays)
        for work in WORKS[operator](dtype)
    ]
    seconds: dict[tuple[str, str, str], float] = {}
    missing: dict[str, None] = {}
    bar = Progress(works, "compiling")
    for part, work in bar:
        bar.note(" ".join(part))
        start = time.monotonic()
        try:
            step = getattr(work, part[-1])()
            for _ in range(_TIMES):
                step()
        except NotImplementedError as reason:  # a package is not installed
            if args.arrays:
                missing[str(reason)] = None
            continue
        seconds[part] = seconds.get(part, 0.0) + time.monotonic() - start
    return seconds, [*missing]
