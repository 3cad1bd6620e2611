"""Conversion of weights and gradients between layouts: bits moved, functions kept, losses refused."""

import itertools

import numpy as np
import pytest

import xpgrad
from xpgrad import convert

LAYOUTS = ("onnx", "torch", "keras", "cudnn")
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def onnx_parameters(operator, front=(), zero_recurrence_bias=False, seed=0):
    rng = np.random.default_rng(seed)
    G, H, I = GATES[operator], 5, 3
    parameters = {
        "W": rng.normal(size=(*front, G * H, I)),
        "R": rng.normal(size=(*front, G * H, H)),
        "B": rng.normal(size=(*front, 2 * G * H)),
    }
    if zero_recurrence_bias:
        parameters["B"][..., G * H :] = 0
    return parameters


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


@pytest.mark.parametrize("front", [(), (2,)])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("linear_before_reset", [0, 1])
@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(LAYOUTS, 2)))
def test_every_pair_and_back(operator, linear_before_reset, source, target, gradients, front):
    options = {"linear_before_reset": linear_before_reset, "gradients": gradients}

    def to(parameters, old, new):
        two = {"biases": 2} if new == "keras" else {}
        return convert(operator, parameters, old, new, **options, **two)

    onnx = onnx_parameters(operator, front)
    start = onnx if source == "onnx" else to(onnx, "onnx", source)
    there = to(start, source, target)
    assert_same(to(there, target, source), start)
    if target != "onnx":
        assert_same(to(there, target, "onnx"), onnx)


@pytest.mark.parametrize("operator", GATES)
def test_one_bias_and_back(operator):
    """Keras' single bias: exact where the recurrence bias is 0, the sum otherwise."""
    onnx = onnx_parameters(operator, zero_recurrence_bias=True)
    keras = convert(operator, onnx, "onnx", "keras")
    assert keras["bias"].ndim == 1
    assert_same(convert(operator, keras, "keras", "onnx"), onnx)
    both = onnx_parameters(operator)
    G = GATES[operator] * 5
    summed = convert(operator, convert(operator, both, "onnx", "keras"), "keras", "onnx")
    np.testing.assert_array_equal(summed["B"][:G], both["B"][:G] + both["B"][G:])
    np.testing.assert_array_equal(summed["B"][G:], 0)


def test_order_of_gates_is_named_rows():
    """Rows that hold their gate's letter: the tables of the frameworks' own documentation."""
    expected = {
        ("lstm", "torch"): "ifgo", ("lstm", "keras"): "ifgo", ("lstm", "cudnn"): "ifgo",
        ("gru", "torch"): "rzn", ("gru", "keras"): "zrn", ("gru", "cudnn"): "rzn",
    }  # fmt: skip
    for (operator, target), order in expected.items():
        letters = "iofg" if operator == "lstm" else "zrn"
        codes = np.asarray([float(ord(letter)) for letter in letters])[:, None]
        converted = convert(operator, {"R": codes}, "onnx", target)
        rows = np.ravel(next(iter(converted.values())))
        assert "".join(chr(int(code)) for code in rows) == order, (operator, target)


@pytest.mark.parametrize("operator", GATES)
def test_torch_computes_the_same(operator):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    module = getattr(torch.nn, operator.upper())(3, 5).double()
    weights = {name.removesuffix("_l0"): p.detach().numpy() for name, p in module.named_parameters()}
    onnx = {k: v[None] for k, v in convert(operator, weights, "torch", "onnx").items()}
    X = np.random.default_rng(1).normal(size=(6, 2, 3))
    options = {"linear_before_reset": 1} if operator == "gru" else {}
    ours, pullback = xpgrad.vjp(getattr(xpgrad, operator), X, onnx["W"], onnx["R"], onnx["B"], **options)
    theirs, _ = module(torch.from_numpy(X))
    np.testing.assert_allclose(ours.H_all[:, 0], theirs.detach().numpy(), rtol=1e-12, atol=1e-14)
    cotangent = np.random.default_rng(2).normal(size=ours.H_all.shape)
    theirs.backward(torch.from_numpy(cotangent[:, 0]))
    grads = pullback(cotangent)
    ours_torch = convert(
        operator, {"W": grads.dW[0], "R": grads.dR[0], "B": grads.dB[0]}, "onnx", "torch",
        gradients=True, **options,
    )  # fmt: skip
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(
            ours_torch[name.removesuffix("_l0")], parameter.grad.numpy(), rtol=1e-10, atol=1e-12
        )


def test_peepholes_pass_or_are_refused():
    parameters = onnx_parameters("lstm") | {"P": np.arange(15.0)}
    there = convert("lstm", parameters, "onnx", "torch")
    np.testing.assert_array_equal(there["weight_peephole"], parameters["P"])
    assert_same(convert("lstm", there, "torch", "onnx"), parameters)
    with pytest.raises(ValueError, match="convert: P holds peepholes, expected none for the target 'keras'"):
        convert("lstm", parameters, "onnx", "keras")


def test_candidate_bias_behind_the_reset_gate():
    """With the reset after the product, z's and r's biases add up; the candidate's can't."""
    onnx = onnx_parameters("gru")
    with pytest.raises(
        ValueError, match=r"candidate's recurrence bias is other than 0 .* expected 0 for a single"
    ):
        convert("gru", onnx, "onnx", "keras", linear_before_reset=1, biases=1)
    onnx["B"][25:] = 0  # v_h
    keras = convert("gru", onnx, "onnx", "keras", linear_before_reset=1, biases=1)
    back = convert("gru", keras, "keras", "onnx", linear_before_reset=1)
    X, W, R = np.random.default_rng(3).normal(size=(4, 2, 3)), onnx["W"][None], onnx["R"][None]
    one, two = (xpgrad.gru(X, W, R, B[None], linear_before_reset=1).H_all for B in (onnx["B"], back["B"]))
    np.testing.assert_allclose(one, two, rtol=1e-13)


def test_gradients_of_one_bias():
    """Both halves of a sum have its gradient; halves that differ have no single one."""
    half = np.random.default_rng(4).normal(size=20)
    onnx = {"W": np.zeros((20, 3)), "B": np.concatenate([half, half])}
    keras = convert("lstm", onnx, "onnx", "keras", gradients=True)
    assert keras["bias"].shape == (20,)
    assert_same(convert("lstm", keras, "keras", "onnx", gradients=True), onnx)
    onnx["B"][3] += 1
    with pytest.raises(ValueError, match="gradients of input and recurrence biases differ, expected equal"):
        convert("lstm", onnx, "onnx", "keras", gradients=True)
    gru_keras = {"kernel": np.zeros((3, 15)), "bias": np.zeros(15)}
    with pytest.raises(
        ValueError, match="bias holds the gradient of one vector, expected two with linear_bef"
    ):
        convert("gru", gru_keras, "keras", "onnx", linear_before_reset=1, gradients=True)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("mgu", {}, "onnx", "torch"), {}, ValueError, "operator is 'mgu', expected one of 'lstm'"),
        (("rnn", {}, "equinox", "torch"), {}, ValueError, "source is 'equinox', expected one of 'onnx'"),
        (("rnn", {}, "onnx", "equinox"), {}, ValueError, "target is 'equinox', expected one of 'onnx'"),
        (("lstm", {}, "caffe", "torch"), {}, ValueError, "source is 'caffe', expected one of"),
        (("lstm", {}, "onnx", "caffe"), {}, ValueError, "target is 'caffe', expected one of 'onnx', 'torch'"),
        (("lstm", [], "onnx", "torch"), {}, TypeError, "parameters is a list, expected a mapping of names"),
        (("lstm", {}, "onnx", "torch"), {"gradients": 2}, ValueError, "gradients is 2, expected one of"),
        (("lstm", {}, "onnx", "torch"), {"biases": 1}, ValueError, "biases is 1 with target 'torch'"),
        (("lstm", {"V": np.ones((4, 1))}, "onnx", "torch"), {}, ValueError, "parameters has 'V', expected"),
        (("lstm", {"W": np.ones((6, 1))}, "onnx", "torch"), {}, ValueError, r"W has shape .* multiple of 4"),
        (("lstm", {"W": np.ones(8)}, "onnx", "torch"), {}, ValueError, r"W has 1 dimensions .* at least 2"),
        (("lstm", {"W": [[1.0]]}, "onnx", "torch"), {}, TypeError, "W is a list, expected an array"),
        (
            ("lstm", {"bias_ih": np.ones(4)}, "torch", "onnx"), {}, ValueError,
            "parameters has only bias_ih, expected bias_hh too",
        ),
        (
            ("lstm", {"bias": np.ones(4)}, "keras", "onnx"), {}, ValueError,
            "parameters has bias without kernel and recurrent_kernel, expected one of them",
        ),
        (
            ("lstm", {"W": np.ones((8, 3)), "R": np.ones((12, 3))}, "onnx", "keras"), {}, ValueError,
            r"R has shape \(12, 3\), so \(..., H\) = \(3,\), expected \(2,\), as W with shape \(8, 3\)",
        ),
        (
            ("rnn", {"kernel": np.ones((3, 2)), "bias": np.ones(4)}, "keras", "torch"), {}, ValueError,
            r"bias has shape \(4,\), so \(..., H\) = \(4,\), expected \(2,\), as kernel",
        ),
        (
            ("lstm", {"R": np.ones((8, 2)), "P": np.ones(9)}, "onnx", "torch"), {}, ValueError,
            r"P has shape \(9,\), so \(..., H\) = \(3,\), expected \(2,\), as R",
        ),
        (
            ("lstm", {"W": np.ones((2, 8, 3)), "R": np.ones((1, 8, 2))}, "onnx", "torch"), {}, ValueError,
            r"R has shape \(1, 8, 2\), so \(..., H\) = \(1, 2\), expected \(2, 2\), as W",
        ),
        (("slstm", {}, "onnx", "xlstm"), {"gradients": 2}, ValueError, "gradients is 2, expected one of"),
        (
            ("lstm", {"P": np.ones(7)}, "onnx", "torch"), {}, ValueError,
            r"P has shape \(7,\), expected a multiple of 3",
        ),
        (
            ("gru", {"bias": np.ones(6)}, "equinox", "onnx"), {"linear_before_reset": 1}, ValueError,
            "parameters has no or an unknown 'bias_n', expected the parts",
        ),
        (
            ("gru", {"bias_n": np.ones(2)}, "equinox", "onnx"), {"linear_before_reset": 1}, ValueError,
            "parameters has no or an unknown 'bias', expected the parts",
        ),
    ],
)  # fmt: skip
def test_bad_input(arguments, options, error, message):
    with pytest.raises(error, match=f"^convert: {message}"):
        convert(*arguments, **options)


@pytest.mark.parametrize("layout", ["onnx", "torch", "keras", "cudnn", "equinox"])
def test_no_arrays_stay_none(layout):
    assert convert("lstm", {}, layout, "torch") == {}
    assert convert("lstm", {}, "torch", layout) == {}


@pytest.mark.parametrize(("after", "count"), [(0, 1), (1, 2)])
def test_how_many_biases_keras_has_by_default(after, count):
    onnx = {"W": np.ones((6, 3)), "B": np.concatenate([np.arange(6.0), np.zeros(6)])}
    bias = convert("gru", onnx, "onnx", "keras", linear_before_reset=after)["bias"]
    assert bias.shape == ((6,) if count == 1 else (2, 6))


def test_slstm_layouts(rng):
    """There and back, as FlashRNN and both backends of xlstm store heads; against the products themselves."""
    heads, width = 3, 2
    H = heads * width
    onnx = {"R": rng.normal(size=(4 * H, width)), "B": rng.normal(size=4 * H)}
    h = rng.normal(size=(heads, width))
    rows = onnx["R"].reshape(4, heads, width, width)
    wanted = np.einsum("gkoi,ki->gko", rows, h)
    flash = xpgrad.convert("slstm", onnx, "onnx", "flashrnn")
    np.testing.assert_array_equal(np.einsum("gkdp,kp->gkd", flash["R"], h), wanted)
    np.testing.assert_array_equal(flash["b"].ravel(), onnx["B"])
    plain = xpgrad.convert("slstm", onnx, "onnx", "xlstm")
    product = np.einsum("kri,ki->kr", plain["_recurrent_kernel_"], h).reshape(heads, 4, width)
    np.testing.assert_array_equal(product.swapaxes(0, 1), wanted)
    cuda = {
        "_recurrent_kernel_": plain["_recurrent_kernel_"].swapaxes(1, 2),
        "_bias_": onnx["B"].reshape(4, heads, width).swapaxes(0, 1).ravel(),
    }
    for source, arrays in (("flashrnn", flash), ("xlstm", plain), ("xlstm", cuda)):
        back = xpgrad.convert("slstm", arrays, source, "onnx")
        for name, array in onnx.items():
            np.testing.assert_array_equal(back[name], array)
    assert xpgrad.convert("slstm", {"W": onnx["R"], **onnx}, "onnx", "onnx").keys() == {"W", "R", "B"}
    with pytest.raises(
        ValueError, match=r"parameters has '_bias_', expected names of the layout 'flashrnn': R, b"
    ):
        xpgrad.convert("slstm", {"_bias_": onnx["B"]}, "flashrnn", "onnx")
    with pytest.raises(ValueError, match=r"R has shape \(25, 2\), expected \(4H, H/k\)"):
        xpgrad.convert("slstm", {"R": np.zeros((25, 2))}, "onnx", "xlstm")
    with pytest.raises(ValueError, match="target is 'keras', expected one of"):
        xpgrad.convert("slstm", onnx, "onnx", "keras")


@pytest.mark.parametrize("layer", ["l0", "l1_reverse"])
def test_a_module_s_names_have_their_layer(layer):
    """What `state_dict()` of a PyTorch module gives goes in as it is."""
    rng = np.random.default_rng(0)
    shapes = {"weight_ih": (8, 3), "weight_hh": (8, 2), "bias_ih": (8,), "bias_hh": (8,)}
    plain = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    named = {f"{name}_{layer}": array for name, array in plain.items()}
    expected = xpgrad.convert("lstm", plain, "torch", "onnx")
    got = xpgrad.convert("lstm", named, "torch", "onnx")
    assert got.keys() == expected.keys() == {"W", "R", "B"}
    assert all(np.array_equal(got[name], expected[name]) for name in got)


def test_several_layers_are_refused():
    weights = {f"weight_ih_{layer}": np.ones((8, 3)) for layer in ("l0", "l0_reverse")}
    with pytest.raises(
        ValueError, match="has the layers l0, l0_reverse, expected one layer in one direction"
    ):
        xpgrad.convert("lstm", weights, "torch", "onnx")


@pytest.mark.parametrize("operator", ["lstm", "gru", "rnn"])
def test_cells_of_flax_and_equinox(operator, rng):
    """Gate by gate, and back; both have one bias, and the GRU's candidate a second one."""
    order, theirs = {"lstm": ("iofg", "ifgo"), "gru": ("zrn", "rzn"), "rnn": ([""], [""])}[operator]
    I, H = 3, 2
    rows = {gate: slice(H * k, H * (k + 1)) for k, gate in enumerate(order)}
    W, R = rng.normal(size=(len(order) * H, I)), rng.normal(size=(len(order) * H, H))
    first, second = rng.normal(size=len(order) * H), np.zeros(len(order) * H)
    if operator == "gru":
        second[rows["n"]] = rng.normal(size=H)
    onnx, options = {"W": W, "R": R, "B": np.concatenate([first, second])}, {}
    if operator == "gru":
        options["linear_before_reset"] = 1
    flax = xpgrad.convert(operator, onnx, "onnx", "flax", **options)
    assert flax.keys() == {side + gate for side in "ih" for gate in order}
    single = "h" if operator == "lstm" else "i"
    for gate, own in rows.items():
        np.testing.assert_array_equal(flax["i" + gate]["kernel"], W[own].T)
        np.testing.assert_array_equal(flax["h" + gate]["kernel"], R[own].T)
        np.testing.assert_array_equal(flax[single + gate]["bias"], first[own])
    if operator == "gru":
        np.testing.assert_array_equal(flax["hn"]["bias"], second[rows["n"]])
    layouts = {"flax": flax}
    if operator != "rnn":
        layouts["equinox"] = equinox = xpgrad.convert(operator, onnx, "onnx", "equinox", **options)
        blocks = [first[rows[gate]] for gate in theirs]
        np.testing.assert_array_equal(equinox["bias"], np.concatenate(blocks))
        np.testing.assert_array_equal(equinox["weight_hh"], np.concatenate([R[rows[g]] for g in theirs]))
    for source, parameters in layouts.items():
        back = xpgrad.convert(operator, parameters, source, "onnx", **options)
        for name, array in onnx.items():
            np.testing.assert_array_equal(np.reshape(back[name], array.shape), array)


def flax_cell(**more: dict) -> dict:
    """An LSTM's parameters; `more` are further entries of parts."""
    parts = {s + g: {"kernel": np.ones((3 if s == "i" else 5, 5))} for s in "ih" for g in "ifgo"}
    return {part: own | more.get(part, {}) for part, own in parts.items()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("lstm", flax_cell(ii={"bias": np.ones(5)}), "flax", "torch"),
            "ii has kernel, bias, expected",
        ),
        (
            ("lstm", flax_cell(hi={"scale": 1}), "flax", "torch"),
            "hi has kernel, scale, expected",
        ),
        (("lstm", flax_cell(hi={"bias": np.ones(5)}), "flax", "torch"), "hf has no bias, expected one"),
        (("lstm", flax_cell() | {"ii": None}, "flax", "torch"), "ii is NoneType, expected a mapping"),
        (("lstm", flax_cell() | {"ii": {}}, "flax", "torch"), "ii has nothing, expected kernel"),
        (
            ("slstm", {"R": np.ones((4, 2, 2, 2)), "b": np.ones((2, 4, 2))}, "flashrnn", "xlstm"),
            r"b has shape \(2, 4, 2\), expected \(4, k, H/k\) = \(4, 2, 2\)",
        ),
        (
            ("lstm", {"kernel": np.ones((4, 20)), "bias": np.ones((3, 20))}, "keras", "torch"),
            r"bias has shape \(3, 20\), expected",
        ),
    ],
)
def test_nothing_is_lost(arguments, message):
    with pytest.raises(ValueError, match=f"convert: {message}"):
        convert(*arguments)


@pytest.mark.parametrize(("operator", "target"), [("rnn", "keras"), ("gru", "flax"), ("gru", "equinox")])
def test_gradients_of_pytorch_whose_biases_differ_by_rounding(operator, target):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    layer = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU}[operator](8, 16)
    layer(torch.randn(20, 4, 8))[0].square().sum().backward()
    grads = {name: p.grad for name, p in layer.named_parameters()}
    options = {"linear_before_reset": 1} if operator == "gru" else {}
    xpgrad.convert(operator, grads, "torch", target, gradients=True, **options)
    grads["bias_ih_l0"] = 1.01 * grads["bias_ih_l0"]
    with pytest.raises(ValueError, match="biases differ"):
        xpgrad.convert(operator, grads, "torch", target, gradients=True, **options)


@pytest.mark.parametrize(
    ("operator", "parameters", "source"),
    [
        ("rnn", {"B": np.arange(7.0)}, "onnx"),
        ("lstm", {"W": np.ones((4, 3)), "B": np.arange(9.0)}, "onnx"),
        ("lstm", {"B": np.asarray(3.0)}, "onnx"),
        ("lstm", {"kernel": np.ones((3, 8)), "bias": np.ones((5, 2, 8))}, "keras"),
    ],
)
def test_biases_of_no_rule(operator, parameters, source):
    with pytest.raises(ValueError, match=r"convert: (B|bias) has shape"):
        xpgrad.convert(operator, parameters, source, "torch")
