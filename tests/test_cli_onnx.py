"""``python -m xpgrad onnx``: what it says of a file, and its exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_cases import onnx  # isort: skip

from onnx import parser  # isort: skip

from xpgrad.__main__ import main

TEXT = """
    <ir_version: 8, opset_import: ["": 11, "local": 1]>
    g (float[N, 3] x, int64 rate) => (float[N, 4] y)
    <float[3, 4] W = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int64 high = {16000}>
    {
        is_high = Equal(rate, high)
        p = MatMul(x, W)
        y = If(is_high) <
            then_branch = a () => (float[N, 4] t) {
                six = Constant<value = float[1] {6.0}>() t = Div(p, six) },
            else_branch = b () => (float[N, 4] e) { e = OPERATOR(p) }>
    }"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(operator: str) -> str:
        path = tmp_path / f"{operator}.onnx"
        onnx.save(parser.parse_model(TEXT.replace("OPERATOR", operator)), path)
        return str(path)

    return write


def test_what_is_in_a_file(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", file("Tanh")]) == 0
    text = capsys.readouterr().out
    assert "opset 11, differentiated in opset 18" in text
    assert "float32 (N, 3)" in text
    assert "Parameters: 12 numbers in 1 tensors" in text
    assert "No parameters, a number in a formula: six" in text
    rows = {line.split()[0]: line.split()[1:4] for line in text.splitlines() if "a rule" in line}
    assert rows == {name: ["1", "1", "1"] for name in ("Div", "If", "MatMul", "Tanh")}
    assert "It can be trained" in text


def test_what_a_fixed_input_changes(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    strange = file("local.Strange")
    assert main(["onnx", strange]) == 1
    text = capsys.readouterr().out
    assert "No training graph. gradient_model: the model has local.Strange (1 node); expected" in text
    assert "none: the operator is unknown here" in text
    assert main(["onnx", strange, "--set", "rate=16000"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if "folded, or in a branch" in line}
    assert set(rows) == {"Equal", "If", "local.Strange"}


def test_bad_arguments(file: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", str(tmp_path / "none.onnx")]) == 1
    assert "none.onnx cannot be read as an ONNX model" in capsys.readouterr().err
    assert main(["onnx", file("Tanh"), "--set", "speed=1"]) == 1
    assert "inputs has 'speed', expected inputs of the model: x, rate" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["onnx", file("Tanh"), "--set", "rate"])
    assert "'rate' is no NAME=VALUE with a number" in capsys.readouterr().err


def test_a_step_of_training_is_written(file: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnx.reference import ReferenceEvaluator

    step, values = tmp_path / "step.onnx", tmp_path / "step.values.onnx"
    command = ["onnx", file("Tanh"), "--set", "rate=16000", "--train", str(step), "--loss", "mse"]
    assert main([*command, "--optimizer", "sgd"]) == 0
    assert f"{step}, a step of sgd, and {values}" in " ".join(capsys.readouterr().out.split())
    first = ReferenceEvaluator(str(values))
    given = dict(zip(first.output_names, first.run(None, {}), strict=True))
    x, target = np.ones((2, 3), np.float32), np.zeros((2, 4), np.float32)
    run = ReferenceEvaluator(str(step))
    feeds = {"x": x, "target": target, "learning_rate": np.float32(0.1)} | given
    losses = []
    for _ in range(3):
        loss, *new = run.run(None, feeds)
        losses.append(float(loss))
        feeds |= dict(zip(given, new, strict=True))
    assert losses[2] < losses[1] < losses[0]
    assert main([*command, "--loss", "nothing"]) == 1
    assert "no step of training: gradient_model: loss is 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--train", "nowhere/step.onnx"], "--train is nowhere/step.onnx, expected a path in a folder that"),
        (["--train", ""], "--train is ., expected a file: it is a folder"),
        (["--set", "rate=1", "--set", "rate=2"], "--set gives rate twice, expected each input once"),
        (["--loss", "mse"], "--loss goes with --train"),
        (["--optimizer", "sgd"], "--optimizer goes with --train"),
    ],
)
def test_options_of_a_step_are_checked(options, problem, capsys):
    assert main(["onnx", "model.onnx", *options]) == 2
    assert f"onnx: {problem}" in capsys.readouterr().err


@pytest.mark.parametrize(("model", "train"), [("m.onnx", "m.onnx"), ("m.values.onnx", "m.onnx")])
def test_a_step_does_not_replace_its_model(model, train, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / model).write_bytes(b"kept")
    assert main(["onnx", model, "--train", train]) == 2
    assert f"--train is {train}, expected another file: it would replace the model" in capsys.readouterr().err
    assert (tmp_path / model).read_bytes() == b"kept"
