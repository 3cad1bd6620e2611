"""Write docs/onnx_operators.md: ``python tools/onnx_operators.py``. Takes ten minutes.

For every operator of ai.onnx on floating-point numbers the page says how `gradient_model` differentiates it,
or why not, and on how many of ONNX's own node tests the gradient was compared with central differences. A
second table counts operators by opset, by the tests whose nodes exist in this opset with the same result.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import xpgrad
from xpgrad.cli.console import Progress
from xpgrad_onnx import operators
from xpgrad_onnx._coverage import coverage, newest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from onnx_backend import cases, check  # noqa: E402

PAGE = ROOT / "docs" / "onnx_operators.md"
OPSETS = (7, 9, 11, 13, 15, 17, 18, 20, 21, 23, 25)
FEW = 4  # cases of an operator in each opset


def main() -> int:
    """Write the page; returns 1 if a gradient was wrong."""
    warnings.simplefilter("ignore")
    rows = coverage(newest())
    wrong: list[str] = []
    compared: dict[str, str] = {}
    for row in Progress(rows, "newest opset"):
        if row.gradient:
            outcomes = Counter(outcome(case, wrong) for case in cases().get(row.operator, []))
            compared[row.operator] = f"{outcomes['right']} of {outcomes.total() - outcomes['nothing']}"
    versions = []
    for opset in Progress([*OPSETS, newest()], "by opset"):
        found = coverage(opset)
        known = [row for row in found if row.gradient]
        tested = sum(tested_in(row.operator, opset, wrong) for row in known)
        versions.append((opset, len(found), len(known), tested))
    PAGE.write_text(page(rows, compared, versions), encoding="utf-8")
    print(*wrong, sep="\n")
    return int(bool(wrong))


def outcome(case: Any, wrong: list[str]) -> str:
    """Whether a case's gradients are right or refused, or nothing can be compared."""
    try:
        return "nothing" if check(case) else "right"
    except ValueError as error:
        return "refused" if "expected" in str(error) else str(error)
    except AssertionError as error:
        wrong.append(f"{case.name}: {error}")
        return "wrong"


def tested_in(operator: str, opset: int, wrong: list[str]) -> bool:
    """Whether some of an operator's tests exist in an opset, and a few of them are right there."""
    right = 0
    for case in cases().get(operator, []):
        model = in_opset(case, opset)
        if model is not None:
            right += outcome(replace(case, model=model), wrong) == "right"
        if right == FEW:
            break
    return right > 0


def in_opset(case: Any, opset: int) -> onnx.ModelProto | None:
    """A case's model in another opset; None if it is not valid there, or has another result."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", opset))
    inputs, expected = case.data_sets[0]
    feeds = {value.name: array for value, array in zip(model.graph.input, inputs, strict=True)}
    try:
        onnx.checker.check_model(model)
        found = ReferenceEvaluator(model, new_ops=operators()).run(None, feeds)
        same = all(
            np.allclose(a, b, 1e-3, 1e-5, equal_nan=True) for a, b in zip(found, expected, strict=True)
        )
    except Exception:  # an older form, or a form that onnx's evaluator lacks
        return None
    return model if same else None


def page(rows: list[Any], compared: dict[str, str], versions: list[tuple[int, ...]]) -> str:
    """The page's text."""
    lines = [
        "<!-- Written by tools/onnx_operators.py -->",
        "# ONNX's operators and their gradients",
        "",
        "How `gradient_model` differentiates every operator of ai.onnx that takes and returns floating-point",
        f"numbers, in opset {newest()}. *Compared*: the gradient was compared with central differences in",
        "float64, on the inputs of so many of ONNX's own tests. A body is a graph of other operators that",
        "replaces the operator. [ONNX](onnx.md) describes `gradient_model`.",
        "",
        "| operator | since | gradient | compared |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        how = row.how if row.gradient else f"none: {row.how}"
        lines.append(f"| {row.operator} | {row.since} | {how} | {compared.get(row.operator, '')} |")
    lines += [
        "",
        "## By opset",
        "",
        "*Tested* counts the operators that have one of ONNX's tests in this opset, with the same result,",
        "and right gradients there. Models below opset 16 are converted to 18 first.",
        "",
        "| opset | operators | with a gradient | tested |",
        "| --- | --- | --- | --- |",
        *(f"| {' | '.join(map(str, row))} |" for row in versions),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with xpgrad.use_engine("standard"):
        raise SystemExit(main())
