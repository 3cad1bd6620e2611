"""``python -m xpgrad check``, in this process."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpgrad
from activation_cases import WITH_OPERANDS
from xpgrad.__main__ import main
from xpgrad._cases.activations import ACTIVATIONS
from xpgrad._cases.case import Case, KernelCases, Oracle
from xpgrad._cases.cell_operators import CELL_OPERATORS
from xpgrad._cases.kernels import KERNELS
from xpgrad.cli import check

# Without compiling: compiled formulas are held against the references by the kernels' own tests.
pytestmark = pytest.mark.usefixtures("interpreted")

FEW = ("--namespace", "numpy", "--option", "plain", "--option", "truncated")
MODULES = {
    "lstm": "plain",
    "gru": "plain, reset after",
    "rnn": "plain",
    "lstm_cell": "plain",
    "rnn_cell": "plain",
    "gru_cell": "plain, reset after",
}
"""The recurrent kernels, and the options that PyTorch's modules have."""
ELEMENTWISE = {kernel.name for kernel in ACTIVATIONS}
NAMESPACES = [backend for backend in check.BACKENDS if backend.namespace != "onnx"]
WITHOUT_PEER = {"hard_sigmoid", "selu"} | {
    kernel.name for kernel in ACTIVATIONS if "torch.nn" not in {oracle.label for oracle in kernel.oracles}
}
"""Of these the ones whose option "plain" PyTorch has no function for."""


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["check", "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


_answers: dict[tuple[str, str, bytes], Any] = {}


def _answer(kernel: str, oracle: Oracle, case: Case) -> Any:
    key = kernel, oracle.label, pickle.dumps(case)
    if key not in _answers:
        _answers[key] = oracle.compute(case)
    return _answers[key]


def remembering(kernel: KernelCases) -> KernelCases:
    """The kernel with oracles that compute each case once: many tests here ask them for the same ones."""
    oracles = [o._replace(compute=functools.partial(_answer, kernel.name, o)) for o in kernel.oracles]
    return kernel._replace(oracles=oracles)


@pytest.fixture(autouse=True)
def remembering_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "KERNELS", [remembering(kernel) for kernel in KERNELS])


def take_kernels(monkeypatch: pytest.MonkeyPatch, *names: str) -> set[str]:
    """Only these are checked; the command by itself takes all of them, for minutes."""
    monkeypatch.setattr(check, "KERNELS", [kernel for kernel in check.KERNELS if kernel.name in names])
    return set(names)


def without_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """No differences of the kernels' own forwards, which take most of the time."""
    others = [
        kernel._replace(oracles=[o for o in kernel.oracles if o.label != "differences"])
        for kernel in check.KERNELS
    ]
    monkeypatch.setattr(check, "KERNELS", others)


@pytest.mark.long
@pytest.mark.exhaustive  # CI runs the command itself
def test_everything_that_is_installed_is_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = take_kernels(monkeypatch, "rnn", "gru_cell", "prelu", "gelu", "softmax_cross_entropy")
    monkeypatch.setattr(check, "BACKENDS", NAMESPACES)
    status, report = run_json(capsys)
    assert [row for row in report["rows"] if not row["ok"]] == []
    assert status == 0
    assert report["ok"] is True
    assert report["xpgrad"] == xpgrad.__version__
    combinations = {(row["kernel"], row["option"], row["namespace"], row["dtype"]) for row in report["rows"]}
    assert len(combinations) == len(report["rows"])
    expected = {
        (kernel.name, option, backend.name, dtype)
        for kernel in check.KERNELS
        for option in kernel.options
        for backend in NAMESPACES
        if importlib.util.find_spec(backend.module)
        for dtype in backend.dtypes
    }
    assert combinations == expected
    assert {row[0] for row in combinations} == some


def test_every_operator_and_option_that_onnx_has_is_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    take_kernels(monkeypatch, "lstm", "lstm_cell", "layer_norm_gru", "log_sigmoid", "softplus", "softmax")
    without_differences(monkeypatch)  # for which ONNX makes no difference
    status, report = run_json(capsys, "--namespace", "onnx")
    assert status == 0
    rows = report["rows"]
    assert {row["dtype"] for row in rows} == {"float32", "float16"}
    has = {(row["kernel"], row["option"]) for row in rows}
    assert {kernel for kernel, _ in has} == {"lstm", "softplus", "softmax"}
    every = {(kernel.name, option) for kernel in check.KERNELS for option in kernel.options}
    left_out = {option for kernel, option in every - has if (kernel, "plain") in has}
    assert {option.partition(" ")[0].partition(",")[0] for option in left_out} == {
        *("per_sample", "sample_weight", "everything", "flatten", "projection", "cell", "beta", "threshold"),
        "resets",
    }
    for option in ("peepholes, truncated", "lengths, NaN padding", "layout 1", "input_forget", "clip"):
        assert ("lstm", option) in has


def test_a_wrong_operator_of_onnx_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    right = xpgrad.quick_gelu_grad
    monkeypatch.setattr(xpgrad, "quick_gelu_grad", lambda *args, **options: 1.01 * right(*args, **options))
    assert main(["check", "--namespace", "onnx", "--option", "alpha"]) == 1
    assert "WRONG: quick_gelu, alpha, onnx, float32: gradient of X is off by" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.exhaustive  # for the same reason
def test_each_row_was_held_against_the_oracles_that_apply(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = run_json(capsys, *FEW)
    torch = importlib.util.find_spec("torch") is not None
    for row in report["rows"]:
        expected = {"reference"} | ({"autograd"} if torch else set())
        if "truncated" not in row["option"]:
            expected |= {"differences"}
        elementwise = row["kernel"] in ELEMENTWISE
        peer = (
            row["kernel"] not in WITHOUT_PEER if elementwise else row["option"] == MODULES.get(row["kernel"])
        )
        if peer and torch:
            expected |= {"torch.nn"}
        assert set(row["errors"]) == set(row["tolerances"]) == expected
        for oracle, error in row["errors"].items():
            assert 0 <= error <= row["tolerances"][oracle] <= 0.05
            assert error > 0 or elementwise  # relu has none


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    without_differences(monkeypatch)
    assert main(["check", *FEW]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith((*MODULES, *ELEMENTWISE, "layer_norm"))]
    options = 2 * ["plain", "peepholes, truncated"] + 2 * ["plain, reset before", "plain, reset after"]
    options += 5 * ["plain"]  # of the RNN and its cell, of both with layer normalization, and of GRU-D
    assert len(rows) == (len(options) + len(ELEMENTWISE)) * 2 * 3
    assert all(line.rstrip().endswith("ok") for line in rows)
    cells = [kernel.name for kernel in CELL_OPERATORS if kernel.name != "gru_d"]
    others = [line for line in out.splitlines() if line.startswith(tuple(cells))]
    assert len(others) == len(cells) * 2 * 3
    assert f"{len(rows) + len(others)} of {len(rows) + len(others)} within their tolerances." in out
    assert "WRONG" not in out


def some_kernels(monkeypatch: pytest.MonkeyPatch) -> list[check.KernelCases]:
    some = [k for k in check.KERNELS if k.name in ("rnn_cell", "softmax")]
    monkeypatch.setattr(check, "KERNELS", some)
    monkeypatch.setattr(check, "BACKENDS", NAMESPACES)
    return some


def test_the_summary_has_a_line_for_each_operator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First options in every namespace and dtype, the others in some; no line is longer than 80 columns."""
    some = some_kernels(monkeypatch)
    assert main(["check"]) == 0
    captured = capsys.readouterr()
    lines = [line for line in captured.out.splitlines() if line.startswith(("rnn_cell", "softmax"))]
    assert {line.split()[0] for line in lines} == {kernel.name for kernel in some}
    assert all(line.endswith("ok") and "%" in line for line in lines)
    on_a_gpu = any(backend.installed for backend in check.GPUS)  # two more columns
    assert max(map(len, captured.out.splitlines())) <= (100 if on_a_gpu else 80)
    backends = [b for b in (*check.BACKENDS, *check.ELSEWHERE) if b.installed and b.has(some[0].name)]
    pairs = sum(len(backend.dtypes) for backend in backends)
    count = 0
    for number in range(max(len(kernel.options) for kernel in some)):
        asked = sum(len(backend.dtypes) for backend in check._some(backends, number)) if number else pairs
        assert asked == pairs or pairs // check._EACH <= asked <= pairs // check._EACH + 1
        count += asked * sum(number < len(kernel.options) for kernel in some)
    assert f"{count} of {count} within their tolerances." in captured.out
    assert "rnn_cell" in captured.err or "softmax" in captured.err


def test_all_prints_every_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    some = some_kernels(monkeypatch)
    assert main(["check", "--all"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith(("rnn_cell", "softmax"))]
    dtypes = sum(len(b.dtypes) for b in check.BACKENDS if importlib.util.find_spec(b.module))
    assert len(lines) == dtypes * sum(len(kernel.options) for kernel in some)


def test_the_functions_of_jax_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jax_functions = pytest.importorskip("xpgrad_jax", reason="jax not installed")
    some_kernels(monkeypatch)
    arguments = ("--namespace", "jax", "--option", "plain")
    status, report = run_json(capsys, *arguments)
    assert status == 0
    seen = {(row["kernel"], row["dtype"]): set(row["errors"]) for row in report["rows"]}
    assert seen.keys() == {(name, dtype) for name in ("rnn_cell", "softmax") for dtype in check.JAX.dtypes}
    assert all("reference" in oracles for oracles in seen.values())
    right = jax_functions.softmax
    monkeypatch.setattr(jax_functions, "softmax", lambda X, **options: 1.01 * right(X, **options))
    status, report = run_json(capsys, *arguments)
    assert status == 1
    assert {row["kernel"] for row in report["rows"] if not row["ok"]} == {"softmax"}


def test_the_layers_of_keras_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not check.KERAS.installed:
        pytest.skip("Keras does not run here, or has no gradients")
    import xpgrad_keras

    take_kernels(monkeypatch, "gru", "lstm_cell")
    arguments = ("--namespace", "keras", "--option", "bias", "--option", "reverse", "--option", "layout 1")
    status, report = run_json(capsys, *arguments)
    assert status == 0
    seen = {(row["option"], row["dtype"]) for row in report["rows"] if row["kernel"] == "gru"}
    options = [
        f"{name}, reset {when}" for name in ("no bias", "reverse", "layout 1") for when in ("before", "after")
    ]
    assert seen == {(option, dtype) for option in options for dtype in check.KERAS.dtypes}
    assert {row["kernel"] for row in report["rows"]} == {"gru"}
    assert all(row["errors"].keys() >= {"reference", "differences"} for row in report["rows"])
    right = xpgrad_keras.GRU.inner_loop

    def wrong(*args: Any, **options: Any) -> Any:
        last, outputs, states = right(*args, **options)
        return last, 1.01 * outputs, states

    monkeypatch.setattr(xpgrad_keras.GRU, "inner_loop", wrong)
    status, report = run_json(capsys, *arguments)
    assert status == 1
    assert not any(row["ok"] for row in report["rows"])


def test_a_wrong_operator_is_counted_in_the_summary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some_kernels(monkeypatch)
    monkeypatch.setitem(check.TOLERANCE, "float16", 1e-9)
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("softmax")]
    assert line.endswith("WRONG")
    assert "WRONG: softmax, " in out
    assert "float16: " in out


BREAKS = {
    "dW by 1 %": lambda grads: grads._replace(dW=grads.dW * 1.01),
    "dX at its first index": lambda grads: grads._replace(
        dX=np.concatenate([0 * grads.dX[:1], grads.dX[1:]])
    ),
    "dR transposed": lambda grads: grads._replace(dR=grads.dR.swapaxes(-1, -2)),
    "dB None": lambda grads: grads._replace(dB=None),
    "dX in another dtype": lambda grads: grads._replace(dX=grads.dX.astype(np.longdouble)),
    "dR NaN": lambda grads: grads._replace(dR=grads.dR * np.nan),
}
SAYS = {
    "dW by 1 %": "gradient of W is off by 0.01 from reference, allowed 1e-10",
    "dX at its first index": "gradient of X is off by",
    "dR transposed": "gradient of R is off by",
    "dB None": "gradient of B is None",
    "dX in another dtype": "gradient of X has dtype longdouble, expected float64",
    "dR NaN": "gradient of R is off by inf",
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_wrong_kernel_is_named(
    broken: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_vjp(function: Any, *args: Any, **kwargs: Any) -> Any:
        outputs, pullback = true_vjp(function, *args, **kwargs)
        if function.__name__ not in MODULES:
            return outputs, pullback
        return outputs, lambda *by_position, **by_name: BREAKS[broken](pullback(*by_position, **by_name))

    true_vjp = xpgrad.vjp
    monkeypatch.setattr(xpgrad, "vjp", wrong_vjp)
    monkeypatch.setattr(check, "KERNELS", [k for k in check.KERNELS if k.name in MODULES])
    assert main(["check", "--namespace", "numpy", "--option", "plain"]) == 1
    out = capsys.readouterr().out
    for kernel, option in MODULES.items():
        start = f"WRONG: {kernel}, {option}, numpy, float64: "
        said = [line for line in out.splitlines() if line.startswith(start)]
        assert len(said) == 1
        assert SAYS[broken].replace("longdouble", np.dtype(np.longdouble).name) in said[0]
    assert "0 of 48 within their tolerances." in out


ARRAY_BREAKS = {
    "by 1 %": (lambda dX: dX * 1.01, "gradient of X is off by 0.01 from reference"),
    "where it is largest": (
        lambda dX: dX * np.where(np.abs(dX) == np.abs(dX).max(), 0.9, 1),
        "gradient of X is off",
    ),
    "in shape": (lambda dX: dX[:1], "gradient of X is off by inf"),
    "in dtype": (lambda dX: dX.astype(np.longdouble), "gradient of X has dtype"),
    "NaN": (lambda dX: dX * np.nan, "gradient of X is off by inf"),
}


@pytest.mark.parametrize("broken", ARRAY_BREAKS)
@pytest.mark.parametrize("name", sorted(ELEMENTWISE - {*WITH_OPERANDS}))
def test_a_wrong_gradient_of_an_activation_is_named(
    name: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, says = ARRAY_BREAKS[broken]

    def wrong_vjp(*args: Any, **kwargs: Any) -> Any:
        output, pullback = true_vjp(*args, **kwargs)
        return output, lambda dY: change(pullback(dY))

    true_vjp = xpgrad.vjp
    monkeypatch.setattr(xpgrad, "vjp", wrong_vjp)
    [kernel] = [kernel for kernel in ACTIVATIONS if kernel.name == name]
    backend = next(backend for backend in check.BACKENDS if backend.namespace == "numpy")
    rows = list(check._rows(kernel, "plain", [backend]))
    assert rows
    for row in rows:
        if row.dtype == "float64":
            assert row.problem is not None
            assert says.replace("reference", "differences") in row.problem


CONVOLUTIONS = {"conv", "conv_transpose"}
WRONG_CONVOLUTIONS = {
    "Y": lambda Y: Y * 1.001,
    "dX": lambda dX: np.roll(dX, 1, axis=-1),
    "dW": lambda dW: dW[..., ::-1],
    "dB": lambda dB: dB * 1.001,
}


@pytest.mark.parametrize("broken", WRONG_CONVOLUTIONS)
def test_a_wrong_convolution_is_named(
    broken: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every oracle; differences of the kernel's own forward have nothing to say about Y."""
    change = WRONG_CONVOLUTIONS[broken]

    def wrong_vjp(*args: Any, **kwargs: Any) -> Any:
        Y, pullback = true_vjp(*args, **kwargs)
        if broken == "Y":
            return change(Y), pullback
        return Y, lambda dY: (d := pullback(dY))._replace(**{broken: change(getattr(d, broken))})

    true_vjp = xpgrad.vjp
    monkeypatch.setattr(xpgrad, "vjp", wrong_vjp)
    status, report = run_json(capsys, "--namespace", "numpy", "--option", "1-D", "--option", "groups")
    assert status == 1
    rows = [row for row in report["rows"] if row["dtype"] == "float64"]
    assert {row["kernel"] for row in rows} == CONVOLUTIONS
    name = "Y" if broken == "Y" else f"gradient of {broken[1:]}"
    for row in rows:
        assert {"reference", "differences"} <= set(row["errors"])
        for oracle in set(row["errors"]) - ({"differences"} if broken == "Y" else set()):
            assert re.search(rf"{name} is off by [\d.e-]+ from {re.escape(oracle)}", row["problem"])


@pytest.mark.parametrize("kernel", [k for k in check.KERNELS if k.name in CONVOLUTIONS], ids=lambda k: k.name)
def test_every_method_has_an_option(kernel: check.KernelCases) -> None:
    from xpgrad._conv.choice import METHODS

    named = {make().attributes.get("method") for make in kernel.options.values()}
    assert named == {None, *METHODS}


def test_a_wrong_forward_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_vjp(*args: Any, **kwargs: Any) -> Any:
        outputs, pullback = true_vjp(*args, **kwargs)
        if not isinstance(outputs, tuple):
            return outputs * 1.001, pullback
        name = "H_t" if "H_t" in outputs._fields else "H_next"
        return outputs._replace(**{name: getattr(outputs, name) * 1.001}), pullback

    without_differences(monkeypatch)
    true_vjp = xpgrad.vjp
    monkeypatch.setattr(xpgrad, "vjp", wrong_vjp)
    status, report = run_json(capsys, *FEW)
    assert status == 1
    assert report["ok"] is False
    float64 = [row for row in report["rows"] if row["dtype"] == "float64"]
    assert float64
    assert all(re.search(r"(H_t|H_next|Y) is off by 0\.001", row["problem"]) for row in float64)


def test_a_kernel_that_raises_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(xpgrad, "vjp", failing)
    status, report = run_json(capsys, *FEW)
    assert status == 1
    assert {row["problem"] for row in report["rows"]} == {"RuntimeError: out of order"}
    monkeypatch.setattr(xpgrad, "gru_cell", failing)
    monkeypatch.setattr(check, "KERNELS", [k for k in KERNELS if k.name in ("gru_cell", "rnn_cell", "relu")])
    status, report = run_json(capsys, "--namespace", "numpy", "--option", "plain")
    assert status == 1
    failed = {row["kernel"] for row in report["rows"] if row["problem"].startswith("differences failed: ")}
    assert failed == {"gru_cell"}


def test_what_is_not_installed_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def numpy_only(name: str, *args: Any) -> Any:
        return None if name in ("torch", "array_api_strict", "onnx") else find_spec(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", numpy_only)
    assert main(["check", "--option", "plain"]) == 0
    out = capsys.readouterr().out
    assert sum(line.startswith(("lstm", "gru")) for line in out.splitlines()) == 42
    assert sum(line.startswith(tuple(ELEMENTWISE)) for line in out.splitlines()) == 6 * len(ELEMENTWISE)
    assert sum(line.rstrip().endswith("not installed") for line in out.splitlines()) == 4
    assert "Not installed, or without its device, so not checked: array_api_strict, torch, onnx." in out
    assert "No column without torch: autograd, torch.nn." in out
    status, report = run_json(capsys, "--option", "plain")
    assert status == 0
    assert sorted(report["not_installed"]) == ["array_api_strict", "onnx", "torch"]
    assert {frozenset(row["errors"]) for row in report["rows"]} == {frozenset({"reference", "differences"})}


def test_nothing_to_check_is_no_success(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_kernels(monkeypatch, "relu")
    monkeypatch.setattr(check, "BACKENDS", [b._replace(module="nothere") for b in check.BACKENDS])
    assert main(["check", "--namespace", "numpy"]) == 1
    assert "Nothing to check." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--option nothere", "argument --option: 'nothere' is in no option's name; these are plain; no bias"),
        (
            "--option gru,plain,reset.after",
            "argument --option: 'gru,plain,reset.after' is in no option's name; near it are gru, plain, re",
        ),
        ("--option clip --option nothere", "argument --option: 'nothere' is in no option's name"),
        ("--random -3", "argument --random: -3 is not at least 1"),
        ("--random 0", "argument --random: 0 is not at least 1"),
        ("--random many", "argument --random: 'many' is no whole number"),
        ("--random 2 --seed -1", "argument --seed: -1 is negative"),
    ],
)
def test_wrong_numbers_and_names_are_refused(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as status:
        main(["check", *arguments.split()])
    assert status.value.code == 2
    assert f"error: {words}" in capsys.readouterr().err


def test_an_unknown_argument_gets_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(["check", "lstm"])
    assert status.value.code == 2
    shown = capsys.readouterr().err
    assert "check [-h] [--all]" in shown
    assert "check: error: unrecognized arguments: lstm" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--random 2 --option clip", "--random goes without --option"),
        ("--peers --namespace torch", "--peers goes without --namespace"),
        ("--seed 3", "--seed goes with --random"),
        ("--peers --write {0}/missing/page.md", "--write is .*, expected a path in a folder that exists"),
        ("--peers --write {0}", "--write is .*, expected a file: it is a folder"),
    ],
)
def test_arguments_without_an_effect_are_refused(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["check", *arguments.format(tmp_path).split()]) == 2
    said = capsys.readouterr()
    assert re.fullmatch(f"xpgrad: check: {words}\n", said.err)
    assert not said.out


def test_progress_does_not_reach_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--json", *FEW])
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "checking" in captured.err


@pytest.mark.parametrize("kernel", check.KERNELS, ids=lambda kernel: kernel.name)
def test_the_options_cover_the_contract(kernel: check.KernelCases) -> None:
    """Each attribute that the kernels take is set by an option."""
    from inspect import signature

    forward = set(signature(getattr(xpgrad, kernel.name)).parameters)
    gradient = set(signature(getattr(xpgrad, f"{kernel.name}_grad")).parameters)
    used: set[str] = set()
    for make in kernel.options.values():
        case = make()
        used |= {*case.attributes, *case.gradient_attributes, *case.integers, *case.arguments}
        names = {"dY" if name == "Y" else f"grad_{name.removesuffix('_next')}" for name in case.cotangents}
        assert ({"dY"} if kernel.name in ELEMENTWISE else names) <= gradient
    saved = {"H_all", "C_all", "iofc", "zrh", "C_next", "H_next", "dY", "saved", "means"}
    saved |= {"N_all", "M_all", "filled", "last", "saved_x"}
    own = {name for name in gradient - forward if name.startswith("grad_") or name in saved} | {"wrt"}
    own |= {"dY", "Y", "out"}
    # sample_weight: see test_per_sample_norms; reset: see test_resets, test_cell_operators and test_gru_d
    elsewhere = {"activation_beta", "sample_weight", "reset"}
    assert (forward | gradient) - own - elsewhere <= used
    assert "activation_beta" in used or kernel.name.endswith("_cell") or "activation_beta" not in forward


def test_arguments_parse() -> None:
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    args = parser.parse_args(["--json", "--namespace", "torch", "--namespace", "numpy", "--option", "clip"])
    assert args.json
    assert args.namespace == ["torch", "numpy"]
    assert args.option == ["clip"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--namespace", "abacus"])
