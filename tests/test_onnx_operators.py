"""xpgrad's operators in onnx's reference evaluator: beside ONNX Runtime's and onnx's own data."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from math import erf
from typing import Any

import numpy as np
import pytest

import xpgrad
from onnx_cases import DATA, golden, golden_model, model_of, onnx, run, worst

from onnx import helper, load_model_from_string, parser  # isort: skip
from onnx.reference import ReferenceEvaluator  # isort: skip

import xpgrad_onnx
from xpgrad_onnx import operators

RTOL = 1e-5


# --- ONNX Runtime's data ------------------------------------------------------------------------------------


def test_the_golden_cases_are_all_there() -> None:
    assert len(golden("ort_training.npz")) > 80
    assert len(golden("ort_inference.npz")) == 30


@pytest.mark.parametrize("name", golden("ort_training.npz"))
def test_training_kernel(name: str) -> None:
    case = golden("ort_training.npz")[name]
    results = run(golden_model(case, "com.microsoft"), case["in"])
    assert set(results) == set(case["out"])
    for operand, expected in case["out"].items():
        assert worst(results[operand], expected) < RTOL, operand


@pytest.mark.parametrize("name", golden("ort_inference.npz"))
def test_inference_kernel(name: str) -> None:
    case = golden("ort_inference.npz")[name]
    results = run(golden_model(case, ""), case["in"])
    for operand, expected in case["out"].items():
        assert worst(results[operand], expected) < RTOL, operand


@cache
def graphs() -> dict[str, dict[str, Any]]:
    """Graphs by ONNX Runtime's generator and kernels of its own domain, with their inputs and outputs."""
    cases: dict[str, dict[str, Any]] = {}
    with np.load(DATA / "training_graphs.npz") as z:
        for key in z.files:
            name, side, *operand = key.split("/")
            case = cases.setdefault(name, {"in": {}, "out": {}})
            if side == "model":
                case["model"] = load_model_from_string(z[key].tobytes())
            else:
                case[side][operand[0].replace(":", "/") if "onnx::" not in operand[0] else operand[0]] = z[
                    key
                ]
    return cases


@pytest.mark.parametrize("name", [n for n in graphs() if n != "conv2d_relu"])
def test_training_graph(name: str) -> None:
    case = graphs()[name]
    results = run(case["model"], case["in"], names=list(case["out"]))
    for operand, expected in case["out"].items():
        assert worst(results[operand], expected) < RTOL, operand


@pytest.mark.parametrize("exact", [False, True])
def test_training_graph_of_a_convolutional_classifier(exact: bool) -> None:
    with np.load(DATA / "conv2d_relu.npz") as z:
        inputs = {key[3:]: z[key] for key in z.files if key.startswith("in_")}
        outputs = {key[4:]: z[key] for key in z.files if key.startswith("out_")}
    expected = outputs | graphs()["conv2d_relu"]["out"]
    before = {name: array.copy() for name, array in inputs.items()}
    results = run(str(DATA / "conv2d_relu.onnx"), inputs, exact, names=list(expected))
    assert len(expected) == 17
    for name, array in expected.items():
        assert worst(results[name], array) < RTOL, name
    for name, array in before.items():
        assert np.array_equal(inputs[name], array), f"{name} was written to"


# --- onnx's own data ----------------------------------------------------------------------------------------


SLOW_TO_MAKE = ("AveragePool", "LpPool", "MaxPool")
"""Operators whose node tests take seconds to make: onnx's evaluator computes their expected results."""


def node_tests(of_pools: bool = False) -> dict[str, Any]:
    """ONNX's backend tests of the operators that we compute, in floating point, by name."""
    node = importlib.import_module("onnx.backend.test.case.node")
    ours = {(cls.op_domain, cls.__name__) for cls in operators()}
    for _, name in sorted(ours):
        module = {"SoftmaxCrossEntropyLoss": "softmax_cross_entropy_loss"}.get(name, name.lower())
        there = importlib.util.find_spec(f"onnx.backend.test.case.node.{module}")
        if there and (of_pools or name not in SLOW_TO_MAKE):
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
    found = {}
    for case in node._NodeTestCases:
        kinds = {(n.domain, n.op_type) for n in case.model.graph.node}
        results = (getattr(a, "dtype", None) for a in case.data_sets[0][1])  # a sequence has none
        floats = all(dtype in (np.float32, np.float64) for dtype in results)
        is_pool = any(name in SLOW_TO_MAKE for _, name in kinds)
        if kinds <= ours and floats and is_pool == of_pools:
            found[case.name] = case
    return dict(sorted(found.items()))  # in one order in every process that runs a part of the tests


NODE_TESTS = node_tests()


def test_the_node_tests_are_all_there() -> None:
    names = " ".join(NODE_TESTS)
    for operator in ("lstm", "gru", "rnn", "conv", "convtranspose", "selu", "softmax", "sce", "prelu"):
        assert f"test_{operator}_" in names, operator


ROUNDED = {"test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-4}
"""Tests whose expected results have few digits, and their accuracy."""


def check_node(case: Any) -> None:
    """Our operators give the results of a node test."""
    for inputs, expected in case.data_sets:
        names = [i.name for i in case.model.graph.input]
        results = run(case.model, dict(zip(names, inputs, strict=True)))
        for value, (label, actual) in zip(expected, results.items(), strict=True):
            assert worst(actual, value) < ROUNDED.get(case.name, RTOL), (case.name, label)


@pytest.mark.parametrize("name", NODE_TESTS)
def test_node(name: str) -> None:
    check_node(NODE_TESTS[name])


@pytest.mark.exhaustive  # their gradients are compared in test_onnx_backend.py
def test_nodes_of_pools() -> None:
    cases = node_tests(of_pools=True)
    assert len(cases) > 40
    for case in cases.values():
        check_node(case)


KINDS = ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT32", "UINT64"]


def check_as_onnx(model: Any, inputs: dict[str, Any]) -> None:
    """Our operators give onnx's own values, shapes and dtypes, and write to no input."""
    before = {name: array.copy() for name, array in inputs.items()}
    expected = ReferenceEvaluator(model).run(None, inputs)
    for (name, found), value in zip(run(model, inputs).items(), expected, strict=True):
        assert isinstance(found, np.ndarray)
        bound = 1e-6 if value.dtype == np.float32 else 1e-14 if value.dtype == np.float64 else 0.0
        assert worst(found, value) <= bound, name
        assert not any(np.shares_memory(found, array) for array in inputs.values())
    assert all(np.array_equal(array, inputs[name]) for name, array in before.items())


def numbers(kind: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays of small numbers of one of ONNX's types."""
    dtype = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind))
    rng = np.random.default_rng(5)
    return [np.asarray(np.abs(rng.normal(size=shape) * 3 + 4)).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("kind", KINDS)
def test_products_and_sums_are_onnx_own(kind: str) -> None:
    for ta, tb, alpha, beta in [(0, 0, 1.0, 1.0), (1, 0, 0.5, 1.0), (0, 1, 1.0, 0.25), (1, 1, 2.0, 0.0)]:
        attributes = {"transA": ta, "transB": tb, "alpha": alpha, "beta": beta}
        A, B, *rest = numbers(kind, (3, 4), (4, 5), (), (5,), (1, 5), (3, 1), (3, 5))
        a, b = A.T.copy() if ta else A, B.T.copy() if tb else B
        check_as_onnx(model_of("Gemm", ["a", "b"], ["y"], **attributes), {"a": a, "b": b})
        for c in rest:
            check_as_onnx(model_of("Gemm", ["a", "b", "c"], ["y"], **attributes), {"a": a, "b": b, "c": c})
    a, b = numbers(kind, (3, 4), (4, 5))
    check_as_onnx(model_of("Gemm", ["a", "b"], ["y"], opset=6, broadcast=0), {"a": a, "b": b})
    for shapes in [
        ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)),
        ((4,), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 0), (0, 5)),
    ]:  # fmt: skip
        a, b = numbers(kind, *shapes)
        check_as_onnx(model_of("MatMul", ["a", "b"], ["y"]), {"a": a, "b": b})
    arrays = dict(zip("abc", numbers(kind, (3, 4), (4,), (2, 1, 1)), strict=True))
    for names in ("a", "ab", "bca"):
        check_as_onnx(model_of("Sum", [*names], ["y"]), {name: arrays[name] for name in names})


INTEGERS = ("Relu", "PRelu")


@pytest.mark.parametrize(
    ("op_type", "kind"),
    [(name, "INT32") for name in INTEGERS]
    + [(name, "BFLOAT16") for name in (*INTEGERS, "Softmax", "Conv", "Gelu", "HardSwish")],
)
def test_what_kernels_do_not_compute_in_is_left_to_onnx(op_type: str, kind: str) -> None:
    x, other = numbers(kind, (1, 2, 4, 4), {"PRelu": (1,)}.get(op_type, (2, 2, 2, 2)))
    inputs = {"x": x - x.dtype.type(5), **({"w": other} if op_type in ("PRelu", "Conv") else {})}
    check_as_onnx(model_of(op_type, [*inputs], ["y"], opset=22), inputs)


def test_large_products_use_their_memory_again_and_keep_results_apart() -> None:
    a, b = numbers("FLOAT", (1030, 3), (3, 1040))
    evaluator = ReferenceEvaluator(model_of("MatMul", ["a", "b"], ["y"]), new_ops=operators())
    first, second = (evaluator.run(None, {"a": a * factor, "b": b})[0] for factor in (1, 2))
    assert np.array_equal(2 * first, second)
    place = first.ctypes.data
    del first
    assert evaluator.run(None, {"a": a, "b": b})[0].ctypes.data == place


def test_products_of_contradicting_sizes() -> None:
    a, b = numbers("FLOAT", (2, 3), (4, 5))
    with pytest.raises(ValueError, match="Gemm: A has 3 columns, expected as many as B has rows, 4"):
        run(model_of("Gemm", ["a", "b"], ["y"]), {"a": a, "b": b})


@pytest.mark.parametrize("kind", KINDS)
def test_powers_and_erf_are_onnx_own(kind: str) -> None:
    x, whole = numbers(kind, (2, 3), (2, 3))
    for exponent in ([[2.0]], 0.5, [3], -1.0, whole, [[[2.0]]]):
        if x.dtype.kind in "iu" and np.ndim(exponent) < 2:  # no integers
            continue
        power = np.asarray(exponent).astype(x.dtype)
        check_as_onnx(model_of("Pow", ["x", "e"], ["y"], opset=15), {"x": x, "e": power})
    if kind in ("FLOAT", "DOUBLE", "FLOAT16"):
        tiny = np.asarray([0.0, -0.0, 1e-30, -1e-7, 1e-3, 0.3, -5.0, 12.0, np.inf, -np.inf, np.nan])
        # in float32 it is computed in blocks
        values = np.concatenate([tiny, np.linspace(-4, 4, 20_001)]).astype(x.dtype)
        (y,) = run(model_of("Erf", ["x"], ["y"]), {"x": values}).values()
        bound = {"FLOAT": 3e-7, "DOUBLE": 1e-15, "FLOAT16": 0.0}[kind]
        expected = np.asarray([erf(value) for value in values], dtype=x.dtype)
        assert np.allclose(y, expected, rtol=bound, atol=0, equal_nan=True)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16", "INT32"])
def test_scattering_is_onnx_own(kind: str, reduction: str) -> None:
    """With equal places, of which the last one counts, and negative ones."""
    data, updates = numbers(kind, (4, 5, 3), (2, 4, 3))
    for axis in (0, 1, -1):
        places = np.random.default_rng(7).integers(-3, 3, size=updates.shape)
        model = model_of("ScatterElements", ["d", "i", "u"], ["y"], opset=18, axis=axis, reduction=reduction)
        check_as_onnx(model, {"d": data, "i": places, "u": updates})
    row, more = numbers(kind, (6,), (9,))
    places = np.random.default_rng(8).integers(0, 6, size=9)
    model = model_of("ScatterElements", ["d", "i", "u"], ["y"], opset=18, reduction=reduction)
    check_as_onnx(model, {"d": row, "i": places, "u": more})
    for depth in (1, 2, 3):
        (parts,) = numbers(kind, (2, 3, *data.shape[depth:]))
        places = np.random.default_rng(9).integers(-2, 2, size=(2, 3, depth))
        model = model_of("ScatterND", ["d", "i", "u"], ["y"], opset=18, reduction=reduction)
        check_as_onnx(model, {"d": data, "i": places, "u": parts})


POOLS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_shape": [2, 3]},
    "pads": {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 1]},
    "dilations": {"kernel_shape": [2, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]},
    "same": {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "same, lower": {"kernel_shape": [4, 2], "strides": [1, 2], "auto_pad": "SAME_LOWER"},
    "valid": {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "VALID"},
    "whole windows": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 0, 0], "ceil_mode": 1},
    "elements": {"kernel_shape": [1, 1]},
    "a line": {"kernel_shape": [3], "strides": [2], "pads": [1, 1]},
    "a volume": {"kernel_shape": [2, 2, 3], "strides": [2, 1, 1], "pads": [0, 1, 1, 1, 0, 1]},
}


ONNX_IS_WRONG = {("MaxPool", "same, lower"), ("LpPool", "whole windows")}


def pools(name: str, kind: str) -> Iterator[tuple[str, Any, np.ndarray]]:
    """An operator, a model and its input for each kind of pooling."""
    attributes = POOLS[name]
    (x,) = numbers(kind, (2, 3, 7, 6, 4)[: 2 + len(attributes["kernel_shape"])])
    for op_type, opset, more in [
        ("MaxPool", 12, {}), ("AveragePool", 19, {"count_include_pad": 0}),
        ("AveragePool", 19, {"count_include_pad": 1}), ("LpPool", 18, {"p": 3}),
    ]:  # fmt: skip
        yield op_type, model_of(op_type, ["x"], ["y"], opset=opset, **attributes, **more), x


@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_onnx_own(name: str) -> None:
    for kind in ("FLOAT", "DOUBLE", "FLOAT16") if name == "pads" else ("FLOAT",):
        for op_type, model, x in pools(name, kind):
            if (op_type, name) not in ONNX_IS_WRONG:
                check_as_onnx(model, {"x": x})
    for kind in ("UINT8", "BFLOAT16"):
        _, model, x = next(pools(name, kind))
        y = run(model, {"x": x})["y"]
        assert y.dtype == x.dtype
        assert np.array_equal(y.astype(np.float32), run(model, {"x": x.astype(np.float32)})["y"])


@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_onnx_runtimes(name: str) -> None:
    library = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra long has it")
    for op_type, model, x in pools(name, "FLOAT"):
        del model.opset_import[1:]
        model.ir_version = 9
        (expected,) = library.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        assert worst(run(model, {"x": x})["y"], expected) < 1e-6, op_type


def test_averages_of_whole_windows_that_end_far_behind() -> None:
    """The second window begins at 3 and ends two places behind the input; onnx's own begins one before."""
    x = np.arange(4.0)[None, None]
    attributes = {"kernel_shape": [3], "strides": [3], "ceil_mode": 1}
    for padding in (0, 1):
        model = model_of("AveragePool", ["x"], ["y"], opset=19, count_include_pad=padding, **attributes)
        assert run(model, {"x": x})["y"].tolist() == [[[1.0, 3.0]]]


def test_what_onnx_own_evaluator_limits() -> None:
    """Along 65 elements GatherElements, GlobalMaxPool with one spatial axis, what a Loop scans."""
    x = np.random.default_rng(0).normal(size=(2, 65, 3))
    places = np.random.default_rng(1).integers(0, 65, size=(2, 80, 3))
    gathered = run(model_of("GatherElements", ["x", "i"], ["y"], axis=1), {"x": x, "i": places})["y"]
    assert np.array_equal(gathered, np.take_along_axis(x, places, 1))
    pooled = run(model_of("GlobalMaxPool", ["x"], ["y"]), {"x": x})["y"]
    assert np.array_equal(pooled, x.max(axis=2, keepdims=True))
    body = parser.parse_graph("""
        step (int64 k, bool going) => (bool on, double[2, 2] matrix, int64 number) {
            on = Identity(going)  number = Add(k, k)
            matrix = Constant<value = double[2, 2] {1, 2, 3, 4}>() }""")
    loop = model_of("Loop", ["count", "yes"], ["matrices", "numbers"], body=body)
    scanned = run(loop, {"count": np.asarray(3), "yes": np.asarray(True)})
    assert scanned["matrices"].shape == (3, 2, 2)
    assert scanned["numbers"].tolist() == [0, 2, 4]


@pytest.mark.parametrize("strides", [[1, 1, 1], [2, 1, 2]])
def test_places_of_maxima_with_three_spatial_axes(strides: list[int]) -> None:
    x = np.random.default_rng(2).normal(size=(2, 3, 4, 5, 4))
    attributes = {"kernel_shape": [2, 3, 2], "strides": strides, "pads": [1, 0, 0, 0, 1, 1]}
    found = run(model_of("MaxPool", ["x"], ["y", "places"], **attributes), {"x": x})
    assert np.array_equal(np.take(x, found["places"]), found["y"])
    alone = run(model_of("MaxPool", ["x"], ["y"], **attributes), {"x": x})
    assert np.array_equal(alone["y"], found["y"])


# --- what ONNX Runtime does, and what is true ---------------------------------------------------------------


def test_exact_gradients_of_peepholes_are_the_true_ones() -> None:
    case = golden("ort_training.npz")["lstm1-peep-grad"]
    P = golden("ort_training.npz")["lstm1-peep-fwd"]["in"]["P"]
    B = golden("ort_training.npz")["lstm1-peep-fwd"]["in"]["B"]
    given = {**case, "in": {**case["in"], "P": P, "B": B}}
    results = run(golden_model(given, "com.microsoft"), given["in"], exact=True)
    ins = case["in"]
    expected = xpgrad.lstm_grad(
        ins["X"], ins["W"], ins["R"], H_all=ins["HAll"], C_all=ins["CAll"], iofc=ins["IOFC"], P=P, B=B,
        grad_H_all=ins["grad_HAll"], grad_H_t=ins["grad_Ht"], grad_C_t=ins["grad_Ct"], initial_h=ins["H0"],
        initial_c=ins["C0"],
    )  # fmt: skip
    assert worst(results["dW"], expected.dW) < 1e-7
    assert worst(results["dP"], expected.dP) < 1e-7
    assert worst(results["dW"], case["out"]["dW"]) > 1e-2
    truncated = run(golden_model(given, "com.microsoft"), given["in"])
    assert worst(truncated["dW"], case["out"]["dW"]) < RTOL


def test_exact_gradients_ask_for_the_peepholes() -> None:
    case = golden("ort_training.npz")["lstm1-peep-grad"]
    with pytest.raises(ValueError, match="LSTMGrad: P is missing, expected an array as input 12"):
        run(golden_model(case, "com.microsoft"), case["in"], exact=True)


def test_auto_pad_is_honoured_or_refused() -> None:
    rng = np.random.default_rng(0)
    X, W, dY = (rng.normal(size=s).astype(np.float32) for s in [(1, 2, 5, 5), (3, 2, 3, 3), (1, 3, 5, 5)])
    model = model_of("ConvGrad", ["dY", "X", "W"], ["dX", "dW", "dB"], "com.microsoft", auto_pad="SAME_UPPER")
    inputs = {"dY": dY, "X": X, "W": W}
    results = run(model, inputs, exact=True)
    expected = xpgrad.conv_grad(dY, X, W, pads=1)
    assert worst(results["dX"], expected.dX) < 1e-6
    assert worst(results["dW"], expected.dW) < 1e-6
    with pytest.raises(ValueError, match="ConvGrad: auto_pad is 'SAME_UPPER', which ONNX Runtime ignores"):
        run(model, inputs)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_LOWER"])
def test_an_output_shape_takes_the_place_of_pads(auto_pad: str) -> None:
    """ONNX ignores pads where an output_shape is given."""
    rng = np.random.default_rng(0)
    X, W = (rng.normal(size=shape).astype(np.float32) for shape in [(1, 2, 3, 3), (2, 3, 3, 3)])
    attributes = {"output_shape": [8, 6], "strides": [2, 2], "auto_pad": auto_pad}
    alone, beside_pads = (
        run(model_of("ConvTranspose", ["X", "W"], ["Y"], **attributes, **pads), {"X": X, "W": W})["Y"]
        for pads in ({}, {"pads": [1, 0, 0, 1]})
    )
    assert alone.shape == (1, 3, 8, 6)
    assert np.array_equal(beside_pads, alone)


# --- nodes that leave out operands --------------------------------------------------------------------------


def test_an_output_that_nobody_named_is_no_input_of_another_node() -> None:
    """onnx's evaluator keeps it under the name "", and looks up there what a later node was not given."""
    rng = np.random.default_rng(0)
    draw = {"dY": (2, 3, 4), "X": (2, 2, 5), "W": (3, 2, 2), "x": (4, 2, 3), "w": (1, 8, 3), "r": (1, 8, 2)}
    inputs = {name: rng.normal(size=shape).astype(np.float32) for name, shape in draw.items()}
    lower = np.asarray(0.25, dtype=np.float32)
    nodes = [
        helper.make_node("ConvGrad", ["dY", "X", "W"], ["", "dW"], domain="com.microsoft"),
        helper.make_node("LSTM", ["x", "w", "r", "", "", ""], ["", "", "c"]),
        helper.make_node("Clip", ["c", "", "lower"], ["clipped"]),
    ]
    values = [
        [helper.make_tensor_value_info(name, 1, None) for name in names]
        for names in ([*inputs, "lower"], ["dW", "c", "clipped"])
    ]
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", *values), opset_imports=opsets)
    results = run(model, inputs | {"lower": lower})
    expected = xpgrad.lstm(inputs["x"], inputs["w"], inputs["r"])
    assert np.array_equal(results["c"], expected.C_t)
    assert np.array_equal(results["clipped"], np.minimum(expected.C_t, lower))
    assert np.array_equal(results["dW"], xpgrad.conv_grad(inputs["dY"], inputs["X"], inputs["W"]).dW)


def test_lengths_and_padding_in_onnx_own_operators() -> None:
    """onnx's LSTM ignores the lengths; NaN in the padding would be everywhere then."""
    rng = np.random.default_rng(1)
    X, W, R = (rng.normal(size=s).astype(np.float32) for s in [(5, 3, 2), (2, 12, 2), (2, 12, 4)])
    lengths = np.asarray([5, 0, 3], dtype=np.int32)
    X[3:, 2] = X[:, 1] = np.nan
    inputs = {"X": X, "W": W, "R": R, "lengths": lengths}
    names = ["X", "W", "R", "", "lengths"]
    model = model_of("GRU", names, ["Y", "Y_h"], direction="bidirectional", hidden_size=4)
    results = run(model, inputs)
    expected = xpgrad.gru(X, W, R, sequence_lens=lengths, direction="bidirectional")
    assert np.isfinite(results["Y"]).all()
    assert np.array_equal(results["Y"], expected.H_all)
    assert np.array_equal(results["Y_h"], expected.H_t)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("rank", [1, 2])
def test_indices_of_max_pool_with_unit_strides(auto_pad: str, rank: int) -> None:
    X = np.random.default_rng(0).normal(size=(2, 3, 6, 5)[: 2 + rank]).astype(np.float32)
    attributes: dict[str, Any] = {"kernel_shape": [2, 3][:rank], "auto_pad": auto_pad, "opset": 12}
    results = run(model_of("MaxPool", ["X"], ["Y", "places"], **attributes), {"X": X})
    plain = run(model_of("MaxPool", ["X"], ["Y"], **attributes), {"X": X}) if rank == 2 else results
    assert np.array_equal(results["Y"], plain["Y"])
    assert np.array_equal(X.reshape(-1)[results["places"]], results["Y"])


def test_the_same_evaluator_runs_again() -> None:
    case = golden("ort_training.npz")["lstm1-ghall-grad"]
    evaluator = ReferenceEvaluator(golden_model(case, "com.microsoft"), new_ops=operators())
    first, second, third = (evaluator.run(None, case["in"]) for _ in range(3))
    for a, b, c in zip(first, second, third, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


def test_float64_stays_float64() -> None:
    case = golden("ort_training.npz")["gru4-lbr1-grad"]
    given = {name: array.astype(np.float64) for name, array in case["in"].items()}
    results = run(golden_model(case, "com.microsoft"), given)
    for name, array in case["out"].items():
        assert results[name].dtype == np.float64
        assert worst(results[name].astype(np.float32), array) < RTOL


def test_gradients_of_softmax_flatten_or_do_not() -> None:
    """ONNX Runtime's data have no case in which that makes a difference."""
    rng = np.random.default_rng(0)
    dY, X = rng.normal(size=(2, 2, 3, 4))
    for version, axes in (("", (1, 2)), ("_13", (1,))):
        e = np.exp(X)
        Y = e / e.sum(axes, keepdims=True)
        names = ["dY", "Y"], ["dX"], "com.microsoft"
        plain = run(model_of(f"SoftmaxGrad{version}", *names, axis=1), {"dY": dY, "Y": Y})["dX"]
        assert worst(plain, Y * (dY - (dY * Y).sum(axes, keepdims=True))) < 1e-12
        log = run(model_of(f"LogSoftmaxGrad{version}", *names, axis=1), {"dY": dY, "Y": np.log(Y)})["dX"]
        assert worst(log, dY - Y * dY.sum(axes, keepdims=True)) < 1e-12


def test_softmax_before_opset_13_flattens() -> None:
    X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    old = run(model_of("Softmax", ["X"], ["Y"], opset=11), {"X": X})["Y"]
    new = run(model_of("Softmax", ["X"], ["Y"], opset=13), {"X": X})["Y"]
    assert np.allclose(old.reshape(2, -1).sum(1), 1)
    assert np.allclose(new.sum(-1), 1)


# --- bad input ----------------------------------------------------------------------------------------------


def test_what_is_missing_or_too_much_is_named() -> None:
    x = np.ones((2, 3), dtype=np.float32)
    with pytest.raises(ValueError, match="SigmoidGrad: Y is missing, expected an array"):
        run(model_of("SigmoidGrad", ["dY"], ["dX"], "com.microsoft"), {"dY": x})
    with pytest.raises(ValueError, match="TanhGrad: the node has 3 inputs, expected at most 2: dY, Y"):
        run(model_of("TanhGrad", ["a", "b", "c"], ["dX"], "com.microsoft"), {"a": x, "b": x, "c": x})
    with pytest.raises(ValueError, match="ReluGrad: the node has 2 outputs, expected at most 1: dX"):
        run(model_of("ReluGrad", ["a", "b"], ["y", "z"], "com.microsoft"), {"a": x, "b": x})
    with pytest.raises(ValueError, match="ReluGrad: attribute 'alpha' is unknown, expected one of none"):
        run(model_of("ReluGrad", ["a", "b"], ["y"], "com.microsoft", alpha=1.0), {"a": x, "b": x})


def test_sizes_that_contradict_the_operands_are_refused() -> None:
    X, W, R = (np.ones(s, dtype=np.float32) for s in [(3, 2, 4), (1, 20, 4), (1, 20, 5)])
    with pytest.raises(ValueError, match="LSTM: hidden_size is 7, expected R's last size, 5"):
        run(model_of("LSTM", ["X", "W", "R"], ["Y"], hidden_size=7), {"X": X, "W": W, "R": R})
    with pytest.raises(ValueError, match=r"Conv: kernel_shape is \(3,\), expected W's spatial sizes, \(4,\)"):
        run(model_of("Conv", ["X", "R"], ["Y"], kernel_shape=[3]), {"X": X, "R": np.ones((1, 2, 4), "f4")})


def test_exact_is_a_bool() -> None:
    with pytest.raises(TypeError, match="operators: exact is a str, expected a bool"):
        operators("yes")  # type: ignore[arg-type]


def test_every_operator_is_there_once() -> None:
    keys = [(cls.op_domain, cls.__name__) for cls in operators()]
    assert len(set(keys)) == len(keys)
    assert {domain for domain, _ in keys} == {"", "com.microsoft", xpgrad_onnx.DOMAIN}


def test_docstrings() -> None:
    import doctest

    module = importlib.import_module("xpgrad_onnx._operators")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_max_pool_of_windows_without_a_finite_number() -> None:
    """Padding is as low; its places are no indices."""
    pool = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[1, 1, 4] x) => (float[1, 1, 4] y, int64[1, 1, 4] i)
        { y, i = MaxPool <kernel_shape = [3], pads = [1, 1]> (x) }"""
    )
    x = np.asarray([[[-np.inf, -np.inf, 1, 2]]], np.float32)
    y, indices = ReferenceEvaluator(pool, new_ops=operators()).run(None, {"x": x})
    np.testing.assert_array_equal(y, [[[-np.inf, 1, 2, 2]]])
    np.testing.assert_array_equal(indices, [[[0, 2, 3, 3]]])


LOOP = """<ir_version: 8, opset_import: ["": 18]>
    g (float[2] x, int64 n) => (float[2] y, float[k, 2] z) <bool t = {1}> {
        y, z = Loop (n, CONDITION, x) <body = b (int64 i, bool c, float[2] s)
            => (bool co, float[2] so, float[2] so) { so = Tanh(s)  co = Identity(c) }>
    }"""


@pytest.mark.parametrize("condition", ["t", ""])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_loops_of_results_of_one_name_and_of_no_step(condition: str, steps: int) -> None:
    model = onnx.parser.parse_model(LOOP.replace("CONDITION", condition))
    x = np.asarray([1.0, -2], np.float32)
    y, z = ReferenceEvaluator(model, new_ops=operators()).run(None, {"x": x, "n": np.asarray(steps)})
    rows = [x := np.tanh(x) for _ in range(steps)]
    np.testing.assert_allclose(y, x, rtol=1e-6)
    np.testing.assert_allclose(z, np.reshape(rows, (steps, 2)), rtol=1e-6)
    assert z.dtype == np.float32
