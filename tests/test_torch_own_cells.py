"""`xpgrad.Cell` in PyTorch: under autograd, its transformations and compilers, and as a layer."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from own_cells import CELLS
from xpgrad import Cell
from xpgrad.testing import cell_reference
from xpgrad_torch import CellLayer, cells, run_cell

every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


def layer_of(cell, **options):
    torch.manual_seed(0)
    return CellLayer(cell, 3, 4, dtype=torch.float64, **options)


def parameters_of(layer):
    return [getattr(layer, kind, None) for kind in ("W", "R", "v")]


@every_cell
@pytest.mark.parametrize("lengths", [None, [4, 0, 2]], ids=["whole", "lengths"])
def test_layers_pass_gradcheck(cell, lengths):
    layer = layer_of(cell, bidirectional=True)
    X = torch.randn(4, 3, 3, dtype=torch.float64, requires_grad=True)
    initial = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in cell.carried]

    def run(X, *rest):
        given = dict(zip([name for name, _ in layer.named_parameters()], rest, strict=False))
        states = rest[len(given) :]
        output, finals = torch.func.functional_call(layer, given, (X, states, lengths))
        return output, *(finals if isinstance(finals, tuple) else (finals,))

    assert torch.autograd.gradcheck(run, (X, *layer.parameters(), *initial), fast_mode=True)


@every_cell
def test_layers_are_the_plain_loop(cell):
    layer = layer_of(cell, batch_first=True)
    X = torch.randn(3, 5, 3, dtype=torch.float64)
    output, _ = layer(X, lengths=torch.tensor([5, 2, 4]))
    plain = cell_reference(cell, X.transpose(0, 1), *parameters_of(layer), sequence_lens=[5, 2, 4])
    torch.testing.assert_close(output, plain[0][:, 0].transpose(0, 1))
    names = [name for name, _ in layer.named_parameters()]
    ours = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
    theirs = torch.autograd.grad(plain[0].square().sum(), list(layer.parameters()))
    for name, a, b in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12, msg=name)


@pytest.mark.parametrize("name", ["GRU", "peephole LSTM", "centered"])
def test_transformations(name):
    cell = CELLS[name]
    layer = layer_of(cell)
    weights = {name: p.detach() for name, p in layer.named_parameters()}
    X = torch.randn(5, 4, 2, 3, dtype=torch.float64)  # T, mapped, N, I

    def loss(weights, X):
        return torch.func.functional_call(layer, weights, (X,))[0].square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 1))(weights, X)
    for k in range(4):
        alone = torch.func.grad(loss)(weights, X[:, k])
        for key, gradient in alone.items():
            torch.testing.assert_close(each[key][k], gradient)
    tangent = {key: torch.randn_like(p) for key, p in weights.items()}
    _, along = torch.func.jvp(lambda w: loss(w, X[:, 0]), (weights,), (tangent,))
    grads = torch.func.grad(loss)(weights, X[:, 0])
    torch.testing.assert_close(along, sum((grads[key] * tangent[key]).sum() for key in weights))
    parameters = list(layer.parameters())
    first = torch.autograd.grad(loss(dict(layer.named_parameters()), X[:, 0]), parameters, create_graph=True)
    assert torch.autograd.grad(first[0].square().sum(), parameters)[0].shape == parameters[0].shape


@pytest.mark.parametrize("name", ["GRU", "simple recurrent unit", "centered"])
def test_compilers_see_one_operator(name):
    layer = layer_of(CELLS[name])
    X = torch.randn(4, 3, 3, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(X, lengths=torch.tensor([4, 1, 3])), layer(X, lengths=[4, 1, 3])
    torch.testing.assert_close(ours, theirs)
    parameters = list(layer.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(ours[0].sum(), parameters), torch.autograd.grad(theirs[0].sum(), parameters)
    )
    exported = torch.export.export(layer, (X,)).module()
    torch.testing.assert_close(exported(X)[0], layer(X)[0])


def test_less_memory_gives_the_same_numbers():
    layer = layer_of(CELLS["peephole LSTM"])
    lean = copy.deepcopy(layer)
    lean.save = "states"
    X = torch.randn(4, 3, 3, dtype=torch.float64)
    for model in (layer, lean):
        model(X)[0].square().sum().backward()
    for a, b in zip(layer.parameters(), lean.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_layers_are_pickled_and_say_what_they_are():
    layer = layer_of(CELLS["GRU"], bidirectional=True)
    again = pickle.loads(pickle.dumps(layer))
    X = torch.randn(4, 3, 3, dtype=torch.float64)
    assert torch.equal(again(X)[0], layer(X)[0])
    assert "gated_recurrent_unit" in repr(layer)


def test_single_precision_is_that_of_the_double_one():
    layer = layer_of(CELLS["GRU"])
    X = torch.randn(6, 20, 3, dtype=torch.float64)
    double = layer(X)[0]
    torch.testing.assert_close(layer.float()(X.float())[0], double.float(), rtol=1e-4, atol=1e-5)


# --- the names of operators, which programs and caches keep


LOADED = """
import sys
import pytest
import torch
import own_cells
import xpgrad
from xpgrad_torch import CellLayer

X = torch.linspace(-1, 1, 36, dtype=torch.float64).view(4, 3, 3)


def refused():
    with pytest.raises(RuntimeError, match="error when deserializing"):
        torch.export.load(sys.argv[1])
    with pytest.raises(RuntimeError, match="Unknown builtin op: xpgrad::cell_minimal_gated_unit_"):
        torch.jit.load(sys.argv[2])


refused()
other = xpgrad.Cell(own_cells.two_products, W="a", R="a b c", name="minimal_gated_unit")
CellLayer(other, 3, 4)
refused()
other = xpgrad.Cell(own_cells.minimal_gated_unit, W="f n", R="n f", v="f n")  # another order
CellLayer(other, 3, 4)
refused()
CellLayer(xpgrad.Cell(own_cells.minimal_gated_unit, W="f n", R="f n", v="f n"), 3, 4)
expected = torch.load(sys.argv[3])
torch.testing.assert_close(torch.export.load(sys.argv[1]).module()(X)[0], expected)
torch.testing.assert_close(torch.jit.load(sys.argv[2])(X)[0], expected)
"""


@pytest.mark.filterwarnings(
    "ignore:Converting a tensor to a Python boolean", "ignore:.torch.jit:DeprecationWarning"
)
def test_a_program_runs_its_own_cell_in_another_process_or_none(tmp_path):
    layer = layer_of(CELLS["minimal gated unit"])
    X = torch.linspace(-1, 1, 36, dtype=torch.float64).view(4, 3, 3)
    files = [str(tmp_path / name) for name in ("program.pt2", "trace.pt", "output.pt")]
    torch.export.save(torch.export.export(layer, (X,)), files[0])
    torch.jit.save(torch.jit.trace(layer, X), files[1])
    torch.save(layer(X)[0].detach(), files[2])
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *files], cwd=folder, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr


def test_cells_of_one_formula_share_an_operator():
    def made(step, **blocks):
        return Cell(step, **{"W": "z", "R": "z", **blocks}, name="made")

    def first(xp, x, h, c, W, R):
        return xp.tanh(W.z(x) + R.z(h)) + c, c + h

    def second(xp, x, h, c, W, R):  # another state goes into the product
        return xp.tanh(W.z(x) + R.z(c)) + c, c + h

    def third(xp, x, h, c, W, R):  # another number
        return xp.tanh(W.z(x) + R.z(h)) + c, c + 1.5 * h

    def fourth(xp, x, h, d, W, R):  # another name of a state
        return xp.tanh(W.z(x) + R.z(h)) + d, d + h

    digests = [made(step).digest for step in (first, second, third, fourth)]
    assert len({*digests}) == 4
    assert made(first).digest == digests[0]
    X = torch.randn(4, 3, 3)
    layers = [CellLayer(made(step), 3, 4) for step in (first, first, second)]
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    exported = [torch.export.export(layer, (X,)) for layer in layers]
    names = [
        next(str(node.target) for node in program.graph.nodes if "xpgrad" in str(node.target))
        for program in exported
    ]
    assert names[0] == names[1] == f"xpgrad.cell_made_{digests[0]}.default"
    assert names[2] == f"xpgrad.cell_made_{digests[1]}.default"


def _scaled(scale):
    """A new cell each time; cells of one number are equal."""

    def step(xp, x, h, W, R):
        return xp.tanh(W.z(x) + scale * R.z(h))

    return Cell(step, W="z", R="z", name="scaled")


def test_equal_cells_are_freed():
    X = torch.randn(4, 3, 3)
    CellLayer(_scaled(0.5), 3, 4)(X)
    cell = _scaled(0.5)
    CellLayer(cell, 3, 4)(X)[0].sum().backward()
    watched = weakref.ref(cell)
    del cell
    gc.collect()
    assert watched() is None


def test_a_cell_is_first_used_in_two_threads(monkeypatch):
    """PyTorch refuses an operator that is registered twice."""
    both, register = threading.Barrier(2), cells.registered

    def registered(kernel):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # time for the other thread, which waits elsewhere
        return register(kernel)

    monkeypatch.setattr(cells, "registered", registered)
    cell, X = _scaled(0.25), torch.randn(4, 3, 3)
    W, R = torch.randn(1, 4, 3), torch.randn(1, 4, 4)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda X: run_cell(cell, X, W, R)[0], [X, X])
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("count", [14, 15])
def test_states_are_as_many_as_an_operator_can_have(count):
    states = ", ".join(f"s{k}" for k in range(count))
    after = ", ".join(f"0.5 * s{k} + a" for k in range(1, count))
    made = {}
    exec(
        f"def many(xp, x, {states}, W, R):\n    a = xp.tanh(W.z(x) + R.z(s0))\n    return a, {after}\n", made
    )
    cell = Cell(made["many"], W="z", R="z")
    if count == 14:
        output, finals = CellLayer(cell, 3, 4)(torch.randn(5, 2, 3))
        output.sum().backward()
        assert len(finals) == count
        return
    words = r"many: 15 states make 68 arguments of the gradient's operator, expected at most 64"
    with pytest.raises(ValueError, match=words):
        CellLayer(cell, 3, 4)
    with pytest.raises(ValueError, match=words):
        run_cell(cell, torch.zeros(5, 2, 3), torch.zeros(1, 4, 3), torch.zeros(1, 4, 4))


def test_wrong_calls_are_refused():
    layer = layer_of(CELLS["simple recurrent unit"])
    X = torch.zeros(4, 3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="CellLayer: input has 1 dimensions, expected 2"):
        layer(X[0, 0])
    with pytest.raises(TypeError, match="CellLayer: input is list"):
        layer([X])
    with pytest.raises(TypeError, match="R is given, expected None"):
        run_cell(layer.cell, X, layer.W, layer.W, layer.v)
    with pytest.raises(ValueError, match="initial has 2 tensors, expected 1: c"):
        run_cell(layer.cell, X, layer.W, None, layer.v, initial=[None, None])
    with pytest.raises(TypeError, match=r"v is NoneType, expected torch\.Tensor"):
        run_cell(layer.cell, X, layer.W)
    with pytest.raises(TypeError, match=r"cell is function, expected xpgrad\.Cell"):
        CellLayer(layer.cell.step, 3, 4)
    with pytest.raises(TypeError, match=r"^run_cell: cell is function, expected xpgrad\.Cell$"):
        run_cell(layer.cell.step, X, layer.W, None, layer.v)
    with pytest.raises(ValueError, match=r"^simple_recurrent_unit: save is 'none', expected"):
        run_cell(layer.cell, X, layer.W, None, layer.v, save="none")
    with pytest.raises(ValueError, match="hidden_size is 0"):
        CellLayer(layer.cell, 3, 0)
    with pytest.raises(ValueError, match=r"^CellLayer: save is 'none', expected 'all' or 'states'$"):
        CellLayer(layer.cell, 3, 4, save="none")
