"""`gradient_model` on graphs as exporters write them: opsets, constants, conditions, fixed inputs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_cases import onnx, run  # isort: skip

from onnx import numpy_helper, parser  # isort: skip

import xpgrad
from xpgrad_onnx import gradient_model
from xpgrad_onnx._scopes import all_nodes


@pytest.fixture(autouse=True)
def nothing_to_compile() -> Any:
    """What is tested here is the graph; the kernels are the same on every engine."""
    with xpgrad.use_engine("standard"):
        yield


def model_of(text: str, opset: int = 18) -> Any:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')


def gradients_of(training: Any) -> list[str]:
    names = [output.name for output in training.graph.output]
    return [name.removesuffix("_grad") for name in names if name.endswith("_grad")]


def operators_of(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node]


def check_direction(model: Any, feeds: dict[str, Any], inputs: Any = None) -> list[str]:
    """A float64 model's gradients of its parameters along a direction, beside central differences."""
    training = gradient_model(model, inputs=inputs)
    rng = np.random.default_rng(1)
    outputs = [v.name.removesuffix("_grad") for v in training.graph.input if v.name.endswith("_grad")]
    values = run(model, feeds | (inputs or {}), names=outputs)
    seeds = {f"{name}_grad": rng.normal(size=value.shape) for name, value in values.items()}
    wanted = gradients_of(training)
    grads = run(training, feeds | seeds, names=[f"{name}_grad" for name in wanted])
    weights = {t.name: numpy_helper.to_array(t) for t in training.graph.initializer if t.name in wanted}
    ways = {name: rng.normal(size=weights[name].shape) for name in wanted}

    def weighted(step: float) -> float:
        moved = {name: weights[name] + step * ways[name] for name in wanted}
        found = run(training, feeds | seeds | moved, names=outputs)
        return sum(float(np.sum(found[name] * seeds[f"{name}_grad"])) for name in outputs)

    slope = sum(float(np.sum(grads[f"{name}_grad"] * ways[name])) for name in wanted)
    assert slope == pytest.approx((weighted(1e-6) - weighted(-1e-6)) / 2e-6, rel=1e-6)
    return wanted


# --- opsets -------------------------------------------------------------------------------------------------

OLD = """
    g (double[N, 3] x) => (double[N] scores)
    <double[3, 4] W = {1, 2, -1, 3, -2, 1, 2, 1, 1, -3, 2, 1}, double[4] b = {0.1, 0.2, 0.3, 0.4}>
    {
        p = MatMul(x, W)  s = Add(p, b)  c = Clip<min = -3.0, max = 5.0>(s)  m = Softmax<axis = 1>(c)
        q = Mul(m, c)  u = Unsqueeze<axes = [0]>(q)  t = Squeeze<axes = [0]>(u)
        scores = ReduceSum<axes = [1], keepdims = 0>(t)
    }
"""


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_old_opsets_are_converted(opset: int) -> None:
    x = np.random.default_rng(0).normal(size=(5, 3))
    assert check_direction(model_of(OLD, opset), {"x": x}) == ["W", "b"]


def test_subgraphs_are_converted_too() -> None:
    text = """
        g (double[1, 3] x, bool flag) => (double[3] y) <double[1, 3] w = {1, 2, 3}>
        {
            p = Mul(x, w)
            y = If(flag) <then_branch = a () => (double[3] t) { t = Squeeze<axes = [0]>(p) },
                          else_branch = b () => (double[3] e) { n = Neg(p) e = Squeeze<axes = [0]>(n) }>
        }"""
    for flag in (True, False):
        feeds = {"x": np.asarray([[1.0, -2.0, 0.5]]), "flag": np.asarray(flag)}
        check_direction(model_of(text, 11), feeds)


def test_opsets_that_nothing_converts() -> None:
    with pytest.raises(ValueError, match="the model's opset is 6, expected 7 or later"):
        gradient_model(model_of(OLD, 6))
    unknown = model_of("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Strange(x, w) }", 11)
    with pytest.raises(
        ValueError, match=r"opset is 11, expected 13 or later, and onnx's converter stops: .*Str"
    ):
        gradient_model(unknown)


# --- constants ----------------------------------------------------------------------------------------------


def test_nodes_of_constants_that_are_weights() -> None:
    """As Paddle2ONNX writes them: weights, a reshaped bias, and numbers of formulas with one axis."""
    text = """
        g (double[N, 1, 5] x) => (double[N, 2, 3] y)
        {
            W = Constant<value = double[2, 1, 3] {1, 2, 3, -1, 1, 2}>()
            c = Conv(x, W)
            b = Constant<value = double[2] {0.1, -0.2}>()
            shape = Constant<value_ints = [1, 2, 1]>()
            row = Reshape(b, shape)
            s = Add(c, row)
            three = Constant<value = double[1] {3.0}>()
            t = Add(s, three)
            low = Constant<value = double {-9.0}>()
            k = Clip(t, low)
            masks = Constant<value = double[2, 1] {0.5, 0.25}>()
            even = Constant<value = bool[2, 1] {1, 0}>()
            pick = Where(even, k, masks)
            six = Constant<value = double[1] {6.0}>()
            y = Div(pick, six)
        }"""
    model = model_of(text, 13)
    assert check_direction(model, {"x": np.random.default_rng(2).normal(size=(2, 1, 5))}) == ["W", "b"]
    assert gradients_of(gradient_model(model, ["masks", "six"])) == ["masks", "six"]


# --- shapes, fixed inputs, conditions -----------------------------------------------------------------------

RATES = """
    g (double[N, 4] x, int64 sr) => (double[N] y)
    <double[4] w = {1, 2, 3, 4}, double[2] v = {5, 6}, int64 high = {16000}>
    {
        is_high = Equal(sr, high)
        y = If(is_high) <
            then_branch = a () => (double[N] t) { p = Mul(x, w)  axis = Constant<value_ints = [1]>()
                                                  t = ReduceSum<keepdims = 0>(p, axis) },
            else_branch = b () => (double[N] e) {
                from = Constant<value_ints = [0]>()  to = Constant<value_ints = [2]>()
                axis = Constant<value_ints = [1]>()
                s = Slice(x, from, to, axis)  p = Mul(s, v)  k = Constant<value = double[2] {0.5, 2.0}>()
                q = Mul(p, k)  e = ReduceSum<keepdims = 0>(q, axis) }>
    }"""


WIDTHS = """
    g (double[1, 2, 6, W] x, double[1, 1, 1, V] v) => (double[1, 3, 6, W] k, double[1, 3, 3, L] h)
    {
        p = Conv<pads = [1, 1, 1, 1]>(x, a, c)  s = Sigmoid(p)  q = Mul(p, s)
        r = Conv(q, b)  t = Add(r, x)  m = MaxPool<kernel_shape = [3, 2], auto_pad = "SAME_UPPER">(t)
        u = Sub(m, x)  e = Conv<dilations = [2, 2], pads = [2, 2, 2, 2]>(u, d)  k = Mul(e, e)
        half = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(u, d)  h = Mul(half, v)
    }"""


def test_sums_behind_convolutions_that_keep_the_size_broadcast_nothing() -> None:
    """onnx names their sizes anew. At the end two operands are left of which nobody knows."""
    model = model_of(WIDTHS)
    rng = np.random.default_rng(4)
    shapes = {"a": (2, 2, 3, 3), "b": (2, 2, 1, 1), "c": (2,), "d": (3, 2, 3, 3)}
    model.graph.initializer.extend(numpy_helper.from_array(rng.normal(size=s), n) for n, s in shapes.items())
    training = gradient_model(model, [*shapes, "v"])
    assert operators_of(training).count("BroadcastGradientArgs") == 2
    for width in (1, 2, 5):
        feeds = {"x": rng.normal(size=(1, 2, 6, width)), "v": rng.normal(size=(1, 1, 1, 1))}
        assert check_direction(model, feeds) == [*shapes]


def test_a_fixed_input_decides_a_condition() -> None:
    model = model_of(RATES)
    x = np.random.default_rng(3).normal(size=(2, 4))
    for rate, wanted in ((16000, ["w"]), (8000, ["v", "k"])):
        training = gradient_model(model, inputs={"sr": rate})
        assert "If" not in operators_of(training)
        assert "sr" not in [value.name for value in training.graph.input]
        assert check_direction(model, {"x": x}, {"sr": np.asarray(rate)}) == wanted


def test_a_condition_that_stays_is_differentiated_in_both_branches() -> None:
    model = model_of(RATES)
    x = np.random.default_rng(3).normal(size=(2, 4))
    training = gradient_model(model)
    assert operators_of(training).count("If") == 2
    onnx.checker.check_model(training)
    for rate, idle in ((16000, ["v", "k"]), (8000, ["w"])):
        feeds = {"x": x, "sr": np.asarray(rate)}
        assert check_direction(model, feeds) == ["w", "v", "k"]
        grads = run(training, feeds | {"y_grad": np.ones(2)})
        assert not any(grads[f"{name}_grad"].any() for name in idle)


def test_conditions_of_rank_and_size_are_folded() -> None:
    """Also where another size is unknown."""
    text = """
        g (double[N, 1, 3] x) => (double[N, 3] y)
        <double[3] w = {1, 2, 3}, int64 three = {3}, int64[1] one = {1}>
        {
            shape = Shape(x)
            rank = Size(shape)
            deep = Equal(rank, three)
            y = If(deep) <
                then_branch = a () => (double[N, 3] t) {
                    size = Gather<axis = 0>(shape, one)
                    single = Equal(size, one)
                    z = If(single) <
                        then_branch = c () => (double[N, 3] u) { u = Squeeze(x, one) },
                        else_branch = d () => (double[N, 1, 3] i) { i = Identity(x) }>
                    t = Mul(z, w) },
                else_branch = b () => (double[N, 1, 3] e) { e = Identity(x) }>
        }"""
    model = model_of(text)
    assert "If" not in operators_of(gradient_model(model))
    assert check_direction(model, {"x": np.random.default_rng(4).normal(size=(2, 1, 3))}) == ["w"]


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"rate": 1}, ValueError, "inputs has 'rate', expected inputs of the model: x, sr"),
        ({"sr": 1.5}, TypeError, r"inputs\['sr'\] has the dtype float64, expected int64"),
        ({"sr": [1, 2]}, ValueError, r"inputs\['sr'\] has the shape \(2,\), expected \[\]"),
    ],
)
def test_bad_fixed_inputs(inputs: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        gradient_model(model_of(RATES), inputs=inputs)


def test_quantized_weights_are_named() -> None:
    text = """
        g (float[N, 2] x) => (float[N, 2] y) <int8[2, 2] q = {1, 2, 3, 4}, float s = {0.5}, int8 z = {0}>
        { w = DequantizeLinear(q, s, z)  y = MatMul(x, w) }"""
    with pytest.raises(ValueError, match=r"it has DequantizeLinear \(1 node\): it works on integers, whose"):
        gradient_model(model_of(text))


def test_weights_behind_integers_are_named() -> None:
    """The loss changes with them only in steps; later weights have a gradient, if they are asked for."""
    text = """
        g (float[N, 2] x) => (float[N, 2] y)
        <float[2] w = {1, 2}, float[2, 2] v = {1, 2, 3, 4}, float s = {0.5}, int8 z = {0}>
        { a = Mul(x, w)  q = QuantizeLinear(a, s, z)  d = DequantizeLinear(q, s, z)  y = MatMul(d, v) }"""
    with pytest.raises(
        ValueError, match=r"no gradient passes to w; it has QuantizeLinear \(1 node\): it works"
    ):
        gradient_model(model_of(text))
    assert gradients_of(gradient_model(model_of(text), ["v"])) == ["v"]


def test_mixed_precision() -> None:
    """Numbers of rules have the type of their node."""
    text = """
        g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}>
        { a = Mul(x, w)  r = Reciprocal(a)  s = Sqrt(a)  b = Cast<to = 10>(s)  c = Mul(b, v)
          d = Sqrt(c)  e = Cast<to = 1>(d)  y = Add(e, r) }"""
    model = model_of(text)
    v = np.asarray([0.5, 0.25, 2], dtype=np.float16)
    model.graph.initializer.append(numpy_helper.from_array(v, "v"))
    training = gradient_model(model)
    kinds = {v.name: v.type.tensor_type.elem_type for v in training.graph.output}
    assert (kinds["w_grad"], kinds["v_grad"]) == (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    x = np.full((2, 3), 1.5, dtype=np.float32)
    found = run(training, {"x": x, "y_grad": np.ones_like(x)})
    w, v = np.asarray([1.0, 2, 3]), v.astype(float)
    root = np.sqrt(1.5 * w)
    expected = {
        "v_grad": 2 * 0.5 * np.sqrt(root / v),
        "w_grad": 2 * (0.25 * np.sqrt(v) * (1.5 * w) ** -0.75 * 1.5 - 1.5 / (1.5 * w) ** 2),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=4e-3)
        assert found[name].dtype == (np.float16 if name == "v_grad" else np.float32)


def test_a_wrong_shape_of_an_output_does_not_count() -> None:
    text = "g (double[N, 3] x) => (double[K] y) <double[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    training = gradient_model(model_of(text))
    cotangent = next(value for value in training.graph.input if value.name == "y_grad")
    assert [d.dim_value for d in cotangent.type.tensor_type.shape.dim][1:] == [2]
    assert check_direction(model_of(text), {"x": np.random.default_rng(8).normal(size=(4, 3))}) == ["w"]


@pytest.mark.parametrize("opset", [18, 28])
def test_bodies_of_onnx_in_later_opsets(opset: int) -> None:
    """The body was written for another opset than the model's."""
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip(f"onnx {onnx.__version__} has no opset {opset}")
    text = "g (double[N, 3] x) => (double[N, 3] y) <double[3] w = {1, 2, 3}> "
    model = model_of(text + "{ p = Mul(x, w)  y = Shrink<lambd = 0.5, bias = 0.25>(p) }", opset)
    assert check_direction(model, {"x": np.random.default_rng(9).normal(size=(4, 3)) * 3}) == ["w"]


# --- loops --------------------------------------------------------------------------------------------------

SCAN = """
    g (double[5, 2, 3] x, double[2, 4] h0) => (double[2, 4] h, double[5, 2, 4] all)
    <double[3, 4] W = {1, 2, -1, 3, -2, 1, 2, 1, 1, -3, 2, 1}, double[4] b = {0.1, 0.2, 0.3, 0.4}>
    {
        h, all = Scan <num_scan_inputs = 1, body = step (double[2, 4] before, double[2, 3] now)
            => (double[2, 4] after, double[2, 4] kept) {
                p = MatMul(now, W)  q = Add(p, before)  r = Mul(q, b)  after = Tanh(r)
                kept = Mul(after, r) }> (h0, x)
    }"""

LOOP = """
    g (double[2, 3] x, int64 most) => (double[2, 3] y, double[K, 2, 3] all, double[K] norms)
    <double[3] w = {0.5, -0.75, 1.25}, bool yes = {1}, double limit = {0.5},
     double[2, 3] start = {1, 2, 3, 4, 5, 6}>
    {
        y, count, all, norms = Loop (most, yes, start, limit) <body = step
            (int64 k, bool going, double[2, 3] before, double c) => (bool more, double[2, 3] after, double d,
             double[2, 3] kept, double norm) {
                p = Mul(before, w)  q = Add(p, x)  after = Sin(q)  kept = Mul(after, before)
                norm = ReduceSum<keepdims = 0>(kept)  n = Cast<to = 11>(k)  d = Add(n, c)
                six = Constant<value = double {6.0}>()  more = Less(d, six) }>
    }"""


def test_a_scan_runs_back() -> None:
    rng = np.random.default_rng(5)
    feeds = {"x": rng.normal(size=(5, 2, 3)), "h0": rng.normal(size=(2, 4))}
    assert check_direction(model_of(SCAN), feeds) == ["W", "b"]
    check_inputs(model_of(SCAN), feeds)


@pytest.mark.parametrize("most", [3, 9])
def test_a_loop_runs_back(most: int) -> None:
    """As often as it ran: its condition may end it first."""
    feeds = {"x": np.random.default_rng(6).normal(size=(2, 3)), "most": np.asarray(most)}
    assert len(run(model_of(LOOP), feeds)["all"]) == min(most, 4)
    assert check_direction(model_of(LOOP), feeds) == ["w", "start"]
    check_inputs(model_of(LOOP), feeds)


def check_inputs(model: Any, feeds: dict[str, Any]) -> None:
    """Gradients of floating-point inputs, beside central differences."""
    wanted = [name for name, value in feeds.items() if value.dtype == np.float64]
    training = gradient_model(model, wanted)
    onnx.checker.check_model(training)
    values = run(model, feeds)
    rng = np.random.default_rng(7)
    named = {v.name for v in training.graph.input}
    seeds = {f"{k}_grad": rng.normal(size=v.shape) for k, v in values.items() if f"{k}_grad" in named}
    grads = run(training, feeds | seeds)
    for name in wanted:
        way = rng.normal(size=feeds[name].shape)

        def weighted(step: float, name: str = name, way: np.ndarray = way) -> float:
            found = run(model, feeds | {name: feeds[name] + step * way})
            return sum(float(np.sum(found[k.removesuffix("_grad")] * seed)) for k, seed in seeds.items())

        slope = float(np.sum(grads[f"{name}_grad"] * way))
        assert slope == pytest.approx((weighted(1e-6) - weighted(-1e-6)) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("known", [True, False])
def test_bodies_of_operators_of_onnx_alone(known: bool) -> None:
    """With ``standard=True``, also within a loop; what a body makes is of use in it alone."""
    text = SCAN if known else SCAN.replace("[2, 4]", "[N, M]").replace("[5, 2, 3]", "[T, N, K]")
    model = model_of(text)
    rng = np.random.default_rng(5)
    feeds = {"x": rng.normal(size=(5, 2, 3)), "h0": rng.normal(size=(2, 4))}
    feeds |= {"h_grad": rng.normal(size=(2, 4)), "all_grad": rng.normal(size=(5, 2, 4))}
    training = gradient_model(model, standard=True)
    assert {node.domain for node in all_nodes(training.graph.node)} == {""}
    expected = run(gradient_model(model), feeds)
    for name, value in run(training, feeds).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12)


def test_scans_of_old_opsets_are_refused() -> None:
    model = model_of(SCAN, 8)
    with pytest.raises(ValueError, match="has Scan and the opset 8, expected opset 9 or later"):
        gradient_model(model)


def test_weights_that_are_attributes_are_named() -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[N, 2] x) => (float[N, 1] y)
        { y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 2.0]>(x) }"""
    with pytest.raises(
        ValueError, match=r"has ai.onnx.ml.LinearRegressor \(1 node\): its weights are attributes"
    ):
        gradient_model(parser.parse_model(text))


@pytest.mark.long
def test_the_tool_compares_beside_a_kink(tmp_path, monkeypatch, capsys):
    """A channel with scale and shift of zero lies on Relu's kink, where each side has its own slope."""
    model = model_of(
        "g (float[N, 3] x) => (float[N, 2] y) <float[3, 2] W = {1, 2, 3, 4, 5, 6}, float[2] scale = {1, 0}, "
        "float[2] shift = {0.5, 0}> { p = MatMul(x, W) q = Mul(p, scale) r = Add(q, shift) y = Relu(r) }"
    )
    path = tmp_path / "dead.onnx"
    onnx.save(model, path)
    tool = Path(__file__).parents[1] / "tools" / "onnx_files.py"
    for words, wrong in [([], 1), (["--aside"], 0)]:
        monkeypatch.setattr(sys, "argv", ["onnx_files.py", str(path), *words])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(tool), run_name="__main__")
        assert left.value.code == wrong, capsys.readouterr().out
