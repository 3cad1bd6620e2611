"""GRU-D: against its definition, autograd and differences, in layers, and with gaps that hold anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import xpgrad
from xpgrad.testing import gru_d_reference
from xpgrad_torch import GRUD, functional

T, N, I, H = 6, 4, 3, 4
LENGTHS = [6, 0, 3, 1]
SAVED = ("H_all", "filled", "last", "saved_x", "saved")
GRADIENTS = {"initial_h": "dH0"}


def operands_of(D: int, rng: np.random.Generator, mean: bool = True) -> dict[str, np.ndarray]:
    shapes = {
        "W": (D, 3 * H, 2 * I), "R": (D, 3 * H, H), "decay_x": (D, 2, I), "decay_h": (D, H, I + 1),
        "B": (D, 3 * H), "mean": (D, I), "initial_h": (D, N, H),
    }  # fmt: skip
    arrays = {"X": rng.normal(size=(T, N, I)), "mask": (rng.uniform(size=(T, N, I)) < 0.5).astype(float)}
    arrays["delta"] = rng.uniform(size=(T, N, I))
    arrays |= {name: rng.normal(size=shape) for name, shape in shapes.items()}
    if not mean:
        del arrays["mean"], arrays["B"]
    return arrays


def by_autograd(operands: dict[str, Any], **options: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    tensors = {name: torch.from_numpy(x).requires_grad_(name != "mask") for name, x in operands.items()}
    outputs = gru_d_reference(**tensors, **options)
    rng = np.random.default_rng(1)
    seeds = [rng.normal(size=tuple(y.shape)) for y in outputs]
    own = {name: x for name, x in tensors.items() if name != "mask"}
    grads = torch.autograd.grad(outputs, list(own.values()), [torch.from_numpy(s) for s in seeds])
    return (
        [y.detach().numpy() for y in outputs],
        seeds,
        dict(zip(own, [g.numpy() for g in grads], strict=True)),
    )


def gradients(operands: dict[str, Any], seeds: Any, **options: Any) -> tuple[Any, Any]:
    forward = {name: x for name, x in options.items() if name not in ("per_sample", "sample_weight")}
    out = xpgrad.gru_d(**operands, **forward)
    kept = {name: getattr(out, name) for name in SAVED}
    return out, xpgrad.gru_d_grad(**operands, **kept, grad_H_all=seeds[0], grad_H_t=seeds[1], **options)


def assert_close(found: Any, wanted: Any, label: str, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=0, atol=tolerance, err_msg=label)


def compare(out: Any, grads: Any, plain: Any, wanted: dict[str, Any]) -> None:
    assert_close(out.H_all, plain[0], "H_all")
    assert_close(out.H_t, plain[1], "H_t")
    for name, value in wanted.items():
        assert_close(getattr(grads, GRADIENTS.get(name, f"d{name}")), value, name)


@pytest.mark.parametrize("engine", ["compiled", "blocks", "standard"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("lengths", "mean"), [(None, False), (LENGTHS, True)], ids=["full", "lengths"])
def test_against_autograd_through_the_definition(
    engine: str, direction: str, lengths: Any, mean: bool, rng: np.random.Generator, monkeypatch: Any
) -> None:
    if engine == "blocks":
        monkeypatch.setenv("XPGRAD_JIT", "0")
    options = {"direction": direction, "sequence_lens": lengths}
    operands = operands_of(2 if direction == "bidirectional" else 1, rng, mean)
    plain, seeds, wanted = by_autograd(operands, **options)
    with xpgrad.use_engine("standard" if engine == "standard" else None):
        compare(*gradients(operands, seeds, **options), plain, wanted)


@pytest.mark.usefixtures("interpreted")
def test_central_differences(rng: np.random.Generator) -> None:
    operands = operands_of(1, rng)
    _, seeds, wanted = by_autograd(operands, sequence_lens=LENGTHS)
    for name, grad in wanted.items():
        along = rng.normal(size=grad.shape)
        ends = [
            xpgrad.gru_d(**{**operands, name: operands[name] + sign * 1e-6 * along}, sequence_lens=LENGTHS)
            for sign in (1, -1)
        ]
        change = sum(
            (seed * (getattr(ends[0], y) - getattr(ends[1], y))).sum()
            for seed, y in zip(seeds, ("H_all", "H_t"), strict=True)
        )
        np.testing.assert_allclose((grad * along).sum(), change / 2e-6, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.usefixtures("interpreted")
def test_gaps_and_padding_hold_anything(rng: np.random.Generator) -> None:
    operands = operands_of(1, rng)
    plain, seeds, wanted = by_autograd(operands, sequence_lens=LENGTHS)
    operands["X"] = np.where(operands["mask"] == 0, np.nan, operands["X"])
    for n, length in enumerate(LENGTHS):
        for name in ("X", "mask", "delta"):
            operands[name][length:, n] = np.nan
        seeds[0][length:, :, n] = np.nan
    compare(*gradients(operands, seeds, sequence_lens=LENGTHS), plain, wanted)


@pytest.mark.usefixtures("interpreted")
def test_each_sample_layout_and_resets(rng: np.random.Generator) -> None:
    operands, reset = operands_of(2, rng), rng.uniform(size=(T, N)) < 0.4
    options = {"direction": "bidirectional", "sequence_lens": LENGTHS, "reset": reset}
    seeds = [rng.normal(size=(T, 2, N, H)), rng.normal(size=(2, N, H))]
    weight = rng.uniform(size=N)
    out, whole = gradients(operands, seeds, **options)
    _, each = gradients(operands, seeds, **options, per_sample=True)
    _, weighted = gradients(operands, seeds, **options, sample_weight=weight)
    for name in ("dW", "dR", "dB", "ddecay_x", "ddecay_h", "dmean"):
        assert_close(getattr(each, name).sum(axis=0), getattr(whole, name), name)
        assert_close(np.tensordot(weight, getattr(each, name), 1), getattr(weighted, name), name)
    assert_close(weighted.dX, whole.dX, "dX")
    front = {
        k: np.moveaxis(x, -2, 0) if k in ("X", "mask", "delta", "initial_h") else x
        for k, x in operands.items()
    }
    turned, grads = gradients(
        front, [np.moveaxis(s, -2, 0) for s in seeds], **{**options, "reset": reset.T}, layout=1
    )
    assert_close(turned.H_all, np.moveaxis(out.H_all, -2, 0), "H_all")
    assert_close(grads.dX, np.swapaxes(whole.dX, 0, 1), "X")
    assert_close(grads.dH0, np.swapaxes(whole.dH0, 0, 1), "H0")
    assert_close(grads.ddecay_h, whole.ddecay_h, "decay_h")
    # the first piece of a sequence is a call of its own: in the first direction its begin
    cut = next((t for t in range(1, T) if reset[t, 0]), T)
    alone = {
        k: x[:cut, :1] if k in ("X", "mask", "delta") else x[:1, :1] if k == "initial_h" else x[:1]
        for k, x in operands.items()
    }
    alone["initial_h"] = alone["initial_h"] * (not reset[0, 0])
    assert_close(xpgrad.gru_d(**alone).H_all[:, 0], out.H_all[:cut, 0, :1], "the first piece")


@pytest.mark.parametrize("save", ["all", "states"])
def test_layers_and_functions(save: str, rng: np.random.Generator) -> None:
    operands = operands_of(2, rng)
    operands["mean"][1] = operands["mean"][0]  # a layer has one for both directions
    options = {"direction": "bidirectional", "sequence_lens": LENGTHS}
    plain, seeds, wanted = by_autograd(operands, **options)
    tensors = {name: torch.from_numpy(x).requires_grad_(name != "mask") for name, x in operands.items()}
    found = functional.gru_d(**tensors, **options, save=save)
    loss = sum((y * torch.from_numpy(seed)).sum() for y, seed in zip(found, seeds, strict=True))
    own = {name: x for name, x in tensors.items() if name != "mask"}
    for name, grad in zip(own, torch.autograd.grad(loss, list(own.values())), strict=True):
        assert_close(grad, wanted[name], name)
    layer = GRUD(
        I,
        H,
        tensors["mean"][0].detach(),
        bidirectional=True,
        batch_first=True,
        dtype=torch.float64,
        save=save,
    )
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(tensors[name])
    X, mask, delta = (tensors[name].transpose(0, 1) for name in ("X", "mask", "delta"))
    output, final = layer(X, mask, delta, tensors["initial_h"], LENGTHS)
    assert_close(
        output.detach().transpose(0, 1), np.concatenate([plain[0][:, 0], plain[0][:, 1]], -1), "output"
    )
    assert_close(final.detach(), plain[1], "final")
    single, _ = layer(X[0], mask[0], delta[0], tensors["initial_h"][:, 0])
    assert_close(single.detach(), output[0].detach(), "single")


def test_jax(rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax", reason="jax not installed")
    import xpgrad_jax

    operands = operands_of(1, rng)
    plain, seeds, wanted = by_autograd(operands, sequence_lens=LENGTHS)
    with jax.enable_x64(True):
        mask, own = operands["mask"], {k: jax.numpy.asarray(x) for k, x in operands.items() if k != "mask"}

        def loss(given: Any, lengths: Any) -> Any:
            found = xpgrad_jax.gru_d(**given, mask=jax.numpy.asarray(mask), sequence_lens=lengths)
            return sum((y * seed).sum() for y, seed in zip(found, seeds, strict=True))

        eager = xpgrad_jax.gru_d(**own, mask=jax.numpy.asarray(mask), sequence_lens=LENGTHS)
        grads = jax.jit(jax.grad(loss))(own, jax.numpy.asarray(LENGTHS))
    assert_close(eager[0], plain[0], "H_all")
    for name, value in wanted.items():
        assert_close(grads[name], value, name)


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("mask", (T, N, 1), r"mask has shape \(6, 4, 1\), expected \(T, N, I\) = \(6, 4, 3\)"),
        ("W", (1, 12, 3), r"W has shape \(1, 12, 3\), expected \(D, 3H, 2I\) = \(1, 12, 6\)"),
        ("decay_h", (1, 4, 3), r"decay_h has shape \(1, 4, 3\), expected \(D, H, I \+ 1\) = \(1, 4, 4\)"),
        ("mean", (3,), r"mean has shape \(3,\), expected \(D, I\) = \(1, 3\)"),
    ],
)
def test_wrong_arguments(name: str, shape: tuple[int, ...], text: str, rng: np.random.Generator) -> None:
    operands = operands_of(1, rng)
    with pytest.raises(ValueError, match=f"^gru_d: {text}"):
        xpgrad.gru_d(**{**operands, name: np.zeros(shape)})
    with pytest.raises(TypeError, match="gru_d: mask is None, expected an array"):
        xpgrad.gru_d(**{**operands, "mask": None})
    out = xpgrad.gru_d(**operands)
    with pytest.raises(ValueError, match="gru_d_grad: no cotangent is given"):
        xpgrad.gru_d_grad(**operands, **{key: getattr(out, key) for key in SAVED})


class Traced(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = GRUD(3, 4)

    def forward(self, values, mask, delta):
        return self.layer(values, mask, delta)[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays(dtype):
    layer = GRUD(3, 4, bidirectional=True).to(dtype)
    values, delta = torch.rand(2, 5, 2, 3, dtype=dtype)
    results = layer(values, (values > 0.5).to(dtype), delta)
    assert [x.dtype for x in results] == [dtype, dtype]
    wider = layer.float()(values.float(), (values > 0.5).float(), delta.float())
    assert all(torch.equal(x, y.to(dtype)) for x, y in zip(results, wider, strict=True))


def test_a_compiler_takes_it_whole():
    layer, (values, delta) = GRUD(3, 4), torch.rand(2, 5, 2, 3)
    given = values, (values > 0.5).float(), delta
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (layer, compiled):
        output, _ = run(*given, lengths=torch.tensor([5, 3]))
        grads.append([output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_the_layer_is_a_node_of_torch_fx_and_knows_autocast():
    model, (values, delta) = Traced(), torch.rand(2, 5, 2, 3)
    mask = (values > 0.5).float()
    expected = model(values, mask, delta)
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes].count("call_module") == 1
    assert torch.equal(traced(values, mask, delta), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = [x.bfloat16() for x in (values, mask, delta)]
        found = model(*rounded)
    # the product that makes the gaps is autocast's
    torch.testing.assert_close(found, model(*[x.float() for x in rounded]), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_large_sums_that_cancel(dtype):
    """Half precision is computed in float32."""
    T, cotangents = 40, np.zeros((40, 1, 2, 1))
    cotangents[:, 0, 0], cotangents[:, 0, 1] = 120, -120
    cotangents[-1] += 1
    shapes = {"W": (1, 3, 2), "R": (1, 3, 1), "decay_x": (1, 2, 1)}
    given = {"X": np.zeros((T, 2, 1)), "mask": np.ones((T, 2, 1)), "delta": np.full((T, 2, 1), 60.0)}
    given |= {name: np.zeros(shape) for name, shape in shapes.items()}
    given |= {"decay_h": np.full((1, 1, 2), 1 / 1024), "B": np.asarray([[-20.0, 0, 0]])}
    given["initial_h"] = np.ones((1, 2, 1))

    def gradient(dtype):
        arrays = {name: array.astype(dtype) for name, array in given.items()}
        _, pullback = xpgrad.vjp(xpgrad.gru_d, **arrays)
        return pullback(grad_H_all=cotangents.astype(dtype)).ddecay_h

    found = gradient(dtype)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, gradient(np.float64), rtol=1e-2)


def test_a_decay_that_forgets_at_once():
    rng = np.random.default_rng(0)
    X, delta = rng.normal(size=(5, 2, 3)), rng.uniform(size=(5, 2, 3))
    shapes = [(1, 12, 6), (1, 12, 4), (1, 2, 3), (1, 4, 4)]
    W, R, decay_x, decay_h = (rng.normal(size=shape) for shape in shapes)
    decay_x[0, 0] = np.inf
    assert np.isfinite(xpgrad.gru_d(X, np.zeros_like(X), delta, W, R, decay_x, decay_h).H_all).all()


@pytest.mark.parametrize("per_sample", [False, True, "norm"])
@pytest.mark.parametrize("D", [1, 2])
def test_each_gradient_alone(D: int, per_sample: bool | str, rng: np.random.Generator) -> None:
    operands = operands_of(D, rng)
    options = {"direction": "bidirectional" if D == 2 else "forward", "per_sample": per_sample}
    out, pullback = xpgrad.vjp(xpgrad.gru_d, **operands, **options)
    d = rng.normal(size=out.H_all.shape)
    whole = pullback(d)._asdict()
    operands_with = [name for name in operands if name != "mask"]
    fields = [name for name in whole if whole[name] is not None]
    assert len(fields) == len(operands_with)
    for name in operands_with:
        field = "dH0" if name == "initial_h" else f"d{name}"
        alone = xpgrad.vjp(xpgrad.gru_d, **operands, **options, wrt=(name,))[1](d)._asdict()
        assert [key for key, found in alone.items() if found is not None] == [field]
        np.testing.assert_allclose(alone[field], whole[field], rtol=1e-12, atol=1e-14)
    nothing = xpgrad.vjp(xpgrad.gru_d, **operands, **options, wrt=())[1](d)
    assert all(found is None for found in nothing)
