"""The peak memory of a step, beyond the memory before it."""

import contextlib
import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def peak(small: Callable[[], Any], large: Callable[[], Any], repeats: int = 3) -> int:
    """The peak bytes of the process during calls of `large`, minus the bytes before them.

    `small` runs first, so that libraries are loaded, code is compiled and threads have their stacks. The
    inputs of `large` must exist already: inputs and parameters don't count. Outputs and gradients count, and
    so do workspaces that an implementation keeps for its next call.

    On Linux the high-water mark of the resident memory is reset before. Elsewhere it is the largest value
    since the process began, which is right if nothing before took more.
    """
    small()
    gc.collect()
    before = _reset()
    for _ in range(repeats):
        large()
    return max(0, _high_water() - before)


def _reset() -> int:
    """Reset the high-water mark to the current memory; returns the mark."""
    with contextlib.suppress(OSError):  # not Linux, or no permission
        Path("/proc/self/clear_refs").write_text("5")
    return _high_water()


def _high_water() -> int:
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)):
        return int(found[1]) * 1024
    try:
        import resource
    except ImportError as error:
        raise NotImplementedError("this system does not tell a process's peak memory") from error
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
