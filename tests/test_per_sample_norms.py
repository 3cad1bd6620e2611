"""Norms of each sample's gradients and weighted sums of them, beside the gradients themselves.

The products over pairs of steps and the gradients in memory are two code paths, which sizes choose; large
batches are taken in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import Backend
from conv_cases import CASES
from recurrent_cases import (
    LSTM,
    RNN,
    Case,
    Operator,
    autograd,
    each_operator,
    make_case,
    option_case,
    run,
    run_forward,
    run_gradient,
    run_reference,
    these_options,
)
from xpgrad._calls import families
from xpgrad._recurrent import call as _recurrent
from xpgrad._recurrent import per_sample as _per_sample
from xpgrad.engine.process.settings import jit_enabled
from xpgrad.testing import assert_close, conv_grad_reference, to_numpy

PARAMETERS = ("W", "R", "B", "P")
PAIRS, GRADIENTS = {"T": 2, "I": 9, "H": 8}, {"T": 6, "I": 2, "H": 3}
"""Sizes for which each of the ways is cheaper, for all weights of every operator."""
WEIGHTS = np.asarray([0.3, -1.7, 0.0, 2.2, 1.1])
SOME = {
    "lstm": ["plain", "lengths bidirectional", "peepholes", "layout 1 with everything", "clip"],
    "gru": [
        "plain",
        "lengths reverse, reset after",
        "bidirectional, reset after",
        "layout 1 with everything",
    ],
    "rnn": ["plain", "lengths bidirectional", "layout 1 with everything"],
}


def asked(case: Case, backend: Any = None, **gradient: Any) -> Case:
    """The problem with other options of its gradient; of weights as many as there are samples."""
    if "sample_weight" in gradient:
        weights = WEIGHTS[: case.samples]
        gradient["sample_weight"] = weights if backend is None else backend.array(weights)
    own = {name: value for name, value in case.gradient.items() if name != "per_sample"}
    return replace(case, gradient=own | gradient)


def assert_gradients(operator: Operator, grads: Any, expected: Any, **tolerance: Any) -> None:
    for field in operator.fields.values():
        one, other = getattr(grads, field), getattr(expected, field)
        assert (one is None) == (other is None), field
        if one is not None:
            assert tuple(one.shape) == other.shape, field
            assert_close(to_numpy(one), other, label=field, **tolerance)


# --- recurrent operators ------------------------------------------------------------------------------------


def test_the_sizes_take_both_ways() -> None:
    for operator in (LSTM, RNN):
        for sizes, pairs in ((PAIRS, True), (GRADIENTS, False)):
            T, I, H = sizes.values()
            for inner in (I, H):
                assert _per_sample.takes_pairs(T, operator.gates * H, inner) is pairs


ASKS: list[dict[str, Any]] = [
    {"per_sample": "norm"},
    {"sample_weight": True},
    {"per_sample": "norm", "sample_weight": True},
    {"per_sample": True, "sample_weight": True},
]


@these_options(**SOME)
@pytest.mark.parametrize("sizes", [PAIRS, GRADIENTS], ids=["pairs", "gradients"])
def test_the_naive_reference(operator: Operator, name: str, sizes: dict[str, int]) -> None:
    lengths = option_case(operator, name).integers.get("sequence_lens")
    more = {} if lengths is None else {"lengths": np.minimum(lengths, sizes["T"]).tolist()}
    case = option_case(operator, name, **sizes, N=3, **more)
    for options in ASKS:
        _, expected = run_reference(asked(case, **options))
        for _ in range(2):
            _, grads = run(asked(case, **options))
            assert_gradients(operator, grads, expected, rtol=1e-11, atol=1e-12)


@each_operator()
def test_the_naive_reference_on_every_backend(operator: Operator, backend: Backend) -> None:
    case = make_case(
        operator, np.random.default_rng(7), lengths=[4, 0, 2], direction="bidirectional", **PAIRS | {"T": 4}
    )
    for options in ASKS[:3]:
        _, expected = run_reference(asked(case, **options))
        _, grads = run(asked(case.on(backend), backend, **options))
        assert_gradients(operator, grads, expected, rtol=1e-11, atol=1e-12)


@each_operator()
def test_norms_and_clipped_sums_by_autograd(operator: Operator, rng: np.random.Generator) -> None:
    """A step of private training, one sample at a time: norms, weights from them, the weighted sum."""
    case = make_case(operator, rng, T=6, N=5, I=3, H=4, lengths=[6, 2, 1, 5, 3], direction="bidirectional")
    alone = [autograd(case.sample(n))[1] for n in range(5)]
    outputs = run_forward(case)
    norms = run_gradient(case, outputs, per_sample="norm")
    names = [name for name in PARAMETERS if name in case.arguments]
    squares = np.zeros(5)
    for name in names:
        grads = np.stack([sample[name] for sample in alone])
        expected = np.sqrt((grads.reshape(5, 2, -1) ** 2).sum(axis=2))
        got = getattr(norms, operator.fields[name])
        np.testing.assert_allclose(got, expected, rtol=1e-10)
        squares += (got**2).sum(axis=1)
    bound = np.sqrt(np.median(squares))
    weights = np.minimum(1, bound / np.sqrt(squares))
    assert (weights < 1).any()
    assert (weights == 1).any()
    clipped = run_gradient(case, outputs, sample_weight=weights)
    for name in names:
        expected = sum(w * sample[name] for w, sample in zip(weights, alone, strict=True))
        np.testing.assert_allclose(getattr(clipped, operator.fields[name]), expected, rtol=1e-10, atol=1e-12)


@each_operator()
@pytest.mark.parametrize("lengths", [False, True], ids=["even", "lengths"])
@pytest.mark.parametrize("options", [{}, {"layout": 1, "direction": "bidirectional"}], ids=["", "layout 1"])
def test_parts_of_the_batch(
    operator: Operator,
    lengths: bool,
    options: dict,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Norms of many samples, some at a time, with programs and without; three times, as programs ask for."""
    monkeypatch.setattr(_recurrent, "_LEAST_SAMPLES", 3)
    monkeypatch.setattr("xpgrad.engine.compiled.machine.CHUNK_ROWS", 1)
    monkeypatch.setattr("xpgrad.engine.compiled.machine._CHUNK_BYTES", 1)
    taken = []
    part = _recurrent.RecurrentCall._of_samples
    monkeypatch.setattr(
        _recurrent.RecurrentCall, "_of_samples", lambda call, some: taken.append(some) or part(call, some)
    )
    options = options | ({"lengths": list(rng.integers(0, 5, size=11))} if lengths else {})
    case = make_case(operator, rng, T=4, N=11, I=2, H=3, **options)
    case = asked(case, per_sample="norm")
    _, expected = run_reference(case)
    for _ in range(3):
        _, grads = run(case)
        assert_gradients(operator, grads, expected, rtol=1e-11, atol=1e-12)
    assert len({(some.start, some.stop) for some in taken}) == 4
    # of lengths a program knows nothing; else it takes them once, when it is recorded
    assert (len(taken) == 4) is (jit_enabled() and not lengths)


def test_norms_of_very_many_samples_have_no_program(rng: np.random.Generator) -> None:
    """A program has products for each sample, and would be as long as the batch."""
    if not jit_enabled():
        pytest.skip("needs llvmlite")
    for N in (1024, 1025):
        families.known.clear()
        run(asked(make_case(LSTM, rng, T=1, N=N, I=1, H=1), per_sample="norm"))
        assert (None in families.known.calls.values()) is (N > 1024)


@each_operator()
def test_samples_of_the_products_at_a_time(
    operator: Operator, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for elements in (1, 13):
        monkeypatch.setattr(_per_sample, "_ELEMENTS", elements)
        for sizes in (PAIRS, GRADIENTS):
            case = asked(make_case(operator, rng, N=5, **sizes), per_sample="norm")
            _, expected = run_reference(case)
            for engine in (None, "standard"):
                families.known.clear()
                with xpgrad.use_engine(engine) if engine else nullcontext():
                    _, grads = run(case)
                assert_gradients(operator, grads, expected, rtol=1e-11, atol=1e-12)


@each_operator()
def test_wrt_and_other_gradients(operator: Operator, rng: np.random.Generator) -> None:
    """Norms and weights are the parameters' affair alone, and only those that are asked for come."""
    case = make_case(operator, rng)
    outputs, whole = run(case)
    for options in ({"per_sample": "norm"}, {"sample_weight": WEIGHTS[:3]}):
        grads = run_gradient(case, outputs, **options)
        for name in ("X", *operator.states):
            np.testing.assert_allclose(
                getattr(grads, operator.fields[name]), getattr(whole, operator.fields[name]), rtol=1e-12
            )
        some = run_gradient(case, outputs, **options, wrt=("R", "X"))
        for name, field in operator.fields.items():
            if name in ("R", "X"):
                np.testing.assert_allclose(getattr(some, field), getattr(grads, field), rtol=1e-12)
            else:
                assert getattr(some, field) is None
        none = run_gradient(case, outputs, **options, wrt=())
        assert all(grad is None for grad in none)


@each_operator()
@pytest.mark.parametrize("empty", ["T", "N", "I"])
def test_empty_axes(operator: Operator, empty: str, rng: np.random.Generator, backend: Backend) -> None:
    case = make_case(operator, rng, **{empty: 0})
    for options in ({"per_sample": "norm"}, {"sample_weight": True}):
        _, expected = run_reference(asked(case, **options))
        _, grads = run(asked(case.on(backend), backend, **options))
        assert_gradients(operator, grads, expected)


@each_operator()
def test_inputs_are_not_written_to(operator: Operator, rng: np.random.Generator) -> None:
    case = make_case(operator, rng)
    outputs = run_forward(case)
    arrays = [*case.arguments.values(), *case.cotangents.values(), *outputs, weights := WEIGHTS[:3].copy()]
    before = [array.copy() for array in arrays]
    for per_sample in (False, True, "norm"):
        run_gradient(case, outputs, per_sample=per_sample, sample_weight=weights)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


@each_operator()
@pytest.mark.usefixtures("compiled")
def test_they_have_programs(operator: Operator, rng: np.random.Generator) -> None:
    case = make_case(operator, rng, lengths=[2, 5, 4])
    outputs = run_forward(case)
    families.known.clear()
    for options in ({"per_sample": "norm"}, {"sample_weight": WEIGHTS[:3]}):
        run_gradient(case, outputs, **options)
    assert len(families.known.calls) == 2
    assert None not in families.known.calls.values()


@each_operator()
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_dtypes(operator: Operator, dtype: str, rng: np.random.Generator) -> None:
    """Squares and sums in float32; the norms come in the dtype of all."""
    import torch

    from backends import BACKENDS

    backend = next(b for b in BACKENDS if b.name == "torch")
    case = make_case(operator, rng, T=4, N=3, scale=0.5).rounded(dtype)
    _, expected = run_reference(asked(case, per_sample="norm"))
    _, grads = run(asked(case.on(backend, dtype), per_sample="norm"))
    for name in ("W", "R", "B"):
        norm = getattr(grads, operator.fields[name])
        assert norm.dtype is getattr(torch, dtype)
        tolerance = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
        np.testing.assert_allclose(norm.double(), getattr(expected, operator.fields[name]), rtol=tolerance)


def test_nan_flows_and_zero_is_zero() -> None:
    case = make_case(LSTM, np.random.default_rng(3), N=3)
    outputs = run_forward(case)
    case.cotangents["H_t"][0, 1] = np.nan
    for name in case.cotangents:
        case.cotangents[name][..., 2, :] = 0
    for _ in range(2):
        norms = run_gradient(case, outputs, per_sample="norm").dW
        assert np.isfinite(norms[0]).all()
        assert np.isnan(norms[1]).all()
        assert (norms[2] == 0).all()


CELLS = {
    "lstm": (lambda draw: {"C": draw(3, 4)}, {"C_next": "C_next", "iofc": "iofc"}, 4),
    "gru": (lambda draw: {}, {"zrh": "zrh"}, 3),
    "rnn": (lambda draw: {}, {"H_next": "H_next"}, 1),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells(name: str, rng: np.random.Generator, backend: Backend) -> None:
    states, saves, gates = CELLS[name]

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    given = {"X": draw(3, 2), "H": draw(3, 4), **states(draw)}
    given |= {"W": draw(4 * gates, 2), "R": draw(4 * gates, 4), "B": draw(8 * gates)}
    given |= {"P": draw(12)} if name == "lstm" else {}
    given = backend.arrays(given, "float64")
    step = getattr(xpgrad, f"{name}_cell")(**given)
    given |= {key: getattr(step, field) for key, field in saves.items()}
    given["grad_H"] = backend.array(draw(3, 4))
    gradient = getattr(xpgrad, f"{name}_cell_grad")
    weights = backend.array(WEIGHTS[:3])
    each = gradient(**given, per_sample=True)
    for _ in range(3):
        norms, sums = gradient(**given, per_sample="norm"), gradient(**given, sample_weight=weights)
        for key in PARAMETERS:
            own = getattr(each, f"d{key}", None)
            if own is not None:
                own = to_numpy(own).reshape(3, -1)
                assert_close(to_numpy(getattr(norms, f"d{key}")), np.linalg.norm(own, axis=1), rtol=1e-12)
                total = to_numpy(getattr(sums, f"d{key}")).ravel()
                assert_close(total, WEIGHTS[:3] @ own, rtol=1e-11, atol=1e-12)


# --- convolutions -------------------------------------------------------------------------------------------

CONVOLUTIONS = [
    "pointwise-groups", "3x3", "strides", "unread-end", "dilations", "1d", "3d", "depthwise-multiplier",
    "large-groups",
]  # fmt: skip


@pytest.mark.parametrize("pairs", [False, True], ids=["gradients", "pairs"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setattr("xpgrad._recurrent.per_sample.takes_pairs", lambda *sizes: pairs)
    monkeypatch.setattr("xpgrad._conv.norms.takes_pairs", lambda *sizes: pairs)
    monkeypatch.setattr(_per_sample, "_SAMPLES", 2)
    arrays = {key: array for key, array in case.arrays().items() if key != "B"}
    for options in ASKS:
        if "sample_weight" in options:
            options = options | {"sample_weight": np.linspace(-1, 2, case.X[0])}
        expected = conv_grad_reference(**arrays, **case.attributes, **options)
        grads = xpgrad.conv_grad(**arrays, **case.attributes, **options)
        for field in ("dX", "dW", "dB"):
            assert_close(getattr(grads, field), getattr(expected, field), rtol=1e-11, atol=1e-11)


def test_transposed_convolutions(backend: Backend, rng: np.random.Generator) -> None:
    shapes = {"X": (3, 4, 5, 4), "W": (4, 3, 3, 2), "dY": (3, 6, 11, 8)}
    here = backend.arrays({name: rng.standard_normal(shape) for name, shape in shapes.items()}, "float64")
    options: dict[str, Any] = {"strides": 2, "group": 2}
    each = xpgrad.conv_transpose_grad(**here, **options, per_sample=True)
    norms = xpgrad.conv_transpose_grad(**here, **options, per_sample="norm")
    sums = xpgrad.conv_transpose_grad(**here, **options, sample_weight=backend.array(WEIGHTS[:3].copy()))
    for field in ("dW", "dB"):
        own = to_numpy(getattr(each, field))
        expected = np.linalg.norm(own.reshape(3, -1), axis=1)
        assert_close(to_numpy(getattr(norms, field)), expected, rtol=1e-12)
        assert_close(to_numpy(getattr(sums, field)), np.tensordot(WEIGHTS[:3], own, 1), rtol=1e-11)


def test_convolutions_choose_pairs_for_few_positions() -> None:
    from xpgrad._conv.geometry import conv_geometry
    from xpgrad._conv.norms import takes_pairs_of_patches

    def geometry(size: int, channels: int) -> Any:
        shapes = (2, channels, size, size), (channels, channels, 3, 3)
        return conv_geometry("conv", *shapes, strides=1, pads=1, dilations=1, group=1, auto_pad="NOTSET")

    assert takes_pairs_of_patches(geometry(7, 512))
    assert not takes_pairs_of_patches(geometry(56, 16))


# --- errors -------------------------------------------------------------------------------------------------


def _recurrent_call() -> tuple[Any, Mapping[str, Any]]:
    case = make_case(LSTM, np.random.default_rng(0))
    outputs = run_forward(case)
    return lambda **more: run_gradient(case, outputs, **more), {"operator": "lstm_grad"}


def _convolution_call() -> tuple[Any, Mapping[str, Any]]:
    arrays = {key: array for key, array in CASES["3x3-asymmetric"].arrays().items() if key != "B"}
    arrays = {key: array[:3] if key != "W" else array for key, array in arrays.items()}
    attributes = CASES["3x3-asymmetric"].attributes
    return lambda **more: xpgrad.conv_grad(**arrays, **attributes, **more), {"operator": "conv_grad"}


@pytest.mark.parametrize("made", [_recurrent_call, _convolution_call])
@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ({"per_sample": "other"}, ValueError, "per_sample is 'other', expected one of False, True, 'norm'"),
        ({"per_sample": 1}, ValueError, "per_sample is 1, expected one of False, True, 'norm'"),
        (
            {"sample_weight": np.ones(4)},
            ValueError,
            r"sample_weight has shape \(4,\), expected \(N,\) = \(3,\)",
        ),
        (
            {"sample_weight": np.ones((3, 1))},
            ValueError,
            r"sample_weight has shape \(3, 1\), expected \(N,\) = \(3,\)",
        ),
        ({"sample_weight": [1.0, 2.0, 3.0]}, TypeError, "sample_weight is a list, expected an array"),
        (
            {"sample_weight": np.ones(3, dtype=np.float32)},
            TypeError,
            "sample_weight has dtype float32, expected float64",
        ),
    ],
)
def test_what_is_wrong(made: Any, bad: dict, kind: type, message: str) -> None:
    call, names = made()
    with pytest.raises(kind, match=f"{names['operator']}: {message}"):
        call(**bad)
