"""Programs for calls of ever new sizes: they come from templates, and are what would have been recorded."""

from __future__ import annotations

import ctypes
import gc
import inspect
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import xpgrad
from xpgrad._calls import families, new_sizes, plans
from xpgrad._conv import winograd
from xpgrad.engine.compiled import machine
from xpgrad.engine.images import in_place
from xpgrad.engine.process import sharing
from xpgrad.engine.process.settings import jit_enabled
from xpgrad.engine.process.team import OpenMPTeam
from xpgrad.engine.programs import arena, recorded_images
from xpgrad.engine.programs.instructions import Block
from xpgrad.engine.programs.program import Draft, Program, SymbolicParts
from xpgrad.engine.programs.shares import Share
from xpgrad.engine.programs.template import Template
from xpgrad.engine.symbols import SizeSymbol, Trace, are_same, larger, of_numbers, smaller, value_of
from xpgrad.testing import to_numpy

pytestmark = pytest.mark.skipif(not jit_enabled(), reason="programs need llvmlite")

# the weights' shape, attributes, sizes of an image: at least, at most
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], int, int]] = {
    "winograd": ((16, 16, 3, 3), {"pads": 1}, 8, 70),
    "winograd, strides": ((32, 32, 4, 4), {"pads": 1, "strides": 2}, 8, 60),
    "winograd, dilations": ((16, 16, 3, 3), {"pads": 2, "dilations": 2, "method": "winograd"}, 9, 40),
    "rows of taps": ((24, 24, 7), {"pads": 3}, 20, 900),
    "pointwise": ((32, 48, 1, 1), {}, 4, 60),
    "patches": ((24, 16, 3, 3), {"strides": 2, "pads": 1, "method": "patches"}, 4, 50),
    "clipped": ((16, 16, 3, 3), {"pads": 6, "dilations": 6, "method": "clipped"}, 9, 30),
    "shifted": ((16, 8, 5, 3), {"pads": 1, "method": "shifted"}, 6, 30),
    "taps, not all inputs": ((12, 12, 3, 3), {"strides": 2, "method": "taps"}, 4, 60),
    "taps": ((12, 12, 3, 3), {"pads": 1, "strides": 2, "method": "taps"}, 4, 60),
    "depthwise": ((32, 1, 5, 5), {"pads": 2, "group": 32}, 4, 60),
    "few channels": ((8, 3, 7, 7), {"pads": 3, "strides": 2}, 10, 80),
    "groups": ((32, 16, 3, 3), {"pads": 1, "group": 2}, 6, 50),
    "volumes": ((16, 16, 3, 3, 3), {"pads": 1}, 4, 20),
}
KERNELS = {
    "conv": (xpgrad.conv, xpgrad.conv_grad),
    "conv_transpose": (xpgrad.conv_transpose, xpgrad.conv_transpose_grad),
}


@pytest.fixture(autouse=True)
def no_programs():
    """Each test begins without programs."""
    families.known.clear()
    yield
    families.known.clear()


@pytest.fixture(params=[1, 3])
def team(request):
    """Tensors, and so many threads."""
    torch = pytest.importorskip("torch", reason="its team of threads can be started by compiled code")
    threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield torch.from_numpy
    torch.set_num_threads(threads)


class Recordings:
    """Compares each program for new sizes with programs that are recorded for these sizes, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.recorded = 0
        plan, run, varying = new_sizes.Templates.plan, Program.run, dict[Template, set[int]]()
        records: dict[Any, Any] = {}

        def compared(own: Any, call: new_sizes.CallSizes, asked: Any) -> Any:
            recorded: list[bool] = []
            record = records[own] = asked or records.get(own)

            def counted(layouts: Any, has_symbols: bool) -> Any:
                recorded.append(has_symbols)
                return record(layouts, has_symbols)

            found = plan(own, call, asked and counted)
            if found is None and asked is None:  # the same call follows, and may record
                return None
            alone = record(call.layouts(call.sizes), False)
            self.calls += 1
            self.recorded += len(recorded)
            assert (found is None) == (alone is None)
            if found is None:
                return None
            if recorded[-1:] == [False]:
                assert_alike(found.program, alone.program)
            else:
                symbols = {*own._varying}
                if own._known:  # the first template was just made, or used
                    first = varying.setdefault(own._known[0][0], symbols)
                    symbols = symbols if recorded else first
                if self.calls % 2:
                    assert_alike(found.program, recorded_with_symbols(call, record, symbols))
                assert found.program.arena_bytes <= 1.25 * alone.program.arena_bytes + 100_000
            found.program.alone = alone.program
            return found

        def run_twice(own: Program, addresses: list[int], fresh: Any) -> list[Any]:
            """A run, compared with a run of the program that was recorded without symbols."""

            def zeros(*asked: Any) -> tuple[Any, int]:  # nobody writes what is behind the sequences' ends
                result, address = fresh(*asked)
                result[...] = 0
                return result, address

            alone = getattr(own, "alone", None)
            expected = run(alone.for_steps(own._steps), [*addresses], zeros) if alone else None
            results = run(own, addresses, zeros)
            for a, b in zip(results, expected or results, strict=True):
                np.testing.assert_array_equal(a, b)
            return results

        monkeypatch.setattr(new_sizes.Templates, "plan", compared)
        monkeypatch.setattr(Program, "run", run_twice)


def recorded_with_symbols(call: new_sizes.CallSizes, record: Any, varying: set[int]) -> Program:
    """The program for a call's sizes, of which these are symbols."""
    trace = Trace()
    symbols = [trace.size(size) for size in call.sizes]
    sizes = [one if place in varying else int(one) for place, one in enumerate(symbols)]
    program = record(call.layouts(sizes), True).program
    trace.clear()
    return program


def assert_alike(found: Program, alone: Program) -> None:
    """Compare two programs. Addresses within the arena, and of memory that one of them keeps, may differ."""
    for name in ("_sizes", "_shapes", "begin", "end", "_first", "_rest", "_by_python", "count"):
        assert getattr(found, name) == getattr(alone, name), name
    for name in ("where", "memory"):
        np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))
    assert is_alike(found._kept, alone._kept)
    other = np.flatnonzero(found.code != alone.code)
    arena = found.count + sum(one is not None for one in found._sizes)
    other = other[~np.isin(other, found.where[found.memory == arena])]
    assert np.minimum(found.code[other], alone.code[other]).min(initial=1 << 40) >= 1 << 40
    np.testing.assert_array_equal(
        found._links, np.stack([found.where, found.memory, found.code[found.where]])
    )


def is_alike(own: Any, other: Any) -> bool:
    """Whether memory that programs keep is the same, or holds the same numbers."""
    if isinstance(own, tuple):
        return all(map(is_alike, own, other))
    if isinstance(own, np.ndarray):
        return np.array_equal(own, other)
    return own is other or (isinstance(own, ctypes.Array) and [*own] == [*other])


def step(as_array: Any, rng: np.random.Generator, name: str, case: str, batch: int, size: Any, **more: Any):
    """The output and the gradients of a call with random arrays of these sizes."""
    weights, attributes, *_ = CASES[case]
    forward, backward = KERNELS[name]
    group = attributes.get("group", 1)
    channels = weights[0] if name == "conv_transpose" else weights[1] * group
    W = as_array(rng.normal(size=weights).astype(np.float32))
    X = as_array(rng.normal(size=(batch, channels, *size)).astype(np.float32))
    Y = forward(X, W, **attributes)
    dY = as_array(rng.normal(size=tuple(Y.shape)).astype(np.float32))
    return (Y, *backward(dY, X, W, **attributes, **more))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("case", CASES)
def test_programs_are_the_recorded_ones(case, name, team, rng, monkeypatch):
    recordings = Recordings(monkeypatch)
    weights, _, least, most = CASES[case]
    rank = len(weights) - 2
    for images in (0, 2):  # more of them
        begin, batch = rng.integers(least, most, rank), int(rng.integers(1, 5))
        for number in range(6):
            size = begin + rng.integers(0, 4, rank)
            step(team, rng, name, case, batch + images * (number // 3), size)
    assert recordings.recorded < recordings.calls


@pytest.mark.parametrize("case", ["winograd", "taps", "taps, not all inputs", "patches", "few channels"])
def test_sizes_on_both_sides_of_thresholds(case, team, rng, monkeypatch):
    """Work for one thread and for several; images one by one and together."""
    recordings = Recordings(monkeypatch)
    for _ in range(24):
        step(team, rng, "conv", case, int(rng.integers(1, 3)), rng.integers(8, rng.choice([12, 70]), 2))
    assert recordings.recorded < recordings.calls


@pytest.mark.parametrize("more", [{"per_sample": True}, {"per_sample": "norm"}, {"wrt": ["W"]}])
def test_options_of_gradients(more, team, rng, monkeypatch):
    recordings = Recordings(monkeypatch)
    for number in range(12):
        step(team, rng, "conv", "winograd", 2 + number // 8, rng.integers(20, 26, 2), **more)
    assert recordings.recorded < recordings.calls


def test_layouts_of_other_orders_are_kinds_of_their_own(team, rng, monkeypatch):
    """Images whose channels come last, and cotangents without memory for some axes."""
    recordings = Recordings(monkeypatch)
    W = team(rng.normal(size=(8, 8, 3, 3)))
    for _ in range(8):
        height, width = rng.integers(6, 40, 2)
        last = team(rng.normal(size=(2, height, width, 8))).permute(0, 3, 1, 2)
        xpgrad.conv_grad(team(rng.normal(size=())).expand(2, 8, height, width), last, W, pads=1)
        every = team(rng.normal(size=(2, 8, height, 2 * width)))[..., ::2]  # not contiguous in any order
        xpgrad.conv(every, W, pads=1)
        xpgrad.conv(last, W, pads=1)
        whole = team(rng.normal(size=(2, 24, height, width)))
        xpgrad.conv_grad(whole[:, 4:12], whole[:, 16:], W, pads=1)
        xpgrad.conv(last.contiguous(), W, pads=1)
    assert recordings.recorded < recordings.calls


def test_many_sizes_need_few_recordings(rng, monkeypatch):
    recordings = Recordings(monkeypatch)
    for _ in range(40):
        step(np.asarray, rng, "conv", "winograd", 2, rng.integers(20, 60, 2))
    assert recordings.calls == 80
    assert recordings.recorded <= 16


@pytest.mark.parametrize("team", [1, 2, 3], indirect=True)
@pytest.mark.parametrize("case", ["winograd", "taps", "patches"])
def test_many_batches_of_images_need_few_recordings(case, team, rng, monkeypatch):
    """Whether images remain, beside equal blocks or for all threads, needs no recording of its own."""
    recordings = Recordings(monkeypatch)
    for batch in rng.permutation(np.arange(40, 70))[:16]:
        step(team, rng, "conv", case, int(batch), (20, 20))
    assert recordings.calls == 32
    assert recordings.recorded <= 8


@pytest.mark.parametrize("team", [1, 2, 3], indirect=True)
@pytest.mark.parametrize("case", ["winograd", "patches", "shifted", "clipped", "volumes"])
def test_the_number_of_blocks_may_vary(case, team, rng, monkeypatch):
    """One block and many, for each thread, with and without smaller blocks and images that remain."""
    monkeypatch.setattr(sharing, "OWN_IMAGES", 1)
    weights, attributes, least, _ = CASES[case]
    monkeypatch.setattr(recorded_images, "BLOCK_ELEMENTS", 30_000)
    monkeypatch.setattr(winograd, "_FEW_IMAGES", 100)
    monkeypatch.setitem(
        CASES, case, (weights, attributes | {"method": case.replace("volumes", "winograd")}, 0, 0)
    )
    recordings = Recordings(monkeypatch)
    for batch in (12, 15, 18, 21, 24, 27, *rng.integers(1, 60, 14)):
        step(team, rng, "conv", case, int(batch), [least] * (len(weights) - 2))
    assert recordings.recorded < recordings.calls * 2 / 3


@pytest.mark.parametrize("team", [1, 2, 3], indirect=True)
@pytest.mark.parametrize("kept", [3_000, 9_000, 30_000])
@pytest.mark.parametrize("case", ["winograd", "volumes"])
def test_kernels_that_need_much_memory(case, kept, team, rng, monkeypatch):
    """Too large ones come in parts; threads compute a block together if blocks of their own do not fit."""
    monkeypatch.setattr(sharing, "OWN_IMAGES", 1)
    monkeypatch.setattr(recorded_images, "BLOCK_ELEMENTS", 1000)
    monkeypatch.setattr(in_place, "BAND", 1000)
    for name, number in {"KEPT": kept, "PART": 2, "LARGE_PART": kept // 8, "LARGE_KERNELS": 100}.items():
        monkeypatch.setattr(winograd, f"_{name}", number)
    monkeypatch.setattr(winograd, "_FEW_IMAGES", 100)
    weights, attributes, least, _ = CASES[case]
    monkeypatch.setitem(CASES, case, (weights, attributes | {"method": "winograd"}, 0, 0))
    Recordings(monkeypatch)  # compares programs with recorded ones
    for batch, more in zip(rng.integers(1, 9, 5), rng.integers(0, 9, 5), strict=True):
        step(team, rng, "conv", case, int(batch), [least + int(more)] * (len(weights) - 2))


def test_the_same_call_gives_the_same_bits(rng):
    """After calls of other sizes as in a process without any."""
    sizes = rng.integers(9, 40, (9, 2))
    seeds = [np.random.default_rng(number) for number in range(9)]
    results = [
        step(np.asarray, seed, "conv", "groups", 2, size) for seed, size in zip(seeds, sizes, strict=True)
    ]
    for number, (size, found) in enumerate(zip(sizes, results, strict=True)):
        families.known.clear()
        alone = step(np.asarray, np.random.default_rng(number), "conv", "groups", 2, size)
        for a, b in zip(found, alone, strict=True):
            np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------ sizes of a batch

GATES = {"lstm": 4, "gru": 3, "rnn": 1, "layer_norm_lstm": 4, "slstm": 4, "augru": 3}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reverse, batch first": {"direction": "reverse", "layout": 1},
    "both directions": {"direction": "bidirectional"},
}


def recurrent_step(as_array: Any, rng: np.random.Generator, name: str, T: int, N: int, **options: Any) -> Any:
    """The outputs and gradients of a sequence operator; with `has_lengths` sequences are uneven."""
    I, H, rows = 6, 16, GATES[name] * 16
    D = 2 if options.get("direction") == "bidirectional" else 1
    shapes = {"W": (D, rows, I), "R": (D, rows, H), "B": (D, (1 if name == "slstm" else 2) * rows)}
    if name == "layer_norm_lstm":
        shapes |= {"gamma": (D, 2, rows), "beta": (D, 2, rows), "gamma_c": (D, H), "beta_c": (D, H)}
    is_first = options.get("layout") == 1
    shapes["X"] = (N, T, I) if is_first else (T, N, I)
    if name == "augru":
        shapes["attention"] = (*shapes["X"][:2], 1)
    if options.pop("has_states", False):
        shapes["initial_h"] = (N, D, H) if is_first else (D, N, H)
    arrays = {key: as_array(rng.normal(size=shape).astype(np.float32)) for key, shape in shapes.items()}
    if options.pop("has_lengths", False):
        arrays["sequence_lens"] = rng.integers(0, T + 1, N).tolist()
    out, pullback = xpgrad.vjp(getattr(xpgrad, name), **arrays, **options)
    seeds = [as_array(rng.normal(size=tuple(y.shape)).astype(np.float32)) for y in (out.H_all, out.H_t)]
    return (out.H_all, *pullback(grad_H_all=seeds[0], grad_H_t=seeds[1]))


@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", GATES)
def test_programs_for_other_batches(name, options, has_lengths, team, rng, monkeypatch):
    recordings = Recordings(monkeypatch)
    more = OPTIONS[options] | {"has_lengths": has_lengths}
    for number, N in enumerate((33, 34, 35, 17, 18, 15, 1, 9, 8, 2)):
        T = int(rng.integers(11, 20))  # of three classes
        recurrent_step(team, rng, name, T, N, **more, has_states=number in (3, 7))
    assert recordings.recorded < recordings.calls


OWN_STEPS: dict[str, tuple[dict[str, Any], bool, dict[str, Any]]] = {  # options, lengths, of the gradient
    "resets": ({"reset": 0.2}, False, {}),
    "resets, lengths": ({"reset": 0.2, "direction": "bidirectional"}, True, {}),
    "per sample": ({}, False, {"per_sample": True}),
    "per sample, lengths": ({"direction": "reverse", "layout": 1}, True, {"per_sample": True}),
    "per sample, weights": ({}, True, {"per_sample": True, "sample_weight": 1}),
    "per sample, resets": ({"reset": 0.2}, True, {"per_sample": True}),
    "norms": ({"direction": "bidirectional"}, False, {"per_sample": "norm"}),
    "norms, lengths": ({}, True, {"per_sample": "norm"}),
}


@pytest.mark.parametrize("case", OWN_STEPS)
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_programs_of_their_own_steps(name, case, team, rng, monkeypatch):
    """Resets, which have T in their shape, and sums of each sequence: T and N come from a template."""
    recordings = Recordings(monkeypatch)
    options, has_lengths, more = OWN_STEPS[case]
    forward, backward = (getattr(xpgrad, one) for one in (name, f"{name}_grad"))
    taken, rows = inspect.signature(backward).parameters, GATES[name] * 8
    for T, N in (
        (9, 5),
        (9, 6),
        (9, 7),
        (12, 7),
        (13, 5),
        (30, 4),
        (2, 3),
        (7, 33),
        (1, 6),
        (9, 1),
        (14, 20),
    ):
        first = options.get("layout") == 1
        D = 2 if options.get("direction") == "bidirectional" else 1
        shapes = {
            "X": (N, T, 6) if first else (T, N, 6),
            "W": (D, rows, 6),
            "R": (D, rows, 8),
            "B": (D, 2 * rows),
        }
        given = {key: team(rng.normal(size=shape)) for key, shape in shapes.items()}
        if has_lengths:
            given["sequence_lens"] = rng.integers(0, T + 1, N).tolist()
        if "reset" in options:
            given["reset"] = team(rng.random((T, N)) < options["reset"])
        own = {key: value for key, value in options.items() if key != "reset"}
        grad_H_all = team(rng.normal(size=(N, T, D, 8) if first else (T, D, N, 8)))
        weights = {"sample_weight": team(rng.normal(size=N))} if "sample_weight" in more else {}
        results = []
        for engine in (None, "standard"):
            with xpgrad.use_engine(engine):
                out = forward(**given, **own)
                kept = {key: value for key, value in out._asdict().items() if key in taken}
                found = backward(**given, **kept, grad_H_all=grad_H_all, **own, **{**more, **weights})
            results.append([x for x in (out.H_all, out.H_t, *found) if x is not None])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    assert recordings.recorded < recordings.calls


@pytest.mark.parametrize("saved", [6000, 1 << 60])
def test_batches_in_chunks_and_threads(saved, team, rng, monkeypatch):
    """Threads share the rows of small loops too, or their columns, and a gradient has several chunks."""
    monkeypatch.setattr(sharing, "TIME_LOOP", 256)
    monkeypatch.setattr(machine, "_SAVED", saved)
    monkeypatch.setattr(OpenMPTeam, "is_quick", lambda self: True)
    monkeypatch.setattr(machine, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(machine, "CHUNK_ROWS", 100)
    recordings = Recordings(monkeypatch)
    for N in (33, 34, 35, 36, 17, 18, 19, 15, 14, 13, 10, 9, 8):
        for name in ("lstm", "gru"):
            recurrent_step(team, rng, name, 12, N, has_lengths=True)
    assert recordings.recorded < recordings.calls


def test_many_batches_need_few_recordings(rng, monkeypatch):
    recordings = Recordings(monkeypatch)
    for _ in range(40):
        T, N = int(rng.integers(5, 60)), int(rng.integers(2, 100))
        recurrent_step(np.asarray, rng, "gru", T, N, has_lengths=True)
    assert recordings.calls > 50
    assert recordings.recorded < recordings.calls / 2


@pytest.mark.parametrize("kind", ["padded", "packed", "frozen"])
def test_layers_on_other_batches(kind, rng, monkeypatch):
    """Of layers with and without biases, which are joined of parts, and with frozen weights, in turns."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xpgrad_torch import LSTM

    recordings = Recordings(monkeypatch)
    pairs = [
        [module(5, 8, bidirectional=True, dtype=torch.float64, bias=bias) for module in (LSTM, torch.nn.LSTM)]
        for bias in (True, False)
    ]
    for number in range(16):
        ours, theirs = pairs[number // 2 % 2]
        theirs.load_state_dict(ours.state_dict())
        batch = int(rng.integers(2, 30))
        xs = [torch.from_numpy(rng.normal(size=(int(n), 5))) for n in rng.integers(1, 13, batch)]
        xs[0] = torch.from_numpy(rng.normal(size=(12, 5)))
        for module in (ours, theirs):
            module.zero_grad()
            for place, parameter in enumerate(module.parameters()):
                parameter.requires_grad_(kind != "frozen" or number % 2 == 0 or place in (1, 3))
            if kind == "packed":
                module(torch.nn.utils.rnn.pack_sequence(xs, enforce_sorted=False))[0].data.sum().backward()
            else:
                module(torch.stack([xs[0]] * batch, dim=1))[0].sum().backward()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-11)
    assert recordings.recorded < recordings.calls


# -------------------------------------------------------------------------------------- single steps

STEPS: dict[str, dict[str, Any]] = {
    "lstm_cell": {"input_forget": True},
    "gru_cell": {"linear_before_reset": 1},
    "rnn_cell": {"clip": 1.0},
}
BATCHES = (33, 34, 35, 63, 64, 65, 17, 18, 15, 16, 1, 9, 8, 7, 6, 2, 120, 130, 140, 201)


def single_step(
    as_array: Any, rng: np.random.Generator, name: str, N: int, width: int, more: Any = (), **options: Any
) -> Any:
    """The outputs and the gradients of a step; `more` are the gradient's options."""
    rows, has_bias = GATES[name.removesuffix("_cell")] * width, options.pop("has_bias", True)
    shapes = {"X": (N, 6), "H": (N, width), "W": (rows, 6), "R": (rows, width)}
    shapes |= {"C": (N, width)} if name == "lstm_cell" else {}
    shapes |= {"B": (2 * rows,)} if has_bias else {}
    arrays = {key: as_array(rng.normal(size=shape).astype(np.float32)) for key, shape in shapes.items()}
    forward, backward = (getattr(xpgrad, one) for one in (name, f"{name}_grad"))
    out, taken = forward(**arrays, **options), inspect.signature(backward).parameters
    kept = {key: value for key, value in out._asdict().items() if key in taken}
    more = dict(more)
    if "sample_weight" in more:
        more["sample_weight"] = as_array(rng.normal(size=N).astype(np.float32))
    grad_H = as_array(rng.normal(size=(N, width)).astype(np.float32))
    return out, backward(**arrays, **kept, grad_H=grad_H, **options, **more)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("width", [8, 40])
@pytest.mark.parametrize("name", STEPS)
def test_single_steps_of_other_batches(name, width, has_bias, team, rng, monkeypatch):
    """Around the rows of tiles, of vectors and of products that read weights where they are."""
    monkeypatch.setattr(sharing, "ARRAY", 600)
    monkeypatch.setattr(sharing, "PRODUCT", 1 << 14)
    recordings = Recordings(monkeypatch)
    for number, N in enumerate(BATCHES):
        seeds, found = [np.random.default_rng(N) for _ in range(2)], []
        for engine, seed in zip((None, "standard"), seeds, strict=True):
            with xpgrad.use_engine(engine):
                options = STEPS[name] if number % 2 else {}
                results = single_step(team, seed, name, N, width, has_bias=has_bias, **options)
            found.append([x for part in results for x in part if x is not None])
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert recordings.calls == 2 * len(BATCHES)
    assert recordings.recorded < 0.75 * recordings.calls


@pytest.mark.parametrize(
    "more", [{"per_sample": True}, {"per_sample": "norm"}, {"per_sample": True, "sample_weight": 1}], ids=str
)
@pytest.mark.parametrize("name", ["lstm_cell", "gru_cell"])
def test_options_of_a_single_steps_gradient(more, name, team, rng, monkeypatch):
    recordings = Recordings(monkeypatch)
    for N in (33, 34, 35, 36, 17, 18, 15, 1, 9, 8):
        single_step(team, rng, name, N, 8, more)
    assert recordings.recorded < recordings.calls


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_on_other_batches(kind, rng, monkeypatch):
    """With biases, which are joined of parts, and without, beside PyTorch's; states are perhaps slices."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import xpgrad_torch

    recordings = Recordings(monkeypatch)
    for bias in (True, False):
        libraries = xpgrad_torch, torch.nn
        ours, theirs = (getattr(library, kind)(5, 8, bias=bias).double() for library in libraries)
        theirs.load_state_dict(ours.state_dict())
        for N in (12, 11, 10, 7, 7, 3, 2, 1, 40):
            x, state = torch.from_numpy(rng.normal(size=(N, 5))), torch.from_numpy(rng.normal(size=(60, 16)))
            h = state[:N, :8] if N % 2 else state[:N, :8].contiguous()
            results = []
            for module in (ours, theirs):
                module.zero_grad()
                given = [one.clone().requires_grad_() if N % 3 else one for one in (x, h)]
                out = module(given[0], (given[1], given[1]) if kind == "LSTMCell" else given[1])
                sum(one.square().sum() for one in (out if isinstance(out, tuple) else (out,))).backward()
                results.append([*(one.grad for one in (*given, *module.parameters()))])
            for a, b in zip(*results, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert recordings.recorded < recordings.calls


# --------------------------------------------------------------------------------------------- any sizes


def test_wrong_sizes_are_errors_as_before(rng):
    for width in (12, 13, 14, 15):
        step(np.asarray, rng, "conv", "winograd", 2, (9, width))
    X, W = np.zeros((2, 16, 1, 14), np.float32), np.zeros((16, 16, 3, 3), np.float32)
    with pytest.raises(
        ValueError, match=r"conv: W spans 3 elements of spatial dimension 0 .* 0 \+ 1 \+ 0 = 1"
    ):
        xpgrad.conv(X, W)
    dY = np.zeros((2, 16, 9, 13), np.float32)
    with pytest.raises(ValueError, match=r"dY has shape \(2, 16, 9, 13\), expected .* = \(2, 16, 9, 17\)"):
        xpgrad.conv_grad(dY, np.zeros((2, 16, 9, 17), np.float32), W, pads=1)


def test_several_threads_meet_new_sizes(rng):
    """The threads use the same templates; each gets its own result."""
    sizes, found = rng.integers(9, 50, (4, 12, 2)), {}

    def work(number: int) -> None:
        own = np.random.default_rng(number)
        found[number] = [step(np.asarray, own, "conv", "winograd", 2, size) for size in sizes[number]]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        own = np.random.default_rng(number)
        for size, results in zip(sizes[number], found[number], strict=True):
            for a, b in zip(step(np.asarray, own, "conv", "winograd", 2, size), results, strict=True):
                np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


def test_recording_with_symbols_is_given_up(rng, monkeypatch):
    """Where it never pays, as for sizes that are needed as numbers, and after some unused templates."""
    asked: list[bool] = []
    recorded = plans._recorded

    def counted(*call: Any) -> Any:
        asked.append(call[-1])
        if call[-1]:
            raise TypeError("a number is needed")
        return recorded(*call)

    monkeypatch.setattr(plans, "_recorded", counted)
    W = np.zeros((4, 4, 3, 3))
    for width in range(10, 20):
        xpgrad.conv(np.zeros((1, 4, 9, width)), W)
    assert asked.count(True) == new_sizes._TRIES
    assert asked.count(False) == 10


@pytest.mark.parametrize("most", [2, 20])
def test_templates_of_a_kind(most, rng, monkeypatch):
    """They are few; recording with symbols goes on as long as some are used."""
    monkeypatch.setattr(new_sizes, "_MOST", most)
    monkeypatch.setattr(new_sizes, "_TRIES", 3)
    for size in rng.integers(4, 250, (60, 2)):
        X, W = (np.zeros(shape, np.float32) for shape in ((1, 32, *size), (32, 32, 3, 3)))
        xpgrad.conv(X, W, pads=1, method="patches")
    (templates,) = families.known.templates.values()
    assert len(templates._known) == 2 if most == 2 else len(templates._known) > new_sizes._TRIES


def test_symbols_are_freed_without_a_collection(rng):
    gc.collect()
    gc.disable()
    try:
        for size in rng.integers(9, 40, (8, 2)):
            step(np.asarray, rng, "conv", "winograd", 2, size)
        step(np.asarray, rng, "conv", "winograd", 2, (1, 1))  # pins sizes
        assert not [one for one in gc.get_objects() if type(one) in (SizeSymbol, Trace)]
    finally:
        gc.enable()


# --- symbols


def test_operations_and_conditions():
    trace = Trace()
    a, b = trace.size(7), trace.size(3)
    results = [a + b, 2 - a, a * 2, -(-a // b), a % 4, 1.5 * a / b, a + b]
    assert results[0] is results[-1]
    assert [value_of(one) for one in results] == [10, -5, 14, 3, 3, 3.5, 10]
    assert a > b
    assert not b >= 5
    assert a != 0
    function = trace.function(results)
    assert function(9, 4) == (13, -7, 18, 3, 1, 1.5 * 9 / 4, 13)
    assert function(4, 4) is None  # a > b
    assert function(9, 6) is None  # b < 5
    with pytest.raises(ZeroDivisionError):
        function(9, 0)


@pytest.mark.parametrize("use", [range, lambda n: [0] * n, lambda n: "abcdefgh"[n], lambda n: np.zeros(8)[n]])
def test_whatever_needs_an_integer_is_a_condition(use):
    trace = Trace()
    size = trace.size(3)
    use(size + 1)
    assert not trace.pins([size])
    use(size)
    assert trace.pins([size])
    assert trace.function([size])(3) == (3,)
    assert trace.function([size])(4) is None


def test_sizes_that_no_recording_meets():
    trace = Trace()
    a, b = trace.size(6), trace.size(3)
    template = Template(SimpleNamespace(), SymbolicParts(a // b, [], (), []), trace)
    assert template.program((1, 0)) is None


def test_equal_numbers_of_other_types_are_others():
    trace = Trace()
    size = trace.size(6)
    assert [type(value_of(size * number)) for number in (2, 2.0, 2)] == [int, float, int]
    second = of_numbers(lambda _, operand: operand)
    operands = 1, 1.0, True, float("inf"), new_sizes.Plan(size, 1), (size, 1)
    results = [second(size, one) for one in operands]
    assert [*map(type, map(value_of, results))] == [*map(type, operands)]
    assert trace.function(results)(6) == (*operands[:4], (6, 1), (6, 1))


def test_operations_without_effect():
    """They leave an operand as it is, of integers only."""
    trace = Trace()
    a, b = trace.size(7), trace.size(3)
    half = a / 2
    assert all(one is a for one in (a + 0, 0 + a, a - 0, a * 1, 1 * a, a // 1, (a + b) - b, (b + a) - b))
    assert half * 1 is not half
    assert type(value_of(half // 1)) is float
    results = a / 1, a % 1, 0 - a, 1 - a, a - 1, (a + b) - a, half // 1, (half + b) - b, (a + 0.1) - 0.1
    function = trace.function(results)
    for size, other in ((7, 3), (10, 1)):
        expected = (
            size / 1, 0, -size, 1 - size, size - 1, other, size // 2, (size / 2 + other) - other,
            (size + 0.1) - 0.1,
        )  # fmt: skip
        assert function(size, other) == expected
        assert [*map(type, function(size, other))] == [*map(type, expected[:6]), float, float, float]


def test_the_same_numbers():
    trace = Trace()
    a, b = trace.size(3), trace.size(3)
    assert are_same((1, a, a + b), (1, a, a + b))
    assert not are_same((a,), (b,))
    assert not are_same((a,), (3,))
    assert not are_same((1, 2), (1,))
    assert not are_same((1, 2), (1, 3))
    assert trace.function([])(5, 6) == ()


@pytest.mark.parametrize("threads", [0, 2, 3])
def test_blocks_in_use_together_are_apart_for_all_sizes(threads, rng):
    """Also blocks without elements, and those of threads that are at any of their instructions."""
    for _ in range(60):
        trace, draft = Trace(), Draft()
        sizes = [trace.size(int(size)) for size in rng.integers(0, 9, 3)]
        draft.has_symbols = True
        first = [Block(sizes[k % 3] * int(rng.integers(0, 60)) + int(rng.integers(0, 3))) for k in range(9)]
        uses: list[tuple[int, Block]] = []

        def use(*blocks: Block, draft: Draft = draft, uses: list[tuple[int, Block]] = uses) -> None:
            uses += [(len(draft.instructions), block) for block in blocks]
            draft.add(SimpleNamespace(blocks=lambda: blocks))  # type: ignore[arg-type]

        for number in range(6):
            use(first[number], first[int(rng.integers(number, 9))])
        begin = len(draft.instructions)
        for thread in range(threads):
            draft.share = Share(begin, thread)
            own = [Block(sizes[k % 3] * int(rng.integers(0, 60))) for k in range(4)]
            for number in range(4):
                use(own[number], own[int(rng.integers(number, 4))], first[int(rng.integers(6, 9))])
        draft.share, region = None, range(begin, len(draft.instructions))
        use(first[8])
        begins, total = arena.arranged(draft, (), 8, [region] if threads else [])
        blocks = [*begins]
        function = trace.function([*begins.values(), total, *(block.size for block in blocks)])
        lives = {block: [number for number, used in uses if used is block] for block in blocks}
        shares = {block: {draft.shares[number] for number in lives[block]} for block in blocks}
        for given in ([value_of(size) for size in sizes], *rng.integers(0, 40, (6, 3)).tolist()):
            found = function(*given)
            assert found is not None
            starts, (end, *lengths) = found[: len(blocks)], found[len(blocks) :]
            places = {
                block: range(at, at + 8 * length)
                for block, at, length in zip(blocks, starts, lengths, strict=True)
            }
            assert all(place.start % 64 == 0 and place.stop <= end for place in places.values())
            for a, b in itertools.combinations(blocks, 2):
                apart = max(lives[a]) < min(lives[b]) or max(lives[b]) < min(lives[a])
                both = any(number in region for number in lives[a]) and any(n in region for n in lives[b])
                if both and (shares[a] != shares[b] or len(shares[a]) > 1):
                    apart = False
                if not apart and places[a] and places[b]:
                    assert places[a].stop <= places[b].start or places[b].stop <= places[a].start


def test_truth_is_a_condition():
    trace = Trace()
    size = trace.size(3)
    assert size
    assert trace.function([])(5) == ()
    assert trace.function([])(0) is None


def test_functions_of_numbers():
    @of_numbers
    def table(shape: tuple[int, ...], name: str) -> list[Any]:
        return [*shape, name]

    trace = Trace()
    a, b = trace.size(2), trace.size(5)
    row = new_sizes.Plan(a, (b, 1))  # any named tuple
    results = smaller(a, b), larger(a, 4, b), table((a, 3), "t"), of_numbers(len)(row), of_numbers(tuple)(row)
    assert all(one.__class__ is SizeSymbol for one in results)
    assert trace.function(results)(8, 1) == (1, 8, [8, 3, "t"], 2, (8, (1, 1)))
    assert table((2, 3), "u") == [2, 3, "u"]
    assert smaller(3, 2) == 2


def test_no_cache_and_no_numpy_takes_symbols():
    size = Trace().size(3)
    with pytest.raises(TypeError, match="unhashable"):
        _ = {size: 1}
    with pytest.raises(TypeError):
        np.arange(4) * size
    with pytest.raises(TypeError):
        _ = size + np.int64(1)


def test_long_sums():
    trace = Trace()
    size = total = trace.size(1)
    for number in range(3000):
        total = total + size * number
        assert number % 100 or total > 0  # some of them are used
    assert trace.function([total])(2) == (2 * 3000 * 2999 // 2 + 2,)
