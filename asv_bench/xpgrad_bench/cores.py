"""The distance of two cores: the time in which a word that one of them writes arrives at the other one.

It is a few times as long where the cores have no cache in common: on a processor with several chips, and on
a virtual machine whose host has moved its cores apart. Compare times of several threads only at about equal
distances.
"""

import mmap
import os
import signal
import subprocess
import sys
import time
from ctypes import c_int64

_WORDS = 20_000
_TIMES = 3


def distance() -> float | None:
    """Nanoseconds from the first core to the second one; None where a process cannot choose its core."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    # a process of its own: it forks
    command = [sys.executable, "-S", __file__]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(found.stdout)


def _nanoseconds() -> float:
    """The time of a word, from two processes that answer each other."""
    word = c_int64.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))
    first, second, *_ = sorted(os.sched_getaffinity(0))
    child = os.fork()
    own = 0 if child else 1
    signal.alarm(20)  # ends a process whose other one has gone
    os.sched_setaffinity(0, {second if own else first})
    began = time.perf_counter_ns()
    for number in range(own, _WORDS, 2):
        while word.value != number:
            pass
        word.value = number + 1
    took = time.perf_counter_ns() - began
    if own:
        os._exit(0)
    os.waitpid(child, 0)
    os.sched_setaffinity(0, {first, second})
    return took / _WORDS


if __name__ == "__main__":
    print(min(_nanoseconds() for _ in range(_TIMES)))
