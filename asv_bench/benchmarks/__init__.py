"""Suites for asv: ours beside the peer's, in the same parametrisation.

What is run is defined in this checkout, in ``src/xpgrad/cli/benches``, which stands alone: with an older
version of xpgrad installed the same definitions time that one. What a version lacks is skipped.
"""

import contextlib
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "src" / "xpgrad" / "cli"))

from benches import load, timing
from benches.implementations import make
from benches.recurrent import OPERATORS, Recurrent

SMOKE = bool(os.environ.get("XPGRAD_BENCH_SMOKE"))  # set by smoke.sh: does it work, whatever it takes?
IMPLEMENTATIONS = ("xpgrad-numpy", "xpgrad-torch", "torch")
OURS = ("xpgrad-numpy", "xpgrad-torch")
PATIENCE = 0.0 if SMOKE else 8.0  # seconds in which others may leave the machine alone


def ratio(ours, peer):
    """The median time of ours over the peer's, when other processes disturbed the least."""
    brief = {"seconds": 0.0, "least": 1} if SMOKE else {}
    found, _ = load.quietest(lambda: timing.ratio(ours, peer, **brief), [], PATIENCE)
    return found


def settle():
    """Wait until other processes leave the machine alone, within patience: what is timed next counts."""
    if not SMOKE:
        load.wait_for_quiet(PATIENCE)


if SMOKE:
    # asv forks each benchmark's process from the one that has read this: libraries and compiled formulas are
    # loaded once. Where numbers count, each loads what it needs: no torch in peakmem_ of the NumPy kernels.
    for operator in OPERATORS:
        with contextlib.suppress(NotImplementedError):  # the benchmarks themselves say what is missing
            for impl in OURS:
                make(impl, Recurrent(operator, (2, 1, 2, 2))).step()
