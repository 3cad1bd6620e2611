"""Graphs of ONNX's own operators: symbols for sizes, and a stock ONNX Runtime beside onnx's evaluator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onnx_cases import onnx, worst  # isort: skip

from onnx import helper, numpy_helper, parser  # isort: skip
from onnx.reference import ReferenceEvaluator  # isort: skip

import onnx_backend
import xpgrad
from xpgrad_onnx import gradient_model, operators, training_model
from xpgrad_onnx._coverage import coverage, newest


@pytest.fixture(autouse=True)
def nothing_to_compile() -> Iterator[None]:
    with xpgrad.use_engine("standard"):
        yield


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def with_weights(text: str, weights: dict[str, Any], opset: int = 18) -> Any:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def runtime(model: Any) -> Any:
    """A session of ONNX Runtime with nothing added to it."""
    library = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra long has it")
    library.set_default_logger_severity(3)  # it warns of parameters that are inputs
    return library.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def check(model: Any, feeds: list[dict[str, Any]], wrt: list[str] | None = None, **options: Any) -> Any:
    """The graph of standard operators on both runtimes beside that of ours, for each of the feeds."""
    ours = ReferenceEvaluator(gradient_model(model, wrt, **options), new_ops=operators())
    training = gradient_model(model, wrt, standard=True, **options)
    onnx.checker.check_model(training, full_check=True)
    assert {opset.domain for opset in training.opset_import} == {""}
    session, evaluator = runtime(training), ReferenceEvaluator(training)
    names = [value.name for value in training.graph.output]
    for feed in feeds:
        expected = dict(zip(ours.output_names, ours.run(None, feed), strict=True))
        for results in (session.run(names, feed), evaluator.run(names, feed)):
            for name, result in zip(names, results, strict=True):
                assert worst(result, expected[name]) < 2e-5, name
    return training


# --- sizes that are symbols ---------------------------------------------------------------------------------

SEQUENCES = {
    "LSTM": 'direction = "bidirectional"',
    "LSTM, lengths": 'direction = "reverse", clip = 1.2, input_forget = 1',
    "GRU": "linear_before_reset = 1",
    "GRU, lengths": 'direction = "bidirectional"',
    "RNN": 'direction = "reverse"',
    "RNN, lengths": 'activations = ["Elu"]',
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_batch_and_time_are_symbols(name: str) -> None:
    kind, lengths, attributes = name[:4].strip(","), "lengths" in name, SEQUENCES[name]
    D, G, I, H = 1 + ("bidirectional" in attributes), {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 3, 4
    last = " c" if kind == "LSTM" else ""
    model = with_weights(
        f"""g (float[time, batch, {I}] X {", int32[batch] lengths" if lengths else ""})
        => (float[time, {D}, batch, {H}] Y, float[{D}, batch, {H}] h)
        {{ Y, h{"," if last else ""} {last} = {kind}<hidden_size = {H}, {attributes}>(
            X, W, R, B {", lengths" if lengths else ""}) }}""",
        {"W": draw(D, G * H, I), "R": draw(D, G * H, H), "B": draw(D, 2 * G * H)},
    )
    feeds = []
    for T, N in ((5, 2), (1, 3), (4, 1)):
        feed: dict[str, Any] = {"X": draw(T, N, I), "Y_grad": draw(T, D, N, H), "h_grad": draw(D, N, H)}
        if lengths:
            feed["lengths"] = np.arange(N, dtype=np.int32)[::-1].clip(0, T)
        feeds.append(feed)
    check(model, feeds, ["X", "W", "R", "B"])


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_batch_of_several_names(kind: str, layout: int) -> None:
    """PyTorch's exporter gives each input's batch a name of its own."""
    G, T = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 4
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    of = {
        name: f"float[1, batch_{name}, 3]" if layout == 0 else f"float[batch_{name}, 1, 3]" for name in states
    }
    inputs = "".join(f", {kinds} {name}" for name, kinds in of.items())
    model = with_weights(
        f"""g (float[{"time, N" if layout == 0 else "N, time"}, 2] X, int32[M] lengths{inputs})
        => (float[{"time, 1, N" if layout == 0 else "N, time, 1"}, 3] Y) {{
            Y = {kind}<hidden_size = 3, layout = {layout}>(X, W, R, , lengths, {", ".join(states)})
        }}""",
        {"W": draw(1, 3 * G, 2), "R": draw(1, 3 * G, 3)},
    )
    training = gradient_model(model, ["W", "R", "X", *states], standard=True)
    onnx.checker.check_model(training, full_check=True)
    ours = gradient_model(model, ["W", "R", "X", *states])
    for N in (1, 3):
        shapes = {"X": (T, N, 2), "Y_grad": (T, 1, N, 3)} | dict.fromkeys(states, (1, N, 3))
        feed: dict[str, Any] = {k: draw(*s, seed=len(k)) for k, s in shapes.items()}
        if layout:
            feed = {k: np.moveaxis(x, -2, 0) for k, x in feed.items()}
        feed["lengths"] = (1 + np.arange(N) % T).astype(np.int32)
        names = [value.name for value in training.graph.output]
        expected = ReferenceEvaluator(ours, new_ops=operators()).run(names, feed)
        session = ReferenceEvaluator(training) if layout else runtime(training)
        for found, right in zip(session.run(names, feed), expected, strict=True):
            assert worst(found, right) < 2e-5


def test_an_old_file_has_initializers_that_are_no_inputs() -> None:
    model = with_weights("g (float[2, 3] X, float[3, 4] W) => (float[2, 4] Y) { Y = MatMul(X, W) }", {}, 11)
    model.ir_version = 3
    model.graph.initializer.append(numpy_helper.from_array(draw(3, 4), "W"))
    for standard in (False, True):
        made = gradient_model(model, loss="mse", standard=standard)
        assert made.ir_version == 4
        onnx.checker.check_model(made, full_check=standard)
    assert model.ir_version == 3


def test_a_classifier_of_any_batch() -> None:
    """Two layers, a softmax at the end, and a loss over labels that are not all counted."""
    weights = {
        "W": draw(1, 9, 3), "R": draw(1, 9, 3), "W2": draw(1, 8, 3), "R2": draw(1, 8, 2), "V": draw(2, 4),
        "first": np.asarray([0]), "one": np.asarray([1]),
    }  # fmt: skip
    model = with_weights(
        """g (float[time, batch, 3] X) => (float[n, 4] scores) {
            Y = GRU<hidden_size = 3>(X, W, R)
            Z = Squeeze(Y, one)
            ignored, h = LSTM<hidden_size = 2>(Z, W2, R2)
            s = Squeeze(h, first)
            scores = MatMul(s, V)
        }""",
        weights,
    )
    feeds = [{"X": draw(T, N, 3), "labels": np.arange(N) % 4} for T, N in ((5, 2), (2, 7))]
    check(model, feeds, loss="cross_entropy")


def test_sizes_without_a_name() -> None:
    weights = {"W": draw(1, 9, 3), "R": draw(1, 9, 3), "B": draw(1, 18)}
    model = with_weights(
        "g (float[?, ?, 3] X) => (float[?, 1, ?, 3] Y) { Y = GRU<hidden_size = 3>(X, W, R, B) }", weights
    )
    feeds = [{"X": draw(T, N, 3), "Y_grad": draw(T, 1, N, 3)} for T, N in ((5, 2), (1, 3))]
    check(model, feeds, ["X", "W", "R", "B"])


@pytest.mark.parametrize("flag", [True, False])
def test_a_loop_within_a_branch(flag: bool) -> None:
    weights = {"W": draw(1, 15, 3), "R": draw(1, 15, 5), "shape": np.asarray([-1, 5])}
    model = with_weights(
        """g (float[time, batch, 3] X, bool flag) => (float[batch, 5] s) {
            s = If(flag) <
                then_branch = a () => (float[batch, 5] u) {
                    Y, h = GRU<hidden_size = 5>(X, W, R)
                    u = Reshape(h, shape)
                },
                else_branch = b () => (float[batch, 5] v) {
                    Z, z = GRU<hidden_size = 5, direction = "reverse">(X, W, R)
                    y = Reshape(z, shape)
                    v = Tanh(y)
                }>
        }""",
        weights,
    )
    feed = {"X": draw(4, 3, 3), "flag": np.asarray(flag), "s_grad": draw(3, 5)}
    check(model, [feed], ["X", "W", "R"])


@pytest.mark.parametrize("opset", [9, 13, 24])
def test_versions_of_operators(opset: int) -> None:
    weights = {"W": draw(1, 15, 3), "R": draw(1, 15, 5), "V": draw(5, 4), "shape": np.asarray([-1, 5])}
    model = with_weights(
        """g (float[time, batch, 3] X) => (float[batch, 4] s) {
            Y, h = GRU<hidden_size = 5>(X, W, R)
            q = Reshape(h, shape)
            s = MatMul(q, V)
        }""",
        weights,
        opset,
    )
    check(model, [{"X": draw(4, 3, 3), "labels": np.asarray([0, 3, 1])}], loss="cross_entropy")


def test_half_precision() -> None:
    """States and sums are in float32, as in the kernels."""
    weights = {
        name: draw(*shape).astype(np.float16) for name, shape in (("W", (1, 20, 3)), ("R", (1, 20, 5)))
    }
    model = with_weights(
        """g (float16[time, batch, 3] X) => (float16[time, 1, batch, 5] Y) {
            Y = LSTM<hidden_size = 5>(X, W, R)
        }""",
        weights,
    )
    feed = {"X": draw(4, 3, 3).astype(np.float16), "Y_grad": draw(4, 1, 3, 5).astype(np.float16)}
    check(model, [feed], ["X", "W", "R"])


def test_images_of_any_size() -> None:
    """The last rows of some images belong to no output; of a transposed convolution the sizes follow."""
    weights = {"W1": draw(4, 2, 3, 3), "B1": draw(4), "W2": draw(6, 2, 3, 3), "W3": draw(6, 3, 2, 2)}
    model = with_weights(
        """g (float[batch, 2, height, width] x) => (float[n, c, h, w] y) {
            a = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, W1, B1)
            b = Tanh(a)
            c = Conv<group = 2, dilations = [1, 1], pads = [0, 1, 1, 0]>(b, W2)
            y = ConvTranspose<strides = [2, 2]>(c, W3)
        }""",
        weights,
    )
    feeds = []
    for N, size in ((2, (12, 9)), (1, (9, 12))):
        x = draw(N, 2, *size)
        (y,) = ReferenceEvaluator(model, new_ops=operators()).run(None, {"x": x})
        feeds.append({"x": x, "y_grad": draw(*y.shape)})
    training = gradient_model(model, ["x", *weights], standard=True)
    onnx.checker.check_model(training, full_check=True)
    ours = ReferenceEvaluator(gradient_model(model, ["x", *weights]), new_ops=operators())
    session = runtime(training)
    for feed in feeds:
        for result, expected in zip(session.run(None, feed), ours.run(None, feed), strict=True):
            assert worst(result, expected) < 2e-5


def test_question_marks_and_negative_numbers_are_no_sizes() -> None:
    """As exporters of PaddlePaddle write them, for sizes that differ."""
    weights = {"W": draw(3, 2, 3, 3)}
    text = "g (float[B, 2, H, W] x) => (float[b, 3, h, w] y) { y = Conv<strides = [2, 2]>(x, W) }"
    model = with_weights(text, weights)
    batch, _, *image = model.graph.input[0].type.tensor_type.shape.dim
    batch.dim_value = -1
    for size in image:
        size.dim_param = "?"
    check(model, [{"x": draw(2, 2, 6, 9), "y_grad": draw(2, 3, 2, 4)}], ["x", "W"])


@pytest.mark.parametrize("height", ["H", "?"])
def test_layers_behind_layers_that_change_sizes(height: str) -> None:
    """Of inner sizes only onnx's inference knows a name: that they may be equal is not that they are."""
    weights = {"V": draw(2, 2, 5, 4), "W": draw(3, 2, 5, 3), "b": draw(3)}
    model = with_weights(
        f"""g (float[1, 2, {height}, W] x) => (float[1, 3, P, Q] y, float[R, S] z) {{
            a = Conv<strides = [2, 2], pads = [2, 2, 2, 2]>(x, V)
            c = Conv<strides = [2, 3], pads = [2, 1, 2, 0]>(a, W, b)
            y = Sigmoid(c)
            m = AveragePool<kernel_shape = [2, 2], strides = [2, 1], pads = [0, 1, 1, 0]>(a)
            z = Flatten<axis = 3>(m)
        }}""",
        weights,
    )
    feeds = []
    for size in ((4, 4), (7, 9), (12, 8)):
        x = draw(1, 2, *size)
        y, z = ReferenceEvaluator(model, new_ops=operators()).run(None, {"x": x})
        feeds.append({"x": x, "y_grad": draw(*y.shape), "z_grad": draw(*z.shape)})
    check(model, feeds, ["x", *weights])


# --- a network of convolutions on ONNX Runtime --------------------------------------------------------------


def test_images_on_onnx_runtime() -> None:
    """Groups, dilations and strides; onnx's own evaluator is wrong with groups, ONNX Runtime is not."""
    weights = {
        "W1": draw(6, 2, 3, 3), "b": draw(6), "W2": draw(6, 3, 3, 2), "W3": draw(6, 1, 3, 3), "V": draw(6, 4),
        "axes": np.asarray([2, 3]),
    }  # fmt: skip
    model = with_weights(
        """g (float[N, 2, 11, 10] x) => (float[N, 4] scores) {
            c = Conv<pads = [1, 1, 1, 1]>(x, W1, b)
            e = Relu(c)
            p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(e)
            d = Conv<group = 2, auto_pad = "SAME_UPPER">(p, W2)
            f = Conv<group = 6, strides = [2, 2], dilations = [2, 1]>(d, W3)
            q = AveragePool<kernel_shape = [1, 2]>(f)
            r = ReduceMean<keepdims = 0>(q, axes)
            scores = MatMul(r, V)
        }""",
        weights,
    )
    options = {"loss": "cross_entropy"}
    training = gradient_model(model, standard=True, **options)
    onnx.checker.check_model(training, full_check=True)
    ours = ReferenceEvaluator(gradient_model(model, **options), new_ops=operators())
    session = runtime(training)
    for N in (3, 1):
        feed = {"x": draw(N, 2, 11, 10), "labels": np.arange(N)}
        for result, expected in zip(session.run(None, feed), ours.run(None, feed), strict=True):
            assert worst(result, expected) < 2e-5


# --- what the graph is --------------------------------------------------------------------------------------


def test_a_loop_is_one_node_whatever_its_length() -> None:
    def made(T: Any) -> Any:
        weights = {"W": draw(1, 16, 3), "R": draw(1, 16, 4)}
        model = with_weights(
            f"""g (float[{T}, 2, 3] X) => (float[{T}, 1, 2, 4] Y) {{ Y = LSTM<hidden_size = 4>(X, W, R) }}""",
            weights,
        )
        return gradient_model(model, standard=True).graph.node

    short, long = made(3), made(1000)
    assert [node.op_type for node in short] == [node.op_type for node in long]
    assert [node.op_type for node in long].count("Scan") == 2


def test_operators_of_others_are_refused() -> None:
    node = helper.make_node("Mystery", ["x"], ["z"], domain="com.other")
    model = with_weights("g (float[2] x) => (float[2] y, float[2] z) { y = Mul(x, w) }", {"w": draw(2)})
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("com.other", 1))
    with pytest.raises(ValueError, match=r"gradient_model: the model has com\.other\.Mystery, expected"):
        gradient_model(model, loss="y", standard=True)


def gradients(text: str, feed: dict[str, Any], wrt: list[str] | None = None, **options: Any) -> Any:
    """Check a model in its own text, and the gradient of y by a cotangent."""
    if "loss" not in options:
        model = parser.parse_model(text)
        Y = runtime(model).run(["y"], feed)[0]
        feed = feed | {"y_grad": draw(*Y.shape, seed=1)}
    return check(parser.parse_model(text), [feed], wrt, **options)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_of_inferred_sizes(name: str, axis: int) -> None:
    """An inferred size may be equal to any: the rows were taken along a wrong axis."""
    gradients(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[b, t, 4] x) => (float[p, q, r] y) {{
            c = Concat <axis = 1> (x, x)
            k = Transpose <perm = [0, 2, 1]> (c)
            q = MatMul (c, k)
            y = {name} <axis = {axis}> (q)
        }}""",
        {"x": draw(2, 3, 4)}, ["x"],
    )  # fmt: skip


def test_a_cross_entropy_of_any_number_of_classes() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, c] x) => (float[n, c] y) { y = Tanh (x) }"""
    gradients(text, {"x": draw(5, 3), "labels": np.asarray([0, 2, 1, 1, 0])}, ["x"], loss="cross_entropy")


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_rows_of_attention_without_an_element() -> None:
    """Their softmax is NaN in runtimes; what Attention takes of it has no gradient."""
    gradients(
        """<ir_version: 10, opset_import: ["": 23]>
        g (float[1, 1, 2, 2] x, bool[2, 2] mask) => (float[1, 1, 2, 2] y) <float[2, 2] W = {1, 2, 3, 4}> {
            k = MatMul (x, W)
            y = Attention (x, k, x, mask)
        }""",
        {"x": draw(1, 1, 2, 2), "mask": np.asarray([[False, False], [True, True]])},
    )


@pytest.mark.parametrize(
    ("node", "channels"),
    [
        ('DepthToSpace <blocksize = 2, mode = "DCR">', 8), ('DepthToSpace <blocksize = 2, mode = "CRD">', 8),
        ("SpaceToDepth <blocksize = 2>", 2),
    ],
)  # fmt: skip
def test_pixels_that_move(node: str, channels: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[b, c, h, w] x) => (float[b, d, i, j] y) {{
        a = Tanh (x)
        y = {node} (a)
    }}"""
    gradients(text, {"x": draw(2, channels, 4, 6)}, ["x"])


def test_unpooled_maxima() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[b, 1, h, w] x) => (float[b, 1, h, w] y) {
        s = Mul (x, x)
        p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)
        y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (p, i)
    }"""
    gradients(text, {"x": draw(2, 1, 4, 6)}, ["x"])


def test_one_name_for_two_sizes() -> None:
    """PyTorch's exporter names axes of outputs so, behind Resize and Pad; runtimes ignore it."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[b, 2, h, w] x) => (float[q, 1, q, p] y)
        <float[1, 2, 1, 1] W = {1, 2}, float[1] B = {1}> {
        r = Tanh (x)
        y = Conv (r, W, B)
    }"""
    gradients(text, {"x": draw(2, 2, 3, 5)})


def test_channels_that_only_the_weights_tell() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, c, h, w] x) => (float[n, d, i, j] y)
        <float[4, 1, 2, 1] W = {1, 2, 3, 4, 5, 6, 7, 8}, float[4, 1, 1, 2] V = {1, 2, 3, 4, 5, 6, 7, 8}> {
        a = Conv <group = 4> (x, W)
        y = ConvTranspose (a, V)
    }"""
    gradients(text, {"x": draw(2, 4, 5, 6)})


@pytest.mark.parametrize(
    "node", ["Gelu (a)", "FastGelu (a)", "FastGelu (a, b)", "QuickGelu (a)", "BiasGelu (a, b)"]
)
def test_shapes_behind_operators_of_onnx_runtime(node: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[n, m, 2] x) => (float[n, m, 2] y) <float[2, 2] W = {{1, 2, 3, -4}}, float[2] b = {{1, 2}}> {{
        a = MatMul (x, W)
        t = com.microsoft.{node}
        n = LayerNormalization (t, b)
        y = MatMul (n, W)
    }}"""
    gradients(text, {"x": draw(2, 3, 2)})


def test_products_of_unknown_rank() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float[2, 2, 3] th, int64[4] s) => (float[2, 5, 6, 2] y) {
        y = AffineGrid (th, s)
    }"""
    gradients(text, {"th": draw(2, 2, 3), "s": np.asarray([2, 1, 5, 6])}, ["th"])


def test_a_loop_whose_body_states_no_shape() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[n, 4] x, int64 k) => (float[n, 4] y) <bool c = {1}> {
            y = Loop (k, c, x) <body = b (int64 i, bool c1, float h) => (bool c2, float h2) {
                c2 = Identity (c1)
                a = Mul (h, x)
                h2 = Sigmoid (a)
            }>
        }"""
    )
    body = model.graph.node[0].attribute[0].g
    for value in (body.input[2], body.output[1]):
        value.type.tensor_type.ClearField("shape")
    feed = {"x": draw(3, 4), "k": np.asarray(3), "y_grad": draw(3, 4, seed=1)}
    ours = ReferenceEvaluator(gradient_model(model, ["x"]), new_ops=operators())
    session = runtime(gradient_model(model, ["x"], standard=True))
    assert worst(*(run.run(["x_grad"], feed)[0] for run in (session, ours))) < 2e-5


CLASSIFIER = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
    g (float[n, 2] x) => ({}) <float[2, 3] W = {{1, 2, 3, 4, 5, 6}}> {{
        s = MatMul (x, W)
        i = ArgMax <axis = 1, keepdims = 0> (s)
        lab = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1, 2], values_int64s = [5, 6, 7]> (i)
    }}"""


def test_labels_beside_scores() -> None:
    """As classifiers of scikit-learn have."""
    step = training_model(
        parser.parse_model(CLASSIFIER.format("float[n, 3] s, int64[n] lab")), "cross_entropy"
    )
    assert step.graph.output[0].name == "loss"
    runtime(step)
    model = parser.parse_model(CLASSIFIER.format("int64[n] lab, float[n, 3] s"))
    with pytest.raises(ValueError, match="takes the first output, and 'lab' has the type int64, expected"):
        training_model(model, "cross_entropy")


def standard(*arguments: Any, **options: Any) -> Any:
    training = gradient_model(*arguments, standard=True, **options)
    assert {opset.domain for opset in training.opset_import} == {""}
    return training


@pytest.mark.long
@pytest.mark.parametrize("operator", sorted(row.operator for row in coverage(newest()) if row.gradient))
def test_the_gradient_of_every_operator(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the inputs of one of ONNX's own tests: whatever has a gradient has one of standard operators."""
    monkeypatch.setattr(onnx_backend, "gradient_model", standard)
    for case in onnx_backend.cases().get(operator, []):
        if operator != "Scan" and not onnx_backend.check(case):
            return
