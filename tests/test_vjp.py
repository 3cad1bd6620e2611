"""`xpgrad.vjp`."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import Backend
from recurrent_cases import (
    GRU,
    LSTM,
    RNN,
    Case,
    Operator,
    each_operator,
    make_case,
    run,
    run_forward,
    run_gradient,
)
from xpgrad.testing import assert_close


@pytest.fixture
def case(rng: np.random.Generator) -> Case:
    return case_of(LSTM, rng)


def case_of(operator: Operator, rng: np.random.Generator) -> Case:
    more: dict[str, Any] = {LSTM: {"peepholes": True}, GRU: {"linear_before_reset": 1}}.get(operator, {})
    return make_case(operator, rng, lengths=[5, 0, 2], direction="reverse", **more)


def vjp_of(case: Case, **more: Any) -> tuple[Any, Any]:
    return case.operator.vjp(**case.arguments, **case.integers, **case.attributes, **more)


@each_operator()
def test_is_the_forward_and_the_gradient(
    operator: Operator, rng: np.random.Generator, backend: Backend
) -> None:
    here = case_of(operator, rng).on(backend)
    outputs, pullback = vjp_of(here)
    grads = pullback(*(here.cotangents[name] for name in operator.outputs))
    expected_outputs, expected = run(here)
    for field in outputs._fields:
        assert_close(getattr(outputs, field), getattr(expected_outputs, field), rtol=0, label=field)
    for field in operator.fields.values():
        assert_close(getattr(grads, field), getattr(expected, field), rtol=0, label=field)


@each_operator()
@pytest.mark.parametrize("kind", ["array", "list"])
def test_lengths_may_change_before_the_pullback(
    operator: Operator, kind: str, rng: np.random.Generator, backend: Backend
) -> None:
    """The pullback has those of the forward."""
    here = case_of(operator, rng).on(backend)
    _, pullback = vjp_of(here)
    lengths: Any = np.asarray([5, 0, 2])
    if kind == "list":
        lengths = lengths.tolist()
    arguments = {**here.arguments, **here.integers, **here.attributes, "sequence_lens": lengths}
    _, later = operator.vjp(**arguments)
    lengths[:] = [1, 1, 1]
    cotangents = [here.cotangents[name] for name in operator.outputs]
    got, expected = later(*cotangents), pullback(*cotangents)
    for field in operator.fields.values():
        assert_close(getattr(got, field), getattr(expected, field), rtol=1e-12, atol=1e-13, label=field)


ORDER = {
    LSTM: ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    GRU: ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    RNN: ("X", "W", "R", "B", "sequence_lens", "initial_h"),
}


@each_operator()
def test_takes_arguments_by_position(operator: Operator, rng: np.random.Generator) -> None:
    case = case_of(operator, rng)
    positional = [{**case.arguments, **case.integers}[name] for name in ORDER[operator]]
    outputs, pullback = operator.vjp(*positional, **case.attributes)
    assert np.array_equal(outputs.H_all, run_forward(case).H_all)
    grads = pullback(grad_H_t=case.cotangents["H_t"])
    last_only = replace(case, cotangents={"H_t": case.cotangents["H_t"]})
    expected = run_gradient(last_only, run_forward(case))
    for field in operator.fields.values():
        assert np.array_equal(getattr(grads, field), getattr(expected, field))


@each_operator()
@pytest.mark.parametrize("given", [("H_all",), ("C_t",), ("H_t",), ("H_t", "C_t")])
def test_cotangents_by_name_and_by_position(
    operator: Operator, given: tuple[str, ...], rng: np.random.Generator
) -> None:
    case = case_of(operator, rng)
    given = tuple(name for name in given if name in operator.outputs) or ("H_t",)
    _, pullback = vjp_of(case)
    by_position = pullback(*(case.cotangents[name] if name in given else None for name in operator.outputs))
    by_name = pullback(**{f"grad_{name}": case.cotangents[name] for name in given})
    for field in operator.fields.values():
        assert np.array_equal(getattr(by_name, field), getattr(by_position, field))
        assert np.any(getattr(by_name, field))


@each_operator()
def test_one_cotangent_at_least_is_given(operator: Operator, rng: np.random.Generator) -> None:
    """A gradient of zeros would look like a result."""
    case = case_of(operator, rng)
    _, pullback = vjp_of(case)
    names = ", ".join(f"grad_{name}" for name in operator.outputs)
    for given in ({}, {"grad_H_t": None}):
        with pytest.raises(ValueError, match=f"no cotangent is given, expected one or more of {names}"):
            pullback(**given)
    with pytest.raises(ValueError, match="_grad: no cotangent is given, expected one or more of grad_H_all"):
        run_gradient(replace(case, cotangents={}), run_forward(case))


@pytest.mark.parametrize("engine", [None, "standard"])
def test_no_kernel_has_a_gradient_without_a_cotangent(engine: str | None) -> None:
    """Functions with one output need it; their names for it are in the message."""
    x, h = np.ones((2, 3)), np.ones((2, 3))
    W, R = np.ones((12, 3)), np.ones((12, 3))
    calls = {
        "grad_H, grad_C": lambda: xpgrad.vjp(xpgrad.lstm_cell, x, h, h, W, R)[1](),
        "grad_H": lambda: xpgrad.vjp(xpgrad.gru_cell, x, h, W[:9], R[:9])[1](),
        "dY": lambda: xpgrad.vjp(xpgrad.relu, x)[1](),
        "dY ": lambda: xpgrad.vjp(xpgrad.softmax_cross_entropy, x, np.asarray([0, 1]))[1](None),
        "grad_H ": lambda: xpgrad.rnn_cell_grad(x, h, W[:3], R[:3], H_next=h),
        "grad_H, grad_C ": lambda: xpgrad.lstm_cell_grad(
            x, h, h, W, R, C_next=h, iofc=np.ones((2, 12))
        ),
    }  # fmt: skip
    with xpgrad.use_engine(engine):
        for names, call in calls.items():
            with pytest.raises(
                ValueError, match=f"no cotangent is given, expected one or more of {names.strip()}(\n|$)"
            ):
                call()
        with pytest.raises(TypeError, match="relu_grad: dY is None, expected an array"):
            xpgrad.relu_grad(None, x)


def test_can_be_pulled_back_again(case: Case) -> None:
    _, pullback = vjp_of(case)
    first = pullback(case.cotangents["H_all"])
    pullback(None, case.cotangents["H_t"])
    again = pullback(case.cotangents["H_all"])
    assert np.array_equal(first.dR, again.dR)


def test_passes_on_what_only_the_gradient_takes(case: Case) -> None:
    full, truncated = (
        vjp_of(case, peephole=peephole)[1](case.cotangents["H_all"]) for peephole in ("full", "truncated")
    )
    assert not np.allclose(full.dW, truncated.dW)
    few = vjp_of(case, wrt=("R",))[1](case.cotangents["H_all"])
    assert np.array_equal(few.dR, full.dR)
    assert few.dW is None
    alone = vjp_of(case, per_sample=True)[1](case.cotangents["H_all"])
    assert alone.dW.shape == (3, *full.dW.shape)


def test_saved_outputs_have_no_cotangent(case: Case) -> None:
    outputs, pullback = vjp_of(case)
    cotangents = [None] * 4 + [np.ones(outputs.iofc.shape)]
    message = (
        "^vjp: pullback of lstm got a cotangent for a saved output, "
        "expected cotangents of H_all, H_t, C_t, C_all only(?m:$)"
    )
    with pytest.raises(ValueError, match=message):
        pullback(*cotangents)


def test_all_five_cotangents_may_be_passed_where_the_saved_ones_are_none(case: Case) -> None:
    _, pullback = vjp_of(case)
    grads = pullback(case.cotangents["H_all"], None, None, None, None)
    assert np.array_equal(grads.dW, pullback(case.cotangents["H_all"]).dW)


def test_too_many_cotangents(case: Case) -> None:
    _, pullback = vjp_of(case)
    message = (
        "^vjp: pullback of lstm got 6 cotangents, "
        "expected at most 4: grad_H_all, grad_H_t, grad_C_t, grad_C_all(?m:$)"
    )
    with pytest.raises(TypeError, match=message):
        pullback(*[None] * 6)


def test_a_cotangent_of_no_output(case: Case) -> None:
    _, pullback = vjp_of(case)
    with pytest.raises(
        TypeError, match=r"got 'grad_H' that is no cotangent of lstm, expected each of grad_H_all"
    ):
        pullback(grad_H=case.cotangents["H_all"])


def test_the_same_cotangent_twice(case: Case) -> None:
    _, pullback = vjp_of(case)
    message = (
        "^vjp: pullback of lstm got 'grad_H_all' twice, "
        "expected each of grad_H_all, grad_H_t, grad_C_t, grad_C_all at most once(?m:$)"
    )
    with pytest.raises(TypeError, match=message):
        pullback(case.cotangents["H_all"], grad_H_all=case.cotangents["H_all"])


def test_a_cotangent_of_another_shape(case: Case) -> None:
    _, pullback = vjp_of(case)
    message = r"^lstm_grad: grad_H_t has shape \(2, 2\), expected \(D, N, H\) = \(1, 3, 4\)(?m:$)"
    with pytest.raises(ValueError, match=message):
        pullback(grad_H_t=np.zeros((2, 2)))


def test_functions_without_a_rule() -> None:
    with pytest.raises(TypeError, match=r"^vjp: fn is 'tanh', expected a Cell or one of [a-z_, ]+(?m:$)"):
        xpgrad.vjp(np.tanh, np.zeros(2))


def test_results_in_the_place_of_the_function() -> None:
    """An array has no hash, so no table finds it."""
    shown = r"expected a function, and its arguments behind it: vjp\(lstm, X, W, R\)(?m:$)"
    for fn, kind in ((xpgrad.relu(np.zeros(2)), "ndarray"), ([1], "list"), ("lstm", "str")):
        with pytest.raises(TypeError, match=f"^vjp: fn is a {kind}, {shown}"):
            xpgrad.vjp(fn)


def test_arguments_that_the_kernel_does_not_take(case: Case) -> None:
    with pytest.raises(TypeError, match=r"^vjp: lstm: got an unexpected keyword argument 'H0'"):
        vjp_of(case, H0=case.arguments["initial_h"])
    with pytest.raises(TypeError, match=r"^vjp: lstm: missing a required argument: 'X'"):
        xpgrad.vjp(xpgrad.lstm)


ONE_OUTPUT = ["relu", "leaky_relu", "sigmoid", "tanh", "gelu", "softmax", "log_softmax"]


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_kernels_of_one_output(name: str, rng: np.random.Generator, backend: Backend) -> None:
    X, dY = (backend.array(rng.normal(size=(3, 4))) for _ in range(2))
    forward, gradient = getattr(xpgrad, name), getattr(xpgrad, f"{name}_grad")
    Y, pullback = xpgrad.vjp(forward, X)
    assert_close(Y, forward(X), rtol=1e-15)
    saved = Y if "Y" in gradient.__code__.co_varnames else X
    for dX in (pullback(dY), pullback(dY=dY)):
        assert_close(dX, gradient(dY, saved), rtol=1e-15)


def test_options_of_kernels_of_one_output(rng: np.random.Generator) -> None:
    X, dY = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    Y, pullback = xpgrad.vjp(xpgrad.softmax, X, axis=0, flatten=True)
    assert_close(pullback(dY), xpgrad.softmax_grad(dY, Y, axis=0, flatten=True), rtol=0)
    slope, labels = np.asarray([0.2]), np.asarray([1, 3, 0])
    _, pullback = xpgrad.vjp(xpgrad.prelu, X, slope, wrt="slope")
    assert pullback(dY).dX is None
    assert_close(pullback(dY).dslope, xpgrad.prelu_grad(dY, X, slope).dslope, rtol=0)
    _, pullback = xpgrad.vjp(xpgrad.softmax_cross_entropy, X, labels, reduction="sum", label_smoothing=0.1)
    one = np.asarray(1.0)
    expected = xpgrad.softmax_cross_entropy_grad(one, X, labels, reduction="sum", label_smoothing=0.1)
    assert_close(pullback(one), expected, rtol=0)


def test_out_of_kernels_of_one_output(rng: np.random.Generator) -> None:
    X, dY, out = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), np.empty((3, 4))
    Y, pullback = xpgrad.vjp(xpgrad.silu, X, out=out)
    assert Y is out
    before = out.copy()
    assert_close(pullback(dY), xpgrad.silu_grad(dY, X), rtol=0)
    assert_close(out, before, rtol=0)
    for same in (X, X[:], X[:2]):
        with pytest.raises(ValueError, match=r"vjp: out is an input, or shares its memory, expected another"):
            xpgrad.vjp(xpgrad.silu, X, out=same)
    assert_close(xpgrad.vjp(xpgrad.silu, X[:1], out=X[1:2])[0], xpgrad.silu(X[:1]), rtol=0)


def test_out_that_shares_memory_of_tensors(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    memory = torch.from_numpy(rng.normal(size=(4, 3))).to(torch.bfloat16)
    with pytest.raises(ValueError, match="shares its memory"):
        xpgrad.vjp(xpgrad.silu, memory[:2], out=memory[1:3])
    xpgrad.vjp(xpgrad.silu, memory[:2], out=memory[2:])
    xpgrad.vjp(xpgrad.silu, memory[:, :1], out=memory[:, 1:2])  # between each other
    own = rng.normal(size=(4, 6))
    xpgrad.vjp(xpgrad.silu, own[:, :3], out=own[:, 3:])


def test_masks_of_lengths_are_refused(rng: np.random.Generator) -> None:
    X, W, R = (rng.normal(size=s) for s in [(4, 2, 3), (1, 20, 3), (1, 20, 5)])
    with pytest.raises(TypeError, match="lstm: sequence_lens is a MaskedArray"):
        xpgrad.vjp(xpgrad.lstm, X, W, R, sequence_lens=np.ma.array([4, 3], mask=[0, 1]))


def test_pullbacks_keep_what_they_were_given(rng: np.random.Generator) -> None:
    """Iterators are not used up, and later changes of the caller's lists have no effect."""
    X, W, R = (rng.normal(size=s) for s in [(4, 2, 3), (1, 20, 3), (1, 20, 5)])
    wrt, activations = ["X"], ["Sigmoid", "Tanh", "Tanh"]
    outputs, pullback = xpgrad.vjp(xpgrad.lstm, X, W, R, wrt=wrt, activations=activations)
    expected = pullback(outputs.H_all).dX
    wrt[0], activations[0] = "R", "Relu"
    assert_close(pullback(outputs.H_all).dX, expected, rtol=0)
    lengths = array("q", [4, 2])
    shorter, pullback = xpgrad.vjp(xpgrad.lstm, X, W, R, sequence_lens=lengths)
    found = pullback(shorter.H_all).dX
    lengths[0] = 1
    assert_close(pullback(shorter.H_all).dX, found, rtol=0)
    _, pullback = xpgrad.vjp(xpgrad.lstm, X, W, R, wrt=(name for name in ["X"]))
    for _ in range(2):
        assert_close(pullback(outputs.H_all).dX, expected, rtol=0)


@pytest.mark.parametrize(
    ("adapter", "instead"), [("xpgrad_jax", "jax.vjp"), ("xpgrad_torch.functional", "PyTorch's autograd")]
)
def test_an_adapter_s_function_names_what_to_use(adapter, instead):
    module = pytest.importorskip(adapter, reason="its framework is not installed")
    words = f"vjp: fn is {adapter.split('.')[0]}'s lstm, expected a function of xpgrad: {instead}"
    with pytest.raises(TypeError, match=words):
        xpgrad.vjp(module.lstm, np.ones(3))
