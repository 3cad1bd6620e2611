"""``python -m xpgrad demo``: the model, both sides of the comparison, and the command's ways to end."""

import io
import itertools
import sys

import numpy as np
import pytest

from xpgrad.__main__ import main
from xpgrad.cli import console, demo
from xpgrad.cli.demos import text


@pytest.fixture(scope="module")
def corpus():
    return text.read_corpus()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def without(monkeypatch, *modules):
    for name in [m for m in sys.modules if m.split(".")[0] in modules] + list(modules):
        monkeypatch.setitem(sys.modules, name, None)


# ---------------------------------------------------------------------------------------------- the model


def test_the_text_is_plain_english(corpus):
    joined = "".join(corpus.alphabet[k] for k in corpus.train)
    assert len(joined) > 200_000
    assert joined.isascii()
    assert "\n\n" not in joined
    assert "  " not in joined
    assert joined.count(" the ") > 1000
    assert 2.5 < corpus.unigram_entropy < np.log(len(corpus.alphabet))


def test_batches_read_every_stream_in_order_and_start_over(corpus):
    windows = (len(corpus.train) // text.BATCH - 1) // text.TIME
    read = list(text.batches(corpus.train, windows + 1))
    for (inputs, targets, _), (following, _, _) in itertools.pairwise(read[:windows]):
        assert inputs.shape == (text.TIME, text.BATCH)
        np.testing.assert_array_equal(targets[:-1], inputs[1:])
        np.testing.assert_array_equal(targets[-1], following[0])
    assert [fresh for _, _, fresh in read] == [True] + [False] * (windows - 1) + [True]
    np.testing.assert_array_equal(read[-1][0], read[0][0])


def test_every_gradient_of_the_model_matches_differences(monkeypatch):
    monkeypatch.setattr(text, "DTYPE", np.float64)
    rng = np.random.default_rng(5)
    p = text.initial_parameters(7, 5, seed=1)
    inputs, targets = rng.integers(0, 7, (2, 4, 3))
    state = (rng.standard_normal((1, 3, 5)), rng.standard_normal((1, 3, 5)))
    _, grads, _ = text.loss_and_gradients(p, inputs, targets, state)
    assert set(grads) == set(p)
    for name, value in p.items():
        direction = rng.standard_normal(value.shape)
        losses = [
            text.loss_and_gradients({**p, name: value + h * direction}, inputs, targets, state)[0]
            for h in (1e-5, -1e-5)
        ]
        numeric = (losses[0] - losses[1]) / 2e-5
        assert np.vdot(grads[name], direction) == pytest.approx(numeric, rel=1e-6, abs=1e-9), name


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(text, "BATCH", 4)
    monkeypatch.setattr(text, "TIME", 12)


def test_the_curves_part_where_one_gradient_is_slightly_wrong(corpus, small_batches, monkeypatch):
    """The comparison sees an error of 1 % in one gradient within a few steps: it is no formality."""
    pytest.importorskip("torch")
    p = text.initial_parameters(len(corpus.alphabet), 24, seed=3)
    start = {name: value.copy() for name, value in p.items()}
    real = text.lstm_grad
    monkeypatch.setattr(
        text, "lstm_grad", lambda *a, **k: (d := real(*a, **k))._replace(dR=d.dR * np.float32(1.01))
    )
    ours, _ = text.train_numpy(p, corpus.train, 40)
    torchs, _ = text.train_torch(start, corpus.train, 40)
    assert np.abs(np.subtract(ours, torchs)).max() > 3e-6
    assert ours[0] == pytest.approx(torchs[0], abs=1e-6)


def test_the_curves_agree_and_fall(corpus, small_batches):
    pytest.importorskip("torch")
    p = text.initial_parameters(len(corpus.alphabet), 24, seed=3)
    start = {name: value.copy() for name, value in p.items()}
    ours, _ = text.train_numpy(p, corpus.train, 40)
    torchs, _ = text.train_torch(start, corpus.train, 40)
    assert np.abs(np.subtract(ours, torchs)).max() < 3e-6
    assert ours[-1] < ours[0] - 0.5


def test_writing_is_reproducible(corpus):
    p = text.initial_parameters(len(corpus.alphabet), 8, seed=0)
    first = text.write(p, corpus.alphabet, 30, seed=4)
    assert len(first) == 30
    assert first == text.write(p, corpus.alphabet, 30, seed=4)
    assert first != text.write(p, corpus.alphabet, 30, seed=5)


# -------------------------------------------------------------------------------------------- the command

SHORT = ["demo", "--steps", "3", "--hidden", "16"]


def test_with_torch_and_matplotlib(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    plot = tmp_path / "curve.png"
    assert main([*SHORT, "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert str(plot) in out
    assert "torch.nn.LSTM" in out
    assert "allowed: below 1e-04" in out


def test_without_torch(monkeypatch, capsys):
    without(monkeypatch, "torch")
    assert main([*SHORT, "text"]) == 0
    out, err = capsys.readouterr()
    assert "torch is not installed" in err
    assert "Largest difference" not in out


def test_no_torch_says_nothing_about_torch(capsys):
    assert main([*SHORT, "--no-torch"]) == 0
    out, err = capsys.readouterr()
    assert "torch.nn" not in out
    assert "torch is not" not in err


def test_without_matplotlib_the_curve_is_text(monkeypatch, tmp_path, capsys):
    without(monkeypatch, "matplotlib")
    assert main([*SHORT, "--no-torch"]) == 0
    out = capsys.readouterr().out
    assert "*" in out
    assert "xpgrad[demo]" in out
    assert list(tmp_path.iterdir()) == []


def test_a_plot_that_cannot_be_written_becomes_text(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([*SHORT, "--no-torch", "--plot", str(tmp_path / "curve.nonsense")]) == 0
    out, err = capsys.readouterr()
    assert "cannot write the plot" in err
    assert "letter frequencies" in out


def test_a_plot_in_no_folder_is_refused_before_training(tmp_path, capsys):
    assert main(["demo", "--plot", str(tmp_path / "none" / "x.png")]) == 2
    assert "expected a path in a folder that exists" in capsys.readouterr().err


def test_different_curves_end_with_status_1(monkeypatch, capsys):
    pytest.importorskip("torch")
    real = text.train_torch

    def off(*args, **kwargs):
        losses, seconds = real(*args, **kwargs)
        return [*losses[:-1], losses[-1] + 2e-4], seconds

    monkeypatch.setattr(text, "train_torch", off)
    assert main(SHORT) == 1
    out, err = capsys.readouterr()
    assert "DISAGREE" in out
    assert "at step 3" in out
    assert "differ" in err


def test_a_nan_is_a_difference():
    runs = [text.Training("a", [1.0, np.nan], [1, 1]), text.Training("b", [1.0, 1.0], [1, 1])]
    assert text._compare(runs) == 1


def test_interrupted(monkeypatch, capsys):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(text, "train_numpy", interrupt)
    assert main([*SHORT, "--no-torch"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_python_without_the_text(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pydoc_data", None)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert main([*SHORT, "--no-torch"]) == 1
    assert "pydoc_data" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--steps", "0"],
        ["demo", "--steps", "x"],
        ["demo", "--seed", "-1"],
        ["demo", "poems"],
        ["nothing"],
        ["demo", "--speed", "3"],
        ["--verbose"],
    ],
)
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_help_and_version(capsys):
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in ("demo", "check", "info"))
    for arguments in (["--help"], ["--version"], *([name, "--help"] for name in ("demo", "check", "info"))):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
    assert "--no-torch" in capsys.readouterr().out
    assert demo.DEMOS == ("text",)


# -------------------------------------------------------------------------------------------- the console


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_plain_table_lines_up(capsys):
    console.table("Title", ("name", "n"), [("a[b]", 1), ("cc", "20")], footer="end")
    assert capsys.readouterr().out.splitlines() == [
        "Title",
        "name   n",
        "----  --",
        "a[b]   1",
        "cc    20",
        "end",
    ]


@pytest.mark.parametrize("rich", [True, False])
def test_tables_on_a_terminal(monkeypatch, rich):
    if rich:
        pytest.importorskip("rich")
    else:
        without(monkeypatch, "rich")
    monkeypatch.setattr(sys, "stdout", Terminal())
    console.table("Title", ("name", "n"), [("a[b]", 1)], footer="the end [/]")
    shown = sys.stdout.getvalue()
    assert all(part in shown for part in ("Title", "a[b]", "the end [/]"))


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("items", [[], [1, 2, 3]])
def test_progress_yields_everything_on_a_terminal(monkeypatch, rich, items):
    if rich:
        pytest.importorskip("rich")
    else:
        without(monkeypatch, "rich")
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = console.progress(items, "work")
    seen = []
    for item in bar:
        seen.append(item)
        bar.note(f"loss {item}.5")
    assert seen == items
    if items:
        shown = sys.stderr.getvalue()
        assert "work" in shown
        assert "3/3" in shown
        assert "loss 3.5" in shown


def test_progress_in_a_log_prints_few_lines(capsys):
    bar = console.progress(iter(range(1000)), "work", total=1000)
    for k in bar:
        bar.note(f"k {k}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1] == "work [########################] 1000/1000  k 999"


def test_progress_of_unknown_length(capsys):
    assert list(console.progress(iter("ab"), "work")) == ["a", "b"]
    assert capsys.readouterr().err == "work 2\n"


def test_curve():
    drawn = console.curve([4.0, 3.0, 2.0, 1.0], label="loss", reference=2.0, height=4).splitlines()
    assert drawn[0] == "loss"
    assert [line[10:] for line in drawn[1:5]] == ["*", " *", "--*-", "   *"]
    assert drawn[1].startswith("   4.000")
    assert "no finite value" in console.curve([np.nan], label="loss")
    assert console.curve([2.0] * 500, label="flat").count("*") == 64
