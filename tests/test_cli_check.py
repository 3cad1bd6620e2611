"""``python -m xpgrad check``, in this process."""

from __future__ import annotations

import argparse
import importlib.util
import json
from typing import Any

import numpy as np
import pytest

import xpgrad
from xpgrad.__main__ import main
from xpgrad.cli import check

FEW = ("--namespace", "numpy", "--option", "plain", "--option", "truncated")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["check", "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


def test_everything_that_is_installed_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = run_json(capsys)
    assert [row for row in report["rows"] if not row["ok"]] == []
    assert status == 0
    assert report["ok"] is True
    assert report["xpgrad"] == xpgrad.__version__
    combinations = {(row["option"], row["namespace"], row["dtype"]) for row in report["rows"]}
    assert len(combinations) == len(report["rows"])
    expected = {
        (option, backend.name, dtype)
        for option in check.KERNELS[0].options
        for backend in check.BACKENDS
        if importlib.util.find_spec(backend.module)
        for dtype in backend.dtypes
    }
    assert combinations == expected


def test_each_row_was_held_against_the_oracles_that_apply(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = run_json(capsys, *FEW)
    torch = importlib.util.find_spec("torch") is not None
    for row in report["rows"]:
        expected = {"reference"} | ({"autograd"} if torch else set())
        if "truncated" not in row["option"]:
            expected |= {"differences"}
        if row["option"] == "plain" and torch:
            expected |= {"torch.nn"}
        assert set(row["errors"]) == set(row["tolerances"]) == expected
        for oracle, error in row["errors"].items():
            assert 0 < error <= row["tolerances"][oracle] <= 0.05


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *FEW]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("lstm")]
    options = ["plain", "peepholes, truncated"]
    assert len(rows) == len(options) * 2 * 3
    assert all(line.rstrip().endswith("ok") for line in rows)
    assert f"{len(rows)} of {len(rows)} within their tolerances." in out
    assert "WRONG" not in out


BREAKS = {
    "dW by 1 %": lambda grads: grads._replace(dW=grads.dW * 1.01),
    "dX at t = 0": lambda grads: grads._replace(dX=np.concatenate([grads.dX[:1] * 0, grads.dX[1:]])),
    "dR transposed": lambda grads: grads._replace(dR=grads.dR.swapaxes(1, 2)),
    "dB None": lambda grads: grads._replace(dB=None),
    "dC0 in another dtype": lambda grads: grads._replace(dC0=grads.dC0.astype(np.longdouble)),
    "dH0 NaN": lambda grads: grads._replace(dH0=grads.dH0 * np.nan),
}
SAYS = {
    "dW by 1 %": "gradient of W is off by 0.01 from reference, allowed 1e-10",
    "dX at t = 0": "gradient of X is off by",
    "dR transposed": "gradient of R is off by inf from reference, allowed 1e-10",
    "dB None": "gradient of B is None",
    "dC0 in another dtype": "gradient of initial_c has dtype longdouble, expected float64",
    "dH0 NaN": "gradient of initial_h is off by inf",
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_wrong_kernel_is_named(
    broken: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_vjp(*args: Any, **kwargs: Any) -> Any:
        outputs, pullback = true_vjp(*args, **kwargs)
        return outputs, lambda **cotangents: BREAKS[broken](pullback(**cotangents))

    true_vjp = xpgrad.vjp
    monkeypatch.setattr(xpgrad, "vjp", wrong_vjp)
    assert main(["check", "--namespace", "numpy", "--option", "plain"]) == 1
    out = capsys.readouterr().out
    said = [line for line in out.splitlines() if line.startswith("WRONG: lstm, plain, numpy, float64: ")]
    assert len(said) == 1
    assert SAYS[broken].replace("longdouble", np.dtype(np.longdouble).name) in said[0]
    assert "0 of 6 within their tolerances." in out


def test_a_wrong_forward_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_vjp(*args: Any, **kwargs: Any) -> Any:
        outputs, pullback = true_vjp(*args, **kwargs)
        return outputs._replace(C_t=outputs.C_t * 1.001), pullback

    true_vjp = xpgrad.vjp
    monkeypatch.setattr(xpgrad, "vjp", wrong_vjp)
    status, report = run_json(capsys, *FEW)
    assert status == 1
    assert report["ok"] is False
    float64 = [row for row in report["rows"] if row["dtype"] == "float64"]
    assert float64
    assert all("C_t is off by 0.001" in row["problem"] for row in float64)


def test_a_kernel_that_raises_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(xpgrad, "vjp", failing)
    status, report = run_json(capsys, *FEW)
    assert status == 1
    assert {row["problem"] for row in report["rows"]} == {"RuntimeError: out of order"}
    monkeypatch.setattr(xpgrad, "lstm", failing)
    status, report = run_json(capsys, "--namespace", "numpy", "--option", "plain")
    assert status == 1
    assert "differences failed: RuntimeError: out of order" in {row["problem"] for row in report["rows"]}


def test_what_is_not_installed_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def numpy_only(name: str, *args: Any) -> Any:
        return None if name in ("torch", "array_api_strict") else find_spec(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", numpy_only)
    assert main(["check", "--option", "plain"]) == 0
    out = capsys.readouterr().out
    assert sum(line.startswith("lstm") for line in out.splitlines()) == 6
    assert sum(line.rstrip().endswith("not installed") for line in out.splitlines()) == 3
    assert "Not installed, so not checked: array_api_strict, torch." in out
    assert "No column without torch: autograd, torch.nn." in out
    status, report = run_json(capsys, "--option", "plain")
    assert status == 0
    assert sorted(report["not_installed"]) == ["array_api_strict", "torch"]
    assert {frozenset(row["errors"]) for row in report["rows"]} == {frozenset({"reference", "differences"})}


def test_nothing_to_check_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--option", "no such option"]) == 1
    assert "Nothing to check." in capsys.readouterr().out


def test_progress_does_not_reach_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--json", *FEW])
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "checking" in captured.err


def test_the_options_cover_the_contract() -> None:
    """Each attribute that the kernels take is set by an option."""
    from inspect import signature

    used: set[str] = set()
    for make in check.KERNELS[0].options.values():
        case = make()
        used |= {*case.attributes, *case.gradient_attributes, *case.integers, *case.arguments}
    own = {"H_all", "C_all", "iofc", "grad_H_all", "grad_H_t", "grad_C_t", "wrt"}
    assert set(signature(xpgrad.lstm_grad).parameters) - own <= used


def test_arguments_parse() -> None:
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    args = parser.parse_args(["--json", "--namespace", "torch", "--namespace", "numpy", "--option", "clip"])
    assert args.json
    assert args.namespace == ["torch", "numpy"]
    assert args.option == ["clip"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--namespace", "cupy"])
