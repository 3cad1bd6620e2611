"""Work in the threads of the OpenMP runtime that the process has loaded already, if it has.

Such a runtime (of a framework, or of a library of scientific Python) keeps its threads spinning for a while
after each of its parallel regions: threads of ours would have to share their cores. In its own threads our
work starts at once. Nothing is loaded for this: without a GNU OpenMP runtime in the process there is no team.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Team:
    """The threads of a GNU OpenMP runtime.

    Parameters
    ----------
    path : str
        Of the library, which is loaded.
    """

    def __init__(self, path: str) -> None:
        runtime = ctypes.CDLL(path)
        self._number, self._size = runtime.omp_get_thread_num, runtime.omp_get_num_threads
        self._parallel = runtime.GOMP_parallel
        self._parallel.argtypes = (_Region, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._parallel.restype = None

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], threads: int) -> list[Any]:
        """The function of each item, the items dealt to so many threads; raises what a call of it raised."""
        results: list[Any] = [None] * len(items)
        errors: list[BaseException] = []

        def region(_: Any) -> None:
            try:
                # the team may be smaller than asked for, within another parallel region for one
                for number in range(self._number(), len(items), self._size()):
                    results[number] = function(items[number])
            except BaseException as error:  # it must not leave through the runtime's frames
                errors.append(error)

        self._parallel(_Region(region), None, threads, 0)
        if errors:
            raise errors[0]
        return results


def team() -> Team | None:
    """The process's team, or None."""
    return None if _forked else _team(len(sys.modules))


_forked = False


def _forget() -> None:
    """A forked child has none of its parent's threads, and GNU's runtime would wait for them."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@functools.lru_cache(maxsize=1)
def _team(modules: int) -> Team | None:
    """Look again when modules were imported since: one of them may have brought a runtime."""
    for path in _loaded_runtimes():
        try:
            return Team(path)
        except (OSError, AttributeError):  # not that library after all
            continue
    return None


def _loaded_runtimes() -> list[str]:
    """Paths of the loaded libraries that are called like GNU's runtime, in the order of their addresses."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = [line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "libgomp" in line]
    return list(dict.fromkeys(path for path in paths if path.startswith("/")))
