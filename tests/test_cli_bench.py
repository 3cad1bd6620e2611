"""What `python -m xpgrad bench` measures, how it counts, and what it says where something is missing."""

import io
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import xpgrad
from xpgrad.__main__ import main
from xpgrad_bench import command as bench
from xpgrad_bench import (
    cores,
    floor,
    groups,
    implementations,
    keras_models,
    load,
    measure,
    memory,
    processes,
    timing,
    worker,
)
from xpgrad_bench.convolutions import CONVOLUTIONS, LARGE_KERNELS, TRANSPOSED, Convolution
from xpgrad_bench.elementwise import FUNCTIONS, LOSSES, Elementwise, Loss
from xpgrad_bench.implementations import pytorch
from xpgrad_bench.recurrent import OPERATORS, SHAPES, Recurrent

FOLDER = Path(__file__).parents[1] / "asv_bench"
TINY = Recurrent("gru", (3, 2, 2, 3))
TINY_CONVOLUTION = Convolution(2, 4, (6, 5), 6, 3, 2, 1, 2)


@pytest.fixture
def tiny_groups(monkeypatch):
    """Groups of one tiny work, with a peer that is there and one that may be missing."""
    found = (
        groups.Group("gru", "GRU beside NumPy", "xpgrad-numpy", (TINY,), ours=("xpgrad-numpy",), aim=1.0),
        groups.Group("jax", "GRU beside none", "jax", (TINY,), ours=("xpgrad-numpy",), what="backward"),
        groups.Group("memory", "GRU, memory", "xpgrad-numpy", (TINY,), ours=("xpgrad-numpy",), what="memory"),
    )
    monkeypatch.setattr(bench, "GROUPS", found)
    monkeypatch.setenv("XPGRAD_JIT", "0")
    return found


# --------------------------------------------------------------------------------------- the definitions


def test_the_works_are_the_agreed_ones():
    shapes = {(50, 1, 64, 64), (50, 32, 64, 64), (50, 32, 256, 256)}
    shapes |= {(100, 64, 128, 512), (35, 20, 650, 650), (200, 128, 64, 128)}
    assert set(SHAPES.values()) == shapes
    geometries = {(c.N, c.C, c.size[0], c.O, c.kernel, c.stride, c.pad) for c in CONVOLUTIONS.values()}
    assert geometries == {
        (8, 64, 56, 64, 3, 1, 1), (8, 64, 56, 256, 1, 1, 0), (8, 128, 28, 128, 3, 1, 1),
        (8, 256, 14, 256, 3, 1, 1), (8, 3, 224, 64, 7, 2, 3), (8, 128, 56, 128, 3, 2, 1),
        (8, 96, 28, 96, 3, 1, 1),
    }  # fmt: skip
    assert [c.group for c in CONVOLUTIONS.values() if c.C == 96] == [96]
    assert {c.kernel for c in LARGE_KERNELS.values()} == {31, 1025}
    assert all(c.transposed for c in TRANSPOSED.values())


def test_operations_of_a_recurrent_work_by_hand():
    """A step has the product of W and of R forward, and for each of them two backward."""
    T, N, I, H = 7, 5, 3, 2
    products = 2 * T * N * (4 * H) * (I + H)
    assert Recurrent("lstm", (T, N, I, H)).operations("backward") == 2 * products
    assert Recurrent("lstm", (T, N, I, H)).operations("step") == 3 * products
    assert Recurrent("gru", (T, N, I, H)).operations("step") == 3 * products * 3 // 4


def test_lengths_count_their_steps():
    work = Recurrent("lstm", (9, 4, 2, 3), (2, 9))
    lengths = work.sequence_lens()
    assert lengths[0] == 9
    assert all(2 <= n <= 9 for n in lengths)
    whole = Recurrent("lstm", (9, 4, 2, 3))
    assert work.operations("step") / whole.operations("step") == pytest.approx(lengths.sum() / 36)
    assert work.traffic("step") < whole.traffic("step")


@pytest.mark.parametrize("transposed", [False, True])
def test_operations_of_a_convolution_are_those_of_the_direct_sum(transposed):
    """Counted one multiplication after another: unpadded, every tap of every position meets a number."""
    work = Convolution(2, 4, (6, 5), 6, 3, 2, 0, 2, transposed=transposed)
    X, W, _ = work.shapes()
    kernel = xpgrad.conv_transpose if transposed else xpgrad.conv
    Y = kernel(np.ones(X), np.ones(W), strides=2, group=2)
    assert Y.shape == work.output()
    assert work.operations("step") == 3 * 2 * Y.sum()  # each product of ones adds one


def test_traffic_by_hand():
    assert Elementwise("relu", (10, 3), "float64").traffic("backward") == 3 * 30 * 8
    assert Loss("cross_entropy", (10, 3)).traffic("step") == 3 * 30 * 4
    work = Convolution(1, 2, (5,), 3, 3)
    assert work.traffic("backward") == 4 * (2 * 10 + 2 * 18 + 9)
    T, N, I, H = 7, 5, 3, 2
    parameters = 4 * H * (I + H + 2)
    forward = T * N * (I + 6 * H) + parameters  # X, four gates, H_all and C_all
    backward = T * N * (2 * I + 6 * H + H) + 2 * parameters
    assert Recurrent("lstm", (T, N, I, H), dtype="float64").traffic("step") == 8 * (forward + backward)


def test_the_floor_is_whatever_takes_longer():
    assert floor.floor(6e9, 1e9, 3e9, 1e9) == (2.0, "products")
    assert floor.floor(6e9, 3e9, 3e9, 1e9) == (3.0, "memory")
    assert floor.floor(0, 5e8, 3e9, 1e9) == (0.5, "memory")


@pytest.mark.parametrize(
    "work", [TINY, TINY_CONVOLUTION, Elementwise("relu", (2, 3)), Loss("cross_entropy", (2, 3)),
             Recurrent("lstm", (9, 4, 2, 3), (2, 9), "float64")],
)  # fmt: skip
def test_a_work_passes_between_processes(work):
    assert worker.decode(json.loads(json.dumps(worker.encode(work)))) == work


# ------------------------------------------------------------------- implementations do the same


def _torch():
    return pytest.importorskip("torch", reason="torch is not installed: it is the peer")


def _gradients_of_arrays(work):
    """By torch's names, in the order of torch's modules' parameters."""
    torch, operator = _torch(), OPERATORS[work.operator]
    grads = implementations.make("xpgrad-numpy", work).step()
    onnx = {name: getattr(grads, f"d{name}", None) for name in ("W", "R", "B", "P")}
    onnx = {name: a[0] for name, a in onnx.items() if a is not None}
    after = operator.attributes.get("linear_before_reset", 0)
    gates = xpgrad.convert(operator.kernel, onnx, "onnx", "torch", linear_before_reset=after, gradients=True)
    states = [getattr(grads, name) for name in ("dH0", "dC0")[: len(operator.states)]]
    named = {"X": grads.dX, **{f"state{k}": a for k, a in enumerate(states)}}
    named |= {f"{name}_l0": a for name, a in gates.items()}
    return {name: torch.from_numpy(a) for name, a in named.items()}


def _gradients_of_tensors(impl, work):
    run = implementations.make(impl, work)
    states = [f"state{k}" for k in range(len(OPERATORS[work.operator].states))]
    names = ["X", *states, *(name for name, _ in run.module.named_parameters())]
    return dict(zip(names, run.step(), strict=True))


@pytest.mark.parametrize(
    ("operator", "lengths", "dtype"),
    [
        *itertools.product(["lstm", "gru", "rnn"], [None, (1, 5)], ["float32", "float64"]),
        ("lstm-peephole", None, "float32"),
        ("gru-reset-before", None, "float32"),
    ],
)
def test_recurrent_implementations_compute_the_same(operator, lengths, dtype):
    """A benchmark of unlike things would mislead: the same weights, every gradient equal."""
    torch = _torch()
    work = Recurrent(operator, (5, 3, 4, 6), lengths, dtype)
    expected = _gradients_of_tensors("torch", work)
    assert (
        len(expected) == {"lstm": 7, "gru": 6, "rnn": 6, "lstm-peephole": 8, "gru-reset-before": 6}[operator]
    )
    for found in (_gradients_of_tensors("xpgrad-torch", work), _gradients_of_arrays(work)):
        assert set(found) == set(expected)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("peer", ["jax", "ort"])
@pytest.mark.parametrize("operator", ["lstm", "gru"])
def test_other_peers_compute_the_same(peer, operator):
    work = Recurrent(operator, (5, 3, 4, 6))
    try:
        found = implementations.make(peer, work)
    except NotImplementedError as missing:
        pytest.skip(str(missing))
    expected = implementations.make("xpgrad-numpy", work).backward()
    if peer == "ort":
        gradients = found.backward()
    else:
        names = ["dW", "dR", "dB", "dX", "dH0", "dC0"]
        gradients = dict(zip(names[: len(found.step())], found.step(), strict=True))
    assert len(gradients) == {"lstm": 6, "gru": 5}[operator]
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, getattr(expected, name), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["jax", "xpgrad-jax"])
def test_convolutions_in_jax_compute_the_same(name):
    pytest.importorskip("jax", reason="jax not installed")
    expected = implementations.make("xpgrad-numpy", TINY_CONVOLUTION).backward()
    for ours, theirs in zip(implementations.make(name, TINY_CONVOLUTION).step(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_compute_the_same(transposed):
    torch = _torch()
    work = TINY_CONVOLUTION._replace(transposed=transposed)
    expected = implementations.make("torch", work).backward()
    for impl in ("xpgrad-numpy", "xpgrad-torch", "torch", "ort"):
        try:
            run = implementations.make(impl, work)
        except NotImplementedError:
            assert impl == "ort"
            continue
        gradients = run.backward()
        found = [gradients.values()] if impl == "ort" else [gradients, run.step()]
        for each in found:
            for got, gradient in zip(each, expected, strict=True):
                torch.testing.assert_close(torch.as_tensor(got), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_activations_are_the_same(name, interpreted):
    torch = _torch()
    work = Elementwise(name, (4, 5))
    expected = implementations.make("torch", work).backward()
    runs = [implementations.make(impl, work) for impl in ("xpgrad-numpy", "xpgrad-torch")]
    found = [run.backward() for run in runs] + [runs[0].step()]
    if FUNCTIONS[name].module:
        found += [runs[1].step(), implementations.make("torch", work).step()]
    for gradient in found:
        torch.testing.assert_close(torch.as_tensor(gradient), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_losses_are_the_same(name, interpreted):
    torch = _torch()
    expected, *found = (
        torch.as_tensor(implementations.make(impl, Loss(name, (4, 5))).step())
        for impl in ("torch", "xpgrad-numpy", "xpgrad-torch")
    )
    for gradient in found:
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_every_activation_has_a_peer():
    assert set(pytorch.BACKWARDS) == set(FUNCTIONS)


def alone(code):
    """What a process of its own prints: one with gigabytes of memory spends its time elsewhere."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


def test_the_path_names_what_pytorch_calls():
    if not _torch().backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    step, backward, _ = alone("""
from xpgrad_bench import implementations
from xpgrad_bench.elementwise import Elementwise
from xpgrad_bench.implementations import pytorch
from xpgrad_bench.recurrent import Recurrent

print(pytorch.path(implementations.make("torch", Recurrent("lstm", (20, 32, 64, 64))), "step"))
print(pytorch.path(implementations.make("torch", Elementwise("relu", (64, 64))), "backward"))
""")
    assert step.startswith("oneDNN, mkldnn_rnn_layer")
    assert backward == "ATen, threshold_backward"


# ------------------------------------------------------------------------------------------- measuring


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def takes(*seconds):
        durations = itertools.cycle(seconds)

        def run():
            now[0] += next(durations)

        return run

    return takes


def test_ratio_is_ours_over_the_peers(clock):
    assert timing.ratio(clock(1.0), clock(4.0), seconds=0.0) == pytest.approx(0.25)


def test_a_turn_leaves_the_first_call_out(clock):
    assert timing.turn(clock(3.0, 1.0, 2.0, 2.0), 4.0) == [1.0, 2.0, 2.0]
    assert timing.turn(clock(3.0, 5.0), 4.0) == [5.0]


def test_a_long_call_fills_a_turn(clock):
    assert timing.turn(clock(4.0, 1.0), 4.0) == [4.0]
    assert timing.turn(clock(0.5, 1.0), 0.0) == [0.5]


def test_summary():
    times = timing.summary([5.0, 1.0, 2.0, 4.0, 3.0])
    assert times == (3.0, 2.0, 4.0, 5)
    assert times.spread == pytest.approx(2 / 3)
    assert timing.summary([2.0]) == (2.0, 2.0, 2.0, 1)


def test_turns_alternate_and_are_kept_apart():
    order = []

    class Fake:
        def __init__(self, name, seconds):
            self.name, self._seconds = name, seconds

        def ask(self, do, seconds):
            assert do == "turn"
            order.append(self.name)
            return [self._seconds]

    found = processes.times_in_turns([Fake("a", 1.0), Fake("b", 3.0)], 0.0, rounds=2)
    assert order == ["a", "b", "a", "b"]
    assert [times.median for times in found] == [1.0, 3.0]


def _burn(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what processes take")
def test_what_others_take_is_seen_and_ours_is_not():
    burner = [sys.executable, "-c", "import time\nend = time.time() + 30\nwhile time.time() < end: pass"]
    with subprocess.Popen(burner) as process:
        try:
            scheduled = Path(f"/proc/{process.pid}/schedstat")  # nanoseconds on a core
            start, before = time.perf_counter(), int(scheduled.read_text().split()[0])
            watches = load.Watch([process.pid]), load.Watch([])
            _burn(1.0)
            quiet, disturbed = (watch.others() for watch in watches)
            burned = (int(scheduled.read_text().split()[0]) - before) / 1e9
            share = burned / (time.perf_counter() - start) / os.cpu_count()
        finally:
            process.kill()
    assert disturbed - quiet == pytest.approx(share, abs=0.05)
    assert share > 0.1


def test_the_quietest_attempt_counts(monkeypatch):
    now, medians = itertools.count(), itertools.count()
    monkeypatch.setattr(load.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(load, "Watch", lambda own: SimpleNamespace(others=lambda: next(shares)))

    def attempt(patience=4.0):  # seconds; each attempt takes one
        return load.quietest(lambda: next(medians), [], patience)

    shares = iter([0.5, 0.2, 0.04, 0.0])
    assert attempt() == (2, 0.04)
    shares = iter([0.5, 0.2, 0.3, 0.4, 0.0])
    assert attempt() == (4, 0.2)
    shares = iter([None])
    assert attempt() == (7, None)
    shares = iter([0.5, 0.0])
    assert attempt(patience=0.0) == (8, 0.5)


def test_disturbed_works_are_named():
    rows = [{"work": name, "path": None, "missing": None, "others": share} for name, share in
            (("a", 0.01), ("b", 0.3), ("c", None))]  # fmt: skip
    assert bench.notes({"rows": rows}) == [
        "Other processes had a part of the cores, so no mean counts: b (30%)."
    ]


def test_a_group_says_how_far_the_cores_were_apart():
    rows = [
        {"work": "a", "path": None, "missing": None, "others": 0.0, "distance": d} for d in (131.4, None, 420)
    ]
    assert bench.notes({"rows": rows}) == ["From core to core a word took 131 to 420 ns."]
    found = cores.distance()
    several = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
    assert (found is not None and 5 < found < 1e8) if several else found is None


def test_peak_memory_is_what_a_step_adds():
    kept = []

    def small():
        np.ones(1000)

    def large():
        kept.append(np.ones(4 << 20))  # 32 MiB that stay
        np.ones(8 << 20)  # and 64 that go

    expected = (3 * 32 + 64) << 20
    assert abs(memory.peak(small, large) - expected) < 8 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the mark back")
def test_what_came_before_does_not_hide_a_step():
    peak, _ = alone("""
import numpy as np
from xpgrad_bench import memory

np.ones(32 << 20)  # 256 MiB that are gone
print(memory.peak(lambda: None, lambda: np.ones(4 << 20)))
""")
    assert 28 << 20 < int(peak) < 40 << 20


def test_best_rate_counts_two_operations_a_multiplication(monkeypatch):
    monkeypatch.setattr(floor, "PRODUCTS", ((2, 3, 4), (10, 10, 10)))
    monkeypatch.setattr(floor, "_best", lambda function, seconds: function())
    assert floor.best_rate(lambda m, k, n: lambda: 2.0 if m == 2 else 1.0) == 2000


def test_outcome_and_merging():
    def side(median):
        return {"median": median, "low": median, "high": median, "calls": 1}

    counts = {"operations": 3, "traffic": 7, "dtype": "float32", "others": 0.1}
    rows = [
        {"work": "a", "ours": side(2.0), "peer": side(4.0), "ratio": 2.0, **counts},
        {"work": "b", "ours": side(8.0), "peer": side(4.0), "ratio": 0.5, **counts},
        {"work": "c", "ours": side(4.0), "peer": None, "ratio": None, **counts},
        {"work": "d", "ours": side(1.0), "peer": side(9.0), "ratio": 9.0, **counts, "others": 0.5},
    ]
    assert measure.counted(rows[3:]) == rows[3:]
    group = measure.outcome(groups.GROUPS[0], "xpgrad-numpy", rows)
    runs = [({"float32": 1.0, "float64": 0.5}, 10.0), ({"float32": 3.0}, 7.0)]
    reports = [
        {
            "measured": f"2026-11-2{k}",
            "groups": [group if k else group | {"rows": []}],  # the last run counts
            "rates": measure.Rates(*rates)._asdict(),
            "implementations": {"jax": "JAX"} if k else {},
            "missing": {} if k else {"jax": "not installed", "ort": "not installed"},
        }
        for k, rates in enumerate(runs)
    ]
    merged = measure.merge(reports)
    assert merged["rates"] == {"products": {"float32": 3.0, "float64": 0.5}, "bandwidth": 10.0}
    assert merged["measured"] == "2026-11-21"
    assert merged["implementations"] == {"jax": "JAX"}
    assert merged["missing"] == {"ort": "not installed"}
    (found,) = merged["groups"]
    assert [(row["floor"], row["bound"]) for row in found["rows"]] == [(1.0, "products")] * 4
    assert found["ratio"] == pytest.approx(1.0)
    assert (found["lowest"], found["highest"]) == (0.5, 2.0)
    assert found["ours_to_floor"] == pytest.approx(4.0)
    assert found["peer_to_floor"] == pytest.approx(4.0)
    json.dumps(found)


def test_the_groups_name_what_exists():
    for group in groups.GROUPS:
        assert group.peer in implementations.MODULES
        assert set(group.ours) <= set(implementations.OURS)
        assert group.works
        assert group.what in ("step", "backward", "memory")
    titles = [group.title for group in groups.GROUPS]
    assert len(titles) == len(set(titles))


def test_quick_takes_the_quickest():
    [work] = measure.works_of(groups.GROUPS[0], quick=True)
    assert work.shape == (50, 1, 64, 64)
    assert len(measure.works_of(groups.GROUPS[0], quick=False)) == len(SHAPES)


# -------------------------------------------------------------------------------------------- a worker


def test_a_worker_answers_with_results_and_reasons(interpreted):
    requests = [
        {"do": "describe"},
        {"do": "prepare", "work": worker.encode(TINY), "what": "backward"},
        {"do": "turn", "seconds": 0.0},
        {"do": "prepare", "work": worker.encode(TINY._replace(operator="no such")), "what": "step"},
    ]
    answers = io.StringIO()
    worker.serve("xpgrad-numpy", io.StringIO("\n".join(map(json.dumps, requests))), answers)
    described, prepared, turned, failed = map(json.loads, answers.getvalue().splitlines())
    assert described["result"].startswith(f"NumPy {np.__version__}")
    assert prepared == {"result": None}
    assert len(turned["result"]) == 1
    assert turned["result"][0] > 0
    assert "KeyError: 'no such'" in failed["error"]


@pytest.mark.parametrize(("name", "module"), [("torch", "torch"), ("jax", "jax"), ("ort", "onnxruntime")])
def test_a_missing_library_is_a_reason(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    for request in ({"do": "describe"}, {"do": "prepare", "work": worker.encode(TINY), "what": "step"}):
        assert worker.answer(worker.Session(name), request) == {"missing": f"{module} is not installed"}


@pytest.mark.parametrize("name", ["keras-torch", "xpgrad-keras-torch"])
def test_a_missing_backend_of_keras_is_a_reason(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    said = worker.answer(worker.Session(name), {"do": "describe"})["missing"]
    assert said.startswith("Keras does not run: ")


def test_groups_of_what_is_not_installed_are_left_out(tiny_groups):
    first, second, _ = tiny_groups
    absent = second._replace(ours=("xpgrad-jax",))

    class Absent:
        def __init__(self, *names):
            self.absent = {*names}

        def get(self, name):
            return None

    assert bench._installed([first, absent], Absent("xpgrad-jax")) == [first]
    assert bench._installed([absent], Absent("xpgrad-jax")) == [absent]  # which says why
    assert bench._installed([first, absent], Absent()) == [first, absent]


def test_steps_of_keras_train_the_same_model():
    pytest.importorskip("keras", reason="Keras is not installed")
    work = keras_models.KerasStep("addition, sequence to sequence")
    assert work.traffic("step") > 0
    # 7 steps whose input has no gradient, 4 whose input has one; the first state has none
    products = 7 * (2 * 12 + 3 * 128) - 128 + 4 * (3 * 128 + 3 * 128) - 128
    assert work.operations("step") == 2 * 4 * 128 * 32 * products
    assert worker.decode(worker.encode(work)) == work
    theirs, ours = (implementations.make(name, work) for name in ("keras-torch", "xpgrad-keras-torch"))
    assert type(theirs.model.layers[0]) is not type(ours.model.layers[0])
    losses = [[one.step() for _ in range(3)] for one in (theirs, ours)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    with pytest.raises(NotImplementedError, match="not measured in keras-torch"):
        implementations.make("keras-torch", TINY)


def test_keras_has_its_backend_from_the_name():
    environments = [
        implementations.environment(name) for name in ("xpgrad-keras-jax", "keras-torch", "torch")
    ]
    assert [given.get("KERAS_BACKEND") for given in environments] == ["jax", "torch", None]


def test_an_old_version_without_a_kernel_is_a_reason(monkeypatch):
    monkeypatch.delattr(xpgrad, "gru")
    with pytest.raises(NotImplementedError, match="this xpgrad has no gru"):
        implementations.make("xpgrad-numpy", TINY)


@pytest.mark.parametrize("work", [TINY._replace(lengths=(1, 3)), TINY_CONVOLUTION._replace(transposed=True)])
def test_what_a_peer_does_not_have_is_a_reason(work):
    pytest.importorskip("jax", reason="jax is not installed: the reason would be another")
    with pytest.raises(NotImplementedError, match="not measured in JAX"):
        implementations.make("jax", work)


def test_a_worker_that_dies_says_what_it_printed():
    ended = processes.Worker("no such implementation")
    with pytest.raises(RuntimeError, match="KeyError"):
        ended.ask("describe")
    ended._process.kill()
    ended._process.wait()
    with pytest.raises(RuntimeError, match="no such implementation ended while it was asked for turn"):
        ended.ask("turn", seconds=0)
    ended.close()


# ----------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    "arguments", [["bench", "--quick", "--only", "lstm"], ["bench"], ["check", "--peers"]]
)
def test_an_installed_package_says_where_the_tools_are(arguments, tmp_path):
    """As from a wheel: the package without the rest of the repository."""
    shutil.copytree(Path(xpgrad.__file__).parent, tmp_path / "lib" / "xpgrad")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "xpgrad", *arguments], cwd=tmp_path / "lib",
        env=os.environ | {"PYTHONPATH": str(tmp_path / "lib")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    tool = "check --peers" if "--peers" in arguments else "bench"
    said = f"xpgrad: {tool} is a tool of xpgrad's repository, in its folder asv_bench: run it in a checkout "
    assert done.stderr == f"{said}that was installed by 'pip install -e .'\n"
    assert (done.returncode, done.stdout) == (2, "")


def test_a_wheel_has_no_tools():
    pyproject = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    packages = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == [
        "src/xpgrad",
        *(f"adapters/xpgrad_{name}" for name in ("jax", "keras", "mlx", "onnx", "torch")),
    ]
    assert Path(bench.__file__) == FOLDER / "xpgrad_bench" / "command.py"


def test_a_checkout_shows_the_tools_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "--help"])
    out = capsys.readouterr().out
    assert "--python PEER=INTERPRETER" in out
    assert "Each implementation runs in its own process" in out


def test_the_command(tiny_groups, capsys, tmp_path):
    file = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--json", str(file), "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(file.read_text())
    assert "measuring" in err
    assert report["xpgrad"] == xpgrad.__version__
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", report["measured"])
    assert report["machine"]["threads"] == 1
    first, second, third = report["groups"]
    assert [group["family"] for group in report["groups"]] == ["gru", "jax", "memory"]
    (row,) = first["rows"]
    assert row["ratio"] == pytest.approx(row["peer"]["median"] / row["ours"]["median"])
    rate, bandwidth = report["rates"]["products"]["float32"], report["rates"]["bandwidth"]
    assert row["floor"] == pytest.approx(max(row["operations"] / rate, row["traffic"] / bandwidth))
    assert first["ours_to_floor"] == pytest.approx(row["ours"]["median"] / row["floor"])
    assert math.isfinite(second["rows"][0]["ours"]["median"])
    assert third["rows"][0]["peer"]["median"] < 64 << 20
    assert "Each work ran once" in out
    for title in ("GRU beside NumPy", "GRU beside none", "GRU, memory", "best matrix product"):
        assert title in out
    if "jax" in report["missing"]:
        assert second["ratio"] is None
        assert "left out: jax is not installed" in out
        assert "No peer: jax is not installed." in out


def test_the_plot(tiny_groups, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "bench.png"
    assert main(["bench", "--quick", "--only", "gru", "--plot", str(file)]) == 0
    assert file.stat().st_size > 10_000


def test_without_matplotlib_nothing_is_measured(tiny_groups, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(bench, "_measure", None)
    assert main(["bench", "--quick", "--plot", str(tmp_path / "bench.png")]) == 2
    assert "--plot needs matplotlib: pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_folder_that_is_not_there(option, tmp_path, capsys):
    assert main(["bench", option, str(tmp_path / "none" / "file")]) == 2
    assert f"{option} is" in capsys.readouterr().err


def test_ours_that_fails_is_a_failure(tiny_groups, capsys, monkeypatch):
    broken = tiny_groups[0]._replace(works=(TINY._replace(operator="no such"),))
    monkeypatch.setattr(bench, "GROUPS", (broken,))
    monkeypatch.setattr(measure, "rates", lambda *_: measure.Rates({"float32": 1.0}, 1.0))
    monkeypatch.setattr(Recurrent, "operations", lambda *_: 1)
    monkeypatch.setattr(Recurrent, "traffic", lambda *_: 1)
    assert main(["bench", "--quick"]) == 1
    assert "KeyError: 'no such'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "invalid choice"),
        (["--threads", "0"], "is not from 1 to"),
        (["--threads", "two"], "'two' is no whole number"),
        (["--seconds", "-1"], "is not a number of seconds"),
        (["--seconds", "long"], "'long' is not a number of seconds"),
        (["--python", "mars=/bin/sh"], "is none of torch, ort, jax"),
        (["--python", "jax=/no/such"], "is no file"),
    ],
)
def test_arguments_that_do_not_parse(arguments, says, capsys):
    with pytest.raises(SystemExit):
        main(["bench", *arguments])
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_files_that_cannot_be_written_are_refused_before_measuring(option, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: --plot is refused for that")
    for path, words in (
        (tmp_path, "expected a file: it is a folder"),
        (tmp_path / "none" / "x.png", "expected a path in a folder that exists"),
        (tmp_path / "x.nonsense", "expected a file that ends with one of"),
    ):
        if option == "--plot" or path.suffix != ".nonsense":
            assert main(["bench", option, str(path)]) == 2
            assert f"xpgrad: bench: {option} is {path}, {words}" in capsys.readouterr().err


def test_nothing_selected(capsys):
    assert main(["bench", "--only", "gru", "--peer", "ort"]) == 1
    assert "no group" in capsys.readouterr().err


def test_another_interpreter(tiny_groups, tmp_path):
    """The definitions reach an interpreter that is started elsewhere."""
    with processes.Workers({"xpgrad-numpy": sys.executable}) as workers:
        assert workers.get("xpgrad-numpy") is not None
        assert workers.described["xpgrad-numpy"].startswith("NumPy")
        assert workers.get("jax") is None or workers.described["jax"].startswith("JAX")


def test_a_worker_that_has_ended_has_a_successor():
    """As the system ends one whose memory runs out."""
    with processes.Workers() as workers:
        first = workers.get("xpgrad-numpy")
        os.kill(first.pid, signal.SIGTERM)
        with pytest.raises(RuntimeError, match="xpgrad-numpy ended while it was asked for describe"):
            first.ask("describe")
        second = workers.get("xpgrad-numpy")
        assert second is not first
        assert second.ask("describe").startswith("NumPy")


def test_a_profile_is_of_few_steps():
    long = Recurrent("gru", (1000, 8, 4, 4), (100, 1000))
    assert long.brief() == Recurrent("gru", (50, 8, 4, 4), (10, 50))
    assert Recurrent("gru", (7, 8, 4, 4)).brief() == Recurrent("gru", (7, 8, 4, 4))
