"""The examples in docs/pytorch.md and in the docstrings run, and print what they say."""

import doctest
import importlib
import importlib.util
import re
from pathlib import Path

import pytest
import torch

import xpgrad_torch

PAGE = Path(__file__).parent.parent / "docs" / "pytorch.md"


def test_page(capsys):
    torch.manual_seed(0)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) > 5
    names = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
        # what is printed stands behind the line, or below it on lines of its own
        said = re.findall(r"^(?:print\(.*\)  )?# (.*)$", block, re.M)
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == len(said)
        assert printed == [words.split(": ")[0] for words in said]


@pytest.fixture
def transforms():
    path = PAGE.parents[1] / "asv_bench" / "transforms.py"
    spec = importlib.util.spec_from_file_location("transforms", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_table_of_transformations_is_complete(transforms):
    """It has the script's rows and columns, and all of ours work."""
    table = PAGE.read_text(encoding="utf-8").split(transforms.BEGIN)[1].split(transforms.END)[0]
    head, _, *lines = [[c.strip() for c in line.split("|")[1:-1]] for line in table.strip().splitlines()]
    assert [line[0] for line in lines] == list(transforms.ROWS)
    assert head[1::2] == [f"our {name}" for name in transforms.MODULES]
    for line in lines:
        assert all(cell.startswith(("yes", "error")) for cell in line[1::2]), line


# PyTorch's own use of what it deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning", "ignore::FutureWarning")
def test_script_of_transformations(transforms):
    for title, run in transforms.ROWS.items():
        if run is not transforms.distributed:
            answer = transforms.attempt(run, xpgrad_torch.GRU)
            assert answer.startswith(("yes", "error")), (title, answer)
    assert (
        transforms.attempt(lambda module, x: transforms.close([x], [x + 1]), xpgrad_torch.GRU) == "**wrong**"
    )
    assert transforms.attempt(lambda module, x: module("x"), xpgrad_torch.GRU) == "no: TypeError"


NAMES = ["activations", "convolution", "functional", "losses", "modules", "swap"]


@pytest.mark.parametrize("name", NAMES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"xpgrad_torch.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
