"""The folder of compiled code: damaged files are made anew; where nothing can be kept, all works as well."""

import errno
import os
import sys
import warnings

import pytest

pytest.importorskip("numba", reason="numba is not installed: nothing is compiled")

from compiled_calls import TEXT
from xpgrad.engine.compiled import cache as compile_cache


def in_a_new_process():
    """What was loaded is forgotten, as by the end of a process."""
    compile_cache.load.__wrapped__.cache_clear()
    for name in [name for name in sys.modules if name.startswith("xpgrad_compiled_numbers_")]:
        del sys.modules[name]
    module = compile_cache.load("numbers", TEXT)
    return module.twice(21.0), module.thrice.ctypes(4.0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XPGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_cache, "_warned", False)
    yield tmp_path
    compile_cache.load.__wrapped__.cache_clear()


def files(folder, ending):
    return sorted(folder.rglob(f"*.{ending}"))


def states(folder):
    return {path: path.stat().st_mtime_ns for path in (*files(folder, "nbi"), *files(folder, "nbc"))}


DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "junk": lambda data: bytes(reversed(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("ending", ["py", "nbi", "nbc"])
def test_damaged_files_are_made_anew(folder, ending, damage):
    assert in_a_new_process() == (42.0, 12.0)
    damaged = files(folder, ending)
    assert len(damaged) == {"py": 1, "nbi": 2, "nbc": 2}[ending]
    # one alone, too: `twice` is loaded at its first call, when the import is over
    for paths in [damaged, *([path] for path in damaged if len(damaged) > 1)]:
        for path in paths:
            path.write_bytes(DAMAGES[damage](path.read_bytes()))
        assert in_a_new_process() == (42.0, 12.0)
        whole = states(folder)
        assert len(whole) == 4
        assert in_a_new_process() == (42.0, 12.0)
        assert states(folder) == whole, "what was made anew serves the next process"


def test_a_full_disk_is_said_once(folder, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)  # the last step of writing, ours and numba's
    with pytest.warns(RuntimeWarning, match="compiled code cannot be kept in .* No space left on device"):
        assert in_a_new_process() == (42.0, 12.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert in_a_new_process() == (42.0, 12.0)
    assert not files(folder, "py")
    assert not files(folder, "tmp")


def test_a_disk_that_fills_up_after_the_import(folder, monkeypatch):
    """Functions without a signature are compiled at their first call."""
    compile_cache.load.__wrapped__.cache_clear()
    module = compile_cache.load("numbers", TEXT)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="cannot be kept"):
        assert module.twice(3.0) == 6.0


def test_what_is_wrong_with_a_text_is_raised(folder):
    with pytest.raises(NameError, match="nothing_of_that_name"):
        compile_cache.load("numbers_wrong", "nothing_of_that_name\n")
