"""The machine's load from other processes, which makes measured times wrong."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

QUIET = 0.05  # others may take this share of all cores' time; above it a work is measured again
DISTURBED = 0.15  # above this share no mean includes the measurement


class Watch:
    """Watches the machine from now on; this process and `own` belong to the measurement."""

    def __init__(self, own: Sequence[int]) -> None:
        self._own = [os.getpid(), *own]
        self._start = self._read()

    def others(self) -> float | None:
        """The share of all cores' time that other processes took; None if it can't be read."""
        if self._start is None or (now := self._read()) is None:
            return None
        elapsed, busy, ours = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, busy - ours) / (elapsed * (os.cpu_count() or 1)) if elapsed > 0 else None

    def _read(self) -> tuple[float, float, float] | None:
        """Seconds: of the clock, of all busy cores, and of our processes."""
        try:
            # user, nice, system, idle, iowait, irq, softirq, steal
            cores = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            ours = sum(map(_ticks, self._own))
        except OSError:
            return None
        tick = os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), (sum(cores) - cores[3] - cores[4]) / tick, ours / tick


def _ticks(process: int) -> int:
    """The ticks of all threads of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])  # utime, stime


def quietest(measure: Callable[[], T], own: Sequence[int], patience: float) -> tuple[T, float | None]:
    """The result of the quietest attempt, and the other processes' share.

    It measures again while others disturb, for `patience` seconds. `own` is as for `Watch`.
    """
    attempts: list[tuple[T, float | None]] = []
    end = time.perf_counter() + patience
    while not attempts or ((attempts[-1][1] or 0.0) > QUIET and time.perf_counter() < end):
        watch = Watch(own)
        found = measure()
        attempts.append((found, watch.others()))
    return min(attempts, key=lambda attempt: attempt[1] or 0.0)


def wait_for_quiet(patience: float, moment: float = 0.2) -> None:
    """Return once the machine was quiet for a moment, or the patience is over."""
    quietest(lambda: time.sleep(moment), [], patience)
