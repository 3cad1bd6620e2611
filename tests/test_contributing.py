"""CONTRIBUTING's list of what a new activation takes is complete: with it alone one is added to a copy."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ABSENT = [name for name in ("torch", "jax", "sphinx") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=f"{', '.join(ABSENT)} is not installed")

ROOT = Path(__file__).parent.parent
ADDED = ROOT / "tests" / "data" / "swish_beta.txt"
FOLDERS = ("src", "adapters", "asv_bench", "docs", "tests")
RUN = """
import jax, numpy as np, torch, xpgrad, xpgrad_jax, xpgrad_torch
from xpgrad_torch import functional

rng = np.random.default_rng(0)
X, beta, dY = rng.normal(size=(4, 3, 5)), rng.normal(size=(3, 1)), rng.normal(size=(4, 3, 5))
leaves = [torch.tensor(a, requires_grad=True) for a in (X, beta.ravel())]
Y = leaves[0] * torch.sigmoid(leaves[1][:, None] * leaves[0])
expected = [Y, *torch.autograd.grad(Y, leaves, torch.tensor(dY))]

module = xpgrad_torch.SwishBeta(3).double()
module.load_state_dict({"beta": leaves[1].detach()})
x = leaves[0].detach().requires_grad_()
y = module(x)
by_module = [y, *torch.autograd.grad(y, [x, module.beta], torch.tensor(dY))]
y = functional.swish_beta(*leaves)
by_function = [y, *torch.autograd.grad(y, leaves, torch.tensor(dY))]
y, pullback = xpgrad.vjp(xpgrad.swish_beta, X, beta)
in_core = [y, *pullback(dY)]
jax.config.update("jax_enable_x64", True)
y, pullback = jax.vjp(jax.jit(xpgrad_jax.swish_beta), X, beta)
in_jax = [y, *pullback(dY)]
for found in (by_module, by_function, in_core, in_jax):
    for a, b in zip(found, expected, strict=True):
        a, b = (np.asarray(v.detach() if isinstance(v, torch.Tensor) else v) for v in (a, b))
        np.testing.assert_allclose(a.reshape(b.shape), b, rtol=1e-12, atol=1e-14)
"""
TESTS = [
    "test_signatures.py",
    "test_types.py",
    "test_docs.py::test_every_activation_is_documented",
    "test_docs.py::test_every_public_name_has_a_page",
    "test_docs.py::test_the_table_of_functions_is_that_of_the_declarations",
    "test_docs.py::test_errors_are_as_documented",
    "test_docs.py::test_docstrings[activations]",
    "test_activations.py::test_every_activation_is_tested",
    "test_activations.py::test_an_operand",
    "test_activations.py::test_differences_by_an_operand",
    "test_jax_operators.py::test_an_operand",
    "test_jax_operators.py::test_every_operator_with_a_gradient_is_there",
    "test_jax_operators.py::test_arguments_are_those_of_the_core_without_out",
    "test_torch_activations.py::test_every_function_and_module_is_tested",
    "test_torch_activations.py::test_module_that_pytorch_lacks",
    "test_torch_activations.py::test_operands_equal_torch",
    "test_torch_docs.py::test_every_module_is_in_the_tables",
    "test_torch_docs.py::test_docstrings[activations]",
    "test_torch_docs.py::test_tables_of_transformations_are_complete",
    "test_torch_docs.py::test_transformations[SwishBeta]",
    "test_torch_library.py::test_opcheck[values-swish_beta]",
    "test_torch_library.py::test_opcheck[grad-swish_beta]",
    "test_peers.py::test_every_kernel_has_a_definition",
    "test_asv_bench.py::test_the_suites_of_activations_cover_every_function_and_implementation",
]
"""What fails if a place is forgotten, and what holds the new operator against its definition."""


def listed() -> list[str]:
    """The files that CONTRIBUTING names for an activation."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = text.partition("### An activation\n")[2].partition("\n### ")[0]
    return re.findall(r"^\d\. `([^`]+)`", part, re.M)


def add(root: Path, skipped: str = "") -> None:
    """Make the additions in a tree, but for one file."""
    for part in ADDED.read_text(encoding="utf-8").split("\n=== ")[1:]:
        head, _, lines = part.rstrip("\n").partition("\n---\n")
        name, *after = head.split("\n")
        if name == skipped:
            continue
        text = (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
        at = len(text)
        lines = lines if text else lines.lstrip("\n")
        if after:
            assert text.count(f"{after[0]}\n") == 1, f"{name}: {after[0]}"
            at = text.index(f"{after[0]}\n") + len(after[0]) + 1
        (root / name).write_text(f"{text[:at]}{lines}\n{text[at:]}", encoding="utf-8")


def in_copy(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the copy is the package."""
    path = os.pathsep.join(str(root / folder) for folder in ("src", "adapters"))
    environment = os.environ | {"PYTHONPATH": path, "XPGRAD_JIT": "0"}
    return subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def run_tests(root: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    named = [f"tests/{test}" for test in tests]
    return in_copy(root, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *named)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder,
            tmp_path / folder,
            ignore=shutil.ignore_patterns("__pycache__", "_build", "generated"),
        )
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    names = [path for folder in FOLDERS for path in (root / folder).rglob("*")] + [*root.glob("*.*")]
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in names
        if path.is_file() and path.suffix not in (".pyc", ".png") and "generated" not in path.parts
    }


def test_an_activation_takes_the_files_of_the_list(copy: Path) -> None:
    """At most six, of which one is written by a command of the list."""
    before = contents(copy)
    add(copy)
    made = in_copy(copy, "docs/activations.py", "--write")
    assert made.returncode == 0, made.stderr
    after = contents(copy)
    changed = {name for name in after if before.get(name) != after[name]}
    assert changed == set(listed())
    assert len(changed) <= 6
    for run in (in_copy(copy, "-c", RUN), run_tests(copy, TESTS)):
        assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    checked = in_copy(copy, "-m", "xpgrad", "check", "--option", "swish_beta")
    assert checked.returncode == 0, checked.stdout
    assert "all betas" in checked.stdout
    assert "| X, beta |\n" in (copy / "docs/activations.md").read_text(encoding="utf-8")


MISSED = {
    "src/xpgrad/_cases/activations.py": "test_activations.py::test_every_activation_is_tested",
    "adapters/xpgrad_torch/activations.py": (
        "test_torch_activations.py::test_every_function_and_module_is_tested"
    ),
    "adapters/xpgrad_jax/functional.py": (
        "test_jax_operators.py::test_every_operator_with_a_gradient_is_there"
    ),
    "docs/activations.md": "test_docs.py::test_every_activation_is_documented",
}
"""The test that fails if a file of the list is left out; nothing runs without the first one."""


@pytest.mark.parametrize("skipped", MISSED)
def test_a_file_that_is_left_out_is_missed(copy: Path, skipped: str) -> None:
    add(copy, skipped)  # docs/activations.md is what no addition is made to
    run = run_tests(copy, [MISSED[skipped]])
    assert "1 failed" in run.stdout, run.stdout[-4000:] + run.stderr[-4000:]
    assert MISSED[skipped] in TESTS
    assert {*MISSED} == {*listed()} - {"src/xpgrad/activations.py", "CHANGELOG.md"}
