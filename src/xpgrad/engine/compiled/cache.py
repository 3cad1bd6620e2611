"""The cache of compiled code: from a generated text to its linked functions.

Machine code is kept in a file of the cache folder. Its name is a hash of the text and of the machine: so no
variant is taken for another, and a changed formula makes a new file. Damaged files are replaced. If the
folder cannot be written, its files are read. Other code is compiled for this process only, with one warning.
"""

from __future__ import annotations

import hashlib
import linecache
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from xpgrad.engine.compiled import folder
from xpgrad.engine.compiled.folder import cache_folder
from xpgrad.engine.process.compile_message import compiling
from xpgrad.engine.process.garbage import without_collections
from xpgrad.engine.process.locks import LastingLock

_lock = LastingLock()


class Compiled(NamedTuple):
    """A compiled function, by its address."""

    address: int


class Loaded:
    """The compiled functions of a text, by their names."""

    def __init__(self, linker: Any, stem: str) -> None:
        self._linker, self._stem = linker, stem

    def __getattr__(self, name: str) -> Compiled:
        address = 0 if name.startswith("__") else self._linker.address(_symbol(self._stem, name))
        if not address:
            raise AttributeError(f"{self._stem} has no compiled function {name}")
        found = self.__dict__[name] = Compiled(address)
        return found


_loaded: dict[str, Loaded] = {}


def load(name: str, text: str, given: Callable[[], Mapping[str, Any]] = dict) -> Loaded:
    """The functions of a generated text, from the cache folder or compiled now; once in a process.

    `cfunc` marks functions that become C functions. `given` returns names that the text uses; the text must
    determine their values.
    """
    from xpgrad.engine.compiled.machine_code import linker, target

    stem = f"{name}_{hashlib.sha256(repr((text, target())).encode()).hexdigest()[:20]}"
    with _lock.own:  # one thread at a time: before 3.12 Python's parser is not thread-safe
        if stem not in _loaded:
            code = _kept(stem)
            if code is None:
                with compiling():
                    code = _compiled(stem, text, given())
                _keep(stem, code)
            made = linker()
            made.link(code)
            _loaded[stem] = Loaded(made, stem)
        return _loaded[stem]


def _symbol(stem: str, function: str) -> str:
    return f"xpgrad.{stem}.{function}"


@without_collections
def _compiled(stem: str, text: str, given: Mapping[str, Any]) -> bytes:
    """The object file of a text that uses the given names."""
    from llvmlite import ir

    from xpgrad.engine.compiled.machine_code import linker
    from xpgrad.engine.compiled.translate import CFunction

    file = f"<{stem}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    module = ModuleType(stem)
    vars(module).update(given)
    exec(compile(text, file, "exec"), vars(module))
    made = ir.Module(stem)
    for function in vars(module).values():
        if isinstance(function, CFunction):
            function.write(made, _symbol(stem, function.name))
    del linecache.cache[file]  # nobody reads the text again
    return linker().compiled(made)


def cfunc(signature: str) -> Callable[[Callable], Any]:
    """Decorator of generated texts: the function becomes a C function of these types."""
    from xpgrad.engine.compiled.translate import CFunction

    return lambda function: CFunction(function, signature)


# --- files: a hash, which shows damage and other files' content, and the machine code


def _hash(stem: str, code: bytes) -> bytes:
    return hashlib.sha256(stem.encode() + code).digest()


def _kept(stem: str) -> bytes | None:
    """The machine code that is kept; None if none can be read."""
    place = folder.place().folder
    if place is None:
        return None
    try:
        found = (place / f"{stem}.o").read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    return found[size:] if _hash(stem, found[size:]) == found[:size] else None


def _keep(stem: str, code: bytes) -> None:
    """Keep machine code, if it can be kept."""
    for _ in range(2):
        place, problem, _ = folder.place()
        if problem or place is None:
            _warn(problem)
            return
        try:
            folder.write(place / f"{stem}.o", _hash(stem, code) + code)
            return
        except OSError as error:
            reason = f"{type(error).__name__}: {error}"
            folder.forget()  # perhaps it was removed, and is made again now
    _warn(reason)


_warned = False


def _warn(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        mend = folder.place().mend or "XPGRAD_CACHE_DIR names another folder."
        warnings.warn(
            f"xpgrad: compiled code cannot be kept in {cache_folder()} ({reason}); it is compiled anew in "
            f"every process. {mend}",
            RuntimeWarning,
            stacklevel=2,
        )
