"""Caches of bounded size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from xpgrad.engine.process.locks import LastingLock

_Value = TypeVar("_Value")
_NONE: Any = object()


class Remembered(dict[Any, _Value]):
    """A dict of at most 512 entries: a new entry replaces the oldest one."""

    MOST = 512
    _writing = LastingLock()

    def __setitem__(self, key: Any, value: _Value) -> None:
        with self._writing.own:
            if len(self) >= self.MOST and key not in self:
                self.pop(next(iter(self)), None)
            super().__setitem__(key, value)

    def renewed(self, key: Any, default: Any) -> Any:
        """The value of the key, which is the newest entry now, or the default."""
        with self._writing.own:
            value = self.pop(key, _NONE)
            if value is _NONE:
                return default
            super().__setitem__(key, value)
        return value

    def again(self, key: Any, make: Callable[[], _Value]) -> _Value:
        """The value of the key, made if there is none; it is the newest entry now."""
        value = self.renewed(key, _NONE)
        if value is _NONE:
            value = self[key] = make()
        return value


def remembered(function: Callable[..., _Value]) -> functools._lru_cache_wrapper[_Value]:
    """Decorator: cache a function's results, as many as a `Remembered` holds."""
    return functools.lru_cache(maxsize=Remembered.MOST)(function)
