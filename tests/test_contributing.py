"""CONTRIBUTING's lists of what new operators take are complete: with them alone two are added to a copy."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ABSENT = [name for name in ("torch", "jax", "sphinx") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=f"{', '.join(ABSENT)} is not installed")

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "adapters", "asv_bench", "docs", "tests")
RUN_ACTIVATION = """
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
ACTIVATION_TESTS = [
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
RUN_UNIT = """
import jax, numpy as np, torch, xpgrad, xpgrad_jax, xpgrad_torch
from xpgrad.testing import check_vjp
from xpgrad_torch import functional

rng = np.random.default_rng(0)
T, N, I, H = 5, 3, 2, 4
shapes = {"X": (T, N, I), "W": (1, 2 * H, I), "R": (1, 2 * H, H), "B": (1, 2 * H), "initial_h": (1, N, H)}
arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
seeds = rng.normal(size=(T, 1, N, H)), rng.normal(size=(1, N, H))

def step(x, h, W, R, B):
    (Wf, Wn), (Rf, Rn), (bf, bn) = W.chunk(2), R.chunk(2), B.chunk(2)
    f = torch.sigmoid(x @ Wf.T + h @ Rf.T + bf)
    return (1 - f) * h + f * torch.tanh(x @ Wn.T + (f * h) @ Rn.T + bn)

def by_definition(X, W, R, B, initial_h):
    states = [initial_h[0]]
    for x in X:
        states.append(step(x, states[-1], W[0], R[0], B[0]))
    return torch.stack(states[1:])[:, None], states[-1][None]

def with_gradients(function, arrays, seeds):
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
    made = function(*leaves)
    made = made if isinstance(made, tuple) else (made,)
    return [*made, *torch.autograd.grad(made, leaves, [torch.tensor(s) for s in seeds])]

def compare(found, expected):
    for a, b in zip(found, expected, strict=True):
        a, b = (np.asarray(v.detach() if isinstance(v, torch.Tensor) else v) for v in (a, b))
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)

jax.config.update("jax_enable_x64", True)
order = list(arrays.values())
expected = with_gradients(by_definition, order, seeds)
in_torch = lambda X, W, R, B, h: functional.mgu(X, W, R, B, initial_h=h)
compare(with_gradients(in_torch, order, seeds), expected)
out, pullback = xpgrad.vjp(xpgrad.mgu, **arrays)
compare([out.H_all, out.H_t, *pullback(*seeds)], expected)
made, pullback = jax.vjp(jax.jit(lambda *a: xpgrad_jax.mgu(*a[:4], initial_h=a[4])), *order)
compare([*made, *pullback(seeds)], expected)
check_vjp(
    lambda **given: tuple(xpgrad.mgu(**given)[:2]),
    lambda *cotangents, **given: tuple(xpgrad.vjp(xpgrad.mgu, **given)[1](*cotangents)),
    arrays, operator="mgu", outputs=["H_all", "H_t"],
)
layer = xpgrad_torch.MGU(I, H).double()
layer.load_state_dict({name: torch.tensor(arrays[name]) for name in "WRB"})
output, state = layer(torch.tensor(arrays["X"]), torch.tensor(arrays["initial_h"]))
(dW,) = torch.autograd.grad((output, state), layer.W, (torch.tensor(seeds[0][:, 0]), torch.tensor(seeds[1])))
compare([output[:, None], state, dW], [*expected[:2], expected[3]])

one = [arrays["X"][0], arrays["initial_h"][0], *(arrays[name][0] for name in "WRB")]
seed = (seeds[1][0],)
expected = with_gradients(step, one, seed)
compare(with_gradients(functional.mgu_cell, one, seed), expected)
out, pullback = xpgrad.vjp(xpgrad.mgu_cell, *one)
compare([out.H_next, *pullback(*seed)], expected)
made, pullback = jax.vjp(jax.jit(xpgrad_jax.mgu_cell), *one)
compare([made, *pullback(*seed)], expected)
"""
UNIT_TESTS = [
    "test_signatures.py",
    "test_types.py",
    "test_docs.py::test_every_public_name_has_a_page",
    "test_docs.py::test_every_recurrent_operator_is_described",
    "test_docs.py::test_every_activation_is_documented",
    "test_docs.py::test_docstrings[mgu]",
    "test_bad_calls.py",
    "test_cell_operators.py::test_every_operator_is_checked",
    "test_cell_operators.py::test_arrays_have_the_declared_axes[mgu]",
    "test_cell_operators.py::test_against_autograd_through_the_definition[full-forward-mgu plain]",
    "test_cell_operators.py::test_against_autograd_through_the_definition[lengths-bidirectional-mgu plain]",
    "test_cell_operators.py::test_every_backend",
    "test_cell_operators.py::test_central_differences_without_biases[mgu plain]",
    "test_cell_operators.py::test_gradients_of_each_sample_resets_and_layout[mgu]",
    "test_cell_operators.py::test_modules_and_functions[mgu-plain-all]",
    "test_cell_operators.py::test_modules_and_functions[mgu-plain-2]",
    "test_cell_operators.py::test_a_step_is_a_sequence_of_length_1[mgu]",
    "test_cell_operators.py::test_jax[mgu plain]",
    "test_jax_operators.py::test_every_operator_with_a_gradient_is_there",
    "test_jax_operators.py::test_arguments_are_those_of_the_core_without_out",
    "test_torch_docs.py::test_every_module_is_in_the_tables",
    "test_torch_docs.py::test_every_recurrent_operator_has_a_function_and_a_module",
    "test_torch_docs.py::test_docstrings[mgu]",
    "test_torch_docs.py::test_docstrings_describe_each_parameter_once[mgu]",
    "test_torch_docs.py::test_docstrings_describe_each_parameter_once[mgu_cell]",
    "test_torch_library.py::test_opcheck[values-mgu]",
    "test_torch_library.py::test_opcheck[grad-mgu]",
    "test_torch_library.py::test_opcheck[grad-mgu_cell]",
    "test_peers.py::test_every_kernel_has_a_definition",
    "test_asv_bench.py::test_the_suites_of_activations_cover_every_function_and_implementation",
]


class Addition(NamedTuple):
    """A new operator: CONTRIBUTING's heading, the additions, what they then do, and how many files change."""

    heading: str
    added: str
    run: str
    tests: Sequence[str]
    """What fails if a place is forgotten, and what holds the new operator against its definition."""
    most: int


ACTIVATION = Addition("An activation", "swish_beta.txt", RUN_ACTIVATION, ACTIVATION_TESTS, 6)
UNIT = Addition("A recurrent unit", "mgu.txt", RUN_UNIT, UNIT_TESTS, 10)


def listed(addition: Addition) -> list[str]:
    """The files that CONTRIBUTING names for an addition."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = text.partition(f"### {addition.heading}\n")[2].partition("\n### ")[0]
    return re.findall(r"^\d+\. `([^`]+)`", part, re.M)


def add(root: Path, addition: Addition, skipped: Collection[str] = ()) -> None:
    """Make the additions in a tree, but for some files."""
    added = (ROOT / "tests" / "data" / addition.added).read_text(encoding="utf-8")
    for part in added.split("\n=== ")[1:]:
        head, _, lines = part.rstrip("\n").partition("\n---\n")
        name, *after = head.split("\n")
        if name in skipped:
            continue
        text = (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
        at = len(text)
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


def changed_files(copy: Path, addition: Addition, command: Sequence[str] = ()) -> set[str]:
    """Make an addition, and run what the list has."""
    before = contents(copy)
    add(copy, addition)
    if command:
        made = in_copy(copy, *command)
        assert made.returncode == 0, made.stderr
    after = contents(copy)
    return {name for name in after if before.get(name) != after[name]}


def check(copy: Path, addition: Addition, option: str) -> str:
    """What the new operator does is right; return what `check` prints of it."""
    for run in (in_copy(copy, "-c", addition.run), run_tests(copy, addition.tests)):
        assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    checked = in_copy(copy, "-m", "xpgrad", "check", "--option", option, "--namespace", "numpy")
    assert checked.returncode == 0, checked.stdout
    return checked.stdout


@pytest.mark.exhaustive  # a unit takes more of the same places
def test_an_activation_takes_the_files_of_the_list(copy: Path) -> None:
    """At most six, of which one is written by a command of the list."""
    changed = changed_files(copy, ACTIVATION, ["docs/activations.py", "--write"])
    assert changed == set(listed(ACTIVATION))
    assert len(changed) <= ACTIVATION.most
    assert "all betas" in check(copy, ACTIVATION, "swish_beta")
    assert "| X, beta |\n" in (copy / "docs/activations.md").read_text(encoding="utf-8")


def test_a_recurrent_unit_takes_the_files_of_the_list(copy: Path) -> None:
    """At most ten, for the sequences and the single step, their gradients, the layer and both adapters."""
    changed = changed_files(copy, UNIT)
    assert changed == set(listed(UNIT))
    assert len(changed) <= UNIT.most
    rows = check(copy, UNIT, "mgu")
    assert "\nmgu_cell  per_sample" in rows
    assert "\nmgu       lengths, NaN padding" in rows


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
EXPORTED = "test_torch_docs.py::test_every_recurrent_operator_has_a_function_and_a_module"
MISSED_OF_UNITS = [
    {"src/xpgrad/__init__.py": "test_signatures.py::test_what_is_declared_is_public"},
    {
        "src/xpgrad/_operators/vjp.py": "test_types.py::test_vjp_has_an_overload_for_each_form_of_results",
        "src/xpgrad/_cases/cell_operators.py": "test_cell_operators.py::test_every_operator_is_checked",
        "adapters/xpgrad_torch/functional.py": EXPORTED,
        "adapters/xpgrad_jax/functional.py": (
            "test_jax_operators.py::test_every_operator_with_a_gradient_is_there"
        ),
        "docs/recurrent.md": "test_docs.py::test_every_recurrent_operator_is_described",
    },
    {"adapters/xpgrad_torch/__init__.py": EXPORTED},
]
"""The same, by files that are left out together; without either file of `xpgrad_torch` its tests break."""


def missed(copy: Path, addition: Addition, tests: Mapping[str, str]) -> None:
    """Each file that is left out makes its test fail."""
    add(copy, addition, tests)  # docs/activations.md is what no addition is made to
    run = run_tests(copy, [*tests.values()])
    for test in tests.values():
        assert f"FAILED tests/{test}" in run.stdout, run.stdout[-4000:] + run.stderr[-4000:]
        assert test in addition.tests or test.partition("::")[0] in addition.tests


def test_files_that_are_left_out_are_missed(copy: Path) -> None:
    missed(copy, ACTIVATION, MISSED)
    assert {*MISSED} == {*listed(ACTIVATION)} - {"src/xpgrad/activations.py", "CHANGELOG.md"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("tests", MISSED_OF_UNITS, ids=lambda tests: f"{len(tests)}, {next(iter(tests))}")
def test_files_of_a_unit_that_are_left_out_are_missed(copy: Path, tests: Mapping[str, str]) -> None:
    missed(copy, UNIT, tests)
    own = {"src/xpgrad/mgu.py", "adapters/xpgrad_torch/mgu.py", "CHANGELOG.md"}
    assert {name for group in MISSED_OF_UNITS for name in group} == {*listed(UNIT)} - own
