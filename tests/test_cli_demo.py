"""``python -m xpgrad demo``: the model, both sides of the comparison, and the command's ways to end."""

import importlib.metadata
import io
import itertools
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from xpgrad.__main__ import main
from xpgrad.cli import console, demo
from xpgrad.cli.demos import digits, series, text, training


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
    ours = text.train_numpy(p, corpus.train, 40).losses
    torchs = text.train_torch(start, corpus.train, 40).losses
    assert np.abs(np.subtract(ours, torchs)).max() > 3e-6
    assert ours[0] == pytest.approx(torchs[0], abs=1e-6)


def test_the_curves_agree_and_fall(corpus, small_batches):
    pytest.importorskip("torch")
    p = text.initial_parameters(len(corpus.alphabet), 24, seed=3)
    start = {name: value.copy() for name, value in p.items()}
    ours = text.train_numpy(p, corpus.train, 40).losses
    torchs = text.train_torch(start, corpus.train, 40).losses
    assert np.abs(np.subtract(ours, torchs)).max() < 3e-6
    assert ours[-1] < ours[0] - 0.5


def test_training_through_jax_agrees(corpus, small_batches):
    pytest.importorskip("jax", reason="jax not installed")
    p = text.initial_parameters(len(corpus.alphabet), 24, seed=3)
    other = {name: value.copy() for name, value in p.items()}
    ours, through_jax = (
        f(q, corpus.train, 40).losses for f, q in ((text.train_numpy, p), (text.train_jax, other))
    )
    assert np.abs(np.subtract(ours, through_jax)).max() < 3e-6
    for name, value in p.items():
        np.testing.assert_allclose(other[name], value, atol=1e-4)


def test_writing_is_reproducible(corpus):
    p = text.initial_parameters(len(corpus.alphabet), 8, seed=0)
    first = text.write(p, corpus.alphabet, 30, seed=4)
    assert len(first) == 30
    assert first == text.write(p, corpus.alphabet, 30, seed=4)
    assert first != text.write(p, corpus.alphabet, 30, seed=5)


# ------------------------------------------------------------------------------------------- the series


@pytest.fixture(scope="module")
def numbers():
    return series.read_sunspots().numbers


def test_the_sunspot_numbers(numbers):
    years = series.read_sunspots().years
    np.testing.assert_array_equal(years, np.arange(1700, 2009))
    known = {1700: 5.0, 1778: 154.4, 1810: 0.0, 1957: 190.2, 2008: 2.9}
    assert {year: numbers[year - 1700] for year in known} == known
    assert numbers.max() == 190.2
    assert numbers.min() == 0


def test_cycles_run_from_minimum_to_minimum(numbers):
    found = series.cycles(numbers)
    lengths = [part.stop - part.start for part in found]
    assert len(found) == 27
    assert (min(lengths), max(lengths)) == (9, 14)
    # years of minima as astronomers have them
    minima = [1700 + part.start for part in found]
    assert {1755, 1766, 1775, 1784, 1798, 1810, 1823, 1833, 1843, 1856, 1867, 1878, 1889, 1901} <= set(minima)
    assert minima[-9:] == [1913, 1923, 1933, 1944, 1954, 1964, 1976, 1986, 1996]
    assert all(a.stop == b.start for a, b in itertools.pairwise(found))


def test_ties_are_the_first_years_minimum():
    n = np.array([9, 8, 7, 6, 5, 2, 2, 8, 9, 9, 9, 9, 8, 7, 3, 8.0])
    assert series.cycles(n) == [slice(5, 14)]


def test_a_batch_holds_this_year_and_the_next(numbers):
    chosen = series.cycles(numbers)[6:9]  # 9, 14 and 12 years
    batch = series.batch_of(numbers, chosen)
    assert batch.X.shape == (14, 3, 1)
    np.testing.assert_array_equal(batch.lengths, [9, 14, 12])
    np.testing.assert_array_equal(np.isfinite(batch.X[..., 0]), batch.valid)
    np.testing.assert_array_equal(np.isfinite(batch.targets), batch.valid)
    np.testing.assert_array_equal(batch.X[1:9, 0, 0], batch.targets[:8, 0])
    assert batch.targets[8, 0] == numbers[chosen[1].start] / series.SCALE  # the next cycle's minimum


def test_every_gradient_of_the_series_model_matches_differences(numbers):
    rng = np.random.default_rng(7)
    p = series.initial_parameters(5, seed=1)
    p |= {name: rng.standard_normal(p[name].shape) for name in ("B", "b")}
    batch = series.batch_of(numbers, series.cycles(numbers)[5:8])
    _, grads = series.loss_and_gradients(p, batch)
    assert set(grads) == set(p)
    for name, value in p.items():
        assert grads[name].shape == value.shape
        direction = rng.standard_normal(value.shape)
        losses = [
            series.loss_and_gradients({**p, name: value + h * direction}, batch)[0] for h in (1e-5, -1e-5)
        ]
        numeric = (losses[0] - losses[1]) / 2e-5
        assert np.vdot(grads[name], direction) == pytest.approx(numeric, rel=1e-6, abs=1e-9), name


def _train_series(train, numbers, steps=30):
    p = series.initial_parameters(12, seed=3)
    stream = series.batches(numbers, series.cycles(numbers)[: -series.HELD_OUT], steps, 3)
    return train(p, stream, steps).losses


def test_the_series_curves_agree(numbers):
    pytest.importorskip("torch")
    ours, torchs = (_train_series(f, numbers) for f in (series.train_numpy, series.train_torch))
    np.testing.assert_allclose(ours, torchs, rtol=0, atol=1e-12)
    assert np.mean(ours[-5:]) < 0.8 * np.mean(ours[:5])


def test_the_series_curves_part_where_one_gradient_is_slightly_wrong(numbers, monkeypatch):
    pytest.importorskip("torch")
    real = series.gru_grad
    monkeypatch.setattr(series, "gru_grad", lambda *a, **k: (d := real(*a, **k))._replace(dR=d.dR * 1.01))
    ours, torchs = (_train_series(f, numbers) for f in (series.train_numpy, series.train_torch))
    assert np.abs(np.subtract(ours, torchs)).max() > 1e-9


def test_a_trained_gru_beats_the_repeated_number(numbers):
    known = series.cycles(numbers)
    fitted, held_out = known[: -series.HELD_OUT], known[-series.HELD_OUT :]
    p = series.initial_parameters(16, seed=0)
    series.train_numpy(p, series.batches(numbers, fitted, 150, 0), 150)
    at = np.concatenate([np.arange(part.start, part.stop) for part in held_out])
    forecast = series.forecast_gru(p, numbers, held_out)
    repeated = series.rmse(series.Forecast("", numbers[at]), numbers[at + 1])
    assert forecast.values.shape == at.shape
    assert series.rmse(forecast, numbers[at + 1]) < 0.8 * repeated


def test_the_linear_model_finds_an_autoregression():
    truth = np.random.default_rng(0).uniform(10, 90, series.LAGS + 60)
    for k in range(series.LAGS, len(truth)):  # it looks back over all the years that the model does
        truth[k] = 0.9 * truth[k - 1] - 0.8 * truth[k - series.LAGS] + 90
    at = np.arange(55, 60)
    np.testing.assert_allclose(series.forecast_linear(truth, 50, at).values, truth[at + 1], rtol=1e-8)
    changed = np.where(np.arange(len(truth)) > 50, 0.0, truth)  # nothing after the end is fitted
    at = np.array([50])
    np.testing.assert_allclose(series.forecast_linear(changed, 50, at).values, truth[at + 1], rtol=1e-8)


# ------------------------------------------------------------------------------------------- the digits


@pytest.fixture(scope="module")
def pictures():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: it has the digits")
    return digits.read_digits(0)


def test_the_digits(pictures):
    known, held_out = pictures
    assert known.pictures.shape == (1437, 1, 8, 8)
    assert held_out.pictures.shape == (360, 1, 8, 8)
    everything = np.concatenate([known.pictures, held_out.pictures])
    assert everything.min() == 0
    assert everything.max() == 1
    labels = np.concatenate([known.labels, held_out.labels])
    np.testing.assert_array_equal(np.bincount(labels), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    zero = everything[labels == 0].mean(axis=0)[0]  # a ring
    assert min(zero[3, 2], zero[3, 5], zero[0, 3], zero[7, 3]) > 0.4 > 0.2 > zero[3:5, 3:5].max()


def test_another_seed_holds_out_other_digits(pictures):
    held_out, other = pictures[1], digits.read_digits(1)[1]
    assert not np.array_equal(held_out.pictures, other.pictures)


def test_batches_go_through_all_digits(pictures):
    known = pictures[0]
    per_round = len(known.labels) // digits.BATCH
    stream = list(digits.batches(known, 2 * per_round, 3))
    first, second = stream[:per_round], stream[per_round:]
    for half in (first, second):
        seen = np.concatenate([batch.pictures for batch in half]).reshape(-1, 64)
        assert len(seen) == per_round * digits.BATCH
        assert len(np.unique(seen, axis=0)) == len(seen)
    assert not np.array_equal(first[0].pictures, second[0].pictures)
    known_rows = {(*picture.ravel(), label) for picture, label in zip(*known, strict=True)}
    assert all((*p.ravel(), q) in known_rows for p, q in zip(*first[0], strict=True))


def test_every_gradient_of_the_digits_model_matches_differences():
    rng = np.random.default_rng(9)
    p = digits.initial_parameters(3, seed=1)
    p |= {name: rng.standard_normal(p[name].shape) / 4 for name in ("B0", "B1", "B2")}
    batch = digits.Digits(rng.uniform(size=(5, 1, 8, 8)), rng.integers(0, 10, 5))
    loss, grads = digits.loss_and_gradients(p, batch)
    assert isinstance(loss, float)
    assert set(grads) == set(p)
    for name, value in p.items():
        assert grads[name].shape == value.shape
        direction = rng.standard_normal(value.shape)
        losses = [
            digits.loss_and_gradients({**p, name: value + h * direction}, batch)[0] for h in (1e-6, -1e-6)
        ]
        numeric = (losses[0] - losses[1]) / 2e-6
        assert np.vdot(grads[name], direction) == pytest.approx(numeric, rel=1e-6, abs=1e-9), name


def _train_digits(train, pictures, steps=40):
    p = digits.initial_parameters(4, seed=3)
    return train(p, digits.batches(pictures[0], steps, 3), steps).losses


def test_the_digits_curves_agree(pictures):
    pytest.importorskip("torch")
    ours, torchs = (_train_digits(f, pictures) for f in (digits.train_numpy, digits.train_torch))
    np.testing.assert_allclose(ours, torchs, rtol=0, atol=1e-12)
    assert np.mean(ours[-5:]) < 0.8 * np.mean(ours[:5])


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_digits_curves_part_where_one_gradient_is_slightly_wrong(layer, pictures, monkeypatch):
    pytest.importorskip("torch")
    real, calls = digits.conv_grad, itertools.cycle((2, 1, 0))

    def wrong(*args, **kwargs):
        d = real(*args, **kwargs)
        return d._replace(dW=d.dW * 1.01) if next(calls) == layer else d

    monkeypatch.setattr(digits, "conv_grad", wrong)
    ours, torchs = (_train_digits(f, pictures) for f in (digits.train_numpy, digits.train_torch))
    assert np.abs(np.subtract(ours, torchs)).max() > 1e-6


def test_a_trained_network_reads_most_digits(pictures):
    known, held_out = pictures
    p = digits.initial_parameters(8, seed=0)
    before = digits.answer(p, held_out).accuracy
    digits.train_numpy(p, digits.batches(known, 150, 0), 150)
    answers = digits.answer(p, held_out)
    assert before < 0.4
    assert answers.accuracy > 0.95
    np.testing.assert_array_equal(answers.right, answers.guesses == held_out.labels)


def test_the_plot_has_a_row_for_mistakes():
    wrong = [3, 50, 51, 52, 53, 54, 55, 56, 57]
    answers = digits.Answers(np.zeros(60, int), ~np.isin(np.arange(60), wrong))
    shown = digits._shown(answers)
    rows = [shown[k : k + digits.COLUMNS] for k in range(0, len(shown), digits.COLUMNS)]
    assert rows[0] == [0, 1, 2, 4, 5, 6, 7]
    assert rows[-1] == wrong[: digits.COLUMNS]
    assert len(rows) == digits.ROWS
    few = digits._shown(digits.Answers(np.zeros(3, int), np.array([True, False, True])))
    assert few[:3] == [0, 2, None]
    assert few[-digits.COLUMNS :] == [1, *[None] * (digits.COLUMNS - 1)]


def test_digits_in_characters(monkeypatch):
    monkeypatch.setattr(digits, "DRAWN", 2)
    pictures = np.zeros((3, 1, 2, 8))
    pictures[0, 0, 0, 0], pictures[1, 0, 1, 3] = 1, 0.5
    answers = digits.Answers(np.array([7, 1, 0]), np.array([True, False, True]))
    drawn = digits._draw(digits.Digits(pictures, np.array([7, 4, 0])), answers)
    assert drawn.splitlines()[1:] == ["@", " " * 14 + "=", "   7       1 (a 4)"]


def test_the_digits_demo_without_scikit_learn(monkeypatch, capsys):
    without(monkeypatch, "sklearn")
    assert main([*SHORT, "digits", "--no-torch"]) == 1
    out, err = capsys.readouterr()
    assert "scikit-learn" in err
    assert "pip install scikit-learn" in err
    assert out == ""


# ------------------------------------------------------------------------------------------- the command

SHORT = ["demo", "--steps", "3", "--hidden", "16", "--no-jax"]
DEMOS = pytest.mark.parametrize("name", demo.DEMOS)
AS_TEXT = {
    "text": "letter frequencies alone)",
    "series": "2008    2.9 |",
    "digits": "what it takes them for:",
}


@pytest.fixture(autouse=True)
def data_is_there(request):
    """The digits come with scikit-learn."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("name") == "digits":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed: it has the digits")


@DEMOS
def test_with_torch_and_matplotlib(name, tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    plot = tmp_path / "curve.png"
    assert main([*SHORT, name, "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert str(plot) in out
    assert "torch.nn." in out
    assert "allowed: below 1e-04" in out


def test_the_plain_command_is_the_text_demo(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([*SHORT, "--no-torch"]) == 0
    assert "Python's manual" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["xpgrad-demo-text.png"]


def test_the_text_demo_trains_through_jax(tmp_path, capsys):
    pytest.importorskip("jax", reason="jax not installed")
    pytest.importorskip("torch")
    assert main([*SHORT[:-1], "text"]) == 0
    out = capsys.readouterr().out
    assert "xpgrad_jax (jit)" in out
    assert "Largest difference between the 3 loss curves" in out


@DEMOS
def test_without_torch(name, monkeypatch, capsys):
    without(monkeypatch, "torch")
    assert main([*SHORT, name]) == 0
    out, err = capsys.readouterr()
    assert "torch is not installed" in err
    assert "Largest difference" not in out


@DEMOS
def test_no_torch_says_nothing_about_torch(name, capsys):
    assert main([*SHORT, name, "--no-torch"]) == 0
    out, err = capsys.readouterr()
    assert "torch.nn" not in out
    assert "torch is not" not in err


@DEMOS
def test_without_matplotlib_the_plot_is_text(name, monkeypatch, tmp_path, capsys):
    without(monkeypatch, "matplotlib")
    assert main([*SHORT, name, "--no-torch"]) == 0
    out = capsys.readouterr().out
    assert AS_TEXT[name] in out
    assert "*" in out
    assert "pip install matplotlib" in out
    assert list(tmp_path.iterdir()) == []


def test_forecast_and_truth_in_characters():
    drawn = series._draw(np.array([1, 2, 3]), np.array([0.0, 50.0, 100.0]), np.array([50.0, 50.0, -5.0]), 11)
    assert drawn.splitlines()[1:] == [
        "1    0.0 |o    *",
        "2   50.0 |     @",
        "3  100.0 |*         o",
    ]


@DEMOS
def test_a_plot_that_cannot_be_written_becomes_text(name, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([*SHORT, name, "--no-torch", "--plot", str(tmp_path / "curve.nonsense")]) == 0
    out, err = capsys.readouterr()
    assert "cannot write the plot" in err
    assert AS_TEXT[name] in out


def test_a_plot_in_no_folder_is_refused_before_training(tmp_path, capsys):
    assert main(["demo", "--plot", str(tmp_path / "none" / "x.png")]) == 2
    assert "expected a path in a folder that exists" in capsys.readouterr().err
    assert main(["demo", "--plot", str(tmp_path)]) == 2
    assert "expected a file: it is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("module", [text, series, digits])
def test_different_curves_end_with_status_1(module, monkeypatch, capsys):
    pytest.importorskip("torch")
    if module is digits:
        pytest.importorskip("sklearn", reason="scikit-learn is not installed: it has the digits")
    real = module.train_torch

    def off(*args):
        run = real(*args)
        return run._replace(losses=[*run.losses[:-1], run.losses[-1] + 2e-4])

    monkeypatch.setattr(module, "train_torch", off)
    assert main([*SHORT, module.__name__.rpartition(".")[2]]) == 1
    out, err = capsys.readouterr()
    assert "DISAGREE" in out
    assert "at step 3" in out
    assert "differ" in err


def test_a_nan_is_a_difference():
    runs = [training.Training("a", [1.0, np.nan], [1, 1]), training.Training("b", [1.0, 1.0], [1, 1])]
    assert training.compare(runs) == 1


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
    assert tuple(demo.DEMOS) == ("text", "series", "digits")


def test_the_script_is_the_module_s_command(monkeypatch, capsys):
    """`xpgrad` beside `python -m xpgrad`, each with its own name in its help."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    entry = importlib.metadata.EntryPoint("xpgrad", project["scripts"]["xpgrad"], "console_scripts")
    assert entry.load() is main
    for program, name in (("/venv/bin/xpgrad", "xpgrad"), ("/lib/xpgrad/__main__.py", "python -m xpgrad")):
        monkeypatch.setattr(sys, "argv", [program, "check", "--help"])
        with pytest.raises(SystemExit, match="0"):
            main()
        assert capsys.readouterr().out.startswith(f"usage: {name} check ")


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
def test_a_table_of_many_columns_is_readable_at_80(monkeypatch, rich):
    """Words stay whole, and no line is longer than the terminal."""
    if rich:
        pytest.importorskip("rich")
    else:
        without(monkeypatch, "rich")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", Terminal())
    names = ["kernel", "option", "namespace", "reference", "differences", "autograd", "torch.nn", "allowed"]
    row = ["thresholded_relu", "plain, of all sizes", "numpy, standard engine", *["1.0e-10"] * 5]
    console.table("Worst error " * 8, names, [row] * 2, footer="allowed under differences " * 5)
    shown = sys.stdout.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert "thresholded_relu, plain, of all sizes, numpy, standard engine," in " ".join(shown.split())
    assert "differences 1.0e-10" in " ".join(shown.split())


def test_a_hint_on_a_terminal_is_as_wide_as_that(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", Terminal())
    console.paragraph("- " + "many words " * 9, indent="    ")
    first, *others = sys.stdout.getvalue().splitlines()
    assert max(map(len, [first, *others])) <= 40
    assert all(line.startswith(("    many", "    words")) for line in others)


def test_the_demo_tells_how_much_of_the_time_was_the_first_step(capsys):
    training.show_training([training.Training("ours", [3.0, 2.0, 1.0], [4.5, 0.1, 0.1])], "Loss: none.")
    out = capsys.readouterr().out
    assert re.search(r"ours +3\.0000 +1\.0000 +100\.0 ms +4\.5 s +4\.7 s", out)
    assert "The first step compiles, or loads what an earlier run has compiled." in out


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("items", [[], [1, 2, 3]])
def test_progress_yields_everything_on_a_terminal(monkeypatch, rich, items):
    if rich:
        pytest.importorskip("rich")
    else:
        without(monkeypatch, "rich")
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = console.Progress(items, "work")
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
    bar = console.Progress(iter(range(1000)), "work", total=1000)
    for k in bar:
        bar.note(f"k {k}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1] == "work [########################] 1000/1000  k 999"


def test_progress_of_unknown_length(capsys):
    assert list(console.Progress(iter("ab"), "work")) == ["a", "b"]
    assert capsys.readouterr().err == "work 2\n"


def test_curve():
    drawn = console.curve([4.0, 3.0, 2.0, 1.0], label="loss", reference=2.0, height=4).splitlines()
    assert drawn[0] == "loss"
    assert [line[10:] for line in drawn[1:5]] == ["*", " *", "--*-", "   *"]
    assert drawn[1].startswith("   4.000")
    assert "no finite value" in console.curve([np.nan], label="loss")
    assert console.curve([2.0] * 500, label="flat").count("*") == 64
