"""The folder of compiled code: where it is, who may have written it, and users who can only read it."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
pytest.importorskip("grp", reason="folders have no bits here that say who writes to them")

import grp
import pwd

from compiled_calls import TEXT, called
from xpgrad.engine.compiled import cache as compile_cache
from xpgrad.engine.compiled import folder

ROOT = os.geteuid() == 0
NOBODY = 65534
needs_root = pytest.mark.skipif(not ROOT, reason="only root can work as another user")

# Prints a text's results, how often machine code was found and compiled, and the warnings. It becomes another
# user only when all is imported: Python itself may be where that user cannot read.
CHILD = f"""
import grp, json, os, pwd, sys, warnings
import numpy, xpgrad
from compiled_calls import called
from xpgrad.engine.compiled import cache, machine_code, formula_code
user = json.loads(sys.argv[2])
machine_code.linker().link(cache._compiled("first", {TEXT!r}, {{}}))
if user:
    os.setgroups([]), os.setgid(user), os.setuid(user)
made, kept, compile, read = [], [], cache._compiled, cache._kept
cache._compiled = lambda *args: made.append(args) or compile(*args)
cache._kept = lambda *args: kept.append(read(*args)) or kept[-1]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    module = cache.load("numbers", {TEXT!r} + sys.argv[1])
    signature = "float64(float64)"
    values = [called(one.address, signature)(x) for one, x in [(module.twice, 21.0), (module.thrice, 4.0)]]
found = sum(code is not None for code in kept)
print(json.dumps([values, found, len(made), [str(one.message) for one in said]]))
"""


def process(cache, text="", *, temporary=None, mask=0o022, user=0):
    """What another process computes, how often it finds machine code and compiles, and its warnings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG")}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "XPGRAD_CACHE_DIR": str(cache)}
    environment |= {"TMPDIR": str(temporary or tempfile.gettempdir()), "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, text, str(user)],
        env=environment, capture_output=True, text=True, umask=mask, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values, found, compiled, said = json.loads(done.stdout)
    assert values == [42.0, 12.0]
    return found, compiled, said


@pytest.fixture
def shared():
    """A folder that other users reach, unlike pytest's own."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    for path in [made, *made.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(made)


@pytest.fixture
def temporary(shared):
    """Where another user's temporary files go."""
    made = shared / "temporary"
    made.mkdir()
    made.chmod(0o1777)
    return made


@pytest.fixture(scope="module")
def filled_once():
    made = Path(tempfile.mkdtemp())
    assert process(made / "cache") == (0, 1, [])
    yield made / "cache"
    shutil.rmtree(made)


@pytest.fixture
def base(filled_once, shared):
    """A folder of its own for the test, with the code of the text."""
    return Path(shutil.copytree(filled_once, shared / "cache"))


def close(base):
    """Take every right to write from a folder and what is in it."""
    for path in [base, *base.rglob("*")]:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


# Root can write in spite of the bits, so its tests read as another user.
READER = NOBODY if ROOT else 0


def states(base):
    return {path: (path.stat().st_mode, path.stat().st_mtime_ns) for path in base.rglob("*")}


def test_a_folder_that_can_only_be_read_is_read(base, temporary):
    # The layers of an image keep whole seconds.
    for path in base.rglob("*"):
        os.utime(path, (1e9, 1e9))
    close(base)
    before = states(base)
    assert process(base, temporary=temporary, user=READER) == (1, 0, [])
    assert states(base) == before
    assert not [*temporary.iterdir()]


@pytest.mark.parametrize("missing", ["text", "code", "damaged", "all"])
def test_what_a_folder_for_reading_lacks_is_compiled_once_and_said(base, temporary, missing):
    for path in base.rglob("*.o"):
        if missing == "code":
            path.unlink()
        if missing == "damaged":
            path.write_bytes(b"junk")
    if missing == "all":
        shutil.rmtree(base)
        base.mkdir()
    close(base)
    text = "# another one" if missing == "text" else ""
    found, compiled, said = process(base, text, temporary=temporary, user=READER)
    assert (found, compiled) == (0, 1)
    (said,) = said
    assert f"compiled code cannot be kept in {base} (PermissionError: Permission denied)" in said
    assert "'python -m xpgrad warm', by a user who can write there, fills it" in said
    assert not [*temporary.iterdir()], "nothing stays behind"


def test_a_kernel_runs_where_nothing_can_be_kept(shared):
    """In threads too, whose function is compiled later."""
    (shared / "file").write_text("no folder")
    text = """
import numpy as np, os, xpgrad
os.environ["XPGRAD_NUM_THREADS"] = "2"
x = np.random.default_rng(0).normal(size=1 << 20)
assert (xpgrad.relu(x) == np.maximum(x, 0)).all()
"""
    _, _, said = process(shared / "file" / "cache", text)
    assert len(said) == 1
    assert "cannot be kept in" in said[0]


def test_code_from_a_folder_that_others_can_write_to_does_not_run(base):
    base.chmod(0o777)
    found, compiled, said = process(base)
    assert (found, compiled) == (0, 1)
    (said,) = said
    assert f"cannot be kept in {base} (others can write to {base}, whose mode is 777)" in said
    assert f"Remove the folder, or mend it by 'chmod -R go-w {base}' and 'chown -R'" in said
    assert "set XPGRAD_CACHE_DIR to another folder" in said
    base.chmod(0o755)
    assert process(base) == (1, 0, [])


MODES = {0o757: False, 0o707: False, 0o1777: False, 0o775: False, 0o770: False, 0o755: True, 0o700: True}


@pytest.mark.parametrize("mode", MODES, ids=oct)
@pytest.mark.parametrize("where", [".", "*"])
def test_who_can_write_to_a_folder_of_code(base, monkeypatch, mode, where):
    monkeypatch.setenv("XPGRAD_CACHE_DIR", str(base))
    monkeypatch.setattr(folder, "_is_private", lambda group: False)
    made = folder.place().folder
    (opened,) = {".": [base], "*": [made]}[where]
    opened.chmod(mode)
    folder.forget()
    problem = "" if MODES[mode] else f"others can write to {opened}, whose mode is {mode:03o}"
    assert folder.place()[:2] == (None if problem else made, problem)
    monkeypatch.setattr(folder, "_is_private", lambda group: True)
    folder.forget()
    assert bool(folder.place().problem) is bool(mode & 0o002)


@needs_root
@pytest.mark.parametrize("where", [".", "*"])
def test_whose_code_runs(base, monkeypatch, where):
    """Root's and this user's, and of the user who installed the package."""
    monkeypatch.setenv("XPGRAD_CACHE_DIR", str(base))
    made = folder.place().folder
    (given,) = {".": [base], "*": [made]}[where]
    os.chown(given, NOBODY, -1)
    for user in (0, 12345):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        folder.forget()
        expected = f"{given} belongs to user {NOBODY}, expected user {user} or root"
        assert folder.place()[:2] == (None, expected)
    installed = base.parent / "folder.py"
    installed.touch()
    for owner in (NOBODY, "user"):
        if owner == NOBODY:
            os.chown(installed, NOBODY, -1)
            monkeypatch.setattr(folder, "__file__", str(installed))
        else:
            monkeypatch.undo()
            monkeypatch.setenv("XPGRAD_CACHE_DIR", str(base))
            monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
        folder.forget()
        assert folder.place()[:2] == (made, "")


@needs_root
def test_code_of_another_user_does_not_run(base):
    os.chown(base, NOBODY, -1)
    found, compiled, said = process(base, user=12345)
    assert (found, compiled, len(said)) == (0, 1, 1)
    assert f"{base} belongs to user 65534, expected user 12345 or root" in said[0]


@needs_root
def test_a_user_without_a_name_keeps_code_too(shared):
    """A container's process may have any number, and a home that does not exist."""
    base = shared / "open" / "cache"
    base.parent.mkdir()
    base.parent.chmod(0o1777)
    assert process(base, user=12345) == (0, 1, [])
    assert base.stat().st_uid == 12345
    base.chmod(0o775)  # its group has the user's number
    assert process(base, user=12345) == (1, 0, [])


def test_what_is_made_can_be_written_by_nobody_else(shared):
    base = shared / "new" / "cache"
    assert process(base, mask=0) == (0, 1, [])
    assert not [path for path in [base, *base.rglob("*")] if path.stat().st_mode & 0o022]
    assert stat.S_IMODE(base.stat().st_mode) == 0o755
    assert all(path.stat().st_mode & 0o004 for path in base.rglob("*")), "an image's users read it"


def test_the_users_own_folder_is_closed_to_others(tmp_path, monkeypatch):
    monkeypatch.delenv("XPGRAD_CACHE_DIR", raising=False)
    monkeypatch.setattr(folder, "_users_caches", lambda: tmp_path / "caches")
    found = folder.place()
    assert not found.problem
    assert found.folder.parent == tmp_path / "caches" / "xpgrad"
    for path in (found.folder.parent, found.folder):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


GROUPS = {
    "of the user's name, alone": ("me", [], 100, True),
    "of the user's name, who is named": ("me", ["me"], 100, True),
    "with another member": ("me", ["me", "you"], 100, False),
    "of another name": ("staff", [], 100, False),
    "that is not the user's first": ("me", [], 200, False),
}


@pytest.mark.parametrize("case", GROUPS)
def test_a_group_is_private_if_it_has_the_user_alone(monkeypatch, case):
    name, members, first, expected = GROUPS[case]
    monkeypatch.setattr(grp, "getgrgid", lambda number: SimpleNamespace(gr_name=name, gr_mem=members))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name="me", pw_gid=first))
    assert folder._is_private(100) is expected


@pytest.mark.skipif(sys.platform == "darwin", reason="the variable means nothing there")
@pytest.mark.parametrize("value", ["", "caches", "./caches", None])
def test_a_folder_that_is_no_absolute_path_counts_as_unset(monkeypatch, tmp_path, value):
    monkeypatch.delenv("XPGRAD_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert folder.cache_folder() == tmp_path / ".cache" / "xpgrad"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert folder.cache_folder() == tmp_path / "caches" / "xpgrad"


def test_a_user_without_a_home_has_a_folder(monkeypatch):
    monkeypatch.delenv("XPGRAD_CACHE_DIR", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    assert folder.cache_folder() == Path(tempfile.gettempdir()) / "xpgrad-12345" / "xpgrad"


def test_a_chosen_folder_is_absolute(monkeypatch, tmp_path):
    """A process may go to another folder later; and an image's settings know no shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XPGRAD_CACHE_DIR", "here")
    assert folder.cache_folder() == tmp_path / "here"
    monkeypatch.setenv("XPGRAD_CACHE_DIR", "~/cache")
    assert folder.cache_folder() == tmp_path / "home" / "cache"


OLD = [
    "cpython-311-numba0.61.2-functions0123456789abcdef0123/__pycache__/code.nbc",
    "gelu_float32_0123456789abcdef0123.py",  # of a release that had no folders for versions
    "__pycache__/gelu_float32_0123456789abcdef0123.loop-3.py311.1.nbc",
    "cpython-311-llvmlite0.49.0-functions0123456789abcdef0123/code.o",
]
OTHERS = [
    "options.json",
    "script.py",
    "data_0123.py",
    "__pycache__/script.cpython-311.pyc",
    "results/code.nbc",
]


@pytest.mark.parametrize("days", [29, 31])
def test_what_other_versions_kept_is_removed_after_a_month(tmp_path, monkeypatch, days):
    monkeypatch.setenv("XPGRAD_CACHE_DIR", str(tmp_path))
    for name in OLD + OTHERS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    then = time.time() - days * 24 * 3600
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        os.utime(path, (then, then))
    new = folder.place().folder
    assert new.is_dir()
    assert [name for name in OLD if (tmp_path / name).exists()] == (OLD if days < 30 else [])
    assert all((tmp_path / name).exists() for name in OTHERS), "nothing else is touched"
    # Nothing is looked for again while this version's folder is there; its use is seen by its time.
    late = tmp_path / OLD[1]
    late.write_text("")
    for path in (late, new):
        os.utime(path, (1e9, 1e9))
    folder.forget()
    assert folder.place().folder == new
    assert late.exists()
    assert new.stat().st_mtime > then


def test_processes_that_begin_together(shared):
    """Each may write what another one writes at that moment; whatever is left is whole."""
    base = shared / "cache"
    with ThreadPoolExecutor(3) as pool:
        for found, compiled, said in pool.map(process, [base] * 3):
            assert found + compiled == 1
            assert not said
    assert process(base) == (1, 0, [])
    assert not [path for path in base.rglob("*") if ".tmp" in path.name]


def test_the_folder_in_words(base, monkeypatch, tmp_path):
    def described(path):
        monkeypatch.setenv("XPGRAD_CACHE_DIR", str(path))
        folder.forget()
        return folder.described()

    assert described(base) == f"kept in {base}"

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "TemporaryFile", full)
        assert described(base) == (
            f"read from {base}, where nothing can be kept (OSError: No space left on device)"
        )
    base.chmod(0o777)
    reason = f"others can write to {base}, whose mode is 777"
    assert described(base) == f"kept nowhere, {base} is not used ({reason})"


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XPGRAD_CACHE_DIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shutil.rmtree(folder.place().folder)
        module = compile_cache.load("numbers", TEXT + "# removed")
    assert called(module.twice.address, "float64(float64)")(21.0) == 42.0
    assert [*tmp_path.rglob("*.o")]
