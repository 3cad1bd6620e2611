"""The same call gives the same bits and strides every time: the first one of a form, too."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import xpgrad
from recurrent_cases import Case, Operator, option_case, run_forward, run_gradient, these_options
from xpgrad import engine
from xpgrad._calls import families
from xpgrad.cli import check_random
from xpgrad.engine import array_loops
from xpgrad.engine.compiled import machine
from xpgrad.engine.process import sharing
from xpgrad.engine.process.team import OpenMPTeam

torch = pytest.importorskip("torch", reason="torch is not installed: it draws the calls")
nn, gradcheck = torch.nn, torch.autograd.gradcheck

import xpgrad_torch  # noqa: E402
from torch_operators import ACTIVATIONS, EVERY_KERNEL  # noqa: E402

LARGE = {"N": 64, "C": 64, "O": 12, "L": 33, "I": 24, "H": 16, "T": 8}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(families, "known", families.CallCache())
    array_loops.loop_code.cache_clear()


def seen(results):
    """What a caller sees of results: shapes, strides, bits."""
    results = results if isinstance(results, tuple) else (results,)
    arrays = [np.asarray(x) for x in results if x is not None]
    return [(x.shape, x.strides, x.tobytes()) for x in arrays]


def assert_repeats(call):
    first = seen(call())
    for size in (3, 70, 1001):
        between = np.empty(size)  # so that what follows has another place in memory
        assert seen(call()) == first
        del between


def kernel_calls(name, dtype, as_array, sizes):
    """A kernel and its gradient, as functions of nothing."""
    operator = EVERY_KERNEL[name]
    kernel, attributes = operator.kernel, operator.kernel_attributes
    given = dict(zip(kernel.operands, operator.operands(3, dtype, **sizes).values(), strict=False))
    given = {argument: as_array(value) for argument, value in given.items()}

    def forward():
        return getattr(xpgrad, kernel.name)(**given, **attributes)

    outputs = forward()
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(5)
    cotangents = [torch.randn(tuple(y.shape), generator=generator, dtype=dtype) for y in outputs]
    known = given | dict(zip(kernel.outputs, outputs, strict=False))
    known |= dict(zip(kernel.cotangents, map(as_array, cotangents), strict=False))
    names = zip(kernel.gradient_arrays, kernel.arguments, strict=True)
    arrays = {argument: known[array] for array, argument in names if array in known}
    return forward, lambda: getattr(xpgrad, kernel.gradient_name)(**arrays, **attributes)


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", EVERY_KERNEL)
def test_every_kernel(name, kind, size):
    sizes = {} if size == "small" else LARGE
    if name == "conv2d":  # its weight is for two groups of channels
        sizes = {k: n for k, n in sizes.items() if k not in ("C", "H")}
    as_array = torch.Tensor.numpy if kind == "numpy" else lambda tensor: tensor
    forward, gradient = kernel_calls(name, torch.float32, as_array, sizes)
    families.known.clear()
    assert_repeats(forward)
    assert_repeats(gradient)


_OPTIONS = ["plain", "bidirectional", "lengths", "layout 1", "layout 1 with everything", "clip"]


@pytest.mark.parametrize(("T", "N", "H", "dtype"), [(5, 3, 4, "float64"), (20, 40, 40, "float32")])
@these_options(lstm=[*_OPTIONS, "peepholes"], gru=[*_OPTIONS, "plain, reset after"])
def test_recurrent_options(operator: Operator, name: str, T: int, N: int, H: int, dtype: str) -> None:
    sizes = {} if T == 5 else {"T": T, "N": N, "H": H}
    if T == 20 and "lengths" in operator.options[name]:
        sizes["lengths"] = [7 * n % (T + 1) for n in range(N)]
    case = option_case(operator, name, **sizes)
    arguments, cotangents = (
        {key: value.astype(dtype) for key, value in group.items()}
        for group in (case.arguments, case.cotangents)
    )
    case = Case(operator, arguments, case.integers, case.attributes, cotangents, case.gradient)
    assert_repeats(lambda: run_forward(case))
    outputs = run_forward(case)
    assert_repeats(lambda: run_gradient(case, outputs))


def test_a_forced_engine_computes_as_when_it_is_chosen(rng):
    X, W, R = (rng.normal(size=shape) for shape in [(30, 20, 16), (1, 64, 16), (1, 64, 16)])
    chosen = seen(xpgrad.lstm(X, W, R))
    with xpgrad.use_engine("numpy"):
        assert seen(xpgrad.lstm(X, W, R)) == chosen


@pytest.mark.parametrize("lengths", [None, [11, 3, 12, 12, 0, 7, 1, 12, 9, 2] * 2])
@pytest.mark.parametrize("operator", ["lstm", "gru"])
def test_threads_change_no_bits_of_recurrent_kernels(operator, lengths, rng, compiled, monkeypatch):
    """In any number, of PyTorch's team and of our own pool, whether they share rows or columns."""
    T, N, I, H, G = 12, 20, 150, 100, {"lstm": 4, "gru": 3}[operator]
    shapes = [(T, N, I), (1, G * H, I), (1, G * H, H), (1, 2 * G * H)]
    arrays = [rng.normal(size=shape).astype("float32") / 8 for shape in shapes]
    for name in ("TIME_LOOP", "PRODUCT", "COPY", "ARRAY"):
        monkeypatch.setattr(sharing, name, 1)
    bits, ways, time_loop = [], set(), machine.Machine.time_loop

    def noting(*args, **options):
        loop = time_loop(*args, **options)
        ways.add((loop.parts, "columns" if loop.head.stages else "rows"))
        return loop

    def both(threads, saved=1 << 60):
        monkeypatch.setattr(machine, "_SAVED", saved)
        families.known.clear()
        with check_random.in_threads(threads):
            out, pullback = xpgrad.vjp(getattr(xpgrad, operator), *arrays, lengths)
            bits.append([seen(array) for array in (*out, *pullback(out[0]))])

    monkeypatch.setattr(machine.Machine, "time_loop", noting)
    monkeypatch.setattr(OpenMPTeam, "is_quick", lambda team: True)  # whoever else called in this process
    both(1), both(2), both(3, saved=-(1 << 60))
    monkeypatch.setattr(engine._numpy_engine, "_find_host", lambda: None)
    both(2)
    assert all(one == bits[0] for one in bits[1:])
    assert {(1, "rows"), (2, "rows")} <= ways
    if isinstance(engine._adapter("torch").team, OpenMPTeam):
        assert (3, "columns") in ways


@pytest.mark.parametrize("offset", [4, 8, 20, 60])
@pytest.mark.parametrize("name", [*ACTIVATIONS, "cross_entropy", "binary_cross_entropy"])
def test_where_arrays_stand_does_not_matter(name, offset):
    """Compiled loops begin at cache lines; what is in a vector and what is in front of it is the same."""

    def moved(tensor):
        if not tensor.dtype.is_floating_point:
            return tensor.numpy()
        memory = np.empty(tensor.numel() * 4 + 128, np.uint8)
        start = -memory.ctypes.data % 64 + offset
        array = memory[start : start + tensor.numel() * 4].view(np.float32).reshape(tuple(tensor.shape))
        array[...] = tensor.numpy()
        return array

    sizes = LARGE | {"N": 7}
    for here, there in zip(
        kernel_calls(name, torch.float32, torch.Tensor.numpy, sizes),
        kernel_calls(name, torch.float32, moved, sizes),
        strict=True,
    ):
        assert seen(there()) == seen(here())


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("module", ["LSTM", "GRU"])
def test_gradcheck_of_a_new_form(module, batch_first):
    """It runs a backward twice, the first time ever and once more, and compares the bits."""
    torch.manual_seed(3)
    rnn = getattr(xpgrad_torch, module)(5, 9, bidirectional=True, batch_first=batch_first).double()
    X = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: rnn(x)[0], X, fast_mode=True)


def test_the_first_call_of_a_process():
    """The first tensors load the adapter's engine, and go the way of all others."""
    code = """
        import numpy as np, torch, xpgrad
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=s).astype("float32") for s in [(9, 33, 32), (1, 96, 32), (1, 96, 32)]]
        X, W, R = map(torch.from_numpy, arrays)
        def strides_and_bits(x): return x.stride(), x.numpy().tobytes()
        def call(layout): return *xpgrad.gru(X, W, R, layout=layout), xpgrad.softmax(X)
        for layout in (1, 0):
            calls = [[*map(strides_and_bits, call(layout))] for _ in range(3)]
            assert calls[0] == calls[1] == calls[2]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
