"""Recurrent networks with layer normalization: against autograd through a plain loop, PyTorch's own
`layer_norm`, and differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import layer_norm

import xpgrad
from backends import BACKENDS
from xpgrad.testing import assert_close, layer_norm_gru_reference, layer_norm_lstm_reference, to_numpy
from xpgrad_torch import LayerNormGRU, LayerNormLSTM, functional

CASES = {
    "lstm": (xpgrad.layer_norm_lstm, layer_norm_lstm_reference, 4),
    "gru": (xpgrad.layer_norm_gru, layer_norm_gru_reference, 3),
}
MODULES = {"lstm": LayerNormLSTM, "gru": LayerNormGRU}
FIELDS = {"initial_h": "dH0", "initial_c": "dC0"}
both = pytest.mark.parametrize("name", CASES)


@pytest.fixture(params=["compiled", "blocks", "standard"])
def engine(request, monkeypatch):
    """Each way in which a loop runs."""
    if request.param == "blocks":
        monkeypatch.setenv("XPGRAD_JIT", "0")
    with xpgrad.use_engine("standard" if request.param == "standard" else None):
        yield request.param


def operands(name, T=5, N=4, inputs=3, H=6, D=2, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    G = CASES[name][2] * H
    shapes = {"X": (T, N, inputs), "W": (D, G, inputs), "R": (D, G, H), "B": (D, 2 * G)}
    shapes |= {"gamma": (D, 2, G), "beta": (D, 2, G)}
    shapes |= {"gamma_c": (D, H), "beta_c": (D, H)} if name == "lstm" else {}
    shapes |= {"initial_h": (D, N, H)} | ({"initial_c": (D, N, H)} if name == "lstm" else {})
    return {label: rng.standard_normal(shape).astype(dtype) for label, shape in shapes.items()}


def cotangents(plain):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(y.shape) for y in plain]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"direction": "bidirectional"},
    "lengths": {"direction": "bidirectional", "sequence_lens": [5, 0, 3, 5], "epsilon": 1e-3},
    "options": {"direction": "reverse", "sequence_lens": [2, 5, 3, 1], "activations": True, "clip": 0.9}
    | {"activation_alpha": [-0.2, -0.5]},
    "inputs for slopes": {"direction": "forward", "activations": True, "activation_alpha": [-0.2, -0.5]},
    "clip": {"direction": "forward", "clip": 0.9},
}
every_option = pytest.mark.parametrize("option", OPTIONS)


def options_of(name, option):
    options = dict(OPTIONS[option])
    if "activations" in options:
        options["activations"] = ["LeakyRelu", "Elu", "Softsign"][: 3 if name == "lstm" else 2]
    return options


@both
@every_option
def test_gradients_are_those_of_autograd_through_the_plain_loop(name, option, engine):
    function, reference, _ = CASES[name]
    options = options_of(name, option)
    arrays = operands(name, D=2 if options["direction"] == "bidirectional" else 1)
    tensors = {label: torch.tensor(array, requires_grad=True) for label, array in arrays.items()}
    plain = reference(**tensors, **options)
    given = cotangents(plain)
    expected = torch.autograd.grad(plain, list(tensors.values()), [torch.tensor(d) for d in given])
    for _ in range(2):  # made, and from its program
        out, pullback = xpgrad.vjp(function, **arrays, **options)
        for actual, desired in zip(out, plain, strict=False):
            assert_close(actual, desired.detach().numpy(), rtol=1e-11)
        grads = pullback(*given)
        for label, gradient in zip(tensors, expected, strict=True):
            assert_close(
                getattr(grads, FIELDS.get(label, f"d{label}")), gradient.numpy(), rtol=1e-11, label=label
            )


def fastrnns(X, W, R, B, gamma, beta, gamma_c, beta_c):
    """The cell of PyTorch's fastrnns benchmark, of its own operators, with our order of gates."""
    H = R.shape[1]
    h, c, outputs = X.new_zeros(X.shape[1], H), X.new_zeros(X.shape[1], H), []
    for x in X:
        z = layer_norm(x @ W.T, (4 * H,), gamma[0], beta[0]) + layer_norm(
            h @ R.T, (4 * H,), gamma[1], beta[1]
        )
        i, o, f, g = (z + B[: 4 * H] + B[4 * H :]).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(layer_norm(c, (H,), gamma_c, beta_c))
        outputs.append(h)
    return torch.stack(outputs)


def grus(X, W, R, B, gamma, beta):
    """PyTorch's GRU, its products normalized."""
    H = R.shape[1]
    h, outputs = X.new_zeros(X.shape[1], H), []
    for x in X:
        a = layer_norm(x @ W.T, (3 * H,), gamma[0], beta[0]) + B[: 3 * H]
        p = layer_norm(h @ R.T, (3 * H,), gamma[1], beta[1]) + B[3 * H :]
        (a_z, a_r, a_n), (p_z, p_r, p_n) = a.chunk(3, 1), p.chunk(3, 1)
        z, r = torch.sigmoid(a_z + p_z), torch.sigmoid(a_r + p_r)
        h = z * h + (1 - z) * torch.tanh(a_n + r * p_n)
        outputs.append(h)
    return torch.stack(outputs)


@both
def test_modules_are_loops_over_pytorchs_layer_norm(name):
    torch.manual_seed(0)
    module = MODULES[name](3, 6, batch_first=True, dtype=torch.float64)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    X = torch.randn(4, 5, 3, dtype=torch.float64)
    plain = (fastrnns if name == "lstm" else grus)(
        X.transpose(0, 1), *(parameter[0] for parameter in module.parameters())
    )
    output, _ = module(X)
    torch.testing.assert_close(output.transpose(0, 1), plain, rtol=1e-11, atol=1e-12)
    cotangent = torch.randn_like(plain)
    theirs = torch.autograd.grad(plain, list(module.parameters()), cotangent)
    ours = torch.autograd.grad(output, list(module.parameters()), cotangent.transpose(0, 1))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@both
@pytest.mark.parametrize("lengths", [None, [5, 0, 3, 2]], ids=["whole", "lengths"])
def test_samples_on_their_own_their_norms_and_weighted_sums(name, lengths):
    function, reference, _ = CASES[name]
    arrays = operands(name)
    options = {"sequence_lens": lengths, "direction": "bidirectional"}
    out = reference(**arrays, **options)
    given = cotangents(out)
    each = xpgrad.vjp(function, **arrays, **options, per_sample=True)[1](*given)
    weights = np.asarray([0.3, -1.7, 0.0, 2.2])
    norms = xpgrad.vjp(function, **arrays, **options, per_sample="norm", sample_weight=weights)[1](*given)
    sums = xpgrad.vjp(function, **arrays, **options, sample_weight=weights)[1](*given)
    whole = xpgrad.vjp(function, **arrays, **options)[1](*given)
    for label in each._fields:
        own = getattr(each, label)
        if label in ("dX", "dH0", "dC0"):
            assert_close(own, getattr(whole, label), rtol=1e-11, label=label)
        else:
            assert_close(own.sum(axis=0), getattr(whole, label), rtol=1e-11, label=label)
            own = own * weights.reshape(-1, *(1 for _ in own.shape[1:]))
            assert_close(own.sum(axis=0), getattr(sums, label), rtol=1e-11, label=label)
            own = np.sqrt(np.sum(own.reshape(*own.shape[:2], -1) ** 2, axis=2))
        assert_close(getattr(norms, label), own, rtol=1e-10, label=label)
    # one sample alone
    one = {k: a[:, 3:] if k in ("X", "initial_h", "initial_c") else a for k, a in arrays.items()}
    options["sequence_lens"] = lengths and lengths[3:]
    cut = [d[:, 3:] if d.ndim == 3 else d[:, :, 3:] for d in given]
    alone = xpgrad.vjp(function, **one, **options)[1](*cut)
    for label in ("dW", "dR", "dB", "dgamma", "dbeta"):
        assert_close(getattr(each, label)[3], getattr(alone, label), rtol=1e-11, label=label)


@both
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_every_backend_gives_the_same(name, backend):
    if backend.missing():
        pytest.skip(backend.missing())
    function = CASES[name][0]
    arrays = operands(name)
    options = {"direction": "bidirectional", "sequence_lens": [5, 0, 3, 5]}
    with xpgrad.use_engine("standard"):
        out, pullback = xpgrad.vjp(function, **arrays, **options)
        expected = pullback(np.ones_like(out.H_all))
    with backend.active():
        made, pullback = xpgrad.vjp(function, **backend.arrays(arrays), **options)
        grads = pullback(backend.array(np.ones_like(out.H_all)))
    for a, b in zip((*made, *grads), (*out, *expected), strict=True):
        assert_close(to_numpy(a), b, rtol=1e-10)


@both
def test_batch_first_single_precision_and_large_batches(name):
    function = CASES[name][0]
    arrays = operands(name, T=7, N=40, H=17, dtype=np.float32)
    lengths = np.arange(40) % 8
    for n, length in enumerate(lengths):
        arrays["X"][length:, n] = np.nan
    first = {k: np.swapaxes(a, 0, 1) if k[0] in "Xi" else a for k, a in arrays.items()}
    options = {"sequence_lens": lengths, "direction": "bidirectional"}
    with xpgrad.use_engine("standard"):
        plain, pull_plain = xpgrad.vjp(function, **arrays, **options)
        given = [np.ones_like(plain.H_all), np.ones_like(plain.H_t)]
        desired = pull_plain(*given)
    turned = [np.moveaxis(given[0], 2, 0), np.swapaxes(given[1], 0, 1)]
    for _ in range(2):
        out, pullback = xpgrad.vjp(function, **first, **options, layout=1)
        assert_close(np.moveaxis(out.H_all, 0, 2), plain.H_all, rtol=1e-5)
        for label, actual, double in zip(desired._fields, pullback(*turned), desired, strict=True):
            back = np.swapaxes(actual, 0, 1) if label in ("dX", "dH0", "dC0") else actual
            assert_close(back, double, rtol=1e-4, label=label)


@both
def test_half_precision_empty_sizes_and_what_is_left_out(name):
    function = CASES[name][0]
    arrays = operands(name)
    out = function(**arrays, direction="bidirectional")
    half = {label: array.astype(np.float16) for label, array in arrays.items()}
    made, pullback = xpgrad.vjp(function, **half, direction="bidirectional")
    assert made.H_all.dtype == np.float16
    assert_close(made.H_all, out.H_all.astype(np.float16), rtol=2e-2)
    assert pullback(np.ones_like(made.H_all)).dgamma.dtype == np.float16
    zero = function(**arrays | {"B": 0 * arrays["B"]}, direction="bidirectional")
    assert_close(function(**arrays | {"B": None}, direction="bidirectional").H_all, zero.H_all)
    for sizes in ({"T": 0}, {"N": 0}):
        empty = operands(name, **sizes)
        nothing, pullback = xpgrad.vjp(function, **empty, direction="bidirectional")
        grads = pullback(np.zeros_like(nothing.H_all))
        assert not grads.dgamma.any()
        assert grads.dX.shape == empty["X"].shape
    grads = xpgrad.vjp(function, **arrays, direction="bidirectional", wrt="beta")[1](np.ones_like(out.H_all))
    assert [label for label in grads._fields if getattr(grads, label) is not None] == ["dbeta"]


def test_what_is_saved_has_one_shape_whatever_the_options():
    for name, width in (("lstm", 14), ("gru", 9)):
        for option in OPTIONS:
            options = options_of(name, option)
            arrays = operands(name, D=2 if options["direction"] == "bidirectional" else 1)
            out = CASES[name][0](**arrays, **options)
            assert out.saved.shape[-1] == width * 6
            assert out.means.shape[-1] == (3 if name == "lstm" else 2)


@both
@pytest.mark.parametrize("lengths", [None, [4, 0, 2]], ids=["whole", "lengths"])
def test_modules_pass_gradcheck(name, lengths):
    torch.manual_seed(0)
    module = MODULES[name](3, 4, bidirectional=True, dtype=torch.float64)
    X = torch.randn(4, 3, 3, dtype=torch.float64, requires_grad=True)
    names = [label for label, _ in module.named_parameters()]

    def run(X, *parameters):
        given = dict(zip(names, parameters, strict=True))
        output, finals = torch.func.functional_call(module, given, (X, None, lengths))
        return output, *(finals if isinstance(finals, tuple) else (finals,))

    assert torch.autograd.gradcheck(run, (X, *module.parameters()), fast_mode=True)


@both
def test_modules_save_less_and_autocast(name):
    torch.manual_seed(0)
    module = MODULES[name](3, 4, bidirectional=True, clip=1.0)
    X = torch.randn(5, 3, 3)
    grads = []
    for save in ("all", "states", 2):
        module.save = save
        output, _ = module(X, lengths=[5, 1, 4])
        grads.append(torch.autograd.grad(output.square().sum(), list(module.parameters())))
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(X.bfloat16())[0].dtype == torch.float32
    one, states = module(X[:, 0])
    torch.testing.assert_close(one, module(X)[0][:, 0])
    again = module(X[:, 0], states)[0]
    torch.testing.assert_close(again, module(X[:, :1], module(X[:, :1])[1])[0][:, 0])
    assert "bidirectional=True" in repr(module)
    assert "clip=1.0" in repr(module)
    assert MODULES[name](3, 4, bias=False)(X)[0].shape == (5, 3, 4)


@both
def test_wrong_calls_are_refused(name):
    function, _, gates = CASES[name]
    arrays = operands(name)
    options = {"direction": "bidirectional"}
    vectors = [label for label in arrays if label.startswith(("B", "gamma", "beta"))]
    for label in vectors:
        with pytest.raises(ValueError, match=f"{function.__name__}: {label} has shape"):
            function(**arrays | {label: arrays[label][..., :-1]}, **options)
    with pytest.raises(TypeError, match="gamma is None"):
        function(**arrays | {"gamma": None}, **options)
    with pytest.raises(ValueError, match="epsilon is 0"):
        function(**arrays, epsilon=0, **options)
    with pytest.raises(TypeError, match="epsilon is 'a'"):
        function(**arrays, epsilon="a", **options)
    with pytest.raises(ValueError, match=rf"R has shape .* expected \(D, {gates}H, H\)"):
        function(**arrays | {"R": arrays["R"][:, :, 1:]}, **options)
    with pytest.raises(ValueError, match="activations has 1 names"):
        function(**arrays, **options, activations=["Tanh"])
    with pytest.raises(ValueError, match="initial_h has shape"):
        function(**arrays | {"initial_h": arrays["X"]}, **options)
    outputs = function(**arrays, **options)
    with pytest.raises(ValueError, match="wrt has 'P'"):
        xpgrad.vjp(function, **arrays, **options, wrt="P")[1](grad_H_all=outputs.H_all)
    with pytest.raises(ValueError, match="per_sample is 'norms'"):
        xpgrad.vjp(function, **arrays, **options, per_sample="norms")[1](grad_H_all=outputs.H_all)
    out = function(**arrays, **options)
    kept = {
        label: getattr(out, label) for label in ("H_all", "C_all", "saved", "means") if hasattr(out, label)
    }
    given = {label: array for label, array in arrays.items() if label != "B"}
    kept["grad_H_all"] = out.H_all
    gradient = getattr(xpgrad, f"{function.__name__}_grad")
    with pytest.raises(ValueError, match="saved has shape"):
        gradient(**given, **kept | {"saved": out.saved[..., 1:]}, **options)
    with pytest.raises(ValueError, match="sample_weight has shape"):
        gradient(**given, **kept, **options, sample_weight=arrays["X"])
    module = MODULES[name](3, 4)
    with pytest.raises(ValueError, match="input has 1 dimensions, expected 2"):
        module(torch.zeros(3))
    with pytest.raises(ValueError, match="epsilon is 0"):
        MODULES[name](3, 4, epsilon=0.0)
    with pytest.raises(ValueError, match="hx has 3 tensors"):
        module(torch.zeros(3, 3, 3), [None] * 3)
    with pytest.raises(ValueError, match="save is 'no'"):
        MODULES[name](3, 4, save="no")


def test_functions_take_tensors():
    g = {label: torch.tensor(a) for label, a in operands("lstm").items()}
    H_all, H_t, C_t, C_all = functional.layer_norm_lstm(**g, direction="bidirectional")
    torch.testing.assert_close(H_all[-1, 0], H_t[0])
    torch.testing.assert_close(C_all[0, 1], C_t[1])
    with pytest.raises(TypeError, match=r"gamma is NoneType, expected torch\.Tensor"):
        functional.layer_norm_lstm(**g | {"gamma": None})
