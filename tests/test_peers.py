"""``python -m xpgrad check --peers``: the references, the exchange with other interpreters, and the page."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from xpgrad.__main__ import main
from xpgrad._cases.cell_operators import CELL_OPERATORS
from xpgrad.cli import check, onnx_node
from xpgrad_peers import command as command  # before a test takes the peers away
from xpgrad_peers import matrix, page, references
from xpgrad_peers.matrix import Entry, Measured

# Without compiling: the kernels are held against their references by their own tests.
pytestmark = pytest.mark.usefixtures("interpreted")

PAGE = Path(__file__).parents[1] / "docs" / "correctness.md"
FEW = ["lstm, plain", "lstm, peepholes", "conv, SAME_UPPER", "mish"]


def of(name: str) -> matrix.Peer:
    return next(peer for peer in matrix.PEERS if peer.key == name)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other library."""
    monkeypatch.setattr(matrix, "PEERS", ())


MANY = ["lstm", "gru_cell", "rnn", "conv", "softmax", "gelu", "prelu", "binary", "hard_", "scaled"]


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ([*FEW, "gru_cell, plain", "prelu", "binary"], 10),
        pytest.param(MANY, 100, marks=pytest.mark.exhaustive),
    ],
)
def test_ours_is_right(words: list[str], most: int, alone: None, interpreted: None) -> None:
    """The kernels have their own tests: few of them are measured in the long suite."""
    entries = matrix.measure(check.KERNELS, {}, words).entries
    assert len(entries) > most
    for entry in entries:
        assert entry.status == "right", entry
        assert entry.error < (1e-12 if entry.peer == "float64" else 1e-5), entry


def test_references_are_those_of_the_operators_definitions() -> None:
    """A complex step through a function with a known slope."""
    x = np.asarray([-1.5, 0.25, 2.0])
    weight = np.asarray([1.0, -2.0, 0.5])
    outputs, found = references.gradients(lambda X: {"Y": X**3}, {"X": x}, {"Y": weight})
    assert np.allclose(outputs["Y"], x**3, rtol=1e-15)
    assert np.allclose(found["X"], 3 * x**2 * weight, rtol=1e-15)
    for name in ("gelu", "hard_swish", "softplus", "softsign", "elu"):
        function = references.POINTWISE[name]
        _, found = references.gradients(lambda X, f=function: {"Y": f(X)}, {"X": x}, {"Y": weight})
        differences = (function(x + 1e-6 + 0j) - function(x - 1e-6 + 0j)).real / 2e-6
        assert np.allclose(found["X"], weight * differences, rtol=1e-7), name


def imported(path: Path) -> set[str]:
    """The modules that a file imports; a module beside it with a dot in front."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return modules | {"." * n.level + str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}


def test_references_share_no_code_with_kernels() -> None:
    assert imported(Path(references.__file__)) == {"__future__", "math", "collections.abc", "typing", "numpy"}


def test_callers_need_their_peer_and_numpy_alone() -> None:
    """They run in interpreters that have no xpgrad."""
    folder = Path(matrix.__file__).parent / "callers"
    peers = {"call_keras.py": {"keras", "tensorflow"}, "call_onnx_runtime.py": {"onnxruntime"}}
    peers |= {f"call_{name}.py": {name} for name in ("jax", "thinc")}
    peers |= {"call_pytorch.py": {"torch"}, "call_onnx_reference.py": {"onnx"}}
    peers |= {"onnx_model.py": {"onnx_node"}}  # a file of xpgrad that imports no xpgrad
    for path in folder.glob("*.py"):
        for module in imported(path):
            known = {*sys.stdlib_module_names, "numpy", *peers.get(path.name, ())}
            assert module.startswith(".") or module.partition(".")[0] in known, f"{path.name}: {module}"
    assert imported(Path(onnx_node.__file__)) == {"__future__", "collections.abc", "typing", "numpy", "onnx"}


def test_every_kernel_has_a_definition() -> None:
    """All but those that no peer has: they are compared with loops, and with xlstm's cell."""
    without = {kernel.name for kernel in CELL_OPERATORS}
    assert {job.kernel.name for job in matrix.jobs(check.KERNELS)} == {
        k.name for k in check.KERNELS
    } - without


def test_a_references_gradient_of_each_sample() -> None:
    """Their sum is the batch's; a sample's is that of a batch in which it is alone."""
    job = next(j for j in matrix.jobs(check.KERNELS, ["gru, per_sample, reset after"]))
    forward = matrix._forward_of("gru", job.case)
    assert forward is not None
    arguments, cotangents = dict(job.case.arguments), dict(job.case.cotangents)
    _, each = references.gradients(forward, arguments, cotangents, job.case.sample_axes)
    _, whole = references.gradients(forward, arguments, cotangents)
    for name in ("W", "R", "B"):
        assert each[name].shape == (arguments["X"].shape[1], *arguments[name].shape)
        assert np.allclose(each[name].sum(0), whole[name], rtol=0, atol=1e-13)
        assert np.abs(each[name][1]).max() > 0
    assert np.array_equal(each["initial_h"], whole["initial_h"])
    only = {k: np.where(np.arange(3).reshape(-1, 1) == 1, v, 0) for k, v in cotangents.items()}
    _, alone = references.gradients(forward, arguments, only)
    assert np.allclose(each["R"][1], alone["R"], rtol=0, atol=1e-13)


def test_padding_holds_what_it_is_asked_to_hold() -> None:
    """In the input and in every cotangent over time."""
    [job] = matrix.jobs(check.KERNELS, ["lstm, cell states"])
    lengths = job.case.integers["sequence_lens"]
    for array in (job.case.arguments["X"], *(job.case.cotangents[k] for k in ("H_all", "C_all"))):
        assert np.isfinite(array).all()
        for n, length in enumerate(lengths):
            assert (np.take(array, n, axis=-2)[length:] == 2.5).all()


def test_cases_with_lengths_are_three() -> None:
    named = {job.option: job.case for job in matrix.jobs(check.KERNELS, ["lstm, lengths"])}
    assert set(named) == {"lengths", "lengths, NaN padding", "lengths, one of 0", "lengths, bidirectional"}
    assert np.isfinite(named["lengths"].arguments["X"]).all()
    assert np.isnan(named["lengths, NaN padding"].arguments["X"]).any()
    assert 0 in named["lengths, one of 0"].integers["sequence_lens"]
    assert 0 not in named["lengths"].integers["sequence_lens"]


def entries_of(peer: str, *only: str) -> dict[str, Entry]:
    matrix_entries = matrix.measure(check.KERNELS, {}, list(only)).entries
    return {f"{e.kernel}, {e.option}": e for e in matrix_entries if e.peer == peer}


def test_the_reference_evaluator_of_onnx_ignores_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    monkeypatch.setattr(matrix, "PEERS", (of("onnx_reference"),))
    found = entries_of("onnx_reference", "lstm, plain", "lstm, lengths", "lstm, clip", "mish", "log_sigmoid")
    assert found["lstm, plain"].status == "right"
    assert found["lstm, lengths"].status == found["lstm, clip"].status == "wrong"
    assert math.isinf(found["lstm, lengths, NaN padding"].error)
    assert found["mish, plain"].status == "right"
    assert found["log_sigmoid, plain"].status == "absent"


def test_pytorch_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(matrix, "PEERS", (of("pytorch"),))
    found = entries_of("pytorch", *FEW, "lstm, lengths", "conv, pads", "lstm, sample_weight")
    status = {name: entry.status for name, entry in found.items()}
    assert status["lstm, plain"] == status["conv, pads of each end"] == status["mish, plain"] == "right"
    assert status["lstm, lengths"] == status["lstm, lengths, NaN padding"] == "right"
    assert status["lstm, peepholes"] == status["conv, SAME_UPPER"] == "absent"
    assert status["lstm, sample_weight"] == "absent"
    assert found["lstm, lengths, one of 0"].status == "refused"
    assert "greater than 0" in found["lstm, lengths, one of 0"].message


def test_pytorch_has_cells_losses_and_gradients_of_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(matrix, "PEERS", (of("pytorch"),))
    found = entries_of("pytorch", "_cell, ", "rnn, ", "conv, per_sample", "cross_entropy", "prelu", "hard_")
    status = {name: entry.status for name, entry in found.items()}
    refused = {name for name, one in status.items() if one == "refused"}
    assert refused == {"rnn, lengths, one of 0", "rnn, no initial state, lengths, one of 0"}
    assert "wrong" not in status.values()
    for name in ("lstm_cell, plain", "gru_cell, plain, reset after", "rnn_cell, relu", "rnn, bidirectional"):
        assert "gradient of B" in found[name].errors, name
    for name in ("conv, per_sample", "prelu, a slope per channel", "hard_sigmoid, frameworks"):
        assert status[name] == "right", name
    for name in ("ignore_index, weights", "probabilities, everything", "label smoothing"):
        assert status[f"softmax_cross_entropy, {name}"] == "right", name
    for name in ("rnn, clip", "gru_cell, plain, reset before", "prelu, all slopes", "lstm_cell, peepholes"):
        assert status[name] == "absent", name


def test_a_mistake_of_a_caller_is_no_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It ends the run; what the peer raises is its answer."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    peers = Path(matrix.__file__).parent
    shutil.copytree(peers / "callers", tmp_path / "callers")
    caller = tmp_path / "callers" / "call_onnx_reference.py"
    monkeypatch.setattr(matrix, "__file__", str(tmp_path / "matrix.py"))
    chosen = matrix.jobs(check.KERNELS, ["tanh, plain"])
    caller.write_text("def onnx_reference(job):\n    raise ValueError('no such thing')\n")
    report, _ = matrix._in_child(sys.executable, of("onnx_reference"), chosen)
    assert [(job["status"], job["message"]) for job in report["jobs"]] == [("refused", "no such thing")] * 3
    caller.write_text("def onnx_reference(job):\n    return job.nothing\n")
    with pytest.raises(RuntimeError, match=r"onnx.reference in .* failed: AttributeError: .*nothing"):
        matrix._in_child(sys.executable, of("onnx_reference"), chosen)


def test_a_peer_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "PEERS", (matrix.Peer("thinc", "thinc", "no_such_module"),))
    assert matrix.interpreter(matrix.PEERS[0], {}) is None
    if importlib.util.find_spec("thinc") is None:
        assert (
            main(["check", "--peers", "--option", "tanh, plain", "--interpreter", f"thinc={sys.executable}"])
            == 1
        )
        assert "thinc in" in capsys.readouterr().err


def test_interpreters_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPGRAD_PEER_KERAS", "/somewhere/python")
    assert matrix.interpreter(of("keras"), {}) == "/somewhere/python"
    assert matrix.interpreter(of("keras"), {"keras": "/else"}) == "/else"


def test_the_command_prints_and_writes(
    alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.md"
    assert main(["check", "--peers", "--option", "tanh", "--write", str(target)]) == 0
    assert "xpgrad, float32" in capsys.readouterr().out
    assert "| tanh |" in target.read_text(encoding="utf-8")
    assert main(["check", "--peers", "--option", "tanh", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {entry["peer"] for entry in report["entries"]} == {"float64", "float32"}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--write", "x.md"], 2, "--write goes with --peers"),
        (["--interpreter", "jax=python"], 2, "--interpreter goes with --peers"),
        (["--peers", "--interpreter", "caffe=python"], 1, "--interpreter has caffe, expected pytorch,"),
        (["--peers", "--interpreter", "jax"], 1, "--interpreter has one without a path, expected pytorch,"),
    ],
)
def test_bad_options(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == status
    assert message in capsys.readouterr().err


def test_a_wrong_entry_without_a_program_is_told() -> None:
    known = Entry("lstm", "peepholes", "onnx_runtime", "wrong", {"gradient of W": 0.3})
    unknown = Entry("mish", "plain", "keras", "wrong", {"Y": 0.3})
    refused = Entry("gru", "clip", "onnx_runtime", "refused", {}, "a | b")
    absent = Entry("gru", "clip", "keras", "absent", {}, "clip")
    versions = {"xpgrad": ["xpgrad 0"], "onnx_runtime": ["onnxruntime 1"], "keras": ["keras 3"]}
    assert page.without_reproducer([known, unknown, refused]) == [unknown]
    text = page.page(Measured([known, unknown, refused, absent], versions), {"onnx_runtime": sys.executable})
    assert "| ONNX Runtime Training | 0 | **1** | 1 |" in text
    assert "- [ONNX Runtime Training: LSTMGrad with peepholes is truncated](#onnx-runtime-training-" in text
    assert "| peepholes | **0.3** |" in text
    assert "- keras, mish, plain: off by 0.3; no program yet" in text
    assert r"| ONNX Runtime Training | gru | clip | a \| b |" in text
    assert "not installed, so not measured: PyTorch," in text


@pytest.mark.parametrize("reproducer", page.REPRODUCERS, ids=lambda r: r.file)
def test_programs_need_their_peer_and_numpy_alone(reproducer: page.Reproducer) -> None:
    modules = {"os", "numpy", of(reproducer.peer).module}
    modules |= {"onnx_runtime": {"onnx"}, "keras": {"keras"}}.get(reproducer.peer, set())
    tree = ast.parse(reproducer.code)
    for found in ast.walk(tree):
        names = [a.name for a in found.names] if isinstance(found, ast.Import) else []
        names += [str(found.module)] if isinstance(found, ast.ImportFrom) else []
        assert {name.split(".")[0] for name in names} <= modules
    assert len(reproducer.code.splitlines()) < 60


# --- the page in the documentation --------------------------------------------------------------------------


def table(title: str) -> dict[str, dict[str, str]]:
    """{option: {column: cell}}."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n\n")[2].partition("\n\n")[0]
    head, _, *rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def test_the_page_shows_what_is_known() -> None:
    lstm, convolution, cells = table("LSTM"), table("Convolution"), table("Cells")
    assert lstm["peepholes, truncated"]["ONNX Runtime Training"].endswith("e-07")
    assert cells["gru_cell, plain, reset after"]["PyTorch"].endswith("e-07")
    assert table("RNN")["clip"]["onnx.reference"].startswith("**")
    assert table("Losses")["softmax_cross_entropy, weights"]["ONNX Runtime Training"].endswith("e-08")
    assert convolution["per_sample"]["JAX"].endswith("e-08")
    assert convolution["groups"]["Keras on TensorFlow"].endswith("e-07")
    assert lstm["plain"]["ONNX Runtime Training"].endswith("e-07")
    assert lstm["peepholes"]["ONNX Runtime Training"].startswith("**")
    assert convolution["SAME_UPPER"]["ONNX Runtime Training"].startswith("**")
    assert lstm["lengths"]["onnx.reference"].startswith("**")
    assert lstm["no initial state"]["thinc"].startswith("**")
    assert lstm["reverse"]["ONNX Runtime Training"] == "refuses"
    assert lstm["projection"]["PyTorch"].endswith("e-07")
    for name in ("projection, masks", "cell states", "per_sample, norm"):
        assert float(lstm[name]["xpgrad, float64"]) < 1e-14
        assert {lstm[name][peer.title] for peer in matrix.PEERS} == {"-"}
    assert float(table("GRU")["masks, reset after"]["xpgrad, float64"]) < 1e-14


def test_the_page_begins_with_a_summary_of_its_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    counts: dict[str, Counter[str]] = {}
    for title in page._FAMILIES:
        for row in table(title).values():
            for library, cell in row.items():
                kind = "wrong" if cell.startswith("**") else cell if cell in ("-", "refuses") else "right"
                counts.setdefault(library, Counter())[kind] += 1
    head = text.partition("## How it is measured")[0]
    for library, found in counts.items():
        wrong = f"**{found['wrong']}**" if found["wrong"] else "0"
        assert f"| {library} | {found['right']} | {wrong} | {found['refuses']} |" in head
    assert len(head.splitlines()) < 40
    assert head.count("\n- [") == text.count("\n### ")


def test_every_wrong_entry_of_the_page_has_a_program() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "no program yet" not in text
    assert "Traceback" not in text
    for title in re.findall(r"^## (.*)", text, re.M):
        if title not in page._FAMILIES:
            continue
        for row in table(title).values():
            assert not row["xpgrad, float64"].startswith("**")
            assert not row["xpgrad, float32"].startswith("**")
