"""Make random edits of the source and see whether the tests of their area fail: ``python tools/mutate.py``.

Each edit is made in a temporary copy of the tree: a term dropped, operands or arguments swapped, a comparison
reversed, a condition negated, a constant or an index changed by one, a statement removed. `AREAS` maps files
to their tests. An edit survives if the tests pass, and is printed as a diff; it is undecided if they take
longer than the limit. Many survivors change nothing or only speed; the others need a test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).resolve().parent.parent
#: Patterns of source files, and the tests of each: a file, or a file and a test after ``::``. The first match
#: counts.
AREAS = {
    "src/xpgrad/_operators/arguments.py": ["test_bad_calls", "test_lengths", "test_recurrent_errors"],
    "src/xpgrad/_elementwise/activation_formulas.py": [
        "test_activations", "test_half_precision", "test_losses",
    ],
    "src/xpgrad/activations.py": ["test_activations", "test_bad_calls"],
    "src/xpgrad/_elementwise/kernel.py": ["test_activations", "test_bad_calls"],
    "src/xpgrad/softmax.py": ["test_softmax"],
    "src/xpgrad/losses.py": ["test_losses"],
    "src/xpgrad/_elementwise/row_formulas.py": ["test_softmax", "test_losses"],
    "src/xpgrad/convert.py": ["test_convert", "test_operations"],
    "src/xpgrad/operations.py": ["test_operations"],
    "src/xpgrad/loops.py": ["test_loops"],
    "src/xpgrad/_operators/vjp.py": ["test_vjp"],
    "src/xpgrad/conv.py": ["test_conv_oracles", "test_conv_errors", "test_conv_properties"],
    "src/xpgrad/_conv/*.py": ["test_conv_oracles", "test_conv_errors", "test_conv_golden"],
    "src/xpgrad/gru_d.py": ["test_gru_d", "test_cell_operators"],
    "src/xpgrad/layer_norm.py": ["test_layer_norm", "test_recurrent_errors"],
    "src/xpgrad/[lgr]*.py": [
        "test_recurrent_golden", "test_recurrent_errors", "test_cells", "test_recurrent_oracles",
        "test_recurrent_state",
    ],
    "src/xpgrad/_recurrent/call.py": [
        "test_recurrent_golden", "test_recurrent_errors", "test_cells", "test_recurrent_oracles",
        "test_per_sample_norms",
    ],
    "src/xpgrad/_recurrent/checked_call.py": ["test_recurrent_golden", "test_recurrent_errors", "test_cells"],
    "src/xpgrad/_recurrent/activation_choice.py": ["test_recurrent_golden", "test_recurrent_errors"],
    "src/xpgrad/_recurrent/[bfl]*.py": [
        "test_recurrent_golden", "test_heads_and_inputs", "test_own_cells", "test_recurrent_state",
        "test_recurrent_oracles", "test_per_sample_norms",
    ],
    "src/xpgrad/_recurrent/hidden_state.py": ["test_recurrent_state", "test_recurrent_errors"],
    "src/xpgrad/_recurrent/per_sample.py": ["test_per_sample_norms"],
    "src/xpgrad/_recurrent/gradient_sums.py": [
        "test_recurrent_golden", "test_heads_and_inputs", "test_own_cells", "test_recurrent_state",
        "test_recurrent_oracles", "test_per_sample_norms",
    ],
    "src/xpgrad/_recurrent/one_step.py": ["test_cells"],
    "src/xpgrad/_recurrent/timeline.py": ["test_chunks", "test_lengths", "test_recurrent_oracles"],
    "src/xpgrad/_recurrent/cell_layouts.py": ["test_cells", "test_convert"],
    "src/xpgrad/_cells/*.py": ["test_own_cells", "test_cell_operators"],
    "src/xpgrad/cells.py": ["test_own_cells"],
    "src/xpgrad/_calls/plans.py": [
        "test_same_call", "test_program_lengths", "test_plans", "test_jax_recurrent",
    ],
    "src/xpgrad/_calls/adapter_calls.py": ["test_plans", "test_program_lengths", "test_torch_packed"],
    "src/xpgrad/_calls/host_programs.py": ["test_jax_recurrent"],
    "src/xpgrad/engine/process/settings.py": ["test_bad_calls"],
    "src/xpgrad/engine/compiled/products/matrix.py": ["test_guard", "test_thresholds", "test_products"],
    "src/xpgrad/engine/images/compiled_shifts.py": ["test_guard", "test_thresholds", "test_conv_tiles"],
    "src/xpgrad/_calls/families.py": ["test_torch_repeated", "test_plans", "test_new_sizes"],
    "src/xpgrad/_calls/shared_steps.py": ["test_plans"],
    "src/xpgrad/engine/programs/native_timeline.py": [
        "test_plans", "test_guard", "test_thresholds", "test_program_lengths", "test_resets",
    ],
    "src/xpgrad/engine/programs/recorded.py": ["test_plans", "test_recorded_arrays"],
    "src/xpgrad/engine/programs/schedule.py": [
        "test_plans", "test_guard", "test_thresholds", "test_program_lengths",
    ],
    "src/xpgrad/engine/programs/recorder.py": [
        "test_plans", "test_program_lengths", "test_same_call", "test_torch_samples", "test_resets",
    ],
    "src/xpgrad/engine/programs/program.py": ["test_plans", "test_program_lengths", "test_same_call"],
    "src/xpgrad/engine/programs/instructions.py": ["test_plans", "test_program_lengths", "test_same_call"],
    "src/xpgrad/engine/numpy_engine.py": ["test_engine", "test_chunks"],
    "src/xpgrad/engine/compiled/machine.py": ["test_time_loop", "test_chunks", "test_engine"],
    "src/xpgrad/engine/array_loops.py": ["test_engine", "test_activations", "test_softmax", "test_losses"],
    "src/xpgrad/engine/compiled/tracing.py": ["test_tracing", "test_time_loop", "test_losses"],
    "src/xpgrad/engine/compiled/native_rows.py": ["test_tracing", "test_time_loop", "test_resets"],
    "adapters/xpgrad_torch/activations.py": ["test_torch_activations", "test_half_precision"],
    "adapters/xpgrad_torch/convolution.py": ["test_torch_conv"],
    "adapters/xpgrad_torch/losses.py": ["test_torch_losses"],
    "adapters/xpgrad_torch/_programs.py": ["test_torch_programs", "test_same_call"],
    "adapters/xpgrad_torch/_stacked.py": ["test_torch_lstm", "test_torch_gru"],
    "adapters/xpgrad_torch/_batching.py": ["test_torch_func"],
    "adapters/xpgrad_torch/_layout.py": ["test_torch_layout"],
    "adapters/xpgrad_torch/_docs.py": ["test_torch_docs"],
    "adapters/xpgrad_torch/functional.py": [
        "test_torch_lstm", "test_torch_gru", "test_torch_cells", "test_torch_functional",
        "test_recurrent_state::test_a_mask_that_requires_a_gradient",
    ],
    "adapters/xpgrad_torch/_recurrent.py": ["test_torch_lstm", "test_torch_gru", "test_torch_layers"],
    "adapters/xpgrad_torch/_layers.py": ["test_torch_lstm", "test_torch_gru", "test_torch_layers"],
    "adapters/xpgrad_torch/_kernel.py": [
        "test_torch_lstm", "test_torch_gru", "test_torch_func",
        "test_torch_library::test_fake_tensors_agree_without_optional_operands",
    ],
    "adapters/xpgrad_torch/_autograd.py": [
        "test_torch_lstm", "test_torch_gru", "test_torch_func", "test_torch_inplace",
    ],
    "adapters/xpgrad_torch/cells.py": ["test_torch_own_cells", "test_torch_cells"],
    "adapters/xpgrad_torch/swap.py": ["test_torch_swap"],
    "adapters/xpgrad_torch/_episodes.py": ["test_torch_episodes"],
    "adapters/xpgrad_torch/_memory.py": ["test_torch_memory"],
    "adapters/xpgrad_torch/_expanded.py": ["test_torch_per_sample"],
    "adapters/xpgrad_jax/*.py": ["test_jax_operators", "test_jax_engine", "test_jax_recurrent"],
    "adapters/xpgrad_onnx/*.py": [
        "test_onnx_operators", "test_onnx_gradients", "test_onnx_files", "test_onnx_standard",
        "test_onnx_training",
    ],
    "adapters/xpgrad_onnx/_rules/*.py": ["test_onnx_gradients", "test_onnx_backend"],
}  # fmt: skip
_SIZES = re.compile(
    r"size|bytes|room|most|limit|largest|fresh\(|Block\(|elements|_table\(|stride|columns|padded"
)
"""The words in lines about sizes of memory."""
_SHORT, _LONG = "not long", "long and not exhaustive"
SUITES = {"short": (_SHORT,), "all": ("",), "both": (_SHORT, _LONG)}
"""Markers of the tests to run, one after the other, by the word on the command line."""
SUITE_NAMES = {_SHORT: "the short suite", _LONG: "the long suite", "": "all tests"}
PASS = "the tests pass"
_NO_TESTS = 5  # pytest's exit status if a marker leaves no test
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


def edits(node: ast.AST) -> Iterator[ast.AST | None]:
    """Possible replacements of a node; None removes it."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        yield ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
        yield ast.BinOp(node.right, node.op, node.left)
        if type(node.op) in _OPERATORS:
            yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
        yield node.values[0]
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)
    if isinstance(node, ast.If | ast.IfExp):
        negated = copy.copy(node)
        negated.test = ast.UnaryOp(ast.Not(), node.test)
        yield negated
    if isinstance(node, ast.Call) and len(node.args) > 1:
        yield ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Raise) and not is_docstring:
        yield None


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Every node inside functions, as its parent, the parent's field and the index in the field."""
    inside = {
        id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for s in f.body for n in ast.walk(s)
    }
    for parent in ast.walk(tree):
        if isinstance(parent, ast.JoinedStr | ast.arguments) or id(parent) not in inside:
            continue
        if isinstance(parent, ast.keyword) and parent.arg == "strict":
            continue  # zip's check: it changes no result
        for field, value in ast.iter_fields(parent):
            for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    yield parent, field, place


def draw(path: Path, rng: random.Random, about: re.Pattern[str] | None = None) -> str | None:
    """The file's text with one edit, in a line that is about something; formatting and comments are lost.

    None where no such line can be edited.
    """
    source = path.read_text()
    lines, unedited = source.splitlines(), ast.unparse(ast.parse(source))
    numbers = [
        number
        for number, (parent, field, place) in enumerate(places(ast.parse(source)))
        if about is None or about.search(lines[getattr(_at(parent, field, place), "lineno", 1) - 1])
    ]
    rng.shuffle(numbers)
    for number in numbers:
        tree = ast.parse(source)  # an edit changes it
        parent, field, place = next(itertools.islice(places(tree), number, None))
        found = [new for new in edits(_at(parent, field, place)) if new or field in ("body", "orelse")]
        if not found:
            continue
        new = rng.choice(found) or ast.Pass()
        if place is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[place] = new
        try:
            text = ast.unparse(ast.fix_missing_locations(tree))
            compile(text, str(path), "exec")
        except (SyntaxError, ValueError):
            continue
        if text != unedited:
            return text
    return None


def _at(parent: ast.AST, field: str, place: int | None) -> ast.AST:
    value = getattr(parent, field)
    found: ast.AST = value if place is None else value[place]
    return found


def tests_of(name: str) -> list[str]:
    """The test files of a source file."""
    found = next((tests for pattern, tests in AREAS.items() if fnmatch(name, pattern)), [])
    files = (test.partition("::") for test in found)
    return [f"tests/{file}.py{colons}{test}" for file, colons, test in files]


def survives(tree: Path, name: str, text: str, seconds: float, marks: str) -> str | None:
    """How an edit survives its area's tests with such marks; None if they fail."""
    path = tree / name
    original = path.read_text()
    path.write_text(text)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "adapters")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        marks,
        *tests_of(name),
    ]
    try:
        run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=seconds)
        return PASS if run.returncode in (0, _NO_TESTS) else None
    except subprocess.TimeoutExpired:
        return f"undecided: no end after {seconds:g} seconds"
    finally:
        path.write_text(original)


def judge(
    tree: Path, name: str, text: str, seconds: float, suites: Sequence[str], sound: set[tuple[str, ...]]
) -> tuple[str | None, str]:
    """How an edit survives all suites, or None and the first suite that notices it.

    A suite that fails counts only where it passes without the edit; ``sound`` remembers which do.
    """
    how = None
    for suite in suites:
        how = survives(tree, name, text, seconds, suite)
        if how is None:
            tests = (suite, *tests_of(name))
            if tests not in sound and survives(tree, name, (tree / name).read_text(), seconds, suite) != PASS:
                raise SystemExit(f"the tests of {name} fail, or take too long, without any edit")
            sound.add(tests)
            return None, suite
    return how, "none"


def main() -> int:
    """Draw edits and report the survivors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edits", type=int, default=20, help="how many edits to draw (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which (default: 0)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only source files that fit")
    parser.add_argument("--seconds", type=float, default=600, help="limit for one run of the tests")
    parser.add_argument(
        "--tried", type=Path, metavar="FILE", help="append each edit and its fate, as JSON lines"
    )
    parser.add_argument(
        "--suite",
        choices=list(SUITES),
        default="all",
        help="whose tests; 'both' tries the long suite on what the short one misses (default: all)",
    )
    parser.add_argument(
        "--sizes", action="store_true", help="only edits of lines that are about sizes of memory"
    )
    arguments = parser.parse_args()
    suites = SUITES[arguments.suite]
    console, rng = Console(), random.Random(arguments.seed)
    names = sorted(
        str(path.relative_to(ROOT))
        for folder in ("src", "adapters")
        for path in (ROOT / folder).rglob("*.py")
        if tests_of(str(path.relative_to(ROOT))) and fnmatch(str(path.relative_to(ROOT)), arguments.only)
    )
    if not names:
        parser.error(f"--only is {arguments.only!r}, expected a pattern that fits a file of AREAS")
    noticed, sound = Counter[str](), set[tuple[str, ...]]()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))
        for _ in track(range(arguments.edits), "edits", console=console):
            text = None
            while text is None:
                name = rng.choice(names)
                text = draw(ROOT / name, rng, _SIZES if arguments.sizes else None)
            how, by = judge(tree, name, text, arguments.seconds, suites, sound)
            noticed[by] += 1
            before = ast.unparse(ast.parse((ROOT / name).read_text())).splitlines()
            lines = difflib.unified_diff(before, text.splitlines(), name, how or "", lineterm="", n=2)
            changed = "\n".join(lines)
            if how is not None:
                console.print(changed, markup=False, highlight=False)
            if arguments.tried is not None:
                with arguments.tried.open("a") as file:
                    print(
                        json.dumps({"file": name, "noticed by": by, "survived": how, "edit": changed}),
                        file=file,
                    )
    for suite in suites:
        console.print(f"{noticed[suite]} of {arguments.edits} edits noticed by {SUITE_NAMES[suite]}")
    console.print(f"{noticed['none']} of {arguments.edits} edits survived or are undecided")
    return int(noticed["none"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
