"""`gradient_model`: beside central differences, rule by rule, and beside PyTorch on whole networks."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from onnx_cases import onnx, run, slope_along, worst  # isort: skip

from onnx import helper, numpy_helper, parser  # isort: skip
from onnx.reference import ReferenceEvaluator  # isort: skip

import xpgrad
from xpgrad.testing import numerical_jacobian
from xpgrad_onnx import gradient_model, operators

FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
MICROSOFT = {"BiasGelu", "FastGelu", "QuickGelu", "BiasGeluMicrosoft"}


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node; "_" stands for an operand that is left out."""
    rows = ([name.replace("_", "") for name in names.split()] for names in (inputs, outputs))
    domain = "com.microsoft" if op_type in MICROSOFT else ""
    return helper.make_node(op_type, *rows, domain=domain, **attributes)


def build(
    nodes: list[Any],
    inputs: dict[str, Any],
    outputs: str,
    weights: dict[str, Any],
    opset: int = 18,
    kind: int = DOUBLE,
) -> Any:
    """A model; inputs are given as arrays, or as shapes with names of sizes."""

    def info(name: str, value: Any) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(value.dtype) if hasattr(value, "dtype") else DOUBLE
        return helper.make_tensor_value_info(name, kind, list(getattr(value, "shape", value)))

    graph = helper.make_graph(
        nodes,
        "network",
        [info(*pair) for pair in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def check_form(training: Any) -> None:
    """By onnx's checker, which wants shapes of all inputs and outputs."""
    values = (*training.graph.input, *training.graph.output)
    if all(value.type.tensor_type.HasField("shape") for value in values):
        onnx.checker.check_model(training)


@pytest.fixture(autouse=True)
def nothing_to_compile() -> Any:
    """What is tested here is the graph; the kernels are the same on every engine."""
    with xpgrad.use_engine("standard"):
        yield


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def check(model: Any, feeds: dict[str, Any], wrt: list[str] | None = None) -> Any:
    """The gradients of every named tensor against central differences, with random cotangents."""
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    floats = {k: v for k, v in (weights | feeds).items() if np.asarray(v).dtype == np.float64}
    wrt = list(floats) if wrt is None else wrt
    training = gradient_model(model, wrt)
    check_form(training)
    forward = ReferenceEvaluator(model, new_ops=operators())

    def by_name(given: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(forward.output_names, forward.run(None, given), strict=True))

    outputs = by_name(feeds)
    cotangents = {
        i.name: draw(*outputs[i.name.removesuffix("_grad")].shape, seed=9)
        for i in training.graph.input
        if i.name.endswith("_grad")
    }
    assert cotangents
    evaluator = ReferenceEvaluator(training, new_ops=operators())
    results = [evaluator.run(None, feeds | cotangents) for _ in range(2)]
    for name in wrt:
        # all elements move at once: a gradient with one wrong element has another product with every way
        ways = [draw(*floats[name].shape, seed=seed) for seed in range(3)]
        slopes = [
            slope_along(way, floats[name], cotangents, lambda x, name=name: by_name(feeds | {name: x}), 1e-6)
            for way in ways
        ]
        for result in results:
            gradient = dict(zip(evaluator.output_names, result, strict=True))[f"{name}_grad"]
            assert (gradient.shape, gradient.dtype) == (floats[name].shape, floats[name].dtype)
            for way, slope in zip(ways, slopes, strict=True):
                assert abs(np.vdot(gradient, way) - slope) < 1e-7 * max(1.0, abs(slope)), name
    check_standard(model, wrt, feeds | cotangents, dict(zip(evaluator.output_names, results[0], strict=True)))
    return training


def check_standard(model: Any, wrt: list[str], feeds: dict[str, Any], expected: dict[str, Any]) -> None:
    """The graph of ONNX's own operators, on onnx's evaluator without ours."""
    training = gradient_model(model, wrt, standard=True)
    check_form(training)
    assert {opset.domain for opset in training.opset_import} == {""}
    # onnx's own ConvTranspose with groups, and MaxPool's indices at strides of 1, are wrong
    wrong = {"ConvTranspose", "MaxPool"} & {n.op_type for n in training.graph.node}
    evaluator = ReferenceEvaluator(training, new_ops=operators() if wrong else None)
    gradients = [f"{name}_grad" for name in wrt]
    for name, result in zip(gradients, evaluator.run(gradients, feeds), strict=True):
        assert worst(result, expected[name]) < 1e-12, name


def test_gradients_are_results_of_nodes_and_no_copies_of_them() -> None:
    """Copying a large gradient takes as long as its product. One that two parameters share is copied once."""
    nodes = [node("Gemm", "x W b", "p"), node("LayerNormalization", "p s", "n"), node("Sub", "n c", "m")]
    nodes += [node("Add", "m d", "y")]
    weights = {"W": draw(4, 5), "b": draw(5), "s": draw(5), "c": draw(2, 5), "d": draw(2, 5)}
    for standard in (False, True):
        training = gradient_model(build(nodes, {"x": draw(2, 4)}, "y", weights), standard=standard)
        copies = [n for n in training.graph.node if n.op_type == "Identity"]
        assert [n.output[0] for n in copies] == ["d_grad"]  # the cotangent, an input
    both = build([node("Add", "a b", "s"), node("Mul", "s s", "y")], {}, "y", {"a": draw(3), "b": draw(3)})
    copies = [n for n in check(both, {}).graph.node if n.op_type == "Identity"]
    assert [(n.input[0], n.output[0]) for n in copies] == [("a_grad", "b_grad")]


@pytest.mark.parametrize("standard", [False, True])
def test_nothing_is_computed_twice(standard: bool) -> None:
    """Two layers over sequences of lengths, and views of one tensor, of which the model has two alike."""
    weights = {
        "W": draw(2, 9, 3), "R": draw(2, 9, 3), "U": draw(2, 9, 3), "first": np.asarray([0]),
        "two": np.asarray([2]), "axis": np.asarray([2]),
    }  # fmt: skip
    options = {"hidden_size": 3, "direction": "bidirectional"}
    nodes = [
        node("Slice", "x first two axis", "a"), node("Slice", "x first two axis", "b"), node("Neg", "b", "c"),
        node("Concat", "a c", "d", axis=2), node("Relu", "x", "e"), node("GRU", "x W R _ n", "y", **options),
        node("GRU", "e U R _ n", "z", **options), node("Flatten", "x", "f"),
        node("Flatten", "x", "g", axis=2),
    ]  # fmt: skip
    feeds = {"x": draw(4, 2, 3), "n": np.asarray([4, 2], dtype=np.int32)}
    model = build(nodes, {"x": ["T", 2, 3], "n": feeds["n"]}, "y z d f g", weights)
    wrt = ["x", "W", "R", "U"]
    training = gradient_model(model, wrt, standard=True) if standard else check(model, feeds, wrt)
    own = {name for n in nodes for name in n.output}
    work = []
    for n in training.graph.node:
        if own.isdisjoint(n.output):
            n.name, n.output[:] = "", ["given" if name else "" for name in n.output]
            work.append(n.SerializeToString(deterministic=True))
    assert len(set(work)) == len(work)
    rules = [t for t in training.graph.initializer if t.name.startswith("grad/")]
    assert len({(t.data_type, *t.dims, t.raw_data) for t in rules}) == len(rules)


# --- rules --------------------------------------------------------------------------------------------------

UNARY = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.3}, "LeakyRelu, alpha below 0": {"alpha": -0.4},
    "ThresholdedRelu": {"alpha": 0.4}, "Elu": {"alpha": 0.7}, "Selu": {}, "Celu": {"alpha": 1.5},
    "Softplus": {}, "Softsign": {}, "Sigmoid": {}, "HardSigmoid": {"alpha": 0.3}, "HardSwish": {},
    "Tanh": {}, "Mish": {}, "QuickGelu": {"alpha": 1.1}, "FastGelu": {}, "Neg": {}, "Exp": {}, "Abs": {},
    "Identity": {}, "Dropout": {}, "Softmax": {"axis": 1}, "LogSoftmax": {}, "Flatten": {"axis": 2},
    "Transpose": {"perm": [2, 0, 1]}, "Transpose, all axes": {}, "GlobalAveragePool": {},
     "ReduceMean": {"keepdims": 0}, "ReduceSum": {},
    "ReduceSum, nothing": {"noop_with_empty_axes": 1},
}  # fmt: skip
UNARY |= {
    "Sin": {}, "Cos": {}, "Tan": {}, "Sinh": {}, "Cosh": {}, "Asinh": {}, "Atan": {}, "Erf": {},
    "Reciprocal": {}, "ReduceMax": {}, "ReduceMin": {"keepdims": 0}, "ReduceProd": {}, "ReduceL1": {},
    "ReduceL2": {"keepdims": 0}, "ReduceLogSumExp": {}, "ReduceSumSquare": {}, "Trilu": {},
    "LpNormalization": {"axis": 1}, "GlobalMaxPool": {}, "Shrink": {"lambd": 0.3, "bias": 0.1},
}  # fmt: skip
# a gradient's defaults may be others than its operator's
UNARY |= {
    f"{name}, defaults": {} for name in ("LeakyRelu", "Elu", "Celu", "HardSigmoid", "QuickGelu", "Softmax")
}


@pytest.mark.parametrize("name", UNARY)
def test_operator_of_one_input(name: str) -> None:
    nodes = [node("Mul", "x w", "m"), node(name.split(",")[0], "m", "y", **UNARY[name])]
    check(build(nodes, {"x": draw(3, 4, 5)}, "y", {"w": draw(4, 1)}), {"x": draw(3, 4, 5)})


def test_global_max_pool() -> None:
    model = build([node("GlobalMaxPool", "x", "y")], {"x": draw(2, 3, 4, 2)}, "y", {})
    check(model, {"x": draw(2, 3, 4, 2)})


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(p: int) -> None:
    model = build([node("GlobalLpPool", "x", "y", p=p)], {"x": draw(2, 3, 4, 2)}, "y", {})
    check(model, {"x": draw(2, 3, 4, 2)})


def max_roi_pool(x: np.ndarray, rois: np.ndarray, cells: tuple[int, int], scale: float) -> np.ndarray:
    """Each cell's maximum; the ends of regions are rounded, and belong to them."""
    y = np.zeros((len(rois), x.shape[1], *cells))
    for k, (image, *ends) in enumerate(rois):
        left, top, right, bottom = (int(np.sign(e) * np.floor(abs(e * scale) + 0.5)) for e in ends)
        for i, j in np.ndindex(*cells):
            height, width = max(bottom - top + 1, 1) / cells[0], max(right - left + 1, 1) / cells[1]
            rows = slice(*(max(0, int(n) + top) for n in (np.floor(i * height), np.ceil((i + 1) * height))))
            columns = slice(*(max(0, int(n) + left) for n in (np.floor(j * width), np.ceil((j + 1) * width))))
            part = x[int(image), :, rows, columns]
            y[k, :, i, j] = part.max(axis=(1, 2)) if part.size else 0
    return y


@pytest.mark.parametrize("opset", [17, 22])
def test_max_roi_pool(opset: int) -> None:
    """With regions that begin or end outside, halves, and cells of nothing."""
    x, scale = draw(2, 3, 7, 6), 0.5
    rois = np.asarray([[0, 0, 0, 11, 13], [1, 3, 1, 7, 9], [0, -5, 4, 3, 5], [1, 9, 20, 30, 25.0]])
    nodes = [node("MaxRoiPool", "x rois", "y", pooled_shape=[3, 2], spatial_scale=scale)]
    model = build(nodes, {"x": x, "rois": rois}, "y", {}, opset)
    expected = max_roi_pool(x, rois, (3, 2), scale)
    assert (expected == 0).any()
    dY = draw(*expected.shape, seed=3)
    (jacobian,) = numerical_jacobian(lambda x: max_roi_pool(x, rois, (3, 2), scale), {"x": x}, "x", step=1e-6)
    dX = np.tensordot(dY, jacobian, axes=dY.ndim)
    for standard in (False, True):
        training = gradient_model(model, ["x"], standard=standard)
        found = run(training, {"x": x, "rois": rois, "y_grad": dY})
        assert np.array_equal(found["y"], expected)
        assert worst(found["x_grad"], dX) < 1e-7
    with pytest.raises(ValueError, match="MaxRoiPool has regions to differentiate"):
        gradient_model(model, ["rois"])


@pytest.mark.parametrize(
    ("name", "opset"), [("Gelu", 20), ("Gelu, tanh", 20), ("Swish", 24), ("Swish, defaults", 24)]
)
def test_activation_of_later_opsets(name: str, opset: int) -> None:
    attributes = {"Gelu, tanh": {"approximate": "tanh"}, "Swish": {"alpha": 0.7}}.get(name, {})
    nodes = [node(name.split(",")[0], "x", "y", **attributes)]
    check(build(nodes, {"x": draw(3, 4)}, "y", {}, opset), {"x": draw(3, 4)}, ["x"])


def test_gelu_of_onnx_runtime() -> None:
    nodes = [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")]
    check(build(nodes, {"x": draw(3, 4)}, "y", {}), {"x": draw(3, 4)})


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "PRelu", "Pow", "Sum"])
@pytest.mark.parametrize("shapes", [((3, 4), (4,)), ((1, 4), (3, 1)), ((4,), (2, 3, 4)), ((2, 1, 4), (3, 1))])
@pytest.mark.parametrize("known", [True, False])
def test_broadcast(name: str, shapes: Any, known: bool) -> None:
    a, b = draw(*shapes[0]), draw(*shapes[1]) + 3
    if name == "PRelu" and np.broadcast_shapes(*shapes) != shapes[0]:
        pytest.skip("PRelu's slope does not make its input larger")
    if name == "Pow":
        b = np.full(shapes[1], 3.0)
    inputs = {"a": a, "b": b} if known else {"a": [None] * a.ndim, "b": [f"b{k}" for k in range(b.ndim)]}
    model = build([node(name, "a b", "y")], inputs, "y", {})
    check(model, {"a": a, "b": b}, ["a"] if name == "Pow" else None)


@pytest.mark.parametrize("name", ["Log", "Sqrt"])
def test_operator_of_positive_numbers(name: str) -> None:
    x = np.abs(draw(3, 4)) + 0.5
    check(build([node(name, "x", "y")], {"x": x}, "y", {}), {"x": x})


@pytest.mark.parametrize("kind", ["BiasGelu", "FastGelu"])
def test_activation_with_bias(kind: str) -> None:
    check(build([node(kind, "x b", "y")], {"x": draw(3, 4)}, "y", {"b": draw(4)}), {"x": draw(3, 4)})


SLICES = {
    "x[2:4]": ("Slice", [2], [4]),
    "x[-3:]": ("Slice", [-3], [99], [0]),
    "x[:, 1:-1] from the end": ("Slice", [1], [-1], [-1]),
    "x[-99:3, :2]": ("Slice", [-99, 0], [3, 2], [-2, 1], [1, 1]),
    "x[7:]": ("Slice", [7], [9], [0]),
    "x[1:4:2]": ("Slice", [1], [4], [0], [2]),
    "x[:, -2]": ("Gather", -2),
    "x[:, [1, 2]]": ("Gather", [1, 2]),
    "x[:, [-1, 0]]": ("Gather", [-1, 0]),
    "x[:, [[1]]]": ("Gather", [[1]]),
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("known", [True, False])
def test_slices(name: str, known: bool) -> None:
    """What is left out has a gradient of zero; numbers of neighbours that are known need no scattering."""
    op_type, *rows = SLICES[name]
    operands = {f"i{k}": np.asarray(row, dtype=np.int64) for k, row in enumerate(rows)}
    attributes = {"axis": 1} if op_type == "Gather" else {}
    x = draw(5, 4)
    model = build([node(op_type, " ".join(["x", *operands]), "y", **attributes)],
                  {"x": x if known else ["n", "m"]}, "y", operands)  # fmt: skip
    training = check(model, {"x": x}, ["x"])
    scatters = name in ("x[1:4:2]", "x[:, [-1, 0]]", "x[:, [[1]]]")
    operators_there = [n.op_type for n in training.graph.node]
    assert ("ScatterElements" in operators_there) == scatters
    assert len(operators_there) == 2 + (name == "x[:, -2]") or not known or scatters


def test_clip_passes_what_is_inside() -> None:
    bounds = {"low": np.asarray(-0.5), "high": np.asarray(0.6)}
    model = build([node("Clip", "x low high", "y")], {"x": draw(5, 4)}, "y", bounds)
    check(model, {"x": draw(5, 4)}, ["x"])


# Nodes of several operands, and what these are.
SEVERAL: dict[str, tuple[Any, dict[str, Any]]] = {
    "Where": (node("Where", "c a b", "y"), {"a": draw(3, 1), "b": draw(4), "c": draw(3, 4) > 0}),
    "Max": (node("Max", "a b", "y"), {"a": draw(3, 4), "b": draw(4, seed=1)}),
    "Min": (node("Min", "a b", "y"), {"a": draw(3, 1), "b": draw(4)}),
    "Mod": (node("Mod", "a b", "y", fmod=1), {"a": 3 * draw(3, 4), "b": draw(4) + 3}),
    "Pad": (node("Pad", "a p", "y"), {"a": draw(3, 4), "p": np.asarray([1, 0, 0, 2])}),
    "Pad, reflect": (
        node("Pad", "a p _ k", "y", mode="reflect"),
        {"a": draw(3, 4), "p": np.asarray([2, 1]), "k": np.asarray([1])},
    ),
    "Resize": (
        node("Resize", "a _ _ s", "y", mode="linear"), {"a": draw(1, 2, 3, 4), "s": np.asarray([1, 2, 5, 3])},
    ),
    "CumSum": (node("CumSum", "a k", "y", exclusive=1), {"a": draw(3, 4), "k": np.asarray(1)}),
    "LayerNormalization": (
        node("LayerNormalization", "a b d", "y"), {"a": draw(3, 4), "b": draw(4), "d": draw(4, seed=1)},
    ),
    "Trilu": (node("Trilu", "a k", "y", upper=0), {"a": draw(3, 4), "k": np.asarray(1)}),
    "InstanceNormalization": (
        node("InstanceNormalization", "a b d", "y"), {"a": draw(2, 3, 4), "b": draw(3), "d": draw(3, seed=1)},
    ),
    "BatchNormalization, training": (
        node("BatchNormalization", "a b d m v", "y r s", training_mode=1),
        {"a": draw(4, 3, 2), "b": draw(3), "d": draw(3, seed=1), "m": draw(3, seed=2), "v": draw(3) ** 2},
    ),
    "TopK": (node("TopK", "a k", "y i", axis=0), {"a": draw(5, 2), "k": np.asarray([2])}),
    "ScatterElements": (
        node("ScatterElements", "a i b", "y"), {"a": draw(3, 2), "i": np.asarray([[1, 0]]), "b": draw(1, 2)},
    ),
    "ScatterND, add": (
        node("ScatterND", "a i b", "y", reduction="add"),
        {"a": draw(3, 2), "i": np.asarray([[1], [1]]), "b": draw(2, 2)},
    ),
    "Einsum": (node("Einsum", "a b", "y", equation="ij,kj->ki"), {"a": draw(3, 4), "b": draw(2, 4)}),
    "Einsum, diagonal": (node("Einsum", "a", "y", equation="...ii->...i"), {"a": draw(2, 3, 3)}),
    "Det": (node("Det", "a", "y"), {"a": draw(2, 3, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_operator_of_several_inputs(name: str) -> None:
    one, feeds = SEVERAL[name]
    wanted = [k for k, v in feeds.items() if v.dtype == np.float64 and k not in ("m", "v")]
    check(build([one], feeds, one.output[0], {}), feeds, wanted)


@pytest.mark.parametrize("ta", [0, 1])
@pytest.mark.parametrize("tb", [0, 1])
@pytest.mark.parametrize("c", [(), (5,), (3, 1), (3, 5), None])
def test_gemm(ta: int, tb: int, c: Any) -> None:
    A, B = draw(*((4, 3) if ta else (3, 4))), draw(*((5, 4) if tb else (4, 5)))
    weights = {"B": B} if c is None else {"B": B, "C": draw(*c)}
    nodes = [node("Gemm", "A B" if c is None else "A B C", "y", transA=ta, transB=tb, alpha=0.7, beta=1.3)]
    check(build(nodes, {"A": A}, "y", weights), {"A": A})


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)),
        ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("known", [True, False])
def test_matmul(shapes: Any, known: bool) -> None:
    a, b = (draw(*shape) for shape in shapes)
    inputs = {"a": a, "b": b} if known else {"a": [None] * a.ndim, "b": [None] * b.ndim}
    check(build([node("MatMul", "a b", "y")], inputs, "y", {}), {"a": a, "b": b})


CONVOLUTIONS = [
    {},
    {"strides": [2, 1], "pads": [1, 0, 0, 2], "dilations": [1, 2]},
    {"group": 2, "auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"auto_pad": "VALID"},
]


@pytest.mark.parametrize("attributes", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_convolution(attributes: dict[str, Any], bias: bool) -> None:
    group = attributes.get("group", 1)
    weights = {"W": draw(4, 4 // group, 3, 2)} | ({"B": draw(4)} if bias else {})
    nodes = [node("Conv", "x W B" if bias else "x W", "y", **attributes)]
    check(build(nodes, {"x": draw(2, 4, 6, 5)}, "y", weights), {"x": draw(2, 4, 6, 5)})


@pytest.mark.parametrize("attributes", [*CONVOLUTIONS, {"strides": [3, 2], "output_shape": [10, 7]}])
def test_transposed_convolution(attributes: dict[str, Any]) -> None:
    weights = {"W": draw(4, 4 // attributes.get("group", 1), 3, 2)}
    nodes = [node("ConvTranspose", "x W", "y", **attributes)]
    check(build(nodes, {"x": draw(2, 4, 3, 4)}, "y", weights), {"x": draw(2, 4, 3, 4)})


POOLS = [
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
]


WHOLE = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}


@pytest.mark.parametrize(
    "attributes", [*POOLS, {**POOLS[1], "count_include_pad": 1}, WHOLE, {**WHOLE, "count_include_pad": 1}]
)
def test_average_pool(attributes: dict[str, Any]) -> None:
    model = build([node("AveragePool", "x", "y", **attributes)], {"x": draw(1, 2, 7, 5)}, "y", {})
    check(model, {"x": draw(1, 2, 7, 5)})


@pytest.mark.parametrize(
    "attributes",
    [*POOLS, {**POOLS[0], "strides": [2, 2], "ceil_mode": 1}, {**POOLS[1], "storage_order": 1}],
)
def test_max_pool(attributes: dict[str, Any]) -> None:
    model = build([node("MaxPool", "x", "y", **attributes)], {"x": draw(1, 2, 7, 5)}, "y", {})
    check(model, {"x": draw(1, 2, 7, 5)})


def test_pooling_in_one_dimension() -> None:
    nodes = [
        node("MaxPool", "x", "m", kernel_shape=[3], strides=[2]),
        node("AveragePool", "m", "y", kernel_shape=[2]),
    ]
    check(build(nodes, {"x": ["N", "C", "L"]}, "y", {}), {"x": draw(2, 3, 9)})


@pytest.mark.parametrize("rank", [2, 4])
def test_batch_normalization_with_given_statistics(rank: int) -> None:
    x = draw(2, 3, *[4, 5][: rank - 2])
    weights = {"s": draw(3), "b": draw(3, seed=1), "m": draw(3, seed=2), "v": np.abs(draw(3, seed=3)) + 0.2}
    nodes = [node("BatchNormalization", "x s b m v", "y", epsilon=0.01)]
    check(build(nodes, {"x": x}, "y", weights), {"x": x}, ["x", "s", "b"])


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("name", ["ReduceMean", "ReduceSum"])
def test_reduction(name: str, opset: int, keepdims: int) -> None:
    x = draw(2, 3, 4)
    old = name == "ReduceMean" and opset < 18
    attributes = {"axes": [0, -1]} if old else {}
    nodes = [node(name, "x" if old else "x axes", "y", keepdims=keepdims, **attributes)]
    model = build(nodes, {"x": x}, "y", {} if old else {"axes": np.asarray([0, -1])}, opset)
    check(model, {"x": x}, ["x"])


def test_shapes_and_parts() -> None:
    nodes = [
        node("Reshape", "x shape", "r"),
        node("Unsqueeze", "r one", "u"),
        node("Squeeze", "u one", "s"),
        node("Concat", "s w", "c", axis=-1),
        node("Split", "c sizes", "p q t", axis=-1),
        node("Mul", "p q", "y"),
        node("Slice", "c starts ends axes steps", "z"),
        node("Gather", "c rows", "g", axis=0),
        node("Expand", "z big", "e"),
        node("Tile", "g twice", "h"),
    ]
    weights = {
        "shape": np.asarray([3, -1]), "one": np.asarray([1]), "sizes": np.asarray([2, 2, 3]),
        "w": draw(3, 3), "starts": np.asarray([-1]), "ends": np.asarray([0]), "axes": np.asarray([1]),
        "steps": np.asarray([-2]), "rows": np.asarray([[0, 2], [2, 2]]),
        "big": np.asarray([2, 3, 3]), "twice": np.asarray([1, 2, 2]),
    }  # fmt: skip
    model = build(nodes, {"x": draw(2, 6)}, "y e h", weights)
    check(model, {"x": draw(2, 6)}, ["x", "w"])


def test_casts_pass_the_gradient_in_the_dtype_of_their_input() -> None:
    """Narrow and back again: what the rounding in between loses, its gradient does not know."""
    nodes = [
        node("Cast", "x", "narrow", to=FLOAT),
        node("Cast", "narrow", "wide", to=DOUBLE),
        node("Mul", "wide w", "y"),
    ]
    x, w, cotangent = draw(3, 4), draw(4, seed=1), draw(3, 4, seed=2)
    training = gradient_model(build(nodes, {"x": x}, "y", {"w": w}), ["x", "w"])
    check_form(training)
    results = run(training, {"x": x, "y_grad": cotangent})
    assert results["x_grad"].dtype == np.float64
    assert worst(results["x_grad"], cotangent * w) < 1e-6
    assert worst(results["w_grad"], (cotangent * x.astype(np.float32)).sum(axis=0)) < 1e-12


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_passes_what_it_kept(training: bool, known: bool) -> None:
    """Whether it drops is known beforehand, or an input."""
    x, weights, mode = 1 + draw(4, 5) ** 2, {"ratio": np.float64(0.25)}, {"training": np.asarray(training)}
    nodes = [node("Dropout", "x ratio training", "y", seed=3)]
    inputs = {"x": x} if known else {"x": x, **mode}
    model = build(nodes, inputs, "y", weights | mode if known else weights)
    graph, dY = gradient_model(model, wrt=["x"]), draw(4, 5, seed=1)
    outputs = ["y", "x_grad"]
    evaluator = ReferenceEvaluator(graph, new_ops=operators())
    y, dX = evaluator.run(outputs, {**inputs, "y_grad": dY})
    kept = y != 0
    assert kept.all() != training
    np.testing.assert_allclose(dX, np.where(kept, dY, 0) / (0.75 if training else 1.0), rtol=1e-12)


def test_a_tensor_that_is_used_often_gets_all_of_its_gradient() -> None:
    nodes = [
        node("Mul", "x x", "a"),
        node("Add", "a x", "b"),
        node("Mul", "a b", "c"),
        node("Add", "c a", "y"),
    ]
    model = build(nodes, {"x": draw(3)}, "y b", {})
    training = check(model, {"x": draw(3)}, ["x"])
    assert [n.op_type for n in training.graph.node].count("Sum") == 3
    feeds = {name: draw(3, seed=seed) for seed, name in enumerate(("x", "y_grad", "b_grad"))}
    a = feeds["x"] ** 2
    expected = feeds["y_grad"] * (2 * a + feeds["x"] + 1) + feeds["b_grad"]
    assert worst(run(gradient_model(model, ["a"]), feeds)["a_grad"], expected) < 1e-12


# --- recurrent operators ------------------------------------------------------------------------------------

LSTMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "only the last state": {"outputs": "_ h"},
    "all outputs": {"outputs": "y h c"},
    "reverse, lengths": {"direction": "reverse", "lengths": True, "outputs": "y h c"},
    "peepholes": {"P": True, "states": True},
    "coupled, clip": {"P": True, "clip": 0.9, "input_forget": 1, "states": True, "outputs": "y _ c"},
    "bidirectional": {
        "direction": "bidirectional",
        "activations": ["Sigmoid", "Elu", "Tanh", "HardSigmoid", "Tanh", "Softsign"],
        "activation_alpha": [0.8, 0.3], "lengths": True, "layout": 1, "outputs": "y h c",
    },
    "names of what holds anyway": {"activations": ["Sigmoid", "Tanh", "Tanh"], "direction": "forward"},
}  # fmt: skip


def recurrent(kind: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A model of one recurrent node, and what to feed."""
    options = dict(options)
    T, N, I, H, G = 4, 3, 2, 3, {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    D = 2 if options.get("direction") == "bidirectional" else 1
    outputs = options.pop("outputs", "y")
    states = options.pop("states", False)
    weights: dict[str, Any] = {"W": draw(D, G * H, I), "R": draw(D, G * H, H), "B": draw(D, 2 * G * H)}
    names = ["X", "W", "R", "B", "lengths" if options.pop("lengths", False) else "_"]
    given = [(D, N, H)] * (len("hc") if kind == "LSTM" else 1)
    if states:
        names += ["h0", "c0"][: len(given)]
        weights |= {name: draw(*shape, seed=4) for name, shape in zip(("h0", "c0"), given, strict=False)}
    else:
        names += ["_"] * len(given)
    if options.pop("P", False):
        names.append("P")
        weights["P"] = draw(D, 3 * H, seed=5)
    X = draw(N, T, I) if options.get("layout") else draw(T, N, I)
    feeds: dict[str, Any] = {"X": X}
    if "lengths" in names:
        feeds["lengths"] = np.asarray([4, 0, 2], dtype=np.int32)
    nodes = [node(kind, " ".join(names), outputs, hidden_size=H, **options)]
    return build(nodes, feeds, outputs.replace("_", ""), weights), feeds


@pytest.mark.parametrize("name", LSTMS)
def test_lstm(name: str) -> None:
    training = check(*recurrent("LSTM", LSTMS[name]))
    domains = {n.domain for n in training.graph.node if n.op_type.startswith("LSTM")}
    plain = name in ("plain", "only the last state", "all outputs", "names of what holds anyway")
    assert domains == {"com.microsoft" if plain else "xpgrad"}


GRUS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reset after": {"linear_before_reset": 1, "states": True, "outputs": "y h"},
    "only the last state": {"outputs": "_ h"},
    "everything": {
        "direction": "bidirectional", "lengths": True, "clip": 1.1, "linear_before_reset": 1, "layout": 1,
        "activations": ["Sigmoid", "LeakyRelu", "HardSigmoid", "Tanh"], "activation_alpha": [0.2, 0.3],
        "outputs": "y h",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GRUS)
def test_gru(name: str) -> None:
    check(*recurrent("GRU", GRUS[name]))


RNNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "state": {"states": True, "outputs": "y h"},
    "only the last state": {"outputs": "_ h"},
    "everything": {
        "direction": "bidirectional", "lengths": True, "clip": 1.1, "layout": 1,
        "activations": ["LeakyRelu", "Softsign"], "activation_alpha": [0.2], "outputs": "y h",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RNNS)
def test_rnn(name: str) -> None:
    training = check(*recurrent("RNN", RNNS[name]))
    assert {n.domain for n in training.graph.node if n.op_type == "RNNGrad"} == {"xpgrad"}


# --- losses -------------------------------------------------------------------------------------------------


def test_losses_against_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its losses are the reference")
    x, w = draw(4, 3), draw(3, 5)
    target = np.random.default_rng(0).uniform(size=(4, 5))
    labels = np.asarray([0, 4, 2, 2])
    model = build([node("MatMul", "x w", "scores")], {"x": x}, "scores", {"w": w})
    functional = torch.nn.functional
    for loss, feed, function in (
        ("cross_entropy", {"labels": labels}, functional.cross_entropy),
        ("mse", {"target": target}, functional.mse_loss),
        ("bce_with_logits", {"target": target}, functional.binary_cross_entropy_with_logits),
    ):
        results = run(gradient_model(model, loss=loss), {"x": x, **feed})
        weight = torch.tensor(w, requires_grad=True)
        expected = function(torch.tensor(x) @ weight, *map(torch.tensor, feed.values()))
        expected.backward()
        assert list(results) == ["scores", "loss", "w_grad"]
        assert abs(results["loss"] - expected.item()) < 1e-12
        assert worst(results["w_grad"], weight.grad.numpy()) < 1e-12


def test_cross_entropy_in_the_model_with_weights() -> None:
    labels = np.asarray([[0, 1, 2], [2, 2, 0]])
    nodes = [
        node("SoftmaxCrossEntropyLoss", "x labels w", "loss log", ignore_index=1, reduction="sum"),
        node("Mul", "log log", "square"),
    ]
    weights = {"w": np.asarray([0.5, 2.0, 1.0]), "labels": labels}
    check(build(nodes, {"x": draw(2, 3, 3)}, "loss square", weights), {"x": draw(2, 3, 3)}, ["x"])


# --- whole networks beside PyTorch --------------------------------------------------------------------------


def reordered(rows: Any, gates: list[int]) -> np.ndarray:
    """PyTorch's gates as ONNX's."""
    rows = rows.detach().numpy()
    return rows.reshape(len(gates), -1, *rows.shape[1:])[gates].reshape(rows.shape)


def stacked(module: Any, names: str, gates: list[int], grad: bool = False) -> dict[str, np.ndarray]:
    """W, R and B of a PyTorch module, or their gradients."""
    suffixes = ["_l0", "_l0_reverse"][: 2 if module.bidirectional else 1]

    def one(kind: str, suffix: str) -> np.ndarray:
        parameter = getattr(module, f"{kind}{suffix}")
        return reordered(parameter.grad if grad else parameter, gates)

    W, R = (np.stack([one(kind, s) for s in suffixes]) for kind in ("weight_ih", "weight_hh"))
    B = np.stack([np.concatenate([one("bias_ih", s), one("bias_hh", s)]) for s in suffixes])
    return dict(zip(names.split(), (W, R, B), strict=True))


def train(training: Any, feeds: dict[str, Any], rate: float = 0.5, steps: int = 30) -> list[float]:
    """Plain gradient descent; the losses."""
    evaluator = ReferenceEvaluator(training, new_ops=operators())
    weights = {t.name: numpy_helper.to_array(t).copy() for t in training.graph.initializer}
    names = [o.name.removesuffix("_grad") for o in training.graph.output if o.name.endswith("_grad")]
    losses = []
    for _ in range(steps):
        loss, *grads = evaluator.run(
            ["loss", *(f"{name}_grad" for name in names)], feeds | {name: weights[name] for name in names}
        )
        losses.append(float(loss))
        for name, grad in zip(names, grads, strict=True):
            weights[name] -= rate * grad
    return losses


def compare(training: Any, feeds: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    check_form(training)
    results = run(training, feeds)
    for name, gradient in expected.items():
        assert worst(results[f"{name}_grad"], gradient) < 1e-5, name
    losses = train(training, feeds)
    assert losses[-1] < 0.5 * losses[0]


def test_lstm_classifier_against_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its autograd is the reference")
    torch.manual_seed(0)
    lstm, linear = torch.nn.LSTM(3, 8), torch.nn.Linear(8, 4)
    x, labels = torch.randn(6, 5, 3), torch.tensor([0, 1, 2, 3, 1])
    loss = torch.nn.functional.cross_entropy(linear(lstm(x)[0][-1]), labels)
    loss.backward()
    gates = [0, 3, 1, 2]
    weights = stacked(lstm, "W R B", gates)
    weights |= {"V": linear.weight.detach().numpy(), "v": linear.bias.detach().numpy()}
    nodes = [
        node("LSTM", "x W R B", "_ h", hidden_size=8),
        node("Squeeze", "h first", "s"),
        node("Gemm", "s V v", "logits", transB=1),
    ]
    model = build(nodes, {"x": x.numpy()}, "logits", {**weights, "first": np.asarray([0])}, kind=FLOAT)
    training = gradient_model(model, ["W", "R", "B", "V", "v"], loss="cross_entropy")
    expected = stacked(lstm, "W R B", gates, grad=True)
    expected |= {"V": linear.weight.grad.numpy(), "v": linear.bias.grad.numpy()}
    compare(training, {"x": x.numpy(), "labels": labels.numpy()}, expected)


def test_bidirectional_gru_with_lengths_against_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its autograd is the reference")
    torch.manual_seed(1)
    gru, linear = torch.nn.GRU(3, 8, bidirectional=True), torch.nn.Linear(16, 4)
    x, labels = torch.randn(6, 5, 3), torch.tensor([0, 1, 2, 3, 1])
    lengths = torch.tensor([6, 2, 5, 1, 4])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    states = gru(packed)[1].swapaxes(0, 1).reshape(5, 16)
    loss = torch.nn.functional.cross_entropy(linear(states), labels)
    loss.backward()
    gates = [1, 0, 2]
    weights = stacked(gru, "W R B", gates)
    weights |= {"V": linear.weight.detach().numpy(), "v": linear.bias.detach().numpy()}
    nodes = [
        node(
            "GRU", "x W R B lengths", "_ h", hidden_size=8, direction="bidirectional", linear_before_reset=1
        ),
        node("Transpose", "h", "t", perm=[1, 0, 2]),
        node("Flatten", "t", "f"),
        node("Gemm", "f V v", "logits", transB=1),
    ]
    given = lengths.numpy().astype(np.int32)
    model = build(nodes, {"x": x.numpy(), "lengths": given}, "logits", weights, kind=FLOAT)
    training = gradient_model(model, loss="cross_entropy")
    expected = stacked(gru, "W R B", gates, grad=True)
    expected |= {"V": linear.weight.grad.numpy(), "v": linear.bias.grad.numpy()}
    compare(training, {"x": x.numpy(), "lengths": given, "labels": labels.numpy()}, expected)


def test_convolutional_classifier_against_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its autograd is the reference")
    torch.manual_seed(2)
    nn = torch.nn
    network = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ELU(0.8), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, groups=2), nn.GELU(),
        nn.AvgPool2d(2, stride=1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    x, labels = torch.randn(5, 2, 10, 10), torch.tensor([0, 1, 2, 3, 1])
    loss = nn.functional.cross_entropy(network(x), labels)
    loss.backward()
    named = {"W1": network[0].weight, "b1": network[0].bias, "W2": network[3].weight, "b2": network[3].bias}
    named |= {"V": network[7].weight, "v": network[7].bias}
    nodes = [
        node("Conv", "x W1 b1", "c", pads=[1, 1, 1, 1]),
        node("Elu", "c", "e", alpha=0.8),
        node("MaxPool", "e", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p W2 b2", "d", group=2),
        node("Gelu", "d", "g"),
        node("AveragePool", "g", "q", kernel_shape=[2, 2]),
        node("Flatten", "q", "f"),
        node("Gemm", "f V v", "logits", transB=1),
    ]
    weights = {name: parameter.detach().numpy() for name, parameter in named.items()}
    model = build(nodes, {"x": x.numpy()}, "logits", weights, opset=20, kind=FLOAT)
    training = gradient_model(model, loss="cross_entropy")
    expected = {name: parameter.grad.numpy() for name, parameter in named.items()}
    compare(training, {"x": x.numpy(), "labels": labels.numpy()}, expected)


# --- what it does to the model, and errors ------------------------------------------------------------------


def small(text: str) -> Any:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "local": 1]>\n{text}')


def test_the_model_stays_as_it_is_and_weights_become_inputs() -> None:
    model = small("g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { y = Mul(w, x) }")
    before = model.SerializeToString()
    training = gradient_model(model)
    assert model.SerializeToString() == before
    assert [i.name for i in training.graph.input] == ["x", "y_grad", "w"]
    x, other = (np.asarray(v, dtype=np.float32) for v in ([1, 2], [5, 6]))
    assert run(training, {"x": x, "y_grad": x})["y"].tolist() == [3, 8]
    assert run(training, {"x": x, "y_grad": x, "w": other})["y"].tolist() == [5, 12]


def test_local_functions_are_inlined() -> None:
    text = """g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { p = local.square(w)  y = Mul(p, x) }
        <domain: "local", opset_import: ["": 17]> square (a) => (b) { b = Mul(a, a) }"""
    x = np.asarray([1.0, -1.0], dtype=np.float32)
    assert run(gradient_model(small(text), loss="y"), {"x": x})["w_grad"].tolist() == [6.0, -8.0]


def test_what_the_loss_does_not_depend_on_is_no_default() -> None:
    text = "g (float[2] x) => (float[2] y, int64[1] n) <float[2] w = {3, 4}, float[2] v = {1, 2}> "
    model = small(text + "{ n = Shape(v)  y = Mul(w, x) }")
    assert [o.name for o in gradient_model(model).graph.output] == ["y", "n", "w_grad"]
    with pytest.raises(ValueError, match="wrt has 'v', expected floating-point tensors that the loss"):
        gradient_model(model, ["v"])


def gradients_of(training: Any) -> list[str]:
    names = [output.name for output in training.graph.output]
    return [name.removesuffix("_grad") for name in names if name.endswith("_grad")]


def test_a_network_as_pytorch_exports_it() -> None:
    """Numbers of the code are initializers beside the weights, and equal ones are one."""
    nodes = [
        node("Conv", "x W B", "c"),
        node("Clip", "c zero six", "r"),
        node("Add", "r three", "a"),
        node("Clip", "a zero six", "h"),
        node("Mul", "r h", "m"),
        node("Div", "m six", "hardswish"),
        node("Clip", "hardswish low _", "l"),
        node("PRelu", "l slope", "p"),
        node("ReduceMean", "p axes", "mean", keepdims=0),
        node("Gemm", "mean V v", "g", transB=1),
        node("Mul", "g scale", "y"),
    ]
    weights = {
        "W": draw(4, 3, 3, 3), "B": draw(4), "zero": np.asarray(0.0), "six": np.asarray(6.0),
        "three": np.asarray(3.0), "low": np.asarray(-0.2), "slope": np.asarray([[[[0.25]]]]),
        "axes": np.asarray([2, 3]), "V": draw(2, 4), "v": draw(2), "scale": np.asarray(1.5),
    }  # fmt: skip
    x = draw(2, 3, 6, 5)
    model = build(nodes, {"x": x}, "y", weights)
    parameters = ["W", "B", "slope", "V", "v"]
    assert gradients_of(gradient_model(model)) == parameters
    check(model, {"x": x}, parameters)
    # its exporter says of an initializer without axes that it is a parameter
    info = helper.make_tensor_value_info("scale", DOUBLE, ())
    info.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value="PARAMETER")
    model.graph.value_info.append(info)
    assert gradients_of(gradient_model(model)) == [*parameters, "scale"]
    buffer = helper.make_tensor_value_info("v", DOUBLE, (2,))
    buffer.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value="BUFFER")
    model.graph.value_info.append(buffer)
    assert gradients_of(gradient_model(model)) == [*[name for name in parameters if name != "v"], "scale"]
    del model.graph.value_info[-1]
    check(model, {"x": x}, ["scale", "three"])
    with pytest.raises(ValueError, match="Clip has bounds to differentiate, expected the gradient of"):
        gradient_model(model, ["six"])


# An operator's constants by name, and nodes from x and w to y that use them.
CONSTANTS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "bounds": ({"low": -1.0, "high": 1.0}, [node("Clip", "h low high", "y")]),
    "computed bounds": (
        {"a": 2.0, "b": [3.0]},
        [node("Neg", "a", "low"), node("Mul", "a b", "t"), node("Squeeze", "t", "high"),
         node("Clip", "h low high", "y")],
    ),
    "an exponent": ({"e": [2.0, 3.0, 1.0]}, [node("Pow", "h e", "y")]),
    "a ratio": ({"ratio": 0.5}, [node("Dropout", "h ratio", "y")]),
    "statistics": (
        {"m": [1.0] * 3, "v": [2.0] * 3},
        [node("BatchNormalization", "h w w m v", "y")],
    ),
    "weights of classes": (
        {"weights": [1.0, 2.0, 3.0]},
        [node("SoftmaxCrossEntropyLoss", "h labels weights", "y")],
    ),
    "an epsilon": (
        {"eps": 1e-5},
        [node("Mul", "h h", "s"), node("Add", "s eps", "t"), node("Sqrt", "t", "y")],
    ),
}  # fmt: skip
WITHOUT_A_RULE = {
    "scales": ({"scales": [1.0, 2.0]}, [node("Resize", "x _ scales", "k")]),
    "a value": ({"value": 0.5}, [node("Pad", "x pads value", "k")]),
    "values": ({"values": [0.0, 1.0]}, [node("OneHot", "labels depth values", "k")]),
    "a range": (
        {"first": 0.0, "stop": 4.0, "step": 1.0},
        [node("Range", "first stop step", "k")],
    ),
}


def with_constants(values: dict[str, Any], nodes: list[Any]) -> Any:
    integers = {"labels": np.asarray([0, 1, 2, 0]), "pads": np.asarray([0, 0, 0, 4]), "depth": np.asarray(4)}
    weights = {"w": draw(3)} | integers | {name: np.asarray(value) for name, value in values.items()}
    return build(nodes, {"x": draw(4, 3)}, "y", weights)


@pytest.mark.parametrize("case", [*CONSTANTS, *WITHOUT_A_RULE])
def test_constants_are_no_parameters(case: str) -> None:
    """By default; an operator without a gradient is no fault where only constants would ask for one."""
    if case in CONSTANTS:
        values, nodes = CONSTANTS[case]
        nodes = [node("Mul", "x w", "h"), *nodes]
    else:
        values, nodes = WITHOUT_A_RULE[case]
        nodes = [*nodes, node("ReduceMean", "k", "s", keepdims=0), node("Mul", "s w", "y")]
    assert gradients_of(gradient_model(with_constants(values, nodes))) == ["w"]


def test_a_number_without_axes_that_is_a_weight() -> None:
    nodes = [node("Gemm", "x W c", "g"), node("PRelu", "g slope", "y")]
    weights = {"W": draw(3, 2), "c": np.asarray(0.5), "slope": np.asarray(0.1)}
    assert gradients_of(gradient_model(build(nodes, {"x": draw(4, 3)}, "y", weights))) == ["W", "c", "slope"]


def test_bounds_that_depend_on_the_input_have_no_gradient() -> None:
    """What leads to them are parameters, so that is said."""
    nodes = [node("Mul", "x w", "h"), node("ReduceMean", "h", "most", keepdims=0)]
    nodes.append(node("Clip", "x _ most", "y"))
    with pytest.raises(ValueError, match="Clip has bounds to differentiate"):
        gradient_model(build(nodes, {"x": draw(4, 3)}, "y", {"w": draw(3)}))


def test_constants_alone_are_no_default() -> None:
    text = "g (float[2] x) => (float[2] y) <float two = {2}, float[2] e = {1, 2}> "
    model = small(text + "{ p = Mul(x, two) y = Pow(p, e) }")
    with pytest.raises(ValueError, match="no initializer but two, e, which are no weights, expected names"):
        gradient_model(model)
    assert gradients_of(gradient_model(model, ["two"])) == ["two"]


@pytest.mark.parametrize(
    ("case", "name", "message"),
    [
        ("bounds", "high", "Clip has bounds to differentiate, expected the gradient of the input"),
        ("computed bounds", "b", "Clip has bounds to differentiate, expected the gradient of the input"),
        ("a ratio", "ratio", "Dropout has a ratio to differentiate, expected the gradient of the data"),
        ("an exponent", "e", "Pow has an exponent to differentiate, expected the gradient of the base"),
        ("statistics", "v", "has a mean or a variance to differentiate, expected gradients of X, scale"),
        ("weights of classes", "weights", "has labels or weights to differentiate, expected the gradient"),
    ],
)  # fmt: skip
def test_constants_that_are_named_are_refused(case: str, name: str, message: str) -> None:
    values, nodes = CONSTANTS[case]
    with pytest.raises(ValueError, match=message):
        gradient_model(with_constants(values, [node("Mul", "x w", "h"), *nodes]), [name])


def test_operators_without_a_rule_are_counted() -> None:
    text = "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> "
    model = small(text + "{ a = local.f(w)  b = Mul(x, a)  c = local.g(b)  d = local.f(c)  y = Mul(d, c) }")
    model.graph.node[0].name = "volume"
    with pytest.raises(
        ValueError, match=r"has local.f \(2 nodes, first 'volume'\); local.g \(1 node\); expect"
    ):
        gradient_model(model, ["w"])


@pytest.mark.parametrize(
    ("wrt", "loss", "message"),
    [
        (["V"], None, "wrt has 'V', expected tensors of the model, such as w"),
        ([], None, "wrt is empty, expected names of tensors"),
        (
            None,
            "hinge",
            "loss is 'hinge', expected one of cross_entropy, mse, bce_with_logits, or an out",
        ),
    ],
)
def test_bad_names(wrt: Any, loss: Any, message: str) -> None:
    model = small("g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { y = Mul(w, x) }")
    with pytest.raises(ValueError, match=message):
        gradient_model(model, wrt, loss)


def test_bad_types() -> None:
    model = small("g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { y = Mul(w, x) }")
    with pytest.raises(TypeError, match="wrt is the str 'w', expected an iterable of names"):
        gradient_model(model, "w")
    with pytest.raises(TypeError, match=r"model is a GraphProto, expected an onnx.ModelProto"):
        gradient_model(model.graph)


def test_names_that_are_taken() -> None:
    model = small("g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { loss = Mul(w, x) y = Neg(loss) }")
    with pytest.raises(ValueError, match="the model has a tensor 'loss', expected that name to be free"):
        gradient_model(model, loss="mse")


def test_docstring() -> None:
    import doctest

    result = doctest.testmod(importlib.import_module("xpgrad_onnx._gradient"))
    assert result.attempted > 0
    assert result.failed == 0


LOOPS = {
    "a state": "y = Loop (n, t, x) <body = b (int64 i, bool c, double[2] s) => (bool co, double[2] so) "
    "{ so = Mul(s, x)  co = Identity(c) }>",
    "a state of Scan": "y, o = Scan <num_scan_inputs = 1, body = b (double[2] s, double[2] e) => "
    "(double[2] so, double[2] out) { m = Mul(s, x)  so = Add(m, e)  out = Identity(so) }> (x, q)",
    "a whole sequence": "y, o = Scan <num_scan_inputs = 1, body = b (double[2] s, double[2] e) => "
    "(double[2] so, double[2] out) { m = Mul(s, e)  r = ReduceSum <keepdims = 0> (q)  so = Add(m, r)  "
    "out = Identity(so) }> (x, q)",
}  # fmt: skip


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("steps", [1, 3])
def test_bodies_that_read_an_input_of_the_node_by_its_name(kind: str, steps: int) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (double[2] x, double[{steps}, 2] q) => (double[2] y)
        <int64 n = {{{steps}}}, bool t = {{1}}> {{ {LOOPS[kind]} }}"""
    )
    check(model, {"x": draw(2), "q": draw(steps, 2)}, ["x"] if kind == "a state" else ["x", "q"])


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("scale", [1.0, 1.25, 1.3])
def test_resize_by_a_scale_that_keeps_the_size(mode: str, scale: float) -> None:
    more = {"s": np.asarray([1, 1, scale], np.float32)}
    check(
        build([node("Resize", "x _ s", "y", mode=mode)], {"x": draw(1, 1, 3)}, "y", more),
        {"x": draw(1, 1, 3)},
    )


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...ij,...jk->...ik", [(1, 2, 3), (4, 3, 5)]),
        ("...ij,...jk->...ik", [(2, 3), (4, 3, 5)]),
        ("ij,...jk->...ik", [(2, 3), (4, 3, 5)]),
        ("ii...->i...", [(3, 3, 2)]),
        ("i...j,j...->i...", [(2, 1, 3), (3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
    ],
)
def test_einsum_with_open_axes(equation: str, shapes: list[tuple[int, ...]]) -> None:
    feeds = {name: draw(*shape) for name, shape in zip("ab", shapes, strict=False)}
    check(build([node("Einsum", " ".join(feeds), "y", equation=equation)], feeds, "y", {}), feeds)


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("noop", [0, 1])
def test_reductions_over_an_empty_list_of_axes(operator: str, noop: int) -> None:
    nodes = [node(operator, "x axes", "y", noop_with_empty_axes=noop)]
    check(build(nodes, {"x": draw(2, 3)}, "y", {"axes": np.zeros(0, np.int64)}), {"x": draw(2, 3)}, ["x"])


def test_defaults_that_a_caller_replaces_are_no_constants() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (double[2] x, bool c) => (double[2] y) <bool c = {1}> {
            y = If (c) <then_branch = a () => (double[2] p) { p = Exp(x) },
                        else_branch = b () => (double[2] q) { q = Neg(x) }>
        }"""
    )
    evaluator = ReferenceEvaluator(gradient_model(model, ["x"]), new_ops=operators())
    feeds = {"x": draw(2), "y_grad": np.ones(2)}
    for condition, slope in ((True, np.exp(feeds["x"])), (False, -np.ones(2))):
        (found,) = evaluator.run(["x_grad"], feeds | {"c": np.asarray(condition)})
        np.testing.assert_allclose(found, slope)


def test_slopes_at_zero() -> None:
    """Of x to the 0, and of the root of an empty sum of powers."""
    for nodes, more in (
        ([node("Pow", "x p", "y")], {"p": np.asarray([0.0, 2, 0])}),
        (
            [node("Unsqueeze", "x k", "z"), node("LpPool", "z", "y", kernel_shape=[2])],
            {"k": np.asarray([0, 1])},
        ),
    ):
        x = np.asarray([0.0, 0.0, 0.0])
        training = gradient_model(build(nodes, {"x": x}, "y", more), ["x"])
        evaluator = ReferenceEvaluator(training, new_ops=operators())
        shape = [d.dim_value for d in training.graph.output[0].type.tensor_type.shape.dim]
        np.testing.assert_array_equal(evaluator.run(["x_grad"], {"x": x, "y_grad": np.ones(shape)})[0], 0)


def test_a_decided_branch_with_an_omitted_result() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (double[2] x) => (double[2] y) <bool c = {1}> {
            o, y = If (c) <then_branch = a () => (double[2] p, double[2] r) { p = Exp(x)  r = Mul(p, x) },
                           else_branch = b () => (double[2] q, double[2] s) { q = Neg(x)  s = Neg(q) }>
        }"""
    )
    model.graph.node[0].output[0] = ""
    check(model, {"x": draw(2)}, ["x"])


def test_an_output_whose_gradient_is_asked_for() -> None:
    model = build([node("Exp", "x", "h"), node("Mul", "h h", "y")], {"x": draw(2)}, "y h", {})
    with pytest.raises(ValueError, match="gradient_model: h is an output, expected other names in wrt"):
        gradient_model(model, ["h"])
    gradient_model(model, ["h"], loss="y")


def test_random_numbers_in_a_branch_are_refused() -> None:
    """The gradient would draw others."""
    text = """<ir_version: 8, opset_import: ["": 18]>
        g (float[8] x, bool c) => (float[8] y) <float r = {0.5}, bool t = {MODE}> {
            y = If (c) <then_branch = a () => (float[8] s) { s = Dropout(x, r, t) },
                        else_branch = b () => (float[8] u) { u = Identity(x) }>
        }"""
    with pytest.raises(ValueError, match="Dropout has a place in a branch or body"):
        gradient_model(parser.parse_model(text.replace("MODE", "1")), ["x"])
    gradient_model(parser.parse_model(text.replace("MODE", "0")), ["x"])


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("opset", [16, 18])
def test_half_precision_counts_many_elements(op_type: str, opset: int) -> None:
    """Float16 ends at 65504."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float16[300, 300] x) => (float16 y) {{ y = {op_type} <keepdims = 0> (x) }}"""
    )
    evaluator = ReferenceEvaluator(gradient_model(model, ["x"], "y"), new_ops=operators())
    (grad,) = evaluator.run(["x_grad"], {"x": np.zeros((300, 300), np.float16)})
    np.testing.assert_allclose(grad, np.full((300, 300), 1 / 90000), rtol=1e-2)


def test_older_versions_of_resize() -> None:
    """They place elements at multiples of the scale."""
    model = parser.parse_model(
        """<ir_version: 4, opset_import: ["": 10]>
        g (float[1, 1, 4, 3] x) => (float[1, 1, 2, 3] y) <float[4] s = {1, 1, 0.5, 1}> {
            y = Resize <mode = "nearest"> (x, s)
        }"""
    )
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 4, 3)
    evaluator = ReferenceEvaluator(gradient_model(model, ["x"], "y"), new_ops=operators())
    y, grad = evaluator.run(["y", "x_grad"], {"x": x})
    np.testing.assert_array_equal(y, x[:, :, ::2])
    np.testing.assert_array_equal(grad[0, 0, :, 0], [1, 0, 1, 0])


def test_resize_with_sizes_and_empty_scales() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]>
        g (double[1, 1, 4, 4] x) => (double[1, 1, 8, 8] y) <float[0] e = {}, int64[4] s = {1, 1, 8, 8}> {
            y = Resize <mode = "linear"> (x, e, e, s)
        }"""
    )
    evaluator = ReferenceEvaluator(gradient_model(model, ["x"], "y"), new_ops=operators())
    (grad,) = evaluator.run(["x_grad"], {"x": np.ones((1, 1, 4, 4))})
    np.testing.assert_allclose(grad, np.full((1, 1, 4, 4), 4.0))


def test_einsum_with_a_broadcast_letter() -> None:
    x, z = draw(1), draw(3, seed=1)
    model = build([node("Einsum", "x z", "y", equation="i,i->i")], {"x": x, "z": z}, "y", {})
    training = gradient_model(model, ["x", "z"])
    evaluator = ReferenceEvaluator(training, new_ops=operators())
    dx, dz = evaluator.run(["x_grad", "z_grad"], {"x": x, "z": z, "y_grad": np.ones(3)})
    np.testing.assert_allclose(dx, [z.sum()])
    np.testing.assert_allclose(dz, np.full(3, x[0]))


def test_inputs_that_their_type_cannot_hold() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[2] x, int32 n) => (float[2] y) { a = Cast <to = 1> (n)  y = Mul(a, x) }"""
    )
    with pytest.raises(ValueError, match=r"inputs\['n'\] has values that int32 lacks"):
        gradient_model(model, ["x"], inputs={"n": 3_000_000_000})
    gradient_model(model, ["x"], inputs={"n": 3_000_000})
