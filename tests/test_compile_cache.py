"""The folder of compiled code: damaged files are made anew; where nothing can be kept, all works as well."""

import errno
import gc
import os
import types
import warnings

import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")

from compiled_calls import TEXT, called
from xpgrad.engine.compiled import cache as compile_cache
from xpgrad.engine.compiled import machine_code

linkers = []  # others' functions are called until the process ends


def in_a_new_process():
    """What was loaded is forgotten, as by the end of a process."""
    compile_cache._loaded.clear()
    linkers.append(machine_code.linker())
    machine_code._linker.cache_clear()
    module = compile_cache.load("numbers", TEXT)
    return tuple(
        called(one.address, "float64(float64)")(x) for one, x in [(module.twice, 21.0), (module.thrice, 4.0)]
    )


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XPGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_cache, "_warned", False)
    yield tmp_path
    compile_cache._loaded.clear()


def files(folder, ending):
    return sorted(folder.rglob(f"*.{ending}"))


def states(folder):
    return {path: path.stat().st_mtime_ns for path in files(folder, "o")}


DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "junk": lambda data: bytes(reversed(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_made_anew(folder, damage):
    assert in_a_new_process() == (42.0, 12.0)
    (path,) = files(folder, "o")
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert in_a_new_process() == (42.0, 12.0)
    whole = states(folder)
    assert in_a_new_process() == (42.0, 12.0)
    assert states(folder) == whole, "what was made anew serves the next process"


def test_a_file_with_other_code_is_made_anew(folder):
    assert in_a_new_process() == (42.0, 12.0)
    (path,) = files(folder, "o")
    compile_cache.load("others", TEXT.replace("twice", "double"))
    (other,) = set(files(folder, "o")) - {path}
    path.write_bytes(other.read_bytes())
    assert in_a_new_process() == (42.0, 12.0)


def test_code_lives_as_long_as_the_process(folder):
    """Whoever has an address knows nothing of what made the code."""
    module = compile_cache.load("numbers", TEXT)
    function = called(module.twice.address, "float64(float64)")
    del module
    assert in_a_new_process() == (42.0, 12.0)
    gc.collect()
    assert function(4.0) == 8.0


def test_a_full_disk_is_said_once(folder, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)  # the last step of writing
    with pytest.warns(RuntimeWarning, match="compiled code cannot be kept in .* No space left on device"):
        assert in_a_new_process() == (42.0, 12.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert in_a_new_process() == (42.0, 12.0)
    assert not files(folder, "o")
    assert not files(folder, "tmp")


def test_what_is_wrong_with_a_text_is_raised(folder):
    with pytest.raises(NameError, match="nothing_of_that_name"):
        compile_cache.load("numbers_wrong", "nothing_of_that_name\n")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_waits_and_goes_on_as_before(enabled, folder, monkeypatch):
    """Also after an error; whoever had switched it off finds it off."""
    seen = []

    def made(name):  # while something is compiled
        seen.append(gc.isenabled())
        return types.ModuleType(name)

    monkeypatch.setattr(compile_cache, "ModuleType", made)
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert in_a_new_process() == (42.0, 12.0)
        assert gc.isenabled() == enabled
        with pytest.raises(NameError):
            compile_cache.load("wrong", "missing")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert seen == [False, False]
