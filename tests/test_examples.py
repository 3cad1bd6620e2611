"""The examples run, learn, and compute what they say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tagger_learns():
    before, after = load("tagger").train(150)
    assert before < 0.7
    assert after > 0.85


def test_tags_are_those_of_the_rule():
    words, tags, lengths = load("tagger").sentences(50, 9, torch.Generator().manual_seed(0))
    for sentence, answer, length in zip(words.tolist(), tags.tolist(), lengths.tolist(), strict=True):
        for t, word in enumerate(sentence):
            if t >= length:
                assert (word, answer[t]) == (0, -100)
                continue
            before = [t - s for s in range(t) if sentence[s] > word]
            behind = [s - t for s in range(t + 1, length) if sentence[s] > word]
            assert answer[t] == (min(before, default=99) < min(behind, default=99))


def test_a_classifier_described_in_onnx_learns(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    example = load("onnx_classifier")
    data = example.windows(*example.sunspots())
    model = example.classifier()
    before = example.accuracy(model, *data["test"])
    losses = example.train(model, *data["train"], steps=40)
    assert losses[-1] < 0.5 < losses[0]
    assert example.accuracy(model, *data["test"]) > max(0.75, before)
    onnx.checker.check_model(model)


def test_per_sample_clipping_learns():
    before, after = load("per_sample_clipping").train(40)
    assert before < 0.75
    assert after > 0.85


@pytest.mark.filterwarnings("ignore:::opacus", "ignore:Full backward hook is firing:UserWarning")
def test_private_training_spends_what_it_may():
    pytest.importorskip("opacus", reason="Opacus is not installed")
    found = load("private_training").train("ours", "ghost", epsilon=8.0, epochs=1)
    assert 0 < found["epsilon"] <= 8
    assert len(found["accuracy"]) == 1


@pytest.mark.parametrize("bound", [0.05, 100.0])
def test_clipped_gradients_are_those_of_a_loop(bound):
    example = load("per_sample_clipping")
    torch.manual_seed(0)
    model = example.Classifier()
    x, labels = example.series(6, torch.Generator().manual_seed(1))
    got = example.private_gradients(model, x, labels, bound=bound, noise=0.0)
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for k in range(len(x)):
        loss = torch.nn.functional.cross_entropy(model(x[k : k + 1]), labels[k : k + 1])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.stack([g.norm() for g in grads]).norm()
        for name, g in zip(total, grads, strict=True):
            total[name] += g * min(1.0, bound / float(norm))
    for name, g in got.items():
        torch.testing.assert_close(g, total[name] / len(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["tagger", "per_sample_clipping"])
def test_command(name):
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--steps", "1"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "before" in done.stdout


@pytest.mark.parametrize(("example", "module"), [("flax_lstm", "flax"), ("equinox_gru", "equinox")])
def test_layers_for_jax_learn_as_the_frameworks_own(example, module):
    pytest.importorskip(module, reason=f"{module} is not installed")
    example = load(example)
    ours, theirs = (example.train(model, 100)[0] for model in example.models())
    assert sum(ours[-10:]) < 0.7 * sum(ours[:10])
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-3


@pytest.mark.parametrize(("example", "module"), [("flax_lstm", "flax"), ("equinox_gru", "equinox")])
def test_layers_for_jax_time_nothing_but_steps(example, module, monkeypatch):
    """What JAX compiles once would fall on the model that runs first, which is ours."""
    pytest.importorskip(module, reason=f"{module} is not installed")
    jax = pytest.importorskip("jax")
    example = load(example)
    compiled, at_clock = [], []
    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: compiled.append(event) if "backend_compile" in event else None
    )
    monkeypatch.setattr(
        example.time, "perf_counter", lambda: at_clock.append(len(compiled)) or float(len(at_clock))
    )
    for model in example.models():
        at_clock.clear()
        _, seconds = example.train(model, 3)
        assert at_clock[0] > 0
        assert set(at_clock) == {at_clock[0]}
        assert seconds == 1  # the clock is read before and after each step


def test_the_wrong_gradient_of_the_tutorial_learns():
    """The page says so: a mistake that the loss shows needs no check."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: the tutorial draws").use("agg")
    curves = load("tutorials/plot_8_find_the_bug").curves
    right, wrong = curves["right"], curves["with the mistake"]
    assert max(wrong) == wrong[0] == right[0]
    assert wrong[-1] < wrong[0] / 20
    assert 1.05 < wrong[-1] / right[-1] < 1.15


@pytest.mark.parametrize(
    "name", ["minimal_gated_unit", "simple_recurrent_unit", "peephole_gru", "layer_norm_lstm"]
)
def test_own_cells_have_the_gradients_of_a_loop(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER / "cells")
    example = load(f"cells/{name}")
    compare = sys.modules["beside_a_loop"].compare
    error, _, _ = compare(example.cell, example.loop, shape=(7, 5, 6, 9), repeats=1, dtype=torch.float64)
    assert error < 1e-11
