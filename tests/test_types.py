"""Types that a checker of a user's code sees. CI checks the uses in tests/typing with mypy and pyright."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "package", ["src/xpgrad", *(f"adapters/xpgrad_{x}" for x in ("jax", "onnx", "torch"))]
)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
