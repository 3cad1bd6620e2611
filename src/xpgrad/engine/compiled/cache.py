"""Where compiled code is kept, and how it comes back: a text goes in, its imported module comes out.

The text lies in a file of the cache folder, named by its hash; numba's own files, with the machine code, lie
beside it. Damaged files are removed and made anew. Where nothing can be written, code that is there is read;
other code is compiled for this process alone, and a warning says so once.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib.util
import os
import stat
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from xpgrad.engine.compiled import folder
from xpgrad.engine.compiled.folder import cache_folder
from xpgrad.engine.process.compile_message import compiling
from xpgrad.engine.process.locks import LastingLock

_Function = TypeVar("_Function", bound=Callable)
_lock = LastingLock()


def one_at_a_time(function: _Function) -> _Function:
    """Threads may come to one formula at a time, and Python's parser is not safe for that before 3.12."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with _lock:
            return function(*args, **kwargs)

    return guarded  # type: ignore[return-value]


@one_at_a_time
@functools.cache
def load(name: str, text: str) -> Any:
    """The module of a generated text, from the cache folder if it is there; once in a process."""
    stem = f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    with compiling():
        found, reason = folder.place(), None
        attempts = [_from_folder, _anew] if not found.problem else [_from_folder] if found.folder else []
        for attempt in attempts:
            try:
                return attempt(stem, text)
            except Exception as error:  # whatever a damaged file or a full disk leads to
                reason = error
        module = _without_cache(stem, text)  # raises what is wrong with the text itself
        _warn(reason)
        return module


def _from_folder(stem: str, text: str) -> ModuleType:
    place = folder.place().folder
    if place is None:
        raise FileNotFoundError(errno.ENOENT, "no folder to read compiled code from", str(cache_folder()))
    path = place / f"{stem}.py"
    if not _holds(path, text):
        folder.write(path, text)
    spec = importlib.util.spec_from_file_location(_module_name(stem), path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import the compiled formula at {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where numba looks for the globals of a function from its cache
    spec.loader.exec_module(module)
    return module


def _module_name(stem: str) -> str:
    return f"xpgrad_compiled_{stem}"


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


def _anew(stem: str, text: str) -> ModuleType:
    """After its files were removed; or the folder, by a process of another version."""
    folder.forget()
    place = folder.place().folder
    for path in [*place.glob(f"{stem}.*"), *place.glob(f"__pycache__/{stem}.*")] if place else []:
        with contextlib.suppress(OSError):
            path.unlink()
    return _from_folder(stem, text)


def _without_cache(stem: str, text: str) -> ModuleType:
    """Compiled for this process alone."""
    module = ModuleType(_module_name(stem))
    sys.modules[module.__name__] = module
    exec(compile(text, f"<{stem}>", "exec"), vars(module))
    return module


def cfunc(signature: Any, **options: Any) -> Callable[[Callable], Any]:
    """For generated texts: numba's decorator of that name, whose machine code is kept beside the text."""
    from xpgrad.engine.process import numba_private

    return lambda function: numba_private.c_function(function, signature, options, _files(function))


def njit(signature: Any = None, **options: Any) -> Callable[[Callable], Any]:
    """For generated texts: numba's decorator of that name, whose machine code is kept beside the text.

    Without a signature a function is compiled at its first call.
    """
    from xpgrad.engine.process import numba_private

    return lambda function: numba_private.jitted(function, signature, options, _files(function))


def _files(function: Callable) -> _Files | None:
    """The files of a function's machine code; None where its text is in no file."""
    from xpgrad.engine.process import numba_private

    if not os.path.isabs(function.__code__.co_filename):
        return None
    return _Files(numba_private.FilesBeside(function))


class _Files:
    """The files of a function's machine code, as numba keeps them.

    They may be damaged, the disk may be full, the folder may be only for reading: then the function is
    compiled all the same, once.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, *args: Any) -> Any:
        """The compiled function; None where there is none, or none that can be read."""
        try:
            return self._cache.load_overload(*args)
        except Exception:
            with contextlib.suppress(Exception):
                self._cache.flush()
            return None

    def save_overload(self, *args: Any) -> None:
        """Keep the compiled function, if it can be kept."""
        try:
            self._cache.save_overload(*args)
            self._close()
        except Exception as error:
            _warn(error)

    def _close(self) -> None:
        """Let nobody else write to the files, whatever the process's mask says."""
        for path in Path(self._cache.cache_path).glob(f"{self._cache.stem}.*"):
            mode = path.stat().st_mode
            if os.name == "posix" and mode & 0o022:
                path.chmod(stat.S_IMODE(mode) & ~0o022)


_warned = False


def _warn(error: Exception | None) -> None:
    global _warned
    if not _warned:
        _warned = True
        _, problem, mend = folder.place()
        warnings.warn(
            f"xpgrad: compiled code cannot be kept in {cache_folder()} "
            f"({problem or f'{type(error).__name__}: {error}'}); it is compiled anew in every process. "
            f"{mend or 'XPGRAD_CACHE_DIR names another folder.'}",
            RuntimeWarning,
            stacklevel=2,
        )
