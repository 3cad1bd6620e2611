"""The folder of compiled code: where it is, whether its code may be run, and what in it is old.

Code from there runs as this user, so nobody else may write it. As in ssh, the folder must belong to this user
or to root, and neither its group nor others may write to it. Two more are trusted: the owner of the
installed package, whose code runs anyway, and a group that has this user alone, which many Linux
distributions make for each user. The folders above are not looked at. Elsewhere than on POSIX systems
folders have no such bits.

Each combination of versions has a folder of its own in it. Others are removed when a new one is made and
nobody used them for a month.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_UNUSED = 30 * 24 * 3600  # seconds after which other versions' code is removed
_VERSIONS = re.compile(r"[\w.-]+-(numba|llvmlite)[\w.+]+-functions[0-9a-f]{20}")
_WITHOUT_VERSIONS = re.compile(r"\w+_[0-9a-f]{20}\..+")  # files of releases without folders for versions

_TO_TRUST = (
    "Remove the folder, or mend it by 'chmod -R go-w {0}' and 'chown -R'; or set XPGRAD_CACHE_DIR to another "
    "folder."
)
_TO_WRITE = (
    "'python -m xpgrad warm', by a user who can write there, fills it; XPGRAD_CACHE_DIR names another folder."
)


def _sources() -> str:
    """A hash of those modules of ours whose code generated text holds copies of."""
    engine = Path(__file__).parents[1]
    patterns = (
        "scalar_*.py", "special.py", "native*.py", "records.py", "tracing.py", "*_tiles.py",
        "vector_code.py", "matrix.py", "formula.py", "translate.py", "llvm_code.py", "machine_code.py",
    )  # fmt: skip
    copied = [path for pattern in patterns for path in sorted(engine.rglob(pattern))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in copied)).hexdigest()[:20]


# Taken when this module is imported, with the others: an upgrade while a process runs changes the files, and
# what the process compiles from the old modules must not be kept under the new ones' hash.
_LOADED = _sources()


def versions() -> str:
    """What generated text holds copies of: LLVM's compiling, our own functions, and their constants."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__}, functions {_LOADED}"


class CachePlace(NamedTuple):
    """Where code is read, or None; the reason why none can be kept there, or nothing; how to mend that."""

    folder: Path | None
    problem: str = ""
    mend: str = ""


def cache_folder() -> Path:
    """Where compiled formulas are kept: ``XPGRAD_CACHE_DIR``, else the user's cache folder."""
    chosen = os.environ.get("XPGRAD_CACHE_DIR")
    return Path(os.path.expanduser(chosen)).absolute() if chosen else _users_caches() / "xpgrad"


def _users_caches() -> Path:
    """Where this user's programs keep such files; a folder for temporary files where there is no home."""
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        named, usual = os.environ.get("LOCALAPPDATA", ""), home / "AppData" / "Local"
    elif sys.platform == "darwin":
        named, usual = "", home / "Library" / "Caches"
    else:
        named, usual = os.environ.get("XDG_CACHE_HOME", ""), home / ".cache"
    for folder in (Path(named), usual):
        if folder.is_absolute():  # the specification: a relative path counts as unset, as an empty one
            return folder
    user = f"-{os.getuid()}" if sys.platform != "win32" else ""
    return Path(tempfile.gettempdir()) / f"xpgrad{user}"


def make(folder: Path) -> None:
    """Make a folder that nobody else can write to, whatever the process's mask lets others do.

    A folder that ``XPGRAD_CACHE_DIR`` names may be filled for others, so they can read it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(0o755 if os.environ.get("XPGRAD_CACHE_DIR") else 0o700, exist_ok=True)


def write(path: Path, content: bytes) -> None:
    """Write a file at once: another process may be writing the same, or reading it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.chmod(file.name, 0o644)  # the folder says who can read it
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


def place() -> CachePlace:
    """Where this process reads compiled code, and whether it can keep any."""
    return _place(cache_folder())


def described() -> str:
    """The same in words, with the folder's name."""
    base, found = cache_folder(), place()
    if not found.problem:
        return f"kept in {base}"
    if found.folder is None:
        return f"kept nowhere, {base} is not used ({found.problem})"
    return f"read from {base}, where nothing can be kept ({found.problem})"


@functools.cache
def _place(base: Path) -> CachePlace:
    """See `place`; looked at once."""
    folder = base / _versions()
    try:
        new = not os.path.isdir(folder)
        for part in (base, folder):
            make(part)
            reason = _distrust(part)
            if reason:
                return CachePlace(None, reason, _TO_TRUST.format(base))
        with tempfile.TemporaryFile(dir=folder):
            pass
        with contextlib.suppress(OSError):
            os.utime(folder)  # it is in use
    except OSError as error:
        reason = f"{type(error).__name__}: {error.strerror or error}"
        return CachePlace(folder if os.path.isdir(folder) else None, reason, _TO_WRITE)
    if new:
        _prune(base)
    return CachePlace(folder)


def forget() -> None:
    """Look at the folder again: it may have been removed since."""
    _place.cache_clear()


def _versions() -> str:
    """A folder's name for what compiled code depends on: Python, llvmlite and our own functions."""
    return f"{sys.implementation.cache_tag}-{versions().replace(', ', '-').replace(' ', '')}"


def _distrust(folder: Path) -> str:
    """Why the code in a folder may be another person's; empty where it is not."""
    if sys.platform == "win32":
        return ""
    found, user = folder.stat(), os.geteuid()
    if found.st_uid not in (user, 0, os.stat(__file__).st_uid):
        return f"{folder} belongs to user {found.st_uid}, expected user {user} or root"
    writers = stat.S_IWOTH if _is_private(found.st_gid) else stat.S_IWOTH | stat.S_IWGRP
    if found.st_mode & writers:
        return f"others can write to {folder}, whose mode is {stat.S_IMODE(found.st_mode):03o}"
    return ""


def _is_private(group: int) -> bool:
    """Whether a group has this user alone, by the usual sign: both have one name, or one number."""
    try:
        import grp
        import pwd

        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except (ImportError, KeyError):  # users and groups without names, as in containers; Android has none
        return group == os.getegid() == os.geteuid()
    return group == user.pw_gid and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _prune(base: Path) -> None:
    """Remove what other versions kept and nobody used for long."""
    for path in _of_other_versions(base):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if max(found.st_mtime, 0 if path.is_dir() else found.st_atime) > time.time() - _UNUSED:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _of_other_versions(base: Path) -> Iterator[Path]:
    """Nothing else: the folder may be one in which a user keeps other files too."""
    for path in [*base.glob("*"), *base.glob("__pycache__/*")]:
        pattern = _VERSIONS if path.is_dir() and not path.is_symlink() else _WITHOUT_VERSIONS
        if pattern.fullmatch(path.name):
            yield path
