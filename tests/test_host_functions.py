"""Without numba, where PyTorch is loaded: formulas traced for its elementary functions, on large arrays."""

from __future__ import annotations

import functools
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import xpgrad
from activation_cases import CASES, Activation
from test_activations import gradient_of
from test_engine import selections
from xpgrad.cli.benches.elementwise import FUNCTIONS
from xpgrad.engine import Formula, RowFormula, Step, array_loops
from xpgrad.engine.blocks import traced_formula
from xpgrad.engine.blocks.host_tape import HostTape
from xpgrad.engine.formulas.tape import Tape, Untraceable

torch = pytest.importorskip("torch", reason="torch is not installed: no framework is loaded")
engine = pytest.importorskip("xpgrad_torch.engine")
functions = pytest.importorskip("xpgrad_torch._functions").Functions()

pytestmark = pytest.mark.usefixtures("interpreted")
LARGE = 2 * 131072 + 7777  # whole blocks, and what remains


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs made for PyTorch's functions, from now on."""
    made: list[Any] = []
    trace = array_loops._traced

    def traced(formula: Any, absent: Any, dtype: Any, numbers: Any, host: Any) -> Any:
        program = trace(formula, absent, dtype, numbers, host)
        if host is not None:
            made.append(program)
        return program

    monkeypatch.setattr(array_loops, "_traced", traced)
    monkeypatch.setattr(array_loops, "_programs", {})
    return made


def by_numpy(monkeypatch: pytest.MonkeyPatch, call: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(engine.TorchEngine, "functions", lambda self: None)
        return call()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["masks", "bounds", "signs", "operand", "number", "products"])
def test_selections(kind: str, dtype: str) -> None:
    """As the formula itself on NumPy arrays: NaN of both signs, infinities, zeros; in place."""
    values = np.asarray([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, -np.nan, 0.5, 3.0], dtype)
    x, y, z = (axis.ravel() for axis in np.meshgrid(values, values, values))
    make_tape = functools.partial(HostTape, functions)
    for bound in (0.0, 0.5, -1.5):
        formula = Formula(selections, {"kind": kind}, ("bound",))
        program = traced_formula.TracedFormula(formula, [False] * 3, np.dtype(dtype), (bound,), make_tape)
        for size in (1000, 10, 1):
            with np.errstate(all="ignore"):
                (expected,) = formula(np, x[:size], y[:size], z[:size], bound=bound)
            for position in (None, 0, 1):
                operands = [torch.from_numpy(v[:size].copy()) for v in (x, y, z)]
                out = torch.from_numpy(np.empty(size, dtype)) if position is None else operands[position]
                program(out, operands)
                rtol = 0 if kind != "products" else 1e-5 if dtype == "float32" else 1e-13
                expected = np.broadcast_to(expected, size)
                np.testing.assert_allclose(out.numpy(), expected, rtol=rtol, equal_nan=True)


def chains(xp: Any, x: Any, y: Any, *, kind: str) -> tuple:
    """What becomes fewer calls."""
    if kind == "sums":
        return (3 * x * y + y - 2 * (x * x) + (x / 4 - y) - (5 - 2 * y) + (0.5 * x + 0.25 * y) * y - -x,)
    if kind == "bounds":
        return (xp.minimum(xp.maximum(x, -1.0), 2.0) + xp.maximum(xp.minimum(y, 2.0), -1.0) + xp.maximum(
            xp.minimum(x, -1.0), 2.0),)  # fmt: skip
    if kind == "steps":
        e = xp.exp(xp.where(x > 0, xp.zeros_like(x), x))
        zero = xp.zeros_like(x)
        beyond = xp.where(x > 0, zero + 1.5, 1.25 * e) + xp.where(x > 0, zero + 1, e)
        numbers = xp.where(y > 0, zero + 0.75, zero + 0.1) + xp.where(y > 0, x, 3 * x)
        return (beyond + numbers,)
    if kind == "far apart":
        return (xp.where(x > 0, xp.zeros_like(x) + 1e-6, 100 * xp.exp(xp.where(x > 0, xp.zeros_like(x), x))),)
    if kind == "other steps":
        one, below, e = xp.zeros_like(x) + 1, xp.exp(xp.minimum(y, 0.0)), xp.exp(xp.minimum(x, 0.0))
        return (xp.where(x > 0, one, below) + xp.where(x > -1, one, e) + xp.where(x >= 0, one, e),)
    if kind == "inside":
        other = xp.where((x > -1) & (y < 1), y, x) - xp.where((x > -1) & (x < 1.5), y, x)
        either = xp.where((x <= -1.5) | (x >= 1.5), y, x)
        return (xp.where((x > -1.5) & (x < 1.5), y, x) + 3 * other + 5 * either,)
    e = xp.exp(xp.where(x < 0, x, -x))
    return (xp.where(x < 0, e, xp.zeros_like(e) + 1) / (1 + e) + 2 * (xp.exp(y) / (1 + xp.exp(y))),)


@pytest.mark.parametrize("kind", ["sums", "bounds", "steps", "other steps", "far apart", "inside", "sigmoid"])
@pytest.mark.parametrize("host", [True, False])
def test_what_becomes_fewer_calls(kind: str, host: bool) -> None:
    x, y = np.random.default_rng(3).normal(size=(2, 5000)) * 2
    x[:5] = y[3:8] = [0, 1.5, -1.5, -1, 1]
    make_tape = functools.partial(HostTape, functions) if host else Tape
    formula = Formula(chains, {"kind": kind})
    program = traced_formula.TracedFormula(formula, [False] * 2, x.dtype, (), make_tape)
    out = np.empty_like(x)
    program(*((torch.from_numpy(out), [*map(torch.from_numpy, (x, y))]) if host else (out, [x, y])))
    np.testing.assert_allclose(out, formula(np, x, y)[0], rtol=1e-12, atol=1e-13 if kind == "sums" else 0)


def test_what_it_has_no_words_for() -> None:
    def formula(xp: Any, x: Any) -> tuple:
        return (xp.sinh(x),)

    with pytest.raises(Untraceable, match="sinh"):
        traced_formula.TracedFormula(
            Formula(formula), [False], np.dtype("f8"), (), functools.partial(HostTape, functions)
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", CASES, ids=str)
def test_gradients(
    activation: Activation, dtype: str, programs: list[Any], monkeypatch: pytest.MonkeyPatch, rng: Any
) -> None:
    """As NumPy's functions have them, at kinks, infinities and for NaN as well; on tensors the same."""
    x, d = (rng.normal(size=LARGE).astype(dtype) for _ in range(2))
    x *= 5
    special = [*(activation.kinks or ()), -np.inf, np.inf, -1e4, 1e4, 0.0, -0.0, 20.0, -20.0, np.nan]
    x[: len(special)] = x[-len(special) :] = special
    with np.errstate(all="raise"):
        result = gradient_of(activation, d, x)
    assert programs
    assert all(programs)
    expected = by_numpy(monkeypatch, lambda: gradient_of(activation, d, x))
    rtol = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol / 10)
    if dtype == "float32":
        tensors = gradient_of(activation, torch.from_numpy(d), torch.from_numpy(x))
        np.testing.assert_array_equal(tensors.numpy(), result)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows(name: str, dtype: str, programs: list[Any], rng: Any) -> None:
    """Rows without a distribution, masked logits; in the place of either operand."""
    x, d = (rng.normal(size=(333, 1001)).astype(dtype) for _ in range(2))
    x[5] = x[-1] = x[7, :500] = -np.inf
    x[9, :20] = -1e9
    y = getattr(xpgrad, name)(x)
    grad = getattr(xpgrad, f"{name}_grad")
    with np.errstate(all="raise"):
        result = grad(d, y)
    assert programs[-1] is not None
    with xpgrad.use_engine("standard"):
        expected = grad(d, y)
    rtol = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol / 10)
    assert not result[5].any()
    assert not result[-1].any()
    for place in (0, 1):
        operands = d.copy(), y.copy()
        assert grad(*operands, out=operands[place]) is operands[place]
        np.testing.assert_array_equal(operands[place], result)
    np.testing.assert_array_equal(grad(torch.from_numpy(d), torch.from_numpy(y)).numpy(), result)


@pytest.mark.parametrize("host", [True, False])
def test_rows_cleared_of_an_operand(host: bool) -> None:
    """Which stays as it is."""

    def keep(xp: Any, d: Any, peak: Any) -> tuple:
        return (xp.where(peak == -xp.inf, xp.zeros_like(d), d),)

    formula = RowFormula(
        each=("d", "x"),
        steps=(Step(lambda xp, x: (x,), {"peak": "max"}), Step(keep, {"y": "each"})),
        outputs=("y",),
    )
    d, x, out = np.ones((3, 4)), np.full((3, 4), -np.inf), np.empty((3, 4))
    x[1, 2] = 0
    make_tape = functools.partial(HostTape, functions) if host else Tape
    program = traced_formula.TracedRows(formula, [False] * 2, d.dtype, (), make_tape)
    arrays = [torch.from_numpy(array) if host else array for array in (out, d, x)]
    program(arrays[:1], arrays[1:], (3, 4))
    np.testing.assert_array_equal(out, [[0] * 4, [1] * 4, [0] * 4])
    np.testing.assert_array_equal(d, np.ones((3, 4)))


def test_layouts_and_places(programs: list[Any], rng: Any) -> None:
    """In place, for one number, read only and transposed: what PyTorch's functions do not take is NumPy's."""
    x, d = rng.normal(size=(2, 300, 1000))
    expected = d * ((1 - x) * (1 + x))
    for place in (0, 1):
        operands = d.copy(), x.copy()
        xpgrad.tanh_grad(*operands, out=operands[place])
        np.testing.assert_allclose(operands[place], expected, rtol=1e-12)
    assert len(programs) == 1
    slope = np.asarray([0.25])
    np.testing.assert_allclose(xpgrad.prelu_grad(d, x, slope).dX, np.where(x > 0, d, d * 0.25))
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_allclose(xpgrad.tanh_grad(d, frozen), expected, rtol=1e-12)
    np.testing.assert_allclose(xpgrad.tanh_grad(d.T, x.T), expected.T, rtol=1e-12)


def test_modes(programs: list[Any], rng: Any) -> None:
    """Buffers made in inference mode serve outside; what watches PyTorch's functions sees none of ours."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return function(*args, **(kwargs or {}))

    x, d = rng.normal(size=(2, LARGE))
    expected = d * (x * (1 - x))
    with torch.inference_mode():
        np.testing.assert_allclose(xpgrad.sigmoid_grad(d, x), expected, rtol=1e-12)
    assert programs
    np.testing.assert_allclose(xpgrad.sigmoid_grad(d, x), expected, rtol=1e-12)
    with Watch() as watch:
        np.testing.assert_allclose(xpgrad.sigmoid_grad(d, x), expected, rtol=1e-12)
    assert not watch.seen


def test_user_threads(programs: list[Any], rng: Any) -> None:
    """Each has buffers of its own."""
    x, d = rng.normal(size=(2, 4, LARGE))
    expected = d * (x * (1 - x))

    def repeat(number: int) -> None:
        for _ in range(5):
            np.testing.assert_allclose(
                xpgrad.sigmoid_grad(d[number], x[number]), expected[number], rtol=1e-12
            )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(repeat, range(4)))
    assert programs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child(rng: Any) -> None:
    """It has none of the threads that PyTorch's functions would wait for."""
    x, d = map(torch.from_numpy, rng.normal(size=(2, LARGE)))
    expected = xpgrad.sigmoid_grad(d, x).numpy()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if np.allclose(xpgrad.sigmoid_grad(d, x).numpy(), expected, rtol=1e-12) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_every_gradient_has_words(programs: list[Any], rng: Any) -> None:
    """Those whose speed the documentation gives."""
    x = rng.uniform(0.1, 0.9, size=(300, 1000)).astype(np.float32)
    for name, function in FUNCTIONS.items():
        getattr(xpgrad, f"{name}_grad")(x, x, **function.attributes)
        assert programs.pop() is not None, name
