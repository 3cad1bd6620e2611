"""Where compiled code is kept, and how it comes back: a text goes in, its imported module comes out.

The text lies in a file of the cache folder, named by its hash; numba's own files, with the machine code, lie
beside it. Damaged files are removed and made anew. Where nothing can be written, code is compiled for this
process alone, and a warning says so once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from xpgrad.engine.process.notice import compiling

_Function = TypeVar("_Function", bound=Callable)
_lock = threading.RLock()


def one_at_a_time(function: _Function) -> _Function:
    """Threads may come to one formula at a time, and Python's parser is not safe for that before 3.12."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with _lock:
            return function(*args, **kwargs)

    return guarded  # type: ignore[return-value]


def cache_folder() -> Path:
    """Where compiled formulas are kept: ``XPGRAD_CACHE_DIR``, else the user's cache folder."""
    chosen = os.environ.get("XPGRAD_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "xpgrad"


@functools.cache
def _writable_folder(folder: Path) -> Path:
    """The folder, made; or a temporary one of this process where it can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="xpgrad-"))


@one_at_a_time
@functools.cache
def load(name: str, text: str) -> Any:
    """The module of a generated text, from the cache folder if it is there; once in a process."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    with compiling():
        for attempt in (_from_folder, _anew):
            try:
                return attempt(f"{name}_{digest}", text)
            except Exception as error:  # whatever a damaged file or a full disk leads to
                reason = error
        module = _without_cache(f"{name}_{digest}", text)  # raises what is wrong with the text itself
        _warn(reason)
        return module


def _from_folder(stem: str, text: str) -> ModuleType:
    path = _writable_folder(cache_folder()) / f"{stem}.py"
    if not _holds(path, text):
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            try:
                file.write(text)
                file.close()
                os.replace(file.name, path)  # another process may be writing the same text
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(file.name)
                raise
    spec = importlib.util.spec_from_file_location(f"xpgrad_compiled_{stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import the compiled formula at {path}")
    module = importlib.util.module_from_spec(spec)
    from xpgrad.engine.process import numba_private

    sys.modules[spec.name] = module  # where numba looks for the globals of a function from its cache
    spec.loader.exec_module(module)
    for value in vars(module).values():
        numba_private.replace_cache(value, _GuardedCache)
    return module


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


def _anew(stem: str, text: str) -> ModuleType:
    """After its files were removed."""
    folder = _writable_folder(cache_folder())
    for path in (*folder.glob(f"{stem}.*"), *(folder / "__pycache__").glob(f"{stem}.*")):
        with contextlib.suppress(OSError):
            path.unlink()
    return _from_folder(stem, text)


def _without_cache(stem: str, text: str) -> ModuleType:
    """Compiled for this process alone."""
    module = ModuleType(f"xpgrad_compiled_{stem}")
    sys.modules[module.__name__] = module
    exec(compile(text.replace("cache=True", "cache=False"), f"<{stem}>", "exec"), vars(module))
    return module


class _GuardedCache:
    """A numba function's cache whose files may be damaged, and whose disk may be full.

    Functions without a signature are compiled at their first call, long after their module was imported.
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
        except OSError as error:
            _warn(error)


_warned = False


def _warn(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"xpgrad: compiled code cannot be kept in {cache_folder()} ({type(error).__name__}: {error}); it "
            "is compiled anew in every process. XPGRAD_CACHE_DIR names another folder.",
            RuntimeWarning,
            stacklevel=2,
        )
