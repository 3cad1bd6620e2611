"""What numba's documentation does not promise stands in one module; without it formulas are not compiled."""

import ast
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import xpgrad
import xpgrad_torch
from compiled_calls import from_python
from xpgrad.engine.process import settings

pytest.importorskip("numba", reason="numba is not installed: nothing of it is used")
from numba.core import cgutils

from xpgrad.engine.process import numba_private

PUBLIC = {"numba", "numba.extending", "numba.types", "llvmlite"}


def imported(path):
    """Return the modules of numba and llvmlite that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        yield from (name for name in names if name.split(".")[0] in ("numba", "llvmlite"))


def test_only_one_module_imports_private_parts():
    roots = [Path(xpgrad.__file__).parent, Path(xpgrad_torch.__file__).parents[1]]
    found = {path.name for root in roots for path in root.rglob("*.py") if not {*imported(path)} <= PUBLIC}
    assert found == {"numba_private.py"}


def test_the_installed_version_lacks_nothing():
    assert numba_private.LACKING is None


@pytest.mark.parametrize("owner", [cgutils, None], ids=["a name", "a module"])
def test_what_is_lacking_is_named(owner, monkeypatch):
    if owner is None:
        monkeypatch.setitem(numba_private._NEEDED, "numba.core.nothing", ("at_all",))
        expected = "numba.core.nothing"
    else:
        monkeypatch.delattr(owner, "for_range")
        expected = "numba.core.cgutils.for_range"
    assert [*numba_private._lacking()] == [expected]


def test_without_a_private_name_formulas_are_evaluated_by_numpy(monkeypatch):
    """A warning says so once, and the results are the same."""
    x, d = np.linspace(-2, 2, 50), np.linspace(1, 3, 50)
    expected = xpgrad.gelu_grad(d, x)
    monkeypatch.delenv("XPGRAD_JIT", raising=False)
    monkeypatch.setattr(numba_private, "LACKING", "numba.core.cgutils.for_range")
    settings._numba_usable.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"numba 0\..* has no numba\.core\.cgutils\.for_range, so "):
            assert not settings.jit_enabled()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_allclose(xpgrad.gelu_grad(d, x), expected, rtol=1e-14)
    finally:
        monkeypatch.undo()
        settings._numba_usable.cache_clear()


def test_an_llvm_function_without_a_set_of_attributes():
    function = SimpleNamespace(attributes=set())
    assert numba_private.set_attribute(function, '"one"="2"')
    assert function.attributes == {'"one"="2"'}
    assert not numba_private.set_attribute(SimpleNamespace(attributes=[]), '"one"="2"')
    assert not numba_private.set_attribute(SimpleNamespace(), '"one"="2"')


@pytest.mark.parametrize("kind", [numba_private.c_function, numba_private.jitted])
def test_a_function_asks_the_files_that_it_is_given(kind):
    """For what it is compiled to; what they lack is compiled and handed to them."""
    asked, kept = [], []
    files = SimpleNamespace(
        load_overload=lambda *args: asked.append(args), save_overload=lambda *args: kept.append(args)
    )

    def thrice(x):
        return 3 * x

    for given in (files, None):
        made = kind(thrice, "float64(float64)", {}, given)
        assert (made.ctypes if kind is numba_private.c_function else made)(2.0) == 6.0
        assert len(asked) == len(kept) == 1


@pytest.mark.parametrize("label", ["first", "second"])
def test_variants_of_a_function_have_symbols_of_their_own(label):
    """By their label, not by numba's counter, which begins anew in each process."""
    from xpgrad.engine.compiled.native import variant

    @variant(label)
    def doubled(x):
        return x + x

    assert from_python(doubled)(3) == 6
    (compiled,) = doubled.overloads.values()
    assert f"{label}.doubled" in compiled.fndesc.qualname
    assert label in compiled.fndesc.mangled_name
