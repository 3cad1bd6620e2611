"""The kernels against independent oracles: PyTorch's autograd, torch.nn.LSTM, finite differences, and the
naive references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import xpgrad
from lstm_cases import (
    ACTIVATIONS,
    FIELDS,
    OPTIONS,
    OUTPUTS,
    SAVED,
    Case,
    autograd,
    gradient_reference,
    make_case,
    named_gradients,
    run,
    run_forward,
    run_gradient,
    run_reference,
    some_cotangents,
)
from xpgrad.testing import assert_close, check_vjp, lstm_reference

EXACT = 1e-10


def option_case(name: str, **more: Any) -> Case:
    options = {**OPTIONS, **ACTIVATIONS}
    return make_case(np.random.default_rng(list(options).index(name) + 100), **{**options[name], **more})


@pytest.mark.parametrize("name", OPTIONS)
def test_float64_against_autograd_with_every_combination_of_cotangents(name: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    case = option_case(name)
    outputs = run_forward(case)
    for used in some_cotangents(case):
        expected_outputs, expected = autograd(used)
        for field in outputs._fields:
            desired = getattr(expected_outputs, field).detach().numpy()
            assert_close(getattr(outputs, field), desired, rtol=EXACT, label=f"{name}: {field}")
        grads = run_gradient(used, outputs)
        for argument, gradient in named_gradients(used, grads).items():
            given = ", ".join(used.cotangents) or "none"
            label = f"{name}: gradient of {argument}, cotangents: {given}"
            assert_close(gradient, expected[argument], rtol=EXACT, label=label)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("more", [{}, {"clip": 0.9, "peepholes": True}], ids=["", "clip"])
def test_each_activation_in_each_place(name: str, more: dict[str, Any], interpreted: None) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    case = option_case(name, **more)
    outputs, grads = run(case)
    expected_outputs, expected = autograd(case)
    for field in outputs._fields:
        desired = getattr(expected_outputs, field).detach().numpy()
        assert_close(getattr(outputs, field), desired, rtol=EXACT, label=f"{name}: {field}")
    for argument, gradient in named_gradients(case, grads).items():
        assert_close(gradient, expected[argument], rtol=EXACT, label=f"{name}: gradient of {argument}")


@pytest.mark.parametrize("name", {**OPTIONS, **ACTIVATIONS})
def test_naive_backward_against_autograd(name: str) -> None:
    """The references are tested as well: with one another, by different means."""
    pytest.importorskip("torch", reason="torch is not installed")
    case = option_case(name)
    _, grads = run_reference(case)
    for argument, desired in autograd(case)[1].items():
        assert_close(getattr(grads, FIELDS[argument]), desired, rtol=EXACT, label=f"{name}: {argument}")


@pytest.mark.parametrize("name", [name for name in OPTIONS if "truncated" not in name])
def test_float64_against_finite_differences(name: str) -> None:
    case = option_case(name, T=3, N=2, **({"lengths": [2, 0]} if "lengths" in OPTIONS[name] else {}))

    def forward(**arguments: Any) -> tuple[Any, ...]:
        outputs = xpgrad.lstm(**arguments, **case.integers, **case.attributes)
        return tuple(getattr(outputs, output) for output in OUTPUTS)

    def gradient(*cotangents: Any, **arguments: Any) -> dict[str, Any]:
        _, pullback = xpgrad.vjp(xpgrad.lstm, **arguments, **case.integers, **case.attributes)
        return dict(named_gradients(case, pullback(*cotangents)))

    check_vjp(forward, gradient, case.arguments, operator=f"lstm ({name})", outputs=OUTPUTS)


@pytest.mark.parametrize("name", OPTIONS)
def test_saved_arrays_that_no_forward_made(name: str) -> None:
    """The gradient is a function of the saved arrays that it is given."""
    case = option_case(name)
    rng = np.random.default_rng(5)
    like = run_forward(case)
    # Each gate stays within its activation's values, for which alone slopes are defined: its values change
    # places among the steps and samples of a direction.
    d_axis, H = (2 if case.layout else 1), like.H_all.shape[-1]
    by_direction = np.moveaxis(like.iofc, d_axis, 0)
    shuffled = rng.permuted(by_direction.reshape(by_direction.shape[0], -1, 4, H), axis=1)
    made_up = {
        "H_all": rng.standard_normal(like.H_all.shape),
        "C_all": rng.standard_normal(like.C_all.shape),
        "iofc": np.moveaxis(shuffled.reshape(by_direction.shape), 0, d_axis),
    }
    foreign = like._replace(**made_up)
    expected = gradient_reference(case, foreign)
    grads = run_gradient(case, foreign)
    for field in grads._fields:
        if getattr(expected, field) is None:
            assert getattr(grads, field) is None
        else:
            assert_close(
                getattr(grads, field), getattr(expected, field), rtol=EXACT, label=f"{name}: {field}"
            )


@pytest.mark.parametrize("name", ["plain", "lengths bidirectional", "clip with peepholes"])
@pytest.mark.parametrize("saved", SAVED)
def test_each_saved_array_matters(name: str, saved: str) -> None:
    """Else the test above would not see it being ignored."""
    case = option_case(name)
    outputs = run_forward(case)
    before = run_gradient(case, outputs)
    after = run_gradient(case, outputs._replace(**{saved: getattr(outputs, saved) * 0.9}))
    assert not np.allclose(before.dR, after.dR)


def torch_lstm(case: Case, dtype: str = "float64") -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients of torch.nn.LSTM for a case without ONNX's extras, in ONNX's layouts."""
    import torch

    W, R, B = (case.arguments[name] for name in ("W", "R", "B"))
    D, H = R.shape[0], R.shape[2]
    module = torch.nn.LSTM(W.shape[2], H, bidirectional=D == 2, dtype=getattr(torch, dtype))
    to_torch = np.r_[0:H, 2 * H : 3 * H, 3 * H : 4 * H, H : 2 * H]  # i f g o from i o f c
    to_onnx = np.argsort(to_torch)
    targets = []
    for d in range(D):
        suffix = "_l0" + "_reverse" * d
        targets += [
            (f"weight_ih{suffix}", W[d]),
            (f"weight_hh{suffix}", R[d]),
            (f"bias_ih{suffix}", B[d, : 4 * H]),
            (f"bias_hh{suffix}", B[d, 4 * H :]),
        ]
    with torch.no_grad():
        for name, values in targets:
            getattr(module, name).copy_(torch.tensor(values[to_torch]))
    names = ("X", "initial_h", "initial_c")
    x, h0, c0 = (torch.tensor(case.arguments[n], dtype=getattr(torch, dtype)).requires_grad_() for n in names)
    y, (h, c) = module(x, (h0, c0))
    T, N = x.shape[:2]
    h_all = y.reshape(T, N, D, H).swapaxes(1, 2)
    cotangents = [torch.tensor(case.cotangents[n], dtype=y.dtype) for n in OUTPUTS]
    torch.autograd.backward([h_all, h, c], cotangents)
    found = [getattr(module, name).grad.double().numpy()[to_onnx] for name, _ in targets]
    gradients = {
        "X": x.grad.double().numpy(),
        "W": np.stack(found[0::4]),
        "R": np.stack(found[1::4]),
        "B": np.stack([np.concatenate(pair) for pair in zip(found[2::4], found[3::4], strict=True)]),
        "initial_h": h0.grad.double().numpy(),
        "initial_c": c0.grad.double().numpy(),
    }
    outputs = {"H_all": h_all, "H_t": h, "C_t": c}
    return {name: output.detach().double().numpy() for name, output in outputs.items()}, gradients


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_against_torch_nn_lstm(direction: str, dtype: str, rng: np.random.Generator) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    case = make_case(rng, T=7, N=4, I=3, H=5, direction=direction).rounded("float32")
    outputs, gradients = torch_lstm(case)
    mine = replace(
        case,
        arguments={k: v.astype(dtype) for k, v in case.arguments.items()},
        cotangents={k: v.astype(dtype) for k, v in case.cotangents.items()},
    )
    forward, grads = run(mine)
    for name, expected in outputs.items():
        assert_close(getattr(forward, name), expected, like=mine.arguments["X"], label=name)
    for name, expected in gradients.items():
        assert_close(getattr(grads, FIELDS[name]), expected, like=mine.arguments["X"], label=name)


# Error of each array against float64 on the same rounded inputs, relative to its largest value: what is
# allowed at all, and by how much it may exceed the error of torch.nn.LSTM in that dtype on this machine.
HALF = {"float16": (3e-3, 1e-3), "bfloat16": (2.5e-2, 8e-3)}


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_against_float64_and_the_native_kernel(direction: str, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xpgrad.testing import relative_error, to_numpy

    allowed, excess = HALF[dtype]
    rng = np.random.default_rng(8)
    case = make_case(rng, T=20, N=4, I=6, H=8, scale=0.4, direction=direction).rounded(dtype)
    exact_outputs, exact_gradients = torch_lstm(case)
    native_outputs, native_gradients = torch_lstm(case, dtype)
    in_half = replace(
        case,
        arguments={k: torch.tensor(v, dtype=getattr(torch, dtype)) for k, v in case.arguments.items()},
        cotangents={k: torch.tensor(v, dtype=getattr(torch, dtype)) for k, v in case.cotangents.items()},
    )
    forward, grads = run(in_half)
    rows = [(n, getattr(forward, n), exact_outputs[n], native_outputs[n]) for n in exact_outputs]
    rows += [(n, getattr(grads, FIELDS[n]), exact_gradients[n], native_gradients[n]) for n in exact_gradients]
    for name, actual, exact, native in rows:
        assert actual.dtype == getattr(torch, dtype)
        error, native_error = relative_error(to_numpy(actual), exact), relative_error(native, exact)
        assert error <= allowed, f"{name}: {error:.2e}"
        assert error <= native_error + excess, f"{name}: {error:.2e}, torch.nn.LSTM {native_error:.2e}"


def test_length_is_the_same_as_a_shorter_sequence(rng: np.random.Generator) -> None:
    """A sequence of length 3 within a batch of 5 steps gives what it gives alone."""
    case = make_case(rng, lengths=[3, 5, 1], direction="bidirectional", peepholes=True)
    outputs, grads = run(case)
    alone = case.sample(0)
    alone.arguments["X"] = alone.arguments["X"][:3]
    alone.cotangents["H_all"] = alone.cotangents["H_all"][:3]
    alone.integers.clear()
    short_outputs, short_grads = run(alone)
    assert_close(outputs.H_all[:3, :, :1], short_outputs.H_all, rtol=EXACT)
    assert_close(outputs.H_t[:, :1], short_outputs.H_t, rtol=EXACT)
    assert_close(grads.dX[:3, :1], short_grads.dX, rtol=EXACT)
    assert_close(grads.dH0[:, :1], short_grads.dH0, rtol=EXACT)
    for array in (outputs.H_all, outputs.C_all, outputs.iofc):
        assert not np.any(array[3:, :, 0])
    assert not np.any(grads.dX[3:, 0])


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_length_zero_passes_states_and_their_cotangents_through(direction: str, backend: Any) -> None:
    case = make_case(np.random.default_rng(2), lengths=[0, 5, 0], direction=direction).on(backend)
    outputs, grads = run(case)
    empty = backend.array(np.asarray([0, 2]))
    xp = backend.xp
    for passed, source in [
        (outputs.H_t, case.arguments["initial_h"]),
        (outputs.C_t, case.arguments["initial_c"]),
        (grads.dH0, case.cotangents["H_t"]),
        (grads.dC0, case.cotangents["C_t"]),
    ]:
        assert_close(xp.take(passed, empty, axis=1), xp.take(source, empty, axis=1), rtol=0)


def test_all_sequences_empty(backend: Any) -> None:
    case = make_case(np.random.default_rng(2), lengths=[0, 0, 0], peepholes=True, clip=1.0)
    outputs, grads = run(case.on(backend))
    expected_outputs, expected = run_reference(case)
    for field in outputs._fields:
        assert_close(
            getattr(outputs, field), getattr(expected_outputs, field), like=outputs.H_t, rtol=0, label=field
        )
    for field in grads._fields:
        assert_close(getattr(grads, field), getattr(expected, field), like=outputs.H_t, rtol=0, label=field)


@pytest.mark.parametrize("empty", ["T", "N", "both", "I"])
@pytest.mark.parametrize("options", [{}, {"direction": "bidirectional", "layout": 1, "peepholes": True}])
def test_empty_axes(empty: str, options: dict[str, Any], backend: Any) -> None:
    sizes = {"T": {"T": 0}, "N": {"N": 0}, "both": {"T": 0, "N": 0}, "I": {"I": 0}}[empty]
    case = make_case(np.random.default_rng(3), **sizes, **options)
    outputs, grads = run(case.on(backend))
    expected_outputs, expected = run_reference(case)
    for field in outputs._fields:
        assert_close(getattr(outputs, field), getattr(expected_outputs, field), like=outputs.H_t, label=field)
    for field, desired in expected._asdict().items():
        if desired is not None:
            assert_close(getattr(grads, field), desired, like=outputs.H_t, label=field)


@pytest.mark.parametrize("name", ["plain", "lengths bidirectional", "peepholes", "layout 1 with everything"])
def test_per_sample_equals_single_sample_calls(name: str, backend: Any) -> None:
    case = option_case(name)
    _, grads = run(replace(case, gradient={"per_sample": True}).on(backend))
    for n in range(case.samples):
        _, alone = run(case.sample(n).on(backend))
        for field in ("dW", "dR", "dB", "dP"):
            expected = getattr(alone, field)
            if expected is not None:
                assert_close(getattr(grads, field)[n, ...], expected, label=f"{field} of sample {n}")
    _, whole = run(case.on(backend))
    for field in ("dX", "dH0", "dC0"):
        assert_close(getattr(grads, field), getattr(whole, field), label=field)


def test_per_sample_matches_the_naive_backward(rng: np.random.Generator) -> None:
    case = make_case(rng, lengths=[4, 0, 2], peepholes=True, clip=0.8, per_sample=True, direction="reverse")
    _, grads = run(case)
    _, expected = run_reference(case)
    for field in grads._fields:
        assert_close(getattr(grads, field), getattr(expected, field), rtol=EXACT, label=field)


def test_saturated_gates_have_zero_slope_and_nan_flows(backend: Any) -> None:
    case = make_case(np.random.default_rng(4))
    case.arguments["B"] = np.full_like(case.arguments["B"], 500.0)
    _, grads = run(case.on(backend))
    dB = np.asarray(grads.dB)
    H = case.arguments["R"].shape[2]
    assert np.isfinite(dB).all()
    assert not dB.any()  # sigmoid and tanh are flat there
    assert np.asarray(grads.dC0).all()
    assert H == 4

    spoiled = make_case(np.random.default_rng(4))
    spoiled.arguments["X"][1, 0, 0] = np.nan
    outputs, grads = run(spoiled.on(backend))
    h_all = np.asarray(outputs.H_all)
    assert np.isfinite(h_all[:, :, 1:]).all()
    assert np.isnan(h_all[1:, :, 0]).all()
    assert np.isfinite(h_all[0]).all()
    assert np.isnan(np.asarray(grads.dW)).any()


KINKS = {
    # activation: (pre-activation of the gate, slope there)
    ("Relu", None, None): (0.0, 0.0),
    ("LeakyRelu", 0.25, None): (0.0, 0.25),
    ("Elu", 0.5, None): (0.0, 0.5),
    ("HardSigmoid", 0.5, 0.5): (1.0, 0.0),
    ("ThresholdedRelu", 0.5, None): (0.5, 0.0),
    # no kink, but a value that two branches share
    ("ThresholdedRelu", -0.5, None): (0.0, 1.0),
}


@pytest.mark.parametrize(("activation", "point"), KINKS.items(), ids=lambda value: f"{value[0]} {value[1]}")
def test_slopes_at_kinks(activation: tuple[str, Any, Any], point: tuple[float, float], backend: Any) -> None:
    """One step of an LSTM of width 1 whose cell gate sits on the kink of g."""
    name, alpha, beta = activation
    pre, slope = point
    H = 1
    arguments = {
        "X": np.zeros((1, 1, 1)),
        "W": np.zeros((1, 4 * H, 1)),
        "R": np.zeros((1, 4 * H, H)),
        "B": np.asarray([[0.0, 0.0, 0.0, pre, 0.0, 0.0, 0.0, 0.0]]),
    }
    case = Case(
        arguments,
        {},
        {
            "activations": ["Affine", name, "Affine"],
            # f = 0 x + 1, so every gate is open; h = x
            "activation_alpha": [0.0, *([] if alpha is None else [alpha]), 1.0],
            "activation_beta": [1.0, *([] if beta is None else [beta]), 0.0],
        },
        {"H_t": np.asarray([[[2.0]]])},
    )
    _, grads = run(case.on(backend))
    assert float(grads.dB[0, 3]) == 2.0 * slope


def test_slope_of_h_where_two_branches_share_a_value(backend: Any) -> None:
    """ThresholdedRelu with a negative threshold lets 0 through as 0: the slope there is 1."""
    arguments = {"X": np.zeros((1, 1, 1)), "W": np.zeros((1, 4, 1)), "R": np.zeros((1, 4, 1))}
    attributes = {"activations": ["Sigmoid", "Tanh", "ThresholdedRelu"], "activation_alpha": [-0.5]}
    case = Case(arguments, {}, attributes, {"H_t": np.asarray([[[2.0]]])})
    _, grads = run(case.on(backend))
    assert float(grads.dC0[0, 0, 0]) == 2.0 * 0.5 * 1.0 * 0.5  # o, the slope, f


@pytest.mark.parametrize("bias", [0.5, -0.5])
def test_clip_passes_the_cotangent_at_its_bounds(bias: float, backend: Any) -> None:
    arguments = {
        "X": np.zeros((1, 1, 1)),
        "W": np.zeros((1, 4, 1)),
        "R": np.zeros((1, 4, 1)),
        "B": np.asarray([[0.0, 0.0, 0.0, bias, 0.0, 0.0, 0.0, 0.0]]),
    }
    attributes = {"activations": ["Affine"] * 3, "activation_alpha": [0.0, 1.0, 1.0]}
    attributes["activation_beta"] = [1.0, 0.0, 0.0]
    for clip, slope in [(0.5, 1.0), (0.49, 0.0)]:
        case = Case(arguments, {}, {**attributes, "clip": clip}, {"H_t": np.asarray([[[2.0]]])})
        _, grads = run(case.on(backend))
        assert float(grads.dB[0, 3]) == 2.0 * slope


def test_clip_does_not_bound_the_input_of_h(rng: np.random.Generator) -> None:
    case = make_case(rng, clip=0.3)
    case.arguments["initial_c"] = case.arguments["initial_c"] + 3.0
    assert np.abs(run_forward(case).C_all).max() > 1
    expected = lstm_reference(**case.arguments, **case.attributes)
    assert_close(run_forward(case).H_all, expected.H_all)
