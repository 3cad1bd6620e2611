"""The README's and the documentation's examples run; so do those of the core's docstrings."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/convolution.md", "docs/recurrent.md"])
def test_page(page):
    if page == "README.md":
        pytest.importorskip("torch", reason="torch is not installed: the README shows modules")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize(
    "module", ["lstm", "gru", "conv", "loops", "convert", "operations", "_vjp", "engine"]
)
def test_docstrings(module):
    result = doctest.testmod(importlib.import_module(f"xpgrad.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_every_method_of_convolution_is_described():
    methods = set(importlib.import_module("xpgrad._conv.choice").METHODS)
    _, can, rule = re.split(
        r"^## Methods|^### Which", (ROOT / "docs/convolution.md").read_text("utf-8"), flags=re.M
    )
    for table in (can, rule):
        assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == methods


def test_links():
    """Files that the pages point to exist."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([\w./-]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
