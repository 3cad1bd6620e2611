"""The examples in docs/pytorch.md and in the docstrings run, and print what they say."""

import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import torch

import xpgrad_torch
from xpgrad._cases.cell_operators import CELL_OPERATORS
from xpgrad._operators.units import UNITS
from xpgrad_torch import functional

PAGE = Path(__file__).parent.parent / "docs" / "pytorch.md"


def test_page(capsys):
    torch.compiler.reset()  # other tests have compiled modules of the same types, which are counted together
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
        for line, words in zip(printed, said, strict=True):
            if "..." in words:  # measured numbers
                assert re.fullmatch(re.escape(words).replace(re.escape("..."), ".+"), line)
            else:
                assert line == words.split(": ")[0]


def script_of_transformations():
    path = PAGE.parents[1] / "asv_bench" / "transforms.py"
    spec = importlib.util.spec_from_file_location("transforms", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


transforms = script_of_transformations()
# what each transformation may answer for a module of ours: it works for all
WORKS = re.compile(r"yes(, 1 kernel node)?|error [1-9]e-0[3-5]|in float32|no parameters")


def test_tables_of_transformations_are_complete():
    """They have the script's rows and columns, and all of ours work."""
    text = PAGE.read_text(encoding="utf-8").split("<!-- transforms: begin -->")[1]
    tables = text.split("<!-- transforms: end -->")[0].strip()
    for table, names in zip(tables.split("\n\n"), transforms.FAMILIES.values(), strict=True):
        head, _, *lines = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()]
        assert head[2:] == list(transforms.COLUMNS)
        assert sorted(name for line in lines[::2] for name in line[0].split(", ")) == sorted(names)
        for line in lines[::2]:
            assert all(WORKS.fullmatch(cell) for cell in line[2:]), line


def test_every_module_is_in_the_tables():
    ours = {name for name in xpgrad_torch.__all__ if name[0].isupper()}
    # those that take more, or nothing new: see test_torch_own_cells.py, test_cell_operators.py, test_gru_d.py
    cells = {UNITS[kernel.name].module for kernel in CELL_OPERATORS if kernel.name in UNITS}
    ours -= {"CellLayer", "GRUD"} | cells - {"SLSTM"}
    assert set(transforms.CASES) == ours


def test_every_recurrent_operator_has_a_function_and_a_module():
    for unit in UNITS.values():
        assert {*unit.kernels} <= {*functional.__all__}
        assert unit.module in xpgrad_torch.__all__


@pytest.mark.parametrize("name", transforms.CASES)
def test_transformations(name):
    """Each cell of the tables, beside a computation that needs no transformation."""
    for title, run in transforms.COLUMNS.items():
        if run is not transforms.distributed:
            answer = transforms.attempt(run, xpgrad_torch, name)
            assert WORKS.fullmatch(answer), (title, answer)


def test_script_of_transformations_tells_what_fails():
    def wrong(example):
        transforms.close([example.x], [example.x + 1])

    assert transforms.attempt(wrong, xpgrad_torch, "GRU") == "**wrong**"
    assert transforms.attempt(lambda example: example.module("x"), xpgrad_torch, "GRU") == "no: TypeError"


NAMES = sorted(
    path.stem for path in Path(xpgrad_torch.__file__).parent.glob("[!_]*.py") if path.stem != "engine"
)


@pytest.mark.parametrize("name", NAMES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"xpgrad_torch.{name}"), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def described(function):
    """Return the names of the parameters in a docstring."""
    text = inspect.getdoc(function).split("Parameters\n----------\n")[1].split("\n\n")[0]
    return [name for line in text.splitlines() if line[0] != " " for name in line.split(" : ")[0].split(", ")]


RECURRENT = {name for unit in UNITS.values() for name in unit.kernels}
COMPLETE = [n for n in functional.__all__ if n in RECURRENT or re.search("conv|gru_d|entropy", n)]


@pytest.mark.parametrize("name", COMPLETE)
def test_docstrings_describe_each_parameter_once(name):
    function = getattr(functional, name)
    assert sorted(described(function)) == sorted(inspect.signature(function).parameters)
    assert "Raises\n------\n" in inspect.getdoc(function)


def test_shapes_of_recurrent_functions_are_the_kernels():
    text = inspect.getdoc(functional.gru)
    assert "W : Tensor\n    Input weights, (D, 3H, I). The rows are in order z r h.\n" in text
    assert "sequence_lens : Tensor or sequence of int, optional\n    Length of each sequence, (N,)," in text
    assert "H_t : Tensor\n    Hidden state at each sequence's end, (D, N, H).\n" in text
    assert "B : Tensor or None\n    Biases, (D, 8H)" in inspect.getdoc(functional.layer_norm_lstm)


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_docstrings_of_images_say_nothing_of_one_dimension(name):
    text = inspect.getdoc(getattr(functional, name))
    assert "input : Tensor\n    (N, C, H, W), or (C, H, W) without a batch" in text
    assert "(N, O, H', W')" in text
    assert not re.search(r"\bk?L\b|1d", text)
    assert not re.search(r"\bL\b|1d", inspect.getdoc(xpgrad_torch.Conv2d))
