"""Python's garbage collector, and work that makes many objects."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def without_collections(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorator: Python's garbage collector waits until the function's end.

    A module of compiled code and a recording are many thousand objects, which go at their end. Collections
    before find them alive: they took an eighth of a first call, and a complete one takes as long as many new
    shapes.

    No context manager: an interrupt (Ctrl-C) within its functions would leave the collector off.
    """

    @functools.wraps(function)
    def run(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        was = gc.isenabled()
        try:
            gc.disable()
            return function(*arguments, **options)
        finally:
            if was:
                gc.enable()

    return run
