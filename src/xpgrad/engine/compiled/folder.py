"""The folder of compiled code: its place, whether its code may be run, and which of its code is old.

Code from the folder runs as this user, so nobody else may write it. As in ssh, the folder must belong to this
user or to root, and neither its group nor others may write to it. Two more are trusted: the owner of the
installed package, whose code runs anyway, and a group whose only member is this user, which many Linux
distributions make for each user. Parent folders are not checked. Only POSIX systems have such permissions.

Each combination of versions has its own folder in it. A new one removes the others that nobody used for a
month.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
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
    """A hash of our modules whose code is part of compiled code."""
    patterns = (
        "scalar_*.py", "special.py", "native*.py", "records.py", "tracing.py", "*_tiles.py",
        "vector_code.py", "matrix.py", "formula.py", "translate.py", "llvm_code.py", "machine_code.py",
        "memory.py", "guard.py", "foreign.py",
    )  # fmt: skip
    modules = sorted(Path(__file__).parents[1].rglob("*.py"))
    is_copied = re.compile("|".join(map(fnmatch.translate, patterns))).match
    copied = [module for module in modules if is_copied(module.name)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in copied)).hexdigest()[:20]


# Computed at import, like the other modules: an upgrade while a process runs changes the files, and code
# compiled from the old modules must not be kept under the new hash.
_LOADED = _sources()


def versions() -> str:
    """The versions that compiled code depends on: llvmlite, our own functions and their constants."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__}, functions {_LOADED}"


class CachePlace(NamedTuple):
    """The folder to read from, or None; why nothing can be kept there, or ""; how to mend that."""

    folder: Path | None
    problem: str = ""
    mend: str = ""


def cache_folder() -> Path:
    """The folder of compiled code: ``XPGRAD_CACHE_DIR``, else in the user's cache folder."""
    chosen = os.environ.get("XPGRAD_CACHE_DIR")
    return Path(os.path.expanduser(chosen)).absolute() if chosen else _users_caches() / "xpgrad"


def _users_caches() -> Path:
    """The folder of this user's caches; without a home, a folder for temporary files."""
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
    """Make a folder that nobody else can write to, whatever the process's umask.

    If ``XPGRAD_CACHE_DIR`` names the folder, others can read it: it may be filled for them.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_dir():
        return
    folder.mkdir(0o700, exist_ok=True)
    if os.environ.get("XPGRAD_CACHE_DIR"):
        folder.chmod(0o755)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: another process may be writing or reading it."""
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
    """The place from which this process reads compiled code, and whether it can keep code there."""
    return _place(cache_folder())


def described() -> str:
    """`place` in words, with the folder's name."""
    base, found = cache_folder(), place()
    if not found.problem:
        return f"kept in {base}"
    if found.folder is None:
        return f"kept nowhere, {base} is not used ({found.problem})"
    return f"read from {base}, where nothing can be kept ({found.problem})"


@functools.cache
def _place(base: Path) -> CachePlace:
    """See `place`; checked once."""
    folder = base / f"{sys.implementation.cache_tag}-{versions().replace(', ', '-').replace(' ', '')}"
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
    """Check the folder again: it may have been removed since."""
    _place.cache_clear()


def _distrust(folder: Path) -> str:
    """Why the code in a folder may be another person's; empty if it cannot be."""
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
    """Whether a group's only member is this user: by the usual sign, both have the same name or number."""
    try:
        import grp
        import pwd

        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except (ImportError, KeyError):  # users and groups without names, as in containers; Android has none
        return group == os.getegid() == os.geteuid()
    return group == user.pw_gid and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _prune(base: Path) -> None:
    """Remove the code of other versions that nobody used for long; a user may keep other files there too."""
    for path in [*base.glob("*"), *base.glob("__pycache__/*")]:
        is_folder = path.is_dir()
        pattern = _VERSIONS if is_folder and not path.is_symlink() else _WITHOUT_VERSIONS
        if not pattern.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            found = path.lstat()
            if max(found.st_mtime, 0 if is_folder else found.st_atime) > time.time() - _UNUSED:
                continue
            if is_folder:
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
