"""Calls that are like earlier ones: one comparison of all tensors finds them, and where it must not."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no programs")

from torch.autograd import forward_ad  # noqa: E402
from torch.nn.utils.parametrize import register_parametrization  # noqa: E402
from torch.nn.utils.prune import l1_unstructured  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import xpgrad  # noqa: E402
import xpgrad_torch  # noqa: E402
from xpgrad._calls import families  # noqa: E402
from xpgrad_torch import _programs, functional  # noqa: E402
from xpgrad_torch.engine import look_at  # noqa: E402

CELLS = ("LSTMCell", "GRUCell", "RNNCell")
N, SIZE = 3, 4
assert_close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def nothing_came_before(monkeypatch):
    torch.manual_seed(0)
    for name in ("known_calls", "call_families"):
        monkeypatch.setattr(_programs, name, _programs.KnownCalls())
    monkeypatch.setattr(families, "known", families.CallCache())


@pytest.fixture
def repeats(monkeypatch):
    """How many calls were known; how many others were checked is `anew`."""
    counts = {"ready": 0, "anew": 0}
    run, run_anew = _programs.Ready.run, _programs.PlannedFunction.run_anew

    def counted_run(*arguments):
        counts["ready"] += 1
        return run(*arguments)

    def counted_run_anew(*arguments):
        counts["anew"] += 1
        return run_anew(*arguments)

    monkeypatch.setattr(_programs.Ready, "run", counted_run)
    monkeypatch.setattr(_programs.PlannedFunction, "run_anew", counted_run_anew)
    return counts


def pair(kind, **options):
    ours, theirs = (getattr(lib, kind)(SIZE, SIZE, **options) for lib in (xpgrad_torch, torch.nn))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def new_state(kind, *, grad=False, **options):
    states = [torch.randn(N, SIZE, requires_grad=grad, **options) for _ in range(1 + (kind == "LSTMCell"))]
    return tuple(states) if len(states) > 1 else states[0]


def first(state):
    return state[0] if isinstance(state, tuple) else state


def warmed(kind, **options):
    """A pair, of which ours has made the same call three times."""
    ours, theirs = pair(kind, **options)
    for _ in range(3):
        ours(torch.randn(N, SIZE), new_state(kind))
    return ours, theirs


def assert_alike(ours, theirs, x, state, **tolerances):
    for ours_, theirs_ in zip(_all(ours(x, state)), _all(theirs(x, state)), strict=True):
        assert ours_.dtype == theirs_.dtype
        assert_close(ours_, theirs_, **tolerances)


def _all(state):
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_steps_are_repeated_and_right(repeats, kind, bias):
    ours, theirs = pair(kind, bias=bias)
    for number in range(6):
        x, grads = torch.randn(3, N, SIZE), []
        for cell in (ours, theirs):
            state, X = None, x.clone().requires_grad_()
            for row in X:
                state = cell(row, state)
            first(state).square().sum().backward()
            grads.append([X.grad, *(p.grad.clone() for p in cell.parameters())])
            cell.zero_grad()
        for a, b in zip(*grads, strict=True):
            assert_close(a, b)
        if number == 3:
            repeats.update(ready=0, anew=0)
    assert repeats == {"ready": 12, "anew": 0}  # the forwards and backwards of two times three steps


@pytest.mark.parametrize("kind", CELLS)
def test_without_gradients_nothing_is_kept(repeats, kind):
    ours, theirs = warmed(kind)
    x, state = torch.randn(N, SIZE), new_state(kind)
    repeats["ready"] = 0
    with torch.no_grad():
        result = ours(x, state)
        assert isinstance(result, tuple) == (kind == "LSTMCell")
        assert not first(result).requires_grad
        assert_alike(ours, theirs, x, state)
    assert repeats["ready"] == 2
    assert first(ours(x, state)).requires_grad


@pytest.mark.parametrize("kind", CELLS)
def test_other_tensors_are_looked_at(kind):
    ours, theirs = warmed(kind)
    x, state = torch.randn(N, SIZE), new_state(kind)
    assert_alike(ours, theirs, torch.randn(SIZE, N).T, state)
    assert_alike(ours, theirs, torch._neg_view(x), state)
    assert_alike(ours, theirs, x[:1].expand(N, SIZE), state)
    assert_alike(ours, theirs, torch.randn(2 * N, 2 * SIZE)[::2, ::2], state)
    assert_alike(ours, theirs, x[0], None)
    assert_alike(ours, theirs, x, None)
    with torch.inference_mode():
        assert_alike(ours, theirs, torch.randn(N, SIZE), state)
    same = (x, x) if kind == "LSTMCell" else x
    for _ in range(3):  # one tensor in two places
        assert_alike(ours, theirs, x, same)


@pytest.mark.parametrize("kind", CELLS)
def test_parameters_get_other_memory_dtypes_and_strides(kind):
    ours, theirs = warmed(kind)
    x, state = torch.randn(N, SIZE), new_state(kind)
    for change in (
        lambda w: torch.randn(w.shape),
        lambda w: torch.randn(w.shape[::-1]).T,
        lambda w: torch._neg_view(torch.randn(w.shape)),
    ):
        new = change(ours.weight_hh)
        ours.weight_hh.data, theirs.weight_hh.data = new, new.clone()
        gc.collect()
        for _ in range(3):
            assert_alike(ours, theirs, x, state)
    ours.double(), theirs.double()
    for _ in range(3):
        assert_alike(ours, theirs, x.double(), new_state(kind, dtype=torch.float64))
    with pytest.raises(ValueError, match="input has dtype"):
        ours(x, state)


@pytest.mark.parametrize("kind", CELLS)
def test_bad_calls_are_found_after_good_ones(kind):
    ours, _ = warmed(kind)
    x, state = torch.randn(N, SIZE), new_state(kind)
    with pytest.raises(TypeError, match="input is list"):
        ours([[1.0]], state)
    with pytest.raises(RuntimeError, match=r"input\.size"):
        ours(torch.randn(N, SIZE + 1), state)
    with pytest.raises(RuntimeError, match="has shape"):
        ours(torch.randn(N + 1, SIZE), state)
    wrong = first(state) if kind == "LSTMCell" else (state,)
    with pytest.raises(TypeError, match="hx is"):
        ours(x, wrong)
    with pytest.raises(TypeError, match=r"expected torch\.Tensor"):
        ours(x, (None, None) if kind == "LSTMCell" else 3)
    with pytest.raises(TypeError, match="of layout"):
        ours(x.to_sparse(), state)


def test_options_that_change_count():
    cell = xpgrad_torch.LSTMCell(SIZE, SIZE)
    x, state = torch.randn(N, SIZE), new_state("LSTMCell")
    weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh

    def expected(**options):
        W, R, b, c = (
            torch.cat([part.chunk(4)[k] for k in (0, 3, 1, 2)]) if part.dim() > 1 else part
            for part in weights
        )
        order = [0, 3, 1, 2]
        B = torch.cat([torch.cat([part.chunk(4)[k] for k in order]) for part in (b, c)])
        return functional.lstm_cell(x, *state, W, R, B, **options)

    for clip in (None, 0.1, 0.3, 1, True, 1.0, None):
        cell.clip = clip
        for _ in range(3):
            if clip is True:
                with pytest.raises((TypeError, ValueError)):
                    cell(x, state)
            else:
                assert_close(cell(x, state), expected(clip=clip))
    cell.input_forget = True
    assert_close(cell(x, state), expected(input_forget=True))
    cell.input_forget, cell._activations = False, ["Sigmoid", "Tanh", "Relu"]
    assert_close(cell(x, state), expected(activations=["Sigmoid", "Tanh", "Relu"]))
    cell._activations[1] = "Relu"
    assert_close(cell(x, state), expected(activations=["Sigmoid", "Relu", "Relu"]))


def test_an_rnn_cell_changes_its_nonlinearity():
    ours, theirs = warmed("RNNCell")
    ours.nonlinearity = theirs.nonlinearity = "relu"
    for _ in range(3):
        assert_alike(ours, theirs, torch.randn(N, SIZE), new_state("RNNCell"))


@pytest.mark.parametrize("kind", CELLS)
def test_settings_count(repeats, monkeypatch, kind):
    ours, theirs = warmed(kind)
    x, state = torch.randn(N, SIZE), new_state(kind)
    assert_alike(ours, theirs, x, state)
    repeats["ready"] = 0
    with monkeypatch.context() as context:
        context.setenv("XPGRAD_JIT", "0")
        assert_alike(ours, theirs, x, state)
    with xpgrad.use_engine("standard"):
        assert_alike(ours, theirs, x, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = first(ours(x, state)), first(theirs(x, state))
        assert results[0].dtype == results[1].dtype
        assert_close(*results, rtol=0.02, atol=0.02)
    name = kind.removesuffix("Cell").lower() + "_cell"
    with monkeypatch.context() as context:

        def patched(*args, **kwargs):
            raise LookupError

        context.setattr(xpgrad, name, patched)
        with pytest.raises(LookupError):
            ours(x, state)
    assert repeats["ready"] == 0
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        for expected in (0, 1, 2):  # a new program
            assert_alike(ours, theirs, x, state)
            assert repeats["ready"] == expected
    finally:
        torch.set_num_threads(threads)
    assert_alike(ours, theirs, x, state)
    assert repeats["ready"] == 3


@pytest.mark.parametrize("kind", CELLS)
def test_transformations_see_every_operator(kind):
    ours, theirs = warmed(kind)
    X, state = torch.randn(N, SIZE), new_state(kind)

    def of_ours(x):
        return first(ours(x, state))

    jacobian = torch.autograd.functional.jacobian(lambda x: first(theirs(x, state)), X)
    assert_close(torch.func.jacrev(of_ours)(X), jacobian)
    assert_close(torch.func.jvp(of_ours, (X,), (X,))[1], torch.einsum("abij,ij->ab", jacobian, X))
    each = torch.func.vmap(of_ours)(torch.stack([X, -X]))
    assert_close(each, torch.stack([first(theirs(X, state)), first(theirs(-X, state))]))
    X.requires_grad_()
    second = []
    for cell in (ours, theirs):
        (grad,) = torch.autograd.grad(first(cell(X, state)).square().sum(), X, create_graph=True)
        second += torch.autograd.grad(grad.square().sum(), X)
    assert_close(*second)


@pytest.mark.parametrize("kind", CELLS)
def test_whoever_watches_operators_sees_a_step(kind):
    ours, theirs = warmed(kind)
    x, state = torch.randn(N, SIZE), new_state(kind)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangents = [forward_ad.unpack_dual(first(cell(dual, state))).tangent for cell in (ours, theirs)]
    assert_close(*tangents)
    with Names() as seen:
        ours(x, state)
    assert any(name.startswith("xpgrad::") for name in seen.names)


class Names(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_cells_with_other_parameters_take_turns(repeats):
    options = [{"bias": True}, {"bias": False}, {"peephole": True}, {"bias": False, "peephole": True}]
    cells = [xpgrad_torch.LSTMCell(SIZE, SIZE, **one) for one in options]
    x, state = torch.randn(N, SIZE), new_state("LSTMCell")
    expected = [cell(x, state) for cell in cells]
    for _ in range(3):
        for cell, (h, c) in zip(cells, expected, strict=True):
            assert_close(cell(x, state), (h, c))
    assert repeats["ready"] == 12
    assert not any(torch.equal(expected[0][0], other[0]) for other in expected[1:])


@pytest.mark.parametrize("wrt", [["x"], ["weight_ih", "bias_hh"], ["h", "weight_hh"]])
def test_some_gradients_are_repeated(repeats, wrt):
    ours, theirs = pair("GRUCell")
    for _ in range(4):
        x, h = torch.randn(N, SIZE), torch.randn(N, SIZE)
        grads = []
        for cell in (ours, theirs):
            arrays = {"x": x.clone(), "h": h.clone(), **dict(cell.named_parameters())}
            for name, array in arrays.items():
                array.requires_grad_(name in wrt)
            cell(arrays["x"], arrays["h"]).square().sum().backward()
            grads.append([arrays[name].grad for name in wrt])
            cell.zero_grad()
        assert_close(*grads)
    assert repeats["ready"] > 2


def test_memory_that_was_given_back_is_an_error():
    ours, _ = warmed("GRUCell")
    size = ours.weight_hh.untyped_storage().size()
    ours.weight_hh.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage"):
        ours(torch.randn(N, SIZE), new_state("GRUCell"))
    ours.weight_hh.untyped_storage().resize_(size)
    ours(torch.randn(N, SIZE), new_state("GRUCell"))


def test_absent_operands_tell_calls_apart(repeats):
    """An initial h alone and an initial c alone are tensors of equal shapes."""
    X, W, R, s = torch.randn(5, N, SIZE), *torch.randn(2, 1, 4 * SIZE, SIZE), torch.randn(1, N, SIZE)
    zero = torch.zeros_like(s)
    for _ in range(4):
        for given, full in (
            ({"initial_h": s}, {"initial_h": s, "initial_c": zero}),
            ({"initial_c": s}, {"initial_h": zero, "initial_c": s}),
        ):
            assert_close(functional.lstm(X, W, R, **given), functional.lstm(X, W, R, **full))
    assert repeats["ready"] > 0


def test_lengths_are_data_and_not_alike():
    X, W, R = torch.randn(5, N, SIZE), *torch.randn(2, 1, 4 * SIZE, SIZE)
    for _ in range(3):
        whole = functional.lstm(X, W, R)[0]
        for lengths in ([5, 2, 1], [5, 5, 5], [1, 1, 5]):
            H = functional.lstm(X, W, R, sequence_lens=torch.tensor(lengths))[0]
            for n, length in enumerate(lengths):
                assert_close(H[:length, :, n], whole[:length, :, n])
                assert not H[length:, :, n].any()


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_with_new_lengths_are_repeated(repeats, kind):
    ours, theirs = pair(kind)
    for number, lengths in enumerate(([5, 2, 1], [1, 3, 5], [5, 5, 2], [2, 2, 2], [5, 5, 5])):
        x = torch.randn(5, N, SIZE, requires_grad=True)
        output = ours(x, lengths=lengths)[0]
        (grad,) = torch.autograd.grad(output.sum(), x)
        for n, length in enumerate(lengths):
            alone = theirs(x[:length, n])[0]
            assert_close(output[:length, n], alone)
            assert_close(grad[:, n], torch.autograd.grad(alone.sum(), x)[0][:, n])
        if number == 1:
            repeats.update(ready=0, anew=0)
        if number == 3:
            assert repeats == {"ready": 4, "anew": 0}
    assert repeats == {"ready": 4, "anew": 2}  # sequences that are all full have another program


def test_a_look_sees_what_a_program_depends_on():
    x, y = torch.randn(2, 3), torch.randn(3)

    def form(*tensors):
        found = look_at(tensors)
        return None if found is None else found[:2]

    known = form(x, y)
    assert form(torch.randn(2, 3), torch.nn.Parameter(torch.randn(3))) == known
    others = [torch.randn(2, 4), torch.randn(3, 2).T, x.double(), x.to(torch.complex64), x[None], x[:, ::2]]
    unseen = [
        torch._neg_view(x), x.to("meta"), x.to_sparse(), x.to_mkldnn(), x[:0], None, 1.0,
        torch._efficientzerotensor((2, 3)), torch.empty(0),
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these tensors may change
        unseen += torch.nested.nested_tensor([x[0], x[1]]), x.to_sparse_csr()
        unseen.append(torch.masked.masked_tensor(x, x > 0))
    assert known not in [form(other, y) for other in others] + [form(x), form(y, x), form(x, y, y)]
    for other in unseen:
        assert form(other, y) is None
        assert form(x, other) is None
    torch.func.vmap(lambda row: torch.testing.assert_close(form(row, y) is None, True) or row)(x[None])
    torch.func.grad(lambda row: torch.testing.assert_close(form(row, y) is None, True) or row.sum())(x)


def test_calls_of_every_shape_are_repeated(repeats):
    cell = xpgrad_torch.GRUCell(SIZE, SIZE)
    for _ in range(3):
        for rows in range(1, 13):
            cell(torch.randn(rows, SIZE), torch.randn(rows, SIZE))
    assert repeats == {"ready": 34, "anew": 2}  # the second size is recorded with symbols


def test_the_oldest_calls_are_forgotten(repeats, monkeypatch):
    monkeypatch.setattr(_programs.KnownCalls, "MOST", 4)
    monkeypatch.setattr(_programs, "_of_other_sizes", lambda *call: None)
    cell = xpgrad_torch.GRUCell(SIZE, SIZE)
    for rows in (*range(1, 9), 8, 5, 4):
        cell(torch.randn(rows, SIZE), torch.randn(rows, SIZE))
        assert len(_programs.known_calls) <= 4
    assert repeats == {"ready": 2, "anew": 9}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_known_module_is_copied(repeats, again):
    """Its copy is known too: a module holds nothing of the calls."""
    ours, _ = known_layer()
    other, x = again(ours), torch.randn(5, N, SIZE)
    repeats.update(ready=0, anew=0)
    assert torch.equal(other(x)[0], ours(x)[0])
    with torch.no_grad():
        other.weight_hh_l0.zero_()
    assert not torch.equal(other(x)[0], ours(x)[0])
    assert repeats == {"ready": 4, "anew": 0}


# --- convolutions

MODULES = {
    "Conv1d": ((6, 4, 3), (2, 6, 9)),
    "Conv2d": ((6, 4, (3, 2)), (2, 6, 7, 8)),
    "Conv3d": ((4, 4, 2), (2, 4, 3, 4, 5)),
    "ConvTranspose1d": ((6, 4, 3), (2, 6, 9)),
    "ConvTranspose2d": ((6, 4, (3, 2)), (2, 6, 7, 8)),
    "ConvTranspose3d": ((4, 4, 2), (2, 4, 3, 4, 5)),
}
OPTIONS = [{}, {"stride": 2, "padding": 1, "groups": 2}, {"dilation": 2, "bias": False}]


def convolutions(kind, **options):
    """Ours and PyTorch's with the same weights, of which ours has made the same step three times."""
    sizes, shape = MODULES[kind]
    ours, theirs = (getattr(lib, kind)(*sizes, **options) for lib in (xpgrad_torch, torch.nn))
    ours.load_state_dict(theirs.state_dict())
    for _ in range(3):
        y = ours(torch.randn(shape, requires_grad=True))
        y.backward(torch.randn_like(y))
    ours.zero_grad()
    return ours, theirs, shape


def assert_same_step(ours, theirs, x, **tolerances):
    """Forward and backward, with a random cotangent; x and the modules' parameters get gradients."""
    found = []
    cotangent = torch.randn_like(theirs(x))
    for module in (ours, theirs):
        module.zero_grad()
        own = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        y = module(own)
        y.backward(cotangent)
        found.append([y.detach(), own.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*found, strict=True):
        assert a.stride() == b.stride()
        assert_close(a, b, **tolerances)


# ------------------------------------------------------------------------------- layers without checks

LAYERS = [
    ("LSTM", {}),
    ("LSTM", {"bias": False}),
    ("LSTM", {"bidirectional": True}),
    ("LSTM", {"proj_size": 2}),
    ("LSTM", {"batch_first": True, "bidirectional": True}),
    ("GRU", {}),
    ("GRU", {"bidirectional": True, "bias": False}),
    ("RNN", {"batch_first": True}),
    ("RNN", {"nonlinearity": "relu"}),
    ("LSTM", {"num_layers": 2}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("GRU", {"num_layers": 3, "bias": False}),
]
each_layer = pytest.mark.parametrize(("kind", "options"), LAYERS, ids=str)


@pytest.fixture
def checks(monkeypatch):
    """Each layer of a call that was checked; of a module of one layer, the whole call is else repeated."""
    seen, checked = [], xpgrad_torch._layers.Layers._run_kernel

    def noting(*arguments):
        seen.append(arguments)
        return checked(*arguments)

    monkeypatch.setattr(xpgrad_torch._layers.Layers, "_run_kernel", noting)
    return seen


def states_of(module, **options):
    D = 2 if module.bidirectional else 1
    sizes = [module.proj_size or SIZE, SIZE][: 1 + isinstance(module, torch.nn.LSTM | xpgrad_torch.LSTM)]
    states = [torch.randn(D * module.num_layers, N, size, **options) for size in sizes]
    return tuple(states) if len(states) > 1 else states[0]


def sequences(layer):
    return torch.randn((N, 5, SIZE) if layer.batch_first else (5, N, SIZE))


def known_layer(kind="LSTM", **options):
    """A pair, of which ours has made the same call three times, with states and without."""
    ours, theirs = pair(kind, **options)
    for _ in range(3):
        ours(sequences(ours))
        ours(sequences(ours), states_of(ours))
    return ours, theirs


@each_layer
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("with_states", [False, True], ids=["zeros", "states"])
def test_layers_are_repeated_without_checks(checks, kind, options, with_states):
    ours, theirs = pair(kind, **options)
    for number in range(5):
        X, hx, results = sequences(ours), states_of(theirs) if with_states else None, []
        for layer in (ours, theirs):
            x = X.clone().requires_grad_()
            states = [s.clone().requires_grad_() for s in _all(hx)] if with_states else []
            given = None if not states else tuple(states) if len(states) > 1 else states[0]
            output, finals = layer(x, given)
            loss = output.square().sum() + sum((k + 2) * s.sum() for k, s in enumerate(_all(finals)))
            grads = torch.autograd.grad(loss, [x, *states, *layer.parameters()])
            results.append([output, *_all(finals), *grads])
        for a, b in zip(*results, strict=True):
            assert a.shape == b.shape
            assert_close(a, b, rtol=1e-4, atol=1e-5)
        if number == 1:
            checks.clear()
    assert not checks


@each_layer
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_layers_without_gradients(checks, kind, options):
    ours, theirs = known_layer(kind, **options)
    checks.clear()
    with torch.no_grad():
        for hx in (None, states_of(theirs)):
            x = sequences(ours)
            for a, b in zip(*(_all_of(layer(x, hx)) for layer in (ours, theirs)), strict=True):
                assert not a.requires_grad
                assert_close(a, b)
    assert ours(sequences(ours))[0].requires_grad


def _all_of(result):
    output, finals = result
    return [output, *_all(finals)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m, x, hx: (x[..., :3], hx), RuntimeError, r"input.size\(-1\) is 3"),
        (lambda m, x, hx: (x.double(), hx), ValueError, "dtype torch.float64"),
        (lambda m, x, hx: (x, hx[0]), TypeError, "hx is Tensor"),
        (lambda m, x, hx: (x, hx[:1]), TypeError, "hx is tuple"),
        (lambda m, x, hx: (x, (hx[0][:, :1], hx[1])), RuntimeError, "h_0 has shape"),
        (lambda m, x, hx: (x, (None, hx[1])), TypeError, "h_0 is NoneType"),
        (lambda m, x, hx: (x.numpy(), hx), TypeError, "input is ndarray"),
        (lambda m, x, hx: (x[None], hx), RuntimeError, "input has 4 dimensions"),
    ],
)
def test_a_wrong_call_of_a_known_layer(change, error, message):
    ours, _ = known_layer()
    with pytest.raises((error, ValueError), match=message):
        ours(*change(ours, torch.randn(5, N, SIZE), states_of(ours)))


def changed(name, value):
    return lambda module: setattr(module, name, value)


@pytest.mark.parametrize(
    "change",
    [
        changed("batch_first", True),
        changed("clip", 0.01),
        changed("zoneout", (0.5, 0.5)),
        changed("save", "states"),
        changed("save", 2),
        changed("return_cell_states", True),
        lambda module: register_parametrization(module, "weight_hh_l0", torch.nn.Hardtanh(-0.1, 0.1)),
        lambda module: l1_unstructured(module, "weight_ih_l0", 0.5),
    ],
    ids=["batch-first", "clip", "zoneout", "save-states", "save-some", "cells", "parametrized", "pruned"],
)
def test_a_known_layer_that_is_changed(change):
    """It computes what one does that was never called before."""
    ours, _ = known_layer()
    fresh = xpgrad_torch.LSTM(SIZE, SIZE)
    fresh.load_state_dict(ours.state_dict())
    x = torch.randn(5, N, SIZE)  # as the calls before
    results = []
    for module in (ours, fresh):
        change(module.eval())
        for _ in range(3):
            results.append(module(x))
        _programs.known_calls.clear()
    for other in results[1:]:
        assert len(other) == len(results[0])
        assert_close(_all_of(other[:2]), _all_of(results[0][:2]))


def test_a_known_layer_draws_masks_in_training():
    """Each call other ones; in evaluation none."""
    layer = xpgrad_torch.LSTM(SIZE, SIZE, recurrent_dropout=0.5).eval()
    x = torch.randn(5, N, SIZE)
    for _ in range(3):
        expected = layer(x)[0]
    layer.train()
    drawn = [layer(x)[0] for _ in range(2)]
    assert not torch.equal(*drawn)
    assert torch.equal(layer.eval()(x)[0], expected)


def test_a_known_layer_keeps_what_it_is_asked_to():
    """With `save` the gates are computed again, in every call."""
    layer, kept = xpgrad_torch.LSTM(SIZE, SIZE, save="states"), []
    for _ in range(4):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, to=sizes: to.append(x.numel()) or x, lambda x: x
        ):
            layer(torch.randn(5, N, SIZE))
        kept.append(sizes)
    assert kept == kept[:1] * 4
    assert max(kept[0]) < 5 * N * 4 * SIZE


def test_a_known_layer_with_lengths_or_one_sequence(checks):
    ours, theirs = known_layer()
    x, lengths = torch.randn(5, N, SIZE), torch.tensor([5, 2, 0])
    checks.clear()
    output, _ = ours(x, lengths=lengths)
    assert_close(output[:2, 1], theirs(x)[0][:2, 1])
    assert not output[:, 2].any()
    assert_close(ours(x[:, 0])[0], theirs(x[:, 0])[0])
    assert len(checks) == 2


@pytest.mark.parametrize("as_list", [False, True], ids=["tensor", "list"])
@each_layer
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_layers_with_lengths_are_repeated_without_checks(checks, kind, options, as_list):
    """Each call with other lengths; what PyTorch's module computes of a packed sequence."""
    ours, theirs = known_layer(kind, **options)  # without lengths
    checks.clear()
    for number, lengths in enumerate(([5, 2, 1], [1, 3, 5], [5, 2, 2], [2, 4, 1], [5, 5, 5])):
        X, hx, results = sequences(ours), states_of(theirs), []
        packed = {"batch_first": ours.batch_first, "enforce_sorted": False}
        for layer in (ours, theirs):
            x = X.clone().requires_grad_()
            if layer is ours:
                output, finals = ours(x, hx, lengths=lengths if as_list else torch.tensor(lengths))
            else:
                rows, finals = theirs(torch.nn.utils.rnn.pack_padded_sequence(x, lengths, **packed), hx)
                output, _ = torch.nn.utils.rnn.pad_packed_sequence(
                    rows, batch_first=ours.batch_first, total_length=5
                )
            loss = output.square().sum() + sum((k + 2) * s.sum() for k, s in enumerate(_all(finals)))
            grads = torch.autograd.grad(loss, [x, *layer.parameters()])
            results.append([output, *_all(finals), *grads])
        for a, b in zip(*results, strict=True):
            assert_close(a, b, rtol=1e-4, atol=1e-5)
        if number == 1:
            checks.clear()
    assert len(checks) <= ours.num_layers  # sequences that are all full have another program


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        (torch.tensor([5, 6, 1]), ValueError, r"LSTM: lengths\[1\] is 6, expected 0 to T = 5"),
        (torch.tensor([5, -1, 1]), ValueError, r"LSTM: lengths\[1\] is -1, expected 0 to T = 5"),
        (torch.tensor([5, 1]), ValueError, "lengths has shape"),
        (torch.tensor([5.0, 1.0, 1.0]), TypeError, "lengths has dtype"),
        ("5 1 1", TypeError, "lengths"),
    ],
)
def test_wrong_lengths_of_a_known_layer(lengths, error, message):
    ours, _ = known_layer()
    for _ in range(3):
        ours(sequences(ours), lengths=torch.tensor([5, 2, 1]))
    with pytest.raises(error, match=message):
        ours(sequences(ours), lengths=lengths)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", MODULES)
def test_convolutions_are_repeated_and_right(repeats, kind, options):
    ours, theirs, shape = convolutions(kind, **options)
    repeats.update(ready=0, anew=0)
    for _ in range(3):
        assert_same_step(ours, theirs, torch.randn(shape))
    assert repeats == {"ready": 6, "anew": 0}
    with torch.no_grad():
        x = torch.randn(shape)
        assert not ours(x).requires_grad
        assert_close(ours(x), theirs(x))


def test_convolutions_of_other_tensors_are_looked_at():
    ours, theirs, shape = convolutions("Conv2d", padding=1)
    x = torch.randn(shape)
    for other in (
        x.to(memory_format=torch.channels_last), x[:1], x[..., :-1], x[:1].expand(shape),
        torch.randn(*shape[:2], shape[3], shape[2]).mT, torch._neg_view(x), x[0], x,
    ):  # fmt: skip
        assert_same_step(ours, theirs, other)
    ours.weight.requires_grad_(False)
    ours.zero_grad()
    ours(x).sum().backward()
    assert ours.weight.grad is None
    assert ours.bias.grad is not None
    ours.weight.requires_grad_()
    with torch.autocast("cpu"):
        assert ours(x).dtype == torch.bfloat16
    assert ours(x).dtype == torch.float32
    assert_same_step(ours.double(), theirs.double(), x.double())
    assert_close(torch.func.vmap(ours)(x.double()[None])[0], theirs(x.double()))


def test_a_module_gets_other_attributes():
    ours, theirs, shape = convolutions("Conv2d", padding=1)
    x = torch.randn(shape)
    for change in ({"stride": (2, 1)}, {"padding": (0, 2)}, {"padding": "valid"}, {"dilation": [2, 2]}):
        for module in (ours, theirs):
            for name, value in change.items():
                setattr(module, name, value)
        assert_same_step(ours, theirs, x)
        assert_same_step(ours, theirs, x)


def test_numbers_of_another_kind_are_no_known_call():
    x, weight = torch.randn(2, 3, 7, 7), torch.randn(4, 3, 2, 2)
    for _ in range(3):
        functional.conv2d(x, weight, stride=(1, 1))
        functional.conv2d(x, weight, stride=1)
    with pytest.raises(TypeError, match="conv2d: stride is"):
        functional.conv2d(x, weight, stride=(1.0, 1))
    with pytest.raises(TypeError, match="conv2d: stride is"):
        functional.conv2d(x, weight, stride=1.0)
    strides = [1, 1]
    for size in (6, 3):
        assert functional.conv2d(x, weight, stride=strides).shape[2:] == (size, size)
        strides[:] = [2, 2]
    with pytest.raises(ValueError, match="conv2d: bias has shape"):
        functional.conv2d(x, weight, torch.ones(5))
    with pytest.raises(TypeError, match="conv2d: weight"):
        functional.conv2d(x, weight.numpy())


def test_an_input_of_other_dimensions_is_no_known_call():
    x, weight = torch.randn(2, 3, 7, 7), torch.randn(4, 3, 2, 2)
    for _ in range(3):
        functional.conv2d(x, weight)
        functional.conv1d(x[..., 0], weight[..., 0])
    with pytest.raises(ValueError, match="conv1d: input has 4 dimensions"):
        functional.conv1d(x, weight)
    assert functional.conv1d(x[0, ..., 0], weight[..., 0]).shape == (4, 6)


def test_a_bias_may_change_before_the_backward():
    ours, theirs, shape = convolutions("Conv2d")
    x = torch.randn(shape)
    results = [module(x) for module in (ours, theirs)]
    for module, y in zip((ours, theirs), results, strict=True):
        with torch.no_grad():
            module.bias.zero_()
        y.sum().backward()
    assert_close(ours.bias.grad, theirs.bias.grad)
    y = ours(x)
    with torch.no_grad():
        ours.weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_function_in_the_place_of_a_convolution_is_called(monkeypatch):
    ours, _, shape = convolutions("Conv2d")
    monkeypatch.setattr(xpgrad, "conv", lambda X, W, B, **_: torch.full((1,), 7.0))
    for _ in range(2):
        assert ours(torch.randn(shape)).item() == 7


# ------------------------------------------------------------------------------------------ new sizes


class OfLengths(torch.nn.Module):
    """A layer on sequences of lengths from 1 to T."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        T, N = x.shape[:2]
        lengths = torch.arange(N) % T + 1
        if isinstance(self.layer, torch.nn.GRU):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            return torch.nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], total_length=T)[0]
        return self.layer(x, lengths=lengths)[0]


class WithResets(OfLengths):
    """A layer whose sequences begin anew at their fourth step."""

    def forward(self, x):
        if isinstance(self.layer, torch.nn.GRU):
            return torch.cat([self.layer(part)[0] for part in (x[:3], x[3:])])
        return self.layer(x, reset=(torch.arange(len(x)) == 3)[:, None].repeat(1, x.shape[1]))[0]


SIZED = {
    "LSTM": lambda lib: lib.LSTM(SIZE, 6, num_layers=2, bidirectional=True),
    "GRU": lambda lib: lib.GRU(SIZE, 6, batch_first=True),
    "lengths": lambda lib: OfLengths(lib.GRU(SIZE, 6)),
    "resets": lambda lib: WithResets(lib.GRU(SIZE, 6)),
    "LSTMCell": lambda lib: lib.LSTMCell(SIZE, 6),
    "RNNCell": lambda lib: lib.RNNCell(SIZE, 6, bias=False),
    "Conv2d": lambda lib: lib.Conv2d(SIZE, 6, 3, padding=1, stride=2),
    "two convolutions": lambda lib: torch.nn.Sequential(lib.Conv1d(SIZE, 6, 3), lib.Conv1d(6, 5, 3)),
    "ConvTranspose1d": lambda lib: lib.ConvTranspose1d(SIZE, 6, 3, bias=False),
}
LAYERED = ("LSTM", "GRU", "lengths", "resets")
each_sized = pytest.mark.parametrize("kind", SIZED)


def of_sizes(kind, a, b):
    """An input of two sizes."""
    if "Cell" in kind:
        return torch.randn(a, SIZE)
    if kind in LAYERED:
        return torch.randn(a, b, SIZE)
    return torch.randn((2, SIZE, a, b) if "2d" in kind else (a, SIZE, b))


def step_of(module, x):
    """The output and all gradients of a training step."""
    x = x.clone().requires_grad_()
    output = module(x)
    output = output[0] if isinstance(output, tuple) else output
    wanted = [x, *module.parameters()]
    return [output.detach(), *torch.autograd.grad(output.square().sum(), wanted)]


@each_sized
def test_calls_of_new_sizes_need_no_checks(repeats, kind, monkeypatch):
    """Once two sizes were planned; they have the bits of calls that were checked."""
    ours, theirs = (SIZED[kind](lib) for lib in (xpgrad_torch, torch.nn))
    ours.load_state_dict(theirs.state_dict())
    for a, b in ((9, 12), (10, 11), (11, 10), (12, 9)):
        step_of(ours, of_sizes(kind, a, b))
    repeats.update(ready=0, anew=0)
    new = [of_sizes(kind, a, b) for a, b in ((12, 10), (10, 12), (9, 11), (9, 12))]
    found = [step_of(ours, x) for x in new]
    assert repeats["anew"] == 0 < repeats["ready"]
    looked_for = []
    monkeypatch.setattr(_programs, "_of_other_sizes", lambda *call: looked_for.append(call))
    for x in new:
        step_of(ours, x)
    assert not looked_for  # the calls are known now
    monkeypatch.setattr(_programs, "known_calls", _programs.KnownCalls())
    monkeypatch.setattr(_programs, "_of_other_sizes", lambda *call: None)
    for x, own in zip(new, found, strict=True):
        for mine, checked, right in zip(own, step_of(ours, x), step_of(theirs, x), strict=True):
            assert torch.equal(mine, checked)
            assert mine.stride() == checked.stride()
            assert_close(mine, right, rtol=1e-4, atol=1e-4)
    assert repeats["anew"] > 0


@each_sized
def test_wrong_calls_after_many_sizes(kind):
    """They raise the errors that they raise at first."""
    wrong = {
        "features": lambda x: x.repeat_interleave(2, -1 if x.ndim < 3 or kind in LAYERED else 1),
        "dtype": lambda x: x.double(),
        "axes": lambda x: x[None, None],
        "size": lambda x: x[..., :1] if "two" in kind else x[..., :0],
    }
    messages = []
    for _ in range(2):
        module = SIZED[kind](xpgrad_torch)
        messages.append([])
        for change in wrong.values():
            with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
                module(change(of_sizes(kind, 9, 12)))
            messages[-1].append((raised.type, str(raised.value)))
        for a, b in ((9, 12), (10, 11), (11, 10), (12, 9), (12, 10)):
            step_of(module, of_sizes(kind, a, b))
    assert messages[0] == messages[1]


def test_states_of_another_batch_after_many():
    cell = functional.gru_cell
    W, R = torch.randn(12, 4), torch.randn(12, 4)
    for N in (3, 4, 5, 6, 7):
        cell(torch.randn(N, 4), torch.randn(N, 4), W, R)
    with pytest.raises(ValueError, match="gru_cell: "):
        cell(torch.randn(8, 4), torch.randn(9, 4), W, R)


@pytest.mark.parametrize("last", [(1, 1), (1, 7), (7, 1), (8, 5)])
def test_results_keep_the_order_of_their_axes(last, monkeypatch):
    """Of images whose channels are last in memory the results' are too, as PyTorch's."""
    layers = [lib.ConvTranspose2d(SIZE, 6, 4) for lib in (xpgrad_torch, torch.nn)]

    def strides_of(layer, *size):
        x = torch.randn(2, SIZE, *size)
        given = x, x.contiguous(memory_format=torch.channels_last), x[:, :, ::1].clone()
        return [layer(one).stride() for one in given]

    for size in ((5, 6), (6, 5), (7, 5), (4, 4)):
        strides_of(layers[0], *size)
    after = strides_of(layers[0], *last)
    monkeypatch.setattr(_programs, "_of_other_sizes", lambda *call: None)
    monkeypatch.setattr(_programs, "known_calls", _programs.KnownCalls())
    assert after == strides_of(layers[0], *last) == strides_of(layers[1], *last)


def test_a_function_in_the_place_of_a_kernel_is_called_for_new_sizes(monkeypatch):
    layer = xpgrad_torch.Conv1d(SIZE, SIZE, 3)
    for width in (9, 10, 11):
        layer(torch.randn(2, SIZE, width))
    own, called = xpgrad.conv, []
    monkeypatch.setattr(xpgrad, "conv", lambda *args, **given: called.append(args) or own(*args, **given))
    layer(torch.randn(2, SIZE, 12))
    assert len(called) == 1
