"""Vectors for other people's tests: what they hold, how they are written, and that they run back."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpgrad
from xpgrad.__main__ import main
from xpgrad._cases import vectors as _vectors
from xpgrad.testing import relative_error, vectors

# Without compiling: what is tested is what is written, not the kernels.
pytestmark = pytest.mark.usefixtures("interpreted")

needs_onnx = pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason="onnx is not installed")


@pytest.mark.parametrize("operator", ["lstm", "gru", "lstm_cell", "conv_transpose", "prelu"])
def test_the_gradient_s_function_takes_them_by_name(operator: str) -> None:
    for vector in vectors(operator, cases=4, seed=3):
        forward = getattr(xpgrad, operator)(**vector.inputs, **vector.attributes)
        results = forward._asdict() if hasattr(forward, "_asdict") else {"Y": forward}
        for name, array in vector.outputs.items():
            assert np.array_equal(results[name], array), name
        saved = {name: vector.outputs[name] for name in ("H_all", "C_all", "iofc", "zrh") if name in results}
        inputs = {k: v for k, v in vector.inputs.items() if not operator.startswith("conv") or k != "B"}
        if operator == "lstm_cell":
            saved = {"C_next": vector.outputs["C_next"], "iofc": vector.outputs["iofc"]}
        gradient = getattr(xpgrad, f"{operator}_grad")
        grads = gradient(**inputs, **saved, **vector.cotangents, **vector.attributes)
        for name, array in vector.gradients.items():
            assert np.array_equal(getattr(grads, name), array), name


def test_numbers_are_exact_in_every_precision_and_padding_is_finite() -> None:
    for vector in vectors("gru", option="lengths, bidirectional, reset after", cases=3):
        for array in (*vector.inputs.values(), *vector.cotangents.values()):
            assert np.isfinite(array).all()
            assert np.array_equal(array * 64, np.round(array * 64))
            assert np.abs(array).max() < 8
        assert vector.error < 1e-8


def test_the_same_seed_gives_the_same_and_another_others() -> None:
    [a], [b], [c] = (vectors("tanh", 1, seed) for seed in (5, 5, 6))
    assert np.array_equal(a.inputs["X"], b.inputs["X"])
    assert not np.array_equal(a.inputs["X"], c.inputs["X"])


def test_every_operator_has_them() -> None:
    for operator in _vectors.operators():
        [vector] = vectors(operator, 1)
        assert vector.gradients
        assert vector.error < 1e-6
    forwards = {name for name in xpgrad.__all__ if f"{name}_grad" in xpgrad.__all__}
    assert forwards - set(_vectors.operators()) <= {"gate_inputs"}


def test_a_wrong_gradient_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _vectors.from_differences
    wrong = lambda *args: {k: 1.001 * v for k, v in right(*args).items()}  # noqa: E731
    monkeypatch.setattr(_vectors, "from_differences", wrong)
    with pytest.raises(ArithmeticError, match="a gradient of elu, option 'plain', differs from central"):
        list(vectors("elu", 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("elo",), "operator is 'elo', expected one of lstm, gru, rnn"),
        (("elu", 0), "cases is 0, expected a whole number of at least 1"),
        (("elu", 1, -1), "seed is -1, expected a whole number of at least 0"),
        (("elu", True), "cases is True, expected a whole number"),
    ],
)
def test_bad_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vectors(*arguments)
    with pytest.raises(ValueError, match="option is 'alfa', expected one of plain; alpha"):
        vectors("elu", option="alfa")


def test_npz_and_json_hold_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["vectors", "lstm", "--cases", "3", "--seed", "2", "--out", str(tmp_path)]
    assert main([*arguments, "--format", "npz"]) == 0
    assert main([*arguments, "--format", "json"]) == 0
    assert "3 of 3 written" in capsys.readouterr().out
    for index, vector in enumerate(vectors("lstm", 3, 2)):
        report = json.loads((tmp_path / f"lstm_{index:03d}.json").read_text())
        with np.load(tmp_path / f"lstm_{index:03d}.npz") as z:
            about = json.loads(str(z["about"]))
            assert about == {key: report[key] for key in ("operator", "option", "attributes", "error")}
            for group in ("inputs", "outputs", "cotangents", "gradients"):
                part = getattr(vector, group)
                assert set(report[group]) == set(part)
                for name, array in part.items():
                    stored = report[group][name]
                    read = np.asarray(stored["data"], dtype=stored["dtype"]).reshape(stored["shape"])
                    assert np.array_equal(read, array)
                    assert np.array_equal(z[f"{group}/{name}"], array)


@needs_onnx
@pytest.mark.parametrize(
    "operator",
    [
        "lstm",
        "gru",
        "rnn",
        "conv",
        "conv_transpose",
        "softmax",
        "softmax_cross_entropy",
        "gelu",
        "prelu",
        "elu",
    ],
)
def test_onnx_runs_back(operator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    from xpgrad_onnx import operators

    cases = {"lstm": 4, "gru": 4, "rnn": 4, "conv": 8, "conv_transpose": 8}
    few = ["--cases", str(cases[operator])] if operator in cases else []
    assert main(["vectors", operator, "--format", "onnx", "--out", str(tmp_path), *few]) == 0
    report = capsys.readouterr().out
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2 * report.count(" written\n") > 0
    for folder in folders:
        model = onnx.load(folder / "model.onnx")
        onnx.checker.check_model(model, full_check=True)
        data = folder / "test_data_set_0"

        def read(kind: str, values: Any, data: Path = data) -> dict[str, np.ndarray]:
            arrays = {}
            for index, value in enumerate(values):
                tensor = onnx.TensorProto.FromString((data / f"{kind}_{index}.pb").read_bytes())
                assert tensor.name == value.name
                arrays[value.name] = onnx.numpy_helper.to_array(tensor)
            return arrays

        inputs, outputs = read("input", model.graph.input), read("output", model.graph.output)
        evaluator = ReferenceEvaluator(model, new_ops=operators())
        results = evaluator.run(list(outputs), inputs)
        assert outputs
        for (name, expected), result in zip(outputs.items(), results, strict=True):
            # attributes are float32 in ONNX
            assert relative_error(result, expected) < 1e-6, (folder.name, name)


def test_what_onnx_does_not_have_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    assert main(["vectors", "softplus", "--format", "onnx", "--out", str(tmp_path)]) == 0
    assert "left out: ONNX's Softplus has no beta (here 2.0)" in capsys.readouterr().out
    assert main(["vectors", "silu", "--format", "onnx", "--cases", "1", "--out", str(tmp_path)]) == 1
    assert "left out: ONNX has no silu" in capsys.readouterr().out


@needs_onnx
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("projection", "ONNX's LSTM has no S"),
        ("projection, masks", "ONNX's LSTM has no S"),
        ("cell states", "ONNX's LSTMGrad has no grad_C_all"),
    ],
)
def test_an_operand_that_onnx_does_not_have_is_not_dropped(
    option: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node without it would be another function."""
    arguments = ["vectors", "lstm", "--format", "onnx", "--option", option, "--cases", "1"]
    assert main([*arguments, "--out", str(tmp_path)]) == 1
    assert f"left out: {message}" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_bad_options_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "elu", "--option", "x", "--out", str(tmp_path)]) == 1
    assert "option is 'x', expected one of plain; alpha" in capsys.readouterr().err
    for arguments, words in (
        ("--cases 0", "--cases: 0 is not at least 1"),
        ("--cases -2", "--cases: -2 is not at least 1"),
        ("--seed -1", "--seed: -1 is negative"),
    ):
        with pytest.raises(SystemExit):
            main(["vectors", "elu", *arguments.split(), "--out", str(tmp_path)])
        assert f"error: argument {words}" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["npz", "json"])
def test_a_folder_that_cannot_be_written_is_one_line(
    written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["vectors", "elu", "--cases", "1", "--format", written, "--out"]
    (tmp_path / "file").write_text("mine")
    for path, reason in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "x", "Not a directory")):
        assert main([*command, str(path)]) == 2
        said = capsys.readouterr().err.splitlines()
        assert said[-1] == f"xpgrad: vectors: --out is {path}, expected a folder to write to: {reason}"
        assert not any("Traceback" in line for line in said)
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / f"elu_000.{written}").mkdir()  # a file that cannot be written
    assert main([*command, str(tmp_path)]) == 2
    assert "expected a folder to write to: Is a directory" in capsys.readouterr().err
