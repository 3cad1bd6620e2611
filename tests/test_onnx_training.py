"""`training_model`: optimizers beside PyTorch's, curves of losses beside NumPy's, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onnx_cases import onnx, worst  # isort: skip

from onnx import numpy_helper, parser  # isort: skip
from onnx.reference import ReferenceEvaluator  # isort: skip

import xpgrad
from xpgrad._operators.optimizer_formulas import OPTIMIZERS
from xpgrad_onnx import (
    constant_model,
    gradient_model,
    initial_values,
    operators,
    training_model,
    with_parameters,
)


@pytest.fixture(autouse=True)
def nothing_to_compile() -> Iterator[None]:
    with xpgrad.use_engine("standard"):
        yield


def parsed(text: str) -> Any:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{text}')


def evaluated(model: Any) -> Any:
    """A function from names and feeds to results, by onnx's evaluator alone."""
    return ReferenceEvaluator(model).run


def on_runtime(model: Any) -> Any:
    library = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra long has it")
    library.set_default_logger_severity(3)
    return library.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run


def trained(run: Any, values: dict[str, Any], feeds: Any) -> tuple[list[float], dict[str, Any]]:
    """The losses, and the values after the last step."""
    losses = []
    for feed in feeds:
        loss, *new = run(None, feed | values)
        losses.append(float(loss))
        values = dict(zip(values, new, strict=True))
    return losses, values


NUMBERS = {
    "sgd": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.8, "weight_decay": 0.1},
    "adamw": {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-3, "weight_decay": 0.1},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("given", [True, False])
def test_optimizers_are_pytorchs(optimizer: str, given: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its optimizers are the reference")
    numbers = NUMBERS[optimizer] if given else {}
    options = {{"momentum": "momentum", "epsilon": "eps"}.get(name, name): n for name, n in numbers.items()}
    if "beta1" in options:
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    if optimizer == "momentum":
        options = {"momentum": 0.9} | options
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(3, 2)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    model = parsed("g (float[n, 3] x) => (float[n, 2] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    training = training_model(model, "mse", optimizer=optimizer, **numbers)
    onnx.checker.check_model(training, full_check=True)
    assert "Identity" not in {node.op_type for node in training.graph.node}  # it would copy all parameters
    parameter = torch.tensor(w, requires_grad=True)
    kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    theirs = kind([parameter], lr=0.25, **options)
    run, values = evaluated(training), initial_values(model, training)
    kept = {"sgd": ["w"], "momentum": ["w", "w_velocity"], "adamw": ["w", "w_mean", "w_square", "step"]}
    assert list(values) == kept[optimizer]
    for step in range(6):
        target = rng.normal(size=(5, 2)).astype(np.float32)
        rate = 0.25 if step < 3 else 0.05
        theirs.param_groups[0]["lr"] = rate
        theirs.zero_grad()
        expected = torch.nn.functional.mse_loss(torch.tensor(x) @ parameter, torch.tensor(target))
        expected.backward()
        theirs.step()
        feed = {"x": x, "target": target, "learning_rate": np.asarray(rate, np.float32)}
        (loss,), values = trained(run, values, [feed])
        assert abs(loss - float(expected.detach())) < 1e-5
        assert worst(values["w"], parameter.detach().numpy()) < 1e-5


def classifier() -> tuple[Any, list[dict[str, Any]]]:
    """A GRU that tells which of two sequences was given, and 200 batches of several sizes."""
    rng = np.random.default_rng(0)
    model = parsed(
        """g (float[time, batch, 2] x) => (float[batch, 2] scores) <int64[1] first = {0}> {
            ignored, h = GRU<hidden_size = 6, linear_before_reset = 1>(x, W, R, B)
            s = Squeeze(h, first)
            scores = Gemm(s, V, v)
        }"""
    )
    shapes = {"W": (1, 18, 2), "R": (1, 18, 6), "B": (1, 36), "V": (6, 2), "v": (2,)}
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.uniform(-0.4, 0.4, size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    )
    feeds = []
    for _ in range(200):
        T, N = int(rng.integers(4, 9)), int(rng.integers(2, 6))
        labels = rng.integers(2, size=N)
        time = np.arange(T)[:, None] * (1 + labels) + rng.uniform(0, 6, size=N)
        x = np.stack([np.sin(time), np.cos(time)], axis=-1).astype(np.float32)
        feeds.append({"x": x, "labels": labels, "learning_rate": np.asarray(0.02, np.float32)})
    return model, feeds


def by_hand(model: Any, feeds: list[dict[str, Any]]) -> list[float]:
    """The losses of NumPy: our operators for the gradients, and the optimizer's formula."""
    graph = gradient_model(model, loss="cross_entropy")
    evaluator = ReferenceEvaluator(graph, new_ops=operators())
    names = ["W", "R", "B", "V", "v"]
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in names}
    kept = {name: (np.zeros_like(values[name]), np.zeros_like(values[name])) for name in names}
    adamw, losses = OPTIMIZERS["adamw"], []
    for number, feed in enumerate(feeds, start=1):
        batch = {name: feed[name] for name in ("x", "labels")}
        loss, *grads = evaluator.run(["loss", *(f"{name}_grad" for name in names)], batch | values)
        losses.append(float(loss))
        for name, grad in zip(names, grads, strict=True):
            step, rate = np.asarray(float(number)), feed["learning_rate"]
            values[name], *kept[name] = adamw.step(
                np, values[name], grad, rate, step, *kept[name], **adamw.numbers
            )
    return losses


@pytest.mark.parametrize("standard", [True, False])
def test_two_hundred_steps_are_numpys(standard: bool) -> None:
    model, feeds = classifier()
    expected = by_hand(model, feeds)
    assert np.mean(expected[-20:]) < 0.2 * np.mean(expected[:20])
    training = training_model(model, "cross_entropy", optimizer="adamw", standard=standard)
    onnx.checker.check_model(training, full_check=standard)
    values = initial_values(model, training)
    runs = [on_runtime(training)] if standard else [ReferenceEvaluator(training, new_ops=operators()).run]
    for run in runs:
        losses, last = trained(run, values, feeds)
        np.testing.assert_allclose(losses, expected, rtol=1e-3, atol=1e-4)
    # the model that one began with answers as the trained one
    names = {tensor.name for tensor in model.graph.initializer}
    done = with_parameters(model, {name: value for name, value in last.items() if name in names})
    run = ReferenceEvaluator(done, new_ops=operators()).run
    right = [run(None, {"x": feed["x"]})[0].argmax(1) == feed["labels"] for feed in feeds[-20:]]
    assert np.mean(np.concatenate(right)) > 0.9


def test_values_as_a_model() -> None:
    values = {"w": np.ones((2, 3), dtype=np.float32), "step": np.asarray(3)}
    model = constant_model(values)
    onnx.checker.check_model(model, full_check=True)
    for result, value in zip(evaluated(model)(None, {}), values.values(), strict=True):
        np.testing.assert_array_equal(result, value)


def test_a_loss_that_the_model_has() -> None:
    """Its elements are summed; what is no parameter stays as it is."""
    model = parsed(
        """g (float[n] x) => (float[n] y) <float[1] w = {2}, float[1] frozen = {3}> {
            p = Mul(x, w)  q = Mul(p, frozen)  y = Mul(q, q) }"""
    )
    training = training_model(model, "y", wrt=["w"])
    assert [value.name for value in training.graph.input] == ["x", "w", "learning_rate"]
    assert [value.name for value in training.graph.output] == ["loss", "w_new"]
    feed = {"x": np.asarray([1.0, 2.0], np.float32), "learning_rate": np.asarray(0.01, np.float32)}
    (loss,), values = trained(evaluated(training), initial_values(model, training), [feed])
    assert loss == 5 * 36
    assert values["w"][0] == pytest.approx(2 - 0.01 * 5 * 2 * 2 * 9)


def test_parameters_go_back_into_the_file() -> None:
    model = parsed(
        """g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> {
            c = Constant<value = float[2] {1, 2}>()  p = Mul(w, x)  y = Add(p, c) }"""
    )
    before = model.SerializeToString()
    new = with_parameters(model, {"w": np.asarray([5, 6], np.float32), "c": np.asarray([0, 1], np.float32)})
    assert model.SerializeToString() == before
    np.testing.assert_array_equal(evaluated(new)(None, {"x": np.ones(2, np.float32)})[0], [5, 7])
    assert [node.op_type for node in new.graph.node] == [node.op_type for node in model.graph.node]


SMALL = "g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { p = Mul(w, x)  y = Mul(p, p) }"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adam"}, r"optimizer is 'adam', expected one of 'sgd', 'momentum', 'adamw'"),
        ({"momentum": 0.5}, r"momentum is no number of sgd, expected one of weight_decay"),
        ({"optimizer": "adamw", "beta1": 1.0}, r"beta1 is 1.0, expected at least 0 and less than 1"),
        ({"weight_decay": -1}, r"weight_decay is -1.0, expected a finite number of at least 0"),
        ({"wrt": ["x"]}, r"wrt has 'x', expected parameters"),
        ({"standard": 2}, r""),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"(training|gradient)_model: {message}"):
        training_model(parsed(SMALL), "y", **options)


def test_names_that_are_taken() -> None:
    model = parsed(SMALL.replace("p", "learning_rate"))
    with pytest.raises(ValueError, match=r"training_model: the model has a tensor 'learning_rate', expected"):
        training_model(model, "y")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"v": np.ones(2, np.float32)}, r"values has 'v', expected names of tensors, as w"),
        ({"w": np.ones(3, np.float32)}, r"w is float32 of shape \(3,\), expected float32 of shape \(2,\)"),
        ({"w": np.ones(2)}, r"w is float64 of shape \(2,\), expected float32"),
    ],
)
def test_bad_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"with_parameters: {message}"):
        with_parameters(parsed(SMALL), values)


def test_bad_types() -> None:
    model: Any = parsed(SMALL)
    names: Any = "model"
    for call, message in (
        (lambda: with_parameters(names, {}), "with_parameters: model is a str"),
        (lambda: with_parameters(model, names), "with_parameters: values is a str, expected a mapping"),
        (lambda: constant_model(names), "constant_model: values is a str, expected a mapping"),
        (lambda: initial_values(names, model), "initial_values: model is a str"),
        (lambda: initial_values(model, names), "initial_values: training is a str"),
        (lambda: training_model(model, None), "training_model: loss is None, expected a str"),
        (lambda: training_model(model, "y", inputs=names), "gradient_model: inputs is a str, expected a map"),
        (lambda: training_model(model, "y", wrt=5), "gradient_model: wrt is the int 5, expected"),
        (lambda: training_model(model, "y", wrt=[5]), "gradient_model: wrt has 5, expected names"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(ValueError, match="initial_values: training has the outputs none after the first"):
        initial_values(model, model)
    with pytest.raises(TypeError, match="training_model: weight_decay is 'much'"):
        training_model(parsed(SMALL), "y", weight_decay="much")
    other = parsed(SMALL.replace("w", "v"))
    with pytest.raises(ValueError, match="initial_values: model has no parameter 'w', expected"):
        initial_values(other, training_model(parsed(SMALL), "y"))


def test_docstring() -> None:
    import doctest
    import importlib

    module = importlib.import_module("xpgrad_onnx._training")
    assert doctest.testmod(module).failed == 0


def test_values_go_by_their_place_and_not_by_their_names() -> None:
    """Constants of the model are called as the optimizer's arrays, or as if they were."""
    text = """<ir_version: 10, opset_import: ["": 22]>
    g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> {
        step = Constant <value = int64 {5}> ()  w_mean = Constant <value = float[2] {7, 7}> ()  y = Mul(x, w)
    }"""
    model = onnx.parser.parse_model(text)
    values = initial_values(model, training_model(model, "mse", optimizer="adamw"))
    assert [*values] == ["w", "w_mean", "w_square", "step"]
    assert values["step"] == 0
    np.testing.assert_array_equal(values["w_mean"], [0, 0])
    model = onnx.parser.parse_model(
        text.replace("y = Mul(x, w)", "y = Mul(x, w_velocity)").replace(
            "float[2] w =", "float[2] w_velocity ="
        )
    )
    training = training_model(model, "mse")
    np.testing.assert_array_equal(initial_values(model, training)["w_velocity"], [1, 2])
    model.graph.initializer[0].name = "other"
    with pytest.raises(ValueError, match="model has no parameter 'w_velocity'"):
        initial_values(model, training)


def test_a_constant_of_a_list_is_a_parameter() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[n, 2] x) => (float[n, 2] y) {
            b = Constant <value_floats = [1.0, 2.0]> ()  y = Mul(x, b)
        }"""
    )
    np.testing.assert_array_equal(initial_values(model, training_model(model, "mse"))["b"], [1, 2])
    changed = with_parameters(model, {"b": np.asarray([3, 4], np.float32)})
    (y,) = onnx.reference.ReferenceEvaluator(changed).run(None, {"x": np.ones((1, 2), np.float32)})
    np.testing.assert_array_equal(y, [[3, 4]])
