"""Every backend variant: same results, same kind of array, nothing written to the inputs, nothing wasted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import xpgrad
from backends import BACKENDS, UNCOMPILED, Backend
from recurrent_cases import (
    GRU,
    LSTM,
    RNN,
    Case,
    Operator,
    each_operator,
    each_option,
    make_case,
    option_case,
    run,
    run_forward,
    run_gradient,
    run_reference,
    these_options,
)
from xpgrad.testing import assert_close, to_numpy

# Largest error against float64 on the same rounded inputs, relative to each array's largest value.
TOLERANCE = {"float64": 1e-12, "float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}

# In every variant and dtype; the other options are held against the oracles in one each.
EVERYWHERE = {
    "lstm": (
        "plain",
        "nothing optional",
        "lengths bidirectional",
        "peepholes",
        "clip with peepholes",
        "layout 1 with everything",
    ),
    "gru": (
        "plain",
        "nothing optional, reset after",
        "lengths bidirectional",
        "lengths bidirectional, reset after",
        "clip",
        "layout 1 with everything, reset after",
    ),
    "rnn": ("plain", "nothing optional", "lengths bidirectional", "clip", "layout 1 with everything"),
}


def dtypes() -> list[Any]:
    pairs = [(backend, dtype) for backend in BACKENDS for dtype in backend.dtypes]
    return [pytest.param(b, d, id=f"{b.name}-{d}") for b, d in pairs]


@these_options(**EVERYWHERE)
@pytest.mark.parametrize(("variant", "dtype"), dtypes())
def test_results_and_their_kind(variant: Backend, dtype: str, operator: Operator, name: str) -> None:
    if reason := variant.missing():
        pytest.skip(f"{variant.name}: {reason}")
    pytest.importorskip("torch", reason="torch is not installed: it rounds to the half precisions")
    case = option_case(operator, name, scale=0.5).rounded(dtype)
    expected_outputs, expected = run_reference(case)
    with variant.active():
        here = case.on(variant, dtype)
        outputs, grads = run(here)
    like = here.arguments["X"]
    for field in outputs._fields:
        assert_close(
            getattr(outputs, field),
            getattr(expected_outputs, field),
            like=like,
            rtol=TOLERANCE[dtype],
            label=f"{variant.name}, {name}: {field}",
        )
    for field, desired in expected._asdict().items():
        if desired is None:
            assert getattr(grads, field) is None
        else:
            label = f"{variant.name}, {name}: {field}"
            assert_close(getattr(grads, field), desired, like=like, rtol=TOLERANCE[dtype], label=label)


@each_option()
@pytest.mark.parametrize("variant", UNCOMPILED, ids=lambda variant: variant.name)
def test_every_option_without_compiled_formulas(operator: Operator, name: str, variant: Backend) -> None:
    """On every variant that compiles nothing; the compiled ones meet every option at the oracles."""
    if reason := variant.missing():
        pytest.skip(f"{variant.name}: {reason}")
    case = option_case(operator, name)
    expected_outputs, expected = run_reference(case)
    with variant.active():
        outputs, grads = run(case.on(variant))
    for field in outputs._fields:
        desired = getattr(expected_outputs, field)
        assert_close(getattr(outputs, field), desired, like=outputs.H_t, rtol=1e-11, label=field)
    for field, desired in expected._asdict().items():
        if desired is not None:
            assert_close(getattr(grads, field), desired, like=outputs.H_t, rtol=1e-11, label=field)


def everything_given(case: Case, outputs: Any) -> dict[str, Any]:
    saved = {name: getattr(outputs, name) for name in case.operator.saved}
    return {**case.arguments, **case.integers, **saved, **case.cotangents}


@these_options(**EVERYWHERE)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_inputs_are_never_written_to(operator: Operator, name: str, dtype: str, backend: Backend) -> None:
    case = option_case(operator, name).on(backend, dtype)
    arguments_before = {key: to_numpy(array).tobytes() for key, array in case.arguments.items()}
    outputs = run_forward(case)
    before = {key: to_numpy(array).tobytes() for key, array in everything_given(case, outputs).items()}
    for per_sample in (False, True):
        run_gradient(case, outputs, per_sample=per_sample)
    after = {key: to_numpy(array).tobytes() for key, array in everything_given(case, outputs).items()}
    assert after == before
    assert arguments_before.items() <= after.items()


@each_operator()
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("sizes", [{"T": 1, "N": 1}, {"T": 0}, {"T": 4, "N": 2}], ids=str)
def test_results_share_no_memory_with_inputs_or_one_another(
    operator: Operator, per_sample: bool, sizes: dict[str, int], rng: np.random.Generator
) -> None:
    """Whoever writes to a result must not change an input, nor another result."""
    case = make_case(operator, rng, **sizes, per_sample=per_sample)
    outputs, grads = run(case)
    inputs = list(everything_given(case, outputs).values())
    results = [*outputs, *[g for g in grads if g is not None]]
    for result in grads:
        if result is not None:
            assert not any(np.shares_memory(result, array) for array in inputs)
    for one, other in itertools.combinations(results, 2):
        assert not np.shares_memory(one, other)
    for output in outputs:
        assert not any(np.shares_memory(output, array) for array in case.arguments.values())


@each_operator()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_calls_do_not_disturb_one_another(
    operator: Operator, dtype: str, backend: Backend, rng: np.random.Generator
) -> None:
    """Results keep their values when the kernels run again (workspaces are not handed out)."""
    first, second = (make_case(operator, rng).on(backend, dtype) for _ in range(2))
    outputs, grads = run(first)
    kept = [to_numpy(array) for array in (*outputs, *grads) if array is not None]
    run(second)
    again = [to_numpy(array) for array in (*outputs, *grads) if array is not None]
    for old, new in zip(kept, again, strict=True):
        assert np.array_equal(old, new)
    for old, new in zip(
        kept, [to_numpy(a) for part in run(first) for a in part if a is not None], strict=True
    ):
        assert np.array_equal(old, new)


WRT = [
    (),
    ("X",),
    ("W",),
    ("R",),
    ("B",),
    ("P",),
    ("initial_h",),
    ("initial_c",),
    ("X", "W"),
    ("R", "B", "P"),
    ("W", "R", "B"),
    ("initial_h", "X", "initial_c"),
]


@these_options(
    lstm=["peepholes", "layout 1 with everything"],
    gru=["plain", "plain, reset after", "layout 1 with everything"],
    rnn=["plain", "layout 1 with everything"],
)
def test_wrt_gives_the_same_and_nothing_else(operator: Operator, name: str, backend: Backend) -> None:
    case = option_case(operator, name).on(backend)
    outputs, whole = run(case)
    for names in WRT:
        wrt = tuple(argument for argument in names if argument in operator.fields)
        grads = run_gradient(case, outputs, wrt=wrt)
        for argument, field in operator.fields.items():
            if argument in wrt:
                label = f"{field} with wrt={wrt}"
                assert_close(getattr(grads, field), getattr(whole, field), rtol=1e-13, label=label)
            else:
                assert getattr(grads, field) is None, f"{field} with wrt={wrt}"


@each_operator()
def test_wrt_takes_any_iterable(operator: Operator, rng: np.random.Generator) -> None:
    case = make_case(operator, rng)
    outputs, whole = run(case)
    for wrt in (["W", "X"], {"W", "X"}, (name for name in ("X", "W"))):
        grads = run_gradient(case, outputs, wrt=wrt)
        assert np.array_equal(grads.dW, whole.dW)
        assert grads.dR is None


def products(case: Case, monkeypatch: pytest.MonkeyPatch, wrt: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Shapes of the results of the matrix products that the gradient takes."""
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    strict_backend = next(backend for backend in BACKENDS if backend.name == "array-api-strict")
    here = case.on(strict_backend)
    outputs = run_forward(here)
    seen: list[tuple[int, ...]] = []
    matmul = strict.matmul

    def spy(a: Any, b: Any) -> Any:
        result = matmul(a, b)
        seen.append(tuple(result.shape))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(strict, "matmul", spy)
        run_gradient(here, outputs, wrt=wrt)
    return seen


def test_what_is_not_asked_for_costs_no_product_in_the_lstm(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    T, N, I, H = 6, 3, 2, 4
    case = make_case(LSTM, rng, T=T, N=N, I=I, H=H)
    steps = (T - 1) * [(N, H)]  # dh of the step before; the first has none
    everything = products(case, monkeypatch, tuple(set(LSTM.fields) - {"P"}))
    of_r = 2 * [(4 * H, H)]  # by the initial state, and by all outputs but the last
    assert sorted(everything) == sorted([*steps, (N, H), (T * N, I), (4 * H, I), *of_r])
    assert products(case, monkeypatch, ("X",)) == [*steps, (T * N, I)]
    assert products(case, monkeypatch, ("W",)) == [*steps, (4 * H, I)]
    assert products(case, monkeypatch, ("R",)) == [*steps, *of_r]
    assert products(case, monkeypatch, ("B",)) == steps
    assert products(case, monkeypatch, ("initial_c",)) == steps
    assert products(case, monkeypatch, ("initial_h",)) == [*steps, (N, H)]
    assert products(case, monkeypatch, ()) == []


@pytest.mark.parametrize("reset", [0, 1])
def test_what_is_not_asked_for_costs_no_product_in_the_gru(
    reset: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    T, N, I, H = 6, 3, 2, 4
    case = make_case(GRU, rng, T=T, N=N, I=I, H=H, linear_before_reset=reset)
    # with reset after, R_h h' of all steps at once before the loop and one product a step; with reset before,
    # through the candidate and through the gates
    steps = [(T * N, H), *(T - 1) * [(N, H)]] if reset else (2 * T - 1) * [(N, H)]
    # by the initial state, and by all outputs but the last; r h' has no such parts
    of_r = 2 * [(3 * H, H)] if reset else [*2 * [(2 * H, H)], (H, H)]
    everything = products(case, monkeypatch, tuple(GRU.fields))
    assert sorted(everything) == sorted([*steps, (N, H), (T * N, I), (3 * H, I), *of_r])
    assert products(case, monkeypatch, ("X",)) == [*steps, (T * N, I)]
    assert products(case, monkeypatch, ("W",)) == [*steps, (3 * H, I)]
    assert products(case, monkeypatch, ("R",)) == [*steps, *of_r]
    assert products(case, monkeypatch, ("B",)) == steps
    assert products(case, monkeypatch, ("initial_h",)) == [*steps, (N, H)]
    assert products(case, monkeypatch, ()) == []


def test_what_is_not_asked_for_costs_no_product_in_the_rnn(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    T, N, I, H = 6, 3, 2, 4
    case = make_case(RNN, rng, T=T, N=N, I=I, H=H)
    steps = (T - 1) * [(N, H)]
    of_r = 2 * [(H, H)]  # by the initial state, and by all outputs but the last
    everything = products(case, monkeypatch, tuple(RNN.fields))
    assert sorted(everything) == sorted([*steps, (N, H), (T * N, I), (H, I), *of_r])
    assert products(case, monkeypatch, ("X",)) == [*steps, (T * N, I)]
    assert products(case, monkeypatch, ("W",)) == [*steps, (H, I)]
    assert products(case, monkeypatch, ("R",)) == [*steps, *of_r]
    assert products(case, monkeypatch, ("B",)) == steps
    assert products(case, monkeypatch, ("initial_h",)) == [*steps, (N, H)]
    assert products(case, monkeypatch, ()) == []


@these_options(lstm=["plain"], gru=["plain, reset after"], rnn=["plain"])
def test_the_loop_holds_one_product_a_step(
    operator: Operator, name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding costs nothing: a step has as many rows as sequences that are still running."""
    H = 4
    options = {**operator.options[name], "lengths": [1, 5, 2]}
    case = make_case(operator, rng, T=5, N=3, H=H, **options)
    seen = products(case, monkeypatch, ("B",))
    before_the_loop = [(8, H)] if operator is GRU else []
    assert seen == [*before_the_loop, (1, H), (1, H), (1, H), (2, H)]


@each_operator()
def test_engines_can_be_forced(operator: Operator, rng: np.random.Generator) -> None:
    case = make_case(operator, rng)
    _, automatic = run(case)
    with xpgrad.use_engine("standard"):
        _, standard = run(case)
    with xpgrad.use_engine("numpy"):
        _, compiled = run(case)
    assert np.array_equal(automatic.dW, compiled.dW)
    assert_close(standard.dW, compiled.dW, rtol=1e-13)


@these_options(lstm=["plain"], gru=["plain", "plain, reset after"], rnn=["plain"])
def test_gradient_of_arguments_that_were_left_out(
    operator: Operator, name: str, rng: np.random.Generator
) -> None:
    """They have one too: at a zero bias, at zero states."""
    given = make_case(operator, rng, bias=False, states=False, **operator.options[name])
    H, N = 4, 3
    zeros = {"B": np.zeros((1, 2 * operator.gates * H))}
    zeros |= {state: np.zeros((1, N, H)) for state in operator.states}
    _, grads = run(given)
    _, expected = run(replace(given, arguments={**given.arguments, **zeros}))
    for argument, field in operator.fields.items():
        if argument == "P":
            assert getattr(grads, field) is None
        else:
            assert_close(getattr(grads, field), getattr(expected, field), rtol=1e-13, label=field)
            assert np.any(getattr(grads, field))
