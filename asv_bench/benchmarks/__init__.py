"""Benchmarks for asv: ours beside the peer's, in the same parametrisation."""

import contextlib

from .common import CASES, SMOKE, make

if SMOKE:
    # asv forks each benchmark's process from the one that has read this: libraries and compiled formulas are
    # loaded once. Where numbers count, each loads what it needs: no torch in peakmem_ of the NumPy kernels.
    for case in CASES:
        with contextlib.suppress(NotImplementedError):  # the benchmarks themselves say what is missing
            for impl in ("xpgrad-numpy", "xpgrad-torch"):
                make(impl, case, (2, 1, 2, 2)).step()
