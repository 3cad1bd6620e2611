"""Types that a checker of a user's code sees. CI checks the uses in tests/typing with mypy and pyright."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import get_args

import pytest

from xpgrad import _words, losses

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def stubs():
    spec = importlib.util.spec_from_file_location("tools_stubs", ROOT / "tools" / "stubs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stubs_are_current(stubs) -> None:
    """They follow from the signatures; ``python tools/stubs.py`` writes them."""
    assert stubs.CORE.read_text(encoding="utf-8") == stubs.formatted(stubs.core(), stubs.CORE)


def test_stubs_of_jax_are_current(stubs) -> None:
    pytest.importorskip("jax", reason="jax is not installed: the functions are its")
    assert stubs.JAX.read_text(encoding="utf-8") == stubs.formatted(stubs.jax(), stubs.JAX)


def test_words_are_those_that_kernels_take() -> None:
    """A type of words has the very choices of the check at run time."""
    from xpgrad._conv import choice, geometry
    from xpgrad._recurrent import DIRECTIONS

    _convert = importlib.import_module("xpgrad.convert")

    runtime = {
        _words.Direction: DIRECTIONS,
        _words.AutoPad: geometry.AUTO_PADS,
        _words.Method: ("auto", *choice.METHODS),
        _words.Reduction: losses._REDUCTIONS,
        _words.Layout: (*_convert._LAYOUTS["lstm"], *_convert._cell_layouts.CELLS["lstm"]),
        _words.Operator: tuple(_convert._LAYOUTS),
    }
    for type_, choices in runtime.items():
        assert set(get_args(type_)) == set(choices)


@pytest.mark.parametrize("module", ["xpgrad.cells", "xpgrad_torch.functional"])
def test_completion_shows_public_names_only(module: str) -> None:
    found = pytest.importorskip(module, reason="torch is not installed")
    assert dir(found) == sorted(found.__all__)


@pytest.mark.parametrize(
    "package", ["src/xpgrad", *(f"adapters/xpgrad_{x}" for x in ("jax", "onnx", "torch"))]
)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
