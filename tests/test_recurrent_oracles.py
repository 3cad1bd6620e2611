"""The kernels against independent oracles: PyTorch's autograd, torch.nn.LSTM and torch.nn.GRU, finite
differences, and the naive references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recurrent_cases import (
    GRU,
    LSTM,
    RNN,
    Case,
    Operator,
    autograd,
    each_activation,
    each_operator,
    each_option,
    gradient_reference,
    make_case,
    named_gradients,
    option_case,
    run,
    run_forward,
    run_gradient,
    run_reference,
    some_cotangents,
    these_options,
)
from xpgrad.testing import assert_close, check_vjp, relative_error, to_numpy

EXACT = 1e-10
COMPILED = ("layout 1 with everything", "layout 1 with everything, reset after")
"""Of the options with other activations, those whose formulas are compiled where the engine does so."""


def assert_equal_to(actual: Any, desired: Any, *, like: Any = None, rtol: float = EXACT) -> None:
    """Each field, also whether it is None."""
    for field, values in desired._asdict().items():
        if values is None:
            assert getattr(actual, field) is None, field
        else:
            assert_close(getattr(actual, field), values, like=like, rtol=rtol, label=field)


@each_option()
def test_float64_against_autograd_with_every_combination_of_cotangents(
    operator: Operator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    case = option_case(operator, name)
    if "activations" in case.attributes and name not in COMPILED:
        monkeypatch.setenv("XPGRAD_JIT", "0")  # each choice would be compiled anew
    outputs = run_forward(case)
    for used in some_cotangents(case):
        expected_outputs, expected = autograd(used)
        for field in outputs._fields:
            desired = getattr(expected_outputs, field).detach().numpy()
            assert_close(getattr(outputs, field), desired, rtol=EXACT, label=f"{name}: {field}")
        if not used.cotangents:
            with pytest.raises(ValueError, match="no cotangent is given"):
                run_gradient(used, outputs)
            continue
        grads = run_gradient(used, outputs)
        for argument, gradient in named_gradients(used, grads).items():
            given = ", ".join(used.cotangents) or "none"
            label = f"{name}: gradient of {argument}, cotangents: {given}"
            assert_close(gradient, expected[argument], rtol=EXACT, label=label)


@each_activation()
@pytest.mark.parametrize("clip", [None, 0.9])
def test_each_activation_in_each_place(
    operator: Operator, name: str, clip: float | None, interpreted: None
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    more = {"peepholes": True} if operator is LSTM and clip else {}
    case = option_case(operator, name, clip=clip, **more)
    outputs, grads = run(case)
    expected_outputs, expected = autograd(case)
    for field in outputs._fields:
        desired = getattr(expected_outputs, field).detach().numpy()
        assert_close(getattr(outputs, field), desired, rtol=EXACT, label=f"{name}: {field}")
    for argument, gradient in named_gradients(case, grads).items():
        assert_close(gradient, expected[argument], rtol=EXACT, label=f"{name}: gradient of {argument}")


@each_option(activations=True)
def test_naive_backward_against_autograd(operator: Operator, name: str) -> None:
    """The references are tested as well: with one another, by different means."""
    pytest.importorskip("torch", reason="torch is not installed")
    case = option_case(operator, name)
    _, grads = run_reference(case)
    for argument, desired in autograd(case)[1].items():
        assert_close(
            getattr(grads, operator.fields[argument]), desired, rtol=EXACT, label=f"{name}: {argument}"
        )


@each_option(lambda name: "truncated" not in name)
def test_float64_against_finite_differences(operator: Operator, name: str, interpreted: None) -> None:
    lengths = {"lengths": [2, 0]} if "lengths" in operator.options[name] else {}
    case = option_case(operator, name, T=3, N=2, **lengths)

    def forward(**arguments: Any) -> tuple[Any, ...]:
        outputs = operator.forward(**arguments, **case.integers, **case.attributes)
        return tuple(getattr(outputs, output) for output in operator.outputs)

    def gradient(*cotangents: Any, **arguments: Any) -> dict[str, Any]:
        _, pullback = operator.vjp(**arguments, **case.integers, **case.attributes)
        return dict(named_gradients(case, pullback(*cotangents)))

    label = f"{operator.name} ({name})"
    check_vjp(forward, gradient, case.arguments, operator=label, outputs=operator.outputs)


@each_option()
def test_saved_arrays_that_no_forward_made(operator: Operator, name: str, interpreted: None) -> None:
    """The gradient is a function of the saved arrays that it is given."""
    case = option_case(operator, name)
    rng = np.random.default_rng(5)
    like = run_forward(case)
    # Each gate stays within its activation's values, for which alone slopes are defined: its values change
    # places among the steps and samples of a direction.
    d_axis, H = (2 if case.layout else 1), like.H_all.shape[-1]
    *states, gates = operator.saved
    by_direction = np.moveaxis(getattr(like, gates), d_axis, 0)
    shuffled = rng.permuted(by_direction.reshape(len(by_direction), -1, operator.gates, H), axis=1)
    made_up = {state: rng.standard_normal(like.H_all.shape) for state in states}
    made_up[gates] = np.moveaxis(shuffled.reshape(by_direction.shape), 0, d_axis)
    foreign = like._replace(**made_up)
    grads, expected = run_gradient(case, foreign), gradient_reference(case, foreign)
    assert_equal_to(grads, expected)


@pytest.mark.parametrize("saved", ["H_all", "C_all", "the gates"])
@these_options(
    lstm=["plain", "lengths bidirectional", "clip with peepholes"],
    gru=["plain", "lengths bidirectional", "plain, reset after", "clip, reset after"],
    rnn=["plain", "lengths bidirectional", "clip"],
)
def test_each_saved_array_matters(operator: Operator, name: str, saved: str) -> None:
    """Else the test above would not see it being ignored."""
    case = option_case(operator, name)
    outputs = run_forward(case)
    field = operator.saved[-1] if saved == "the gates" else saved
    if field not in operator.saved:
        return
    before = run_gradient(case, outputs)
    after = run_gradient(case, outputs._replace(**{field: getattr(outputs, field) * 0.9}))
    assert not np.allclose(before.dR, after.dR)


PLACES = {LSTM: (0, 2, 3, 1), GRU: (1, 0, 2), RNN: (0,)}
"""Of each of PyTorch's gates in order (i f g o and r z n), the place in ONNX's (i o f c and z r h)."""


def torch_nn(case: Case, dtype: str = "float64") -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients of PyTorch's module for a case without ONNX's extras, in ONNX's layouts."""
    import torch

    W, R, B = (case.arguments[name] for name in ("W", "R", "B"))
    D, H, rows = R.shape[0], R.shape[2], R.shape[1]
    kind = getattr(torch.nn, case.operator.name.upper())
    module = kind(W.shape[2], H, bidirectional=D == 2, dtype=getattr(torch, dtype))
    to_torch = np.concatenate([np.arange(k * H, (k + 1) * H) for k in PLACES[case.operator]])
    to_onnx = np.argsort(to_torch)
    targets = []
    for d in range(D):
        suffix = "_l0" + "_reverse" * d
        targets += [
            (f"weight_ih{suffix}", W[d]),
            (f"weight_hh{suffix}", R[d]),
            (f"bias_ih{suffix}", B[d, :rows]),
            (f"bias_hh{suffix}", B[d, rows:]),
        ]
    with torch.no_grad():
        for name, values in targets:
            getattr(module, name).copy_(torch.tensor(values[to_torch]))
    names = ("X", *case.operator.states)
    x, *states = (
        torch.tensor(case.arguments[n], dtype=getattr(torch, dtype)).requires_grad_() for n in names
    )
    y, ends = module(x, tuple(states) if case.operator is LSTM else states[0])
    T, N = x.shape[:2]
    found = [y.reshape(T, N, D, H).swapaxes(1, 2), *(ends if case.operator is LSTM else [ends])]
    outputs = dict(zip(case.operator.outputs, found, strict=True))
    cotangents = [torch.tensor(case.cotangents[n], dtype=y.dtype) for n in outputs]
    torch.autograd.backward(list(outputs.values()), cotangents)
    of = [getattr(module, name).grad.double().numpy()[to_onnx] for name, _ in targets]
    gradients = {
        "W": np.stack(of[0::4]),
        "R": np.stack(of[1::4]),
        "B": np.stack([np.concatenate(pair) for pair in zip(of[2::4], of[3::4], strict=True)]),
    }
    gradients |= {n: a.grad.double().numpy() for n, a in zip(names, (x, *states), strict=True)}
    return {name: output.detach().double().numpy() for name, output in outputs.items()}, gradients


def plain_case(operator: Operator, rng: np.random.Generator, **sizes: Any) -> Case:
    """One that PyTorch's modules compute, too."""
    more = {"linear_before_reset": 1} if operator is GRU else {}
    return make_case(operator, rng, **sizes, **more)


@each_operator()
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_against_torch_nn(operator: Operator, direction: str, dtype: str, rng: np.random.Generator) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    case = plain_case(operator, rng, T=7, N=4, I=3, H=5, direction=direction).rounded("float32")
    outputs, gradients = torch_nn(case)
    mine = replace(
        case,
        arguments={k: v.astype(dtype) for k, v in case.arguments.items()},
        cotangents={k: v.astype(dtype) for k, v in case.cotangents.items()},
    )
    forward, grads = run(mine)
    for name, expected in outputs.items():
        assert_close(getattr(forward, name), expected, like=mine.arguments["X"], label=name)
    for name, actual in named_gradients(mine, grads).items():
        assert_close(actual, gradients[name], like=mine.arguments["X"], label=name)


# Error of each array against float64 on the same rounded inputs, relative to its largest value: what is
# allowed at all, and by how much it may exceed the error of PyTorch's module in that dtype on this machine.
HALF = {"float16": (3e-3, 1e-3), "bfloat16": (2.5e-2, 8e-3)}


@each_operator()
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_against_float64_and_the_native_kernel(
    operator: Operator, direction: str, dtype: str
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    allowed, excess = HALF[dtype]
    rng = np.random.default_rng(8)
    sizes = {"T": 20, "N": 4, "I": 6, "H": 8, "scale": 0.4}
    case = plain_case(operator, rng, **sizes, direction=direction).rounded(dtype)
    exact_outputs, exact_gradients = torch_nn(case)
    native_outputs, native_gradients = torch_nn(case, dtype)
    in_half = replace(
        case,
        arguments={k: torch.tensor(v, dtype=getattr(torch, dtype)) for k, v in case.arguments.items()},
        cotangents={k: torch.tensor(v, dtype=getattr(torch, dtype)) for k, v in case.cotangents.items()},
    )
    forward, grads = run(in_half)
    rows = [(n, getattr(forward, n), exact_outputs[n], native_outputs[n]) for n in exact_outputs]
    named = named_gradients(case, grads)
    rows += [(n, named[n], exact_gradients[n], native_gradients[n]) for n in named]
    for name, actual, exact, native in rows:
        assert actual.dtype == getattr(torch, dtype)
        error, native_error = relative_error(to_numpy(actual), exact), relative_error(native, exact)
        assert error <= allowed, f"{name}: {error:.2e}"
        assert error <= native_error + excess, f"{name}: {error:.2e}, torch.nn {native_error:.2e}"


def extras(operator: Operator) -> list[dict[str, Any]]:
    """The operator's own options."""
    return {LSTM: [{"peepholes": True}], GRU: [{}, {"linear_before_reset": 1}], RNN: [{}]}[operator]


@each_operator()
def test_length_is_the_same_as_a_shorter_sequence(operator: Operator, rng: np.random.Generator) -> None:
    """A sequence of length 3 within a batch of 5 steps gives what it gives alone."""
    for more in extras(operator):
        case = make_case(operator, rng, lengths=[3, 5, 1], direction="bidirectional", **more)
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
        for saved in operator.saved:
            assert not np.any(getattr(outputs, saved)[3:, :, 0])
        assert not np.any(grads.dX[3:, 0])


@each_operator()
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_length_zero_passes_states_and_their_cotangents_through(
    operator: Operator, direction: str, backend: Any
) -> None:
    case = make_case(operator, np.random.default_rng(2), lengths=[0, 5, 0], direction=direction).on(backend)
    outputs, grads = run(case)
    empty = backend.array(np.asarray([0, 2]))
    xp = backend.xp
    for state, end in zip(operator.states, operator.outputs[1:], strict=True):
        passed, through = getattr(outputs, end), getattr(grads, operator.fields[state])
        for actual, source in [(passed, case.arguments[state]), (through, case.cotangents[end])]:
            assert_close(xp.take(actual, empty, axis=1), xp.take(source, empty, axis=1), rtol=0)


@each_operator()
def test_all_sequences_empty(operator: Operator, backend: Any) -> None:
    for more in extras(operator):
        case = make_case(operator, np.random.default_rng(2), lengths=[0, 0, 0], clip=1.0, **more)
        for actual, desired in zip(run(case.on(backend)), run_reference(case), strict=True):
            assert_equal_to(actual, desired, like=backend.array(np.zeros(1)), rtol=0)


@each_operator()
@pytest.mark.parametrize("empty", ["T", "N", "both", "I"])
@pytest.mark.parametrize("bare", [True, False])
def test_empty_axes(operator: Operator, empty: str, bare: bool, backend: Any) -> None:
    sizes = {"T": {"T": 0}, "N": {"N": 0}, "both": {"T": 0, "N": 0}, "I": {"I": 0}}[empty]
    for more in extras(operator):
        options = {} if bare else {"direction": "bidirectional", "layout": 1, **more}
        case = make_case(operator, np.random.default_rng(3), **sizes, **options)
        for actual, desired in zip(run(case.on(backend)), run_reference(case), strict=True):
            assert_equal_to(actual, desired, like=backend.array(np.zeros(1)))


@these_options(
    lstm=["plain", "lengths bidirectional", "peepholes", "layout 1 with everything"],
    gru=["plain", "plain, reset after", "lengths bidirectional, reset after", "layout 1 with everything"],
    rnn=["plain", "lengths bidirectional", "layout 1 with everything"],
)
def test_per_sample_equals_single_sample_calls(operator: Operator, name: str, backend: Any) -> None:
    case = option_case(operator, name)
    _, grads = run(replace(case, gradient={"per_sample": True}).on(backend))
    parameters = {operator.fields[p] for p in ("W", "R", "B", "P") if p in operator.fields}
    for n in range(case.samples):
        _, alone = run(case.sample(n).on(backend))
        for field in parameters:
            expected = getattr(alone, field)
            if expected is not None:
                assert_close(getattr(grads, field)[n, ...], expected, label=f"{field} of sample {n}")
    _, whole = run(case.on(backend))
    for field in set(operator.fields.values()) - parameters:
        assert_close(getattr(grads, field), getattr(whole, field), label=field)


@each_operator()
def test_per_sample_matches_the_naive_backward(
    operator: Operator, rng: np.random.Generator, interpreted: None
) -> None:
    for more in extras(operator):
        options = {"lengths": [4, 0, 2], "clip": 0.8, "per_sample": True, "direction": "reverse"}
        case = make_case(operator, rng, **options, **more)
        for actual, desired in zip(run(case), run_reference(case), strict=True):
            assert_equal_to(actual, desired)


@each_operator()
def test_saturated_gates_have_zero_slope_and_nan_flows(operator: Operator, backend: Any) -> None:
    case = make_case(operator, np.random.default_rng(4))
    case.arguments["B"] = np.full_like(case.arguments["B"], 500.0)
    _, grads = run(case.on(backend))
    dB = to_numpy(grads.dB)
    assert np.isfinite(dB).all()
    assert not dB.any()  # sigmoid and tanh are flat there
    if operator is not RNN:  # whose state has no way past the activation
        assert to_numpy(getattr(grads, operator.fields[operator.states[-1]])).all()

    spoiled = make_case(operator, np.random.default_rng(4))
    spoiled.arguments["X"][1, 0, 0] = np.nan
    outputs, grads = run(spoiled.on(backend))
    h_all = to_numpy(outputs.H_all)
    assert np.isfinite(h_all[:, :, 1:]).all()
    assert np.isnan(h_all[1:, :, 0]).all()
    assert np.isfinite(h_all[0]).all()
    assert np.isnan(to_numpy(grads.dW)).any()


KINKS = {
    # activation: (pre-activation of the gate, slope there)
    ("Relu", None, None): (0.0, 0.0),
    ("LeakyRelu", 0.25, None): (0.0, 0.25),
    ("Elu", 0.5, None): (0.0, 0.5),
    ("HardSigmoid", 0.5, 0.5): (1.0, 0.0),
    ("HardSigmoid", 1 / 6, 0.5): (-3.0, 0.0),  # a product that is not rounded before the sum misses 0
    ("ThresholdedRelu", 0.5, None): (0.5, 0.0),
    # no kink, but a value that two branches share
    ("ThresholdedRelu", -0.5, None): (0.0, 1.0),
}


@pytest.mark.parametrize(("activation", "point"), KINKS.items(), ids=lambda value: f"{value[0]} {value[1]}")
def test_slopes_at_kinks_of_the_lstm(
    activation: tuple[str, Any, Any], point: tuple[float, float], backend: Any
) -> None:
    """One step of width 1 whose cell gate sits on the kink of g."""
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
        LSTM,
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


@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize(("activation", "point"), KINKS.items(), ids=lambda value: f"{value[0]} {value[1]}")
def test_slopes_at_kinks_of_the_gru(
    activation: tuple[str, Any, Any], point: tuple[float, float], reset: int, backend: Any, interpreted: None
) -> None:
    """One step of width 1 whose candidate sits on the kink of g; z = r = 1/4.

    Without compiling: the activations' compiled formulas are those of the LSTM.
    """
    name, alpha, beta = activation
    pre, slope = point
    arguments = {
        "X": np.zeros((1, 1, 1)),
        "W": np.zeros((1, 3, 1)),
        "R": np.zeros((1, 3, 1)),
        "B": np.asarray([[0.0, 0.0, pre, 0.0, 0.0, 0.0]]),
    }
    attributes = {
        "activations": ["Affine", name],
        "activation_alpha": [0.0, *([] if alpha is None else [alpha])],
        "activation_beta": [0.25, *([] if beta is None else [beta])],
        "linear_before_reset": reset,
    }
    case = Case(GRU, arguments, {}, attributes, {"H_t": np.asarray([[[2.0]]])})
    _, grads = run(case.on(backend))
    assert float(grads.dB[0, 2]) == 2.0 * 0.75 * slope
    assert float(grads.dB[0, 5]) == 2.0 * 0.75 * slope * (0.25 if reset else 1.0)


@pytest.mark.parametrize("gate", [0, 1])
@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize("bias", [0.5, -0.5])
def test_clip_bounds_each_gate_of_the_gru(
    bias: float, reset: int, gate: int, backend: Any, interpreted: None
) -> None:
    """At the bound the cotangent passes, beyond it does not: f and g are the identity."""
    arguments = {
        "X": np.zeros((1, 1, 1)),
        "W": np.zeros((1, 3, 1)),
        "R": np.asarray([[[0.0], [0.0], [0.125]]]),
        "B": np.zeros((1, 6)),
        "initial_h": np.ones((1, 1, 1)),
    }
    arguments["B"][0, gate] = bias
    attributes = {"activations": ["Affine", "Affine"], "linear_before_reset": reset}
    for clip, slope in [(0.5, 1.0), (0.49, 0.0)]:
        case = Case(GRU, arguments, {}, {**attributes, "clip": clip}, {"H_t": np.asarray([[[2.0]]])})
        outputs, grads = run(case.on(backend))
        assert float(outputs.zrh[0, 0, 0, gate]) == pytest.approx(np.clip(bias, -clip, clip))
        # h = (1 - z) n + z h': by z it is h' - n, by r it is R_h
        z, r, n = (float(outputs.zrh[0, 0, 0, k]) for k in range(3))
        expected = (1.0 - n) if gate == 0 else (1 - z) * 0.125
        assert n == pytest.approx(0.125 * r)
        assert float(grads.dB[0, gate]) == pytest.approx(2.0 * slope * expected)


def test_slope_of_h_where_two_branches_share_a_value(backend: Any) -> None:
    """ThresholdedRelu with a negative threshold lets 0 through as 0: the slope there is 1."""
    arguments = {"X": np.zeros((1, 1, 1)), "W": np.zeros((1, 4, 1)), "R": np.zeros((1, 4, 1))}
    attributes = {"activations": ["Sigmoid", "Tanh", "ThresholdedRelu"], "activation_alpha": [-0.5]}
    case = Case(LSTM, arguments, {}, attributes, {"H_t": np.asarray([[[2.0]]])})
    _, grads = run(case.on(backend))
    assert float(grads.dC0[0, 0, 0]) == 2.0 * 0.5 * 1.0 * 0.5  # o, the slope, f


@pytest.mark.parametrize("bias", [0.5, -0.5])
def test_clip_passes_the_cotangent_at_its_bounds_of_the_lstm(bias: float, backend: Any) -> None:
    arguments = {
        "X": np.zeros((1, 1, 1)),
        "W": np.zeros((1, 4, 1)),
        "R": np.zeros((1, 4, 1)),
        "B": np.asarray([[0.0, 0.0, 0.0, bias, 0.0, 0.0, 0.0, 0.0]]),
    }
    attributes = {"activations": ["Affine"] * 3, "activation_alpha": [0.0, 1.0, 1.0]}
    attributes["activation_beta"] = [1.0, 0.0, 0.0]
    for clip, slope in [(0.5, 1.0), (0.49, 0.0)]:
        case = Case(LSTM, arguments, {}, {**attributes, "clip": clip}, {"H_t": np.asarray([[[2.0]]])})
        _, grads = run(case.on(backend))
        assert float(grads.dB[0, 3]) == 2.0 * slope


def test_clip_does_not_bound_the_input_of_h(rng: np.random.Generator) -> None:
    case = make_case(LSTM, rng, clip=0.3)
    case.arguments["initial_c"] = case.arguments["initial_c"] + 3.0
    assert np.abs(run_forward(case).C_all).max() > 1
    expected = LSTM.forward_reference(**case.arguments, **case.attributes)
    assert_close(run_forward(case).H_all, expected.H_all)
