"""Cells with heads and with inputs besides x: their formulas, autograd, other engines, and mistakes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import xpgrad
from backends import Backend
from xpgrad import Cell
from xpgrad._operators.axes import gradient_name
from xpgrad.cells import layer_norm, mean, sigmoid
from xpgrad.testing import cell_reference, to_numpy
from xpgrad_torch import CellLayer, run_cell

T, N, I, H = 5, 4, 3, 4
LENGTHS = [5, 0, 3, 1]


def decayed(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any, delta: Any, mask: Any) -> Any:
    """Inputs before, in and behind products."""
    h = h * xp.exp(-xp.maximum(delta * v.d, 0.0))
    z = sigmoid(xp, W.z(x) + R.z(h) + v.z * mask)
    return z * h + (1 - z) * xp.tanh(W.n(x) + R.n(h * z) * mask)


def from_elsewhere(xp: Any, x: Any, h: Any, c: Any, R: Any, gates: Any) -> Any:
    """Pre-activations that another layer computed."""
    i, f = sigmoid(xp, gates.i + R.i(h)), sigmoid(xp, gates.f + R.f(h))
    c = f * c + i * xp.tanh(gates.c + R.c(h))
    return sigmoid(xp, gates.o + R.o(h)) * xp.tanh(c), c


def attended(xp: Any, x: Any, h: Any, W: Any, R: Any, attention: Any) -> Any:
    """An input that is a factor alone, and blocks of R in another order than in the formula."""
    z = attention * sigmoid(xp, W.z(x) + R.z(h))
    n = xp.tanh(W.n(x) + sigmoid(xp, W.r(x) + R.r(h)) * R.n(h))
    return h + z * (n - h)


def normalized(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any) -> Any:
    """Means of a state and of values behind products."""
    a, b = layer_norm(xp, [W.a(x) + R.a(h), R.b(h)], 0.1)
    return xp.tanh(v.s * a + mean(xp, h * h)) + R.c(a) * b - mean(xp, x_mean(xp, a))


def x_mean(xp: Any, a: Any) -> Any:
    """A mean of a mean."""
    return xp.exp(-mean(xp, a * a))


MADE: dict[str, tuple[Any, dict[str, Any]]] = {
    "decayed": (decayed, {"W": "z n", "R": "z n", "v": "d z", "inputs": "delta mask"}),
    "from elsewhere": (from_elsewhere, {"R": "o i f c", "inputs": {"gates": "i f c o"}}),
    "attended": (attended, {"W": "z r n", "R": "r n z", "inputs": ["attention"]}),
    "normalized": (normalized, {"W": "a", "R": "a b c", "v": "s"}),
}
HEADS = {"decayed": (2, 1), "from elsewhere": (1, 4), "attended": (1, 2), "normalized": (1, 2, 4)}
CELLS = {
    f"{name}, heads {heads}": Cell(step, **options, heads=heads)
    for name, (step, options) in MADE.items()
    for heads in HEADS[name]
}
every_cell = pytest.mark.parametrize("name", CELLS)


def operands_of(cell: Cell, D: int, rng: np.random.Generator, narrow: bool = False) -> dict[str, np.ndarray]:
    tails = {"W": (I,), "R": (H // cell.heads,), "v": ()}
    shapes: dict[str, tuple[int, ...]] = {"X": (T, N, I)}
    shapes |= {kind: (D, len(own) * H, *tails[kind]) for kind, own in cell.blocks.items() if own}
    shapes |= {f"initial_{state}": (D, N, H) for state in cell.carried}
    shapes |= {
        name: (T, N, 1 if narrow and not own else max(1, len(own)) * H) for name, own in cell.inputs.items()
    }
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def by_autograd(cell: Cell, operands: dict[str, np.ndarray], lengths: Any, direction: str) -> Any:
    """Outputs, random cotangents of them, and the gradients of the plain loop."""
    tensors = {name: torch.from_numpy(x).requires_grad_() for name, x in operands.items()}
    initial = {state: tensors[f"initial_{state}"] for state in cell.carried}
    weights = [tensors.get(kind) for kind in ("X", "W", "R", "v")]
    plain = cell_reference(
        cell, *weights, lengths, initial, direction=direction, **{name: tensors[name] for name in cell.inputs}
    )
    rng = np.random.default_rng(1)
    seeds = [torch.from_numpy(rng.normal(size=tuple(y.shape))) for y in plain]
    grads = torch.autograd.grad(
        plain, list(tensors.values()), seeds, allow_unused=True, materialize_grads=True
    )
    named = dict(zip(cell.cotangents.values(), [seed.numpy() for seed in seeds], strict=True))
    return plain, named, dict(zip(tensors, [grad.numpy() for grad in grads], strict=True))


def assert_close(found: Any, wanted: Any, label: str, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(to_numpy(found), np.asarray(wanted), rtol=0, atol=tolerance, err_msg=label)


@every_cell
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("lengths", "narrow"), [(None, True), (LENGTHS, False)], ids=["full", "lengths"])
def test_gradients_are_those_of_autograd_through_a_loop(
    name: str, direction: str, lengths: Any, narrow: bool, rng: np.random.Generator
) -> None:
    cell = CELLS[name]
    operands = operands_of(cell, 2 if direction == "bidirectional" else 1, rng, narrow)
    plain, seeds, wanted = by_autograd(cell, operands, lengths, direction)
    outputs, pullback = xpgrad.vjp(cell, **operands, sequence_lens=lengths, direction=direction)
    for key, value in zip(cell.cotangents, plain, strict=True):
        assert_close(getattr(outputs, key), value.detach(), key)
    grads = pullback(**seeds)
    for key, value in wanted.items():
        assert_close(getattr(grads, gradient_name(key)), value, key)


@pytest.mark.parametrize("name", ["decayed, heads 2", "normalized, heads 2"])
def test_every_backend(backend: Backend, name: str, rng: np.random.Generator) -> None:
    cell = CELLS[name]
    operands = operands_of(cell, 2, rng)
    plain, seeds, wanted = by_autograd(cell, operands, LENGTHS, "bidirectional")
    arrays, cotangents = (
        {key: backend.array(x, "float64") for key, x in part.items()} for part in (operands, seeds)
    )
    outputs, pullback = xpgrad.vjp(cell, **arrays, sequence_lens=LENGTHS, direction="bidirectional")
    for key, value in zip(cell.cotangents, plain, strict=True):
        assert_close(getattr(outputs, key), value.detach(), key)
    grads = pullback(**cotangents)
    for key, value in wanted.items():
        assert_close(getattr(grads, gradient_name(key)), value, key)


@pytest.mark.parametrize("name", ["decayed, heads 2", "from elsewhere, heads 4", "normalized, heads 4"])
def test_gradients_of_each_sample_and_their_norms(name: str, rng: np.random.Generator) -> None:
    cell = CELLS[name]
    operands = operands_of(cell, 1, rng)
    _, seeds, wanted = by_autograd(cell, operands, LENGTHS, "forward")
    weight = rng.uniform(size=N)
    each = xpgrad.vjp(cell, **operands, sequence_lens=LENGTHS, per_sample=True)[1](**seeds)
    norms = xpgrad.vjp(cell, **operands, sequence_lens=LENGTHS, per_sample="norm")[1](**seeds)
    scaled = xpgrad.vjp(cell, **operands, sequence_lens=LENGTHS, sample_weight=weight)[1](**seeds)
    for kind in ("W", "R", "v"):
        if cell.blocks[kind]:
            own = getattr(each, f"d{kind}")
            assert_close(own.sum(axis=0), wanted[kind], kind)
            assert_close(np.tensordot(weight, own, 1), getattr(scaled, f"d{kind}"), kind)
            squares = (own**2).sum(axis=tuple(range(2, own.ndim)))
            assert_close(np.sqrt(squares), getattr(norms, f"d{kind}"), kind)
    for key in cell.inputs:  # weights of samples are for parameters alone
        for grads in (each, norms, scaled):
            assert_close(getattr(grads, gradient_name(key)), wanted[key], key)


@pytest.mark.parametrize("name", ["decayed, heads 2", "from elsewhere, heads 1"])
def test_the_batch_in_front_and_resets(name: str, rng: np.random.Generator) -> None:
    cell = CELLS[name]
    operands, reset = operands_of(cell, 1, rng), rng.uniform(size=(T, N)) < 0.4
    front = {
        key: np.moveaxis(x, -2, 0) if x.shape[-2] == N and key not in "WRv" else x
        for key, x in operands.items()
    }
    outputs, pullback = xpgrad.vjp(cell, **operands, reset=reset)
    turned, back = xpgrad.vjp(cell, **front, reset=reset.T, layout=1)
    assert_close(turned.H_all, np.moveaxis(outputs.H_all, -2, 0), "H_all")
    seed = rng.normal(size=outputs.H_all.shape)
    grads, again = pullback(seed), back(np.moveaxis(seed, -2, 0))
    for key in ("X", *cell.inputs):
        one, other = (getattr(part, gradient_name(key)) for part in (grads, again))
        assert_close(other, np.swapaxes(one, 0, 1), key)
    assert_close(grads.dR, again.dR, "R")


@pytest.mark.parametrize(("name", "narrow"), [("decayed, heads 2", True), ("from elsewhere, heads 4", False)])
def test_layers_and_functions(name: str, narrow: bool, rng: np.random.Generator) -> None:
    cell = CELLS[name]
    operands = operands_of(cell, 2, rng, narrow)
    plain, seeds, wanted = by_autograd(cell, operands, LENGTHS, "bidirectional")
    tensors = {key: torch.from_numpy(x).requires_grad_() for key, x in operands.items()}
    weights = [tensors.get(kind) for kind in ("X", "W", "R", "v")]
    initial = [tensors[f"initial_{state}"] for state in cell.carried]
    inputs = {key: tensors[key] for key in cell.inputs}
    for _ in range(2):
        found = run_cell(cell, *weights, LENGTHS, initial, direction="bidirectional", **inputs)
        loss = sum((y * torch.from_numpy(c)).sum() for y, c in zip(found, seeds.values(), strict=True))
        grads = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True, materialize_grads=True)
        for key, grad in zip(tensors, grads, strict=True):
            assert_close(grad, wanted[key], key)
    layer = CellLayer(cell, I, H, bidirectional=True, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for kind, parameter in layer.named_parameters():
            parameter.copy_(tensors[kind])
    front = {key: x.transpose(0, 1) for key, x in inputs.items()}
    output, _ = layer(tensors["X"].transpose(0, 1), initial, LENGTHS, **front)
    assert_close(output.detach().transpose(0, 1), plain[0].transpose(1, 2).flatten(2).detach(), "output")
    single, _ = layer(
        tensors["X"][:, 0], [s[:, 0] for s in initial], **{k: x[:, 0] for k, x in inputs.items()}
    )
    assert_close(single.detach(), output[0].detach(), "single")


@pytest.mark.usefixtures("interpreted")
def test_a_later_stage_needs_the_cotangent_of_an_input(rng: np.random.Generator) -> None:
    """Its memory has row means where the input has one number for each row, and lacks if it is not wanted."""

    def step(xp: Any, x: Any, h: Any, W: Any, R: Any, shift: Any) -> Any:
        (z,) = layer_norm(xp, [W.z(x) + R.z(h)])
        return xp.tanh(z) + shift

    cell = Cell(step, W="z", R="z", inputs="shift")
    T, N, I, H = 4, 3, 2, 5
    X, W, R, shift, dH = (
        rng.normal(size=s) for s in [(T, N, I), (1, H, I), (1, H, H), (T, N, 1), (T, 1, N, H)]
    )

    def gradients(shift: Any, **options: Any) -> Any:
        outputs = cell(X, W, R, shift=shift)
        saved = {name: getattr(outputs, name) for name in cell.saved}
        return cell.grad(X, W, R, shift=shift, **saved, grad_H_all=dH, **options)

    wide, narrow = gradients(np.repeat(shift, H, axis=2)), gradients(shift)
    np.testing.assert_allclose(narrow.dshift, wide.dshift.sum(axis=2, keepdims=True), rtol=1e-12)
    some = gradients(shift, wrt=["X", "W", "R"])
    for name in ("dX", "dW", "dR"):
        np.testing.assert_allclose(getattr(narrow, name), getattr(wide, name), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(getattr(some, name), getattr(wide, name), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("interpreted")
def test_inputs_may_have_the_names_of_other_operators_arrays(rng: np.random.Generator) -> None:
    """In layout 1 they are turned, they are no options of the state, and norms take samples of them."""

    def step(xp: Any, x: Any, h: Any, W: Any, R: Any, **inputs: Any) -> Any:
        a, b, c, d = inputs.values()
        return xp.tanh(W.z(x) + R.z(h) + a) * b + c * d

    def cell_of(names: str) -> Cell:
        a, b, c, d = names.split()
        space = {"step": step}
        text = f"def made(xp, x, h, W, R, {a}, {b}, {c}, {d}):"
        exec(f"{text} return step(xp, x, h, W, R, a={a}, b={b}, c={c}, d={d})", space)
        return Cell(space["made"], W="z", R="z", inputs=names)

    T, N, I, H = 3, 34, 2, 4
    X, W, R = (rng.normal(size=s) for s in [(N, T, I), (1, H, I), (1, H, H)])
    given = [rng.normal(size=(N, T, H)) for _ in range(4)]
    found = []
    for names in ("a b c d", "S zoneout_h recurrent_mask gamma"):
        cell, inputs = cell_of(names), dict(zip(names.split(), given, strict=True))
        outputs = cell(X, W, R, **inputs, layout=1)
        saved = {name: getattr(outputs, name) for name in cell.saved}
        for per_sample in (False, "norm"):
            options = {"layout": 1, "per_sample": per_sample, "grad_H_all": outputs.H_all}
            found.append([*outputs, *cell.grad(X, W, R, **inputs, **saved, **options)])
    for own, other in zip(found[:2], found[2:], strict=True):
        for x, y in zip(own, other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_maps_over_an_input() -> None:
    cell = CELLS["decayed, heads 2"]
    layer = CellLayer(cell, I, H, dtype=torch.float64)
    X, delta = torch.randn(T, N, I, dtype=torch.float64), torch.rand(T, N, 1, dtype=torch.float64)
    mask = torch.rand(3, T, N, H, dtype=torch.float64)
    weights = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(weights: Any, mask: Any) -> Any:
        inputs = {"delta": delta, "mask": mask}
        return torch.func.functional_call(layer, weights, (X,), inputs)[0].square().sum()

    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, 0))(weights, mask)
    for k in range(3):
        alone = torch.func.grad(loss, argnums=(0, 1))(weights, mask[k])
        torch.testing.assert_close(each[1][k], alone[1])
        for key, value in alone[0].items():
            torch.testing.assert_close(each[0][key][k], value)


@pytest.mark.long
def test_compiled_layers() -> None:
    layer = CellLayer(CELLS["decayed, heads 2"], I, H, dtype=torch.float64)
    X, mask = (torch.randn(T, N, width, dtype=torch.float64) for width in (I, H))
    inputs = {"delta": torch.rand(T, N, 1, dtype=torch.float64), "mask": mask}
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X, **inputs)[0], layer(X, **inputs)[0])


@pytest.mark.usefixtures("interpreted")
def test_half_precision(rng: np.random.Generator) -> None:
    cell = CELLS["decayed, heads 2"]
    operands = {key: x.astype(np.float16) for key, x in operands_of(cell, 1, rng, True).items()}
    single = {key: x.astype(np.float32) for key, x in operands.items()}
    (half, back), (full, pullback) = (xpgrad.vjp(cell, **given) for given in (operands, single))
    assert half.H_all.dtype == np.float16
    assert_close(half.H_all, full.H_all, "H_all", 2e-3)
    grads, exact = back(np.ones_like(half.H_all)), pullback(np.ones_like(full.H_all))
    assert grads.ddelta.dtype == np.float16
    np.testing.assert_allclose(grads.ddelta, exact.ddelta, rtol=2e-2, atol=2e-2)


def test_under_jax(rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax", reason="jax not installed")
    cell = CELLS["decayed, heads 2"]
    with jax.enable_x64(True):
        operands = operands_of(cell, 1, rng, True)
        _, seeds, wanted = by_autograd(cell, operands, LENGTHS, "forward")

        def loss(given: Any) -> Any:
            out = cell(**given, sequence_lens=LENGTHS)
            return sum((getattr(out, key) * seeds[seed]).sum() for key, seed in cell.cotangents.items())

        grads = jax.jit(jax.grad(loss))({key: jax.numpy.asarray(x) for key, x in operands.items()})
    for key, value in wanted.items():
        assert_close(grads[key], value, key)


def test_copies_and_digests() -> None:
    for cell in CELLS.values():
        assert pickle.loads(pickle.dumps(cell)).digest == cell.digest
        assert copy.deepcopy(cell) is cell
    assert len({cell.digest for cell in CELLS.values()}) == len(CELLS)


def elman(xp: Any, x: Any, h: Any, W: Any, R: Any, v: Any, gap: Any) -> Any:
    return xp.tanh(W.z(x) + R.z(h) + v.z * gap)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"inputs": "gap x"}, TypeError, "inputs has 'x', expected the name of a parameter of step"),
        ({"inputs": "gap other"}, TypeError, "inputs has 'other', expected the name of a parameter of step"),
        ({"inputs": "gap gap"}, ValueError, "inputs has gap, gap, expected names apart"),
        ({"inputs": 3}, TypeError, "inputs is a int, expected names"),
        (
            {"inputs": {"gap": "a b"}},
            TypeError,
            "gap as a whole, expected its blocks by their names, gap.a, gap.b",
        ),
        ({"inputs": "gap", "heads": 0}, ValueError, "heads is 0, expected a number from 1 on"),
        ({"inputs": "gap", "heads": 1.5}, TypeError, "heads is 1.5 of type float, expected an integer"),
        ({"inputs": "gap", "W": ""}, AttributeError, "step uses W.z, expected one of no blocks"),
    ],
)
def test_wrong_cells(options: dict[str, Any], error: type, text: str) -> None:
    with pytest.raises(error, match=f"^elman: .*{text}"):
        Cell(elman, **{"W": "z", "R": "z", "v": "z", **options})


def unused(xp: Any, x: Any, h: Any, W: Any, R: Any, gap: Any) -> Any:
    return xp.tanh(W.z(x) + R.z(h))


def test_wrong_calls(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="step makes no use of gap, expected all inputs in it"):
        Cell(unused, W="z", R="z", inputs="gap")
    cell = CELLS["decayed, heads 2"]
    operands = operands_of(cell, 1, rng)
    for key, shape, text in [
        ("mask", (T, N, 2), r"mask has shape \(5, 4, 2\), expected \(T, N, H\) = \(5, 4, 4\) or \(T, N, 1\)"),
        ("mask", (T, H), r"mask has shape \(5, 4\), expected \(T, N, H\)"),
        ("R", (1, 8, 4), r"R has shape \(1, 8, 4\), expected \(D, 2H, H/2\) = \(1, 8, 2\)"),
    ]:
        with pytest.raises(ValueError, match=f"^decayed: {text}"):
            cell(**{**operands, key: np.zeros(shape)})
    with pytest.raises(TypeError, match="decayed: missing a required argument: 'mask'"):
        cell(**{key: x for key, x in operands.items() if key != "mask"})
    with pytest.raises(TypeError, match="decayed: mask is None, expected an array"):
        cell(**{**operands, "mask": None})
    gap = np.zeros((T, N, 1))
    with pytest.raises(ValueError, match=r"^decayed: H is 3, expected a multiple of heads = 2"):
        cell(operands["X"], np.zeros((1, 6, I)), np.zeros((1, 6, 1)), np.zeros((1, 6)), delta=gap, mask=gap)
    with pytest.raises(ValueError, match="CellLayer: hidden_size is 3, expected a multiple of heads = 2"):
        CellLayer(cell, I, 3)
    layer = CellLayer(cell, I, H)
    with pytest.raises(TypeError, match=r"CellLayer: inputs are delta, expected those of delta, mask"):
        layer(torch.zeros(T, N, I), delta=torch.zeros(T, N, 1))
    with pytest.raises(TypeError, match=r"CellLayer: delta is float, expected torch.Tensor"):
        layer(torch.zeros(T, N, I), delta=1.0, mask=torch.zeros(T, N, 1))
