"""Gradients as operation objects: each against PyTorch's cells, alone, printed and validated."""

import inspect

import numpy as np
import pytest

from xpgrad import GradGRUCellInputOp, GradLSTMCellInputOp, convert, engine, gru_cell, lstm_cell

N, I, H = 4, 3, 5
SHAPES = {
    "input": (N, I), "h_prev": (N, H), "c_prev": (N, H), "W_ih": (None, I), "W_hh": (None, H),
    "bias": (None,), "b_ih": (None,), "b_hh": (None,),
}  # fmt: skip
OPERATIONS = [GradLSTMCellInputOp, GradGRUCellInputOp]
CASES = [(kind, index) for kind in OPERATIONS for index in range(6)]


def make(kind, index, **changes):
    shape = tuple(kind.gates * H if size is None else size for size in SHAPES[kind.inputs[index]])
    fields = {
        "hidden_size": H, "input_index": index, "output_id": 9, "input_ids": (4, 5), "output_type": "Float64",
        "output_shape": shape,
    }  # fmt: skip
    return kind(**(fields | changes))


@pytest.fixture(scope="module")
def steps():
    """One step of PyTorch's cells: what an operation takes, and every gradient by autograd."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    found = {}
    for kind in OPERATIONS:
        lstm = kind is GradLSTMCellInputOp
        cell = (torch.nn.LSTMCell if lstm else torch.nn.GRUCell)(I, H).double()
        x, h, c = (torch.randn(N, size, dtype=torch.float64, requires_grad=True) for size in (I, H, H))
        grad_h, grad_c = torch.randn(2, N, H, dtype=torch.float64)
        W_ih, W_hh, b_ih, b_hh = cell.parameters()
        if lstm:
            outputs = cell(x, (h, c))
            inputs = [x, h, c, W_ih, W_hh, b_ih]
            gradients = torch.autograd.grad(outputs, inputs, [grad_h, grad_c])
        else:
            inputs = [x, h, W_ih, W_hh, b_ih, b_hh]
            gradients = torch.autograd.grad(cell(x, h), inputs, grad_h)

        def numpy(*tensors):
            return [tensor.detach().numpy() for tensor in tensors]

        x, h, c, W_ih, W_hh, b_ih, b_hh, grad_h, grad_c = numpy(
            x, h, c, W_ih, W_hh, b_ih, b_hh, grad_h, grad_c
        )
        torch_weights = {"weight_ih": W_ih, "weight_hh": W_hh, "bias_ih": b_ih, "bias_hh": b_hh}
        onnx = convert(kind.operator, torch_weights, "torch", "onnx")
        if lstm:
            step = lstm_cell(x, h, c, onnx["W"], onnx["R"], onnx["B"])
            ifgo = convert("lstm", {"W": step.iofc.T}, "onnx", "torch")["weight_ih"].T
            arguments = (grad_h, grad_c, x, h, c, W_ih, W_hh), {"c_next": step.C_next, "ifgo": ifgo}
        else:
            step = gru_cell(x, h, onnx["W"], onnx["R"], onnx["B"], linear_before_reset=1)
            rzn = convert("gru", {"W": step.zrh.T}, "onnx", "torch")["weight_ih"].T
            arguments = (grad_h, x, h, W_ih, W_hh, b_ih, b_hh), {"rzn": rzn}
        found[kind] = arguments, numpy(*gradients)
    return found


@pytest.mark.parametrize(("kind", "index"), CASES)
def test_gradient(kind, index, steps):
    (positional, named), gradients = steps[kind]
    operation = make(kind, index)
    assert operation.validate(), str(operation.validate())
    before = [array.copy() for array in (*positional, *named.values())]
    np.testing.assert_allclose(operation(*positional, **named), gradients[index], rtol=1e-10, atol=1e-13)
    for array, copy in zip((*positional, *named.values()), before, strict=True):
        np.testing.assert_array_equal(array, copy)


# Products that each gradient needs. The GRU's reset gate takes one more, R_h h', for its slope, and its dW_ih
# is one of the gates and one of the candidate.
PRODUCTS = {"input": 1, "h_prev": 1, "c_prev": 0, "W_ih": 1, "W_hh": 1, "bias": 0, "b_ih": 0, "b_hh": 0}


@pytest.mark.parametrize(("kind", "index"), CASES)
def test_nothing_else_is_computed(kind, index, steps, unplanned, monkeypatch):
    (positional, named), _ = steps[kind]
    count = {"products": 0, "sums": 0}

    def spy(name, key, number=lambda *_: 1):
        original = getattr(engine.NumpyEngine, name)

        def counted(self, *args):
            count[key] += number(*args)
            return original(self, *args)

        monkeypatch.setattr(engine.NumpyEngine, name, counted)

    def in_loop(stages, steps):
        return len(steps) * sum(isinstance(stage, engine.Product) for stage in stages)

    spy("matmul", "products")  # a sum is a product with ones, and so counts here too
    spy("write_product", "products")
    spy("scan", "products", in_loop)
    spy("column_sums", "sums")
    operation = make(kind, index)
    operation(*positional, **named)
    name = operation.input_name
    extra = (2 if name == "W_ih" else 1) if kind is GradGRUCellInputOp else 0
    assert count["products"] - count["sums"] == PRODUCTS[name] + extra
    assert count["sums"] == (1 if name.startswith("b") else 0)


@pytest.mark.parametrize("missing", ["b_ih", "b_hh"])
@pytest.mark.parametrize("index", range(6))
def test_gru_with_one_bias(missing, index, steps):
    """The bias that is left out is zero, the other one counts; also where it is not finite."""
    (positional, named), _ = steps[GradGRUCellInputOp]
    arrays, biases = positional[:5], dict(zip(("b_ih", "b_hh"), positional[5:], strict=True))
    operation = make(GradGRUCellInputOp, index)
    one = operation(*arrays, **(biases | {missing: None}), **named)
    both = operation(*arrays, **(biases | {missing: np.zeros(3 * H)}), **named)
    np.testing.assert_array_equal(one, both)
    if missing == "b_ih" and index != 5:  # the recurrence bias is in the reset gate's slope
        assert not np.allclose(one, operation(*arrays, **named))
    infinite = {name: None if name == missing else np.full(3 * H, np.inf) for name in biases}
    with np.errstate(all="ignore"):
        got = operation(*arrays, **infinite, **named)
        expected = operation(*arrays, **(infinite | {missing: np.zeros(3 * H)}), **named)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", OPERATIONS)
def test_arrays_are_checked(kind, steps):
    (positional, named), _ = steps[kind]
    names = [*inspect.signature(kind.__call__).parameters][1:]
    arguments = dict(zip(names, positional, strict=False)) | named
    operation, optional = make(kind, 1), ("grad_c", "b_ih", "b_hh")
    if kind is GradLSTMCellInputOp:
        optional += ("grad_h",)
    for name, array in arguments.items():
        if name not in optional:
            with pytest.raises(
                TypeError, match=f"^{kind.operation}: {name} is None, expected an array(?m:$)"
            ):
                operation(**(arguments | {name: None}))
        with pytest.raises(TypeError, match=f"^{kind.operation}: {name} is a list, expected an array(?m:$)"):
            operation(**(arguments | {name: array.tolist()}))
        with pytest.raises(TypeError, match=f"^{kind.operation}: .* has dtype float"):
            operation(**(arguments | {name: array.astype("float32")}))


def test_lstm_without_a_cotangent(steps):
    """A cotangent that is None is zero."""
    (positional, named), _ = steps[GradLSTMCellInputOp]
    operation = make(GradLSTMCellInputOp, 1)
    zero = np.zeros_like(positional[1])
    np.testing.assert_array_equal(
        operation(positional[0], None, *positional[2:], **named),
        operation(positional[0], zero, *positional[2:], **named),
    )


def test_str():
    operation = GradLSTMCellInputOp(
        hidden_size=128,
        input_index=1,
        output_id=9,
        input_ids=[4, 5],
        output_type="Float32",
        output_shape=[32, 128],
    )
    assert str(operation) == "t9 = GradLSTMCell[h_prev, hidden=128](t4, t5) : Float32 [32, 128]"
    assert "[input[7], hidden=5]" in str(GradLSTMCellInputOp(5, 7, 1, (2, 3), "Float64", (5,)))
    names = [make(GradLSTMCellInputOp, index).input_name for index in range(6)]
    assert names == ["input", "h_prev", "c_prev", "W_ih", "W_hh", "bias"]


@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (1, {"output_id": -1}, "output_id is -1, expected at least 0"),
        (1, {"output_id": 4}, r"output_id is 4, expected none of the input_ids \(4, 5\)"),
        (1, {"input_ids": (4,)}, "input_ids has length 1, expected at least 2"),
        (1, {"input_ids": (4, -3)}, "input_ids has -3, expected at least 0"),
        (5, {"hidden_size": 0, "output_shape": (0,)}, "hidden_size is 0, expected at least 1"),
        (
            1,
            {"input_index": 6},
            "input_index is 6, expected 0 to 5 for input, h_prev, c_prev, W_ih, W_hh, bias",
        ),
        (1, {"output_shape": (4, 6)}, r"output_shape is \(4, 6\), expected \(N, H\) = \(any, 5\) for h_prev"),
        (3, {"output_shape": (5, 3)}, r"output_shape is \(5, 3\), expected \(4H, I\) = \(20, any\) for W_ih"),
        (4, {"output_shape": (20,)}, r"output_shape is \(20,\), expected \(4H, H\) = \(20, 5\) for W_hh"),
        (5, {"output_shape": (40,)}, r"output_shape is \(40,\), expected \(4H,\) = \(20\) for bias"),
        (1, {"input_index": 1.5}, "input_index is 1.5, expected an integer"),
        (1, {"hidden_size": None}, "hidden_size is None, expected an integer"),
        (1, {"input_ids": ("a", 5)}, "input_ids has 'a', expected integers"),
        (1, {"output_shape": (4, 5.0)}, "output_shape has 5.0, expected integers"),
        (1, {"output_type": "float32"}, "output_type is 'float32', expected one of Float16, BFloat16"),
    ],
)
def test_not_valid(index, changes, message, steps):
    operation = make(GradLSTMCellInputOp, index, **changes)
    validation = operation.validate()
    assert not validation
    assert len(validation) == 1
    assert str(changes.get("input_index", "h")) in str(operation)
    with pytest.raises(ValueError, match=f"^GradLSTMCell: {message}"):
        raise ValueError(str(validation))
    (positional, named), _ = steps[GradLSTMCellInputOp]
    with pytest.raises(ValueError, match=f"^GradLSTMCell: {message}"):
        operation(*positional, **named)


def test_all_problems_at_once():
    validation = GradLSTMCellInputOp(128, 1, -1, (), "Float8", (3,)).validate()
    assert len(validation) == 4
    assert str(GradLSTMCellInputOp(128, 1, 1, (2, 3), "Float32", (3, 128)).validate()) == "valid"


def test_result_must_be_as_declared(steps):
    (positional, named), _ = steps[GradLSTMCellInputOp]
    with pytest.raises(
        ValueError, match=r"gradient of h_prev has shape \(4, 5\), expected output_shape = \(6, 5\)"
    ):
        make(GradLSTMCellInputOp, 1, output_shape=(6, 5))(*positional, **named)
    with pytest.raises(
        TypeError, match="gradient of h_prev has dtype float64, expected output_type = Float32"
    ):
        make(GradLSTMCellInputOp, 1, output_type="Float32")(*positional, **named)
    with pytest.raises(TypeError, match="GradLSTMCell: W_hh is None, expected an array"):
        make(GradLSTMCellInputOp, 1)(*positional[:-1], None, **named)


def test_torch_tensors(steps):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (positional, named), gradients = steps[GradLSTMCellInputOp]
    tensors = [torch.from_numpy(array) for array in positional]
    saved = {name: torch.from_numpy(array) for name, array in named.items()}
    result = make(GradLSTMCellInputOp, 3)(*tensors, **saved)
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result.numpy(), gradients[3], rtol=1e-10)


def test_sizes_are_compared_with_the_operation_s_own(rng):
    x, h, c = rng.normal(size=(2, 3)), rng.normal(size=(2, 4)), rng.normal(size=(2, 4))
    W, R, gates = rng.normal(size=(16, 3)), rng.normal(size=(16, 4)), rng.uniform(size=(2, 16))

    def run(hidden_size, gates):
        operation = GradLSTMCellInputOp(hidden_size, 0, 9, (1, 2), "Float64", (2, 3))
        return operation(h, c, x, h, c, W, R, c_next=c, ifgo=gates)

    run(4, gates)
    with pytest.raises(
        ValueError, match=r"GradLSTMCell: h_prev has shape \(2, 4\), expected \(N, hidden_size\)"
    ):
        run(77, gates)
    with pytest.raises(ValueError, match=r"GradLSTMCell: ifgo has shape \(2, 15\)"):
        run(4, gates[:, :15])
    with pytest.raises(ValueError, match=r"hidden_size is 4\.5, expected an integer"):
        run(4.5, gates)
