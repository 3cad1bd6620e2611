"""Caches of bounded size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from xpgrad.engine.process.locks import LastingLock

_Value = TypeVar("_Value")


class Remembered(dict[Any, _Value]):
    """A dict of at most 512 entries: a new entry replaces the oldest one."""

    MOST = 512
    _writing = LastingLock()

    def __setitem__(self, key: Any, value: _Value) -> None:
        with self._writing:
            if len(self) >= self.MOST and key not in self:
                self.pop(next(iter(self)), None)
            super().__setitem__(key, value)


def remembered(function: Callable[..., _Value]) -> functools._lru_cache_wrapper[_Value]:
    """Decorator: cache a function's results, as many as a `Remembered` holds."""
    return functools.lru_cache(maxsize=Remembered.MOST)(function)
