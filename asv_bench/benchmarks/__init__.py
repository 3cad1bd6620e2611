"""Suites for asv: ours and the peer's, with the same parameters.

``xpgrad_bench`` of this checkout defines the works. It is self-contained: if an older version of xpgrad is
installed, the same definitions time that version. Works that a version lacks are skipped.
"""

import contextlib
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from xpgrad_bench import load, timing
from xpgrad_bench.implementations import make
from xpgrad_bench.recurrent import OPERATORS, Recurrent

SMOKE = bool(os.environ.get("XPGRAD_BENCH_SMOKE"))  # set by smoke.sh: does it run?
IMPLEMENTATIONS = ("xpgrad-numpy", "xpgrad-torch", "torch")
OURS = ("xpgrad-numpy", "xpgrad-torch")
PATIENCE = 0.0 if SMOKE else 8.0  # seconds to wait for a quiet machine


def ratio(ours, peer):
    """The median time of ours over the peer's, from the least disturbed attempt."""
    brief = {"seconds": 0.0, "least": 1} if SMOKE else {}
    found, _ = load.quietest(lambda: timing.ratio(ours, peer, **brief), [], PATIENCE)
    return found


def settle():
    """Wait for a quiet machine before a timing."""
    if not SMOKE:
        load.wait_for_quiet(PATIENCE)


if SMOKE:
    # asv forks each benchmark's process from the one that has read this, so libraries and compiled formulas
    # are loaded once. In real runs each process loads only what it needs: no torch in peakmem_ of the NumPy
    # kernels.
    for operator in OPERATORS:
        with contextlib.suppress(NotImplementedError):  # the benchmarks themselves report what is missing
            for impl in OURS:
                make(impl, Recurrent(operator, (2, 1, 2, 2))).step()
