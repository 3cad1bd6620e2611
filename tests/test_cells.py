"""The single-step cells: equal to sequences of one step, to the references, and to PyTorch's cells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import Backend
from recurrent_cases import (
    GRU,
    LSTM,
    OPERATORS,
    RNN,
    Case,
    Operator,
    autograd,
    each_operator,
    each_option,
    gradient_reference,
    option_case,
    run,
    these_options,
)
from xpgrad.testing import assert_close, to_numpy

NAMES = {"initial_h": "H", "initial_c": "C"}
OUTPUTS = {LSTM: {"H_next": "H_t", "C_next": "C_t"}, GRU: {"H_next": "H_t"}, RNN: {"H_next": "H_t"}}
SAVED = {LSTM: ("C_next", "iofc"), GRU: ("zrh",), RNN: ("H_next",)}
ORDER = {
    LSTM: ("X", "H", "C", "W", "R", "B", "P"),
    GRU: ("X", "H", "W", "R", "B"),
    RNN: ("X", "H", "W", "R", "B"),
}
N, I, H = 3, 2, 4


def concerns_cells(name: str) -> bool:
    """Whether an option is one of a step."""
    return not re.search("lengths|reverse|bidirectional|layout|two directions|states|optional", name)


def sequence_of_one_step(operator: Operator, name: str) -> Case:
    case = option_case(operator, name, T=1, direction="forward", lengths=None)
    step_only = {k: v for k, v in case.attributes.items() if k != "direction"}
    cotangents = {k: v for k, v in case.cotangents.items() if k != "H_all"}
    return replace(case, attributes=step_only, cotangents=cotangents)


def cell_arguments(case: Case) -> dict[str, Any]:
    """The sequence's arguments without the axes of time and direction."""
    return {NAMES.get(name, name): array[0, ...] for name, array in case.arguments.items()}


def cell_cotangents(case: Case) -> dict[str, Any]:
    return {f"grad_{end[0]}": array[0, ...] for end, array in case.cotangents.items()}


def run_cell(case: Case, **more: Any) -> tuple[Any, Any]:
    """The cell's forward and gradient."""
    operator, arguments = case.operator, cell_arguments(case)
    outputs = getattr(xpgrad, f"{operator.name}_cell")(**arguments, **case.attributes)
    saved = {name: getattr(outputs, name) for name in SAVED[operator]}
    inputs = {**arguments, **saved, **case.attributes, **case.gradient, **cell_cotangents(case), **more}
    return outputs, getattr(xpgrad, f"{operator.name}_cell_grad")(**inputs)


def expected_of_cell(case: Case, outputs: Any, gradients: Mapping[str, Any]) -> dict[str, Any]:
    """A sequence's results under the cell's names; `gradients` by argument."""
    expected = {name: getattr(outputs, end)[0, ...] for name, end in OUTPUTS[case.operator].items()}
    if case.operator is not RNN:  # which saves its output alone
        gates = case.operator.saved[-1]
        expected[gates] = getattr(outputs, gates)[0, 0, ...]
    return expected | {f"d{NAMES.get(name, name)}": g[0, ...] for name, g in gradients.items()}


def assert_cell(case: Case, expected: Mapping[str, Any], rtol: float) -> None:
    outputs, grads = run_cell(case)
    results = {**outputs._asdict(), **grads._asdict()}
    for name, desired in expected.items():
        assert_close(results[name], desired, rtol=rtol, label=name)


@each_option(concerns_cells)
def test_equals_a_sequence_of_one_step(operator: Operator, name: str, interpreted: None) -> None:
    case = sequence_of_one_step(operator, name)
    outputs, grads = run(case)
    gradients = {n: getattr(grads, operator.fields[n]) for n in case.arguments}
    assert_cell(case, expected_of_cell(case, outputs, gradients), 1e-14)


@each_option(concerns_cells, activations=True)
def test_float64_against_autograd(operator: Operator, name: str, interpreted: None) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    case = sequence_of_one_step(operator, name)
    outputs, gradients = autograd(case)
    outputs = type(outputs)(*(to_numpy(array) for array in outputs))
    assert_cell(case, expected_of_cell(case, outputs, gradients), 1e-10)


@these_options(
    lstm=["plain", "clip with peepholes"], gru=["plain", "clip, reset after"], rnn=["plain", "clip"]
)
def test_every_combination_of_cotangents(operator: Operator, name: str) -> None:
    case = sequence_of_one_step(operator, name)
    outputs = operator.forward_reference(**case.arguments, **case.attributes)
    for given in itertools.product((True, False), repeat=len(case.cotangents)):
        few = {k: v for (k, v), g in zip(case.cotangents.items(), given, strict=True) if g}
        used = replace(case, cotangents=few)
        grads = gradient_reference(used, outputs)
        gradients = {n: getattr(grads, operator.fields[n]) for n in case.arguments}
        expected = expected_of_cell(used, outputs, gradients)
        if any(given):
            assert_cell(used, expected, 1e-10)
        else:
            with pytest.raises(ValueError, match="no cotangent is given"):
                assert_cell(used, expected, 1e-10)


@these_options(
    lstm=["plain", "clip with peepholes", "input_forget with peepholes"],
    gru=["plain", "plain, reset after", "clip"],
    rnn=["plain", "clip"],
)
def test_results_and_their_kind(operator: Operator, name: str, backend: Backend) -> None:
    case = sequence_of_one_step(operator, name)
    outputs = operator.forward_reference(**case.arguments, **case.attributes)
    grads = gradient_reference(case, outputs)
    expected = expected_of_cell(
        case, outputs, {n: getattr(grads, operator.fields[n]) for n in case.arguments}
    )
    for dtype in ("float64", "float32"):
        here = case.on(backend, dtype)
        before = [to_numpy(array).tobytes() for array in here.arguments.values()]
        outputs, grads = run_cell(here)
        results = {**outputs._asdict(), **grads._asdict()}
        for field, desired in expected.items():
            label = f"{dtype}: {field}"
            like = here.arguments["X"]
            assert_close(results[field], desired, like=like, label=label)
        assert [to_numpy(array).tobytes() for array in here.arguments.values()] == before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@each_operator()
def test_half_precision(operator: Operator, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = sequence_of_one_step(operator, "plain").rounded(dtype)
    outputs = operator.forward_reference(**case.arguments)
    grads = gradient_reference(case, outputs)
    expected = expected_of_cell(
        case, outputs, {n: getattr(grads, operator.fields[n]) for n in case.arguments}
    )

    def narrow(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {k: torch.tensor(v, dtype=getattr(torch, dtype)) for k, v in arrays.items()}

    here = replace(case, arguments=narrow(case.arguments), cotangents=narrow(case.cotangents))
    outputs, grads = run_cell(here)
    results = {**outputs._asdict(), **grads._asdict()}
    for field, desired in expected.items():
        assert_close(results[field], desired, like=here.arguments["X"], label=field)


@pytest.mark.parametrize("reset", [None, 0, 1])
def test_saved_gates_that_no_forward_made(reset: int | None, rng: np.random.Generator) -> None:
    """The gradient is a function of what it is given; None stands for the LSTM's cell."""
    operator = LSTM if reset is None else GRU
    case = sequence_of_one_step(operator, "plain")
    case = case if reset is None else replace(case, attributes={"linear_before_reset": reset})
    outputs = operator.forward_reference(**case.arguments, **case.attributes)
    made_up = {name: rng.uniform(0.1, 0.9, getattr(outputs, name).shape) for name in operator.saved}
    expected = gradient_reference(case, outputs._replace(**made_up))
    given = {"C_next": made_up["C_all"][0, 0], "iofc": made_up["iofc"][0, 0]} if operator is LSTM else {}
    given = given or {"zrh": made_up["zrh"][0, 0]}
    _, grads = run_cell(case, **given)
    for name in case.arguments:
        desired = getattr(expected, operator.fields[name])[0]
        assert_close(getattr(grads, f"d{NAMES.get(name, name)}"), desired, label=name)


@each_operator()
def test_steps_chain_to_the_sequence(operator: Operator, backend: Backend) -> None:
    """A loop of cells, forwards and back, is the sequence kernel."""
    T = 4
    case = option_case(operator, "plain", T=T).on(backend)
    outputs, grads = run(case)
    cell, cell_grad = (getattr(xpgrad, f"{operator.name}_cell{suffix}") for suffix in ("", "_grad"))
    weights = {n: case.arguments[n][0, ...] for n in ("W", "R", "B")}
    states = {NAMES[n]: case.arguments[n][0, ...] for n in operator.states}
    steps = []
    for t in range(T):
        given = {"X": case.arguments["X"][t, ...], **states, **weights}
        out = cell(**given)
        steps.append((given, {name: getattr(out, name) for name in SAVED[operator]}))
        states = {name: getattr(out, f"{name}_next") for name in states}
        assert_close(out.H_next, outputs.H_all[t, 0, ...], rtol=1e-12)
    back = {f"grad_{end[0]}": array[0, ...] for end, array in case.cotangents.items() if end != "H_all"}
    total = 0
    for t in reversed(range(T)):
        given, saved = steps[t]
        back["grad_H"] = back["grad_H"] + case.cotangents["H_all"][t, 0, ...]
        found = cell_grad(**given, **saved, **back)
        assert_close(found.dX, grads.dX[t, ...], label=f"dX at {t}")
        total = total + found.dR
        back = {f"grad_{name}": getattr(found, f"d{name}") for name in states}
    assert_close(total, grads.dR[0, ...], label="dR")
    assert_close(back["grad_H"], grads.dH0[0, ...], label="dH0")


@each_operator()
def test_wrt_gives_the_same_and_nothing_else(operator: Operator, backend: Backend) -> None:
    name = {LSTM: "peepholes", GRU: "plain, reset after", RNN: "plain"}[operator]
    case = sequence_of_one_step(operator, name).on(backend)
    _, whole = run_cell(case)
    for wrt in [*((argument,) for argument in ORDER[operator]), ("X", "W"), ("H", "B"), ()]:
        _, grads = run_cell(case, wrt=wrt)
        for argument in ORDER[operator]:
            field = f"d{argument}"
            if argument in wrt:
                assert_close(getattr(grads, field), getattr(whole, field), rtol=1e-13, label=field)
            else:
                assert getattr(grads, field) is None


@each_operator()
def test_empty_batch(operator: Operator) -> None:
    case = option_case(operator, "plain", T=1, N=0)
    case = replace(case, cotangents={k: v for k, v in case.cotangents.items() if k != "H_all"})
    outputs, grads = run_cell(case)
    assert outputs.H_next.shape == (0, H)
    assert grads.dX.shape == (0, I)
    for parameter in ("dW", "dR", "dB"):
        assert not np.any(getattr(grads, parameter))


@each_operator()
def test_vjp(operator: Operator) -> None:
    case = sequence_of_one_step(operator, "plain")
    outputs, expected = run_cell(case)
    cell = getattr(xpgrad, f"{operator.name}_cell")
    positional = [cell_arguments(case)[name] for name in ORDER[operator] if name != "P"]
    again, pullback = xpgrad.vjp(cell, *positional)
    for name in outputs._fields:
        assert np.array_equal(getattr(again, name), getattr(outputs, name))
    cotangents = cell_cotangents(case)
    for grads in (pullback(*cotangents.values()), pullback(**cotangents)):
        for name, desired in expected._asdict().items():
            assert desired is None or np.array_equal(getattr(grads, name), desired)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
def test_shapes_are_named_without_time_and_direction(operator: Operator, gradient: bool) -> None:
    case = sequence_of_one_step(operator, "peepholes" if operator is LSTM else "plain")
    G = operator.gates
    rows, sizes = G * H, "H" if G == 1 else f"{G}H"
    bad = {
        "X": (np.zeros((1, N, I)), f"X has 3 dimensions with shape (1, {N}, {I}), expected 2, (N, I)"),
        "W": (np.zeros((rows, 5)), f"W has shape ({rows}, 5), expected ({sizes}, I) = ({rows}, {I})"),
        "R rank": (
            np.zeros((1, rows, H)),
            f"R has 3 dimensions with shape (1, {rows}, {H}), expected 2, ({sizes}, H)",
        ),
        "W rank": (np.zeros(rows), f"W has 1 dimensions with shape ({rows},), expected 2, ({sizes}, I)"),
        "R": (np.zeros((7, H)), f"R has shape (7, {H}), expected ({sizes}, H) = ({rows}, {H})"),
        "B": (np.zeros(rows), f"B has shape ({rows},), expected ({2 * G}H,) = ({2 * rows},)"),
        "H": (np.zeros((N, 5)), f"H has shape ({N}, 5), expected (N, H) = ({N}, {H})"),
    }
    if operator is LSTM:
        bad["C"] = (np.zeros((2, H)), f"C has shape (2, {H}), expected (N, H) = ({N}, {H})")
        bad["P"] = (np.zeros(rows), f"P has shape ({rows},), expected (3H,) = ({3 * H},)")
    name = f"{operator.name}_cell"
    outputs, _ = run_cell(case)
    saved = {n: getattr(outputs, n) for n in SAVED[operator]} if gradient else {}
    if gradient:
        name += "_grad"
        saved["grad_H"] = np.ones((N, H))
        saved_last = SAVED[operator][-1]
        bad[saved_last] = (
            np.zeros((N, 9)),
            f"{saved_last} has shape ({N}, 9), expected (N, {sizes}) = ({N}, {rows})",
        )
        bad["grad_H"] = (np.zeros(H), f"grad_H has shape ({H},), expected (N, H) = ({N}, {H})")
    kernel = getattr(xpgrad, name)
    for argument, (array, message) in bad.items():
        with pytest.raises(ValueError, match="^" + re.escape(f"{name}: {message}") + "(?m:$)"):
            kernel(**{**cell_arguments(case), **saved, argument.partition(" ")[0]: array})
    with pytest.raises(TypeError, match=rf"^{name}: H is None, expected an array(?m:$)"):
        kernel(**{**cell_arguments(case), **saved, "H": None})
    with pytest.raises(TypeError, match=rf"^{name}: W is a list, expected an array(?m:$)"):
        kernel(**{**cell_arguments(case), **saved, "W": [[1.0]]})
    with pytest.raises(ValueError, match=rf"^{name}: clip is -1\.0, expected None or a number > 0(?m:$)"):
        kernel(**cell_arguments(case), **saved, clip=-1.0)


@each_operator()
def test_wrt_by_the_cells_own_names(operator: Operator) -> None:
    case = sequence_of_one_step(operator, "plain")
    expected = ", ".join(map(repr, ORDER[operator]))
    message = f"^{operator.name}_cell_grad: wrt has 'initial_h', expected names of {expected}(?m:$)"
    with pytest.raises(ValueError, match=message):
        run_cell(case, wrt=("X", "initial_h"))
    if operator is LSTM:
        with pytest.raises(
            ValueError, match=r"^lstm_cell_grad: wrt has 'P', expected P to be given, it is None(?m:$)"
        ):
            run_cell(case, wrt=["P"])


@each_operator()
@pytest.mark.parametrize("bias", [True, False])
def test_against_pytorchs_cells(operator: Operator, bias: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(3)
    kind = getattr(torch.nn, f"{operator.name.upper()}Cell")  # RNNCell is tanh
    module = kind(I, H, bias=bias, dtype=torch.float64)
    case = sequence_of_one_step(operator, "plain, reset after" if operator is GRU else "plain")
    given, cotangents = cell_arguments(case), cell_cotangents(case)
    states = [torch.tensor(given[NAMES[name]], requires_grad=True) for name in operator.states]
    x = torch.tensor(given["X"], requires_grad=True)
    ends = module(x, tuple(states) if operator is LSTM else states[0])
    ends = ends if operator is LSTM else (ends,)
    torch.autograd.backward(ends, [torch.tensor(c) for c in cotangents.values()])

    def onnx(values: Any) -> np.ndarray:
        # i o f c of i f g o; z r h of r z n
        places = {LSTM: [0, 3, 1, 2], GRU: [1, 0, 2], RNN: [0]}[operator]
        blocks = np.split(values.detach().numpy(), operator.gates)
        return np.concatenate([blocks[k] for k in places])

    given |= {"W": onnx(module.weight_ih), "R": onnx(module.weight_hh)}
    given.pop("B")
    expected = {"dW": onnx(module.weight_ih.grad), "dR": onnx(module.weight_hh.grad)}
    if bias:
        given["B"] = np.concatenate([onnx(module.bias_ih), onnx(module.bias_hh)])
        expected["dB"] = np.concatenate([onnx(module.bias_ih.grad), onnx(module.bias_hh.grad)])
    expected |= {"dX": to_numpy(x.grad)}
    expected |= {f"d{NAMES[n]}": to_numpy(s.grad) for n, s in zip(operator.states, states, strict=True)}
    outputs, pullback = xpgrad.vjp(getattr(xpgrad, f"{operator.name}_cell"), **given, **case.attributes)
    for name, end in zip(OUTPUTS[operator], ends, strict=True):
        assert_close(getattr(outputs, name), to_numpy(end), label=name)
    grads = pullback(**cotangents)
    for name, desired in expected.items():
        assert_close(getattr(grads, name), desired, label=name)


@each_operator()
def test_per_sample_gradients_are_those_of_each_sample(operator: Operator, backend: Backend) -> None:
    case = sequence_of_one_step(operator, "clip with peepholes" if operator is LSTM else "clip")
    arguments = {name: backend.array(array) for name, array in cell_arguments(case).items()}
    cotangents = {name: backend.array(array) for name, array in cell_cotangents(case).items()}
    outputs = getattr(xpgrad, f"{operator.name}_cell")(**arguments, **case.attributes)
    saved = {name: getattr(outputs, name) for name in SAVED[operator]}

    def gradients(given: Mapping[str, Any], **more: Any) -> Any:
        return getattr(xpgrad, f"{operator.name}_cell_grad")(**given, **case.attributes, **more)

    given = {**arguments, **saved, **cotangents}
    every = gradients(given, per_sample=True)
    samples = {name for name in given if name not in ("W", "R", "B", "P")}
    for k in range(N):
        alone = gradients({n: a[k : k + 1, ...] if n in samples else a for n, a in given.items()})
        for name, expected in alone._asdict().items():
            got = getattr(every, name)[k, ...]
            if name[1:] in samples:
                expected = expected[0, ...]
            assert_close(got, expected, rtol=1e-12, label=name)
    with pytest.raises(ValueError, match=f"{operator.name}_cell_grad: per_sample is 2, expected one of"):
        gradients(given, per_sample=2)
