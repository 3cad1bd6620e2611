"""Random calls, each made three times with fresh numbers, beside the standard engine."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from xpgrad.cli import check, check_random
from xpgrad.cli.check_random import draw_call, failure


@pytest.mark.parametrize("part", range(10))
def test_random_calls(part: int, interpreted: None) -> None:
    """Uncompiled: every other form would be compiled anew, which takes a second each."""
    found = {str(call): failure(call) for call in map(draw_call, range(30 * part, 30 * part + 30))}
    assert {call: problem for call, problem in found.items() if problem is not None} == {}


@pytest.mark.parametrize("function", ["lstm", "gru", "rnn", "lstm_cell", "gru_cell"])
def test_random_recurrences_from_programs(function: str) -> None:
    """Compiled, of few formulas: each runs from its program, on weights that run backwards in memory too."""
    plain = {"activations", "clip", "input_forget", "linear_before_reset"}
    calls = [c for c in map(draw_call, range(1000, 4000)) if c.function == function and c.dtype == "float32"]
    few = [c for c in calls if not c.options.keys() & plain and "P" not in c.shapes][:8]
    assert len(few) == 8
    assert any("negative" in c.layouts.values() for c in few)
    found = {str(call): failure(call) for call in few}
    assert {call: problem for call, problem in found.items() if problem is not None} == {}


def test_a_wrong_result_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interpreted: None
) -> None:
    """What differs on one engine alone is reported, with the call's number."""
    call = next(c for c in map(draw_call, range(100)) if c.function == "softmax" and c.dtype == "float32")
    right, turns = check_random._results, iter(range(100))

    def wrong(*arguments: object) -> dict[str, np.ndarray]:
        results = right(*arguments)
        return {name: array * 1.01 if next(turns) == 4 else array for name, array in results.items()}

    monkeypatch.setattr(check_random, "_results", wrong)
    problem = failure(call)
    assert problem is not None
    assert problem.startswith("turn 2: ")
    monkeypatch.setattr(check_random, "failure", lambda call: "turn 1: is wrong")
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    assert check.run(parser.parse_args(["--random", "2", "--seed", "7"])) == 1
    printed = capsys.readouterr()
    assert "2 random calls, each made three times beside the standard engine: 2 failed" in printed.out
    assert "seed 8: " in printed.err


def test_roundings_are_no_wrong_results() -> None:
    """Of badly conditioned sums the standard engine's roundings may be the larger ones."""
    exact = np.asarray([1.0, 2.0])
    standard = np.asarray([1.0, 2.01], dtype=np.float32)
    assert check_random._is_as_near(np.asarray([1.0, 1.995], dtype=np.float32), standard, exact)
    assert not check_random._is_as_near(np.asarray([1.0, 2.03], dtype=np.float32), standard, exact)
    assert not check_random._is_as_near(np.asarray([1.0, np.nan], dtype=np.float32), standard, exact)
    assert not check_random._is_as_near(exact, standard, exact)
