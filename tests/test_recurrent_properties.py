"""Properties of the recurrent kernels over drawn shapes, attributes and lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xpgrad
from backends import BACKENDS, UNCOMPILED
from recurrent_cases import (
    LSTM,
    OPERATORS,
    Case,
    Operator,
    make_case,
    run,
    run_forward,
    run_gradient,
    run_reference,
)
from xpgrad.testing import assert_close

ALL = [
    "Affine",
    "Elu",
    "HardSigmoid",
    "LeakyRelu",
    "Relu",
    "ScaledTanh",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
]
TAKES_ALPHA = {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu"}
TAKES_BETA = {"Affine", "HardSigmoid", "ScaledTanh"}
INSTALLED = [backend for backend in UNCOMPILED if backend.missing() is None]
sizes = st.integers(1, 6)


@st.composite
def lengths_of(draw: st.DrawFn, T: int, N: int) -> list[int] | None:
    return draw(st.none() | st.lists(st.integers(0, T), min_size=N, max_size=N))


@st.composite
def cases(draw: st.DrawFn, *, attributes: bool = True) -> Case:
    """A problem of any shape; with `attributes` also with any attributes."""
    operator = draw(st.sampled_from(OPERATORS))
    T, N, I, H = (draw(sizes) for _ in range(4))
    options: dict[str, Any] = {
        "direction": draw(st.sampled_from(["forward", "reverse", "bidirectional"])),
        "layout": draw(st.sampled_from([0, 1])),
        "lengths": draw(lengths_of(T, N)),
    }
    if operator.name == "gru":
        options["linear_before_reset"] = draw(st.sampled_from([0, 1]))
    if attributes:
        D = 2 if options["direction"] == "bidirectional" else 1
        options |= {
            "bias": draw(st.booleans()),
            "states": draw(st.booleans()),
            "per_sample": draw(st.booleans()),
            "clip": draw(st.none() | st.floats(0.2, 2.0)),
        }
        if operator is LSTM:
            options |= {
                "peepholes": draw(st.booleans()),
                "peephole": draw(st.sampled_from(["full", "truncated"])),
                "input_forget": draw(st.booleans()),
            }
        count = operator.activations * D
        names = draw(st.none() | st.lists(st.sampled_from(ALL), min_size=count, max_size=count))
        if names is not None:
            options["activations"] = names
            for attribute, takers in [("activation_alpha", TAKES_ALPHA), ("activation_beta", TAKES_BETA)]:
                most = sum(name in takers for name in names)
                options[attribute] = draw(st.lists(st.floats(-0.9, 0.9), max_size=most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return make_case(operator, rng, T=T, N=N, I=I, H=H, scale=0.5, **options)


def assert_same(outputs: Any, grads: Any, expected_outputs: Any, expected: Any, like: Any) -> None:
    for field in outputs._fields:
        desired = getattr(expected_outputs, field)
        assert_close(getattr(outputs, field), desired, like=like, rtol=1e-10, atol=1e-13, label=field)
    for field, desired in expected._asdict().items():
        if desired is None:
            assert getattr(grads, field) is None
        else:
            actual = getattr(grads, field)
            assert_close(actual, desired, like=like, rtol=1e-10, atol=1e-13, label=field)


@given(case=cases(), backend=st.sampled_from(INSTALLED))
@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
def test_any_problem_matches_the_naive_references(case: Case, backend: Any) -> None:
    expected_outputs, expected = run_reference(case)
    with backend.active():
        here = case.on(backend)
        outputs, grads = run(here)
    assert_same(outputs, grads, expected_outputs, expected, here.arguments["X"])


@given(case=cases(attributes=False), contiguous=st.booleans())
def test_any_shape_on_the_compiled_engine(case: Case, contiguous: bool) -> None:
    """Attributes stay as they are here: each choice of them would be compiled anew."""
    expected_outputs, expected = run_reference(case)
    if not contiguous:
        spread = next(backend for backend in BACKENDS if backend.name == "numpy-noncontiguous")
        case = case.on(spread)
    outputs, grads = run(case)
    assert_same(outputs, grads, expected_outputs, expected, outputs.H_t)


@given(case=cases(attributes=False), factor=st.floats(-3, 3))
def test_gradients_are_linear_in_the_cotangents(case: Case, factor: float) -> None:
    outputs = run_forward(case)
    rng = np.random.default_rng(1)
    other = replace(case, cotangents={k: rng.standard_normal(v.shape) for k, v in case.cotangents.items()})
    mixed = replace(
        case, cotangents={k: v + factor * other.cotangents[k] for k, v in case.cotangents.items()}
    )
    one, two, both = (run_gradient(c, outputs) for c in (case, other, mixed))
    for field in case.operator.fields.values():
        if getattr(one, field) is not None:
            expected = getattr(one, field) + factor * getattr(two, field)
            assert_close(getattr(both, field), expected, rtol=1e-9, atol=1e-12, label=field)


@given(case=cases(attributes=False), seed=st.integers(0, 1000))
def test_order_of_the_batch_does_not_matter(case: Case, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(case.samples)
    axis = 0 if case.layout else 1

    def shuffle(name: str, array: np.ndarray) -> np.ndarray:
        if name in ("W", "R", "B", "P"):
            return array
        where = 0 if name == "sequence_lens" or case.layout else {"H_all": 2}.get(name, 1)
        return np.take(array, order, axis=where)

    shuffled = replace(
        case,
        arguments={k: shuffle(k, v) for k, v in case.arguments.items()},
        integers={k: shuffle(k, v) for k, v in case.integers.items()},
        cotangents={k: shuffle(k, v) for k, v in case.cotangents.items()},
    )
    outputs, grads = run(case)
    outputs_after, grads_after = run(shuffled)
    assert_close(outputs_after.H_t, np.take(outputs.H_t, order, axis=axis), rtol=1e-11)
    assert_close(grads_after.dX, np.take(grads.dX, order, axis=axis), rtol=1e-10, atol=1e-13)
    assert_close(grads_after.dR, grads.dR, rtol=1e-10, atol=1e-13)


@given(case=cases(attributes=False))
def test_layouts_agree(case: Case) -> None:
    def other_layout(name: str, array: np.ndarray) -> np.ndarray:
        if name in ("W", "R", "B", "P"):
            return array
        if array.ndim == 4:
            return np.transpose(array, (1, 2, 0, 3) if case.layout else (2, 0, 1, 3))
        return np.swapaxes(array, 0, 1)

    other = replace(
        case,
        arguments={k: other_layout(k, v) for k, v in case.arguments.items()},
        cotangents={k: other_layout(k, v) for k, v in case.cotangents.items()},
        attributes={**case.attributes, "layout": 1 - case.layout},
    )
    (outputs, grads), (outputs_other, grads_other) = run(case), run(other)
    for name in outputs._fields:
        assert_close(getattr(outputs_other, name), other_layout(name, getattr(outputs, name)), rtol=1e-12)
    assert_close(grads_other.dX, other_layout("X", grads.dX), rtol=1e-11, atol=1e-14)
    assert_close(grads_other.dW, grads.dW, rtol=1e-11, atol=1e-14)


@given(case=cases(attributes=False))
def test_per_sample_gradients_sum_to_the_gradient(case: Case) -> None:
    outputs, grads = run(case)
    alone = run_gradient(case, outputs, per_sample=True)
    for field in ("dW", "dR", "dB"):
        summed = np.sum(getattr(alone, field), axis=0)
        assert_close(summed, getattr(grads, field), rtol=1e-10, atol=1e-13, label=field)


@given(operator=st.sampled_from(OPERATORS), T=sizes, N=sizes, H=sizes, data=st.data())
def test_padding_reaches_nothing(operator: Operator, T: int, N: int, H: int, data: st.DataObject) -> None:
    """Whatever stands behind the ends of sequences, results are the same."""
    lengths = data.draw(st.lists(st.integers(0, T), min_size=N, max_size=N))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    case = make_case(operator, rng, T=T, N=N, H=H, lengths=lengths, direction="bidirectional")
    padding = data.draw(st.sampled_from([0.0, 1e30, np.inf]))
    other = replace(
        case,
        arguments={**case.arguments, "X": np.nan_to_num(case.arguments["X"], nan=padding)},
        cotangents={k: np.nan_to_num(v, nan=padding) for k, v in case.cotangents.items()},
    )
    for one, two in zip(run(case), run(other), strict=True):
        for field in one._fields:
            if getattr(one, field) is not None:
                assert np.array_equal(getattr(one, field), getattr(two, field)), field


@pytest.mark.parametrize("layout", ["scalars", "rows"])
@pytest.mark.parametrize(("operator", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
@pytest.mark.parametrize("H", [1, 3])
def test_weights_in_records(operator: str, gates: int, H: int, layout: str) -> None:
    """Their elements or rows lie at no multiple of an element's size."""
    rng = np.random.default_rng(0)

    def field(*shape: int) -> np.ndarray:
        kind = ("x", "f8") if layout == "scalars" else ("x", "f8", shape[-1:])
        records = np.zeros(shape if layout == "scalars" else shape[:-1], [("label", "i1"), kind])
        records["x"] = rng.normal(size=shape)
        return records["x"]

    arguments = field(3, 2, 2), field(1, gates * H, 2), field(1, gates * H, H)
    results = []
    for arrays in (arguments, [array.copy() for array in arguments]):
        outputs, pullback = xpgrad.vjp(getattr(xpgrad, operator), *arrays)
        results.append([*outputs[:2], *(g for g in pullback(outputs[0]) if g is not None)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
