"""The examples in docs/pytorch.md and in the docstrings run, and print what they say."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parent.parent / "docs" / "pytorch.md"


def test_page(capsys):
    torch.manual_seed(0)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) > 5
    names = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
        said = re.findall(r"^print\(.*?\)  # (.*)$", block, re.M)
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == len(said)
        assert printed == [words.split(": ")[0] for words in said]


@pytest.mark.parametrize("name", ["convolution", "functional", "modules", "swap"])
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"xpgrad_torch.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
